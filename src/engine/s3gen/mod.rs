//! S3Gen: speech tokens and a reference voice to a mel spectrogram.
//!
//! `mel = solve(noise, encode([prompt tokens, tokens]), speaker, [prompt mel, 0])`, of which the frames behind the
//! prompt are the result: the flow continues the prompt's mel. 25 tokens and 50 frames to the second.

mod anew;
pub mod campplus;
mod carry;
mod config;
mod encoder;
mod estimator;
mod flow;
pub mod hift;
#[cfg_attr(not(feature = "cuda"), path = "no_card.rs")]
mod on_card;
mod stream;

use candle_core::{Device, Tensor};

use crate::error::{Error, Result};
use crate::meter::CardWork;
use crate::weights::Weights;
use carry::Carry;
use flow::{Conditions, Flow, FlowCarry};
use on_card::OnCard;

pub use config::{ChunkCausalConfig, EstimatorConfig, FRAMES_PER_TOKEN, FlowConfig, LOOKAHEAD_TOKENS, MEL_CHANNELS};
pub use flow::{FlowRun, Solver};
pub use stream::{MelChunk, S3GenState, StreamOptions};

/// The voice that the flow continues.
#[derive(Debug, Clone)]
pub struct S3GenReference {
    /// Speech codes of the reference clip, P of them.
    pub prompt_token: Vec<u32>,
    /// Its log-mel, `(1, M, 80)` with M = 2P or 2P + 1.
    pub prompt_feat: Tensor,
    /// Its x-vector, `(1, 192)`.
    pub x_vector: Tensor,
}

/// How a mel is made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlowOptions {
    /// How the flow is solved; must suit the checkpoint.
    pub solver: Solver,
    /// Factor of the initial noise; 1 in the reference.
    pub noise_scale: f32,
    /// Of streaming only.
    pub stream: StreamOptions,
}

/// A mel and what it was made from.
#[derive(Debug, Clone)]
pub struct MelTrace {
    /// The encoder's output for prompt and tokens, `(1, 2 (P + n), 80)`.
    pub mu: Tensor,
    /// The result, `(1, 2 (P + n) - M, 80)`.
    pub mel: Tensor,
}

/// The token-to-mel half of the decoder; weights only.
#[derive(Debug, Clone)]
pub struct S3Gen {
    flow: Flow,
    config: FlowConfig,
    device: Device,
}

impl S3Gen {
    /// Loads `flow.*` of an opened S3Gen file. A checkpoint with a time mixer is a mean flow.
    ///
    /// # Errors
    /// If the file cannot be read or the dimensions make no sense.
    pub fn load(w: &Weights, config: &FlowConfig) -> Result<Self> {
        let refuse = |reason: &str| Err(Error::model(w.path(), format!("config.json, section flow: {reason}")));
        if config.heads == 0 || !config.dim.is_multiple_of(2 * config.heads) {
            return refuse("`dim` must be an even multiple of `heads`");
        }
        if config.chunk_causal.is_some_and(|chunks| !chunks.is_sound()) {
            return refuse("a chunk of `chunk_causal` is empty");
        }
        let flow = Flow::load(&w.pp("flow"), config)?;
        Ok(Self { flow, config: config.clone(), device: w.device().clone() })
    }

    /// The dimensions.
    pub fn config(&self) -> &FlowConfig {
        &self.config
    }

    /// What a card did for encoder and solver so far; nothing without a card.
    pub(crate) fn card_work(&self) -> Option<CardWork> {
        self.flow.card().map(OnCard::work)
    }

    /// Milliseconds that the step used last takes a card; 0 without a card.
    pub(crate) fn replay_ms(&self) -> Result<f64> {
        self.flow.card().map_or(Ok(0.0), OnCard::replay_ms)
    }

    /// The reference's settings for this checkpoint.
    pub fn default_options(&self) -> FlowOptions {
        let solver = if self.flow.is_mean_flow() { Solver::MEAN_FLOW } else { Solver::CFM };
        FlowOptions { solver, noise_scale: 1.0, stream: StreamOptions::default() }
    }

    /// The mel of `tokens` in one go: `(1, 2n, 80)`, one frame less if the reference's mel is odd.
    ///
    /// # Errors
    /// If there are no tokens, a code lies outside the table, the reference or the solver does not fit, the run is
    /// cancelled, or the device fails.
    pub fn mel(
        &self,
        reference: &S3GenReference,
        tokens: &[u32],
        options: &FlowOptions,
        run: &FlowRun<'_>,
    ) -> Result<Tensor> {
        Ok(self.trace(reference, tokens, options, run)?.mel)
    }

    /// [`Self::mel`] with the encoder's output beside it.
    ///
    /// # Errors
    /// As [`Self::mel`].
    pub fn trace(
        &self,
        reference: &S3GenReference,
        tokens: &[u32],
        options: &FlowOptions,
        run: &FlowRun<'_>,
    ) -> Result<MelTrace> {
        if tokens.is_empty() {
            return Err(no_tokens());
        }
        self.flow.check_tokens(tokens)?;
        let speaker = self.speaker(reference, options)?;
        let all = [reference.prompt_token.as_slice(), tokens].concat();
        let known = reference.prompt_feat.dims()[1];
        let prompt = reference.prompt_token.len();
        let chunks = self.config.chunk_causal;
        let mu = self.flow.encode(&all, 0, &mut Carry::whole(chunks.map(|c| c.tokens(prompt))))?;
        let frames = mu.dims()[1];
        let cond = reference.prompt_feat.pad_with_zeros(1, 0, frames - known)?;
        let conditions = Conditions { mu: &mu, speaker: &speaker, cond: &cond };
        let x = run.noise(known, (0, frames), options.noise_scale, &self.device)?;
        let mut carry = FlowCarry::whole(options.solver.steps(), chunks.map(|c| c.estimator(prompt)));
        let x = self.flow.solve(x, &conditions, options.solver, &mut carry, run.cancelled)?;
        Ok(MelTrace { mel: x.narrow(1, known, frames - known)?.contiguous()?, mu })
    }

    /// Checks that reference and solver fit this checkpoint; the projected speaker.
    fn speaker(&self, reference: &S3GenReference, options: &FlowOptions) -> Result<Tensor> {
        self.flow.check_solver(options.solver)?;
        self.flow.check_tokens(&reference.prompt_token)?;
        let prompt = reference.prompt_token.len();
        let frames = reference.prompt_feat.dims();
        let fits = [prompt * FRAMES_PER_TOKEN, prompt * FRAMES_PER_TOKEN + 1];
        if prompt == 0 || !matches!(*frames, [1, m, MEL_CHANNELS] if fits.contains(&m)) {
            return Err(Error::input(format!(
                "the voice has {prompt} speech tokens and a mel of shape {frames:?}; expected at least one token and \
                 (1, {} or {}, {MEL_CHANNELS}): prepare the voice again",
                fits[0], fits[1]
            )));
        }
        let x_vector = reference.x_vector.dims();
        if x_vector != [1, self.config.x_vector_dim] {
            return Err(Error::input(format!(
                "the voice has an x-vector of shape {x_vector:?}, this model wants (1, {}): prepare the voice again",
                self.config.x_vector_dim
            )));
        }
        self.flow.speaker(&reference.x_vector)
    }
}

fn no_tokens() -> Error {
    Error::input("there are no speech tokens to decode")
}

#[cfg(test)]
mod tests;
