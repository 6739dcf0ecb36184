//! Flow matching: from noise to a mel along the velocities that the estimator predicts.
//!
//! Standard (conditional flow matching, Lipman et al., 2023): Euler steps `x += (t' - t) v(x, t)` over
//! `t_k = 1 - cos(k π / 2N)`, with classifier-free guidance `v = (1 + g) v(conditioned) - g v(unconditioned)`.
//! Mean flow (Geng et al., 2025): the network predicts the mean velocity of a whole step, so two steps over a linear
//! schedule are enough and no guidance is needed.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use super::carry::Carry;
use super::config::{Chunks, FlowConfig, MEL_CHANNELS};
use super::encoder::UpsampleConformerEncoder;
use super::estimator::{ConditionalDecoder, stack_inputs};
use super::on_card::OnCard;
use crate::error::{Error, Result};
use crate::nn::{Embedding, Linear};
use crate::noise::NoiseSource;
use crate::protocol::Precision;
use crate::weights::Weights;

/// How the flow's equation is solved.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Solver {
    /// Conditional flow matching with guidance; the reference takes 10 steps at a rate of 0.7.
    Cfm {
        /// Euler steps.
        steps: usize,
        /// Weight of the guidance; 0 leaves the unconditioned row out.
        cfg_rate: f64,
    },
    /// Mean flow; the reference takes 2 steps.
    MeanFlow {
        /// Steps.
        steps: usize,
    },
}

impl Solver {
    /// The standard solver with the reference's settings.
    pub const CFM: Self = Self::Cfm { steps: 10, cfg_rate: 0.7 };
    /// The mean-flow solver with the reference's settings.
    pub const MEAN_FLOW: Self = Self::MeanFlow { steps: 2 };

    /// The same solver with another number of steps.
    #[must_use]
    pub fn with_steps(self, steps: usize) -> Self {
        match self {
            Self::Cfm { cfg_rate, .. } => Self::Cfm { steps, cfg_rate },
            Self::MeanFlow { .. } => Self::MeanFlow { steps },
        }
    }

    /// Number of steps.
    pub fn steps(self) -> usize {
        match self {
            Self::Cfm { steps, .. } | Self::MeanFlow { steps } => steps,
        }
    }

    /// The times of the steps, from 0 to 1: `steps + 1` of them.
    pub fn schedule(self) -> Vec<f32> {
        let steps = self.steps();
        let linear = (0..=steps).map(|k| k as f32 / steps as f32);
        match self {
            Self::Cfm { .. } => linear.map(|t| 1.0 - (t * std::f32::consts::FRAC_PI_2).cos()).collect(),
            Self::MeanFlow { .. } => linear.collect(),
        }
    }

    /// Weight of the guidance, if there is any.
    pub(super) fn guidance(self) -> Option<f64> {
        match self {
            Self::Cfm { cfg_rate, .. } if cfg_rate != 0.0 => Some(cfg_rate),
            _ => None,
        }
    }
}

/// What a run of the flow draws its noise from, and how it learns that nobody waits for it any more.
#[derive(Clone, Copy)]
pub struct FlowRun<'a> {
    /// Where the initial noise comes from.
    pub noise: &'a dyn NoiseSource,
    /// Which sentence of the job this is: part of the noise's address.
    pub sentence: usize,
    /// Asked before every step; `true` ends the run with [`Error::Cancelled`].
    pub cancelled: &'a dyn Fn() -> bool,
}

impl std::fmt::Debug for FlowRun<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FlowRun(sentence {})", self.sentence)
    }
}

impl FlowRun<'_> {
    /// Noise of frames `start..start + frames` of a stream that begins with `prompt` frames, `(1, frames, 80)`, times
    /// `scale`.
    pub(super) fn noise(
        &self,
        prompt: usize,
        (start, frames): (usize, usize),
        scale: f32,
        device: &Device,
    ) -> Result<Tensor> {
        if scale == 0.0 {
            return Ok(Tensor::zeros((1, frames, MEL_CHANNELS), DType::F32, device)?);
        }
        let of_prompt = prompt.saturating_sub(start).min(frames);
        let mut values = self.noise.prompt_flow(start, of_prompt);
        values.extend(self.noise.flow(self.sentence, start + of_prompt, frames - of_prompt));
        if values.len() != frames * MEL_CHANNELS {
            return Err(Error::internal(format!(
                "the noise source gave {} values for {frames} mel frames from {start}",
                values.len()
            )));
        }
        values.iter_mut().for_each(|value| *value *= scale);
        Ok(Tensor::from_vec(values, (1, frames, MEL_CHANNELS), device)?)
    }
}

/// What the estimator is told besides its own state; all of it constant over the steps.
#[derive(Debug)]
pub(super) struct Conditions<'a> {
    /// The encoder's output, `(1, T, 80)`.
    pub mu: &'a Tensor,
    /// The projected x-vector, `(1, 80)`.
    pub speaker: &'a Tensor,
    /// Known mel frames and zeros, `(1, T, 80)`.
    pub cond: &'a Tensor,
}

/// Memory of a streamed flow: the estimator's, once for every step of the solver.
#[derive(Debug, Clone)]
pub(super) struct FlowCarry {
    /// Frames that have been through for good.
    pub frames: usize,
    /// How many frames at the end of the next stretch will come again.
    pub provisional: usize,
    steps: Vec<Carry>,
}

impl FlowCarry {
    /// For a run in stretches, every step of the solver remembering as `carry` does.
    pub(super) fn streaming(steps: usize, carry: &Carry) -> Self {
        Self { frames: 0, provisional: 0, steps: vec![carry.clone(); steps] }
    }

    /// For a run in one go under a chunk rule.
    pub(super) fn whole(steps: usize, chunks: Option<Chunks>) -> Self {
        Self { frames: 0, provisional: 0, steps: vec![Carry::whole(chunks); steps] }
    }

    /// The chunk rule of a run in one go; nothing where it is one in stretches.
    fn of_whole(&self) -> Option<Option<Chunks>> {
        self.steps.first().and_then(Carry::of_whole)
    }
}

/// `CausalMaskedDiffWithXvec`: token encoder, speaker projection and flow.
#[derive(Debug, Clone)]
pub(super) struct Flow {
    input_embedding: Embedding,
    spk_embed_affine_layer: Linear,
    encoder: UpsampleConformerEncoder,
    encoder_proj: Linear,
    estimator: ConditionalDecoder,
    vocab: usize,
    /// Encoder and estimator once more, where a card has them.
    pub(super) on_card: Option<Arc<OnCard>>,
}

impl Flow {
    /// Loads the tensors below `w`.
    pub(super) fn load(w: &Weights, config: &FlowConfig) -> Result<Self> {
        let encoder = UpsampleConformerEncoder::load(&w.pp("encoder"), config)?;
        // Small, and nothing behind them evens their errors out.
        let exact = w.at(Precision::F32);
        Ok(Self {
            input_embedding: Embedding::load(&w.pp("input_embedding"), config.vocab, config.dim)?,
            spk_embed_affine_layer: Linear::load(
                &exact.pp("spk_embed_affine_layer"),
                config.x_vector_dim,
                MEL_CHANNELS,
            )?,
            encoder_proj: Linear::load(&exact.pp("encoder_proj"), encoder.dim(), MEL_CHANNELS)?,
            encoder,
            estimator: ConditionalDecoder::load(&w.pp("decoder.estimator"), &config.estimator)?,
            vocab: config.vocab,
            on_card: None,
        })
    }

    /// The card, if there is one that has not failed.
    pub(super) fn card(&self) -> Option<&OnCard> {
        self.on_card.as_deref().filter(|card| card.is_usable())
    }

    /// What the times of a solver's steps add to the estimator's resnets, `(steps, resnets, channels)`.
    fn time_shifts(&self, solver: Solver) -> Result<Vec<f32>> {
        let mut all = Vec::new();
        for times in solver.schedule().windows(2) {
            all.extend(self.estimator.time_shifts(times[0], times[1])?);
        }
        Ok(all)
    }

    /// Fails if a code lies outside the table.
    pub(super) fn check_tokens(&self, tokens: &[u32]) -> Result<()> {
        match tokens.iter().enumerate().find(|&(_, &token)| token as usize >= self.vocab) {
            None => Ok(()),
            Some((at, token)) => Err(Error::input(format!(
                "speech token {token} at position {at} is not one of the {} codes of this model; \
                 start and stop tokens must be removed first",
                self.vocab
            ))),
        }
    }

    /// Fails if the checkpoint was not trained for `solver`.
    pub(super) fn check_solver(&self, solver: Solver) -> Result<()> {
        if solver.steps() == 0 {
            return Err(Error::input("the flow needs at least one step"));
        }
        match (solver, self.estimator.is_mean_flow()) {
            (Solver::Cfm { .. }, false) | (Solver::MeanFlow { .. }, true) => Ok(()),
            (Solver::Cfm { .. }, true) => Err(Error::input("this decoder is a mean flow; use the mean-flow solver")),
            (Solver::MeanFlow { .. }, false) => {
                Err(Error::input("this decoder is not a mean flow; use the standard solver"))
            }
        }
    }

    /// Bytes that a streaming carry holds for each frame.
    pub(super) fn carried_bytes_per_frame(&self, solver: Solver) -> usize {
        let rows = if solver.guidance().is_some() { 2 } else { 1 };
        solver.steps() * rows * self.estimator.carried_bytes_per_frame()
    }

    /// Whether the checkpoint is a mean flow.
    pub(super) fn is_mean_flow(&self) -> bool {
        self.estimator.is_mean_flow()
    }

    /// The speaker's part of the input: `x_vector (1, X) -> (1, 80)`, from its direction alone.
    pub(super) fn speaker(&self, x_vector: &Tensor) -> Result<Tensor> {
        let norm = x_vector.sqr()?.sum_keepdim(1)?.sqrt()?.maximum(1e-12)?;
        self.spk_embed_affine_layer.forward(&x_vector.broadcast_div(&norm)?)
    }

    /// Encodes the tokens that follow those `carry` knows: `mu (1, 2n, 80)`. The last `provisional` ones come again.
    pub(super) fn encode(&self, tokens: &[u32], provisional: usize, carry: &mut Carry) -> Result<Tensor> {
        if let (Some(card), Some(chunks)) = (self.card(), carry.of_whole()) {
            return card.encode(tokens, chunks);
        }
        let embedded = self.input_embedding.forward(tokens)?;
        self.encoder_proj.forward(&self.encoder.forward(&embedded, provisional, carry)?)
    }

    /// Integrates from `x: (1, T, 80)`, the scaled noise, to the mel.
    pub(super) fn solve(
        &self,
        mut x: Tensor,
        conditions: &Conditions<'_>,
        solver: Solver,
        carry: &mut FlowCarry,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Tensor> {
        let frames = x.dims3()?.1;
        if let (Some(card), Some(chunks)) = (self.card(), carry.of_whole()) {
            return card.solve(&x, conditions, solver, chunks, (&|| self.time_shifts(solver), cancelled));
        }
        let guidance = solver.guidance();
        let rows = Rows::new(conditions, guidance.is_some())?;
        for (step, times) in carry.steps.iter_mut().zip(solver.schedule().windows(2)) {
            if cancelled() {
                return Err(Error::Cancelled);
            }
            step.begin(frames, carry.provisional);
            let velocity = self.velocity(&rows.input(&x)?, times, step)?;
            let velocity = match guidance {
                Some(rate) => ((velocity.narrow(0, 0, 1)? * (1.0 + rate))? - (velocity.narrow(0, 1, 1)? * rate)?)?,
                None => velocity,
            };
            x = (x + (velocity * f64::from(times[1] - times[0]))?)?;
        }
        carry.frames += frames - carry.provisional;
        Ok(x)
    }

    /// The velocity of every row of `xs: (B, T, 320)` at `times[0]`, or over the step to `times[1]`.
    fn velocity(&self, xs: &Tensor, times: &[f32], carry: &mut Carry) -> Result<Tensor> {
        let time = self.estimator.embed_time(times[0], times[1], xs.device())?;
        self.estimator.forward(xs, &time, carry)
    }

    /// The velocities of the first step, before guidance combines them.
    #[cfg(test)]
    pub(super) fn velocities(&self, x: &Tensor, conditions: &Conditions<'_>, solver: Solver) -> Result<Tensor> {
        let rows = Rows::new(conditions, solver.guidance().is_some())?;
        let mut carry = Carry::default();
        carry.begin(x.dims()[1], 0);
        self.velocity(&rows.input(x)?, &solver.schedule()[..2], &mut carry)
    }
}

/// The conditions as rows of a batch: one, or for guidance a second that knows nothing.
struct Rows {
    mu: Tensor,
    speaker: Tensor,
    cond: Tensor,
    count: usize,
}

impl Rows {
    fn new(conditions: &Conditions<'_>, guided: bool) -> Result<Self> {
        let row = |t: &Tensor| match guided {
            true => Ok(Tensor::cat(&[t, &t.zeros_like()?], 0)?),
            false => Ok::<_, Error>(t.clone()),
        };
        let &Conditions { mu, speaker, cond } = conditions;
        Ok(Self { mu: row(mu)?, speaker: row(speaker)?, cond: row(cond)?, count: if guided { 2 } else { 1 } })
    }

    fn input(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.broadcast_as((self.count, x.dims()[1], x.dims()[2]))?;
        stack_inputs(&x, &self.mu, &self.speaker, &self.cond)
    }
}
