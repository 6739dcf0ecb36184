//! T3 on a graphics card with random weights at the released sizes: tokens a second and prefill, and what share that is of
//! reading the weights and the cache once. `cargo bench --bench gpu --features cuda`, or see `gpu.sh`.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::sync::Arc;
use std::time::Instant;

use myna_engine::cuda::{Card, CudaT3, LayerWeights, MOST_STEPS, Net, Number, OuterWeights, Shape};
use myna_engine::noise::{NoiseSource, SeededNoise};
use myna_engine::sampling::SamplingOptions;

const POSITIONS: usize = 1200;
/// Positions of a prompt, and those of them that are the voice's (Llama), kept from sentence to sentence.
const PROMPT: usize = 250;
const VOICE: usize = 34;
const RUNS: usize = 7;

fn values(seed: u64, n: usize, scale: f32) -> Vec<f32> {
    let mut values = SeededNoise::new(seed).flow(0, 0, n.div_ceil(80));
    values.truncate(n);
    values.iter_mut().for_each(|x| *x *= scale);
    values
}

fn layer(s: Shape) -> LayerWeights {
    let (d, inner) = (s.dim, if s.gpt2 { s.mlp } else { 2 * s.mlp });
    let scale = 1.0 / (d as f32).sqrt();
    let norm = vec![1.0; if s.gpt2 { 2 * d } else { d }];
    LayerWeights {
        norm1: norm.clone(),
        qkv: values(1, 3 * d * d, scale),
        qkv_bias: Vec::new(),
        out: values(2, d * d, scale),
        out_bias: Vec::new(),
        norm2: norm,
        inner: values(3, inner * d, scale),
        inner_bias: Vec::new(),
        down: values(4, d * s.mlp, 0.5 * scale),
        down_bias: Vec::new(),
    }
}

fn outer(s: Shape) -> OuterWeights {
    let angles: Vec<f32> = (0..POSITIONS * 32).map(|i| (i / 32) as f32 * 0.7f32.powi(i as i32 % 32)).collect();
    OuterWeights {
        final_norm: vec![1.0; if s.gpt2 { 2 * s.dim } else { s.dim }],
        head: values(5, s.vocab * s.dim, 3.0 / (s.dim as f32).sqrt()),
        head_bias: Vec::new(),
        embedding: values(6, s.vocab * s.dim, 1.0),
        positions: values(7, POSITIONS * s.dim, 0.3),
        cosines: angles.iter().map(|a| a.cos()).collect(),
        sines: angles.iter().map(|a| a.sin()).collect(),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn measure(card: &Arc<Card>, name: &str, s: Shape, number: Number, rows: usize) {
    let one = layer(s);
    let net = Net::upload(card, s, number, &outer(s), |_| Ok(one.clone())).unwrap();
    let t3 = CudaT3::new(card.clone(), net).unwrap();
    let mut state = t3.new_state(rows, POSITIONS).unwrap();
    let voice = if s.gpt2 { 1 } else { VOICE };
    let (voice_xs, xs) = (values(8, voice * s.dim, 1.0), values(9, (PROMPT - voice) * rows * s.dim, 1.0));
    let options =
        SamplingOptions { temperature: 1.0, ..if s.gpt2 { SamplingOptions::gpt2() } else { SamplingOptions::llama() } };
    let uniforms: Vec<f32> = (0..MOST_STEPS).map(|i| SeededNoise::new(3).uniform(0, i)).collect();
    let (mut prefills, mut steps, mut at) = (Vec::new(), Vec::new(), 0);
    let mut sentence = 0;
    while steps.len() < RUNS {
        sentence += 1;
        assert!(sentence < 20 * RUNS, "the random model stops too often");
        state.truncate(0);
        t3.prefill(&mut state, &voice_xs, 1).unwrap();
        card.synchronize().unwrap();
        let started = Instant::now();
        t3.prefill(&mut state, &xs, rows).unwrap();
        card.synchronize().unwrap();
        prefills.push(started.elapsed().as_secs_f64() * 1e3);
        t3.begin(&mut state, &[]).unwrap();
        while state.len() < 368 && t3.decode(&mut state, &options, &uniforms[..59], None).unwrap().len() == 59 {}
        if state.len() < 368 {
            continue;
        }
        at = state.len();
        let started = Instant::now();
        let made = t3.decode(&mut state, &options, &uniforms, None).unwrap().len();
        let elapsed = started.elapsed().as_secs_f64();
        // The first runs warm up.
        if made == uniforms.len() && sentence > 2 {
            steps.push(elapsed / made as f64);
        }
    }
    let bytes = if number == Number::F32 { 4 } else { 2 };
    let matrices = s.layers * (4 * s.dim * s.dim + (if s.gpt2 { 2 } else { 3 }) * s.dim * s.mlp) + s.vocab * s.dim;
    let cache = s.layers * 2 * rows * s.dim * (at + MOST_STEPS / 2);
    let step = median(steps);
    println!(
        "{name:8} {:4} {rows} row{} {:6.0} tokens/s at {at}..{}   {:.3} ms a step   {:5.0} GB/s read   prefill {:5.2} ms",
        number.name(),
        if rows == 1 { " " } else { "s" },
        1.0 / step,
        at + MOST_STEPS,
        step * 1e3,
        ((matrices + cache) * bytes) as f64 / step / 1e9,
        median(prefills),
    );
}

fn main() {
    let card = match Card::open() {
        Ok(card) => card,
        Err(why) => return println!("GPU: none, because {why}"),
    };
    println!(
        "{}: prefill of {PROMPT} positions (of which {VOICE} of the voice are kept, with Llama), then tokens",
        card.name()
    );
    let english = Shape { gpt2: false, dim: 1024, heads: 16, layers: 30, mlp: 4096, vocab: 8194 };
    let turbo = Shape { gpt2: true, layers: 24, vocab: 6563, ..english };
    let nano = Shape { dim: 768, heads: 12, layers: 12, mlp: 3072, ..turbo };
    for number in [Number::Bf16, Number::F16, Number::F32] {
        measure(&card, "English", english, number, 2);
        measure(&card, "English", english, number, 1);
        measure(&card, "Turbo", turbo, number, 1);
        measure(&card, "Nano", nano, number, 1);
    }
}
