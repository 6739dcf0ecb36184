//! Attention at 8 bits to keys and values that come in pieces.

use std::sync::Arc;

use candle_core::{Device, Tensor};

use super::{Mask, head_rows};
use crate::error::{Error, Result};
use crate::kernels::attention::Shape;
use crate::kernels::int8::attention::{Attention, MAX_DIM, Packed, Piece};
use crate::kernels::view::{from_f32, with_strided};
use crate::protocol::Precision;

/// Keys and values at 8 bits, in the pieces in which they came: for [`attend_packed`].
#[derive(Debug, Clone, Default)]
pub struct PackedKeys {
    pieces: Vec<Piece>,
}

impl PackedKeys {
    /// Whether keys and values of this precision, device and head size are kept so.
    ///
    /// # Errors
    /// If `k` is no `(B, T, H, D)`.
    pub fn suit(precision: Precision, k: &Tensor) -> Result<bool> {
        Ok(precision == Precision::Int8 && matches!(k.device(), Device::Cpu) && k.dims4()?.3 <= MAX_DIM)
    }

    /// The rows of all pieces.
    pub fn len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.range.len()).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends `k, v: (B, T, H, D)`.
    ///
    /// # Errors
    /// If the shapes differ.
    pub fn push(&mut self, k: &Tensor, v: &Tensor) -> Result<()> {
        let (batch, capacity, heads, dim) = k.dims4()?;
        if v.dims() != k.dims() {
            return Err(Error::internal(format!("keys {:?} and values {:?} differ in shape", k.dims(), v.dims())));
        }
        let shape = Shape { batch, heads, dim, capacity };
        let packed = with_strided(k, |k, k_stride| {
            with_strided(v, |v, v_stride| Ok(Packed::new(head_rows(k, k_stride), head_rows(v, v_stride), shape)))
        })?;
        self.pieces.push(Piece { rows: Arc::new(packed), range: 0..capacity });
        Ok(())
    }

    /// Forgets all but the `first` oldest rows and the `last` newest ones of `len`.
    pub fn keep(&mut self, len: usize, first: usize, last: usize) {
        let newest = len.saturating_sub(last).max(first);
        let mut at = 0;
        let pieces = std::mem::take(&mut self.pieces).into_iter().flat_map(|Piece { rows, range }| {
            let here = |from: usize, to: usize| {
                let inside = |row: usize| row.clamp(at, at + range.len()) - at + range.start;
                Piece { rows: rows.clone(), range: inside(from)..inside(to) }
            };
            let parts = [here(0, first.min(len)), here(newest.min(len), len)];
            at += range.len();
            parts
        });
        self.pieces = pieces.filter(|piece| !piece.range.is_empty()).collect();
    }
}

/// `softmax(q kᵀ · scale + mask) v` at 8 bits: `q: (B, Tq, H, D)`; returns `(B, Tq, H · D)`.
///
/// # Errors
/// If shapes disagree.
pub fn attend_packed(q: &Tensor, keys: &PackedKeys, scale: f64, mask: &Mask) -> Result<Tensor> {
    let (b, tq, h, d) = q.dims4()?;
    mask.check(tq)?;
    if let Some(shape) =
        keys.pieces.iter().map(|piece| piece.rows.shape()).find(|s| (s.batch, s.heads, s.dim) != (b, h, d))
    {
        return Err(Error::internal(format!("queries {:?} do not fit the keys {shape:?}", q.dims())));
    }
    let len = keys.len();
    let mut out = vec![0f32; b * tq * h * d];
    with_strided(q, |q, stride| {
        let sees = |i: usize| mask.sees(i, len);
        let (q, scale, pieces) = (head_rows(q, stride), scale as f32, &keys.pieces[..]);
        Attention { q, queries: tq, pieces, scale, sees: &sees }.run(&mut out);
        Ok(())
    })?;
    from_f32(out, (b, tq, h * d))
}
