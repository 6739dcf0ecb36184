//! Finds clicks: does sound move more where pieces of it meet than it does of itself?
//!
//! Two measures, each at the edges and everywhere else. *Step*: the largest difference of neighbouring samples within a
//! tenth of a millisecond. *Flux*: how much the spectrum rises from one stretch of 10 ms to the next, 2.5 ms later, as
//! the mean rise of the log-magnitude; a click is short and therefore wide, so it lifts all bins at once.

use myna_engine::dsp::stft::{Padding, Stft};

/// Samples on either side of a place that belong to its step.
const STEP_REACH: usize = 2;
/// Window and hop of the flux, in samples at 24 kHz.
const FLUX_WINDOW: usize = 240;
const FLUX_HOP: usize = 60;
/// Magnitudes below this are silence: that of a sine at -76 dBFS.
const FLOOR: f32 = 0.01;
/// The part of all places elsewhere that may move more than an edge.
const RARE: f64 = 0.001;

/// How much one clip moves at its edges, as a multiple of what only one place in a thousand elsewhere exceeds.
#[derive(Debug, Clone, Copy)]
pub struct Movement {
    pub step: f32,
    pub flux: f32,
}

/// Compares the `edges` of a clip with all the rest of it.
pub fn movement(samples: &[f32], edges: &[usize]) -> Movement {
    let near = |at: usize, reach: usize| edges.iter().any(|&edge| at.abs_diff(edge) <= reach);
    let steps: Vec<Place> = local_steps(samples).into_iter().enumerate().collect();
    // A frame of the flux covers two windows that begin a hop apart.
    let flux: Vec<Place> = rises(samples);
    Movement {
        step: compare(&steps, |at| near(at, STEP_REACH)),
        flux: compare(&flux, |at| near(at, (FLUX_WINDOW + FLUX_HOP) / 2)),
    }
}

/// Where something is measured and what.
type Place = (usize, f32);

/// The largest value at an edge over the 99.9th percentile of the others.
fn compare(values: &[Place], is_edge: impl Fn(usize) -> bool) -> f32 {
    let (edges, mut others): (Vec<Place>, Vec<Place>) = values.iter().partition(|(at, _)| is_edge(*at));
    assert!(!edges.is_empty() && others.len() > 500, "{} edges, {} other places", edges.len(), others.len());
    others.sort_by(|a, b| a.1.total_cmp(&b.1));
    let usual = others[((1.0 - RARE) * (others.len() - 1) as f64) as usize].1;
    edges.iter().fold(0.0f32, |most, (_, value)| most.max(*value)) / usual
}

fn local_steps(samples: &[f32]) -> Vec<f32> {
    let steps: Vec<f32> = samples.windows(2).map(|pair| (pair[1] - pair[0]).abs()).collect();
    let around = |i: usize| &steps[i.saturating_sub(STEP_REACH)..(i + STEP_REACH).min(steps.len())];
    (0..samples.len()).map(|i| around(i).iter().copied().fold(0.0, f32::max)).collect()
}

/// The middle of each pair of neighbouring windows, and the rise between them.
fn rises(samples: &[f32]) -> Vec<Place> {
    let mut spectra: Vec<Vec<f32>> = Vec::new();
    let stft = Stft::new(FLUX_WINDOW, FLUX_HOP);
    let log = |magnitude: f32| magnitude.max(FLOOR).ln();
    stft.each_frame(samples, Padding::None, |bins| spectra.push(bins.iter().map(|bin| log(bin.norm())).collect()))
        .unwrap();
    let rise = |pair: &[Vec<f32>]| {
        let rises = pair[0].iter().zip(&pair[1]).map(|(before, after)| (after - before).max(0.0));
        rises.sum::<f32>() / pair[0].len() as f32
    };
    let middle = |i: usize| i * FLUX_HOP + (FLUX_WINDOW + FLUX_HOP) / 2;
    spectra.windows(2).enumerate().map(|(i, pair)| (middle(i), rise(pair))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two seconds of something like a voice: harmonics of a gliding pitch that come and go.
    fn voice() -> Vec<f32> {
        let mut phase = 0.0f32;
        let sample = |i: usize| {
            let secs = i as f32 / 24_000.0;
            phase += (120.0 + 30.0 * (3.0 * secs).sin()) / 24_000.0;
            let loud = (0.5 - 0.5 * (std::f32::consts::TAU * 2.0 * secs).cos()).powi(2);
            let harmonic = |h: usize| (std::f32::consts::TAU * phase * h as f32).sin() / (h * h) as f32;
            0.3 * loud * (1..20).map(harmonic).sum::<f32>()
        };
        (0..48_000).map(sample).collect()
    }

    const EDGES: [usize; 3] = [6000, 15_000, 30_000];

    #[test]
    fn a_clip_without_seams_has_no_clicks() {
        let movement = movement(&voice(), &EDGES);
        assert!(movement.step <= 1.0 && movement.flux <= 1.0, "{movement:?}");
    }

    #[test]
    fn a_step_is_found_loud_or_quiet() {
        // 24 000 lies in silence, 6000 and 15 000 in the middle of sound.
        for edge in [6000, 15_000, 24_000] {
            let mut samples = voice();
            samples[edge..].iter_mut().for_each(|s| *s += 0.15);
            let movement = movement(&samples, &[edge]);
            assert!(movement.step > 1.0, "at {edge}: {movement:?}");
        }
    }

    #[test]
    fn a_click_too_small_to_be_a_large_step_is_found_in_the_spectrum() {
        let mut samples = voice();
        // The steepest step of the clip itself is larger.
        samples[24_000] += 0.02;
        let movement = movement(&samples, &[24_000]);
        assert!(movement.step < 1.0 && movement.flux > 1.0, "{movement:?}");
    }

    #[test]
    fn a_piece_that_was_left_out_is_found() {
        let mut samples = voice();
        samples.drain(6000..6100);
        let movement = movement(&samples, &[6000]);
        assert!(movement.step > 1.0 && movement.flux > 1.0, "{movement:?}");
    }
}
