#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::dsp::testing::{Fixture, relative_error};

/// The signal of `tests/reference/resample_fixtures.py`.
fn signal(len: usize, from_hz: u32, to_hz: u32) -> Vec<f32> {
    let nyquist = (f64::from(to_hz) / f64::from(from_hz)).min(1.0);
    let sample = |n: usize| {
        let t = n as f64;
        let parts = [0.031, 0.113, 0.371, 0.613, 0.829].iter().enumerate();
        let sum: f64 = parts.map(|(k, f)| 0.1 * (PI * nyquist * f * t + k as f64).sin()).sum();
        (sum * (t / 200.0).min(1.0)) as f32
    };
    (0..len).map(sample).collect()
}

#[test]
fn equals_soxr_torchaudio_and_scipy() {
    let fixture = Fixture::open("dsp/resample");
    let mut seen = 0;
    for name in fixture.names() {
        let mut parts = name.rsplitn(3, '_');
        let (to, from, kind) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
        let (from, to): (u32, u32) = (from.parse().unwrap(), to.parse().unwrap());
        let resampler = match kind {
            "soxr_hq" => Resampler::hq(from, to),
            "sinc_hann" => Resampler::sinc_hann(from, to),
            "scipy_poly" => Resampler::scipy_poly(from, to),
            other => panic!("a fixture of an unknown resampler {other}"),
        };
        let found = resampler.unwrap().resample(&signal(701, from, to));
        let expected = fixture.values(&name);
        // soxr rounds the length where librosa, which pads, and this round up.
        assert_eq!(found.len(), (701 * to as usize).div_ceil(from as usize));
        assert!(found.len() - expected.len() <= 1, "{name}");
        // For 44.1 kHz soxr joins two filters whose own passband droops by up to 0.01 dB.
        let tolerance = if name.contains("44100") { 5e-4 } else { 1e-5 };
        let error = relative_error(&found[..expected.len()], &expected);
        assert!(error < tolerance, "{name}: {error:e}");
        seen += 1;
    }
    assert_eq!(seen, 11);
}

#[test]
fn chunked_equals_whole() {
    for (from, to) in [(24_000, 32_000), (44_100, 24_000), (48_000, 16_000), (8_000, 24_000), (24_000, 24_000)] {
        let resampler = Resampler::hq(from, to).unwrap();
        let x = signal(3001, from, to);
        let whole = resampler.resample(&x);
        let (mut state, mut out) = (resampler.start(), Vec::new());
        let mut rest = &x[..];
        for size in [1, 0, 7, 960, 100, 1].into_iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (now, later) = rest.split_at(size.min(rest.len()));
            resampler.process(&mut state, now, &mut out);
            rest = later;
        }
        resampler.finish(state, &mut out);
        assert_eq!(out, whole, "{from} to {to}");
    }
}

#[test]
fn every_length_has_its_ceiling() {
    for (from, to) in [(24_000, 16_000), (44_100, 48_000), (192_000, 8_000), (8_000, 96_000)] {
        let resampler = Resampler::hq(from, to).unwrap();
        for len in 0..20usize {
            let found = resampler.resample(&vec![0.5; len]).len();
            assert_eq!(found, (len * to as usize).div_ceil(from as usize), "{len} samples from {from} to {to}");
        }
    }
}

#[test]
fn level_and_position_are_kept() {
    // A straight line stays one: no gain, no delay.
    for (from, to) in [(24_000, 16_000), (44_100, 24_000), (16_000, 24_000), (47_999, 24_000), (24_000, 44_111)] {
        let ramp: Vec<f32> = (0..4000).map(|n| n as f32 / 4000.0).collect();
        let y = resample(&ramp, from, to).unwrap();
        let step = f64::from(from) / f64::from(to) / 4000.0;
        for (n, found) in y.iter().enumerate().take(y.len() / 2).skip(y.len() / 4) {
            let expected = n as f64 * step;
            assert!((f64::from(*found) - expected).abs() < 2e-5, "{from} to {to}: {found} at {n}, not {expected}");
        }
    }
}

#[test]
fn what_the_lower_rate_cannot_hold_is_removed() {
    let tone =
        |hz: f64| -> Vec<f32> { (0..6000).map(|n| (2.0 * PI * hz * n as f64 / 48_000.0).sin() as f32).collect() };
    let rms = |x: &[f32]| (x.iter().map(|v| v * v).sum::<f32>() / x.len() as f32).sqrt();
    let kept = resample(&tone(7_000.0), 48_000, 16_000).unwrap();
    let cut = resample(&tone(8_100.0), 48_000, 16_000).unwrap();
    assert!((rms(&kept[500..1500]) - 0.5f32.sqrt()).abs() < 1e-3);
    assert!(rms(&cut[500..1500]) < 1e-5, "{}", rms(&cut[500..1500]));
}

#[test]
fn strange_rates_are_errors() {
    for (from, to) in [(0, 24_000), (24_000, 0), (4_000_000, 24_000), (999, 999)] {
        assert!(resample(&[0.0; 10], from, to).unwrap_err().is_bad_input());
    }
}
