//! What a clip is worth as a voice, in plain words: its length, clipping, noise, silence and loudness.

use myna_engine::dsp::loudness::integrated_loudness;

const FRAME_SECS: f32 = 0.02;
/// A frame this far below the loud ones counts as silence.
const SILENCE_DB: f32 = 40.0;
/// Samples at least this high, three in a row, were cut off.
const CLIPPED: f32 = 0.985;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Fine.
    Good,
    /// It will be heard.
    Warn,
    /// It will spoil the voice.
    Bad,
}

/// One remark about a clip.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// How much it matters.
    pub level: Level,
    /// What it says.
    pub text: String,
}

/// All remarks about a clip.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// The worst first.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The worst level.
    pub fn level(&self) -> Level {
        self.findings.iter().map(|f| f.level).max().unwrap_or(Level::Good)
    }
}

/// Looks at the part of a clip that will be used.
pub fn check(samples: &[f32], sample_rate_hz: u32) -> Report {
    let secs = samples.len() as f32 / sample_rate_hz.max(1) as f32;
    let frames = frame_levels_db(samples, sample_rate_hz);
    let loud = percentile(&frames, 0.95);
    let mut findings = vec![length(secs)];
    if loud < -65.0 {
        findings.push(finding(Level::Bad, "There is only silence in it"));
    } else {
        findings.push(clipping(samples));
        findings.push(noise(loud, percentile(&frames, 0.05)));
        findings.extend(silence(&frames, loud));
        findings.push(loudness(samples, sample_rate_hz));
    }
    findings.sort_by_key(|f| std::cmp::Reverse(f.level));
    Report { findings }
}

fn finding(level: Level, text: impl Into<String>) -> Finding {
    Finding { level, text: text.into() }
}

fn length(secs: f32) -> Finding {
    match secs {
        s if s < 1.0 => finding(Level::Bad, format!("{s:.1} s is too short; use at least 3 seconds")),
        s if s < 3.0 => finding(Level::Bad, format!("{s:.1} s is short; 6 seconds or more sound much better")),
        s if s < 6.0 => finding(Level::Warn, format!("{s:.1} s will do; 6 seconds or more sound better")),
        s => finding(Level::Good, format!("{s:.1} s, long enough")),
    }
}

fn clipping(samples: &[f32]) -> Finding {
    let (mut run, mut clipped) = (0usize, 0usize);
    for sample in samples {
        run = if sample.abs() >= CLIPPED { run + 1 } else { 0 };
        clipped += match run {
            3 => 3,
            r if r > 3 => 1,
            _ => 0,
        };
    }
    let share = clipped as f32 / samples.len().max(1) as f32;
    match share {
        s if s > 0.002 => finding(Level::Bad, "It is clipped: the peaks are cut off; record it more quietly"),
        s if s > 0.0 => finding(Level::Warn, "A few peaks are clipped"),
        _ => finding(Level::Good, "No clipping"),
    }
}

fn noise(loud_db: f32, floor_db: f32) -> Finding {
    match loud_db - floor_db {
        d if d < 15.0 => finding(Level::Bad, "It is noisy, and the voice will be too; try a quieter room"),
        d if d < 25.0 => finding(Level::Warn, "There is some noise behind the voice"),
        _ => finding(Level::Good, "Little noise"),
    }
}

fn silence(frames: &[f32], loud_db: f32) -> Option<Finding> {
    let quiet = frames.iter().filter(|&&level| level < loud_db - SILENCE_DB).count();
    let share = quiet as f32 / frames.len().max(1) as f32;
    (share > 0.4).then(|| finding(Level::Warn, format!("{:.0} % of it is silence; trim it", share * 100.0)))
}

fn loudness(samples: &[f32], sample_rate_hz: u32) -> Finding {
    match integrated_loudness(samples, sample_rate_hz) {
        Some(lufs) if lufs < -45.0 => finding(Level::Warn, "It is very quiet; move closer to the microphone"),
        Some(lufs) if lufs > -9.0 => finding(Level::Warn, "It is very loud"),
        Some(lufs) => finding(Level::Good, format!("Good level ({lufs:.0} LUFS)")),
        None => finding(Level::Warn, "Its loudness cannot be told"),
    }
}

fn frame_levels_db(samples: &[f32], sample_rate_hz: u32) -> Vec<f32> {
    let n = ((sample_rate_hz as f32 * FRAME_SECS) as usize).max(1);
    let level = |frame: &[f32]| {
        let power = frame.iter().map(|s| s * s).sum::<f32>() / frame.len() as f32;
        10.0 * (power + 1e-10).log10()
    };
    samples.chunks_exact(n).map(level).collect()
}

fn percentile(values: &[f32], share: f32) -> f32 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f32::total_cmp);
    let at = (share * sorted.len().saturating_sub(1) as f32) as usize;
    sorted.get(at).copied().unwrap_or(-100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Syllables of a tone with pauses between, over noise.
    fn speechlike(secs: f32, peak: f32, noise: f32) -> Vec<f32> {
        let mut seed = 1u32;
        (0..(secs * 24_000.0) as usize)
            .map(|i| {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let hiss = (seed >> 8) as f32 / 8_388_608.0 - 1.0;
                let t = i as f32 / 24_000.0;
                let gate = if (t * 3.0).fract() < 0.75 { (t * 3.0).fract().min(0.2) * 5.0 } else { 0.0 };
                peak * gate * (t * 140.0 * std::f32::consts::TAU).sin() + noise * hiss
            })
            .collect()
    }

    fn worst(samples: &[f32]) -> (Level, String) {
        let report = check(samples, 24_000);
        (report.level(), report.findings[0].text.clone())
    }

    #[test]
    fn a_good_clip_is_good() {
        let report = check(&speechlike(9.0, 0.3, 0.0005), 24_000);
        assert_eq!(report.level(), Level::Good, "{report:?}");
    }

    #[test]
    fn each_fault_is_named() {
        assert!(worst(&speechlike(0.5, 0.3, 0.0005)).1.contains("too short"));
        assert!(worst(&speechlike(2.0, 0.3, 0.0005)).1.contains("is short"));
        assert_eq!(worst(&speechlike(4.0, 0.3, 0.0005)).0, Level::Warn);
        let clipped: Vec<f32> = speechlike(9.0, 3.0, 0.0).iter().map(|s| s.clamp(-1.0, 1.0)).collect();
        assert!(worst(&clipped).1.contains("clipped"));
        assert!(worst(&speechlike(9.0, 0.3, 0.1)).1.contains("noisy"));
        assert!(worst(&speechlike(9.0, 0.002, 0.00001)).1.contains("quiet"));
        assert!(worst(&vec![0.0; 240_000]).1.contains("silence"));
        let mut mostly_silent = speechlike(4.0, 0.3, 0.0);
        mostly_silent.resize(24_000 * 12, 0.0);
        assert!(worst(&mostly_silent).1.contains("trim"));
        assert_eq!(worst(&[]).0, Level::Bad);
    }
}
