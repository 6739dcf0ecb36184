//! Depthwise convolution over `(B, T, C)`: every channel has its own taps.

use candle_core::{Device, Tensor};
use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::kernels::view::{from_f32, with_f32};
use crate::weights::Weights;

/// Stride 1, odd kernel, zeros at both ends, no bias.
#[derive(Debug, Clone)]
pub struct DepthwiseConv1d {
    /// `(k, C)`.
    weight: Tensor,
}

impl DepthwiseConv1d {
    /// Loads `weight` `(C, 1, k)`.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn load(w: &Weights, channels: usize, kernel: usize) -> Result<Self> {
        Self::new(&w.get("weight", (channels, 1, kernel))?)
    }

    /// From a weight `(C, 1, k)`.
    ///
    /// # Errors
    /// If the weight has another rank.
    pub fn new(weight: &Tensor) -> Result<Self> {
        Ok(Self { weight: weight.squeeze(1)?.t()?.contiguous()? })
    }

    /// `xs: (B, T, C) -> (B, T, C)`.
    ///
    /// # Errors
    /// If the channel count differs.
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (batch, t, c) = xs.dims3()?;
        let (kernel, channels) = self.weight.dims2()?;
        if c != channels {
            return Err(Error::internal(format!("a convolution of {channels} channels was given {:?}", xs.dims())));
        }
        if !matches!(xs.device(), Device::Cpu) {
            return self.forward_device(xs);
        }
        let pad = kernel / 2;
        let mut out = vec![0f32; batch * t * c];
        with_f32(xs, |x| {
            with_f32(&self.weight, |w| {
                out.par_chunks_mut(c.max(1)).enumerate().for_each(|(i, row)| {
                    let (first, at) = (i / t * t, i % t);
                    for (k, w) in w.chunks_exact(c).enumerate() {
                        if let Some(source) = (at + k).checked_sub(pad).filter(|s| *s < t) {
                            let x = &x[(first + source) * c..][..c];
                            row.iter_mut().zip(x).zip(w).for_each(|((o, x), w)| *o += x * w);
                        }
                    }
                });
                Ok(())
            })
        })?;
        from_f32(out, (batch, t, c))
    }

    /// Other devices: one scaled shift per tap.
    fn forward_device(&self, xs: &Tensor) -> Result<Tensor> {
        let t = xs.dims3()?.1;
        let kernel = self.weight.dims2()?.0;
        let padded = xs.pad_with_zeros(1, kernel / 2, kernel / 2)?;
        let mut sum = xs.zeros_like()?;
        for k in 0..kernel {
            sum = (sum + padded.narrow(1, k, t)?.broadcast_mul(&self.weight.narrow(0, k, 1)?)?)?;
        }
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn equals_the_definition() {
        let (batch, t, c, kernel) = (2, 7, 3, 5);
        let values = |count: usize, seed: f32| (0..count).map(|i| (i as f32 * seed).cos()).collect::<Vec<f32>>();
        let (x, w) = (values(batch * t * c, 0.7), values(c * kernel, 0.4));
        let conv = DepthwiseConv1d::new(&Tensor::from_vec(w.clone(), (c, 1, kernel), &Device::Cpu).unwrap()).unwrap();
        let xs = Tensor::from_vec(x.clone(), (batch, t, c), &Device::Cpu).unwrap();
        for found in [conv.forward(&xs).unwrap(), conv.forward_device(&xs).unwrap()] {
            let found: Vec<f32> = found.flatten_all().unwrap().to_vec1().unwrap();
            for (i, found) in found.iter().enumerate() {
                let (b, at, channel) = (i / (t * c), i / c % t, i % c);
                let tap = |k: usize| match (at + k).checked_sub(2) {
                    Some(s) if s < t => w[channel * kernel + k] * x[(b * t + s) * c + channel],
                    _ => 0.0,
                };
                let expected: f32 = (0..kernel).map(tap).sum();
                assert!((found - expected).abs() < 1e-5);
            }
        }
    }
}
