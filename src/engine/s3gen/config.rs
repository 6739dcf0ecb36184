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
/// Positions are cut into chunks of equal size, counted from the first prompt token; or, with `prompt_is_chunk`, into
/// the prompt, a first chunk and chunks of equal size. A position sees its own chunk to its end and `left_chunks` before
/// it. `{"chunk_tokens": 10}` is a whole section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkCausalConfig {
    /// Chunk of the encoder, in tokens; its layers behind the upsampling use twice as many frames.
    pub chunk_tokens: usize,
    /// Earlier chunks the encoder sees; absent or negative: all.
    #[serde(default)]
    pub left_chunks: Option<i64>,
    /// Chunk of the estimator, in mel frames; absent: two per token of `chunk_tokens`.
    #[serde(default)]
    pub estimator_chunk_frames: Option<usize>,
    /// Earlier chunks the estimator sees; absent: as the encoder.
    #[serde(default)]
    pub estimator_left_chunks: Option<i64>,
    /// The prompt is a chunk of its own, whose look-ahead ends where the prompt does.
    #[serde(default)]
    pub prompt_is_chunk: bool,
    /// Tokens of the first chunk behind such a prompt; absent: `chunk_tokens`.
    #[serde(default)]
    pub first_chunk_tokens: Option<usize>,
}

impl ChunkCausalConfig {
    /// Equal chunks that see all before them.
    pub fn new(chunk_tokens: usize) -> Self {
        Self {
            chunk_tokens,
            left_chunks: None,
            estimator_chunk_frames: None,
            estimator_left_chunks: None,
            prompt_is_chunk: false,
            first_chunk_tokens: None,
        }
    }

    /// Whether no chunk is empty.
    pub(super) fn is_sound(&self) -> bool {
        self.chunk_tokens > 0 && self.first_chunk_tokens != Some(0) && self.estimator_chunk_frames != Some(0)
    }

    /// The rule of the encoder at the token rate, behind a prompt of so many tokens.
    pub(super) fn tokens(&self, prompt_tokens: usize) -> Chunks {
        let size = self.chunk_tokens;
        let (prompt, first) = match self.prompt_is_chunk {
            true => (prompt_tokens, self.first_chunk_tokens.unwrap_or(size)),
            false => (0, size),
        };
        Chunks { prompt, first, size, left: all_if_negative(self.left_chunks) }
    }

    /// The rule of the estimator, behind a prompt of so many tokens.
    pub(super) fn estimator(&self, prompt_tokens: usize) -> Chunks {
        let frames = self.tokens(prompt_tokens).scaled(FRAMES_PER_TOKEN);
        let left = all_if_negative(self.estimator_left_chunks.or(self.left_chunks));
        match self.estimator_chunk_frames {
            Some(size) if size != frames.size => Chunks { first: size, size, left, ..frames },
            _ => Chunks { left, ..frames },
        }
    }
}

fn all_if_negative(chunks: Option<i64>) -> Option<usize> {
    chunks.and_then(|chunks| usize::try_from(chunks).ok())
}

/// The chunk rule of one attention layer, in its own positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunks {
    /// Positions of the prompt if that is a chunk, else 0.
    pub prompt: usize,
    /// Positions of the chunk after it.
    pub first: usize,
    /// Positions of all others.
    pub size: usize,
    /// Earlier chunks that are seen; `None`: all.
    pub left: Option<usize>,
}

impl Chunks {
    /// The same rule where every position has become `ratio`.
    pub(super) fn scaled(self, ratio: usize) -> Self {
        let Self { prompt, first, size, left } = self;
        Self { prompt: prompt * ratio, first: first * ratio, size: size * ratio, left }
    }

    /// Number of the chunk that `position` lies in.
    pub(super) fn chunk_of(&self, position: usize) -> usize {
        let before = usize::from(self.prompt > 0);
        match position.checked_sub(self.prompt) {
            None => 0,
            Some(behind) if behind < self.first => before,
            Some(behind) => before + 1 + (behind - self.first) / self.size,
        }
    }

    /// First position of a chunk.
    pub(super) fn start_of(&self, chunk: usize) -> usize {
        match chunk.checked_sub(usize::from(self.prompt > 0)) {
            None => 0,
            Some(0) => self.prompt,
            Some(behind) => self.prompt + self.first + (behind - 1) * self.size,
        }
    }

    /// First position that `position` sees.
    pub(super) fn first_seen(&self, position: usize) -> usize {
        self.left.map_or(0, |left| self.start_of(self.chunk_of(position).saturating_sub(left)))
    }

    /// The last chunk border that is not behind `position`.
    pub(super) fn border_up_to(&self, position: usize) -> usize {
        self.start_of(self.chunk_of(position))
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
        let grid = Chunks { prompt: 0, first: 20, size: 20, left: Some(8) };
        assert_eq!((chunks.tokens(7).scaled(2), chunks.estimator(7)), (grid, grid));
    }

    #[test]
    fn a_prompt_can_be_a_chunk() {
        let json = r#"{"chunk_tokens": 4, "first_chunk_tokens": 3, "prompt_is_chunk": true, "left_chunks": -1}"#;
        let config: ChunkCausalConfig = serde_json::from_str(json).unwrap();
        let chunks = config.tokens(5);
        let numbers: Vec<usize> = (0..14).map(|position| chunks.chunk_of(position)).collect();
        assert_eq!(numbers, [0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3]);
        assert_eq!([0, 1, 2, 3].map(|chunk| chunks.start_of(chunk)), [0, 5, 8, 12]);
        assert_eq!([0, 4, 5, 7, 8, 13].map(|position| chunks.border_up_to(position)), [0, 0, 5, 5, 8, 12]);
        assert_eq!(config.estimator(5), Chunks { prompt: 10, first: 6, size: 8, left: None });
        assert_eq!(Chunks { left: Some(1), ..chunks }.first_seen(9), 5);
    }
}
