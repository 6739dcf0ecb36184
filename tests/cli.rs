//! The command line, driven as a user would: what it writes, what it says, how it exits.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hound::{SampleFormat, WavSpec, WavWriter};
use serde_json::Value;

fn myna(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_myna"))
        .args(args)
        .env("XDG_DATA_HOME", folder)
        .current_dir(folder)
        .output()
        .unwrap()
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
    // What was recorded can be put in the place of what would be made: the vocoder hears the same mel.
    let made = samples(&at.join("out.wav"));
    let replayed =
        ["--force-tokens", "trace/speech_tokens.safetensors", "--force-mel", "trace/mel.safetensors", "--json"];
    done(at, &[&SAY[..], &["--voice", "Nora"], &replayed].concat());
    let again = samples(&at.join("out.wav"));
    assert_eq!(made, again);
    std::fs::remove_file(at.join("out.wav")).unwrap();
    refused(at, &[&SAY[..], &["--force-mel", "trace/mu.safetensors"]].concat(), "holds no mel");
    refused(at, &[&SAY[..], &["--force-mel", "trace/mel.safetensors", "--stream"]].concat(), "cannot be used with");
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
    refused(at, &["say", "--text", "Hi."], "--out FILE");
    refused(at, &["convert", "--source", "out.wav"], "--out FILE");
    say("Hi.", &["--rate", "22050"], "24000, 44100, 48000");
    say("Hi.", &["--format", "pcm16"], "`--out -`");
    refused(at, &["say", "--text", "Hi.", "--out", "-", "--format", "flac"], "FLAC cannot be piped");
}

/// The provenance that a file carries.
fn provenance(bytes: &[u8]) -> Value {
    let start = bytes.windows(12).position(|part| part == b"{\"software\":").expect("the file says where it is from");
    let mut values = serde_json::Deserializer::from_slice(&bytes[start..]).into_iter::<Value>();
    values.next().unwrap().unwrap()
}

#[test]
fn every_kind_of_file_at_every_rate_says_where_it_is_from() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    done(at, &["voice", "prepare", &sample("pip"), "--out", "pip.safetensors", "--json"]);
    let say = ["say", "--text", "Good morning.", "--voice", "pip.safetensors", "--seed", "11", "--json", "--out"];
    let secs = done(at, &[&say[..], &["plain.wav"]].concat())["audio_secs"].as_f64().unwrap();
    for (name, format, rate, bits) in [
        ("a.wav", "wav16", 44_100, 16),
        ("b.wav", "wav24", 48_000, 24),
        ("c.wav", "wav32f", 24_000, 32),
        ("d.flac", "flac", 48_000, 24),
        ("e.flac", "flac", 24_000, 24),
    ] {
        done(at, &[&say[..], &[name, "--format", format, "--rate", &rate.to_string()]].concat());
        let bytes = std::fs::read(at.join(name)).unwrap();
        let about = provenance(&bytes);
        assert_eq!(about["kind"], "AI-generated speech", "{about}");
        assert_eq!(about["software"], format!("Myna {}", env!("CARGO_PKG_VERSION")));
        assert_eq!((&about["voice"], &about["settings"]["seed"]), (&"pip".into(), &11.into()), "{about}");
        for hash in ["model_hash", "voice_hash"] {
            assert!(about[hash].as_str().unwrap().len() >= 32, "{hash}: {about}");
        }
        let pcm = myna::audio_file::decode(&at.join(name)).unwrap();
        assert_eq!(pcm.sample_rate_hz, rate, "{name}");
        assert!((pcm.samples.len() as f64 / f64::from(rate) - secs).abs() < 1e-3, "{name}");
        if name.ends_with(".wav") {
            assert_eq!(hound::WavReader::open(at.join(name)).unwrap().spec().bits_per_sample, bits);
        }
    }
    let converted =
        ["convert", "--source", "plain.wav", "--voice", "pip.safetensors", "--out", "f.flac", "--rate", "44100"];
    done(at, &[&converted[..], &["--json"]].concat());
    assert_eq!(provenance(&std::fs::read(at.join("f.flac")).unwrap())["kind"], "AI-generated speech");
}

#[test]
fn loudness_is_evened_out_if_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let say = ["say", "--text", "The weather will be warm and sunny.", "--voice", "Grace", "--json", "--out"];
    done(at, &[&say[..], &["a.wav", "--normalize"]].concat());
    let loudness = myna_engine::dsp::loudness::integrated_loudness(&samples(&at.join("a.wav")), 24_000).unwrap();
    let peak = samples(&at.join("a.wav")).iter().fold(0.0f32, |a, s| a.max(s.abs()));
    assert!((loudness + 16.0).abs() < 0.2 || (0.88..0.9).contains(&peak), "{loudness} LUFS, peak {peak}");
    assert_eq!(done(at, &["watermark", "detect", "a.wav", "--json"])["watermarked"], true);
}

#[test]
fn sound_goes_through_a_pipe_and_figures_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let say = ["say", "--text", "Good morning.", "--voice", "Pip", "--stream", "--json", "--out"];
    done(at, &[&say[..], &["a.wav"]].concat());
    let wanted = samples(&at.join("a.wav"));
    let wav = myna(at, &[&say[..], &["-"]].concat());
    let figures: Value = serde_json::from_slice(&wav.stderr).unwrap();
    assert!(figures["ttfa_ms"].as_f64().unwrap() > 0.0, "{figures}");
    assert_eq!(provenance(&wav.stdout)["kind"], "AI-generated speech");
    let raw = myna(at, &[&say[..], &["-", "--format", "pcm16"]].concat()).stdout;
    assert!(wav.stdout.starts_with(b"RIFF") && wav.stdout.ends_with(&raw), "a WAV is its header and the samples");
    let heard: Vec<f32> = raw.as_chunks::<2>().0.iter().map(|b| f32::from(i16::from_le_bytes(*b)) / 32768.0).collect();
    assert_eq!(heard, wanted);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let text = "It was late. Nobody had come home yet, and the street lay empty. Then a door opened! ".repeat(20);
    let mut child = Command::new(env!("CARGO_BIN_EXE_myna"))
        .args(["say", "--text", &text, "--voice", "Pip", "--stream", "--out", "-"])
        .current_dir(folder.path())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut head = [0; 4096];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut head).unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[cfg(unix)]
#[test]
fn an_interrupted_job_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let files = || std::fs::read_dir(folder.path()).unwrap().count();
    let text = "It was late. Nobody had come home yet, and the street lay empty. Then a door opened! ".repeat(200);
    let mut child = Command::new(env!("CARGO_BIN_EXE_myna"))
        .args(["say", "--text", &text, "--voice", "Pip", "--stream", "--out", "out.wav"])
        .current_dir(folder.path())
        .spawn()
        .unwrap();
    while files() == 0 {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it began");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let done = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(done.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(files(), 0, "half a file was left");
}

fn sample(name: &str) -> String {
    root().join(format!("assets/voices/{name}.flac")).to_str().unwrap().to_owned()
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

#[test]
fn two_settings_are_compared_on_the_same_words_and_equally_loud() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let text = "She opened the old wooden box and found a letter that had never been sent.";
    let args = ["ab", "--text", text, "--voice", "Grace", "--runs", "1", "--seed", "4", "--json"];
    let found = done(at, &[&args[..], &["--a", "f32", "--b", "f32", "--out", "same"]].concat());
    assert_eq!((found["token_agreement"].as_f64(), found["log_mel_db"].as_f64()), (Some(1.0), Some(0.0)), "{found}");
    assert_eq!(std::fs::read(at.join("same/a.wav")).unwrap(), std::fs::read(at.join("same/b.wav")).unwrap());

    let found = done(at, &[&args[..], &["--a", "f32", "--b", "int8,steps=2", "--out", "other"]].concat());
    let (agreement, mel) = (found["token_agreement"].as_f64().unwrap(), found["log_mel_db"].as_f64().unwrap());
    assert!((0.8..1.0).contains(&agreement) && mel > 0.1 && mel < 6.0, "{found}");
    assert!(found["loudness_difference_lu"].as_f64().unwrap() <= 0.1, "{found}");
    assert_eq!(
        (found["a"]["settings"]["steps"].as_u64(), found["b"]["settings"]["steps"].as_u64()),
        (Some(1), Some(2))
    );
    assert!(found["b"]["memory_bytes"].as_u64() < found["a"]["memory_bytes"].as_u64(), "{found}");
    for side in ["a", "b"] {
        assert!(found[side]["similarity"].as_f64().unwrap() > 0.6, "{found}");
        let mark = done(at, &["watermark", "detect", &format!("other/{side}.wav"), "--json"]);
        assert_eq!(mark["watermarked"], true, "{mark}");
    }
    let written: Value = serde_json::from_slice(&std::fs::read(at.join("other/report.json")).unwrap()).unwrap();
    assert_eq!(written["token_agreement"], found["token_agreement"]);

    refused(at, &["ab", "--text", "Hi.", "--a", "int9"], "int9 is none of f32, f16, bf16, int8");
    refused(at, &["ab", "--text", "Hi.", "--b", "steps=x"], "x is no number of steps");
    refused(at, &["ab", "--text", "Hi.", "--b", "model=nowhere"], "there is no such folder");
}

#[test]
fn released_models_are_listed_and_used_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let listed = done(at, &["fetch", "--to", "models", "--json"]);
    let models = listed["models"].as_array().unwrap();
    assert_eq!(models.len(), 5);
    let nano = models.iter().find(|model| model["name"] == "nano").unwrap();
    assert_eq!((nano["here"].as_bool(), nano["repo"].as_str()), (Some(false), Some("ResembleAI/chatterbox-nano")));
    refused(at, &["fetch", "gigantic"], "english");
    refused(at, &["say", "--text", "Hi.", "--model", "nano"], "`myna fetch nano` gets it (1.9 GB)");
}
