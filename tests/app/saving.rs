//! Saving what was made.

use eframe::egui::{Key, Modifiers};
use egui_kittest::kittest::{NodeT, Queryable};
use myna::state::Tone;

use crate::fake::Stage;
use crate::hand::{CTRL, click, press};

#[test]
fn it_saves_what_was_made_and_says_where() {
    let folder = tempfile::tempdir().unwrap();
    let mut stage = Stage::new().ready();
    assert!(stage.window.get_by_label("Save").accesskit_node().is_disabled());
    stage.spoken("It was a bright cold day in April", 2.0);
    for (name, seconds) in [("speech.wav", 2.0), ("other", 2.0)] {
        let path = folder.path().join(name);
        stage.answers.next.lock().unwrap().push_back(Some(path.clone()));
        press(&mut stage, CTRL, Key::S);
        stage.until("saved", |app| app.state().notices.back().is_some_and(|n| n.text.contains(name)));
        let back = myna::audio_file::decode(&path.with_extension("wav")).unwrap();
        assert_eq!((back.sample_rate_hz, back.secs()), (24_000, seconds));
        assert_eq!(stage.window.state().state().notices.back().unwrap().tone, Tone::Good);
    }
    assert_eq!(stage.answers.asked.lock().unwrap()[0], "save It was a bright cold.wav");
    stage.answers.next.lock().unwrap().push_back(Some(folder.path().join("not/there.wav")));
    press(&mut stage, CTRL, Key::S);
    stage.until("refused", |app| app.state().notices.back().is_some_and(|n| n.tone == Tone::Bad));
}

#[test]
fn saved_files_can_be_of_another_kind_and_rate() {
    let folder = tempfile::tempdir().unwrap();
    let mut stage = Stage::new().ready();
    stage.spoken("Hello", 1.0);
    click(&mut stage, "Format of saved files");
    click(&mut stage, "FLAC");
    click(&mut stage, "48 kHz");
    click(&mut stage, "Even loudness (−16 LUFS)");
    press(&mut stage, Modifiers::NONE, Key::Escape);
    let path = folder.path().join("x.flac");
    stage.answers.next.lock().unwrap().push_back(Some(path.clone()));
    click(&mut stage, "Save");
    stage.until("saved", |app| !app.state().notices.is_empty());
    let back = myna::audio_file::decode(&path).unwrap();
    assert_eq!((back.sample_rate_hz, back.samples.len()), (48_000, 48_000));
    let lufs = myna_engine::dsp::loudness::integrated_loudness(&back.samples, 48_000).unwrap();
    assert!((lufs + 16.0).abs() < 0.5, "{lufs}");
}
