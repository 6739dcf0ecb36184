#![allow(clippy::unwrap_used, clippy::print_stdout)]
//! The embedded model on a card against the CPU. Without a card these tests see that its absence is said.

use super::*;
use crate::cuda::tests::card;
use crate::model_files::ModelFiles;
use crate::noise::SeededNoise;
use crate::protocol::ModelSource;
use crate::t3::tests::relative_error;
use crate::t3::{DecodeOptions, Decoding, T3Config};

/// The embedded T3 at `precision`, on the CPU alone or on a card too.
fn embedded(card: Option<(&Arc<Card>, Number)>) -> T3 {
    #[derive(serde::Deserialize)]
    struct Config {
        t3: T3Config,
    }
    let files = ModelFiles::of(&ModelSource::Embedded).unwrap();
    let config: Config = serde_json::from_slice(&files.read("config.json").unwrap().unwrap()).unwrap();
    let w = files.weights(&["t3_cfg.safetensors"], &candle_core::Device::Cpu).unwrap();
    let mut t3 = T3::load(&w, &config.t3).unwrap();
    if let Some((card, number)) = card {
        t3.put_on_card(&w, card.clone(), number).unwrap();
    }
    t3
}

fn voice(t3: &T3, seed: u64) -> T3Conditioning {
    let noise = SeededNoise::new(seed);
    let mut speaker_emb = crate::noise::NoiseSource::flow(&noise, 0, 0, 4)[..t3.config.speaker_dim].to_vec();
    let norm = speaker_emb.iter().map(|x| x * x).sum::<f32>().sqrt();
    speaker_emb.iter_mut().for_each(|x| *x /= norm);
    let prompt_tokens = (0..150).map(|i| (i * 7919 + seed as u32 * 131) % 6561).collect();
    T3Conditioning { speaker_emb, prompt_tokens, prompt_emb: None, exaggeration: 0.5 }
}

fn text(seed: u64) -> Vec<u32> {
    (0..40).map(|i| 20 + ((i * i * 31 + seed * 17) % 90) as u32).collect()
}

/// Sampled ids and raw logits of one sentence.
fn speak(t3: &T3, seed: u64, guided: bool, options: &DecodeOptions) -> (Vec<u32>, Vec<f32>) {
    let (cond, text) = (voice(t3, seed), text(seed));
    let mut state = t3.new_state(guided, t3.positions_needed(&cond, text.len(), options.max_tokens)).unwrap();
    let noise = SeededNoise::new(seed);
    let mut decoding = Decoding::start(t3, &mut state, (&cond, &text), &noise, options.clone()).unwrap();
    let tokens = std::iter::from_fn(|| decoding.next_token().unwrap()).collect();
    let logits = decoding.logits().iter().flat_map(|l| l.flatten_all().unwrap().to_vec1::<f32>().unwrap()).collect();
    (tokens, logits)
}

fn options(guided: bool) -> DecodeOptions {
    let mut options = DecodeOptions { max_tokens: 60, record_logits: true, ..DecodeOptions::of(Backbone::Llama) };
    if !guided {
        options.sampling.cfg_weight = 0.0;
    }
    options
}

#[test]
fn logits_are_those_of_the_cpu() {
    let Some(card) = card() else { return };
    let cpu = embedded(None);
    for (number, tolerance) in [(Number::F32, 2e-5), (Number::F16, 3e-3), (Number::Bf16, 2e-2), (Number::Int8, 5e-2)] {
        let t3 = embedded(Some((&card, number)));
        for (seed, guided) in [(1, true), (2, false)] {
            let options = options(guided);
            let (tokens, found) = speak(&t3, seed, guided, &options);
            let (_, expected) = speak(&cpu, seed, guided, &DecodeOptions { force_tokens: tokens.clone(), ..options });
            assert!(tokens.len() > 4, "{number:?}: {} tokens", tokens.len());
            let count = found.len().min(expected.len());
            let error = relative_error(&found[..count], &expected[..count]);
            assert!(error < tolerance, "{number:?}, guided {guided}: {error:e}");
        }
    }
}

#[test]
fn a_seed_means_the_same_tokens_as_on_the_cpu() {
    let Some(card) = card() else { return };
    let (cpu, t3) = (embedded(None), embedded(Some((&card, Number::F32))));
    for (seed, guided) in [(3, true), (4, false), (5, true), (6, true)] {
        let options = options(guided);
        assert_eq!(speak(&t3, seed, guided, &options).0, speak(&cpu, seed, guided, &options).0, "seed {seed}");
    }
}

/// Of how many steps, and in how many the best id on the card is the CPU's, both having been fed the CPU's.
fn greedy_agreement(cpu: &T3, t3: &T3, wanted: usize) -> (usize, usize) {
    let (mut steps, mut equal, mut seed) = (0, 0, 10);
    let mut options = DecodeOptions { max_tokens: 100, ..options(true) };
    options.sampling.temperature = 0.0;
    options.sampling.repetition_penalty = 1.0;
    while steps < wanted {
        seed += 1;
        let (tokens, _) = speak(cpu, seed, true, &options);
        let (cond, text) = (voice(t3, seed), text(seed));
        let mut state = t3.new_state(true, 400).unwrap();
        t3.prefill_on_card(&mut state, &cond, &text).unwrap();
        for &token in tokens.iter().take(wanted - steps) {
            let found = t3.sample_on_card(&mut state, &options.sampling, (&[0.5], &[]), None).unwrap();
            equal += usize::from(found == [token]);
            steps += 1;
            state.on_card.as_mut().unwrap().state.force(token);
        }
    }
    (steps, equal)
}

#[test]
fn greedy_tokens_over_200_steps_are_those_of_the_cpu() {
    let Some(card) = card() else { return };
    let cpu = embedded(None);
    for (number, least) in [(Number::F32, 200), (Number::F16, 196), (Number::Bf16, 196), (Number::Int8, 194)] {
        let (steps, equal) = greedy_agreement(&cpu, &embedded(Some((&card, number))), 200);
        println!("{number:?}: {equal} of {steps} greedy tokens are the CPU's in f32");
        assert!(equal >= least, "{number:?}: {equal} of {steps}");
    }
}

#[test]
fn the_voice_is_kept_and_the_next_sentence_is_not_disturbed_by_the_last() {
    let Some(card) = card() else { return };
    let t3 = embedded(Some((&card, Number::Bf16)));
    let (cond, options) = (voice(&t3, 7), options(true));
    let mut state = t3.new_state(true, 300).unwrap();
    let noise = SeededNoise::new(7);
    let mut say = |text: &[u32]| -> Vec<u32> {
        let mut decoding = Decoding::start(&t3, &mut state, (&cond, text), &noise, options.clone()).unwrap();
        std::iter::from_fn(|| decoding.next_token().unwrap()).collect()
    };
    let first = say(&text(7));
    say(&text(8));
    assert_eq!(say(&text(7)), first);
}
