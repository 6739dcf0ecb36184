//! The kernels of S3Gen against the definitions, with sums in f64.

use super::card;
use super::reference::{Random, rounded};
use crate::cuda::Number;
use crate::cuda::layers::{Act, AttendArgs, Input, Layers, Matrix, NormArgs, Room, RowsArgs, Store};

fn layers(number: Number) -> Option<Layers> {
    card().map(|card| Layers::new(card.beside().unwrap(), number).unwrap())
}

fn error(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let far: f64 = found.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    (far / expected.iter().map(|b| b * b).sum::<f64>()).sqrt()
}

/// Geometry of a convolution: batch rows, rows in and out, outputs, channels, taps, stride, dilation, zeros in front.
struct Case(usize, usize, usize, usize, usize, usize, usize, usize, usize, bool);

/// Room full of what is no number, and addresses in it of so many bytes.
fn poisoned<const N: usize>(on: &Layers, bytes: [usize; N]) -> (Room, [u64; N]) {
    let mut room = Room::new();
    room.deal(on.card(), bytes).unwrap();
    room.poison(on.card());
    let places = room.deal(on.card(), bytes).unwrap();
    (room, places)
}

fn product(number: Number, case: &Case) -> f64 {
    let Some(on) = layers(number) else { return 0.0 };
    let &Case(batch, rows_in, rows, n, channels, taps, stride, dilation, left, twice) = case;
    let (mut random, mut store) = (Random::new(), Store::new(on.card().clone()));
    let x = rounded(&random.normals(batch * rows_in * channels, 1.0), number);
    let weight = rounded(&random.normals(n * taps * channels, 1.0 / ((taps * channels) as f32).sqrt()), number);
    let (bias, residual) = (random.normals(n, 1.0), random.normals(batch * rows * n, 1.0));
    let w: Matrix = store.matrix(&weight, n, channels, Some(&bias), number).unwrap();
    let (at_x, at_residual) = (store.table(&x, number).unwrap(), store.vector(&residual).unwrap());
    let pitch = n.next_multiple_of(4) + 4;
    let (_room, [out]) = poisoned(&on, [4 * batch * rows * pitch]);
    let input = Input { at: at_x, batch, rows: rows_in, pitch: channels };
    let args = RowsArgs::new(&w, input);
    let args = if twice { args.twice() } else { args };
    let args = args.conv(rows, stride, dilation, left).first(Act::Leaky, 0.1).residual(at_residual);
    on.rows(&w, args.out_pitch(out, pitch)).unwrap();
    let all = on.fetch(out, batch * rows * pitch).unwrap();
    let found: Vec<f32> = all.chunks_exact(pitch).flat_map(|row| row[..n].to_vec()).collect();
    let mut expected = Vec::new();
    for (row, more) in residual.chunks_exact(n).enumerate() {
        let (b, t) = (row / rows, row % rows);
        for (o, more) in more.iter().enumerate() {
            let mut sum = f64::from(bias[o]);
            for tap in 0..taps {
                let Some(at) = (t * stride + tap * dilation).checked_sub(left) else { continue };
                let at = if twice { at / 2 } else { at };
                if at < rows_in {
                    let from = &x[(b * rows_in + at) * channels..][..channels];
                    let by = &weight[(o * taps + tap) * channels..][..channels];
                    sum += from.iter().zip(by).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
                }
            }
            expected.push(if sum > 0.0 { sum } else { 0.1 * sum } + f64::from(*more));
        }
    }
    error(&found, &expected)
}

#[test]
fn products_of_rows_are_those_of_the_definition() {
    let cases = [
        Case(2, 526, 526, 1536, 256, 1, 1, 1, 0, false),
        Case(2, 131, 131, 256, 256, 3, 1, 1, 2, false),
        Case(1, 77, 77, 160, 160, 5, 1, 1, 4, true),
        Case(3, 41, 37, 203, 40, 5, 1, 2, 3, false),
        Case(1, 121, 8, 64, 24, 30, 15, 1, 7, false),
        Case(1, 5, 5, 2, 8, 1, 1, 1, 0, false),
        Case(1, 300, 300, 64, 64, 11, 1, 5, 25, false),
    ];
    for number in [Number::F32, Number::F16, Number::Bf16] {
        for (i, case) in cases.iter().enumerate() {
            let error = product(number, case);
            assert!(error < 2e-6, "{number:?}, case {i}: {error:e}");
        }
    }
}

/// Heads, their width, queries and keys, whether there is a bias, a window of keys, and whether a query sees those behind it.
struct Seen(usize, usize, usize, bool, Option<usize>, bool);

fn attention(number: Number, batch: usize, case: &Seen) -> f64 {
    let Some(on) = layers(number) else { return 0.0 };
    let &Seen(heads, width, rows, with_bias, window, all) = case;
    let (mut random, mut store) = (Random::new(), Store::new(on.card().clone()));
    let dim = heads * width;
    let qkv = rounded(&random.normals(batch * rows * 3 * dim, 1.0), number);
    let bias = random.normals(heads * rows * 2 * rows, 1.0);
    let from = |i: usize| window.map_or(0, |window| (i / 9 * 9).saturating_sub(window));
    let to = |i: usize| window.map_or(if all { rows } else { i + 1 }, |_| (i / 9 * 9 + 9).min(rows));
    let (at, at_bias) = (store.table(&qkv, number).unwrap(), store.vector(&bias).unwrap());
    let (_room, [out, sent, ranges]) = poisoned(&on, [8 * batch * rows * dim, 8, 8 * rows]);
    let bytes: Vec<u8> =
        (0..rows).flat_map(|i| [from(i) as u32, to(i) as u32]).flat_map(|end| end.to_le_bytes()).collect();
    on.send_bytes(ranges, &bytes).unwrap();
    on.send(sent, &[0.0]).unwrap();
    let wide = number.bytes();
    let part = |i: usize| at + (i * dim * wide) as u64;
    let args = AttendArgs {
        q: part(0),
        k: part(1),
        v: part(2),
        out,
        bias: if with_bias { at_bias } else { 0 },
        ranges: if window.is_some() { ranges } else { 0 },
        q_batch: (rows * 3 * dim) as i64,
        k_batch: (rows * 3 * dim) as i64,
        k_head: width as i64,
        out_batch: (rows * dim) as i64,
        bias_head: (rows * 2 * rows) as i64,
        q_pitch: 3 * dim as i32,
        k_pitch: 3 * dim as i32,
        out_pitch: dim as i32,
        bias_pitch: 2 * rows as i32,
        queries: rows as i32,
        keys: rows as i32,
        width: width as i32,
        causal: i32::from(!all),
        scale: 0.2,
    };
    on.attend(&args, heads, batch).unwrap();
    let words = on.fetch(out, (batch * rows * dim * wide).div_ceil(4)).unwrap();
    let found: Vec<f32> = match number {
        Number::F32 | Number::F64 => words,
        _ => words.iter().flat_map(|word| halves(word.to_bits(), number)).take(batch * rows * dim).collect(),
    };
    let value = |b: usize, row: usize, at: usize| f64::from(qkv[(b * rows + row) * 3 * dim + at]);
    let mut expected = vec![0.0; batch * rows * dim];
    for (b, h, i) in (0..batch).flat_map(|b| (0..heads).flat_map(move |h| (0..rows).map(move |i| (b, h, i)))) {
        let score = |j: usize| {
            let product: f64 = (0..width).map(|c| value(b, i, h * width + c) * value(b, j, dim + h * width + c)).sum();
            let more = if with_bias { bias[(h * rows + i) * 2 * rows + rows - 1 - i + j] } else { 0.0 };
            (product + f64::from(more)) * f64::from(0.2f32)
        };
        let weights: Vec<f64> = (from(i)..to(i)).map(|j| score(j).exp()).collect();
        let mass: f64 = weights.iter().sum();
        for (j, weight) in (from(i)..to(i)).zip(&weights) {
            for c in 0..width {
                expected[(b * rows + i) * dim + h * width + c] += weight / mass * value(b, j, 2 * dim + h * width + c);
            }
        }
    }
    error(&found, &expected)
}

/// Two 16-bit numbers of a word.
fn halves(word: u32, number: Number) -> [f32; 2] {
    [word as u16, (word >> 16) as u16].map(|bits| match number {
        Number::F16 => half::f16::from_bits(bits).to_f32(),
        _ => half::bf16::from_bits(bits).to_f32(),
    })
}

#[test]
fn attention_is_that_of_the_definition() {
    let cases = [
        Seen(8, 64, 130, false, None, true),
        Seen(3, 40, 101, true, Some(20), true),
        Seen(4, 32, 65, true, None, true),
        Seen(2, 24, 77, false, Some(0), true),
        Seen(1, 64, 1, true, None, true),
        Seen(5, 64, 201, false, None, false),
    ];
    for (number, tolerance) in [(Number::F32, 2e-6), (Number::F16, 1e-3), (Number::Bf16, 6e-3)] {
        for (i, case) in cases.iter().enumerate() {
            let error = attention(number, 1 + i % 2, case);
            assert!(error < tolerance, "{number:?}, case {i}: {error:e}");
        }
    }
}

#[test]
fn a_norm_is_that_of_the_definition() {
    let Some(on) = layers(Number::Bf16) else { return };
    for (rows, dim) in [(13, 128), (7, 160), (9, 512)] {
        let (mut random, mut store) = (Random::new(), Store::new(on.card().clone()));
        let x = random.normals(rows * dim, 3.0);
        let (weight, bias, shift) = (random.normals(dim, 1.0), random.normals(dim, 1.0), random.normals(dim, 1.0));
        let (_room, [out]) = poisoned(&on, [4 * rows * dim]);
        let args = NormArgs {
            x: store.vector(&x).unwrap(),
            weight: store.vector(&weight).unwrap(),
            bias: store.vector(&bias).unwrap(),
            shift: store.vector(&shift).unwrap(),
            out,
            rows: rows as i32,
            dim: dim as i32,
            mish: 1,
            eps: 1e-5,
            scale: 0.5,
            ..Default::default()
        };
        on.normalise(&args).unwrap();
        let found = on.fetch(out, rows * dim).unwrap();
        let mut expected = Vec::new();
        for row in x.chunks_exact(dim) {
            let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / dim as f64;
            let variance = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / dim as f64;
            for (c, x) in row.iter().enumerate() {
                let y = (f64::from(*x) - mean) / (variance + 1e-5).sqrt() * f64::from(weight[c]) + f64::from(bias[c]);
                let y = 0.5 * y;
                expected.push(y * y.exp().ln_1p().tanh() + f64::from(shift[c]));
            }
        }
        let error = error(&found, &expected);
        assert!(error < 1e-6, "{rows} rows of {dim}: {error:e}");
    }
}

/// Rows normalised within the product of one of three tiles.
#[test]
fn a_norm_within_a_product_is_that_of_the_definition() {
    for number in [Number::F16, Number::Bf16] {
        let Some(on) = layers(number) else { return };
        for (rows, n, k) in [(1052, 1536, 256), (640, 1024, 256), (83, 256, 512), (5, 8, 64)] {
            let (mut random, mut store) = (Random::new(), Store::new(on.card().clone()));
            let x: Vec<f32> = random.normals(rows * k, 3.0).iter().map(|x| x + 1.0).collect();
            let x = rounded(&x, number);
            let weight = random.normals(n * k, 1.0 / (k as f32).sqrt());
            let (bias, scale, shift) = (random.normals(n, 1.0), random.normals(k, 1.0), random.normals(k, 1.0));
            let w = store.normed_matrix(&weight, Some(&bias), (&scale, &shift, 1e-5), number).unwrap();
            let at = store.table(&x, number).unwrap();
            let (_room, [out]) = poisoned(&on, [4 * rows * n]);
            let args = RowsArgs::new(&w, Input { at, batch: 1, rows, pitch: k });
            on.rows(&w, args.out(out)).unwrap();
            let found = on.fetch(out, rows * n).unwrap();
            let mut expected = Vec::new();
            let scaled: Vec<f32> =
                weight.chunks_exact(k).flat_map(|row| row.iter().zip(&scale).map(|(w, g)| w * g)).collect();
            let scaled = rounded(&scaled, number);
            for row in x.chunks_exact(k) {
                let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / k as f64;
                let variance = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / k as f64;
                let inverse = 1.0 / (variance + 1e-5).sqrt();
                for (o, bias) in bias.iter().enumerate() {
                    let weights = scaled[o * k..][..k].iter().zip(&weight[o * k..][..k]).zip(&shift);
                    let sum: f64 = weights
                        .zip(row)
                        .map(|(((g, w), b), x)| {
                            (f64::from(*x) - mean) * inverse * f64::from(*g) + f64::from(*w) * f64::from(*b)
                        })
                        .sum();
                    expected.push(sum + f64::from(*bias));
                }
            }
            let error = error(&found, &expected);
            assert!(error < 5e-6, "{number:?} ({rows}, {n}, {k}): {error:e}");
        }
    }
}
