//! Noise from a recording, for exact comparison with the reference.

use std::path::Path;

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::noise::{NoiseSource, SeededNoise};
use crate::s3gen::MEL_CHANNELS;
use crate::weights::Weights;

/// Replays `z` (1, 80, T) of the flow and `phases` (H) and `noise` (H, L) of HiFT, for the first sentence; whatever the
/// file lacks or is too short for comes from a seed.
#[derive(Debug)]
pub struct ReplayedNoise {
    seeded: SeededNoise,
    /// `(T, 80)` row-major.
    z: Vec<f32>,
    phases: Vec<f32>,
    /// `(L, H)` row-major.
    source: Vec<f32>,
}

impl ReplayedNoise {
    /// Reads a recording.
    ///
    /// # Errors
    /// If the file is no safetensors file or a tensor has another shape.
    pub fn load(path: &Path, seed: u64) -> Result<Self> {
        let w = Weights::open(path, &Device::Cpu)?;
        let columns_last = |name: &str, rows: Option<usize>| -> Result<Vec<f32>> {
            let Some(tensor) = w.get_raw(name)? else { return Ok(Vec::new()) };
            let tensor = tensor.to_dtype(DType::F32)?;
            let tensor = if tensor.rank() == 3 { tensor.squeeze(0)? } else { tensor };
            match *tensor.dims() {
                [found, _] if rows.is_none_or(|rows| rows == found) => Ok(tensor.t()?.flatten_all()?.to_vec1()?),
                _ => Err(Error::model(path, format!("{name} has shape {:?}", tensor.dims()))),
            }
        };
        let phases = match w.get_raw("phases")? {
            Some(tensor) => tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?,
            None => Vec::new(),
        };
        Ok(Self {
            seeded: SeededNoise::new(seed),
            z: columns_last("z", Some(80))?,
            source: columns_last("noise", if phases.is_empty() { None } else { Some(phases.len()) })?,
            phases,
        })
    }

    fn rows(recorded: &[f32], width: usize, start: usize, count: usize) -> Option<Vec<f32>> {
        recorded.get(start * width..(start + count) * width).map(<[f32]>::to_vec)
    }
}

impl NoiseSource for ReplayedNoise {
    fn uniform(&self, sentence: usize, step: usize) -> f32 {
        self.seeded.uniform(sentence, step)
    }

    fn flow(&self, sentence: usize, start: usize, frames: usize) -> Vec<f32> {
        let recorded = if sentence == 0 { Self::rows(&self.z, 80, start, frames) } else { None };
        recorded.unwrap_or_else(|| self.seeded.flow(sentence, start, frames))
    }

    fn phases(&self, sentence: usize, harmonics: usize) -> Vec<f32> {
        if sentence == 0 && self.phases.len() == harmonics {
            return self.phases.clone();
        }
        self.seeded.phases(sentence, harmonics)
    }

    fn source(&self, sentence: usize, start: usize, samples: usize, harmonics: usize) -> Vec<f32> {
        let recorded = if sentence == 0 { Self::rows(&self.source, harmonics, start, samples) } else { None };
        recorded.unwrap_or_else(|| self.seeded.source(sentence, start, samples, harmonics))
    }
}

/// What a job takes from recordings instead of making it, so that the stage behind can be compared on the same input.
#[derive(Debug, Clone, Default)]
pub struct Replay {
    /// Speech tokens, in place of sampled ones.
    pub tokens: Vec<u32>,
    /// A mel, in place of the flow's; of a single sentence in one go.
    pub mel: Option<RecordedMel>,
}

/// A mel as the reference records it.
#[derive(Debug, Clone)]
pub struct RecordedMel(Tensor);

impl RecordedMel {
    /// Reads `mel (1, 80, T)`.
    ///
    /// # Errors
    /// If the file is no safetensors file or holds none of that shape.
    pub fn load(path: &Path) -> Result<Self> {
        let w = Weights::open(path, &Device::Cpu)?;
        let mel = w.get_raw("mel")?.ok_or_else(|| Error::model(path, "holds no mel"))?;
        match *mel.dims() {
            [1, MEL_CHANNELS, frames] if frames > 0 => {}
            _ => return Err(Error::model(path, format!("mel is {:?}, expected (1, {MEL_CHANNELS}, T)", mel.dims()))),
        }
        Ok(Self(mel.to_dtype(DType::F32)?.transpose(1, 2)?.contiguous()?))
    }

    /// `(1, T, 80)`.
    pub(crate) fn frames(&self, device: &Device) -> Result<Tensor> {
        Ok(self.0.to_device(device)?)
    }
}

/// The speech tokens of a recording (`speech_tokens`).
///
/// # Errors
/// If the file is no safetensors file or holds none.
pub fn recorded_tokens(path: &Path) -> Result<Vec<u32>> {
    let w = Weights::open(path, &Device::Cpu)?;
    let tensor = w.get_raw("speech_tokens")?.ok_or_else(|| Error::model(path, "holds no speech_tokens"))?;
    let ids: Vec<i64> = tensor.to_dtype(DType::I64)?.flatten_all()?.to_vec1()?;
    ids.iter()
        .map(|&id| u32::try_from(id).map_err(|_| Error::model(path, format!("{id} is no speech token"))))
        .collect()
}
