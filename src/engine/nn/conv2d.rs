//! Two-dimensional convolution over `(B, F, T, C)`, for the one network that has it (CAMPPlus).
//!
//! With channels last, the taps of one kernel row are neighbours in memory, so the convolution is one matrix product whose
//! left rows overlap and consist of one stretch per kernel row. Odd square kernels, zeros at the borders, stride over F
//! only.

use candle_core::Tensor;

use super::BatchNorm;
use super::activation::Activation;
use super::weight::{Weight, finish_on_device, finished_product};
use crate::error::{Error, Result};
use crate::kernels::product::Rows;
use crate::kernels::view::with_f32;
use crate::protocol::Precision;
use crate::weights::{Keep, Weights};

/// Convolution with the batch normalisation behind it folded in.
#[derive(Debug, Clone)]
pub struct Conv2d {
    /// `(out, k · k · in)`: kernel rows, then taps, then channels.
    weight: Weight,
    bias: Tensor,
    inputs: usize,
    kernel: usize,
    stride: usize,
}

impl Conv2d {
    /// Loads `weight` `(out, in, k, k)` below `conv` and normalises the result by `norm`.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn load(conv: &Weights, norm: &BatchNorm, inputs: usize, kernel: usize, stride: usize) -> Result<Self> {
        let (scale, shift) = norm.scale_shift();
        let outputs = scale.dims1()?;
        check_kernel(kernel, kernel)?;
        let weight = || {
            let weight = conv.get("weight", (outputs, inputs, kernel, kernel))?;
            taps_beside_channels(&weight.broadcast_mul(&scale.reshape((outputs, 1, 1, 1))?)?)
        };
        let weight = Weight::load(&conv.at(Precision::F32), "weight", (outputs, kernel * kernel * inputs), weight)?;
        Ok(Self { weight, bias: shift.clone(), inputs, kernel, stride })
    }

    /// From a weight `(out, in, k, k)` and a bias `(out)`.
    ///
    /// # Errors
    /// If the kernel is not square or not odd.
    pub fn new(weight: &Tensor, bias: &Tensor, stride: usize) -> Result<Self> {
        let (_, inputs, kernel, across) = weight.dims4()?;
        check_kernel(kernel, across)?;
        let weight = Weight::new(&taps_beside_channels(weight)?, &Keep::default())?;
        Ok(Self { weight, bias: bias.clone(), inputs, kernel, stride })
    }

    /// `xs: (B, F, T, in) -> (B, ceil(F / stride), T, out)`, plus `residual` of the same shape if given, then ReLU if
    /// asked for.
    ///
    /// # Errors
    /// If shapes differ.
    pub fn forward(&self, xs: &Tensor, residual: Option<&Tensor>, relu: bool) -> Result<Tensor> {
        let (batch, high, t, c) = xs.dims4()?;
        let shape = [batch, high.div_ceil(self.stride), t, self.bias.dims1()?];
        if c != self.inputs || residual.is_some_and(|r| r.dims() != shape) {
            return Err(Error::internal(format!(
                "a convolution of {} channels was given {:?}",
                self.inputs,
                xs.dims()
            )));
        }
        let activation = if relu { Activation::Relu } else { Activation::Identity };
        let pad = self.kernel / 2;
        let padded = xs.pad_with_zeros(1, pad, pad)?.pad_with_zeros(2, pad, pad)?;
        match &self.weight {
            Weight::Cpu(w) => {
                let width = (t + 2 * pad) * c;
                let image = |b: usize| {
                    let residual = residual.map(|r| r.narrow(0, b, 1)).transpose()?;
                    with_f32(&padded.narrow(0, b, 1)?, |data| {
                        // Rows over time; a row over frequency is a sequence of its own, one kernel row a tap.
                        let x = Rows {
                            data,
                            batch: shape[1],
                            batch_step: self.stride * width,
                            rows: t,
                            row_step: c,
                            taps: self.kernel,
                            tap_step: width,
                            width: self.kernel * c,
                        };
                        let shape = [1, shape[1], t, shape[3]];
                        finished_product(x, w, Some(&self.bias), activation, residual.as_ref(), &shape)
                    })
                };
                Ok(Tensor::cat(&(0..batch).map(image).collect::<Result<Vec<_>>>()?, 0)?)
            }
            Weight::Device(w) => {
                let ys = self.gathered(&padded, shape[1], t)?.broadcast_matmul(&w.t()?)?.reshape(&shape[..])?;
                finish_on_device(ys, Some(&self.bias), activation, residual)
            }
        }
    }

    /// For other devices: the taps of each pixel side by side, `(B, rows · T, k · k · in)`.
    fn gathered(&self, padded: &Tensor, rows: usize, t: usize) -> Result<Tensor> {
        let (batch, _, _, c) = padded.dims4()?;
        let mut taps = Vec::with_capacity(self.kernel * self.kernel);
        for row in 0..self.kernel {
            let index: Vec<u32> = (0..rows).map(|r| (r * self.stride + row) as u32).collect();
            let taken = padded.index_select(&Tensor::new(index, padded.device())?, 1)?;
            for tap in 0..self.kernel {
                taps.push(taken.narrow(2, tap, t)?.reshape((batch, rows * t, c))?);
            }
        }
        Ok(Tensor::cat(&taps, 2)?)
    }
}

fn check_kernel(kernel: usize, across: usize) -> Result<()> {
    if kernel == across && kernel % 2 == 1 {
        return Ok(());
    }
    Err(Error::internal(format!("a kernel of {kernel} by {across} is not supported")))
}

/// `(out, in, k, k) -> (out, k · k · in)`.
fn taps_beside_channels(weight: &Tensor) -> Result<Tensor> {
    let (outputs, inputs, kernel, across) = weight.dims4()?;
    Ok(weight.permute((0, 2, 3, 1))?.contiguous()?.reshape((outputs, kernel * across * inputs))?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use candle_core::Device;

    use super::*;

    fn numbers(shape: &[usize], seed: f32) -> Tensor {
        let count = shape.iter().product::<usize>();
        let values: Vec<f32> = (0..count).map(|i| ((i as f32 + 1.0) * seed).sin()).collect();
        Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
    }

    fn worst(a: &Tensor, b: &Tensor) -> f32 {
        assert_eq!(a.dims(), b.dims());
        (a - b).unwrap().abs().unwrap().max_all().unwrap().to_scalar().unwrap()
    }

    #[test]
    fn equals_candle_s_convolution() {
        for (kernel, stride, high, t) in
            [(3, 1, 6, 9), (3, 2, 6, 9), (3, 2, 5, 2), (3, 1, 4, 1), (1, 2, 6, 7), (5, 1, 3, 3)]
        {
            let (xs, weight, bias) =
                (numbers(&[2, high, t, 4], 0.7), numbers(&[5, 4, kernel, kernel], 0.3), numbers(&[5], 1.1));
            let nchw = xs.permute((0, 3, 1, 2)).unwrap().contiguous().unwrap();
            let full = nchw.conv2d(&weight, kernel / 2, 1, 1, 1).unwrap();
            let full = full.permute((0, 2, 3, 1)).unwrap().contiguous().unwrap().broadcast_add(&bias).unwrap();
            let index: Vec<u32> = (0..high as u32).step_by(stride).collect();
            let expected = full.index_select(&Tensor::new(index, &Device::Cpu).unwrap(), 1).unwrap();
            let conv = Conv2d::new(&weight, &bias, stride).unwrap();
            assert!(worst(&conv.forward(&xs, None, false).unwrap(), &expected) < 1e-5, "{kernel} {stride} {high} {t}");
            let residual = numbers(expected.dims(), 0.9);
            let expected = (expected + &residual).unwrap().relu().unwrap();
            assert!(worst(&conv.forward(&xs, Some(&residual), true).unwrap(), &expected) < 1e-5);
            // The operations of other devices, on this one.
            let weight = weight.permute((0, 2, 3, 1)).unwrap().reshape((5, kernel * kernel * 4)).unwrap();
            let conv = Conv2d { weight: Weight::Device(weight), ..conv };
            assert!(worst(&conv.forward(&xs, Some(&residual), true).unwrap(), &expected) < 1e-5);
        }
    }

    #[test]
    fn wrong_shapes_are_errors() {
        let conv = Conv2d::new(&numbers(&[5, 4, 3, 3], 0.3), &numbers(&[5], 1.1), 1).unwrap();
        assert!(conv.forward(&numbers(&[1, 6, 9, 3], 0.5), None, false).is_err());
        assert!(conv.forward(&numbers(&[1, 6, 9, 4], 0.5), Some(&numbers(&[1, 6, 8, 5], 0.5)), false).is_err());
        assert!(Conv2d::new(&numbers(&[5, 4, 2, 2], 0.3), &numbers(&[5], 1.1), 1).is_err());
    }
}
