//! Dense projection and table lookup.

use candle_core::{Device, IndexOp, Tensor};

use super::activation::Activation;
use super::weight::{Weight, finish_on_device, finished_product};
use crate::error::{Error, Result};
use crate::kernels::product::Rows;
use crate::kernels::view::with_f32;
use crate::weights::{Keep, Weights};

/// `y = x Wᵀ + b`, weight `(out, in)` as PyTorch stores it.
#[derive(Debug, Clone)]
pub struct Linear {
    weight: Weight,
    bias: Option<Tensor>,
}

impl Linear {
    /// Loads `weight` and `bias`.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn load(w: &Weights, inputs: usize, outputs: usize) -> Result<Self> {
        let bias = Some(w.get("bias", outputs)?);
        Self::made(w, (outputs, inputs), || w.get("weight", (outputs, inputs)), bias)
    }

    /// Loads `weight` alone.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn load_no_bias(w: &Weights, inputs: usize, outputs: usize) -> Result<Self> {
        Self::made(w, (outputs, inputs), || w.get("weight", (outputs, inputs)), None)
    }

    /// Loads `weight` and `bias` of a `Conv1D` of GPT-2, which is a projection stored as `(in, out)`.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn load_transposed(w: &Weights, inputs: usize, outputs: usize) -> Result<Self> {
        let bias = Some(w.get("bias", outputs)?);
        Self::made(w, (outputs, inputs), || Ok(w.get("weight", (inputs, outputs))?.t()?), bias)
    }

    /// The projection at `w`, whose weight `(out, in)` is what `weight` makes of the file, if it is not kept packed.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn made(
        w: &Weights,
        (outputs, inputs): (usize, usize),
        weight: impl FnOnce() -> Result<Tensor>,
        bias: Option<Tensor>,
    ) -> Result<Self> {
        Ok(Self { weight: Weight::load(w, "weight", (outputs, inputs), weight)?, bias })
    }

    /// A projection from tensors: weight `(out, in)`, bias `(out)`.
    ///
    /// # Errors
    /// If the weight is no matrix.
    pub fn new(weight: &Tensor, bias: Option<Tensor>, keep: &Keep) -> Result<Self> {
        Ok(Self { weight: Weight::new(weight, keep)?, bias })
    }

    /// Several projections of the same input as one product; their outputs stand side by side.
    ///
    /// # Errors
    /// If the input widths differ or only some have a bias.
    pub fn fuse(parts: &[&Self]) -> Result<Self> {
        let weights: Vec<&Weight> = parts.iter().map(|p| &p.weight).collect();
        let biases: Vec<&Tensor> = parts.iter().filter_map(|p| p.bias.as_ref()).collect();
        let bias = match biases.len() {
            0 => None,
            n if n == parts.len() => Some(Tensor::cat(&biases, 0)?),
            _ => return Err(Error::internal("fused projections must all have a bias or none")),
        };
        let inputs = |weight: &&Weight| weight.dims().map(|dims| dims.1);
        let widths: Vec<usize> = weights.iter().map(inputs).collect::<Result<_>>()?;
        if widths.iter().any(|width| *width != widths[0]) {
            return Err(Error::internal(format!("fused projections must have the same inputs, not {widths:?}")));
        }
        Ok(Self { weight: Weight::stack(&weights)?, bias })
    }

    /// `xs: (.., in) -> (.., out)`.
    ///
    /// # Errors
    /// If the last dimension is not `in`.
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.run(xs, Activation::Identity, None)
    }

    /// `act(xs Wᵀ + b)`, `(.., in) -> (.., out)`.
    ///
    /// # Errors
    /// If the last dimension is not `in`.
    pub fn forward_act(&self, xs: &Tensor, activation: Activation) -> Result<Tensor> {
        self.run(xs, activation, None)
    }

    /// `residual + xs Wᵀ + b`, `residual: (.., out)`.
    ///
    /// # Errors
    /// If the last dimension is not `in` or the residual has another shape than the result.
    pub fn forward_add(&self, xs: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.run(xs, Activation::Identity, Some(residual))
    }

    fn run(&self, xs: &Tensor, activation: Activation, residual: Option<&Tensor>) -> Result<Tensor> {
        let (n, k) = self.weight.dims()?;
        let mut dims = xs.dims().to_vec();
        let m = xs.elem_count() / k.max(1);
        match dims.last_mut() {
            Some(last) if *last == k => *last = n,
            _ => return Err(Error::internal(format!("a projection of {k} inputs was given {:?}", xs.dims()))),
        }
        let bias = self.bias.as_ref();
        match &self.weight {
            Weight::Cpu(w) => {
                with_f32(xs, |x| finished_product(Rows::dense(x, m, k), w, bias, activation, residual, &dims))
            }
            Weight::Device(w) => {
                let ys = xs.reshape((m, k))?.matmul(&w.t()?)?.reshape(dims)?;
                finish_on_device(ys, bias, activation, residual)
            }
        }
    }
}

/// A table of vectors, `(entries, dim)`.
#[derive(Debug, Clone)]
pub struct Embedding {
    table: Tensor,
}

impl Embedding {
    /// Loads `weight`.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn load(w: &Weights, entries: usize, dim: usize) -> Result<Self> {
        Ok(Self { table: w.get("weight", (entries, dim))? })
    }

    /// Number of entries.
    pub fn entries(&self) -> usize {
        self.table.dims()[0]
    }

    /// Where the table lives.
    pub fn device(&self) -> &Device {
        self.table.device()
    }

    /// `ids (T) -> (1, T, dim)`.
    ///
    /// # Errors
    /// If an id lies outside the table.
    pub fn forward(&self, ids: &[u32]) -> Result<Tensor> {
        if let Some(bad) = ids.iter().find(|&&id| id as usize >= self.entries()) {
            return Err(Error::internal(format!("id {bad} lies outside a table of {} entries", self.entries())));
        }
        let ids = Tensor::new(ids, self.table.device())?;
        Ok(self.table.index_select(&ids, 0)?.unsqueeze(0)?)
    }

    /// Rows `start..start + len` as `(1, len, dim)`: learned positions.
    ///
    /// # Errors
    /// If they lie outside the table.
    pub fn rows(&self, start: usize, len: usize) -> Result<Tensor> {
        if start + len > self.entries() {
            return Err(Error::internal(format!(
                "position {} lies outside a table of {}",
                start + len,
                self.entries()
            )));
        }
        Ok(self.table.i(start..start + len)?.unsqueeze(0)?)
    }
}
