//! Long short-term memory over batches of equally long sequences.
//!
//! `i, f, g, o = W_ih x + b_ih + W_hh h + b_hh`; `c = σ(f) c + σ(i) tanh(g)`; `h = σ(o) tanh(c)` (Hochreiter and
//! Schmidhuber 1997, gates in PyTorch's order).
//!
//! It runs on the CPU whatever the device: its steps wait for each other and are too small to be worth a launch each.

use candle_core::{Device, Tensor};
use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::kernels::lstm::Step;
use crate::kernels::matrix::Matrix;
use crate::kernels::product::{Finish, Rows, product_serial};
use crate::kernels::view::{from_f32, with_f32};
use crate::protocol::Precision;
use crate::weights::Weights;

/// Sequences that run together. A fixed number, so that results do not depend on the number of threads; six rows fill
/// the tile of the matrix product.
const TOGETHER: usize = 6;

/// Stacked layers, one direction.
#[derive(Debug, Clone)]
pub struct Lstm {
    layers: Vec<Layer>,
    inputs: usize,
    hidden: usize,
}

#[derive(Debug, Clone)]
struct Layer {
    /// `(4 · hidden, in)`.
    weight_ih: Matrix,
    /// `(4 · hidden, hidden)`.
    weight_hh: Matrix,
    /// The sum of both biases, `(4 · hidden)`.
    bias: Vec<f32>,
}

impl Lstm {
    /// Loads `weight_ih_l*`, `weight_hh_l*`, `bias_ih_l*` and `bias_hh_l*` of `layers` layers.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn load(w: &Weights, inputs: usize, hidden: usize, layers: usize) -> Result<Self> {
        let values = |tensor: Tensor| Ok::<_, Error>(tensor.flatten_all()?.to_device(&Device::Cpu)?.to_vec1::<f32>()?);
        let layer = |i: usize| {
            let width = if i == 0 { inputs } else { hidden };
            let bias_ih = w.get(&format!("bias_ih_l{i}"), 4 * hidden)?;
            let bias_hh = w.get(&format!("bias_hh_l{i}"), 4 * hidden)?;
            let matrix = |name: &str, width: usize| {
                let rows = values(w.get(&format!("weight_{name}_l{i}"), (4 * hidden, width))?)?;
                Ok::<_, Error>(Matrix::pack(&rows, 4 * hidden, width, Precision::F32))
            };
            Ok(Layer {
                weight_ih: matrix("ih", width)?,
                weight_hh: matrix("hh", hidden)?,
                bias: values((bias_ih + bias_hh)?)?,
            })
        };
        Ok(Self { layers: (0..layers).map(layer).collect::<Result<_>>()?, inputs, hidden })
    }

    /// `xs: (B, T, in) -> (B, hidden)`: the last layer's output at the last step, from a zero state.
    ///
    /// # Errors
    /// If the width differs.
    pub fn last(&self, xs: &Tensor) -> Result<Tensor> {
        let (batch, steps, width) = xs.dims3()?;
        if width != self.inputs {
            return Err(Error::internal(format!("an LSTM of {} inputs was given {:?}", self.inputs, xs.dims())));
        }
        let mut out = vec![0f32; batch * self.hidden];
        // Sequences do not depend on each other: a thread takes some of them through all steps and layers.
        with_f32(&xs.to_device(&Device::Cpu)?, |x| {
            out.par_chunks_mut(TOGETHER * self.hidden).zip(x.par_chunks(TOGETHER * steps * width)).for_each(
                |(out, x)| {
                    self.run(x, steps, out);
                },
            );
            Ok(())
        })?;
        Ok(from_f32(out, (batch, self.hidden))?.to_device(xs.device())?)
    }

    /// Some sequences through all layers; `xs: (rows, steps, in)`, `out: (rows, hidden)`.
    fn run(&self, xs: &[f32], steps: usize, out: &mut [f32]) {
        let (h, rows) = (self.hidden, out.len() / self.hidden);
        // Time before batch, so that a step's rows lie together.
        let mut inputs = vec![0f32; xs.len()];
        for (row, sequence) in xs.chunks_exact(steps * self.inputs).enumerate() {
            for (t, x) in sequence.chunks_exact(self.inputs).enumerate() {
                inputs[(t * rows + row) * self.inputs..][..self.inputs].copy_from_slice(x);
            }
        }
        let mut gates = vec![0f32; steps * rows * 4 * h];
        for layer in &self.layers {
            let width = inputs.len() / (steps * rows);
            let finish = Finish { bias: Some(&layer.bias), ..Finish::default() };
            product_serial(Rows::dense(&inputs, steps * rows, width), &layer.weight_ih, finish, &mut gates);
            inputs = layer.recur(&gates, rows, h);
        }
        let last = inputs.len() - rows * h;
        out.copy_from_slice(&inputs[last..]);
    }
}

impl Layer {
    /// Takes the input's part of the gates, `(steps, rows, 4 · hidden)`, to the outputs, `(steps, rows, hidden)`.
    fn recur(&self, gates: &[f32], rows: usize, h: usize) -> Vec<f32> {
        let mut outputs = vec![0f32; gates.len() / 4];
        let mut sums = vec![0f32; rows * 4 * h];
        let mut cell = vec![0f32; rows * h];
        let mut before = vec![0f32; rows * h];
        for (gates, output) in gates.chunks_exact(rows * 4 * h).zip(outputs.chunks_exact_mut(rows * h)) {
            let finish = Finish { residual: Some(gates), ..Finish::default() };
            product_serial(Rows::dense(&before, rows, h), &self.weight_hh, finish, &mut sums);
            let states = cell.chunks_exact_mut(h).zip(output.chunks_exact_mut(h));
            sums.chunks_exact(4 * h).zip(states).for_each(|(gates, (cell, output))| Step { gates, cell, output }.run());
            before.copy_from_slice(output);
        }
        outputs
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn sigmoid(x: f32) -> f32 {
        1.0 / (1.0 + (-x).exp())
    }

    #[test]
    fn one_unit_by_hand() {
        let layer = Layer {
            weight_ih: Matrix::pack(&[0.5, -0.25, 1.0, 0.75], 4, 1, Precision::F32),
            weight_hh: Matrix::pack(&[0.1, 0.2, 0.3, 0.4], 4, 1, Precision::F32),
            bias: vec![0.0, 1.0, 0.0, -0.5],
        };
        let lstm = Lstm { layers: vec![layer], inputs: 1, hidden: 1 };
        let (mut c, mut h) = (0f32, 0f32);
        for x in [1.0f32, -2.0] {
            c = sigmoid(-0.25 * x + 0.2 * h + 1.0) * c + sigmoid(0.5 * x + 0.1 * h) * (x + 0.3 * h).tanh();
            h = sigmoid(0.75 * x + 0.4 * h - 0.5) * c.tanh();
        }
        let xs = Tensor::new(&[[[1f32], [-2.0]], [[1.0], [-2.0]], [[0.0], [0.0]]], &Device::Cpu).unwrap();
        let found: Vec<f32> = lstm.last(&xs).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        assert!((found[0] - h).abs() < 1e-6 && found[0] == found[1] && found[2] != found[0], "{found:?} {h}");
    }

    #[test]
    fn a_wrong_width_is_an_error_and_no_rows_are_no_rows() {
        let layer = Layer { weight_ih: Matrix::zeros(4, 2), weight_hh: Matrix::zeros(4, 1), bias: vec![0.0; 4] };
        let lstm = Lstm { layers: vec![layer], inputs: 2, hidden: 1 };
        assert!(lstm.last(&Tensor::zeros((1, 4, 3), candle_core::DType::F32, &Device::Cpu).unwrap()).is_err());
    }
}
