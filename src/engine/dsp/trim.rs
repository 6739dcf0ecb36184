//! Where a clip is not silent: `librosa.effects.trim`.

use std::ops::Range;

const FRAME: usize = 2048;
const HOP: usize = 512;

/// The part of `samples` from the first to the last frame whose level is within `top_db` of the loudest frame's; all of
/// it if every frame is alike, as in silence. Frames of 2048 samples every 512, centred, zeros beyond the ends.
pub fn trim(samples: &[f32], top_db: f64) -> Range<usize> {
    if samples.is_empty() {
        return 0..0;
    }
    let frames = samples.len() / HOP + 1;
    let level = |t: usize| {
        let middle = t * HOP;
        let frame = &samples[middle.saturating_sub(FRAME / 2)..(middle + FRAME / 2).min(samples.len())];
        let power = frame.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>() / FRAME as f64;
        20.0 * power.sqrt().max(1e-5).log10()
    };
    let levels: Vec<f64> = (0..frames).map(level).collect();
    let threshold = levels.iter().copied().fold(f64::NEG_INFINITY, f64::max) - top_db;
    let first = levels.iter().position(|level| *level > threshold);
    let last = levels.iter().rposition(|level| *level > threshold);
    match first.zip(last) {
        Some((first, last)) => first * HOP..samples.len().min((last + 1) * HOP),
        None => 0..0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dsp::testing::Fixture;

    fn ends(range: &Range<usize>) -> Vec<i64> {
        vec![range.start as i64, range.end as i64]
    }

    #[test]
    fn equals_librosa() {
        let fixture = Fixture::open("tiny/stages/frontend");
        let wav = fixture.values("wav16");
        assert_eq!(ends(&trim(&wav, 20.0)), fixture.integers("trim_index"));
        let mut tone = vec![0f32; 3000];
        tone.extend_from_slice(&wav[6000..14000]);
        tone.extend(wav[..5000].iter().map(|x| 0.001 * x));
        assert_eq!(ends(&trim(&tone, 20.0)), fixture.integers("trim_tone_index"));
    }

    #[test]
    fn silence_is_kept_and_nothing_is_nothing() {
        assert_eq!(trim(&[0.0; 5000], 20.0), 0..5000);
        assert_eq!(trim(&[], 20.0), 0..0);
        assert_eq!(trim(&[0.5], 20.0), 0..1);
    }
}
