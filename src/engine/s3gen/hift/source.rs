//! The excitation: nine harmonics of the pitch where the voice sounds, noise where it does not.
//!
//! `source = tanh(Σₕ wₕ (0.1 sin(2π ∫ h·f0/24000 + φₕ) · voiced + noiseₕ) + b)`; Wang, Takaki and Yamagishi, "Neural
//! source-filter waveform models for statistical parametric speech synthesis", 2019.
//!
//! The phase is kept in turns and in f64, one value per harmonic at each frame boundary. Pitch is constant within a
//! frame, so every sample's phase follows from it in closed form, and a stream and a whole clip compute the same bits.

use rayon::prelude::*;

use super::{SAMPLE_RATE_HZ, SAMPLES_PER_FRAME};
use crate::error::Result;
use crate::kernels::trig::add_sines;
use crate::nn::Linear;
use crate::noise::NoiseSource;
use crate::weights::Weights;

const HARMONICS: usize = 9;
const SINE_AMPLITUDE: f32 = 0.1;
/// Pitch up to this counts as unvoiced.
const VOICED_ABOVE_HZ: f32 = 10.0;
const VOICED_NOISE: f32 = 0.003;
const UNVOICED_NOISE: f32 = SINE_AMPLITUDE / 3.0;

/// The mixture of the harmonics: a projection to one channel.
#[derive(Debug, Clone)]
pub(super) struct HarmonicSource {
    mix: [f32; HARMONICS],
    bias: f32,
}

/// Where the oscillators stand at a frame boundary.
#[derive(Debug, Clone)]
pub(super) struct SourcePhase {
    sentence: usize,
    frame: usize,
    /// Turns run through so far, and turns drawn at the start.
    turns: [f64; HARMONICS],
    offsets: [f64; HARMONICS],
}

impl HarmonicSource {
    pub(super) fn load(w: &Weights) -> Result<Self> {
        let linear = Linear::load(&w.pp("l_linear"), HARMONICS, 1)?;
        let eye = candle_core::Tensor::eye(HARMONICS, candle_core::DType::F32, w.device())?;
        let zero = eye.narrow(0, 0, 1)?.zeros_like()?;
        let bias = linear.forward(&zero)?.flatten_all()?.to_vec1::<f32>()?[0];
        let rows = linear.forward(&eye)?.flatten_all()?.to_vec1::<f32>()?;
        let mut mix = [0.0; HARMONICS];
        mix.iter_mut().zip(rows).for_each(|(m, r)| *m = r - bias);
        Ok(Self { mix, bias })
    }

    /// The oscillators at the start of `sentence`.
    pub(super) fn start(&self, noise: &dyn NoiseSource, sentence: usize) -> SourcePhase {
        let mut offsets = [0.0; HARMONICS];
        for (turns, radians) in offsets.iter_mut().zip(noise.phases(sentence, HARMONICS)) {
            *turns = f64::from(radians) / std::f64::consts::TAU;
        }
        SourcePhase { sentence, frame: 0, turns: [0.0; HARMONICS], offsets }
    }

    /// 480 samples for each pitch in Hz; `phase` moves on by as many frames.
    pub(super) fn generate(&self, phase: &mut SourcePhase, f0: &[f32], noise: &dyn NoiseSource) -> Vec<f32> {
        let starts: Vec<SourcePhase> = f0.iter().map(|&f0| phase.pass(f0)).collect();
        let mut out = vec![0.0; f0.len() * SAMPLES_PER_FRAME];
        out.par_chunks_exact_mut(SAMPLES_PER_FRAME).zip(&starts).zip(f0).for_each(|((out, at), &f0)| {
            let draws = noise.source(at.sentence, at.frame * SAMPLES_PER_FRAME, SAMPLES_PER_FRAME, HARMONICS);
            self.frame(at, f0, &draws, out);
        });
        out
    }

    /// The samples of one frame, `out: (480)`.
    fn frame(&self, at: &SourcePhase, f0: f32, draws: &[f32], out: &mut [f32]) {
        let voiced = f0 > VOICED_ABOVE_HZ;
        let noise = if voiced { VOICED_NOISE } else { UNVOICED_NOISE };
        for (o, draws) in out.iter_mut().zip(draws.chunks_exact(HARMONICS)) {
            *o = self.bias + noise * self.mix.iter().zip(draws).map(|(m, d)| m * d).sum::<f32>();
        }
        if voiced {
            for h in 0..HARMONICS {
                add_sines(out, at.turns[h] + at.offsets[h], turns_per_sample(f0, h), SINE_AMPLITUDE * self.mix[h]);
            }
        }
        out.iter_mut().for_each(|o| *o = o.tanh());
    }
}

impl SourcePhase {
    /// Goes on by a frame of this pitch; where it stood before.
    fn pass(&mut self, f0: f32) -> Self {
        let before = self.clone();
        for (h, turns) in self.turns.iter_mut().enumerate() {
            *turns = (*turns + turns_per_sample(f0, h) * SAMPLES_PER_FRAME as f64).fract();
        }
        self.frame += 1;
        before
    }
}

/// Of a harmonic, rounded to f32 as the reference does before it sums.
fn turns_per_sample(f0: f32, harmonic: usize) -> f64 {
    f64::from(f0 * (harmonic + 1) as f32 / SAMPLE_RATE_HZ as f32)
}
