//! Mel spectrograms of the three networks that read one, after librosa's filters (Slaney's scale and area norm).
//!
//! Each takes its power or magnitude spectrum with a periodic Hann window and sums it under triangles:
//! - VoiceEncoder: 16 kHz, 40 bands, power, neither logarithm nor normalisation;
//! - S3 tokenizer (after Whisper): 16 kHz, 128 bands, power, `log10`, floor 8 below the clip's maximum;
//! - S3Gen: 24 kHz, 80 bands, magnitude, natural logarithm, frames aligned to their hop.

use realfft::num_complex::Complex32;

use super::features::{Features, check_audio};
use super::stft::{Padding, Stft};
use crate::error::Result;

/// Triangular filters over the bins of a spectrum; only the bins of each triangle are stored.
#[derive(Debug, Clone)]
pub struct MelFilters {
    /// First bin and weights of each band.
    bands: Vec<(usize, Vec<f32>)>,
}

impl MelFilters {
    /// `librosa.filters.mel` with its defaults: `bands` triangles from 0 Hz to `high_hz`.
    pub fn slaney(sample_rate_hz: u32, n_fft: usize, bands: usize, high_hz: f64) -> Self {
        let top = hz_to_mel(high_hz);
        let edges: Vec<f64> = (0..bands + 2).map(|i| mel_to_hz(top * i as f64 / (bands + 1) as f64)).collect();
        let bin_hz = f64::from(sample_rate_hz) / n_fft as f64;
        Self::new(bands, n_fft / 2 + 1, |band, bin| {
            let (low, mid, high) = (edges[band], edges[band + 1], edges[band + 2]);
            let hz = bin as f64 * bin_hz;
            let triangle = ((hz - low) / (mid - low)).min((high - hz) / (high - mid)).max(0.0);
            2.0 / (high - low) * triangle
        })
    }

    /// Filters whose weight at `(band, bin)` is given; zeros around a triangle are not stored.
    pub(super) fn new(bands: usize, bins: usize, weight: impl Fn(usize, usize) -> f64) -> Self {
        let band = |band: usize| {
            let weights: Vec<f32> = (0..bins).map(|bin| weight(band, bin) as f32).collect();
            let start = weights.iter().position(|w| *w != 0.0).unwrap_or(0);
            let end = weights.iter().rposition(|w| *w != 0.0).map_or(start, |last| last + 1);
            (start, weights[start..end].to_vec())
        };
        Self { bands: (0..bands).map(band).collect() }
    }

    /// Appends the bands of one spectrum to `out`.
    pub(super) fn apply(&self, spectrum: &[f32], out: &mut Vec<f32>) {
        out.extend(
            self.bands
                .iter()
                .map(|(start, weights)| spectrum[*start..].iter().zip(weights).map(|(x, w)| x * w).sum::<f32>()),
        );
    }
}

/// VoiceEncoder's mel of a 16 kHz clip: `1 + len / 160` frames of 40.
///
/// # Errors
/// If the clip has no more than 200 samples or holds values that are not numbers.
pub fn voice_encoder_mel(wav16: &[f32]) -> Result<Features> {
    check_audio(wav16, 201, 16_000)?;
    let stft = Stft::new(400, 160);
    spectrum_to_mel(wav16, &stft, stft.centred(), &MelFilters::slaney(16_000, 400, 40, 8_000.0), |x| x.norm_sqr())
}

/// S3 tokenizer's log-mel of a 16 kHz clip: `len / 160` frames of 128.
///
/// # Errors
/// If the clip has no more than 200 samples or holds values that are not numbers.
pub fn s3_log_mel(wav16: &[f32]) -> Result<Features> {
    check_audio(wav16, 201, 16_000)?;
    let stft = Stft::new(400, 160);
    let filters = MelFilters::slaney(16_000, 400, 128, 8_000.0);
    let mut mel = spectrum_to_mel(wav16, &stft, stft.centred(), &filters, |x| x.norm_sqr())?;
    mel.frames -= 1;
    mel.data.truncate(mel.frames * mel.bands);
    let mut highest = f32::NEG_INFINITY;
    for x in &mut mel.data {
        *x = x.max(1e-10).log10();
        highest = highest.max(*x);
    }
    mel.data.iter_mut().for_each(|x| *x = (x.max(highest - 8.0) + 4.0) / 4.0);
    Ok(mel)
}

/// S3Gen's log-mel of a 24 kHz clip: `len / 480` frames of 80.
///
/// # Errors
/// If the clip has no more than 720 samples or holds values that are not numbers.
pub fn s3gen_mel(wav24: &[f32]) -> Result<Features> {
    check_audio(wav24, 721, 24_000)?;
    let stft = Stft::new(1920, 480);
    let filters = MelFilters::slaney(24_000, 1920, 80, 8_000.0);
    let pad = Padding::Reflect((1920 - 480) / 2);
    let mut mel = spectrum_to_mel(wav24, &stft, pad, &filters, |x| (x.norm_sqr() + 1e-9).sqrt())?;
    mel.data.iter_mut().for_each(|x| *x = x.max(1e-5).ln());
    Ok(mel)
}

fn spectrum_to_mel(
    samples: &[f32],
    stft: &Stft,
    padding: Padding,
    filters: &MelFilters,
    value: impl Fn(&Complex32) -> f32,
) -> Result<Features> {
    let mut data = Vec::new();
    let mut spectrum = vec![0f32; stft.bins()];
    let frames = stft.each_frame(samples, padding, |row| {
        spectrum.iter_mut().zip(row).for_each(|(s, x)| *s = value(x));
        filters.apply(&spectrum, &mut data);
    })?;
    Ok(Features { data, frames, bands: filters.bands.len() })
}

// Slaney's mel scale: linear below 1 kHz, logarithmic above.
const LINEAR_HZ_PER_MEL: f64 = 200.0 / 3.0;
const BREAK_HZ: f64 = 1000.0;
const BREAK_MEL: f64 = BREAK_HZ / LINEAR_HZ_PER_MEL;

fn log_step() -> f64 {
    6.4f64.ln() / 27.0
}

fn hz_to_mel(hz: f64) -> f64 {
    if hz < BREAK_HZ { hz / LINEAR_HZ_PER_MEL } else { BREAK_MEL + (hz / BREAK_HZ).ln() / log_step() }
}

fn mel_to_hz(mel: f64) -> f64 {
    if mel < BREAK_MEL { mel * LINEAR_HZ_PER_MEL } else { BREAK_HZ * ((mel - BREAK_MEL) * log_step()).exp() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::dsp::testing::{Fixture, relative_error};

    /// A fixture keeps the first and last frames of `(bands, frames)`.
    fn compare(found: &Features, fixture: &Fixture, name: &str) {
        assert_eq!(found.frames as i64, fixture.integers(&format!("{name}_len"))[0], "{name}");
        for part in ["head", "tail"] {
            let expected = fixture.tensor(&format!("{name}_{part}"));
            let (bands, frames) = expected.dims2().unwrap();
            assert_eq!(bands, found.bands);
            let expected: Vec<f32> = expected.t().unwrap().flatten_all().unwrap().to_vec1().unwrap();
            let start = if part == "head" { 0 } else { found.frames - frames };
            let error = relative_error(&found.data[start * bands..(start + frames) * bands], &expected);
            assert!(error < 1e-5, "{name} {part}: {error:e}");
        }
    }

    #[test]
    fn mels_equal_the_reference() {
        let fixture = Fixture::open("tiny/stages/frontend");
        let (wav16, wav24) = (fixture.values("wav16"), fixture.values("wav24"));
        compare(&voice_encoder_mel(&wav16).unwrap(), &fixture, "ve_mel");
        compare(&s3_log_mel(&wav16).unwrap(), &fixture, "s3_log_mel");
        compare(&s3gen_mel(&wav24).unwrap(), &fixture, "mel24");
    }

    #[test]
    fn filters_equal_librosa() {
        let fixture = Fixture::open("tiny/stages/frontend");
        let cases = [
            ("filters_ve40", 16_000, 400, 40, 7),
            ("filters_s3_128", 16_000, 400, 128, 7),
            ("filters_mel24_80", 24_000, 1920, 80, 23),
        ];
        for (name, rate, n_fft, bands, step) in cases {
            let filters = MelFilters::slaney(rate, n_fft, bands, 8_000.0);
            let mut found = vec![0f32; bands * (n_fft / 2 + 1)];
            for ((start, weights), row) in filters.bands.iter().zip(found.chunks_exact_mut(n_fft / 2 + 1)) {
                row[*start..start + weights.len()].copy_from_slice(weights);
            }
            let kept: Vec<f32> =
                found.chunks_exact(n_fft / 2 + 1).flat_map(|row| row.iter().step_by(step).copied()).collect();
            assert!(relative_error(&kept, &fixture.values(name)) < 1e-6, "{name}");
        }
    }

    #[test]
    fn silence_is_the_floor_and_too_short_is_an_error() {
        let silence = s3gen_mel(&[0.0; 4800]).unwrap();
        assert_eq!(silence.frames, 10);
        assert!(silence.data.iter().all(|x| x.is_finite()));
        assert!(s3_log_mel(&[0.0; 640]).unwrap().data.iter().all(|x| *x == -1.5));
        for wav in [&[][..], &[0.1; 200], &[f32::NAN; 9000], &[f32::INFINITY; 9000]] {
            assert!(s3_log_mel(wav).unwrap_err().is_bad_input());
            assert!(voice_encoder_mel(wav).unwrap_err().is_bad_input());
            assert!(s3gen_mel(wav).unwrap_err().is_bad_input());
        }
    }
}
