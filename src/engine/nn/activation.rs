//! Element-wise activations.

use candle_core::Tensor;

use crate::error::Result;

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
