//! `myna convert`: say a recording again in another voice.

use std::path::PathBuf;

use clap::Args;
use myna_engine::convert::ConvertRequest;
use myna_engine::protocol::SpeakSettings;

use super::job::JobArgs;
use crate::audio_file::decode;

/// Options of `myna convert`.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// The recording whose words are kept.
    #[arg(long)]
    source: PathBuf,
    #[command(flatten)]
    job: JobArgs,
    /// Seed of every random choice.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Flow steps.
    #[arg(long)]
    steps: Option<usize>,
}

/// Runs the command.
pub fn run(args: &ConvertArgs) -> anyhow::Result<()> {
    args.job.output.check(false)?;
    let source = decode(&args.source)?;
    let settings = |defaults: &SpeakSettings| SpeakSettings {
        seed: args.seed,
        steps: args.steps.unwrap_or(defaults.steps),
        ..defaults.clone()
    };
    let mut job = args.job.begin(settings)?;
    let request = ConvertRequest {
        source,
        voice: job.voice.clone(),
        steps: job.settings.steps,
        cancel: job.cancel.clone(),
        noise: job.noise.clone(),
        trace: job.trace.clone(),
    };
    let (samples, stats) = job.model.convert(&request)?;
    job.sink.push(&samples)?;
    let report = job.report(stats);
    args.job.end(job.sink, &report)
}
