//! One-dimensional convolutions over `(B, T, C)`.
//!
//! With channels last, the input rows that one output row needs lie next to each other, so a convolution with
//! dilation 1 is a single matrix product whose left rows overlap; with dilation `d` it is `d` of them, each over every
//! `d`-th row.

use candle_core::{Device, Tensor};

use crate::error::{Error, Result};
use crate::kernels::gemm::{Rows, matmul_nt};
use crate::kernels::view::{from_f32, with_f32};
use crate::weights::Weights;

/// Geometry of a convolution.
#[derive(Debug, Clone, Copy)]
pub struct ConvConfig {
    /// Taps.
    pub kernel: usize,
    /// Distance between output positions, in input rows.
    pub stride: usize,
    /// Distance between taps.
    pub dilation: usize,
    /// Zeros before the first row.
    pub left: usize,
    /// Zeros after the last row.
    pub right: usize,
}

impl ConvConfig {
    /// Stride 1, same length, zeros on both sides.
    pub fn same(kernel: usize, dilation: usize) -> Self {
        let pad = (kernel - 1) * dilation / 2;
        Self { kernel, stride: 1, dilation, left: pad, right: pad }
    }

    /// Stride 1, same length, all zeros in front.
    pub fn causal(kernel: usize) -> Self {
        Self { kernel, stride: 1, dilation: 1, left: kernel - 1, right: 0 }
    }

    /// With a stride and the same zeros on both sides.
    pub fn strided(kernel: usize, stride: usize, pad: usize) -> Self {
        Self { kernel, stride, dilation: 1, left: pad, right: pad }
    }

    /// Output rows for `t` input rows.
    pub fn out_len(&self, t: usize) -> usize {
        let padded = t + self.left + self.right;
        let span = (self.kernel - 1) * self.dilation + 1;
        if padded < span { 0 } else { (padded - span) / self.stride + 1 }
    }
}

/// Convolution; the checkpoint's `(out, in, k)` weight is kept as `(out, k · in)`.
#[derive(Debug, Clone)]
pub struct Conv1d {
    weight: Tensor,
    bias: Option<Tensor>,
    inputs: usize,
    outputs: usize,
    config: ConvConfig,
}

impl Conv1d {
    /// Loads `weight` and `bias`.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn load(w: &Weights, inputs: usize, outputs: usize, config: ConvConfig) -> Result<Self> {
        Self::new(&w.get("weight", (outputs, inputs, config.kernel))?, Some(w.get("bias", outputs)?), config)
    }

    /// Loads `weight` alone.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn load_no_bias(w: &Weights, inputs: usize, outputs: usize, config: ConvConfig) -> Result<Self> {
        Self::new(&w.get("weight", (outputs, inputs, config.kernel))?, None, config)
    }

    /// From a weight `(out, in, k)` and a bias `(out)`.
    ///
    /// # Errors
    /// If the weight is not of rank 3.
    pub fn new(weight: &Tensor, bias: Option<Tensor>, config: ConvConfig) -> Result<Self> {
        let (outputs, inputs, kernel) = weight.dims3()?;
        if kernel != config.kernel {
            return Err(Error::internal(format!("a convolution of {} taps was given {kernel}", config.kernel)));
        }
        if config.stride > 1 && config.dilation > 1 {
            return Err(Error::internal("a convolution with both a stride and a dilation is not supported"));
        }
        let weight = weight.permute((0, 2, 1))?.contiguous()?.reshape((outputs, kernel * inputs))?;
        Ok(Self { weight, bias, inputs, outputs, config })
    }

    /// The geometry.
    pub fn config(&self) -> ConvConfig {
        self.config
    }

    /// `xs: (B, T, in) -> (B, config.out_len(T), out)`, zero-padded as configured.
    ///
    /// # Errors
    /// If the channel count differs.
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let padded = xs.pad_with_zeros(1, self.config.left, self.config.right)?;
        self.forward_unpadded(&padded)
    }

    /// The same for an input that already carries its padding (a streaming layer's own history).
    ///
    /// # Errors
    /// If the channel count differs or the input is shorter than the kernel.
    pub fn forward_unpadded(&self, xs: &Tensor) -> Result<Tensor> {
        let (batch, padded, channels) = xs.dims3()?;
        let ConvConfig { kernel, stride, dilation, .. } = self.config;
        let span = (kernel - 1) * dilation + 1;
        if channels != self.inputs || padded < span {
            return Err(Error::internal(format!(
                "a convolution of {} channels and span {span} was given {:?}",
                self.inputs,
                xs.dims()
            )));
        }
        let rows = (padded - span) / stride + 1;
        if !matches!(xs.device(), Device::Cpu) {
            return self.forward_device(xs, rows);
        }
        let mut out = vec![0f32; batch * rows * self.outputs];
        if let Some(bias) = &self.bias {
            with_f32(bias, |b| {
                out.chunks_exact_mut(self.outputs).for_each(|row| row.copy_from_slice(b));
                Ok(())
            })?;
        }
        let biased = self.bias.is_some();
        with_f32(xs, |x| {
            with_f32(&self.weight, |w| {
                for (x, out) in x.chunks_exact(padded * channels).zip(out.chunks_exact_mut(rows * self.outputs)) {
                    self.one(x, w, out, rows, biased);
                }
                Ok(())
            })
        })?;
        from_f32(out, (batch, rows, self.outputs))
    }

    fn one(&self, x: &[f32], w: &[f32], out: &mut [f32], rows: usize, biased: bool) {
        let ConvConfig { kernel, stride, dilation, .. } = self.config;
        let (c, n) = (self.inputs, self.outputs);
        if dilation == 1 {
            let view = Rows { data: x, rows, cols: kernel * c, row_stride: stride * c };
            matmul_nt(view, w, out, n, n, biased);
            return;
        }
        let mut every = Vec::with_capacity(x.len() / dilation + c);
        for first in 0..dilation.min(rows) {
            every.clear();
            x.chunks_exact(c).skip(first).step_by(dilation).for_each(|row| every.extend_from_slice(row));
            let count = (rows - first).div_ceil(dilation);
            let view = Rows { data: &every, rows: count, cols: kernel * c, row_stride: c };
            matmul_nt(view, w, &mut out[first * n..], dilation * n, n, biased);
        }
    }

    /// Other devices: gather the taps side by side, then one product.
    fn forward_device(&self, xs: &Tensor, rows: usize) -> Result<Tensor> {
        let ConvConfig { kernel, stride, dilation, .. } = self.config;
        let mut taps = Vec::with_capacity(kernel);
        for tap in 0..kernel {
            let index: Vec<u32> = (0..rows).map(|r| (r * stride + tap * dilation) as u32).collect();
            taps.push(xs.index_select(&Tensor::new(index, xs.device())?, 1)?);
        }
        let columns = Tensor::cat(&taps, 2)?;
        let ys = columns.broadcast_matmul(&self.weight.t()?)?;
        Ok(match &self.bias {
            Some(bias) => ys.broadcast_add(bias)?,
            None => ys,
        })
    }
}

/// Transposed convolution: one product to `(T, k · out)`, then overlap-add.
#[derive(Debug, Clone)]
pub struct ConvTranspose1d {
    /// `(k · out, in)`.
    weight: Tensor,
    bias: Tensor,
    inputs: usize,
    outputs: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
}

impl ConvTranspose1d {
    /// From a weight `(in, out, k)` and a bias `(out)`; output length `(T - 1) · stride - 2 · padding + k`.
    ///
    /// # Errors
    /// If the weight is not of rank 3.
    pub fn new(weight: &Tensor, bias: Tensor, stride: usize, padding: usize) -> Result<Self> {
        let (inputs, outputs, kernel) = weight.dims3()?;
        let weight = weight.permute((2, 1, 0))?.contiguous()?.reshape((kernel * outputs, inputs))?;
        Ok(Self { weight, bias, inputs, outputs, kernel, stride, padding })
    }

    /// `xs: (B, T, in) -> (B, (T - 1) · stride - 2 · padding + k, out)`.
    ///
    /// # Errors
    /// If the channel count differs.
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (batch, t, channels) = xs.dims3()?;
        if channels != self.inputs || t == 0 {
            return Err(Error::internal(format!(
                "a transposed convolution of {} channels was given {:?}",
                self.inputs,
                xs.dims()
            )));
        }
        let columns = super::Linear::new(self.weight.clone(), None).forward(xs)?;
        let columns = columns.to_device(&Device::Cpu)?;
        let (n, full) = (self.outputs, (t - 1) * self.stride + self.kernel);
        let rows = full - 2 * self.padding;
        let mut out = vec![0f32; batch * rows * n];
        with_f32(&self.bias.to_device(&Device::Cpu)?, |b| {
            out.chunks_exact_mut(n).for_each(|row| row.copy_from_slice(b));
            Ok(())
        })?;
        with_f32(&columns, |cols| {
            for (cols, out) in cols.chunks_exact(t * self.kernel * n).zip(out.chunks_exact_mut(rows * n)) {
                for (i, col) in cols.chunks_exact(n).enumerate() {
                    let at = (i / self.kernel) * self.stride + i % self.kernel;
                    if at < self.padding || at - self.padding >= rows {
                        continue;
                    }
                    let row = &mut out[(at - self.padding) * n..][..n];
                    row.iter_mut().zip(col).for_each(|(o, c)| *o += c);
                }
            }
            Ok(())
        })?;
        Ok(from_f32(out, (batch, rows, n))?.to_device(xs.device())?)
    }
}
