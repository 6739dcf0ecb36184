//! The upsampling stack: mel and excitation to samples.
//!
//! `render` computes a part of a clip from a window of it. Every stage works on the frames that the stages behind it
//! can still see and drops the rest, so a window costs little more than the part that is kept.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};

use super::{HiftConfig, SAMPLES_PER_FRAME, weight_norm};
use crate::error::{Error, Result};
use crate::nn::{Conv1d, ConvConfig, ConvTranspose1d, Snake, add, leaky_relu};
use crate::s3gen::MEL_CHANNELS;
use crate::weights::Weights;

pub(in crate::s3gen) const N_FFT: usize = 16;
pub(in crate::s3gen) const HOP: usize = 4;
pub(in crate::s3gen) const BINS: usize = N_FFT / 2 + 1;
/// STFT frames to a mel frame.
pub(in crate::s3gen) const STFT_PER_FRAME: usize = SAMPLES_PER_FRAME / HOP;
pub(in crate::s3gen) const DILATIONS: [usize; 3] = [1, 3, 5];
pub(in crate::s3gen) const RESBLOCK_KERNELS: [usize; 3] = [3, 7, 11];
pub(in crate::s3gen) const AUDIO_LIMIT: f32 = 0.99;
const MAX_MAGNITUDE: f32 = 100.0;

/// Frames on either side of a sample's own that it depends on, the excitation given.
pub(in crate::s3gen) const REACH_FRAMES: usize = STAGES[0].reach + STAGES[1].reach + STAGES[2].reach;

/// What differs between the three stages.
#[derive(Debug)]
pub(in crate::s3gen) struct StageShape {
    /// Kernel, stride and padding of the upsampling, and of what the excitation goes through.
    pub up: (usize, usize, usize),
    pub source_down: (usize, usize, usize),
    pub source_kernel: usize,
    /// Frames on either side that the stage's output depends on, rounded up: its rows hold 1/8, 1/40 and 1/120 frame,
    /// a residual block sees 36 (kernel 7) or 60 (kernel 11) rows, and each input some more.
    pub reach: usize,
}

pub(in crate::s3gen) const STAGES: [StageShape; 3] = [
    // conv_pre 3 frames and the upsampling 1, or 2 rows of source_down and 36; then 60 rows: 98 of 1/8 frame.
    StageShape { up: (16, 8, 4), source_down: (30, 15, 7), source_kernel: 7, reach: 13 },
    // 2 + 36 + 60 rows of 1/40 frame.
    StageShape { up: (11, 5, 3), source_down: (6, 3, 1), source_kernel: 7, reach: 3 },
    // 2 + 60 + 60 rows of 1/120 frame; conv_post 3, inverse STFT 2.
    StageShape { up: (7, 3, 2), source_down: (1, 1, 0), source_kernel: 11, reach: 2 },
];

#[derive(Debug, Clone)]
pub(super) struct Generator {
    /// Samples to real and imaginary parts, as a convolution with a windowed Fourier basis.
    stft: Conv1d,
    conv_pre: Conv1d,
    stages: Vec<Stage>,
    conv_post: Conv1d,
    /// Real and imaginary parts to samples, as a transposed convolution.
    istft: ConvTranspose1d,
}

#[derive(Debug, Clone)]
struct Stage {
    up: ConvTranspose1d,
    source_down: Conv1d,
    source_resblock: ResBlock,
    resblocks: Vec<ResBlock>,
}

impl Generator {
    pub(super) fn load(w: &Weights, config: &HiftConfig) -> Result<Self> {
        let base = config.base_channels;
        let conv = |name: &str, outputs: usize, inputs: usize| {
            let w = w.pp(name);
            let bias = Some(w.get("bias", outputs)?);
            let weight = || weight_norm(&w, (outputs, inputs, 7), DType::F32);
            Conv1d::made(&w, (outputs, inputs), weight, bias, ConvConfig::same(7, 1))
        };
        let stages = STAGES.iter().enumerate().map(|(i, shape)| Stage::load(w, i, shape, base >> i));
        Ok(Self {
            stft: fourier::forward(w.device())?,
            conv_pre: conv("conv_pre", base, MEL_CHANNELS)?,
            stages: stages.collect::<Result<_>>()?,
            conv_post: conv("conv_post", 2 * BINS, base >> STAGES.len())?,
            istft: fourier::inverse(w.device())?,
        })
    }

    /// The samples of frames `keep` from `mel: (1, T, 80)` and its excitation of 480 T samples. Outside of them lies
    /// silence as at the ends of a clip, so what is within [`REACH_FRAMES`] of a window's edge is only right if the
    /// clip ends there too.
    pub(super) fn render(&self, mel: &Tensor, source: &[f32], keep: Range<usize>) -> Result<Vec<f32>> {
        let frames = mel.dim(1)?;
        if keep.is_empty() {
            return Ok(Vec::new());
        }
        let mut reach = REACH_FRAMES;
        let around = |reach: usize| keep.start.saturating_sub(reach)..(keep.end + reach).min(frames);
        let mut span = around(reach);
        let first = span.start;
        let heard = span.start * SAMPLES_PER_FRAME..span.end * SAMPLES_PER_FRAME;
        let spectrum = self.spectrum(&source[heard], mel.device())?;
        let mut xs = self.conv_pre.forward(&mel.narrow(1, span.start, span.len())?)?;
        for (i, (stage, shape)) in self.stages.iter().zip(&STAGES).enumerate() {
            let last = i + 1 == STAGES.len();
            let rows = span.len() * STFT_PER_FRAME + 1;
            let spectrum = spectrum.narrow(1, (span.start - first) * STFT_PER_FRAME, rows)?;
            xs = stage.forward(&xs, &spectrum, last)?;
            if !last {
                reach -= shape.reach;
                let rate = xs.dim(1)? / span.len();
                let next = around(reach);
                xs = xs.narrow(1, (next.start - span.start) * rate, next.len() * rate)?;
                span = next;
            }
        }
        let wav = self.samples(&xs)?;
        let start = (keep.start - span.start) * SAMPLES_PER_FRAME;
        Ok(wav[start..start + keep.len() * SAMPLES_PER_FRAME].to_vec())
    }

    /// `(L) -> (1, L / 4 + 1, 18)`, centred, reflected at the ends.
    fn spectrum(&self, source: &[f32], device: &Device) -> Result<Tensor> {
        let pad = N_FFT / 2;
        let n = source.len();
        let mut padded = Vec::with_capacity(n + N_FFT);
        padded.extend((1..=pad).rev().map(|i| source[i]));
        padded.extend_from_slice(source);
        padded.extend((1..=pad).map(|i| source[n - 1 - i]));
        self.stft.forward_unpadded(&Tensor::from_vec(padded, (1, n + N_FFT, 1), device)?)
    }

    /// `xs: (1, R, C)` to 4 (R - 1) samples.
    fn samples(&self, xs: &Tensor) -> Result<Vec<f32>> {
        // 0.01 and not the 0.1 of the stages: the reference leaves the slope at its default here.
        let xs = self.conv_post.forward(&leaky_relu(xs, 0.01)?)?;
        let magnitude = xs.narrow(2, 0, BINS)?.exp()?.minimum(MAX_MAGNITUDE)?;
        let phase = xs.narrow(2, BINS, BINS)?.sin()?;
        let parts = [(&magnitude * phase.cos()?)?, (&magnitude * phase.sin()?)?];
        let wav = self.istft.forward(&Tensor::cat(&parts, 2)?)?;
        let mut wav: Vec<f32> = wav.flatten_all()?.to_vec1()?;
        fourier::mend_ends(&mut wav);
        wav.iter_mut().for_each(|s| *s = s.clamp(-AUDIO_LIMIT, AUDIO_LIMIT));
        Ok(wav)
    }
}

/// Fails if the excitation does not belong to the mel, or not all frames of `keep` are there.
pub(super) fn check(mel: &Tensor, source: &[f32], keep: &Range<usize>) -> Result<()> {
    let frames = mel.dim(1)?;
    if source.len() != frames * SAMPLES_PER_FRAME || keep.end > frames {
        return Err(Error::internal(format!(
            "the vocoder was given {frames} frames, {} source samples and asked for frames {keep:?}",
            source.len()
        )));
    }
    Ok(())
}

impl Stage {
    fn load(w: &Weights, i: usize, shape: &StageShape, inputs: usize) -> Result<Self> {
        let channels = inputs / 2;
        let (kernel, stride, padding) = shape.up;
        let up = w.pp("ups").pp(i);
        let (down_kernel, down_stride, down_padding) = shape.source_down;
        let geometry = ConvConfig::strided(down_kernel, down_stride, down_padding);
        let resblocks = RESBLOCK_KERNELS.iter().enumerate().map(|(j, &kernel)| {
            ResBlock::load(&w.pp("resblocks").pp(RESBLOCK_KERNELS.len() * i + j), channels, kernel)
        });
        Ok(Self {
            up: ConvTranspose1d::made(
                &up,
                (inputs, channels, kernel),
                || weight_norm(&up, (inputs, channels, kernel), DType::F32),
                (stride, padding),
            )?,
            source_down: Conv1d::load(&w.pp("source_downs").pp(i), 2 * BINS, channels, geometry)?,
            source_resblock: ResBlock::load(&w.pp("source_resblocks").pp(i), channels, shape.source_kernel)?,
            resblocks: resblocks.collect::<Result<_>>()?,
        })
    }

    /// `xs: (1, T, 2C)`, `spectrum: (1, 120 F + 1, 18)` to `(1, T · rate, C)`, one row more in the last stage.
    fn forward(&self, xs: &Tensor, spectrum: &Tensor, last: bool) -> Result<Tensor> {
        let mut xs = self.up.forward(&leaky_relu(xs, 0.1)?)?;
        if last {
            // The row in front, mirrored, makes as many rows as the STFT has frames.
            xs = Tensor::cat(&[&xs.narrow(1, 1, 1)?, &xs], 1)?;
        }
        let source = self.source_resblock.forward(&self.source_down.forward(spectrum)?)?;
        let xs = add(&xs, &source)?;
        let mut sum = self.resblocks[0].forward(&xs)?;
        for block in &self.resblocks[1..] {
            sum = add(&sum, &block.forward(&xs)?)?;
        }
        Ok((sum / self.resblocks.len() as f64)?)
    }
}

/// `x += conv2(snake2(conv1(snake1(x))))` for each dilation.
#[derive(Debug, Clone)]
struct ResBlock {
    layers: Vec<(Snake, Conv1d, Snake, Conv1d)>,
}

impl ResBlock {
    fn load(w: &Weights, channels: usize, kernel: usize) -> Result<Self> {
        let conv = |name: &str, i: usize, dilation: usize| {
            let w = w.pp(name).pp(i);
            let weight = || weight_norm(&w, (channels, channels, kernel), DType::F32);
            let bias = Some(w.get("bias", channels)?);
            Conv1d::made_fast(&w, (channels, channels), weight, bias, ConvConfig::same(kernel, dilation))
        };
        let snake = |name: &str, i: usize| Snake::load(&w.pp(name).pp(i), channels);
        let layer = |(i, &dilation): (usize, &usize)| {
            Ok((
                snake("activations1", i)?,
                conv("convs1", i, dilation)?,
                snake("activations2", i)?,
                conv("convs2", i, 1)?,
            ))
        };
        Ok(Self { layers: DILATIONS.iter().enumerate().map(layer).collect::<Result<_>>()? })
    }

    /// `xs: (B, T, C) -> (B, T, C)`.
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut xs = xs.clone();
        for (snake1, conv1, snake2, conv2) in &self.layers {
            let ys = conv1.forward(&snake1.forward(&xs)?)?;
            xs = conv2.forward_add(&snake2.forward(&ys)?, &xs)?;
        }
        Ok(xs)
    }
}

/// A 16-point STFT with hop 4 and a periodic Hann window as (transposed) convolutions.
mod fourier {
    use std::f64::consts::TAU;

    use candle_core::{Device, Tensor};

    use super::{BINS, HOP, N_FFT};
    use crate::error::Result;
    use crate::nn::{Conv1d, ConvConfig, ConvTranspose1d};

    /// Sum of the squared windows over a sample that four frames cover.
    const ENVELOPE: f64 = 1.5;

    fn hann(n: usize) -> f64 {
        0.5 - 0.5 * (TAU * n as f64 / N_FFT as f64).cos()
    }

    pub(super) fn forward(device: &Device) -> Result<Conv1d> {
        let mut basis = Vec::with_capacity(2 * BINS * N_FFT);
        for row in 0..2 * BINS {
            for n in 0..N_FFT {
                let angle = TAU * ((row % BINS * n) % N_FFT) as f64 / N_FFT as f64;
                let wave = if row < BINS { angle.cos() } else { -angle.sin() };
                basis.push((hann(n) * wave) as f32);
            }
        }
        let weight = Tensor::from_vec(basis, (2 * BINS, 1, N_FFT), device)?;
        Conv1d::new(&weight, None, ConvConfig::strided(N_FFT, HOP, 0))
    }

    pub(super) fn inverse(device: &Device) -> Result<ConvTranspose1d> {
        let mut basis = Vec::with_capacity(2 * BINS * N_FFT);
        for row in 0..2 * BINS {
            let bin = row % BINS;
            // The real parts of bins 0 and 8 stand for themselves, all others also for their mirror image.
            let weight = if bin == 0 || bin == N_FFT / 2 { 1.0 } else { 2.0 };
            for n in 0..N_FFT {
                let angle = TAU * ((bin * n) % N_FFT) as f64 / N_FFT as f64;
                let wave = if row < BINS { angle.cos() } else { -angle.sin() };
                basis.push((weight * wave * hann(n) / (N_FFT as f64 * ENVELOPE)) as f32);
            }
        }
        let weight = Tensor::from_vec(basis, (2 * BINS, 1, N_FFT), device)?;
        ConvTranspose1d::new(&weight, &Tensor::zeros(1, candle_core::DType::F32, device)?, HOP, N_FFT / 2)
    }

    /// Only three frames cover the first and the last four samples.
    pub(super) fn mend_ends(wav: &mut [f32]) {
        let end = wav.len();
        for i in 0..HOP.min(end / 2) {
            let missing = |n: usize| (ENVELOPE / (ENVELOPE - hann(n).powi(2))) as f32;
            wav[i] *= missing(N_FFT - HOP + i);
            wav[end - 1 - i] *= missing(HOP - 1 - i);
        }
    }
}
