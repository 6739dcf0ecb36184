//! The bar at the top: the name, the model and how it stands, theme and settings; and messages below it.

use std::path::Path;

use eframe::egui::{Align, Align2, Button, Color32, Frame, Layout, Popup, Rect, RichText, Sense, Ui, pos2, vec2};

use crate::action::Action;
use crate::download::{catalog, gigabytes};
use crate::state::{Fetching, ModelState, State, ThemeChoice, Tone};
use crate::theme::{self, GAP, MARGIN, RADIUS, palette};
use crate::widgets::{Icon, icon_button, progress, quiet_button, sentence};

/// The bar.
pub fn show(ui: &mut Ui, state: &State, settings_shown: bool, actions: &mut Vec<Action>) {
    ui.horizontal_centered(|ui| {
        ui.add_space(f32::from(MARGIN));
        mark(ui);
        ui.label(RichText::new("Myna").font(theme::wordmark()).color(palette(ui).text));
        ui.add_space(theme::SECTION);
        ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
            ui.add_space(f32::from(MARGIN) - 6.0);
            let name = if settings_shown { "Hide settings" } else { "Show settings" };
            if icon_button(ui, Icon::Sliders, name, true).clicked() {
                actions.push(Action::ShowSettings(!settings_shown));
            }
            theme_menu(ui, state, actions);
            let compared = state.compare.open;
            let name = if compared { "Back to the text (Ctrl+B)" } else { "Compare two settings (Ctrl+B)" };
            if icon_button(ui, Icon::Compare, name, true).clicked() {
                actions.push(Action::ShowComparison(!compared));
            }
            ui.with_layout(Layout::left_to_right(Align::Center), |ui| model(ui, state, actions));
        });
    });
}

/// A beak and the sound that comes out of it.
fn mark(ui: &mut Ui) {
    let (rect, _) = ui.allocate_exact_size(vec2(24.0, 24.0), Sense::hover());
    let p = palette(ui);
    for (i, height) in [7.0f32, 15.0, 22.0, 12.0, 5.0].into_iter().enumerate() {
        let x = rect.left() + 2.0 + i as f32 * 5.0;
        let bar = Rect::from_center_size(pos2(x, rect.center().y), vec2(3.0, height));
        ui.painter().rect_filled(bar, 1.5, if i == 2 { p.accent } else { p.text });
    }
}

fn theme_menu(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    let button = icon_button(ui, Icon::Contrast, "Theme", true);
    Popup::menu(&button).show(|ui| {
        let choices =
            [(ThemeChoice::System, "As the system"), (ThemeChoice::Light, "Light"), (ThemeChoice::Dark, "Dark")];
        for (choice, name) in choices {
            if ui.selectable_label(state.settings.theme == choice, name).clicked() {
                actions.push(Action::Theme(choice));
                ui.close();
            }
        }
    });
}

fn model(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    let p = palette(ui);
    match &state.model {
        ModelState::Absent => {
            dot(ui, p.faint);
            ui.label(RichText::new("No model").color(p.weak));
            if quiet_button(ui, None, "Load again", true).clicked() {
                actions.push(Action::ReloadModel);
            }
        }
        ModelState::Loading { fraction, part } => {
            progress(ui, 96.0, *fraction, "Loading");
            let text = if part.is_empty() { "Loading the model".to_owned() } else { format!("Loading {part}") };
            ui.label(RichText::new(text).color(p.weak));
        }
        ModelState::Aside(info) => {
            dot(ui, p.faint);
            ui.label(&info.title);
            ui.label(RichText::new("put aside while two settings are compared").color(p.weak));
        }
        ModelState::Ready(info) => {
            dot(ui, p.good);
            ui.label(&info.title);
            let detail = format!("{}, {}, loaded in {:.1} s", info.device, info.precision.name(), info.load_ms / 1e3);
            if ui.available_width() > 420.0 {
                ui.label(RichText::new(detail).color(p.weak));
            }
        }
        ModelState::Failed(error) => {
            dot(ui, p.bad);
            ui.label(RichText::new("The model could not be loaded").color(p.bad)).on_hover_text(error);
        }
    }
    let more = icon_button(ui, Icon::More, "Choose a model", true);
    Popup::menu(&more).show(|ui| {
        let embedded = state.settings.model.is_none();
        if ui.selectable_label(embedded, "Embedded model").clicked() {
            actions.push(Action::EmbeddedModel);
            ui.close();
        }
        releases(ui, state, actions);
        ui.separator();
        let own = state.settings.model.as_ref().filter(|folder| !is_release(state, folder));
        if let Some(folder) = own {
            let _ = ui.selectable_label(true, folder.display().to_string());
        }
        if ui.selectable_label(false, "Choose a folder…").clicked() {
            actions.push(Action::ChooseModel);
            ui.close();
        }
    });
}

/// The released models: to be chosen where they are here, else to be fetched.
fn releases(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    let Some(models) = &state.releases.folder else { return };
    for release in catalog() {
        let folder = release.folder(models);
        let response = if state.releases.here.contains(&release.name) {
            let response = ui.selectable_label(state.settings.model.as_ref() == Some(&folder), &release.title);
            if response.clicked() {
                actions.push(Action::UseModel(folder));
            }
            response
        } else {
            let words = format!("Get {} ({})", release.title, gigabytes(release.bytes()));
            let idle = state.releases.fetching.is_none();
            let response = ui.add_enabled(idle, Button::selectable(false, words));
            if response.clicked() {
                actions.push(Action::FetchModel(&release.name));
            }
            response
        };
        if response.on_hover_text(&release.about).clicked() {
            ui.close();
        }
    }
}

fn is_release(state: &State, folder: &Path) -> bool {
    state.releases.folder.as_ref().is_some_and(|models| catalog().iter().any(|one| one.folder(models) == folder))
}

fn dot(ui: &mut Ui, color: Color32) {
    let (rect, _) = ui.allocate_exact_size(vec2(10.0, 10.0), Sense::hover());
    ui.painter().circle_filled(rect.center(), 3.5, color);
}

/// Messages, each with a way to close it.
pub fn notices(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    let failed = match &state.model {
        ModelState::Failed(error) => Some(error),
        _ => None,
    };
    if let Some(error) = failed {
        banner(ui, Sign::Tone(Tone::Bad), error, |ui| {
            if quiet_button(ui, None, "Use the embedded model", true).clicked() {
                actions.push(Action::EmbeddedModel);
            }
            if quiet_button(ui, None, "Try again", true).clicked() {
                actions.push(Action::ReloadModel);
            }
        });
    }
    if let Some(fetching) = &state.releases.fetching {
        banner(ui, Sign::Arriving, &arriving(fetching), |ui| {
            if quiet_button(ui, None, "Stop fetching", true).clicked() {
                actions.push(Action::StopFetching);
            }
            progress(ui, 120.0, fetching.bytes as f32 / fetching.release.bytes().max(1) as f32, "Fetching");
        });
    }
    if let Some(notice) = state.notices.front() {
        banner(ui, Sign::Tone(notice.tone), &notice.text, |ui| {
            if icon_button(ui, Icon::Close, "Close this message", true).clicked() {
                actions.push(Action::Dismiss);
            }
        });
    }
}

/// How far a model on its way is, in words.
fn arriving(fetching: &Fetching) -> String {
    let total = fetching.release.bytes();
    let words = format!("{}: {} of {}", fetching.release.title, gigabytes(fetching.bytes), gigabytes(total));
    let Some(rate) = fetching.rate() else { return words };
    let secs = (total - fetching.bytes.min(total)) as f64 / rate;
    let left = if secs < 90.0 { format!("{secs:.0} s") } else { format!("{:.0} min", secs / 60.0) };
    format!("{words}, {:.1} MB/s, {left} left", rate / 1e6)
}

/// What a message is about.
enum Sign {
    Tone(Tone),
    Arriving,
}

fn banner(ui: &mut Ui, sign: Sign, text: &str, buttons: impl FnOnce(&mut Ui)) {
    let p = palette(ui);
    let (fill, icon, color) = match sign {
        Sign::Tone(Tone::Good) => (p.raised, Icon::Tick, p.good),
        Sign::Tone(Tone::Bad) => (p.bad_soft, Icon::Warning, p.bad),
        Sign::Arriving => (p.raised, Icon::Save, p.accent_text),
    };
    Frame::new().fill(fill).corner_radius(RADIUS).inner_margin(vec2(12.0, 6.0)).show(ui, |ui| {
        ui.horizontal(|ui| {
            let (rect, _) = ui.allocate_exact_size(vec2(18.0, 30.0), Sense::hover());
            icon.paint(ui.painter(), Align2::CENTER_CENTER.anchor_size(rect.center(), vec2(16.0, 16.0)), color);
            ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
                buttons(ui);
                ui.with_layout(Layout::left_to_right(Align::Center), |ui| {
                    ui.take_available_width();
                    ui.add(eframe::egui::Label::new(sentence(text)).wrap());
                });
            });
        });
    });
    ui.add_space(GAP);
}
