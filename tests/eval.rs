//! A short evaluation of the model inside the program, by `myna eval`: ten sentences, the sample voices in turn.
//! The bounds are loose for the sake of other machines' rounding, and far from what a broken stage does.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::process::Command;

use serde_json::Value;

fn eval(args: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_myna")).args(["eval", "--json"]).args(args).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(report: &Value, name: &str) -> f64 {
    report[name].as_f64().unwrap_or_else(|| panic!("{name} is not a number in {report}"))
}

fn within(report: &Value, name: &str, low: f64, high: f64) {
    let value = number(report, name);
    assert!((low..=high).contains(&value), "{name} is {value}, not between {low} and {high}: {report:#}");
}

#[test]
fn ten_sentences_have_an_end_their_length_and_their_voice() {
    for delivery in [&["--turns"][..], &["--turns", "--stream"]] {
        let report = eval(delivery);
        within(&report, "runs", 10.0, 10.0);
        within(&report, "never_ended", 0.0, 0.0);
        within(&report, "ended_early", 0.0, 0.0);
        within(&report, "duration_ratio_median", 0.55, 1.5);
        within(&report, "level_db_median", -30.0, -14.0);
        within(&report, "f0_semitones_median", 0.0, 1.0);
        within(&report, "mel_deviation_ratio_median", 0.6, 1.5);
        within(&report, "own_voice_nearest", 0.75, 1.0);
        assert!(number(&report, "similarity_mean") > number(&report, "similarity_other_mean") + 0.05, "{report:#}");
    }
}

#[test]
fn a_run_that_is_cut_off_is_counted() {
    let report = eval(&["--turns", "--voices", "Grace,Marcus", "--max-tokens", "20"]);
    assert!(number(&report, "never_ended") >= 9.0 && number(&report, "ended_early") >= 8.0, "{report:#}");
}
