//! What a person's hand does at the window, in few words.

use eframe::egui::accesskit::Role;
use eframe::egui::{Key, Modifiers};
use egui_kittest::kittest::Queryable;
use myna::state::JobState;

use crate::fake::Stage;

pub const CTRL: Modifiers = Modifiers::COMMAND;

pub fn chosen(stage: &Stage) -> String {
    stage.window.state().state().clip().unwrap().name.clone()
}

pub fn job(stage: &Stage) -> &JobState {
    &stage.window.state().state().job
}

pub fn press(stage: &mut Stage, modifiers: Modifiers, key: Key) {
    stage.window.key_press_modifiers(modifiers, key);
    stage.look();
}

pub fn click(stage: &mut Stage, label: &str) {
    stage.window.get_by_label(label).click();
    stage.look();
}

/// Opens a list to choose from.
pub fn open(stage: &mut Stage, label: &str) {
    stage.window.get_by_role_and_label(Role::ComboBox, label).click();
    stage.look();
}

/// Takes the keyboard from the editor.
pub fn leave_editor(stage: &mut Stage) {
    press(stage, Modifiers::NONE, Key::Escape);
}

pub fn wav(folder: &std::path::Path, name: &str, secs: f32) -> std::path::PathBuf {
    let path = folder.join(name);
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: 16_000,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut writer = hound::WavWriter::create(&path, spec).unwrap();
    for i in 0..(secs * 16_000.0) as usize {
        let t = i as f32 / 16_000.0;
        let gate = if (t * 3.0).fract() < 0.7 { 1.0 } else { 0.001 };
        writer.write_sample(((t * 900.0).sin() * gate * 9000.0) as i16).unwrap();
    }
    writer.finalize().unwrap();
    path
}
