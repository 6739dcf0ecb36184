//! 24 kHz to the rate of the device, in steps whose concatenation is the resampling of the whole.

use anyhow::{Context, Result};
use myna_engine::dsp::resample::{Resampler, ResamplerState};
use myna_engine::protocol::SAMPLE_RATE_HZ;

/// A running conversion: sample `i` of the input is heard at `i * device rate / 24000` exactly.
#[derive(Debug)]
pub struct StreamResampler {
    inner: Option<(Resampler, ResamplerState)>,
    rate_hz: u32,
}

impl StreamResampler {
    /// Towards `rate_hz`.
    ///
    /// # Errors
    /// If the rate is impossible.
    pub fn new(rate_hz: u32) -> Result<Self> {
        let inner = if rate_hz == SAMPLE_RATE_HZ {
            None
        } else {
            let resampler =
                Resampler::hq(SAMPLE_RATE_HZ, rate_hz).with_context(|| format!("a device of {rate_hz} Hz"))?;
            let state = resampler.start();
            Some((resampler, state))
        };
        Ok(Self { inner, rate_hz })
    }

    /// Forgets everything, as after a seek.
    pub fn reset(&mut self) {
        if let Some((resampler, state)) = &mut self.inner {
            *state = resampler.start();
        }
    }

    /// Most frames that [`Self::push`] of `n` samples followed by [`Self::finish`] can add.
    pub fn most_out(&self, n: usize) -> usize {
        let inside = self.inner.as_ref().map_or(0, |(resampler, _)| 2 * resampler.lookahead_samples());
        (((n + inside) as u64 * u64::from(self.rate_hz)).div_ceil(u64::from(SAMPLE_RATE_HZ)) + 2) as usize
    }

    /// Takes samples in and appends what comes out.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        match &mut self.inner {
            Some((resampler, state)) => resampler.process(state, samples, out),
            None => out.extend_from_slice(samples),
        }
    }

    /// Appends what is still inside, so that the whole has its exact length, and starts anew.
    pub fn finish(&mut self, out: &mut Vec<f32>) {
        if let Some((resampler, state)) = &mut self.inner {
            let ended = std::mem::replace(state, resampler.start());
            resampler.finish(ended, out);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn tone(n: usize, rate_hz: f64) -> Vec<f32> {
        (0..n)
            .map(|i| {
                let t = i as f64 / rate_hz;
                let window = (std::f64::consts::PI * t / 0.5).sin().powi(2);
                (window * ((t * 440.0 * std::f64::consts::TAU).sin() * 0.5 + (t * 3000.0).cos() * 0.3)) as f32
            })
            .collect()
    }

    fn converted(rate_hz: u32, step: usize) -> Vec<f32> {
        let mut resampler = StreamResampler::new(rate_hz).unwrap();
        let mut out = Vec::new();
        for part in tone(12_000, 24_000.0).chunks(step) {
            let before = out.len();
            resampler.push(part, &mut out);
            assert!(out.len() - before <= resampler.most_out(part.len()));
        }
        resampler.finish(&mut out);
        out
    }

    #[test]
    fn every_rate_gives_the_same_sound_at_its_exact_place() {
        for rate_hz in [24_000, 48_000, 44_100, 96_000, 32_000, 16_000, 22_050] {
            let out = converted(rate_hz, 1000);
            let want = tone(rate_hz as usize / 2, f64::from(rate_hz));
            assert_eq!(out.len(), want.len(), "{rate_hz} Hz");
            let worst = out.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-3, "{rate_hz} Hz is off by {worst}");
        }
    }

    #[test]
    fn steps_concatenated_equal_the_whole() {
        for rate_hz in [44_100, 48_000] {
            let whole = converted(rate_hz, 12_000);
            for step in [1, 97, 480, 4800] {
                assert_eq!(converted(rate_hz, step), whole, "{rate_hz} Hz in steps of {step}");
            }
        }
    }

    #[test]
    fn a_reset_resampler_starts_anew() {
        let mut resampler = StreamResampler::new(44_100).unwrap();
        let mut out = Vec::new();
        resampler.push(&[0.9; 5000], &mut out);
        resampler.reset();
        out.clear();
        resampler.push(&tone(12_000, 24_000.0), &mut out);
        resampler.finish(&mut out);
        assert_eq!(out, converted(44_100, 12_000));
    }
}
