#![allow(clippy::unwrap_used, clippy::panic)]
//! Parity of T3 with the reference on the tiny fixtures, and what must hold for any weights.

use std::path::{Path, PathBuf};

use candle_core::{Device, IndexOp, Tensor};
use serde::Deserialize;

use super::*;
use crate::noise::{NoiseSource, SeededNoise};
use crate::sampling::tests::{assert_same, processed};
use crate::sampling::{Sampler, SamplingOptions};
use crate::weights::Weights;

const VARIANTS: [(&str, &str); 4] = [
    ("english", "t3_cfg.safetensors"),
    ("multilingual", "t3_mtl23ls_v2.safetensors"),
    ("turbo", "t3_turbo_v1.safetensors"),
    ("nano", "t3_nano_v1.safetensors"),
];

fn tiny(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/tiny")).join(path)
}

/// Recorded tensors of one stage.
pub(crate) struct Stage(Weights);

impl Stage {
    pub(crate) fn open(name: &str) -> Self {
        Self(Weights::open(&tiny(&format!("stages/{name}.safetensors")), &Device::Cpu).unwrap())
    }

    pub(crate) fn get(&self, name: &str) -> Tensor {
        let shape = self.0.shape(name).unwrap_or_else(|| panic!("no tensor {name}")).to_vec();
        self.0.get(name, shape).unwrap()
    }

    pub(crate) fn values(&self, name: &str) -> Vec<f32> {
        self.get(name).flatten_all().unwrap().to_vec1().unwrap()
    }

    pub(crate) fn ids(&self, name: &str) -> Vec<u32> {
        self.values(name).into_iter().map(|x| x as u32).collect()
    }
}

/// `‖a - b‖ / ‖b‖`.
pub(crate) fn relative_error(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |xs: &mut dyn Iterator<Item = f64>| xs.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| f64::from(a - b))) / norm(&mut b.iter().map(|b| f64::from(*b)))
}

#[track_caller]
pub(crate) fn assert_close(found: &Tensor, expected: &Tensor, tolerance: f64) {
    assert_eq!(found.dims(), expected.dims());
    let flat = |x: &Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let error = relative_error(&flat(found), &flat(expected));
    assert!(error <= tolerance, "relative error {error:e}");
}

/// The T3 of a model folder.
fn load_from(folder: &Path, file: &str, precision: Precision) -> T3 {
    #[derive(Deserialize)]
    struct Config {
        t3: T3Config,
    }
    let json = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let config: Config = serde_json::from_str(&json).unwrap();
    T3::load(&Weights::open(&folder.join(file), &Device::Cpu).unwrap().at(precision), &config.t3).unwrap()
}

/// The tiny T3 of a variant.
pub(crate) fn load(variant: &str) -> T3 {
    let file = VARIANTS.iter().find(|(name, _)| *name == variant).unwrap().1;
    load_from(&tiny(variant), file, Precision::F32)
}

impl Transformer {
    pub(super) fn llama(&self) -> Option<&Llama> {
        if let Self::Llama(llama) = self { Some(llama) } else { None }
    }

    pub(super) fn gpt2(&self) -> Option<&Gpt2> {
        if let Self::Gpt2(gpt2) = self { Some(gpt2) } else { None }
    }
}

/// A variant with the voice and text of its fixture.
struct Case {
    name: &'static str,
    stage: Stage,
    t3: T3,
    cond: T3Conditioning,
    text: Vec<u32>,
}

impl Case {
    fn open(name: &'static str) -> Self {
        let (stage, t3) = (Stage::open(&format!("t3_{name}")), load(name));
        let cond = T3Conditioning {
            speaker_emb: stage.values("speaker_emb"),
            prompt_tokens: stage.ids("cond_prompt_speech_tokens"),
            prompt_emb: None,
            exaggeration: stage.values("emotion_adv")[0],
        };
        let mut text = stage.ids("text_tokens");
        if t3.config.backbone == Backbone::Llama {
            assert_eq!((text.remove(0), text.pop()), (START_TEXT, Some(STOP_TEXT)));
        }
        Self { name, stage, t3, cond, text }
    }

    fn all() -> impl Iterator<Item = Self> {
        VARIANTS.into_iter().map(|(name, _)| Self::open(name))
    }

    fn state(&self, guided: bool) -> T3State {
        self.t3.new_state(guided, self.t3.positions_needed(&self.cond, self.text.len(), 60)).unwrap()
    }

    fn decode<'a>(
        &'a self,
        state: &'a mut T3State,
        noise: &'a dyn NoiseSource,
        options: DecodeOptions,
    ) -> Decoding<'a> {
        Decoding::start(&self.t3, state, (&self.cond, &self.text), noise, options).unwrap()
    }

    fn options(&self) -> DecodeOptions {
        DecodeOptions { max_tokens: 40, ..DecodeOptions::of(self.t3.config.backbone) }
    }

    fn tokens(&self, state: &mut T3State, options: DecodeOptions) -> Vec<u32> {
        let noise = SeededNoise::new(11);
        let mut decoding = self.decode(state, &noise, options);
        std::iter::from_fn(|| decoding.next_token().unwrap()).collect()
    }

    /// Raw logits `(51, rows, V)` with the recorded tokens forced.
    fn forced_logits(&self, guided: bool, tokens: &[u32]) -> Tensor {
        let (noise, mut state) = (SeededNoise::new(0), self.state(guided));
        let mut options = DecodeOptions { max_tokens: 51, record_logits: true, ..self.options() };
        options.force_tokens = tokens.to_vec();
        if !guided {
            options.sampling.cfg_weight = 0.0;
        }
        let mut decoding = self.decode(&mut state, &noise, options);
        while decoding.next_token().unwrap().is_some() {}
        Tensor::stack(decoding.logits(), 0).unwrap()
    }
}

/// Columns `ids` of the last dimension.
fn columns(xs: &Tensor, ids: &[u32]) -> Tensor {
    xs.index_select(&Tensor::new(ids, &Device::Cpu).unwrap(), xs.rank() - 1).unwrap()
}

#[test]
fn the_voice_is_encoded_as_in_the_reference() {
    for case in Case::all() {
        let found = case.t3.cond_enc.forward(&case.cond, &case.t3.speech).unwrap();
        assert_close(&found, &case.stage.get("cond_emb"), 1e-5);
    }
}

#[test]
fn a_ready_made_prompt_embedding_is_used_as_it_is() {
    let case = Case::open("english");
    let prompt_emb = Some(case.stage.get("cond_prompt_emb"));
    let cond = T3Conditioning { prompt_tokens: Vec::new(), prompt_emb, ..case.cond.clone() };
    let found = case.t3.cond_enc.forward(&cond, &case.t3.speech).unwrap();
    assert_close(&found, &case.stage.get("cond_emb"), 1e-5);
}

#[test]
fn the_sequence_is_that_of_the_reference() {
    for case in Case::all() {
        let rows = if case.t3.config.backbone == Backbone::Llama { 2 } else { 1 };
        let cond = repeat_rows(case.t3.cond_enc.forward(&case.cond, &case.t3.speech).unwrap(), rows).unwrap();
        let (text, _) = case.t3.embed_text(&case.text, rows).unwrap();
        let found = Tensor::cat(&[cond, text], 1).unwrap();
        assert_close(&found, &case.stage.get("prefill_embeds"), 1e-5);
        let needed = case.t3.positions_needed(&case.cond, case.text.len(), 0);
        assert_eq!(needed, found.dims()[1], "{}", case.name);
    }
}

#[test]
fn logits_of_fifty_forced_steps_match_the_reference() {
    for case in Case::all() {
        let kept = case.stage.ids("logit_columns");
        let greedy = case.stage.ids("greedy_tokens");
        let guided = case.t3.config.backbone == Backbone::Llama;
        let found = case.forced_logits(guided, &greedy);
        assert_close(&columns(&found, &kept), &case.stage.get("step_logits"), 1e-5);
        if guided {
            let greedy = case.stage.ids("nocfg_greedy_tokens");
            let found = case.forced_logits(false, &greedy);
            assert_close(&columns(&found, &kept), &case.stage.get("nocfg_step_logits"), 1e-5);
        }
    }
}

#[test]
fn the_best_tokens_are_those_of_the_reference() {
    for case in Case::all().filter(|case| case.t3.config.backbone == Backbone::Llama) {
        for (prefix, cfg_weight) in [("", 0.5), ("nocfg_", 0.0)] {
            let sampling = SamplingOptions { temperature: 0.0, cfg_weight, ..SamplingOptions::llama() };
            let options = DecodeOptions { sampling, max_tokens: 51, ..case.options() };
            let mut state = case.state(case.t3.is_guided(cfg_weight));
            let mut expected = case.stage.ids(&format!("{prefix}greedy_tokens"));
            let stop = expected.iter().position(|&t| t == STOP_SPEECH).unwrap_or(expected.len());
            expected.truncate(stop);
            expected.retain(|&t| t < SPEECH_CODES);
            assert_eq!(case.tokens(&mut state, options), expected, "{} {prefix}", case.name);
        }
    }
}

#[test]
fn gpt2_best_tokens_after_all_processors_are_those_of_the_reference() {
    for case in Case::all().filter(|case| case.t3.config.backbone == Backbone::Gpt2) {
        let greedy = case.stage.ids("greedy_tokens");
        let logits = case.forced_logits(false, &greedy);
        // The reference warms the logits before top_p and takes the best of what is left after the penalty.
        let warm = SamplingOptions::gpt2();
        let mut sampler = Sampler::new(Backbone::Gpt2, case.t3.config.speech_vocab, warm).unwrap();
        for (i, &token) in greedy.iter().enumerate() {
            let row: Vec<f32> = logits.i((i, 0)).unwrap().to_vec1().unwrap();
            assert_eq!(sampler.choose_best(&row).unwrap(), token, "{} step {i}", case.name);
            sampler.accept(token);
        }
    }
}

#[test]
fn real_logits_are_processed_as_in_the_reference() {
    for case in Case::all() {
        let (kept, greedy) = (case.stage.ids("logit_columns"), case.stage.ids("greedy_tokens"));
        let backbone = case.t3.config.backbone;
        let llama = backbone == Backbone::Llama;
        let logits = case.forced_logits(llama, &greedy);
        for (step, top_p) in [(5, 1.0), (25, 0.8)] {
            let defaults = SamplingOptions::of(backbone);
            let options = SamplingOptions { top_p: if llama { top_p } else { defaults.top_p }, ..defaults };
            let mut sampler = Sampler::new(backbone, case.t3.config.speech_vocab, options).unwrap();
            greedy[..step].iter().for_each(|&token| sampler.accept(token));
            let rows: Vec<f32> = logits.i(step).unwrap().flatten_all().unwrap().to_vec1().unwrap();
            let all = processed(&mut sampler, &rows);
            let found: Vec<f32> = kept.iter().map(|&id| all[id as usize]).collect();
            let last = if llama { "top_p" } else { "rep_penalty" };
            let what = format!("stage.step{step}.{last}");
            assert_same(&found, &case.stage.values(&what), 1e-5, &format!("{} {what}", case.name));
        }
    }
}

#[test]
fn steps_after_a_prefill_equal_a_longer_prefill() {
    for case in Case::all() {
        let embeds = case.stage.get("prefill_embeds");
        let (rows, t, _) = embeds.dims3().unwrap();
        let mut whole = case.state(rows == 2);
        let expected = case.t3.run(&mut whole, &embeds).unwrap();
        let mut pieces = case.state(rows == 2);
        let mut found = vec![case.t3.run(&mut pieces, &embeds.narrow(1, 0, t - 7).unwrap()).unwrap()];
        for i in t - 7..t {
            found.push(case.t3.run(&mut pieces, &embeds.narrow(1, i, 1).unwrap()).unwrap());
        }
        assert_close(&Tensor::cat(&found, 1).unwrap(), &expected, 1e-5);
    }
}

#[test]
fn tokens_fed_together_give_the_same_bits_as_one_by_one() {
    let tokens = [77, 4299, 77, 12, 6560, 3, 3, 900];
    for case in Case::all() {
        for (precision, cache) in
            [(Precision::F32, Precision::F32), (Precision::F16, Precision::F16), (Precision::Int8, Precision::Int8)]
        {
            let file = VARIANTS.iter().find(|(name, _)| *name == case.name).unwrap().1;
            let t3 = load_from(&tiny(case.name), file, precision).with_cache(cache);
            let mut state = t3.new_state(true, t3.positions_needed(&case.cond, case.text.len(), 60)).unwrap();
            t3.prefill(&mut state, &case.cond, &case.text).unwrap();
            let bits = |rows: Tensor| rows.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let single: Vec<Vec<f32>> = tokens.iter().map(|&token| bits(t3.step(&mut state, token).unwrap())).collect();
            for together in [1, 2, 4, 5, 8] {
                t3.take_back(&mut state, tokens.len());
                for (i, some) in tokens.chunks(together).enumerate() {
                    let found = t3.steps(&mut state, some).unwrap();
                    for t in 0..some.len() {
                        let found = bits(found.narrow(1, t, 1).unwrap());
                        assert_eq!(found, single[i * together + t], "{} {precision:?} {together}", case.name);
                    }
                }
            }
        }
    }
}

#[test]
fn a_kept_voice_gives_the_same_bits_as_a_fresh_one() {
    for case in Case::all() {
        let mut state = case.state(true);
        let bits = |state: &mut T3State, text: &[u32]| {
            let mut all = case.t3.prefill(state, &case.cond, text).unwrap().to_vec2::<f32>().unwrap();
            all.extend(case.t3.step(state, 77).unwrap().to_vec2::<f32>().unwrap());
            all
        };
        let fresh = bits(&mut state, &case.text);
        let other = bits(&mut state, &case.text[..5]);
        assert_ne!(fresh, other);
        assert_eq!(fresh, bits(&mut state, &case.text), "{}: after another text", case.name);
        state.clear();
        assert_eq!(fresh, bits(&mut state, &case.text), "{}: after clearing", case.name);
        let held = state.voice.as_ref().unwrap().len;
        state.rewind();
        assert_eq!(state.len(), held);
    }
}

#[test]
fn another_voice_is_not_mistaken_for_the_kept_one() {
    let case = Case::open("english");
    let mut state = case.state(true);
    let first = case.t3.prefill(&mut state, &case.cond, &case.text).unwrap();
    let calm = T3Conditioning { exaggeration: 0.1, ..case.cond.clone() };
    let found = case.t3.prefill(&mut state, &calm, &case.text).unwrap().to_vec2::<f32>().unwrap();
    assert_ne!(first.to_vec2::<f32>().unwrap(), found);
    let fresh = case.t3.prefill(&mut case.state(true), &calm, &case.text).unwrap();
    assert_eq!(found, fresh.to_vec2::<f32>().unwrap());
}

#[test]
fn the_conditional_row_does_not_depend_on_guidance() {
    let case = Case::open("english");
    let both = case.t3.prefill(&mut case.state(true), &case.cond, &case.text).unwrap();
    let alone = case.t3.prefill(&mut case.state(false), &case.cond, &case.text).unwrap();
    assert_eq!((both.dims()[0], alone.dims()[0]), (2, 1));
    assert_close(&both.narrow(0, 0, 1).unwrap(), &alone, 1e-5);
}

#[test]
fn a_seed_means_the_same_tokens_and_another_seed_others() {
    for case in Case::all() {
        let mut state = case.state(true);
        let first = case.tokens(&mut state, case.options());
        assert_eq!(first, case.tokens(&mut state, case.options()), "{}", case.name);
        let other = DecodeOptions { sentence: 1, ..case.options() };
        assert_ne!(first, case.tokens(&mut state, other), "{}", case.name);
    }
}

/// Draws the candidate with the highest id.
#[derive(Debug)]
struct Highest;

impl NoiseSource for Highest {
    fn uniform(&self, _: usize, _: usize) -> f32 {
        1.0 - f32::EPSILON / 2.0
    }
    fn flow(&self, _: usize, _: usize, _: usize) -> Vec<f32> {
        Vec::new()
    }
    fn phases(&self, _: usize, _: usize) -> Vec<f32> {
        Vec::new()
    }
    fn source(&self, _: usize, _: usize, _: usize, _: usize) -> Vec<f32> {
        Vec::new()
    }
}

const ALL_TOKENS: SamplingOptions =
    SamplingOptions { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0, cfg_weight: 0.0 };

#[test]
fn turbo_does_not_look_for_the_stop_in_its_first_token() {
    let case = Case::open("turbo");
    let mut state = case.state(false);
    let options = DecodeOptions { sampling: ALL_TOKENS, ..case.options() };
    let mut decoding = case.decode(&mut state, &Highest, options);
    assert_eq!(decoding.next_token().unwrap(), None);
    assert_eq!((decoding.sampled(), decoding.ending()), (1, Some(Ending::Stop)));
}

#[test]
fn ids_without_sound_are_fed_back_but_never_come_out() {
    for name in ["english", "multilingual"] {
        let case = Case::open(name);
        let mut state = case.state(false);
        let options = DecodeOptions { sampling: ALL_TOKENS, max_tokens: 6, ..case.options() };
        let mut decoding = case.decode(&mut state, &Highest, options);
        assert_eq!(decoding.next_token().unwrap(), None);
        assert_eq!((decoding.sampled(), decoding.ending()), (6, Some(Ending::Limit)));
        assert_eq!(decoding.next_token().unwrap(), None);
        assert_eq!(case.t3.room(&state), 60 - 5);
    }
}

#[test]
fn a_full_state_ends_the_sentence_without_an_error() {
    for case in Case::all() {
        let mut state = case.t3.new_state(true, case.t3.positions_needed(&case.cond, case.text.len(), 3)).unwrap();
        let force_tokens = vec![5; 100];
        let mut decoding = case.decode(&mut state, &Highest, DecodeOptions { force_tokens, ..case.options() });
        let emitted = std::iter::from_fn(|| decoding.next_token().unwrap()).count();
        // Three are fed, a fourth needs no room.
        assert_eq!((emitted, decoding.ending()), (4, Some(Ending::Limit)), "{}", case.name);
    }
}

#[test]
fn the_guard_watches_without_changing_the_network() {
    let case = Case::open("english");
    let mut state = case.state(true);
    let plain = case.tokens(&mut state, DecodeOptions { force_tokens: vec![1, 2, 3], max_tokens: 3, ..case.options() });
    let noise = SeededNoise::new(11);
    let options =
        DecodeOptions { alignment_heads: vec![(0, 1), (2, 0)], force_tokens: vec![1, 2, 3], ..case.options() };
    let mut decoding = case.decode(&mut state, &noise, DecodeOptions { max_tokens: 3, ..options.clone() });
    let watched: Vec<u32> = std::iter::from_fn(|| decoding.next_token().unwrap()).collect();
    assert_eq!(plain, watched);
    let rows = state.probe.as_ref().unwrap().rows();
    assert_eq!(rows.len(), case.text.len() + 2);
    let seen: f32 = rows.iter().sum();
    assert!(seen > 0.0 && seen < 1.0 && rows.iter().all(|a| *a >= 0.0), "{rows:?}");
    // The same token twice is taken for a stuck model.
    let stuck = DecodeOptions { force_tokens: vec![9, 9], ..options };
    let mut decoding = case.decode(&mut state, &noise, stuck);
    while decoding.next_token().unwrap().is_some() {}
    assert_eq!((decoding.sampled(), decoding.ending()), (2, Some(Ending::Guard)));
}

#[test]
fn bad_input_is_refused_in_words() {
    let case = Case::open("english");
    let mut state = case.t3.new_state(true, 400).unwrap();
    let mut refuse = |cond: &T3Conditioning, text: &[u32], word: &str| {
        let error = case.t3.prefill(&mut state, cond, text).unwrap_err();
        assert!(error.is_bad_input() && error.to_string().contains(word), "{error}");
    };
    refuse(&case.cond, &[1; 97], "at most 96");
    refuse(&case.cond, &[704], "tokenizer");
    refuse(&T3Conditioning { prompt_tokens: vec![6600], ..case.cond.clone() }, &[1], "6600");
    refuse(&T3Conditioning { prompt_tokens: vec![1; 500], ..case.cond.clone() }, &[1], "500");
    refuse(&T3Conditioning { speaker_emb: vec![0.0; 7], ..case.cond.clone() }, &[1], "24");
    let prompt_emb = Some(Tensor::zeros((1, 4, 5), candle_core::DType::F32, &Device::Cpu).unwrap());
    refuse(&T3Conditioning { prompt_emb, ..case.cond.clone() }, &[1], "[1, 4, 5]");
    // None of this harmed the state.
    let found = case.t3.prefill(&mut state, &case.cond, &case.text).unwrap();
    let fresh = case.t3.prefill(&mut case.state(true), &case.cond, &case.text).unwrap();
    assert_eq!(found.to_vec2::<f32>().unwrap(), fresh.to_vec2::<f32>().unwrap());

    let turbo = Case::open("turbo");
    let mut state = turbo.t3.new_state(false, 9999).unwrap();
    assert_eq!(state.capacity(), 512);
    let error = turbo.t3.prefill(&mut state, &turbo.cond, &[1; 500]).unwrap_err();
    assert!(error.is_bad_input() && error.to_string().contains("512"), "{error}");
    let heads = DecodeOptions { alignment_heads: ALIGNED_HEADS.to_vec(), ..turbo.options() };
    let started = Decoding::start(&turbo.t3, &mut state, (&turbo.cond, &turbo.text), &Highest, heads);
    assert!(started.unwrap_err().is_bad_input());
}

#[test]
fn empty_texts_and_voices_without_prompt_run() {
    for case in Case::all() {
        let cond = T3Conditioning { prompt_tokens: Vec::new(), ..case.cond.clone() };
        let needed = case.t3.positions_needed(&cond, 0, 1);
        let mut state = case.t3.new_state(true, needed).unwrap();
        case.t3.prefill(&mut state, &cond, &[]).unwrap();
        case.t3.step(&mut state, 3).unwrap();
        assert_eq!(state.len(), needed, "{}", case.name);
    }
}

#[test]
fn the_embedded_model_speaks_with_the_same_code() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/embedded"));
    let t3 = load_from(folder, "t3_cfg.safetensors", Precision::F32);
    let prompt_tokens = (0..150).map(|i| i * 41 % SPEECH_CODES).collect();
    let speaker = t3.config().speaker_dim;
    let speaker_emb = vec![1.0 / (speaker as f32).sqrt(); speaker];
    let cond = T3Conditioning { speaker_emb, prompt_tokens, prompt_emb: None, exaggeration: 0.5 };
    let text: Vec<u32> = (20..50).collect();
    let mut state = t3.new_state(true, t3.positions_needed(&cond, text.len(), 8)).unwrap();
    let noise = SeededNoise::new(1);
    let options = DecodeOptions { max_tokens: 8, ..DecodeOptions::of(Backbone::Llama) };
    let mut decoding = Decoding::start(&t3, &mut state, (&cond, &text), &noise, options).unwrap();
    let tokens: Vec<u32> = std::iter::from_fn(|| decoding.next_token().unwrap()).collect();
    assert!(tokens.len() == decoding.sampled() && tokens.len() > 1, "{tokens:?}");
}

#[test]
fn weights_of_other_dimensions_are_listed_by_name() {
    let weights = Weights::open(&tiny("english/t3_cfg.safetensors"), &Device::Cpu).unwrap();
    let error = T3::load(&weights, &T3Config { dim: 16, ..load("english").config }).unwrap_err().to_string();
    assert!(error.contains("speech_emb.weight should have shape [6600, 16] but has [6600, 12]"), "{error}");
    let odd = T3Config { heads: 5, ..T3Config::english() };
    assert!(T3::load(&weights, &odd).unwrap_err().to_string().contains("multiple of heads"));
}

#[test]
fn weights_and_state_cross_threads() {
    fn send<T: Send>() {}
    fn sync<T: Sync>() {}
    send::<T3>();
    sync::<T3>();
    send::<T3State>();
    send::<Decoding<'_>>();
}
