//! The GPT-2 backbone: pre-norm layers with biases, `x += c_proj(attention(c_attn LN x))`,
//! `x += c_proj(gelu_tanh(c_fc LN x))`, and learned absolute positions `wpe` over the whole sequence.
//!
//! Source: `transformers` `modeling_gpt2`; fields follow the checkpoint.

use candle_core::Tensor;

use super::config::T3Config;
use crate::error::Result;
use crate::nn::{Activation, Embedding, KvCache, LayerNorm, Linear};
use crate::weights::Weights;

const LN_EPS: f32 = 1e-5;

/// Positions, layers and the final norm.
#[derive(Debug)]
pub(super) struct Gpt2 {
    wpe: Embedding,
    pub(super) h: Vec<Layer>,
    ln_f: LayerNorm,
}

impl Gpt2 {
    pub(super) fn load(w: &Weights, config: &T3Config) -> Result<Self> {
        let h = w.pp("h");
        Ok(Self {
            wpe: Embedding::load(&w.pp("wpe"), config.positions, config.dim)?,
            h: (0..config.layers).map(|i| Layer::load(&h.pp(i), config)).collect::<Result<_>>()?,
            ln_f: LayerNorm::load(&w.pp("ln_f"), config.dim, LN_EPS)?,
        })
    }

    /// Most positions of a sequence.
    pub(super) fn positions(&self) -> usize {
        self.wpe.entries()
    }

    /// The learned positions from `start` on, `(1, len, dim)`.
    pub(super) fn positions_from(&self, start: usize, len: usize) -> Result<Tensor> {
        self.wpe.rows(start, len)
    }

    /// `xs: (B, T, dim) -> (B, T, dim)`, appended to what `caches` hold.
    pub(super) fn forward(&self, xs: &Tensor, caches: &mut [KvCache]) -> Result<Tensor> {
        let start = caches.first().map_or(0, KvCache::len);
        let mut xs = xs.broadcast_add(&self.positions_from(start, xs.dims3()?.1)?)?;
        for (layer, cache) in self.h.iter().zip(caches) {
            xs = layer.forward(&xs, cache)?;
        }
        Ok(xs)
    }

    /// The final norm, `(.., dim) -> (.., dim)`.
    pub(super) fn norm(&self, xs: &Tensor) -> Result<Tensor> {
        self.ln_f.forward(xs)
    }
}

#[derive(Debug)]
pub(super) struct Layer {
    ln_1: LayerNorm,
    attn: Attention,
    ln_2: LayerNorm,
    mlp: Mlp,
}

impl Layer {
    fn load(w: &Weights, config: &T3Config) -> Result<Self> {
        Ok(Self {
            ln_1: LayerNorm::load(&w.pp("ln_1"), config.dim, LN_EPS)?,
            attn: Attention::load(&w.pp("attn"), config)?,
            ln_2: LayerNorm::load(&w.pp("ln_2"), config.dim, LN_EPS)?,
            mlp: Mlp::load(&w.pp("mlp"), config)?,
        })
    }

    /// `xs: (B, T, dim) -> (B, T, dim)`.
    fn forward(&self, xs: &Tensor, cache: &mut KvCache) -> Result<Tensor> {
        let context = self.attn.context(&self.ln_1.forward(xs)?, cache)?;
        let xs = self.attn.c_proj.forward_add(&context, xs)?;
        let inner = self.mlp.inner(&self.ln_2.forward(&xs)?)?;
        self.mlp.c_proj.forward_add(&inner, &xs)
    }
}

#[derive(Debug)]
struct Attention {
    c_attn: Linear,
    c_proj: Linear,
    heads: usize,
    head_dim: usize,
}

impl Attention {
    fn load(w: &Weights, config: &T3Config) -> Result<Self> {
        Ok(Self {
            c_attn: Linear::load_transposed(&w.pp("c_attn"), config.dim, 3 * config.dim)?,
            c_proj: Linear::load_transposed(&w.pp("c_proj"), config.dim, config.dim)?,
            heads: config.heads,
            head_dim: config.head_dim(),
        })
    }

    /// What the heads gather, before it is projected.
    fn context(&self, xs: &Tensor, cache: &mut KvCache) -> Result<Tensor> {
        let (b, t, _) = xs.dims3()?;
        let h = self.heads;
        let qkv = self.c_attn.forward(xs)?.reshape((b, t, 3 * h, self.head_dim))?;
        let part = |i: usize| qkv.narrow(2, i * h, h);
        let scale = 1.0 / (self.head_dim as f64).sqrt();
        cache.append_and_attend(&part(0)?, &part(1)?, &part(2)?, scale)
    }
}

#[derive(Debug)]
struct Mlp {
    c_fc: Linear,
    c_proj: Linear,
}

impl Mlp {
    fn load(w: &Weights, config: &T3Config) -> Result<Self> {
        Ok(Self {
            c_fc: Linear::load_transposed(&w.pp("c_fc"), config.dim, config.mlp_dim)?,
            c_proj: Linear::load_transposed(&w.pp("c_proj"), config.mlp_dim, config.dim)?,
        })
    }

    /// The inner activations.
    fn inner(&self, xs: &Tensor) -> Result<Tensor> {
        self.c_fc.forward_act(xs, Activation::GeluTanh)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::t3::tests::{Stage, assert_close, load};

    #[test]
    fn layers_and_their_parts_match_the_reference() {
        for variant in ["turbo", "nano"] {
            let (stage, t3) = (Stage::open(&format!("t3_{variant}")), load(variant));
            let gpt2 = t3.backbone.gpt2().unwrap();
            let mut state = t3.new_state(false, 64).unwrap();
            let embeds = stage.get("prefill_embeds");
            let positions = gpt2.wpe.rows(0, embeds.dims()[1]).unwrap();
            let mut xs = embeds.broadcast_add(&positions).unwrap();
            let first = &gpt2.h[0];
            let context = first.attn.context(&first.ln_1.forward(&xs).unwrap(), &mut state.caches[0]).unwrap();
            let attn = first.attn.c_proj.forward(&context).unwrap();
            assert_close(&attn, &stage.get("layer0_attn"), 1e-5);
            let after = (&xs + attn).unwrap();
            let inner = first.mlp.inner(&first.ln_2.forward(&after).unwrap()).unwrap();
            assert_close(&first.mlp.c_proj.forward(&inner).unwrap(), &stage.get("layer0_mlp"), 1e-5);
            state.clear();
            for (i, (layer, cache)) in gpt2.h.iter().zip(&mut state.caches).enumerate() {
                xs = layer.forward(&xs, cache).unwrap();
                assert_close(&xs, &stage.get(&format!("layer{i}")), 1e-5);
            }
        }
    }
}
