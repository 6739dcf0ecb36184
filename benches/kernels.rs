//! What the engine's kernels do on this machine: `cargo bench --bench kernels [filter]`.
//!
//! The shapes are those of the released models: a step of T3 reads its weights once for one or two rows, the flow
//! multiplies some hundreds of rows, HiFT convolves thousands. "Items" are floating-point operations (two for each
//! multiplication and addition) and, for a decode step, "bytes" are weights read; `copy` and `candle` are what the
//! machine allows.
#![allow(clippy::unwrap_used)]

use candle_core::{Device, Tensor};
use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use myna_engine::nn::{
    Conv1d, ConvConfig, KvCache, Linear, Mask, PackedKeys, attend, attend_packed, attend_relative, mish, silu_gate,
};
use myna_engine::protocol::Precision;
use myna_engine::weights::Keep;

const PRECISIONS: [Precision; 4] = [Precision::F32, Precision::F16, Precision::Bf16, Precision::Int8];
/// `(rows, inputs, outputs)` of the flow's estimator: queries, keys and values; both halves of the feed-forward.
const FLOW: [(usize, usize, usize); 3] = [(1400, 256, 1536), (1400, 256, 1024), (1400, 1024, 256)];
/// `(rows, inputs, outputs)` of one layer of T3: Nano's, Turbo's, English with guidance.
const STEP: [(usize, usize, usize); 3] = [(1, 768, 3072), (1, 1024, 4096), (2, 1024, 8192)];

fn main() {
    divan::main();
}

fn random(dims: &[usize]) -> Tensor {
    Tensor::randn(0f32, 1f32, dims, &Device::Cpu).unwrap()
}

fn linear(inputs: usize, outputs: usize, precision: Precision) -> Linear {
    Linear::new(&random(&[outputs, inputs]), None, &Keep { precision, ..Keep::default() }).unwrap()
}

fn bytes_of(precision: Precision) -> f64 {
    match precision {
        Precision::F32 => 4.0,
        Precision::F16 | Precision::Bf16 => 2.0,
        Precision::Int8 => 1.0,
    }
}

fn shapes(shapes: [(usize, usize, usize); 3]) -> impl Iterator<Item = (Precision, (usize, usize, usize))> {
    PRECISIONS.into_iter().flat_map(move |precision| shapes.map(|shape| (precision, shape)))
}

/// The machine's own limit of reading and writing: 256 MB copied on every core.
#[divan::bench]
fn copy(bencher: Bencher<'_, '_>) {
    const CORE: usize = 64 << 20;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let from = vec![1f32; CORE * cores];
    let mut to = vec![0f32; CORE * cores];
    bencher.counter(BytesCount::new(2 * 4 * CORE * cores)).bench_local(|| {
        std::thread::scope(|scope| {
            for (to, from) in to.chunks_mut(CORE).zip(from.chunks(CORE)) {
                scope.spawn(move || to.copy_from_slice(black_box(from)));
            }
        });
    });
}

/// The general product that candle uses, in f32.
#[divan::bench(args = FLOW)]
fn candle(bencher: Bencher<'_, '_>, (m, k, n): (usize, usize, usize)) {
    let (x, w) = (random(&[m, k]), random(&[k, n]));
    bencher.counter(ItemsCount::new(2 * m * k * n)).bench_local(|| x.matmul(&w).unwrap());
}

/// Many rows at every precision.
#[divan::bench(args = shapes(FLOW))]
fn product(bencher: Bencher<'_, '_>, (precision, (m, k, n)): (Precision, (usize, usize, usize))) {
    let (x, w) = (random(&[m, k]), linear(k, n, precision));
    bencher.counter(ItemsCount::new(2 * m * k * n)).bench_local(|| w.forward(&x).unwrap());
}

/// One or two rows against the weights of 24 layers, so that they come from memory and not from a cache.
#[divan::bench(args = shapes(STEP))]
fn decode_step(bencher: Bencher<'_, '_>, (precision, (m, k, n)): (Precision, (usize, usize, usize))) {
    const LAYERS: usize = 24;
    let x = random(&[m, k]);
    let layers: Vec<Linear> = (0..LAYERS).map(|_| linear(k, n, precision)).collect();
    let bytes = (LAYERS * k * n) as f64 * bytes_of(precision);
    bencher.counter(BytesCount::new(bytes as u64)).bench_local(|| {
        layers.iter().for_each(|w| drop(black_box(w.forward(&x).unwrap())));
    });
}

/// A convolution of HiFT's last stage, four seconds of sound: as one product, and with half the multiplications (its figure
/// counts those of the product).
#[divan::bench(args = [(3, 1), (7, 3), (11, 5)], consts = [false, true])]
fn convolution<const FAST: bool>(bencher: Bencher<'_, '_>, (kernel, dilation): (usize, usize)) {
    const ROWS: usize = 24_000;
    const CHANNELS: usize = 64;
    let make = if FAST { Conv1d::new_fast } else { Conv1d::new };
    let conv = make(&random(&[CHANNELS, CHANNELS, kernel]), None, ConvConfig::same(kernel, dilation)).unwrap();
    let xs = random(&[1, ROWS, CHANNELS]);
    bencher
        .counter(ItemsCount::new(2 * ROWS * CHANNELS * CHANNELS * kernel))
        .bench_local(|| conv.forward(&xs).unwrap());
}

/// Everybody looks at everybody: `(rows of the batch, frames)` of the flow, in f32 and at 8 bits.
#[divan::bench(args = [Precision::F32, Precision::Int8], consts = [700, 2500])]
fn attention<const FRAMES: usize>(bencher: Bencher<'_, '_>, precision: Precision) {
    const BATCH: usize = 2;
    const HEADS: usize = 8;
    const DIM: usize = 64;
    let part = || random(&[BATCH, FRAMES, HEADS, DIM]);
    let (q, k, v) = (part(), part(), part());
    bencher.counter(ItemsCount::new(4 * BATCH * FRAMES * FRAMES * HEADS * DIM)).bench_local(|| match precision {
        Precision::Int8 => {
            let mut keys = PackedKeys::default();
            keys.push(&k, &v).unwrap();
            attend_packed(&q, &keys, 0.125, &Mask::Full).unwrap()
        }
        _ => attend(&q, &k, &v, 0.125, &Mask::Full, None).unwrap(),
    });
}

/// The conformer's, with a term for the distance.
#[divan::bench(args = [350, 700])]
fn relative_attention(bencher: Bencher<'_, '_>, frames: usize) {
    const HEADS: usize = 8;
    const DIM: usize = 64;
    let part = |rows: usize| random(&[1, rows, HEADS, DIM]);
    let (q_u, q_v, k, v, p) = (part(frames), part(frames), part(frames), part(frames), part(2 * frames - 1));
    bencher
        .counter(ItemsCount::new(6 * frames * frames * HEADS * DIM))
        .bench_local(|| attend_relative((&q_u, &q_v), &k, &v, &p, 0.125, &Mask::Full).unwrap());
}

/// One token looks back at 400: English with guidance, in a cache of either kind.
#[divan::bench(args = [Precision::F32, Precision::Int8])]
fn decode_attention(bencher: Bencher<'_, '_>, precision: Precision) {
    const PAST: usize = 400;
    const HEADS: usize = 16;
    const DIM: usize = 64;
    let mut cache = KvCache::new((2, PAST + 1), (HEADS, DIM), precision, &Device::Cpu).unwrap();
    let past = random(&[2, PAST, HEADS, DIM]);
    cache.append_and_attend(&past, &past, &past, 0.125).unwrap();
    let next = random(&[2, 1, HEADS, DIM]);
    bencher.counter(ItemsCount::new(4 * 2 * PAST * HEADS * DIM)).bench_local(|| {
        cache.truncate(PAST);
        cache.append_and_attend(&next, &next, &next, 0.125).unwrap()
    });
}

/// Element by element, where memory is the limit: bytes read and written.
#[divan::bench(args = ["mish", "silu_gate"])]
fn pointwise(bencher: Bencher<'_, '_>, name: &str) {
    const ROWS: usize = 1400;
    const CHANNELS: usize = 1024;
    let xs = random(&[1, ROWS, CHANNELS]);
    bencher.counter(BytesCount::new(2 * 4 * ROWS * CHANNELS)).bench_local(|| match name {
        "mish" => mish(&xs).unwrap(),
        _ => silu_gate(&xs).unwrap(),
    });
}
