#![allow(clippy::unwrap_used)]
use std::path::Path;

use candle_core::{DType, Device, Tensor, safetensors};

use super::*;
use crate::noise::SeededNoise;

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/tiny");

fn tiny() -> Hift {
    let path = format!("{TINY}/shared/s3gen_meanflow.safetensors");
    let weights = Weights::open(Path::new(&path), &Device::Cpu).unwrap();
    Hift::load(&weights.pp("mel2wav"), &HiftConfig { base_channels: 16, f0_channels: 16 }).unwrap()
}

/// Recorded draws of the reference.
#[derive(Debug)]
struct Recorded {
    phases: Vec<f32>,
    /// `(harmonics, samples)`.
    noise: Vec<Vec<f32>>,
}

impl NoiseSource for Recorded {
    fn uniform(&self, _: usize, _: usize) -> f32 {
        0.0
    }
    fn flow(&self, _: usize, _: usize, frames: usize) -> Vec<f32> {
        vec![0.0; frames * 80]
    }
    fn phases(&self, _: usize, _: usize) -> Vec<f32> {
        self.phases.clone()
    }
    fn source(&self, _: usize, start: usize, samples: usize, harmonics: usize) -> Vec<f32> {
        (0..samples * harmonics).map(|i| self.noise[i % harmonics][start + i / harmonics]).collect()
    }
}

struct Fixture(std::collections::HashMap<String, Tensor>);

impl Fixture {
    fn open() -> Self {
        Self(safetensors::load(format!("{TINY}/stages/hift.safetensors"), &Device::Cpu).unwrap())
    }
    fn tensor(&self, name: &str) -> Tensor {
        self.0[name].to_dtype(DType::F32).unwrap()
    }
    fn values(&self, name: &str) -> Vec<f32> {
        self.tensor(name).flatten_all().unwrap().to_vec1().unwrap()
    }
    fn mel(&self) -> Tensor {
        self.tensor("mel").transpose(1, 2).unwrap().contiguous().unwrap()
    }
    fn noise(&self) -> Recorded {
        Recorded { phases: self.values("phases"), noise: self.tensor("noise").to_vec2().unwrap() }
    }
}

fn relative_error(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let (mut distance, mut length) = (0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        distance += (a - b).powi(2);
        length += b.powi(2);
    }
    (distance / length).sqrt()
}

/// A mel that moves like speech: the channels rise and fall at different rates.
fn some_mel(frames: usize) -> Tensor {
    let value = |i: usize| {
        let (t, c) = ((i / 80) as f32, (i % 80) as f32);
        -4.0 + 2.5 * (0.31 * t + 0.2 * c).sin() + (0.07 * t * (1.0 + c / 40.0)).cos()
    };
    Tensor::from_vec((0..frames * 80).map(value).collect::<Vec<f32>>(), (1, frames, 80), &Device::Cpu).unwrap()
}

#[test]
fn the_whole_clip_is_the_references() {
    let (hift, fixture) = (tiny(), Fixture::open());
    let out = hift.forward(&fixture.mel(), &fixture.noise(), 0).unwrap();
    assert!(relative_error(&out.f0, &fixture.values("f0")) < 1e-5);
    assert!(relative_error(&out.source, &fixture.values("source")) < 1e-4);
    assert!(relative_error(&out.wav, &fixture.values("wav")) < 1e-3);
}

#[test]
fn a_recorded_excitation_gives_the_references_samples() {
    let (hift, fixture) = (tiny(), Fixture::open());
    let source = fixture.values("source");
    let wav = hift.inference_from_source(&fixture.mel(), &source).unwrap();
    let error = relative_error(&wav, &fixture.values("wav"));
    assert!(error < 1e-5, "relative error {error}");

    let cached = fixture.values("cache_source");
    let spliced = [&cached[..], &source[cached.len()..]].concat();
    let wav = hift.inference_from_source(&fixture.mel(), &spliced).unwrap();
    let error = relative_error(&wav[..1200], &fixture.values("wav_cached_head"));
    assert!(error < 1e-5, "relative error with the first samples replaced {error}");
}

#[test]
fn a_clip_of_several_blocks_is_the_one_rendered_at_once() {
    let hift = tiny();
    let frames = 2 * BLOCK_FRAMES + 50;
    let mel = some_mel(frames);
    let blocks = hift.forward(&mel, &SeededNoise::new(5), 0).unwrap();
    let once = hift.generator.render(&mel, &blocks.source, 0..frames).unwrap();
    let error = relative_error(&blocks.wav, &once);
    assert!(error < 1e-6, "relative error {error}");
}

#[test]
fn an_utterance_fades_in_as_the_references_does() {
    let (hift, fixture) = (tiny(), Fixture::open());
    let mut state = HiftState::new(0);
    let wav = hift.decode(&mut state, &fixture.noise(), &fixture.mel(), None, true).unwrap();
    assert!(wav[..SAMPLES_PER_FRAME].iter().all(|&s| s == 0.0));
    assert!(relative_error(&wav[..1200], &fixture.values("wav_faded_head")) < 1e-3);
}

#[test]
fn an_input_of_the_wrong_shape_is_an_error() {
    let hift = tiny();
    assert!(hift.inference_from_source(&some_mel(3), &[0.0; 480]).is_err());
    let narrow = Tensor::zeros((1, 3, 40), DType::F32, &Device::Cpu).unwrap();
    assert!(hift.forward(&narrow, &SeededNoise::new(0), 0).is_err());
}

/// Every chunk as a stream, each with the `ahead` frames behind it as look-ahead.
fn streamed(hift: &Hift, mel: &Tensor, chunks: &[usize], ahead: usize, hold_back: usize) -> Vec<f32> {
    let (mut state, mut wav, mut at) = (HiftState::new(3).with_hold_back(hold_back), Vec::new(), 0);
    let frames = mel.dim(1).unwrap();
    for (i, &n) in chunks.iter().enumerate() {
        let chunk = mel.narrow(1, at, n).unwrap();
        at += n;
        let ahead = mel.narrow(1, at, ahead.min(frames - at)).unwrap();
        wav.extend(hift.decode(&mut state, &SeededNoise::new(5), &chunk, Some(&ahead), i + 1 == chunks.len()).unwrap());
    }
    assert_eq!(at, frames);
    wav
}

#[test]
fn a_stream_that_waits_for_all_it_depends_on_is_the_whole_clip() {
    let hift = tiny();
    let mel = some_mel(97);
    let mut whole = hift.forward(&mel, &SeededNoise::new(5), 3).unwrap().wav;
    let once = streamed(&hift, &mel, &[97], 0, 0);
    whole[..2 * SAMPLES_PER_FRAME].copy_from_slice(&once[..2 * SAMPLES_PER_FRAME]);
    let far = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert_eq!(far(&once, &whole), 0.0);
    for (chunks, ahead, hold_back) in [
        (&[1, 1, 5, 50, 3, 37, 0][..], 0, FULL_HOLD_BACK_FRAMES),
        (&[20, 20, 20, 20, 17], 0, FULL_HOLD_BACK_FRAMES),
        (&[2, 31, 31, 33], FULL_HOLD_BACK_FRAMES, 0),
    ] {
        let wav = streamed(&hift, &mel, chunks, ahead, hold_back);
        assert_eq!(wav.len(), whole.len());
        let far = far(&wav, &whole);
        assert!(far < 1e-5, "{chunks:?} with {ahead} frames ahead and {hold_back} held back: off by {far}");
    }
}
