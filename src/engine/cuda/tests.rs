#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]
//! Every kernel against a plain computation on the CPU, with fresh random inputs and poisoned outputs. Without a card
//! these tests see that its absence is said.

mod layers;
mod reference;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::{LaunchConfig, PushKernelArg};

use super::args::SamplingArgs;
use super::*;
use crate::error::Error;
use crate::sampling::{Sampler, SamplingOptions};
use crate::t3::{Backbone, START_SPEECH};
use reference::{Random, Reference, rounded};

/// The first card; where there is none, an explanation must come instead. One that was there and is lost is a failure:
/// a test that breaks it must not make those behind it pass.
pub(crate) fn card() -> Option<Arc<Card>> {
    static SEEN: AtomicBool = AtomicBool::new(false);
    match Card::open() {
        Ok(card) => {
            SEEN.store(true, Ordering::Relaxed);
            Some(card)
        }
        Err(Error::Device(why)) => {
            assert!(!why.is_empty() && !SEEN.load(Ordering::Relaxed), "the card is lost: {why}");
            None
        }
        Err(other) => panic!("a missing card was reported as {other:?}"),
    }
}

fn backbone(gpt2: bool) -> Backbone {
    if gpt2 { Backbone::Gpt2 } else { Backbone::Llama }
}

/// Choices of the card for `count` rows of logits, of which each has its own ids that occurred.
fn choices(
    card: &Card,
    options: &SamplingOptions,
    gpt2: bool,
    rows: &[Vec<f32>],
    seen: &[Vec<u32>],
    u: &[f32],
) -> Vec<u32> {
    let (vocab, count) = (rows[0].len(), rows.len());
    let words = vocab.div_ceil(32);
    let mut bits = vec![0u32; count * words];
    for (row, ids) in seen.iter().enumerate() {
        ids.iter().for_each(|id| bits[row * words + *id as usize / 32] |= 1 << (id % 32));
    }
    let put = &card.stream;
    let (logits, bits) = (put.clone_htod(&rows.concat()).unwrap(), put.clone_htod(&bits).unwrap());
    let (uniforms, mut out) = (put.clone_htod(u).unwrap(), put.clone_htod(&vec![u32::MAX - 1; count]).unwrap());
    let args = SamplingArgs::new(options, vocab, gpt2);
    let kernel = card.kernel("choose_each", 4 * vocab).unwrap();
    let mut launch = put.launch_builder(&kernel);
    launch.arg(&args).arg(&logits).arg(&bits).arg(&uniforms).arg(&mut out);
    let config =
        LaunchConfig { grid_dim: (count as u32, 1, 1), block_dim: (512, 1, 1), shared_mem_bytes: 4 * vocab as u32 };
    // SAFETY: the arguments are those of the kernel, and the buffers as large as it expects.
    unsafe { launch.launch(config) }.unwrap();
    put.clone_dtoh(&out).unwrap()
}

#[test]
fn the_sampler_chooses_as_on_the_cpu() {
    let Some(card) = card() else { return };
    let (llama, gpt2) = (SamplingOptions::llama(), SamplingOptions::gpt2());
    let cases = [
        (false, 8194, false, llama),
        (false, 8194, false, SamplingOptions { top_p: 0.7, min_p: 0.0, temperature: 1.3, ..llama }),
        (false, 6563, false, SamplingOptions { temperature: 0.0, ..llama }),
        (true, 6563, false, gpt2),
        (true, 6563, false, SamplingOptions { top_k: 7, top_p: 0.8, temperature: 1.0, ..gpt2 }),
        (true, 6563, false, SamplingOptions { top_p: 0.0, ..gpt2 }),
        (true, 6563, true, SamplingOptions { top_k: 50, top_p: 0.6, ..gpt2 }),
    ];
    let mut random = Random::new();
    for (is_gpt2, vocab, ties, options) in cases {
        let value = |random: &mut Random| {
            let x = random.normal() * 3.0;
            if ties { (x * 2.0).round() / 2.0 } else { x }
        };
        let rows: Vec<Vec<f32>> = (0..200).map(|_| (0..vocab).map(|_| value(&mut random)).collect()).collect();
        let mut samplers: Vec<Sampler> =
            rows.iter().map(|_| Sampler::new(backbone(is_gpt2), vocab, options).unwrap()).collect();
        let mut seen: Vec<Vec<u32>> = Vec::new();
        for (i, sampler) in samplers.iter_mut().enumerate() {
            let mut ids: Vec<u32> = (0..i % 60).map(|_| random.below(vocab as u32)).collect();
            ids.iter().for_each(|id| sampler.accept(*id));
            // The start id counts always, or with GPT-2 until the first token.
            if !is_gpt2 || ids.is_empty() {
                ids.push(START_SPEECH);
            }
            seen.push(ids);
        }
        let u: Vec<f32> = rows.iter().map(|_| random.uniform()).collect();
        let found = choices(&card, &options, is_gpt2, &rows, &seen, &u);
        for (i, sampler) in samplers.iter_mut().enumerate() {
            let expected = sampler.sample(&rows[i], None, u[i]).unwrap();
            assert_eq!(found[i], expected, "row {i} of {vocab} with {options:?}");
        }
    }
}

/// Voice, text and eleven tokens in two launches, against the reference fed the same tokens. Returns how far off the
/// logits are at worst.
fn compare(card: &Arc<Card>, shape: Shape, number: Number, rows: usize, (voice, text): (usize, usize)) -> f64 {
    let mut random = Random::new();
    let model = Reference::random(shape, number, 1300, &mut random);
    let net = Net::upload(card, shape, number, &model.outer, |i| Ok(model.layer(i))).unwrap();
    let t3 = CudaT3::new(card.clone(), net).unwrap();
    let mut state = t3.new_state(rows, 1200).unwrap();
    state.poison(card);
    let mut memory = model.memory(rows);
    let positions =
        |random: &mut Random, n: usize| -> Vec<Vec<f32>> { (0..n).map(|_| random.normals(shape.dim, 1.0)).collect() };
    let said = positions(&mut random, voice);
    t3.prefill(&mut state, &said.concat(), 1).unwrap();
    model.run(&mut memory, vec![said], rows);
    let said: Vec<Vec<Vec<f32>>> = (0..rows).map(|_| positions(&mut random, text)).collect();
    t3.prefill(&mut state, &said.concat().concat(), rows).unwrap();
    let mut hidden = model.run(&mut memory, said, rows);

    let backbone = backbone(shape.gpt2);
    let mut options = SamplingOptions::of(backbone);
    t3.begin(&mut state, &[START_SPEECH]).unwrap();
    let (mut worst, mut fed, mut seen) = (0f64, 0, Vec::new());
    for (steps, temperature) in [(5, 0.8), (6, 0.0)] {
        options.temperature = temperature;
        let uniforms: Vec<f32> = (0..steps).map(|_| random.uniform()).collect();
        let mut logits = Vec::new();
        let tokens = t3.decode(&mut state, &options, &uniforms, &[], Some(&mut logits)).unwrap();
        let mut sampler = Sampler::new(backbone, shape.vocab, options).unwrap();
        seen.iter().for_each(|id| sampler.accept(*id));
        for (i, &token) in tokens.iter().enumerate() {
            let found = &logits[i * rows * shape.vocab..][..rows * shape.vocab];
            let expected = model.logits(&hidden).concat();
            worst = worst.max(crate::t3::tests::relative_error(found, &expected));
            assert_eq!(token, sampler.sample(found, None, uniforms[i]).unwrap(), "{shape:?} {number:?} step {i}");
            sampler.accept(token);
            seen.push(token);
            let x = model.embed(token, if shape.gpt2 { memory.len() } else { fed + 1 });
            fed += 1;
            hidden = model.run(&mut memory, vec![vec![x]; rows], rows);
        }
    }
    worst
}

#[test]
fn logits_of_every_kind_of_network_are_those_of_the_definition() {
    let Some(card) = card() else { return };
    let english = Shape { gpt2: false, dim: 1024, heads: 16, layers: 2, mlp: 4096, vocab: 8194 };
    let turbo = Shape { gpt2: true, vocab: 6563, ..english };
    let nano = Shape { dim: 768, heads: 12, mlp: 3072, ..turbo };
    let small = Shape { dim: 256, heads: 4, layers: 3, mlp: 512, vocab: 6563, ..english };
    let odd = Shape { dim: 192, heads: 3, mlp: 500, ..small };
    for (number, tolerance) in [(Number::F32, 1e-5), (Number::F16, 2e-3), (Number::Bf16, 1.5e-2), (Number::Int8, 2e-2)]
    {
        let cases = [
            (english, 2, (34, 30)),
            (english, 1, (3, 1)),
            (turbo, 1, (40, 30)),
            (nano, 1, (20, 30)),
            (small, 2, (34, 760)),
            (odd, 2, (3, 9)),
        ];
        for (shape, rows, lengths) in cases {
            let error = compare(&card, shape, number, rows, lengths);
            println!("{number:?} {shape:?} rows {rows} {lengths:?}: off by {error:.1e}");
            assert!(error < tolerance, "{shape:?} {number:?} {rows} {lengths:?}: {error:e}");
        }
    }
}

#[test]
fn what_does_not_fit_is_said_and_not_tried() {
    let Some(card) = card() else { return };
    let shape = Shape { gpt2: false, dim: 512, heads: 4, layers: 1, mlp: 512, vocab: 6563 };
    let model = Reference::random(Shape { heads: 8, ..shape }, Number::Bf16, 300, &mut Random::new());
    let heads_of_128 = Net::upload(&card, shape, Number::Bf16, &model.outer, |i| Ok(model.layer(i)));
    assert!(matches!(heads_of_128, Err(Error::Device(_))), "{heads_of_128:?}");
    let net =
        Net::upload(&card, Shape { heads: 8, ..shape }, Number::Bf16, &model.outer, |i| Ok(model.layer(i))).unwrap();
    let t3 = CudaT3::new(card, net).unwrap();
    assert!(matches!(t3.new_state(2, usize::MAX >> 24), Err(Error::Device(_))));
    let mut state = t3.new_state(1, 8).unwrap();
    assert!(t3.prefill(&mut state, &rounded(&vec![0.5; 512 * 9], Number::F32), 1).is_err());
}

#[test]
fn forced_tokens_are_taken_and_do_not_stop() {
    let Some(card) = card() else { return };
    let shape = Shape { gpt2: false, dim: 256, heads: 4, layers: 2, mlp: 512, vocab: 6563 };
    let model = Reference::random(shape, Number::F32, 300, &mut Random::new());
    let net = Net::upload(&card, shape, Number::F32, &model.outer, |i| Ok(model.layer(i))).unwrap();
    let t3 = CudaT3::new(card.clone(), net).unwrap();
    let mut state = t3.new_state(1, 64).unwrap();
    let xs = Random::new().normals(9 * shape.dim, 1.0);
    let options = SamplingOptions::llama();
    let mut say = |forced: &[u32]| {
        state.truncate(0);
        t3.prefill(&mut state, &xs, 1).unwrap();
        t3.begin(&mut state, &[START_SPEECH]).unwrap();
        let mut logits = Vec::new();
        (t3.decode(&mut state, &options, &[0.3; 7], forced, Some(&mut logits)).unwrap(), logits)
    };
    let forced = [5, crate::t3::STOP_SPEECH, 17, 6561, 4000, 17, 3];
    assert_eq!(say(&forced).0, forced);
    // What was sampled freely and is forced comes from the same logits.
    let (free, expected) = say(&[]);
    let (again, found) = say(&[free.as_slice(), &[0; 7]].concat()[..7]);
    assert_eq!(again[..free.len()], free);
    assert_eq!(found[..expected.len()], expected);
}
