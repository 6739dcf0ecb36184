//! Scaled dot-product attention over `(B, T, H, D)` and the cache of keys and values.

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};

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
    /// An additive `(Tq, Tk)` mask of 0 and minus infinity, or nothing where all is seen.
    fn additive(&self, queries: usize, keys: usize, device: &Device) -> Result<Option<Tensor>> {
        let sees: Box<dyn Fn(usize) -> (usize, usize)> = match self {
            Self::Full => return Ok(None),
            Self::Causal { .. } if queries == 1 => return Ok(None),
            Self::Causal { offset } => {
                let offset = *offset;
                Box::new(move |i| (0, i + offset + 1))
            }
            Self::Ranges(ranges) if ranges.len() != queries => {
                return Err(Error::internal(format!("{} key ranges for {queries} queries", ranges.len())));
            }
            Self::Ranges(ranges) => Box::new(|i| (ranges[i].0 as usize, ranges[i].1 as usize)),
        };
        let mut values = vec![f32::NEG_INFINITY; queries * keys];
        for (i, row) in values.chunks_exact_mut(keys).enumerate() {
            let (from, to) = sees(i);
            row[from.min(keys)..to.min(keys)].fill(0.0);
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

/// Keys and values of one layer, allocated once for a maximum length.
#[derive(Debug)]
pub struct KvCache {
    k: Tensor,
    v: Tensor,
    len: usize,
}

impl KvCache {
    /// An empty cache for `batch` rows of at most `capacity` positions.
    ///
    /// # Errors
    /// If the device is out of memory.
    pub fn new(batch: usize, capacity: usize, heads: usize, head_dim: usize, device: &Device) -> Result<Self> {
        let zeros = || Tensor::zeros((batch, capacity, heads, head_dim), DType::F32, device);
        Ok(Self { k: zeros()?, v: zeros()?, len: 0 })
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

    /// Appends `k, v: (B, T, H, D)`, then attends with `q: (B, T, H, D)` causally; returns `(B, T, H · D)`.
    ///
    /// # Errors
    /// If the cache is full.
    pub fn append_and_attend(&mut self, q: &Tensor, k: &Tensor, v: &Tensor, scale: f64) -> Result<Tensor> {
        let t = k.dims4()?.1;
        let capacity = self.k.dims4()?.1;
        if self.len + t > capacity {
            return Err(Error::internal(format!("{} positions do not fit a cache of {capacity}", self.len + t)));
        }
        self.k.slice_set(&k.contiguous()?, 1, self.len)?;
        self.v.slice_set(&v.contiguous()?, 1, self.len)?;
        let offset = self.len;
        self.len += t;
        attend(q, &self.keys()?, &self.v.narrow(1, 0, self.len)?, scale, &Mask::Causal { offset }, None)
    }

    /// The keys so far, `(B, len, H, D)`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn keys(&self) -> Result<Tensor> {
        Ok(self.k.narrow(1, 0, self.len)?)
    }
}
