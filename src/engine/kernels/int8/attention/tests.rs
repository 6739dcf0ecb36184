use std::sync::Arc;

use super::*;
use crate::kernels::testing::pseudo;

struct Case {
    shape: Shape,
    queries: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

const SCALE: f32 = 0.3;

impl Case {
    fn new((batch, heads, dim): (usize, usize, usize), queries: usize, keys: usize) -> Self {
        let row = batch * heads * dim;
        let mut v = pseudo(keys * row, 3);
        // Channels of very different size, as values have.
        v.iter_mut().enumerate().for_each(|(i, x)| *x *= 10f32.powi((i % dim % 5) as i32 - 2));
        let (q, k) = (pseudo(queries * row, 1), pseudo(keys * row, 2));
        Self { shape: Shape { batch, heads, dim, capacity: keys }, queries, q, k, v }
    }

    fn rows<'a>(&self, data: &'a [f32], rows: usize) -> HeadRows<'a> {
        let Shape { heads, dim, .. } = self.shape;
        HeadRows { data, batch: rows * heads * dim, row: heads * dim, head: dim }
    }

    fn run(&self, unit: Unit, dots: DotUnit, sees: &(dyn Fn(usize) -> Range<usize> + Sync)) -> Vec<f32> {
        let Shape { batch, heads, dim, capacity } = self.shape;
        let mut out = vec![-9.0; batch * self.queries * heads * dim];
        let (q, k, v) = (self.rows(&self.q, self.queries), self.rows(&self.k, capacity), self.rows(&self.v, capacity));
        let all = Arc::new(Packed::new_on(unit, k, v, self.shape));
        // Cut anywhere, it is the same.
        let cut = capacity / 3;
        let pieces = [Piece { rows: all.clone(), range: 0..cut }, Piece { rows: all, range: cut..capacity }];
        Attention { q, queries: self.queries, pieces: &pieces, scale: SCALE, sees }.run_on(unit, dots, &mut out);
        out
    }

    /// The same as it is written down, in f64.
    fn exact(&self, sees: &dyn Fn(usize) -> Range<usize>) -> Vec<f32> {
        let Shape { batch, heads, dim, capacity } = self.shape;
        let (q, k, v) = (self.rows(&self.q, self.queries), self.rows(&self.k, capacity), self.rows(&self.v, capacity));
        let mut out = Vec::new();
        for b in 0..batch {
            for i in 0..self.queries {
                for h in 0..heads {
                    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
                    let keys: Vec<usize> = sees(i).collect();
                    let score = |j: &usize| dot(q.at(b, i, h, dim), k.at(b, *j, h, dim)) * f64::from(SCALE);
                    let weights: Vec<f64> = keys.iter().map(|j| score(j).exp()).collect();
                    let sum: f64 = weights.iter().sum();
                    for d in 0..dim {
                        let value = |(j, w): (&usize, &f64)| w * f64::from(v.at(b, *j, h, dim)[d]);
                        let total: f64 = keys.iter().zip(&weights).map(value).sum();
                        out.push(if sum > 0.0 { (total / sum) as f32 } else { 0.0 });
                    }
                }
            }
        }
        out
    }
}

/// |a - b| / |b| for each place of a channel.
fn worst_channel(found: &[f32], exact: &[f32], dim: usize) -> f32 {
    let of = |d: usize| {
        let each = found.iter().zip(exact).skip(d).step_by(dim);
        let (difference, norm) = each.fold((0f32, 0f32), |(a, b), (x, y)| (a + (x - y).powi(2), b + y.powi(2)));
        (difference / norm.max(1e-30)).sqrt()
    };
    (0..dim).map(of).fold(0.0, f32::max)
}

#[test]
fn it_is_attention_within_what_bytes_can_hold_on_every_unit() {
    for (sizes, queries, keys) in
        [((1, 1, 64), 1, 1), ((2, 3, 64), 50, 300), ((1, 2, 64), 17, 128), ((1, 1, 20), 33, 129), ((1, 2, 6), 5, 70)]
    {
        let case = Case::new(sizes, queries, keys);
        let some = |i: usize| i % 40..(i + 150).min(keys).max(i % 40);
        for sees in [&(|_| 0..keys) as &(dyn Fn(usize) -> Range<usize> + Sync), &some] {
            let exact = case.exact(sees);
            let mut all = Vec::new();
            for (unit, dots) in Unit::available().flat_map(|unit| DotUnit::available().map(move |dots| (unit, dots))) {
                let found = case.run(unit, dots, sees);
                let error = worst_channel(&found, &exact, sizes.2);
                assert!(error < 0.03, "{unit:?} {dots:?} {sizes:?} {queries} {keys}: {error}");
                all.push((unit, found));
            }
            for pair in all.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
                assert_eq!(pair[0].1, pair[1].1, "sums of bytes are exact");
            }
        }
    }
}

#[test]
fn what_is_not_finite_poisons_those_who_see_it_alone() {
    let keys = 200;
    let sees = |i: usize| if i == 3 { 0..0 } else { i..keys - i };
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for place in 0..3 {
            let mut case = Case::new((1, 1, 64), 20, keys);
            let before = case.run(Unit::best(), DotUnit::best(), &sees);
            match place {
                0 => case.q[5 * 64 + 63] = bad,
                1 => case.k[4 * 64] = bad,
                _ => case.v[4 * 64 + 7] = bad,
            }
            let after = case.run(Unit::best(), DotUnit::best(), &sees);
            for (i, (before, after)) in before.chunks_exact(64).zip(after.chunks_exact(64)).enumerate() {
                let hit = if place == 0 { i == 5 } else { sees(i).contains(&4) };
                assert_eq!(after.iter().all(|x| x.is_nan()), hit, "{bad} {place} {i}");
                assert!(hit || worst_channel(after, before, 1) < 0.05, "{bad} {place} {i}");
            }
            assert!(after[3 * 64..4 * 64].iter().all(|x| *x == 0.0), "who sees nothing");
        }
    }
}

#[test]
fn extreme_scores_neither_overflow_nor_vanish() {
    for factor in [0.0, 1e-30, 300.0, 1e15] {
        let mut case = Case::new((1, 1, 64), 16, 260);
        case.q.iter_mut().for_each(|x| *x *= factor);
        let found = case.run(Unit::best(), DotUnit::best(), &|_| 0..260);
        let largest = case.v.iter().fold(0f32, |a, x| a.max(x.abs()));
        assert!(found.iter().all(|x| x.abs() <= largest * 1.01), "{factor}");
        if factor < 1.0 {
            // All keys weigh the same.
            let near = found.iter().zip(case.exact(&|_| 0..260)).all(|(a, b)| (a - b).abs() < 0.002 * largest);
            assert!(near, "{factor}");
        }
    }
}
