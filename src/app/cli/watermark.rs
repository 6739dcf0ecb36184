//! `myna watermark detect`: is this file marked as generated?

use std::path::PathBuf;

use clap::{Args, Subcommand};
use myna_engine::watermark::{MARKED_FROM, WatermarkDetector};

use super::report::{print_json, print_line};
use crate::audio_file::decode;

/// Options of `myna watermark`.
#[derive(Debug, Args)]
pub struct WatermarkArgs {
    #[command(subcommand)]
    command: WatermarkCommand,
}

#[derive(Debug, Subcommand)]
enum WatermarkCommand {
    /// Tell whether a file carries the mark.
    Detect(DetectArgs),
}

#[derive(Debug, Args)]
struct DetectArgs {
    /// The audio file.
    file: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &WatermarkArgs) -> anyhow::Result<()> {
    let WatermarkCommand::Detect(args) = &args.command;
    let clip = decode(&args.file)?;
    let score = WatermarkDetector::embedded()?.detect(&clip.samples, clip.sample_rate_hz)?;
    let marked = score >= MARKED_FROM;
    if args.json {
        return print_json(&serde_json::json!({ "watermarked": marked, "score": score, "audio_secs": clip.secs() }));
    }
    let verdict = if marked { "carries the watermark" } else { "carries no watermark" };
    print_line(&format!("{} {verdict} (score {score:.3})", args.file.display()))
}
