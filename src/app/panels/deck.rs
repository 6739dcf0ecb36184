//! The deck at the bottom: the waveform, the transport, and the figures; for a comparison the switch in their place.

use std::sync::Arc;

use eframe::egui::{Align, Layout, Popup, PopupCloseBehavior, RichText, Slider, Ui};

use crate::action::Action;
use crate::export::Format;
use crate::player::{DeviceState, PlayState, PlayerStatus, Take};
use crate::state::{JobState, OnDeck, State};
use crate::theme::{self, GAP, palette};
use crate::widgets::{
    Icon, SpeechWave, icon_button, quiet_button, readout, short_time, speech_wave, stage_bar, time_label,
};

/// Height of what is below the waveform, in points.
const BELOW_WAVE: f32 = 88.0;
/// Width of a figure, in points.
const FIGURE: f32 = 84.0;

/// The deck.
pub fn show(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    let player = speech_player(state);
    let take = if state.shows_comparison() { state.compare.shown_take() } else { state.take.as_ref() };
    let take = take.map(Arc::as_ref);
    let empty = match &state.job {
        JobState::Waiting => "",
        JobState::Speaking(_) => "The first words are on their way",
        JobState::Failed(_) => "Nothing was spoken",
        JobState::Stopped(_) => "Stopped before the first sound",
        _ => "What is spoken appears here",
    };
    let wave = SpeechWave { take, expected_secs: state.take_expected_secs, position_secs: player.position_secs, empty };
    let height = ui.available_height() - BELOW_WAVE;
    if let Some(secs) = speech_wave(ui, height, &wave) {
        actions.push(Action::Seek(secs));
    }
    ui.horizontal(|ui| transport(ui, state, &player, take, actions));
    ui.horizontal(|ui| {
        if state.shows_comparison() {
            super::compare::switch(ui, state, actions);
        } else {
            figures(ui, state, &player);
        }
    });
}

/// The player as far as what is shown is concerned; it may hold a clip at the moment.
fn speech_player(state: &State) -> PlayerStatus {
    let shown = if state.shows_comparison() { OnDeck::Comparison } else { OnDeck::Speech };
    if state.on_deck == shown {
        state.player.clone()
    } else if shown == OnDeck::Comparison {
        PlayerStatus { state: PlayState::Paused, device: state.player.device.clone(), ..PlayerStatus::default() }
    } else {
        PlayerStatus { state: PlayState::Paused, device: state.player.device.clone(), ..state.take_player.clone() }
    }
}

fn transport(ui: &mut Ui, state: &State, player: &PlayerStatus, take: Option<&Take>, actions: &mut Vec<Action>) {
    ui.spacing_mut().item_spacing.x = 2.0;
    let sound = take.is_some_and(|take| !take.is_empty());
    let playing = matches!(player.state, PlayState::Playing | PlayState::Buffering);
    let device = !matches!(player.device, DeviceState::Missing { .. });
    let (icon, name) = if playing { (Icon::Pause, "Pause (Space)") } else { (Icon::Play, "Play (Space)") };
    if icon_button(ui, icon, name, sound && device).clicked() {
        actions.push(Action::TogglePlay);
    }
    if icon_button(ui, Icon::Stop, "Stop (Esc)", state.job.is_busy() || playing).clicked() {
        actions.push(Action::Stop);
    }
    if icon_button(ui, Icon::Restart, "Replay from the start", sound && device).clicked() {
        actions.push(Action::Replay);
    }
    ui.add_space(GAP);
    let p = palette(ui);
    let secs = take.map_or(0.0, Take::secs);
    ui.label(RichText::new(time_label(player.position_secs)).font(theme::figure()));
    ui.add_space(4.0);
    ui.label(RichText::new(format!("of {}", time_label(secs))).color(p.weak));
    ui.add_space(GAP);
    ui.label(RichText::new(remark(state, player)).color(p.weak));
    ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
        if state.shows_comparison() {
            save_both(ui, state, actions);
        } else {
            save(ui, state, sound, actions);
        }
        ui.add_space(GAP);
        volume(ui, state, actions);
    });
}

/// What goes on, in a word or two.
fn remark(state: &State, player: &PlayerStatus) -> String {
    if state.shows_comparison() {
        return String::new();
    }
    match (&state.job, player.state) {
        (JobState::Failed(_), _) => String::new(),
        (_, _) if matches!(player.device, DeviceState::Missing { .. }) => "no sound device; saving works".to_owned(),
        (JobState::Waiting, _) => "one moment".to_owned(),
        (JobState::Speaking(stats), _) if stats.sentences > 1 => {
            format!("sentence {} of {}", (stats.sentences_done + 1).min(stats.sentences), stats.sentences)
        }
        (JobState::Speaking(_), PlayState::Buffering) => "gathering sound".to_owned(),
        (JobState::Stopped(_), _) => "stopped".to_owned(),
        _ => String::new(),
    }
}

fn volume(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    let mut volume = state.settings.volume;
    let slider = Slider::new(&mut volume, 0.0..=1.0).show_value(false);
    let response = ui.scope(|ui| {
        theme::slim_slider(ui);
        ui.spacing_mut().slider_width = 80.0;
        ui.name_inputs("Volume", |ui| ui.add(slider))
    });
    let response = response.inner;
    if response.on_hover_text(format!("Volume {:.0} %", volume * 100.0)).changed() {
        actions.push(Action::Volume(volume));
    }
    let (rect, _) = ui.allocate_exact_size(eframe::egui::vec2(20.0, 20.0), eframe::egui::Sense::hover());
    Icon::Speaker.paint(ui.painter(), rect, palette(ui).weak);
}

fn save_both(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    let label = if state.saving { "Saving…" } else { "Save both" };
    let tip = "Both takes and a report, into a folder (Ctrl+S)";
    if quiet_button(ui, Some(Icon::Save), label, !state.saving).on_hover_text(tip).clicked() {
        actions.push(Action::SaveComparison);
    }
}

fn save(ui: &mut Ui, state: &State, sound: bool, actions: &mut Vec<Action>) {
    let options = icon_button(ui, Icon::More, "Format of saved files", true);
    Popup::menu(&options).close_behavior(PopupCloseBehavior::CloseOnClickOutside).show(|ui| {
        let mut export = state.settings.export;
        for kind in Format::ALL {
            ui.selectable_value(&mut export.kind, kind, kind.title());
        }
        ui.separator();
        for (rate_hz, name) in [(24_000, "24 kHz, as it was made"), (44_100, "44.1 kHz"), (48_000, "48 kHz")] {
            ui.selectable_value(&mut export.rate_hz, rate_hz, name);
        }
        ui.separator();
        ui.checkbox(&mut export.normalize, "Even loudness (−16 LUFS)");
        if export != state.settings.export {
            actions.push(Action::Export(export));
        }
    });
    let label = if state.saving { "Saving…" } else { "Save" };
    let complete = state.take.as_deref().is_some_and(Take::is_complete);
    let ready = sound && complete && !state.saving;
    let tip = if sound && !complete { "It can be saved when all of it is made" } else { "Ctrl+S" };
    let button = quiet_button(ui, Some(Icon::Save), label, ready);
    if button.on_hover_text(tip).on_disabled_hover_text(tip).clicked() {
        actions.push(Action::Save);
    }
}

fn figures(ui: &mut Ui, state: &State, player: &PlayerStatus) {
    ui.spacing_mut().item_spacing.x = GAP;
    let stats = state.job.stats().filter(|stats| stats.audio_secs > 0.0);
    let some = state.take.is_some();
    let first = player.first_audio.map(|d| short_time(d.as_secs_f64() * 1e3));
    let width = ui.available_width();
    let figure = if width < 900.0 { 76.0 } else { FIGURE + (width - 900.0).min(400.0) * 0.06 };
    readout(ui, "First sound", first, figure, "From the key press to the first sample handed to the sound device");
    let rtf = stats.map(|s| format!("{:.2}", s.rtf));
    readout(ui, "Real time", rtf, figure, "Seconds of work for one second of speech; below 1 is faster than listening");
    let speed = stats.filter(|s| s.tokens_per_sec > 0.0).map(|s| format!("{:.0}", s.tokens_per_sec));
    readout(ui, "Tokens / s", speed, figure, "Speech tokens per second; 25 make one second of sound");
    let buffer = some.then(|| format!("{:.1} s", player.buffer_secs));
    readout(ui, "Ahead", buffer, figure, "Sound made and not yet heard");
    let underruns = some.then(|| player.underruns.to_string());
    readout(ui, "Underruns", underruns, figure, "Times that the sound was late");
    let seed = state.take_seed.map(|seed| seed.to_string());
    if width > 760.0 {
        readout(ui, "Seed", seed, figure, "Seed of this utterance");
    }
    let rest = ui.available_width();
    if rest > 120.0 {
        stage_bar(ui, stats.map(|s| &s.stages), rest);
    }
}
