//! Convolutions with half the multiplications: Toom–Cook, also called Winograd's minimal filtering, as F(4, 4) (Winograd,
//! "Arithmetic Complexity of Computations", 1980; Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks",
//! 2016).
//!
//! Four outputs of four taps are a product of polynomials, known by its values at seven points: seven multiplications in
//! place of sixteen. A longer kernel is cut into groups of four taps, whose products at a point add up, so that each point
//! is one matrix product over overlapping rows of tiles. With the points 0, ±1, ±2, ½ and infinity rounding errors are twice
//! those of the plain sum.
//!
//! With a dilation `d` the rows that belong together stand `d` apart: `d` phases, each a convolution of its own.

use std::cell::Cell;
use std::ops::Range;

use super::matrix::{Matrix, PANEL};
use super::memory::Lines;
use super::product::{Activation, Finish, Rows, product_part};
use super::simd::{Kernel, Simd, Unit, dispatch_on};
use super::team::share_out;
use crate::meter::{Kind, counted};
use crate::protocol::Precision;

/// Outputs of a tile.
const OUTPUTS: usize = 4;
/// Taps of a group.
const TAPS: usize = 4;
/// Points, and rows that a tile reads.
const POINTS: usize = OUTPUTS + TAPS - 1;
/// Taps to values at the points.
const WEIGHTS: [[f64; TAPS]; POINTS] = [
    [-1.0 / 2.0, 0.0, 0.0, 0.0],
    [-1.0 / 3.0, -1.0 / 3.0, -1.0 / 3.0, -1.0 / 3.0],
    [1.0 / 9.0, -1.0 / 9.0, 1.0 / 9.0, -1.0 / 9.0],
    [1.0 / 36.0, 1.0 / 18.0, 1.0 / 9.0, 2.0 / 9.0],
    [-1.0 / 60.0, 1.0 / 30.0, -1.0 / 15.0, 2.0 / 15.0],
    [32.0 / 45.0, 16.0 / 45.0, 8.0 / 45.0, 4.0 / 45.0],
    [0.0, 0.0, 0.0, 1.0],
];
/// Bytes of a task's tiles, before and behind the product: they stay in the second cache.
const TASK_BYTES: usize = 512 << 10;

thread_local! {
    /// Room for a stretch's values and products.
    static SCRATCH: Cell<Option<Lines<f32>>> = const { Cell::new(None) };
}

/// Groups of a kernel of `taps`.
fn groups(taps: usize) -> usize {
    taps.div_ceil(TAPS)
}

/// Outputs and inputs of the matrix that [`transform`] makes.
pub(crate) fn shape(outputs: usize, inputs: usize, taps: usize) -> (usize, usize) {
    (POINTS * outputs, groups(taps) * inputs)
}

/// Whether such a convolution gains by it: outputs fill panels, and there are enough of them to pay for the transforms.
pub(crate) fn suits(outputs: usize, inputs: usize, taps: usize) -> bool {
    outputs.is_multiple_of(PANEL) && outputs >= 2 * PANEL && inputs >= 2 * PANEL && taps >= 3
}

/// A weight `(out, in, k)` as its values at the points, `(7 · out, groups · in)`.
pub(crate) fn transform(weight: &[f32], outputs: usize, inputs: usize, taps: usize) -> Vec<f32> {
    let (n, k) = shape(outputs, inputs, taps);
    let mut rows = vec![0f32; n * k];
    for (at, row) in rows.chunks_exact_mut(k).enumerate() {
        let (point, output) = (at / outputs, at % outputs);
        for (i, to) in row.iter_mut().enumerate() {
            let (group, input) = (i / inputs, i % inputs);
            let taps_here = &weight[(output * inputs + input) * taps..][..taps];
            let group = taps_here[group * TAPS..].iter().take(TAPS);
            *to = group.zip(WEIGHTS[point]).map(|(w, share)| f64::from(*w) * share).sum::<f64>() as f32;
        }
    }
    rows
}

/// A convolution of stride 1 without padding.
#[derive(Clone, Copy)]
pub(crate) struct Convolution<'a> {
    /// `(batch, padded, inputs)`.
    pub x: &'a [f32],
    pub batch: usize,
    pub padded: usize,
    pub inputs: usize,
    pub taps: usize,
    pub dilation: usize,
    /// What [`transform`] made, in f32.
    pub weight: &'a Matrix,
    pub finish: Finish<'a>,
}

impl Convolution<'_> {
    /// Output rows of a sequence.
    fn rows(&self) -> usize {
        self.padded - (self.taps - 1) * self.dilation
    }

    fn outputs(&self) -> usize {
        self.weight.outputs() / POINTS
    }

    /// `(batch, rows, outputs)`.
    ///
    /// # Panics
    /// If lengths disagree: a defect of the caller.
    pub(crate) fn run(&self) -> Vec<f32> {
        self.run_on(Unit::best())
    }

    fn run_on(&self, unit: Unit) -> Vec<f32> {
        let (rows, outputs, groups) = (self.rows(), self.outputs(), groups(self.taps));
        assert!(self.x.len() == self.batch * self.padded * self.inputs, "rows of a convolution");
        assert!(self.weight.inputs() == groups * self.inputs && outputs.is_multiple_of(PANEL), "its weight");
        assert!(self.finish.residual.is_none_or(|r| r.len() == self.batch * rows * outputs), "its residual");
        assert!(self.finish.bias.is_none_or(|b| b.len() == outputs), "its bias");
        assert!(self.finish.activation == Activation::Identity, "its activation");
        let mut out = vec![0f32; self.batch * rows * outputs];
        let tiles = rows.div_ceil(self.dilation).div_ceil(OUTPUTS);
        let bytes = POINTS * self.dilation * (self.inputs + outputs) * size_of::<f32>();
        let each = (TASK_BYTES / bytes).clamp(1, tiles.max(1));
        let tasks = tiles.div_ceil(each);
        let kind = Kind { kernel: "convolution", precision: Precision::F32, many_rows: true };
        let operations = 2 * self.batch * self.dilation * tiles * self.weight.outputs() * self.weight.inputs();
        let moved = size_of::<f32>() * (self.x.len() + out.len()) + self.weight.bytes();
        let to = Output(out.as_mut_ptr());
        counted(kind, operations, moved, || {
            share_out(self.batch * tasks, |task| {
                let (batch, first) = (task / tasks, task % tasks * each);
                let tiles = first..tiles.min(first + each);
                Stretch { call: self, batch, tiles, out: &to }.run(unit);
            });
        });
        out
    }
}

/// Where stretches write: each to its own rows.
struct Output(*mut f32);

// SAFETY: no two stretches write to the same row, and nobody reads before all are done.
unsafe impl Sync for Output {}

/// The same tiles of all phases of a sequence.
struct Stretch<'a> {
    call: &'a Convolution<'a>,
    batch: usize,
    tiles: Range<usize>,
    out: &'a Output,
}

impl Stretch<'_> {
    fn run(&self, unit: Unit) {
        let Convolution { inputs, dilation, taps, weight, .. } = *self.call;
        let (outputs, tiles) = (self.call.outputs(), self.tiles.len());
        // A phase's tiles and those that later groups of its last one read.
        let read = tiles + groups(taps) - 1;
        let (first, second) = (POINTS * dilation * read * inputs, POINTS * dilation * tiles * outputs);
        // What the last stretch of this thread left: all of it is written before it is read.
        let mut kept = SCRATCH.take().filter(|lines| lines.len() >= first + second);
        let scratch = kept.get_or_insert_with(|| Lines::zeros(first + second));
        let (values, rest) = scratch.split_at_mut(first);
        let products = &mut rest[..second];
        dispatch_on(unit, Before { stretch: self, read, values });
        for (point, (values, products)) in values
            .chunks_exact(dilation * read * inputs)
            .zip(products.chunks_exact_mut(dilation * tiles * outputs))
            .enumerate()
        {
            let x = Rows {
                data: values,
                batch: dilation,
                batch_step: read * inputs,
                rows: tiles,
                row_step: inputs,
                taps: 1,
                tap_step: 0,
                width: weight.inputs(),
            };
            product_part(unit, x, weight, point * outputs..(point + 1) * outputs, products);
        }
        dispatch_on(unit, Behind { stretch: self, products });
        SCRATCH.set(kept.take());
    }
}

/// Rows to values at the points: `(7, dilation, tiles, inputs)`.
struct Before<'a> {
    stretch: &'a Stretch<'a>,
    read: usize,
    values: &'a mut [f32],
}

impl Kernel for Before<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Convolution { x, padded, inputs, dilation, .. } = *self.stretch.call;
        let nothing = vec![0f32; inputs];
        let plane = dilation * self.read * inputs;
        for phase in 0..dilation {
            for tile in 0..self.read {
                let rows: [&[f32]; POINTS] = std::array::from_fn(|i| {
                    let row = phase + ((self.stretch.tiles.start + tile) * OUTPUTS + i) * dilation;
                    if row < padded { &x[(self.stretch.batch * padded + row) * inputs..][..inputs] } else { &nothing }
                });
                let to = (phase * self.read + tile) * inputs;
                for at in (0..inputs).step_by(S::LANES) {
                    let to = to + at..to + inputs.min(at + S::LANES);
                    let mut values = [s.splat(0.0); POINTS];
                    for (value, row) in values.iter_mut().zip(rows) {
                        *value = s.load_part(&row[at..inputs.min(at + S::LANES)], 0.0);
                    }
                    let values = at_points(s, values);
                    for (point, value) in values.into_iter().enumerate() {
                        s.store_part(&mut self.values[point * plane..][to.clone()], value);
                    }
                }
            }
        }
    }
}

/// Seven rows to what is to be multiplied at each point.
#[inline(always)]
fn at_points<S: Simd>(s: S, x: [S::V; POINTS]) -> [S::V; POINTS] {
    const FIRST: [f32; 6] = [-2.0, 4.0, 2.5, -5.0, -0.5, 1.0];
    [
        weighted(s, [x[0], x[1], x[2], x[3], x[4], x[5]], FIRST),
        weighted(s, [x[1], x[2], x[3], x[4], x[5]], [2.0, -2.0, -4.5, 0.5, 1.0]),
        weighted(s, [x[1], x[2], x[3], x[4], x[5]], [-2.0, 6.0, -3.5, -1.5, 1.0]),
        weighted(s, [x[1], x[2], x[3], x[4], x[5]], [1.0, -1.5, -2.0, 1.5, 1.0]),
        weighted(s, [x[1], x[2], x[4], x[5]], [-1.0, 2.5, -2.5, 1.0]),
        weighted(s, [x[1], x[3], x[5]], [4.0, -5.0, 1.0]),
        weighted(s, [x[1], x[2], x[3], x[4], x[5], x[6]], FIRST),
    ]
}

/// `Σ factors[i] · x[i]`.
#[inline(always)]
fn weighted<S: Simd, const N: usize>(s: S, x: [S::V; N], factors: [f32; N]) -> S::V {
    let mut sum = s.mul(x[0], s.splat(factors[0]));
    for i in 1..N {
        sum = s.fma(x[i], s.splat(factors[i]), sum);
    }
    sum
}

/// Products at the points, `(7, dilation, tiles, outputs)`, to output rows.
struct Behind<'a> {
    stretch: &'a Stretch<'a>,
    products: &'a [f32],
}

impl Kernel for Behind<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let call = self.stretch.call;
        let (outputs, rows, dilation) = (call.outputs(), call.rows(), call.dilation);
        let tiles = self.stretch.tiles.len();
        let plane = dilation * tiles * outputs;
        for phase in 0..dilation {
            for tile in 0..tiles {
                let from = (phase * tiles + tile) * outputs;
                let first = phase + (self.stretch.tiles.start + tile) * OUTPUTS * dilation;
                for at in (0..outputs).step_by(S::LANES) {
                    let mut m = [s.splat(0.0); POINTS];
                    for (point, m) in m.iter_mut().enumerate() {
                        *m = s.load(&self.products[point * plane + from + at..]);
                    }
                    for (i, y) in outputs_of(s, m).into_iter().enumerate() {
                        let row = first + i * dilation;
                        if row >= rows {
                            break;
                        }
                        let to = (self.stretch.batch * rows + row) * outputs + at;
                        let mut y = y;
                        if let Some(bias) = call.finish.bias {
                            y = s.add(y, s.load(&bias[at..]));
                        }
                        if let Some(residual) = call.finish.residual {
                            y = s.add(y, s.load(&residual[to..]));
                        }
                        // SAFETY: the output has `rows` rows for each sequence, of whole vectors, and this one is ours alone.
                        unsafe { s.store_ptr(self.stretch.out.0.add(to), y) };
                    }
                }
            }
        }
    }
}

/// Four outputs of what was multiplied at each point.
#[inline(always)]
fn outputs_of<S: Simd>(s: S, m: [S::V; POINTS]) -> [S::V; OUTPUTS] {
    let (even1, odd1) = (s.add(m[1], m[2]), s.sub(m[1], m[2]));
    let (even2, odd2) = (s.add(m[3], m[4]), s.sub(m[3], m[4]));
    let last = s.fma(odd2, s.splat(8.0), s.fma(m[5], s.splat(0.125), s.add(odd1, m[6])));
    [
        s.add(s.add(s.add(m[0], even1), even2), m[5]),
        s.fma(odd2, s.splat(2.0), s.fma(m[5], s.splat(0.5), odd1)),
        s.fma(even2, s.splat(4.0), s.fma(m[5], s.splat(0.25), even1)),
        last,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::pseudo;

    #[test]
    fn it_is_the_plain_sum_on_every_unit() {
        for (batch, padded, inputs, outputs, taps, dilation) in [
            (1, 3, 32, 32, 3, 1),
            (2, 57, 40, 48, 7, 1),
            (1, 211, 33, 32, 11, 5),
            (1, 9, 64, 64, 3, 3),
            (2, 1200, 64, 64, 4, 3),
            (1, 31, 70, 256, 11, 3),
        ] {
            let (x, weight) = (pseudo(batch * padded * inputs, 1), pseudo(outputs * inputs * taps, 2));
            let rows = padded - (taps - 1) * dilation;
            let (bias, residual) = (pseudo(outputs, 3), pseudo(batch * rows * outputs, 4));
            let (n, k) = shape(outputs, inputs, taps);
            let matrix = Matrix::pack(&transform(&weight, outputs, inputs, taps), n, k, Precision::F32);
            for finish in
                [Finish::default(), Finish { bias: Some(&bias), residual: Some(&residual), ..Finish::default() }]
            {
                let call = Convolution { x: &x, batch, padded, inputs, taps, dilation, weight: &matrix, finish };
                let expected = |i: usize| {
                    let (b, t, o) = (i / outputs / rows, i / outputs % rows, i % outputs);
                    let mut sum = 0.0;
                    let pairs = (0..taps).flat_map(|j| (0..inputs).map(move |c| (j, c)));
                    for (x, w) in pairs.map(|(j, c)| {
                        (x[(b * padded + t + j * dilation) * inputs + c], weight[(o * inputs + c) * taps + j])
                    }) {
                        sum += f64::from(x) * f64::from(w);
                    }
                    let extra = finish.bias.map_or(0.0, |b| b[o]) + finish.residual.map_or(0.0, |r| r[i]);
                    sum + f64::from(extra)
                };
                for unit in Unit::available() {
                    let found = call.run_on(unit);
                    assert_eq!(found.len(), batch * rows * outputs);
                    let scale = ((inputs * taps) as f64).sqrt();
                    // Every output of small ones, some of large ones.
                    for i in (0..found.len()).step_by(1 + found.len() / 5000) {
                        let error = (f64::from(found[i]) - expected(i)).abs() / scale;
                        assert!(
                            error < 3e-6,
                            "{unit:?} {batch} {padded} {inputs} {outputs} {taps} {dilation}: {error}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_a_number_stays_near_where_it_was() {
        let (padded, c, taps) = (100, 32, 7);
        let mut x = pseudo(padded * c, 1);
        x[50 * c + 3] = f32::NAN;
        let (n, k) = shape(c, c, taps);
        let weight = Matrix::pack(&transform(&pseudo(c * c * taps, 2), c, c, taps), n, k, Precision::F32);
        let finish = Finish::default();
        let call = Convolution { x: &x, batch: 1, padded, inputs: c, taps, dilation: 1, weight: &weight, finish };
        for (row, out) in call.run().chunks_exact(c).enumerate() {
            let reached = (44..=50).contains(&row);
            assert!(!reached || out.iter().all(|x| x.is_nan()), "row {row}");
            // Tiles that read the row, those of one more group and three rows on either side.
            assert!((36..=54).contains(&row) || out.iter().all(|x| x.is_finite()), "row {row}");
        }
    }
}
