//! Pitch from the mel spectrogram: five convolutions of three frames and a projection.
//!
//! Computed in f64: the source adds the pitch up to a phase over the whole clip, nine times over for the highest harmonic,
//! and after some seconds the rounding of f32 would be heard nowhere but stand in every sample.

use candle_core::{D, DType, Device, Tensor};

use super::{HiftConfig, weight_norm};
use crate::error::Result;
use crate::s3gen::MEL_CHANNELS;
use crate::weights::Weights;

/// Frames on either side that the pitch of one depends on: one per convolution.
pub(super) const F0_REACH_FRAMES: usize = LAYERS;
pub(in crate::s3gen) const LAYERS: usize = 5;
pub(in crate::s3gen) const TAPS: usize = 3;

#[derive(Debug, Clone)]
pub(super) struct F0Predictor {
    condnet: Vec<Conv>,
    /// `(C, 1)`.
    classifier: Tensor,
    /// `(1)`.
    bias: Tensor,
    dtype: DType,
}

/// A convolution over three rows, a product for each.
#[derive(Debug, Clone)]
struct Conv {
    /// `(in, out)` each.
    taps: [Tensor; TAPS],
    /// `(out)`.
    bias: Tensor,
}

impl Conv {
    fn load(w: &Weights, inputs: usize, outputs: usize, dtype: DType) -> Result<Self> {
        let weight = weight_norm(w, (outputs, inputs, TAPS), dtype)?;
        let tap = |i: usize| weight.narrow(2, i, 1)?.squeeze(2)?.t()?.contiguous();
        Ok(Self { taps: [tap(0)?, tap(1)?, tap(2)?], bias: w.get("bias", outputs)?.to_dtype(dtype)? })
    }

    /// `xs: (T, in) -> (T, out)`, with zeros around.
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (rows, padded) = (xs.dim(0)?, xs.pad_with_zeros(0, 1, 1)?);
        let product = |i: usize| padded.narrow(0, i, rows)?.matmul(&self.taps[i]);
        Ok(((product(0)? + product(1)?)? + product(2)?)?.broadcast_add(&self.bias)?)
    }
}

impl F0Predictor {
    pub(super) fn load(w: &Weights, config: &HiftConfig) -> Result<Self> {
        // Metal has no f64.
        let dtype = if matches!(w.device(), Device::Metal(_)) { DType::F32 } else { DType::F64 };
        let channels = config.f0_channels;
        let layer = |i: usize| {
            let inputs = if i == 0 { MEL_CHANNELS } else { channels };
            // Activations stand between the convolutions in the checkpoint's numbering.
            Conv::load(&w.pp("condnet").pp(2 * i), inputs, channels, dtype)
        };
        let classifier = w.pp("classifier");
        Ok(Self {
            condnet: (0..LAYERS).map(layer).collect::<Result<_>>()?,
            classifier: classifier.get("weight", (1, channels))?.to_dtype(dtype)?.t()?.contiguous()?,
            bias: classifier.get("bias", 1)?.to_dtype(dtype)?,
            dtype,
        })
    }

    /// `mel: (1, T, 80)` to T pitches in Hz.
    pub(super) fn forward(&self, mel: &Tensor) -> Result<Vec<f32>> {
        let mut xs = mel.squeeze(0)?.to_dtype(self.dtype)?;
        for conv in &self.condnet {
            xs = conv.forward(&xs)?.elu(1.0)?;
        }
        let f0 = xs.matmul(&self.classifier)?.broadcast_add(&self.bias)?.abs()?;
        Ok(f0.squeeze(D::Minus1)?.to_dtype(DType::F32)?.to_vec1()?)
    }
}
