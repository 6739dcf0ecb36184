//! T3 on a graphics card: the same sequence and the same choices, several tokens at a time.
//!
//! What depends on the voice and the text alone (Perceiver, embeddings) is computed on the CPU as ever; the layers, the
//! head and the sampler run on the card. The CPU keeps its own weights: the alignment guard needs a look between two tokens
//! and runs there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use candle_core::Tensor;

use super::config::Backbone;
use super::{HeldVoice, START_SPEECH, T3, T3Conditioning, T3State, Transformer, llama};
use crate::cuda::{Card, CudaState, CudaT3, LayerWeights, Net, Number, OuterWeights, Shape};
use crate::error::{Error, Result};
use crate::meter::{CardLimits, CardWork};
use crate::protocol::Precision;
use crate::sampling::SamplingOptions;
use crate::weights::Weights;

/// Positions are allocated in such steps.
const ROUND: usize = 256;

/// T3's layers on a card.
#[derive(Debug)]
pub(super) struct OnCard {
    net: CudaT3,
    /// Set when the card failed; everything runs on the CPU from then on.
    lost: AtomicBool,
}

impl OnCard {
    /// Whether it has not failed.
    pub(super) fn is_usable(&self) -> bool {
        !self.lost.load(Ordering::Relaxed)
    }
}

impl OnCard {
    /// What prompts and tokens had the card do so far.
    pub(super) fn work(&self) -> (CardWork, CardWork) {
        self.net.work()
    }

    /// What it can do.
    pub(super) fn limits(&self) -> Result<CardLimits> {
        self.net.card().limits()
    }
}

/// What a sequence leaves behind on a card.
#[derive(Debug)]
pub(super) struct Sequence {
    state: CudaState,
    voice: Option<HeldVoice>,
}

/// What the card keeps T3's weights at.
pub(crate) fn number_of(precision: Precision) -> Number {
    match precision {
        Precision::F32 => Number::F32,
        Precision::F16 => Number::F16,
        Precision::Bf16 => Number::Bf16,
        Precision::Int8 => Number::Int8,
    }
}

impl T3 {
    /// Has the layers run on a card from now on; `w` is the file this was loaded from.
    ///
    /// # Errors
    /// If the card lacks memory or fails, or has no kernels for these dimensions.
    pub(crate) fn put_on_card(&mut self, w: &Weights, card: Arc<Card>, number: Number) -> Result<()> {
        let c = &self.config;
        let gpt2 = c.backbone == Backbone::Gpt2;
        let shape = Shape { gpt2, dim: c.dim, heads: c.heads, layers: c.layers, mlp: c.mlp_dim, vocab: c.speech_vocab };
        let outer = self.outer_weights(w)?;
        let layer = |i: usize| if gpt2 { gpt2_layer(w, shape, i) } else { llama_layer(w, shape, i) };
        let net = Net::upload(&card, shape, number, &outer, layer)?;
        self.on_card = Some(OnCard { net: CudaT3::new(card, net)?, lost: AtomicBool::new(false) });
        Ok(())
    }

    fn outer_weights(&self, w: &Weights) -> Result<OuterWeights> {
        let c = &self.config;
        let head = w.pp("speech_head");
        let (mut final_norm, mut head_bias) = (Vec::new(), Vec::new());
        let (mut cosines, mut sines) = (Vec::new(), Vec::new());
        let positions = match (&self.backbone, &self.speech.positions) {
            (Transformer::Gpt2(gpt2), _) => {
                let norm = w.pp("tfmr.ln_f");
                final_norm.extend(values(&norm, "weight", &[c.dim])?);
                final_norm.extend(values(&norm, "bias", &[c.dim])?);
                head_bias = values(&head, "bias", &[c.speech_vocab])?;
                flat(&gpt2.positions_from(0, gpt2.positions())?)?
            }
            (Transformer::Llama(llama), Some(table)) => {
                final_norm = values(&w.pp("tfmr.norm"), "weight", &[c.dim])?;
                let frequencies = llama::inv_freq(c.head_dim());
                for position in 0..llama.positions() {
                    let angles = frequencies.iter().map(|f| position as f32 * f);
                    cosines.extend(angles.clone().map(f32::cos));
                    sines.extend(angles.map(f32::sin));
                }
                flat(&table.rows(0, table.entries())?)?
            }
            (Transformer::Llama(_), None) => return Err(Error::internal("a Llama T3 without speech positions")),
        };
        Ok(OuterWeights {
            final_norm,
            head: values(&head, "weight", &[c.speech_vocab, c.dim])?,
            head_bias,
            embedding: values(&w.pp("speech_emb"), "weight", &[c.speech_vocab, c.dim])?,
            positions,
            cosines,
            sines,
        })
    }

    /// Room on the card for a sequence; nothing if T3 does not run there.
    pub(super) fn new_sequence(&self, rows: usize, capacity: usize) -> Result<Option<Sequence>> {
        let Some(card) = self.on_card.as_ref().filter(|card| card.is_usable()) else {
            return Ok(None);
        };
        let capacity = capacity.next_multiple_of(ROUND).min(self.positions());
        let state = card.net.new_state(rows, capacity).map_err(|e| self.lose(e))?;
        Ok(Some(Sequence { state, voice: None }))
    }

    /// [`T3::prefill`] on the card. What it holds of an equal voice is used again.
    pub(super) fn prefill_on_card(&self, state: &mut T3State, cond: &T3Conditioning, text: &[u32]) -> Result<()> {
        let rows = state.rows;
        let (card, sequence) = self.card_and(state)?;
        match &sequence.voice {
            Some(held) if held.cond == *cond => sequence.state.truncate(held.len),
            _ => {
                sequence.state.truncate(0);
                sequence.voice = None;
                let xs = self.placed(self.cond_enc.forward(cond, &self.speech)?, 0)?;
                self.extend(card, &mut sequence.state, &xs)?;
                sequence.voice = Some(HeldVoice { cond: cond.clone(), len: sequence.state.len() });
            }
        }
        let (xs, _) = self.embed_text(text, rows)?;
        let xs = self.placed(xs, sequence.state.len())?;
        self.extend(card, &mut sequence.state, &xs)?;
        card.net.begin(&mut sequence.state, &[START_SPEECH]).map_err(|e| self.lose(e))?;
        // The first tokens would wait for it; so it is known which of both takes how long.
        card.net.card().synchronize().map_err(|e| self.lose(e))
    }

    /// The next sampled ids, one for each of `uniforms` or up to the stop id, or the `forced` ones instead. The raw logits of each are appended to
    /// `logits`, if given.
    pub(super) fn sample_on_card(
        &self,
        state: &mut T3State,
        options: &SamplingOptions,
        (uniforms, forced): (&[f32], &[u32]),
        logits: Option<&mut Vec<f32>>,
    ) -> Result<Vec<u32>> {
        let (card, sequence) = self.card_and(state)?;
        card.net.decode(&mut sequence.state, options, uniforms, forced, logits).map_err(|e| self.lose(e))
    }

    /// How many more tokens can be fed on the card.
    pub(super) fn room_on_card(&self, state: &T3State) -> usize {
        state.on_card.as_ref().map_or(0, |sequence| {
            let positions = sequence.state.capacity().saturating_sub(sequence.state.len());
            self.speech.positions.as_ref().map_or(positions, |table| positions.min(table.entries().saturating_sub(1)))
        })
    }

    fn card_and<'a>(&'a self, state: &'a mut T3State) -> Result<(&'a OnCard, &'a mut Sequence)> {
        match (&self.on_card, &mut state.on_card) {
            (Some(card), Some(sequence)) => Ok((card, sequence)),
            _ => Err(Error::internal("T3 was asked for a card that it does not have")),
        }
    }

    /// Adds the positions that GPT-2 learned, from `start` on.
    fn placed(&self, xs: Tensor, start: usize) -> Result<Tensor> {
        match &self.backbone {
            Transformer::Llama(_) => Ok(xs),
            Transformer::Gpt2(gpt2) => Ok(xs.broadcast_add(&gpt2.positions_from(start, xs.dims3()?.1)?)?),
        }
    }

    fn extend(&self, card: &OnCard, state: &mut CudaState, xs: &Tensor) -> Result<()> {
        let (batch, length, _) = xs.dims3()?;
        if state.len() + length > state.capacity() {
            return Err(Error::input(format!(
                "voice and text take {} positions, but this model has {}: split the text",
                state.len() + length,
                state.capacity()
            )));
        }
        card.net.prefill(state, &flat(xs)?, batch).map_err(|e| self.lose(e))
    }

    /// Leaves a card that failed.
    fn lose(&self, error: Error) -> Error {
        if let (Error::Device(why), Some(card)) = (&error, &self.on_card) {
            card.lost.store(true, Ordering::Relaxed);
            return Error::Device(format!("{why}; what comes next runs on the CPU"));
        }
        error
    }
}

fn values(w: &Weights, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
    flat(&w.get(name, shape)?)
}

fn flat(xs: &Tensor) -> Result<Vec<f32>> {
    Ok(xs.flatten_all()?.to_vec1()?)
}

fn llama_layer(w: &Weights, s: Shape, i: usize) -> Result<LayerWeights> {
    let w = w.pp("tfmr.layers").pp(i);
    let (attn, mlp) = (w.pp("self_attn"), w.pp("mlp"));
    let matrix = |w: &Weights, name: &str, rows: usize, columns: usize| values(&w.pp(name), "weight", &[rows, columns]);
    let part = |name: &str| matrix(&attn, name, s.dim, s.dim);
    let (gate, up) = (matrix(&mlp, "gate_proj", s.mlp, s.dim)?, matrix(&mlp, "up_proj", s.mlp, s.dim)?);
    let turns = gate.chunks_exact(s.dim).zip(up.chunks_exact(s.dim)).flat_map(|(gate, up)| [gate, up]);
    Ok(LayerWeights {
        norm1: values(&w.pp("input_layernorm"), "weight", &[s.dim])?,
        qkv: [part("q_proj")?, part("k_proj")?, part("v_proj")?].concat(),
        qkv_bias: Vec::new(),
        out: part("o_proj")?,
        out_bias: Vec::new(),
        norm2: values(&w.pp("post_attention_layernorm"), "weight", &[s.dim])?,
        inner: turns.flatten().copied().collect(),
        inner_bias: Vec::new(),
        down: matrix(&mlp, "down_proj", s.dim, s.mlp)?,
        down_bias: Vec::new(),
    })
}

fn gpt2_layer(w: &Weights, s: Shape, i: usize) -> Result<LayerWeights> {
    let w = w.pp("tfmr.h").pp(i);
    let norm = |name: &str| -> Result<Vec<f32>> {
        let w = w.pp(name);
        Ok([values(&w, "weight", &[s.dim])?, values(&w, "bias", &[s.dim])?].concat())
    };
    // Stored as (inputs, outputs).
    let linear = |name: &str, inputs: usize, outputs: usize| -> Result<(Vec<f32>, Vec<f32>)> {
        let w = w.pp(name);
        Ok((flat(&w.get("weight", (inputs, outputs))?.t()?.contiguous()?)?, values(&w, "bias", &[outputs])?))
    };
    let (qkv, qkv_bias) = linear("attn.c_attn", s.dim, 3 * s.dim)?;
    let (out, out_bias) = linear("attn.c_proj", s.dim, s.dim)?;
    let (inner, inner_bias) = linear("mlp.c_fc", s.dim, s.mlp)?;
    let (down, down_bias) = linear("mlp.c_proj", s.mlp, s.dim)?;
    let (norm1, norm2) = (norm("ln_1")?, norm("ln_2")?);
    Ok(LayerWeights { norm1, qkv, qkv_bias, out, out_bias, norm2, inner, inner_bias, down, down_bias })
}

#[cfg(test)]
mod tests;
