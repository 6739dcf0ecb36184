//! Mono audio in memory.

use std::borrow::Cow;

use super::features::check_audio;
use super::resample::resample;
use crate::error::Result;

/// Mono samples, full scale -1 to 1, and their rate.
#[derive(Debug, Clone, PartialEq)]
pub struct Pcm {
    /// The samples.
    pub samples: Vec<f32>,
    /// Samples per second.
    pub sample_rate_hz: u32,
}

impl Pcm {
    /// Its length.
    pub fn secs(&self) -> f32 {
        self.samples.len() as f32 / self.sample_rate_hz.max(1) as f32
    }

    /// Refuses what cannot be encoded or played: no samples, or samples that are not numbers.
    ///
    /// # Errors
    /// [`Error::Input`] that says which.
    pub fn check(&self) -> Result<()> {
        check_audio(&self.samples, 1, self.sample_rate_hz)
    }

    /// The samples at another rate, as librosa (`soxr_hq`) makes them; not copied if the rate is already right.
    ///
    /// # Errors
    /// If a rate is not one of audio.
    pub fn at_rate(&self, sample_rate_hz: u32) -> Result<Cow<'_, [f32]>> {
        if sample_rate_hz == self.sample_rate_hz {
            return Ok(Cow::Borrowed(&self.samples));
        }
        Ok(Cow::Owned(resample(&self.samples, self.sample_rate_hz, sample_rate_hz)?))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn pcm(samples: Vec<f32>, sample_rate_hz: u32) -> Pcm {
        Pcm { samples, sample_rate_hz }
    }

    #[test]
    fn unusable_audio_is_refused_with_its_reason() {
        assert!(pcm(Vec::new(), 24_000).check().unwrap_err().to_string().contains("longer"));
        let damaged = pcm(vec![0.0, f32::NAN], 24_000).check().unwrap_err();
        assert!(damaged.to_string().contains("sample 1"), "{damaged}");
        assert!(pcm(vec![0.0; 4], 24_000).check().is_ok());
        assert!(pcm(vec![0.0; 4], 0).at_rate(24_000).is_err());
    }

    #[test]
    fn rates_change_lengths() {
        let clip = pcm(vec![0.1; 2400], 24_000);
        assert_eq!(clip.at_rate(16_000).unwrap().len(), 1600);
        assert!(matches!(clip.at_rate(24_000).unwrap(), Cow::Borrowed(_)));
        assert_eq!(clip.secs(), 0.1);
    }
}
