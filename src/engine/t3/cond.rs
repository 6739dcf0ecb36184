//! What T3 is told of the voice: `[speaker, prompt, emotion]`, a handful of vectors in front of the text.
//!
//! Llama variants: speaker projection (1), Perceiver over the prompt (32), emotion (1). GPT-2 variants: speaker
//! projection (1), then the embedded prompt itself (up to 375).

use candle_core::Tensor;

use super::config::{Backbone, T3Config};
use super::perceiver::Perceiver;
use crate::error::{Error, Result};
use crate::nn::{Embedding, Linear};
use crate::weights::Weights;

/// The voice and the mood that T3 speaks in.
#[derive(Debug, Clone)]
pub struct T3Conditioning {
    /// VoiceEncoder embedding of the whole reference clip.
    pub speaker_emb: Vec<f32>,
    /// S3 tokens of the first seconds of the clip: 6 s for the Llama variants, 15 s for Turbo and Nano.
    pub prompt_tokens: Vec<u32>,
    /// The embedded prompt, `(1, N, dim)`, where a `conds.pt` carries it; used instead of `prompt_tokens`.
    pub prompt_emb: Option<Tensor>,
    /// Emotion, 0.5 neutral. GPT-2 variants do not hear it.
    pub exaggeration: f32,
}

impl PartialEq for T3Conditioning {
    fn eq(&self, other: &Self) -> bool {
        self.speaker_emb == other.speaker_emb
            && self.prompt_tokens == other.prompt_tokens
            && self.prompt_emb.as_ref().map(Tensor::id) == other.prompt_emb.as_ref().map(Tensor::id)
            && self.exaggeration == other.exaggeration
    }
}

/// Speech embeddings of T3: the table and, for Llama, learned positions.
#[derive(Debug)]
pub(super) struct SpeechEmbedding {
    pub(super) tokens: Embedding,
    pub(super) positions: Option<Embedding>,
}

impl SpeechEmbedding {
    /// `tokens (T) -> (1, T, dim)`, the first at position `start`.
    pub(super) fn forward(&self, tokens: &[u32], start: usize) -> Result<Tensor> {
        let embedded = self.tokens.forward(tokens)?;
        match &self.positions {
            Some(positions) => Ok((embedded + positions.rows(start, tokens.len())?)?),
            None => Ok(embedded),
        }
    }
}

/// The encoder `cond_enc`.
#[derive(Debug)]
pub(super) struct CondEncoder {
    spkr_enc: Linear,
    /// Perceiver and emotion projection, which only the Llama variants have.
    llama: Option<(Perceiver, Linear)>,
    speaker_dim: usize,
    dim: usize,
}

impl CondEncoder {
    pub(super) fn load(w: &Weights, config: &T3Config) -> Result<Self> {
        let llama = match config.backbone {
            Backbone::Llama => Some((
                Perceiver::load(&w.pp("perceiver"), config)?,
                Linear::load_no_bias(&w.pp("emotion_adv_fc"), 1, config.dim)?,
            )),
            Backbone::Gpt2 => None,
        };
        Ok(Self {
            spkr_enc: Linear::load(&w.pp("spkr_enc"), config.speaker_dim, config.dim)?,
            llama,
            speaker_dim: config.speaker_dim,
            dim: config.dim,
        })
    }

    /// The voice as vectors, `(1, len, dim)`.
    pub(super) fn forward(&self, cond: &T3Conditioning, speech: &SpeechEmbedding) -> Result<Tensor> {
        let device = speech.tokens.device();
        let width = cond.speaker_emb.len();
        if width != self.speaker_dim {
            return Err(Error::input(format!(
                "the voice's speaker embedding has {width} values, but this model wants {}: prepare the voice again with this model",
                self.speaker_dim
            )));
        }
        let speaker = Tensor::from_slice(&cond.speaker_emb, (1, 1, width), device)?;
        let mut parts = vec![self.spkr_enc.forward(&speaker)?];
        let prompt = self.prompt(cond, speech)?;
        match &self.llama {
            Some((perceiver, emotion_adv_fc)) => {
                parts.extend(prompt.map(|p| perceiver.forward(&p)).transpose()?);
                let emotion = Tensor::from_slice(&[cond.exaggeration], (1, 1, 1), device)?;
                parts.push(emotion_adv_fc.forward(&emotion)?);
            }
            None => parts.extend(prompt),
        }
        Ok(Tensor::cat(&parts, 1)?)
    }

    /// The embedded prompt `(1, N, dim)`, nothing if the voice has none.
    fn prompt(&self, cond: &T3Conditioning, speech: &SpeechEmbedding) -> Result<Option<Tensor>> {
        if let Some(emb) = &cond.prompt_emb {
            return match emb.dims() {
                [1, n, dim] if *n > 0 && *dim == self.dim => Ok(Some(emb.to_device(speech.tokens.device())?)),
                other => Err(Error::input(format!(
                    "the voice's embedded prompt has shape {other:?}, but this model wants (1, N, {}): prepare the voice again with this model",
                    self.dim
                ))),
            };
        }
        let tokens = &cond.prompt_tokens;
        if tokens.is_empty() {
            return Ok(None);
        }
        let vocab = speech.tokens.entries();
        if let Some(bad) = tokens.iter().find(|&&t| t as usize >= vocab) {
            return Err(Error::input(format!(
                "the voice's prompt holds the speech token {bad}, but this model knows {vocab}: the voice file is damaged or of another kind"
            )));
        }
        match &speech.positions {
            Some(positions) if tokens.len() > positions.entries() => Err(Error::input(format!(
                "the voice's prompt has {} speech tokens, but this model has positions for {}",
                tokens.len(),
                positions.entries()
            ))),
            _ => Ok(Some(speech.forward(tokens, 0)?)),
        }
    }

    #[cfg(test)]
    pub(super) fn perceiver(&self) -> Option<&Perceiver> {
        self.llama.as_ref().map(|(perceiver, _)| perceiver)
    }
}
