//! Dimensions of T3 and the ids that mean something.
//!
//! Field names in `config.json` are those of the `t3` section of a model folder.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::weights::Weights;

/// Text id put before a text (Llama variants).
pub const START_TEXT: u32 = 255;
/// Text id put after a text (Llama variants).
pub const STOP_TEXT: u32 = 0;
/// Number of codes of the S3 tokenizer, 3⁸: only ids below this mean sound, and only those may reach S3Gen.
pub const SPEECH_CODES: u32 = 6561;
/// Speech id that begins a sequence.
pub const START_SPEECH: u32 = 6561;
/// Speech id that ends a sequence.
pub const STOP_SPEECH: u32 = 6562;
/// The code of silence, of which Turbo and Nano want three after the last token.
pub const SILENCE: u32 = 4299;

/// Which transformer T3 is built on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backbone {
    /// Llama with rotary positions, a Perceiver over the prompt, emotion and guidance: English and Multilingual.
    #[default]
    Llama,
    /// GPT-2 with learned absolute positions and the prompt as it is: Turbo and Nano.
    Gpt2,
}

/// Dimensions of T3. The default is the English model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct T3Config {
    /// Which transformer.
    pub backbone: Backbone,
    /// Width of the residual stream.
    pub dim: usize,
    /// Attention heads.
    pub heads: usize,
    /// Transformer layers.
    pub layers: usize,
    /// Width of the MLP.
    #[serde(rename = "ff")]
    pub mlp_dim: usize,
    /// Entries of the text table.
    pub text_vocab: usize,
    /// Entries of the speech table and number of logits.
    pub speech_vocab: usize,
    /// Longest text in tokens (Llama); the position table has two rows more.
    #[serde(rename = "max_text")]
    pub max_text_tokens: usize,
    /// Longest speech in tokens (Llama); the position table has four rows more.
    #[serde(rename = "max_speech")]
    pub max_speech_tokens: usize,
    /// Rows of the absolute position table over the whole sequence (GPT-2).
    pub positions: usize,
    /// Speech tokens of the reference clip that make up the prompt.
    #[serde(rename = "prompt")]
    pub prompt_tokens: usize,
    /// Width of the speaker embedding.
    #[serde(rename = "spk")]
    pub speaker_dim: usize,
    /// Vectors the Perceiver makes of the prompt (Llama).
    pub queries: usize,
    /// Attention heads of the Perceiver (Llama).
    pub perceiver_heads: usize,
}

impl Default for T3Config {
    fn default() -> Self {
        Self::english()
    }
}

impl T3Config {
    /// Chatterbox English, 532 M parameters.
    pub fn english() -> Self {
        Self {
            backbone: Backbone::Llama,
            dim: 1024,
            heads: 16,
            layers: 30,
            mlp_dim: 4096,
            text_vocab: 704,
            speech_vocab: 8194,
            max_text_tokens: 2048,
            max_speech_tokens: 4096,
            positions: 0,
            prompt_tokens: 150,
            speaker_dim: 256,
            queries: 32,
            perceiver_heads: 4,
        }
    }

    /// Chatterbox Multilingual, second and third weights.
    pub fn multilingual() -> Self {
        Self { text_vocab: 2454, ..Self::english() }
    }

    /// Chatterbox Turbo.
    pub fn turbo() -> Self {
        Self {
            backbone: Backbone::Gpt2,
            layers: 24,
            text_vocab: 50276,
            speech_vocab: 6563,
            max_text_tokens: 0,
            max_speech_tokens: 0,
            positions: 8196,
            prompt_tokens: 375,
            queries: 0,
            perceiver_heads: 0,
            ..Self::english()
        }
    }

    /// Chatterbox Nano.
    pub fn nano() -> Self {
        Self { dim: 768, heads: 12, layers: 12, mlp_dim: 3072, ..Self::turbo() }
    }

    /// Width of one attention head.
    pub fn head_dim(&self) -> usize {
        self.dim / self.heads.max(1)
    }

    /// Vectors that stand for the voice when the prompt is full.
    pub fn max_cond_len(&self) -> usize {
        match self.backbone {
            Backbone::Llama => 2 + self.queries,
            Backbone::Gpt2 => 1 + self.prompt_tokens,
        }
    }

    /// Rows of the speech position table (Llama).
    pub(super) fn speech_positions(&self) -> usize {
        self.max_speech_tokens + 4
    }

    /// Rows of the text position table (Llama).
    pub(super) fn text_positions(&self) -> usize {
        self.max_text_tokens + 2
    }

    /// Refuses dimensions that no network can have.
    pub(super) fn check(&self, w: &Weights) -> Result<()> {
        let fault = |what: &str| Err(Error::model(w.path(), format!("the t3 section of its config.json: {what}")));
        let head_dim = self.head_dim();
        if self.heads == 0 || self.layers == 0 || head_dim * self.heads != self.dim {
            return fault("dim must be a multiple of heads, and there must be layers");
        }
        if self.speech_vocab <= STOP_SPEECH as usize {
            return fault("speech_vocab must be at least 6563, or there is no end-of-speech id");
        }
        match self.backbone {
            Backbone::Gpt2 if self.positions == 0 => fault("a gpt2 backbone needs positions"),
            Backbone::Llama if !head_dim.is_multiple_of(2) => fault("heads of an odd width cannot be rotated"),
            Backbone::Llama if self.text_vocab <= START_TEXT as usize => fault("text_vocab must be at least 256"),
            Backbone::Llama if self.perceiver_heads == 0 || !self.dim.is_multiple_of(self.perceiver_heads) => {
                fault("dim must be a multiple of perceiver_heads")
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_section_without_backbone_is_llama_and_keeps_its_names() {
        let json = r#"{"dim": 256, "heads": 4, "layers": 8, "ff": 704, "text_vocab": 256, "speech_vocab": 6563,
            "max_text": 384, "max_speech": 1024, "prompt": 150, "spk": 160, "queries": 32, "perceiver_heads": 4}"#;
        let config: T3Config = serde_json::from_str(json).unwrap();
        assert_eq!((config.backbone, config.mlp_dim, config.speaker_dim), (Backbone::Llama, 704, 160));
        assert_eq!((config.text_positions(), config.speech_positions()), (386, 1028));
        assert_eq!(config.max_cond_len(), 34);
    }

    #[test]
    fn the_backbone_is_named_in_lower_case() {
        let config: T3Config = serde_json::from_str(r#"{"backbone": "gpt2", "positions": 512}"#).unwrap();
        assert_eq!((config.backbone, config.positions), (Backbone::Gpt2, 512));
        assert_eq!(T3Config::nano().head_dim(), 64);
    }
}
