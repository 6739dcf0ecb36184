//! HiFT chunk by chunk, without seams.
//!
//! A chunk is computed from a window: the frames it emits, the [`REACH_FRAMES`] before them, whose excitation is kept
//! rather than made again, and whatever is known to the right of them. The oscillators go on from the phase at which
//! the last emitted frame left them.
//!
//! How much right context is enough was measured with the embedded model on seven clips, 134 edges: the relative
//! difference between the frame behind an edge as the chunk before it would have continued and as it came to be, and
//! the largest step from the last sample of one chunk to the first of the next (within chunks: 0.38).
//!
//! | frames to the right | 2 | 4 | 6 | 8 | 10 | 12 | 23 |
//! |---|---|---|---|---|---|---|---|
//! | difference | 0.39 | 0.22 | 0.022 | 0.003 | 0.0003 | < 1e-4 | 0 |
//! | largest step | 0.213 | 0.126 | 0.119 | 0.119 | 0.119 | 0.119 | 0.119 |
//!
//! Six are what the flow previews anyway, so no frame is held back and sound is not delayed. What remains, and what the
//! flow changes its mind about, is faded over: each chunk is computed one frame further than it goes, and the next one
//! takes over from that continuation along a cosine, so that the signal itself is continuous at every edge.
//! With the flow's previews (six voices, 47 edges) the two differ by 0.3 to 0.4; the largest step at an edge is then 0.09,
//! within chunks 0.37, and the spectrum moves as much at edges as elsewhere (mean flux 0.54 and 0.55, at most 1.8 and 3.5).

use candle_core::Tensor;

use super::f0::F0_REACH_FRAMES;
use super::generator::REACH_FRAMES;
use super::source::SourcePhase;
use super::{Hift, SAMPLES_PER_FRAME};
use crate::error::Result;
use crate::noise::NoiseSource;

/// Frames to the right of a frame that its samples depend on; with as many held back, a stream equals the whole clip.
pub const FULL_HOLD_BACK_FRAMES: usize = REACH_FRAMES + F0_REACH_FRAMES;

/// What one utterance carries from chunk to chunk.
#[derive(Debug, Clone)]
pub struct HiftState {
    sentence: usize,
    hold_back: usize,
    /// Frames whose samples were given out.
    emitted: usize,
    /// `(1, N, 80)`: the last frames given, of which those from `emitted` on are still to come.
    mel: Option<Tensor>,
    /// Excitation of the emitted frames among them.
    source: Vec<f32>,
    phase: Option<SourcePhase>,
    /// Provisional samples behind the last chunk, to fade from.
    tail: Vec<f32>,
}

impl HiftState {
    /// The start of `sentence`.
    pub fn new(sentence: usize) -> Self {
        Self { sentence, hold_back: 0, emitted: 0, mel: None, source: Vec::new(), phase: None, tail: Vec::new() }
    }

    /// Lets as many final frames wait for the next chunk: with [`FULL_HOLD_BACK_FRAMES`], or that many of final frames
    /// and look-ahead together, the stream equals [`Hift::forward`].
    #[must_use]
    pub fn with_hold_back(mut self, frames: usize) -> Self {
        self.hold_back = frames;
        self
    }
}

impl Hift {
    /// The next chunk of an utterance.
    ///
    /// `mel: (1, T, 80)` are the next frames and final; `lookahead: (1, L, 80)` are the frames behind them as far as
    /// they are known, which may still change. Returns 480 samples for each final frame, in all: frames held back come
    /// with a later chunk, the remaining ones when `last` is set. The utterance fades in as the reference's does.
    ///
    /// # Errors
    /// If a shape differs.
    pub fn decode(
        &self,
        state: &mut HiftState,
        noise: &dyn NoiseSource,
        mel: &Tensor,
        lookahead: Option<&Tensor>,
        last: bool,
    ) -> Result<Vec<f32>> {
        let known = match &state.mel {
            Some(before) => Tensor::cat(&[before, mel], 1)?,
            None => mel.clone(),
        };
        let past = state.source.len() / SAMPLES_PER_FRAME;
        let emit = (known.dim(1)? - past).saturating_sub(if last { 0 } else { state.hold_back });
        if emit == 0 {
            state.mel = Some(known);
            return Ok(Vec::new());
        }
        let window = match lookahead {
            Some(ahead) if !last => Tensor::cat(&[&known, ahead], 1)?,
            _ => known.clone(),
        };
        let frames = window.dim(1)?;
        let border = past + emit;

        let first_pitch = past.saturating_sub(F0_REACH_FRAMES);
        let f0 = self.pitch(&window.narrow(1, first_pitch, frames - first_pitch)?)?;
        let f0 = &f0[past - first_pitch..];
        let mut phase = match state.phase.take() {
            Some(phase) => phase,
            None => self.source.start(noise, state.sentence),
        };
        state.source.extend(self.source.generate(&mut phase, &f0[..emit], noise));
        state.phase = Some(phase.clone());
        let mut source = state.source.clone();
        source.extend(self.source.generate(&mut phase, &f0[emit..], noise));

        let fade = usize::from(frames > border) * FADE_FRAMES;
        let mut wav = self.render(&window, &source, past..border + fade)?;
        let tail = wav.split_off(emit * SAMPLES_PER_FRAME);
        cross_fade(&state.tail, &mut wav);
        state.tail = tail;
        fade_in(&mut wav, state.emitted * SAMPLES_PER_FRAME);

        let keep = border.min(REACH_FRAMES);
        state.mel = Some(known.narrow(1, border - keep, known.dim(1)? - (border - keep))?.contiguous()?);
        state.source.drain(..(border - keep) * SAMPLES_PER_FRAME);
        state.emitted += emit;
        Ok(wav)
    }
}

/// Frames over which a chunk takes over from the provisional end of the one before.
const FADE_FRAMES: usize = 1;

/// Goes from `from` to `to` along half a period of a cosine over the length of `from`.
fn cross_fade(from: &[f32], to: &mut [f32]) {
    let n = from.len() as f32;
    for (i, (to, from)) in to.iter_mut().zip(from).enumerate() {
        let gain = 0.5 - 0.5 * (std::f32::consts::PI * (i as f32 + 0.5) / n).cos();
        *to = from + (*to - from) * gain;
    }
}

/// Silences the first frame of an utterance and raises the second, `position` samples from its start: the end of the
/// reference voice would otherwise be heard there.
pub(super) fn fade_in(wav: &mut [f32], position: usize) {
    const N: usize = SAMPLES_PER_FRAME;
    for (i, sample) in wav.iter_mut().enumerate().take((2 * N).saturating_sub(position)) {
        let at = position + i;
        *sample *= if at < N {
            0.0
        } else {
            // The ramp takes in both of its ends.
            (1.0 + (std::f32::consts::PI * (1.0 - (at - N) as f32 / (N - 1) as f32)).cos()) / 2.0
        };
    }
}
