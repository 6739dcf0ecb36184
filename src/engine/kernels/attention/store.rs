//! Keys and values in the order in which attention reads them, in f32 or half of it.

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
    pub(super) fn at(&self, b: usize, t: usize, h: usize, dim: usize) -> &'a [f32] {
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
}

/// Keys as panels.
#[derive(Debug)]
pub(crate) struct Keys<E> {
    shape: Shape,
    data: Memory<E>,
}

/// Values as rows of whole vectors.
#[derive(Debug)]
pub(crate) struct Values<E> {
    shape: Shape,
    data: Memory<E>,
}

impl<E: Element> Keys<E> {
    /// Room for `shape.capacity` keys of one call.
    pub(crate) fn new(shape: Shape) -> Self {
        Self { shape, data: Memory::heap(shape.batch * shape.heads * shape.keys_len()) }
    }

    /// Room for `shape.capacity` keys that stay; memory is taken as it is filled.
    pub(crate) fn cache(shape: Shape) -> Self {
        Self { shape, data: Memory::pages(shape.batch * shape.heads * shape.keys_len()) }
    }

    /// The same keys, of which the first `count` count, in no more memory than these take.
    pub(crate) fn first(&self, count: usize) -> Self {
        let mut kept = Self::cache(self.shape);
        copy_parts(&self.data, &mut kept.data, self.shape.keys_len(), count.next_multiple_of(PANEL) * self.shape.dim);
        kept
    }

    /// What it was made for.
    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// Writes `count` keys from position `start` on.
    pub(crate) fn write(&mut self, start: usize, count: usize, rows: HeadRows<'_>) {
        let Shape { heads, dim, .. } = self.shape;
        let one = |index: usize, data: &mut [E]| {
            for t in 0..count {
                let key = rows.at(index / heads, t, index % heads, dim);
                let at = start + t;
                let panel = &mut data[at / PANEL * PANEL * dim..][..PANEL * dim];
                panel
                    .iter_mut()
                    .skip(at % PANEL)
                    .step_by(PANEL)
                    .zip(key)
                    .for_each(|(to, from)| *to = E::from_f32(*from));
            }
        };
        each_part(&mut self.data, self.shape.keys_len(), count * dim * heads >= PARALLEL_COPY, one);
    }

    /// Key `t` of batch row `b` and head `h`.
    pub(crate) fn key(&self, b: usize, t: usize, h: usize) -> impl Iterator<Item = f32> + '_ {
        let panel = &self.part(b, h)[t / PANEL * PANEL * self.shape.dim..][..PANEL * self.shape.dim];
        panel.iter().skip(t % PANEL).step_by(PANEL).map(|x| x.to_f32())
    }

    pub(super) fn part(&self, b: usize, h: usize) -> &[E] {
        let len = self.shape.keys_len();
        &self.data[(b * self.shape.heads + h) * len..][..len]
    }
}

impl<E: Element> Values<E> {
    /// Room for `shape.capacity` values of one call.
    pub(crate) fn new(shape: Shape) -> Self {
        Self { shape, data: Memory::heap(shape.batch * shape.heads * shape.values_len()) }
    }

    /// Room for `shape.capacity` values that stay; memory is taken as it is filled.
    pub(crate) fn cache(shape: Shape) -> Self {
        Self { shape, data: Memory::pages(shape.batch * shape.heads * shape.values_len()) }
    }

    /// The same values, of which the first `count` count, in no more memory than these take.
    pub(crate) fn first(&self, count: usize) -> Self {
        let mut kept = Self::cache(self.shape);
        copy_parts(&self.data, &mut kept.data, self.shape.values_len(), count * self.shape.padded_dim());
        kept
    }

    /// Writes `count` values from position `start` on.
    pub(crate) fn write(&mut self, start: usize, count: usize, rows: HeadRows<'_>) {
        let Shape { heads, dim, .. } = self.shape;
        let width = self.shape.padded_dim();
        let one = |index: usize, data: &mut [E]| {
            for (t, to) in data[start * width..].chunks_exact_mut(width).take(count).enumerate() {
                let value = rows.at(index / heads, t, index % heads, dim);
                to.iter_mut().zip(value).for_each(|(to, from)| *to = E::from_f32(*from));
            }
        };
        each_part(&mut self.data, self.shape.values_len(), count * dim * heads >= PARALLEL_COPY, one);
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

/// Calls `f` with every part of `data` and its number.
fn each_part<E: Send>(data: &mut [E], len: usize, parallel: bool, f: impl Fn(usize, &mut [E]) + Sync) {
    if parallel {
        data.par_chunks_exact_mut(len.max(1)).enumerate().for_each(|(i, part)| f(i, part));
    } else {
        data.chunks_exact_mut(len.max(1)).enumerate().for_each(|(i, part)| f(i, part));
    }
}
