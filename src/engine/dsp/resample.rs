//! Change of sample rate by a windowed-sinc filter, whole or in steps.
//!
//! Output `n` stands at input time `n · down / up` (zero delay) and is the inner product of the samples around it with
//! the row of a table that belongs to its fractional part: `y[n] = Σ_j x[i + j] · h(j - frac)`. What differs between
//! resamplers is only the kernel `h`, a function of the distance in input samples:
//! - [`Resampler::hq`]: Kaiser window, passband 0.9137 of the lower Nyquist, 126 dB down from Nyquist on; equals soxr's
//!   `HQ` recipe, which the reference uses wherever it calls librosa.
//! - [`Resampler::sinc_hann`]: `torchaudio.transforms.Resample` with its defaults.
//! - [`Resampler::scipy_poly`]: `scipy.signal.resample_poly` with its defaults.

use std::f64::consts::PI;

use crate::error::{Error, Result};

/// A table with more entries than this is replaced by a coarser one with linear interpolation between rows.
const MAX_TABLE: usize = 1 << 20;
/// Rows per input sample of the coarse table; the interpolation error is near 2e-7.
const COARSE_ROWS: f64 = 2048.0;
/// Rates outside this range are mistakes, not audio.
const RATES_HZ: std::ops::RangeInclusive<u32> = 1_000..=768_000;

/// A resampler between two fixed rates. What changes while it runs is in [`ResamplerState`].
#[derive(Debug, Clone)]
pub struct Resampler {
    up: u64,
    down: u64,
    /// Samples on either side of an output's position.
    half: usize,
    /// Rows of `2 · half` weights; row `r` belongs to the fractional position `r / rows`.
    table: Vec<f32>,
    rows: u64,
}

/// The samples that future outputs still need.
#[derive(Debug, Clone)]
pub struct ResamplerState {
    /// Input with `half - 1` zeros before its first sample, less what was dropped from the front.
    pending: Vec<f32>,
    dropped: u64,
    samples_in: u64,
    samples_out: u64,
}

impl Resampler {
    /// The resampler of best quality, for everything that is heard or encoded; equals soxr's `HQ`.
    ///
    /// # Errors
    /// If a rate is not one of audio.
    pub fn hq(from_hz: u32, to_hz: u32) -> Result<Self> {
        const BETA: f64 = 13.04;
        const PASSBAND: f64 = 0.913_744;
        // Kaiser's length for 126 dB in units of 1 / transition width.
        const LENGTH: f64 = 16.76;
        let nyquist = f64::from(to_hz.min(from_hz)) / f64::from(from_hz);
        let reach = LENGTH / (nyquist * (1.0 - PASSBAND)) / 2.0;
        let cutoff = nyquist * (1.0 + PASSBAND) / 2.0;
        let scale = cutoff / bessel_i0(BETA);
        Self::new(from_hz, to_hz, reach, |d| scale * sinc(cutoff * d) * kaiser(d / reach, BETA))
    }

    /// `torchaudio.transforms.Resample`: six zero crossings of a sinc at 0.99 of the lower Nyquist under a Hann window.
    ///
    /// # Errors
    /// If a rate is not one of audio.
    pub fn sinc_hann(from_hz: u32, to_hz: u32) -> Result<Self> {
        const CROSSINGS: f64 = 6.0;
        let cutoff = 0.99 * f64::from(to_hz.min(from_hz)) / f64::from(from_hz);
        Self::new(from_hz, to_hz, CROSSINGS / cutoff, |d| {
            let t = (cutoff * d).clamp(-CROSSINGS, CROSSINGS);
            cutoff * sinc(t) * (PI * t / (2.0 * CROSSINGS)).cos().powi(2)
        })
    }

    /// `scipy.signal.resample_poly`: ten zero crossings under a Kaiser window of 5, scaled to unit gain at 0 Hz.
    ///
    /// # Errors
    /// If a rate is not one of audio.
    pub fn scipy_poly(from_hz: u32, to_hz: u32) -> Result<Self> {
        const BETA: f64 = 5.0;
        let (up, down) = ratio(from_hz, to_hz)?;
        let most = up.max(down) as f64;
        let half_taps = 10 * up.max(down) as i64;
        let tap = |m: f64| sinc(m / most) * kaiser(m / half_taps as f64, BETA);
        let scale = up as f64 / (-half_taps..=half_taps).map(|m| tap(m as f64)).sum::<f64>();
        Self::new(from_hz, to_hz, half_taps as f64 / up as f64, |d| scale * tap(d * up as f64))
    }

    /// Tabulates `kernel`, which is zero from a distance of `reach` input samples on.
    fn new(from_hz: u32, to_hz: u32, reach: f64, kernel: impl Fn(f64) -> f64) -> Result<Self> {
        let (up, down) = ratio(from_hz, to_hz)?;
        if up == down {
            return Ok(Self { up, down, half: 1, table: vec![1.0, 0.0], rows: 1 });
        }
        let half = reach.ceil() as usize;
        let exact = up.saturating_mul(2 * half as u64) <= MAX_TABLE as u64;
        let coarse = COARSE_ROWS * (f64::from(to_hz) / f64::from(from_hz)).min(1.0);
        let rows = if exact { up } else { coarse.ceil() as u64 };
        let mut table = Vec::with_capacity((rows as usize + 1) * 2 * half);
        // One row more than there are, for the interpolation above the last.
        for row in 0..=rows {
            let fraction = row as f64 / rows as f64;
            table.extend((0..2 * half).map(|j| {
                let distance = j as f64 - (half - 1) as f64 - fraction;
                if distance.abs() > reach { 0.0 } else { kernel(distance) as f32 }
            }));
        }
        Ok(Self { up, down, half, table, rows })
    }

    /// The state before the first sample.
    pub fn start(&self) -> ResamplerState {
        ResamplerState { pending: vec![0.0; self.half - 1], dropped: 0, samples_in: 0, samples_out: 0 }
    }

    /// Input samples that must follow an output's position before it can be computed.
    pub fn lookahead_samples(&self) -> usize {
        self.half
    }

    /// Takes `input` and appends to `out` every output that is ready.
    pub fn process(&self, state: &mut ResamplerState, input: &[f32], out: &mut Vec<f32>) {
        state.pending.extend_from_slice(input);
        state.samples_in += input.len() as u64;
        self.emit(state, u64::MAX, out);
    }

    /// Ends the signal and appends the rest, so that `ceil(samples_in · to / from)` came out in total.
    pub fn finish(&self, mut state: ResamplerState, out: &mut Vec<f32>) {
        let total = (state.samples_in * self.up).div_ceil(self.down);
        let last = total.saturating_sub(1) * self.down / self.up;
        let needed = (last + 2 * self.half as u64).saturating_sub(state.dropped) as usize;
        if state.pending.len() < needed {
            state.pending.resize(needed, 0.0);
        }
        self.emit(&mut state, total, out);
    }

    /// The whole signal at once: equal to any sequence of [`Self::process`] and [`Self::finish`].
    pub fn resample(&self, samples: &[f32]) -> Vec<f32> {
        if self.up == self.down {
            return samples.to_vec();
        }
        let mut out = Vec::with_capacity((samples.len() as u64 * self.up).div_ceil(self.down) as usize);
        let mut state = self.start();
        self.process(&mut state, samples, &mut out);
        self.finish(state, &mut out);
        out
    }

    fn emit(&self, state: &mut ResamplerState, end: u64, out: &mut Vec<f32>) {
        let taps = 2 * self.half;
        while state.samples_out < end {
            let position = state.samples_out * self.down;
            let start = (position / self.up - state.dropped) as usize;
            let Some(window) = state.pending.get(start..start + taps) else { break };
            out.push(self.at(window, position % self.up));
            state.samples_out += 1;
        }
        // Between outputs the position may lie beyond what has come in so far.
        let next = state.samples_out * self.down / self.up;
        let spent = ((next - state.dropped) as usize).min(state.pending.len());
        state.pending.drain(..spent);
        state.dropped += spent as u64;
    }

    fn at(&self, window: &[f32], phase: u64) -> f32 {
        let scaled = phase * self.rows;
        let row = (scaled / self.up) as usize;
        let rest = scaled % self.up;
        let low = dot(window, &self.table[row * window.len()..][..window.len()]);
        if rest == 0 {
            return low;
        }
        let high = dot(window, &self.table[(row + 1) * window.len()..][..window.len()]);
        low + (high - low) * (rest as f64 / self.up as f64) as f32
    }
}

/// [`Resampler::hq`] on a whole signal: `ceil(len · to / from)` samples.
///
/// # Errors
/// If a rate is not one of audio.
pub fn resample(samples: &[f32], from_hz: u32, to_hz: u32) -> Result<Vec<f32>> {
    if from_hz == to_hz && RATES_HZ.contains(&from_hz) {
        return Ok(samples.to_vec());
    }
    Ok(Resampler::hq(from_hz, to_hz)?.resample(samples))
}

fn ratio(from_hz: u32, to_hz: u32) -> Result<(u64, u64)> {
    for rate in [from_hz, to_hz] {
        if !RATES_HZ.contains(&rate) {
            return Err(Error::input(format!(
                "a sample rate of {rate} Hz is not supported; use {} to {} Hz",
                RATES_HZ.start(),
                RATES_HZ.end()
            )));
        }
    }
    let (mut a, mut b) = (from_hz, to_hz);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    Ok((u64::from(to_hz / a), u64::from(from_hz / a)))
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    // Independent lanes, so that the compiler may use vector registers; the order of additions is fixed.
    const LANES: usize = 16;
    let mut lanes = [0f32; LANES];
    let (a, b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f32 = a.remainder().iter().zip(b.remainder()).map(|(x, y)| x * y).sum();
    for (a, b) in a.zip(b) {
        for ((lane, x), y) in lanes.iter_mut().zip(a).zip(b) {
            *lane += x * y;
        }
    }
    lanes.iter().sum::<f32>() + rest
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 { 1.0 } else { (PI * x).sin() / (PI * x) }
}

/// Unnormalised Kaiser window at `x` in -1..=1: `I0(beta · sqrt(1 - x²))`.
fn kaiser(x: f64, beta: f64) -> f64 {
    bessel_i0(beta * (1.0 - x * x).max(0.0).sqrt())
}

/// Modified Bessel function of the first kind, order 0, by its power series.
fn bessel_i0(x: f64) -> f64 {
    let quarter = x * x / 4.0;
    let (mut sum, mut term, mut k) = (1.0, 1.0, 1.0);
    while term > sum * 1e-17 {
        term *= quarter / (k * k);
        sum += term;
        k += 1.0;
    }
    sum
}

#[cfg(test)]
#[path = "resample_tests.rs"]
mod tests;
