//! `myna bench`: every stage measured, medians after a warm-up.

use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use myna_engine::model::Model;
use myna_engine::noise::SeededNoise;
use myna_engine::protocol::{CancelToken, Delivery, Stats};
use myna_engine::synthesis::{SpeakRequest, Synthesis};
use myna_engine::trace::Trace;
use serde::Serialize;

use super::ModelArgs;
use super::report::{peak_rss_bytes, print_json, print_line};
use super::say::{SettingsArgs, VoiceChoice};

/// Options of `myna bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    voice: VoiceChoice,
    #[command(flatten)]
    settings: SettingsArgs,
    /// Measured runs, after one to warm up.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Speech tokens of each run, whatever the model says (25 a second).
    #[arg(long, default_value_t = 100)]
    tokens: usize,
    /// What to say.
    #[arg(long, default_value = "The weather will be warm and sunny for the rest of the week.")]
    text: String,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Medians of the runs.
#[derive(Debug, Serialize)]
struct BenchReport {
    variant: &'static str,
    precision: &'static str,
    device: String,
    threads: usize,
    runs: usize,
    tokens: usize,
    load_ms: f64,
    voice_ms: f64,
    prefill_ms: f64,
    t3_ms_per_token: f64,
    tokens_per_sec: f64,
    flow_ms: f64,
    vocoder_ms: f64,
    watermark_ms: f64,
    rtf: f64,
    streamed_ttfa_ms: f64,
    streamed_rtf: f64,
    peak_rss_bytes: u64,
    load_average: f64,
}

/// Runs the command.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let model = Arc::new(Model::load(&args.model.request(), &mut |_, _| ())?);
    let mut voice_ms = Vec::new();
    let (mut voice, _) = args.voice.load(&model, &Trace::off())?;
    let (mut whole, mut streamed) = (Vec::new(), Vec::new());
    for run in 0..=args.runs {
        let started = Instant::now();
        (voice, _) = args.voice.load(&model, &Trace::off())?;
        let ms = started.elapsed().as_secs_f64() * 1e3;
        let one = speak(args, &model, &voice, Delivery::OneShot)?;
        let live = speak(args, &model, &voice, Delivery::Streamed)?;
        if run > 0 {
            voice_ms.push(ms);
            whole.push(one);
            streamed.push(live);
        }
    }
    drop(voice);
    let of = |pick: fn(&Stats) -> f64| median(whole.iter().map(pick).collect());
    let live = |pick: fn(&Stats) -> f64| median(streamed.iter().map(pick).collect());
    let info = model.info();
    let report = BenchReport {
        variant: info.variant.spec().name,
        precision: info.precision.name(),
        device: info.device.clone(),
        threads: info.threads,
        runs: args.runs,
        tokens: args.tokens,
        load_ms: info.load_ms,
        voice_ms: median(voice_ms),
        prefill_ms: of(|s| s.stages.prefill),
        t3_ms_per_token: of(|s| 1e3 / s.tokens_per_sec.max(1e-9)),
        tokens_per_sec: of(|s| s.tokens_per_sec),
        flow_ms: of(|s| s.stages.flow),
        vocoder_ms: of(|s| s.stages.vocoder),
        watermark_ms: of(|s| s.stages.watermark),
        rtf: of(|s| s.rtf),
        streamed_ttfa_ms: live(|s| s.ttfa_ms),
        streamed_rtf: live(|s| s.rtf),
        peak_rss_bytes: peak_rss_bytes(),
        load_average: load_average(),
    };
    if args.json { print_json(&report) } else { print_line(&table(&report)) }
}

fn speak(
    args: &BenchArgs,
    model: &Arc<Model>,
    voice: &Arc<myna_engine::Voice>,
    delivery: Delivery,
) -> anyhow::Result<Stats> {
    let mut settings = args.settings.over(&model.info().defaults);
    settings.max_tokens = args.tokens;
    let request = SpeakRequest {
        text: args.text.clone(),
        voice: voice.clone(),
        noise: Arc::new(SeededNoise::new(settings.seed)),
        settings,
        delivery,
        cancel: CancelToken::default(),
        trace: Arc::new(Trace::off()),
        // Any codes will do, so long as there are always as many; a stop would shorten the run.
        force_tokens: (0..args.tokens as u32).map(|i| (i * 37) % 6561).collect(),
    };
    let mut synthesis = Synthesis::start(model, request)?;
    while synthesis.next_chunk(&mut |_| ())?.is_some() {}
    Ok(synthesis.stats())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

/// How many programs wanted a core during the last minute; 0 where the system does not say.
fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(0.0)
}

fn table(r: &BenchReport) -> String {
    let secs = r.tokens as f64 / 25.0;
    let row = |name: &str, ms: f64, note: String| format!("{name:<22}{ms:>9.1} ms   {note}\n");
    let mut out = format!(
        "{} {} on {}, medians of {} runs, load {:.1}\n",
        r.variant, r.precision, r.device, r.runs, r.load_average
    );
    out += &row("load", r.load_ms, String::new());
    out += &row("voice", r.voice_ms, String::new());
    out += &row("prefill", r.prefill_ms, String::new());
    out += &row("T3, one token", r.t3_ms_per_token, format!("{:.1} tokens/s", r.tokens_per_sec));
    out += &row("flow", r.flow_ms, format!("{} tokens, {secs:.1} s of sound", r.tokens));
    out += &row("vocoder", r.vocoder_ms, String::new());
    out += &row("watermark", r.watermark_ms, String::new());
    out += &row("streamed, first sound", r.streamed_ttfa_ms, String::new());
    out += &format!("real-time factor      {:>9.3}      streamed {:.3}\n", r.rtf, r.streamed_rtf);
    out += &format!("peak memory           {:>9.0} MB", r.peak_rss_bytes as f64 / 1e6);
    out
}
