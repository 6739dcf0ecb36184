//! Keys and values in the order in which attention reads them, in f32, half of it, or 8 bits with a scale for each.

use rayon::prelude::*;

use super::PANEL;
use crate::kernels::element::Element;
use crate::kernels::memory::Memory;

/// Below this many values one thread copies faster.
const PARALLEL_COPY: usize = 1 << 15;

/// Rows of heads inside a larger array: row `t` of batch `b`, head `h` begins at `b · batch + t · row + h · head`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadRows<'a> {
    pub data: &'a [f32],
    pub batch: usize,
    pub row: usize,
    pub head: usize,
}

impl<'a> HeadRows<'a> {
    pub(in super::super) fn at(&self, b: usize, t: usize, h: usize, dim: usize) -> &'a [f32] {
        &self.data[b * self.batch + t * self.row + h * self.head..][..dim]
    }
}

/// Keys or values of every batch row and head, one after the other, with room for `capacity` of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub batch: usize,
    pub heads: usize,
    pub dim: usize,
    pub capacity: usize,
}

impl Shape {
    /// The head size rounded up to whole vectors.
    pub(super) fn padded_dim(&self) -> usize {
        self.dim.next_multiple_of(PANEL)
    }

    fn keys_len(&self) -> usize {
        self.capacity.next_multiple_of(PANEL) * self.dim
    }

    fn values_len(&self) -> usize {
        self.capacity * self.padded_dim()
    }

    /// Scales of one head, whole vectors of them.
    fn scales_len(&self) -> usize {
        self.capacity.next_multiple_of(PANEL)
    }

    fn parts(&self) -> usize {
        self.batch * self.heads
    }
}

/// Keys as panels.
#[derive(Debug)]
pub(crate) struct Keys<E> {
    shape: Shape,
    data: Memory<E>,
    /// What the numbers of each key are to be multiplied with, where they are whole; else never touched.
    scales: Memory<f32>,
}

/// Values as rows of whole vectors.
#[derive(Debug)]
pub(crate) struct Values<E> {
    shape: Shape,
    data: Memory<E>,
    /// As those of [`Keys`].
    scales: Memory<f32>,
}

impl<E: Element> Keys<E> {
    /// Room for `shape.capacity` keys of one call.
    pub(crate) fn new(shape: Shape) -> Self {
        let (data, scales) = (shape.parts() * shape.keys_len(), shape.parts() * shape.scales_len());
        Self { shape, data: Memory::heap(data), scales: Memory::heap(scales) }
    }

    /// Room for `shape.capacity` keys that stay; memory is taken as it is filled.
    pub(crate) fn cache(shape: Shape) -> Self {
        let (data, scales) = (shape.parts() * shape.keys_len(), shape.parts() * shape.scales_len());
        Self { shape, data: Memory::pages(data), scales: Memory::pages(scales) }
    }

    /// The same keys, of which the first `count` count, in no more memory than these take.
    pub(crate) fn first(&self, count: usize) -> Self {
        let mut kept = Self::cache(self.shape);
        copy_parts(&self.data, &mut kept.data, self.shape.keys_len(), count.next_multiple_of(PANEL) * self.shape.dim);
        copy_scales::<E>(&self.scales, &mut kept.scales, self.shape, count);
        kept
    }

    /// What it was made for.
    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// Writes `count` keys from position `start` on.
    pub(crate) fn write(&mut self, start: usize, count: usize, rows: HeadRows<'_>) {
        let Shape { heads, dim, .. } = self.shape;
        let one = |index: usize, data: &mut [E], scales: &mut [f32]| {
            for t in 0..count {
                let key = rows.at(index / heads, t, index % heads, dim);
                let at = start + t;
                let panel = &mut data[at / PANEL * PANEL * dim..][..PANEL * dim];
                let to = panel.iter_mut().skip(at % PANEL).step_by(PANEL);
                write_row(key, to, &mut scales[at]);
            }
        };
        let lens = (self.shape.keys_len(), self.shape.scales_len());
        each_part(&mut self.data, &mut self.scales, lens, count * dim * heads >= PARALLEL_COPY, one);
    }

    /// Key `t` of batch row `b` and head `h`.
    pub(crate) fn key(&self, b: usize, t: usize, h: usize) -> impl Iterator<Item = f32> + '_ {
        let panel = &self.part(b, h)[t / PANEL * PANEL * self.shape.dim..][..PANEL * self.shape.dim];
        let scale = if E::LARGEST.is_some() { self.scales(b, h)[t] } else { 1.0 };
        panel.iter().skip(t % PANEL).step_by(PANEL).map(move |x| x.to_f32() * scale)
    }

    pub(super) fn scales(&self, b: usize, h: usize) -> &[f32] {
        let len = self.shape.scales_len();
        &self.scales[(b * self.shape.heads + h) * len..][..len]
    }

    pub(super) fn part(&self, b: usize, h: usize) -> &[E] {
        let len = self.shape.keys_len();
        &self.data[(b * self.shape.heads + h) * len..][..len]
    }
}

impl<E: Element> Values<E> {
    /// Room for `shape.capacity` values of one call.
    pub(crate) fn new(shape: Shape) -> Self {
        let (data, scales) = (shape.parts() * shape.values_len(), shape.parts() * shape.scales_len());
        Self { shape, data: Memory::heap(data), scales: Memory::heap(scales) }
    }

    /// Room for `shape.capacity` values that stay; memory is taken as it is filled.
    pub(crate) fn cache(shape: Shape) -> Self {
        let (data, scales) = (shape.parts() * shape.values_len(), shape.parts() * shape.scales_len());
        Self { shape, data: Memory::pages(data), scales: Memory::pages(scales) }
    }

    /// The same values, of which the first `count` count, in no more memory than these take.
    pub(crate) fn first(&self, count: usize) -> Self {
        let mut kept = Self::cache(self.shape);
        copy_parts(&self.data, &mut kept.data, self.shape.values_len(), count * self.shape.padded_dim());
        copy_scales::<E>(&self.scales, &mut kept.scales, self.shape, count);
        kept
    }

    /// Writes `count` values from position `start` on.
    pub(crate) fn write(&mut self, start: usize, count: usize, rows: HeadRows<'_>) {
        let Shape { heads, dim, .. } = self.shape;
        let width = self.shape.padded_dim();
        let one = |index: usize, data: &mut [E], scales: &mut [f32]| {
            for (t, to) in data[start * width..].chunks_exact_mut(width).take(count).enumerate() {
                write_row(rows.at(index / heads, t, index % heads, dim), to.iter_mut(), &mut scales[start + t]);
            }
        };
        let lens = (self.shape.values_len(), self.shape.scales_len());
        each_part(&mut self.data, &mut self.scales, lens, count * dim * heads >= PARALLEL_COPY, one);
    }

    pub(super) fn scales(&self, b: usize, h: usize) -> &[f32] {
        let len = self.shape.scales_len();
        &self.scales[(b * self.shape.heads + h) * len..][..len]
    }

    pub(super) fn part(&self, b: usize, h: usize) -> &[E] {
        let len = self.shape.values_len();
        &self.data[(b * self.shape.heads + h) * len..][..len]
    }
}

/// Copies the first `count` numbers of every part.
fn copy_parts<E: Copy>(from: &[E], to: &mut [E], len: usize, count: usize) {
    let parts = to.chunks_exact_mut(len.max(1)).zip(from.chunks_exact(len.max(1)));
    parts.for_each(|(to, from)| to[..count].copy_from_slice(&from[..count]));
}

/// Copies the first `count` scales of every part, where there are any.
fn copy_scales<E: Element>(from: &[f32], to: &mut [f32], shape: Shape, count: usize) {
    if E::LARGEST.is_some() {
        copy_parts(from, to, shape.scales_len(), count);
    }
}

/// One key or value of one head. Where something in it is not a finite number, it is not finite when it comes back.
fn write_row<'a, E: Element>(row: &[f32], to: impl Iterator<Item = &'a mut E>, scale: &mut f32) {
    let Some(top) = E::LARGEST else {
        return to.zip(row).for_each(|(to, from)| *to = E::from_f32(*from));
    };
    let largest = row.iter().fold(0f32, |a, x| if x.abs() > a || x.is_nan() { x.abs() } else { a });
    let inverse = if largest > 0.0 { top / largest } else { 0.0 };
    to.zip(row).for_each(|(to, from)| *to = E::from_f32(from * inverse));
    *scale = largest / top;
}

/// Calls `f` with every part of `data`, its scales and its number.
fn each_part<E: Send>(
    data: &mut [E],
    scales: &mut [f32],
    (len, scales_len): (usize, usize),
    parallel: bool,
    f: impl Fn(usize, &mut [E], &mut [f32]) + Sync,
) {
    let (len, scales_len) = (len.max(1), scales_len.max(1));
    if parallel {
        let parts = data.par_chunks_exact_mut(len).zip(scales.par_chunks_exact_mut(scales_len));
        parts.enumerate().for_each(|(i, (part, scales))| f(i, part, scales));
    } else {
        let parts = data.chunks_exact_mut(len).zip(scales.chunks_exact_mut(scales_len));
        parts.enumerate().for_each(|(i, (part, scales))| f(i, part, scales));
    }
}
