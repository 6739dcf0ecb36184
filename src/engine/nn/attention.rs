//! Scaled dot-product attention over `(B, T, H, D)` and the cache of keys and values.

use std::ops::Range;

use candle_core::{DType, Device, IndexOp, Tensor};
use half::f16;

use crate::error::{Error, Result};
use crate::kernels::attention::{Attention, Extra, HeadRows, Keys, Shape, Values};
use crate::kernels::element::Element;
use crate::kernels::view::{from_f32, with_f32, with_strided};
use crate::protocol::Precision;

mod packed;

pub use packed::{PackedKeys, attend_packed};

/// Which keys a query may see. Query `i` and key `j` count from the start of their tensors.
#[derive(Debug, Clone)]
pub enum Mask {
    /// Every query sees every key.
    Full,
    /// Query `i` sees keys `0 ..= i + offset`.
    Causal {
        /// Number of keys that came before the first query.
        offset: usize,
    },
    /// Query `i` sees keys `ranges[i].0 .. ranges[i].1`: chunk-causal and padded attention.
    Ranges(Vec<(u32, u32)>),
}

impl Mask {
    /// The keys that query `i` of `keys` sees.
    fn sees(&self, i: usize, keys: usize) -> Range<usize> {
        match self {
            Self::Full => 0..keys,
            Self::Causal { offset } => 0..(i + offset + 1).min(keys),
            Self::Ranges(ranges) => {
                ranges.get(i).map_or(0..0, |&(from, to)| (from as usize).min(keys)..(to as usize).min(keys))
            }
        }
    }

    fn check(&self, queries: usize) -> Result<()> {
        match self {
            Self::Ranges(ranges) if ranges.len() != queries => {
                Err(Error::internal(format!("{} key ranges for {queries} queries", ranges.len())))
            }
            _ => Ok(()),
        }
    }

    /// An additive `(Tq, Tk)` mask of 0 and minus infinity, or nothing where all is seen.
    fn additive(&self, queries: usize, keys: usize, device: &Device) -> Result<Option<Tensor>> {
        if matches!(self, Self::Full) {
            return Ok(None);
        }
        let mut values = vec![f32::NEG_INFINITY; queries * keys];
        for (i, row) in values.chunks_exact_mut(keys.max(1)).enumerate() {
            if let Some(seen) = row.get_mut(self.sees(i, keys)) {
                seen.fill(0.0);
            }
        }
        Ok(Some(Tensor::from_vec(values, (queries, keys), device)?))
    }
}

/// `softmax(q kᵀ · scale + bias + mask) v`.
///
/// `q: (B, Tq, H, D)`, `k, v: (B, Tk, H, D)`, `bias: (B or 1, H, Tq, Tk)` is added after scaling;
/// returns `(B, Tq, H · D)`.
///
/// # Errors
/// If shapes disagree.
pub fn attend(q: &Tensor, k: &Tensor, v: &Tensor, scale: f64, mask: &Mask, bias: Option<&Tensor>) -> Result<Tensor> {
    mask.check(q.dims4()?.1)?;
    if !matches!(q.device(), Device::Cpu) {
        return attend_device(q, k, v, scale, mask, bias);
    }
    let (keys, values) = pack(k, v)?;
    let call = Call { keys: &keys, values: &values, len: k.dims4()?.1, scale: scale as f32, mask };
    match bias {
        None => call.run(q, Extra::None),
        Some(bias) => with_f32(bias, |bias| call.run(q, Extra::Bias(bias))),
    }
}

/// Attention with a term for the distance: `softmax((q_u kᵀ + q_v p[Tq - 1 - i + j]ᵀ) · scale + mask) v`.
///
/// `q_u, q_v: (1, Tq, H, D)`, `k, v: (1, Tk, H, D)`; `p: (1, Tq + Tk - 1, H, D)` holds a row for each distance of a
/// query from a key, the last key standing beside the last query: from `Tk - 1` down to `1 - Tq`. Returns
/// `(1, Tq, H · D)`.
///
/// # Errors
/// If shapes disagree.
pub fn attend_relative(
    (q_u, q_v): (&Tensor, &Tensor),
    k: &Tensor,
    v: &Tensor,
    p: &Tensor,
    scale: f64,
    mask: &Mask,
) -> Result<Tensor> {
    let (b, tq, h, d) = q_u.dims4()?;
    let tk = k.dims4()?.1;
    mask.check(tq)?;
    if b != 1 || q_v.dims() != q_u.dims() || p.dims4()? != (1, (tq + tk).saturating_sub(1), h, d) {
        return Err(Error::internal(format!(
            "relative attention of {:?} and {:?} to {tk} keys was given distances {:?}",
            q_u.dims(),
            q_v.dims(),
            p.dims()
        )));
    }
    if !matches!(q_u.device(), Device::Cpu) {
        let bias = (relative_term(&q_v.squeeze(0)?, &p.squeeze(0)?, tk)? * scale)?.unsqueeze(0)?;
        return attend_device(q_u, k, v, scale, mask, Some(&bias));
    }
    let (keys, values) = pack(k, v)?;
    let mut distances = Keys::new(Shape { batch: 1, heads: h, dim: d, capacity: tq + tk - 1 });
    with_strided(p, |data, stride| {
        distances.write(0, tq + tk - 1, head_rows(data, stride));
        Ok(())
    })?;
    let call = Call { keys: &keys, values: &values, len: tk, scale: scale as f32, mask };
    with_strided(q_v, |data, stride| call.run(q_u, Extra::Relative(head_rows(data, stride), &distances)))
}

/// Keys and values of a call as the kernel wants them.
fn pack(k: &Tensor, v: &Tensor) -> Result<(Keys<f32>, Values<f32>)> {
    let (batch, capacity, heads, dim) = k.dims4()?;
    if v.dims() != k.dims() {
        return Err(Error::internal(format!("keys {:?} and values {:?} differ in shape", k.dims(), v.dims())));
    }
    let shape = Shape { batch, heads, dim, capacity };
    let (mut keys, mut values) = (Keys::new(shape), Values::new(shape));
    append(&mut keys, &mut values, 0, k, v)?;
    Ok((keys, values))
}

/// Writes `k, v: (B or 1, T, H, D)` from position `start` on; one row for all where there is only one.
fn append<E: Element>(keys: &mut Keys<E>, values: &mut Values<E>, start: usize, k: &Tensor, v: &Tensor) -> Result<()> {
    let count = k.dims4()?.1;
    with_strided(k, |data, stride| {
        keys.write(start, count, for_all(k, head_rows(data, stride)));
        Ok(())
    })?;
    with_strided(v, |data, stride| {
        values.write(start, count, for_all(v, head_rows(data, stride)));
        Ok(())
    })
}

/// The same row over and over where `xs` has only one.
fn for_all<'a>(xs: &Tensor, rows: HeadRows<'a>) -> HeadRows<'a> {
    if xs.dims().first() == Some(&1) { HeadRows { batch: 0, ..rows } } else { rows }
}

fn head_rows<'a>(data: &'a [f32], stride: &[usize]) -> HeadRows<'a> {
    HeadRows { data, batch: stride[0], row: stride[1], head: stride[2] }
}

struct Call<'a, E> {
    keys: &'a Keys<E>,
    values: &'a Values<E>,
    len: usize,
    scale: f32,
    mask: &'a Mask,
}

impl<E: Element> Call<'_, E> {
    fn run(&self, q: &Tensor, extra: Extra<'_>) -> Result<Tensor> {
        let (b, tq, h, d) = q.dims4()?;
        let shape = self.keys.shape();
        if b > shape.batch || (h, d) != (shape.heads, shape.dim) {
            return Err(Error::internal(format!("queries {:?} do not fit the keys {shape:?}", q.dims())));
        }
        if let Extra::Bias(bias) = extra
            && ![1, b].map(|b| b * h * tq * self.len).contains(&bias.len())
        {
            return Err(Error::internal(format!("a bias of {} scores for queries {:?}", bias.len(), q.dims())));
        }
        let mut out = vec![0f32; b * tq * h * d];
        with_strided(q, |data, stride| {
            let sees = |i: usize| self.mask.sees(i, self.len);
            let (q, k, v) = (head_rows(data, stride), self.keys, self.values);
            let (scale, sees) = (self.scale, &sees);
            Attention { batch: b, q, queries: tq, k, v, keys: self.len, scale, sees, extra }.run(&mut out);
            Ok(())
        })?;
        from_f32(out, (b, tq, h * d))
    }
}

/// [`attend`] in the operations every device has.
fn attend_device(q: &Tensor, k: &Tensor, v: &Tensor, scale: f64, mask: &Mask, bias: Option<&Tensor>) -> Result<Tensor> {
    let (b, tq, h, d) = q.dims4()?;
    let tk = k.dims4()?.1;
    let q = (q.transpose(1, 2)?.contiguous()? * scale)?;
    let k = k.transpose(1, 2)?.contiguous()?;
    let v = v.transpose(1, 2)?.contiguous()?;
    let mut scores = q.matmul(&k.t()?)?;
    if let Some(bias) = bias {
        scores = scores.broadcast_add(bias)?;
    }
    if let Some(mask) = mask.additive(tq, tk, q.device())? {
        scores = scores.broadcast_add(&mask)?;
    }
    let weights = candle_nn::ops::softmax_last_dim(&scores)?;
    Ok(weights.matmul(&v)?.transpose(1, 2)?.reshape((b, tq, h * d))?)
}

/// Rows of the relative term that a device computes at once: larger wastes products at the corners, smaller calls.
const RELATIVE_BLOCK: usize = 64;

/// `out[h, i, j] = q[i, h] · p[r, h]`, where row `r` of `p` belongs to the distance of query `i` from key `j`.
///
/// `q: (Tq, H, D)`; `p: (Tq + keys - 1, H, D)`, the distances falling from `keys - 1` to `1 - Tq`; `(H, Tq, keys)`.
///
/// Query `i` needs `keys` neighbouring rows of `p`, one further down for each query before it. For a block of queries
/// this is one product whose row `i` begins one column earlier than row `i - 1`; read with rows shorter by one, the
/// windows stand in line, so the shift costs no gather and the product hardly exceeds what is needed.
fn relative_term(q: &Tensor, p: &Tensor, keys: usize) -> Result<Tensor> {
    let (queries, heads, _) = q.dims3()?;
    let q = q.transpose(0, 1)?.contiguous()?;
    let p = p.transpose(0, 1)?.contiguous()?;
    let mut blocks = Vec::with_capacity(queries.div_ceil(RELATIVE_BLOCK));
    for first in (0..queries).step_by(RELATIVE_BLOCK) {
        let rows = RELATIVE_BLOCK.min(queries - first);
        let width = keys + rows - 1;
        let window = p.narrow(1, queries - first - rows, width)?;
        let scores = q.narrow(1, first, rows)?.matmul(&window.t()?)?;
        blocks.push(if rows == 1 {
            scores
        } else {
            let line = scores.reshape((heads, rows * width))?.narrow(1, rows - 1, rows * (width - 1))?;
            line.reshape((heads, rows, width - 1))?.narrow(2, 0, keys)?
        });
    }
    Ok(Tensor::cat(&blocks, 1)?)
}

/// Keys and values of one layer, allocated once for a maximum length; on the CPU memory is taken as it is filled.
#[derive(Debug)]
pub struct KvCache {
    store: Store,
    capacity: usize,
    len: usize,
}

#[derive(Debug)]
enum Store {
    Cpu(Keys<f32>, Values<f32>),
    /// In half the memory, which is half the reading.
    Half(Keys<f16>, Values<f16>),
    /// In a little more than a quarter, with a scale for each key and value of each head.
    Int8(Keys<i8>, Values<i8>),
    /// `(B, capacity, H, D)` each.
    Device(Tensor, Tensor),
}

impl KvCache {
    /// An empty cache for `batch` rows of at most `capacity` positions. The CPU keeps it at `precision`, bf16 as f16;
    /// other devices in f32.
    ///
    /// # Errors
    /// If the device is out of memory.
    pub fn new(
        (batch, capacity): (usize, usize),
        (heads, head_dim): (usize, usize),
        precision: Precision,
        device: &Device,
    ) -> Result<Self> {
        let shape = Shape { batch, heads, dim: head_dim, capacity };
        let store = match (device, precision) {
            (Device::Cpu, Precision::F32) => Store::Cpu(Keys::cache(shape), Values::cache(shape)),
            (Device::Cpu, Precision::F16 | Precision::Bf16) => Store::Half(Keys::cache(shape), Values::cache(shape)),
            (Device::Cpu, Precision::Int8) => Store::Int8(Keys::cache(shape), Values::cache(shape)),
            _ => {
                let zeros = || Tensor::zeros((batch, capacity, heads, head_dim), DType::F32, device);
                Store::Device(zeros()?, zeros()?)
            }
        };
        Ok(Self { store, capacity, len: 0 })
    }

    /// Number of positions filled.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is filled.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets all but the first `len` positions.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Gives the memory behind the filled positions back to the system; the room stays.
    pub fn release(&mut self) {
        match &mut self.store {
            Store::Cpu(keys, values) => (*keys, *values) = (keys.first(self.len), values.first(self.len)),
            Store::Half(keys, values) => (*keys, *values) = (keys.first(self.len), values.first(self.len)),
            Store::Int8(keys, values) => (*keys, *values) = (keys.first(self.len), values.first(self.len)),
            Store::Device(..) => (),
        }
    }

    /// Appends `k, v: (B, T, H, D)`, then attends with `q: (B, T, H, D)` causally; returns `(B, T, H · D)`. Where `B` is
    /// 1 and the cache has more rows, all of them go on alike.
    ///
    /// # Errors
    /// If the cache is full or shapes disagree.
    pub fn append_and_attend(&mut self, q: &Tensor, k: &Tensor, v: &Tensor, scale: f64) -> Result<Tensor> {
        let t = k.dims4()?.1;
        let (offset, len) = (self.len, self.len + t);
        if len > self.capacity {
            return Err(Error::internal(format!("{len} positions do not fit a cache of {}", self.capacity)));
        }
        let mask = Mask::Causal { offset };
        let out = match &mut self.store {
            Store::Cpu(keys, values) => grow_and_attend(keys, values, (q, k, v), scale, &mask, offset)?,
            Store::Half(keys, values) => grow_and_attend(keys, values, (q, k, v), scale, &mask, offset)?,
            Store::Int8(keys, values) => grow_and_attend(keys, values, (q, k, v), scale, &mask, offset)?,
            Store::Device(keys, values) => {
                let rows = (keys.dims()[0], t, k.dims()[2], k.dims()[3]);
                keys.slice_set(&k.broadcast_as(rows)?.contiguous()?, 1, offset)?;
                values.slice_set(&v.broadcast_as(rows)?.contiguous()?, 1, offset)?;
                let seen = |all: &Tensor| all.narrow(0, 0, q.dims()[0])?.narrow(1, 0, len);
                attend_device(q, &seen(keys)?, &seen(values)?, scale, &mask, None)?
            }
        };
        self.len = len;
        Ok(out)
    }

    /// The keys so far of one batch row and head, `(len, D)`.
    ///
    /// # Errors
    /// If there is no such row or head.
    pub fn keys(&self, row: usize, head: usize) -> Result<Tensor> {
        match &self.store {
            Store::Cpu(keys, _) => first_keys(keys, self.len, row, head),
            Store::Half(keys, _) => first_keys(keys, self.len, row, head),
            Store::Int8(keys, _) => first_keys(keys, self.len, row, head),
            Store::Device(keys, _) => Ok(keys.i((row, ..self.len, head))?),
        }
    }
}

/// Writes `k, v: (B, T, H, D)` behind `offset` positions, then attends to all.
fn grow_and_attend<E: Element>(
    keys: &mut Keys<E>,
    values: &mut Values<E>,
    (q, k, v): (&Tensor, &Tensor, &Tensor),
    scale: f64,
    mask: &Mask,
    offset: usize,
) -> Result<Tensor> {
    let Shape { batch, heads, dim, .. } = keys.shape();
    let t = k.dims4()?.1;
    if ![1, batch].map(|b| [b, t, heads, dim]).iter().any(|fit| k.dims() == fit) || v.dims() != k.dims() {
        return Err(Error::internal(format!("keys {:?} do not fit the cache", k.dims())));
    }
    append(keys, values, offset, k, v)?;
    Call { keys, values, len: offset + t, scale: scale as f32, mask }.run(q, Extra::None)
}

fn first_keys<E: Element>(keys: &Keys<E>, len: usize, row: usize, head: usize) -> Result<Tensor> {
    let Shape { batch, heads, dim, .. } = keys.shape();
    if row >= batch || head >= heads {
        return Err(Error::internal(format!("a cache of {heads} heads was asked for head {head}")));
    }
    from_f32((0..len).flat_map(|t| keys.key(row, t, head)).collect(), (len, dim))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;

    use super::*;
    use crate::kernels::testing::pseudo;

    /// Other values at each call, the same in each run.
    fn random(dims: (usize, usize, usize, usize)) -> Tensor {
        thread_local! { static CALLS: Cell<u64> = const { Cell::new(0) }; }
        CALLS.set(CALLS.get() + 1);
        let (b, t, h, d) = dims;
        let values = pseudo(b * t * h * d, CALLS.get()).iter().map(|x| x * 2.0).collect();
        Tensor::from_vec(values, dims, &Device::Cpu).unwrap()
    }

    fn assert_near(found: &Tensor, expected: &Tensor) {
        assert_within(found, expected, 1e-5);
    }

    fn assert_within(found: &Tensor, expected: &Tensor, error: f32) {
        assert_eq!(found.dims(), expected.dims());
        let difference = (found - expected).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        assert!(difference < error, "{difference}");
    }

    #[test]
    fn the_relative_term_pairs_every_query_with_its_distance() {
        // One channel: p holds the distances themselves and q is 1, so the term is the distance.
        for (queries, keys) in [(1, 1), (1, 5), (3, 3), (70, 70), (65, 130), (130, 200)] {
            let rows = queries + keys - 1;
            let p: Vec<f32> = (0..rows).map(|r| keys as f32 - 1.0 - r as f32).collect();
            let p = Tensor::from_vec(p, (rows, 1, 1), &Device::Cpu).unwrap();
            let q = Tensor::ones((queries, 1, 1), DType::F32, &Device::Cpu).unwrap();
            let term = relative_term(&q, &p, keys).unwrap().squeeze(0).unwrap().to_vec2::<f32>().unwrap();
            for (i, row) in term.iter().enumerate() {
                let query_position = keys - queries + i;
                let expected: Vec<f32> = (0..keys).map(|j| query_position as f32 - j as f32).collect();
                assert_eq!(row, &expected, "{queries} queries, {keys} keys, query {i}");
            }
        }
    }

    #[test]
    fn the_kernel_and_the_plain_operations_agree() {
        for (b, tq, tk, h, d) in [(1, 1, 9, 2, 8), (2, 70, 70, 3, 16), (2, 5, 300, 1, 64)] {
            // Heads cut out of wider rows, as a fused projection leaves them.
            let part = |t: usize| random((b, t, 3 * h, d)).narrow(2, h, h).unwrap();
            let (q, k, v) = (part(tq), part(tk), part(tk));
            let bias = random((1, h, tq, tk));
            let ranges = (0..tq as u32).map(|i| (i % 5, (i + 6).min(tk as u32))).collect();
            for mask in [Mask::Full, Mask::Causal { offset: tk - tq }, Mask::Ranges(ranges)] {
                for bias in [None, Some(&bias)] {
                    let expected = attend_device(&q, &k, &v, 0.2, &mask, bias).unwrap();
                    assert_near(&attend(&q, &k, &v, 0.2, &mask, bias).unwrap(), &expected);
                }
            }
        }
    }

    #[test]
    fn relative_attention_is_attention_with_the_relative_term() {
        for (tq, tk, h, d) in [(1, 1, 1, 4), (9, 9, 2, 16), (70, 333, 2, 48)] {
            let (q_u, q_v) = (random((1, tq, h, d)), random((1, tq, h, d)));
            let (k, v, p) = (random((1, tk, h, d)), random((1, tk, h, d)), random((1, tq + tk - 1, h, d)));
            let term = relative_term(&q_v.squeeze(0).unwrap(), &p.squeeze(0).unwrap(), tk).unwrap();
            let bias = (term * 0.2).unwrap().unsqueeze(0).unwrap();
            let mask = Mask::Causal { offset: tk - tq };
            let expected = attend_device(&q_u, &k, &v, 0.2, &mask, Some(&bias)).unwrap();
            assert_near(&attend_relative((&q_u, &q_v), &k, &v, &p, 0.2, &mask).unwrap(), &expected);
        }
    }

    #[test]
    fn one_row_for_all_is_as_good_as_the_same_row_in_each() {
        let (q, k, v) = (random((1, 23, 2, 16)), random((1, 23, 2, 16)), random((1, 23, 2, 16)));
        let twice = |x: &Tensor| Tensor::cat(&[x, x], 0).unwrap();
        let cache = || KvCache::new((2, 30), (2, 16), Precision::F32, &Device::Cpu).unwrap();
        let (mut one, mut each) = (cache(), cache());
        let of_one = one.append_and_attend(&q, &k, &v, 0.3).unwrap();
        let of_each = each.append_and_attend(&twice(&q), &twice(&k), &twice(&v), 0.3).unwrap();
        assert_near(&twice(&of_one), &of_each);
        one.release();
        let next = |x: &Tensor| twice(&x.narrow(1, 3, 5).unwrap());
        let [of_one, of_each] =
            [&mut one, &mut each].map(|cache| cache.append_and_attend(&next(&q), &next(&k), &next(&v), 0.3).unwrap());
        assert_near(&of_one, &of_each);
    }

    #[test]
    fn a_cache_attends_like_the_whole_and_gives_its_keys_back() {
        let (b, t, h, d) = (2, 41, 3, 24);
        let (q, k, v) = (random((b, t, h, d)), random((b, t, h, d)), random((b, t, h, d)));
        let whole = attend_device(&q, &k, &v, 0.3, &Mask::Causal { offset: 0 }, None).unwrap();
        for (precision, error) in [(Precision::F32, 1e-5), (Precision::F16, 2e-3), (Precision::Int8, 3e-2)] {
            let mut cache = KvCache::new((b, t), (h, d), precision, &Device::Cpu).unwrap();
            for (from, len) in [(0, 17), (17, 1), (18, 1), (10, 8), (18, 23)] {
                cache.truncate(from);
                let part = |x: &Tensor| x.narrow(1, from, len).unwrap();
                let found = cache.append_and_attend(&part(&q), &part(&k), &part(&v), 0.3).unwrap();
                assert_within(&found, &whole.narrow(1, from, len).unwrap(), error);
            }
            cache.release();
            assert_within(&cache.keys(1, 2).unwrap(), &k.i((1, .., 2)).unwrap(), error);
            assert!(cache.append_and_attend(&q, &k, &v, 0.3).is_err(), "the cache is full");
        }
    }
}
