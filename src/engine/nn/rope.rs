//! Rotary position embedding, rotate-half convention: the head is split in halves `(a, b)` and becomes
//! `(a cos - b sin, b cos + a sin)`.

use candle_core::{Device, Tensor};

use crate::error::Result;

/// Cosine and sine tables of `positions` rows for one head size.
#[derive(Debug, Clone)]
pub struct Rope {
    cos: Tensor,
    sin: Tensor,
}

impl Rope {
    /// Tables for the given inverse frequencies (`head_dim / 2` of them).
    ///
    /// # Errors
    /// If the device is out of memory.
    pub fn new(inv_freq: &[f32], positions: usize, device: &Device) -> Result<Self> {
        let half = inv_freq.len();
        let angles: Vec<f32> = (0..positions).flat_map(|p| inv_freq.iter().map(move |f| p as f32 * f)).collect();
        let angles = Tensor::from_vec(angles, (positions, half), device)?;
        Ok(Self { cos: angles.cos()?, sin: angles.sin()? })
    }

    /// Rotates `xs: (B, T, H, D)`, whose first row stands at position `start`.
    ///
    /// # Errors
    /// If `start + T` exceeds the table.
    pub fn apply(&self, xs: &Tensor, start: usize) -> Result<Tensor> {
        let (_, t, _, _) = xs.dims4()?;
        let cos = self.cos.narrow(0, start, t)?;
        let sin = self.sin.narrow(0, start, t)?;
        Ok(candle_nn::rotary_emb::rope_thd(&xs.contiguous()?, &cos, &sin)?)
    }
}
