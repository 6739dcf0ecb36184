//! Processors: which one runs the networks, and how its cores are shared between T3 and S3Gen.

use std::sync::Arc;

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
    let number = crate::t3::on_card::number_of(precision).of_products();
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

fn pool(threads: usize) -> Result<Arc<ThreadPool>> {
    let pool = ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("myna-{i}")).build();
    Ok(Arc::new(pool.map_err(|e| Error::internal(format!("cannot start threads: {e}")))?))
}
