//! The kernels' part of `myna bench`: time, throughput, and share of what the machine can do.

use myna_engine::meter::{Figure, Kind, Limits};
use myna_engine::protocol::Stats;
use serde::Serialize;

/// One line of the report.
#[derive(Debug, Serialize)]
pub(super) struct KernelRow {
    #[serde(flatten)]
    kind: Kind,
    #[serde(flatten)]
    figure: Figure,
    gflop_per_sec: f64,
    gb_per_sec: f64,
    /// Least time that arithmetic or memory would need, over the time it took.
    share_of_limit: f64,
    /// Share of all stages' time.
    share_of_run: f64,
}

/// What was counted in a run with these stages.
pub(super) fn rows(counted: Vec<(Kind, Figure)>, stats: &Stats, limits: &Limits) -> Vec<KernelRow> {
    let stages = &stats.stages;
    let all = stages.prefill + stages.t3 + stages.flow + stages.vocoder + stages.watermark;
    let row = |(kind, figure): (Kind, Figure)| KernelRow {
        kind,
        figure,
        gflop_per_sec: figure.gflop_per_sec(),
        gb_per_sec: figure.gb_per_sec(),
        share_of_limit: figure.share_of_limit(kind.precision, limits),
        share_of_run: figure.ms / all.max(1e-9),
    };
    counted.into_iter().map(row).collect()
}

/// The report for people.
pub(super) fn table(rows: &[KernelRow], limits: &Limits) -> String {
    let mut out = format!(
        "{:<10} {:<9} {:<5} {:>8} {:>9} {:>6} {:>9} {:>7} {:>9}\n",
        "kernel", "precision", "rows", "calls", "ms", "run", "GFLOP/s", "GB/s", "of limit"
    );
    for row in rows {
        out += &format!(
            "{:<10} {:<9} {:<5} {:>8} {:>9.1} {:>5.1}% {:>9.1} {:>7.1} {:>8.1}%\n",
            row.kind.kernel,
            row.kind.precision.name(),
            if row.kind.many_rows { "many" } else { "few" },
            row.figure.calls,
            row.figure.ms,
            row.share_of_run * 100.0,
            row.gflop_per_sec,
            row.gb_per_sec,
            row.share_of_limit * 100.0
        );
    }
    let elsewhere = 1.0 - rows.iter().map(|row| row.share_of_run).sum::<f64>();
    out += &format!("elsewhere {:>41.1}%\n", elsewhere * 100.0);
    out += &format!(
        "limits: {:.1} GB/s read, {:.0} GFLOP/s in f32, {:.0} GOP/s in 8 bits",
        limits.read_gb_per_sec, limits.f32_gflop_per_sec, limits.int8_gop_per_sec
    );
    out
}
