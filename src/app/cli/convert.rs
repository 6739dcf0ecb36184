//! `myna convert`: say a recording again in another voice.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use myna_engine::convert::ConvertRequest;
use myna_engine::model::Model;
use myna_engine::protocol::{CancelToken, SAMPLE_RATE_HZ};

use super::ModelArgs;
use super::report::{Report, print_json, print_line};
use super::say::{ReplayArgs, VoiceChoice, check_out, format_of, provenance};
use crate::audio_file::decode;
use crate::export::save;

/// Options of `myna convert`.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// The recording whose words are kept.
    #[arg(long)]
    source: PathBuf,
    #[command(flatten)]
    voice: VoiceChoice,
    #[command(flatten)]
    model: ModelArgs,
    /// Where to write the sound: .wav or .flac.
    #[arg(long)]
    out: PathBuf,
    /// Seed of every random choice.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Flow steps.
    #[arg(long)]
    steps: Option<usize>,
    /// Print one JSON object with all figures.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    replay: ReplayArgs,
}

/// Runs the command.
pub fn run(args: &ConvertArgs) -> anyhow::Result<()> {
    let format = format_of(&args.out)?;
    check_out(&args.out)?;
    let source = decode(&args.source)?;
    let trace = args.replay.trace()?;
    let model = Arc::new(Model::load(&args.model.request(), &mut |_, _| ())?);
    let mut settings = model.info().defaults.clone();
    settings.seed = args.seed;
    settings.steps = args.steps.unwrap_or(settings.steps);
    let (voice, voice_ms) = args.voice.load(&model, &trace)?;
    let request = ConvertRequest {
        source,
        voice: voice.clone(),
        steps: settings.steps,
        cancel: CancelToken::default(),
        noise: args.replay.noise(args.seed)?,
        trace,
    };
    let (samples, stats) = model.convert(&request)?;
    save(&args.out, &samples, SAMPLE_RATE_HZ, format, &provenance(&model, &voice, &settings))?;
    let report = Report::new(model.info(), &stats, voice_ms, args.seed, 0);
    if args.json { print_json(&report) } else { print_line(&format!("{}: {}", args.out.display(), report.line())) }
}
