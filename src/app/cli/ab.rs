//! `myna ab`: the same text, voice, seed and noise at two settings; which one is worth keeping?

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use myna_engine::trace::Trace;

use super::job::{VoiceChoice, interruption};
use super::report::{print_json, print_line};
use super::say::{SettingsArgs, read_text};
use super::{DeviceArg, ModelArgs, PrecisionArg};
use crate::comparison::{AbReport, SideReport, SideWish, Wish, compare};

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

impl Changes {
    /// These changes to what both sides share.
    fn wish(&self, shared: &ModelArgs) -> SideWish {
        let mut model = shared.clone();
        model.model = self.model.clone().unwrap_or(model.model);
        model.device = self.device.unwrap_or(model.device);
        let load = self.precision.map_or_else(|| model.request(), |precision| model.with_precision(precision));
        SideWish { name: self.words.clone(), load, steps: self.steps }
    }
}

/// Runs the command.
pub fn run(args: &AbArgs) -> anyhow::Result<()> {
    let text = match (&args.text, &args.file) {
        (None, Some(path)) => read_text(path)?,
        (text, _) => text.clone().unwrap_or_default(),
    };
    let wish = Wish {
        text: &text,
        sides: [&args.a, &args.b].map(|changes| changes.wish(&args.model)),
        runs: args.runs,
        settings: &|info| args.settings.over(&info.defaults),
        voice: &|model| Ok(args.voice.load(model, &Trace::off())?.0),
        cancel: interruption()?,
    };
    let found = compare(&wish, &mut |_, _| ())?;
    if let Some(folder) = &args.out {
        found.write(folder, None)?;
    }
    if args.json { print_json(&found.report) } else { print_line(&table(&found.report)) }
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
