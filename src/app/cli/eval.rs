//! `myna eval`: what a model makes of sentences and voices, as far as that can be measured without a recogniser.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use myna_engine::model::Model;
use myna_engine::noise::SeededNoise;
use myna_engine::protocol::{CancelToken, Delivery, Pcm, SAMPLE_RATE_HZ};
use myna_engine::replay::Replay;
use myna_engine::synthesis::{SpeakRequest, Synthesis};
use myna_engine::trace::Trace;
use myna_engine::{Error, Voice};
use serde::Serialize;

use super::ModelArgs;
use super::job::stem;
use super::report::{print_json, print_line};
use super::say::{CHARS_PER_SEC, SettingsArgs, read_text};
use crate::audio_file::decode;
use crate::library::{Library, read};
use crate::speech_measure::{MelStatistics, cosine, level_db, median_f0_hz, semitones, speaker_embedding};

/// Ten sentences of different kinds, in no training text.
const SENTENCES: [&str; 10] = [
    "The lighthouse keeper counted eleven ships before breakfast.",
    "Would you rather take the late train, or stay until Thursday?",
    "Nobody expected the orchestra to begin without its conductor!",
    "My neighbor paid $48.50 for two jars of honey.",
    "Thank you.",
    "At 7:15 the ferry left the harbor, slowly and almost without a sound.",
    "Fresh snow had covered every roof between here and the river.",
    "Dr. Walker kept her notebooks in a green wooden box.",
    "If the kettle whistles, please turn off the stove and open a window.",
    "It was a strange idea, and yet it worked.",
];
/// Shorter than this part of the length expected from the text, a sentence was cut off.
const EARLY: f32 = 0.45;

/// Options of `myna eval`.
#[derive(Debug, Args)]
pub struct EvalArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    settings: SettingsArgs,
    /// Sentences, one a line [default: ten of Myna's own].
    #[arg(long)]
    file: Option<PathBuf>,
    /// Clips or names of sample voices, several with commas [default: all sample voices].
    #[arg(long, value_delimiter = ',', value_name = "VOICE,...")]
    voices: Vec<PathBuf>,
    /// Each sentence by one voice in turn, not by every voice.
    #[arg(long)]
    turns: bool,
    /// Make the sound in small chunks, as the window does.
    #[arg(long)]
    stream: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// A voice to speak in, and what its clip measures.
struct Reference {
    name: String,
    voice: Arc<Voice>,
    f0_hz: Option<f32>,
    mel: MelStatistics,
}

/// One sentence in one voice.
#[derive(Debug, Serialize)]
struct Run {
    voice: String,
    text: String,
    /// Came to its end before the token limit.
    ended: bool,
    /// Shorter than 0.45 of what its text lets expect.
    early: bool,
    audio_secs: f64,
    /// Length over that of a reader at 15 characters a second.
    duration_ratio: f32,
    level_db: f32,
    f0_hz: Option<f32>,
    /// Distance of the median pitch to the clip's.
    f0_semitones: Option<f32>,
    /// Distance of the average log mel to the clip's.
    mel_distance: f32,
    /// Deviation of the log mel over time, over that of the clip.
    mel_deviation_ratio: f32,
    /// Cosine to the own clip, by the model's own VoiceEncoder.
    similarity: Option<f32>,
    /// The same to the most similar other clip.
    similarity_other: Option<f32>,
}

/// All runs, and their sum.
#[derive(Debug, Serialize)]
struct EvalReport {
    variant: &'static str,
    precision: &'static str,
    delivery: &'static str,
    seed: u64,
    voices: usize,
    runs: usize,
    never_ended: usize,
    ended_early: usize,
    duration_ratio_median: f32,
    level_db_median: f32,
    f0_semitones_median: f32,
    mel_distance_median: f32,
    mel_deviation_ratio_median: f32,
    /// Not independent: the model hears voices with the same encoder.
    similarity_mean: f32,
    similarity_other_mean: f32,
    /// Share of runs that are more like their own clip than like any other.
    own_voice_nearest: f32,
    details: Vec<Run>,
}

/// Runs the command.
pub fn run(args: &EvalArgs) -> anyhow::Result<()> {
    let sentences = match &args.file {
        None => SENTENCES.map(str::to_owned).to_vec(),
        Some(path) => {
            let text = read_text(path)?;
            let lines: Vec<String> = text.lines().map(str::trim).filter(|l| !l.is_empty()).map(str::to_owned).collect();
            if lines.is_empty() {
                return Err(Error::input(format!("{}: no sentence in it; write one a line", path.display())).into());
            }
            lines
        }
    };
    let model = Arc::new(Model::load(&args.model.request(), &mut |_, _| ())?);
    let references = references(&model, &args.voices)?;
    let mut details = Vec::new();
    for (i, text) in sentences.iter().enumerate() {
        for own in 0..references.len() {
            if !args.turns || own == i % references.len() {
                details.push(speak(args, &model, &references, own, text)?);
            }
        }
    }
    let report = summary(args, &model, references.len(), details);
    if args.json { print_json(&report) } else { print_line(&table(&report)) }
}

fn references(model: &Model, wanted: &[PathBuf]) -> anyhow::Result<Vec<Reference>> {
    let library = Library::with_samples();
    let mut clips: Vec<(String, Arc<Pcm>)> = Vec::new();
    if wanted.is_empty() {
        for clip in library.clips() {
            clips.push((clip.name.clone(), read(&clip.origin)?.pcm));
        }
    }
    for path in wanted {
        let sample = path.to_str().filter(|_| !path.exists()).and_then(|name| library.by_name(name));
        clips.push(match sample {
            Some(sample) => (sample.name.clone(), read(&sample.origin)?.pcm),
            None => (stem(path), Arc::new(decode(path)?)),
        });
    }
    let prepare = |(name, pcm): (String, Arc<Pcm>)| -> anyhow::Result<Reference> {
        let voice = model.prepare_voice(&pcm, &name, &CancelToken::default(), &Trace::off());
        let voice = Arc::new(voice.with_context(|| name.clone())?);
        Ok(Reference { voice, f0_hz: median_f0_hz(&pcm)?, mel: MelStatistics::of(&pcm)?, name })
    };
    clips.into_iter().map(prepare).collect()
}

fn speak(args: &EvalArgs, model: &Arc<Model>, references: &[Reference], own: usize, text: &str) -> anyhow::Result<Run> {
    let reference = &references[own];
    let settings = args.settings.over(&model.info().defaults);
    let most_tokens = settings.max_tokens;
    let request = SpeakRequest {
        text: text.to_owned(),
        voice: reference.voice.clone(),
        noise: Arc::new(SeededNoise::new(settings.seed)),
        settings,
        delivery: if args.stream { Delivery::Streamed } else { Delivery::OneShot },
        cancel: CancelToken::default(),
        trace: Arc::new(Trace::off()),
        replay: Replay::default(),
    };
    let mut synthesis = Synthesis::start(model, request)?;
    let mut samples = Vec::new();
    while let Some(chunk) = synthesis.next_chunk(&mut |_| ())? {
        samples.extend_from_slice(&chunk.samples);
    }
    let stats = synthesis.stats();
    if samples.len() < SAMPLE_RATE_HZ as usize / 10 {
        samples.resize(SAMPLE_RATE_HZ as usize / 10, 0.0);
    }
    let pcm = Pcm { samples, sample_rate_hz: SAMPLE_RATE_HZ };
    let duration_ratio = stats.audio_secs as f32 * CHARS_PER_SEC / text.chars().count().max(1) as f32;
    let (f0_hz, mel) = (median_f0_hz(&pcm)?, MelStatistics::of(&pcm)?);
    let heard = speaker_embedding(model, &pcm);
    let likeness = |r: &Reference| heard.as_ref().map(|heard| cosine(heard, &r.voice.t3.speaker_emb));
    let others = references.iter().enumerate().filter(|(i, _)| *i != own).filter_map(|(_, r)| likeness(r));
    Ok(Run {
        voice: reference.name.clone(),
        text: text.to_owned(),
        ended: stats.tokens < most_tokens * stats.sentences.max(1),
        early: duration_ratio < EARLY,
        audio_secs: stats.audio_secs,
        duration_ratio,
        level_db: level_db(&pcm.samples),
        f0_hz,
        f0_semitones: f0_hz.zip(reference.f0_hz).map(|(a, b)| semitones(a, b)),
        mel_distance: mel.distance(&reference.mel),
        mel_deviation_ratio: mel.deviation / reference.mel.deviation.max(1e-6),
        similarity: likeness(reference),
        similarity_other: others.max_by(f32::total_cmp),
    })
}

fn median(values: impl Iterator<Item = f32>) -> f32 {
    let mut values: Vec<f32> = values.collect();
    values.sort_by(f32::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn mean(values: impl Iterator<Item = f32>) -> f32 {
    let values: Vec<f32> = values.collect();
    values.iter().sum::<f32>() / values.len().max(1) as f32
}

fn summary(args: &EvalArgs, model: &Model, voices: usize, details: Vec<Run>) -> EvalReport {
    let info = model.info();
    let compared = details.iter().filter_map(|r| Some((r.similarity?, r.similarity_other?)));
    EvalReport {
        variant: info.variant.spec().name,
        precision: info.precision.name(),
        delivery: if args.stream { "streamed" } else { "one-shot" },
        seed: args.settings.seed,
        voices,
        runs: details.len(),
        never_ended: details.iter().filter(|r| !r.ended).count(),
        ended_early: details.iter().filter(|r| r.early).count(),
        duration_ratio_median: median(details.iter().map(|r| r.duration_ratio)),
        level_db_median: median(details.iter().map(|r| r.level_db)),
        f0_semitones_median: median(details.iter().filter_map(|r| r.f0_semitones)),
        mel_distance_median: median(details.iter().map(|r| r.mel_distance)),
        mel_deviation_ratio_median: median(details.iter().map(|r| r.mel_deviation_ratio)),
        similarity_mean: mean(details.iter().filter_map(|r| r.similarity)),
        similarity_other_mean: mean(details.iter().filter_map(|r| r.similarity_other)),
        own_voice_nearest: mean(compared.map(|(own, other)| if own > other { 1.0 } else { 0.0 })),
        details,
    }
}

fn table(r: &EvalReport) -> String {
    let mut out = format!(
        "{} {}, {}, {} runs in {} voices, seed {}\n",
        r.variant, r.precision, r.delivery, r.runs, r.voices, r.seed
    );
    let mut row = |name: &str, value: String| out += &format!("{name:<44}{value}\n");
    row("without an end / ended early", format!("{} / {}", r.never_ended, r.ended_early));
    row("length / that of a reader, median", format!("{:.2}", r.duration_ratio_median));
    row("level, median", format!("{:.1} dBFS", r.level_db_median));
    row("pitch from the clip's, median", format!("{:.2} semitones", r.f0_semitones_median));
    row("average spectrum from the clip's, median", format!("{:.2}", r.mel_distance_median));
    row("liveliness of the spectrum / the clip's", format!("{:.2}", r.mel_deviation_ratio_median));
    row(
        "likeness to its own / nearest other clip",
        format!("{:.2} / {:.2}", r.similarity_mean, r.similarity_other_mean),
    );
    row("nearest clip is its own", format!("{:.2}", r.own_voice_nearest));
    out + "The likeness is measured by the encoder that the model itself hears voices with: it is not independent."
}
