//! Perceiver resampler: makes a fixed number of vectors of a prompt of any length.
//!
//! One attention block with learned queries is applied twice with the same weights: `a = B(queries, prompt)`,
//! `out = B(a, a)`, where `B(x, y) = x + proj_out(attention(to_q(LN x), to_k(LN y), to_v(LN y)))` and the residual is
//! not normalised. After Jaegle et al., "Perceiver", 2021; fields follow the checkpoint.

use candle_core::Tensor;

use super::config::T3Config;
use crate::error::Result;
use crate::nn::{LayerNorm, Linear, Mask, attend};
use crate::weights::Weights;

/// The resampler.
#[derive(Debug)]
pub(super) struct Perceiver {
    pre_attention_query: Tensor,
    attn: AttentionBlock,
}

impl Perceiver {
    pub(super) fn load(w: &Weights, config: &T3Config) -> Result<Self> {
        Ok(Self {
            pre_attention_query: w.get("pre_attention_query", (1, config.queries, config.dim))?,
            attn: AttentionBlock::load(&w.pp("attn"), config.dim, config.perceiver_heads)?,
        })
    }

    /// `prompt: (1, N, dim) -> (1, queries, dim)`.
    pub(super) fn forward(&self, prompt: &Tensor) -> Result<Tensor> {
        let first = self.attn.forward(&self.pre_attention_query, prompt)?;
        self.attn.forward(&first, &first)
    }
}

#[derive(Debug)]
struct AttentionBlock {
    norm: LayerNorm,
    to_q: Linear,
    to_kv: Linear,
    proj_out: Linear,
    heads: usize,
    head_dim: usize,
}

impl AttentionBlock {
    fn load(w: &Weights, dim: usize, heads: usize) -> Result<Self> {
        let linear = |name: &str| Linear::load(&w.pp(name), dim, dim);
        Ok(Self {
            norm: LayerNorm::load(&w.pp("norm"), dim, 1e-5)?,
            to_q: linear("to_q")?,
            to_kv: Linear::fuse(&[&linear("to_k")?, &linear("to_v")?])?,
            proj_out: linear("proj_out")?,
            heads,
            head_dim: dim / heads,
        })
    }

    /// `x: (1, Tq, dim)`, `y: (1, Tk, dim) -> (1, Tq, dim)`.
    fn forward(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let (_, tq, _) = x.dims3()?;
        let (_, tk, _) = y.dims3()?;
        let q = self.to_q.forward(&self.norm.forward(x)?)?.reshape((1, tq, self.heads, self.head_dim))?;
        let kv = self.to_kv.forward(&self.norm.forward(y)?)?.reshape((1, tk, 2 * self.heads, self.head_dim))?;
        let k = kv.narrow(2, 0, self.heads)?;
        let v = kv.narrow(2, self.heads, self.heads)?;
        let context = attend(&q, &k, &v, 1.0 / (self.head_dim as f64).sqrt(), &Mask::Full, None)?;
        self.proj_out.forward_add(&context, x)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::t3::tests::{Stage, assert_close, load};

    #[test]
    fn both_passes_match_the_reference() {
        for variant in ["english", "multilingual"] {
            let (stage, t3) = (Stage::open(&format!("t3_{variant}")), load(variant));
            let perceiver = t3.cond_enc.perceiver().unwrap();
            let prompt = stage.get("cond_prompt_emb");
            let first = perceiver.attn.forward(&perceiver.pre_attention_query, &prompt).unwrap();
            assert_close(&first, &stage.get("perceiver_pass1"), 1e-5);
            assert_close(&perceiver.forward(&prompt).unwrap(), &stage.get("perceiver_out"), 1e-5);
        }
    }
}
