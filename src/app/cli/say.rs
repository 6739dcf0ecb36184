//! `myna say`: speak a text in a voice, into a file, a pipe or the loudspeakers.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use myna_engine::Error;
use myna_engine::protocol::{Delivery, SpeakSettings};
use myna_engine::replay::{RecordedMel, Replay, recorded_tokens};
use myna_engine::synthesis::{SpeakRequest, Synthesis};

use super::job::JobArgs;
use super::play::Speaker;

/// How fast people read aloud.
pub(super) const CHARS_PER_SEC: f32 = 15.0;

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
    job: JobArgs,
    #[command(flatten)]
    settings: SettingsArgs,
    /// Make the sound in small chunks, as the window does, instead of sentence by sentence.
    #[arg(long)]
    stream: bool,
    /// Play the sound while it is made (in chunks, as with `--stream`).
    #[arg(long)]
    play: bool,
    /// Take these speech tokens instead of sampling (safetensors with `speech_tokens`).
    #[arg(long, value_name = "FILE")]
    force_tokens: Option<PathBuf>,
    /// Take this mel instead of the flow's (safetensors with `mel`), for one sentence in one go.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["stream", "play"])]
    force_mel: Option<PathBuf>,
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

/// Runs the command.
pub fn run(args: &SayArgs) -> anyhow::Result<()> {
    args.job.output.check(args.play)?;
    let text = match (&args.text, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => read_text(path)?,
        (None, None) => String::new(),
    };
    let replay = Replay {
        tokens: args.force_tokens.as_deref().map(recorded_tokens).transpose()?.unwrap_or_default(),
        mel: args.force_mel.as_deref().map(RecordedMel::load).transpose()?,
    };
    let mut job = args.job.begin(|defaults| args.settings.over(defaults))?;
    let expected_secs = text.chars().count() as f32 / CHARS_PER_SEC;
    let speaker = if args.play { Some(Speaker::open(expected_secs)?) } else { None };
    let asked = Instant::now();
    let request = SpeakRequest {
        text,
        voice: job.voice.clone(),
        settings: job.settings.clone(),
        delivery: if args.stream || args.play { Delivery::Streamed } else { Delivery::OneShot },
        cancel: job.cancel.clone(),
        noise: job.noise.clone(),
        trace: job.trace.clone(),
        replay,
    };
    let mut synthesis = Synthesis::start(&job.model, request)?;
    if let Some(speaker) = &speaker {
        speaker.begin(asked);
    }
    while let Some(chunk) = synthesis.next_chunk(&mut |_| ())? {
        job.sink.push(&chunk.samples)?;
        if let Some(speaker) = &speaker {
            speaker.push(&chunk);
        }
    }
    let stats = synthesis.stats();
    if stats.audio_secs == 0.0 {
        return Err(Error::input("the model said nothing; try another seed or a longer text").into());
    }
    let mut report = job.report(stats);
    if let Some(speaker) = speaker {
        let heard = speaker.finish(stats.audio_secs, &job.cancel);
        report.underruns = heard.underruns;
        report.heard_ms = heard.first_ms;
    }
    args.job.end(job.sink, &report)
}

/// Text of a file.
pub(super) fn read_text(path: &Path) -> anyhow::Result<String> {
    let bytes = std::fs::read(path).map_err(|e| Error::io(path, e))?;
    let text = String::from_utf8(bytes).map_err(|_| Error::input(format!("{} is not UTF-8 text", path.display())))?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}
