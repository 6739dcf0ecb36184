#![allow(clippy::unwrap_used, clippy::panic)]

use std::cell::Cell;
use std::path::Path;

use super::*;
use crate::dsp::mel::s3gen_mel;
use crate::dsp::testing::{Fixture, load_config, relative_error};
use crate::noise::{NoiseSource, SeededNoise};

const TINY_WEIGHTS: &str = "tiny/shared/s3gen_meanflow.safetensors";

/// A stage of the reference at the tiny size.
fn stage(name: &str) -> Fixture {
    Fixture::open(&format!("tiny/stages/{name}"))
}

/// `(B, C, T)` of the reference as `(B, T, C)`.
fn rows(stage: &Fixture, name: &str) -> Tensor {
    stage.tensor(name).transpose(1, 2).unwrap().contiguous().unwrap()
}

fn tokens_of(stage: &Fixture, name: &str) -> Vec<u32> {
    stage.integers(name).into_iter().map(|token| token as u32).collect()
}

/// The reference voice of the flow's fixtures.
fn voice() -> S3GenReference {
    let stage = stage("flow_std");
    S3GenReference {
        prompt_token: tokens_of(&stage, "prompt_token"),
        prompt_feat: stage.tensor("prompt_feat"),
        x_vector: stage.tensor("x_vector"),
    }
}

/// Recorded flow noise, `(frames, 80)`; the rest is not asked for.
#[derive(Debug)]
struct Replay(Vec<f32>);

impl Replay {
    fn new(z: &Tensor) -> Self {
        Self(z.flatten_all().unwrap().to_vec1().unwrap())
    }
}

impl NoiseSource for Replay {
    fn uniform(&self, _: usize, _: usize) -> f32 {
        panic!("the flow draws no tokens")
    }

    fn flow(&self, _: usize, start: usize, frames: usize) -> Vec<f32> {
        self.0[start * MEL_CHANNELS..(start + frames) * MEL_CHANNELS].to_vec()
    }

    fn phases(&self, _: usize, _: usize) -> Vec<f32> {
        panic!("the flow has no phases")
    }

    fn source(&self, _: usize, _: usize, _: usize, _: usize) -> Vec<f32> {
        panic!("the flow has no source")
    }
}

fn never() -> bool {
    false
}

fn run(noise: &dyn NoiseSource) -> FlowRun<'_> {
    FlowRun { noise, sentence: 0, cancelled: &never }
}

fn error(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.dims(), b.dims());
    let values = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    relative_error(&values(a), &values(b))
}

#[track_caller]
fn assert_close(a: &Tensor, b: &Tensor, tolerance: f64, what: &str) {
    let error = error(a, b);
    assert!(error <= tolerance, "{what}: relative error {error:e} above {tolerance:e}");
}

fn tiny_config() -> FlowConfig {
    load_config("tiny/english/config.json", "flow")
}

fn mean_flow_with(config: &FlowConfig) -> S3Gen {
    let weights = Weights::open(&Fixture::path(TINY_WEIGHTS), &Device::Cpu).unwrap();
    let s3gen = S3Gen::load(&weights, config).unwrap();
    for other in ["tokenizer", "speaker_encoder", "mel2wav"] {
        weights.ignore(other);
    }
    weights.finish().unwrap();
    s3gen
}

/// The same weights without the time mixer, which makes a standard flow of them.
fn standard_with(config: &FlowConfig) -> S3Gen {
    let mut tensors = candle_core::safetensors::load(Fixture::path(TINY_WEIGHTS), &Device::Cpu).unwrap();
    tensors.retain(|name, _| name.starts_with("flow.") && !name.contains("time_embed_mixer"));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s3gen.safetensors");
    candle_core::safetensors::save(&tensors, &path).unwrap();
    let weights = Weights::open(&path, &Device::Cpu).unwrap();
    let s3gen = S3Gen::load(&weights, config).unwrap();
    weights.finish().unwrap();
    s3gen
}

fn mean_flow() -> S3Gen {
    mean_flow_with(&tiny_config())
}

fn chunked(chunk_tokens: usize, left: Option<i64>, estimator: Option<usize>) -> FlowConfig {
    masked(ChunkCausalConfig {
        left_chunks: left,
        estimator_chunk_frames: estimator,
        ..ChunkCausalConfig::new(chunk_tokens)
    })
}

fn masked(chunks: ChunkCausalConfig) -> FlowConfig {
    FlowConfig { chunk_causal: Some(chunks), ..tiny_config() }
}

/// The prompt, then 2 tokens, then 5 each.
fn prompt_as_chunk() -> FlowConfig {
    masked(ChunkCausalConfig { prompt_is_chunk: true, first_chunk_tokens: Some(2), ..ChunkCausalConfig::new(5) })
}

/// Streams `tokens` in stretches of the given lengths, the last one closing the utterance.
fn stream(s3gen: &S3Gen, reference: &S3GenReference, tokens: &[u32], cuts: &[usize], options: &FlowOptions) -> Tensor {
    let noise = SeededNoise::new(5);
    let mut state = s3gen.start(reference, options).unwrap();
    let (mut from, mut frames) = (0, Vec::new());
    for (i, &len) in cuts.iter().enumerate() {
        let last = i + 1 == cuts.len();
        let chunk = s3gen.decode(&mut state, &tokens[from..from + len], last, &run(&noise)).unwrap();
        from += len;
        frames.push(chunk.frames);
    }
    assert_eq!(from, tokens.len());
    Tensor::cat(&frames, 1).unwrap()
}

fn odd(reference: &S3GenReference) -> S3GenReference {
    let more = reference.prompt_feat.narrow(1, 0, 1).unwrap();
    let prompt_feat = Tensor::cat(&[&reference.prompt_feat, &more], 1).unwrap();
    S3GenReference { prompt_feat, ..reference.clone() }
}

fn utterance(len: u32) -> Vec<u32> {
    (0..len).map(|i| (i * 2357 + 11) % 6561).collect()
}

#[test]
fn the_standard_flow_equals_the_reference() {
    let (s3gen, stage) = (standard_with(&tiny_config()), stage("flow_std"));
    let options = s3gen.default_options();
    assert_eq!(options.solver, Solver::CFM);
    let noise = Replay::new(&rows(&stage, "z"));
    let trace = s3gen.trace(&voice(), &tokens_of(&stage, "speech_tokens"), &options, &run(&noise)).unwrap();
    assert_close(&trace.mu, &rows(&stage, "mu"), 1e-4, "mu");
    assert_close(&trace.mel, &rows(&stage, "mel"), 1e-4, "mel");
}

#[test]
fn the_mean_flow_equals_the_reference() {
    let (s3gen, stage, shared) = (mean_flow(), stage("flow_meanflow"), stage("flow_std"));
    let options = s3gen.default_options();
    assert_eq!(options.solver, Solver::MEAN_FLOW);
    let noise = Replay::new(&rows(&stage, "z"));
    let tokens = tokens_of(&shared, "speech_tokens");
    let mel = s3gen.mel(&voice(), &tokens, &options, &run(&noise)).unwrap();
    assert_close(&mel, &rows(&stage, "mel"), 1e-4, "mel");
}

#[test]
fn encoder_and_estimator_equal_the_reference_step_by_step() {
    let (stage, mean) = (stage("flow_std"), stage("flow_meanflow"));
    let s3gen = standard_with(&tiny_config());
    let speaker = s3gen.flow.speaker(&stage.tensor("x_vector")).unwrap();
    assert_close(&speaker, &stage.tensor("spks"), 1e-5, "speaker");
    let (mu, feat) = (rows(&stage, "mu"), stage.tensor("prompt_feat"));
    let cond = feat.pad_with_zeros(1, 0, mu.dims()[1] - feat.dims()[1]).unwrap();
    let conditions = Conditions { mu: &mu, speaker: &speaker, cond: &cond };
    let velocities = s3gen.flow.velocities(&rows(&stage, "z"), &conditions, Solver::CFM).unwrap();
    assert_close(&velocities, &rows(&stage, "step0.v"), 1e-4, "both rows of the first velocity");
    let times: Vec<f32> = stage.tensor("t").to_vec1().unwrap();
    for (ours, theirs) in Solver::CFM.schedule().iter().zip(times) {
        assert!((ours - theirs).abs() < 1e-6, "{ours} {theirs}");
    }

    let s3gen = mean_flow();
    let velocity = s3gen.flow.velocities(&rows(&mean, "z"), &conditions, Solver::MEAN_FLOW).unwrap();
    assert_close(&velocity, &rows(&mean, "step0.v"), 1e-4, "the first mean velocity");
}

#[test]
fn voice_conversion_with_an_odd_reference_equals_the_reference() {
    let (s3gen, stage) = (standard_with(&tiny_config()), stage("vc"));
    // The fixture's target is this stretch of the front end's clip, 25 frames long.
    let wav24 = Fixture::open("tiny/stages/frontend").values("wav24");
    let target = S3GenReference {
        prompt_token: tokens_of(&stage, "prompt_token"),
        prompt_feat: s3gen_mel(&wav24[6000..18000]).unwrap().tensor(&Device::Cpu).unwrap(),
        x_vector: stage.tensor("x_vector"),
    };
    let noise = Replay::new(&rows(&stage, "z"));
    let tokens = tokens_of(&stage, "speech_tokens");
    let trace = s3gen.trace(&target, &tokens, &s3gen.default_options(), &run(&noise)).unwrap();
    assert_eq!((tokens.len(), trace.mel.dims()), (4, &[1, 7, 80][..]));
    assert_close(&trace.mu, &rows(&stage, "mu"), 1e-4, "mu");
    assert_close(&trace.mel, &rows(&stage, "mel"), 1e-3, "mel");
}

#[test]
fn an_odd_reference_costs_one_frame() {
    let (s3gen, reference) = (mean_flow(), odd(&voice()));
    let options = s3gen.default_options();
    let mel = s3gen.mel(&reference, &utterance(9), &options, &run(&SeededNoise::new(5))).unwrap();
    assert_eq!(mel.dims(), [1, 17, 80]);
    let whole = stream(&s3gen, &reference, &utterance(9), &[9], &options);
    assert_close(&whole, &mel, 1e-6, "streamed in one piece");
    assert_eq!(stream(&s3gen, &reference, &utterance(9), &[4, 5], &options).dims(), [1, 17, 80]);
}

#[test]
fn with_chunk_masks_the_steps_equal_the_whole() {
    let reference = voice();
    let tokens = utterance(31);
    let cases = [
        (chunked(4, None, None), false),
        (chunked(4, Some(1), None), false),
        (chunked(5, Some(2), Some(6)), true),
        (chunked(3, Some(0), Some(16)), true),
        (prompt_as_chunk(), false),
        (
            FlowConfig {
                chunk_causal: prompt_as_chunk().chunk_causal.map(|c| ChunkCausalConfig { left_chunks: Some(1), ..c }),
                ..tiny_config()
            },
            true,
        ),
    ];
    for (config, guided) in cases {
        let s3gen = if guided { standard_with(&config) } else { mean_flow_with(&config) };
        let options = FlowOptions { solver: s3gen.default_options().solver.with_steps(3), ..s3gen.default_options() };
        for reference in [reference.clone(), odd(&reference)] {
            let whole = s3gen.mel(&reference, &tokens, &options, &run(&SeededNoise::new(5))).unwrap();
            for cuts in [&[31][..], &[1; 31], &[2, 9, 0, 3, 13, 4], &[30, 1, 0]] {
                let steps = stream(&s3gen, &reference, &tokens, cuts, &options);
                assert_close(&steps, &whole, 1e-5, &format!("{:?}, cut at {cuts:?}", config.chunk_causal));
            }
        }
    }
}

#[test]
fn a_chunk_mask_changes_what_is_seen() {
    let reference = voice();
    let mel = |s3gen: &S3Gen| {
        s3gen.mel(&reference, &utterance(20), &s3gen.default_options(), &run(&SeededNoise::new(5))).unwrap()
    };
    let (open, all) = (mel(&mean_flow()), mel(&mean_flow_with(&chunked(4, None, None))));
    let near = mel(&mean_flow_with(&chunked(4, Some(0), None)));
    assert!(error(&all, &open) > 1e-3 && error(&near, &all) > 1e-3);
}

/// The methods for ordinary checkpoints: carrying and not.
fn methods(s3gen: &S3Gen) -> [FlowOptions; 2] {
    let options = s3gen.default_options();
    [options, FlowOptions { stream: StreamOptions { carry_bytes: 0, ..options.stream }, ..options }]
}

#[test]
fn without_masks_one_stretch_equals_the_whole_and_many_have_as_many_frames() {
    let reference = voice();
    let tokens = utterance(70);
    for s3gen in [mean_flow(), standard_with(&tiny_config())] {
        for options in methods(&s3gen) {
            let whole = s3gen.mel(&reference, &tokens, &options, &run(&SeededNoise::new(5))).unwrap();
            assert_close(&stream(&s3gen, &reference, &tokens, &[70], &options), &whole, 1e-6, "one stretch");
            for cuts in [&[4, 66][..], &[2; 35], &[4, 8, 0, 46, 12, 0]] {
                let steps = stream(&s3gen, &reference, &tokens, cuts, &options);
                assert_eq!(steps.dims(), whole.dims(), "cut at {cuts:?}");
            }
        }
    }
}

#[test]
fn the_preview_is_that_of_the_tokens_looked_ahead_to() {
    let (s3gen, reference, noise) = (mean_flow(), voice(), SeededNoise::new(5));
    for options in methods(&s3gen) {
        let mut state = s3gen.start(&reference, &options).unwrap();
        let few = s3gen.decode(&mut state, &utterance(3), false, &run(&noise)).unwrap();
        assert_eq!((few.frames.dims(), few.lookahead.is_none()), (&[1, 0, 80][..], true));
        let chunk = s3gen.decode(&mut state, &utterance(10)[3..], false, &run(&noise)).unwrap();
        let both = Tensor::cat(&[&chunk.frames, &chunk.lookahead.unwrap()], 1).unwrap();
        let whole = s3gen.mel(&reference, &utterance(10), &options, &run(&noise)).unwrap();
        assert_eq!(chunk.frames.dims(), [1, 14, 80]);
        assert_close(&both, &whole, 1e-6, "frames and preview of the first stretch");
    }
}

#[test]
fn with_chunk_masks_the_preview_leaves_no_trace() {
    let s3gen = mean_flow_with(&chunked(4, Some(1), None));
    let (reference, noise) = (voice(), SeededNoise::new(5));
    let options = s3gen.default_options();
    let mut state = s3gen.start(&reference, &options).unwrap();
    let first = s3gen.decode(&mut state, &utterance(7), false, &run(&noise)).unwrap();
    let preview = first.lookahead.unwrap();
    assert_eq!((first.frames.dims()[1], preview.dims()[1]), (8, 6));
    // As if the utterance ended with the three tokens.
    let short = s3gen.mel(&reference, &utterance(7), &options, &run(&noise)).unwrap();
    assert_close(&preview, &short.narrow(1, 8, 6).unwrap(), 1e-5, "preview");
    let whole = s3gen.mel(&reference, &utterance(12), &options, &run(&noise)).unwrap();
    let rest = s3gen.decode(&mut state, &utterance(12)[7..], true, &run(&noise)).unwrap();
    assert_close(&rest.frames, &whole.narrow(1, 8, 16).unwrap(), 1e-5, "what follows");
}

#[test]
fn a_primed_state_serves_many_utterances() {
    let (reference, noise) = (odd(&voice()), SeededNoise::new(5));
    let tokens = utterance(11);
    for config in [tiny_config(), chunked(4, None, None), prompt_as_chunk()] {
        let s3gen = mean_flow_with(&config);
        let options = s3gen.default_options();
        let mut primed = s3gen.start(&reference, &options).unwrap();
        s3gen.prime(&mut primed, &run(&noise)).unwrap();
        let speak = || s3gen.decode(&mut primed.clone(), &tokens, true, &run(&noise)).unwrap().frames;
        let (first, again) = (speak(), speak());
        assert_close(&again, &first, 0.0, "the second clone");
        let whole = s3gen.mel(&reference, &tokens, &options, &run(&noise)).unwrap();
        assert_eq!(first.dims(), whole.dims());
        if config.chunk_causal.is_some() {
            assert_close(&first, &whole, 1e-5, "with masks the prompt never sees the future");
        }
    }
}

#[test]
fn cancelling_ends_the_run_between_two_steps() {
    let (s3gen, reference) = (standard_with(&tiny_config()), voice());
    let (asked, noise) = (Cell::new(0), SeededNoise::new(5));
    let cancelled = || {
        asked.set(asked.get() + 1);
        asked.get() > 4
    };
    let run = FlowRun { noise: &noise, sentence: 0, cancelled: &cancelled };
    let result = s3gen.mel(&reference, &utterance(5), &s3gen.default_options(), &run);
    assert!(matches!(result, Err(Error::Cancelled)));
    assert_eq!(asked.get(), 5);
}

#[test]
fn bad_input_is_refused_with_its_reason() {
    let (s3gen, reference, noise) = (mean_flow(), voice(), SeededNoise::new(5));
    let options = s3gen.default_options();
    let says = |result: Result<Tensor>, word: &str| {
        let error = result.unwrap_err();
        assert!(error.is_bad_input() && error.to_string().contains(word), "{error}");
    };
    let mel = |reference: &S3GenReference, tokens: &[u32], options: &FlowOptions| {
        s3gen.mel(reference, tokens, options, &run(&noise))
    };
    says(mel(&reference, &[], &options), "no speech tokens");
    says(mel(&reference, &[1, 6561], &options), "token 6561 at position 1");
    says(mel(&reference, &[1], &FlowOptions { solver: Solver::CFM, ..options }), "mean-flow solver");
    says(mel(&reference, &[1], &FlowOptions { solver: Solver::MeanFlow { steps: 0 }, ..options }), "one step");
    let short = S3GenReference { prompt_token: vec![1, 2], ..reference.clone() };
    says(mel(&short, &[1], &options), "prepare the voice again");
    let other = S3GenReference { x_vector: reference.prompt_feat.narrow(1, 0, 1).unwrap(), ..reference.clone() };
    says(mel(&other, &[1], &options), "x-vector");
    let mut state = s3gen.start(&reference, &options).unwrap();
    says(s3gen.decode(&mut state, &[], true, &run(&noise)).map(|c| c.frames), "no speech tokens");
    says(s3gen.decode(&mut state, &[9999], false, &run(&noise)).map(|c| c.frames), "token 9999");
}

/// Speech codes of "The weather will be warm and sunny for the rest of the week.", as T3 of the embedded model put it.
const SENTENCE: [u32; 80] = [
    592, 6318, 5745, 2874, 4376, 5843, 1687, 936, 1180, 6401, 6238, 1361, 1280, 2597, 5105, 1757, 3924, 4396, 2767,
    4304, 1515, 1004, 4375, 4376, 6023, 5321, 3620, 623, 1361, 5609, 4871, 4628, 4868, 2690, 4867, 199, 2421, 4581, 0,
    497, 736, 6362, 6396, 3857, 5825, 5095, 168, 54, 2247, 6335, 2112, 1184, 563, 5709, 6480, 5016, 23, 3830, 237, 234,
    6434, 3480, 1969, 1509, 5099, 5025, 4950, 6321, 5799, 2796, 4374, 4388, 2957, 1600, 789, 762, 276, 591, 1923, 2680,
];

/// Mean difference of two sequences of frames, and of each frame of `a` from the one before it at `edges`.
fn drift_and_step(a: &Tensor, b: &Tensor, edges: &[usize]) -> (f32, f32) {
    let mean = |t: Tensor| t.abs().unwrap().mean_all().unwrap().to_scalar::<f32>().unwrap();
    let step = |&at: &usize| mean((a.narrow(1, at, 1).unwrap() - a.narrow(1, at - 1, 1).unwrap()).unwrap());
    (mean((a - b).unwrap()), edges.iter().map(step).sum::<f32>() / edges.len() as f32)
}

#[test]
fn on_the_embedded_model_chunks_stay_near_the_one_shot_mel_and_their_edges_do_not_show() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/embedded"));
    let json = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&json).unwrap();
    let weights = Weights::open(&folder.join("s3gen_meanflow.safetensors"), &Device::Cpu).unwrap();
    let s3gen = S3Gen::load(&weights, &serde_json::from_value(config["flow"].clone()).unwrap()).unwrap();
    let x_vector: Vec<f32> = (0..s3gen.config().x_vector_dim).map(|i| (i as f32).sin()).collect();
    let x_vector = Tensor::new(x_vector, &Device::Cpu).unwrap().unsqueeze(0).unwrap();
    // A voice out of nothing says the sentence; what it said becomes the reference.
    let silence = Tensor::full(-9f32, (1, 2, MEL_CHANNELS), &Device::Cpu).unwrap();
    let nobody = S3GenReference { prompt_token: vec![SENTENCE[0]], prompt_feat: silence, x_vector: x_vector.clone() };
    let plain = FlowOptions { noise_scale: 0.0, ..s3gen.default_options() };
    let noise = SeededNoise::new(1);
    let prompt_feat = s3gen.mel(&nobody, &SENTENCE, &plain, &run(&noise)).unwrap();
    let reference = S3GenReference { prompt_token: SENTENCE.to_vec(), prompt_feat, x_vector };
    let whole = s3gen.mel(&reference, &SENTENCE, &plain, &run(&noise)).unwrap();

    let cuts = [11, 12, 18, 27, 12];
    let edges = [16, 40, 76, 130];
    let (_, usual) = drift_and_step(&whole, &whole, &edges);
    for options in methods(&s3gen) {
        let options = FlowOptions { noise_scale: 0.0, ..options };
        let steps = stream(&s3gen, &reference, &SENTENCE, &cuts, &options);
        let (drift, step) = drift_and_step(&steps, &whole, &edges);
        assert!(drift < 0.2, "{:?}: mean difference {drift}", options.stream);
        assert!(step < 1.2 * usual, "{:?}: steps of {step} at edges, {usual} in one go", options.stream);
    }
}
