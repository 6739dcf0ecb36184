//! A short evaluation of the model inside the program, by `myna eval`: ten sentences, the sample voices in turn.
//! The bounds are loose for the sake of other machines' rounding, and far from what a broken stage does.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::process::Command;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

/// Bounds between the model as it is (0.29 and 0.16) and with a flow of which every 32nd weight has the wrong sign (0.48 and 0.06).
const FURTHEST_MEL: f64 = 0.42;
const CLOSER: f64 = 0.11;

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
        within(&report, "mel_distance_median", 0.0, FURTHEST_MEL);
        within(&report, "own_voice_nearest", 0.75, 1.0);
        assert!(number(&report, "similarity_mean") > number(&report, "similarity_other_mean") + CLOSER, "{report:#}");
    }
}

#[test]
fn a_run_that_is_cut_off_is_counted() {
    let report = eval(&["--turns", "--voices", "Grace,Marcus", "--max-tokens", "20"]);
    assert!(number(&report, "never_ended") >= 9.0 && number(&report, "ended_early") >= 8.0, "{report:#}");
}

#[test]
fn a_damaged_flow_breaks_the_bounds() {
    let from = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/models/embedded"));
    let folder = std::env::temp_dir().join(format!("myna-damaged-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for file in ["config.json", "tokenizer.json", "ve.safetensors", "t3_cfg.safetensors"] {
        std::fs::copy(from.join(file), folder.join(file)).unwrap();
    }
    let mut bytes = std::fs::read(from.join("s3gen_meanflow.safetensors")).unwrap();
    let (header, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    for (name, tensor) in metadata.tensors() {
        if name.starts_with("flow.") && tensor.dtype == Dtype::F16 && tensor.shape.len() > 1 {
            let (start, end) = tensor.data_offsets;
            // The sign is the highest bit of the second byte.
            bytes[8 + header..][start..end].iter_mut().skip(1).step_by(2 * 32).for_each(|byte| *byte ^= 0x80);
        }
    }
    std::fs::write(folder.join("s3gen_meanflow.safetensors"), bytes).unwrap();
    let report = eval(&["--turns", "--model", folder.to_str().unwrap()]);
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(number(&report, "mel_distance_median") > FURTHEST_MEL, "{report:#}");
    assert!(number(&report, "similarity_mean") < number(&report, "similarity_other_mean") + CLOSER, "{report:#}");
}
