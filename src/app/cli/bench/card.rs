//! The graphics card's part of `myna bench`: launches, throughput, and share of what the card can do.

use myna_engine::meter::{CardLimits, CardWork, CardWorks};
use myna_engine::protocol::Stats;
use serde::Serialize;

/// A run on a card, network by network.
#[derive(Debug, Serialize)]
pub(super) struct CardRows {
    limits: CardLimits,
    /// Launches for a token of T3; a launch makes several.
    launches_per_token: f64,
    rows: Vec<CardRow>,
}

/// One line of the report.
#[derive(Debug, Serialize)]
struct CardRow {
    network: &'static str,
    #[serde(flatten)]
    work: CardWork,
    /// From host to host.
    ms: f64,
    tflop_per_sec: f64,
    gb_per_sec: f64,
    /// Least time that products or copies would need, over the time it took.
    share_of_limit: f64,
}

impl CardRows {
    /// What came between two looks at the card, in a run in one go.
    pub(super) fn new((before, after): (&CardWorks, &CardWorks), stats: &Stats, limits: CardLimits) -> Self {
        let row = |network, pick: fn(&CardWorks) -> &CardWork, ms: f64| {
            let work = pick(after).since(pick(before));
            let (tflop_per_sec, gb_per_sec) = (work.operations / ms.max(1e-9) / 1e9, work.bytes / ms.max(1e-9) / 1e6);
            let share = (tflop_per_sec / limits.product_tflop_per_sec).max(gb_per_sec / limits.copy_gb_per_sec);
            CardRow { network, work, ms, tflop_per_sec, gb_per_sec, share_of_limit: share }
        };
        let stages = &stats.stages;
        let rows = vec![
            row("T3, prompt", |works| &works.prefill, stages.prefill),
            row("T3, tokens", |works| &works.decode, stages.t3),
            row("flow", |works| &works.flow, stages.flow),
            row("vocoder", |works| &works.vocoder, stages.vocoder),
        ];
        let launches_per_token = rows[1].work.launches as f64 / stats.tokens.max(1) as f64;
        Self { limits, launches_per_token, rows }
    }

    /// The report for people.
    pub(super) fn table(&self) -> String {
        let mut out = format!(
            "\n\n{:<12} {:>9} {:>8} {:>9} {:>9} {:>7} {:>9}\n",
            "on the card", "launches", "kernels", "ms", "TFLOP/s", "GB/s", "of limit"
        );
        for row in &self.rows {
            out += &format!(
                "{:<12} {:>9} {:>8} {:>9.1} {:>9.1} {:>7.0} {:>8.1}%\n",
                row.network,
                row.work.launches,
                row.work.kernels,
                row.ms,
                row.tflop_per_sec,
                row.gb_per_sec,
                row.share_of_limit * 100.0
            );
        }
        let limits = &self.limits;
        out += &format!(
            "{:.3} launches for a token of T3; a recorded step of the flow, replayed: {:.2} ms\n",
            self.launches_per_token, limits.step_replay_ms
        );
        out += &format!(
            "limits: {:.0} GB/s copied, {:.0} TFLOP/s of 16-bit products",
            limits.copy_gb_per_sec, limits.product_tflop_per_sec
        );
        out
    }
}
