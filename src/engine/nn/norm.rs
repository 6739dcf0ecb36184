//! Normalisation over the last (channel) dimension.

use candle_core::{Device, Tensor};

use super::activation::mish;
use crate::error::{Error, Result};
use crate::kernels::norm;
use crate::kernels::view::{from_f32, with_f32};
use crate::weights::Weights;

/// `(x - mean) / sqrt(var + eps) * weight + bias`, variance over channels (biased).
#[derive(Debug, Clone)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f32,
}

impl LayerNorm {
    /// Loads `weight` and `bias` of `dim` channels.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn load(w: &Weights, dim: usize, eps: f32) -> Result<Self> {
        Ok(Self { weight: w.get("weight", dim)?, bias: w.get("bias", dim)?, eps })
    }

    /// `xs: (.., C) -> (.., C)`.
    ///
    /// # Errors
    /// If C differs.
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        if !matches!(xs.device(), Device::Cpu) {
            return Ok(candle_nn::ops::layer_norm(&xs.contiguous()?, &self.weight, &self.bias, self.eps)?);
        }
        check_width(xs, &self.weight)?;
        let out = with_f32(xs, |x| {
            with_f32(&self.weight, |w| with_f32(&self.bias, |b| Ok(norm::layer_norm(x, w, b, self.eps))))
        })?;
        from_f32(out, xs.dims())
    }
}

impl LayerNorm {
    /// `mish(norm(xs)) + shift`, `shift` being one value for each channel.
    ///
    /// # Errors
    /// If C differs.
    pub fn forward_mish(&self, xs: &Tensor, shift: Option<&Tensor>) -> Result<Tensor> {
        if !matches!(xs.device(), Device::Cpu) {
            let ys = mish(&self.forward(xs)?)?;
            return Ok(match shift {
                Some(shift) => ys.broadcast_add(shift)?,
                None => ys,
            });
        }
        check_width(xs, &self.weight)?;
        let run = |shift: Option<&[f32]>| {
            with_f32(xs, |x| {
                with_f32(&self.weight, |w| {
                    with_f32(&self.bias, |b| Ok(norm::layer_norm_mish(x, w, b, self.eps, shift)))
                })
            })
        };
        let out = match shift {
            Some(shift) if shift.elem_count() == self.weight.elem_count() => with_f32(shift, |shift| run(Some(shift)))?,
            Some(shift) => return Err(Error::internal(format!("a norm was given a shift {:?}", shift.dims()))),
            None => run(None)?,
        };
        from_f32(out, xs.dims())
    }
}

/// `x / sqrt(mean(x²) + eps) * weight`.
#[derive(Debug, Clone)]
pub struct RmsNorm {
    weight: Tensor,
    eps: f32,
}

impl RmsNorm {
    /// Loads `weight` of `dim` channels.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn load(w: &Weights, dim: usize, eps: f32) -> Result<Self> {
        Ok(Self { weight: w.get("weight", dim)?, eps })
    }

    /// `xs: (.., C) -> (.., C)`.
    ///
    /// # Errors
    /// If C differs.
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        if !matches!(xs.device(), Device::Cpu) {
            return Ok(candle_nn::ops::rms_norm(&xs.contiguous()?, &self.weight, self.eps)?);
        }
        check_width(xs, &self.weight)?;
        let out = with_f32(xs, |x| with_f32(&self.weight, |w| Ok(norm::rms_norm(x, w, self.eps))))?;
        from_f32(out, xs.dims())
    }
}

/// Batch normalisation at inference: a scale and a shift per channel, folded once at load.
#[derive(Debug, Clone)]
pub struct BatchNorm {
    scale: Tensor,
    shift: Tensor,
}

impl BatchNorm {
    /// Loads `running_mean`, `running_var` and, if `affine`, `weight` and `bias`.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn load(w: &Weights, dim: usize, eps: f64, affine: bool) -> Result<Self> {
        w.ignore("num_batches_tracked");
        let mean = w.get("running_mean", dim)?;
        let inv_std = w.get("running_var", dim)?.affine(1.0, eps)?.sqrt()?.recip()?;
        if !affine {
            let shift = (&mean * &inv_std)?.neg()?;
            return Ok(Self { scale: inv_std, shift });
        }
        let scale = (w.get("weight", dim)? * inv_std)?;
        let shift = (w.get("bias", dim)? - (mean * &scale)?)?;
        Ok(Self { scale, shift })
    }

    /// `xs: (.., C) -> (.., C)`.
    ///
    /// # Errors
    /// If C differs.
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        Ok(xs.broadcast_mul(&self.scale)?.broadcast_add(&self.shift)?)
    }

    /// [`Self::forward`] followed by ReLU, in one pass.
    ///
    /// # Errors
    /// If C differs.
    pub fn forward_relu(&self, xs: &Tensor) -> Result<Tensor> {
        if !matches!(xs.device(), Device::Cpu) || xs.dims().last() != self.scale.dims().first() {
            return Ok(self.forward(xs)?.relu()?);
        }
        let out = with_f32(xs, |x| {
            with_f32(&self.scale, |scale| with_f32(&self.shift, |shift| Ok(norm::affine_relu(x, scale, shift))))
        })?;
        from_f32(out, xs.dims())
    }

    /// The folded scale and shift per channel, `(C)` each.
    pub fn scale_shift(&self) -> (&Tensor, &Tensor) {
        (&self.scale, &self.shift)
    }
}

fn check_width(xs: &Tensor, weight: &Tensor) -> Result<()> {
    if xs.dims().last() == weight.dims().first() {
        return Ok(());
    }
    Err(Error::internal(format!("a norm of {:?} channels was given {:?}", weight.dims(), xs.dims())))
}
