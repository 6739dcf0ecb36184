//! From logits to a token: guidance, penalties, filters and one draw by inverse distribution function.
//!
//! Order of the Llama variants: guidance `c + w (c - u)`, repetition penalty, temperature, `min_p`, `top_p`. Order of
//! the GPT-2 variants: temperature, `top_k`, `top_p`, and the penalty last, on what the filters left. Source: `T3` of
//! the reference and the logits processors of `transformers`.
//!
//! The filters keep a set of candidates rather than writing minus infinity, and a partial selection stands in for the
//! sort, so that a draw from 8194 logits costs tens of microseconds.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::t3::{Backbone, START_SPEECH};

/// How tokens are chosen. Options that a family does not know are ignored by it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplingOptions {
    /// Divides the logits; 0 takes the best token.
    pub temperature: f32,
    /// Keep the so many best tokens and those equal to the last of them; 0 keeps all (GPT-2).
    pub top_k: usize,
    /// Keep the smallest set of best tokens with at least this probability; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less probable than this share of the best; 0 keeps all (Llama).
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens that occurred before; 1 for none.
    pub repetition_penalty: f32,
    /// Guidance weight; 0 runs without the unconditional row (Llama).
    pub cfg_weight: f32,
}

impl Default for SamplingOptions {
    fn default() -> Self {
        Self::llama()
    }
}

impl SamplingOptions {
    /// Defaults of English and Multilingual.
    pub fn llama() -> Self {
        Self { temperature: 0.8, top_k: 0, top_p: 1.0, min_p: 0.05, repetition_penalty: 1.2, cfg_weight: 0.5 }
    }

    /// Defaults of Turbo and Nano.
    pub fn gpt2() -> Self {
        Self { temperature: 0.8, top_k: 1000, top_p: 0.95, min_p: 0.0, repetition_penalty: 1.2, cfg_weight: 0.0 }
    }

    /// Defaults of a family.
    pub fn of(backbone: Backbone) -> Self {
        match backbone {
            Backbone::Llama => Self::llama(),
            Backbone::Gpt2 => Self::gpt2(),
        }
    }

    /// Refuses options that mean nothing.
    ///
    /// # Errors
    /// If one is outside its range; the message names it.
    pub fn check(&self) -> Result<()> {
        let fault = |what: &str| Err(Error::input(what.to_owned()));
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return fault("temperature must be 0 or more");
        }
        if !(0.0..=1.0).contains(&self.top_p) {
            return fault("top_p must lie between 0 and 1");
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return fault("min_p must lie between 0 and 1");
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite()) {
            return fault("repetition_penalty must be more than 0; 1 means none");
        }
        if !(self.cfg_weight >= 0.0 && self.cfg_weight.is_finite()) {
            return fault("cfg_weight must be 0 or more");
        }
        Ok(())
    }
}

/// Chooses tokens one after another and remembers them for the repetition penalty.
#[derive(Debug, Clone)]
pub struct Sampler {
    backbone: Backbone,
    options: SamplingOptions,
    vocab: usize,
    seen: IdSet,
    started: bool,
    /// Logits in work, one per id.
    logits: Vec<f32>,
    /// What the filters left, ids ascending.
    kept: Vec<Candidate>,
    /// Sort keys of the selections.
    keys: Vec<u64>,
}

/// A token that may be chosen.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    id: u32,
    /// Probability over that of the best.
    weight: f32,
}

impl Sampler {
    /// A sampler at the start of a sequence. The penalty counts the start id as seen: always with Llama, for the first
    /// token only with GPT-2.
    ///
    /// # Errors
    /// If an option is out of range.
    pub fn new(backbone: Backbone, vocab: usize, options: SamplingOptions) -> Result<Self> {
        options.check()?;
        let mut seen = IdSet::new(vocab);
        seen.insert(START_SPEECH);
        let (logits, kept, keys) = (Vec::with_capacity(vocab), Vec::new(), Vec::new());
        Ok(Self { backbone, options, vocab, seen, started: false, logits, kept, keys })
    }

    /// Chooses from one row of logits, or two: conditional, unconditional. `hold` is an id that must not be chosen,
    /// `uniform` a number in `[0, 1)`. The choice is not remembered until [`Self::accept`].
    ///
    /// # Errors
    /// If the logits are not numbers.
    pub fn sample(&mut self, rows: &[f32], hold: Option<u32>, uniform: f32) -> Result<u32> {
        self.process(rows, hold)?;
        if self.options.temperature == 0.0 {
            return self.best();
        }
        let target = f64::from(uniform) * self.mass();
        let mut below = 0.0;
        for candidate in &self.kept {
            below += f64::from(candidate.weight);
            if target < below {
                return Ok(candidate.id);
            }
        }
        // Only reached if rounding left `below` short of the total.
        self.best()
    }

    /// The most probable token after all processors, whatever the temperature.
    #[cfg(test)]
    pub(crate) fn choose_best(&mut self, rows: &[f32]) -> Result<u32> {
        self.process(rows, None)?;
        self.best()
    }

    /// Remembers a token for the penalty.
    pub fn accept(&mut self, token: u32) {
        if self.backbone == Backbone::Gpt2 && !self.started {
            self.seen.clear();
        }
        self.started = true;
        self.seen.insert(token);
    }

    /// The most probable candidate, the lowest id among equals.
    fn best(&self) -> Result<u32> {
        let logit = |id: u32| self.logits[id as usize];
        let ids = self.kept.iter().map(|candidate| candidate.id);
        let best = ids.reduce(|best, id| if logit(id) > logit(best) { id } else { best });
        best.ok_or_else(|| Error::internal("no token is left to choose from"))
    }

    /// Fills `logits` and `kept`.
    fn process(&mut self, rows: &[f32], hold: Option<u32>) -> Result<()> {
        self.combine(rows)?;
        if let Some(logit) = hold.and_then(|id| self.logits.get_mut(id as usize)) {
            *logit = f32::NEG_INFINITY;
        }
        match self.backbone {
            Backbone::Llama => {
                self.penalise();
                self.cool();
                let min_p = self.options.min_p;
                let threshold = self.highest()? + min_p.ln(); // ln 0 is minus infinity: all are kept
                self.keep_from(threshold);
                self.nucleus();
            }
            Backbone::Gpt2 => {
                self.cool();
                self.highest()?;
                let threshold = self.kth_highest(self.options.top_k);
                self.keep_from(threshold);
                self.nucleus();
                self.penalise();
                self.weigh();
            }
        }
        Ok(())
    }

    /// Guidance.
    fn combine(&mut self, rows: &[f32]) -> Result<()> {
        self.logits.clear();
        if rows.len() == self.vocab {
            self.logits.extend_from_slice(rows);
        } else if rows.len() == 2 * self.vocab && self.backbone == Backbone::Llama {
            let (cond, uncond) = rows.split_at(self.vocab);
            let weight = self.options.cfg_weight;
            self.logits.extend(cond.iter().zip(uncond).map(|(c, u)| c + weight * (c - u)));
        } else {
            return Err(Error::internal(format!("{} logits for a vocabulary of {}", rows.len(), self.vocab)));
        }
        Ok(())
    }

    fn penalise(&mut self) {
        let penalty = self.options.repetition_penalty;
        for &id in &self.seen.ids {
            if let Some(logit) = self.logits.get_mut(id as usize) {
                *logit = if *logit < 0.0 { *logit * penalty } else { *logit / penalty };
            }
        }
    }

    fn cool(&mut self) {
        let temperature = self.options.temperature;
        if temperature != 0.0 && temperature != 1.0 {
            self.logits.iter_mut().for_each(|logit| *logit /= temperature);
        }
    }

    /// The highest logit. In lanes, so that it vectorises.
    fn highest(&self) -> Result<f32> {
        let mut lanes = [f32::NEG_INFINITY; 16];
        let chunks = self.logits.chunks_exact(16);
        let rest = chunks.remainder();
        for chunk in chunks {
            lanes.iter_mut().zip(chunk).for_each(|(m, &x)| *m = if x > *m { x } else { *m });
        }
        let highest = lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |m, &x| m.max(x));
        if highest.is_finite() {
            return Ok(highest);
        }
        Err(Error::internal(
            "the logits of T3 are not numbers: load the model again, with f32 precision if it was less",
        ))
    }

    /// The `k`-th highest logit; minus infinity if all are to be kept.
    fn kth_highest(&mut self, k: usize) -> f32 {
        if k == 0 || k >= self.logits.len() {
            return f32::NEG_INFINITY;
        }
        self.keys.clear();
        self.keys.extend((0u32..).zip(&self.logits).map(|(index, &logit)| key(logit, index)));
        let (_, kth, _) = self.keys.select_nth_unstable_by_key(k - 1, |&key| Reverse(key));
        self.logits[index_of(*kth)]
    }

    fn keep_from(&mut self, threshold: f32) {
        self.kept.clear();
        let above = |logit: f32| logit >= threshold && logit > f32::NEG_INFINITY;
        let kept = (0u32..).zip(&self.logits).filter(|&(_, &logit)| above(logit));
        self.kept.extend(kept.map(|(id, _)| Candidate { id, weight: 0.0 }));
        self.weigh();
    }

    fn weigh(&mut self) {
        let logits = &self.logits;
        let max = self.kept.iter().fold(f32::NEG_INFINITY, |m, c| m.max(logits[c.id as usize]));
        self.kept.iter_mut().for_each(|c| c.weight = (logits[c.id as usize] - max).exp());
    }

    fn mass(&self) -> f64 {
        self.kept.iter().map(|c| f64::from(c.weight)).sum()
    }

    /// `top_p`: walks the candidates from the best down until the mass before one reaches `top_p`. Equal logits are
    /// walked from the highest id, which is what the reference's ascending stable sort amounts to.
    fn nucleus(&mut self) {
        let top_p = f64::from(self.options.top_p);
        if top_p >= 1.0 {
            return;
        }
        let needed = top_p * self.mass();
        let key_of = |c: &Candidate, index: u32| key(self.logits[c.id as usize], index);
        self.keys.clear();
        self.keys.extend(self.kept.iter().zip(0..).map(|(c, index)| key_of(c, index)));
        let (mut sorted, mut block, mut mass, mut last) = (0, 64, 0.0, 0);
        'walk: while sorted < self.keys.len() {
            let rest = &mut self.keys[sorted..];
            let here = block.min(rest.len());
            if here < rest.len() {
                rest.select_nth_unstable_by_key(here, |&key| Reverse(key));
            }
            rest[..here].sort_unstable_by_key(|&key| Reverse(key));
            for &key in &rest[..here] {
                if last != 0 && mass >= needed {
                    break 'walk;
                }
                mass += f64::from(self.kept[index_of(key)].weight);
                last = key;
            }
            sorted += here;
            block *= 4;
        }
        let mut index = 0;
        self.kept.retain(|c| {
            index += 1;
            key(self.logits[c.id as usize], index - 1) >= last
        });
    }
}

/// A number that sorts as the logit does and, among equals, as the index.
fn key(logit: f32, index: u32) -> u64 {
    let bits = logit.to_bits();
    let ordered = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    u64::from(ordered) << 32 | u64::from(index)
}

fn index_of(key: u64) -> usize {
    key as u32 as usize
}

/// Ids without repetition, each found at once.
#[derive(Debug, Clone)]
struct IdSet {
    member: Vec<bool>,
    ids: Vec<u32>,
}

impl IdSet {
    fn new(vocab: usize) -> Self {
        Self { member: vec![false; vocab], ids: Vec::new() }
    }

    fn insert(&mut self, id: u32) {
        if let Some(member) = self.member.get_mut(id as usize).filter(|member| !**member) {
            *member = true;
            self.ids.push(id);
        }
    }

    fn clear(&mut self) {
        self.member.fill(false);
        self.ids.clear();
    }
}

#[cfg(test)]
pub(crate) mod tests;
