//! The velocity estimator: causal convolutions for order, attention for everything else.
//!
//! A U-Net of one level without any change of rate, after the `ConditionalDecoder` of Matcha-TTS (Mehta et al., 2024)
//! and CosyVoice 2: `down (resnet, transformers, conv) -> mid × n -> concat with the output of down -> up -> project`.
//! Mean-flow checkpoints also know the end of their step: both times are embedded and mixed by one projection.

use candle_core::{D, Device, Tensor};

use super::carry::{Carry, Place};
use super::config::{EstimatorConfig, MEL_CHANNELS};
use crate::error::{Error, Result};
use crate::nn::{Activation, Conv1d, ConvConfig, LayerNorm, Linear, mish};
use crate::protocol::Precision;
use crate::weights::Weights;

/// Channels of the input: the state, the encoder's output, the speaker and the known mel.
const INPUTS: usize = 4 * MEL_CHANNELS;
/// Width of the time embedding over the channels of the network.
const TIME_RATIO: usize = 4;

/// Predicts the velocity of the flow.
#[derive(Debug, Clone)]
pub(super) struct ConditionalDecoder {
    time: TimeEmbedding,
    down: Stage,
    down_conv: Conv1d,
    mid: Vec<Stage>,
    up: Stage,
    up_conv: Conv1d,
    final_block: CausalBlock,
    final_proj: Conv1d,
}

impl ConditionalDecoder {
    /// Loads the tensors below `w`.
    pub(super) fn load(w: &Weights, config: &EstimatorConfig) -> Result<Self> {
        let c = config.channels;
        // Small; the last one makes the mel itself.
        let exact = w.at(Precision::F32);
        let causal = |w: Weights| Conv1d::load(&w, c, c, ConvConfig::causal(3));
        let mid = |i: usize| Stage::load(&w.pp("mid_blocks").pp(i), c, config);
        Ok(Self {
            time: TimeEmbedding::load(&exact, c * TIME_RATIO)?,
            down: Stage::load(&w.pp("down_blocks.0"), INPUTS, config)?,
            down_conv: causal(w.pp("down_blocks.0.2"))?,
            mid: (0..config.mid_blocks).map(mid).collect::<Result<_>>()?,
            up: Stage::load(&w.pp("up_blocks.0"), 2 * c, config)?,
            up_conv: causal(w.pp("up_blocks.0.2"))?,
            final_block: CausalBlock::load(&w.pp("final_block"), c, c)?,
            final_proj: Conv1d::load(&exact.pp("final_proj"), c, MEL_CHANNELS, ConvConfig::causal(1))?,
        })
    }

    /// Whether the checkpoint is a mean flow, which wants the end of a step as well as its beginning.
    pub(super) fn is_mean_flow(&self) -> bool {
        self.time.mixer.is_some()
    }

    /// Bytes that a carry holds for each frame and row.
    pub(super) fn carried_bytes_per_frame(&self) -> usize {
        let blocks = self.mid.iter().chain([&self.down, &self.up]).flat_map(|stage| &stage.transformers);
        blocks.map(|block| 2 * block.heads * block.head_dim * size_of::<f32>()).sum()
    }

    /// The embedding of time `t` (for a mean flow: of the step from `t` to `r`), `(1, 1, 4 C)`.
    pub(super) fn embed_time(&self, t: f32, r: f32, device: &Device) -> Result<Tensor> {
        self.time.forward(t, r, device)
    }

    /// What the embedding of `t` (and `r`) adds to each resnet, one behind the other: the first, the middle ones, the last.
    pub(super) fn time_shifts(&self, t: f32, r: f32) -> Result<Vec<f32>> {
        let time = mish(&self.embed_time(t, r, &Device::Cpu)?)?;
        let mut all = Vec::new();
        for stage in [&self.down].into_iter().chain(&self.mid).chain([&self.up]) {
            all.extend(stage.resnet.mlp.forward(&time)?.flatten_all()?.to_vec1::<f32>()?);
        }
        Ok(all)
    }

    /// The velocity, `(B, T, 80)`, for `xs: (B, T, 320)` (state, `mu`, speaker, known mel) at an embedded time.
    ///
    /// `carry`, whose pass has begun, knows what came before.
    pub(super) fn forward(&self, xs: &Tensor, time: &Tensor, carry: &mut Carry) -> Result<Tensor> {
        let time = mish(time)?;
        let place = carry.place();
        let skip = self.down.forward(xs, &time, &place, carry)?;
        let mut xs = carry.conv(&self.down_conv, &skip)?;
        for stage in &self.mid {
            xs = stage.forward(&xs, &time, &place, carry)?;
        }
        let xs = self.up.forward(&Tensor::cat(&[xs, skip], 2)?, &time, &place, carry)?;
        let xs = carry.conv(&self.up_conv, &xs)?;
        let xs = self.final_block.forward(&xs, None, carry)?;
        self.final_proj.forward(&xs)
    }
}

/// `[sin(1000 t e), cos(1000 t e)]`, then two projections; for a mean flow, one more over those of both ends.
#[derive(Debug, Clone)]
struct TimeEmbedding {
    linear_1: Linear,
    linear_2: Linear,
    mixer: Option<Linear>,
}

impl TimeEmbedding {
    fn load(w: &Weights, dim: usize) -> Result<Self> {
        let mixer = w.pp("time_embed_mixer");
        Ok(Self {
            linear_1: Linear::load(&w.pp("time_mlp.linear_1"), INPUTS, dim)?,
            linear_2: Linear::load(&w.pp("time_mlp.linear_2"), dim, dim)?,
            mixer: match mixer.contains("weight") {
                true => Some(Linear::load_no_bias(&mixer, 2 * dim, dim)?),
                false => None,
            },
        })
    }

    fn one(&self, t: f32, device: &Device) -> Result<Tensor> {
        let half = INPUTS / 2;
        let step = -(10000f32.ln() / (half - 1) as f32);
        let angle = |j: usize| 1000.0 * t * (j as f32 * step).exp();
        let mut values: Vec<f32> = (0..half).map(|j| angle(j).sin()).collect();
        values.extend((0..half).map(|j| angle(j).cos()));
        let sinusoid = Tensor::from_vec(values, (1, 1, INPUTS), device)?;
        self.linear_2.forward(&self.linear_1.forward_act(&sinusoid, Activation::Silu)?)
    }

    fn forward(&self, t: f32, r: f32, device: &Device) -> Result<Tensor> {
        let from = self.one(t, device)?;
        match &self.mixer {
            Some(mixer) => mixer.forward(&Tensor::cat(&[from, self.one(r, device)?], 2)?),
            None => Ok(from),
        }
    }
}

/// A resnet and the transformer blocks behind it.
#[derive(Debug, Clone)]
struct Stage {
    resnet: Resnet,
    transformers: Vec<TransformerBlock>,
}

impl Stage {
    fn load(w: &Weights, inputs: usize, config: &EstimatorConfig) -> Result<Self> {
        let transformer = |i: usize| TransformerBlock::load(&w.pp(1).pp(i), config);
        Ok(Self {
            resnet: Resnet::load(&w.pp(0), inputs, config.channels)?,
            transformers: (0..config.transformer_blocks).map(transformer).collect::<Result<_>>()?,
        })
    }

    fn forward(&self, xs: &Tensor, time: &Tensor, place: &Place, carry: &mut Carry) -> Result<Tensor> {
        let mut xs = self.resnet.forward(xs, time, carry)?;
        for block in &self.transformers {
            xs = block.forward(&xs, place, carry)?;
        }
        Ok(xs)
    }
}

/// `mish(norm(conv(x)))`.
#[derive(Debug, Clone)]
struct CausalBlock {
    conv: Conv1d,
    norm: LayerNorm,
}

impl CausalBlock {
    fn load(w: &Weights, inputs: usize, outputs: usize) -> Result<Self> {
        Ok(Self {
            conv: Conv1d::load(&w.pp("block.0"), inputs, outputs, ConvConfig::causal(3))?,
            norm: LayerNorm::load(&w.pp("block.2"), outputs, 1e-5)?,
        })
    }

    /// Plus `shift` if given, one value for each channel.
    fn forward(&self, xs: &Tensor, shift: Option<&Tensor>, carry: &mut Carry) -> Result<Tensor> {
        self.norm.forward_mish(&carry.conv(&self.conv, xs)?, shift)
    }
}

/// `block2(block1(x) + W mish(time)) + res_conv(x)`.
#[derive(Debug, Clone)]
struct Resnet {
    block1: CausalBlock,
    mlp: Linear,
    block2: CausalBlock,
    res_conv: Conv1d,
}

impl Resnet {
    fn load(w: &Weights, inputs: usize, outputs: usize) -> Result<Self> {
        Ok(Self {
            block1: CausalBlock::load(&w.pp("block1"), inputs, outputs)?,
            mlp: Linear::load(&w.pp("mlp.1"), outputs * TIME_RATIO, outputs)?,
            block2: CausalBlock::load(&w.pp("block2"), outputs, outputs)?,
            res_conv: Conv1d::load(&w.pp("res_conv"), inputs, outputs, ConvConfig::causal(1))?,
        })
    }

    /// `time` has been through mish already.
    fn forward(&self, xs: &Tensor, time: &Tensor, carry: &mut Carry) -> Result<Tensor> {
        let hidden = self.block1.forward(xs, Some(&self.mlp.forward(time)?), carry)?;
        self.res_conv.forward_add(xs, &self.block2.forward(&hidden, None, carry)?)
    }
}

/// `x += attention(norm1(x)); x += W₂ gelu(W₁ norm3(x))`.
#[derive(Debug, Clone)]
struct TransformerBlock {
    norm1: LayerNorm,
    qkv: Linear,
    to_out: Linear,
    norm3: LayerNorm,
    ff_in: Linear,
    ff_out: Linear,
    heads: usize,
    head_dim: usize,
    /// What keys and values are multiplied at.
    attention: Precision,
}

impl TransformerBlock {
    fn load(w: &Weights, config: &EstimatorConfig) -> Result<Self> {
        let &EstimatorConfig { channels: c, heads, head_dim, .. } = config;
        let attn = w.pp("attn1");
        let project = |name: &str| Linear::load_no_bias(&attn.pp(name), c, heads * head_dim);
        Ok(Self {
            norm1: LayerNorm::load(&w.pp("norm1"), c, 1e-5)?,
            qkv: Linear::fuse(&[&project("to_q")?, &project("to_k")?, &project("to_v")?])?,
            to_out: Linear::load(&attn.pp("to_out.0"), heads * head_dim, c)?,
            norm3: LayerNorm::load(&w.pp("norm3"), c, 1e-5)?,
            ff_in: Linear::load(&w.pp("ff.net.0.proj"), c, 4 * c)?,
            ff_out: Linear::load(&w.pp("ff.net.2"), 4 * c, c)?,
            heads,
            head_dim,
            attention: w.keep().computed(),
        })
    }

    fn forward(&self, xs: &Tensor, place: &Place, carry: &mut Carry) -> Result<Tensor> {
        let (b, t, _) = xs.dims3()?;
        let qkv = self.qkv.forward(&self.norm1.forward(xs)?)?.reshape((b, t, 3, self.heads, self.head_dim))?;
        let part = |i: usize| qkv.narrow(2, i, 1)?.squeeze(2);
        let scale = 1.0 / (self.head_dim as f64).sqrt();
        let seen = carry.attend(self.attention, (&part(0)?, part(1)?, part(2)?), scale, place)?;
        let xs = self.to_out.forward_add(&seen, xs)?;
        let hidden = self.ff_in.forward_act(&self.norm3.forward(&xs)?, Activation::Gelu)?;
        self.ff_out.forward_add(&hidden, &xs)
    }
}

/// The estimator's input: `x: (B, T, 80)`, `mu` and `cond` likewise, `speaker: (B, 80)` -> `(B, T, 320)`.
pub(super) fn stack_inputs(x: &Tensor, mu: &Tensor, speaker: &Tensor, cond: &Tensor) -> Result<Tensor> {
    let (b, t, channels) = x.dims3()?;
    if channels != MEL_CHANNELS {
        return Err(Error::internal(format!("the flow was given {channels} mel channels")));
    }
    let speaker = speaker.unsqueeze(1)?.broadcast_as((b, t, channels))?;
    Ok(Tensor::cat(&[x, mu, &speaker, cond], D::Minus1)?)
}
