//! `myna say`: speak a text in a voice, into a file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use myna_engine::model::Model;
use myna_engine::noise::{NoiseSource, SeededNoise};
use myna_engine::protocol::{CancelToken, Delivery, Pcm, SAMPLE_RATE_HZ, SpeakSettings};
use myna_engine::replay::{ReplayedNoise, recorded_tokens};
use myna_engine::synthesis::{SpeakRequest, Synthesis};
use myna_engine::trace::Trace;
use myna_engine::{Error, Voice};

use super::ModelArgs;
use super::play::Speaker;
use super::report::{Report, print_json, print_line};
use crate::audio_file::decode;
use crate::export::{Format, Provenance, save};
use crate::library::{Library, read};

/// Options of `myna say`.
#[derive(Debug, Args)]
pub struct SayArgs {
    /// What to say.
    #[arg(long, conflicts_with = "file", required_unless_present = "file")]
    text: Option<String>,
    /// A text file with what to say.
    #[arg(long)]
    file: Option<PathBuf>,
    #[command(flatten)]
    voice: VoiceChoice,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    settings: SettingsArgs,
    /// Where to write the sound: .wav or .flac.
    #[arg(long)]
    out: PathBuf,
    /// How samples are stored [default: by the name of the file: 16-bit WAV or FLAC].
    #[arg(long, value_enum)]
    format: Option<FormatArg>,
    /// Make the sound in small chunks, as the window does, instead of sentence by sentence.
    #[arg(long)]
    stream: bool,
    /// Play the sound while it is made (in chunks, as with `--stream`).
    #[arg(long)]
    play: bool,
    /// Print one JSON object with all figures.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    replay: ReplayArgs,
    /// Take these speech tokens instead of sampling (safetensors with `speech_tokens`).
    #[arg(long, value_name = "FILE")]
    force_tokens: Option<PathBuf>,
}

/// Whose voice.
#[derive(Debug, Clone, Args)]
pub struct VoiceChoice {
    /// A clip, a prepared voice (.safetensors), a conds.pt, or the name of a sample voice [default: the model's own or Walter].
    #[arg(long)]
    voice: Option<PathBuf>,
}

/// Recording and replaying of stages, for comparison with the reference.
#[derive(Debug, Clone, Args)]
pub struct ReplayArgs {
    /// Write the tensors of every stage into this folder.
    #[arg(long, value_name = "DIR")]
    trace: Option<PathBuf>,
    /// Replay recorded noise (safetensors with `z`, `phases`, `noise`).
    #[arg(long, value_name = "FILE")]
    noise: Option<PathBuf>,
}

/// How to speak; what is left out is as the model was made for.
#[derive(Debug, Clone, Args)]
pub struct SettingsArgs {
    /// Language code, for multilingual models.
    #[arg(long)]
    language: Option<String>,
    /// Seed of every random choice.
    #[arg(long, default_value_t = 0)]
    pub(super) seed: u64,
    /// 0 takes the best token at each step.
    #[arg(long)]
    temperature: Option<f32>,
    /// Guidance weight; 0 is about twice as fast.
    #[arg(long)]
    cfg: Option<f32>,
    /// Emotion; 0.5 is neutral.
    #[arg(long)]
    exaggeration: Option<f32>,
    #[arg(long)]
    top_p: Option<f32>,
    #[arg(long)]
    min_p: Option<f32>,
    #[arg(long)]
    top_k: Option<usize>,
    #[arg(long)]
    repetition_penalty: Option<f32>,
    /// Flow steps.
    #[arg(long)]
    steps: Option<usize>,
    /// Most speech tokens for one sentence (25 a second).
    #[arg(long)]
    max_tokens: Option<usize>,
    /// Guard against early ends and hallucinated tails (multilingual-v2).
    #[arg(long)]
    alignment_guard: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum FormatArg {
    Wav16,
    Wav24,
    Wav32f,
    Flac,
}

impl SettingsArgs {
    /// The model's settings with those given put in.
    pub fn over(&self, defaults: &SpeakSettings) -> SpeakSettings {
        SpeakSettings {
            language: self.language.clone().or_else(|| defaults.language.clone()),
            seed: self.seed,
            temperature: self.temperature.unwrap_or(defaults.temperature),
            cfg_weight: self.cfg.unwrap_or(defaults.cfg_weight),
            exaggeration: self.exaggeration.unwrap_or(defaults.exaggeration),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            steps: self.steps.unwrap_or(defaults.steps),
            max_tokens: self.max_tokens.unwrap_or(defaults.max_tokens),
            alignment_guard: self.alignment_guard,
        }
    }
}

impl VoiceChoice {
    /// The voice: read if it is one, else prepared from a clip. Also the milliseconds it took.
    pub fn load(&self, model: &Model, trace: &Trace) -> anyhow::Result<(Arc<Voice>, f64)> {
        let started = Instant::now();
        let prepare = |clip: &Pcm, name: &str| model.prepare_voice(clip, name, &CancelToken::default(), trace);
        let library = Library::with_samples();
        let voice = match &self.voice {
            None => match model.info().builtin_voice.clone() {
                Some(voice) => voice,
                None => {
                    let sample = library.by_name(DEFAULT_VOICE).context("no sample voice")?;
                    Arc::new(prepare(&read(&sample.origin)?.pcm, &sample.name)?)
                }
            },
            Some(path) if is_voice_file(path) => Arc::new(Voice::load(path)?),
            Some(path) => {
                let sample = path.to_str().filter(|_| !path.exists()).and_then(|name| library.by_name(name));
                Arc::new(match sample {
                    Some(sample) => prepare(&read(&sample.origin)?.pcm, &sample.name)?,
                    None => prepare(&decode(path)?, &stem(path))?,
                })
            }
        };
        Ok((voice, started.elapsed().as_secs_f64() * 1e3))
    }
}

/// How fast people read aloud.
const CHARS_PER_SEC: f32 = 15.0;

/// The sample voice for a model that has none of its own.
const DEFAULT_VOICE: &str = "Walter";

fn stem(path: &Path) -> String {
    path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default()
}

fn is_voice_file(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("safetensors") || e.eq_ignore_ascii_case("pt"))
}

impl ReplayArgs {
    /// Where stages are recorded.
    pub fn trace(&self) -> anyhow::Result<Arc<Trace>> {
        Ok(Arc::new(match &self.trace {
            Some(folder) => Trace::into(folder)?,
            None => Trace::off(),
        }))
    }

    /// Recorded noise, or the seed's.
    pub fn noise(&self, seed: u64) -> anyhow::Result<Arc<dyn NoiseSource>> {
        Ok(match &self.noise {
            Some(path) => Arc::new(ReplayedNoise::load(path, seed)?),
            None => Arc::new(SeededNoise::new(seed)),
        })
    }
}

/// The format for a file name.
pub(super) fn format_of(path: &Path) -> anyhow::Result<Format> {
    let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default();
    match extension.as_str() {
        "wav" => Ok(Format::Wav16),
        "flac" => Ok(Format::Flac),
        _ => Err(Error::input(format!("{}: the name must end in .wav or .flac", path.display())).into()),
    }
}

/// Refuses an output before minutes of work, not after.
pub(super) fn check_out(path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        let message = format!("{}: the folder {} does not exist; create it first", path.display(), folder.display());
        return Err(Error::input(message).into());
    }
    tempfile::NamedTempFile::new_in(folder).map_err(|e| Error::io(path, e))?;
    Ok(())
}

/// What a file says about where it comes from.
pub(super) fn provenance(model: &Model, voice: &Voice, settings: &SpeakSettings) -> Provenance {
    let info = model.info();
    Provenance {
        software: Provenance::software(),
        kind: Provenance::KIND.to_owned(),
        model: format!("{} {}", info.title, info.precision.name()),
        model_hash: info.model_hash.clone(),
        voice: voice.name.clone(),
        voice_hash: voice.hash(),
        settings: settings.clone(),
    }
}

/// Runs the command.
pub fn run(args: &SayArgs) -> anyhow::Result<()> {
    let format = match args.format {
        None => format_of(&args.out)?,
        Some(FormatArg::Wav16) => Format::Wav16,
        Some(FormatArg::Wav24) => Format::Wav24,
        Some(FormatArg::Wav32f) => Format::Wav32f,
        Some(FormatArg::Flac) => Format::Flac,
    };
    check_out(&args.out)?;
    let text = match (&args.text, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => read_text(path)?,
        (None, None) => String::new(),
    };
    let trace = args.replay.trace()?;
    let model = Arc::new(Model::load(&args.model.request(), &mut |_, _| ())?);
    let settings = args.settings.over(&model.info().defaults);
    let (voice, voice_ms) = args.voice.load(&model, &trace)?;
    let force_tokens = match &args.force_tokens {
        Some(path) => recorded_tokens(path)?,
        None => Vec::new(),
    };
    let request = SpeakRequest {
        text,
        voice: voice.clone(),
        settings: settings.clone(),
        delivery: if args.stream || args.play { Delivery::Streamed } else { Delivery::OneShot },
        cancel: CancelToken::default(),
        noise: args.replay.noise(settings.seed)?,
        trace,
        force_tokens,
    };
    let expected_secs = request.text.chars().count() as f32 / CHARS_PER_SEC;
    let speaker = if args.play { Some(Speaker::open(expected_secs)?) } else { None };
    let mut synthesis = Synthesis::start(&model, request)?;
    let mut samples = Vec::new();
    while let Some(chunk) = synthesis.next_chunk(&mut |_| ())? {
        samples.extend_from_slice(&chunk.samples);
        if let Some(speaker) = &speaker {
            speaker.push(&chunk);
        }
    }
    let stats = synthesis.stats();
    if samples.is_empty() {
        return Err(Error::input("the model said nothing; try another seed or a longer text").into());
    }
    save(&args.out, &samples, SAMPLE_RATE_HZ, format, &provenance(&model, &voice, &settings))?;
    let underruns = speaker.map_or(0, |speaker| speaker.finish(stats.audio_secs));
    let report = Report::new(model.info(), &stats, voice_ms, settings.seed, underruns);
    if args.json { print_json(&report) } else { print_line(&format!("{}: {}", args.out.display(), report.line())) }
}

fn read_text(path: &Path) -> anyhow::Result<String> {
    let bytes = std::fs::read(path).map_err(|e| Error::io(path, e))?;
    let text = String::from_utf8(bytes).map_err(|_| Error::input(format!("{} is not UTF-8 text", path.display())))?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}
