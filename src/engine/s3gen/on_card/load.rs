//! Weights of a checkpoint as the card wants them.

use candle_core::Tensor;

use crate::cuda::Number;
use crate::cuda::layers::{Input, Layers, Matrix, NormArgs, RowsArgs, Store};
use crate::error::Result;
use crate::weights::Weights;

pub(super) fn flat(xs: &Tensor) -> Result<Vec<f32>> {
    Ok(xs.flatten_all()?.to_vec1()?)
}

/// What a network's weights go to.
pub(super) struct Loader<'a> {
    pub store: &'a mut Store,
    pub number: Number,
}

impl Loader<'_> {
    /// A projection with a bias.
    pub(super) fn linear(&mut self, w: &Weights, inputs: usize, outputs: usize) -> Result<Matrix> {
        let bias = flat(&w.get("bias", outputs)?)?;
        self.store.matrix(&flat(&w.get("weight", (outputs, inputs))?)?, outputs, inputs, Some(&bias), self.number)
    }

    /// [`Self::linear`] of rows that pass a layer norm first. Where the kernels can, that is a part of it.
    pub(super) fn normed_linear(
        &mut self,
        norm: &Weights,
        eps: f32,
        w: &Weights,
        inputs: usize,
        outputs: usize,
    ) -> Result<Normed> {
        let bias = flat(&w.get("bias", outputs)?)?;
        let weight = flat(&w.get("weight", (outputs, inputs))?)?;
        self.normed(norm, eps, &weight, inputs, Some(&bias))
    }

    /// [`Self::fused`] of rows that pass a layer norm first.
    pub(super) fn normed_fused(
        &mut self,
        norm: &Weights,
        eps: f32,
        parts: &[Weights],
        inputs: usize,
        outputs: usize,
    ) -> Result<Normed> {
        let weight = rows_of(parts, inputs, outputs)?;
        self.normed(norm, eps, &weight, inputs, None)
    }

    fn normed(
        &mut self,
        norm: &Weights,
        eps: f32,
        weight: &[f32],
        inputs: usize,
        bias: Option<&[f32]>,
    ) -> Result<Normed> {
        if self.number == Number::F32 {
            let matrix = self.store.matrix(weight, weight.len() / inputs, inputs, bias, self.number)?;
            return Ok(Normed { norm: Some(self.norm(norm, inputs, eps)?), matrix });
        }
        let (scale, shift) = (flat(&norm.get("weight", inputs)?)?, flat(&norm.get("bias", inputs)?)?);
        let matrix = self.store.normed_matrix(weight, bias, (&scale, &shift, eps), self.number)?;
        Ok(Normed { norm: None, matrix })
    }

    /// Several projections of the same input as one, without biases.
    pub(super) fn fused(&mut self, parts: &[Weights], inputs: usize, outputs: usize) -> Result<Matrix> {
        let rows = rows_of(parts, inputs, outputs)?;
        self.store.matrix(&rows, parts.len() * outputs, inputs, None, self.number)
    }

    /// A convolution with a bias.
    pub(super) fn conv(&mut self, w: &Weights, inputs: usize, outputs: usize, taps: usize) -> Result<Matrix> {
        let bias = flat(&w.get("bias", outputs)?)?;
        let weight = w.get("weight", (outputs, inputs, taps))?;
        self.store.matrix(&flat(&taps_first(&weight)?)?, outputs, inputs, Some(&bias), self.number)
    }

    /// The same in f32.
    pub(super) fn exact<T>(&mut self, load: impl FnOnce(&mut Loader<'_>) -> Result<T>) -> Result<T> {
        load(&mut Loader { store: self.store, number: Number::F32 })
    }

    /// A layer norm.
    pub(super) fn norm(&mut self, w: &Weights, dim: usize, eps: f32) -> Result<Norm> {
        let (weight, bias) = (flat(&w.get("weight", dim)?)?, flat(&w.get("bias", dim)?)?);
        Ok(Norm { weight: self.store.vector(&weight)?, bias: self.store.vector(&bias)?, dim, eps })
    }
}

/// A projection behind a layer norm, which stands alone where it is no part of the projection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Normed {
    norm: Option<Norm>,
    pub matrix: Matrix,
}

impl Normed {
    /// The product of `x.rows` rows: those of the residual stream at `stream`, of which `x` holds a copy in the numbers of
    /// the products, normalised here if need be.
    pub(super) fn of(&self, on: &Layers, stream: u64, x: Input) -> Result<RowsArgs> {
        if let Some(norm) = &self.norm {
            on.normalise(&NormArgs { second: x.at, ..norm.of(stream, x.batch * x.rows) })?;
        }
        Ok(RowsArgs::new(&self.matrix, x))
    }
}

fn rows_of(parts: &[Weights], inputs: usize, outputs: usize) -> Result<Vec<f32>> {
    let mut rows = Vec::with_capacity(parts.len() * inputs * outputs);
    for w in parts {
        rows.extend(flat(&w.get("weight", (outputs, inputs))?)?);
    }
    Ok(rows)
}

/// `(out, in, taps)` to `(out, taps, in)`.
pub(super) fn taps_first(weight: &Tensor) -> Result<Tensor> {
    Ok(weight.permute((0, 2, 1))?.contiguous()?)
}

/// A layer norm on the card.
#[derive(Debug, Clone, Copy)]
pub(super) struct Norm {
    pub weight: u64,
    pub bias: u64,
    pub dim: usize,
    pub eps: f32,
}

impl Norm {
    /// Of `rows` rows at `x`; where the result goes is still to be said.
    pub(super) fn of(&self, x: u64, rows: usize) -> NormArgs {
        NormArgs {
            x,
            weight: self.weight,
            bias: self.bias,
            rows: rows as i32,
            dim: self.dim as i32,
            second_pitch: self.dim as i32,
            eps: self.eps,
            scale: 1.0,
            ..Default::default()
        }
    }
}
