//! The voice panel: choosing, opening, trimming, hearing and recording clips.

use std::time::Instant;

use eframe::egui::Key;
use egui_kittest::kittest::{NodeT, Queryable};
use myna::action::Action;
use myna::player::PlayState;
use myna::recorder::RecorderStatus;
use myna::settings_file::SettingsFile;
use myna::state::{OnDeck, VoiceState};
use myna_engine::protocol::{Command, Event, ModelInfo};

use crate::fake::{Setting, Stage, embedded, turbo, voice};
use crate::hand::{CTRL, chosen, click, press, wav};

#[test]
fn another_voice_is_prepared_once_and_then_remembered() {
    let mut stage = Stage::new().ready();
    click(&mut stage, "Nora");
    let nora = stage.told_prepare();
    assert_eq!((chosen(&stage).as_str(), nora.name.as_str()), ("Nora", "Nora"));
    stage.window.get_by_label("Learning the voice…");
    click(&mut stage, "Grace");
    let grace = stage.told_prepare();
    assert!(nora.cancel.is_cancelled());
    stage.tell(Event::Cancelled { job: nora.id });
    stage.tell(Event::VoiceReady { job: grace.id, voice: voice("Grace"), ms: 70.0 });
    stage.until("Grace", |app| app.state().voice == VoiceState::Ready { ms: 70.0 });
    click(&mut stage, "Walter");
    stage.until("Walter", |app| matches!(app.state().voice, VoiceState::Ready { .. }));
    let speak = stage.speak("Hi.");
    assert_eq!(speak.voice.name, "Walter", "prepared before, not again");
}

#[test]
fn the_engine_works_through_a_voice_before_there_is_a_text_until_another_is_chosen() {
    let mut stage = Stage::new().ready();
    let Ok(Command::Warm(walter)) = stage.commands.try_recv() else { panic!("nothing gets ready") };
    assert_eq!((walter.voice.name.as_str(), walter.steps), ("Walter", embedded().defaults.steps));
    stage.speak("Hi.");
    assert!(!walter.cancel.is_cancelled(), "what is being worked through is needed now");
    click(&mut stage, "Nora");
    stage.told_prepare();
    assert!(walter.cancel.is_cancelled());
}

#[test]
fn a_voice_that_cannot_be_learned_says_why_and_cannot_speak() {
    let mut stage = Stage::new();
    stage.told_load();
    stage.tell(Event::Loaded(Box::new(embedded())));
    let prepare = stage.told_prepare();
    stage.tell(Event::Failed { job: prepare.id, error: "The clip is silent; choose another.".into(), bad_input: true });
    stage.until("the failure", |app| matches!(app.state().voice, VoiceState::Failed(_)));
    stage.window.get_by_label("The clip is silent; choose another.");
    stage.window.get_by_label("Text to speak").focus();
    stage.look();
    stage.window.get_by_label("Text to speak").type_text("Hi");
    stage.look();
    assert!(stage.window.get_by_label("Speak").accesskit_node().is_disabled());
}

#[test]
fn a_clip_is_opened_read_judged_trimmed_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = wav(folder.path(), "aunt.wav", 8.0);
    let mut stage = Stage::new().ready();
    stage.answers.next.lock().unwrap().push_back(Some(path.clone()));
    press(&mut stage, CTRL, Key::O);
    let prepare = stage.told_prepare();
    assert_eq!(prepare.name, "aunt");
    assert!((prepare.clip.secs() - 8.0).abs() < 1e-3);
    stage.until("the report", |app| app.state().clip().unwrap().report.is_some());
    stage.window.get_by_label_contains("follows a human voice only roughly");
    stage.window.get_by_label("Start of the used part").focus();
    stage.look();
    stage.window.key_press(Key::ArrowRight);
    stage.until("trimmed", |app| app.state().clip().unwrap().trim.start == 1.0);
    let again = stage.told_prepare();
    assert!((again.clip.secs() - 7.0).abs() < 1e-2);
    stage.window.get_by_label("7.0 of 8.0 s");
    assert_eq!(stage.window.state().state().settings.clips, [path]);
    click(&mut stage, "Remove aunt");
    assert_eq!(chosen(&stage), "Walter");
    assert!(stage.window.state().state().settings.clips.is_empty());
}

#[test]
fn the_handles_of_a_clip_are_dragged() {
    let mut stage = Stage::new().ready();
    let end = stage.window.get_by_label("End of the used part").rect().center();
    stage.window.drag_at(end);
    stage.window.step();
    stage.window.hover_at(end - eframe::egui::vec2(80.0, 0.0));
    stage.window.step();
    stage.window.drop_at(end - eframe::egui::vec2(80.0, 0.0));
    stage.look();
    let trim = stage.window.state().state().clip().unwrap().trim.clone();
    assert!(trim.start == 0.0 && trim.end > 3.0 && trim.end < 7.0, "{trim:?}");
    let again = stage.told_prepare();
    assert!((again.clip.secs() - trim.end).abs() < 0.01, "learned once, when the hand let go");
    assert!(stage.commands.is_empty());
}

#[test]
fn a_file_that_is_no_sound_is_refused_in_words_and_nothing_breaks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("letter.wav");
    std::fs::write(&path, "Dear aunt, this is not a recording.").unwrap();
    let mut stage = Stage::new().ready();
    stage.window.state_mut().act(Action::DropFiles(vec![path]), Instant::now());
    stage.until("the refusal", |app| !app.state().notices.is_empty());
    let state = stage.window.state().state();
    assert!(state.notices[0].text.contains("letter.wav is not an audio file"), "{:?}", state.notices);
    assert_eq!(state.voice, VoiceState::Unprepared);
    click(&mut stage, "Walter");
    stage.until("Walter", |app| matches!(app.state().voice, VoiceState::Ready { .. }));
}

#[test]
fn the_clip_can_be_heard_and_the_speech_is_there_again_afterwards() {
    let mut stage = Stage::new().ready();
    stage.spoken("Words", 2.0);
    click(&mut stage, "Hear the clip");
    let on_clip = |app: &myna::app::App| matches!(app.state().on_deck, OnDeck::Clip(_));
    stage.until("the clip", |app| {
        let player = &app.state().player;
        on_clip(app) && player.state == PlayState::Playing && player.buffer_secs > 6.0
    });
    click(&mut stage, "Stop the clip");
    assert_eq!(stage.window.state().state().on_deck, OnDeck::Speech);
    stage.until("the speech", |app| (app.state().player.buffer_secs - 2.0).abs() < 0.01);
    stage.window.get_by_label("Hear the clip");
}

#[test]
fn recording_counts_down_records_and_becomes_a_voice() {
    let mut stage = Stage::new().ready();
    click(&mut stage, "Record a voice (Ctrl+R)");
    stage.until("the countdown", |app| matches!(app.state().recorder, RecorderStatus::Countdown { .. }));
    stage.window.get_by_label_contains("Get ready");
    stage
        .until("recording", |app| matches!(app.state().recorder, RecorderStatus::Recording { secs, .. } if secs > 0.3));
    stage.window.get_by_label_contains("Level -");
    click(&mut stage, "Keep");
    stage.until("the voice", |app| app.state().clip().unwrap().name == "Recording 1");
    let prepare = stage.told_prepare();
    assert_eq!((prepare.clip.sample_rate_hz, prepare.name.as_str()), (16_000, "Recording 1"));
    assert!(prepare.clip.samples.iter().any(|s| s.abs() > 0.3));
}

#[test]
fn recordings_are_files_that_are_there_the_next_time() {
    let folder = tempfile::tempdir().unwrap();
    let recordings = Some(folder.path().join("recordings"));
    let mut stage = Stage::with(Setting { recordings, ..Setting::default() }).ready();
    press(&mut stage, CTRL, Key::R);
    stage
        .until("recording", |app| matches!(app.state().recorder, RecorderStatus::Recording { secs, .. } if secs > 0.2));
    press(&mut stage, CTRL, Key::R);
    stage.until("the voice", |app| app.state().clip().unwrap().name == "Recording 1");
    let path = folder.path().join("recordings/Recording 1.wav");
    assert_eq!(stage.window.state().state().settings.clips, std::slice::from_ref(&path));
    let prepare = stage.told_prepare();
    assert_eq!(prepare.clip, myna::audio_file::decode(&path).unwrap());
}

#[test]
fn a_recording_can_be_given_up_and_an_absent_microphone_is_said() {
    let mut stage = Stage::new().ready();
    click(&mut stage, "Record a voice (Ctrl+R)");
    stage.until("the countdown", |app| app.state().recorder != RecorderStatus::Idle);
    click(&mut stage, "Cancel");
    stage.until("idle", |app| app.state().recorder == RecorderStatus::Idle);
    assert_eq!(chosen(&stage), "Walter");
    stage.mic.lock().unwrap().absent = true;
    click(&mut stage, "Record a voice (Ctrl+R)");
    stage.until("the message", |app| !app.state().notices.is_empty());
    stage.window.get_by_label("Nothing was recorded: this system has no microphone.");
}

#[derive(Debug)]
struct Dropped(std::path::PathBuf);

impl eframe::egui::DroppedFile for Dropped {
    fn path(&self) -> &std::path::Path {
        &self.0
    }

    fn bytes(&self) -> Result<Vec<u8>, String> {
        std::fs::read(&self.0).map_err(|error| error.to_string())
    }
}

#[test]
fn files_are_dropped_on_the_window_and_a_sign_says_that_they_can_be() {
    let folder = tempfile::tempdir().unwrap();
    let path = wav(folder.path(), "dropped.wav", 4.0);
    let mut stage = Stage::new().ready();
    stage.window.input_mut().hovered_files.push(Default::default());
    stage.window.step();
    assert!(stage.window.state().state().dragging_files);
    stage.window.input_mut().hovered_files.clear();
    stage.window.input_mut().dropped_files.push(std::sync::Arc::new(Dropped(path)));
    stage.window.step();
    assert_eq!(stage.told_prepare().name, "dropped");
    stage.until("the report", |app| app.state().clip().unwrap().report.is_some());
    stage.window.get_by_label("4.0 s will do; 6 seconds or more sound better");
    assert!(!stage.window.state().state().dragging_files);
}

#[test]
fn a_clip_that_is_given_up_before_it_can_be_heard_stays_silent() {
    let mut stage = Stage::new().ready();
    let id = stage.window.state().state().clip().unwrap().id;
    // Both at once: the answer to the first finds that nobody wants to listen any more.
    stage.window.state_mut().act(Action::Preview(id), Instant::now());
    stage.window.state_mut().act(Action::Stop, Instant::now());
    std::thread::sleep(std::time::Duration::from_millis(300));
    stage.look();
    assert_eq!(stage.window.state().state().on_deck, OnDeck::Speech);
    assert_eq!(stage.window.state().state().player.state, PlayState::Empty);
}

#[test]
fn what_the_model_hears_of_a_clip_is_shown() {
    let stage = Stage::new().ready();
    stage.window.get_by_label("Sound, 10 s");
    stage.window.get_by_label("Manner, 6 s");
    let stage = Stage::new().ready_with(turbo());
    stage.window.get_by_label("Manner, 15 s");
}

#[test]
fn the_voice_of_a_model_is_listed_needs_no_clip_and_is_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let file = SettingsFile::at(folder.path().join("settings.json"));
    let with_voice = || ModelInfo { builtin_voice: Some(voice("Built-in")), ..turbo() };
    let mut stage = Stage::with(Setting { file: Some(file.clone()), ..Setting::default() }).ready_with(with_voice());
    assert_eq!(chosen(&stage), "Walter", "it is not forced on anybody");
    click(&mut stage, "Built-in");
    stage.window.get_by_label_contains("came with the model, ready made");
    assert_eq!(stage.speak("Hello.").voice.name, "Built-in");
    drop(stage);
    let mut stage = Stage::with(Setting { file: Some(file), ..Setting::default() });
    stage.told_load();
    stage.tell(Event::Loaded(Box::new(with_voice())));
    stage.until("the voice", |app| matches!(app.state().voice, VoiceState::Ready { .. }));
    assert_eq!(chosen(&stage), "Built-in");
    stage.window.state_mut().act(Action::EmbeddedModel, Instant::now());
    stage.look();
    assert_eq!(chosen(&stage), "Walter", "it went with its model");
}

#[test]
fn a_new_clip_is_on_top_of_the_list_and_in_sight() {
    let folder = tempfile::tempdir().unwrap();
    let mut stage = Stage::with(Setting { size: [900.0, 600.0], ..Setting::default() }).ready();
    for name in ["first.wav", "second.wav"] {
        let path = wav(folder.path(), name, 2.0);
        stage.window.state_mut().act(Action::DropFiles(vec![path]), Instant::now());
        stage.told_prepare();
        stage.until("the report", |app| app.state().clip().unwrap().report.is_some());
        let row = stage.window.get_by_label(name.trim_end_matches(".wav")).rect();
        let below = stage.window.get_by_label("Clip").rect();
        assert!(row.top() >= 90.0 && row.bottom() <= below.top(), "{row:?} {below:?}");
    }
    let names: Vec<_> = stage.window.state().state().library.clips().iter().map(|clip| clip.name.clone()).collect();
    assert_eq!(names[..3], ["second", "first", "Walter"]);
}
