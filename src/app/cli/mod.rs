//! The command line. Data goes to standard output, errors to standard error.
//!
//! Exit codes: 0 done, 2 wrong usage or bad input, 1 anything else.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use myna_engine::protocol::{DeviceKind, LoadRequest, ModelSource, Precision, PrecisionPlan};
use myna_engine::{Error, Variant};

use crate::download::{gigabytes, models_folder, release};

mod ab;
mod bench;
mod convert;
mod eval;
mod fetch;
mod inspect;
mod job;
mod output;
mod play;
mod report;
mod say;
mod voice;
mod watermark;

/// Clone a voice and speak. Without a command, Myna opens its window.
#[derive(Debug, Parser)]
#[command(name = "myna", version, about)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Speak a text in a voice.
    Say(say::SayArgs),
    /// Prepare voices.
    Voice(voice::VoiceArgs),
    /// Say a recording again in another voice.
    Convert(convert::ConvertArgs),
    /// Get a released model, or list them.
    Fetch(fetch::FetchArgs),
    /// Say what a model folder holds and what it lacks.
    Inspect(inspect::InspectArgs),
    /// Look for the watermark.
    Watermark(watermark::WatermarkArgs),
    /// Speak the same at two settings, and compare.
    Ab(ab::AbArgs),
    /// Measure every stage.
    Bench(bench::BenchArgs),
    /// Speak sentences in voices and measure what comes out.
    Eval(eval::EvalArgs),
}

/// Which model, and how it runs.
#[derive(Debug, Clone, Args)]
pub struct ModelArgs {
    /// Model folder, the name of a released model that `myna fetch` got, or `embedded` for the small model inside Myna.
    #[arg(long, default_value = "embedded", value_name = "DIR|NAME|embedded", value_parser = parse_model)]
    model: PathBuf,
    /// english, multilingual-v2, multilingual-v3, turbo or nano; needed only where a folder holds several.
    #[arg(long, value_parser = parse_variant)]
    variant: Option<Variant>,
    /// How weights are stored.
    #[arg(long, value_enum, default_value_t = PrecisionArg::F32)]
    precision: PrecisionArg,
    /// The same for the keys and values that T3 looks back at [default: as --precision, but f16 for int8].
    #[arg(long, value_enum, value_name = "PRECISION")]
    cache_precision: Option<PrecisionArg>,
    /// The same for the flow alone [default: as --precision].
    #[arg(long, value_enum, value_name = "PRECISION")]
    flow_precision: Option<PrecisionArg>,
    /// The same for the encoders that hear the voice [default: as --precision, but f16 for int8].
    #[arg(long, value_enum, value_name = "PRECISION")]
    encoder_precision: Option<PrecisionArg>,
    /// Which processor.
    #[arg(long, value_enum, default_value_t = DeviceArg::Cpu)]
    device: DeviceArg,
    /// Number of threads [default: all cores].
    #[arg(long)]
    threads: Option<usize>,
    /// Keep nothing on the disk for the next start with the same model.
    #[arg(long)]
    no_cache: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum PrecisionArg {
    F32,
    F16,
    Bf16,
    Int8,
}

impl PrecisionArg {
    fn get(self) -> Precision {
        match self {
            Self::F32 => Precision::F32,
            Self::F16 => Precision::F16,
            Self::Bf16 => Precision::Bf16,
            Self::Int8 => Precision::Int8,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum DeviceArg {
    Cpu,
    Cuda,
    Metal,
}

/// A folder, or the name of a released model that is here.
fn parse_model(name: &str) -> Result<PathBuf, String> {
    let (path, Some(release), Some(models)) = (PathBuf::from(name), release(name), models_folder()) else {
        return Ok(name.into());
    };
    if path.exists() {
        return Ok(path);
    }
    if release.is_there(&models) {
        return Ok(release.folder(&models));
    }
    Err(format!("{} is not here yet; `myna fetch {name}` gets it ({})", release.title, gigabytes(release.bytes())))
}

fn parse_variant(name: &str) -> Result<Variant, String> {
    Variant::from_name(name)
        .ok_or_else(|| format!("unknown variant; known are {}", Variant::ALL.map(|v| v.spec().name).join(", ")))
}

impl ModelArgs {
    /// The same model at another precision.
    fn with_precision(&self, precision: PrecisionArg) -> LoadRequest {
        Self { precision, cache_precision: None, flow_precision: None, encoder_precision: None, ..self.clone() }
            .request()
    }

    fn request(&self) -> LoadRequest {
        let source = match self.model.to_str() {
            Some("embedded") => ModelSource::Embedded,
            _ => ModelSource::Folder(self.model.clone()),
        };
        let precision = self.precision.get();
        let plan = PrecisionPlan {
            flow: self.flow_precision.map_or(precision.plan().flow, PrecisionArg::get),
            encoders: self.encoder_precision.map_or(precision.plan().encoders, PrecisionArg::get),
            t3_cache: self.cache_precision.map_or(precision.plan().t3_cache, PrecisionArg::get),
            ..precision.plan()
        };
        let device = match self.device {
            DeviceArg::Cpu => DeviceKind::Cpu,
            DeviceArg::Cuda => DeviceKind::Cuda,
            DeviceArg::Metal => DeviceKind::Metal,
        };
        let cache = if self.no_cache { None } else { crate::cache_folder() };
        LoadRequest { source, variant: self.variant, precision, plan: Some(plan), device, threads: self.threads, cache }
    }
}

/// Runs the command of the command line; `window` is called where there is none.
pub fn run(window: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    // clap itself ends with 0 for help and 2 for wrong usage.
    let outcome = match Cli::parse().command {
        None => window(),
        Some(Command::Say(args)) => say::run(&args),
        Some(Command::Voice(args)) => voice::run(&args),
        Some(Command::Convert(args)) => convert::run(&args),
        Some(Command::Fetch(args)) => fetch::run(&args),
        Some(Command::Inspect(args)) => inspect::run(&args),
        Some(Command::Watermark(args)) => watermark::run(&args),
        Some(Command::Ab(args)) => ab::run(&args),
        Some(Command::Bench(args)) => bench::run(&args),
        Some(Command::Eval(args)) => eval::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report_error(&error),
    }
}

/// Exit code of a program that was interrupted.
const INTERRUPTED: u8 = 130;

fn report_error(error: &anyhow::Error) -> ExitCode {
    let ours = || error.chain().filter_map(|e| e.downcast_ref::<Error>());
    if ours().any(|e| matches!(e, Error::Cancelled)) {
        return ExitCode::from(INTERRUPTED);
    }
    let broken = |e: &(dyn std::error::Error + 'static)| {
        e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    };
    if error.chain().any(broken) {
        // Whoever reads has heard enough.
        return ExitCode::SUCCESS;
    }
    report::print_note(&format!("myna: {error:#}"));
    ExitCode::from(if ours().any(Error::is_bad_input) { 2 } else { 1 })
}
