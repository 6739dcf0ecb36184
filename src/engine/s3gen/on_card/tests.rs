#![allow(clippy::unwrap_used, clippy::print_stdout)]
//! S3Gen on a card against the CPU: the embedded model, and a folder named by `CARD_MODEL` for the released size. Without a
//! card these tests see that its absence is said.

use std::path::Path;

use super::*;
use crate::cuda::tests::card;
use crate::dsp::testing::relative_error;
use crate::model_files::ModelFiles;
use crate::noise::{NoiseSource, SeededNoise};
use crate::protocol::ModelSource;
use crate::s3gen::hift::HiftState;
use crate::s3gen::{FlowOptions, FlowRun, S3GenReference, StreamOptions};

/// A decoder on the CPU, and the same on a card.
struct Both {
    cpu: S3Gen,
    card: S3Gen,
}

impl Both {
    fn new(w: &Weights, config: &super::super::FlowConfig, on: &Arc<Card>, number: Number) -> Self {
        let cpu = S3Gen::load(w, config).unwrap();
        let mut card = cpu.clone();
        card.put_on_card(w, on, number).unwrap();
        Self { cpu, card }
    }
}

fn embedded_config() -> serde_json::Value {
    let files = ModelFiles::of(&ModelSource::Embedded).unwrap();
    serde_json::from_slice(&files.read("config.json").unwrap().unwrap()).unwrap()
}

fn embedded() -> (Weights, super::super::FlowConfig) {
    let files = ModelFiles::of(&ModelSource::Embedded).unwrap();
    let w = files.weights(&["s3gen_meanflow.safetensors"], &Device::Cpu).unwrap();
    (w, serde_json::from_value(embedded_config()["flow"].clone()).unwrap())
}

/// The embedded flow without its time mixer and its masks: a standard one with guidance, all of which sees all.
fn standard() -> (Weights, super::super::FlowConfig, tempfile::TempDir) {
    let bytes = ModelFiles::of(&ModelSource::Embedded).unwrap().read("s3gen_meanflow.safetensors").unwrap().unwrap();
    let mut tensors = candle_core::safetensors::load_buffer(&bytes, &Device::Cpu).unwrap();
    tensors.retain(|name, _| name.starts_with("flow.") && !name.contains("time_embed_mixer"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s3gen.safetensors");
    candle_core::safetensors::save(&tensors, &path).unwrap();
    let (_, config) = embedded();
    let config = super::super::FlowConfig { chunk_causal: None, ..config };
    (Weights::open(&path, &Device::Cpu).unwrap(), config, folder)
}

/// A voice out of nothing: so many tokens, and one frame more than belongs to them.
fn voice(s3gen: &S3Gen, tokens: u32, odd: usize) -> S3GenReference {
    let noise = SeededNoise::new(7);
    let frames = 2 * tokens as usize + odd;
    let feat: Vec<f32> = noise.flow(3, 0, frames).iter().map(|x| x - 4.0).collect();
    S3GenReference {
        prompt_token: speech(1, tokens),
        prompt_feat: Tensor::from_vec(feat, (1, frames, MEL_CHANNELS), &Device::Cpu).unwrap(),
        x_vector: Tensor::from_vec(
            noise.flow(9, 0, 3)[..s3gen.config().x_vector_dim].to_vec(),
            (1, s3gen.config().x_vector_dim),
            &Device::Cpu,
        )
        .unwrap(),
    }
}

fn speech(seed: u32, count: u32) -> Vec<u32> {
    (0..count).map(|i| (i * 2357 + i * i * 31 + seed * 911) % 6561).collect()
}

fn run(noise: &dyn NoiseSource) -> FlowRun<'_> {
    FlowRun { noise, sentence: 0, cancelled: &|| false }
}

fn values(t: &Tensor) -> Vec<f32> {
    t.flatten_all().unwrap().to_vec1().unwrap()
}

/// How far the card's `mu` and mel are from the CPU's.
fn compare(both: &Both, options: &FlowOptions, (prompt, odd, count): (u32, usize, u32)) -> (f64, f64) {
    let reference = voice(&both.cpu, prompt, odd);
    let (noise, tokens) = (SeededNoise::new(5), speech(prompt, count));
    let expected = both.cpu.trace(&reference, &tokens, options, &run(&noise)).unwrap();
    both.card.poison();
    let found = both.card.trace(&reference, &tokens, options, &run(&noise)).unwrap();
    assert_eq!(found.mel.dims(), expected.mel.dims());
    let far = |a: &Tensor, b: &Tensor| relative_error(&values(a), &values(b));
    (far(&found.mu, &expected.mu), far(&found.mel, &expected.mel))
}

#[test]
fn the_embedded_mel_is_that_of_the_cpu() {
    let Some(on) = card() else { return };
    let (w, config) = embedded();
    for (number, tolerance) in [(Number::F32, 2e-5), (Number::F16, 4e-3), (Number::Bf16, 3e-2)] {
        let both = Both::new(&w, &config, &on, number);
        let options = FlowOptions { noise_scale: 1.0, ..both.cpu.default_options() };
        // The first makes room, which the others find full of what is no number.
        for lengths in [(70, 1, 40), (60, 0, 33), (21, 1, 5), (1, 0, 1), (90, 0, 130)] {
            let (mu, mel) = compare(&both, &options, lengths);
            println!("{number:?} {lengths:?}: mu off by {mu:.1e}, mel by {mel:.1e}");
            assert!(mu < tolerance && mel < tolerance, "{number:?} {lengths:?}: {mu:e} {mel:e}");
        }
    }
}

#[test]
fn a_guided_flow_without_masks_is_that_of_the_cpu() {
    let Some(on) = card() else { return };
    let (w, config, _folder) = standard();
    for (number, tolerance) in [(Number::F32, 5e-5), (Number::F16, 1e-2), (Number::Bf16, 6e-2)] {
        let both = Both::new(&w, &config, &on, number);
        let options = both.cpu.default_options();
        let options = FlowOptions { solver: options.solver.with_steps(4), ..options };
        for lengths in [(40, 0, 31), (50, 1, 64), (2, 0, 3)] {
            let (mu, mel) = compare(&both, &options, lengths);
            println!("guided, {number:?} {lengths:?}: mu off by {mu:.1e}, mel by {mel:.1e}");
            assert!(mu < tolerance && mel < tolerance, "{number:?} {lengths:?}: {mu:e} {mel:e}");
        }
    }
}

/// All frames of an utterance whose tokens come as `cuts` says.
fn stream(s3gen: &S3Gen, reference: &S3GenReference, tokens: &[u32], cuts: &[usize], options: &FlowOptions) -> Tensor {
    let noise = SeededNoise::new(5);
    let mut state = s3gen.start(reference, options).unwrap();
    s3gen.prime(&mut state, &run(&noise)).unwrap();
    let (mut from, mut frames) = (0, Vec::new());
    for (i, &len) in cuts.iter().enumerate() {
        let chunk = s3gen.decode(&mut state, &tokens[from..from + len], i + 1 == cuts.len(), &run(&noise)).unwrap();
        from += len;
        frames.push(chunk.frames);
    }
    assert_eq!(from, tokens.len());
    Tensor::cat(&frames, 1).unwrap()
}

#[test]
fn with_masks_the_chunks_on_a_card_equal_the_whole() {
    let Some(on) = card() else { return };
    let (w, config) = embedded();
    let both = Both::new(&w, &config, &on, Number::F32);
    let options = FlowOptions { noise_scale: 1.0, ..both.cpu.default_options() };
    let tokens = speech(3, 47);
    for odd in [0, 1] {
        let reference = voice(&both.cpu, 30, odd);
        let whole = both.cpu.mel(&reference, &tokens, &options, &run(&SeededNoise::new(5))).unwrap();
        for cuts in [&[47][..], &[11, 16, 20], &[1, 0, 9, 30, 7, 0]] {
            let found = stream(&both.card, &reference, &tokens, cuts, &options);
            assert_eq!(found.dims(), whole.dims());
            let far = relative_error(&values(&found), &values(&whole));
            assert!(far < 2e-5, "{cuts:?}: {far:e}");
        }
    }
}

#[test]
fn without_masks_one_chunk_on_a_card_equals_the_whole_and_many_have_as_many_frames() {
    let Some(on) = card() else { return };
    let (w, config, _folder) = standard();
    let both = Both::new(&w, &config, &on, Number::F32);
    let options = both.cpu.default_options();
    let stream_options = StreamOptions { context_tokens: 12, ..options.stream };
    let options = FlowOptions { solver: options.solver.with_steps(2), stream: stream_options, ..options };
    let tokens = speech(3, 70);
    for odd in [0, 1] {
        let reference = voice(&both.cpu, 30, odd);
        let whole = both.cpu.mel(&reference, &tokens, &options, &run(&SeededNoise::new(5))).unwrap();
        let once = stream(&both.card, &reference, &tokens, &[70], &options);
        assert!(relative_error(&values(&once), &values(&whole)) < 5e-5);
        for cuts in [&[4, 66][..], &[2; 35], &[4, 8, 0, 46, 12, 0]] {
            let found = stream(&both.card, &reference, &tokens, cuts, &options);
            assert_eq!(found.dims(), whole.dims(), "{cuts:?}");
            assert!(values(&found).iter().all(|x| x.is_finite()), "{cuts:?}");
        }
        // The first chunk knows no more on the CPU either.
        let (mut ours, mut theirs) =
            (both.card.start(&reference, &options).unwrap(), both.cpu.start(&reference, &options).unwrap());
        let noise = SeededNoise::new(5);
        let found = both.card.decode(&mut ours, &tokens[..11], false, &run(&noise)).unwrap();
        let expected = both.cpu.decode(&mut theirs, &tokens[..11], false, &run(&noise)).unwrap();
        assert!(relative_error(&values(&found.frames), &values(&expected.frames)) < 5e-5);
        let (found, expected) = (found.lookahead.unwrap(), expected.lookahead.unwrap());
        assert!(relative_error(&values(&found), &values(&expected)) < 5e-5);
    }
}

#[test]
fn a_cancelled_flow_on_a_card_takes_no_further_step() {
    let Some(on) = card() else { return };
    let (w, config, _folder) = standard();
    let both = Both::new(&w, &config, &on, Number::F32);
    let asked = std::cell::Cell::new(0);
    let cancelled = || {
        asked.set(asked.get() + 1);
        asked.get() > 4
    };
    let noise = SeededNoise::new(5);
    let run = FlowRun { noise: &noise, sentence: 0, cancelled: &cancelled };
    let result = both.card.mel(&voice(&both.cpu, 9, 0), &speech(1, 9), &both.cpu.default_options(), &run);
    assert!(matches!(result, Err(Error::Cancelled)));
    assert_eq!(asked.get(), 5);
}

/// The vocoder on the CPU, and the same on a card.
fn vocoders(w: &Weights, config: &HiftConfig, on: &Arc<Card>) -> (Hift, Hift) {
    let w = w.pp("mel2wav");
    let cpu = Hift::load(&w, config).unwrap();
    let mut card = cpu.clone();
    card.put_on_card(&w, config, on).unwrap();
    (cpu, card)
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
fn the_embedded_vocoder_is_that_of_the_cpu() {
    let Some(on) = card() else { return };
    let config: HiftConfig = serde_json::from_value(embedded_config()["hift"].clone()).unwrap();
    let (cpu, card) = vocoders(&embedded().0, &config, &on);
    let noise = SeededNoise::new(5);
    for frames in [60, 1, 3, 250] {
        let mel = some_mel(frames);
        card.poison();
        let (found, expected) = (card.forward(&mel, &noise, 0).unwrap(), cpu.forward(&mel, &noise, 0).unwrap());
        let (pitch, wav) = (relative_error(&found.f0, &expected.f0), relative_error(&found.wav, &expected.wav));
        let same = cpu.inference_from_source(&mel, &found.source).unwrap();
        let given = relative_error(&found.wav, &same);
        println!("{frames} frames: pitch off by {pitch:.1e}, sound by {wav:.1e}, with the same excitation {given:.1e}");
        assert!(pitch < 1e-6 && wav < 1e-3 && given < 2e-5, "{frames}: {pitch:e} {wav:e} {given:e}");
    }
    let (mut ours, mut theirs, mel) = (HiftState::new(3), HiftState::new(3), some_mel(97));
    for (from, count, ahead) in [(0, 16, 6), (16, 30, 6), (46, 51, 0)] {
        let chunk = mel.narrow(1, from, count).unwrap();
        let ahead = (ahead > 0).then(|| mel.narrow(1, from + count, ahead).unwrap());
        let found = card.decode(&mut ours, &noise, &chunk, ahead.as_ref(), ahead.is_none()).unwrap();
        let expected = cpu.decode(&mut theirs, &noise, &chunk, ahead.as_ref(), ahead.is_none()).unwrap();
        let far = relative_error(&found, &expected);
        assert!(far < 1e-3, "frames from {from}: {far:e}");
    }
}

/// Recorded once and replayed, at several lengths in turn and more of them than are kept, against launch by launch.
#[test]
fn what_is_recorded_equals_what_is_launched_bit_for_bit() {
    let Some(on) = card() else { return };
    let config: HiftConfig = serde_json::from_value(embedded_config()["hift"].clone()).unwrap();
    let (_, hift) = vocoders(&embedded().0, &config, &on);
    let noise = SeededNoise::new(5);
    let (w, flow) = embedded();
    let (guided_w, guided_flow, _folder) = standard();
    for number in [Number::F32, Number::Bf16] {
        for (w, config) in [(&w, &flow), (&guided_w, &guided_flow)] {
            let s3gen = Both::new(w, config, &on, number).card;
            let options = FlowOptions { noise_scale: 1.0, ..s3gen.default_options() };
            let options = FlowOptions { solver: options.solver.with_steps(3), ..options };
            let reference = voice(&s3gen, 40, 1);
            let mel = |count: u32, records: bool| {
                s3gen.record(records);
                hift.record(records);
                let mel = s3gen.mel(&reference, &speech(2, count), &options, &run(&noise)).unwrap();
                let wav = hift.forward(&mel, &noise, 0).unwrap().wav;
                (values(&mel), wav)
            };
            let counts = [7, 30, 7, 31, 100, 30].into_iter().chain(32..60).chain([7, 100]);
            for count in counts {
                let launched = mel(count, false);
                for turn in 0..2 {
                    assert!(mel(count, true) == launched, "{number:?}, {count} tokens, turn {turn}");
                }
            }
        }
    }
}

#[test]
fn the_released_size_is_that_of_the_cpu() {
    let (Some(on), Ok(folder)) = (card(), std::env::var("CARD_MODEL")) else { return };
    let path = ["s3gen.safetensors", "s3gen_meanflow.safetensors"].map(|name| Path::new(&folder).join(name));
    let path = path.iter().find(|path| path.exists()).unwrap();
    let w = Weights::open(path, &Device::Cpu).unwrap();
    for (number, tolerance) in [(Number::F32, 1e-4), (Number::F16, 1e-2), (Number::Bf16, 6e-2)] {
        let both = Both::new(&w, &super::super::FlowConfig::default(), &on, number);
        let options = both.cpu.default_options();
        let options = FlowOptions { solver: options.solver.with_steps(2), ..options };
        for lengths in [(40, 0, 21), (30, 1, 13)] {
            let (mu, mel) = compare(&both, &options, lengths);
            println!("released size, {number:?} {lengths:?}: mu off by {mu:.1e}, mel by {mel:.1e}");
            assert!(mu < tolerance && mel < tolerance, "{number:?} {lengths:?}: {mu:e} {mel:e}");
        }
    }
    let (cpu, card) = vocoders(&w, &HiftConfig::default(), &on);
    let (mel, noise) = (some_mel(60), SeededNoise::new(5));
    let found = card.forward(&mel, &noise, 0).unwrap();
    let given = relative_error(&found.wav, &cpu.inference_from_source(&mel, &found.source).unwrap());
    println!("released size: sound off by {given:.1e} with the same excitation");
    assert!(given < 1e-4, "{given:e}");
}
