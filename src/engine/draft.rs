//! What guessing ahead would save: T3 can check several guessed tokens in one pass ([`crate::t3::T3::steps`]), and since
//! random numbers are addressed by token, what it accepts is what it would have said anyway. Whether that is faster depends
//! on how often a guess is right and on what a pass of several tokens costs; both are measured here.
//!
//! The guess is what followed the last occurrence of the last tokens, in the prompt or in what was said (Saxena, "Prompt
//! lookup decoding", 2023).

use std::sync::Arc;
use std::time::Instant;

use crate::error::Result;
use crate::model::Model;
use crate::synthesis::SpeakRequest;
use crate::t3::{Decoding, SPEECH_CODES};

/// Longest run of tokens that is looked for.
const LONGEST: usize = 3;
/// Passes that are timed, of which the median counts.
const PASSES: usize = 15;

/// One length of guesses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Guessing {
    /// Most tokens guessed at a time.
    pub length: usize,
    /// Tokens that the model said.
    pub said: usize,
    /// Passes they would have taken.
    pub passes: usize,
    /// Tokens guessed in all.
    pub guessed: usize,
    /// Those that were right.
    pub right: usize,
    /// A pass with one token and one with all guesses, in milliseconds.
    pub pass_ms: (f64, f64),
}

impl Guessing {
    /// How many times as fast as without guesses.
    pub fn speedup(&self) -> f64 {
        let plain = self.said as f64 * self.pass_ms.0;
        // A pass without guesses costs what one token costs, the others in proportion to how many there are.
        let more = (self.pass_ms.1 - self.pass_ms.0) / self.length.max(1) as f64;
        plain / (self.passes as f64 * self.pass_ms.0 + self.guessed as f64 * more)
    }
}

/// Speaks `request` and tells for each of `lengths` what guesses of at most so many tokens would have saved, passes being
/// timed with `past` speech tokens behind the text.
///
/// # Errors
/// If text, voice or settings do not fit the model, or it fails.
pub fn guessing(model: &Arc<Model>, request: &SpeakRequest, lengths: &[usize], past: usize) -> Result<Vec<Guessing>> {
    let texts = model.encode_sentences(&model.split_text(&request.text)?, &request.settings)?;
    let cond = model.conditioning(&request.voice, request.settings.exaggeration)?;
    let (t3, options) = (&model.t3, model.decode_options(request));
    let guided = t3.is_guided(options.sampling.cfg_weight);
    let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
    let most = lengths.iter().copied().max().unwrap_or(0);
    let room = options.max_tokens.max(past + most + 1);
    let mut state = t3.new_state(guided, t3.positions_needed(&cond, longest, room))?;
    let prompt: Vec<u32> = cond.prompt_tokens.iter().chain(&request.voice.s3gen.prompt_token).copied().collect();
    let none = Guessing { length: 0, said: 0, passes: 0, guessed: 0, right: 0, pass_ms: (0.0, 0.0) };
    let mut all: Vec<Guessing> = lengths.iter().map(|&length| Guessing { length, ..none }).collect();
    model.lanes.all.install(|| {
        for (sentence, text) in texts.iter().enumerate() {
            let options = crate::t3::DecodeOptions { sentence, ..options.clone() };
            let mut decoding = Decoding::start(t3, &mut state, (&cond, text), &*request.noise, options)?;
            let mut said = Vec::new();
            while let Some(token) = decoding.next_token()? {
                said.push(token);
            }
            all.iter_mut().for_each(|guessing| guessing.count(&prompt, &said));
        }
        let text = texts.first().map_or(&[][..], Vec::as_slice);
        t3.prefill(&mut state, &cond, text)?;
        let past: Vec<u32> = (0..past.max(most + 1) as u32).map(|i| i * 37 % SPEECH_CODES).collect();
        t3.steps(&mut state, &past)?;
        let mut pass = |tokens: usize| -> Result<f64> {
            let mut times = Vec::with_capacity(PASSES);
            for _ in 0..PASSES {
                let started = Instant::now();
                t3.steps(&mut state, &past[..tokens])?;
                times.push(started.elapsed().as_secs_f64() * 1e3);
                t3.take_back(&mut state, tokens);
            }
            times.sort_by(f64::total_cmp);
            Ok(times[PASSES / 2])
        };
        for guessing in &mut all {
            guessing.pass_ms = (pass(1)?, pass(1 + guessing.length)?);
        }
        Ok(all)
    })
}

impl Guessing {
    /// Goes over what was said behind `prompt` and counts.
    fn count(&mut self, prompt: &[u32], said: &[u32]) {
        let history: Vec<u32> = prompt.iter().chain(said).copied().collect();
        let mut at = prompt.len();
        while at < history.len() {
            let guess = guess(&history[..at], self.length);
            let right = guess.iter().zip(&history[at..]).take_while(|(guess, said)| guess == said).count();
            self.passes += 1;
            self.guessed += guess.len();
            self.right += right;
            at += right + 1;
        }
        self.said += said.len();
    }
}

/// At most `length` tokens that followed the last occurrence of the longest run that `history` ends with.
fn guess(history: &[u32], length: usize) -> &[u32] {
    for run in (1..=LONGEST.min(history.len().saturating_sub(1))).rev() {
        let (end, before) = (&history[history.len() - run..], &history[..history.len() - 1]);
        if let Some(found) = before.windows(run).rposition(|window| window == end) {
            let next = &history[found + run..];
            return &next[..length.min(next.len())];
        }
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guess_is_what_followed_the_last_time() {
        assert_eq!(guess(&[1, 2, 3, 9, 2, 3], 2), [9, 2]);
        assert_eq!(guess(&[5, 1, 6, 1, 7, 1], 1), [7]);
        assert_eq!(guess(&[4, 4], 3), [4]);
        assert!(guess(&[1, 2, 3], 3).is_empty() && guess(&[], 3).is_empty());
    }

    #[test]
    fn right_guesses_save_passes() {
        let none = Guessing { length: 3, said: 0, passes: 0, guessed: 0, right: 0, pass_ms: (2.0, 5.0) };
        let mut counted = none;
        counted.count(&[1, 2, 3, 4], &[1, 2, 3, 4, 8]);
        // The 1 comes alone; then 2, 3, 4 are guessed and 8 follows from the same pass.
        assert_eq!((counted.said, counted.passes, counted.guessed, counted.right), (5, 2, 3, 3));
        assert!((counted.speedup() - 10.0 / 7.0).abs() < 1e-9);
    }
}
