//! What a job did, as JSON or as a line for people.

use std::io::Write;

use myna_engine::protocol::{ModelInfo, StageTimes, Stats};
use serde::Serialize;

/// Figures of one job. Names are stable.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Seconds of sound.
    pub audio_secs: f64,
    /// Seconds of work per second of sound.
    pub rtf: f64,
    /// To the first sound.
    pub ttfa_ms: f64,
    /// Speech tokens.
    pub tokens: usize,
    /// Speech tokens per second of T3's own time.
    pub tokens_per_sec: f64,
    /// Milliseconds in each stage.
    pub stages: StageTimes,
    /// Seed of every random choice.
    pub seed: u64,
    /// Member of the family.
    pub variant: &'static str,
    /// How weights are stored.
    pub precision: &'static str,
    /// Processor in words.
    pub device: String,
    /// Number of threads.
    pub threads: usize,
    /// Largest resident size so far.
    pub peak_rss_bytes: u64,
    /// Times that playback ran dry.
    pub underruns: usize,
    /// Time to load the model.
    pub load_ms: f64,
    /// Sentences spoken.
    pub sentences: usize,
}

impl Report {
    /// Of finished figures.
    pub fn new(info: &ModelInfo, stats: &Stats, voice_ms: f64, seed: u64, underruns: usize) -> Self {
        Self {
            audio_secs: stats.audio_secs,
            rtf: stats.rtf,
            ttfa_ms: stats.ttfa_ms,
            tokens: stats.tokens,
            tokens_per_sec: stats.tokens_per_sec,
            stages: StageTimes { voice: stats.stages.voice + voice_ms, ..stats.stages },
            seed,
            variant: info.variant.spec().name,
            precision: info.precision.name(),
            device: info.device.clone(),
            threads: info.threads,
            peak_rss_bytes: peak_rss_bytes(),
            underruns,
            load_ms: info.load_ms,
            sentences: stats.sentences,
        }
    }

    /// One line for people.
    pub fn line(&self) -> String {
        format!(
            "{:.2} s of sound, {:.2} times its length to make, first sound after {:.0} ms, {:.0} tokens/s",
            self.audio_secs, self.rtf, self.ttfa_ms, self.tokens_per_sec
        )
    }
}

/// Writes one JSON object and a line end to standard output.
///
/// # Errors
/// If nobody reads.
pub fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, value)?;
    writeln!(out)?;
    Ok(())
}

/// Writes a line to standard output.
///
/// # Errors
/// If nobody reads.
pub fn print_line(line: &str) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout().lock(), "{line}")?)
}

/// The largest resident size of this process so far; 0 where the system does not say.
pub fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
