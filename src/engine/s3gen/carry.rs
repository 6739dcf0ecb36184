//! What causal layers carry from one stretch of a stream to the next.
//!
//! A causal convolution needs its last `kernel - 1` input rows, an attention layer the keys and values it may still be
//! asked about. A network's forward pass takes a [`Carry`] and visits its layers in a fixed order, so a layer finds
//! what it left there at the previous stretch. With nothing carried the same pass is the ordinary, whole forward.
//! Rows at the end of a stretch may be provisional: they are computed, and seen where the mask lets them, but leave no
//! trace.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use rayon::prelude::*;

use super::config::Chunks;
use crate::error::{Error, Result};
use crate::kernels::packed::PackedRows;
use crate::kernels::view::{from_f32, with_f32, with_strided};
use crate::nn::{Conv1d, Mask, PackedKeys, attend, attend_packed};
use crate::protocol::Precision;

/// Memory of all streaming layers of one network.
#[derive(Debug, Clone, Default)]
pub(super) struct Carry {
    streaming: bool,
    chunks: Option<Chunks>,
    ends: Option<Ends>,
    /// Whether keys and values are kept at 8 bits (on other devices than the CPU, at 16).
    packed: bool,
    slots: Vec<Slot>,
    cursor: usize,
    provisional: usize,
    ratio: usize,
    /// Rows of the stream before this pass, and before the next.
    start: usize,
    next: usize,
}

/// What is remembered where no chunk rule says it: the `first` oldest rows and the `last` newest ones. Later rows see
/// them as if nothing had been between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ends {
    pub first: usize,
    pub last: usize,
}

impl Ends {
    /// The same where every row has become `ratio`.
    pub(super) fn scaled(self, ratio: usize) -> Self {
        Self { first: self.first * ratio, last: self.last * ratio }
    }
}

#[derive(Debug, Clone)]
enum Slot {
    /// The last input rows of a convolution, `(B, kernel - 1, C)`.
    Rows(Tensor),
    /// Keys and values: the oldest, which never change once they are all there and are shared by all clones, then the
    /// newest.
    Keys { first: Option<Past>, last: Option<Past> },
    /// The same as attention at 8 bits wants them.
    Packed(PackedKeys),
}

/// Keys and values.
type Past = (Kept, Kept);

/// Keys or values, `(B, T, H, D)`.
#[derive(Debug, Clone)]
enum Kept {
    /// As they are, or in bf16.
    Plain(Tensor),
    /// At 8 bits, a scale for each time and head.
    Packed { rows: Arc<PackedRows>, dims: [usize; 4] },
}

/// Where the rows of a pass stand in their stream, and by which rule they see others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// Rows of the stream that came before this pass.
    pub start: usize,
    /// The chunk rule; `None`: everything in the pass sees everything.
    pub chunks: Option<Chunks>,
}

impl Place {
    /// What `queries` rows of this pass see of `keys` rows that end where the pass ends.
    pub(super) fn mask(&self, queries: usize, keys: usize) -> Mask {
        let Some(chunks) = self.chunks else {
            return Mask::Full;
        };
        let first_key = self.start + queries - keys;
        let range = |query: usize| {
            let position = self.start + query;
            let from = chunks.first_seen(position).saturating_sub(first_key);
            let to = chunks.start_of(chunks.chunk_of(position) + 1) - first_key;
            (from as u32, to.min(keys) as u32)
        };
        Mask::Ranges((0..queries).map(range).collect())
    }

    /// How many of the newest rows the pass after this one (of `rows` rows) may still look at.
    fn rows_to_keep(&self, rows: usize) -> usize {
        let next = self.start + rows;
        next - self.chunks.map_or(0, |chunks| chunks.first_seen(next))
    }
}

impl Carry {
    /// For a stretch-by-stretch run under a chunk rule.
    pub(super) fn chunked(chunks: Chunks) -> Self {
        Self { streaming: true, chunks: Some(chunks), ..Self::default() }
    }

    /// For a stretch-by-stretch run in which everything remembered is seen.
    pub(super) fn open(ends: Ends) -> Self {
        Self { streaming: true, ends: Some(ends), ..Self::default() }
    }

    /// The same in little more than a quarter of the memory: keys and values are remembered at 8 bits.
    #[must_use]
    pub(super) fn packed(self) -> Self {
        Self { packed: true, ..self }
    }

    /// For one pass over everything under a chunk rule: carries nothing.
    pub(super) fn whole(chunks: Option<Chunks>) -> Self {
        Self { chunks, ..Self::default() }
    }

    /// The rule of a pass over everything; nothing where a stretch is one of several.
    pub(super) fn of_whole(&self) -> Option<Option<Chunks>> {
        (!self.streaming).then_some(self.chunks)
    }

    /// Begins a pass over `rows`: the next layer to ask is the network's first. The last `provisional` rows will come
    /// again, better informed, and are not remembered.
    pub(super) fn begin(&mut self, rows: usize, provisional: usize) {
        self.cursor = 0;
        self.provisional = provisional;
        self.ratio = 1;
        self.start = self.next;
        self.next += rows - provisional;
    }

    /// From here on there are `ratio` rows for each one the pass began with.
    pub(super) fn upsample(&mut self, ratio: usize) {
        self.provisional *= ratio;
        self.ratio = ratio;
    }

    /// Where the rows of this pass stand.
    pub(super) fn place(&self) -> Place {
        Place { start: self.start * self.ratio, chunks: self.chunks.map(|chunks| chunks.scaled(self.ratio)) }
    }

    /// A causal convolution, `xs: (B, T, in) -> (B, T, out)`; before the stream there were zeros.
    pub(super) fn conv(&mut self, conv: &Conv1d, xs: &Tensor) -> Result<Tensor> {
        conv.forward_unpadded(&self.history(conv, xs)?)
    }

    /// [`Self::conv`] added to `residual`.
    pub(super) fn conv_add(&mut self, conv: &Conv1d, xs: &Tensor, residual: &Tensor) -> Result<Tensor> {
        conv.forward_unpadded_add(&self.history(conv, xs)?, residual)
    }

    /// `xs` behind the rows that a causal convolution looks back to.
    fn history(&mut self, conv: &Conv1d, xs: &Tensor) -> Result<Tensor> {
        let history = conv.config().left;
        let rows = match self.slots.get(self.cursor) {
            Some(Slot::Rows(past)) => Tensor::cat(&[past, xs], 1)?,
            Some(_) => return Err(changed_places()),
            None => xs.pad_with_zeros(1, history, 0)?,
        };
        if self.streaming {
            let kept = rows.narrow(1, rows.dims3()?.1 - self.provisional - history, history)?.force_contiguous()?;
            self.put(Slot::Rows(kept));
        }
        Ok(rows)
    }

    /// Attention of `q` to the carried keys and values, then `k` and `v`, at `precision`; all `(B, T, H, D)`.
    pub(super) fn attend(
        &mut self,
        precision: Precision,
        (q, k, v): (&Tensor, Tensor, Tensor),
        scale: f64,
        place: &Place,
    ) -> Result<Tensor> {
        let rows = k.dims4()?.1;
        if !PackedKeys::suit(precision, &k)? {
            let (k, v) = self.keys(k, v, place)?;
            return attend(q, &k, &v, scale, &place.mask(rows, k.dims4()?.1), None);
        }
        let mut keys = match self.slots.get(self.cursor) {
            Some(Slot::Packed(past)) => past.clone(),
            Some(_) => return Err(changed_places()),
            None => PackedKeys::default(),
        };
        keys.push(&k, &v)?;
        let seen = attend_packed(q, &keys, scale, &place.mask(rows, keys.len()))?;
        if self.streaming {
            let len = keys.len() - self.provisional;
            let ends = self.ends.map(|ends| ends.scaled(self.ratio));
            let newest = Ends { first: 0, last: place.rows_to_keep(rows - self.provisional) };
            let Ends { first, last } = ends.unwrap_or(newest);
            keys.keep(len, first, last);
            self.put(Slot::Packed(keys));
        }
        Ok(seen)
    }

    /// All keys and values the rows of this pass may look at, `(B, T', H, D)`: the carried ones, then `k` and `v`.
    pub(super) fn keys(&mut self, k: Tensor, v: Tensor, place: &Place) -> Result<(Tensor, Tensor)> {
        if !self.streaming {
            return Ok((k, v));
        }
        let (first, last) = match self.slots.get(self.cursor) {
            Some(Slot::Keys { first, last }) => (first.clone(), last.clone()),
            Some(_) => return Err(changed_places()),
            None => (None, None),
        };
        let rows = k.dims4()?.1;
        let past = [&first, &last].map(Option::as_ref);
        let all =
            (join(past.map(|p| p.map(|(keys, _)| keys)), k)?, join(past.map(|p| p.map(|(_, values)| values)), v)?);
        let len = all.0.dims4()?.1 - self.provisional;
        let slot = match self.ends.map(|ends| ends.scaled(self.ratio)) {
            Some(ends) if len >= ends.first => {
                let first = if first.is_some() { first } else { Some(self.part(&all, 0, ends.first)?) };
                let kept = ends.last.min(len - ends.first);
                Slot::Keys { first, last: Some(self.part(&all, len - kept, kept)?) }
            }
            Some(_) => Slot::Keys { first: None, last: Some(self.part(&all, 0, len)?) },
            None => {
                let kept = place.rows_to_keep(rows - self.provisional).min(len);
                Slot::Keys { first: None, last: Some(self.part(&all, len - kept, kept)?) }
            }
        };
        self.put(slot);
        Ok(all)
    }

    /// A copy of some rows, so that the others are freed.
    fn part(&self, (k, v): &(Tensor, Tensor), from: usize, len: usize) -> Result<Past> {
        let copy = |t: &Tensor| Kept::new(&t.narrow(1, from, len)?, self.packed);
        Ok((copy(k)?, copy(v)?))
    }

    fn put(&mut self, slot: Slot) {
        match self.slots.get_mut(self.cursor) {
            Some(place) => *place = slot,
            None => self.slots.push(slot),
        }
        self.cursor += 1;
    }
}

fn changed_places() -> Error {
    Error::internal("the layers of a stream changed places")
}

impl Kept {
    fn new(rows: &Tensor, packed: bool) -> Result<Self> {
        if !packed {
            return Ok(Self::Plain(rows.force_contiguous()?));
        }
        if !matches!(rows.device(), Device::Cpu) {
            return Ok(Self::Plain(rows.force_contiguous()?.to_dtype(DType::BF16)?));
        }
        let (b, t, h, d) = rows.dims4()?;
        let mut kept = PackedRows::with_capacity(b * t * h, d);
        with_f32(rows, |values| {
            values.chunks_exact(d.max(1)).for_each(|row| kept.push(row));
            Ok(())
        })?;
        Ok(Self::Packed { rows: Arc::new(kept), dims: [b, t, h, d] })
    }

    fn len(&self) -> usize {
        match self {
            Self::Plain(t) => t.dims()[1],
            Self::Packed { dims, .. } => dims[1],
        }
    }
}

/// What was kept and what is new, `(B, T, H, D)`, one after the other in f32.
fn join(past: [Option<&Kept>; 2], new: Tensor) -> Result<Tensor> {
    if past.iter().flatten().all(|kept| matches!(kept, Kept::Plain(_))) {
        let mut parts = Vec::new();
        for kept in past.into_iter().flatten() {
            if let Kept::Plain(t) = kept {
                parts.push(t.to_dtype(DType::F32)?);
            }
        }
        return if parts.is_empty() { Ok(new) } else { Ok(Tensor::cat(&[parts, vec![new]].concat(), 1)?) };
    }
    let (b, t, h, d) = new.dims4()?;
    let before: usize = past.iter().flatten().map(|kept| kept.len()).sum();
    let mut all = vec![0f32; b * (before + t) * h * d];
    with_strided(&new, |new, stride| {
        all.par_chunks_exact_mut(((before + t) * h * d).max(1)).enumerate().for_each(|(batch, all)| {
            let (old, recent) = all.split_at_mut(before * h * d);
            let mut at = 0;
            for kept in past.into_iter().flatten() {
                if let Kept::Packed { rows, dims } = kept {
                    let values = dims[1] * h * d;
                    rows.unpack(batch * dims[1] * h, d, &mut old[at..at + values]);
                    at += values;
                }
            }
            for (i, head) in recent.chunks_exact_mut(d.max(1)).enumerate() {
                let from = batch * stride[0] + i / h * stride[1] + i % h * stride[2];
                head.copy_from_slice(&new[from..from + d]);
            }
        });
        Ok(())
    })?;
    from_f32(all, (b, before + t, h, d))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, clippy::unwrap_used)]
    use candle_core::Device;

    use super::*;

    fn values(t: &Tensor) -> Vec<f32> {
        t.flatten_all().unwrap().to_vec1().unwrap()
    }

    fn ranges(place: Place, queries: usize, keys: usize) -> Vec<(u32, u32)> {
        match place.mask(queries, keys) {
            Mask::Ranges(ranges) => ranges,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_row_sees_its_chunk_and_as_many_before_as_it_may() {
        let rule = |left| Some(Chunks { prompt: 0, first: 2, size: 2, left });
        assert_eq!(ranges(Place { start: 0, chunks: rule(None) }, 5, 5), [(0, 2), (0, 2), (0, 4), (0, 4), (0, 5)]);
        assert_eq!(ranges(Place { start: 0, chunks: rule(Some(1)) }, 5, 5), [(0, 2), (0, 2), (0, 4), (0, 4), (2, 5)]);
        // Rows 4 and 5 of a stream whose carried keys begin at row 2.
        assert_eq!(ranges(Place { start: 4, chunks: rule(Some(1)) }, 2, 4), [(0, 4), (0, 4)]);
    }

    #[test]
    fn an_open_stream_remembers_both_ends() {
        let mut carry = Carry::open(Ends { first: 3, last: 2 });
        let row = |from: usize, to: usize| {
            let rows = Tensor::arange(from as f32, to as f32, &Device::Cpu).unwrap();
            rows.reshape((1, to - from, 1, 1)).unwrap()
        };
        let mut pass = |from: usize, to: usize, provisional: usize| {
            carry.begin(to - from, provisional);
            let (k, v) = carry.keys(row(from, to), row(from, to), &carry.place()).unwrap();
            assert_eq!(values(&k), values(&v));
            values(&k)
        };
        // Fewer than the first three are there; row 3 is provisional and comes again.
        assert_eq!(pass(0, 4, 2), [0., 1., 2., 3.]);
        assert_eq!(pass(2, 8, 1), [0., 1., 2., 3., 4., 5., 6., 7.]);
        assert_eq!(pass(7, 10, 0), [0., 1., 2., 5., 6., 7., 8., 9.]);
        assert_eq!(pass(10, 11, 0), [0., 1., 2., 8., 9., 10.]);
    }

    #[test]
    fn eight_bits_see_what_f32_sees() {
        let rows = |from: usize, to: usize| {
            let one = |i: usize| ((i * 37 % 101) as f32 / 50.0 - 1.0) * (1.0 + (i % 7) as f32);
            Tensor::from_vec((from * 128..to * 128).map(one).collect(), (1, to - from, 2, 64), &Device::Cpu).unwrap()
        };
        let rule = Chunks { prompt: 0, first: 40, size: 40, left: Some(2) };
        for carry in [
            Carry::open(Ends { first: 150, last: 20 }).packed(),
            Carry::open(Ends { first: 9, last: 300 }),
            Carry::chunked(rule),
        ] {
            let (mut exact, mut near) = (carry.clone(), carry);
            for (from, to, provisional) in [(0, 160, 0), (160, 200, 0), (200, 280, 40), (240, 400, 0)] {
                let pass = |carry: &mut Carry, precision| {
                    carry.begin(to - from, provisional);
                    let xs = rows(from, to);
                    let place = carry.place();
                    values(&carry.attend(precision, (&xs, xs.clone(), xs.clone()), 0.02, &place).unwrap())
                };
                let (exact, near) = (pass(&mut exact, Precision::F32), pass(&mut near, Precision::Int8));
                let largest = exact.iter().fold(0f32, |a, x| a.max(x.abs()));
                assert_eq!(exact.len(), near.len());
                let error = exact.iter().zip(&near).fold(0f32, |a, (x, y)| a.max((x - y).abs()));
                assert!(error < 0.03 * largest, "{from}: {error} of {largest}");
            }
        }
    }

    #[test]
    fn packed_rows_come_back_in_their_places() {
        // Two batch rows, three heads of four; every value tells where it belongs.
        let rows = |from: usize, to: usize| {
            let value = |b: usize, t: usize, i: usize| (100 * (b + 1) + 10 * t) as f32 + i as f32;
            let all = (0..2).flat_map(|b| (from..to).flat_map(move |t| (0..12).map(move |i| value(b, t, i))));
            Tensor::from_vec(all.collect::<Vec<f32>>(), (2, to - from, 3, 4), &Device::Cpu).unwrap()
        };
        let pass = |carry: &mut Carry, from: usize, to: usize| {
            carry.begin(to - from, 1);
            // As attention gives them: a part of a larger tensor.
            let wide = Tensor::stack(&[rows(from, to), rows(from, to)], 2).unwrap();
            let part = wide.narrow(2, 1, 1).unwrap().squeeze(2).unwrap();
            let (k, v) = carry.keys(part.clone(), part, &carry.place()).unwrap();
            assert_eq!(values(&k), values(&v));
            values(&k)
        };
        let (mut plain, mut packed) =
            (Carry::open(Ends { first: 3, last: 2 }), Carry::open(Ends { first: 3, last: 2 }).packed());
        for (from, to) in [(0, 2), (1, 7), (6, 9), (8, 10)] {
            let (exact, near) = (pass(&mut plain, from, to), pass(&mut packed, from, to));
            assert_eq!(exact.len(), near.len());
            assert!(exact.iter().zip(&near).all(|(a, b)| (a - b).abs() <= a / 200.0), "{exact:?} {near:?}");
        }
    }

    #[test]
    fn only_what_the_next_chunk_can_see_is_kept() {
        let place = |start, left| Place { start, chunks: Some(Chunks { prompt: 0, first: 4, size: 4, left }) };
        assert_eq!(place(0, Some(1)).rows_to_keep(8), 4);
        assert_eq!(place(8, Some(2)).rows_to_keep(4), 8);
        assert_eq!(place(8, None).rows_to_keep(4), 12);
    }
}
