//! The comparison of two settings: what they are, what came of it, and the blind test. It takes the editor's place.

use eframe::egui::{Align, Frame, Grid, Label, Layout, Popup, Rect, RichText, ScrollArea, Ui, UiBuilder, pos2, vec2};
use myna_engine::protocol::DeviceKind;

use super::settings::{choice, device_title, precision_title};
use crate::action::Action;
use crate::comparison::{Abx, Compared, Heard, Picture, SideChoice, SideModel, SideReport, Work, folder_name};
use crate::state::State;
use crate::theme::{self, GAP, RADIUS, SECTION, palette};
use crate::widgets::{
    Icon, Shade, chip, combo, icon_button, keep_from_bar, primary_button, progress, quiet_button, section, sentence,
    short_time, spectrogram, toggle,
};

/// Widest that the panel becomes, in points.
const MEASURE: f32 = 760.0;
/// Numbers of trials to choose from. Fewer than eight prove nothing, more than twenty tire.
const TRIALS: [usize; 4] = [8, 12, 16, 20];
/// Steps of the flow to choose from.
const STEPS: [Option<usize>; 7] = [None, Some(1), Some(2), Some(4), Some(6), Some(8), Some(10)];
/// Results this unlikely by guessing count as heard.
const CONVINCING: f64 = 0.05;

/// The panel.
pub fn show(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    let whole = ui.available_rect_before_wrap();
    let width = whole.width().min(MEASURE);
    let left = whole.left() + (whole.width() - width) / 2.0;
    let column = Rect::from_min_size(pos2(left, whole.top()), vec2(width, whole.height()));
    ui.scope_builder(UiBuilder::new().max_rect(column), |ui| {
        ScrollArea::vertical().id_salt("comparison").auto_shrink([false, false]).show(ui, |ui| {
            keep_from_bar(ui);
            head(ui, state, actions);
            if let Some(compared) = state.compare.done().filter(|_| state.compare.is_testing()) {
                return question(ui, state, compared, actions);
            }
            ui.columns_const(|columns: &mut [Ui; 2]| {
                for (side, ui) in columns.iter_mut().enumerate() {
                    card(ui, state, side, actions);
                }
            });
            start(ui, state, actions);
            match &state.compare.work {
                Work::None => explain(ui),
                Work::Running { .. } => {}
                Work::Failed(error) => {
                    ui.add(Label::new(RichText::new(sentence(error)).color(palette(ui).bad)).wrap());
                }
                Work::Done(compared) => {
                    ui.add_space(GAP);
                    if let Some(test) = &state.compare.test {
                        result(ui, test, actions);
                    }
                    figures(ui, compared);
                    ui.add_space(SECTION - GAP);
                    pictures(ui, state, compared, actions);
                }
            }
        });
    });
}

fn head(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    ui.horizontal(|ui| {
        ui.label(RichText::new("Compare two settings").font(theme::semibold(18.0)));
        ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
            if icon_button(ui, Icon::Close, "Back to the text", true).clicked() {
                actions.push(Action::ShowComparison(false));
            }
        });
    });
    let text = state.compare.done().map_or(&state.settings.text, |compared| &compared.comparison.report.text);
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if !line.is_empty() {
        ui.add(Label::new(RichText::new(format!("“{line}”")).color(palette(ui).weak)).truncate());
    }
}

/// What one side is to be.
fn card(ui: &mut Ui, state: &State, side: usize, actions: &mut Vec<Action>) {
    let before = &state.settings.compare[side];
    let mut own = before.clone();
    let idle = !matches!(state.compare.work, Work::Running { .. });
    Frame::new().fill(palette(ui).panel).corner_radius(RADIUS).inner_margin(12.0).show(ui, |ui| {
        ui.spacing_mut().item_spacing.y = 4.0;
        ui.add_enabled_ui(idle, |ui| {
            ui.push_id(side, |ui| {
                ui.label(RichText::new(["A", "B"][side]).font(theme::semibold(16.0)));
                let only = "This build of Myna computes with nothing else";
                let offers = &state.offers;
                if let Some(precision) =
                    choice(ui, "Precision", only, own.precision, &offers.precisions, precision_title)
                {
                    own.precision = precision;
                }
                let steps = |steps: Option<usize>| steps.map_or("As set".to_owned(), |n| n.to_string());
                if let Some(steps) = choice(ui, "Steps", "", own.steps, &STEPS, steps) {
                    own.steps = steps;
                }
                model(ui, side, &mut own, actions);
                if offers.devices != [DeviceKind::Cpu] {
                    let only = "This build of Myna runs on nothing else";
                    if let Some(device) = choice(ui, "Runs on", only, own.device, &offers.devices, device_title) {
                        own.device = device;
                    }
                }
            });
        });
    });
    if own != *before {
        actions.push(Action::ComparisonSide(side, own));
    }
}

fn model(ui: &mut Ui, side: usize, own: &mut SideChoice, actions: &mut Vec<Action>) {
    let title = |model: &SideModel| match model {
        SideModel::Same => "The one in use".to_owned(),
        SideModel::Embedded => "Embedded".to_owned(),
        SideModel::Folder(path) => folder_name(path),
    };
    ui.horizontal(|ui| {
        ui.label("Model");
        ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
            ui.name_inputs("Model", |ui| {
                combo("Model", super::settings::COMBO).selected_text(title(&own.model)).truncate().show_ui(ui, |ui| {
                    let known = own.model.clone();
                    for model in [SideModel::Same, SideModel::Embedded] {
                        let name = title(&model);
                        ui.selectable_value(&mut own.model, model, name);
                    }
                    if matches!(known, SideModel::Folder(_)) {
                        let name = title(&known);
                        ui.selectable_value(&mut own.model, known, name);
                    }
                    if ui.selectable_label(false, "Choose a folder…").clicked() {
                        actions.push(Action::ComparisonModel(side));
                    }
                });
            });
        });
    });
}

/// The button, and how far it is.
fn start(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    ui.horizontal(|ui| {
        if let Work::Running { fraction, what } = &state.compare.work {
            if quiet_button(ui, Some(Icon::Stop), "Stop", true).on_hover_text("Esc").clicked() {
                actions.push(Action::Stop);
            }
            progress(ui, 160.0, *fraction, "Comparing");
            ui.label(RichText::new(what).color(palette(ui).weak));
            return;
        }
        let [a, b] = &state.settings.compare;
        let same = (a == b).then_some("Both sides are the same");
        let obstacle = state.obstacle().or(same);
        let hint = obstacle.unwrap_or("Ctrl+Enter");
        if primary_button(ui, Icon::Compare, "Compare", hint, obstacle.is_none()).clicked() {
            actions.push(Action::Compare);
        }
        let words = obstacle.unwrap_or("Speaks your text on both sides, with the same voice and seed");
        ui.label(RichText::new(words).color(palette(ui).weak));
    });
}

fn explain(ui: &mut Ui) {
    ui.add_space(GAP);
    let words = "Is a smaller or faster setting good enough? Both sides say the same text with the same random numbers, \
                 equally loud. You can change from one to the other while they play, and find out in a blind test whether \
                 you hear a difference at all.";
    ui.add(Label::new(RichText::new(words).color(palette(ui).weak)).wrap());
}

/// The figures of both sides.
fn figures(ui: &mut Ui, compared: &Compared) {
    let report = &compared.comparison.report;
    let (a, b) = (&report.a, &report.b);
    let width = ui.available_width();
    Grid::new("figures").num_columns(3).min_col_width(width / 4.0).min_row_height(18.0).spacing(vec2(GAP, 4.0)).show(
        ui,
        |ui| {
            ui.label("");
            for (letter, side) in [("A", a), ("B", b)] {
                ui.label(RichText::new(format!("{letter}: {}", side.changes)).font(theme::section()));
            }
            ui.end_row();
            let mut row = |name: &str, tip: &str, show: &dyn Fn(&SideReport) -> String, better: Option<bool>| {
                ui.label(RichText::new(name).color(palette(ui).weak)).on_hover_text(tip);
                for (side, wins) in [(a, better == Some(false)), (b, better == Some(true))] {
                    let text = RichText::new(show(side));
                    ui.label(if wins { text.font(theme::semibold(13.5)).color(palette(ui).accent_text) } else { text });
                }
                ui.end_row();
            };
            let less = |pick: &dyn Fn(&SideReport) -> f64| better(pick(b), pick(a));
            let tip = "Until the first sound could be played";
            row("First sound", tip, &|s| short_time(s.ttfa_ms), less(&|s| s.ttfa_ms));
            let tip = "Seconds of work for one second of speech; below 1 is faster than listening";
            row("Real time", tip, &|s| format!("{:.2}", s.rtf), less(&|s| s.rtf));
            let tip = "Speech tokens per second; 25 make one second of sound";
            row("Tokens / s", tip, &|s| format!("{:.0}", s.tokens_per_sec), less(&|s| -s.tokens_per_sec));
            let tip = "What Myna's memory grew by";
            row("Memory", tip, &|s| megabytes(s.memory_bytes), less(&|s| s.memory_bytes as f64));
            row("On disk", "Files of the model", &|s| megabytes(s.disk_bytes), less(&|s| s.disk_bytes as f64));
            let tip = "How alike the take and the voice are, as the model hears it; 1 is the same voice";
            let likeness = |s: &SideReport| s.similarity.map_or("too short".to_owned(), |x| format!("{x:.2}"));
            row("Likeness", tip, &likeness, less(&|s| f64::from(-s.similarity.unwrap_or_default())));
            row("Length", "Of the take", &|s| format!("{:.1} s", s.audio_secs), None);
        },
    );
    ui.add_space(4.0);
    let words = format!(
        "In A's place, B would choose the same token at {:.1} % of the steps. The same tokens sound {:.2} dB apart (log mel).",
        100.0 * report.token_agreement,
        report.log_mel_db
    );
    ui.add(Label::new(RichText::new(words).color(palette(ui).weak)).wrap());
}

/// Whether the second figure is clearly the smaller one, or the larger one; neither where they are close.
fn better(b: f64, a: f64) -> Option<bool> {
    ((a - b).abs() > 0.03 * a.abs().max(b.abs())).then_some(b < a)
}

fn megabytes(bytes: u64) -> String {
    format!("{:.0} MB", bytes as f64 / 1e6)
}

fn pictures(ui: &mut Ui, state: &State, compared: &Compared, actions: &mut Vec<Action>) {
    ui.horizontal(|ui| {
        section(ui, "Spectrogram of the same tokens");
        ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
            ui.spacing_mut().item_spacing.x = 4.0;
            for (picture, name) in [(Picture::B, "B"), (Picture::A, "A"), (Picture::Difference, "Difference")] {
                if chip(ui, name, state.compare.picture == picture).clicked() {
                    actions.push(Action::ComparisonPicture(picture));
                }
            }
        });
    });
    let [difference, a, b] = &compared.pictures;
    let (picture, shade, name, caption) = match state.compare.picture {
        Picture::Difference => {
            let caption = "Saffron where B is louder than A, blue where it is softer; full colour from 12 dB on";
            (difference, Shade::Difference, "Difference of the spectrograms", caption)
        }
        Picture::A => (a, Shade::Level, "Spectrogram of A", "0 to 8 kHz on the mel scale, 70 dB"),
        Picture::B => (b, Shade::Level, "Spectrogram of B", "0 to 8 kHz on the mel scale, 70 dB, made of A's tokens"),
    };
    spectrogram(ui, 120.0, name, picture, shade);
    ui.label(RichText::new(caption).font(theme::caption()).color(palette(ui).weak));
}

/// How the blind test ended.
fn result(ui: &mut Ui, test: &Abx, actions: &mut Vec<Action>) {
    let p = palette(ui);
    Frame::new().fill(p.accent_soft).corner_radius(RADIUS).inner_margin(12.0).show(ui, |ui| {
        ui.horizontal(|ui| {
            ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
                if icon_button(ui, Icon::Close, "Forget this result", true).clicked() {
                    actions.push(Action::EndTest);
                }
                ui.with_layout(Layout::left_to_right(Align::Center), |ui| {
                    ui.take_available_width();
                    ui.label(RichText::new(score(test)).font(theme::semibold(14.0)).color(p.text));
                });
            });
        });
        let words = if test.p_value() < CONVINCING {
            "You hear a difference."
        } else {
            "No difference was shown. That does not prove that there is none; more trials tell more."
        };
        ui.add(Label::new(words).wrap());
    });
}

/// The result in words.
fn score(test: &Abx) -> String {
    let (right, trials, p) = (test.right(), test.trials(), test.p_value());
    let chance = if p < 0.0005 { "p < 0.001".to_owned() } else { format!("p = {p:.3}") };
    format!("{right} of {trials} right. Guessing does as well in {:.1} % of tests ({chance}).", 100.0 * p)
}

/// A trial of the blind test.
fn question(ui: &mut Ui, state: &State, compared: &Compared, actions: &mut Vec<Action>) {
    let Some(test) = &state.compare.test else { return };
    ui.add_space(SECTION);
    ui.vertical_centered(|ui| {
        let trial = format!("Trial {} of {}", test.answers().len() + 1, test.trials());
        ui.label(RichText::new(trial).color(palette(ui).weak));
        ui.label(RichText::new("Which one is X?").font(theme::semibold(20.0)));
        ui.label(RichText::new("Listen to A, B and X below, as often as you like.").color(palette(ui).weak));
    });
    ui.add_space(GAP);
    ui.columns_const(|[left, right]: &mut [Ui; 2]| {
        let report = &compared.comparison.report;
        let answers = [(left, Align::Max, "X is A", &report.a), (right, Align::Min, "X is B", &report.b)];
        for (x_is_b, (ui, align, name, side)) in answers.into_iter().enumerate() {
            ui.with_layout(Layout::top_down(align), |ui| {
                if primary_button(ui, Icon::Tick, name, &side.changes, true).clicked() {
                    actions.push(Action::AnswerTest(x_is_b == 1));
                }
            });
        }
    });
}

/// The switch between the sides, in the deck.
pub fn switch(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    let Some(compared) = state.compare.done() else { return };
    let report = &compared.comparison.report;
    let mut sides =
        vec![(Heard::A, format!("A  {}", report.a.changes)), (Heard::B, format!("B  {}", report.b.changes))];
    if state.compare.is_testing() {
        sides.push((Heard::X, "X".to_owned()));
    }
    ui.label(RichText::new("Hear").color(palette(ui).weak));
    for (heard, name) in sides {
        let key = format!("{heard:?}");
        if toggle(ui, &name, state.compare.heard == heard)
            .on_hover_text(format!("From where you are ({key})"))
            .clicked()
        {
            actions.push(Action::Hear(heard));
        }
    }
    ui.add_space(GAP);
    let loudness =
        report.loudness_difference_lu.map_or(String::new(), |lu| format!("Equally loud within {lu:.2} LU. "));
    ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
        blind_test(ui, state, actions);
        ui.with_layout(Layout::left_to_right(Align::Center), |ui| {
            let words = RichText::new(loudness + "Space plays; A and B change sides.").font(theme::caption());
            ui.add(Label::new(words.color(palette(ui).weak)).truncate());
        });
    });
}

/// Begins or ends a blind test.
fn blind_test(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    if state.compare.is_testing() {
        if quiet_button(ui, None, "End the test", true).clicked() {
            actions.push(Action::EndTest);
        }
        return;
    }
    let tip = "X is A or B, and you say which. The number of trials is chosen before, and the score is told at the end";
    let button = quiet_button(ui, None, "Blind test", true).on_hover_text(tip);
    Popup::menu(&button).show(|ui| {
        for trials in TRIALS {
            if ui.selectable_label(false, format!("{trials} trials")).clicked() {
                actions.push(Action::BeginTest(trials));
                ui.close();
            }
        }
    });
}
