//! Attention without a score matrix: keys and values pass by in blocks while a running maximum and sum rescale what
//! has been gathered (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
//! "FlashAttention", 2022).
//!
//! Keys are kept as panels of [`PANEL`] keys, each a `(D, 16)` block, so that one product serves scores and values
//! alike and a score needs no sum across a vector. A tile of up to six queries fills the registers; a band of tiles goes
//! through the keys together, block by block, so that a block comes into the first cache once for all of them. Bands do
//! not depend on each other, so the result is the same for any number of threads.

use std::ops::Range;

use super::element::Element;
use super::math::exp;
use super::simd::{Kernel, MAX_LANES, Simd, dispatch};
use super::team;
use crate::meter::{Kind, counted};

mod store;

pub(crate) use store::{HeadRows, Keys, Shape, Values};

/// Keys to a panel.
pub(crate) const PANEL: usize = 16;
/// Keys whose scores are held at once: a multiple of [`PANEL`]. With 64 channels a block is 32 KiB.
const BLOCK: usize = 128;
/// Queries to a tile.
const TILE: usize = 6;
/// Tiles to a band.
const BAND: usize = 4;
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
        assert!(batch <= self.k.shape().batch && self.keys <= capacity, "attention keys");
        assert!(out.len() == batch * self.queries * heads * dim, "attention output");
        let out = Output(out.as_mut_ptr());
        let bands = self.queries.div_ceil(BAND * TILE);
        let one = |task: usize| {
            let (index, band) = (task / bands, task % bands);
            let first = band * BAND * TILE;
            let queries = first..self.queries.min(first + BAND * TILE);
            dispatch(Band { call: self, batch: index / heads, head: index % heads, queries, out: &out });
        };
        let tasks = batch * heads * bands;
        let work = batch * heads * self.queries * self.keys * dim;
        let kind = Kind { kernel: "attention", precision: E::PRECISION, many_rows: self.queries > 1 };
        let cached = 2 * batch * heads * self.keys * dim * size_of::<E>();
        // Not counted: that a query does not see all keys, and terms for distances.
        counted(kind, 4 * work, cached + 2 * size_of::<f32>() * batch * heads * self.queries * dim, || {
            if work < PARALLEL_WORK {
                (0..tasks).for_each(one);
            } else {
                team::share_out(tasks, one);
            }
        });
    }
}

/// `$body` with the number of rows as a constant `$R`; nothing for none.
macro_rules! by_rows {
    ($rows:expr, $R:ident => $body:expr) => {
        match $rows {
            0 => {}
            1 => {
                const $R: usize = 1;
                $body
            }
            2 => {
                const $R: usize = 2;
                $body
            }
            3 => {
                const $R: usize = 3;
                $body
            }
            4 => {
                const $R: usize = 4;
                $body
            }
            5 => {
                const $R: usize = 5;
                $body
            }
            _ => {
                const $R: usize = TILE;
                $body
            }
        }
    };
}

/// Where bands write: each to its own rows and head.
struct Output(*mut f32);

// SAFETY: no two bands write to the same place, and nobody reads before all are done.
unsafe impl Sync for Output {}

/// Up to [`BAND`] tiles of queries of one head.
struct Band<'a, E> {
    call: &'a Attention<'a, E>,
    batch: usize,
    head: usize,
    queries: Range<usize>,
    out: &'a Output,
}

/// Scores of one block of keys.
type Scores = [[f32; BLOCK]; TILE];

/// Up to six queries on their way through the keys.
struct Tile {
    first: usize,
    rows: usize,
    /// The keys that each query sees.
    sees: [Range<usize>; TILE],
    scores: Scores,
    highest: [f32; TILE],
    sum: [f32; TILE],
    /// What the sums so far are to be multiplied with.
    correction: [f32; TILE],
}

impl<E: Element> Kernel for Band<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let call = self.call;
        let Shape { dim, .. } = call.k.shape();
        let width = call.k.shape().padded_dim();
        let mut tiles: Vec<Tile> = self.queries.clone().step_by(TILE).map(|first| self.tile(first)).collect();
        let mut gathered = vec![0f32; tiles.len() * TILE * width];
        let seen = || tiles.iter().flat_map(|tile| &tile.sees).filter(|range| !range.is_empty());
        let from = seen().map(|range| range.start).min().unwrap_or(0) / PANEL * PANEL;
        let to = seen().map(|range| range.end).max().unwrap_or(0);
        for start in (from..to).step_by(BLOCK) {
            let block = start..to.min(start + BLOCK);
            let mut all = tiles.iter_mut().zip(gathered.chunks_exact_mut(TILE * width));
            let mut here: [Option<(&mut Tile, &mut [f32])>; BAND] = std::array::from_fn(|_| all.next());
            here.iter_mut().for_each(|slot| *slot = slot.take().filter(|(tile, _)| tile.meets(&block)));
            for (tile, _) in here.iter_mut().flatten() {
                self.products(s, tile, &block);
            }
            for (tile, _) in here.iter_mut().flatten() {
                self.finish_scores(s, tile, &block);
                if E::LARGEST.is_some() {
                    let scales = &call.v.scales(self.batch, self.head)[block.start..];
                    by_rows!(tile.rows, R => scale_columns::<S, R>(s, &mut tile.scores, scales, block.len()));
                }
            }
            let values = &call.v.part(self.batch, self.head)[block.start * width..block.end * width];
            for (tile, gathered) in here.iter_mut().flatten() {
                by_rows!(tile.rows, R => gather::<S, E, R>(s, &tile.scores, &tile.correction, values, gathered, width));
            }
        }
        for (tile, gathered) in tiles.iter().zip(gathered.chunks_exact(TILE * width)) {
            for (r, gathered) in gathered.chunks_exact(width).take(tile.rows).enumerate() {
                let sum = tile.sum[r];
                let inverse = if sum > 0.0 || sum.is_nan() { 1.0 / sum } else { 0.0 };
                let row = (self.batch * call.queries + tile.first + r) * call.k.shape().heads + self.head;
                for (d, value) in gathered[..dim].iter().enumerate() {
                    // SAFETY: `run` checked the length of the output, and this row of this head is ours alone.
                    unsafe { self.out.0.add(row * dim + d).write(value * inverse) };
                }
            }
        }
    }
}

impl Tile {
    /// Whether any query sees any key of `block`.
    fn meets(&self, block: &Range<usize>) -> bool {
        self.sees.iter().any(|sees| sees.start.max(block.start) < sees.end.min(block.end))
    }
}

impl<E: Element> Band<'_, E> {
    fn tile(&self, first: usize) -> Tile {
        let rows = TILE.min(self.queries.end - first);
        let sees = |r: usize| {
            let range = if r < rows { (self.call.sees)(first + r) } else { 0..0 };
            range.start.min(self.call.keys)..range.end.min(self.call.keys)
        };
        Tile {
            first,
            rows,
            sees: std::array::from_fn(sees),
            scores: [[0.0; BLOCK]; TILE],
            highest: [f32::NEG_INFINITY; TILE],
            sum: [0.0; TILE],
            correction: [1.0; TILE],
        }
    }

    /// `scores[r][j] = q[r] · key j` of a block that begins at a panel.
    #[inline(always)]
    fn products<S: Simd>(&self, s: S, tile: &mut Tile, block: &Range<usize>) {
        let call = self.call;
        let dim = call.k.shape().dim;
        let panels = block.len().div_ceil(PANEL);
        let k = &call.k.part(self.batch, self.head)[block.start * dim..][..panels * PANEL * dim];
        let mut rows = tile.scores.each_mut().map(|row| &mut row[..]);
        by_rows!(tile.rows, R => {
            let q: [&[f32]; R] = std::array::from_fn(|r| call.q.at(self.batch, tile.first + r, self.head, dim));
            panel_products::<S, E, R>(s, &q, k, dim, &mut rows);
            if E::LARGEST.is_some() {
                let scales = &call.k.scales(self.batch, self.head)[block.start..];
                scale_columns::<S, R>(s, &mut tile.scores, scales, block.len());
            }
        });
    }

    /// Products to weights: what is to be added, the scale, the softmax so far.
    #[inline(always)]
    fn finish_scores<S: Simd>(&self, s: S, tile: &mut Tile, block: &Range<usize>) {
        by_rows!(tile.rows, R => self.add_and_scale::<S, R>(s, tile, block));
        for r in 0..tile.rows {
            self.bias(tile.first + r, block, &mut tile.scores[r]);
            let inside = |at: usize| at.clamp(block.start, block.end) - block.start;
            let seen = inside(tile.sees[r].start)..inside(tile.sees[r].end);
            let (highest, sum) = (&mut tile.highest[r], &mut tile.sum[r]);
            tile.correction[r] = soften(s, &mut tile.scores[r], seen, block.len(), highest, sum);
        }
    }

    #[inline(always)]
    fn add_and_scale<S: Simd, const R: usize>(&self, s: S, tile: &mut Tile, block: &Range<usize>) {
        let call = self.call;
        let dim = call.k.shape().dim;
        let columns = block.len().next_multiple_of(PANEL);
        let Extra::Relative(q, p) = call.extra else {
            let scale = s.splat(call.scale);
            for row in &mut tile.scores[..R] {
                for chunk in row[..columns].chunks_exact_mut(S::LANES) {
                    s.store(chunk, s.mul(s.load(chunk), scale));
                }
            }
            return;
        };
        // Query r needs rows from Tq - 1 - first - r + start of p on; the last query of the tile the earliest.
        let earliest = call.queries - tile.first - R + block.start;
        let aligned = earliest / PANEL * PANEL;
        let count = (earliest - aligned + R - 1 + block.len()).div_ceil(PANEL);
        let q: [&[f32]; R] = std::array::from_fn(|r| q.at(self.batch, tile.first + r, self.head, dim));
        let p = &p.part(0, self.head)[aligned * dim..][..count * PANEL * dim];
        let mut window = [[0f32; WINDOW]; TILE];
        let mut rows = window.each_mut().map(|row| &mut row[..]);
        panel_products::<S, f32, R>(s, &q, p, dim, &mut rows);
        for r in 0..R {
            let shifted = &window[r][earliest - aligned + R - 1 - r..];
            add_and_scale(s, &mut tile.scores[r], shifted, columns, call.scale);
        }
    }

    #[inline(always)]
    fn bias(&self, query: usize, block: &Range<usize>, scores: &mut [f32]) {
        let Extra::Bias(bias) = self.call.extra else { return };
        let (heads, queries, keys) = (self.call.k.shape().heads, self.call.queries, self.call.keys);
        let batch = if bias.len() == heads * queries * keys { 0 } else { self.batch };
        let row = &bias[((batch * heads + self.head) * queries + query) * keys..][..keys];
        scores.iter_mut().zip(&row[block.clone()]).for_each(|(score, bias)| *score += bias);
    }
}

/// Multiplies the first `n` columns with a number each.
#[inline(always)]
fn scale_columns<S: Simd, const R: usize>(s: S, scores: &mut Scores, scales: &[f32], n: usize) {
    let n = n.next_multiple_of(PANEL);
    for row in &mut scores[..R] {
        for (chunk, scales) in row[..n].chunks_exact_mut(S::LANES).zip(scales[..n].chunks_exact(S::LANES)) {
            s.store(chunk, s.mul(s.load(chunk), s.load(scales)));
        }
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
    correction: &[f32; TILE],
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
    correction: &[f32; TILE],
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
