//! `myna bench --draft`: what guessing tokens ahead would save.

use std::sync::Arc;

use myna_engine::draft::{Guessing, guessing};
use myna_engine::model::Model;
use myna_engine::trace::Trace;
use serde::Serialize;

use super::{BenchArgs, request};
use crate::cli::report::{print_json, print_line};
use crate::machine::{load_average, own_memory_bytes, peak_rss_bytes};

/// Tokens guessed at a time.
const LENGTHS: [usize; 3] = [1, 3, 7];

/// One line of the report.
#[derive(Debug, Serialize)]
struct DraftRow {
    guesses: usize,
    tokens: usize,
    tokens_per_pass: f64,
    guessed: usize,
    right: usize,
    pass_ms: f64,
    pass_ms_with_guesses: f64,
    speedup: f64,
}

impl From<Guessing> for DraftRow {
    fn from(g: Guessing) -> Self {
        Self {
            guesses: g.length,
            tokens: g.said,
            tokens_per_pass: g.said as f64 / g.passes.max(1) as f64,
            guessed: g.guessed,
            right: g.right,
            pass_ms: g.pass_ms.0,
            pass_ms_with_guesses: g.pass_ms.1,
            speedup: g.speedup(),
        }
    }
}

/// Runs it.
pub(super) fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let before = own_memory_bytes();
    let model = Arc::new(Model::load(&args.model.request(), &mut |_, _| ())?);
    let loaded_rss_bytes = own_memory_bytes().saturating_sub(before);
    let (voice, _) = args.voice.load(&model, &Trace::off())?;
    let mut request = request(args, &model, &voice);
    request.settings.max_tokens = args.tokens;
    let rows: Vec<DraftRow> =
        guessing(&model, &request, &LENGTHS, args.past)?.into_iter().map(DraftRow::from).collect();
    let info = model.info();
    if args.json {
        let (variant, precision) = (info.variant.spec().name, info.precision.name());
        return print_json(&serde_json::json!({
            "variant": variant, "precision": precision, "load_ms": info.load_ms, "load_average": load_average(),
            "loaded_rss_bytes": loaded_rss_bytes, "peak_rss_bytes": peak_rss_bytes(), "drafts": rows,
        }));
    }
    let mut out = format!(
        "{} {} on {}, load {:.1}\n{:>7} {:>7} {:>12} {:>15} {:>9} {:>12} {:>8}\n",
        info.variant.spec().name,
        info.precision.name(),
        info.device,
        load_average(),
        "guesses",
        "tokens",
        "tokens/pass",
        "right",
        "pass, ms",
        "with guesses",
        "speed-up"
    );
    for row in &rows {
        let right = format!("{} of {}", row.right, row.guessed);
        out += &format!(
            "{:>7} {:>7} {:>12.3} {right:>15} {:>9.2} {:>12.2} {:>8.3}\n",
            row.guesses, row.tokens, row.tokens_per_pass, row.pass_ms, row.pass_ms_with_guesses, row.speedup
        );
    }
    print_line(out.trim_end())
}
