//! Getting released models from the list beside the model's name.

use std::path::Path;
use std::time::Duration;

use egui_kittest::kittest::{NodeT, Queryable};
use myna::download::{Hub, release};
use myna::state::Tone;
use myna_engine::protocol::{Command, Event, ModelSource};

use crate::fake::{Setting, Stage, embedded};
use crate::hand::click;

/// A released model of the right size, and nothing in it.
fn put(models: &Path, name: &str) {
    let release = release(name).unwrap();
    let folder = release.folder(models);
    std::fs::create_dir_all(&folder).unwrap();
    for file in &release.files {
        std::fs::File::create(folder.join(&file.name)).unwrap().set_len(file.bytes).unwrap();
    }
}

fn stage(models: &Path) -> Stage {
    let hub = Hub::at("http://127.0.0.1:1").with_pause(Duration::from_millis(1));
    Stage::with(Setting { models: Some(models.to_owned()), hub, ..Setting::default() })
}

#[test]
fn a_model_that_is_here_is_chosen_like_any_other() {
    let models = tempfile::tempdir().unwrap();
    put(models.path(), "nano");
    let mut stage = stage(models.path()).ready();
    stage.until("the models", |app| app.state().releases.here.contains("nano"));
    click(&mut stage, "Choose a model");
    stage.window.get_by_label("Get Chatterbox Turbo (3.0 GB)");
    click(&mut stage, "Chatterbox Nano");
    let Command::Load(request) = stage.command() else { panic!("not a Load") };
    assert_eq!(request.source, ModelSource::Folder(models.path().join("nano")));
}

#[test]
fn a_model_that_cannot_be_fetched_is_said_so_and_may_be_asked_for_again() {
    let models = tempfile::tempdir().unwrap();
    let mut stage = stage(models.path()).ready();
    click(&mut stage, "Choose a model");
    click(&mut stage, "Get Chatterbox Nano (1.9 GB)");
    stage.until("the error", |app| app.state().notices.back().is_some_and(|notice| notice.tone == Tone::Bad));
    let notice = stage.window.state().state().notices.back().unwrap().text.clone();
    assert!(notice.contains("Chatterbox Nano") && notice.contains("127.0.0.1"), "{notice}");
    assert!(stage.window.state().state().releases.fetching.is_none());
    click(&mut stage, "Choose a model");
    assert!(!stage.window.get_by_label("Get Chatterbox Nano (1.9 GB)").accesskit_node().is_disabled());
}

#[test]
fn a_model_that_arrives_is_taken_at_once() {
    // All of it is here already, so that nothing is asked of the server; only the window does not know yet.
    let models = tempfile::tempdir().unwrap();
    let mut stage = stage(models.path()).ready();
    put(models.path(), "turbo");
    click(&mut stage, "Choose a model");
    click(&mut stage, "Get Chatterbox Turbo (3.0 GB)");
    let Command::Load(request) = stage.command() else { panic!("not a Load") };
    assert_eq!(request.source, ModelSource::Folder(models.path().join("turbo")));
    stage.tell(Event::Loaded(Box::new(embedded())));
    stage.until("the notice", |app| app.state().notices.back().is_some_and(|n| n.text == "Chatterbox Turbo is here."));
}
