//! Mel while the tokens are still coming.
//!
//! Frames that were given out never change, the noise of a frame is that of its absolute place, and a chunk's cost does
//! not grow with the utterance. Three methods, by what checkpoint and memory allow:
//!
//! *Chunks*, for checkpoints trained with chunk masks: every layer remembers what it may be asked about; the steps
//! equal the whole forward.
//!
//! *Carry*, for ordinary checkpoints, whose attention looks both ways: every layer of encoder and estimator computes new
//! rows only, with the keys and values of the prompt and of the last rows as they were when those were new. At full size
//! ten guided steps of the estimator need 4.6 MB for each frame, 2.7 GB for a reference of ten seconds and two of speech.
//! Kept at 8 bits, with a scale for each head, that is 0.74 GB, and no longer utterance needs more. *Window*, where even
//! that is too much (many more steps): the estimator runs anew over the end of the prompt, the last frames and the new
//! ones, and is told the mel it gave before as if the prompt had said it.
//!
//! On a graphics card none of them: see `anew.rs`.
//!
//! Measured with the embedded model without its masks, six voices, chunks growing from 8 tokens by halves to 100: mean
//! difference of the log-mel from the one-shot result over all frames and at edges (three frames on either side), and mean
//! step from the frame before an edge to the one behind it, where the one-shot result has 0.541. The encoder ran anew
//! over prompt, context and new tokens for every chunk. For scale: the model's own error against recorded speech is 0.40.
//!
//! | method | prompt, context (tokens) | all | edges | step |
//! |---|---|---|---|---|
//! | carry, previewing the look-ahead | all, all | 0.083 | 0.103 | 0.552 |
//! | **carry**, as above | all, 50 | 0.090 | 0.106 | 0.553 |
//! | carry without preview | all, all | 0.089 | 0.115 | 0.577 |
//! | carry, as above | 75, 50 | 0.225 | 0.258 | 0.563 |
//! | window | all, all | 0.079 | 0.122 | 0.566 |
//! | window | all, 50 | 0.081 | 0.123 | 0.567 |
//! | **window** | 75, 50 | 0.170 | 0.233 | 0.569 |
//! | window | 75, 25 | 0.185 | 0.244 | 0.568 |
//! | window | 25, 25 | 0.289 | 0.357 | 0.572 |
//! | window, nothing told of the speech so far | 75, 0 | 0.255 | 0.443 | 1.086 |
//!
//! What counts is the prompt; the mel given before only mends the edges, but those completely. That the encoder carries
//! too costs no likeness: over twelve sentences the sound's log-mel was 0.102 away with an encoder that ran anew and
//! 0.099 with one that carries. Nor do the 8 bits: over four sentences of `tests/streaming` it was 0.1465 in f32 and 0.1470
//! at 8 bits. For scale: the same tokens in one go with another seed were 0.179 away; with a full-size Nano of random weights
//! the two distances are 0.344 and 0.417, so streaming changed four fifths of what another seed changes. Those are
//! the embedded weights before the present ones, with which it is 0.139 of 0.152.

use candle_core::{DType, Tensor};

use super::anew::Anew;
use super::carry::{Carry, Ends};
use super::config::{Chunks, FRAMES_PER_TOKEN, LOOKAHEAD_TOKENS, MEL_CHANNELS};
use super::flow::{Conditions, FlowCarry, FlowRun};
use super::{FlowOptions, S3Gen, S3GenReference, no_tokens};
use crate::error::{Error, Result};

/// Frames of the tokens looked ahead to.
const PREVIEW_FRAMES: usize = LOOKAHEAD_TOKENS * FRAMES_PER_TOKEN;

/// What packing saves: 8 bits are kept of 32 (the scales come on top, one for each head).
const PACKING: usize = 4;

/// How much of the past a chunk is decoded with; of ordinary checkpoints only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamOptions {
    /// Tokens of the speech so far that stay in sight.
    pub context_tokens: usize,
    /// Tokens at the end of the reference that stay in sight of the window method; the others see all of it.
    pub window_prompt_tokens: usize,
    /// Memory one utterance may take to carry keys and values; where that is too little, the window method is taken.
    pub carry_bytes: usize,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self { context_tokens: 50, window_prompt_tokens: 75, carry_bytes: 1 << 30 }
    }
}

/// What one call of [`S3Gen::decode`] yields.
#[derive(Debug, Clone)]
pub struct MelChunk {
    /// The next frames of the utterance, `(1, T, 80)`; final. T is 0 while too few tokens are there.
    pub frames: Tensor,
    /// A preview of the frames behind them (of the tokens only looked ahead to), `(1, T', 80)`: right context for the
    /// vocoder. They will be decoded again.
    pub lookahead: Option<Tensor>,
}

/// Where a streamed utterance stands. After an error it is of no more use.
///
/// Cloning is cheap. A state that was primed may be kept and cloned for every utterance in the same voice and with the
/// same options.
#[derive(Debug, Clone)]
pub struct S3GenState {
    options: FlowOptions,
    /// `(1, 80)`.
    speaker: Tensor,
    method: Method,
    /// Tokens received that have no final frames yet.
    pending: Vec<u32>,
    started: bool,
    finished: bool,
}

#[derive(Debug, Clone)]
enum Method {
    Carry(CarryStream),
    Window(Window),
    Anew(Anew),
}

/// The encoder and its output that waits for the estimator.
#[derive(Debug, Clone)]
struct TokenStream {
    /// Tokens of the prompt, which come first.
    prompt: usize,
    chunks: Option<Chunks>,
    encoder: Carry,
    /// Tokens that have been encoded for good.
    encoded: usize,
    /// Their frames from `start` on, then a preview of those behind, `(1, T, 80)`.
    mu: Tensor,
    /// How many of them are final.
    mu_final: usize,
}

/// The state of the methods whose estimator remembers keys and values.
#[derive(Debug, Clone)]
struct CarryStream {
    tokens: TokenStream,
    /// The estimator's chunk rule.
    frames: Option<Chunks>,
    flow: FlowCarry,
    prompt_feat: Tensor,
}

/// The state of the method that solves the end of the prompt and the last of the speech anew for every chunk.
#[derive(Debug, Clone)]
struct Window {
    /// Its frames are those of the end of the prompt, then from `context_start` on.
    tokens: TokenStream,
    /// Frames of the prompt out of sight, until they are cut off.
    skipped: usize,
    /// The frames of the prompt in sight.
    prompt_feat: Tensor,
    /// Absolute frame of the first of them.
    prompt_start: usize,
    /// Frames of the whole prompt.
    prompt_frames: usize,
    /// The frames given out last; before the first chunk, the odd last frame of the reference if it has one.
    context_mel: Tensor,
    /// Absolute frame of the first of them.
    context_start: usize,
}

/// What all methods need besides their state.
pub(super) struct Task<'a> {
    pub s3gen: &'a S3Gen,
    pub speaker: &'a Tensor,
    pub options: &'a FlowOptions,
    pub run: &'a FlowRun<'a>,
}

impl S3Gen {
    /// Begins an utterance in the voice of `reference`.
    ///
    /// # Errors
    /// If the reference or the solver does not fit the checkpoint, or the device fails.
    pub fn start(&self, reference: &S3GenReference, options: &FlowOptions) -> Result<S3GenState> {
        let speaker = self.speaker(reference, options)?;
        let (stream, prompt) = (options.stream, reference.prompt_token.len());
        if self.flow.card().is_some() {
            let method = Method::Anew(Anew::new(reference, self.config.chunk_causal, stream.context_tokens)?);
            let pending = Vec::new();
            return Ok(S3GenState { options: *options, speaker, method, pending, started: false, finished: false });
        }
        let chunks = self.config.chunk_causal.map(|chunks| (chunks.tokens(prompt), chunks.estimator(prompt)));
        // What looks three tokens ahead at the end of the prompt belongs to the speech.
        let ends = Ends { first: prompt.saturating_sub(LOOKAHEAD_TOKENS), last: stream.context_tokens };
        let remember = |chunks: Option<Chunks>, ends| chunks.map_or_else(|| Carry::open(ends), Carry::chunked);
        let tokens = TokenStream {
            prompt,
            chunks: chunks.map(|(tokens, _)| tokens),
            encoder: remember(chunks.map(|(tokens, _)| tokens), ends),
            encoded: 0,
            mu: empty_mel(&reference.prompt_feat)?,
            mu_final: 0,
        };
        let frames = chunks.map(|(_, frames)| frames);
        let ends = ends.scaled(FRAMES_PER_TOKEN);
        // Between two chunks; the one in work comes on top.
        let carried = (ends.first + ends.last) * self.flow.carried_bytes_per_frame(options.solver);
        let method = if frames.is_some() || carried / PACKING <= stream.carry_bytes {
            // Only with masks would rounding be the largest of the differences.
            let carry = remember(frames, ends);
            let carry = if frames.is_some() { carry } else { carry.packed() };
            let flow = FlowCarry::streaming(options.solver.steps(), &carry);
            Method::Carry(CarryStream { tokens, frames, flow, prompt_feat: reference.prompt_feat.clone() })
        } else {
            Method::Window(Window::new(reference, tokens, stream.window_prompt_tokens)?)
        };
        let pending = reference.prompt_token.clone();
        Ok(S3GenState { options: *options, speaker, method, pending, started: false, finished: false })
    }

    /// Works through the prompt before there are tokens, which shortens the way to the first chunk.
    ///
    /// # Errors
    /// If the run is cancelled or the device fails.
    pub fn prime(&self, state: &mut S3GenState, run: &FlowRun<'_>) -> Result<()> {
        let S3GenState { options, speaker, method, pending, started, .. } = state;
        if *started {
            return Err(Error::internal("an utterance was primed after its first token"));
        }
        let task = Task { s3gen: self, speaker, options, run };
        match method {
            Method::Carry(stream) => stream.decode(pending, false, &task).map(|_| ()),
            Method::Window(window) => window.tokens.advance(pending, false, &task),
            Method::Anew(_) => Ok(()),
        }
    }

    /// Takes the next tokens of the utterance and returns the frames that are certain by now: all but those of the
    /// last three tokens (with chunk masks: all whole chunks that are followed by three tokens), or with `last` all
    /// that remain.
    ///
    /// # Errors
    /// If a code lies outside the table, there were no tokens at all, the run is cancelled, or the device fails.
    pub fn decode(
        &self,
        state: &mut S3GenState,
        new_tokens: &[u32],
        last: bool,
        run: &FlowRun<'_>,
    ) -> Result<MelChunk> {
        self.flow.check_tokens(new_tokens)?;
        let S3GenState { options, speaker, method, pending, started, finished } = state;
        if *finished {
            return Err(Error::internal("tokens were added to a finished utterance"));
        }
        *started |= !new_tokens.is_empty();
        if last && !*started {
            return Err(no_tokens());
        }
        pending.extend_from_slice(new_tokens);
        *finished = last;
        let task = Task { s3gen: self, speaker, options, run };
        if !last && method.has_too_few(pending.len()) {
            return Ok(MelChunk { frames: empty_mel(speaker)?, lookahead: None });
        }
        match method {
            Method::Carry(stream) => stream.decode(pending, last, &task),
            Method::Window(window) => window.decode(pending, last, &task),
            Method::Anew(anew) => anew.decode(std::mem::take(pending), last, &task),
        }
    }
}

impl Method {
    /// Whether so many more tokens bring no certain frame of the speech.
    fn has_too_few(&self, pending: usize) -> bool {
        let tokens = match self {
            Self::Carry(stream) => &stream.tokens,
            Self::Window(window) => &window.tokens,
            Self::Anew(_) => return false,
        };
        tokens.encoded + pending <= tokens.prompt + LOOKAHEAD_TOKENS
    }
}

impl Task<'_> {
    /// Solves the next stretch of a carried flow, for `mu: (1, T, 80)` behind a prompt of which the mel is known.
    fn next_stretch(&self, flow: &mut FlowCarry, mu: &Tensor, known: &Tensor, provisional: usize) -> Result<Tensor> {
        let (prompt, frames, start) = (known.dims()[1], mu.dims()[1], flow.frames);
        let still = prompt.saturating_sub(start).min(frames);
        let cond = known.narrow(1, start.min(prompt), still)?.pad_with_zeros(1, 0, frames - still)?;
        flow.provisional = provisional;
        let x = self.run.noise(prompt, (flow.frames, frames), self.options.noise_scale, mu.device())?;
        let conditions = Conditions { mu, speaker: self.speaker, cond: &cond };
        self.s3gen.flow.solve(x, &conditions, self.options.solver, flow, self.run.cancelled)
    }
}

impl TokenStream {
    /// Encodes those of the pending tokens that are certain: all that three others follow (with chunk masks: in whole
    /// chunks), or with `last` all.
    fn advance(&mut self, pending: &mut Vec<u32>, last: bool, task: &Task<'_>) -> Result<()> {
        if let Some(chunks) = self.chunks
            && self.encoded < chunks.prompt
        {
            // A prompt that is a chunk does not look beyond its end.
            self.encode(pending, chunks.prompt, 0, task)?;
        }
        let certain = pending.len().saturating_sub(if last { 0 } else { LOOKAHEAD_TOKENS });
        let count = match &self.chunks {
            Some(chunks) if !last => whole_chunks(chunks, self.encoded, certain),
            _ => certain,
        };
        if count > 0 {
            self.encode(pending, count, (pending.len() - count).min(LOOKAHEAD_TOKENS), task)?;
        }
        Ok(())
    }

    /// Encodes the first `count` pending tokens for good and `ahead` more as a preview.
    fn encode(&mut self, pending: &mut Vec<u32>, count: usize, ahead: usize, task: &Task<'_>) -> Result<()> {
        let mu = task.s3gen.flow.encode(&pending[..count + ahead], ahead, &mut self.encoder)?;
        self.mu = Tensor::cat(&[&self.mu.narrow(1, 0, self.mu_final)?, &mu], 1)?;
        self.mu_final += count * FRAMES_PER_TOKEN;
        self.encoded += count;
        pending.drain(..count);
        Ok(())
    }

    /// Forgets `count` final frames from the `from`th on.
    fn forget(&mut self, from: usize, count: usize) -> Result<()> {
        let behind = from + count;
        let rest = self.mu.narrow(1, behind, self.mu.dims()[1] - behind)?;
        self.mu = Tensor::cat(&[self.mu.narrow(1, 0, from)?, rest], 1)?;
        self.mu_final -= count;
        Ok(())
    }
}

impl CarryStream {
    fn decode(&mut self, pending: &mut Vec<u32>, last: bool, task: &Task<'_>) -> Result<MelChunk> {
        self.tokens.advance(pending, last, task)?;
        let Self { tokens, frames, flow, prompt_feat } = self;
        let ready = match frames {
            Some(chunks) if !last => whole_chunks(chunks, flow.frames, tokens.mu_final),
            _ => tokens.mu_final,
        };
        if ready == 0 {
            return Ok(MelChunk { frames: empty_mel(prompt_feat)?, lookahead: None });
        }
        let preview = (tokens.mu.dims()[1] - ready).min(PREVIEW_FRAMES);
        let frames = ready + preview;
        let known = prompt_feat.dims()[1].saturating_sub(flow.frames).min(ready);
        let mu = tokens.mu.narrow(1, 0, frames)?.contiguous()?;
        let x = task.next_stretch(flow, &mu, prompt_feat, preview)?;
        tokens.forget(0, ready)?;
        split(&x.narrow(1, known, frames - known)?, preview)
    }
}

impl Window {
    fn new(reference: &S3GenReference, tokens: TokenStream, prompt_tokens: usize) -> Result<Self> {
        let (feat, prompt) = (&reference.prompt_feat, reference.prompt_token.len());
        let skipped = prompt.saturating_sub(prompt_tokens.max(1)) * FRAMES_PER_TOKEN;
        let end = prompt * FRAMES_PER_TOKEN;
        Ok(Self {
            tokens,
            skipped,
            prompt_feat: feat.narrow(1, skipped, end - skipped)?.contiguous()?,
            prompt_start: skipped,
            prompt_frames: feat.dims()[1],
            context_mel: feat.narrow(1, end, feat.dims()[1] - end)?.contiguous()?,
            context_start: end,
        })
    }

    fn decode(&mut self, pending: &mut Vec<u32>, last: bool, task: &Task<'_>) -> Result<MelChunk> {
        self.tokens.advance(pending, last, task)?;
        let known = Tensor::cat(&[&self.prompt_feat, &self.context_mel], 1)?;
        let known_frames = known.dims()[1];
        if self.tokens.mu_final <= self.skipped + known_frames {
            return Ok(MelChunk { frames: empty_mel(&self.prompt_feat)?, lookahead: None });
        }
        self.tokens.forget(0, std::mem::take(&mut self.skipped))?;
        let (mu, frames) = (&self.tokens.mu, self.tokens.mu.dims()[1]);
        let cond = known.pad_with_zeros(1, 0, frames - known_frames)?;
        let x = self.noise(frames, task.options.noise_scale, task.run)?;
        let conditions = Conditions { mu, speaker: task.speaker, cond: &cond };
        let solver = task.options.solver;
        let mut flow = FlowCarry::whole(solver.steps(), None);
        let x = task.s3gen.flow.solve(x, &conditions, solver, &mut flow, task.run.cancelled)?;
        let chunk = split(&x.narrow(1, known_frames, frames - known_frames)?, frames - self.tokens.mu_final)?;
        self.take_in(&chunk.frames, task.options.stream.context_tokens * FRAMES_PER_TOKEN)?;
        Ok(chunk)
    }

    /// The noise of a window of `frames` frames, each that of its absolute frame.
    fn noise(&self, frames: usize, scale: f32, run: &FlowRun<'_>) -> Result<Tensor> {
        let (prompt, device) = (self.prompt_feat.dims()[1], self.prompt_feat.device());
        let of_prompt = run.noise(self.prompt_frames, (self.prompt_start, prompt), scale, device)?;
        let of_rest = run.noise(self.prompt_frames, (self.context_start, frames - prompt), scale, device)?;
        Ok(Tensor::cat(&[of_prompt, of_rest], 1)?)
    }

    /// Takes in frames that were given out, and forgets what lies more than `keep` frames back.
    fn take_in(&mut self, frames: &Tensor, keep: usize) -> Result<()> {
        let mel = Tensor::cat(&[&self.context_mel, frames], 1)?;
        let dropped = mel.dims()[1].saturating_sub(keep);
        self.context_mel = mel.narrow(1, dropped, mel.dims()[1] - dropped)?.force_contiguous()?;
        self.context_start += dropped;
        self.tokens.forget(self.prompt_feat.dims()[1], dropped)
    }
}

/// How many of `available` positions from `start` on make up whole chunks.
fn whole_chunks(chunks: &Chunks, start: usize, available: usize) -> usize {
    chunks.border_up_to(start + available).saturating_sub(start)
}

/// `(1, T + preview, 80)` as a chunk of T frames and its preview.
pub(super) fn split(x: &Tensor, preview: usize) -> Result<MelChunk> {
    let frames = x.dims()[1] - preview;
    let part = |from, len| x.narrow(1, from, len)?.force_contiguous();
    let lookahead = if preview > 0 && frames > 0 { Some(part(frames, preview)?) } else { None };
    Ok(MelChunk { frames: part(0, frames)?, lookahead })
}

/// No frames, on the device of `like`.
pub(super) fn empty_mel(like: &Tensor) -> Result<Tensor> {
    Ok(Tensor::zeros((1, 0, MEL_CHANNELS), DType::F32, like.device())?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use candle_core::Device;

    use super::*;
    use crate::noise::{NoiseSource, SeededNoise};

    fn reference(tokens: usize, frames: usize) -> S3GenReference {
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
        let prompt_token = (0..tokens as u32).collect();
        S3GenReference { prompt_token, prompt_feat: zeros(&[1, frames, 80]), x_vector: zeros(&[1, 24]) }
    }

    #[test]
    fn a_window_keeps_two_ends_and_takes_the_noise_of_their_absolute_frames() {
        let source = SeededNoise::new(3);
        let run = FlowRun { noise: &source, sentence: 2, cancelled: &|| false };
        let mu = Tensor::arange(0f32, 10. + 20., &Device::Cpu).unwrap().reshape((1, 30, 1)).unwrap();
        let tokens =
            TokenStream { prompt: 12, chunks: None, encoder: Carry::whole(None), encoded: 15, mu, mu_final: 30 };
        let mut window = Window::new(&reference(12, 25), tokens, 5).unwrap();
        // Frames 14..24 belong to the last five tokens of the prompt, frame 24 is its odd one.
        assert_eq!((window.skipped, window.prompt_feat.dims()[1]), (14, 10));
        assert_eq!((window.context_mel.dims()[1], window.context_start), (1, 24));
        let frames = Tensor::zeros((1, 19, 80), DType::F32, &Device::Cpu).unwrap();
        window.take_in(&frames, 8).unwrap();
        assert_eq!((window.context_mel.dims()[1], window.context_start), (8, 36));
        let mu: Vec<f32> = window.tokens.mu.flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!(mu, (0..10).chain(22..30).map(|i| i as f32).collect::<Vec<_>>());
        let noise: Vec<f32> = window.noise(10 + 14, 1.0, &run).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        // Ten of the prompt, then from the twelfth of the speech on.
        assert_eq!(noise[..10 * 80], source.prompt_flow(14, 10));
        assert_eq!(noise[10 * 80..], source.flow(2, 36, 14));
    }
}
