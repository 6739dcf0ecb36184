use half::f16;

use super::*;
use crate::kernels::simd::{Unit, dispatch_on};
use crate::kernels::testing::pseudo;

struct Case {
    shape: Shape,
    queries: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    bias: Vec<f32>,
    q_relative: Vec<f32>,
    p: Vec<f32>,
}

impl Case {
    fn new(batch: usize, queries: usize, keys: usize, heads: usize, dim: usize) -> Self {
        let shape = Shape { batch, heads, dim, capacity: keys };
        let row = heads * dim;
        Self {
            shape,
            queries,
            q: pseudo(batch * queries * row, 1),
            k: pseudo(batch * keys * row, 2),
            v: pseudo(batch * keys * row, 3),
            bias: pseudo(heads * queries * keys, 4),
            q_relative: pseudo(batch * queries * row, 5),
            p: pseudo((queries + keys - 1) * row, 6),
        }
    }

    fn rows<'a>(&self, data: &'a [f32], per_batch: usize) -> HeadRows<'a> {
        let Shape { heads, dim, .. } = self.shape;
        HeadRows { data, batch: per_batch * heads * dim, row: heads * dim, head: dim }
    }

    /// The same with keys and values as they come back from `E`.
    fn held<E: Element>(&self) -> Self {
        let row = |row: &[f32]| {
            let largest = row.iter().fold(0f32, |a, x| a.max(x.abs()));
            let scale = E::LARGEST.map_or(1.0, |top| largest / top);
            let inverse = E::LARGEST.map_or(1.0, |top| if largest > 0.0 { top / largest } else { 0.0 });
            row.iter().map(|x| E::from_f32(x * inverse).to_f32() * scale).collect::<Vec<f32>>()
        };
        let held = |xs: &[f32]| xs.chunks_exact(self.shape.dim).flat_map(row).collect();
        let (q, bias, q_relative, p) = (self.q.clone(), self.bias.clone(), self.q_relative.clone(), self.p.clone());
        Self { q, k: held(&self.k), v: held(&self.v), bias, q_relative, p, ..*self }
    }

    fn on<E: Element>(&self, unit: Unit, kind: usize, sees: &(dyn Fn(usize) -> Range<usize> + Sync)) -> Vec<f32> {
        let Shape { batch, heads, dim, capacity: keys } = self.shape;
        let (mut k, mut v) = (Keys::<E>::new(self.shape), Values::<E>::new(self.shape));
        // In two parts, as a cache is filled.
        let first = keys / 3;
        let later = |data| HeadRows { data, ..self.rows(&self.k, keys) };
        k.write(0, first, self.rows(&self.k, keys));
        k.write(first, keys - first, later(&self.k[first * heads * dim..]));
        v.write(0, first, self.rows(&self.v, keys));
        v.write(first, keys - first, later(&self.v[first * heads * dim..]));
        let rows = self.queries + keys - 1;
        let mut p = Keys::new(Shape { batch: 1, capacity: rows, ..self.shape });
        p.write(0, rows, self.rows(&self.p, rows));
        let extra = match kind {
            0 => Extra::None,
            1 => Extra::Bias(&self.bias),
            _ => Extra::Relative(self.rows(&self.q_relative, self.queries), &p),
        };
        let (q, queries) = (self.rows(&self.q, self.queries), self.queries);
        let call = Attention { batch, q, queries, k: &k, v: &v, keys, scale: 0.3, sees, extra };
        let mut out = vec![f32::NAN; batch * queries * heads * dim];
        let output = Output(out.as_mut_ptr());
        for b in 0..batch {
            for head in 0..heads {
                for first in (0..queries).step_by(BAND * TILE) {
                    let queries = first..queries.min(first + BAND * TILE);
                    dispatch_on(unit, Band { call: &call, batch: b, head, queries, out: &output });
                }
            }
        }
        let mut whole = vec![f32::NAN; out.len()];
        call.run(&mut whole);
        if unit == Unit::available().next().unwrap_or(Unit::Plain) {
            let bits = |xs: &[f32]| xs.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
            assert_eq!(bits(&out), bits(&whole));
        }
        out
    }

    fn expected(&self, kind: usize, sees: &dyn Fn(usize) -> Range<usize>) -> Vec<f64> {
        let Shape { batch, heads, dim, capacity: keys } = self.shape;
        let mut out = Vec::new();
        for (b, i, h) in
            (0..batch * self.queries * heads).map(|n| (n / heads / self.queries, n / heads % self.queries, n % heads))
        {
            let dot = |q: &[f32], q_row: usize, k: &[f32], k_row: usize| -> f64 {
                let at = |row: usize, d: usize| (row * heads + h) * dim + d;
                (0..dim).map(|d| f64::from(q[at(q_row, d)]) * f64::from(k[at(k_row, d)])).sum()
            };
            let query = b * self.queries + i;
            let weights: Vec<f64> = sees(i)
                .map(|j| {
                    let score = dot(&self.q, query, &self.k, b * keys + j);
                    let relative = dot(&self.q_relative, query, &self.p, self.queries - 1 - i + j);
                    let bias = f64::from(self.bias[(h * self.queries + i) * keys + j]);
                    match kind {
                        0 => 0.3 * score,
                        1 => 0.3 * score + bias,
                        _ => 0.3 * (score + relative),
                    }
                    .exp()
                })
                .collect();
            let sum: f64 = weights.iter().sum();
            for d in 0..dim {
                let value = |j: usize| f64::from(self.v[((b * keys + j) * heads + h) * dim + d]);
                let total: f64 = weights.iter().zip(sees(i)).map(|(w, j)| w * value(j)).sum();
                out.push(if sum > 0.0 { total / sum } else { 0.0 });
            }
        }
        out
    }
}

type Sees = Box<dyn Fn(usize) -> Range<usize> + Sync>;

#[test]
fn equals_the_definition_for_odd_sizes_on_every_unit() {
    for (batch, queries, keys, heads, dim) in [
        (1, 1, 1, 1, 1),
        (2, 1, 37, 3, 8),
        (1, 7, 7, 2, 20),
        (2, 13, 530, 2, 64),
        (1, 31, 270, 1, 48),
        (1, 6, 64, 2, 80),
    ] {
        let case = Case::new(batch, queries, keys, heads, dim);
        let masks: [(&str, Sees); 3] = [
            ("full", Box::new(move |_| 0..keys)),
            ("causal", Box::new(move |i| 0..keys - queries.min(keys) + i.min(keys - 1) + 1)),
            ("ranges", Box::new(move |i| (i * 19 % keys)..(i * 19 % keys + i * 41).min(keys))),
        ];
        for kind in 0..3 {
            for (mask, sees) in &masks {
                let expected = case.expected(kind, &|i| {
                    let range = sees(i);
                    range.start.min(keys)..range.end.min(keys)
                });
                for unit in Unit::available() {
                    for (found, expected) in case.on::<f32>(unit, kind, sees).iter().zip(&expected) {
                        assert!(
                            (f64::from(*found) - expected).abs() < 2e-6,
                            "{unit:?} {mask} kind {kind} {:?} {queries}: {found} {expected}",
                            case.shape
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_key_comes_back_as_it_went_in() {
    let case = Case::new(2, 1, 19, 3, 5);
    let mut keys = Keys::<f32>::new(case.shape);
    keys.write(0, 19, case.rows(&case.k, 19));
    let found: Vec<f32> = keys.key(1, 17, 2).collect();
    assert_eq!(found, case.k[((19 + 17) * 3 + 2) * 5..][..5]);
}

fn smaller_elements_hold<E: Element>() {
    for (batch, queries, keys, heads, dim) in
        [(1, 1, 1, 1, 1), (2, 1, 37, 3, 8), (2, 13, 530, 2, 64), (1, 5, 131, 2, 20)]
    {
        let mut case = Case::new(batch, queries, keys, heads, dim);
        // Rows of zeros and of very different sizes.
        for (i, row) in case.k.chunks_exact_mut(dim).enumerate() {
            row.iter_mut().for_each(|x| *x *= [1.0, 0.0, 1e-3, 4.0][i % 4]);
        }
        case.v.iter_mut().enumerate().for_each(|(i, x)| *x *= if i / dim % 5 == 0 { 100.0 } else { 1.0 });
        let held = case.held::<E>();
        for (kind, causal) in [(0, false), (0, true), (1, true), (2, false)] {
            let sees = move |i: usize| 0..if causal { (keys - queries.min(keys) + i + 1).min(keys) } else { keys };
            let expected = held.expected(kind, &sees);
            for unit in Unit::available() {
                for (found, expected) in case.on::<E>(unit, kind, &sees).iter().zip(&expected) {
                    let error = (f64::from(*found) - expected).abs();
                    assert!(error < 1e-4, "{unit:?} kind {kind} {:?}: {found} {expected}", case.shape);
                }
            }
        }
    }
}

#[test]
fn smaller_elements_attend_to_what_they_hold() {
    smaller_elements_hold::<f16>();
    smaller_elements_hold::<i8>();
}

fn poison_stays_in_its_head<E: Element>() {
    for bad in [f32::NAN, f32::INFINITY] {
        for in_keys in [true, false] {
            let mut case = Case::new(1, 3, 21, 2, 16);
            // Key or value 7 of head 0.
            let spoilt = if in_keys { &mut case.k } else { &mut case.v };
            spoilt[7 * 2 * 16 + 3] = bad;
            for unit in Unit::available() {
                let out = case.on::<E>(unit, 0, &|_| 0..21);
                for (i, head) in out.chunks_exact(16).enumerate() {
                    let finite = head.iter().all(|x| x.is_finite());
                    assert_eq!(
                        finite,
                        i % 2 == 1 || (bad.is_infinite() && in_keys && finite),
                        "{unit:?} {bad} {in_keys}"
                    );
                }
            }
        }
    }
}

#[test]
fn what_is_not_a_number_stays_in_its_head() {
    poison_stays_in_its_head::<f32>();
    poison_stays_in_its_head::<f16>();
    poison_stays_in_its_head::<i8>();
}
