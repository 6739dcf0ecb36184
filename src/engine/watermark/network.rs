//! The stack of convolutions that all four networks of PerTh are.

use candle_core::Tensor;

use crate::error::{Error, Result};
use crate::nn::{Activation, Conv1d, ConvConfig};
use crate::weights::Weights;

const HIDDEN: usize = 256;
const WIDE: usize = 7;
const LAYERS: usize = 7;

/// `k1, 5 × k7, k1` with LeakyReLU between them.
#[derive(Debug, Clone)]
pub(super) struct ConvStack {
    layers: Vec<Conv1d>,
}

impl ConvStack {
    pub(super) fn load(w: &Weights, outputs: usize) -> Result<Self> {
        let layer = |i: usize| {
            let w = w.pp(i).pp("conv");
            let first = if i == 0 { super::SUBBAND } else { HIDDEN };
            let last = if i + 1 == LAYERS { outputs } else { HIDDEN };
            let kernel = if i == 0 || i + 1 == LAYERS { 1 } else { WIDE };
            Conv1d::new(&weight(&w, (last, first, kernel))?, Some(w.get("bias", last)?), ConvConfig::same(kernel, 1))
        };
        Ok(Self { layers: (0..LAYERS).map(layer).collect::<Result<_>>()? })
    }

    /// `xs: (1, T, 128) -> (1, T, outputs)`.
    pub(super) fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (last, others) = self.layers.split_last().ok_or_else(|| Error::internal("a network without layers"))?;
        let mut xs = xs.clone();
        for layer in others {
            xs = layer.forward_act(&xs, Activation::LeakyRelu(0.01))?;
        }
        last.forward(&xs)
    }
}

/// A kernel, either as it is or in whole numbers of few bits: each value plus half their range, packed with the low bits
/// first, and one scale to an output channel. How many bits it has the length of a row says.
fn weight(w: &Weights, shape: (usize, usize, usize)) -> Result<Tensor> {
    let row = shape.1 * shape.2;
    let Some(&[_, bytes]) = w.shape("weight_packed") else {
        return w.get("weight", shape);
    };
    let bits = (8 * bytes / row).clamp(2, 16);
    let packed = w.get("weight_packed", (shape.0, row * bits / 8))?.flatten_all()?.to_vec1::<f32>()?;
    let (mut word, mut held) = (0u32, 0);
    let mut values = Vec::with_capacity(shape.0 * row);
    for byte in packed {
        word |= (byte as u32) << held;
        held += 8;
        while held >= bits {
            values.push((word & ((1 << bits) - 1)) as f32 - (1 << (bits - 1)) as f32);
            word >>= bits;
            held -= bits;
        }
    }
    let scale = w.get("weight_scale", (shape.0, 1, 1))?;
    Ok(Tensor::from_vec(values, shape, w.device())?.broadcast_mul(&scale)?)
}
