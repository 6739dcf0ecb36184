//! Kaldi's log-mel filter bank as CAMPPlus was trained with it: `torchaudio.compliance.kaldi.fbank(num_mel_bins=80)`
//! less its mean over time.
//!
//! Frames of 25 ms every 10 ms that lie wholly inside the clip; per frame: mean removed, pre-emphasis 0.97, Povey window
//! (symmetric Hann to the power 0.85), power spectrum of 512, 80 triangles equally wide on HTK's mel scale, logarithm.

use std::f64::consts::PI;

use realfft::RealFftPlanner;

use super::features::{Features, check_audio};
use super::mel::MelFilters;
use crate::error::{Error, Result};

const FRAME: usize = 400;
const HOP: usize = 160;
const N_FFT: usize = 512;
const BANDS: usize = 80;
const PRE_EMPHASIS: f32 = 0.97;

/// Features of a 16 kHz clip in -1..1: `1 + (len - 400) / 160` frames of 80.
///
/// # Errors
/// If the clip is shorter than one frame or holds values that are not numbers.
pub fn fbank(wav16: &[f32]) -> Result<Features> {
    check_audio(wav16, FRAME, 16_000)?;
    let frames = 1 + (wav16.len() - FRAME) / HOP;
    let (window, filters) = (povey_window(), kaldi_filters());
    let fft = RealFftPlanner::new().plan_fft_forward(N_FFT);
    let mut input = fft.make_input_vec();
    let mut bins = fft.make_output_vec();
    let mut scratch = fft.make_scratch_vec();
    let mut power = vec![0f32; bins.len()];
    let mut data = Vec::with_capacity(frames * BANDS);
    for t in 0..frames {
        let frame = &wav16[t * HOP..][..FRAME];
        let mean = frame.iter().sum::<f32>() / FRAME as f32;
        let mut before = frame[0] - mean;
        for ((value, x), w) in input.iter_mut().zip(frame).zip(&window) {
            let x = x - mean;
            *value = (x - PRE_EMPHASIS * before) * w;
            before = x;
        }
        input[FRAME..].fill(0.0);
        fft.process_with_scratch(&mut input, &mut bins, &mut scratch)
            .map_err(|e| Error::internal(format!("Fourier transform: {e}")))?;
        power.iter_mut().zip(&bins).for_each(|(p, x)| *p = x.norm_sqr());
        filters.apply(&power, &mut data);
    }
    data.iter_mut().for_each(|x| *x = x.max(f32::EPSILON).ln());
    subtract_mean(&mut data, frames);
    Ok(Features { data, frames, bands: BANDS })
}

fn subtract_mean(data: &mut [f32], frames: usize) {
    let mut mean = [0f64; BANDS];
    for row in data.chunks_exact(BANDS) {
        mean.iter_mut().zip(row).for_each(|(m, x)| *m += f64::from(*x) / frames as f64);
    }
    for row in data.chunks_exact_mut(BANDS) {
        row.iter_mut().zip(&mean).for_each(|(x, m)| *x -= *m as f32);
    }
}

fn povey_window() -> Vec<f32> {
    let hann = |n: usize| 0.5 - 0.5 * (2.0 * PI * n as f64 / (FRAME - 1) as f64).cos();
    (0..FRAME).map(|n| hann(n).powf(0.85) as f32).collect()
}

fn kaldi_filters() -> MelFilters {
    let mel = |hz: f64| 1127.0 * (1.0 + hz / 700.0).ln();
    let (low, high) = (mel(20.0), mel(8_000.0));
    let step = (high - low) / (BANDS + 1) as f64;
    // The bin at the Nyquist frequency has no weight.
    MelFilters::new(BANDS, N_FFT / 2, |band, bin| {
        let position = (mel(bin as f64 * 16_000.0 / N_FFT as f64) - low) / step - band as f64;
        position.min(2.0 - position).max(0.0)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::dsp::testing::{Fixture, relative_error};

    #[test]
    fn equals_torchaudio() {
        let fixture = Fixture::open("tiny/stages/frontend");
        let found = fbank(&fixture.values("wav16")).unwrap();
        assert_eq!(found.frames as i64, fixture.integers("fbank_len")[0]);
        for (part, start, frames) in [("fbank_head", 0, 30), ("fbank_tail", found.frames - 6, 6)] {
            let expected: Vec<f32> = fixture.tensor(part).t().unwrap().flatten_all().unwrap().to_vec1().unwrap();
            let error = relative_error(&found.data[start * BANDS..(start + frames) * BANDS], &expected);
            assert!(error < 1e-5, "{part}: {error:e}");
        }
    }

    #[test]
    fn silence_is_zero_and_less_than_a_frame_is_an_error() {
        assert!(fbank(&[0.0; 1000]).unwrap().data.iter().all(|x| x.abs() < 1e-5));
        assert_eq!(fbank(&[0.1; 400]).unwrap().frames, 1);
        for wav in [&[][..], &[0.1; 399], &[f32::NAN; 800]] {
            assert!(fbank(wav).unwrap_err().is_bad_input());
        }
    }
}
