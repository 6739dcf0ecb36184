//! `myna voice prepare`: turn a clip into a voice file.

use std::path::PathBuf;
use std::time::Instant;

use clap::{Args, Subcommand};
use myna_engine::files::AtomicFile;
use myna_engine::model::Model;
use myna_engine::protocol::CancelToken;
use myna_engine::trace::Trace;

use super::ModelArgs;
use super::report::{print_json, print_line};
use crate::audio_file::decode;

/// Options of `myna voice`.
#[derive(Debug, Args)]
pub struct VoiceArgs {
    #[command(subcommand)]
    command: VoiceCommand,
}

#[derive(Debug, Subcommand)]
enum VoiceCommand {
    /// Prepare a voice from a clip, once and for all.
    Prepare(PrepareArgs),
}

#[derive(Debug, Args)]
struct PrepareArgs {
    /// The clip: ten seconds of one person speaking.
    clip: PathBuf,
    /// Where to write the voice (.safetensors).
    #[arg(long)]
    out: PathBuf,
    /// Name for people [default: that of the clip].
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    model: ModelArgs,
    /// Write the tensors of every stage into this folder.
    #[arg(long, value_name = "DIR")]
    trace: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &VoiceArgs) -> anyhow::Result<()> {
    let VoiceCommand::Prepare(args) = &args.command;
    // Refused before the work, not after.
    drop(AtomicFile::create(&args.out)?);
    let clip = decode(&args.clip)?;
    let model = Model::load(&args.model.request(), &mut |_, _| ())?;
    let stem = args.clip.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let name = args.name.clone().unwrap_or(stem);
    let trace = match &args.trace {
        Some(folder) => Trace::into(folder)?,
        None => Trace::off(),
    };
    let started = Instant::now();
    let voice = model.prepare_voice(&clip, &name, &CancelToken::default(), &trace)?;
    let voice_ms = started.elapsed().as_secs_f64() * 1e3;
    voice.save(&args.out)?;
    if args.json {
        print_json(&serde_json::json!({
            "name": voice.name,
            "clip_secs": clip.secs(),
            "voice_ms": voice_ms,
            "t3_prompt_tokens": voice.t3.prompt_tokens.len(),
            "s3gen_prompt_tokens": voice.s3gen.prompt_token.len(),
            "variant": model.info().variant.spec().name,
        }))
    } else {
        print_line(&format!("{}: the voice of {:.1} s, prepared in {voice_ms:.0} ms", args.out.display(), clip.secs()))
    }
}
