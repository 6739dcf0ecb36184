//! Where the time of a run goes, kernel by kernel, beside what the machine allows.
//!
//! Between [`start`] and [`stop`] every call of a kernel is timed, with the operations it does and the bytes that it cannot
//! do without: weights, keys and values once, rows in and out once. An LSTM's products run inside other calls' threads and
//! are not seen.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::Serialize;

use crate::kernels::int8::peak_dots;
use crate::kernels::simd::{Kernel, Simd, dispatch};
use crate::protocol::Precision;

/// Numbers that each thread reads to measure the memory: far more than any cache holds.
const READ: usize = 64 << 20;
/// Rounds of the loops that measure arithmetic.
const ROUNDS: usize = 1 << 22;
/// Sums at once: as many as hide the latency of an addition.
const SUMS: usize = 12;

static ON: AtomicBool = AtomicBool::new(false);
static FIGURES: Mutex<BTreeMap<Kind, Figure>> = Mutex::new(BTreeMap::new());

/// Calls that are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Kind {
    /// What the kernel does.
    pub kernel: &'static str,
    /// What the weights, or keys and values, are kept at.
    pub precision: Precision,
    /// How many rows or queries go through it: few, as in a decode step, or many.
    pub many_rows: bool,
}

/// What calls came to.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Figure {
    /// How many there were.
    pub calls: usize,
    /// How long they took together.
    pub ms: f64,
    /// Multiplications and additions.
    pub operations: f64,
    /// Bytes read and written.
    pub bytes: f64,
}

/// What this machine can do with all threads.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Limits {
    /// Reading memory, in billions of bytes a second.
    pub read_gb_per_sec: f64,
    /// Multiplying and adding f32, in billions of either a second.
    pub f32_gflop_per_sec: f64,
    /// The same with 8-bit integers out of the first cache.
    pub int8_gop_per_sec: f64,
}

impl Figure {
    /// Billions of operations a second.
    pub fn gflop_per_sec(&self) -> f64 {
        self.operations / self.ms.max(1e-9) / 1e6
    }

    /// Billions of bytes a second.
    pub fn gb_per_sec(&self) -> f64 {
        self.bytes / self.ms.max(1e-9) / 1e6
    }

    /// Time that arithmetic or memory would need at the least over the time it took.
    pub fn share_of_limit(&self, precision: Precision, limits: &Limits) -> f64 {
        let arithmetic = match precision {
            Precision::Int8 => limits.int8_gop_per_sec,
            _ => limits.f32_gflop_per_sec,
        };
        (self.gflop_per_sec() / arithmetic).max(self.gb_per_sec() / limits.read_gb_per_sec)
    }
}

/// What a graphics card was given to do since the model was loaded. A recorded chain of kernels is one launch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct CardWork {
    /// What the processor started.
    pub launches: usize,
    /// Kernels in it.
    pub kernels: usize,
    /// Multiplications and additions of products and attention.
    pub operations: f64,
    /// Bytes of weights and cache that T3's steps cannot do without.
    pub bytes: f64,
}

impl CardWork {
    /// What came since.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            launches: self.launches - before.launches,
            kernels: self.kernels - before.kernels,
            operations: self.operations - before.operations,
            bytes: self.bytes - before.bytes,
        }
    }
}

/// The same, network by network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct CardWorks {
    /// T3's prompt.
    pub prefill: CardWork,
    /// T3's tokens.
    pub decode: CardWork,
    /// Encoder and solver.
    pub flow: CardWork,
    /// Pitch and vocoder.
    pub vocoder: CardWork,
}

/// What a graphics card can do.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct CardLimits {
    /// Copying, in billions of bytes read or written a second.
    pub copy_gb_per_sec: f64,
    /// Products of 16-bit floats on the tensor cores, in trillions of operations a second, by the instruction that the
    /// kernels use.
    pub product_tflop_per_sec: f64,
    /// A recorded step of the flow, replayed: the one used last.
    pub step_replay_ms: f64,
}

/// Starts counting from nothing.
pub fn start() {
    FIGURES.lock().unwrap_or_else(PoisonError::into_inner).clear();
    ON.store(true, Ordering::Relaxed);
}

/// Ends counting; the longest first.
pub fn stop() -> Vec<(Kind, Figure)> {
    ON.store(false, Ordering::Relaxed);
    let figures = std::mem::take(&mut *FIGURES.lock().unwrap_or_else(PoisonError::into_inner));
    let mut all: Vec<_> = figures.into_iter().collect();
    all.sort_by(|a, b| b.1.ms.total_cmp(&a.1.ms));
    all
}

/// Calls `f`; while somebody counts, as one call of `kind` with so many operations and bytes.
pub(crate) fn counted<R>(kind: Kind, operations: usize, bytes: usize, f: impl FnOnce() -> R) -> R {
    if !ON.load(Ordering::Relaxed) {
        return f();
    }
    let started = Instant::now();
    let out = f();
    let ms = started.elapsed().as_secs_f64() * 1e3;
    let mut figures = FIGURES.lock().unwrap_or_else(PoisonError::into_inner);
    let figure = figures.entry(kind).or_default();
    figure.calls += 1;
    figure.ms += ms;
    figure.operations += operations as f64;
    figure.bytes += bytes as f64;
    out
}

/// Measures the machine with all threads of the pool that it is called in.
pub(crate) fn limits() -> Limits {
    let threads = rayon::current_num_threads();
    let numbers = vec![1f32; READ * threads];
    let best = |work: &(dyn Fn(usize) + Sync)| {
        let once = || {
            let started = Instant::now();
            rayon::broadcast(|about| work(about.index()));
            started.elapsed().as_secs_f64()
        };
        (0..3).map(|_| once()).fold(f64::INFINITY, f64::min)
    };
    let read = best(&|i| {
        black_box(dispatch(Sum(&numbers[i * READ..][..READ])));
    });
    let multiply = best(&|_| {
        black_box(dispatch(Fma));
    });
    let lanes = dispatch(Lanes);
    let dots = best(&|_| {
        black_box(peak_dots(ROUNDS >> 6));
    });
    let billions = |each: f64, secs: f64| each * threads as f64 / secs / 1e9;
    Limits {
        read_gb_per_sec: billions((READ * size_of::<f32>()) as f64, read),
        f32_gflop_per_sec: billions((2 * ROUNDS * SUMS * lanes) as f64, multiply),
        int8_gop_per_sec: billions(peak_dots(0) * (ROUNDS >> 6) as f64, dots),
    }
}

/// Reads everything.
struct Sum<'a>(&'a [f32]);

impl Kernel for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let mut sums = [s.splat(0.0); 8];
        for chunk in self.0.chunks_exact(8 * S::LANES) {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = s.add(*sum, s.load(&chunk[i * S::LANES..]));
            }
        }
        sums.into_iter().map(|sum| s.sum(sum)).sum()
    }
}

/// Multiplies and adds in registers.
struct Fma;

impl Kernel for Fma {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let mut sums = [s.splat(black_box(1.0)); SUMS];
        let (a, b) = (s.splat(black_box(0.5)), s.splat(black_box(0.25)));
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = s.fma(*sum, a, b);
            }
        }
        sums.into_iter().map(|sum| s.sum(sum)).sum()
    }
}

struct Lanes;

impl Kernel for Lanes {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> usize {
        S::LANES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_between_start_and_stop_only() {
        let kind = Kind { kernel: "a test of counting", precision: Precision::F32, many_rows: false };
        counted(kind, 1, 1, || ());
        start();
        assert_eq!(counted(kind, 3, 5, || 7), 7);
        counted(kind, 3, 5, || ());
        let found = stop().into_iter().find(|(k, _)| *k == kind).map(|(_, figure)| figure);
        counted(kind, 1, 1, || ());
        assert!(found.is_some_and(|f| (f.calls, f.operations, f.bytes) == (2, 6.0, 10.0)), "{found:?}");
    }

    #[test]
    fn the_share_is_that_of_the_nearer_limit() {
        let limits = Limits { read_gb_per_sec: 10.0, f32_gflop_per_sec: 100.0, int8_gop_per_sec: 400.0 };
        let figure = Figure { calls: 1, ms: 1000.0, operations: 50e9, bytes: 1e9 };
        assert!((figure.share_of_limit(Precision::F32, &limits) - 0.5).abs() < 1e-9);
        assert!((figure.share_of_limit(Precision::Int8, &limits) - 0.125).abs() < 1e-9);
    }
}
