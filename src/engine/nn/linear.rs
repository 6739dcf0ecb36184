//! Dense projection and table lookup.

use candle_core::{Device, IndexOp, Tensor};

use crate::error::{Error, Result};
use crate::kernels::gemm::{Rows, matmul_nt};
use crate::kernels::gemv::{MAX_ROWS, gemv_nt};
use crate::kernels::view::{from_f32, with_f32};
use crate::weights::Weights;

/// `y = x Wᵀ + b`, weight `(out, in)` as PyTorch stores it.
#[derive(Debug, Clone)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// Loads `weight` and `bias`.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn load(w: &Weights, inputs: usize, outputs: usize) -> Result<Self> {
        Ok(Self::new(w.get("weight", (outputs, inputs))?, Some(w.get("bias", outputs)?)))
    }

    /// Loads `weight` alone.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn load_no_bias(w: &Weights, inputs: usize, outputs: usize) -> Result<Self> {
        Ok(Self::new(w.get("weight", (outputs, inputs))?, None))
    }

    /// Loads `weight` and `bias` of a `Conv1D` of GPT-2, which is a projection stored as `(in, out)`.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn load_transposed(w: &Weights, inputs: usize, outputs: usize) -> Result<Self> {
        let weight = w.get("weight", (inputs, outputs))?.t()?.contiguous()?;
        Ok(Self::new(weight, Some(w.get("bias", outputs)?)))
    }

    /// A projection from tensors: weight `(out, in)`, bias `(out)`.
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self { weight, bias }
    }

    /// Several projections of the same input as one product; their outputs stand side by side.
    ///
    /// # Errors
    /// If the input widths differ or only some have a bias.
    pub fn fuse(parts: &[&Self]) -> Result<Self> {
        let weights: Vec<&Tensor> = parts.iter().map(|p| &p.weight).collect();
        let biases: Vec<&Tensor> = parts.iter().filter_map(|p| p.bias.as_ref()).collect();
        let bias = match biases.len() {
            0 => None,
            n if n == parts.len() => Some(Tensor::cat(&biases, 0)?),
            _ => return Err(Error::internal("fused projections must all have a bias or none")),
        };
        Ok(Self::new(Tensor::cat(&weights, 0)?, bias))
    }

    /// Number of outputs.
    pub fn outputs(&self) -> usize {
        self.weight.dims()[0]
    }

    /// `xs: (.., in) -> (.., out)`.
    ///
    /// # Errors
    /// If the last dimension is not `in`.
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (n, k) = self.weight.dims2()?;
        let mut dims = xs.dims().to_vec();
        let m = xs.elem_count() / k.max(1);
        match dims.last_mut() {
            Some(last) if *last == k => *last = n,
            _ => return Err(Error::internal(format!("a projection of {k} inputs was given {:?}", xs.dims()))),
        }
        if !matches!(xs.device(), Device::Cpu) {
            let ys = xs.reshape((m, k))?.matmul(&self.weight.t()?)?;
            let ys = match &self.bias {
                Some(bias) => ys.broadcast_add(bias)?,
                None => ys,
            };
            return Ok(ys.reshape(dims)?);
        }
        let mut out = vec![0f32; m * n];
        if let Some(bias) = &self.bias {
            with_f32(bias, |b| {
                out.chunks_exact_mut(n).for_each(|row| row.copy_from_slice(b));
                Ok(())
            })?;
        }
        with_f32(xs, |x| {
            with_f32(&self.weight, |w| {
                if m <= MAX_ROWS {
                    gemv_nt(x, w, &mut out, m, n, k);
                } else {
                    matmul_nt(Rows::dense(x, m, k), w, &mut out, n, n, self.bias.is_some());
                }
                Ok(())
            })
        })?;
        from_f32(out, dims)
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
