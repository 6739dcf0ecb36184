//! Mel while the tokens are still coming.
//!
//! Frames that were given out never change, the noise of a frame is that of its absolute place, and a chunk's cost does
//! not grow with the utterance. Three methods, by what checkpoint and memory allow:
//!
//! *Chunks*, for checkpoints trained with chunk masks: every layer remembers what it may be asked about; the steps
//! equal the whole forward.
//!
//! *Carry*, for ordinary checkpoints, whose attention looks both ways: the encoder runs anew over the prompt, the last
//! tokens and the new ones, and the estimator computes new frames only, with the keys and values of the prompt and of
//! the last frames as they were when those were new. *Window*, where these keys would take too much memory (ten guided
//! steps at full size: 4.6 MB for each frame): the estimator also runs anew, over the end of the prompt, the last
//! frames and the new ones, and is told the mel it gave before as if the prompt had said it.
//!
//! Measured with the embedded model, six voices, chunks growing from 8 tokens by halves to 100: mean difference of the
//! log-mel from the one-shot result over all frames and at edges (three frames on either side), and mean step from the
//! frame before an edge to the one behind it, where the one-shot result has 0.541. For scale: the model's own error
//! against recorded speech is 0.40.
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
//! What counts is the prompt; the mel given before only mends the edges, but those completely.

use candle_core::{DType, Tensor};

use super::carry::Carry;
use super::config::{Chunks, FRAMES_PER_TOKEN, LOOKAHEAD_TOKENS, MEL_CHANNELS};
use super::flow::{Conditions, FlowCarry, FlowRun};
use super::{FlowOptions, S3Gen, S3GenReference, no_tokens};
use crate::error::{Error, Result};

/// Frames of the tokens looked ahead to.
const PREVIEW_FRAMES: usize = LOOKAHEAD_TOKENS * FRAMES_PER_TOKEN;

/// How much of the past a chunk is decoded with; of ordinary checkpoints only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamOptions {
    /// Tokens of the speech so far that stay in sight.
    pub context_tokens: usize,
    /// Tokens at the end of the reference that stay in sight of the window method; the others see all of it.
    pub window_prompt_tokens: usize,
    /// Memory one utterance may take to carry keys and values; the window method is taken where that is too little.
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
    Window(Window),
    Chunks(ChunkStream),
}

/// The state for ordinary checkpoints: the prompt and the last of the speech so far.
#[derive(Debug, Clone)]
struct Window {
    prompt: Vec<u32>,
    /// Two frames to each token of `prompt`.
    prompt_feat: Tensor,
    /// Absolute frame of the first of them.
    prompt_start: usize,
    context: Vec<u32>,
    /// The frames of `context`; before the first chunk, the odd last frame of the reference if it has one.
    context_mel: Tensor,
    /// Absolute frame where `context` begins.
    context_start: usize,
    /// The estimator's memory; without it the whole window is solved anew.
    carry: Option<FlowCarry>,
}

/// The state for checkpoints trained with chunk masks: each layer remembers what it still needs.
#[derive(Debug, Clone)]
struct ChunkStream {
    tokens: Chunks,
    frames: Chunks,
    encoder: Carry,
    /// Tokens that have been encoded.
    encoded: usize,
    /// Encoded frames that wait for a whole chunk of the estimator, then a preview of those behind, `(1, T, 80)`.
    mu: Tensor,
    /// How many of them are final.
    mu_final: usize,
    flow: FlowCarry,
    prompt_feat: Tensor,
}

/// What all methods need besides their state.
struct Task<'a> {
    s3gen: &'a S3Gen,
    speaker: &'a Tensor,
    options: &'a FlowOptions,
    run: &'a FlowRun<'a>,
}

impl S3Gen {
    /// Begins an utterance in the voice of `reference`.
    ///
    /// # Errors
    /// If the reference or the solver does not fit the checkpoint, or the device fails.
    pub fn start(&self, reference: &S3GenReference, options: &FlowOptions) -> Result<S3GenState> {
        let speaker = self.speaker(reference, options)?;
        let (method, pending) = match self.config.chunk_causal {
            Some(chunks) => {
                let prompt = reference.prompt_token.len();
                let (tokens, frames) = (chunks.tokens(prompt), chunks.estimator(prompt));
                let stream = ChunkStream {
                    tokens,
                    frames,
                    encoder: Carry::streaming(Some(tokens)),
                    encoded: 0,
                    mu: empty_mel(&reference.prompt_feat)?,
                    mu_final: 0,
                    flow: FlowCarry::streaming(options.solver.steps(), Some(frames)),
                    prompt_feat: reference.prompt_feat.clone(),
                };
                (Method::Chunks(stream), reference.prompt_token.clone())
            }
            None => {
                let stream = options.stream;
                // Between two chunks; the one in work comes on top.
                let kept = reference.prompt_feat.dims()[1] + stream.context_tokens * FRAMES_PER_TOKEN;
                let carried = kept * self.flow.carried_bytes_per_frame(options.solver);
                let window = if carried <= stream.carry_bytes {
                    let carry = FlowCarry::streaming(options.solver.steps(), None);
                    Window::new(reference, reference.prompt_token.len(), Some(carry))?
                } else {
                    Window::new(reference, stream.window_prompt_tokens, None)?
                };
                (Method::Window(window), Vec::new())
            }
        };
        Ok(S3GenState { options: *options, speaker, method, pending, started: false, finished: false })
    }

    /// Works through the prompt before there are tokens, which shortens the way to the first chunk. The window method
    /// has nothing to prepare.
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
            Method::Window(window) => window.prime(&task),
            Method::Chunks(stream) => stream.decode(pending, false, &task).map(|_| ()),
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
        match method {
            Method::Window(window) => window.decode(pending, last, &task),
            Method::Chunks(stream) => stream.decode(pending, last, &task),
        }
    }
}

impl Task<'_> {
    /// Solves the next stretch of a carried flow: `mu` and `cond` as long as each other, `(1, T, 80)`.
    fn next_stretch(&self, flow: &mut FlowCarry, mu: &Tensor, cond: &Tensor, provisional: usize) -> Result<Tensor> {
        let frames = mu.dims()[1];
        flow.provisional = provisional;
        let x = self.run.noise(flow.frames, frames, self.options.noise_scale, mu.device())?;
        let conditions = Conditions { mu, speaker: self.speaker, cond };
        self.s3gen.flow.solve(x, &conditions, self.options.solver, flow, self.run.cancelled)
    }
}

impl Window {
    fn new(reference: &S3GenReference, prompt_tokens: usize, carry: Option<FlowCarry>) -> Result<Self> {
        let prompt = &reference.prompt_token;
        let skipped = prompt.len().saturating_sub(prompt_tokens.max(1));
        let (from, to) = (skipped * FRAMES_PER_TOKEN, prompt.len() * FRAMES_PER_TOKEN);
        let feat = &reference.prompt_feat;
        Ok(Self {
            prompt: prompt[skipped..].to_vec(),
            prompt_feat: feat.narrow(1, from, to - from)?.contiguous()?,
            prompt_start: from,
            context: Vec::new(),
            context_mel: feat.narrow(1, to, feat.dims()[1] - to)?.contiguous()?,
            context_start: to,
            carry,
        })
    }

    /// All of the prompt but the end that still wants to look ahead.
    fn prime(&mut self, task: &Task<'_>) -> Result<()> {
        let frames = self.prompt_feat.dims()[1].saturating_sub(PREVIEW_FRAMES);
        match &mut self.carry {
            Some(flow) if flow.frames == 0 && frames > 0 => {
                let mu = task.s3gen.flow.encode(&self.prompt, 0, &mut Carry::default())?;
                let head = |t: &Tensor| t.narrow(1, 0, frames)?.contiguous();
                task.next_stretch(flow, &head(&mu)?, &head(&self.prompt_feat)?, 0)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn decode(&mut self, pending: &mut Vec<u32>, last: bool, task: &Task<'_>) -> Result<MelChunk> {
        let ahead = if last { 0 } else { LOOKAHEAD_TOKENS };
        if pending.len() <= ahead {
            return Ok(MelChunk { frames: empty_mel(&self.prompt_feat)?, lookahead: None });
        }
        let tokens = [self.prompt.as_slice(), &self.context, pending].concat();
        let mu = task.s3gen.flow.encode(&tokens, 0, &mut Carry::default())?;
        let (frames, preview) = (mu.dims()[1], ahead * FRAMES_PER_TOKEN);
        let known = Tensor::cat(&[&self.prompt_feat, &self.context_mel], 1)?;
        let known_frames = known.dims()[1];
        let cond = known.pad_with_zeros(1, 0, frames - known_frames)?;
        let context_frames = self.context_mel.dims()[1];
        let x = match &mut self.carry {
            Some(flow) => {
                // Before the first chunk, the prompt or what is left of it comes along.
                let from = known_frames + flow.frames - (self.context_start + context_frames);
                let rest = |t: &Tensor| t.narrow(1, from, frames - from)?.contiguous();
                let x = task.next_stretch(flow, &rest(&mu)?, &rest(&cond)?, preview)?;
                let kept = task.options.stream.context_tokens * FRAMES_PER_TOKEN;
                flow.forget_between(self.prompt_feat.dims()[1], kept)?;
                x.narrow(1, known_frames - from, frames - known_frames)?
            }
            None => {
                let x = self.noise(frames, task.options.noise_scale, task.run)?;
                let conditions = Conditions { mu: &mu, speaker: task.speaker, cond: &cond };
                let solver = task.options.solver;
                let mut flow = FlowCarry::whole(solver.steps(), None);
                let x = task.s3gen.flow.solve(x, &conditions, solver, &mut flow, task.run.cancelled)?;
                x.narrow(1, known_frames, frames - known_frames)?
            }
        };
        let chunk = split(&x, preview)?;
        let done = pending.len() - ahead;
        self.advance(pending.drain(..done), &chunk.frames, task.options.stream.context_tokens)?;
        Ok(chunk)
    }

    /// The noise of a window of `frames` frames, each that of its absolute frame.
    fn noise(&self, frames: usize, scale: f32, run: &FlowRun<'_>) -> Result<Tensor> {
        let (prompt, device) = (self.prompt_feat.dims()[1], self.prompt_feat.device());
        let of_prompt = run.noise(self.prompt_start, prompt, scale, device)?;
        let of_rest = run.noise(self.context_start, frames - prompt, scale, device)?;
        Ok(Tensor::cat(&[of_prompt, of_rest], 1)?)
    }

    /// Takes in tokens that have got their frames, and forgets what lies too far back.
    fn advance(&mut self, tokens: impl Iterator<Item = u32>, frames: &Tensor, keep: usize) -> Result<()> {
        self.context.extend(tokens);
        let mel = Tensor::cat(&[&self.context_mel, frames], 1)?;
        let dropped = self.context.len().saturating_sub(keep);
        self.context.drain(..dropped);
        let from = dropped * FRAMES_PER_TOKEN;
        self.context_mel = mel.narrow(1, from, mel.dims()[1] - from)?.force_contiguous()?;
        self.context_start += from;
        Ok(())
    }
}

impl ChunkStream {
    /// Encodes the first `count` pending tokens for good and `ahead` more as a preview.
    fn encode(&mut self, pending: &mut Vec<u32>, count: usize, ahead: usize, task: &Task<'_>) -> Result<()> {
        let mu = task.s3gen.flow.encode(&pending[..count + ahead], ahead, &mut self.encoder)?;
        self.mu = Tensor::cat(&[&self.mu.narrow(1, 0, self.mu_final)?, &mu], 1)?;
        self.mu_final += count * FRAMES_PER_TOKEN;
        self.encoded += count;
        pending.drain(..count);
        Ok(())
    }

    fn decode(&mut self, pending: &mut Vec<u32>, last: bool, task: &Task<'_>) -> Result<MelChunk> {
        if self.encoded < self.tokens.prompt {
            // A prompt that is a chunk does not look beyond its end.
            self.encode(pending, self.tokens.prompt, 0, task)?;
        }
        let ahead = if last { 0 } else { LOOKAHEAD_TOKENS };
        let certain = pending.len().saturating_sub(ahead);
        let count = if last { certain } else { whole_chunks(&self.tokens, self.encoded, certain) };
        if count > 0 {
            self.encode(pending, count, (pending.len() - count).min(LOOKAHEAD_TOKENS), task)?;
        }
        let ready = if last { self.mu_final } else { whole_chunks(&self.frames, self.flow.frames, self.mu_final) };
        if ready == 0 {
            return Ok(MelChunk { frames: empty_mel(&self.mu)?, lookahead: None });
        }
        let preview = (self.mu.dims()[1] - ready).min(PREVIEW_FRAMES);
        let (start, frames) = (self.flow.frames, ready + preview);
        let prompt_frames = self.prompt_feat.dims()[1];
        let known = prompt_frames.saturating_sub(start).min(frames);
        let cond = self.prompt_feat.narrow(1, start.min(prompt_frames), known)?;
        let cond = cond.pad_with_zeros(1, 0, frames - known)?;
        let mu = self.mu.narrow(1, 0, frames)?.contiguous()?;
        let x = task.next_stretch(&mut self.flow, &mu, &cond, preview)?;
        self.mu = self.mu.narrow(1, ready, self.mu.dims()[1] - ready)?.force_contiguous()?;
        self.mu_final -= ready;
        let known = known.min(ready);
        split(&x.narrow(1, known, frames - known)?, preview)
    }
}

/// How many of `available` positions from `start` on make up whole chunks.
fn whole_chunks(chunks: &Chunks, start: usize, available: usize) -> usize {
    chunks.border_up_to(start + available).saturating_sub(start)
}

/// `(1, T + preview, 80)` as a chunk of T frames and its preview.
fn split(x: &Tensor, preview: usize) -> Result<MelChunk> {
    let frames = x.dims()[1] - preview;
    let part = |from, len| x.narrow(1, from, len)?.force_contiguous();
    let lookahead = if preview > 0 && frames > 0 { Some(part(frames, preview)?) } else { None };
    Ok(MelChunk { frames: part(0, frames)?, lookahead })
}

/// No frames, on the device of `like`.
fn empty_mel(like: &Tensor) -> Result<Tensor> {
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
        let mut window = Window::new(&reference(12, 25), 5, None).unwrap();
        // Frames 14..24 belong to the last five tokens of the prompt, frame 24 is its odd one.
        assert_eq!((window.prompt.clone(), window.prompt_feat.dims()[1]), (vec![7, 8, 9, 10, 11], 10));
        assert_eq!((window.context_mel.dims()[1], window.context_start), (1, 24));
        let frames = Tensor::zeros((1, 19, 80), DType::F32, &Device::Cpu).unwrap();
        window.advance(100..110, &frames, 4).unwrap();
        assert_eq!((window.context.clone(), window.context_mel.dims()[1]), (vec![106, 107, 108, 109], 8));
        let noise: Vec<f32> = window.noise(10 + 14, 1.0, &run).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        // Ten of the prompt, then from the frame of token 106, the seventh: 24 + 12.
        assert_eq!(noise[..10 * 80], source.flow(2, 14, 10));
        assert_eq!(noise[10 * 80..], source.flow(2, 36, 14));
    }
}
