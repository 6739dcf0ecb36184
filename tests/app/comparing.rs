//! Comparing two settings: from the button to the blind test. The test decides what the comparison finds.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use eframe::egui::{Key, Modifiers};
use egui_kittest::kittest::{NodeT, Queryable};
use myna::comparison::{AbReport, Comparer, Comparison, Heard, SideReport, Work};
use myna::export::Provenance;
use myna::player::{FADE_SECS, PlayState};
use myna::settings_file::SettingsFile;
use myna::state::{ModelState, Offers, OnDeck, Settings, ThemeChoice};
use myna_engine::dsp::Features;
use myna_engine::protocol::{Command, DeviceKind, Event, Precision, SpeakSettings};

use crate::fake::{Setting, Stage, embedded, sentences, voice};
use crate::hand::{CTRL, click, press};

const TEXT: &str = "The rain had stopped before dawn.";
const FADE: usize = (FADE_SECS * 24_000.0) as usize + 1;

/// What was asked of the comparison: text and names of the sides.
type Asked = Arc<Mutex<Vec<(String, [String; 2])>>>;

/// A comparison that ends when, and as, the test says.
struct Bench {
    comparer: Comparer,
    asked: Asked,
    answers: Sender<Option<&'static str>>,
}

impl Bench {
    fn new() -> Self {
        let asked = Asked::default();
        let (answers, next): (_, Receiver<Option<&'static str>>) = unbounded();
        let heard = asked.clone();
        let comparer: Comparer = Arc::new(move |wish, progress| {
            let names = wish.sides.clone().map(|side| side.name);
            heard.lock().unwrap().push((wish.text.to_owned(), names.clone()));
            progress(0.4, "Speaking as int8".to_owned());
            loop {
                if wish.cancel.is_cancelled() {
                    return Err(myna_engine::Error::Cancelled.into());
                }
                match next.recv_timeout(Duration::from_millis(2)) {
                    Ok(None) => return Ok(found(wish.text, names)),
                    Ok(Some(error)) => anyhow::bail!(error),
                    Err(_) => {}
                }
            }
        });
        Self { comparer, asked, answers }
    }

    /// A build with a choice.
    fn setting() -> Setting {
        Setting {
            offers: Offers { precisions: Precision::ALL.to_vec(), devices: vec![DeviceKind::Cpu] },
            ..Setting::default()
        }
    }

    /// A window in which this text was typed and the comparison opened.
    fn stage(&self, setting: Setting) -> Stage {
        let mut stage = Stage::with(Setting { comparer: self.comparer.clone(), ..setting }).ready();
        stage.window.get_by_label("Text to speak").focus();
        stage.look();
        stage.window.get_by_label("Text to speak").type_text(TEXT);
        stage.look();
        press(&mut stage, CTRL, Key::B);
        stage.window.get_by_label("Compare two settings");
        stage
    }

    /// The same, compared.
    fn compared(&self, setting: Setting) -> Stage {
        let mut stage = self.stage(setting);
        press(&mut stage, CTRL, Key::Enter);
        unload(&mut stage);
        self.answers.send(None).unwrap();
        stage.until("the comparison", |app| app.state().compare.done().is_some());
        learn_again(&mut stage);
        stage
    }
}

/// The engine lets go of its model.
fn unload(stage: &mut Stage) {
    assert!(matches!(stage.command(), Command::Unload), "two models more are enough");
    stage.tell(Event::Unloaded);
}

/// The window takes its model up again.
fn learn_again(stage: &mut Stage) {
    stage.told_load();
    stage.tell(Event::Loaded(Box::new(embedded())));
    let job = stage.told_prepare();
    stage.tell(Event::VoiceReady { job: job.id, voice: voice(&job.name), ms: 12.0 });
    stage.until("the voice", |app| matches!(app.state().voice, myna::state::VoiceState::Ready { .. }));
}

fn takes() -> [Vec<f32>; 2] {
    let a: Vec<f32> = sentences(2.0, 1).into_iter().flat_map(|chunk| chunk.samples).collect();
    let b = a.iter().take(40_000).map(|s| s * 0.5 + 0.1).collect();
    [a, b]
}

fn found(text: &str, names: [String; 2]) -> Comparison {
    let mel = |shift: f32| {
        let value = |i: usize| -4.0 + (i as f32 * 0.013).sin() * 2.0 + shift * (i as f32 * 0.0031).cos();
        Features { data: (0..200 * 80).map(value).collect(), frames: 200, bands: 80 }
    };
    let [first, second] = names;
    let side = |changes: String, precision, faster: f64| SideReport {
        changes,
        variant: "english",
        precision,
        device: "CPU, 2 threads".into(),
        settings: SpeakSettings::default(),
        load_ms: 400.0,
        ttfa_ms: 120.0 / faster,
        rtf: 0.12 / faster,
        tokens_per_sec: 500.0 * faster,
        tokens: 50,
        audio_secs: 2.0,
        memory_bytes: (100e6 / faster) as u64,
        disk_bytes: 41_000_000,
        similarity: Some(0.91),
        loudness_lufs: Some(-24.0),
        gain_db: 0.0,
    };
    let report = AbReport {
        text: text.to_owned(),
        voice: "Walter".into(),
        seed: 0,
        a: side(first, "f16", 1.0),
        b: side(second, "int8", 1.5),
        token_agreement: 0.973,
        log_mel_db: 0.31,
        loudness_difference_lu: Some(0.02),
        runs: 2,
        threads: 2,
        load_average: 0.0,
    };
    let about = || Provenance {
        software: Provenance::software(),
        kind: Provenance::KIND.to_owned(),
        model: "Myna small f16".into(),
        model_hash: "0".repeat(32),
        voice: "Walter".into(),
        voice_hash: "0".repeat(32),
        settings: SpeakSettings::default(),
    };
    Comparison { report, takes: takes(), mels: [mel(0.0), mel(0.7)], about: [about(), about()] }
}

#[test]
fn the_sides_change_while_they_play_and_the_model_comes_back() {
    let bench = Bench::new();
    let mut stage = bench.stage(Bench::setting());
    click(&mut stage, "Compare");
    unload(&mut stage);
    stage.until(
        "progress",
        |app| matches!(&app.state().compare.work, Work::Running { what, .. } if what.contains("int8")),
    );
    stage.window.get_by_label("Comparing 40 %");
    assert!(matches!(stage.window.state().state().model, ModelState::Aside(_)));
    assert_eq!(bench.asked.lock().unwrap()[..], [(TEXT.to_owned(), ["f16".to_owned(), "int8".to_owned()])]);
    bench.answers.send(None).unwrap();
    stage.until("playing", |app| app.state().player.state == PlayState::Playing);
    learn_again(&mut stage);
    stage.window.get_by_label("A: f16");
    stage.window.get_by_label_contains("the same token at 97.3 % of the steps");

    let [a, b] = takes();
    let first = stage.card.ask(4800);
    let at = first.iter().position(|s| *s != 0.0).unwrap() - a.iter().position(|s| *s != 0.0).unwrap();
    let played = first.len() - at;
    let volume = first[first.len() - 1] / a[played - 1];
    press(&mut stage, Modifiers::NONE, Key::B);
    stage.until("the other side", |app| app.state().compare.heard == Heard::B);
    // The player's thread may need a moment to be told.
    std::thread::sleep(Duration::from_millis(100));
    let second = stage.card.ask(4800);
    for i in FADE..4800 {
        let wanted = b[played + i] * volume;
        assert!((second[i] - wanted).abs() < 1e-4, "sample {i} behind the switch is {} and not {wanted}", second[i]);
    }
    press(&mut stage, CTRL, Key::B);
    assert_eq!(stage.window.state().state().on_deck, OnDeck::Speech, "back to the text and to what was spoken");
    stage.window.get_by_label("Text to speak");
}

#[test]
fn it_can_be_given_up_and_what_goes_wrong_is_said() {
    let bench = Bench::new();
    let mut stage = bench.stage(Bench::setting());
    press(&mut stage, CTRL, Key::Enter);
    unload(&mut stage);
    stage.until("it runs", |_| !bench.asked.lock().unwrap().is_empty());
    press(&mut stage, Modifiers::NONE, Key::Escape);
    assert!(matches!(stage.window.state().state().compare.work, Work::None));
    learn_again(&mut stage);
    click(&mut stage, "Compare");
    unload(&mut stage);
    bench.answers.send(Some("side int8: there is no such folder")).unwrap();
    stage.until("the error", |app| matches!(app.state().compare.work, Work::Failed(_)));
    learn_again(&mut stage);
    stage.window.get_by_label_contains("there is no such folder");
}

#[test]
fn a_blind_test_is_won_by_who_hears_the_difference() {
    let bench = Bench::new();
    let mut stage = bench.compared(Bench::setting());
    click(&mut stage, "Blind test");
    click(&mut stage, "8 trials");
    let mut seen = Vec::new();
    for trial in 1..=8 {
        stage.window.get_by_label(&format!("Trial {trial} of 8"));
        stage.until("X", |app| app.state().compare.heard == Heard::X && app.state().player.state == PlayState::Playing);
        let heard: Vec<f32> = (0..8)
            .flat_map(|_| {
                // The player's thread fills the ring again meanwhile.
                std::thread::sleep(Duration::from_millis(25));
                stage.card.ask(1200)
            })
            .collect();
        // The second take lies above zero, the first around it.
        let x_is_b = heard.iter().sum::<f32>() / heard.len() as f32 > 0.04;
        seen.push(x_is_b);
        click(&mut stage, if x_is_b { "X is B" } else { "X is A" });
    }
    assert!(seen.contains(&true) && seen.contains(&false), "X was always the same: {seen:?}");
    stage.window.get_by_label_contains("8 of 8 right. Guessing does as well in 0.4 % of tests (p = 0.004).");
    stage.window.get_by_label("You hear a difference.");
}

#[test]
fn both_takes_and_the_report_are_saved() {
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench::new();
    let mut stage = bench.compared(Bench::setting());
    let place = folder.path().join("comparison");
    stage.answers.next.lock().unwrap().push_back(Some(place.clone()));
    press(&mut stage, CTRL, Key::S);
    stage.until("saved", |app| app.state().notices.back().is_some_and(|n| n.text.contains("comparison")));
    let [a, b] = takes();
    for (name, samples) in [("a.wav", a), ("b.wav", b)] {
        let back = myna::audio_file::decode(&place.join(name)).unwrap();
        assert_eq!((back.sample_rate_hz, back.samples.len()), (24_000, samples.len()));
    }
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(place.join("report.json")).unwrap()).unwrap();
    assert_eq!((report["token_agreement"].as_f64(), report["abx"].is_null()), (Some(0.973), true), "{report}");
}

#[test]
fn two_equal_sides_are_not_compared() {
    let bench = Bench::new();
    let mut stage = bench.stage(Bench::setting());
    let mut sides = stage.window.state().state().settings.compare.clone();
    sides[1] = sides[0].clone();
    stage.window.state_mut().act(myna::action::Action::ComparisonSide(1, sides[1].clone()), std::time::Instant::now());
    stage.look();
    stage.window.get_by_label("Both sides are the same");
    assert!(stage.window.get_by_label("Compare").accesskit_node().is_disabled());
}

#[test]
fn comparing_dark() {
    let folder = tempfile::tempdir().unwrap();
    let file = SettingsFile::at(folder.path().join("settings.json"));
    file.save(&Settings { theme: ThemeChoice::Dark, seed_locked: true, ..Settings::default() }).unwrap();
    let bench = Bench::new();
    let mut stage = bench.compared(Setting { file: Some(file), ..Bench::setting() });
    stage.window.state_mut().act(myna::action::Action::Stop, std::time::Instant::now());
    stage.until("the start", |app| {
        app.state().player.position_secs == 0.0 && app.state().player.state == PlayState::Paused
    });
    stage.window.snapshot("comparing_dark");
}
