//! HiFT, the vocoder: mel spectrogram, 50 frames/s, to sound, 24000 samples/s, 480 to a frame.
//!
//! `mel -> F0 predictor -> f0 -> harmonic source`, then a stack of upsamplings that fuses the source's spectrum and
//! predicts magnitude and phase of a small inverse STFT. Li, Han and Mesgarani, "HiFTNet: a fast high-quality neural
//! vocoder with harmonic-plus-noise filter and inverse short time Fourier transform", 2023, in CosyVoice's form.
//!
//! [`Hift::forward`] makes a whole clip, [`Hift::decode`] a stream without seams; see `stream.rs`.

pub(super) mod f0;
pub(super) mod generator;
mod source;
mod stream;

use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Tensor};
use serde::{Deserialize, Serialize};

use self::f0::F0Predictor;
use self::generator::Generator;
use self::source::HarmonicSource;
pub use self::stream::{FULL_HOLD_BACK_FRAMES, HiftState};
use super::MEL_CHANNELS;
use super::on_card::HiftOnCard;
use crate::error::Result;
use crate::meter::CardWork;
use crate::noise::NoiseSource;
use crate::weights::Weights;

/// Samples to a mel frame.
pub const SAMPLES_PER_FRAME: usize = 480;
/// Frames of a clip that are rendered at once: two seconds. The last stage holds 120 rows of 64 channels for each frame
/// several times over, hundreds of megabytes for 40 s; blocks bound that, and each computes 18 frames more on either side
/// in the first stage, 5 in the second and 2 in the last.
const BLOCK_FRAMES: usize = 100;
/// The same on a card, which has more to gain from larger blocks: half a megabyte for each frame.
const CARD_BLOCK_FRAMES: usize = 250;
/// Sample rate of the sound.
pub const SAMPLE_RATE_HZ: usize = 24_000;

/// Widths of the vocoder: the `hift` section of a model's `config.json`; defaults are those of Chatterbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HiftConfig {
    /// Channels in front of the first upsampling; each upsampling halves them.
    #[serde(rename = "base")]
    pub base_channels: usize,
    /// Channels of the F0 predictor.
    #[serde(rename = "f0_ch")]
    pub f0_channels: usize,
}

impl Default for HiftConfig {
    fn default() -> Self {
        Self { base_channels: 512, f0_channels: 512 }
    }
}

/// The vocoder's weights.
#[derive(Debug, Clone)]
pub struct Hift {
    f0_predictor: F0Predictor,
    source: HarmonicSource,
    generator: Generator,
    /// Both networks once more, where a card has them.
    pub(super) on_card: Option<Arc<HiftOnCard>>,
}

/// A whole clip and what it was made from.
#[derive(Debug, Clone)]
pub struct HiftOutput {
    /// Samples in `[-0.99, 0.99]`, 480 to a frame, without fade-in.
    pub wav: Vec<f32>,
    /// Pitch in Hz, one to a frame; up to 10 Hz means unvoiced.
    pub f0: Vec<f32>,
    /// The excitation, 480 samples to a frame.
    pub source: Vec<f32>,
}

impl HiftOutput {
    /// The samples with the fade-in that every utterance begins with.
    pub fn faded(&self) -> Vec<f32> {
        let mut wav = self.wav.clone();
        stream::fade_in(&mut wav, 0);
        wav
    }
}

impl Hift {
    /// Loads the weights below `w` (`mel2wav` of an S3Gen checkpoint).
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn load(w: &Weights, config: &HiftConfig) -> Result<Self> {
        Ok(Self {
            f0_predictor: F0Predictor::load(&w.pp("f0_predictor"), config)?,
            source: HarmonicSource::load(&w.pp("m_source"))?,
            generator: Generator::load(w, config)?,
            on_card: None,
        })
    }

    /// `mel: (1, T, 80)`, log-mel, to a clip of 480 T samples; noise is that of `sentence`.
    ///
    /// # Errors
    /// If the shape differs.
    pub fn forward(&self, mel: &Tensor, noise: &dyn NoiseSource, sentence: usize) -> Result<HiftOutput> {
        let f0 = self.pitch(mel)?;
        let mut phase = self.source.start(noise, sentence);
        let source = self.source.generate(&mut phase, &f0, noise);
        let wav = self.inference_from_source(mel, &source)?;
        Ok(HiftOutput { wav, f0, source })
    }

    /// `mel: (1, T, 80)` and a given excitation of 480 T samples to 480 T samples.
    ///
    /// Computed [`BLOCK_FRAMES`] at a time, each with all it depends on around it: the same samples as in one go.
    ///
    /// # Errors
    /// If a shape differs.
    pub fn inference_from_source(&self, mel: &Tensor, source: &[f32]) -> Result<Vec<f32>> {
        let frames = mel.dim(1)?;
        let block = if self.card().is_some() { CARD_BLOCK_FRAMES } else { BLOCK_FRAMES };
        let mut wav = Vec::with_capacity(frames * SAMPLES_PER_FRAME);
        for start in (0..frames).step_by(block) {
            wav.extend(self.render(mel, source, start..frames.min(start + block))?);
        }
        Ok(wav)
    }

    /// What a card did for it so far; nothing without a card.
    pub(crate) fn card_work(&self) -> Option<CardWork> {
        self.card().map(HiftOnCard::work)
    }

    fn card(&self) -> Option<&HiftOnCard> {
        self.on_card.as_deref().filter(|card| card.is_usable())
    }

    /// `mel: (1, T, 80)` to T pitches in Hz.
    fn pitch(&self, mel: &Tensor) -> Result<Vec<f32>> {
        match self.card() {
            Some(card) if mel.dims().last() == Some(&MEL_CHANNELS) => card.pitch(mel),
            _ => self.f0_predictor.forward(mel),
        }
    }

    /// See [`Generator::render`].
    fn render(&self, mel: &Tensor, source: &[f32], keep: Range<usize>) -> Result<Vec<f32>> {
        generator::check(mel, source, &keep)?;
        match self.card() {
            Some(_) if keep.is_empty() => Ok(Vec::new()),
            Some(card) => card.render(mel, source, keep),
            None => self.generator.render(mel, source, keep),
        }
    }
}

/// Loads a convolution weight of `shape` that is stored as direction `v` and length `g`:
/// `g · v / ‖v‖`, the norm over all dimensions but the first, also for transposed convolutions.
pub(super) fn weight_norm(w: &Weights, shape: (usize, usize, usize), dtype: DType) -> Result<Tensor> {
    let g = w.get("parametrizations.weight.original0", (shape.0, 1, 1))?.to_dtype(dtype)?;
    let v = w.get("parametrizations.weight.original1", shape)?.to_dtype(dtype)?;
    let norm = v.sqr()?.sum_keepdim((1, 2))?.sqrt()?;
    Ok(v.broadcast_mul(&(g / norm)?)?)
}

#[cfg(test)]
mod tests;
