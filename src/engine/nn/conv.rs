//! One-dimensional convolutions over `(B, T, C)`.
//!
//! With channels last, the input rows that one output row needs lie next to each other (or, with a dilation, equally far
//! apart), so a convolution is a single matrix product whose left rows overlap.

use candle_core::{Device, Tensor};
use rayon::prelude::*;

use super::Linear;
use super::activation::Activation;
use super::weight::{Weight, finish_on_device, finished, finished_product};
use crate::error::{Error, Result};
use crate::kernels::product::{Finish, Rows};
use crate::kernels::toom_cook::{self, Convolution};
use crate::kernels::view::{from_f32, with_f32};
use crate::protocol::Precision;
use crate::weights::{Keep, Weights};

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
    weight: Weight,
    bias: Option<Tensor>,
    inputs: usize,
    outputs: usize,
    config: ConvConfig,
    /// Whether the weight is what [`toom_cook`] wants.
    fast: bool,
}

impl Conv1d {
    /// Loads `weight` and `bias`.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn load(w: &Weights, inputs: usize, outputs: usize, config: ConvConfig) -> Result<Self> {
        let bias = Some(w.get("bias", outputs)?);
        Self::made(w, (outputs, inputs), || w.get("weight", (outputs, inputs, config.kernel)), bias, config)
    }

    /// Loads `weight` alone.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn load_no_bias(w: &Weights, inputs: usize, outputs: usize, config: ConvConfig) -> Result<Self> {
        Self::made(w, (outputs, inputs), || w.get("weight", (outputs, inputs, config.kernel)), None, config)
    }

    /// The convolution at `w`, whose weight `(out, in, k)` is what `weight` makes of the file, if it is not kept packed.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn made(
        w: &Weights,
        (outputs, inputs): (usize, usize),
        weight: impl FnOnce() -> Result<Tensor>,
        bias: Option<Tensor>,
        config: ConvConfig,
    ) -> Result<Self> {
        let matrix = || taps_beside_channels(&weight()?, config.kernel);
        let weight = Weight::load(w, "weight", (outputs, config.kernel * inputs), matrix)?;
        Ok(Self { weight, bias, inputs, outputs, config, fast: false })
    }

    /// [`Self::made`] with half the multiplications, where the CPU does it in f32 and the sizes are worth it; rounding
    /// errors are twice those of the plain sum.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn made_fast(
        w: &Weights,
        (outputs, inputs): (usize, usize),
        weight: impl FnOnce() -> Result<Tensor>,
        bias: Option<Tensor>,
        config: ConvConfig,
    ) -> Result<Self> {
        let in_f32 = matches!(w.device(), Device::Cpu) && w.keep().computed() == Precision::F32;
        if !in_f32 || config.stride != 1 || !toom_cook::suits(outputs, inputs, config.kernel) {
            return Self::made(w, (outputs, inputs), weight, bias, config);
        }
        let matrix = || at_points(&weight()?);
        let weight = Weight::load(w, "weight", toom_cook::shape(outputs, inputs, config.kernel), matrix)?;
        Ok(Self { weight, bias, inputs, outputs, config, fast: true })
    }

    /// [`Self::made_fast`] from a weight `(out, in, k)` whose sizes are worth it.
    ///
    /// # Errors
    /// If the weight is not of rank 3 or does not suit.
    pub fn new_fast(weight: &Tensor, bias: Option<Tensor>, config: ConvConfig) -> Result<Self> {
        let (outputs, inputs, taps) = weight.dims3()?;
        if config.stride != 1 || taps != config.kernel || !toom_cook::suits(outputs, inputs, taps) {
            return Err(Error::internal(format!("no fast convolution for {:?}", weight.dims())));
        }
        let weight = Weight::new(&at_points(weight)?, &Keep::default())?;
        Ok(Self { weight, bias, inputs, outputs, config, fast: true })
    }

    /// From a weight `(out, in, k)` and a bias `(out)`, in f32.
    ///
    /// # Errors
    /// If the weight is not of rank 3.
    pub fn new(weight: &Tensor, bias: Option<Tensor>, config: ConvConfig) -> Result<Self> {
        let (outputs, inputs, _) = weight.dims3()?;
        let weight = Weight::new(&taps_beside_channels(weight, config.kernel)?, &Keep::default())?;
        Ok(Self { weight, bias, inputs, outputs, config, fast: false })
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
        self.run(&self.pad(xs)?, Activation::Identity, None)
    }

    /// `act(conv(xs))`.
    ///
    /// # Errors
    /// If the channel count differs.
    pub fn forward_act(&self, xs: &Tensor, activation: Activation) -> Result<Tensor> {
        self.run(&self.pad(xs)?, activation, None)
    }

    /// `residual + conv(xs)`.
    ///
    /// # Errors
    /// If the channel count differs or the residual has another shape than the result.
    pub fn forward_add(&self, xs: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.run(&self.pad(xs)?, Activation::Identity, Some(residual))
    }

    /// [`Self::forward`] for an input that already carries its padding (a streaming layer's own history).
    ///
    /// # Errors
    /// If the channel count differs or the input is shorter than the kernel.
    pub fn forward_unpadded(&self, xs: &Tensor) -> Result<Tensor> {
        self.run(xs, Activation::Identity, None)
    }

    /// [`Self::forward_add`] for an input that already carries its padding.
    ///
    /// # Errors
    /// If the channel count differs, the input is shorter than the kernel or the residual has another shape than the
    /// result.
    pub fn forward_unpadded_add(&self, xs: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.run(xs, Activation::Identity, Some(residual))
    }

    fn pad(&self, xs: &Tensor) -> Result<Tensor> {
        Ok(xs.pad_with_zeros(1, self.config.left, self.config.right)?)
    }

    fn run(&self, xs: &Tensor, activation: Activation, residual: Option<&Tensor>) -> Result<Tensor> {
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
        let bias = self.bias.as_ref();
        match &self.weight {
            Weight::Cpu(w) if self.fast => with_f32(xs, |x| {
                let (taps, inputs) = (kernel, channels);
                let finish = Finish { activation, ..Finish::default() };
                finished(w, finish, bias, residual, &[batch, rows, self.outputs], |weight, finish| {
                    Convolution { x, batch, padded, inputs, taps, dilation, weight, finish }.run()
                })
            }),
            Weight::Cpu(w) => with_f32(xs, |data| {
                let x = Rows {
                    data,
                    batch,
                    batch_step: padded * channels,
                    rows,
                    row_step: stride * channels,
                    taps: kernel,
                    tap_step: dilation * channels,
                    width: channels,
                };
                finished_product(x, w, bias, activation, residual, &[batch, rows, self.outputs])
            }),
            Weight::Device(w) => {
                finish_on_device(self.gathered(xs, rows)?.broadcast_matmul(&w.t()?)?, bias, activation, residual)
            }
        }
    }

    /// For other devices: the taps of each row side by side.
    fn gathered(&self, xs: &Tensor, rows: usize) -> Result<Tensor> {
        let ConvConfig { kernel, stride, dilation, .. } = self.config;
        let mut taps = Vec::with_capacity(kernel);
        for tap in 0..kernel {
            let index: Vec<u32> = (0..rows).map(|r| (r * stride + tap * dilation) as u32).collect();
            taps.push(xs.index_select(&Tensor::new(index, xs.device())?, 1)?);
        }
        Ok(Tensor::cat(&taps, 2)?)
    }
}

/// `(out, in, k)` as [`toom_cook`] wants it.
fn at_points(weight: &Tensor) -> Result<Tensor> {
    let (outputs, inputs, taps) = weight.dims3()?;
    let rows = with_f32(weight, |weight| Ok(toom_cook::transform(weight, outputs, inputs, taps)))?;
    Ok(Tensor::from_vec(rows, toom_cook::shape(outputs, inputs, taps), &Device::Cpu)?)
}

/// `(out, in, k) -> (out, k · in)`.
fn taps_beside_channels(weight: &Tensor, taps: usize) -> Result<Tensor> {
    let (outputs, inputs, kernel) = weight.dims3()?;
    if kernel != taps {
        return Err(Error::internal(format!("a convolution of {taps} taps was given {kernel}")));
    }
    Ok(weight.permute((0, 2, 1))?.contiguous()?.reshape((outputs, kernel * inputs))?)
}

/// `(in, out, k) -> (k · out, in)`.
fn taps_beside_outputs(weight: &Tensor) -> Result<Tensor> {
    let (inputs, outputs, kernel) = weight.dims3()?;
    Ok(weight.permute((2, 1, 0))?.contiguous()?.reshape((kernel * outputs, inputs))?)
}

/// Transposed convolution: one product to `(T, k · out)`, then overlap-add.
#[derive(Debug, Clone)]
pub struct ConvTranspose1d {
    /// `(k · out, in)`.
    taps: Linear,
    bias: Vec<f32>,
    inputs: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
}

impl ConvTranspose1d {
    /// From a weight `(in, out, k)` and a bias `(out)`; output length `(T - 1) · stride - 2 · padding + k`.
    ///
    /// # Errors
    /// If the weight is not of rank 3.
    pub fn new(weight: &Tensor, bias: &Tensor, stride: usize, padding: usize) -> Result<Self> {
        let (inputs, _, kernel) = weight.dims3()?;
        let taps = Linear::new(&taps_beside_outputs(weight)?, None, &Keep::default())?;
        let bias = bias.to_device(&Device::Cpu)?.to_vec1()?;
        Ok(Self { taps, bias, inputs, kernel, stride, padding })
    }

    /// The convolution at `w`, whose weight `(in, out, k)` of `shape` is what `weight` makes of the file, if it is not
    /// kept packed.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn made(
        w: &Weights,
        (inputs, outputs, kernel): (usize, usize, usize),
        weight: impl FnOnce() -> Result<Tensor>,
        (stride, padding): (usize, usize),
    ) -> Result<Self> {
        let taps = Linear::made(w, (kernel * outputs, inputs), || taps_beside_outputs(&weight()?), None)?;
        let bias = w.get("bias", outputs)?.to_device(&Device::Cpu)?.to_vec1()?;
        Ok(Self { taps, bias, inputs, kernel, stride, padding })
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
        let columns = self.taps.forward(xs)?.to_device(&Device::Cpu)?;
        let (n, kernel) = (self.bias.len(), self.kernel);
        let rows = (t - 1) * self.stride + kernel - 2 * self.padding;
        let mut out = vec![0f32; batch * rows * n];
        with_f32(&columns, |columns| {
            // An output row is met by every tap that is congruent to it, each of another input row.
            out.par_chunks_exact_mut(n).with_min_len(64).enumerate().for_each(|(i, row)| {
                let (sequence, at) = (i / rows, i % rows + self.padding);
                row.copy_from_slice(&self.bias);
                for tap in (at % self.stride..kernel.min(at + 1)).step_by(self.stride) {
                    let source = (at - tap) / self.stride;
                    if source < t {
                        let column = &columns[((sequence * t + source) * kernel + tap) * n..][..n];
                        row.iter_mut().zip(column).for_each(|(out, x)| *out += x);
                    }
                }
            });
            Ok(())
        })?;
        Ok(from_f32(out, (batch, rows, n))?.to_device(xs.device())?)
    }
}
