//! What every command that speaks needs: a model, a voice, and the way a job ends.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use myna_engine::Voice;
use myna_engine::model::Model;
use myna_engine::noise::{NoiseSource, SeededNoise};
use myna_engine::protocol::{CancelToken, Pcm, SpeakSettings, Stats};
use myna_engine::replay::ReplayedNoise;
use myna_engine::trace::Trace;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::ModelArgs;
use super::output::{OutputArgs, Sink};
use super::report::Report;
use crate::audio_file::decode;
use crate::export::Provenance;
use crate::library::{Library, read};

/// The sample voice for a model that has none of its own.
const DEFAULT_VOICE: &str = "Walter";

/// Options of every command that speaks.
#[derive(Debug, Clone, Args)]
pub struct JobArgs {
    #[command(flatten)]
    voice: VoiceChoice,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    replay: ReplayArgs,
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
struct ReplayArgs {
    /// Write the tensors of every stage into this folder.
    #[arg(long, value_name = "DIR")]
    trace: Option<PathBuf>,
    /// Replay recorded noise (safetensors with `z`, `phases`, `noise`).
    #[arg(long, value_name = "FILE")]
    noise: Option<PathBuf>,
}

/// All that is ready before the work begins.
pub struct Job {
    pub model: Arc<Model>,
    pub voice: Arc<Voice>,
    pub trace: Arc<Trace>,
    pub noise: Arc<dyn NoiseSource>,
    pub settings: SpeakSettings,
    pub cancel: CancelToken,
    pub sink: Sink,
    voice_ms: f64,
}

impl JobArgs {
    /// Loads everything; `settings` are made from the model's own.
    pub fn begin(&self, settings: impl FnOnce(&SpeakSettings) -> SpeakSettings) -> anyhow::Result<Job> {
        let trace = Arc::new(match &self.replay.trace {
            Some(folder) => Trace::into(folder)?,
            None => Trace::off(),
        });
        let model = Arc::new(Model::load(&self.model.request(), &mut |_, _| ())?);
        let settings = settings(&model.info().defaults);
        let noise: Arc<dyn NoiseSource> = match &self.replay.noise {
            Some(path) => Arc::new(ReplayedNoise::load(path, settings.seed)?),
            None => Arc::new(SeededNoise::new(settings.seed)),
        };
        let (voice, voice_ms) = self.voice.load(&model, &trace)?;
        let cancel = interruption()?;
        let sink = self.output.open(&Provenance::of(model.info(), &voice, &settings))?;
        Ok(Job { model, voice, trace, noise, settings, cancel, sink, voice_ms })
    }

    /// Puts the sound in its place and says what was done.
    pub fn end(&self, sink: Sink, report: &Report) -> anyhow::Result<()> {
        sink.finish()?;
        self.output.report(report)
    }
}

impl Job {
    /// The figures of the finished job.
    pub fn report(&self, stats: Stats) -> Report {
        Report::new(self.model.info(), stats, self.voice_ms, self.settings.seed)
    }
}

/// Raised by Ctrl+C: an interrupted job ends at its next step and leaves no half a file.
pub(super) fn interruption() -> anyhow::Result<CancelToken> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone()).context("interrupts cannot be caught")?;
    }
    Ok(CancelToken::from(interrupted))
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

pub(super) fn stem(path: &Path) -> String {
    path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default()
}

fn is_voice_file(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("safetensors") || e.eq_ignore_ascii_case("pt"))
}
