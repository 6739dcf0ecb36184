//! The settings: how it is spoken, and on what. The defaults are one click away; what a model lacks is greyed and says so.

use std::ops::RangeInclusive;

use eframe::egui::{
    Align, Checkbox, DragValue, Label, Layout, RichText, ScrollArea, Slider, Ui, WidgetText, emath::Numeric,
};
use myna_engine::Variant;
use myna_engine::protocol::{DeviceKind, Precision, SpeakSettings};
use myna_engine::variant::VariantSpec;

use crate::action::Action;
use crate::player::DeviceState;
use crate::state::State;
use crate::theme::{self, GAP, SECTION, palette};
use crate::widgets::{Icon, combo, fold, icon_button, keep_from_bar, quiet_button, section};

/// Width of a list to choose from, in points.
pub(super) const COMBO: f32 = 136.0;

/// The panel.
pub fn show(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    ScrollArea::vertical().id_salt("settings").auto_shrink([false, false]).show(ui, |ui| {
        keep_from_bar(ui);
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
    ui.horizontal(|ui| {
        section(ui, "Manner");
        ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
            let same = SpeakSettings { seed: defaults.seed, language: defaults.language.clone(), ..speak.clone() };
            let button = quiet_button(ui, None, "Defaults", same != defaults);
            if button.on_hover_text("What this model was made for").clicked() {
                actions.push(Action::Defaults);
            }
        });
    });
    let guided = |what: &str| lacks(state, |spec| spec.guided, what);
    let tip = "Emotion; 0.5 is neutral";
    Knob { name: "Exaggeration", tip, step: 0.05, missing: guided("exaggeration") }.show(
        ui,
        &mut speak.exaggeration,
        0.0..=2.0,
    );
    let tip = "How closely it keeps to the text (classifier-free guidance). 0 is twice as fast";
    Knob { name: "Guidance", tip, step: 0.05, missing: guided("guidance") }.show(ui, &mut speak.cfg_weight, 0.0..=1.0);
    let tip = "Liveliness; 0 always takes the likeliest sound";
    Knob { name: "Temperature", tip, step: 0.05, missing: None }.show(ui, &mut speak.temperature, 0.0..=2.0);
    let tip = "Steps of the flow: more are cleaner and slower";
    Knob { name: "Steps", tip, step: 1.0, missing: None }.show(ui, &mut speak.steps, 1..=32);
    seed(ui, state, &mut speak, actions);
    let open = state.settings.sampling_open;
    if fold(ui, "Sampling", open).clicked() {
        actions.push(Action::ShowSampling(!open));
    }
    if open {
        sampling(ui, state, &mut speak);
    }
    if speak != before {
        actions.push(Action::Settings(speak));
    }
}

fn sampling(ui: &mut Ui, state: &State, speak: &mut SpeakSettings) {
    let tip = "Keep the likeliest tokens that together have this probability; 1 keeps all";
    Knob { name: "Top-p", tip, step: 0.01, missing: None }.show(ui, &mut speak.top_p, 0.0..=1.0);
    let tip = "Drop tokens less likely than this share of the best; 0 keeps all";
    let missing = lacks(state, VariantSpec::uses_min_p, "min-p; it samples with top-k");
    Knob { name: "Min-p", tip, step: 0.01, missing }.show(ui, &mut speak.min_p, 0.0..=1.0);
    let tip = "Keep so many of the likeliest tokens; 0 keeps all";
    let missing = lacks(state, VariantSpec::uses_top_k, "top-k; it samples with min-p");
    Knob { name: "Top-k", tip, step: 10.0, missing }.show(ui, &mut speak.top_k, 0..=2000);
    let tip = "How much to shun tokens that occurred before; 1 is not at all";
    Knob { name: "Repetition penalty", tip, step: 0.05, missing: None }.show(
        ui,
        &mut speak.repetition_penalty,
        1.0..=2.0,
    );
    let guard = state.model.described().is_none_or(|info| info.variant == Variant::MultilingualV2);
    let tip = "Watches that the text is followed, and ends a sentence that runs on";
    let why = "Only Chatterbox Multilingual v2 has an alignment guard";
    ui.add_enabled_ui(guard, |ui| ui.add(Checkbox::new(&mut speak.alignment_guard, "Alignment guard")))
        .inner
        .on_hover_text(tip)
        .on_disabled_hover_text(why);
}

/// Why a setting has no effect with the loaded model, if it has none.
fn lacks(state: &State, has: impl Fn(&VariantSpec) -> bool, what: &str) -> Option<String> {
    let info = state.model.described().filter(|info| !has(info.variant.spec()))?;
    Some(format!("{} has no {what}", info.title))
}

/// A setting with a slider.
struct Knob<'a> {
    name: &'a str,
    tip: &'a str,
    step: f64,
    /// Why it has no effect.
    missing: Option<String>,
}

impl Knob<'_> {
    fn show<T: Numeric>(self, ui: &mut Ui, value: &mut T, range: RangeInclusive<T>) {
        let why = self.missing.as_deref().unwrap_or_default();
        ui.add_enabled_ui(self.missing.is_none(), |ui| {
            ui.spacing_mut().item_spacing.y = 0.0;
            ui.spacing_mut().interact_size.y = 20.0;
            ui.horizontal(|ui| {
                ui.label(self.name).on_hover_text(self.tip).on_disabled_hover_text(why);
                ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
                    let v = value.to_f64();
                    let text = match self.missing {
                        Some(_) => "not in this model".to_owned(),
                        None if T::INTEGRAL => format!("{v:.0}"),
                        None => format!("{v:.2}"),
                    };
                    ui.label(RichText::new(text).font(theme::caption()).color(palette(ui).weak));
                });
            });
            theme::slim_slider(ui);
            ui.spacing_mut().slider_width = ui.available_width();
            let slider = Slider::new(value, range).show_value(false).step_by(self.step);
            ui.name_inputs(self.name, |ui| ui.add(slider)).on_hover_text(self.tip).on_disabled_hover_text(why);
        });
    }
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
    let only = "This build of Myna computes with nothing else";
    if let Some(chosen) =
        choice(ui, "Precision", only, state.settings.precision, &state.offers.precisions, precision_title)
    {
        actions.push(Action::Precision(chosen));
    }
    let only = "This build of Myna runs on nothing else";
    if let Some(chosen) = choice(ui, "Runs on", only, state.settings.device, &state.offers.devices, device_title) {
        actions.push(Action::Device(chosen));
    }
    if let Some(info) = state.model.described() {
        ui.add(Label::new(RichText::new(&info.device).font(theme::caption()).color(palette(ui).weak)).wrap());
    }
}

/// How weights are stored, for people.
pub(super) fn precision_title(precision: Precision) -> &'static str {
    match precision {
        Precision::F32 => "32-bit floats",
        Precision::F16 => "16-bit floats",
        Precision::Bf16 => "16-bit brain floats",
        Precision::Int8 => "8-bit integers",
    }
}

/// A processor, for people.
pub(super) fn device_title(device: DeviceKind) -> &'static str {
    match device {
        DeviceKind::Cpu => "Processor",
        DeviceKind::Cuda => "NVIDIA GPU",
        DeviceKind::Metal => "Apple GPU",
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
            let combo = combo("Output", COMBO).selected_text(shown).truncate();
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

/// A choice among what there is; where there is only one thing, that is said and cannot be changed.
pub(super) fn choice<T: Copy + PartialEq, W: Into<WidgetText>>(
    ui: &mut Ui,
    name: &str,
    only: &str,
    current: T,
    all: &[T],
    title: impl Fn(T) -> W,
) -> Option<T> {
    let mut chosen = current;
    ui.horizontal(|ui| {
        ui.label(name);
        ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
            if all.len() < 2 {
                let text: WidgetText = title(current).into();
                ui.label(text.color(palette(ui).weak)).on_hover_text(only);
                return;
            }
            ui.name_inputs(name, |ui| {
                combo(name, COMBO).selected_text(title(current)).truncate().show_ui(ui, |ui| {
                    for &value in all {
                        ui.selectable_value(&mut chosen, value, title(value));
                    }
                });
            });
        });
    });
    (chosen != current).then_some(chosen)
}
