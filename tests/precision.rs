//! What the smaller precisions cost, measured on the model inside: the tokens and logits of T3 and the mel of S3Gen, each
//! against f32 on the same inputs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use std::path::Path;
use std::process::Command;

use safetensors::SafeTensors;

const TEXTS: [(&str, &str); 3] = [
    ("Grace", "The weather will be warm and sunny for the rest of the week, and nobody knows what comes after that."),
    ("Edgar", "She opened the old wooden box and found a letter that had never been sent to anyone."),
    ("Nora", "If you want to go fast, go alone; if you want to go far, take a friend and a good map."),
];
/// Guidance of the conditional row over the other.
const CFG_WEIGHT: f32 = 0.5;

fn myna(folder: &Path, args: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_myna")).args(args).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A recorded tensor: its shape and values.
fn recorded(folder: &Path, name: &str) -> (Vec<usize>, Vec<f32>) {
    let bytes = std::fs::read(folder.join(format!("{name}.safetensors"))).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = file.tensor(name).unwrap();
    let values = tensor.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    (tensor.shape().to_vec(), values)
}

#[derive(Debug, Default)]
struct Distance {
    steps: usize,
    equal: usize,
    logits: (f64, f64),
    mel: (f64, usize),
}

impl Distance {
    fn add(&mut self, exact: &Path, other: &Path) {
        let ((shape, a), (_, b)) = (recorded(exact, "t3_logits"), recorded(other, "t3_logits"));
        let (rows, vocab) = (shape[1], shape[2]);
        let best = |step: &[f32]| {
            let guided = |i: usize| {
                let (with, without) = (step[i], step[(rows - 1) * vocab + i]);
                with + CFG_WEIGHT * (with - without)
            };
            (0..vocab).max_by(|&i, &j| guided(i).total_cmp(&guided(j))).unwrap()
        };
        for (a, b) in a.chunks_exact(rows * vocab).zip(b.chunks_exact(rows * vocab)) {
            self.steps += 1;
            self.equal += usize::from(best(a) == best(b));
            self.logits.0 += a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
            self.logits.1 += a.iter().map(|a| f64::from(*a).powi(2)).sum::<f64>();
        }
        let ((_, a), (_, b)) = (recorded(exact, "mel"), recorded(other, "mel"));
        assert_eq!(a.len(), b.len());
        self.mel.0 += a.iter().zip(&b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
        self.mel.1 += a.len();
    }

    /// Share of steps whose best token is the same.
    fn agreement(&self) -> f64 {
        self.equal as f64 / self.steps as f64
    }

    /// |a - b| / |a|.
    fn logits(&self) -> f64 {
        (self.logits.0 / self.logits.1).sqrt()
    }

    /// Root mean square in decibels; the mel is a natural logarithm of amplitudes.
    fn mel_db(&self) -> f64 {
        (self.mel.0 / self.mel.1 as f64).sqrt() * 20.0 / std::f64::consts::LN_10
    }
}

fn distance(settings: &[&str]) -> Distance {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let mut distance = Distance::default();
    for (voice, text) in TEXTS {
        // The voice is the same file for both, so that only T3 and the flow differ.
        let clip = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("assets/voices/{}.flac", voice.to_lowercase()));
        myna(at, &["voice", "prepare", clip.to_str().unwrap(), "--out", "voice.safetensors"]);
        let say = ["say", "--text", text, "--voice", "voice.safetensors", "--temperature", "0", "--seed", "7"];
        myna(at, &[&say[..], &["--out", "exact.wav", "--trace", "exact"]].concat());
        let forced = ["--out", "other.wav", "--trace", "other", "--force-tokens", "exact/speech_tokens.safetensors"];
        myna(at, &[&say[..], &forced, settings].concat());
        distance.add(&at.join("exact"), &at.join("other"));
    }
    assert!(distance.steps > 200, "{} tokens are too few to judge by", distance.steps);
    distance
}

#[test]
fn int8_chooses_nearly_the_same_tokens_and_makes_nearly_the_same_mel() {
    for settings in [&["--precision", "int8"][..], &["--precision", "int8", "--cache-precision", "int8"]] {
        let found = distance(settings);
        let (agreement, logits, mel) = (found.agreement(), found.logits(), found.mel_db());
        println!(
            "{settings:?}: {:.1} % of {} tokens, logits {logits:.4}, mel {mel:.3} dB",
            agreement * 100.0,
            found.steps
        );
        assert!(agreement >= 0.97, "{settings:?}: only {agreement} of the tokens are equal");
        assert!(logits <= 0.02, "{settings:?}: logits are off by {logits}");
        assert!(mel <= 0.5, "{settings:?}: the mel is off by {mel} dB");
    }
}

#[test]
fn a_seed_is_the_same_samples_at_each_precision_whatever_the_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let mut sounds = Vec::new();
    for settings in [&["f32"][..], &["f16"], &["bf16"], &["int8"], &["int8", "--cache-precision", "int8"]] {
        let say =
            ["say", "--text", "One, two.", "--seed", "3", "--max-tokens", "30", "--format", "wav32f", "--precision"];
        let sound = |out: &str, more: &[&str]| {
            myna(at, &[&say[..], settings, &["--out", out], more].concat());
            std::fs::read(at.join(out)).unwrap()
        };
        let one = sound("one.wav", &["--threads", "1"]);
        for threads in ["2", "3"] {
            assert!(one == sound("more.wav", &["--threads", threads]), "{settings:?} with {threads} threads");
        }
        let streamed = sound("one.wav", &["--stream", "--threads", "1"]);
        assert!(streamed == sound("more.wav", &["--stream", "--threads", "3"]), "{settings:?} streamed");
        sounds.push(one);
    }
    sounds.dedup();
    assert_eq!(sounds.len(), 5, "a precision made no difference");
}

#[test]
fn sixteen_bits_are_nearer_still() {
    for (precision, most_logits, most_mel) in [("f16", 0.002, 0.05), ("bf16", 0.01, 0.2)] {
        let found = distance(&["--precision", precision]);
        let (agreement, logits, mel) = (found.agreement(), found.logits(), found.mel_db());
        println!(
            "{precision}: {:.1} % of {} tokens, logits {logits:.5}, mel {mel:.4} dB",
            agreement * 100.0,
            found.steps
        );
        assert!(agreement >= 0.98 && logits <= most_logits && mel <= most_mel, "{precision}: {found:?}");
    }
}
