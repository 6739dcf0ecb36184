//! Element-wise activations.

use candle_core::{Device, Tensor};

use crate::error::{Error, Result};
use crate::kernels::trig::snake;
use crate::kernels::view::{from_f32, with_f32};
use crate::weights::Weights;

/// `x · sigmoid(x)`.
///
/// # Errors
/// If the device fails.
pub fn silu(xs: &Tensor) -> Result<Tensor> {
    Ok(xs.silu()?)
}

/// `x · Φ(x)` with the exact error function.
///
/// # Errors
/// If the device fails.
pub fn gelu(xs: &Tensor) -> Result<Tensor> {
    Ok(xs.gelu_erf()?)
}

/// The tanh approximation GPT-2 was trained with (`gelu_new`).
///
/// # Errors
/// If the device fails.
pub fn gelu_tanh(xs: &Tensor) -> Result<Tensor> {
    Ok(xs.gelu()?)
}

/// `max(x, slope · x)`.
///
/// # Errors
/// If the device fails.
pub fn leaky_relu(xs: &Tensor, slope: f64) -> Result<Tensor> {
    Ok(xs.maximum(&(xs * slope)?)?)
}

/// `x` if positive, else `exp(x) - 1`.
///
/// # Errors
/// If the device fails.
pub fn elu(xs: &Tensor) -> Result<Tensor> {
    Ok(xs.elu(1.0)?)
}

/// `x · tanh(ln(1 + eˣ))`, computed as `x · (n² + 2n) / (n² + 2n + 2)` with `n = eˣ`, which needs one exponential.
///
/// # Errors
/// If the device fails.
pub fn mish(xs: &Tensor) -> Result<Tensor> {
    // Above 20 the fraction is 1 to f32 precision, and the clamp keeps n² finite.
    let n = xs.clamp(f32::NEG_INFINITY, 20f32)?.exp()?;
    let p = (&n * (&n + 2.0)?)?;
    Ok((xs * (&p / (&p + 2.0)?)?)?)
}

/// Snake, `x + sin²(αx) / α` with one trained `α` per channel (Ziyin, Hartwig and Ueda, "Neural networks fail to learn
/// periodic functions and how to fix it", 2020).
#[derive(Debug, Clone)]
pub struct Snake {
    alpha: Tensor,
    reciprocal: Tensor,
    /// Both, repeated to at least [`Self::PATTERN`] values: few channels would make short, slow loops.
    pattern: (Vec<f32>, Vec<f32>),
}

impl Snake {
    const PATTERN: usize = 512;

    /// Loads `alpha` of `channels` values.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn load(w: &Weights, channels: usize) -> Result<Self> {
        let alpha = w.get("alpha", channels)?;
        let reciprocal = alpha.affine(1.0, 1e-9)?.recip()?;
        let repeated =
            |t: &Tensor| -> Result<Vec<f32>> { Ok(t.to_vec1::<f32>()?.repeat(Self::PATTERN.div_ceil(channels))) };
        let pattern = (repeated(&alpha)?, repeated(&reciprocal)?);
        Ok(Self { alpha, reciprocal, pattern })
    }

    /// `xs: (B, T, C) -> (B, T, C)`.
    ///
    /// # Errors
    /// If C differs.
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        if !matches!(xs.device(), Device::Cpu) {
            let square = xs.broadcast_mul(&self.alpha)?.sin()?.sqr()?;
            return Ok((xs + square.broadcast_mul(&self.reciprocal)?)?);
        }
        if xs.dims().last() != self.alpha.dims().first() {
            return Err(Error::internal(format!("snake of {:?} was given {:?}", self.alpha.dims(), xs.dims())));
        }
        let mut out = with_f32(xs, |x| Ok(x.to_vec()))?;
        snake(&mut out, &self.pattern.0, &self.pattern.1);
        from_f32(out, xs.dims())
    }
}
