//! Two-dimensional convolution over `(B, F, T, C)`, for the one network that has it (CAMPPlus).
//!
//! With channels last, the taps of one kernel row are neighbours in memory, so an output row over time is the sum of one
//! matrix product per kernel row, whose left rows overlap. Odd square kernels, zeros at the borders, stride over F only.

use candle_core::{Device, Tensor};
use rayon::prelude::*;

use super::{BatchNorm, Conv1d, ConvConfig};
use crate::error::{Error, Result};
use crate::kernels::gemm::{Rows, matmul_nt_serial};
use crate::kernels::view::{from_f32, with_f32};
use crate::weights::Weights;

/// Convolution with the batch normalisation behind it folded in.
#[derive(Debug, Clone)]
pub struct Conv2d {
    /// One convolution over time per kernel row; the first carries the bias.
    rows: Vec<Conv1d>,
    /// The same weights as `(k, out, k · in)`.
    weight: Vec<f32>,
    bias: Vec<f32>,
    inputs: usize,
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
        let weight = conv.get("weight", (outputs, inputs, kernel, kernel))?;
        Self::new(&weight.broadcast_mul(&scale.reshape((outputs, 1, 1, 1))?)?, shift, stride)
    }

    /// From a weight `(out, in, k, k)` and a bias `(out)`.
    ///
    /// # Errors
    /// If the kernel is not square or not odd.
    pub fn new(weight: &Tensor, bias: &Tensor, stride: usize) -> Result<Self> {
        let (_, inputs, kernel, across) = weight.dims4()?;
        if kernel != across || kernel % 2 == 0 {
            return Err(Error::internal(format!("a kernel of {kernel} by {across} is not supported")));
        }
        let config = ConvConfig::same(kernel, 1);
        let row = |k: usize| {
            let bias = (k == 0).then(|| bias.clone());
            Conv1d::new(&weight.narrow(2, k, 1)?.squeeze(2)?.contiguous()?, bias, config)
        };
        let rows = (0..kernel).map(row).collect::<Result<_>>()?;
        let values = |tensor: &Tensor| Ok::<_, Error>(tensor.flatten_all()?.to_device(&Device::Cpu)?.to_vec1::<f32>()?);
        // (out, in, row, tap) -> (row, out, tap, in)
        let flat = values(&weight.permute((2, 0, 3, 1))?.contiguous()?)?;
        Ok(Self { rows, weight: flat, bias: values(bias)?, inputs, stride })
    }

    /// `xs: (B, F, T, in) -> (B, ceil(F / stride), T, out)`, plus `residual` of the same shape if given, then ReLU if
    /// asked for.
    ///
    /// # Errors
    /// If shapes differ.
    pub fn forward(&self, xs: &Tensor, residual: Option<&Tensor>, relu: bool) -> Result<Tensor> {
        let (batch, high, t, c) = xs.dims4()?;
        let n = self.bias.len();
        let shape = (batch, high.div_ceil(self.stride), t, n);
        if c != self.inputs || residual.is_some_and(|r| r.dims() != [shape.0, shape.1, t, n]) {
            return Err(Error::internal(format!(
                "a convolution of {} channels was given {:?}",
                self.inputs,
                xs.dims()
            )));
        }
        if !matches!(xs.device(), Device::Cpu) {
            return self.forward_device(xs, residual, relu);
        }
        let mut out = vec![0f32; batch * shape.1 * t * n];
        let mut run = |x: &[f32], residual: Option<&[f32]>| {
            out.par_chunks_mut((t * n).max(1)).enumerate().for_each(|(i, row)| {
                let image = &x[(i / shape.1) * high * t * c..][..high * t * c];
                let residual = residual.map(|r| &r[i * t * n..][..t * n]);
                self.row(image, i % shape.1, t, residual, row);
                if relu {
                    row.iter_mut().for_each(|x| *x = x.max(0.0));
                }
            });
            Ok(())
        };
        match residual {
            Some(residual) => with_f32(xs, |x| with_f32(residual, |r| run(x, Some(r))))?,
            None => with_f32(xs, |x| run(x, None))?,
        }
        from_f32(out, shape)
    }

    /// One row of the output, `(T, out)`, from one image `(F, T, in)`.
    fn row(&self, image: &[f32], at: usize, t: usize, residual: Option<&[f32]>, out: &mut [f32]) {
        let (c, n, kernel) = (self.inputs, self.bias.len(), self.rows.len());
        let (pad, width, high) = (kernel / 2, kernel * c, image.len() / (t * c).max(1));
        out.chunks_exact_mut(n).for_each(|row| row.copy_from_slice(&self.bias));
        if let Some(residual) = residual {
            out.iter_mut().zip(residual).for_each(|(o, r)| *o += r);
        }
        let inner = t.saturating_sub(2 * pad);
        let mut window = vec![0f32; width];
        for (k, weight) in self.weight.chunks_exact(n * width).enumerate() {
            let Some(source) = (at * self.stride + k).checked_sub(pad).filter(|f| *f < high) else { continue };
            let x = &image[source * t * c..][..t * c];
            if inner > 0 {
                let view = Rows { data: x, rows: inner, cols: width, row_stride: c };
                matmul_nt_serial(view, weight, &mut out[pad * n..], n, n, true);
            }
            // Positions whose window reaches beyond an end.
            for position in (0..pad.min(t)).chain((pad + inner).max(pad.min(t))..t) {
                window.fill(0.0);
                let (first, last) = (position.saturating_sub(pad), (position + pad + 1).min(t));
                let skip = (first + pad - position) * c;
                window[skip..skip + (last - first) * c].copy_from_slice(&x[first * c..last * c]);
                matmul_nt_serial(Rows::dense(&window, 1, width), weight, &mut out[position * n..], n, n, true);
            }
        }
    }

    /// Other devices: each kernel row is a convolution over time of the input rows it meets.
    fn forward_device(&self, xs: &Tensor, residual: Option<&Tensor>, relu: bool) -> Result<Tensor> {
        let (batch, high, t, c) = xs.dims4()?;
        let (pad, rows) = (self.rows.len() / 2, high.div_ceil(self.stride));
        let padded = xs.pad_with_zeros(1, pad, pad)?;
        let mut sum: Option<Tensor> = None;
        for (k, conv) in self.rows.iter().enumerate() {
            let index: Vec<u32> = (0..rows).map(|r| (r * self.stride + k) as u32).collect();
            let taken = padded.index_select(&Tensor::new(index, xs.device())?, 1)?;
            let ys = conv.forward(&taken.reshape((batch * rows, t, c))?)?;
            sum = Some(match sum {
                Some(sum) => (sum + ys)?,
                None => ys,
            });
        }
        let sum = sum.ok_or_else(|| Error::internal("a convolution without a kernel"))?;
        let mut ys = sum.reshape((batch, rows, t, self.bias.len()))?;
        if let Some(residual) = residual {
            ys = (ys + residual)?;
        }
        Ok(if relu { ys.relu()? } else { ys })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

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
            assert!(worst(&conv.forward_device(&xs, Some(&residual), true).unwrap(), &expected) < 1e-5);
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
