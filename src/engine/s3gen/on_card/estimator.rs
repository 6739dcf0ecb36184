//! The velocity estimator and its steps on a card; see [`super::super::estimator`] and [`super::super::flow`].

use super::load::{Loader, Norm, Normed};
use crate::cuda::layers::{Act, AttendArgs, FlowArgs, Graphs, Input, Layers, Matrix, NormArgs, Room, RowsArgs};
use crate::error::{Error, Result};
use crate::s3gen::config::{Chunks, EstimatorConfig, MEL_CHANNELS};
use crate::weights::Weights;

const INPUTS: usize = 4 * MEL_CHANNELS;

#[derive(Debug)]
pub(super) struct Estimator {
    channels: usize,
    heads: usize,
    width: usize,
    down: Stage,
    down_conv: Matrix,
    mid: Vec<Stage>,
    up: Stage,
    up_conv: Matrix,
    final_conv: Matrix,
    final_norm: Norm,
    project: Matrix,
    room: Room,
    /// A step, for each number of rows and frames, with ranges or without, and each place of the activations.
    steps: Graphs<(usize, usize, bool, u64)>,
}

#[derive(Debug)]
struct Stage {
    conv1: Matrix,
    norm1: Norm,
    conv2: Matrix,
    norm2: Norm,
    res_conv: Matrix,
    blocks: Vec<Block>,
}

#[derive(Debug)]
struct Block {
    qkv: Normed,
    to_out: Matrix,
    ff_in: Normed,
    ff_out: Matrix,
}

/// What a mel is made of.
pub(super) struct FlowInputs<'a> {
    /// `(T, 80)` each: the noise, the encoder's output, the known mel and zeros.
    pub x: &'a [f32],
    pub mu: &'a [f32],
    pub cond: &'a [f32],
    /// `(80)`.
    pub speaker: &'a [f32],
    /// Of the times, `(steps, resnets, channels)` on the card.
    pub shifts: u64,
    /// From 0 to 1.
    pub times: &'a [f32],
    pub guidance: Option<f32>,
    pub chunks: Option<Chunks>,
}

/// Where the activations of a pass lie, and how many rows there are.
struct Places {
    batch: usize,
    frames: usize,
    state: u64,
    mu: u64,
    speaker: u64,
    cond: u64,
    velocity: u64,
    ranges: u64,
    /// What the time of a step adds to the resnets.
    shifts: u64,
    /// In f32.
    x: u64,
    y: u64,
    /// In the numbers of the products.
    inputs: u64,
    /// What the last stage sees: the stage before it, and the first.
    both: u64,
    a: u64,
    h: u64,
    qkv: u64,
    seen: u64,
    inner: u64,
}

impl Places {
    fn rows(&self) -> usize {
        self.batch * self.frames
    }

    fn input(&self, at: u64, pitch: usize) -> Input {
        Input { at, batch: self.batch, rows: self.frames, pitch }
    }
}

impl Estimator {
    /// Loads the tensors below `w`.
    pub(super) fn load(w: &Weights, config: &EstimatorConfig, to: &mut Loader<'_>) -> Result<Self> {
        let c = config.channels;
        let final_block = w.pp("final_block");
        Ok(Self {
            channels: c,
            heads: config.heads,
            width: config.head_dim,
            down: Stage::load(&w.pp("down_blocks.0"), INPUTS, config, to)?,
            down_conv: to.conv(&w.pp("down_blocks.0.2"), c, c, 3)?,
            mid: (0..config.mid_blocks)
                .map(|i| Stage::load(&w.pp("mid_blocks").pp(i), c, config, to))
                .collect::<Result<_>>()?,
            up: Stage::load(&w.pp("up_blocks.0"), 2 * c, config, to)?,
            up_conv: to.conv(&w.pp("up_blocks.0.2"), c, c, 3)?,
            final_conv: to.conv(&final_block.pp("block.0"), c, c, 3)?,
            final_norm: to.norm(&final_block.pp("block.2"), c, 1e-5)?,
            project: to.exact(|to| to.conv(&w.pp("final_proj"), c, MEL_CHANNELS, 1))?,
            room: Room::new(),
            steps: Graphs::new(),
        })
    }

    /// Values that a time adds to the resnets.
    pub(super) fn shifts(&self) -> usize {
        (self.mid.len() + 2) * self.channels
    }

    /// From noise to mel, `(T, 80)`.
    pub(super) fn solve(
        &mut self,
        on: &Layers,
        inputs: &FlowInputs<'_>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Vec<f32>> {
        let frames = inputs.x.len() / MEL_CHANNELS;
        let batch = if inputs.guidance.is_some() { 2 } else { 1 };
        let p = self.places(on, batch, frames)?;
        for (at, values) in [(p.state, inputs.x), (p.mu, inputs.mu), (p.cond, inputs.cond), (p.speaker, inputs.speaker)]
        {
            on.send(at, values)?;
        }
        let ranges = super::send_ranges(on, p.ranges, frames, inputs.chunks)?;
        let mut flow = FlowArgs {
            x: p.state,
            velocity: p.velocity,
            mu: p.mu,
            speaker: p.speaker,
            cond: p.cond,
            inputs: p.inputs,
            frames: frames as i32,
            batch: batch as i32,
            step: 0.0,
            guidance: inputs.guidance.unwrap_or(0.0),
        };
        on.stack_inputs(&flow)?;
        let shifts = self.shifts() * size_of::<f32>();
        let key = (batch, frames, ranges != 0, self.room.address(on.card()));
        // Out of the way of what is recorded with them.
        let mut steps = std::mem::replace(&mut self.steps, Graphs::new());
        let done = inputs.times.windows(2).enumerate().try_for_each(|(i, times)| {
            if cancelled() {
                return Err(Error::Cancelled);
            }
            on.copy(p.shifts, inputs.shifts + (i * shifts) as u64, shifts)?;
            steps.run(on, key, || self.velocity(on, &p, ranges))?;
            flow.step = times[1] - times[0];
            on.advance(&flow)
        });
        self.steps = steps;
        done?;
        on.fetch(p.state, frames * MEL_CHANNELS)
    }

    fn places(&mut self, on: &Layers, batch: usize, frames: usize) -> Result<Places> {
        let (c, wide, rows) = (self.channels, on.number.bytes(), batch * frames);
        let gathered = self.heads * self.width;
        let mel = 4 * frames * MEL_CHANNELS;
        let shifts = 4 * self.shifts();
        let [state, mu, speaker, cond, velocity, ranges, shifts, x, y, inputs, both, a, h, qkv, seen, inner] =
            self.room.deal(
                on.card(),
                [
                    mel,
                    mel,
                    4 * MEL_CHANNELS,
                    mel,
                    batch * mel,
                    8 * frames,
                    shifts,
                    4 * rows * c,
                    4 * rows * c,
                    wide * rows * INPUTS,
                    wide * rows * 2 * c,
                    wide * rows * c,
                    wide * rows * c,
                    wide * rows * 3 * gathered,
                    wide * rows * gathered,
                    wide * rows * 4 * c,
                ],
            )?;
        Ok(Places {
            batch,
            frames,
            state,
            mu,
            speaker,
            cond,
            velocity,
            ranges,
            shifts,
            x,
            y,
            inputs,
            both,
            a,
            h,
            qkv,
            seen,
            inner,
        })
    }

    /// The velocity of every row of `inputs`.
    fn velocity(&self, on: &Layers, p: &Places, ranges: u64) -> Result<()> {
        let c = self.channels;
        let shift = |i: usize| p.shifts + (i * c * size_of::<f32>()) as u64;
        let shape = (self.heads, self.width);
        let causal = |w: &Matrix, x: Input| RowsArgs::new(w, x).conv(p.frames, 1, 1, 2);
        let skip = p.both + (c * on.number.bytes()) as u64;
        self.down.forward(on, p, (p.input(p.inputs, INPUTS), shift(0)), (skip, 2 * c), shape, ranges)?;
        on.rows(&self.down_conv, causal(&self.down_conv, p.input(skip, 2 * c)).second(p.a, c))?;
        for (i, stage) in self.mid.iter().enumerate() {
            let to = if i + 1 == self.mid.len() { (p.both, 2 * c) } else { (p.a, c) };
            stage.forward(on, p, (p.input(p.a, c), shift(1 + i)), to, shape, ranges)?;
        }
        let last = shift(1 + self.mid.len());
        self.up.forward(on, p, (p.input(p.both, 2 * c), last), (p.a, c), shape, ranges)?;
        on.rows(&self.up_conv, causal(&self.up_conv, p.input(p.a, c)).second(p.h, c))?;
        on.rows(&self.final_conv, causal(&self.final_conv, p.input(p.h, c)).out(p.y))?;
        on.normalise_exact(&NormArgs { out: p.x, mish: 1, ..self.final_norm.of(p.y, p.rows()) })?;
        on.rows(&self.project, RowsArgs::new(&self.project, p.input(p.x, c)).out(p.velocity))
    }

    /// Milliseconds of the step used last.
    pub(super) fn replay_ms(&self, on: &Layers) -> Result<Option<f64>> {
        self.steps.replay_ms(on)
    }

    /// Bytes of activations on the card.
    pub(super) fn bytes(&self) -> usize {
        self.room.bytes()
    }

    #[cfg(test)]
    pub(super) fn poison(&mut self, on: &Layers) {
        self.room.poison(on.card());
    }

    #[cfg(test)]
    pub(super) fn record(&mut self, records: bool) {
        self.steps.records = records;
    }
}

impl Stage {
    fn load(w: &Weights, inputs: usize, config: &EstimatorConfig, to: &mut Loader<'_>) -> Result<Self> {
        let c = config.channels;
        let resnet = w.pp(0);
        let (block1, block2) = (resnet.pp("block1"), resnet.pp("block2"));
        Ok(Self {
            conv1: to.conv(&block1.pp("block.0"), inputs, c, 3)?,
            norm1: to.norm(&block1.pp("block.2"), c, 1e-5)?,
            conv2: to.conv(&block2.pp("block.0"), c, c, 3)?,
            norm2: to.norm(&block2.pp("block.2"), c, 1e-5)?,
            res_conv: to.conv(&resnet.pp("res_conv"), inputs, c, 1)?,
            blocks: (0..config.transformer_blocks)
                .map(|i| Block::load(&w.pp(1).pp(i), config, to))
                .collect::<Result<_>>()?,
        })
    }

    /// The rows of `x` through the resnet and the blocks, to `p.x` in f32 and to `to` (address, pitch).
    fn forward(
        &self,
        on: &Layers,
        p: &Places,
        (x, shift): (Input, u64),
        to: (u64, usize),
        (heads, width): (usize, usize),
        ranges: u64,
    ) -> Result<()> {
        let c = self.norm1.dim;
        let causal = |w: &Matrix, x: Input| RowsArgs::new(w, x).conv(p.frames, 1, 1, 2);
        on.rows(&self.conv1, causal(&self.conv1, x).out(p.y))?;
        on.normalise(&NormArgs { second: p.h, mish: 1, shift, ..self.norm1.of(p.y, p.rows()) })?;
        on.rows(&self.conv2, causal(&self.conv2, p.input(p.h, c)).out(p.y))?;
        on.normalise(&NormArgs { out: p.y, mish: 1, ..self.norm2.of(p.y, p.rows()) })?;
        let res = RowsArgs::new(&self.res_conv, x).residual(p.y).out(p.x);
        // What comes next reads a copy of the residual stream: a block from `h`, all else from where it was told to.
        let second =
            |args: RowsArgs, is_last: bool| if is_last { args.second(to.0, to.1) } else { args.second(p.h, c) };
        on.rows(&self.res_conv, second(res, self.blocks.is_empty()))?;
        let gathered = heads * width;
        let part = |i: usize| p.qkv + (i * gathered * on.number.bytes()) as u64;
        for (i, block) in self.blocks.iter().enumerate() {
            let qkv = block.qkv.of(on, p.x, p.input(p.h, c))?;
            on.rows(&block.qkv.matrix, qkv.second(p.qkv, 3 * gathered))?;
            let attend = AttendArgs {
                q: part(0),
                k: part(1),
                v: part(2),
                out: p.seen,
                ranges,
                q_batch: (p.frames * 3 * gathered) as i64,
                k_batch: (p.frames * 3 * gathered) as i64,
                k_head: width as i64,
                out_batch: (p.frames * gathered) as i64,
                q_pitch: 3 * gathered as i32,
                k_pitch: 3 * gathered as i32,
                out_pitch: gathered as i32,
                queries: p.frames as i32,
                keys: p.frames as i32,
                width: width as i32,
                scale: 1.0 / (width as f32).sqrt(),
                ..Default::default()
            };
            on.attend(&attend, heads, p.batch)?;
            let out = RowsArgs::new(&block.to_out, p.input(p.seen, gathered));
            on.rows(&block.to_out, out.residual(p.x).out(p.x).second(p.h, c))?;
            let hidden = block.ff_in.of(on, p.x, p.input(p.h, c))?.first(Act::Gelu, 0.0);
            on.rows(&block.ff_in.matrix, hidden.second(p.inner, 4 * c))?;
            let down = RowsArgs::new(&block.ff_out, p.input(p.inner, 4 * c)).residual(p.x).out(p.x);
            on.rows(&block.ff_out, second(down, i + 1 == self.blocks.len()))?;
        }
        Ok(())
    }
}

impl Block {
    fn load(w: &Weights, config: &EstimatorConfig, to: &mut Loader<'_>) -> Result<Self> {
        let &EstimatorConfig { channels: c, heads, head_dim, .. } = config;
        let attn = w.pp("attn1");
        Ok(Self {
            qkv: to.normed_fused(
                &w.pp("norm1"),
                1e-5,
                &["to_q", "to_k", "to_v"].map(|name| attn.pp(name)),
                c,
                heads * head_dim,
            )?,
            to_out: to.linear(&attn.pp("to_out.0"), heads * head_dim, c)?,
            ff_in: to.normed_linear(&w.pp("norm3"), 1e-5, &w.pp("ff.net.0.proj"), c, 4 * c)?,
            ff_out: to.linear(&w.pp("ff.net.2"), 4 * c, c)?,
        })
    }
}
