//! T3 on a graphics card with random weights at the released sizes: tokens a second and prefill, and what share that is of
//! reading the weights and the cache once. For every folder with an S3Gen checkpoint of the released size that is named:
//! mel and sound from speech tokens. `cargo bench --bench gpu --features cuda -- FOLDER`, or see `gpu.sh`.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use candle_core::{Device, Tensor};
use myna_engine::cuda::{Card, CudaT3, LayerWeights, MOST_STEPS, Net, Number, OuterWeights, Shape};
use myna_engine::noise::{NoiseSource, SeededNoise};
use myna_engine::s3gen::hift::{Hift, HiftConfig};
use myna_engine::s3gen::{FlowConfig, FlowOptions, FlowRun, S3Gen, S3GenReference};
use myna_engine::sampling::SamplingOptions;
use myna_engine::weights::Weights;

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
        while state.len() < 368 && t3.decode(&mut state, &options, &uniforms[..59], &[], None).unwrap().len() == 59 {}
        if state.len() < 368 {
            continue;
        }
        at = state.len();
        let started = Instant::now();
        let made = t3.decode(&mut state, &options, &uniforms, &[], None).unwrap().len();
        let elapsed = started.elapsed().as_secs_f64();
        // The first runs warm up.
        if made == uniforms.len() && sentence > 2 {
            steps.push(elapsed / made as f64);
        }
    }
    let matrices = s.layers * (4 * s.dim * s.dim + (if s.gpt2 { 2 } else { 3 }) * s.dim * s.mlp) + s.vocab * s.dim;
    let cache = s.layers * 2 * rows * s.dim * (at + MOST_STEPS / 2);
    let bytes = matrices * number.bytes() + cache * if number == Number::F32 { 4 } else { 2 };
    let (step, prefill) = (median(steps), median(prefills));
    note(serde_json::json!({
        "part": "t3", "variant": name, "rows": rows, "number": number.name(), "tokens_per_sec": 1.0 / step, "prefill_ms": prefill,
    }));
    println!(
        "{name:8} {:4} {rows} row{} {:6.0} tokens/s at {at}..{}   {:.3} ms a step   {:5.0} GB/s read   prefill {:5.2} ms",
        number.name(),
        if rows == 1 { " " } else { "s" },
        1.0 / step,
        at + MOST_STEPS,
        step * 1e3,
        bytes as f64 / step / 1e9,
        prefill,
    );
}

fn times(mut work: impl FnMut()) -> f64 {
    let run = |_| {
        let started = Instant::now();
        work();
        started.elapsed().as_secs_f64() * 1e3
    };
    median((0..3 + 2 * RUNS).map(run).skip(3).collect())
}

/// Mel and sound with a reference of ten seconds.
fn measure_decoder(card: &Arc<Card>, folder: &Path, number: Number) {
    let names = ["s3gen.safetensors", "s3gen_meanflow.safetensors"];
    let Some(path) = names.iter().map(|name| folder.join(name)).find(|path| path.exists()) else { return };
    let before = card.free_bytes().unwrap();
    let w = Weights::open(&path, &Device::Cpu).unwrap();
    let mut s3gen = S3Gen::load(&w, &FlowConfig::default()).unwrap();
    let on = card.beside().unwrap();
    s3gen.put_on_card(&w, &on, number).unwrap();
    let mut hift = Hift::load(&w.pp("mel2wav"), &HiftConfig::default()).unwrap();
    hift.put_on_card(&w.pp("mel2wav"), &HiftConfig::default(), &on).unwrap();
    let tensor = |values: Vec<f32>, frames: usize| Tensor::from_vec(values, (1, frames, 80), &Device::Cpu).unwrap();
    let ids = |n: u32| (0..n).map(|i| i * 2357 % 6561).collect::<Vec<u32>>();
    let reference = S3GenReference {
        prompt_token: ids(250),
        prompt_feat: tensor(values(1, 500 * 80, 1.0), 500),
        x_vector: Tensor::from_vec(values(2, 192, 1.0), (1, 192), &Device::Cpu).unwrap(),
    };
    let options: FlowOptions = s3gen.default_options();
    let noise = SeededNoise::new(1);
    let run = FlowRun { noise: &noise, sentence: 0, cancelled: &|| false };
    let steps = options.solver.steps();
    for tokens in [13u32, 100, 250] {
        let started = Instant::now();
        s3gen.mel(&reference, &ids(tokens), &options, &run).unwrap();
        let first = started.elapsed().as_secs_f64() * 1e3;
        let before = on.work();
        s3gen.mel(&reference, &ids(tokens), &options, &run).unwrap();
        let work = on.work().since(&before);
        let mel = times(|| drop(s3gen.mel(&reference, &ids(tokens), &options, &run).unwrap()));
        let frames = 2 * tokens as usize;
        let xs = tensor(values(3, frames * 80, 1.0).iter().map(|x| x - 4.0).collect(), frames);
        let source = values(4, frames * 480, 0.1);
        let sound = times(|| drop(hift.inference_from_source(&xs, &source).unwrap()));
        let whole = times(|| drop(hift.forward(&xs, &noise, 0).unwrap()));
        note(serde_json::json!({
            "part": "s3gen", "steps": steps, "number": number.name(), "tokens": tokens, "mel_ms": mel, "vocoder_ms": whole,
            "launches": work.launches, "kernels": work.kernels,
        }));
        println!(
            "{} {:4} {steps} steps, {tokens:3} tokens: mel {mel:6.2} ms in {} launches of {} kernels ({:.0} TFLOP/s; {first:.1} \
             the first time), \
             vocoder {sound:5.2} ms, with pitch and excitation {whole:5.2} ms",
            path.file_name().unwrap().to_string_lossy(),
            number.name(),
            work.launches,
            work.kernels,
            work.operations / mel / 1e9,
        );
    }
    let first = times(|| {
        let mut state = s3gen.start(&reference, &options).unwrap();
        drop(s3gen.decode(&mut state, &ids(11), false, &run).unwrap());
    });
    let used = || (before - card.free_bytes().unwrap()) >> 20;
    let after_few = used();
    for i in 0..500 {
        s3gen
            .mel(&reference, &ids(8 + i % 40), &FlowOptions { solver: options.solver.with_steps(1), ..options }, &run)
            .unwrap();
    }
    let ((weights, activations), (vocoder, rendering)) = (s3gen.bytes_on_card(), hift.bytes_on_card());
    let beside = used() - ((weights + vocoder) >> 20);
    note(
        serde_json::json!({ "part": "memory", "steps": steps, "number": number.name(), "few": after_few, "many": used(), "beside": beside }),
    );
    println!(
        "    first chunk of 8 + 3 tokens: {first:.2} ms; weights {} + {} MB, activations {} + {} MB; {after_few} MB of the \
         card taken, {} MB after 500 more jobs",
        weights >> 20,
        vocoder >> 20,
        activations >> 20,
        rendering >> 20,
        used()
    );
}

/// Adds a line of JSON to the file that `GPU_FIGURES` names, if it does: `gpu_table.py` reads them.
fn note(figures: serde_json::Value) {
    let Ok(path) = std::env::var("GPU_FIGURES") else { return };
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    writeln!(file, "{figures}").unwrap();
}

fn main() {
    let card = match Card::open() {
        Ok(card) => card,
        Err(why) => return println!("GPU: none, because {why}"),
    };
    let folders: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    for folder in &folders {
        for number in [Number::Bf16, Number::F16, Number::F32] {
            measure_decoder(&card, Path::new(folder), number);
        }
    }
    if !folders.is_empty() {
        return;
    }
    println!(
        "{}: prefill of {PROMPT} positions (of which {VOICE} of the voice are kept, with Llama), then tokens",
        card.name()
    );
    let english = Shape { gpt2: false, dim: 1024, heads: 16, layers: 30, mlp: 4096, vocab: 8194 };
    let turbo = Shape { gpt2: true, layers: 24, vocab: 6563, ..english };
    let nano = Shape { dim: 768, heads: 12, layers: 12, mlp: 3072, ..turbo };
    for number in [Number::Bf16, Number::F16, Number::F32, Number::Int8] {
        measure(&card, "English", english, number, 2);
        measure(&card, "English", english, number, 1);
        measure(&card, "Turbo", turbo, number, 1);
        measure(&card, "Nano", nano, number, 1);
    }
}
