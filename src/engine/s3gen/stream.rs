//! Mel while the tokens are still coming.

use candle_core::{DType, Tensor};

use super::carry::Carry;
use super::config::{Chunks, FRAMES_PER_TOKEN, LOOKAHEAD_TOKENS, MEL_CHANNELS};
use super::flow::{Conditions, FlowCarry, FlowRun};
use super::{FlowOptions, S3Gen, S3GenReference, no_tokens};
use crate::error::{Error, Result};

/// How much of the past a chunk is decoded with. More is closer to the one-shot result and costs more per chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamOptions {
    /// Tokens kept of the end of the reference.
    pub prompt_tokens: usize,
    /// Tokens kept of the speech so far, with the mel they were given.
    pub context_tokens: usize,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self { prompt_tokens: 75, context_tokens: 50 }
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

/// The method for ordinary checkpoints: what is new, behind the end of the prompt and the end of the speech so far.
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
}

/// The method for checkpoints trained with chunk masks: each layer remembers what it still needs.
#[derive(Debug, Clone)]
struct ChunkStream {
    tokens: Chunks,
    frames: Chunks,
    encoder: Carry,
    /// Tokens that have been encoded.
    encoded: usize,
    /// Encoded frames that wait for a whole chunk of the estimator, `(1, T, 80)`.
    mu: Tensor,
    flow: FlowCarry,
    prompt_feat: Tensor,
}

impl S3Gen {
    /// Begins an utterance in the voice of `reference`.
    ///
    /// # Errors
    /// If the reference or the solver does not fit the checkpoint, or the device fails.
    pub fn start(&self, reference: &S3GenReference, options: &FlowOptions) -> Result<S3GenState> {
        let speaker = self.speaker(reference, options)?;
        let (method, pending) = match self.config.chunk_causal {
            None => (Method::Window(Window::new(reference, options.stream)?), Vec::new()),
            Some(chunks) => {
                let stream = ChunkStream {
                    tokens: chunks.tokens(),
                    frames: chunks.estimator(),
                    encoder: Carry::streaming(),
                    encoded: 0,
                    mu: empty_mel(&reference.prompt_feat)?,
                    flow: FlowCarry::streaming(options.solver.steps()),
                    prompt_feat: reference.prompt_feat.clone(),
                };
                (Method::Chunks(stream), reference.prompt_token.clone())
            }
        };
        Ok(S3GenState { options: *options, speaker, method, pending, started: false, finished: false })
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
        if state.finished {
            return Err(Error::internal("tokens were added to a finished utterance"));
        }
        self.flow.check_tokens(new_tokens)?;
        state.started |= !new_tokens.is_empty();
        if last && !state.started {
            return Err(no_tokens());
        }
        state.pending.extend_from_slice(new_tokens);
        state.finished = last;
        match &mut state.method {
            Method::Window(window) => {
                self.decode_window(window, &mut state.pending, last, &state.speaker, &state.options, run)
            }
            Method::Chunks(stream) => {
                self.decode_chunks(stream, &mut state.pending, last, &state.speaker, &state.options, run)
            }
        }
    }

    fn decode_window(
        &self,
        window: &mut Window,
        pending: &mut Vec<u32>,
        last: bool,
        speaker: &Tensor,
        options: &FlowOptions,
        run: &FlowRun<'_>,
    ) -> Result<MelChunk> {
        let ahead = if last { 0 } else { LOOKAHEAD_TOKENS };
        if pending.len() <= ahead {
            return Ok(MelChunk { frames: empty_mel(&window.prompt_feat)?, lookahead: None });
        }
        let tokens = [window.prompt.as_slice(), &window.context, pending].concat();
        let mu = self.flow.encode(&tokens, 0, 0, &mut Carry::default())?;
        let frames = mu.dims()[1];
        let known = Tensor::cat(&[&window.prompt_feat, &window.context_mel], 1)?;
        let known_frames = known.dims()[1];
        let cond = known.pad_with_zeros(1, 0, frames - known_frames)?;
        let x = window.noise(frames, options.noise_scale, run)?;
        let conditions = Conditions { mu: &mu, speaker, cond: &cond };
        let mut carry = FlowCarry::whole(options.solver.steps());
        let x = self.flow.solve(x, &conditions, options.solver, &mut carry, run.cancelled)?;
        let preview = ahead * FRAMES_PER_TOKEN;
        let new = x.narrow(1, known_frames, frames - preview - known_frames)?.contiguous()?;
        let lookahead = match preview {
            0 => None,
            _ => Some(x.narrow(1, frames - preview, preview)?.contiguous()?),
        };
        let done = pending.len() - ahead;
        window.advance(pending.drain(..done), &new, options.stream.context_tokens)?;
        Ok(MelChunk { frames: new, lookahead })
    }

    fn decode_chunks(
        &self,
        stream: &mut ChunkStream,
        pending: &mut Vec<u32>,
        last: bool,
        speaker: &Tensor,
        options: &FlowOptions,
        run: &FlowRun<'_>,
    ) -> Result<MelChunk> {
        let whole = |len: usize, size: usize| if last { len } else { len / size * size };
        let certain = if last { pending.len() } else { pending.len().saturating_sub(LOOKAHEAD_TOKENS) };
        let count = whole(certain, stream.tokens.size);
        if count > 0 {
            let ahead = (pending.len() - count).min(LOOKAHEAD_TOKENS);
            let mu = self.flow.encode(&pending[..count + ahead], ahead, stream.encoded, &mut stream.encoder)?;
            stream.mu = Tensor::cat(&[&stream.mu, &mu], 1)?;
            stream.encoded += count;
            pending.drain(..count);
        }
        let waiting = stream.mu.dims()[1];
        let ready = whole(waiting, stream.frames.size);
        if ready == 0 {
            return Ok(MelChunk { frames: empty_mel(&stream.mu)?, lookahead: None });
        }
        let start = stream.flow.frames;
        let mu = stream.mu.narrow(1, 0, ready)?.contiguous()?;
        stream.mu = stream.mu.narrow(1, ready, waiting - ready)?.force_contiguous()?;
        let prompt_frames = stream.prompt_feat.dims()[1];
        let known = prompt_frames.saturating_sub(start).min(ready);
        let cond = stream.prompt_feat.narrow(1, start.min(prompt_frames), known)?;
        let cond = cond.pad_with_zeros(1, 0, ready - known)?;
        let conditions = Conditions { mu: &mu, speaker, cond: &cond };
        let x = run.noise(start, ready, options.noise_scale, &self.device)?;
        let x = self.flow.solve(x, &conditions, options.solver, &mut stream.flow, run.cancelled)?;
        Ok(MelChunk { frames: x.narrow(1, known, ready - known)?.contiguous()?, lookahead: None })
    }
}

impl Window {
    fn new(reference: &S3GenReference, options: StreamOptions) -> Result<Self> {
        let prompt = &reference.prompt_token;
        let skipped = prompt.len().saturating_sub(options.prompt_tokens.max(1));
        let (from, to) = (skipped * FRAMES_PER_TOKEN, prompt.len() * FRAMES_PER_TOKEN);
        let feat = &reference.prompt_feat;
        Ok(Self {
            prompt: prompt[skipped..].to_vec(),
            prompt_feat: feat.narrow(1, from, to - from)?.contiguous()?,
            prompt_start: from,
            context: Vec::new(),
            context_mel: feat.narrow(1, to, feat.dims()[1] - to)?.contiguous()?,
            context_start: to,
        })
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
        let mut window =
            Window::new(&reference(12, 25), StreamOptions { prompt_tokens: 5, context_tokens: 4 }).unwrap();
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
