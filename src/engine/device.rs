//! Processors: which one runs the networks, and how its cores are shared between T3 and S3Gen.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use candle_core::Device;
use rayon::{ThreadPool, ThreadPoolBuilder};

#[cfg(feature = "cuda")]
use crate::cuda::Card;
use crate::error::{Error, Result};
use crate::protocol::{DeviceKind, Precision};
use crate::s3gen::S3Gen;
use crate::s3gen::hift::{Hift, HiftConfig};
use crate::t3::T3;
use crate::weights::Weights;

/// The kinds of device that this build runs on.
pub(crate) fn available() -> &'static [DeviceKind] {
    if cfg!(feature = "cuda") { &[DeviceKind::Cpu, DeviceKind::Cuda] } else { &[DeviceKind::Cpu] }
}

/// Opens the device that tensors live on. With a CUDA card that is the CPU still: see [`put_on_card`].
///
/// # Errors
/// If this build does not have it; the text says what to do.
pub(crate) fn open_device(kind: DeviceKind) -> Result<Device> {
    match kind {
        DeviceKind::Cpu => Ok(Device::Cpu),
        DeviceKind::Cuda if cfg!(feature = "cuda") => Ok(Device::Cpu),
        DeviceKind::Cuda => {
            Err(Error::input("this build of Myna cannot use a CUDA card; leave out `--device cuda` to run on the CPU"))
        }
        DeviceKind::Metal => {
            Err(Error::input("this build of Myna cannot use Metal; leave out `--device metal` to run on the CPU"))
        }
    }
}

/// Has T3 run on the first CUDA card. Returns what is to be said of it, in words, and the card; the reason and none, where
/// T3 stays on the CPU.
///
/// # Errors
/// If `weights`, the file that `t3` was loaded from, cannot be read.
#[cfg(feature = "cuda")]
pub(crate) fn put_on_card(t3: &mut T3, weights: &Weights, precision: Precision) -> Result<(String, Option<Arc<Card>>)> {
    let number = crate::t3::on_card::number_of(precision);
    // A driver that lacks a function has cudarc panic.
    let open = std::panic::catch_unwind(Card::open);
    let card = open.unwrap_or_else(|_| Err(Error::device("the driver is too old; 580 or newer is needed")));
    let put = card.and_then(|card| t3.put_on_card(weights, card.clone(), number).map(|()| card));
    match put {
        Ok(card) => Ok((format!("{} (T3 {}", card.name(), number.name()), Some(card))),
        Err(Error::Device(why)) => Ok((format!("GPU: none, because {why}"), None)),
        Err(other) => Err(other),
    }
}

/// Has S3Gen's decoder run on the card that T3 is on; it works on beside it. Returns what is to be said of it, in words.
///
/// # Errors
/// If `weights`, the file that both were loaded from, cannot be read.
#[cfg(feature = "cuda")]
pub(crate) fn put_decoder_on_card(
    (s3gen, hift): (&mut S3Gen, &mut Hift),
    weights: &Weights,
    config: &HiftConfig,
    card: &Card,
    precision: Precision,
) -> Result<String> {
    let number = crate::t3::on_card::number_of(precision);
    let put = card.beside().and_then(|card| {
        s3gen.put_on_card(weights, &card, number)?;
        hift.put_on_card(&weights.pp("mel2wav"), config, &card)
    });
    match put {
        Ok(()) => Ok(format!(", S3Gen {})", number.name())),
        Err(Error::Device(why)) => Ok(format!("; S3Gen on the CPU, because {why})")),
        Err(other) => Err(other),
    }
}

/// A card, in a build that knows none.
#[cfg(not(feature = "cuda"))]
pub(crate) enum Card {}

/// As above, in a build that knows no cards; [`open_device`] has said so before.
#[cfg(not(feature = "cuda"))]
pub(crate) fn put_on_card(_: &mut T3, _: &Weights, _: Precision) -> Result<(String, Option<Arc<Card>>)> {
    open_device(DeviceKind::Cuda).map(|_| (String::new(), None))
}

/// As above.
#[cfg(not(feature = "cuda"))]
pub(crate) fn put_decoder_on_card(
    _: (&mut S3Gen, &mut Hift),
    _: &Weights,
    _: &HiftConfig,
    card: &Card,
    _: Precision,
) -> Result<String> {
    match *card {}
}

/// The processor in words: "CPU, 2 threads, AVX-512".
pub(crate) fn describe_cpu(threads: usize) -> String {
    let unit = if threads == 1 { "thread" } else { "threads" };
    format!("CPU, {threads} {unit}{}", vector_unit().map(|name| format!(", {name}")).unwrap_or_default())
}

#[cfg(target_arch = "x86_64")]
fn vector_unit() -> Option<&'static str> {
    if is_x86_feature_detected!("avx512f") {
        Some("AVX-512")
    } else if is_x86_feature_detected!("avx2") {
        Some("AVX2")
    } else {
        None
    }
}

#[cfg(target_arch = "aarch64")]
fn vector_unit() -> Option<&'static str> {
    Some("NEON")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn vector_unit() -> Option<&'static str> {
    None
}

/// The cores: all together while one network works, or a part for T3 and the rest for S3Gen while both do.
#[derive(Debug, Clone)]
pub(crate) struct Lanes {
    pub all: Arc<ThreadPool>,
    pub t3: Arc<ThreadPool>,
    pub s3gen: Arc<ThreadPool>,
}

impl Lanes {
    /// Pools for `threads` threads, or one for each core.
    pub(crate) fn new(threads: Option<usize>) -> Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = threads.unwrap_or(cores);
        if threads == 0 || threads > 1024 {
            return Err(Error::input(format!("{threads} threads make no sense; this machine has {cores} cores")));
        }
        let half = (threads / 2).max(1);
        Ok(Self { all: pool(threads)?, t3: pool(half)?, s3gen: pool((threads - half).max(1))? })
    }

    /// Number of threads in all.
    pub(crate) fn threads(&self) -> usize {
        self.all.current_num_threads()
    }
}

/// Rounds without work after which a waking thread lets other programs have its core.
const PATIENT_ROUNDS: usize = 1 << 10;

/// Runs `f` while the other threads of the pool stay awake for its parts. A decode step has hundreds of parts of some tens of
/// microseconds each; to wake a thread takes as long as such a part.
pub(crate) fn awake<R>(f: impl FnOnce() -> R) -> R {
    /// Says that it is over, also where `f` panics.
    struct Over(Arc<AtomicBool>);
    impl Drop for Over {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let (Some(me), true) = (rayon::current_thread_index(), rayon::current_num_threads() > 1) else { return f() };
    let over = Over(Arc::default());
    let is_over = over.0.clone();
    rayon::spawn_broadcast(move |thread| {
        let mut rounds = 0;
        // This thread may come by here too, while it waits for a part that another one does.
        while thread.index() != me && !is_over.load(Ordering::Relaxed) {
            if rayon::yield_now() == Some(rayon::Yield::Executed) {
                rounds = 0;
            } else if rounds < PATIENT_ROUNDS {
                rounds += 1;
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    });
    f()
}

fn pool(threads: usize) -> Result<Arc<ThreadPool>> {
    let pool = ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("myna-{i}")).build();
    Ok(Arc::new(pool.map_err(|e| Error::internal(format!("cannot start threads: {e}")))?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use rayon::prelude::*;

    use super::*;

    #[test]
    fn threads_that_stay_awake_do_the_work_and_let_go() {
        let sum = || (0..64u64).into_par_iter().map(|i| (0..1000).fold(i, |a, b| a ^ (a * 31 + b))).sum::<u64>();
        let expected = sum();
        for threads in [1, 2, 3] {
            let pool = pool(threads).unwrap();
            for _ in 0..50 {
                assert_eq!(pool.install(|| awake(|| (0..5).map(|_| sum()).max())), Some(expected));
            }
            let failed = catch_unwind(AssertUnwindSafe(|| pool.install(|| awake(|| panic!("a part fails")))));
            assert!(failed.is_err());
            // All threads are to be had again.
            assert_eq!(pool.broadcast(|thread| thread.index()).len(), threads);
        }
        assert_eq!(awake(|| 7), 7, "outside of any pool");
    }
}
