//! Attention in 8-bit integers: both products of [`super::super::attention`] as exact sums of bytes.
//!
//! Queries and keys are quantised each by its own largest value, the values of a block of keys channel by channel
//! (`packed.rs`). Scores become weights against the largest of their block of keys, so that they use all of a byte whatever other blocks hold (Zhang et al.,
//! "SageAttention", 2024, keeps them at 16 bits for want of that), and a query's weights are summed as they were rounded.
//! Blocks are gathered in f32 with the online softmax. A tile of queries does not depend on others.

use std::ops::Range;

use rayon::prelude::*;

use super::super::attention::{HeadRows, Shape};
use super::super::math::exp2;
use super::super::matrix::PANEL;
use super::super::product::COLUMNS;
use super::super::simd::{Kernel, MAX_LANES, Simd, Unit, dispatch_on};
use super::{Dot, DotUnit, Dots, OFFSET};
use crate::meter::{Kind, counted};
use crate::protocol::Precision;

/// Queries of a tile: one of AMX, a vector of numbers for each.
const TILE: usize = MAX_LANES;
/// Keys whose scores are held at once.
const BLOCK: usize = 2 * COLUMNS;
/// Queries of a task.
const BAND: usize = 4 * TILE;
/// With fewer tasks than so many to a thread, each head is one.
const TASKS: usize = 4;
/// The largest weight is 255; this is the power of two that it is.
const FULL: f32 = 7.994_353_3;
/// Powers of two below which a weight is nothing.
const NOTHING: f32 = -20.0;
/// Channels of a head, at most: one group of panels.
pub(crate) const MAX_DIM: usize = COLUMNS;

mod packed;

pub(crate) use packed::{Packed, Piece};
use packed::{depth, quantise};

/// One call: all queries against the keys of all pieces, which are counted through.
#[derive(Clone, Copy)]
pub(crate) struct Attention<'a> {
    pub q: HeadRows<'a>,
    pub queries: usize,
    /// Of the same batch rows, heads and channels.
    pub pieces: &'a [Piece],
    pub scale: f32,
    /// The keys that a query sees.
    pub sees: &'a (dyn Fn(usize) -> Range<usize> + Sync),
}

impl Attention<'_> {
    /// `softmax(q kᵀ · scale) v`, written to `out (B, Tq, H, D)`. A query that sees nothing gives zeros, one that sees
    /// something that is not a finite number, NaN.
    ///
    /// # Panics
    /// If a view does not fit its data: a defect of the caller.
    pub(crate) fn run(&self, out: &mut [f32]) {
        self.run_on(Unit::best(), DotUnit::best(), out);
    }

    fn run_on(&self, unit: Unit, dots: DotUnit, out: &mut [f32]) {
        let Some(Shape { batch, heads, dim, .. }) = self.pieces.first().map(|piece| piece.rows.shape) else {
            return out.fill(0.0);
        };
        let same = |piece: &Piece| {
            let shape = piece.rows.shape;
            (shape.batch, shape.heads, shape.dim) == (batch, heads, dim) && piece.range.end <= shape.capacity
        };
        assert!(dim <= MAX_DIM && self.pieces.iter().all(same), "attention keys");
        assert!(out.len() == batch * self.queries * heads * dim, "attention output");
        let keys: usize = self.pieces.iter().map(|piece| piece.range.len()).sum();
        let kind = Kind { kernel: "attention", precision: Precision::Int8, many_rows: self.queries > 1 };
        let bytes = batch * heads * dim * (2 * keys + 2 * size_of::<f32>() * self.queries);
        counted(kind, 4 * batch * heads * self.queries * keys * dim, bytes, || {
            let bands = self.queries.div_ceil(BAND);
            let together = if batch * bands >= TASKS * rayon::current_num_threads() { heads } else { 1 };
            let groups = heads / together;
            let out = Output(out.as_mut_ptr());
            (0..batch * bands * groups).into_par_iter().for_each(|task| {
                let (place, group) = (task / groups, task % groups);
                let first = place % bands * BAND;
                let queries = first..self.queries.min(first + BAND);
                let heads = group * together..(group + 1) * together;
                dispatch_on(unit, Band { call: self, batch: place / bands, heads, queries, dots, out: &out });
            });
        });
    }
}

/// Where bands write: each to its own rows and heads.
struct Output(*mut f32);

// SAFETY: no two bands write to the same place, and nobody reads before all are done.
unsafe impl Sync for Output {}

/// Some tiles of queries of some heads.
struct Band<'a> {
    call: &'a Attention<'a>,
    batch: usize,
    heads: Range<usize>,
    queries: Range<usize>,
    dots: DotUnit,
    out: &'a Output,
}

impl Kernel for Band<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut dots = self.dots.begin();
        for head in self.heads.clone() {
            for first in self.queries.clone().step_by(TILE) {
                self.tile(s, &mut dots, head, first..self.queries.end.min(first + TILE));
            }
        }
    }
}

/// What begins at a cache line.
#[repr(align(64))]
struct Aligned<T>(T);

/// A number for each query of a tile.
type PerQuery = [f32; TILE];

/// A tile of queries on its way through the keys.
struct Tile {
    q: [u8; TILE * MAX_DIM],
    /// Of the queries, and of what becomes of products.
    scales: PerQuery,
    sees: [Range<usize>; TILE],
    scores: [[f32; BLOCK]; TILE],
    weights: [u8; TILE * BLOCK],
    gathered: [[f32; MAX_DIM]; TILE],
    highest: PerQuery,
    sums: PerQuery,
}

impl Band<'_> {
    #[inline(always)]
    fn tile<S: Simd>(&self, s: S, dots: &mut Dots, head: usize, queries: Range<usize>) {
        let Shape { dim, heads, .. } = self.call.pieces[0].rows.shape;
        let mut aligned = Aligned(Tile {
            // Rows behind the last query are computed and not written.
            q: [OFFSET as u8; TILE * MAX_DIM],
            scales: [0.0; TILE],
            sees: std::array::from_fn(|_| 0..0),
            scores: [[0.0; BLOCK]; TILE],
            weights: [0; TILE * BLOCK],
            gathered: [[0.0; MAX_DIM]; TILE],
            highest: [f32::NEG_INFINITY; TILE],
            sums: [0.0; TILE],
        });
        let tile = &mut aligned.0;
        for (r, query) in queries.clone().enumerate() {
            let row = self.call.q.at(self.batch, query, head, dim);
            let scale = quantise(s, row, &mut tile.q[r * depth(dim)..][..dim]);
            // Scores are powers of two.
            tile.scales[r] = scale * self.call.scale * std::f32::consts::LOG2_E;
            tile.sees[r] = (self.call.sees)(query);
        }
        let seen = tile.sees.iter().filter(|range| !range.is_empty());
        let (from, to) = seen.fold((usize::MAX, 0), |(from, to), range| (from.min(range.start), to.max(range.end)));
        let mut poisoned = [false; TILE];
        let mut before = 0;
        for Piece { rows, range } in self.call.pieces {
            // Keys of this piece that anybody sees, counted as they are packed.
            let first = range.start + from.clamp(before, before + range.len()) - before;
            let last = range.start + to.clamp(before, before + range.len()) - before;
            for block in first / BLOCK..last.div_ceil(BLOCK) {
                let part = rows.part(self.batch, block, head);
                self.block(s, dots, tile, (rows, part), (block * BLOCK, range, before));
            }
            for [_, _, key] in rows.poisoned.iter().filter(|at| at[..2] == [self.batch, head] && range.contains(&at[2]))
            {
                let key = before + key - range.start;
                poisoned.iter_mut().zip(&tile.sees).for_each(|(bad, sees)| *bad |= sees.contains(&key));
            }
            before += range.len();
        }
        for (r, query) in queries.enumerate() {
            let bad = poisoned[r] || tile.scales[r].is_nan() && !tile.sees[r].is_empty();
            let sum = if bad { f32::NAN } else { tile.sums[r] };
            let inverse = s.splat(if sum == 0.0 { 0.0 } else { 1.0 / sum });
            let at = ((self.batch * self.call.queries + query) * heads + head) * dim;
            // SAFETY: `run_on` checked the length of the output, and this row of this head is ours alone.
            let out = unsafe { std::slice::from_raw_parts_mut(self.out.0.add(at), dim) };
            for (out, value) in out.chunks_mut(S::LANES).zip(tile.gathered[r].chunks_exact(S::LANES)) {
                s.store_part(out, s.mul(s.load(value), inverse));
            }
        }
    }

    /// The keys of a block, of which those of `range` count, the first of them as number `before`.
    #[inline(always)]
    fn block<S: Simd>(
        &self,
        s: S,
        dots: &mut Dots,
        tile: &mut Tile,
        (rows, part): (&Packed, usize),
        (start, range, before): (usize, &Range<usize>, usize),
    ) {
        let (depth, width) = (depth(rows.shape.dim), rows.shape.dim.next_multiple_of(PANEL));
        for half in (0..BLOCK).step_by(COLUMNS) {
            let keys = &rows.keys[(part * BLOCK + half) * depth..][..COLUMNS * depth];
            let found = dots.run(Dot { a: &tile.q[..TILE * depth], w: keys, rows: TILE, depth });
            let at = part * BLOCK + half..part * BLOCK + half + COLUMNS;
            let (scales, offsets) = (&rows.scales[at.clone()], &rows.offsets[at]);
            for (scores, found) in tile.scores.iter_mut().zip(found) {
                scaled(s, found, scales, offsets, &mut scores[half..][..COLUMNS]);
            }
        }
        let (mut tops, mut totals) = ([f32::NEG_INFINITY; TILE], [0f32; TILE]);
        for (r, (scores, weights)) in tile.scores.iter_mut().zip(tile.weights.chunks_exact_mut(BLOCK)).enumerate() {
            // From the count of all keys to the place in the block.
            let inside = |key: usize| (key.max(before) - before + range.start).clamp(start, start + BLOCK) - start;
            let seen = inside(tile.sees[r].start)..inside(tile.sees[r].end.min(before + range.len()));
            (tops[r], totals[r]) = soften(s, scores, seen, tile.scales[r], weights);
        }
        let values = &rows.values[part * BLOCK * width..][..BLOCK * width];
        let channels = &rows.channels[part * width..][..width];
        let found = dots.run(Dot { a: &tile.weights, w: values, rows: TILE, depth: BLOCK });
        let (earlier, now) = shares(s, &mut tile.highest, &tops);
        for r in 0..TILE {
            tile.sums[r] = tile.sums[r] * earlier[r] + totals[r] * now[r];
            let (earlier, now) = (s.splat(earlier[r]), s.splat(now[r]));
            let gathered = tile.gathered[r][..width].chunks_exact_mut(S::LANES);
            for ((gathered, found), scale) in
                gathered.zip(found[r].chunks_exact(S::LANES)).zip(channels.chunks_exact(S::LANES))
            {
                let so_far = s.mul(s.load(gathered), earlier);
                s.store(gathered, s.fma(s.mul(s.load_whole(found), s.load(scale)), now, so_far));
            }
        }
    }
}

/// Dot products to scores, but for the scale of the query.
#[inline(always)]
fn scaled<S: Simd>(s: S, found: &[i32; COLUMNS], scales: &[f32], offsets: &[f32], scores: &mut [f32]) {
    for at in (0..COLUMNS).step_by(S::LANES) {
        let score = s.fma(s.load_whole(&found[at..]), s.load(&scales[at..]), s.load(&offsets[at..]));
        s.store(&mut scores[at..], score);
    }
}

/// The scores that are seen to weights of 0 to 255, the others to 0; gives the largest score, a power of two, and the
/// sum of the weights.
#[inline(always)]
fn soften<S: Simd>(s: S, scores: &mut [f32; BLOCK], seen: Range<usize>, scale: f32, weights: &mut [u8]) -> (f32, f32) {
    if seen.start >= seen.end {
        weights.fill(0);
        return (f32::NEG_INFINITY, 0.0);
    }
    scores[..seen.start].fill(f32::NEG_INFINITY);
    scores[seen.end..].fill(f32::NEG_INFINITY);
    let mut top = s.splat(f32::NEG_INFINITY);
    for score in scores.chunks_exact(S::LANES) {
        top = s.max(top, s.load(score));
    }
    let top = s.largest(top) * scale;
    if !top.is_finite() {
        weights.fill(0);
        return (f32::NEG_INFINITY, 0.0);
    }
    let (scale, below) = (s.splat(scale), s.splat(FULL - top));
    let mut total = s.splat(0.0);
    for (score, weight) in scores.chunks_exact(S::LANES).zip(weights.chunks_exact_mut(S::LANES)) {
        let power = s.max(s.fma(s.load(score), scale, below), s.splat(NOTHING));
        let whole = s.round(exp2(s, power));
        total = s.add(total, whole);
        s.store_bytes(weight, whole);
    }
    (top, s.sum(total))
}

/// What everything before a block and the block itself are to be multiplied with; `highest` becomes that of both.
#[inline(always)]
fn shares<S: Simd>(s: S, highest: &mut PerQuery, tops: &PerQuery) -> (PerQuery, PerQuery) {
    const LOWEST: f32 = -120.0;
    let (mut before, mut now) = ([0f32; TILE], [0f32; TILE]);
    // Where nothing has been seen yet there is no highest, and any share of nothing will do.
    let (known, lowest) = (s.splat(f32::MIN), s.splat(LOWEST));
    for at in (0..TILE).step_by(S::LANES) {
        let (old, block) = (s.max(s.load(&highest[at..]), known), s.max(s.load(&tops[at..]), known));
        let top = s.max(old, block);
        s.store(&mut before[at..], exp2(s, s.max(s.sub(old, top), lowest)));
        s.store(&mut now[at..], exp2(s, s.max(s.sub(block, top), lowest)));
        s.store(&mut highest[at..], top);
    }
    (before, now)
}

#[cfg(test)]
mod tests;
