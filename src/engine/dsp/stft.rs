//! Short-time Fourier transform with a periodic Hann window as long as the transform.
//!
//! `X[t, f] = Σ_n w[n] x[t · hop + n] e^(-2πi f n / n_fft)`; the inverse overlaps and adds `w · ifft(X)` and divides by
//! the overlapped `w²`, as `torch.stft` and `torch.istft` do.

use std::borrow::Cow;
use std::f64::consts::PI;
use std::fmt;
use std::sync::Arc;

use realfft::num_complex::Complex32;
use realfft::{ComplexToReal, RealFftPlanner, RealToComplex};

use crate::error::{Error, Result};

/// What stands before the first and after the last sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Padding {
    /// Nothing: frame `t` starts at sample `t · hop`.
    None,
    /// This many samples mirrored at each end, the end sample itself not repeated.
    Reflect(usize),
}

/// A transform of one size. Cheap to clone, shared between threads.
#[derive(Clone)]
pub struct Stft {
    n_fft: usize,
    hop: usize,
    window: Vec<f32>,
    forward: Arc<dyn RealToComplex<f32>>,
    inverse: Arc<dyn ComplexToReal<f32>>,
}

/// Spectra of successive frames, row-major `(frames, bins)`.
#[derive(Debug, Clone, PartialEq)]
pub struct Spectrogram {
    /// The values.
    pub data: Vec<Complex32>,
    /// Number of frames.
    pub frames: usize,
    /// Bins per frame, `n_fft / 2 + 1`.
    pub bins: usize,
}

impl fmt::Debug for Stft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stft({} by {})", self.n_fft, self.hop)
    }
}

impl Stft {
    /// Frames of `n_fft` samples (even) every `hop`.
    pub fn new(n_fft: usize, hop: usize) -> Self {
        let mut planner = RealFftPlanner::new();
        Self {
            n_fft,
            hop,
            window: hann(n_fft),
            forward: planner.plan_fft_forward(n_fft),
            inverse: planner.plan_fft_inverse(n_fft),
        }
    }

    /// Bins per frame.
    pub fn bins(&self) -> usize {
        self.n_fft / 2 + 1
    }

    /// The window, `n_fft` values.
    pub fn window(&self) -> &[f32] {
        &self.window
    }

    /// The padding of a centred transform: frame `t` has its middle at sample `t · hop`.
    pub fn centred(&self) -> Padding {
        Padding::Reflect(self.n_fft / 2)
    }

    /// `1 + (len + padding - n_fft) / hop` frames, none if there is not one whole frame.
    ///
    /// # Errors
    /// If the signal is too short to be mirrored.
    pub fn forward(&self, samples: &[f32], padding: Padding) -> Result<Spectrogram> {
        let mut data = Vec::new();
        let frames = self.each_frame(samples, padding, |row| data.extend_from_slice(row))?;
        Ok(Spectrogram { data, frames, bins: self.bins() })
    }

    /// The same without keeping the spectra: `row` sees each frame's bins in turn. Returns the number of frames.
    ///
    /// # Errors
    /// If the signal is too short to be mirrored.
    pub fn each_frame(&self, samples: &[f32], padding: Padding, mut row: impl FnMut(&[Complex32])) -> Result<usize> {
        let padded = match padding {
            Padding::None => Cow::Borrowed(samples),
            Padding::Reflect(pad) => Cow::Owned(reflect(samples, pad)?),
        };
        let frames = if padded.len() < self.n_fft { 0 } else { (padded.len() - self.n_fft) / self.hop + 1 };
        let mut frame = self.forward.make_input_vec();
        let mut bins = self.forward.make_output_vec();
        let mut scratch = self.forward.make_scratch_vec();
        for t in 0..frames {
            for ((value, x), w) in frame.iter_mut().zip(&padded[t * self.hop..]).zip(&self.window) {
                *value = x * w;
            }
            self.forward.process_with_scratch(&mut frame, &mut bins, &mut scratch).map_err(fft_error)?;
            row(&bins);
        }
        Ok(frames)
    }

    /// Inverse of a centred transform: `(frames - 1) · hop` samples.
    ///
    /// # Errors
    /// If the spectra are of another size.
    pub fn inverse(&self, spectra: &Spectrogram) -> Result<Vec<f32>> {
        let mut sum = self.overlap_add(spectra)?;
        let weight = self.window_square_sum(spectra.frames);
        for (value, weight) in sum.iter_mut().zip(&weight) {
            // The outermost samples of a Hann window carry no information; they are cut below.
            *value /= weight.max(1e-11);
        }
        let end = sum.len().saturating_sub(self.n_fft / 2);
        sum.truncate(end);
        sum.drain(..(self.n_fft / 2).min(end));
        Ok(sum)
    }

    /// `w · ifft(X)` overlapped and added, `(frames - 1) · hop + n_fft` samples, neither normalised nor cut: what a
    /// streaming inverse needs.
    ///
    /// # Errors
    /// If the spectra are of another size.
    pub fn overlap_add(&self, spectra: &Spectrogram) -> Result<Vec<f32>> {
        if spectra.bins != self.bins() || spectra.data.len() != spectra.frames * spectra.bins {
            return Err(Error::internal(format!("an inverse transform was given {} bins", spectra.bins)));
        }
        let mut out = vec![0f32; self.span(spectra.frames)];
        let mut bins = self.inverse.make_input_vec();
        let mut frame = self.inverse.make_output_vec();
        let mut scratch = self.inverse.make_scratch_vec();
        let scale = 1.0 / self.n_fft as f32;
        for (t, row) in spectra.data.chunks_exact(spectra.bins).enumerate() {
            bins.copy_from_slice(row);
            // A real signal has real ends; torch ignores what is there, realfft refuses it.
            bins[0].im = 0.0;
            bins[self.n_fft / 2].im = 0.0;
            self.inverse.process_with_scratch(&mut bins, &mut frame, &mut scratch).map_err(fft_error)?;
            for ((value, x), w) in out[t * self.hop..].iter_mut().zip(&frame).zip(&self.window) {
                *value += x * w * scale;
            }
        }
        Ok(out)
    }

    /// `w²` of `frames` frames overlapped and added: the divisor that belongs to [`Self::overlap_add`].
    pub fn window_square_sum(&self, frames: usize) -> Vec<f32> {
        let mut sum = vec![0f32; self.span(frames)];
        for t in 0..frames {
            for (value, w) in sum[t * self.hop..].iter_mut().zip(&self.window) {
                *value += w * w;
            }
        }
        sum
    }

    fn span(&self, frames: usize) -> usize {
        if frames == 0 { 0 } else { (frames - 1) * self.hop + self.n_fft }
    }
}

/// Periodic Hann window: `0.5 - 0.5 cos(2πn / len)`.
pub fn hann(len: usize) -> Vec<f32> {
    (0..len).map(|n| (0.5 - 0.5 * (2.0 * PI * n as f64 / len as f64).cos()) as f32).collect()
}

/// `pad` samples mirrored at each end.
///
/// # Errors
/// If there are not more than `pad` samples.
pub fn reflect(samples: &[f32], pad: usize) -> Result<Vec<f32>> {
    let len = samples.len();
    if len <= pad {
        return Err(Error::input(format!(
            "the audio is too short: {len} samples, where at least {} are needed; use a longer clip",
            pad + 1
        )));
    }
    let mut out = Vec::with_capacity(len + 2 * pad);
    out.extend(samples[1..=pad].iter().rev());
    out.extend_from_slice(samples);
    out.extend(samples[len - 1 - pad..len - 1].iter().rev());
    Ok(out)
}

fn fft_error(error: realfft::FftError) -> Error {
    Error::internal(format!("Fourier transform: {error}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn signal(len: usize) -> Vec<f32> {
        (0..len).map(|n| ((n * n) as f32 * 0.013).sin() * 0.5 + 0.1).collect()
    }

    #[test]
    fn transform_equals_its_definition() {
        let (stft, x) = (Stft::new(16, 4), signal(50));
        let spectra = stft.forward(&x, stft.centred()).unwrap();
        assert_eq!((spectra.frames, spectra.bins), (13, 9));
        let padded = reflect(&x, 8).unwrap();
        for t in 0..spectra.frames {
            for f in 0..spectra.bins {
                let (mut re, mut im) = (0f64, 0f64);
                for n in 0..16 {
                    let angle = -2.0 * PI * (f * n) as f64 / 16.0;
                    let value = f64::from(stft.window()[n] * padded[t * 4 + n]);
                    re += value * angle.cos();
                    im += value * angle.sin();
                }
                let found = spectra.data[t * 9 + f];
                assert!((f64::from(found.re) - re).abs() < 1e-6 && (f64::from(found.im) - im).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn inverse_undoes_forward() {
        for (n_fft, hop) in [(16, 4), (2048, 320), (400, 160)] {
            let stft = Stft::new(n_fft, hop);
            let x = signal(hop * 20);
            let y = stft.inverse(&stft.forward(&x, stft.centred()).unwrap()).unwrap();
            assert_eq!(y.len(), x.len());
            let worst = x.iter().zip(&y).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 2e-6, "{n_fft}: {worst}");
        }
    }

    #[test]
    fn too_short_is_an_error_and_no_frames_are_no_frames() {
        let stft = Stft::new(16, 4);
        assert!(stft.forward(&signal(8), stft.centred()).unwrap_err().is_bad_input());
        assert_eq!(stft.forward(&[], Padding::None).unwrap().frames, 0);
        let none = Spectrogram { data: Vec::new(), frames: 0, bins: 9 };
        assert!(stft.inverse(&none).unwrap().is_empty());
    }

    #[test]
    fn reflection_does_not_repeat_the_ends() {
        assert_eq!(reflect(&[1.0, 2.0, 3.0], 2).unwrap(), [3.0, 2.0, 1.0, 2.0, 3.0, 2.0, 1.0]);
    }
}
