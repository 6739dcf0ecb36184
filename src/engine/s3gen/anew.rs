//! The streaming method of a graphics card: everything in sight is computed anew for every chunk.
//!
//! There, the 500 frames of a prompt cost less than the bookkeeping of what every layer and step remembers of them, and
//! nothing but tokens and mel lives on from chunk to chunk. Checkpoints with chunk masks solve all frames so far, which
//! equals the whole forward; all others the prompt, the last of the speech and the new frames, and are told the mel that
//! was given out as if the prompt had said it (the first row of "window" in `stream.rs`).

use candle_core::Tensor;

use super::S3GenReference;
use super::carry::Carry;
use super::config::{ChunkCausalConfig, Chunks, FRAMES_PER_TOKEN, LOOKAHEAD_TOKENS};
use super::flow::{Conditions, FlowCarry};
use super::stream::{MelChunk, Task, empty_mel, split};
use crate::error::Result;

#[derive(Debug, Clone)]
pub(super) struct Anew {
    prompt: Vec<u32>,
    /// `(1, M, 80)`.
    prompt_feat: Tensor,
    /// Of the encoder's tokens and of the estimator's frames.
    chunks: Option<(Chunks, Chunks)>,
    /// Tokens of the speech that stay in sight without chunks.
    context: usize,
    /// Those of the speech in sight.
    tokens: Vec<u32>,
    /// How many came before them.
    dropped: usize,
    /// The frames given out of those in sight; before the first chunk, the odd last frame of the reference if it has one.
    mel: Tensor,
    /// Frames from the prompt's first on that were given out (of the prompt: known).
    given: usize,
}

impl Anew {
    pub(super) fn new(reference: &S3GenReference, chunks: Option<ChunkCausalConfig>, context: usize) -> Result<Self> {
        let (prompt, feat) = (reference.prompt_token.clone(), reference.prompt_feat.clone());
        let (even, frames) = (prompt.len() * FRAMES_PER_TOKEN, feat.dims()[1]);
        Ok(Self {
            chunks: chunks.map(|chunks| (chunks.tokens(prompt.len()), chunks.estimator(prompt.len()))),
            mel: feat.narrow(1, even, frames - even)?.force_contiguous()?,
            prompt,
            prompt_feat: feat,
            context,
            tokens: Vec::new(),
            dropped: 0,
            given: frames,
        })
    }

    /// Takes in new tokens; the frames that are certain by now.
    pub(super) fn decode(&mut self, new: Vec<u32>, last: bool, task: &Task<'_>) -> Result<MelChunk> {
        self.tokens.extend(new);
        match self.chunks {
            Some(chunks) => self.whole(chunks, last, task),
            None => self.window(last, task),
        }
    }

    /// All frames from the first on, of which those of whole chunks are certain.
    fn whole(&mut self, (tokens, frames): (Chunks, Chunks), last: bool, task: &Task<'_>) -> Result<MelChunk> {
        let all = [self.prompt.as_slice(), &self.tokens].concat();
        let certain = if last { all.len() } else { tokens.border_up_to(all.len().saturating_sub(LOOKAHEAD_TOKENS)) };
        let seen = (certain + LOOKAHEAD_TOKENS).min(all.len());
        let ready = certain * FRAMES_PER_TOKEN;
        let ready = if last { ready } else { frames.border_up_to(ready) };
        if ready <= self.given {
            return Ok(MelChunk { frames: empty_mel(&self.prompt_feat)?, lookahead: None });
        }
        let mu = task.s3gen.flow.encode(&all[..seen], 0, &mut Carry::whole(Some(tokens)))?;
        let preview = (mu.dims()[1] - ready).min(LOOKAHEAD_TOKENS * FRAMES_PER_TOKEN);
        let count = ready + preview;
        let known = self.prompt_feat.dims()[1];
        let noise = task.run.noise(known, (0, count), task.options.noise_scale, mu.device())?;
        let x = self.solve(task, noise, &mu.narrow(1, 0, count)?.contiguous()?, &self.prompt_feat, Some(frames))?;
        let chunk = split(&x.narrow(1, self.given, count - self.given)?, preview)?;
        self.given = ready;
        Ok(chunk)
    }

    /// The prompt, what is in sight of the speech, and what is new.
    fn window(&mut self, last: bool, task: &Task<'_>) -> Result<MelChunk> {
        let preview = if last { 0 } else { LOOKAHEAD_TOKENS.min(self.tokens.len()) * FRAMES_PER_TOKEN };
        let prompt = self.prompt.len() * FRAMES_PER_TOKEN;
        let frames = prompt + self.tokens.len() * FRAMES_PER_TOKEN;
        let known = prompt + self.mel.dims()[1];
        if frames - preview <= known {
            return Ok(MelChunk { frames: empty_mel(&self.prompt_feat)?, lookahead: None });
        }
        let all = [self.prompt.as_slice(), &self.tokens].concat();
        let mu = task.s3gen.flow.encode(&all, 0, &mut Carry::whole(None))?;
        let told = Tensor::cat(&[&self.prompt_feat.narrow(1, 0, prompt)?, &self.mel], 1)?;
        let noise = |start: usize, count: usize| {
            let scale = task.options.noise_scale;
            task.run.noise(self.prompt_feat.dims()[1], (start, count), scale, mu.device())
        };
        // The noise of a frame is that of its place in the whole.
        let behind = noise(prompt + self.dropped * FRAMES_PER_TOKEN, frames - prompt)?;
        let noise = Tensor::cat(&[noise(0, prompt)?, behind], 1)?;
        let x = self.solve(task, noise, &mu, &told, None)?;
        let chunk = split(&x.narrow(1, known, frames - known)?, preview)?;
        self.take_in(&chunk.frames)?;
        Ok(chunk)
    }

    /// The mel of `mu: (1, T, 80)` that begins with `told: (1, K, 80)`.
    fn solve(
        &self,
        task: &Task<'_>,
        noise: Tensor,
        mu: &Tensor,
        told: &Tensor,
        chunks: Option<Chunks>,
    ) -> Result<Tensor> {
        let cond = told.pad_with_zeros(1, 0, mu.dims()[1] - told.dims()[1])?;
        let conditions = Conditions { mu, speaker: task.speaker, cond: &cond };
        let solver = task.options.solver;
        let mut carry = FlowCarry::whole(solver.steps(), chunks);
        task.s3gen.flow.solve(noise, &conditions, solver, &mut carry, task.run.cancelled)
    }

    /// Takes in frames that were given out, and forgets what lies too far back.
    fn take_in(&mut self, frames: &Tensor) -> Result<()> {
        let mel = Tensor::cat(&[&self.mel, frames], 1)?;
        let count = mel.dims()[1];
        let forgotten = (count / FRAMES_PER_TOKEN).saturating_sub(self.context);
        let from = forgotten * FRAMES_PER_TOKEN;
        self.mel = mel.narrow(1, from, count - from)?.force_contiguous()?;
        self.tokens.drain(..forgotten);
        self.dropped += forgotten;
        Ok(())
    }
}
