//! What can be measured of speech without a recogniser: pitch, loudness, the spectrum, likeness of two voices.

use myna_engine::dsp::mel::s3gen_mel;
use myna_engine::dsp::{Features, Pcm};
use myna_engine::model::Model;
use myna_engine::protocol::CancelToken;
use myna_engine::trace::Trace;

/// The voice encoder hears 1.6 s at a time.
const MIN_VOICE_SECS: f32 = 1.6;
/// Lowest and highest pitch that is looked for.
const F0_HZ: (f32, f32) = (55.0, 480.0);
/// Rate at which pitch is looked for.
const RATE_HZ: u32 = 16_000;
/// One frame each 20 ms, over 30 ms.
const HOP: usize = 320;
const WINDOW: usize = 480;
/// A dip of the normalised difference below this is a period; the deepest one counts below the second.
const CLEAR: f32 = 0.18;
const VOICED: f32 = 0.32;
/// Frames this much weaker than the strongest are silence.
const SILENT: f32 = 2e-4;

/// The median pitch of the voiced parts in Hz; none where hardly anything is voiced.
///
/// The YIN estimator (de Cheveigné and Kawahara 2002): the first deep dip of the cumulative-mean-normalised difference.
///
/// # Errors
/// If the rate is not one of audio.
pub fn median_f0_hz(pcm: &Pcm) -> myna_engine::Result<Option<f32>> {
    let wave = pcm.at_rate(RATE_HZ)?;
    let longest = (RATE_HZ as f32 / F0_HZ.0) as usize;
    let frames: Vec<&[f32]> = wave.windows(WINDOW + longest).step_by(HOP).collect();
    let power = |frame: &[f32]| frame[..WINDOW].iter().map(|x| x * x).sum::<f32>();
    let loudest = frames.iter().map(|frame| power(frame)).fold(0.0, f32::max);
    let mut found: Vec<f32> = frames
        .iter()
        .filter(|frame| power(frame) > SILENT * loudest)
        .filter_map(|frame| f0_hz(frame, longest))
        .collect();
    found.sort_by(f32::total_cmp);
    Ok((found.len() > 5).then(|| found[found.len() / 2]))
}

fn f0_hz(frame: &[f32], longest: usize) -> Option<f32> {
    let shortest = (RATE_HZ as f32 / F0_HZ.1) as usize;
    let mut sum = 0.0;
    let normalised: Vec<f32> = (1..=longest)
        .map(|lag| {
            let pairs = frame[..WINDOW].iter().zip(&frame[lag..]);
            let difference: f32 = pairs.map(|(a, b)| (a - b) * (a - b)).sum();
            sum += difference;
            difference * lag as f32 / (sum + 1e-9)
        })
        .collect();
    let dips = (shortest.max(2)..longest).filter(|&lag| {
        let [before, here, after] = [lag - 2, lag - 1, lag].map(|i| normalised[i]);
        here <= before && here < after
    });
    let depth = |lag: &usize| normalised[lag - 1];
    let mut dips = dips.collect::<Vec<_>>().into_iter();
    let deepest = dips.clone().min_by(|a, b| depth(a).total_cmp(&depth(b)))?;
    let lag = dips.find(|lag| depth(lag) < CLEAR).unwrap_or(deepest);
    (depth(&lag) < VOICED).then_some(RATE_HZ as f32 / lag as f32)
}

/// Distance of two pitches in semitones.
pub fn semitones(a_hz: f32, b_hz: f32) -> f32 {
    12.0 * (a_hz / b_hz).log2().abs()
}

/// Mean level of the parts that are not silent, in dBFS.
pub fn level_db(samples: &[f32]) -> f32 {
    let peak = samples.iter().fold(0.0_f32, |top, x| top.max(x.abs()));
    let loud: Vec<f32> = samples.iter().filter(|x| x.abs() > 0.01 * peak).map(|x| x * x).collect();
    10.0 * (loud.iter().sum::<f32>() / loud.len().max(1) as f32 + 1e-12).log10()
}

/// The log mel of a sound, summed up.
#[derive(Debug, Clone, PartialEq)]
pub struct MelStatistics {
    /// Mean of each band over the louder half of the frames, natural logarithm.
    pub mean: Vec<f32>,
    /// Standard deviation over time, averaged over the bands.
    pub deviation: f32,
}

impl MelStatistics {
    /// Of a clip.
    ///
    /// # Errors
    /// If the clip is shorter than a frame or its rate is not one of audio.
    pub fn of(pcm: &Pcm) -> myna_engine::Result<Self> {
        let Features { data, frames, bands } = s3gen_mel(&pcm.at_rate(24_000)?)?;
        let mut rows: Vec<&[f32]> = data.chunks_exact(bands).collect();
        let sum = |row: &[f32]| row.iter().sum::<f32>();
        rows.sort_by(|a, b| sum(b).total_cmp(&sum(a)));
        rows.truncate(frames.div_ceil(2));
        let count = rows.len() as f32;
        let mean: Vec<f32> = (0..bands).map(|band| rows.iter().map(|row| row[band]).sum::<f32>() / count).collect();
        let variance = |band: usize| rows.iter().map(|row| (row[band] - mean[band]).powi(2)).sum::<f32>() / count;
        let deviation = (0..bands).map(|band| variance(band).sqrt()).sum::<f32>() / bands as f32;
        Ok(Self { mean, deviation })
    }

    /// Mean distance of the average spectra, levels made equal, in natural-logarithm units.
    pub fn distance(&self, other: &Self) -> f32 {
        let differences: Vec<f32> = self.mean.iter().zip(&other.mean).map(|(a, b)| a - b).collect();
        let level = differences.iter().sum::<f32>() / differences.len().max(1) as f32;
        differences.iter().map(|d| (d - level).abs()).sum::<f32>() / differences.len().max(1) as f32
    }
}

/// Whose voice it is, as the model's VoiceEncoder hears it; nothing where a word or two are too short to tell voices apart.
pub fn speaker_embedding(model: &Model, pcm: &Pcm) -> Option<Vec<f32>> {
    if pcm.secs() < MIN_VOICE_SECS {
        return None;
    }
    model.prepare_voice(pcm, "take", &CancelToken::default(), &Trace::off()).ok().map(|voice| voice.t3.speaker_emb)
}

/// The middle value, or the mean of the two in the middle; 0 of none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

/// Cosine of two voices' embeddings.
pub fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt().max(1e-12)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A sawtooth-like voice: all harmonics below 11 kHz, falling with their number.
    fn voice(f0_hz: f32, gain: f32) -> Pcm {
        let sample = |i: usize| {
            let phase = std::f32::consts::TAU * f0_hz * i as f32 / 24_000.0;
            let harmonics = 1..=(11_000.0 / f0_hz) as u16;
            gain * harmonics.map(|k| (phase * f32::from(k)).sin() / f32::from(k)).sum::<f32>()
        };
        Pcm { samples: (0..24_000).map(sample).collect(), sample_rate_hz: 24_000 }
    }

    #[test]
    fn pitch_is_found_within_a_fifth_of_a_semitone() {
        for f0 in [70.0, 110.0, 160.0, 230.0, 320.0] {
            let found = median_f0_hz(&voice(f0, 0.1)).unwrap().unwrap();
            assert!(semitones(found, f0) < 0.2, "{f0} Hz was taken for {found} Hz");
        }
        let silence = Pcm { samples: vec![0.0; 24_000], sample_rate_hz: 24_000 };
        assert_eq!(median_f0_hz(&silence).unwrap(), None);
    }

    #[test]
    fn level_changes_the_level_and_nothing_else() {
        let (soft, loud) = (voice(120.0, 0.05), voice(120.0, 0.2));
        assert!((level_db(&loud.samples) - level_db(&soft.samples) - 12.04).abs() < 0.1);
        let [soft, loud] = [&soft, &loud].map(|pcm| MelStatistics::of(pcm).unwrap());
        assert!(soft.distance(&loud) < 0.1 && soft.distance(&soft) < 1e-6);
        assert!(soft.distance(&MelStatistics::of(&voice(300.0, 0.05)).unwrap()) > 0.2);
    }
}
