//! The settings: how it is spoken, and on what. The defaults are one click away.

use std::ops::RangeInclusive;

use eframe::egui::{Align, ComboBox, DragValue, Label, Layout, RichText, ScrollArea, Slider, Ui, emath::Numeric};
use myna_engine::protocol::{DeviceKind, Precision, SpeakSettings};

use crate::action::Action;
use crate::player::DeviceState;
use crate::state::State;
use crate::theme::{self, GAP, SECTION, palette};
use crate::widgets::{Icon, icon_button, quiet_button, section};

/// The panel.
pub fn show(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    ScrollArea::vertical().id_salt("settings").auto_shrink([false, false]).show(ui, |ui| {
        manner(ui, state, actions);
        ui.add_space(SECTION - GAP);
        machine(ui, state, actions);
        ui.add_space(SECTION - GAP);
        sound(ui, state, actions);
    });
}

fn manner(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    let (defaults, mut speak) = (state.defaults(), state.speak());
    let before = speak.clone();
    let spec = state.model.info().map(|info| info.variant.spec());
    let guided = spec.is_none_or(|spec| spec.guided);
    ui.horizontal(|ui| {
        section(ui, "Manner");
        ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
            let same = SpeakSettings { seed: defaults.seed, language: defaults.language.clone(), ..speak.clone() };
            if quiet_button(ui, None, "Defaults", same != defaults).clicked() {
                actions.push(Action::Defaults);
            }
        });
    });
    if guided {
        row(ui, "Exaggeration", &mut speak.exaggeration, 0.0..=2.0, "Emotion; 0.5 is neutral");
        row(
            ui,
            "Guidance",
            &mut speak.cfg_weight,
            0.0..=1.0,
            "How closely it keeps to the text (CFG). 0 is twice as fast",
        );
    }
    row(ui, "Temperature", &mut speak.temperature, 0.0..=2.0, "Liveliness; 0 always takes the likeliest sound");
    row(ui, "Steps", &mut speak.steps, 1..=32, "Steps of the flow: more are cleaner and slower");
    seed(ui, state, &mut speak, actions);
    if speak != before {
        actions.push(Action::Settings(speak));
    }
}

fn row<T: Numeric>(ui: &mut Ui, name: &str, value: &mut T, range: RangeInclusive<T>, tip: &str) {
    let whole = T::INTEGRAL;
    ui.vertical(|ui| {
        ui.spacing_mut().item_spacing.y = 0.0;
        ui.horizontal(|ui| {
            ui.label(RichText::new(name)).on_hover_text(tip);
            ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
                let v = value.to_f64();
                let text = if whole { format!("{v:.0}") } else { format!("{v:.2}") };
                ui.label(RichText::new(text).color(palette(ui).weak));
            });
        });
        theme::slim_slider(ui);
        ui.spacing_mut().slider_width = ui.available_width();
        let slider = Slider::new(value, range).show_value(false).step_by(if whole { 1.0 } else { 0.05 });
        ui.name_inputs(name, |ui| ui.add(slider)).on_hover_text(tip);
    });
}

fn seed(ui: &mut Ui, state: &State, speak: &mut SpeakSettings, actions: &mut Vec<Action>) {
    let locked = state.settings.seed_locked;
    ui.horizontal(|ui| {
        ui.label("Seed").on_hover_text("The same seed gives the same sound");
        ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
            ui.spacing_mut().item_spacing.x = 2.0;
            let (icon, name) =
                if locked { (Icon::Locked, "Draw a new seed each time") } else { (Icon::Unlocked, "Keep this seed") };
            if icon_button(ui, icon, name, true).clicked() {
                actions.push(Action::LockSeed(!locked));
            }
            if icon_button(ui, Icon::Dice, "Another seed", true).clicked() {
                actions.push(Action::NewSeed);
            }
            ui.name_inputs("Seed", |ui| ui.add(DragValue::new(&mut speak.seed).speed(1.0)));
        });
    });
}

fn machine(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    section(ui, "Engine");
    let precisions = [
        (Precision::F32, "32-bit floats"),
        (Precision::F16, "16-bit floats"),
        (Precision::Bf16, "16-bit brain floats"),
        (Precision::Int8, "8-bit integers"),
    ];
    if let Some(chosen) = choice(ui, "Precision", state.settings.precision, &precisions) {
        actions.push(Action::Precision(chosen));
    }
    let devices = [(DeviceKind::Cpu, "Processor"), (DeviceKind::Cuda, "NVIDIA GPU"), (DeviceKind::Metal, "Apple GPU")];
    if let Some(chosen) = choice(ui, "Runs on", state.settings.device, &devices) {
        actions.push(Action::Device(chosen));
    }
    if let Some(info) = state.model.info() {
        ui.add(Label::new(RichText::new(&info.device).font(theme::caption()).color(palette(ui).weak)).wrap());
    }
}

fn sound(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    section(ui, "Sound");
    let p = palette(ui);
    let mut devices = vec![(None, "System default")];
    devices.extend(state.player.devices.iter().map(|d| (Some(d.id.clone()), d.name.as_str())));
    let known = devices.iter().any(|(id, _)| *id == state.settings.output);
    if !known {
        devices.push((state.settings.output.clone(), "Not connected"));
    }
    let current = state.settings.output.clone();
    let shown = devices.iter().find(|(id, _)| *id == current).map_or("", |(_, name)| name);
    ui.horizontal(|ui| {
        ui.label("Output");
        ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
            let mut chosen = current.clone();
            let combo = ComboBox::from_id_salt("Output").width(130.0).selected_text(shown).truncate();
            let response = ui.name_inputs("Output", |ui| {
                combo.show_ui(ui, |ui| {
                    for (id, name) in &devices {
                        ui.selectable_value(&mut chosen, id.clone(), *name);
                    }
                })
            });
            if response.response.clicked() {
                actions.push(Action::ListDevices);
            }
            if chosen != current {
                actions.push(Action::OutputDevice(chosen));
            }
        });
    });
    let (text, color) = match &state.player.device {
        DeviceState::Ready { name, rate_hz } => (format!("{name}, {:.1} kHz", *rate_hz as f32 / 1e3), p.weak),
        DeviceState::Missing { why } => (format!("No sound: {why}. Speaking and saving work all the same."), p.warn),
        DeviceState::Closed => (String::new(), p.weak),
    };
    ui.add(Label::new(RichText::new(text).font(theme::caption()).color(color)).wrap());
}

fn choice<T: Copy + PartialEq>(ui: &mut Ui, name: &str, current: T, all: &[(T, &str)]) -> Option<T> {
    let mut chosen = current;
    ui.horizontal(|ui| {
        ui.label(name);
        ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
            let shown = all.iter().find(|(value, _)| *value == current).map_or("", |(_, title)| title);
            ui.name_inputs(name, |ui| {
                ComboBox::from_id_salt(name).width(130.0).selected_text(shown).show_ui(ui, |ui| {
                    for (value, title) in all {
                        ui.selectable_value(&mut chosen, *value, *title);
                    }
                });
            });
        });
    });
    (chosen != current).then_some(chosen)
}
