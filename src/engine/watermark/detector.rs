//! Reading marks: three networks look at the magnitudes at three speeds, and the most confident one decides.

use candle_core::{Device, Tensor};

use super::network::ConvStack;
use super::{ACTIVE_PART, HOP, N_FFT, SAMPLE_RATE_HZ, SUBBAND, level, magnitude};
use crate::dsp::resample::resample;
use crate::dsp::stft::Stft;
use crate::error::Result;
use crate::weights::Weights;

/// The speeds, in frames to one of the clip, and what the checkpoint calls their networks.
const BRANCHES: [(f64, &str); 3] = [(1.25, "slow_layers"), (1.0, "normal_layers"), (0.75, "fast_layers")];

/// The score from which a clip counts as marked. The reference rounds, so its border is 0.5, and one unmarked recording
/// in 300 lies just above that (0.517, the next at 0.423). Of 150 clips of 2 to 6 s, stored in 16 bits, the
/// least certain scored 0.702 when marked and the next 0.932; unmarked, the highest scored 0.500 and the next 0.386.
pub const MARKED_FROM: f32 = 0.6;

/// Reads marks.
#[derive(Debug, Clone)]
pub struct WatermarkDetector {
    stft: Stft,
    branches: Vec<ConvStack>,
}

/// A clip as the networks see it.
struct Features {
    /// `(frames, 128)`.
    magnitudes: Vec<f32>,
    /// Which frames hold sound.
    active: Vec<bool>,
}

impl WatermarkDetector {
    /// The detector inside the program, on the CPU.
    ///
    /// # Errors
    /// Never for the file that ships.
    pub fn embedded() -> Result<Self> {
        Self::load(&super::embedded()?)
    }

    /// Loads the detector of a PerTh file (`models/perth/perth.safetensors`).
    ///
    /// # Errors
    /// If the file cannot be read or lacks a tensor.
    pub fn load(w: &Weights) -> Result<Self> {
        let branches = BRANCHES.iter().map(|(_, name)| ConvStack::load(&w.pp("decoder").pp(name), 2));
        let branches = branches.collect::<Result<_>>()?;
        w.ignore("encoder");
        w.finish()?;
        Ok(Self { stft: Stft::new(N_FFT, HOP), branches })
    }

    /// How sure it is that a clip is marked, from 0 to 1: see [`MARKED_FROM`]. Clips without
    /// sound and those of less than 100 ms hold no mark: 0.
    ///
    /// # Errors
    /// If the sample rate is not one of audio.
    pub fn detect(&self, samples: &[f32], sample_rate_hz: u32) -> Result<f32> {
        let samples = resample(samples, sample_rate_hz, SAMPLE_RATE_HZ)?;
        if samples.len() < SAMPLE_RATE_HZ as usize / 10 {
            return Ok(0.0);
        }
        let features = self.features(&samples)?;
        if !features.active.contains(&true) {
            return Ok(0.0);
        }
        let mut votes = Vec::with_capacity(BRANCHES.len());
        for (network, (stretch, _)) in self.branches.iter().zip(BRANCHES) {
            votes.push(features.vote(network, stretch)?);
        }
        let most = votes.iter().map(|v| v.0).fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f32> = votes.iter().map(|v| (v.0 - most).exp()).collect();
        let sum: f32 = weights.iter().zip(&votes).map(|(w, v)| w * v.1).sum();
        Ok((sum / weights.iter().sum::<f32>()).clamp(0.0, 1.0))
    }

    fn features(&self, samples: &[f32]) -> Result<Features> {
        let (mut magnitudes, mut levels) = (Vec::new(), Vec::new());
        self.stft.each_frame(samples, self.stft.centred(), |row| {
            magnitudes.extend(row[..SUBBAND].iter().map(|&bin| magnitude(bin)));
            levels.push(level(row));
        })?;
        let threshold = ACTIVE_PART * levels.iter().copied().fold(0.0, f32::max);
        Ok(Features { magnitudes, active: levels.iter().map(|&l| l > threshold).collect() })
    }
}

impl Features {
    /// Confidence and verdict of one network, averaged over the frames with sound.
    fn vote(&self, network: &ConvStack, stretch: f64) -> Result<(f32, f32)> {
        let frames = self.active.len();
        let stretched = ((frames as f64 * stretch) as usize).max(1);
        let xs = Tensor::from_vec(self.stretched(stretched), (1, stretched, SUBBAND), &Device::Cpu)?;
        let out: Vec<f32> = network.forward(&xs)?.flatten_all()?.to_vec1()?;
        let (mut confidence, mut verdict, mut count) = (0f64, 0f64, 0f64);
        for (i, row) in out.chunks_exact(2).enumerate() {
            // Nearest neighbour as torch has it: the scale in f32, rounded down.
            let source = (i as f32 * (frames as f32 / stretched as f32)) as usize;
            if self.active[source.min(frames - 1)] {
                confidence += f64::from(row[0]);
                verdict += f64::from(row[1]);
                count += 1.0;
            }
        }
        let mean = |sum: f64| (sum / f64::max(count, 1.0)) as f32;
        Ok((mean(confidence), mean(verdict)))
    }

    /// The magnitudes at another number of frames, linearly interpolated so that both ends stay in place.
    fn stretched(&self, to: usize) -> Vec<f32> {
        let frames = self.active.len();
        let scale = if to > 1 { (frames - 1) as f32 / (to - 1) as f32 } else { 0.0 };
        let mut out = Vec::with_capacity(to * SUBBAND);
        for i in 0..to {
            let at = scale * i as f32;
            let low = (at as usize).min(frames - 1);
            let (a, b) = (self.row(low), self.row((low + 1).min(frames - 1)));
            let part = at - low as f32;
            out.extend(a.iter().zip(b).map(|(a, b)| (1.0 - part) * a + part * b));
        }
        out
    }

    fn row(&self, frame: usize) -> &[f32] {
        &self.magnitudes[frame * SUBBAND..][..SUBBAND]
    }
}
