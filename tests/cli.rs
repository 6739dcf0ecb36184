//! The command line, driven as a user would: what it writes, what it says, how it exits.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hound::{SampleFormat, WavSpec, WavWriter};
use serde_json::Value;

fn myna(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_myna")).args(args).current_dir(folder).output().unwrap()
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}{}", String::from_utf8_lossy(&output.stderr)))
}

/// Runs to success and returns the JSON.
fn done(folder: &Path, args: &[&str]) -> Value {
    let output = myna(folder, args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    json(&output)
}

/// Runs to exit code 2 with `words` on standard error, and nothing written.
fn refused(folder: &Path, args: &[&str], words: &str) {
    let output = myna(folder, args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
    assert!(said.contains(words), "{args:?} should say \"{words}\" but says: {said}");
    assert!(output.stdout.is_empty(), "{args:?} wrote to standard output");
    assert!(!folder.join("out.wav").exists(), "{args:?} left a file");
}

fn samples(path: &Path) -> Vec<f32> {
    hound::WavReader::open(path).unwrap().samples::<i16>().map(|s| f32::from(s.unwrap()) / 32768.0).collect()
}

fn write_wav(path: &Path, samples: impl Iterator<Item = f32>) {
    let spec = WavSpec { channels: 1, sample_rate: 16_000, bits_per_sample: 32, sample_format: SampleFormat::Float };
    let mut writer = WavWriter::create(path, spec).unwrap();
    samples.for_each(|s| writer.write_sample(s).unwrap());
    writer.finalize().unwrap();
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

const SAY: [&str; 5] = ["say", "--text", "Hello there.", "--out", "out.wav"];

#[test]
fn a_sentence_is_spoken_marked_and_repeatable() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let args = ["say", "--text", "The weather will be warm and sunny.", "--voice", "Grace", "--seed", "3", "--json"];
    let one = done(at, &[&args[..], &["--out", "one.wav", "--threads", "1"]].concat());
    let two = done(at, &[&args[..], &["--out", "two.wav", "--threads", "2"]].concat());
    for name in ["audio_secs", "rtf", "ttfa_ms", "tokens", "tokens_per_sec", "peak_rss_bytes", "underruns", "seed"] {
        assert!(one[name].is_number(), "{name} is missing: {one}");
    }
    for stage in ["voice", "prefill", "t3", "flow", "vocoder", "watermark"] {
        assert!(one["stages"][stage].as_f64().unwrap() > 0.0, "stage {stage}: {one}");
    }
    assert_eq!(
        (one["variant"].as_str(), one["precision"].as_str(), one["seed"].as_u64()),
        (Some("english"), Some("f32"), Some(3))
    );
    assert_eq!((one["threads"].as_u64(), two["threads"].as_u64()), (Some(1), Some(2)));
    let (a, b) = (samples(&at.join("one.wav")), samples(&at.join("two.wav")));
    assert_eq!(a, b, "the number of threads changed the sound");
    assert!((1.0..8.0).contains(&(a.len() as f32 / 24_000.0)), "{} samples", a.len());
    let rms = (a.iter().map(|s| s * s).sum::<f32>() / a.len() as f32).sqrt();
    assert!((0.005..0.3).contains(&rms), "rms {rms}");
    let mark = done(at, &["watermark", "detect", "one.wav", "--json"]);
    assert_eq!(mark["watermarked"], true, "{mark}");
    let plain = root().join("assets/voices/grace.flac");
    let mark = done(at, &["watermark", "detect", plain.to_str().unwrap(), "--json"]);
    assert_eq!(mark["watermarked"], false, "{mark}");
}

#[test]
fn a_stream_of_several_sentences_is_repeatable_and_marked() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let text = "It was late. Nobody had come home yet, and the street lay empty. Then a door opened! ".repeat(5);
    std::fs::write(at.join("text.txt"), text).unwrap();
    let args = ["say", "--file", "text.txt", "--voice", "Walter", "--seed", "5", "--stream", "--json", "--out"];
    let one = done(at, &[&args[..], &["one.wav"]].concat());
    done(at, &[&args[..], &["two.wav"]].concat());
    assert!(one["sentences"].as_u64().unwrap() >= 5, "{one}");
    assert!(one["ttfa_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(samples(&at.join("one.wav")), samples(&at.join("two.wav")), "the same seed gave another sound");
    assert_eq!(done(at, &["watermark", "detect", "one.wav", "--json"])["watermarked"], true);
}

#[test]
fn a_prepared_voice_speaks_as_its_clip_and_a_recording_is_converted() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let clip = root().join("assets/voices/marcus.flac");
    let clip = clip.to_str().unwrap();
    let made = done(at, &["voice", "prepare", clip, "--out", "marcus.safetensors", "--name", "Marcus", "--json"]);
    assert_eq!(made["name"], "Marcus");
    let say = ["say", "--text", "Good morning.", "--json", "--out"];
    done(at, &[&say[..], &["a.wav", "--voice", "marcus.safetensors"]].concat());
    done(at, &[&say[..], &["b.wav", "--voice", clip]].concat());
    assert_eq!(samples(&at.join("a.wav")), samples(&at.join("b.wav")));
    let converted = done(at, &["convert", "--source", "a.wav", "--voice", "Nora", "--out", "c.wav", "--json"]);
    let (before, after) = (samples(&at.join("a.wav")).len() as f64 / 24e3, converted["audio_secs"].as_f64().unwrap());
    assert!((before - after).abs() < 0.1, "{before} s became {after} s");
}

#[test]
fn a_trace_holds_every_stage() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    done(at, &[&SAY[..], &["--voice", "Edgar", "--trace", "trace", "--json"]].concat());
    for name in [
        "text_tokens",
        "speaker_emb",
        "cond_prompt_tokens",
        "prompt_token",
        "prompt_feat",
        "x_vector",
        "t3_logits",
        "speech_tokens",
        "mu",
        "mel",
        "f0",
        "source",
        "wav",
        "watermarked",
    ] {
        let bytes =
            std::fs::read(at.join(format!("trace/{name}.safetensors"))).unwrap_or_else(|e| panic!("{name}: {e}"));
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert!(!tensors.tensor(name).unwrap().data().is_empty(), "{name}");
    }
}

#[test]
fn clips_that_are_no_voice_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let with = |clip: &str, words: &str| refused(at, &[&SAY[..], &["--voice", clip]].concat(), words);
    std::fs::write(at.join("empty.wav"), b"").unwrap();
    with("empty.wav", "is empty");
    std::fs::write(at.join("text.wav"), "not a sound at all\n".repeat(100)).unwrap();
    with("text.wav", "not an audio file");
    write_wav(&at.join("short.wav"), (0..3200).map(|i| (i as f32 * 0.1).sin()));
    with("short.wav", "0.2 seconds");
    write_wav(&at.join("silent.wav"), (0..48_000).map(|_| 0.0));
    with("silent.wav", "silent");
    write_wav(&at.join("nan.wav"), (0..48_000).map(|i| if i == 900 { f32::NAN } else { 0.1 }));
    with("nan.wav", "not a number");
    let whole = std::fs::read(at.join("silent.wav")).unwrap();
    std::fs::write(at.join("cut.wav"), &whole[..whole.len() / 2]).unwrap();
    with("cut.wav", "cut short");
    with("nobody.wav", "nobody.wav");
    std::fs::write(at.join("broken.safetensors"), b"xx").unwrap();
    with("broken.safetensors", "too short");
}

#[test]
fn texts_and_options_that_make_no_sense_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let say = |text: &str, more: &[&str], words: &str| {
        refused(at, &[&["say", "--text", text, "--out", "out.wav", "--voice", "Pip"], more].concat(), words);
    };
    say("", &[], "no text to speak");
    say("  \n ", &[], "no text to speak");
    std::fs::write(at.join("huge.txt"), "word ".repeat(60_000)).unwrap();
    refused(at, &["say", "--file", "huge.txt", "--out", "out.wav", "--voice", "Pip"], "characters");
    std::fs::write(at.join("binary.txt"), [0xff, 0xfe, 0x80]).unwrap();
    refused(at, &["say", "--file", "binary.txt", "--out", "out.wav"], "UTF-8");
    say("Hi.", &["--language", "fr"], "English only");
    say("Hi.", &["--language", "klingon"], "klingon");
    say("Hi.", &["--temperature", "-1"], "unexpected argument");
    say("Hi.", &["--temperature=-1"], "temperature");
    say("Hi.", &["--steps", "0"], "flow steps");
    say("Hi.", &["--threads", "0"], "threads");
    say("Hi.", &["--device", "cuda"], "CUDA");
    say("Hi.", &["--model", "no/such/folder"], "no such folder");
    refused(at, &["say", "--text", "Hi.", "--out", "no/such/out.wav"], "does not exist");
    refused(at, &["say", "--text", "Hi.", "--out", "out.doc"], ".wav or .flac");
    refused(at, &["say", "--out", "out.wav"], "--text");
}

/// A folder of the tiny English model, complete but for what `spoil` does to it.
fn tiny_english(at: &Path, spoil: impl FnOnce(&Path)) -> PathBuf {
    let model = at.join("model");
    std::fs::create_dir(&model).unwrap();
    let fixtures = root().join("tests/fixtures");
    for folder in ["tiny/english", "tiny/shared", "text/english"] {
        for entry in std::fs::read_dir(fixtures.join(folder)).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), model.join(entry.file_name())).unwrap();
        }
    }
    spoil(&model);
    model
}

#[test]
fn a_whole_folder_is_called_complete_and_a_spoilt_one_says_what_is_wrong() {
    let check = |spoil: &dyn Fn(&Path), words: &str| {
        let folder = tempfile::tempdir().unwrap();
        let model = tiny_english(folder.path(), spoil);
        let output = myna(folder.path(), &["inspect", model.to_str().unwrap(), "--json"]);
        let found = json(&output);
        let problems = found["variants"][0]["problems"].to_string();
        assert_eq!(output.status.code(), Some(if words.is_empty() { 0 } else { 2 }), "{problems}");
        assert!(problems.contains(words), "should say \"{words}\": {problems}");
        if !words.is_empty() {
            let say =
                ["say", "--text", "Hi.", "--out", "out.wav", "--voice", "Pip", "--model", model.to_str().unwrap()];
            refused(folder.path(), &say, words);
        }
    };
    check(&|_| (), "");
    check(&|m| std::fs::remove_file(m.join("ve.safetensors")).unwrap(), "ve.safetensors or ve.pt is missing");
    check(&|m| std::fs::remove_file(m.join("tokenizer.json")).unwrap(), "tokenizer.json");
    let swap = |m: &Path| {
        std::fs::copy(m.join("ve.safetensors"), m.join("t3_cfg.safetensors")).unwrap();
    };
    check(&swap, "unused lstm.");
    let cut = |m: &Path| {
        let path = m.join("t3_cfg.safetensors");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    };
    check(&cut, "truncated");
    let lie = |m: &Path| {
        let path = m.join("ve.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        std::fs::write(&path, bytes).unwrap();
    };
    check(&lie, "header claims");
    check(&|m| std::fs::write(m.join("config.json"), "{").unwrap(), "not a valid configuration");
}

#[test]
fn a_hostile_pickle_is_refused_and_not_run() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny_english(folder.path(), |m| std::fs::remove_file(m.join("ve.safetensors")).unwrap());
    let mut zip = zip::ZipWriter::new(std::fs::File::create(model.join("ve.pt")).unwrap());
    zip.start_file("ve/data.pkl", zip::write::SimpleFileOptions::default()).unwrap();
    let proof = folder.path().join("proof");
    let command = format!("touch {}", proof.display());
    let mut pickle = b"\x80\x02cposix\nsystem\nX".to_vec();
    pickle.extend_from_slice(&(command.len() as u32).to_le_bytes());
    pickle.extend_from_slice(command.as_bytes());
    pickle.extend_from_slice(b"\x85R.");
    std::io::Write::write_all(&mut zip, &pickle).unwrap();
    zip.finish().unwrap();
    let say = ["say", "--text", "Hi.", "--out", "out.wav", "--voice", "Pip", "--model", model.to_str().unwrap()];
    refused(folder.path(), &say, "posix.system");
    assert!(!proof.exists(), "the pickle was executed");
}

#[cfg(unix)]
#[test]
fn a_full_disk_leaves_nothing_behind() {
    // A folder that takes no files, which is what a full or write-protected disk looks like; root may write anywhere,
    // so a special file system stands in.
    let output = myna(Path::new("/"), &["say", "--text", "Hi.", "--voice", "Pip", "--out", "/proc/out.wav"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("/proc/out.wav"), "{said}");
}
