//! The autoregressive loop, pulled token by token.
//!
//! Rules of the reference and where this differs, because tokens leave here one at a time:
//! - Llama variants stop at the stop id. Turbo and Nano do not look for it in the first token, which is then dropped
//!   like any other id that is no speech code.
//! - Only ids below 6561 come out, since S3Gen has no entry for others. The reference filters so for English, Turbo and
//!   Nano; with Multilingual it would pass the sampleable ids 6563.. on and index out of its table. All sampled ids are
//!   fed back to T3 and count for the penalty and the limit, as there.
//! - The reference cuts away all before a sampled start id (and fails on a second one); here such an id is dropped.
//! - `max_tokens` counts sampled tokens; the reference's limits are 1000 (Llama) and 1001 (GPT-2).

use std::collections::VecDeque;

use candle_core::{Device, Tensor};

use super::alignment::{AlignmentGuard, Verdict};
use super::config::{Backbone, SPEECH_CODES, START_SPEECH, STOP_SPEECH};
use super::{T3, T3Conditioning, T3State};
use crate::error::{Error, Result};
use crate::noise::NoiseSource;
use crate::sampling::{Sampler, SamplingOptions};

/// How a sentence is decoded.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodeOptions {
    /// How tokens are chosen.
    pub sampling: SamplingOptions,
    /// Most tokens to sample, the stop included.
    pub max_tokens: usize,
    /// Number of the sentence, which addresses its random numbers.
    pub sentence: usize,
    /// Attention heads, `(layer, head)`, of the alignment guard; empty for no guard, [`super::ALIGNED_HEADS`] for
    /// Multilingual v2. Costs nothing when empty.
    pub alignment_heads: Vec<(usize, usize)>,
    /// Tokens to take instead of the first sampled ones (teacher forcing). A forced stop id does not stop.
    pub force_tokens: Vec<u32>,
    /// Keeps the raw logits of every step for [`Decoding::logits`].
    pub record_logits: bool,
}

impl DecodeOptions {
    /// Plain decoding with the defaults of a family.
    pub fn of(backbone: Backbone) -> Self {
        Self {
            sampling: SamplingOptions::of(backbone),
            max_tokens: 1000,
            sentence: 0,
            alignment_heads: Vec::new(),
            force_tokens: Vec::new(),
            record_logits: false,
        }
    }
}

/// Tokens that a card samples at a time: some milliseconds, after which the owner may have cancelled.
const CARD_TOKENS: usize = 16;

/// Why a decoding came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The model said so.
    Stop,
    /// The alignment guard said so.
    Guard,
    /// `max_tokens` or the positions of the model or the state ran out: the sentence is cut short.
    Limit,
}

/// One sentence on its way from text to speech tokens.
pub struct Decoding<'a> {
    t3: &'a T3,
    state: &'a mut T3State,
    noise: &'a dyn NoiseSource,
    options: DecodeOptions,
    sampler: Sampler,
    guard: Option<AlignmentGuard>,
    /// Logits of the first token, until it is sampled.
    first: Option<Tensor>,
    /// The token sampled last, not yet fed.
    last: u32,
    sampled: usize,
    limit: usize,
    ending: Option<Ending>,
    recorded: Vec<Tensor>,
    /// What a card sampled ahead, where one does, and how many it may at a time.
    ahead: Option<VecDeque<u32>>,
    most_ahead: usize,
}

impl std::fmt::Debug for Decoding<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoding").field("sampled", &self.sampled).field("ending", &self.ending).finish_non_exhaustive()
    }
}

impl<'a> Decoding<'a> {
    /// Runs voice and text through T3, after which tokens can be pulled. `text`: ids from the tokenizer, without start
    /// and stop. The state must have been made with guidance if the options have a guidance weight.
    ///
    /// # Errors
    /// If options, voice or text do not fit the model.
    pub fn start(
        t3: &'a T3,
        state: &'a mut T3State,
        (cond, text): (&T3Conditioning, &[u32]),
        noise: &'a dyn NoiseSource,
        options: DecodeOptions,
    ) -> Result<Self> {
        let backbone = t3.config().backbone;
        let sampler = Sampler::new(backbone, t3.config().speech_vocab, options.sampling)?;
        if t3.is_guided(options.sampling.cfg_weight) && !state.is_guided() {
            return Err(Error::internal("guidance needs a T3 state of two rows"));
        }
        t3.watch(state, &options.alignment_heads)?;
        let on_card = state.on_card.is_some() && t3.runs_on_card(&options);
        let (first, room) = if on_card {
            t3.prefill_on_card(state, cond, text)?;
            (None, t3.room_on_card(state))
        } else {
            (Some(t3.prefill(state, cond, text)?), t3.room(state))
        };
        let guard = state.probe.as_ref().map(|probe| AlignmentGuard::new(probe.text_len()));
        // The last token is sampled but never fed.
        let limit = options.max_tokens.min(room + 1);
        Ok(Self {
            t3,
            state,
            noise,
            options,
            sampler,
            guard,
            first,
            last: START_SPEECH,
            sampled: 0,
            limit,
            ending: None,
            recorded: Vec::new(),
            ahead: on_card.then(VecDeque::new),
            most_ahead: CARD_TOKENS,
        })
    }

    /// Has a card make no more than `tokens` at a time, where fewer than usual are waited for.
    pub fn limit_ahead(&mut self, tokens: usize) {
        self.most_ahead = tokens.clamp(1, CARD_TOKENS);
    }

    /// The next speech code, below 6561; nothing after the end.
    ///
    /// # Errors
    /// If the device fails or the logits are not numbers.
    pub fn next_token(&mut self) -> Result<Option<u32>> {
        while self.ending.is_none() {
            if self.sampled >= self.limit {
                self.ending = Some(Ending::Limit);
                break;
            }
            if self.ahead.is_some() {
                let Some(token) = self.take_from_card()? else { break };
                self.sampled += 1;
                if token < SPEECH_CODES {
                    return Ok(Some(token));
                }
                continue;
            }
            let logits = match self.first.take() {
                Some(logits) => logits,
                None => self.t3.step(self.state, self.last)?,
            };
            let Some(token) = self.choose(logits)? else {
                break;
            };
            self.sampler.accept(token);
            self.last = token;
            self.sampled += 1;
            if token < SPEECH_CODES {
                return Ok(Some(token));
            }
        }
        Ok(None)
    }

    /// The next token that the card sampled, or nothing and `ending` set.
    fn take_from_card(&mut self) -> Result<Option<u32>> {
        let mut ahead = self.ahead.take().unwrap_or_default();
        if ahead.is_empty() {
            let forced = self.options.force_tokens.get(self.sampled..).unwrap_or_default();
            // All of a launch are forced, or none.
            let most = if forced.is_empty() { self.most_ahead } else { self.most_ahead.min(forced.len()) };
            let steps = self.sampled..self.limit.min(self.sampled + most);
            let forced = &forced[..forced.len().min(steps.len())];
            let uniforms: Vec<f32> = steps.map(|step| self.noise.uniform(self.options.sentence, step)).collect();
            let mut logits = self.options.record_logits.then(Vec::new);
            let (sampling, inputs) = (&self.options.sampling, (&uniforms[..], forced));
            ahead.extend(self.t3.sample_on_card(self.state, sampling, inputs, logits.as_mut())?);
            let vocab = self.t3.config().speech_vocab;
            for rows in logits.unwrap_or_default().chunks_exact(self.state.rows * vocab) {
                self.recorded.push(Tensor::from_slice(rows, (self.state.rows, vocab), &Device::Cpu)?);
            }
        }
        let token = ahead.pop_front().ok_or_else(|| Error::internal("the card sampled nothing"))?;
        self.ahead = Some(ahead);
        let unchecked = self.t3.config().backbone == Backbone::Gpt2 && self.sampled == 0;
        if token == STOP_SPEECH && !unchecked && self.sampled >= self.options.force_tokens.len() {
            self.ending = Some(Ending::Stop);
        }
        Ok(self.ending.is_none().then_some(token))
    }

    /// The token of this step, or nothing and `ending` set.
    fn choose(&mut self, logits: Tensor) -> Result<Option<u32>> {
        let verdict = match (&mut self.guard, &self.state.probe) {
            (Some(guard), Some(probe)) => guard.judge(probe.rows(), self.last),
            _ => Verdict::Free,
        };
        let forced = self.options.force_tokens.get(self.sampled).copied();
        let token = match (forced, verdict) {
            (Some(token), _) => token,
            (None, Verdict::ForceStop) => {
                self.ending = Some(Ending::Guard);
                STOP_SPEECH
            }
            (None, verdict) => {
                let rows: Vec<f32> = logits.flatten_all()?.to_vec1()?;
                let hold = (verdict == Verdict::HoldStop).then_some(STOP_SPEECH);
                let uniform = self.noise.uniform(self.options.sentence, self.sampled);
                let token = self.sampler.sample(&rows, hold, uniform)?;
                let unchecked = self.t3.config().backbone == Backbone::Gpt2 && self.sampled == 0;
                if token == STOP_SPEECH && !unchecked {
                    self.ending = Some(Ending::Stop);
                }
                token
            }
        };
        if self.options.record_logits {
            self.recorded.push(logits);
        }
        Ok(self.ending.is_none().then_some(token))
    }

    /// Why it ended; nothing before that.
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// Tokens sampled so far, those that are no speech codes included and the stop left out.
    pub fn sampled(&self) -> usize {
        self.sampled
    }

    /// Raw logits of every step so far, `(rows, speech_vocab)` each, if they are recorded.
    pub fn logits(&self) -> &[Tensor] {
        &self.recorded
    }
}
