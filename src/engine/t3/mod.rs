//! T3, token to token: text and voice in, 25 speech tokens a second out.
//!
//! ```text
//! Llama: [speaker, prompt (32), emotion | start, text, stop | BOS, BOS] -> token, token, ...
//! GPT-2: [speaker, prompt (≤ 375)       | text              | BOS     ] -> token, token, ...
//! ```
//! The doubled BOS is the reference's: both carry speech position 0, and the first generated token carries 1. With
//! guidance a second row runs along whose text embeddings are zero (their positions stay).
//!
//! Weights ([`T3`]) are shared and constant; what a sentence leaves behind is in [`T3State`]. The voice comes first in
//! the sequence and does not depend on the text, so its keys and values are computed once, in a pass of their own, and
//! kept from sentence to sentence ([`T3::prefill`]): a kept prefix and a fresh one are the same bits.

mod alignment;
mod cond;
mod config;
mod decode;
mod gpt2;
mod llama;
#[cfg_attr(not(feature = "cuda"), path = "no_card.rs")]
pub(crate) mod on_card;
mod perceiver;
#[cfg(test)]
pub(crate) mod tests;

use candle_core::{Device, Tensor};

pub use alignment::{ALIGNED_HEADS, AlignmentGuard, Verdict};
pub use cond::T3Conditioning;
pub use config::{Backbone, SILENCE, SPEECH_CODES, START_SPEECH, START_TEXT, STOP_SPEECH, STOP_TEXT, T3Config};
pub use decode::{DecodeOptions, Decoding, Ending};

use crate::error::{Error, Result};
use crate::meter::{CardLimits, CardWork};
use crate::nn::{Embedding, KvCache, Linear, together};
use crate::protocol::Precision;
use crate::weights::Weights;
use alignment::AttentionProbe;
use cond::{CondEncoder, SpeechEmbedding};
use gpt2::Gpt2;
use llama::Llama;
use on_card::{OnCard, Sequence};

/// The weights of T3.
#[derive(Debug)]
pub struct T3 {
    config: T3Config,
    backbone: Transformer,
    cond_enc: CondEncoder,
    text_emb: Embedding,
    text_pos_emb: Option<Embedding>,
    speech: SpeechEmbedding,
    speech_head: Linear,
    cache_precision: Precision,
    on_card: Option<OnCard>,
}

#[derive(Debug)]
enum Transformer {
    Llama(Llama),
    Gpt2(Gpt2),
}

impl T3 {
    /// Loads a T3 file, which must hold nothing else.
    ///
    /// # Errors
    /// If the file cannot be read or does not fit `config`; the message lists every tensor that does not.
    pub fn load(w: &Weights, config: &T3Config) -> Result<Self> {
        config.check(w)?;
        for unused in ["text_head.", "tfmr.wte.", "tfmr.embed_tokens."] {
            w.ignore(unused);
        }
        let dim = config.dim;
        // A step takes as long as the weights take to be read.
        let stored = w.as_stored();
        let tfmr = stored.pp("tfmr").wide();
        // The head decides between neighbours; it is a sixtieth of the weights.
        let head = if w.precision() == Precision::Int8 { w.at(Precision::F16) } else { stored }.pp("speech_head");
        let positions = |name: &str, rows| Embedding::load(&w.pp(name).pp("emb"), rows, dim);
        let (backbone, text_pos_emb, speech_pos_emb, speech_head) = match config.backbone {
            Backbone::Llama => (
                Transformer::Llama(Llama::load(&tfmr, config)?),
                Some(positions("text_pos_emb", config.text_positions())?),
                Some(positions("speech_pos_emb", config.speech_positions())?),
                Linear::load_no_bias(&head, dim, config.speech_vocab)?,
            ),
            Backbone::Gpt2 => (
                Transformer::Gpt2(Gpt2::load(&tfmr, config)?),
                None,
                None,
                Linear::load(&head, dim, config.speech_vocab)?,
            ),
        };
        let tokens = Embedding::load(&w.pp("speech_emb"), config.speech_vocab, dim)?;
        let t3 = Self {
            config: config.clone(),
            backbone,
            cond_enc: CondEncoder::load(&w.pp("cond_enc").at(Precision::F32), config)?,
            text_emb: Embedding::load(&w.pp("text_emb"), config.text_vocab, dim)?,
            text_pos_emb,
            speech: SpeechEmbedding { tokens, positions: speech_pos_emb },
            speech_head,
            cache_precision: Precision::F32,
            on_card: None,
        };
        w.finish()?;
        Ok(t3)
    }

    /// The same with keys and values of past positions kept at `precision` on the CPU.
    #[must_use]
    pub fn with_cache(self, precision: Precision) -> Self {
        Self { cache_precision: precision, ..self }
    }

    /// The dimensions.
    pub fn config(&self) -> &T3Config {
        &self.config
    }

    /// The device it runs on.
    pub fn device(&self) -> &Device {
        self.speech.tokens.device()
    }

    /// Whether a graphics card does the work. The guard has a say between two tokens, on the CPU.
    pub(crate) fn runs_on_card(&self, options: &DecodeOptions) -> bool {
        self.on_card.as_ref().is_some_and(OnCard::is_usable) && options.alignment_heads.is_empty()
    }

    /// What prompts and tokens had a card do so far; nothing without a card.
    pub(crate) fn card_work(&self) -> Option<(CardWork, CardWork)> {
        self.on_card.as_ref().filter(|card| card.is_usable()).map(OnCard::work)
    }

    /// What the card can do; nothing without one.
    pub(crate) fn card_limits(&self) -> Result<Option<CardLimits>> {
        self.on_card.as_ref().filter(|card| card.is_usable()).map(OnCard::limits).transpose()
    }

    /// Whether a guidance weight calls for a second row: only with Llama, and only if it is not 0.
    pub fn is_guided(&self, cfg_weight: f32) -> bool {
        self.config.backbone == Backbone::Llama && cfg_weight > 0.0
    }

    /// Positions that a voice, a text of so many tokens and the speech after it take.
    pub fn positions_needed(&self, cond: &T3Conditioning, text_tokens: usize, max_tokens: usize) -> usize {
        let prompt =
            cond.prompt_emb.as_ref().map_or(cond.prompt_tokens.len(), |emb| emb.dims().get(1).map_or(0, |n| *n));
        let (voice, text) = match self.config.backbone {
            Backbone::Llama => (2 + if prompt > 0 { self.config.queries } else { 0 }, text_tokens + 4),
            Backbone::Gpt2 => (1 + prompt, text_tokens + 1),
        };
        voice + text + max_tokens
    }

    /// A state for sequences of at most `capacity` positions; `guided` runs the unconditional row along (Llama only).
    ///
    /// # Errors
    /// If the device is out of memory.
    pub fn new_state(&self, guided: bool, capacity: usize) -> Result<T3State> {
        let rows = if guided && self.config.backbone == Backbone::Llama { 2 } else { 1 };
        let capacity = capacity.min(self.positions());
        let (heads, head_dim) = (self.config.heads, self.config.head_dim());
        let cache = |_| KvCache::new((rows, capacity), (heads, head_dim), self.cache_precision, self.device());
        Ok(T3State {
            caches: (0..self.config.layers).map(cache).collect::<Result<_>>()?,
            rows,
            capacity,
            generated: 0,
            voice: None,
            watched: Vec::new(),
            probe: None,
            on_card: self.new_sequence(rows, capacity)?,
        })
    }

    /// Runs voice and text. What `state` holds of an equal voice is used again, everything else is dropped.
    /// `text`: ids from the tokenizer, without start and stop. Returns the logits of the first token,
    /// `(rows, speech_vocab)`: conditional, then unconditional.
    ///
    /// # Errors
    /// If the voice is of another model, or the text is too long or holds unknown ids.
    pub fn prefill(&self, state: &mut T3State, cond: &T3Conditioning, text: &[u32]) -> Result<Tensor> {
        self.prefill_voice(state, cond)?;
        self.prefill_text(state, text)
    }

    /// The first half of [`Self::prefill`], to be done ahead of the text.
    ///
    /// # Errors
    /// If the voice is of another model.
    pub fn prefill_voice(&self, state: &mut T3State, cond: &T3Conditioning) -> Result<()> {
        if state.voice.as_ref().is_some_and(|held| held.cond == *cond) {
            state.rewind();
            return Ok(());
        }
        state.clear();
        // Both rows hear the same voice.
        self.run(state, &self.cond_enc.forward(cond, &self.speech)?)?;
        state.voice = Some(HeldVoice { cond: cond.clone(), len: state.len() });
        Ok(())
    }

    fn prefill_text(&self, state: &mut T3State, text: &[u32]) -> Result<Tensor> {
        let start = state.len();
        let (xs, bos) = self.embed_text(text, state.rows)?;
        if !state.watched.is_empty() {
            let mut probe = AttentionProbe::new(&state.watched, start..start + xs.dims3()?.1 - bos);
            probe.begin(bos);
            state.probe = Some(probe);
        }
        let hidden = self.run(state, &xs)?;
        Ok(self.logits(&hidden.narrow(1, hidden.dims3()?.1 - 1, 1)?)?.squeeze(1)?)
    }

    /// Text and BOS, `(rows, T, dim)`, and how many BOS there are.
    fn embed_text(&self, text: &[u32], rows: usize) -> Result<(Tensor, usize)> {
        let vocab = self.text_emb.entries();
        if let Some(bad) = text.iter().find(|&&id| id as usize >= vocab) {
            return Err(Error::input(format!(
                "text token {bad} is unknown to this model, which knows {vocab}: its tokenizer file belongs to another model"
            )));
        }
        let Some(positions) = &self.text_pos_emb else {
            let bos = self.speech.forward(&[START_SPEECH], 0)?;
            let xs = if text.is_empty() { bos } else { Tensor::cat(&[self.text_emb.forward(text)?, bos], 1)? };
            return Ok((xs, 1));
        };
        let ids: Vec<u32> = [&[START_TEXT], text, &[STOP_TEXT]].concat();
        if ids.len() > positions.entries() {
            return Err(Error::input(format!(
                "the text has {} tokens, but this model reads at most {} at once: split it",
                text.len(),
                positions.entries() - 2
            )));
        }
        let positions = positions.rows(0, ids.len())?;
        let mut text_rows = (self.text_emb.forward(&ids)? + &positions)?;
        if rows == 2 {
            // The unconditional row: text embeddings of zero, to which the positions are still added.
            text_rows = Tensor::cat(&[text_rows, positions], 0)?;
        }
        let bos = repeat_rows(self.speech.forward(&[START_SPEECH], 0)?, rows)?;
        Ok((Tensor::cat(&[&text_rows, &bos, &bos], 1)?, 2))
    }

    /// Feeds the next generated token; returns the logits of the one after it, `(rows, speech_vocab)`.
    ///
    /// # Errors
    /// If the state is full or the token unknown.
    pub fn step(&self, state: &mut T3State, token: u32) -> Result<Tensor> {
        Ok(self.steps(state, &[token])?.squeeze(1)?)
    }

    /// Feeds several tokens in one pass; returns the logits behind each, `(rows, tokens, speech_vocab)`: the same bits as
    /// one after the other.
    ///
    /// # Errors
    /// If the state has no room for them or one is unknown.
    pub fn steps(&self, state: &mut T3State, tokens: &[u32]) -> Result<Tensor> {
        let xs = self.speech.forward(tokens, state.generated + 1)?;
        if let Some(probe) = &mut state.probe {
            probe.begin(tokens.len());
        }
        let rows = repeat_rows(xs, state.rows)?;
        let logits = together(|| self.logits(&self.run(state, &rows)?))?;
        state.generated += tokens.len();
        Ok(logits)
    }

    /// Forgets the last `tokens` that were fed.
    pub fn take_back(&self, state: &mut T3State, tokens: usize) {
        let tokens = tokens.min(state.generated);
        let len = state.len() - tokens;
        state.caches.iter_mut().for_each(|cache| cache.truncate(len));
        state.generated -= tokens;
    }

    /// How many more tokens can be fed.
    pub fn room(&self, state: &T3State) -> usize {
        let positions = state.capacity.saturating_sub(state.len());
        match &self.speech.positions {
            Some(table) => positions.min(table.entries().saturating_sub(state.generated + 1)),
            None => positions,
        }
    }

    /// Most positions of a sequence.
    fn positions(&self) -> usize {
        match &self.backbone {
            Transformer::Llama(llama) => llama.positions(),
            Transformer::Gpt2(gpt2) => gpt2.positions(),
        }
    }

    /// The transformer without its final norm, `(B, T, dim) -> (B, T, dim)`; one row for all, or one for each.
    fn run(&self, state: &mut T3State, xs: &Tensor) -> Result<Tensor> {
        let needed = state.len() + xs.dims3()?.1;
        if needed > self.positions() {
            return Err(Error::input(format!(
                "voice and text take {needed} positions, but this model has {}: split the text",
                self.positions()
            )));
        }
        if needed > state.capacity {
            return Err(Error::internal(format!("{needed} positions in a T3 state made for {}", state.capacity)));
        }
        match &self.backbone {
            Transformer::Llama(llama) => llama.forward(xs, &mut state.caches, &mut state.probe),
            Transformer::Gpt2(gpt2) => gpt2.forward(xs, &mut state.caches),
        }
    }

    /// Logits at each position, `(rows, T, dim) -> (rows, T, speech_vocab)`.
    fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        let normed = match &self.backbone {
            Transformer::Llama(llama) => llama.norm(hidden)?,
            Transformer::Gpt2(gpt2) => gpt2.norm(hidden)?,
        };
        self.speech_head.forward(&normed)
    }

    /// Has the state collect the attention of these `(layer, head)` from the next [`Self::prefill`] on.
    fn watch(&self, state: &mut T3State, heads: &[(usize, usize)]) -> Result<()> {
        let known = |&(layer, head): &(usize, usize)| layer < self.config.layers && head < self.config.heads;
        if !heads.is_empty() && (self.config.backbone != Backbone::Llama || !heads.iter().all(known)) {
            return Err(Error::input("the alignment guard works with the Multilingual models only: switch it off"));
        }
        state.watched = heads.to_vec();
        Ok(())
    }
}

/// `(1, T, C) -> (rows, T, C)`.
fn repeat_rows(xs: Tensor, rows: usize) -> Result<Tensor> {
    if rows == 1 { Ok(xs) } else { Ok(Tensor::cat(&vec![xs; rows], 0)?) }
}

/// What one sequence leaves behind: keys and values of every layer, allocated once. It is cleared or rewound, never
/// copied.
#[derive(Debug)]
pub struct T3State {
    caches: Vec<KvCache>,
    rows: usize,
    capacity: usize,
    /// Generated tokens fed so far.
    generated: usize,
    voice: Option<HeldVoice>,
    watched: Vec<(usize, usize)>,
    probe: Option<AttentionProbe>,
    on_card: Option<Sequence>,
}

/// The voice that the first positions stand for.
#[derive(Debug)]
struct HeldVoice {
    cond: T3Conditioning,
    len: usize,
}

impl T3State {
    /// Positions filled.
    pub fn len(&self) -> usize {
        self.caches.first().map_or(0, KvCache::len)
    }

    /// Whether nothing is filled.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Most positions it can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether the unconditional row runs along.
    pub fn is_guided(&self) -> bool {
        self.rows == 2
    }

    /// Forgets everything but the voice.
    pub fn rewind(&mut self) {
        self.truncate(self.voice.as_ref().map_or(0, |held| held.len));
    }

    /// Forgets everything but the voice, and gives the memory of the rest back to the system.
    pub fn release(&mut self) {
        self.rewind();
        self.caches.iter_mut().for_each(KvCache::release);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.voice = None;
        self.truncate(0);
    }

    fn truncate(&mut self, len: usize) {
        self.caches.iter_mut().for_each(|cache| cache.truncate(len));
        self.generated = 0;
        self.probe = None;
    }
}
