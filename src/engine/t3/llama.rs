//! The Llama backbone: pre-norm layers, `x += o(attention(rope(q), rope(k), v))`, `x += down(silu(gate x) · up x)`,
//! no biases, RMS norms, rotary positions with the frequency scaling of Llama 3.
//!
//! Source: `transformers` `modeling_llama` and `_compute_llama3_parameters`; fields follow the checkpoint.

use std::f64::consts::PI;

use candle_core::Tensor;

use super::alignment::AttentionProbe;
use super::config::T3Config;
use crate::error::Result;
use crate::nn::{KvCache, Linear, RmsNorm, Rope, silu_gate};
use crate::weights::Weights;

const RMS_EPS: f32 = 1e-5;

/// The layers and the final norm.
#[derive(Debug)]
pub(super) struct Llama {
    pub(super) layers: Vec<Layer>,
    norm: RmsNorm,
    pub(super) rope: Rope,
    rope_positions: usize,
}

impl Llama {
    pub(super) fn load(w: &Weights, config: &T3Config) -> Result<Self> {
        // Voice, text, both BOS and every token that the speech table has a position for.
        let rope_positions = config.max_cond_len() + config.text_positions() + config.speech_positions() + 1;
        let layers = w.pp("layers");
        Ok(Self {
            layers: (0..config.layers).map(|i| Layer::load(&layers.pp(i), config)).collect::<Result<_>>()?,
            norm: RmsNorm::load(&w.pp("norm"), config.dim, RMS_EPS)?,
            rope: Rope::new(&inv_freq(config.head_dim()), rope_positions, w.device())?,
            rope_positions,
        })
    }

    /// Most positions of a sequence.
    pub(super) fn positions(&self) -> usize {
        self.rope_positions
    }

    /// `xs: (B, T, dim) -> (B, T, dim)`, appended to what `caches` hold.
    pub(super) fn forward(
        &self,
        xs: &Tensor,
        caches: &mut [KvCache],
        probe: &mut Option<AttentionProbe>,
    ) -> Result<Tensor> {
        let mut xs = xs.clone();
        for (i, (layer, cache)) in self.layers.iter().zip(caches).enumerate() {
            let probe = probe.as_mut().filter(|p| p.wants(i)).map(|p| (i, p));
            xs = layer.forward(&xs, &self.rope, cache, probe)?;
        }
        Ok(xs)
    }

    /// The final norm, `(.., dim) -> (.., dim)`.
    pub(super) fn norm(&self, xs: &Tensor) -> Result<Tensor> {
        self.norm.forward(xs)
    }
}

#[derive(Debug)]
pub(super) struct Layer {
    input_layernorm: RmsNorm,
    pub(super) self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    pub(super) mlp: Mlp,
}

impl Layer {
    fn load(w: &Weights, config: &T3Config) -> Result<Self> {
        Ok(Self {
            input_layernorm: RmsNorm::load(&w.pp("input_layernorm"), config.dim, RMS_EPS)?,
            self_attn: Attention::load(&w.pp("self_attn"), config)?,
            post_attention_layernorm: RmsNorm::load(&w.pp("post_attention_layernorm"), config.dim, RMS_EPS)?,
            mlp: Mlp::load(&w.pp("mlp"), config)?,
        })
    }

    /// `xs: (B, T, dim) -> (B, T, dim)`. `probe` comes with the number of this layer.
    fn forward(
        &self,
        xs: &Tensor,
        rope: &Rope,
        cache: &mut KvCache,
        probe: Option<(usize, &mut AttentionProbe)>,
    ) -> Result<Tensor> {
        let context = self.self_attn.context(&self.input_layernorm.forward(xs)?, rope, cache, probe)?;
        let xs = self.self_attn.o_proj.forward_add(&context, xs)?;
        let gated = self.mlp.gated(&self.post_attention_layernorm.forward(&xs)?)?;
        self.mlp.down_proj.forward_add(&gated, &xs)
    }
}

#[derive(Debug)]
pub(super) struct Attention {
    qkv_proj: Linear,
    o_proj: Linear,
    heads: usize,
    head_dim: usize,
}

impl Attention {
    fn load(w: &Weights, config: &T3Config) -> Result<Self> {
        let part = |name: &str| Linear::load_no_bias(&w.pp(name), config.dim, config.dim);
        Ok(Self {
            qkv_proj: Linear::fuse(&[&part("q_proj")?, &part("k_proj")?, &part("v_proj")?])?,
            o_proj: part("o_proj")?,
            heads: config.heads,
            head_dim: config.head_dim(),
        })
    }

    /// What the heads gather, before it is projected.
    fn context(
        &self,
        xs: &Tensor,
        rope: &Rope,
        cache: &mut KvCache,
        probe: Option<(usize, &mut AttentionProbe)>,
    ) -> Result<Tensor> {
        let (b, t, _) = xs.dims3()?;
        let h = self.heads;
        let qkv = self.qkv_proj.forward(xs)?.reshape((b, t, 3 * h, self.head_dim))?;
        // Queries and keys stand side by side and turn alike.
        let qk = rope.apply(&qkv.narrow(2, 0, 2 * h)?, cache.len())?;
        let (q, k) = (qk.narrow(2, 0, h)?, qk.narrow(2, h, h)?);
        let v = qkv.narrow(2, 2 * h, h)?;
        let scale = 1.0 / (self.head_dim as f64).sqrt();
        let context = cache.append_and_attend(&q, &k, &v, scale)?;
        if let Some((layer, probe)) = probe {
            probe.observe(layer, &q, cache, scale)?;
        }
        Ok(context)
    }
}

#[derive(Debug)]
pub(super) struct Mlp {
    gate_up_proj: Linear,
    down_proj: Linear,
}

impl Mlp {
    fn load(w: &Weights, config: &T3Config) -> Result<Self> {
        let part = |name: &str| Linear::load_no_bias(&w.pp(name), config.dim, config.mlp_dim);
        Ok(Self {
            gate_up_proj: Linear::fuse(&[&part("gate_proj")?, &part("up_proj")?])?,
            down_proj: Linear::load_no_bias(&w.pp("down_proj"), config.mlp_dim, config.dim)?,
        })
    }

    /// The inner activations.
    fn gated(&self, xs: &Tensor) -> Result<Tensor> {
        silu_gate(&self.gate_up_proj.forward(xs)?)
    }
}

/// Inverse frequencies with the scaling of Llama 3: wavelengths over 8192 are slowed down eightfold, those under 2048
/// kept, those between blended. Computed in f32 as the reference does.
pub(super) fn inv_freq(head_dim: usize) -> Vec<f32> {
    const THETA: f32 = 500_000.0;
    const FACTOR: f32 = 8.0;
    const ORIGINAL_CONTEXT: f32 = 8192.0;
    const LOW_FREQ_FACTOR: f32 = 1.0;
    const HIGH_FREQ_FACTOR: f32 = 4.0;
    (0..head_dim / 2)
        .map(|k| {
            let base = 1.0 / THETA.powf(2.0 * k as f32 / head_dim as f32);
            let wavelength = (2.0 * PI) as f32 / base;
            if wavelength > ORIGINAL_CONTEXT / LOW_FREQ_FACTOR {
                base / FACTOR
            } else if wavelength < ORIGINAL_CONTEXT / HIGH_FREQ_FACTOR {
                base
            } else {
                let smooth = (ORIGINAL_CONTEXT / wavelength - LOW_FREQ_FACTOR) / (HIGH_FREQ_FACTOR - LOW_FREQ_FACTOR);
                (1.0 - smooth) * base / FACTOR + smooth * base
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::t3::tests::{Stage, assert_close, load};

    #[test]
    fn frequencies_are_those_of_llama_3() {
        let found = inv_freq(64);
        let expected = [1.0, 0.663_601_3, 0.440_366_6, 0.292_227_8];
        let middle = [0.003_211_446, 0.001_371_894, 5.248_46e-4, 1.785_078e-4, 7.784_655e-5];
        let near = |a: f32, b: f32| (a - b).abs() < 1e-6 * b;
        assert!(expected.iter().zip(&found).all(|(e, f)| near(*f, *e)), "{found:?}");
        assert!(middle.iter().zip(&found[14..]).all(|(e, f)| near(*f, *e)), "{found:?}");
        assert!(near(found[31], 3.767_323e-7), "{}", found[31]);
    }

    #[test]
    fn layers_and_their_parts_match_the_reference() {
        for variant in ["english", "multilingual"] {
            let (stage, t3) = (Stage::open(&format!("t3_{variant}")), load(variant));
            let llama = t3.backbone.llama().unwrap();
            assert_close(
                &Tensor::new(inv_freq(t3.config.head_dim()), t3.device()).unwrap(),
                &stage.get("rope_inv_freq"),
                1e-6,
            );
            let mut state = t3.new_state(true, 64).unwrap();
            let embeds = stage.get("prefill_embeds");
            let first = &llama.layers[0];
            let normed = first.input_layernorm.forward(&embeds).unwrap();
            let context = first.self_attn.context(&normed, &llama.rope, &mut state.caches[0], None).unwrap();
            let attn = first.self_attn.o_proj.forward(&context).unwrap();
            assert_close(&attn, &stage.get("layer0_attn"), 1e-5);
            let after = (&embeds + attn).unwrap();
            let gated = first.mlp.gated(&first.post_attention_layernorm.forward(&after).unwrap()).unwrap();
            let mlp = first.mlp.down_proj.forward(&gated).unwrap();
            assert_close(&mlp, &stage.get("layer0_mlp"), 1e-5);
            state.clear();
            let mut xs = embeds;
            for (i, (layer, cache)) in llama.layers.iter().zip(&mut state.caches).enumerate() {
                xs = layer.forward(&xs, &llama.rope, cache, None).unwrap();
                assert_close(&xs, &stage.get(&format!("layer{i}")), 1e-5);
            }
        }
    }
}
