//! What a front end hands to a network.

use candle_core::{Device, Tensor};

use crate::error::{Error, Result};

/// Feature frames, row-major `(frames, bands)`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Features {
    /// The values.
    pub data: Vec<f32>,
    /// Number of frames.
    pub frames: usize,
    /// Values per frame.
    pub bands: usize,
}

impl Features {
    /// As `(1, frames, bands)`.
    ///
    /// # Errors
    /// If the device is out of memory.
    pub fn tensor(&self, device: &Device) -> Result<Tensor> {
        Ok(Tensor::from_slice(&self.data, (1, self.frames, self.bands), device)?)
    }
}

/// Refuses audio no encoder can do anything with: fewer than `at_least` samples, or values that are not numbers.
///
/// # Errors
/// [`Error::Input`] that says which.
pub fn check_audio(samples: &[f32], at_least: usize, sample_rate_hz: u32) -> Result<()> {
    if samples.len() < at_least.max(1) {
        let ms = |n: usize| (n as f64 * 1000.0 / f64::from(sample_rate_hz)).ceil();
        return Err(Error::input(format!(
            "the audio lasts {} ms, at least {} ms are needed; use a longer clip",
            ms(samples.len()),
            ms(at_least.max(1))
        )));
    }
    if let Some(at) = samples.iter().position(|x| !x.is_finite()) {
        return Err(Error::input(format!(
            "sample {at} of the audio is {}, not a number; the file is damaged",
            samples[at]
        )));
    }
    Ok(())
}
