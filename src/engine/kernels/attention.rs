//! Attention without a score matrix: keys and values pass by in blocks while a running maximum and sum rescale what
//! has been gathered (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
//! "FlashAttention", 2022).
//!
//! Keys are kept as panels of [`PANEL`] keys, each a `(D, 16)` block, so that one product serves scores and values
//! alike and a score needs no sum across a vector. A tile of up to six queries goes through all its keys at once; tiles
//! do not depend on each other, so the result is the same for any number of threads.

use std::ops::Range;

use rayon::prelude::*;

use super::element::Element;
use super::math::exp;
use super::simd::{Kernel, MAX_LANES, Simd, dispatch};

mod store;

pub(crate) use store::{HeadRows, Keys, Shape, Values};

/// Keys to a panel.
pub(crate) const PANEL: usize = 16;
/// Keys whose scores are held at once: a multiple of [`PANEL`].
const BLOCK: usize = 256;
/// Queries to a tile.
const TILE: usize = 6;
/// Columns of relative scores for a block: its keys, one more for each other query, and what aligns the first.
const WINDOW: usize = BLOCK + 2 * PANEL;
/// Below this many multiplications one thread is faster.
const PARALLEL_WORK: usize = 1 << 17;

/// What is added to scores.
#[derive(Clone, Copy)]
pub(crate) enum Extra<'a> {
    /// Nothing.
    None,
    /// A term for each pair, added after scaling: `(B or 1, H, Tq, Tk)`.
    Bias(&'a [f32]),
    /// Query `i` and key `j` also score `q[i] · p[Tq - 1 - i + j]`: a second kind of query and keys by distance.
    Relative(HeadRows<'a>, &'a Keys<f32>),
}

/// One call: queries against the first `keys` keys.
#[derive(Clone, Copy)]
pub(crate) struct Attention<'a, E> {
    /// Batch rows that have queries, of those that have keys.
    pub batch: usize,
    pub q: HeadRows<'a>,
    pub queries: usize,
    pub k: &'a Keys<E>,
    pub v: &'a Values<E>,
    pub keys: usize,
    pub scale: f32,
    /// The keys that a query sees.
    pub sees: &'a (dyn Fn(usize) -> Range<usize> + Sync),
    pub extra: Extra<'a>,
}

impl<E: Element> Attention<'_, E> {
    /// `softmax(scores) v`, written to `out (B, Tq, H, D)`. A query that sees nothing gives zeros.
    ///
    /// # Panics
    /// If a view does not fit its data: a defect of the caller.
    pub(crate) fn run(&self, out: &mut [f32]) {
        let Shape { heads, dim, capacity, .. } = self.k.shape();
        let batch = self.batch;
        let tiles = self.queries.div_ceil(TILE);
        assert!(batch <= self.k.shape().batch && self.keys <= capacity, "attention keys");
        assert!(out.len() == batch * self.queries * heads * dim, "attention output");
        let out = Output(out.as_mut_ptr());
        let one = |task: usize| {
            let (index, tile) = (task / tiles, task % tiles);
            let first = tile * TILE;
            let task = Tile {
                call: self,
                batch: index / heads,
                head: index % heads,
                first,
                rows: TILE.min(self.queries - first),
                out: &out,
            };
            dispatch(task);
        };
        let tasks = batch * heads * tiles;
        let work = batch * heads * self.queries * self.keys * dim;
        if work < PARALLEL_WORK {
            (0..tasks).for_each(one);
        } else {
            (0..tasks).into_par_iter().for_each(one);
        }
    }
}

/// Where tiles write: each to its own rows and head.
struct Output(*mut f32);

// SAFETY: no two tiles write to the same place, and nobody reads before all are done.
unsafe impl Sync for Output {}

/// Some queries of one head.
struct Tile<'a, E> {
    call: &'a Attention<'a, E>,
    batch: usize,
    head: usize,
    first: usize,
    rows: usize,
    out: &'a Output,
}

impl<E: Element> Kernel for Tile<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.rows {
            1 => self.attend::<S, 1>(s),
            2 => self.attend::<S, 2>(s),
            3 => self.attend::<S, 3>(s),
            4 => self.attend::<S, 4>(s),
            5 => self.attend::<S, 5>(s),
            _ => self.attend::<S, TILE>(s),
        }
    }
}

/// Scores of one block of keys.
type Scores = [[f32; BLOCK]; TILE];

impl<E: Element> Tile<'_, E> {
    #[inline(always)]
    fn attend<S: Simd, const R: usize>(&self, s: S) {
        let call = self.call;
        let Shape { dim, .. } = call.k.shape();
        let width = call.k.shape().padded_dim();
        let sees: [Range<usize>; R] = std::array::from_fn(|r| {
            let range = (call.sees)(self.first + r);
            range.start.min(call.keys)..range.end.min(call.keys)
        });
        let from = sees.iter().filter(|r| !r.is_empty()).map(|r| r.start).min().unwrap_or(0) / PANEL * PANEL;
        let to = sees.iter().filter(|r| !r.is_empty()).map(|r| r.end).max().unwrap_or(0);
        let mut scores: Scores = [[0.0; BLOCK]; TILE];
        let mut gathered = vec![0f32; R * width];
        let (mut highest, mut sum) = ([f32::NEG_INFINITY; R], [0f32; R]);
        for start in (from..to).step_by(BLOCK) {
            let block = start..to.min(start + BLOCK);
            self.score::<S, R>(s, &block, &mut scores);
            let mut correction = [1f32; R];
            for r in 0..R {
                self.bias(r, &block, &mut scores[r]);
                let seen = sees[r].start.clamp(block.start, block.end) - block.start
                    ..sees[r].end.clamp(block.start, block.end) - block.start;
                correction[r] = soften(s, &mut scores[r], seen, block.len(), &mut highest[r], &mut sum[r]);
            }
            let values = &call.v.part(self.batch, self.head)[block.start * width..block.end * width];
            gather::<S, E, R>(s, &scores, &correction, values, &mut gathered, width);
        }
        for r in 0..R {
            let inverse = if sum[r] > 0.0 || sum[r].is_nan() { 1.0 / sum[r] } else { 0.0 };
            let row = (self.batch * call.queries + self.first + r) * call.k.shape().heads + self.head;
            for (d, value) in gathered[r * width..][..dim].iter().enumerate() {
                // SAFETY: `run` checked the length of the output, and this row of this head is ours alone.
                unsafe { self.out.0.add(row * dim + d).write(value * inverse) };
            }
        }
    }

    /// Scaled scores of a block that begins at a panel.
    #[inline(always)]
    fn score<S: Simd, const R: usize>(&self, s: S, block: &Range<usize>, scores: &mut Scores) {
        let call = self.call;
        let dim = call.k.shape().dim;
        let q: [&[f32]; R] = std::array::from_fn(|r| call.q.at(self.batch, self.first + r, self.head, dim));
        let panels = block.len().div_ceil(PANEL);
        let k = &call.k.part(self.batch, self.head)[block.start * dim..][..panels * PANEL * dim];
        let mut rows = scores.each_mut().map(|row| &mut row[..]);
        panel_products::<S, E, R>(s, &q, k, dim, &mut rows);
        if let Extra::Relative(q, p) = call.extra {
            // Query r needs rows from Tq - 1 - first - r + start of p on; the last query of the tile the earliest.
            let earliest = call.queries - self.first - R + block.start;
            let aligned = earliest / PANEL * PANEL;
            let count = (earliest - aligned + R - 1 + block.len()).div_ceil(PANEL);
            let q: [&[f32]; R] = std::array::from_fn(|r| q.at(self.batch, self.first + r, self.head, dim));
            let p = &p.part(0, self.head)[aligned * dim..][..count * PANEL * dim];
            let mut window = [[0f32; WINDOW]; TILE];
            let mut rows = window.each_mut().map(|row| &mut row[..]);
            panel_products::<S, f32, R>(s, &q, p, dim, &mut rows);
            for r in 0..R {
                let shifted = &window[r][earliest - aligned + R - 1 - r..];
                add_and_scale(s, &mut scores[r], shifted, panels * PANEL, call.scale);
            }
        } else {
            let scale = s.splat(call.scale);
            for row in &mut scores[..R] {
                for chunk in row[..panels * PANEL].chunks_exact_mut(S::LANES) {
                    s.store(chunk, s.mul(s.load(chunk), scale));
                }
            }
        }
    }

    #[inline(always)]
    fn bias(&self, r: usize, block: &Range<usize>, scores: &mut [f32]) {
        let Extra::Bias(bias) = self.call.extra else { return };
        let (heads, queries, keys) = (self.call.k.shape().heads, self.call.queries, self.call.keys);
        let batch = if bias.len() == heads * queries * keys { 0 } else { self.batch };
        let row = &bias[((batch * heads + self.head) * queries + self.first + r) * keys..][..keys];
        scores.iter_mut().zip(&row[block.clone()]).for_each(|(score, bias)| *score += bias);
    }
}

#[inline(always)]
fn add_and_scale<S: Simd>(s: S, scores: &mut [f32], extra: &[f32], n: usize, scale: f32) {
    let scale = s.splat(scale);
    for (chunk, extra) in scores[..n].chunks_exact_mut(S::LANES).zip(extra[..n].chunks_exact(S::LANES)) {
        s.store(chunk, s.mul(s.add(s.load(chunk), s.load(extra)), scale));
    }
}

/// Turns the scores that are seen to weights and the others to 0; returns what earlier sums are to be multiplied with.
#[inline(always)]
fn soften<S: Simd>(s: S, scores: &mut [f32], seen: Range<usize>, len: usize, highest: &mut f32, sum: &mut f32) -> f32 {
    let end = len.next_multiple_of(MAX_LANES);
    scores[..seen.start].fill(f32::NEG_INFINITY);
    scores[seen.end..end].fill(f32::NEG_INFINITY);
    let mut top = s.splat(*highest);
    for chunk in scores[..end].chunks_exact(S::LANES) {
        top = s.max(top, s.load(chunk));
    }
    let top = s.largest(top);
    if top == f32::NEG_INFINITY {
        scores[..end].fill(0.0);
        return 1.0;
    }
    let (offset, mut total) = (s.splat(top), s.splat(0.0));
    for chunk in scores[..end].chunks_exact_mut(S::LANES) {
        let weight = exp(s, s.sub(s.load(chunk), offset));
        total = s.add(total, weight);
        s.store(chunk, weight);
    }
    let correction = s.lanes(exp(s, s.splat(*highest - top)))[0];
    *sum = *sum * correction + s.sum(total);
    *highest = top;
    correction
}

/// `rows[r][j] = q[r] · key j` for whole panels.
#[inline(always)]
fn panel_products<S: Simd, E: Element, const R: usize>(
    s: S,
    q: &[&[f32]; R],
    panels: &[E],
    dim: usize,
    rows: &mut [&mut [f32]; TILE],
) {
    let total = panels.len() / dim;
    let at = |column: usize| column / PANEL * PANEL * dim + column % PANEL;
    let q = q.map(<[f32]>::as_ptr);
    let mut column = 0;
    // As many columns at once as there are registers for their sums.
    while column < total {
        let wide = if S::LANES == MAX_LANES { 4 } else { 2 };
        if column + wide * S::LANES <= total {
            if S::LANES == MAX_LANES {
                column = columns::<S, E, R, 4>(s, &q, panels, dim, at, column, rows);
            } else {
                column = columns::<S, E, R, 2>(s, &q, panels, dim, at, column, rows);
            }
        } else {
            column = columns::<S, E, R, 1>(s, &q, panels, dim, at, column, rows);
        }
    }
}

#[inline(always)]
fn columns<S: Simd, E: Element, const R: usize, const N: usize>(
    s: S,
    q: &[*const f32; R],
    panels: &[E],
    dim: usize,
    at: impl Fn(usize) -> usize,
    column: usize,
    rows: &mut [&mut [f32]; TILE],
) -> usize {
    let b: [*const E; N] = std::array::from_fn(|n| panels[at(column + n * S::LANES)..].as_ptr());
    let mut sums = [[s.splat(0.0); N]; R];
    // SAFETY: every q has `dim` values, and a panel `dim` rows of `PANEL` keys.
    unsafe { product::<S, E, R, N>(s, q, &b, PANEL, dim, &mut sums) };
    for r in 0..R {
        for n in 0..N {
            s.store(&mut rows[r][column + n * S::LANES..], sums[r][n]);
        }
    }
    column + N * S::LANES
}

/// `gathered[r] = gathered[r] · correction[r] + Σ_j weights[r][j] values[j]`.
#[inline(always)]
fn gather<S: Simd, E: Element, const R: usize>(
    s: S,
    weights: &Scores,
    correction: &[f32; R],
    values: &[E],
    gathered: &mut [f32],
    width: usize,
) {
    let a: [*const f32; R] = std::array::from_fn(|r| weights[r].as_ptr());
    let mut column = 0;
    while column < width {
        let left = width - column;
        column += if S::LANES == MAX_LANES && left >= 4 * S::LANES {
            gather_columns::<S, E, R, 4>(s, &a, correction, values, gathered, width, column)
        } else if left >= 2 * S::LANES {
            gather_columns::<S, E, R, 2>(s, &a, correction, values, gathered, width, column)
        } else {
            gather_columns::<S, E, R, 1>(s, &a, correction, values, gathered, width, column)
        };
    }
}

#[inline(always)]
fn gather_columns<S: Simd, E: Element, const R: usize, const N: usize>(
    s: S,
    a: &[*const f32; R],
    correction: &[f32; R],
    values: &[E],
    gathered: &mut [f32],
    width: usize,
    column: usize,
) -> usize {
    let mut sums = [[s.splat(0.0); N]; R];
    for r in 0..R {
        for n in 0..N {
            let before = s.load(&gathered[r * width + column + n * S::LANES..]);
            sums[r][n] = s.mul(before, s.splat(correction[r]));
        }
    }
    let b: [*const E; N] = std::array::from_fn(|n| values[column + n * S::LANES..].as_ptr());
    // SAFETY: there is a weight for each of the `values.len() / width` rows of values, and a row has `width` values.
    unsafe { product::<S, E, R, N>(s, a, &b, width, values.len() / width, &mut sums) };
    for r in 0..R {
        for n in 0..N {
            s.store(&mut gathered[r * width + column + n * S::LANES..], sums[r][n]);
        }
    }
    N * S::LANES
}

/// `sums[r][n] += Σ_k a[r][k] · b[n][k · b_step ..]`.
///
/// # Safety
/// Every `a` must be valid for `count` values, and every `b` for `count` vectors `b_step` apart.
#[inline(always)]
unsafe fn product<S: Simd, E: Element, const R: usize, const N: usize>(
    s: S,
    a: &[*const f32; R],
    b: &[*const E; N],
    b_step: usize,
    count: usize,
    sums: &mut [[S::V; N]; R],
) {
    let mut acc = *sums;
    for k in 0..count {
        // SAFETY: the caller's promise.
        let row: [S::V; N] = std::array::from_fn(|n| unsafe { E::load(s, b[n].add(k * b_step)) });
        for r in 0..R {
            // SAFETY: the caller's promise.
            let x = s.splat(unsafe { *a[r].add(k) });
            for n in 0..N {
                acc[r][n] = s.fma(x, row[n], acc[r][n]);
            }
        }
    }
    *sums = acc;
}

#[cfg(test)]
mod tests;
