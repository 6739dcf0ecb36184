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

/// A kernel, either as it is or in six bits: four values to three bytes, low bits first, around 32, with one scale to an
/// output channel.
fn weight(w: &Weights, shape: (usize, usize, usize)) -> Result<Tensor> {
    if !w.contains("weight_q6") {
        return w.get("weight", shape);
    }
    let packed = w.get("weight_q6", (shape.0, shape.1 * shape.2 / 4 * 3))?.flatten_all()?.to_vec1::<f32>()?;
    let mut values = Vec::with_capacity(packed.len() / 3 * 4);
    for bytes in packed.chunks_exact(3) {
        let word = bytes[0] as u32 | (bytes[1] as u32) << 8 | (bytes[2] as u32) << 16;
        values.extend((0..4).map(|i| (word >> (6 * i) & 63) as f32 - 32.0));
    }
    let scale = w.get("weight_scale", (shape.0, 1, 1))?;
    Ok(Tensor::from_vec(values, shape, w.device())?.broadcast_mul(&scale)?)
}
