//! Randomness as an argument: seeded by counter, or replayed from a recording.
//!
//! Every draw is addressed by what it is for (a token step, a mel frame, a source sample) and not by when it happens, so
//! a seed gives the same sound whether it is made at once, in chunks, or on several threads.
//! Generator: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).

use std::f32::consts::PI;

/// Where the stochastic stages get their numbers.
pub trait NoiseSource: std::fmt::Debug + Send + Sync {
    /// Uniform in `[0, 1)` for the choice of token `step` of sentence `sentence`.
    fn uniform(&self, sentence: usize, step: usize) -> f32;

    /// Initial noise of the flow: `frames` rows of 80 standard normals from absolute mel frame `start`, counted from
    /// the first frame of the prompt; row-major `(frames, 80)`.
    fn flow(&self, sentence: usize, start: usize, frames: usize) -> Vec<f32>;

    /// The flow's noise of the prompt's own frames: the same for every sentence and every seed, so that a voice is worked
    /// through once and not anew for each utterance.
    fn prompt_flow(&self, start: usize, frames: usize) -> Vec<f32> {
        self.flow(0, start, frames)
    }

    /// Initial phases of the harmonics, uniform in `(-pi, pi)`; the first is 0.
    fn phases(&self, sentence: usize, harmonics: usize) -> Vec<f32>;

    /// Standard normals of the vocoder's source: `samples` rows of `harmonics` from absolute sample `start`, row-major
    /// `(samples, harmonics)`.
    fn source(&self, sentence: usize, start: usize, samples: usize, harmonics: usize) -> Vec<f32>;
}

/// Noise from a seed.
#[derive(Debug, Clone, Copy)]
pub struct SeededNoise {
    seed: u64,
}

/// What a number is drawn for; keeps the streams apart.
#[derive(Clone, Copy)]
enum Purpose {
    Token = 1,
    Flow = 2,
    Phase = 3,
    Source = 4,
}

impl SeededNoise {
    /// The noise of `seed`.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    fn block(&self, purpose: Purpose, sentence: usize, index: u64) -> [u32; 4] {
        let counter = [index as u32, (index >> 32) as u32, sentence as u32, purpose as u32];
        philox(counter, [self.seed as u32, (self.seed >> 32) as u32])
    }

    /// Normals `first..first + out.len()` of a stream, by Box and Muller, four to a block.
    fn normals(&self, purpose: Purpose, sentence: usize, first: u64, out: &mut [f32]) {
        let mut done = 0;
        while done < out.len() {
            let at = first + done as u64;
            let words = self.block(purpose, sentence, at / 4);
            let (a, b) = box_muller(words[0], words[1]);
            let (c, d) = box_muller(words[2], words[3]);
            let four = [a, b, c, d];
            let skip = (at % 4) as usize;
            let take = (4 - skip).min(out.len() - done);
            out[done..done + take].copy_from_slice(&four[skip..skip + take]);
            done += take;
        }
    }
}

impl NoiseSource for SeededNoise {
    fn uniform(&self, sentence: usize, step: usize) -> f32 {
        // 24 bits: every value is a float below 1.
        (self.block(Purpose::Token, sentence, step as u64)[0] >> 8) as f32 / (1u32 << 24) as f32
    }

    fn flow(&self, sentence: usize, start: usize, frames: usize) -> Vec<f32> {
        let mut out = vec![0.0; frames * 80];
        self.normals(Purpose::Flow, sentence, start as u64 * 80, &mut out);
        out
    }

    fn prompt_flow(&self, start: usize, frames: usize) -> Vec<f32> {
        Self::new(0).flow(0, start, frames)
    }

    fn phases(&self, sentence: usize, harmonics: usize) -> Vec<f32> {
        let draw = |h: usize| open_unit(self.block(Purpose::Phase, sentence, h as u64)[0]) * 2.0 * PI - PI;
        (0..harmonics).map(|h| if h == 0 { 0.0 } else { draw(h) }).collect()
    }

    fn source(&self, sentence: usize, start: usize, samples: usize, harmonics: usize) -> Vec<f32> {
        let mut out = vec![0.0; samples * harmonics];
        self.normals(Purpose::Source, sentence, (start * harmonics) as u64, &mut out);
        out
    }
}

fn open_unit(word: u32) -> f32 {
    ((word >> 9) as f32 + 0.5) / (1u32 << 23) as f32
}

fn box_muller(a: u32, b: u32) -> (f32, f32) {
    let radius = (-2.0 * open_unit(a).ln()).sqrt();
    let angle = 2.0 * PI * open_unit(b);
    (radius * angle.cos(), radius * angle.sin())
}

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    const M0: u64 = 0xD251_1F53;
    const M1: u64 = 0xCD9E_8D57;
    for _ in 0..10 {
        let p0 = M0 * u64::from(counter[0]);
        let p1 = M1 * u64::from(counter[2]);
        counter =
            [(p1 >> 32) as u32 ^ counter[1] ^ key[0], p1 as u32, (p0 >> 32) as u32 ^ counter[3] ^ key[1], p0 as u32];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_matches_the_published_vectors() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    }

    #[test]
    fn a_draw_depends_on_its_place_and_not_on_the_chunk() {
        let noise = SeededNoise::new(7);
        let whole = noise.flow(0, 0, 10);
        assert_eq!(whole[3 * 80..7 * 80], noise.flow(0, 3, 4)[..]);
        let source = noise.source(0, 0, 100, 9);
        assert_eq!(source[13 * 9..50 * 9], noise.source(0, 13, 37, 9)[..]);
        assert_ne!(whole, noise.flow(1, 0, 10));
        assert_eq!(noise.prompt_flow(2, 9), SeededNoise::new(8).prompt_flow(2, 9));
        assert_ne!(whole, SeededNoise::new(8).flow(0, 0, 10));
    }

    #[test]
    fn normals_have_mean_zero_and_variance_one() {
        let xs = SeededNoise::new(1).flow(0, 0, 2000);
        let n = xs.len() as f32;
        let mean = xs.iter().sum::<f32>() / n;
        let var = xs.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / n;
        assert!(mean.abs() < 0.01 && (var - 1.0).abs() < 0.02, "mean {mean}, variance {var}");
    }
}
