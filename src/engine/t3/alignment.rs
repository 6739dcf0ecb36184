//! The alignment guard of Multilingual v2: reads where in the text the speech has got to from three attention heads,
//! holds back an early end, and ends a hallucinated tail, a repetition of the text or a stuck token.
//!
//! The heads are averaged to one row per speech position, `a[s]` over the text positions. `position` follows
//! `argmax a` unless it jumps; the text counts as spoken (`complete`) once `position >= S - 3`. After that, more than 5
//! units of attention on one of the last three text tokens are a tail, and more than 5 on anything before the last
//! five are a repetition. Behaviour of `alignment_stream_analyzer` in `chatterbox-tts` 0.1.7, in O(S) a step; its flag
//! for a false start is left out, since nothing there acts on it.

use std::ops::Range;

use candle_core::{IndexOp, Tensor};

use crate::error::Result;
use crate::nn::KvCache;

/// `(layer, head)` of the English and multilingual T3 whose attention follows the text.
pub const ALIGNED_HEADS: [(usize, usize); 3] = [(12, 15), (13, 11), (9, 2)];

/// How far `position` may fall back or run ahead from one step to the next.
const LARGEST_STEP_BACK: usize = 3;
const LARGEST_STEP_AHEAD: usize = 6;
/// Attention that may rest on a finished text before it counts as a hallucination, about 200 ms.
const PATIENCE: f32 = 5.0;
/// Last text tokens: reaching them completes the text, and resting on them is a tail.
const TAIL: usize = 3;
/// Last text tokens that a repetition does not look at.
const ENDING: usize = 5;

/// Collects the attention of a few heads from the text positions while the network runs.
#[derive(Debug)]
pub(super) struct AttentionProbe {
    heads: Vec<(usize, usize)>,
    text: Range<usize>,
    queries: usize,
    rows: Vec<f32>,
}

impl AttentionProbe {
    /// Watches `heads`, each `(layer, head)`, for attention to the positions `text`.
    pub(super) fn new(heads: &[(usize, usize)], text: Range<usize>) -> Self {
        Self { heads: heads.to_vec(), text, queries: 0, rows: Vec::new() }
    }

    /// Clears for a pass of which the last `queries` rows count.
    pub(super) fn begin(&mut self, queries: usize) {
        self.queries = queries;
        self.rows.clear();
        self.rows.resize(queries * self.text.len(), 0.0);
    }

    pub(super) fn wants(&self, layer: usize) -> bool {
        self.heads.iter().any(|&(l, _)| l == layer)
    }

    /// Adds the attention of this layer's heads; `q: (B, T, H, D)`, the conditional row first.
    pub(super) fn observe(&mut self, layer: usize, q: &Tensor, cache: &KvCache, scale: f64) -> Result<()> {
        let (t, len) = (q.dims4()?.1, cache.len());
        for &(_, head) in self.heads.iter().filter(|&&(l, _)| l == layer) {
            let keys = cache.keys(0, head)?;
            for r in 0..self.queries {
                let after = self.queries - 1 - r;
                let query = q.i((0, t - 1 - after, head))?.contiguous()?.unsqueeze(1)?;
                let scores = (keys.narrow(0, 0, len - after)?.matmul(&query)?.squeeze(1)? * scale)?;
                let weights = candle_nn::ops::softmax_last_dim(&scores)?;
                let weights: Vec<f32> = weights.narrow(0, self.text.start, self.text.len())?.to_vec1()?;
                let row = self.rows.chunks_exact_mut(self.text.len().max(1)).nth(r);
                let share = 1.0 / self.heads.len() as f32;
                row.into_iter().flatten().zip(weights).for_each(|(sum, w)| *sum += w * share);
            }
        }
        Ok(())
    }

    /// The averaged rows of the last pass, `(queries, S)`.
    pub(super) fn rows(&self) -> &[f32] {
        &self.rows
    }

    /// Number of text positions watched.
    pub(super) fn text_len(&self) -> usize {
        self.text.len()
    }
}

/// What the guard demands of the next token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Free,
    /// It must not be the end.
    HoldStop,
    /// It must be the end.
    ForceStop,
}

/// Follows one sentence.
#[derive(Debug, Clone)]
pub struct AlignmentGuard {
    text_len: usize,
    frame: usize,
    position: usize,
    complete: bool,
    /// Attention on each of the last text tokens since completion.
    tail: [f32; TAIL],
    /// Sum over steps since completion of the strongest attention before the ending.
    repeated: f32,
    last_tokens: [Option<u32>; 2],
    tokens: usize,
}

impl AlignmentGuard {
    /// A guard over a text of `text_len` tokens, start and stop included.
    pub fn new(text_len: usize) -> Self {
        Self {
            text_len,
            frame: 0,
            position: 0,
            complete: false,
            tail: [0.0; TAIL],
            repeated: 0.0,
            last_tokens: [None; 2],
            tokens: 0,
        }
    }

    /// Where in the text the speech has got to, in tokens.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Whether the end of the text has been reached.
    pub fn complete(&self) -> bool {
        self.complete
    }

    /// Judges the next token from `rows`, the averaged attention of the newest positions over the text `(n, S)`, and
    /// the token that was fed last (the start id at first).
    pub fn judge(&mut self, rows: &[f32], last_token: u32) -> Verdict {
        let s = self.text_len;
        // Speech cannot be further in the text than it has frames.
        let reach = (self.frame + 1).min(s);
        let Some(newest) = rows.chunks_exact(s.max(1)).next_back() else {
            return Verdict::Free;
        };
        let strongest = argmax(&newest[..reach]);
        if self.position <= strongest + LARGEST_STEP_BACK && strongest <= self.position + LARGEST_STEP_AHEAD {
            self.position = strongest;
        }
        if self.complete {
            rows.chunks_exact(s).for_each(|row| self.after_completion(&row[..reach]));
        }
        self.complete |= self.position + TAIL >= s;
        self.frame += 1;
        self.last_tokens = [self.last_tokens[1], Some(last_token)];
        self.tokens += 1;

        let stuck = self.tokens >= 3 && self.last_tokens[0] == self.last_tokens[1];
        if stuck || self.repeated > PATIENCE || self.tail.iter().any(|&sum| sum >= PATIENCE) {
            Verdict::ForceStop
        } else if strongest + TAIL < s && s > ENDING {
            Verdict::HoldStop
        } else {
            Verdict::Free
        }
    }

    /// `row`: attention on the text positions within reach.
    fn after_completion(&mut self, row: &[f32]) {
        let (s, first) = (self.text_len, self.text_len.saturating_sub(TAIL));
        for (sum, a) in self.tail.iter_mut().zip(row.iter().skip(first)) {
            *sum += a;
        }
        let body = s.saturating_sub(ENDING).min(row.len());
        self.repeated += row[..body].iter().copied().fold(0.0, f32::max);
    }
}

/// Index of the largest value, the first among equals.
fn argmax(values: &[f32]) -> usize {
    let mut best = 0;
    for (i, v) in values.iter().enumerate() {
        if *v > values[best] {
            best = i;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use candle_core::Device;
    use serde::Deserialize;

    use super::*;
    use crate::protocol::Precision;

    #[derive(Deserialize)]
    struct Case {
        name: String,
        text_len: usize,
        /// Row `i` peaks at `peaks[i]`; rows 0 and 1 come together, as prefill gives them.
        peaks: Vec<f32>,
        tokens: Vec<u32>,
        positions: Vec<usize>,
        complete: Vec<bool>,
        /// 0 free, 1 hold, 2 force.
        verdicts: Vec<u8>,
    }

    /// A ridge of attention, as in `tests/reference/alignment.py`.
    fn ridge(peak: f32, text_len: usize) -> Vec<f32> {
        let weight = |s: usize| 0.9 / (1.0 + 4.0 * (s as f32 - peak).powi(2)) + 0.01 * ((s * 7) % 5) as f32;
        (0..text_len).map(weight).collect()
    }

    #[test]
    fn verdicts_are_those_of_the_python_analyser() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/alignment/cases.json");
        let cases: Vec<Case> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert!(cases.len() >= 8);
        for case in cases {
            let mut guard = AlignmentGuard::new(case.text_len);
            for (step, &token) in case.tokens.iter().enumerate() {
                let mut rows = ridge(case.peaks[step + 1], case.text_len);
                if step == 0 {
                    rows = [ridge(case.peaks[0], case.text_len), rows].concat();
                }
                let verdict = guard.judge(&rows, token) as u8;
                let found = (guard.position(), guard.complete(), verdict);
                let expected = (case.positions[step], case.complete[step], case.verdicts[step]);
                assert_eq!(found, expected, "{} at step {step}", case.name);
            }
        }
    }

    #[test]
    fn an_end_is_held_until_the_text_is_nearly_spoken() {
        let mut guard = AlignmentGuard::new(10);
        let verdicts: Vec<Verdict> =
            (0..10).map(|step| guard.judge(&ridge(step as f32, 10), 100 + step as u32)).collect();
        assert!(verdicts[..7].iter().all(|v| *v == Verdict::HoldStop), "{verdicts:?}");
        assert!(verdicts[7..].iter().all(|v| *v == Verdict::Free) && guard.complete(), "{verdicts:?}");
    }

    #[test]
    fn texts_of_any_length_are_judged() {
        for text_len in 0..8 {
            let mut guard = AlignmentGuard::new(text_len);
            (0..20).for_each(|step| _ = guard.judge(&ridge(step as f32, text_len), step));
        }
    }

    #[test]
    fn the_probe_sees_the_softmax_of_its_heads() {
        let (b, t, len, h, d) = (2, 3, 5, 2, 4);
        let values = |n: usize, k: f32| (0..n).map(|i| (i as f32 * k).sin()).collect::<Vec<_>>();
        let q = Tensor::from_vec(values(b * t * h * d, 0.7), (b, t, h, d), &Device::Cpu).unwrap();
        let keys = Tensor::from_vec(values(b * len * h * d, 1.3), (b, len, h, d), &Device::Cpu).unwrap();
        let mut cache = KvCache::new((b, len), (h, d), Precision::F32, &Device::Cpu).unwrap();
        cache.append_and_attend(&keys, &keys, &keys, 1.0).unwrap();
        let mut probe = AttentionProbe::new(&[(4, 1), (6, 0)], 1..3);
        probe.begin(2);
        assert!(probe.wants(4) && probe.wants(6) && !probe.wants(5));
        probe.observe(4, &q, &cache, 0.5).unwrap();
        probe.observe(6, &q, &cache, 0.5).unwrap();
        let at = |x: &Tensor, t: usize, h: usize| x.i((0, t, h)).unwrap().to_vec1::<f32>().unwrap();
        for r in 0..2 {
            let mut expected = [0.0; 2];
            for head in [1, 0] {
                let query = at(&q, 1 + r, head);
                let dot = |j: usize| query.iter().zip(at(&keys, j, head)).map(|(a, b)| a * b).sum::<f32>();
                let weights: Vec<f32> = (0..4 + r).map(|j| (0.5 * dot(j)).exp()).collect();
                let total: f32 = weights.iter().sum();
                expected.iter_mut().zip(&weights[1..3]).for_each(|(e, w)| *e += 0.5 * w / total);
            }
            for (found, expected) in probe.rows()[2 * r..2 * r + 2].iter().zip(expected) {
                assert!((found - expected).abs() < 1e-6, "{:?}", probe.rows());
            }
        }
    }
}
