//! Pictures of the main states, compared with committed ones. `UPDATE_SNAPSHOTS=true` draws them anew.

use std::time::Instant;

use egui_kittest::kittest::Queryable;
use myna::action::Action;
use myna::settings_file::SettingsFile;
use myna::state::{Settings, ThemeChoice};
use myna_engine::protocol::Event;

use crate::fake::{Setting, Stage, sentences, stats, turbo};

const TEXT: &str = "The rain had stopped before dawn. By the time the ferry came in, the whole harbour smelled of salt and \
                    warm bread, and somebody was whistling.";

/// Settings with a locked seed, so that pictures agree.
fn same_seed(theme: ThemeChoice) -> Setting {
    let folder = tempfile::tempdir().unwrap().keep();
    let file = SettingsFile::at(folder.join("settings.json"));
    file.save(&Settings { theme, seed_locked: true, ..Settings::default() }).unwrap();
    Setting { file: Some(file), ..Setting::default() }
}

#[test]
fn idle_dark() {
    let mut stage = Stage::new().ready();
    stage.look();
    stage.window.snapshot("idle_dark");
}

#[test]
fn generating_light() {
    let mut stage = Stage::with(Setting { ..same_seed(ThemeChoice::Light) }).ready();
    let job = stage.speak(TEXT);
    for chunk in sentences(5.2, 2) {
        job.audio.send(chunk).unwrap();
    }
    stage.tell(Event::Progress { job: job.id, stats: stats(5.2, 2) });
    stage.until("sound", |app| app.state().take.as_ref().is_some_and(|take| take.len() == 124_800));
    stage.window.state_mut().act(Action::Seek(1.3), Instant::now());
    stage.until("the place", |app| (app.state().player.position_secs - 1.3).abs() < 1e-3);
    stage.window.snapshot("generating_light");
}

#[test]
fn small_with_error() {
    let mut stage = Stage::with(Setting { size: [900.0, 600.0], ..same_seed(ThemeChoice::Dark) }).ready_with(turbo());
    let job = stage.speak(TEXT);
    let error = "The text has a sentence that is longer than the model can speak; break it into shorter ones.";
    stage.tell(Event::Failed { job: job.id, error: error.into(), bad_input: true });
    drop(job);
    stage.until("the error", |app| !app.state().notices.is_empty());
    stage.window.get_by_label("Speak");
    stage.window.snapshot("small_with_error");
}
