//! Long texts, missing files, closing in the middle.

use std::time::{Duration, Instant};

use egui_kittest::kittest::Queryable;
use myna::settings_file::SettingsFile;
use myna::state::{JobState, Settings, VoiceChoice};
use myna_engine::protocol::{Command, Event};

use crate::fake::{Setting, Stage, sentences, stats};
use crate::hand::{chosen, wav};

#[test]
fn a_text_of_twenty_thousand_characters_is_shown_measured_and_spoken() {
    let text = "The quick brown fox jumps over the lazy dog. ".repeat(445)[..20_000].to_owned();
    let folder = tempfile::tempdir().unwrap();
    let file = SettingsFile::at(folder.path().join("settings.json"));
    file.save(&Settings { text: text.clone(), ..Settings::default() }).unwrap();
    let mut stage = Stage::with(Setting { file: Some(file), ..Setting::default() }).ready();
    stage.window.get_by_label_contains("20000 characters, about 2");
    stage.window.get_by_label("Speak").click();
    stage.look();
    assert_eq!(stage.told_speak().text, text);
}

#[test]
fn closing_in_the_middle_stops_the_engine_and_leaves_nothing_half_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = SettingsFile::at(folder.path().join("settings.json"));
    let mut stage = Stage::with(Setting { file: Some(file.clone()), ..Setting::default() }).ready();
    let speak = stage.speak("It is being spoken when the window closes.");
    for chunk in sentences(1.0, 1) {
        speak.audio.send(chunk).unwrap();
    }
    stage.tell(Event::Progress { job: speak.id, stats: stats(1.0, 1) });
    stage.until("speaking", |app| matches!(app.state().job, JobState::Speaking(_)));
    let commands = stage.commands.clone();
    let begun = Instant::now();
    drop(stage);
    assert!(begun.elapsed() < Duration::from_secs(1), "closing took {:?}", begun.elapsed());
    assert!(speak.cancel.is_cancelled());
    assert!(matches!(commands.try_recv(), Ok(Command::Shutdown)));
    assert_eq!(file.load().0.text, "It is being spoken when the window closes.");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["settings.json"]);
}

#[test]
fn a_clip_whose_file_is_gone_leaves_the_list_and_another_voice_speaks() {
    let folder = tempfile::tempdir().unwrap();
    let file = SettingsFile::at(folder.path().join("settings.json"));
    let (here, gone) = (wav(folder.path(), "here.wav", 7.0), folder.path().join("gone.wav"));
    let settings =
        Settings { clips: vec![gone.clone(), here], voice: Some(VoiceChoice::File(gone)), ..Settings::default() };
    file.save(&settings).unwrap();
    let mut stage = Stage::with(Setting { file: Some(file), ..Setting::default() }).ready();
    assert_eq!(chosen(&stage), "Walter");
    assert!(stage.window.query_by_label("gone").is_none());
    stage.window.get_by_label("here").scroll_to_me();
    stage.look();
    assert!(stage.window.state().state().notices.is_empty());
    assert_eq!(stage.window.state().state().settings.clips, settings.clips, "the disk may come back");
}
