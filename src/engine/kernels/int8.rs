//! Products of 8-bit integers.
//!
//! Weights are symmetric, one scale for each output; a panel of [`PANEL`] outputs holds them as `(K / 4, 16, 4)`, so that
//! one instruction adds four products to each of sixteen 32-bit sums. Activations are quantised when they arrive, each
//! row by its own largest value, and stored around 128, since that instruction wants one unsigned operand; what the 128
//! adds to a sum is known when the weights are packed and taken off again. Sums are exact, so all instruction sets give
//! the same bits, and a row does not depend on the rows beside it.
//!
//! Where a few channels of the activations are much larger than the others, 8 bits are too few for them. Wide activations
//! have 16, as two rows of bytes: `256 · high + low`. That takes twice the products and the same reading of weights, which
//! is what a decode step waits for.

use std::hint::black_box;
use std::io;
use std::ops::Range;

use rayon::prelude::*;

use super::matrix::{PANEL, bytes, filled, joined};
use super::memory::Lines;
use super::product::{Block, COLUMNS, Rows, Weights};
use super::simd::{Kernel, Simd, Unit, dispatch, dispatch_on};

#[cfg(target_arch = "x86_64")]
mod amx;
pub(crate) mod attention;
mod dot;

pub(super) use dot::{Dot, DotUnit, Dots};

/// Products that one instruction adds up.
const DEPTH: usize = 4;
/// What is added to a quantised activation.
const OFFSET: i32 = 128;
/// The largest quantised value.
const LARGEST: f32 = 127.0;
/// What the upper byte of a wide activation counts.
const HIGH: f32 = 256.0;
/// The largest wide activation.
const LARGEST_WIDE: f32 = LARGEST * HIGH;
/// Below this many values one thread quantises faster.
const PARALLEL_VALUES: usize = 1 << 15;

/// Packed weights.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Panels {
    /// K rounded up to whole instructions.
    depth: usize,
    /// Whether activations are wide.
    wide: bool,
    values: Lines<i8>,
    /// One for each output, those that fill up the last panel included.
    scales: Lines<f32>,
    /// [`OFFSET`] times the sum of an output's weights.
    offsets: Lines<i32>,
}

impl Panels {
    /// Quantises and packs `rows`, `(N, K)` row-major.
    pub(super) fn pack(rows: &[f32], n: usize, k: usize, wide: bool) -> Self {
        let (padded, depth) = (n.next_multiple_of(PANEL), k.next_multiple_of(DEPTH));
        let mut values = Lines::zeros(padded * depth);
        let (mut scales, mut offsets) = (Lines::zeros(padded), Lines::<i32>::zeros(padded));
        let panels = values.par_chunks_exact_mut((PANEL * depth).max(1));
        let columns = scales.par_chunks_exact_mut(PANEL).zip(offsets.par_chunks_exact_mut(PANEL));
        panels.zip(columns).enumerate().for_each(|(p, (panel, (scales, offsets)))| {
            let mut codes = vec![OFFSET as u8; depth];
            for (column, row) in rows[p * PANEL * k..].chunks_exact(k.max(1)).take(PANEL).enumerate() {
                let row = Rows::dense(row, 1, k);
                scales[column] = dispatch(Quantise { x: row.data, rows: &row, wide: false, values: &mut codes[..k] });
                // What is not finite makes every output of its row so, by the scale.
                let steps = panel[column * DEPTH..].chunks_mut(PANEL * DEPTH).zip(codes.chunks_exact(DEPTH));
                for (to, code) in steps.flat_map(|(to, codes)| to.iter_mut().zip(codes)) {
                    *to = (code ^ OFFSET as u8) as i8;
                    offsets[column] += OFFSET * i32::from(*to);
                }
            }
        });
        Self { depth, wide, values, scales, offsets }
    }

    /// The panels of all `parts`, none of which may have one that is filled up.
    pub(super) fn stack(parts: &[&Self]) -> Self {
        let outputs = parts.iter().map(|part| part.scales.len()).sum();
        let (depth, wide) = parts.first().map_or((0, false), |part| (part.depth, part.wide));
        Self {
            depth,
            wide,
            values: joined(parts.iter().map(|part| &part.values), outputs * depth),
            scales: joined(parts.iter().map(|part| &part.scales), outputs),
            offsets: joined(parts.iter().map(|part| &part.offsets), outputs),
        }
    }

    /// As bytes of this machine: values, scales, offsets.
    pub(super) fn parts(&self) -> [&[u8]; 3] {
        [bytes(&self.values), bytes(&self.scales), bytes(&self.offsets)]
    }

    /// Panels of `n` outputs and `k` inputs out of such parts, which `fill` writes one after the other.
    pub(super) fn read(
        n: usize,
        k: usize,
        wide: bool,
        fill: &mut impl FnMut(&mut [u8]) -> io::Result<()>,
    ) -> io::Result<Self> {
        let (padded, depth) = (n.next_multiple_of(PANEL), k.next_multiple_of(DEPTH));
        let values = filled(padded * depth, fill)?;
        let (scales, offsets) = (filled(padded, fill)?, filled(padded, fill)?);
        Ok(Self { depth, wide, values, scales, offsets })
    }

    /// Whether activations are wide.
    pub(super) fn is_wide(&self) -> bool {
        self.wide
    }

    /// The weight of an output for an input, as it is after quantisation.
    pub(super) fn weight(&self, output: usize, input: usize) -> f32 {
        let panel = &self.values[output / PANEL * PANEL * self.depth..];
        let at = (input / DEPTH * PANEL + output % PANEL) * DEPTH + input % DEPTH;
        f32::from(panel[at]) * self.scales[output]
    }
}

/// Quantised rows.
pub(super) struct Activations {
    /// `(rows, depth)`, around [`OFFSET`]; of wide ones `(rows, 2, depth)`, upper bytes around it, then lower bytes.
    values: Lines<u8>,
    /// One for each row; not a number where the row holds something that is not a finite number.
    scales: Vec<f32>,
}

impl Activations {
    /// Quantises all rows of `x`; a row gets a multiple of [`DEPTH`] values.
    pub(super) fn quantise(unit: Unit, x: &Rows<'_>, wide: bool, parallel: bool) -> Self {
        let depth = x.cols().next_multiple_of(DEPTH) * if wide { 2 } else { 1 };
        let mut values = Lines::zeros(x.count() * depth);
        let mut scales = vec![0f32; x.count()];
        let one = |row: usize, values: &mut [u8], scale: &mut f32| {
            *scale = dispatch_on(unit, Quantise { x: &x.data[x.start(row)..], rows: x, wide, values });
        };
        let rows = values.chunks_exact_mut(depth.max(1)).zip(&mut scales).enumerate();
        if parallel && x.count() * depth >= PARALLEL_VALUES {
            let rows = values.par_chunks_exact_mut(depth).zip(&mut scales).enumerate();
            rows.for_each(|(row, (values, scale))| one(row, values, scale));
        } else {
            rows.for_each(|(row, (values, scale))| one(row, values, scale));
        }
        Self { values, scales }
    }
}

/// One row to integers; gives its scale.
struct Quantise<'a> {
    x: &'a [f32],
    rows: &'a Rows<'a>,
    wide: bool,
    values: &'a mut [u8],
}

impl Kernel for Quantise<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let Rows { taps, tap_step, width, .. } = *self.rows;
        let zero = s.splat(0.0);
        let (mut largest, mut poison) = (zero, zero);
        for tap in 0..taps {
            for x in self.x[tap * tap_step..][..width].chunks(S::LANES) {
                let x = s.load_part(x, 0.0);
                largest = s.max(s.max(x, s.sub(zero, x)), largest);
                poison = s.fma(x, zero, poison);
            }
        }
        let (largest, poison) = (s.largest(largest), s.sum(poison));
        if poison.is_nan() {
            return f32::NAN;
        }
        let top = if self.wide { LARGEST_WIDE } else { LARGEST };
        let inverse = s.splat(if largest > 0.0 { top / largest } else { 0.0 });
        let offset = s.splat(OFFSET as f32);
        let whole = self.values.len();
        let (first, second) = self.values.split_at_mut(if self.wide { whole / 2 } else { whole });
        for tap in 0..taps {
            for (i, x) in self.x[tap * tap_step..][..width].chunks(S::LANES).enumerate() {
                let at = tap * width + i * S::LANES..tap * width + i * S::LANES + x.len();
                let q = s.round(s.mul(s.load_part(x, 0.0), inverse));
                if self.wide {
                    // The whole number below q / 256: q - 127.5 lies nearer to it than to any other.
                    let high = s.round(s.mul(s.sub(q, s.splat(127.5)), s.splat(1.0 / HIGH)));
                    let low = s.fma(high, s.splat(-HIGH), q);
                    s.store_bytes(&mut first[at.clone()], s.add(high, offset));
                    s.store_bytes(&mut second[at], low);
                } else {
                    s.store_bytes(&mut first[at], s.add(q, offset));
                }
            }
        }
        // What fills a row up meets weights of zero.
        largest / top
    }
}

/// Quantised rows against packed weights.
#[derive(Clone, Copy)]
pub(super) struct Int8<'a> {
    pub activations: &'a Activations,
    pub panels: &'a Panels,
    pub unit: DotUnit,
}

impl Weights for Int8<'_> {
    type Ready = Dots;

    fn ready(self) -> Dots {
        self.unit.begin()
    }

    fn rows(self) -> usize {
        self.unit.rows()
    }

    fn depth(self, k: usize) -> usize {
        // A quarter of the bytes, and dots are whole numbers that no part of a sum could wait as.
        k
    }

    fn prefetch<S: Simd>(self, _: S, _: usize, _: &Range<usize>, _: &Range<usize>, _: usize, _: usize) {}

    #[inline(always)]
    fn tile<S: Simd>(
        self,
        _: S,
        ready: &mut Dots,
        _: &Rows<'_>,
        Block { rows, panels, .. }: &Block,
        sums: &mut [[f32; COLUMNS]],
    ) {
        let (first, rows) = (rows.start, rows.len());
        // Rows of bytes to a row, and as many rows at once as make up a tile of them.
        let bytes = if self.panels.wide { 2 } else { 1 };
        for start in (0..rows).step_by(self.rows() / bytes) {
            let count = (rows - start).min(self.rows() / bytes);
            self.part(ready, first + start, count, panels, &mut sums[start..]);
        }
    }
}

impl Int8<'_> {
    /// Up to a tile of rows of bytes.
    #[inline(always)]
    fn part(self, ready: &mut Dots, first: usize, rows: usize, panels: &Range<usize>, sums: &mut [[f32; COLUMNS]]) {
        let depth = self.panels.depth;
        let bytes = if self.panels.wide { 2 } else { 1 };
        let dots = ready.run(Dot {
            a: &self.activations.values[first * bytes * depth..(first + rows) * bytes * depth],
            w: &self.panels.values[panels.start * PANEL * depth..panels.end * PANEL * depth],
            rows: rows * bytes,
            depth,
        });
        let columns = panels.start * PANEL..panels.end * PANEL;
        let (offsets, weights) = (&self.panels.offsets[columns.clone()], &self.panels.scales[columns]);
        for (r, sums) in sums[..rows].iter_mut().enumerate() {
            let scale = self.activations.scales[first + r];
            let parameters = offsets.iter().zip(weights);
            if self.panels.wide {
                let dots = dots[2 * r].iter().zip(&dots[2 * r + 1]);
                for ((sum, (high, low)), (offset, weight)) in sums.iter_mut().zip(dots).zip(parameters) {
                    *sum = ((high - offset) as f32 * HIGH + *low as f32) * (scale * weight);
                }
            } else {
                for ((sum, dot), (offset, weight)) in sums.iter_mut().zip(&dots[r]).zip(parameters) {
                    *sum = (dot - offset) as f32 * (scale * weight);
                }
            }
        }
    }
}

/// Multiplies `rounds` times what stays in the first cache; returns the operations of a round.
pub(crate) fn peak_dots(rounds: usize) -> f64 {
    const DEPTH: usize = 256;
    let unit = DotUnit::best();
    let (a, w) = (Lines::zeros(unit.rows() * DEPTH), Lines::zeros(COLUMNS * DEPTH));
    let mut dots = unit.begin();
    for _ in 0..rounds {
        black_box(dots.run(Dot { a: black_box(&a), w: &w, rows: unit.rows(), depth: DEPTH }));
    }
    (2 * unit.rows() * COLUMNS * DEPTH) as f64
}

#[cfg(test)]
mod tests;
