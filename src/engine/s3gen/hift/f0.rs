//! Pitch from the mel spectrogram: five convolutions of three frames and a projection.

use candle_core::Tensor;

use super::{HiftConfig, weight_norm};
use crate::error::Result;
use crate::nn::{Activation, Conv1d, ConvConfig, Linear};
use crate::s3gen::MEL_CHANNELS;
use crate::weights::Weights;

/// Frames on either side that the pitch of one depends on: one per convolution.
pub(super) const F0_REACH_FRAMES: usize = LAYERS;
const LAYERS: usize = 5;

#[derive(Debug, Clone)]
pub(super) struct F0Predictor {
    condnet: Vec<Conv1d>,
    classifier: Linear,
}

impl F0Predictor {
    pub(super) fn load(w: &Weights, config: &HiftConfig) -> Result<Self> {
        let channels = config.f0_channels;
        let layer = |i: usize| {
            let inputs = if i == 0 { MEL_CHANNELS } else { channels };
            // Activations stand between the convolutions in the checkpoint's numbering.
            let w = w.pp("condnet").pp(2 * i);
            Conv1d::new(
                &weight_norm(&w, (channels, inputs, 3))?,
                Some(w.get("bias", channels)?),
                ConvConfig::same(3, 1),
            )
        };
        Ok(Self {
            condnet: (0..LAYERS).map(layer).collect::<Result<_>>()?,
            classifier: Linear::load(&w.pp("classifier"), channels, 1)?,
        })
    }

    /// `mel: (1, T, 80)` to T pitches in Hz.
    pub(super) fn forward(&self, mel: &Tensor) -> Result<Vec<f32>> {
        let mut xs = mel.clone();
        for conv in &self.condnet {
            xs = conv.forward_act(&xs, Activation::Elu)?;
        }
        Ok(self.classifier.forward(&xs)?.abs()?.flatten_all()?.to_vec1()?)
    }
}
