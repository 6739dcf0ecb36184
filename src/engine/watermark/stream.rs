//! Marking chunk by chunk.
//!
//! Positions are those of the signal with its mirrored half window in front, in which frame `t` begins at `240 t`.

use candle_core::{Device, Tensor};
use realfft::num_complex::Complex32;

use super::{HOP, N_FFT, REACH_FRAMES, SPAN_DB, SUBBAND, Watermarker, level, magnitude};
use crate::dsp::stft::{Padding, Spectrogram};
use crate::error::Result;

const PAD: usize = N_FFT / 2;

/// What a stream of samples carries from chunk to chunk.
#[derive(Debug, Clone)]
pub struct WatermarkState {
    /// Frames up to this level are left alone.
    threshold: f32,
    mirrored: bool,
    /// The signal from position `start` on, up to which everything has been given out.
    signal: Vec<f32>,
    start: usize,
    /// What is to be added to it, and the overlapped squared windows by which that is to be divided.
    change: Vec<f32>,
    weight: Vec<f32>,
    /// Frames that have spectra, and those whose change is in `change`.
    analysed: usize,
    done: usize,
    /// Magnitudes, `(frames, 128)`, from frame `done - 15` on, or 0.
    features: Vec<f32>,
    /// The low bins of the frames from `done` on, zero where there is no sound.
    bins: Vec<Complex32>,
}

impl WatermarkState {
    pub(super) fn new(threshold: f32) -> Self {
        Self {
            threshold,
            mirrored: false,
            signal: Vec::new(),
            start: 0,
            change: Vec::new(),
            weight: Vec::new(),
            analysed: 0,
            done: 0,
            features: Vec::new(),
            bins: Vec::new(),
        }
    }
}

impl Watermarker {
    /// Takes the next samples at 24 kHz and returns those that can be given out: all but the last 5136 or so.
    ///
    /// # Errors
    /// If the transform or the network fails: a defect, not the caller's.
    pub fn push(&self, state: &mut WatermarkState, samples: &[f32]) -> Result<Vec<f32>> {
        state.signal.extend_from_slice(samples);
        if !state.mirrored {
            if state.signal.len() <= PAD {
                return Ok(Vec::new());
            }
            state.signal.splice(0..0, state.signal[1..=PAD].iter().rev().copied().collect::<Vec<_>>());
            state.mirrored = true;
        }
        self.analyse(state)?;
        let certain = state.analysed.saturating_sub(REACH_FRAMES);
        self.mark(state, certain)?;
        Ok(state.emit(state.done * HOP))
    }

    /// Ends the stream and returns the rest of it.
    ///
    /// # Errors
    /// If the transform or the network fails: a defect, not the caller's.
    pub fn finish(&self, mut state: WatermarkState) -> Result<Vec<f32>> {
        if !state.mirrored {
            return Ok(state.signal);
        }
        let end = state.start + state.signal.len();
        let last = state.signal.len() - 1;
        let mirror: Vec<f32> = (1..=PAD.min(last)).map(|i| state.signal[last - i]).collect();
        state.signal.extend(mirror);
        self.analyse(&mut state)?;
        let all = state.analysed;
        self.mark(&mut state, all)?;
        Ok(state.emit(end))
    }

    /// Transforms every frame that is complete by now.
    fn analyse(&self, state: &mut WatermarkState) -> Result<()> {
        let from = state.analysed * HOP - state.start;
        let (threshold, features, bins) = (state.threshold, &mut state.features, &mut state.bins);
        state.analysed += self.stft.each_frame(&state.signal[from..], Padding::None, |row| {
            let low = &row[..SUBBAND];
            features.extend(low.iter().map(|&bin| magnitude(bin)));
            let active = level(row) > threshold;
            bins.extend(low.iter().map(|&bin| if active { bin } else { Complex32::default() }));
        })?;
        Ok(())
    }

    /// Adds the change of the frames before `until`, for which enough is known on the right.
    fn mark(&self, state: &mut WatermarkState, until: usize) -> Result<()> {
        if until <= state.done {
            return Ok(());
        }
        let (first, frames) = (state.done.saturating_sub(REACH_FRAMES), until - state.done);
        let features = Tensor::from_slice(&state.features, (1, state.analysed - first, SUBBAND), &Device::Cpu)?;
        let residual = self.encoder.forward(&features)?.narrow(1, state.done - first, frames)?;
        let residual: Vec<f32> = residual.flatten_all()?.to_vec1()?;

        let all = self.stft.bins();
        let mut data = vec![Complex32::default(); frames * all];
        let rows = residual.chunks_exact(SUBBAND).zip(state.bins.chunks_exact(SUBBAND));
        for (out, (residual, bins)) in data.chunks_exact_mut(all).zip(rows) {
            for ((out, residual), bin) in out.iter_mut().zip(residual).zip(bins) {
                *out = bin * (10f32.powf(SPAN_DB / 20.0 * residual) - 1.0);
            }
        }
        let change = self.stft.overlap_add(&Spectrogram { data, frames, bins: all })?;
        let at = state.done * HOP - state.start;
        add_at(&mut state.change, at, &change);
        add_at(&mut state.weight, at, &self.stft.window_square_sum(frames));

        state.done = until;
        let keep = until.saturating_sub(REACH_FRAMES);
        state.features.drain(..(keep - first) * SUBBAND);
        state.bins.drain(..frames * SUBBAND);
        Ok(())
    }
}

impl WatermarkState {
    /// Gives out everything before position `end`, without the mirrored beginning.
    fn emit(&mut self, end: usize) -> Vec<f32> {
        let n = end.saturating_sub(self.start).min(self.change.len()).min(self.signal.len());
        let parts = self.change.drain(..n).zip(self.weight.drain(..n));
        let marked = self.signal.drain(..n).zip(parts).map(|(x, (change, weight))| x + change / weight.max(1e-11));
        let out = marked.skip(PAD.saturating_sub(self.start)).collect();
        self.start += n;
        out
    }
}

fn add_at(to: &mut Vec<f32>, at: usize, what: &[f32]) {
    if to.len() < at + what.len() {
        to.resize(at + what.len(), 0.0);
    }
    to[at..].iter_mut().zip(what).for_each(|(t, w)| *t += w);
}
