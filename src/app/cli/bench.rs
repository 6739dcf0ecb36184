//! `myna bench`: every stage measured, medians after a warm-up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use myna_engine::Error;
use myna_engine::dsp::mel::s3gen_mel;
use myna_engine::meter::{self, Limits};
use myna_engine::model::Model;
use myna_engine::nn::{LayerError, LayerErrors};
use myna_engine::noise::SeededNoise;
use myna_engine::protocol::{CancelToken, Delivery, DeviceKind, LoadRequest, StageTimes, Stats};
use myna_engine::replay::Replay;
use myna_engine::synthesis::{SpeakRequest, Synthesis};
use myna_engine::trace::Trace;
use serde::Serialize;

use super::job::VoiceChoice;
use super::report::{print_json, print_line};
use super::say::SettingsArgs;
use super::{ModelArgs, PrecisionArg};
use crate::machine::{load_average, own_memory_bytes, peak_rss_bytes};
use crate::speech_measure::median;
use card::CardRows;
use kernels::KernelRow;

mod card;
mod draft;
mod kernels;

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
    /// Measure a second precision in turn with the first, and give the ratios.
    #[arg(long, value_enum, value_name = "PRECISION")]
    compare: Option<PrecisionArg>,
    /// Instead of times, tell how far the output of every layer is from f32 at this precision.
    #[arg(long)]
    layers: bool,
    /// Instead of times, tell what guessing tokens ahead would save T3.
    #[arg(long, conflicts_with = "layers")]
    draft: bool,
    /// Speech tokens behind the text when `--draft` times passes.
    #[arg(long, default_value_t = 300, requires = "draft")]
    past: usize,
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
    /// What was done before the first sound: medians of each stage.
    streamed_first: StageTimes,
    streamed_rtf: f64,
    /// Processor time of one run, in one go and streamed; the voice's own time is in neither.
    cpu_ms: f64,
    streamed_cpu_ms: f64,
    /// Mean difference of the log-mel of the streamed sound from that made in one go.
    streamed_log_mel_distance: f64,
    peak_rss_bytes: u64,
    /// Memory after loading, files of the program's own left out.
    loaded_rss_bytes: u64,
    load_average: f64,
    limits: Limits,
    /// One more run in one go, kernel by kernel; those of the processor.
    kernels: Vec<KernelRow>,
    /// The same run on a graphics card.
    #[serde(skip_serializing_if = "Option::is_none")]
    card: Option<CardRows>,
}

/// Runs the command.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    if args.layers {
        return layers(args);
    }
    if args.draft {
        return draft::run(args);
    }
    let first = Side::load(args, args.model.request())?;
    let Some(precision) = args.compare else {
        let report = measure(args, &mut [first])?.swap_remove(0);
        return if args.json { print_json(&report) } else { print_line(&table(&report)) };
    };
    let second = Side::load(args, args.model.with_precision(precision))?;
    let reports = measure(args, &mut [first, second])?;
    let ratios: Vec<(&str, f64)> = figures(&reports[0])
        .into_iter()
        .zip(figures(&reports[1]))
        .map(|((name, a), (_, b))| (name, if b > 0.0 { a / b } else { 0.0 }))
        .collect();
    if args.json {
        let ratios: BTreeMap<&str, f64> = ratios.into_iter().collect();
        return print_json(&serde_json::json!({ "a": reports[0], "b": reports[1], "a_over_b": ratios }));
    }
    let mut out = format!("{}\n{}\n", table(&reports[0]), table(&reports[1]));
    for (name, ratio) in ratios {
        out += &format!("{name:<22}{ratio:>9.2} times as long with {}\n", reports[0].precision);
    }
    print_line(out.trim_end())
}

/// What is compared: times of stages in milliseconds.
fn figures(r: &BenchReport) -> [(&'static str, f64); 9] {
    [
        ("load", r.load_ms),
        ("voice", r.voice_ms),
        ("prefill", r.prefill_ms),
        ("t3_token", r.t3_ms_per_token),
        ("flow", r.flow_ms),
        ("vocoder", r.vocoder_ms),
        ("watermark", r.watermark_ms),
        ("rtf", r.rtf),
        ("streamed_ttfa", r.streamed_ttfa_ms),
    ]
}

/// One model and what was measured with it.
struct Side {
    model: Arc<Model>,
    voice_ms: Vec<f64>,
    whole: Vec<Run>,
    streamed: Vec<Run>,
    distance: f64,
    loaded_rss_bytes: u64,
}

impl Side {
    fn load(args: &BenchArgs, request: LoadRequest) -> anyhow::Result<Self> {
        anyhow::ensure!(args.runs > 0, "--runs must be at least 1");
        let before = own_memory_bytes();
        let model = Arc::new(Model::load(&request, &mut |_, _| ())?);
        let loaded_rss_bytes = own_memory_bytes().saturating_sub(before);
        if request.device == DeviceKind::Cuda && model.card_works().is_none() {
            let why = format!("there is no card to measure ({}); leave out `--device cuda`", model.info().device);
            return Err(Error::device(why).into());
        }
        let (voice_ms, whole, streamed) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { model, voice_ms, whole, streamed, distance: 0.0, loaded_rss_bytes })
    }

    fn run(&mut self, args: &BenchArgs, keep: bool) -> anyhow::Result<()> {
        let started = Instant::now();
        let (voice, _) = args.voice.load(&self.model, &Trace::off())?;
        let ms = started.elapsed().as_secs_f64() * 1e3;
        let whole = speak(args, &self.model, &voice, Delivery::OneShot)?;
        let streamed = speak(args, &self.model, &voice, Delivery::Streamed)?;
        self.distance = log_mel_distance(&whole.samples, &streamed.samples)?;
        if keep {
            self.voice_ms.push(ms);
            self.whole.push(whole);
            self.streamed.push(streamed);
        }
        Ok(())
    }

    fn report(&self, args: &BenchArgs) -> anyhow::Result<BenchReport> {
        let limits = self.model.limits();
        let (voice, _) = args.voice.load(&self.model, &Trace::off())?;
        meter::start();
        let before = self.model.card_works();
        let metered = speak(args, &self.model, &voice, Delivery::OneShot);
        let counted = meter::stop();
        let metered = metered?.stats;
        let kernels = kernels::rows(counted, &metered, &limits);
        let card = match (before, self.model.card_works(), self.model.card_limits()?) {
            (Some(before), Some(after), Some(limits)) => Some(CardRows::new((&before, &after), &metered, limits)),
            _ => None,
        };
        let of = |pick: fn(&Stats) -> f64| median(self.whole.iter().map(|run| pick(&run.stats)).collect());
        let live = |pick: fn(&Stats) -> f64| median(self.streamed.iter().map(|run| pick(&run.stats)).collect());
        let cpu = |runs: &[Run]| median(runs.iter().map(|run| run.cpu_ms).collect());
        let info = self.model.info();
        Ok(BenchReport {
            variant: info.variant.spec().name,
            precision: info.precision.name(),
            device: info.device.clone(),
            threads: info.threads,
            runs: args.runs,
            tokens: args.tokens,
            load_ms: info.load_ms,
            voice_ms: median(self.voice_ms.clone()),
            prefill_ms: of(|s| s.stages.prefill),
            t3_ms_per_token: of(|s| 1e3 / s.tokens_per_sec.max(1e-9)),
            tokens_per_sec: of(|s| s.tokens_per_sec),
            flow_ms: of(|s| s.stages.flow),
            vocoder_ms: of(|s| s.stages.vocoder),
            watermark_ms: of(|s| s.stages.watermark),
            rtf: of(|s| s.rtf),
            streamed_ttfa_ms: live(|s| s.ttfa_ms),
            streamed_first: StageTimes {
                voice: live(|s| s.first_stages.voice),
                prefill: live(|s| s.first_stages.prefill),
                t3: live(|s| s.first_stages.t3),
                flow: live(|s| s.first_stages.flow),
                vocoder: live(|s| s.first_stages.vocoder),
                watermark: live(|s| s.first_stages.watermark),
            },
            streamed_rtf: live(|s| s.rtf),
            cpu_ms: cpu(&self.whole),
            streamed_cpu_ms: cpu(&self.streamed),
            streamed_log_mel_distance: self.distance,
            peak_rss_bytes: peak_rss_bytes(),
            loaded_rss_bytes: self.loaded_rss_bytes,
            load_average: load_average(),
            limits,
            kernels,
            card,
        })
    }
}

/// Runs all sides in turn, so that whatever else the machine does meets all alike.
fn measure(args: &BenchArgs, sides: &mut [Side]) -> anyhow::Result<Vec<BenchReport>> {
    for run in 0..=args.runs {
        sides.iter_mut().try_for_each(|side| side.run(args, run > 0))?;
    }
    sides.iter().map(|side| side.report(args)).collect()
}

/// One layer of the report.
#[derive(Debug, Serialize)]
struct LayerRow {
    layer: String,
    outputs: usize,
    inputs: usize,
    rows: usize,
    relative_error: f64,
}

/// Speaks once at f32 and tells how far each layer would be off at the precision asked for.
fn layers(args: &BenchArgs) -> anyhow::Result<()> {
    let errors = Arc::new(LayerErrors::default());
    let model = Arc::new(Model::load_measuring(&args.model.request(), Some(&errors), &mut |_, _| ())?);
    let (voice, _) = args.voice.load(&model, &Trace::off())?;
    speak(args, &model, &voice, Delivery::OneShot)?;
    let row = |(layer, error): (String, LayerError)| LayerRow {
        layer,
        outputs: error.shape.0,
        inputs: error.shape.1,
        rows: error.rows,
        relative_error: error.relative(),
    };
    let rows: Vec<LayerRow> = errors.worst_first().into_iter().map(row).collect();
    if args.json {
        return print_json(&serde_json::json!({ "precision": model.info().precision.name(), "layers": rows }));
    }
    let mut out =
        format!("{:>10}  {:>13}  {:>7}  layer at {}\n", "error", "shape", "rows", model.info().precision.name());
    for row in &rows {
        let shape = format!("{}x{}", row.outputs, row.inputs);
        out += &format!("{:>10.2e}  {shape:>13}  {:>7}  {}\n", row.relative_error, row.rows, row.layer);
    }
    print_line(out.trim_end())
}

/// One run.
struct Run {
    stats: Stats,
    cpu_ms: f64,
    samples: Vec<f32>,
}

/// What to say, in one go.
fn request(args: &BenchArgs, model: &Model, voice: &Arc<myna_engine::Voice>) -> SpeakRequest {
    let settings = args.settings.over(&model.info().defaults);
    SpeakRequest {
        text: args.text.clone(),
        voice: voice.clone(),
        noise: Arc::new(SeededNoise::new(settings.seed)),
        settings,
        delivery: Delivery::OneShot,
        cancel: CancelToken::default(),
        trace: Arc::new(Trace::off()),
        replay: Replay::default(),
    }
}

fn speak(
    args: &BenchArgs,
    model: &Arc<Model>,
    voice: &Arc<myna_engine::Voice>,
    delivery: Delivery,
) -> anyhow::Result<Run> {
    let begun = cpu_ms();
    // Any codes will do, so long as there are always as many; a stop would shorten the run.
    let replay = Replay { tokens: (0..args.tokens as u32).map(|i| (i * 37) % 6561).collect(), mel: None };
    let mut request = SpeakRequest { replay, delivery, ..request(args, model, voice) };
    request.settings.max_tokens = args.tokens;
    let mut synthesis = Synthesis::start(model, request)?;
    let mut samples = Vec::new();
    while let Some(chunk) = synthesis.next_chunk(&mut |_| ())? {
        samples.extend(chunk.samples);
    }
    Ok(Run { stats: synthesis.stats(), cpu_ms: cpu_ms() - begun, samples })
}

fn log_mel_distance(one: &[f32], other: &[f32]) -> anyhow::Result<f64> {
    let (one, other) = (s3gen_mel(one)?, s3gen_mel(other)?);
    let differences = one.data.iter().zip(&other.data).map(|(a, b)| f64::from((a - b).abs()));
    Ok(differences.sum::<f64>() / one.data.len().max(1) as f64)
}

/// Processor time of this process so far; 0 where the system does not say.
fn cpu_ms() -> f64 {
    /// Fields of `/proc/self/stat` behind the name, which may hold blanks; in hundredths of a second.
    const USER_AND_SYSTEM: std::ops::Range<usize> = 11..13;
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
    let ticks = fields.skip(USER_AND_SYSTEM.start).take(USER_AND_SYSTEM.len());
    ticks.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() * 10.0
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
    let first = &r.streamed_first;
    let parts = [first.prefill, first.t3, first.flow, first.vocoder, first.watermark];
    let [prefill, t3, flow, vocoder, watermark] = parts.map(|ms| format!("{ms:.1}"));
    let rest = r.streamed_ttfa_ms - parts.iter().sum::<f64>();
    out += &row(
        "streamed, first sound",
        r.streamed_ttfa_ms,
        format!(
            "prefill {prefill}, tokens {t3}, flow {flow}, vocoder {vocoder}, watermark {watermark}, elsewhere {rest:.1}"
        ),
    );
    out += &format!("real-time factor      {:>9.3}      streamed {:.3}\n", r.rtf, r.streamed_rtf);
    let (cpu, live) = (r.cpu_ms, r.streamed_cpu_ms);
    let times = live / cpu.max(1e-9);
    out += &format!("processor time        {cpu:>9.0} ms   streamed {live:.0} ms, {times:.2} times as much\n");
    out += &format!("streamed, log-mel     {:>9.3}      away from that in one go\n", r.streamed_log_mel_distance);
    out += &format!("peak memory           {:>9.0} MB   ", r.peak_rss_bytes as f64 / 1e6);
    out += &format!("{:.0} MB more after loading than before\n\n", r.loaded_rss_bytes as f64 / 1e6);
    out += &kernels::table(&r.kernels, &r.limits);
    if let Some(card) = &r.card {
        out += &card.table();
    }
    out
}
