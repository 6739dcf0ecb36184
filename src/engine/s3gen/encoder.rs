//! The token encoder: a conformer that looks three tokens ahead and doubles the rate to that of the mel.
//!
//! `embed -> pre-lookahead -> conformer layers -> nearest upsampling and convolution -> embed -> conformer layers ->
//! norm`, after the `UpsampleConformerEncoder` of CosyVoice 2 (Du et al., 2024). Its attention is that of
//! Transformer-XL (Dai et al., 2019):
//!
//! `score[i, j] = ((q_i + u) · k_j + (q_i + v) · p_(i - j)) / sqrt(d)`, with `p` a projected sinusoid of the distance.

use candle_core::{Device, Tensor};

use super::carry::{Carry, Place};
use super::config::{FRAMES_PER_TOKEN, FlowConfig, LOOKAHEAD_TOKENS};
use crate::error::Result;
use crate::nn::{Activation, Conv1d, ConvConfig, LayerNorm, Linear, attend_relative};
use crate::weights::Weights;

const LEAKY: Activation = Activation::LeakyRelu(0.01);

/// Embedded tokens to a sequence at twice their rate.
#[derive(Debug, Clone)]
pub(super) struct UpsampleConformerEncoder {
    embed: InputLayer,
    pre_lookahead: PreLookahead,
    encoders: Vec<ConformerLayer>,
    up_conv: Conv1d,
    up_embed: InputLayer,
    up_encoders: Vec<ConformerLayer>,
    after_norm: LayerNorm,
    dim: usize,
}

impl UpsampleConformerEncoder {
    /// Loads the tensors below `w`.
    pub(super) fn load(w: &Weights, config: &FlowConfig) -> Result<Self> {
        let dim = config.dim;
        let layers = |name: &str, count: usize| -> Result<Vec<ConformerLayer>> {
            (0..count).map(|i| ConformerLayer::load(&w.pp(name).pp(i), config)).collect()
        };
        Ok(Self {
            embed: InputLayer::load(&w.pp("embed.out"), dim)?,
            pre_lookahead: PreLookahead::load(&w.pp("pre_lookahead_layer"), dim)?,
            encoders: layers("encoders", config.blocks)?,
            up_conv: Conv1d::load(&w.pp("up_layer.conv"), dim, dim, ConvConfig::causal(5))?,
            up_embed: InputLayer::load(&w.pp("up_embed.out"), dim)?,
            up_encoders: layers("up_encoders", config.up_blocks)?,
            after_norm: LayerNorm::load(&w.pp("after_norm"), dim, 1e-5)?,
            dim,
        })
    }

    /// `xs: (1, n, dim) -> (1, 2n, dim)`; `carry` knows what came before.
    ///
    /// The last `provisional` tokens are there to be looked at: they come again in the next pass.
    pub(super) fn forward(&self, xs: &Tensor, provisional: usize, carry: &mut Carry) -> Result<Tensor> {
        carry.begin(xs.dims3()?.1, provisional);
        let xs = self.embed.forward(xs)?;
        let mut xs = self.pre_lookahead.forward(&xs, carry)?;
        let place = carry.place();
        let mut distances = Distances::default();
        for layer in &self.encoders {
            xs = layer.forward(&xs, &place, &mut distances, carry)?;
        }
        carry.upsample(FRAMES_PER_TOKEN);
        let xs = carry.conv(&self.up_conv, &upsample(&xs)?)?;
        let mut xs = self.up_embed.forward(&xs)?;
        let place = carry.place();
        let mut distances = Distances::default();
        for layer in &self.up_encoders {
            xs = layer.forward(&xs, &place, &mut distances, carry)?;
        }
        self.after_norm.forward(&xs)
    }

    /// Width of the output.
    pub(super) fn dim(&self) -> usize {
        self.dim
    }
}

/// Every row twice: `(B, T, C) -> (B, 2T, C)`.
fn upsample(xs: &Tensor) -> Result<Tensor> {
    let (b, t, c) = xs.dims3()?;
    let twice = xs.unsqueeze(2)?.broadcast_as((b, t, FRAMES_PER_TOKEN, c))?;
    Ok(twice.reshape((b, FRAMES_PER_TOKEN * t, c))?)
}

/// `LayerNorm(x W + b) · sqrt(dim)`.
#[derive(Debug, Clone)]
struct InputLayer {
    linear: Linear,
    norm: LayerNorm,
    scale: f64,
}

impl InputLayer {
    fn load(w: &Weights, dim: usize) -> Result<Self> {
        Ok(Self {
            linear: Linear::load(&w.pp(0), dim, dim)?,
            norm: LayerNorm::load(&w.pp(1), dim, 1e-5)?,
            scale: (dim as f64).sqrt(),
        })
    }

    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        Ok((self.norm.forward(&self.linear.forward(xs)?)? * self.scale)?)
    }
}

/// Two convolutions that let a token hear of the three behind it.
#[derive(Debug, Clone)]
struct PreLookahead {
    conv1: Conv1d,
    conv2: Conv1d,
}

impl PreLookahead {
    fn load(w: &Weights, dim: usize) -> Result<Self> {
        let ahead = ConvConfig { left: 0, right: LOOKAHEAD_TOKENS, ..ConvConfig::causal(LOOKAHEAD_TOKENS + 1) };
        Ok(Self {
            conv1: Conv1d::load(&w.pp("conv1"), dim, dim, ahead)?,
            conv2: Conv1d::load(&w.pp("conv2"), dim, dim, ConvConfig::causal(3))?,
        })
    }

    /// `(1, n, C) -> (1, n, C)`; behind the last token, and behind a prompt that is a chunk, there are zeros.
    fn forward(&self, xs: &Tensor, carry: &mut Carry) -> Result<Tensor> {
        let (place, rows) = (carry.place(), xs.dims3()?.1);
        let prompt = place.chunks.map_or(0, |chunks| chunks.prompt).saturating_sub(place.start);
        let ahead = if 0 < prompt && prompt < rows {
            let of_prompt = self.conv1.forward_act(&xs.narrow(1, 0, prompt)?, LEAKY)?;
            let of_rest = self.conv1.forward_act(&xs.narrow(1, prompt, rows - prompt)?, LEAKY)?;
            Tensor::cat(&[of_prompt, of_rest], 1)?
        } else {
            self.conv1.forward_act(xs, LEAKY)?
        };
        carry.conv_add(&self.conv2, &ahead, xs)
    }
}

/// `x += attention(norm(x)); x += w_2 silu(w_1 norm(x))`.
#[derive(Debug, Clone)]
struct ConformerLayer {
    norm_mha: LayerNorm,
    self_attn: RelativeAttention,
    norm_ff: LayerNorm,
    w_1: Linear,
    w_2: Linear,
}

impl ConformerLayer {
    fn load(w: &Weights, config: &FlowConfig) -> Result<Self> {
        let (dim, inner) = (config.dim, config.feed_forward);
        Ok(Self {
            norm_mha: LayerNorm::load(&w.pp("norm_mha"), dim, 1e-12)?,
            self_attn: RelativeAttention::load(&w.pp("self_attn"), dim, config.heads)?,
            norm_ff: LayerNorm::load(&w.pp("norm_ff"), dim, 1e-12)?,
            w_1: Linear::load(&w.pp("feed_forward.w_1"), dim, inner)?,
            w_2: Linear::load(&w.pp("feed_forward.w_2"), inner, dim)?,
        })
    }

    fn forward(&self, xs: &Tensor, place: &Place, distances: &mut Distances, carry: &mut Carry) -> Result<Tensor> {
        let seen = self.self_attn.forward(&self.norm_mha.forward(xs)?, place, distances, carry)?;
        let xs = self.self_attn.linear_out.forward_add(&seen, xs)?;
        let hidden = self.w_1.forward_act(&self.norm_ff.forward(&xs)?, Activation::Silu)?;
        self.w_2.forward_add(&hidden, &xs)
    }
}

/// Multi-head attention with a relative-position term.
#[derive(Debug, Clone)]
struct RelativeAttention {
    qkv: Linear,
    linear_pos: Linear,
    linear_out: Linear,
    /// `(H, D)`.
    pos_bias_u: Tensor,
    /// `(H, D)`.
    pos_bias_v: Tensor,
    heads: usize,
    head_dim: usize,
}

impl RelativeAttention {
    fn load(w: &Weights, dim: usize, heads: usize) -> Result<Self> {
        let head_dim = dim / heads;
        let linear = |name: &str| Linear::load(&w.pp(name), dim, dim);
        Ok(Self {
            qkv: Linear::fuse(&[&linear("linear_q")?, &linear("linear_k")?, &linear("linear_v")?])?,
            linear_pos: Linear::load_no_bias(&w.pp("linear_pos"), dim, dim)?,
            linear_out: linear("linear_out")?,
            pos_bias_u: w.get("pos_bias_u", (heads, head_dim))?,
            pos_bias_v: w.get("pos_bias_v", (heads, head_dim))?,
            heads,
            head_dim,
        })
    }

    /// What the heads gather, before it is projected: `xs: (1, T, C) -> (1, T, C)`.
    fn forward(&self, xs: &Tensor, place: &Place, distances: &mut Distances, carry: &mut Carry) -> Result<Tensor> {
        let (b, t, dim) = xs.dims3()?;
        let qkv = self.qkv.forward(xs)?.reshape((b, t, 3, self.heads, self.head_dim))?;
        let part = |i: usize| qkv.narrow(2, i, 1)?.squeeze(2);
        let q = part(0)?;
        let (k, v) = carry.keys(part(1)?, part(2)?, place)?;
        let keys = k.dims4()?.1;
        let scale = 1.0 / (self.head_dim as f64).sqrt();
        // The last key stands beside the last query, so distances run from keys - 1 down to 1 - queries.
        let table = distances.table(keys as isize - 1, t + keys - 1, dim, xs.device())?;
        let p = self.linear_pos.forward(&table)?.reshape((1, t + keys - 1, self.heads, self.head_dim))?;
        let (q_u, q_v) = (q.broadcast_add(&self.pos_bias_u)?, q.broadcast_add(&self.pos_bias_v)?);
        attend_relative((&q_u, &q_v), &k, &v, &p, scale, &place.mask(t, keys))
    }
}

/// Sinusoids of distances, made for the first layer of a pass and the same for all others.
#[derive(Debug, Default)]
struct Distances {
    table: Option<(isize, Tensor)>,
}

impl Distances {
    /// Those of `furthest, furthest - 1, ..`: `(1, rows, dim)`, sine and cosine interleaved.
    fn table(&mut self, furthest: isize, rows: usize, dim: usize, device: &Device) -> Result<Tensor> {
        match &self.table {
            Some((held, table)) if *held == furthest && table.dims() == [1, rows, dim] => Ok(table.clone()),
            _ => {
                let table = distance_table(furthest, rows, dim, device)?;
                Ok(self.table.insert((furthest, table)).1.clone())
            }
        }
    }
}

fn distance_table(furthest: isize, rows: usize, dim: usize, device: &Device) -> Result<Tensor> {
    let step = -(10000f32.ln() / dim as f32);
    let frequencies: Vec<f32> = (0..dim).step_by(2).map(|j| (j as f32 * step).exp()).collect();
    let mut values = Vec::with_capacity(rows * dim);
    for row in 0..rows {
        let distance = (furthest - row as isize) as f32;
        for frequency in &frequencies {
            let (sin, cos) = (distance * frequency).sin_cos();
            values.extend([sin, cos]);
        }
    }
    Ok(Tensor::from_vec(values, (1, rows, dim), device)?)
}
