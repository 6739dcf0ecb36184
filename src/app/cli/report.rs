//! What a job did, as JSON or as a line for people.

use std::io::Write;

use myna_engine::protocol::{ModelInfo, Stats};
use serde::Serialize;

use crate::machine::peak_rss_bytes;

/// Figures of one job. Names are stable.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The engine's.
    #[serde(flatten)]
    stats: Stats,
    /// Seed of every random choice.
    seed: u64,
    /// Member of the family.
    variant: &'static str,
    /// How weights are stored.
    precision: &'static str,
    /// Processor in words.
    device: String,
    /// Number of threads.
    threads: usize,
    /// Largest resident size so far.
    peak_rss_bytes: u64,
    /// Times that playback ran dry.
    pub underruns: usize,
    /// From the request to the first sample that the sound device took, where one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heard_ms: Option<f64>,
    /// Time to load the model.
    load_ms: f64,
}

impl Report {
    /// Of finished figures; preparing the voice took `voice_ms` more.
    pub fn new(info: &ModelInfo, mut stats: Stats, voice_ms: f64, seed: u64) -> Self {
        stats.stages.voice += voice_ms;
        Self {
            stats,
            seed,
            variant: info.variant.spec().name,
            precision: info.precision.name(),
            device: info.device.clone(),
            threads: info.threads,
            peak_rss_bytes: peak_rss_bytes(),
            underruns: 0,
            heard_ms: None,
            load_ms: info.load_ms,
        }
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let Stats { audio_secs, rtf, ttfa_ms, tokens_per_sec, .. } = self.stats;
        let first = self.heard_ms.unwrap_or(ttfa_ms);
        format!(
            "{audio_secs:.2} s of sound, {rtf:.2} times its length to make, first sound after {first:.0} ms, \
             {tokens_per_sec:.0} tokens/s"
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

/// Says something beside the sound, on standard error.
#[allow(clippy::print_stderr)]
pub fn print_note(text: &str) {
    eprintln!("{text}");
}
