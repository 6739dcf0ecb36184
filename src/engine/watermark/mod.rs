//! PerTh: a mark in the magnitudes below 2 kHz that says "this was synthesised".
//!
//! `mag = (20 log10 |STFT| + 180) / 195; mag += residual(mag) where there is sound`, the phase kept. Resemble AI's
//! implicit watermarker as the reference applies it to everything it makes (package `resemble-perth`, MIT).
//!
//! The reference goes to 32 kHz and back for a transform of 2048 samples every 320. Both are whole numbers at 24 kHz as
//! well, 1536 every 240: the same window at the same instants, the same bins, and a spectrum that differs by the
//! factor 3/4 and nothing else below 12 kHz. So nothing is resampled here and the sound above the mark stays untouched.
//! What is left of the difference is the roll-off of the reference's two resamplers above 11 kHz.
//!
//! Streaming: [`Watermarker::push`] needs [`LOOKAHEAD_SAMPLES`] (214 ms) to the right of a sample: half a window to
//! analyse, 15 frames of convolutions, half a window to synthesise. Chunks concatenated equal the whole.

mod detector;
mod network;
mod stream;

use std::path::Path;

use candle_core::Device;

use crate::dsp::stft::Stft;
use crate::error::Result;
use crate::weights::Weights;

pub use detector::{MARKED_FROM, WatermarkDetector};
use network::ConvStack;
pub use stream::WatermarkState;

/// The rate at which marks are made and read.
pub const SAMPLE_RATE_HZ: u32 = 24_000;
/// Samples that must follow one before it can be given out marked.
pub const LOOKAHEAD_SAMPLES: usize = N_FFT + REACH_FRAMES * HOP;

const N_FFT: usize = 1536;
const HOP: usize = 240;
/// Samples of a whole clip that are worked on at once, 5 s: bounds the memory, not the result.
const PIECE_SAMPLES: usize = 500 * HOP;
/// Marked bins, 15.625 Hz each: up to 2 kHz.
const SUBBAND: usize = 128;
/// Frames on either side that the residual of one depends on: five convolutions of 7.
const REACH_FRAMES: usize = 15;
/// dB span of a normalised magnitude of 1, and the floor that is its 0.
const SPAN_DB: f32 = 195.0;
const FLOOR_DB: f32 = -180.0;
/// Frames below this part of the loudest one's level are left alone.
const ACTIVE_PART: f32 = 0.05;
/// What the loudest frame of speech comes to, for a stream that has not heard it yet.
const EXPECTED_LEVEL: f32 = 0.7 * (N_FFT / 2 + 1) as f32;

/// The networks that come with the program.
static WEIGHTS: &[u8] = include_bytes!("../../../models/perth/perth.safetensors");

/// The watermark networks inside the program.
///
/// # Errors
/// Never for the file that ships.
fn embedded() -> Result<Weights> {
    Weights::from_static(Path::new("embedded/perth.safetensors"), WEIGHTS, &Device::Cpu)
}

/// Makes marks.
#[derive(Debug, Clone)]
pub struct Watermarker {
    stft: Stft,
    encoder: ConvStack,
}

impl Watermarker {
    /// Loads the encoder of a PerTh file (`models/perth/perth.safetensors`).
    ///
    /// # Errors
    /// If the file cannot be read or lacks a tensor.
    pub fn load(w: &Weights) -> Result<Self> {
        let encoder = ConvStack::load(&w.pp("encoder").pp("layers"), SUBBAND)?;
        w.ignore("decoder");
        w.finish()?;
        Ok(Self { stft: Stft::new(N_FFT, HOP), encoder })
    }

    /// The encoder inside the program, on the CPU.
    ///
    /// # Errors
    /// Never for the file that ships.
    pub fn embedded() -> Result<Self> {
        Self::load(&embedded()?)
    }

    /// Marks a whole clip at 24 kHz by the reference's rule for silence, which needs the loudest frame of the clip.
    /// As many samples come out; a clip of less than 32 ms is too short for a mark and comes back as it is.
    ///
    /// # Errors
    /// If the transform or the network fails: a defect, not the caller's.
    pub fn apply(&self, samples: &[f32]) -> Result<Vec<f32>> {
        let mut loudest = 0f32;
        if samples.len() > N_FFT / 2 {
            self.stft.each_frame(samples, self.stft.centred(), |bins| loudest = loudest.max(level(bins)))?;
        }
        let mut state = WatermarkState::new(ACTIVE_PART * loudest);
        let mut marked = Vec::with_capacity(samples.len());
        for piece in samples.chunks(PIECE_SAMPLES) {
            marked.extend(self.push(&mut state, piece)?);
        }
        marked.extend(self.finish(state)?);
        Ok(marked)
    }

    /// The start of a stream. What counts as silence is fixed beforehand. Only digital silence falls below either
    /// rule: in 119 clips of speech the decisions were those of [`Self::apply`], but for 1 frame in 600 of a clip with
    /// zeros in it, where a window just reaches into the sound.
    pub fn start(&self) -> WatermarkState {
        WatermarkState::new(ACTIVE_PART * EXPECTED_LEVEL)
    }
}

/// Normalised magnitude of a bin: 0 at the floor, 1 at 15 dB.
fn magnitude(bin: realfft::num_complex::Complex32) -> f32 {
    // At 32 kHz the window holds 4/3 as many samples.
    const POWER: f32 = 16.0 / 9.0;
    let db = 10.0 * (POWER * bin.norm_sqr()).max(1e-18).log10();
    (db - FLOOR_DB) / SPAN_DB
}

/// Sum of the magnitudes of all bins: near 0 for digital silence, hundreds for the faintest noise.
fn level(bins: &[realfft::num_complex::Complex32]) -> f32 {
    bins.iter().map(|&bin| magnitude(bin)).sum()
}

#[cfg(test)]
mod tests;
