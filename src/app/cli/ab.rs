//! `myna ab`: the same text, voice, seed and noise at two settings; which one is worth keeping?

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Context;
use clap::{Args, ValueEnum};
use myna_engine::agreement::agreement;
use myna_engine::dsp::loudness::integrated_loudness;
use myna_engine::dsp::mel::s3gen_mel;
use myna_engine::files::write_atomically;
use myna_engine::model::Model;
use myna_engine::noise::SeededNoise;
use myna_engine::protocol::{CancelToken, Delivery, Pcm, SAMPLE_RATE_HZ, SpeakSettings, Stats};
use myna_engine::replay::Replay;
use myna_engine::synthesis::{SpeakRequest, Synthesis};
use myna_engine::trace::Trace;
use myna_engine::{Error, Voice};
use serde::Serialize;

use super::bench::{load_average, median};
use super::job::{VoiceChoice, provenance};
use super::report::{own_memory_bytes, print_json, print_line};
use super::say::{SettingsArgs, read_text};
use super::{DeviceArg, ModelArgs, PrecisionArg};
use crate::export::{self, Format};
use crate::speech_measure::{cosine, speaker_embedding};

/// Options of `myna ab`.
#[derive(Debug, Args)]
pub struct AbArgs {
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
    /// The first side: what differs from the other options, with commas: f32|f16|bf16|int8, steps=N, model=DIR, device=cpu.
    #[arg(long, default_value = "f16", value_name = "CHANGES")]
    a: Changes,
    /// The second side.
    #[arg(long, default_value = "int8", value_name = "CHANGES")]
    b: Changes,
    /// Measured takes of each side, in turn, after one to warm up.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Write both takes, equally loud, and the report into this folder: a.wav, b.wav, report.json.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// How a side differs from the options that both share.
#[derive(Debug, Clone, Default)]
struct Changes {
    words: String,
    precision: Option<PrecisionArg>,
    steps: Option<usize>,
    model: Option<PathBuf>,
    device: Option<DeviceArg>,
}

impl FromStr for Changes {
    type Err = String;

    fn from_str(words: &str) -> Result<Self, String> {
        let mut changes = Self { words: words.to_owned(), ..Self::default() };
        for word in words.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match word.split_once('=') {
                Some(("steps", n)) => {
                    changes.steps = Some(n.parse().map_err(|_| format!("{n} is no number of steps"))?)
                }
                Some(("model", folder)) => changes.model = Some(folder.into()),
                Some(("device", name)) => changes.device = Some(DeviceArg::from_str(name, true)?),
                Some((key, _)) => {
                    return Err(format!("{key}= is not known; write a precision, steps=, model= or device="));
                }
                None => {
                    let precision = PrecisionArg::from_str(word, true);
                    changes.precision = Some(precision.map_err(|_| format!("{word} is none of f32, f16, bf16, int8"))?);
                }
            }
        }
        Ok(changes)
    }
}

/// What one side is and does. Times are medians.
#[derive(Debug, Serialize)]
struct SideReport {
    changes: String,
    variant: &'static str,
    precision: &'static str,
    device: String,
    settings: SpeakSettings,
    load_ms: f64,
    /// Streamed, after one take to warm up.
    ttfa_ms: f64,
    rtf: f64,
    tokens_per_sec: f64,
    tokens: usize,
    audio_secs: f64,
    /// What the process grew by from before loading to behind the first take.
    memory_bytes: u64,
    /// Files of the model.
    disk_bytes: u64,
    /// Cosine of the take's speaker embedding to the voice's, by the model's own VoiceEncoder; nothing for short takes.
    similarity: Option<f32>,
    /// Before both are made equally loud.
    loudness_lufs: Option<f64>,
    gain_db: f64,
}

/// The comparison. Names are stable.
#[derive(Debug, Serialize)]
struct AbReport {
    text: String,
    voice: String,
    seed: u64,
    a: SideReport,
    b: SideReport,
    /// Steps at which B would have chosen A's token, were it in A's place (teacher forcing), with the same random number.
    token_agreement: f64,
    /// Root mean square difference of the sounds' log mels, both made from A's tokens, in dB.
    log_mel_db: f64,
    loudness_difference_lu: Option<f64>,
    runs: u32,
    threads: usize,
    load_average: f64,
}

/// One side at work.
struct Side<'a> {
    changes: &'a Changes,
    model: Arc<Model>,
    voice: Arc<Voice>,
    settings: SpeakSettings,
    memory_bytes: u64,
    stats: Vec<Stats>,
    take: Take,
}

/// What was said.
#[derive(Default)]
struct Take {
    samples: Vec<f32>,
    sentences: Vec<String>,
    tokens: Vec<Vec<u32>>,
}

/// Runs the command.
pub fn run(args: &AbArgs) -> anyhow::Result<()> {
    let text = match (&args.text, &args.file) {
        (None, Some(path)) => read_text(path)?,
        (text, _) => text.clone().unwrap_or_default(),
    };
    let mut sides = [Side::begin(args, &args.a, &text)?, Side::begin(args, &args.b, &text)?];
    for _ in 0..args.runs {
        for side in &mut sides {
            let (_, stats) = side.speak(&text, Delivery::Streamed, Vec::new())?;
            side.stats.push(stats);
        }
    }
    let [a, b] = &mut sides;
    let found = agreement(&b.model, &b.request(&text, Delivery::OneShot, Vec::new()), &a.take.tokens)?;
    let log_mel_db = log_mel_db(a, b)?;
    let loudness = [&a.take, &b.take].map(|take| integrated_loudness(&take.samples, SAMPLE_RATE_HZ));
    let quieter = loudness[0].zip(loudness[1]).map(|(a, b)| a.min(b));
    let gains_db = loudness.map(|own| own.zip(quieter).map_or(0.0, |(own, quieter)| quieter - own));
    for (side, gain_db) in [&mut *a, &mut *b].into_iter().zip(gains_db) {
        let gain = 10f64.powf(gain_db / 20.0) as f32;
        side.take.samples.iter_mut().for_each(|sample| *sample *= gain);
    }
    let matched = [&a.take, &b.take].map(|take| integrated_loudness(&take.samples, SAMPLE_RATE_HZ));
    let report = AbReport {
        voice: a.voice.name.clone(),
        seed: a.settings.seed,
        a: a.report(loudness[0], gains_db[0])?,
        b: b.report(loudness[1], gains_db[1])?,
        token_agreement: found.share(),
        log_mel_db,
        loudness_difference_lu: matched[0].zip(matched[1]).map(|(a, b)| (a - b).abs()),
        runs: args.runs,
        threads: a.model.info().threads,
        load_average: load_average(),
        text,
    };
    if let Some(folder) = &args.out {
        write(folder, &sides, &report)?;
    }
    if args.json { print_json(&report) } else { print_line(&table(&report)) }
}

impl<'a> Side<'a> {
    /// Loads the model and the voice, and speaks once to warm up; that take is the one that is compared.
    fn begin(args: &AbArgs, changes: &'a Changes, text: &str) -> anyhow::Result<Self> {
        let before = own_memory_bytes();
        let about = || format!("side {}", changes.words);
        let mut model = args.model.clone();
        model.model = changes.model.clone().unwrap_or(model.model);
        model.device = changes.device.unwrap_or(model.device);
        let request = match changes.precision {
            Some(precision) => model.with_precision(precision),
            None => model.request(),
        };
        let model = Arc::new(Model::load(&request, &mut |_, _| ()).with_context(about)?);
        let mut settings = args.settings.over(&model.info().defaults);
        settings.steps = changes.steps.unwrap_or(settings.steps);
        let (voice, _) = args.voice.load(&model, &Trace::off())?;
        let mut side =
            Self { changes, model, voice, settings, memory_bytes: 0, stats: Vec::new(), take: Take::default() };
        (side.take, _) = side.speak(text, Delivery::Streamed, Vec::new())?;
        side.memory_bytes = own_memory_bytes().saturating_sub(before);
        if side.take.samples.is_empty() {
            return Err(Error::input("the model said nothing; try another seed or a longer text").into());
        }
        Ok(side)
    }

    fn request(&self, text: &str, delivery: Delivery, tokens: Vec<u32>) -> SpeakRequest {
        SpeakRequest {
            text: text.to_owned(),
            voice: self.voice.clone(),
            noise: Arc::new(SeededNoise::new(self.settings.seed)),
            settings: self.settings.clone(),
            delivery,
            cancel: CancelToken::default(),
            trace: Arc::new(Trace::off()),
            replay: Replay { tokens, mel: None },
        }
    }

    /// Speaks; with `tokens`, those instead of its own and no more.
    fn speak(&self, text: &str, delivery: Delivery, tokens: Vec<u32>) -> anyhow::Result<(Take, Stats)> {
        let mut request = self.request(text, delivery, tokens);
        if !request.replay.tokens.is_empty() {
            request.settings.max_tokens = request.replay.tokens.len();
        }
        let mut synthesis = Synthesis::start(&self.model, request)?;
        let mut samples = Vec::new();
        while let Some(chunk) = synthesis.next_chunk(&mut |_| ())? {
            samples.extend(chunk.samples);
        }
        let sentences = synthesis.sentences().iter().map(|sentence| sentence.text.clone()).collect();
        Ok((Take { samples, sentences, tokens: synthesis.tokens().to_vec() }, synthesis.stats()))
    }

    fn report(&self, loudness_lufs: Option<f64>, gain_db: f64) -> anyhow::Result<SideReport> {
        let of = |pick: fn(&Stats) -> f64| median(self.stats.iter().map(pick).collect());
        let info = self.model.info();
        let pcm = Pcm { samples: self.take.samples.clone(), sample_rate_hz: SAMPLE_RATE_HZ };
        let heard = speaker_embedding(&self.model, &pcm);
        Ok(SideReport {
            changes: self.changes.words.clone(),
            variant: info.variant.spec().name,
            precision: info.precision.name(),
            device: info.device.clone(),
            settings: self.settings.clone(),
            load_ms: info.load_ms,
            ttfa_ms: of(|s| s.ttfa_ms),
            rtf: of(|s| s.rtf),
            tokens_per_sec: of(|s| s.tokens_per_sec),
            tokens: self.take.tokens.iter().map(Vec::len).sum(),
            audio_secs: f64::from(pcm.secs()),
            memory_bytes: self.memory_bytes,
            disk_bytes: info.disk_bytes,
            similarity: heard.map(|heard| cosine(&heard, &self.voice.t3.speaker_emb)),
            loudness_lufs,
            gain_db,
        })
    }
}

/// How far B's mel is from A's when both speak A's tokens, sentence by sentence: then both are equally long.
fn log_mel_db(a: &Side<'_>, b: &Side<'_>) -> anyhow::Result<f64> {
    let (mut sum, mut count) = (0.0, 0usize);
    for (text, tokens) in a.take.sentences.iter().zip(&a.take.tokens).filter(|(_, tokens)| !tokens.is_empty()) {
        let mel = |side: &Side<'_>| -> anyhow::Result<Vec<f32>> {
            let (take, _) = side.speak(text, Delivery::OneShot, tokens.clone())?;
            Ok(s3gen_mel(&take.samples)?.data)
        };
        let (a, b) = (mel(a)?, mel(b)?);
        sum += a.iter().zip(&b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
        count += a.len().min(b.len());
    }
    // The mel is a natural logarithm of amplitudes.
    Ok((sum / count.max(1) as f64).sqrt() * 20.0 / std::f64::consts::LN_10)
}

fn write(folder: &Path, sides: &[Side<'_>; 2], report: &AbReport) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).map_err(|e| Error::io(folder, e))?;
    for (side, name) in sides.iter().zip(["a.wav", "b.wav"]) {
        let about = provenance(&side.model, &side.voice, &side.settings);
        export::save(&folder.join(name), &side.take.samples, SAMPLE_RATE_HZ, Format::Wav24, &about)?;
    }
    let json = serde_json::to_vec_pretty(report)?;
    Ok(write_atomically(&folder.join("report.json"), |file| file.write_all(&json))?)
}

fn table(r: &AbReport) -> String {
    let heads = [format!("A: {}", r.a.changes), format!("B: {}", r.b.changes)];
    let [a, b] = [0, 1].map(|side| heads[side].chars().count().max(12) + 2);
    let mut out = format!("{:<28}{:>a$}{:>b$}\n", "", heads[0], heads[1]);
    let mut row = |name: &str, value: &dyn Fn(&SideReport) -> String| {
        out += &format!("{name:<28}{:>a$}{:>b$}\n", value(&r.a), value(&r.b));
    };
    row("first sound, streamed", &|s| format!("{:.0} ms", s.ttfa_ms));
    row("real-time factor, streamed", &|s| format!("{:.3}", s.rtf));
    row("tokens a second", &|s| format!("{:.0}", s.tokens_per_sec));
    row("memory", &|s| format!("{:.0} MB", s.memory_bytes as f64 / 1e6));
    row("on disk", &|s| format!("{:.0} MB", s.disk_bytes as f64 / 1e6));
    row("likeness to the voice", &|s| s.similarity.map_or("too short".to_owned(), |x| format!("{x:.3}")));
    row("length", &|s| format!("{:.2} s", s.audio_secs));
    row("loudness", &|s| s.loudness_lufs.map_or("unknown".to_owned(), |x| format!("{x:.1} LUFS")));
    out += &format!("tokens that B would choose in A's place: {:.1} %\n", r.token_agreement * 100.0);
    out += &format!("log mel of the same tokens: {:.2} dB apart\n", r.log_mel_db);
    out + &format!("medians of {} takes in turn, {} threads, load {:.1}", r.runs, r.threads, r.load_average)
}
