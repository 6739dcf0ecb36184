//! T3's transformer as the papers write it, one position after another with sums in f64.

use half::{bf16, f16};

use crate::cuda::{LayerWeights, Number, OuterWeights, Shape};
use crate::noise::{NoiseSource, SeededNoise};

const HEAD: usize = 64;

/// Numbers that differ from run to run.
pub(super) struct Random {
    noise: SeededNoise,
    at: usize,
}

impl Random {
    pub(super) fn new() -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
        println!("random inputs of seed {}", now as u64);
        Self { noise: SeededNoise::new(now as u64), at: 0 }
    }

    /// In `[0, 1)`.
    pub(super) fn uniform(&mut self) -> f32 {
        self.at += 1;
        self.noise.uniform(0, self.at)
    }

    pub(super) fn below(&mut self, end: u32) -> u32 {
        (self.uniform() * end as f32) as u32
    }

    pub(super) fn normal(&mut self) -> f32 {
        self.at += 1;
        self.noise.source(0, self.at, 1, 1)[0]
    }

    pub(super) fn normals(&mut self, n: usize, scale: f32) -> Vec<f32> {
        self.at += 1;
        let mut values = self.noise.flow(self.at, 0, n.div_ceil(80));
        values.truncate(n);
        values.iter_mut().for_each(|x| *x *= scale);
        values
    }

    fn near_one(&mut self, n: usize) -> Vec<f32> {
        self.normals(n, 0.1).iter().map(|x| 1.0 + x).collect()
    }
}

/// As the card keeps them.
pub(super) fn rounded(values: &[f32], number: Number) -> Vec<f32> {
    let round = |x: &f32| match number {
        Number::F32 | Number::F64 => *x,
        Number::F16 => f16::from_f32(*x).to_f32(),
        Number::Bf16 => bf16::from_f32(*x).to_f32(),
        Number::Int8 => unreachable!("a row has to be known"),
    };
    values.iter().map(round).collect()
}

/// A matrix of so many columns as the card keeps it.
fn kept(values: Vec<f32>, columns: usize, number: Number) -> Vec<f32> {
    if number != Number::Int8 {
        return rounded(&values, number);
    }
    let (steps, scales) = super::super::net::quantised(&values, columns, columns);
    let rows = steps.chunks_exact(columns).zip(scales);
    rows.flat_map(|(row, scale)| row.iter().map(move |x| f32::from(x.cast_signed()) * scale)).collect()
}

/// A network of random weights.
pub(super) struct Reference {
    shape: Shape,
    number: Number,
    layers: Vec<LayerWeights>,
    pub(super) outer: OuterWeights,
}

/// Keys and values, for each layer and row one vector of all heads a position.
pub(super) struct Memory(Vec<Vec<(Vec<f32>, Vec<f32>)>>);

impl Memory {
    pub(super) fn len(&self) -> usize {
        self.0[0].len()
    }
}

impl Reference {
    pub(super) fn random(s: Shape, number: Number, positions: usize, random: &mut Random) -> Self {
        let (d, inner) = (s.dim, if s.gpt2 { s.mlp } else { 2 * s.mlp });
        let scale = |n: usize| 1.0 / (n as f32).sqrt();
        let norm = |random: &mut Random| {
            let shift = if s.gpt2 { random.normals(d, 0.1) } else { Vec::new() };
            [random.near_one(d), shift].concat()
        };
        let bias = |random: &mut Random, n: usize| if s.gpt2 { random.normals(n, 0.1) } else { Vec::new() };
        let layer = |random: &mut Random| LayerWeights {
            norm1: norm(random),
            qkv: kept(random.normals(3 * d * d, scale(d)), d, number),
            qkv_bias: bias(random, 3 * d),
            out: kept(random.normals(d * d, scale(d)), d, number),
            out_bias: bias(random, d),
            norm2: norm(random),
            inner: kept(random.normals(inner * d, scale(d)), d, number),
            inner_bias: bias(random, inner),
            down: kept(random.normals(d * s.mlp, scale(s.mlp)), s.mlp, number),
            down_bias: bias(random, d),
        };
        let layers = (0..s.layers).map(|_| layer(random)).collect();
        let angle = |i: usize| (i / 32) as f32 / 500_000f32.powf((i % 32) as f32 / 32.0);
        let table = |f: fn(f32) -> f32| {
            if s.gpt2 { Vec::new() } else { (0..positions * 32).map(|i| f(angle(i))).collect() }
        };
        let outer = OuterWeights {
            final_norm: norm(random),
            head: kept(random.normals(s.vocab * d, 3.0 * scale(d)), d, number),
            head_bias: bias(random, s.vocab),
            embedding: random.normals(s.vocab * d, 1.0),
            positions: random.normals(positions * d, 0.3),
            cosines: table(f32::cos),
            sines: table(f32::sin),
        };
        Self { shape: s, number, layers, outer }
    }

    pub(super) fn layer(&self, i: usize) -> LayerWeights {
        self.layers[i].clone()
    }

    pub(super) fn memory(&self, rows: usize) -> Memory {
        Memory((0..self.shape.layers * rows).map(|_| Vec::new()).collect())
    }

    /// A token and its position.
    pub(super) fn embed(&self, token: u32, position: usize) -> Vec<f32> {
        let row = |table: &[f32], i: usize| table[i * self.shape.dim..][..self.shape.dim].to_vec();
        let place = row(&self.outer.positions, position);
        row(&self.outer.embedding, token as usize).iter().zip(place).map(|(x, p)| x + p).collect()
    }

    /// Runs the positions of each row behind what `memory` holds; one row goes to all `rows`. Returns what is left of the
    /// last position of each.
    pub(super) fn run(&self, memory: &mut Memory, xs: Vec<Vec<Vec<f32>>>, rows: usize) -> Vec<Vec<f32>> {
        let s = self.shape;
        let (batch, length) = (xs.len(), xs[0].len());
        let start = memory.len();
        let mut xs: Vec<Vec<f32>> = xs.into_iter().flatten().collect();
        for (l, w) in self.layers.iter().enumerate() {
            let normed: Vec<_> = xs.iter().map(|x| self.norm(x, &w.norm1)).collect();
            let mut qkv = linear(&normed, &w.qkv, &w.qkv_bias, 3 * s.dim);
            for (i, qkv) in qkv.iter_mut().enumerate() {
                self.turn(&mut qkv[..2 * s.dim], start + i % length);
            }
            let kept = if self.number == Number::F32 { Number::F32 } else { Number::F16 };
            for row in 0..rows {
                for i in 0..length {
                    let qkv = &qkv[if batch == 1 { i } else { row * length + i }];
                    let (k, v) = qkv[s.dim..].split_at(s.dim);
                    memory.0[l * rows + row].push((rounded(k, kept), rounded(v, kept)));
                }
            }
            let context: Vec<Vec<f32>> = qkv
                .iter()
                .enumerate()
                .map(|(i, q)| attend(&q[..s.dim], &memory.0[l * rows + i / length][..=start + i % length]))
                .collect();
            add(&mut xs, linear(&context, &w.out, &w.out_bias, s.dim));
            let normed: Vec<_> = xs.iter().map(|x| self.norm(x, &w.norm2)).collect();
            let inner = linear(&normed, &w.inner, &w.inner_bias, if s.gpt2 { s.mlp } else { 2 * s.mlp });
            let active: Vec<Vec<f32>> =
                inner
                    .iter()
                    .map(|row| {
                        if s.gpt2 { row.iter().map(|x| gelu(*x)).collect() } else { row.chunks(2).map(gate).collect() }
                    })
                    .collect();
            add(&mut xs, linear(&active, &w.down, &w.down_bias, s.dim));
        }
        (0..batch).map(|row| xs[row * length + length - 1].clone()).collect()
    }

    /// Of each row's last position.
    pub(super) fn logits(&self, xs: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let normed: Vec<_> = xs.iter().map(|x| self.norm(x, &self.outer.final_norm)).collect();
        linear(&normed, &self.outer.head, &self.outer.head_bias, self.shape.vocab)
    }

    fn norm(&self, x: &[f32], weights: &[f32]) -> Vec<f32> {
        let n = x.len() as f64;
        let mean = if self.shape.gpt2 { x.iter().map(|x| f64::from(*x)).sum::<f64>() / n } else { 0.0 };
        let variance = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
        let shift = |i: usize| weights.get(x.len() + i).copied().unwrap_or(0.0);
        let scaled = |x: f32| ((f64::from(x) - mean) / (variance + 1e-5).sqrt()) as f32;
        x.iter().enumerate().map(|(i, x)| scaled(*x) * weights[i] + shift(i)).collect()
    }

    fn turn(&self, heads: &mut [f32], position: usize) {
        if self.shape.gpt2 {
            return;
        }
        for head in heads.chunks_mut(HEAD) {
            for j in 0..HEAD / 2 {
                let (c, s) = (self.outer.cosines[position * 32 + j], self.outer.sines[position * 32 + j]);
                let (a, b) = (head[j], head[j + 32]);
                (head[j], head[j + 32]) = (a * c - b * s, b * c + a * s);
            }
        }
    }
}

fn add(xs: &mut [Vec<f32>], ys: Vec<Vec<f32>>) {
    xs.iter_mut().zip(ys).for_each(|(x, y)| x.iter_mut().zip(y).for_each(|(x, y)| *x += y));
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    let mut sums = [0f64; 8];
    for (a, b) in a.chunks(8).zip(b.chunks(8)) {
        a.iter().zip(b).zip(&mut sums).for_each(|((a, b), sum)| *sum += f64::from(*a) * f64::from(*b));
    }
    sums.iter().sum()
}

fn linear(xs: &[Vec<f32>], weight: &[f32], bias: &[f32], outputs: usize) -> Vec<Vec<f32>> {
    use rayon::prelude::*;
    let rows: Vec<&[f32]> = weight.chunks(weight.len() / outputs).collect();
    let bias = |n: usize| bias.get(n).copied().unwrap_or(0.0);
    let columns: Vec<Vec<f32>> =
        rows.par_iter().enumerate().map(|(n, w)| xs.iter().map(|x| dot(x, w) as f32 + bias(n)).collect()).collect();
    (0..xs.len()).map(|i| columns.iter().map(|column| column[i]).collect()).collect()
}

fn attend(q: &[f32], seen: &[(Vec<f32>, Vec<f32>)]) -> Vec<f32> {
    let mut out = Vec::with_capacity(q.len());
    for (h, q) in q.chunks(HEAD).enumerate() {
        let scores: Vec<f64> = seen.iter().map(|(k, _)| dot(q, &k[h * HEAD..][..HEAD]) / 8.0).collect();
        let most = scores.iter().copied().fold(f64::MIN, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
        let mass: f64 = weights.iter().sum();
        out.extend(
            (h * HEAD..(h + 1) * HEAD)
                .map(|c| (weights.iter().zip(seen).map(|(w, (_, v))| w * f64::from(v[c])).sum::<f64>() / mass) as f32),
        );
    }
    out
}

fn gelu(x: f32) -> f32 {
    let x = f64::from(x);
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
    (0.5 * x * (1.0 + inner.tanh())) as f32
}

fn gate(pair: &[f32]) -> f32 {
    let gate = f64::from(pair[0]);
    (gate / (1.0 + (-gate).exp())) as f32 * pair[1]
}
