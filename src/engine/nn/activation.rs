//! Element-wise activations.

use candle_core::{Device, Tensor};

use crate::error::{Error, Result};
use crate::kernels::pointwise::{self, Elu, Gelu, GeluTanh, LeakyRelu, Mish, Silu, SiluTimes, Unary};
pub use crate::kernels::product::Activation;
use crate::kernels::view::{from_f32, with_f32};
use crate::weights::Weights;

/// A vectorised function on the CPU, the device's own operations elsewhere.
fn map(xs: &Tensor, op: impl Unary, other: impl FnOnce(&Tensor) -> candle_core::Result<Tensor>) -> Result<Tensor> {
    if !matches!(xs.device(), Device::Cpu) {
        return Ok(other(xs)?);
    }
    from_f32(with_f32(xs, |x| Ok(pointwise::map(op, x)))?, xs.dims())
}

/// One of them by name.
///
/// # Errors
/// If the device fails.
pub fn activate(xs: &Tensor, activation: Activation) -> Result<Tensor> {
    match activation {
        Activation::Identity => Ok(xs.clone()),
        Activation::Relu => Ok(xs.relu()?),
        Activation::LeakyRelu(slope) => leaky_relu(xs, slope.into()),
        Activation::Silu => silu(xs),
        Activation::Gelu => gelu(xs),
        Activation::GeluTanh => gelu_tanh(xs),
        Activation::Elu => elu(xs),
        Activation::Mish => mish(xs),
    }
}

/// `x · sigmoid(x)`.
///
/// # Errors
/// If the device fails.
pub fn silu(xs: &Tensor) -> Result<Tensor> {
    map(xs, Silu, Tensor::silu)
}

/// `silu(gate) · up` of rows that hold `gate` and `up` side by side: `(.., 2C) -> (.., C)`.
///
/// # Errors
/// If a row cannot be halved.
pub fn silu_gate(gate_up: &Tensor) -> Result<Tensor> {
    let mut dims = gate_up.dims().to_vec();
    let half = match dims.last_mut() {
        Some(last) if *last > 0 && last.is_multiple_of(2) => {
            *last /= 2;
            *last
        }
        _ => return Err(Error::internal(format!("gate and up were given as {dims:?}"))),
    };
    if !matches!(gate_up.device(), Device::Cpu) {
        let last = dims.len() - 1;
        return Ok((gate_up.narrow(last, 0, half)?.silu()? * gate_up.narrow(last, half, half)?)?);
    }
    from_f32(with_f32(gate_up, |x| Ok(pointwise::zip_halves(SiluTimes, x, half)))?, dims)
}

/// `x · Φ(x)` with the exact error function.
///
/// # Errors
/// If the device fails.
pub fn gelu(xs: &Tensor) -> Result<Tensor> {
    map(xs, Gelu, Tensor::gelu_erf)
}

/// The tanh approximation GPT-2 was trained with (`gelu_new`).
///
/// # Errors
/// If the device fails.
pub fn gelu_tanh(xs: &Tensor) -> Result<Tensor> {
    map(xs, GeluTanh, Tensor::gelu)
}

/// `max(x, slope · x)`.
///
/// # Errors
/// If the device fails.
pub fn leaky_relu(xs: &Tensor, slope: f64) -> Result<Tensor> {
    map(xs, LeakyRelu(slope as f32), |xs| xs.maximum(&(xs * slope)?))
}

/// `x` if positive, else `exp(x) - 1`.
///
/// # Errors
/// If the device fails.
pub fn elu(xs: &Tensor) -> Result<Tensor> {
    map(xs, Elu, |xs| xs.elu(1.0))
}

/// `x · tanh(ln(1 + eˣ))`.
///
/// # Errors
/// If the device fails.
pub fn mish(xs: &Tensor) -> Result<Tensor> {
    map(xs, Mish, |xs| {
        let n = xs.clamp(f32::NEG_INFINITY, 20f32)?.exp()?;
        let p = (&n * (&n + 2.0)?)?;
        xs * (&p / (&p + 2.0)?)?
    })
}

/// `a + b`, equal in shape: a residual connection.
///
/// # Errors
/// If the shapes differ.
pub fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if !matches!(a.device(), Device::Cpu) || a.dims() != b.dims() {
        return Ok((a + b)?);
    }
    let sum = with_f32(a, |a| with_f32(b, |b| Ok(pointwise::zip(pointwise::Add, a, b))))?;
    from_f32(sum, a.dims())
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
        from_f32(with_f32(xs, |x| Ok(pointwise::snake(x, &self.pattern.0, &self.pattern.1)))?, xs.dims())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn kernels_agree_with_the_operations_of_a_device() {
        let wide = Tensor::randn(0f32, 1.5f32, (2, 37, 90), &Device::Cpu).unwrap();
        // A part of each row: strided.
        let xs = wide.narrow(2, 5, 66).unwrap();
        let near = |found: Tensor, expected: Tensor| {
            assert_eq!(found.dims(), expected.dims());
            let error = (found - expected).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
            assert!(error < 4e-6, "{error}");
        };
        near(silu(&xs).unwrap(), xs.silu().unwrap());
        near(gelu(&xs).unwrap(), xs.gelu_erf().unwrap());
        near(gelu_tanh(&xs).unwrap(), xs.gelu().unwrap());
        near(leaky_relu(&xs, 0.1).unwrap(), xs.maximum(&(&xs * 0.1).unwrap()).unwrap());
        near(elu(&xs).unwrap(), xs.elu(1.0).unwrap());
        let (gate, up) = (xs.narrow(2, 0, 33).unwrap(), xs.narrow(2, 33, 33).unwrap());
        near(silu_gate(&xs).unwrap(), (gate.silu().unwrap() * up).unwrap());
        near(add(&xs, &xs).unwrap(), (&xs * 2.0).unwrap());
        assert!(silu_gate(&gate).is_err(), "33 cannot be halved");
    }
}
