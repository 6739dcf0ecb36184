//! Languages, tags, settings, devices, and what is remembered.

use eframe::egui::accesskit::Role;
use eframe::egui::{Event as Input, Key, ViewportCommand};
use egui_kittest::kittest::{NodeT, Queryable};
use myna::player::{DeviceState, PlayState};
use myna::settings_file::SettingsFile;
use myna::state::{ModelState, Offers, Settings, ThemeChoice};
use myna_engine::protocol::{Command, DeviceKind, Event, Precision};

use crate::fake::{Card, Setting, Stage, embedded, multilingual, turbo, voice};
use crate::hand::{CTRL, chosen, click, leave_editor, open, press};

#[test]
fn tags_go_where_the_cursor_is() {
    let mut stage = Stage::new().ready_with(turbo());
    stage.window.get_by_label("Text to speak").focus();
    stage.look();
    stage.window.get_by_label("Text to speak").type_text("Well");
    stage.look();
    click(&mut stage, "[laugh]");
    stage.window.get_by_label("Text to speak").type_text("then.");
    stage.look();
    assert_eq!(stage.window.state().state().settings.text, "Well [laugh] then.");
}

#[test]
fn the_language_is_chosen_where_there_are_several() {
    let mut stage = Stage::new().ready_with(multilingual());
    open(&mut stage, "Language");
    click(&mut stage, "German");
    assert_eq!(stage.window.state().state().speak().language.as_deref(), Some("de"));
    assert_eq!(stage.speak("Guten Tag.").settings.language.as_deref(), Some("de"));
}

#[test]
fn settings_reach_the_engine_and_the_defaults_are_a_click_away() {
    let mut stage = Stage::new().ready();
    stage.window.get_by_role_and_label(Role::Slider, "Guidance").set_value_accesskit(0.0);
    stage.look();
    stage.window.get_by_role_and_label(Role::Slider, "Steps").set_value_accesskit(4.0);
    stage.look();
    click(&mut stage, "Keep this seed");
    click(&mut stage, "Another seed");
    let seed = stage.window.state().state().speak().seed;
    let speak = stage.speak("One.");
    assert_eq!((speak.settings.cfg_weight, speak.settings.steps, speak.settings.seed), (0.0, 4, seed));
    press(&mut stage, CTRL, Key::Enter);
    assert_eq!(stage.told_speak().settings.seed, seed, "the seed is locked");
    click(&mut stage, "Draw a new seed each time");
    press(&mut stage, CTRL, Key::Enter);
    assert_ne!(stage.told_speak().settings.seed, seed);
    click(&mut stage, "Defaults");
    let now = stage.window.state().state().speak();
    assert_eq!((now.cfg_weight, now.steps), (0.5, 2));
    assert!(stage.window.get_by_label("Defaults").accesskit_node().is_disabled());
}

#[test]
fn a_key_closes_the_window() {
    let mut stage = Stage::new().ready();
    let pressed = Input::Key { key: Key::Q, physical_key: None, pressed: true, repeat: false, modifiers: CTRL };
    for (event, closes) in [(Input::Text("q".into()), false), (pressed, true)] {
        stage.window.event(event);
        stage.window.step();
        let mut viewports = stage.window.output().viewport_output.values();
        assert_eq!(viewports.any(|viewport| viewport.commands.contains(&ViewportCommand::Close)), closes);
    }
}

#[test]
fn precision_and_device_load_the_model_anew() {
    let offers =
        Offers { precisions: vec![Precision::F32, Precision::Int8], devices: vec![DeviceKind::Cpu, DeviceKind::Cuda] };
    let mut stage = Stage::with(Setting { offers, ..Setting::default() }).ready();
    open(&mut stage, "Precision");
    click(&mut stage, "8-bit integers");
    let Command::Load(request) = stage.command() else { panic!("not a Load") };
    assert_eq!(request.precision, Precision::Int8);
    assert!(matches!(stage.window.state().state().model, ModelState::Loading { .. }));
    stage.tell(Event::Loaded(Box::new(embedded())));
    stage.told_prepare();
    open(&mut stage, "Runs on");
    click(&mut stage, "NVIDIA GPU");
    let Command::Load(request) = stage.command() else { panic!("not a Load") };
    assert_eq!((request.precision, request.device), (Precision::Int8, DeviceKind::Cuda));
}

#[test]
fn only_what_the_engine_can_do_is_offered() {
    let folder = tempfile::tempdir().unwrap();
    let file = SettingsFile::at(folder.path().join("settings.json"));
    file.save(&Settings { precision: Precision::Int8, device: DeviceKind::Cuda, ..Settings::default() }).unwrap();
    let offers = Offers { precisions: vec![Precision::F32], devices: vec![DeviceKind::Cpu] };
    let mut stage = Stage::with(Setting { file: Some(file), offers, ..Setting::default() });
    let Command::Load(request) = stage.command() else { panic!("not a Load") };
    assert_eq!((request.precision, request.device), (Precision::F32, DeviceKind::Cpu), "as far as this build goes");
    stage.look();
    assert!(stage.window.query_by_role_and_label(Role::ComboBox, "Precision").is_none());
    assert!(stage.window.query_by_role_and_label(Role::ComboBox, "Runs on").is_none());
    stage.window.get_by_label("32-bit floats");
    stage.window.get_by_label("Processor");
}

#[test]
fn what_a_model_lacks_is_greyed_and_says_why() {
    let mut stage = Stage::new().ready_with(turbo());
    click(&mut stage, "Sampling");
    for name in ["Exaggeration", "Guidance", "Min-p"] {
        let slider = stage.window.get_by_role_and_label(Role::Slider, name);
        assert!(slider.accesskit_node().is_disabled(), "{name}");
    }
    for name in ["Temperature", "Steps", "Top-p", "Top-k", "Repetition penalty"] {
        let slider = stage.window.get_by_role_and_label(Role::Slider, name);
        assert!(!slider.accesskit_node().is_disabled(), "{name}");
    }
    assert!(stage.window.get_by_label("Alignment guard").accesskit_node().is_disabled());
    assert_eq!(stage.window.get_all_by_label("not in this model").count(), 3);
    stage.window.get_by_role_and_label(Role::Slider, "Guidance").hover();
    stage.window.run_steps(40);
    stage.window.get_by_label("Chatterbox Turbo has no guidance");
}

#[test]
fn sampling_reaches_the_engine_and_unfolds_where_it_was_left() {
    let folder = tempfile::tempdir().unwrap();
    let file = SettingsFile::at(folder.path().join("settings.json"));
    let mut stage = Stage::with(Setting { file: Some(file.clone()), ..Setting::default() }).ready();
    assert!(stage.window.query_by_label("Top-p").is_none(), "folded at first");
    click(&mut stage, "Sampling");
    for (name, value) in [("Top-p", 0.9), ("Min-p", 0.1), ("Repetition penalty", 1.5)] {
        stage.window.get_by_role_and_label(Role::Slider, name).set_value_accesskit(value);
        stage.look();
    }
    let settings = stage.speak("One.").settings;
    assert!((settings.top_p - 0.9).abs() < 1e-6 && (settings.min_p - 0.1).abs() < 1e-6, "{settings:?}");
    assert!((settings.repetition_penalty - 1.5).abs() < 1e-6);
    assert!(stage.window.get_by_role_and_label(Role::Slider, "Top-k").accesskit_node().is_disabled());
    click(&mut stage, "Defaults");
    let now = stage.window.state().state().speak();
    assert_eq!((now.top_p, now.min_p, now.repetition_penalty), (1.0, 0.05, 1.2));
    drop(stage);
    let mut stage = Stage::with(Setting { file: Some(file), ..Setting::default() }).ready();
    stage.window.get_by_role_and_label(Role::Slider, "Top-p");
    click(&mut stage, "Sampling");
    assert!(stage.window.query_by_label("Top-p").is_none());
}

#[test]
fn without_a_sound_device_it_speaks_and_saves_all_the_same() {
    let card = Card::default();
    *card.absent.lock().unwrap() = true;
    let mut stage = Stage::with(Setting { card, ..Setting::default() }).ready();
    stage.until("no device", |app| matches!(app.state().player.device, DeviceState::Missing { .. }));
    stage.window.get_by_label_contains("this system has no sound device");
    stage.spoken("Silent film", 1.0);
    stage.window.get_by_label("no sound device; saving works");
    assert!(!stage.window.get_by_label("Save").accesskit_node().is_disabled());
}

#[test]
fn sound_devices_can_be_chosen() {
    let mut stage = Stage::new().ready();
    open(&mut stage, "Output");
    stage.until("the list", |app| !app.state().player.devices.is_empty());
    click(&mut stage, "Loudspeaker");
    stage.until("the device", |app| {
        app.state().player.device == DeviceState::Ready { name: "Loudspeaker".into(), rate_hz: 24_000 }
    });
    assert_eq!(stage.window.state().state().settings.output.as_deref(), Some("fake:a"));
}

#[test]
fn theme_settings_panel_and_volume_obey() {
    let mut stage = Stage::new().ready();
    click(&mut stage, "Theme");
    click(&mut stage, "Light");
    assert_eq!(stage.window.state().state().settings.theme, ThemeChoice::Light);
    assert!(!stage.window.ctx.global_style().visuals.dark_mode);
    click(&mut stage, "Hide settings");
    assert!(stage.window.query_by_label("Exaggeration").is_none());
    click(&mut stage, "Show settings");
    stage.window.get_by_label("Volume").set_value_accesskit(0.5);
    stage.look();
    assert!((stage.window.state().state().settings.volume - 0.5).abs() < 0.01);
}

#[test]
fn what_was_typed_and_chosen_is_there_the_next_time() {
    let folder = tempfile::tempdir().unwrap();
    let file = SettingsFile::at(folder.path().join("settings.json"));
    let mut stage = Stage::with(Setting { file: Some(file.clone()), ..Setting::default() }).ready();
    click(&mut stage, "Pip");
    let prepare = stage.told_prepare();
    stage.tell(Event::VoiceReady { job: prepare.id, voice: voice("Pip"), ms: 1.0 });
    stage.speak("Remember me.");
    drop(stage);
    let mut stage = Stage::with(Setting { file: Some(file), ..Setting::default() });
    stage.told_load();
    assert_eq!(chosen(&stage), "Pip");
    assert_eq!(stage.window.state().state().settings.text, "Remember me.");
    assert_eq!(stage.window.get_by_role(Role::MultilineTextInput).value().as_deref(), Some("Remember me."));
}

#[test]
fn broken_settings_are_set_aside_and_said_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("settings.json");
    std::fs::write(&path, "{ half a file").unwrap();
    let mut stage = Stage::with(Setting { file: Some(SettingsFile::at(&path)), ..Setting::default() });
    stage.look();
    stage.window.get_by_label_contains("Your settings could not be read");
    assert_eq!(
        stage.window.state().state().settings,
        Settings { window: stage.window.state().state().settings.window, ..Settings::default() }
    );
}

#[test]
fn an_idle_window_does_not_repaint() {
    let mut stage = Stage::new().ready();
    stage.spoken("Done", 0.5);
    click(&mut stage, "Stop (Esc)");
    stage.until("held", |app| app.state().player.state == PlayState::Paused);
    // One more for the settings, which are written a while after they changed.
    std::thread::sleep(std::time::Duration::from_millis(50));
    stage.window.run_steps(10);
    let asked = stage.window.output().viewport_output.values().map(|v| v.repaint_delay).min().unwrap();
    assert!(asked >= std::time::Duration::from_secs(1), "it wants to be painted again in {asked:?}");
}

#[test]
fn every_control_can_be_reached_by_the_keyboard() {
    let mut stage = Stage::new().ready();
    stage.spoken("Reach", 1.0);
    leave_editor(&mut stage);
    let mut reached = std::collections::BTreeSet::new();
    for _ in 0..80 {
        stage.window.key_press(Key::Tab);
        stage.window.step();
        let focused = stage.window.ctx.memory(|memory| memory.focused());
        reached.extend(focused.map(|id| format!("{id:?}")));
    }
    assert!(reached.len() >= 30, "only {} controls", reached.len());
    let mut hit = false;
    for _ in 0..80 {
        stage.window.key_press(Key::Tab);
        stage.window.step();
        if stage.window.get_by_label("Nora").is_focused() {
            hit = true;
            break;
        }
    }
    assert!(hit, "a voice has its turn");
    stage.window.key_press(Key::Enter);
    stage.look();
    assert_eq!(chosen(&stage), "Nora");
}
