//! Dimensions of the flow: the `flow` section of a model's `config.json`; defaults are those of Chatterbox.

use serde::{Deserialize, Serialize};

/// Channels of the mel spectrogram.
pub const MEL_CHANNELS: usize = 80;
/// Mel frames to one speech token.
pub const FRAMES_PER_TOKEN: usize = 2;
/// Speech tokens the encoder must see beyond the one it encodes.
pub const LOOKAHEAD_TOKENS: usize = 3;

/// The flow: token encoder, projections and estimator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FlowConfig {
    /// Width of the encoder.
    pub dim: usize,
    /// Attention heads of the encoder.
    pub heads: usize,
    /// Width of the encoder's feed-forward layers.
    #[serde(rename = "ff")]
    pub feed_forward: usize,
    /// Conformer layers before the upsampling, at the token rate.
    pub blocks: usize,
    /// Conformer layers after it, at the frame rate.
    pub up_blocks: usize,
    /// Speech codes.
    pub vocab: usize,
    /// Size of the speaker's x-vector.
    #[serde(rename = "spk")]
    pub x_vector_dim: usize,
    /// The network that predicts velocities.
    #[serde(rename = "est")]
    pub estimator: EstimatorConfig,
    /// Present if the checkpoint was trained with chunk masks, which makes exact streaming possible.
    pub chunk_causal: Option<ChunkCausalConfig>,
}

impl Default for FlowConfig {
    fn default() -> Self {
        Self {
            dim: 512,
            heads: 8,
            feed_forward: 2048,
            blocks: 6,
            up_blocks: 4,
            vocab: 6561,
            x_vector_dim: 192,
            estimator: EstimatorConfig::default(),
            chunk_causal: None,
        }
    }
}

/// The velocity estimator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EstimatorConfig {
    /// Channels.
    #[serde(rename = "ch")]
    pub channels: usize,
    /// Attention heads.
    pub heads: usize,
    /// Size of one head.
    #[serde(rename = "hd")]
    pub head_dim: usize,
    /// Transformer blocks behind each resnet.
    #[serde(rename = "n_blocks")]
    pub transformer_blocks: usize,
    /// Resnets between the first and the last.
    #[serde(rename = "mid")]
    pub mid_blocks: usize,
}

impl Default for EstimatorConfig {
    fn default() -> Self {
        Self { channels: 256, heads: 8, head_dim: 64, transformer_blocks: 4, mid_blocks: 12 }
    }
}

/// Masks of a checkpoint whose attention was trained to see whole chunks and their past, never the future.
///
/// Positions are cut into chunks of equal size, counted from the first prompt token. A position sees its own chunk to
/// its end and `left` chunks before it (all of them if absent). `{"chunk_tokens": 10, "left_chunks": 20}` is a whole
/// section: the frame figures follow from the token figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkCausalConfig {
    /// Chunk of the encoder, in tokens; its layers behind the upsampling use twice as many frames.
    pub chunk_tokens: usize,
    /// Earlier chunks the encoder sees; absent: all.
    #[serde(default)]
    pub left_chunks: Option<usize>,
    /// Chunk of the estimator, in mel frames; absent: two per token of `chunk_tokens`.
    #[serde(default)]
    pub estimator_chunk_frames: Option<usize>,
    /// Earlier chunks the estimator sees; absent: as the encoder.
    #[serde(default)]
    pub estimator_left_chunks: Option<usize>,
}

/// The chunk rule of one attention layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunks {
    /// Positions in one chunk, at least 1.
    pub size: usize,
    /// Earlier chunks that are seen; `None`: all.
    pub left: Option<usize>,
}

impl ChunkCausalConfig {
    /// The rule of the encoder's layers at the token rate.
    pub(super) fn tokens(&self) -> Chunks {
        Chunks { size: self.chunk_tokens.max(1), left: self.left_chunks }
    }

    /// The rule of the encoder's layers at the frame rate.
    pub(super) fn frames(&self) -> Chunks {
        let Chunks { size, left } = self.tokens();
        Chunks { size: size * FRAMES_PER_TOKEN, left }
    }

    /// The rule of the estimator.
    pub(super) fn estimator(&self) -> Chunks {
        let Chunks { size, left } = self.frames();
        Chunks { size: self.estimator_chunk_frames.unwrap_or(size).max(1), left: self.estimator_left_chunks.or(left) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_short_names_of_the_schema_are_read_and_absent_ones_are_full_size() {
        let json = r#"{"dim": 192, "ff": 512, "spk": 64, "est": {"ch": 128, "hd": 32, "mid": 4},
                       "chunk_causal": {"chunk_tokens": 10, "left_chunks": 8}}"#;
        let config: FlowConfig = serde_json::from_str(json).unwrap();
        assert_eq!((config.dim, config.feed_forward, config.x_vector_dim, config.blocks), (192, 512, 64, 6));
        assert_eq!((config.estimator.channels, config.estimator.head_dim, config.estimator.heads), (128, 32, 8));
        let chunks = config.chunk_causal.unwrap();
        assert_eq!(chunks.frames(), Chunks { size: 20, left: Some(8) });
        assert_eq!(chunks.estimator(), Chunks { size: 20, left: Some(8) });
    }
}
