//! Keys and values as attention at 8 bits multiplies them.

use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use super::{BLOCK, MAX_DIM};
use crate::kernels::attention::{HeadRows, Shape};
use crate::kernels::int8::{DEPTH, LARGEST, OFFSET};
use crate::kernels::matrix::PANEL;
use crate::kernels::memory::Lines;
use crate::kernels::simd::{Kernel, Simd, Unit, dispatch_on};

/// Keys and values of some rows, of all batch rows and heads, at 8 bits. [`BLOCK`] keys of all heads stand together, as
/// they stand in the rows they come from, and have scales of their own, so that blocks can be kept.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(super) shape: Shape,
    /// Panels of `(D / 4, 16, 4)`, blocks filled up.
    pub(super) keys: Lines<i8>,
    /// One for each key.
    pub(super) scales: Lines<f32>,
    /// What the offset of the queries adds to a score, scaled, and negative.
    pub(super) offsets: Lines<f32>,
    /// For each block and head, a panel of `(BLOCK / 4, 16, 4)` for each 16 channels.
    pub(super) values: Lines<i8>,
    /// One for each block, head and channel.
    pub(super) channels: Lines<f32>,
    /// Batch row, head and key where something is not a finite number.
    pub(super) poisoned: Vec<[usize; 3]>,
}

/// Some rows of what was packed.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub rows: Arc<Packed>,
    pub range: Range<usize>,
}

/// Inputs of a head in whole instructions.
pub(super) fn depth(dim: usize) -> usize {
    dim.next_multiple_of(DEPTH)
}

impl Packed {
    /// `shape.capacity` keys and values of heads of at most [`MAX_DIM`] channels.
    pub(crate) fn new(k: HeadRows<'_>, v: HeadRows<'_>, shape: Shape) -> Self {
        Self::new_on(Unit::best(), k, v, shape)
    }

    pub(super) fn new_on(unit: Unit, k: HeadRows<'_>, v: HeadRows<'_>, shape: Shape) -> Self {
        let Shape { batch, heads, dim, capacity } = shape;
        let (blocks, depth, width) = (capacity.div_ceil(BLOCK), depth(dim), dim.next_multiple_of(PANEL));
        let parts = batch * blocks * heads;
        let mut packed = Self {
            shape,
            keys: Lines::zeros(parts * BLOCK * depth),
            scales: Lines::zeros(parts * BLOCK),
            offsets: Lines::zeros(parts * BLOCK),
            values: Lines::zeros(parts * BLOCK * width),
            channels: Lines::zeros(parts * width),
            poisoned: Vec::new(),
        };
        let tasks = packed.keys.par_chunks_exact_mut((heads * BLOCK * depth).max(1));
        let tasks = tasks.zip(packed.scales.par_chunks_exact_mut((heads * BLOCK).max(1)));
        let tasks = tasks.zip(packed.offsets.par_chunks_exact_mut((heads * BLOCK).max(1)));
        let tasks = tasks.zip(packed.values.par_chunks_exact_mut((heads * BLOCK * width).max(1)));
        let tasks = tasks.zip(packed.channels.par_chunks_exact_mut((heads * width).max(1)));
        let poisoned: Vec<Vec<[usize; 3]>> = tasks
            .enumerate()
            .map(|(task, ((((keys, scales), offsets), values), channels))| {
                let (batch, first) = (task / blocks, task % blocks * BLOCK);
                let rows = first..capacity.min(first + BLOCK);
                let poisoned = Vec::new();
                let pack = Pack { k, v, shape, batch, rows, keys, scales, offsets, values, channels, poisoned };
                dispatch_on(unit, pack)
            })
            .collect();
        packed.poisoned = poisoned.concat();
        packed
    }

    /// What it was made of.
    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// Where a block of a head begins, in blocks of heads.
    pub(super) fn part(&self, batch: usize, block: usize, head: usize) -> usize {
        (batch * self.shape.capacity.div_ceil(BLOCK) + block) * self.shape.heads + head
    }
}

/// A block of all heads.
struct Pack<'a> {
    k: HeadRows<'a>,
    v: HeadRows<'a>,
    shape: Shape,
    batch: usize,
    rows: Range<usize>,
    keys: &'a mut [i8],
    scales: &'a mut [f32],
    offsets: &'a mut [f32],
    values: &'a mut [i8],
    channels: &'a mut [f32],
    poisoned: Vec<[usize; 3]>,
}

impl Kernel for Pack<'_> {
    type Output = Vec<[usize; 3]>;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) -> Self::Output {
        let Shape { heads, dim, .. } = self.shape;
        let (depth, width) = (depth(dim), dim.next_multiple_of(PANEL));
        let mut codes = [OFFSET as u8; MAX_DIM];
        for (at, row) in self.rows.clone().enumerate() {
            for head in 0..heads {
                let scale = quantise(s, self.k.at(self.batch, row, head, dim), &mut codes);
                if scale.is_nan() {
                    self.poisoned.push([self.batch, head, row]);
                    continue;
                }
                let keys = &mut self.keys[head * BLOCK * depth..][..BLOCK * depth];
                let panel = &mut keys[at / PANEL * PANEL * depth..][..PANEL * depth];
                let mut sum = 0;
                for (to, codes) in panel[at % PANEL * DEPTH..].chunks_mut(PANEL * DEPTH).zip(codes.chunks_exact(DEPTH))
                {
                    for (to, code) in to.iter_mut().zip(codes) {
                        *to = (code ^ OFFSET as u8) as i8;
                        sum += i32::from(*to);
                    }
                }
                self.scales[head * BLOCK + at] = scale;
                self.offsets[head * BLOCK + at] = -((OFFSET * sum) as f32) * scale;
            }
        }
        let mut largest = vec![0f32; heads * width];
        for row in self.rows.clone() {
            for (head, largest) in largest.chunks_exact_mut(width).enumerate() {
                self.widen(s, row, head, largest);
            }
        }
        for (channel, largest) in self.channels.iter_mut().zip(&mut largest) {
            // From here on what a value is to be multiplied with.
            (*channel, *largest) = if *largest > 0.0 { (*largest / LARGEST, LARGEST / *largest) } else { (0.0, 0.0) };
        }
        for first in self.rows.clone().step_by(DEPTH) {
            for (head, factors) in largest.chunks_exact(width).enumerate() {
                self.values(s, first, head, factors);
            }
        }
        self.poisoned
    }
}

impl Pack<'_> {
    /// Takes a row of values into the largest of each channel.
    #[inline(always)]
    fn widen<S: Simd>(&mut self, s: S, row: usize, head: usize, largest: &mut [f32]) {
        let values = self.v.at(self.batch, row, head, self.shape.dim);
        let zero = s.splat(0.0);
        let mut poison = zero;
        for x in values.chunks(S::LANES) {
            poison = s.fma(s.load_part(x, 0.0), zero, poison);
        }
        if s.sum(poison).is_nan() {
            self.poisoned.push([self.batch, head, row]);
            return;
        }
        for (largest, x) in largest.chunks_exact_mut(S::LANES).zip(values.chunks(S::LANES)) {
            let x = s.load_part(x, 0.0);
            s.store(largest, s.max(s.max(x, s.sub(zero, x)), s.load(largest)));
        }
    }

    /// The values of [`DEPTH`] rows, beside each other.
    #[inline(always)]
    fn values<S: Simd>(&mut self, s: S, first: usize, head: usize, factors: &[f32]) {
        let dim = self.shape.dim;
        let mut codes = [[OFFSET as u8; MAX_DIM]; DEPTH];
        for (codes, row) in codes.iter_mut().zip(first..self.rows.end) {
            if self.poisoned.contains(&[self.batch, head, row]) {
                continue;
            }
            let values = self.v.at(self.batch, row, head, dim).chunks(S::LANES);
            for ((codes, x), factors) in codes.chunks_mut(S::LANES).zip(values).zip(factors.chunks_exact(S::LANES)) {
                let code = s.fma(s.load_part(x, 0.0), s.load(factors), s.splat(OFFSET as f32));
                s.store_bytes(codes, s.round(code));
            }
        }
        let block = &mut self.values[head * BLOCK * factors.len()..][..BLOCK * factors.len()];
        let at = (first - self.rows.start) * PANEL;
        for (panel, channel) in block.chunks_exact_mut(BLOCK * PANEL).zip((0..).step_by(PANEL)) {
            let Some(to) = panel[at..].first_chunk_mut::<{ PANEL * DEPTH }>() else { continue };
            let [a, b, c, d] = codes.each_ref().map(|codes| &codes[channel..channel + PANEL]);
            for (i, to) in to.chunks_exact_mut(DEPTH).enumerate() {
                to.copy_from_slice(&[a[i], b[i], c[i], d[i]].map(|code| (code ^ OFFSET as u8) as i8));
            }
        }
    }
}

/// One row to bytes around [`OFFSET`]; gives its scale, which is not a number where something of the row is not finite.
#[inline(always)]
pub(super) fn quantise<S: Simd>(s: S, row: &[f32], codes: &mut [u8]) -> f32 {
    let zero = s.splat(0.0);
    let (mut largest, mut poison) = (zero, zero);
    for x in row.chunks(S::LANES) {
        let x = s.load_part(x, 0.0);
        largest = s.max(s.max(x, s.sub(zero, x)), largest);
        poison = s.fma(x, zero, poison);
    }
    let (largest, poison) = (s.largest(largest), s.sum(poison));
    if poison.is_nan() {
        return f32::NAN;
    }
    let inverse = s.splat(if largest > 0.0 { LARGEST / largest } else { 0.0 });
    for (codes, x) in codes.chunks_mut(S::LANES).zip(row.chunks(S::LANES)) {
        s.store_bytes(codes, s.round(s.fma(s.load_part(x, 0.0), inverse, s.splat(OFFSET as f32))));
    }
    largest / LARGEST
}
