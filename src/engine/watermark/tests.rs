#![allow(clippy::unwrap_used)]
use std::collections::HashMap;
use std::path::Path;

use candle_core::{DType, Device, Tensor, safetensors};

use super::*;
use crate::dsp::resample::resample;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/tiny/stages");
const PERTH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/perth/perth.safetensors");

fn weights() -> Weights {
    Weights::open(Path::new(PERTH), &Device::Cpu).unwrap()
}

fn fixture(stage: &str) -> HashMap<String, Tensor> {
    safetensors::load(format!("{FIXTURES}/{stage}.safetensors"), &Device::Cpu).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// The clip that the reference marked.
fn clip() -> Vec<f32> {
    values(&fixture("frontend")["wav24"])[..48_000].to_vec()
}

fn relative_error(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let square = |xs: &mut dyn Iterator<Item = f32>| xs.map(|x| f64::from(x).powi(2)).sum::<f64>();
    let distance = square(&mut a.iter().zip(b).map(|(a, b)| a - b));
    (distance / square(&mut b.iter().copied())).sqrt() as f32
}

#[test]
fn magnitudes_and_residual_are_those_the_reference_finds_at_32_khz() {
    let (marker, recorded) = (Watermarker::load(&weights()).unwrap(), fixture("perth"));
    let spectra = marker.stft.forward(&clip(), marker.stft.centred()).unwrap();
    let rows = || spectra.data.chunks_exact(spectra.bins);
    let features: Vec<f32> = rows().flat_map(|row| row[..SUBBAND].iter().map(|&bin| magnitude(bin))).collect();
    let features = Tensor::from_vec(features, (1, spectra.frames, SUBBAND), &Device::Cpu).unwrap();
    let marked = (&features + marker.encoder.forward(&features).unwrap()).unwrap();
    // The recording holds frames 40 to 51, bins first.
    let crop = |t: &Tensor| values(&t.narrow(1, 40, 12).unwrap().transpose(1, 2).unwrap());
    let error = relative_error(&crop(&features), &values(&recorded["mag_sub_head"]));
    assert!(error < 1e-5, "magnitudes are off by {error}");
    let error = relative_error(&crop(&marked), &values(&recorded["marked_sub_head"]));
    assert!(error < 1e-4, "marked magnitudes are off by {error}");

    let loudest = rows().map(level).fold(0.0, f32::max);
    let active: Vec<f32> = rows().map(|row| f32::from(u8::from(level(row) > ACTIVE_PART * loudest))).collect();
    assert_eq!(active, values(&recorded["mask"]));
}

#[test]
fn a_marked_clip_is_the_references_apart_from_what_its_resamplers_take_away() {
    let (marker, clip) = (Watermarker::load(&weights()).unwrap(), clip());
    let marked = marker.apply(&clip).unwrap();
    let there = resample(&clip, 24_000, 32_000).unwrap();
    let and_back = resample(&there, 32_000, 24_000).unwrap();
    let resampled: Vec<f32> = marked.iter().zip(&clip).zip(&and_back).map(|((m, c), r)| m - c + r).collect();
    let error = relative_error(&resampled, &values(&fixture("perth")["marked24"]));
    assert!(error < 1e-3, "off by {error}");
}

#[test]
fn a_stream_in_any_chunks_is_the_whole_clip() {
    let (marker, clip) = (Watermarker::load(&weights()).unwrap(), clip());
    let whole = marker.apply(&clip).unwrap();
    assert_eq!(whole.len(), clip.len());
    for chunks in [&[480usize][..], &[1, 700, 68, 5000, 9600], &[24_000], &[60_000]] {
        let (mut state, mut marked, mut at) = (marker.start(), Vec::new(), 0);
        for &n in chunks.iter().cycle() {
            let end = (at + n).min(clip.len());
            marked.extend(marker.push(&mut state, &clip[at..end]).unwrap());
            assert!(end - marked.len() < LOOKAHEAD_SAMPLES + HOP, "{} samples wait", end - marked.len());
            at = end;
            if at == clip.len() {
                break;
            }
        }
        marked.extend(marker.finish(state).unwrap());
        assert_eq!(marked.len(), whole.len());
        let far = marked.iter().zip(&whole).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(far < 1e-5, "chunks of {chunks:?} are off by {far}");
    }
}

#[test]
fn silence_and_snippets_stay_as_they_are() {
    let marker = Watermarker::load(&weights()).unwrap();
    for clip in [vec![0.0; 10_000], vec![0.1; 700], vec![0.1], Vec::new()] {
        assert_eq!(marker.apply(&clip).unwrap(), clip);
        let mut state = marker.start();
        let mut streamed = marker.push(&mut state, &clip).unwrap();
        streamed.extend(marker.finish(state).unwrap());
        assert_eq!(streamed, clip);
    }
    // Just long enough to be mirrored.
    assert_eq!(marker.apply(&vec![0.1; 769]).unwrap().len(), 769);
}

#[test]
fn the_detector_scores_as_the_reference_does() {
    let (detector, recorded) = (WatermarkDetector::load(&weights()).unwrap(), fixture("perth"));
    let scores = values(&recorded["scores_marked_f32_marked_f16_plain"]);
    let (marked, plain) = (values(&recorded["marked24"]), clip());
    assert!((detector.detect(&marked, 24_000).unwrap() - scores[1]).abs() < 2e-2);
    assert!((detector.detect(&plain, 24_000).unwrap() - scores[2]).abs() < 2e-2);
    assert_eq!(detector.detect(&[], 24_000).unwrap(), 0.0);
    assert_eq!(detector.detect(&[0.0; 24_000], 24_000).unwrap(), 0.0);
    assert!(detector.detect(&plain, 0).is_err());
}

#[test]
fn our_marks_are_found_at_any_rate_and_from_part_of_a_clip() {
    let (marker, detector) = (Watermarker::load(&weights()).unwrap(), WatermarkDetector::load(&weights()).unwrap());
    let marked = marker.apply(&clip()).unwrap();
    for rate in [16_000, 24_000, 44_100, 48_000] {
        let score = detector.detect(&resample(&marked, 24_000, rate).unwrap(), rate).unwrap();
        assert!(score > 0.9, "{score} at {rate} Hz");
    }
    let score = detector.detect(&marked[20_000..40_000], 24_000).unwrap();
    assert!(score > 0.9, "{score} in a part");
}
