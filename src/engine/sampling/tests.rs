#![allow(clippy::unwrap_used)]
//! Against the reference's processors, and against properties worked out by hand.

use super::*;
use crate::noise::{NoiseSource, SeededNoise};
use crate::t3::tests::{Stage, relative_error};

const NEUTRAL: SamplingOptions =
    SamplingOptions { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0, cfg_weight: 0.0 };

/// Processed logits with minus infinity for what was filtered, as `transformers` has them.
pub(crate) fn processed(sampler: &mut Sampler, rows: &[f32]) -> Vec<f32> {
    sampler.process(rows, None).unwrap();
    let mut out = vec![f32::NEG_INFINITY; sampler.vocab];
    kept(sampler).iter().for_each(|&id| out[id as usize] = sampler.logits[id as usize]);
    out
}

fn kept(sampler: &Sampler) -> Vec<u32> {
    sampler.kept.iter().map(|candidate| candidate.id).collect()
}

pub(crate) fn assert_same(found: &[f32], expected: &[f32], tolerance: f64, what: &str) {
    let holes = |xs: &[f32]| xs.iter().map(|x| x.is_infinite()).collect::<Vec<_>>();
    assert_eq!(holes(found), holes(expected), "{what}: other tokens are filtered");
    let finite = |xs: &[f32]| xs.iter().copied().filter(|x| x.is_finite()).collect::<Vec<_>>();
    let error = relative_error(&finite(found), &finite(expected));
    assert!(error <= tolerance, "{what}: {error:e}");
}

fn sampler(backbone: Backbone, vocab: usize, options: SamplingOptions, seen: &[u32]) -> Sampler {
    let mut sampler = Sampler::new(backbone, vocab, options).unwrap();
    sampler.seen.clear();
    seen.iter().for_each(|&id| sampler.seen.insert(id));
    sampler
}

#[test]
fn every_stage_of_the_llama_order_matches_the_reference() {
    let stage = Stage::open("sampling");
    for case in ["llama0", "llama1", "llama2"] {
        let p = stage.values(&format!("{case}.cfg_temp_rep_minp_topp"));
        let rows = stage.values(&format!("{case}.logits"));
        let ids = stage.ids(&format!("{case}.ids"));
        let full = SamplingOptions {
            cfg_weight: p[0],
            temperature: p[1],
            repetition_penalty: p[2],
            min_p: p[3],
            top_p: p[4],
            top_k: 0,
        };
        let cfg = SamplingOptions { cfg_weight: p[0], ..NEUTRAL };
        let rep_penalty = SamplingOptions { repetition_penalty: p[2], ..cfg };
        let temperature = SamplingOptions { temperature: p[1], ..rep_penalty };
        let min_p = SamplingOptions { min_p: p[3], ..temperature };
        let stages = [
            ("cfg", cfg),
            ("rep_penalty", rep_penalty),
            ("temperature", temperature),
            ("min_p", min_p),
            ("top_p", full),
        ];
        for (name, options) in stages {
            let found = processed(&mut sampler(Backbone::Llama, 200, options, &ids), &rows);
            assert_same(&found, &stage.values(&format!("{case}.{name}")), 1e-6, &format!("{case}.{name}"));
        }
    }
}

#[test]
fn every_stage_of_the_gpt2_order_matches_the_reference() {
    let stage = Stage::open("sampling");
    for case in ["gpt0", "gpt1", "gpt2"] {
        let p = stage.values(&format!("{case}.temp_topk_topp_rep"));
        let rows = stage.values(&format!("{case}.logits"));
        let ids = stage.ids(&format!("{case}.ids"));
        let temperature = SamplingOptions { temperature: p[0], ..NEUTRAL };
        let top_k = SamplingOptions { top_k: p[1] as usize, ..temperature };
        let top_p = SamplingOptions { top_p: p[2], ..top_k };
        let full = SamplingOptions { repetition_penalty: p[3], ..top_p };
        for (name, options) in [("temperature", temperature), ("top_k", top_k), ("top_p", top_p), ("rep_penalty", full)]
        {
            let found = processed(&mut sampler(Backbone::Gpt2, 200, options, &ids), &rows);
            assert_same(&found, &stage.values(&format!("{case}.{name}")), 1e-6, &format!("{case}.{name}"));
        }
    }
}

#[test]
fn guidance_moves_away_from_the_unconditional_row() {
    let options = SamplingOptions { cfg_weight: 0.5, ..NEUTRAL };
    let found = processed(&mut sampler(Backbone::Llama, 2, options, &[]), &[1.0, 2.0, 3.0, 0.0]);
    assert_eq!(found, [0.0, 3.0]);
}

#[test]
fn the_penalty_looks_at_presence_and_not_at_count() {
    let options = SamplingOptions { repetition_penalty: 2.0, ..NEUTRAL };
    let found = processed(&mut sampler(Backbone::Llama, 4, options, &[0, 0, 1, 0]), &[4.0, -4.0, 4.0, -4.0]);
    assert_eq!(found, [2.0, -8.0, 4.0, -4.0]);
}

#[test]
fn llama_remembers_the_start_and_gpt2_only_for_the_first_token() {
    let vocab = 6563;
    let mut llama = Sampler::new(Backbone::Llama, vocab, SamplingOptions::llama()).unwrap();
    let mut gpt2 = Sampler::new(Backbone::Gpt2, vocab, SamplingOptions::gpt2()).unwrap();
    assert_eq!((llama.seen.ids.as_slice(), gpt2.seen.ids.as_slice()), (&[START_SPEECH][..], &[START_SPEECH][..]));
    for token in [7, 9, 7] {
        llama.accept(token);
        gpt2.accept(token);
    }
    assert_eq!(llama.seen.ids, [START_SPEECH, 7, 9]);
    assert_eq!(gpt2.seen.ids, [7, 9]);
}

#[test]
fn min_p_is_a_share_of_the_best() {
    let logits = [0.5f32.ln(), 0.3f32.ln(), 0.15f32.ln(), 0.05f32.ln()];
    let left = |min_p| {
        let mut sampler = sampler(Backbone::Llama, 4, SamplingOptions { min_p, ..NEUTRAL }, &[]);
        sampler.process(&logits, None).unwrap();
        kept(&sampler)
    };
    assert_eq!(left(0.0), [0, 1, 2, 3]);
    assert_eq!(left(0.29), [0, 1, 2]);
    assert_eq!(left(0.31), [0, 1]);
    assert_eq!(left(1.0), [0]);
}

#[test]
fn top_p_keeps_the_token_that_crosses_it() {
    let logits = [0.05f32.ln(), 0.5f32.ln(), 0.15f32.ln(), 0.3f32.ln()];
    for backbone in [Backbone::Llama, Backbone::Gpt2] {
        let left = |top_p| {
            let mut sampler = sampler(backbone, 4, SamplingOptions { top_p, ..NEUTRAL }, &[]);
            sampler.process(&logits, None).unwrap();
            kept(&sampler)
        };
        assert_eq!(left(0.0), [1]);
        assert_eq!(left(0.49), [1]);
        assert_eq!(left(0.51), [1, 3]);
        assert_eq!(left(0.81), [1, 2, 3]);
        assert_eq!(left(1.0), [0, 1, 2, 3]);
    }
}

#[test]
fn the_partial_selection_agrees_with_a_full_sort() {
    let vocab = 6563;
    let logits: Vec<f32> = SeededNoise::new(3).flow(0, 0, 83).into_iter().take(vocab).map(|x| x * 2.0).collect();
    let mut order: Vec<u32> = (0..vocab as u32).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
    let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    for top_p in [0.01, 0.3, 0.8, 0.99] {
        let mut mass = 0.0;
        let take = order.iter().take_while(|&&id| {
            let before = mass;
            mass += f64::from(logits[id as usize]).exp() / total;
            before < f64::from(top_p)
        });
        let mut expected: Vec<u32> = take.copied().collect();
        expected.sort_unstable();
        let mut sampler = sampler(Backbone::Llama, vocab, SamplingOptions { top_p, ..NEUTRAL }, &[]);
        sampler.process(&logits, None).unwrap();
        assert_eq!(kept(&sampler), expected, "top_p {top_p}");
    }
    let mut sampler = sampler(Backbone::Gpt2, vocab, SamplingOptions { top_k: 1000, ..NEUTRAL }, &[]);
    sampler.process(&logits, None).unwrap();
    let mut expected = order[..1000].to_vec();
    expected.sort_unstable();
    assert_eq!(kept(&sampler), expected);
}

#[test]
fn a_draw_inverts_the_distribution() {
    let logits = [0.2f32.ln(), 0.5f32.ln(), 0.3f32.ln()];
    let mut sampler = sampler(Backbone::Llama, 3, NEUTRAL, &[]);
    for (uniform, expected) in [(0.0, 0), (0.19, 0), (0.21, 1), (0.69, 1), (0.71, 2), (0.999_999_9, 2)] {
        assert_eq!(sampler.sample(&logits, None, uniform).unwrap(), expected, "at {uniform}");
    }
    let noise = SeededNoise::new(5);
    let mut counts = [0usize; 3];
    (0..10_000).for_each(|i| counts[sampler.sample(&logits, None, noise.uniform(0, i)).unwrap() as usize] += 1);
    let near = |count: usize, p: f64| (count as f64 / 10_000.0 - p).abs() < 0.02;
    assert!(near(counts[0], 0.2) && near(counts[1], 0.5) && near(counts[2], 0.3), "{counts:?}");
}

#[test]
fn temperature_zero_takes_the_best_and_the_lowest_of_equals() {
    let options = SamplingOptions { temperature: 0.0, ..NEUTRAL };
    for backbone in [Backbone::Llama, Backbone::Gpt2] {
        let mut sampler = sampler(backbone, 4, options, &[]);
        assert_eq!(sampler.sample(&[1.0, 3.0, 2.0, 3.0], None, 0.99).unwrap(), 1);
        assert_eq!(sampler.sample(&[1.0, 3.0, 2.0, 3.0], Some(1), 0.0).unwrap(), 3);
    }
}

#[test]
fn a_held_id_is_never_drawn() {
    let mut sampler = sampler(Backbone::Llama, 3, NEUTRAL, &[]);
    for step in 0..200 {
        let uniform = SeededNoise::new(9).uniform(0, step);
        assert_ne!(sampler.sample(&[0.0, 9.0, 0.0], Some(1), uniform).unwrap(), 1);
    }
}

#[test]
fn bad_logits_and_bad_options_are_errors() {
    let mut sampler = sampler(Backbone::Llama, 3, NEUTRAL, &[]);
    assert!(sampler.sample(&[f32::NAN; 3], None, 0.5).is_err());
    assert!(sampler.sample(&[f32::NEG_INFINITY; 3], None, 0.5).is_err());
    assert!(sampler.sample(&[0.0; 4], None, 0.5).is_err());
    for options in [
        SamplingOptions { temperature: -1.0, ..NEUTRAL },
        SamplingOptions { temperature: f32::NAN, ..NEUTRAL },
        SamplingOptions { top_p: 1.5, ..NEUTRAL },
        SamplingOptions { min_p: -0.1, ..NEUTRAL },
        SamplingOptions { repetition_penalty: 0.0, ..NEUTRAL },
        SamplingOptions { cfg_weight: f32::INFINITY, ..NEUTRAL },
    ] {
        assert!(Sampler::new(Backbone::Llama, 3, options).unwrap_err().is_bad_input(), "{options:?}");
    }
}
