//! The voice panel: which voice, which part of its clip, and what that clip is worth.

use eframe::egui::style::ScrollAnimation;
use eframe::egui::{
    Align, Align2, Frame, Id, Label, Layout, Rect, Response, RichText, Role, ScrollArea, Sense, Stroke, StrokeKind, Ui,
    WidgetInfo, pos2, vec2,
};

use crate::action::Action;
use crate::clip_check::{Level, Report};
use crate::download::{catalog, gigabytes};
use crate::library::{Clip, ClipId, Origin, Reading};
use crate::player::PlayState;
use crate::recorder::{MAX_SECS, RecorderStatus};
use crate::state::{OnDeck, State, VoiceState};
use crate::theme::{self, GAP, RADIUS, palette};
use crate::widgets::{
    ClipWave, Icon, clip_wave, icon_button, keep_from_bar, meter, quiet_button, section, sentence, short_time,
};

/// Height of a voice in the list, in points.
const ROW: f32 = 44.0;
/// Height of the clip's title, picture and verdict before it is known, in points.
const CLIP_AREA: f32 = 190.0;

/// The panel.
pub fn show(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    ui.horizontal(|ui| {
        section(ui, "Voice");
        ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
            ui.add_space(f32::from(theme::SCROLL_MARGIN));
            ui.spacing_mut().item_spacing.x = 2.0;
            let idle = state.recorder == RecorderStatus::Idle;
            if icon_button(ui, Icon::Microphone, "Record a voice (Ctrl+R)", idle).clicked() {
                actions.push(Action::Record);
            }
            if icon_button(ui, Icon::Open, "Open a clip (Ctrl+O)", true).clicked() {
                actions.push(Action::OpenClip);
            }
        });
    });
    // The clip is below the list, and the list gives way to it: its height is that of the last time.
    let known = Id::unique("height of the clip");
    let clip_height = ui.data(|data| data.get_temp::<f32>(known)).unwrap_or(CLIP_AREA);
    let list_height = (ui.available_height() - clip_height - 2.0 * GAP).max(ROW * 1.5);
    ScrollArea::vertical().id_salt("voices").max_height(list_height).auto_shrink([false, true]).show(ui, |ui| {
        keep_from_bar(ui);
        ui.spacing_mut().item_spacing.y = 2.0;
        for clip in state.library.clips() {
            let row = row(ui, state, clip, actions);
            if state.clip().is_some_and(|chosen| chosen.id == clip.id) && has_moved(ui, clip.id, list_height) {
                // At once: an animation would be overtaken by the next change of height.
                row.scroll_to_me_animation(None, ScrollAnimation::none());
            }
        }
    });
    ui.add_space(GAP);
    let clip = ScrollArea::vertical().id_salt("clip").auto_shrink([false, true]).show(ui, |ui| {
        keep_from_bar(ui);
        match &state.recorder {
            RecorderStatus::Idle => chosen(ui, state, actions),
            status => recording(ui, status, actions),
        }
    });
    if (clip.content_size.y - clip_height).abs() > 0.5 {
        ui.data_mut(|data| data.insert_temp(known, clip.content_size.y));
        ui.ctx().request_discard("the clip has another height");
    }
}

/// Whether to say that the small model follows human voices only roughly.
fn shows_honest_line(state: &State) -> bool {
    state.model.described().is_some_and(|info| info.embedded) && state.clip().is_some_and(Clip::is_own)
}

fn row(ui: &mut Ui, state: &State, clip: &Clip, actions: &mut Vec<Action>) -> Response {
    let selected = state.clip().is_some_and(|chosen| chosen.id == clip.id);
    let (rect, response) = ui.allocate_exact_size(vec2(ui.available_width(), ROW), Sense::click());
    response.widget_info(|| WidgetInfo::selected(Role::RadioButton, true, selected, &clip.name));
    let p = palette(ui);
    if selected || response.hovered() {
        ui.painter().rect_filled(rect, RADIUS, if selected { p.raised } else { p.hover.gamma_multiply(0.5) });
    }
    if response.has_focus() {
        ui.painter().rect_stroke(rect, RADIUS, Stroke::new(2.0, p.accent), StrokeKind::Inside);
    }
    let disc = pos2(rect.left() + 24.0, rect.center().y);
    let (fill, ink) = if selected { (p.accent, p.on_accent) } else { (p.hover, p.weak) };
    ui.painter().circle_filled(disc, 14.0, fill);
    let initial = clip.name.chars().next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    ui.painter().text(disc, Align2::CENTER_CENTER, initial, theme::semibold(13.0), ink);
    let text_left = rect.left() + 46.0;
    let width = rect.right() - text_left - if clip.is_own() { 32.0 } else { 8.0 };
    let about = clip.about.split(". ").next().unwrap_or_default();
    let lines = [(clip.name.as_str(), theme::body(), p.text, 5.0), (about, theme::caption(), p.weak, 23.0)];
    for (text, font, color, top) in lines {
        let galley = crate::widgets::elided(ui, text, font, color, width);
        ui.painter().galley(pos2(text_left, rect.top() + top), galley, color);
    }
    let response = if clip.about.is_empty() { response } else { response.on_hover_text(&clip.about) };
    if response.clicked() {
        actions.push(Action::SelectVoice(clip.id));
    }
    if clip.is_own() {
        let place = Rect::from_center_size(pos2(rect.right() - 17.0, rect.center().y), vec2(24.0, 24.0));
        let name = format!("Remove {}", clip.name);
        let remove = ui.interact(place, ui.scope_id().with(("remove", clip.id)), Sense::click());
        remove.widget_info(|| WidgetInfo::labeled(Role::Button, true, &name));
        let color = if remove.hovered() || remove.has_focus() { p.bad } else { p.faint };
        Icon::Close.paint(ui.painter(), place.shrink(5.0), color);
        if remove.on_hover_text(name).clicked() {
            actions.push(Action::RemoveVoice(clip.id));
        }
    }
    response
}

/// Whether the chosen clip is another one than a frame ago, or the list another height.
fn has_moved(ui: &Ui, id: ClipId, list_height: f32) -> bool {
    let (key, now) = (Id::unique("chosen voice"), Some((id, list_height.round() as i32)));
    ui.data_mut(|data| std::mem::replace(data.get_temp_mut_or_default(key), now) != now)
}

fn chosen(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    let Some(clip) = state.clip() else { return };
    let p = palette(ui);
    if matches!(clip.origin, Origin::Model(_)) {
        section(ui, "Clip");
        let words = "This voice came with the model, ready made; there is no clip to hear or to trim.";
        ui.add(Label::new(RichText::new(words).font(theme::caption()).color(p.weak)).wrap());
        return preparation(ui, state);
    }
    match &clip.reading {
        Reading::Unread | Reading::Busy => {
            ui.horizontal(|ui| {
                section(ui, "Clip");
                ui.label(RichText::new("reading…").color(p.weak));
            });
        }
        Reading::Failed(error) => {
            section(ui, "Clip");
            trouble(ui, error);
        }
        Reading::Done(sound) => {
            let previewing = state.on_deck == OnDeck::Clip(clip.id)
                && matches!(state.player.state, PlayState::Playing | PlayState::Buffering);
            ui.horizontal(|ui| {
                section(ui, "Clip");
                ui.label(RichText::new(used_label(clip)).font(theme::caption()).color(p.weak));
                ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
                    let (icon, name) =
                        if previewing { (Icon::Stop, "Stop the clip") } else { (Icon::Play, "Hear the clip") };
                    if icon_button(ui, icon, name, true).clicked() {
                        actions.push(Action::Preview(clip.id));
                    }
                });
            });
            let secs = sound.pcm.secs();
            let (t3, s3gen) = state.model.described().map_or((6.0, 10.0), |info| info.reference_secs);
            let wave = ClipWave {
                peaks: &sound.peaks,
                secs,
                trim: clip.trim.clone(),
                sound_secs: s3gen,
                manner_secs: t3,
                position_secs: previewing.then_some(clip.trim.start + state.player.position_secs),
            };
            if let Some((trim, done)) = clip_wave(ui, 68.0, &wave) {
                actions.push(if done { Action::Trim(clip.id, trim) } else { Action::TrimPreview(clip.id, trim) });
            }
            legend(ui, t3, s3gen);
            preparation(ui, state);
            if let Some(report) = &clip.report {
                findings(ui, report);
            }
            if shows_honest_line(state) {
                let honest = "The embedded model was trained on synthetic voices: it follows a human voice only roughly. \
                              The full models do that well.";
                ui.add(Label::new(RichText::new(honest).font(theme::caption()).color(p.weak)).wrap());
                full_model(ui, state, actions);
            }
        }
    }
}

/// One click to a model that follows human voices: the smallest of those that are here, or the smallest there is.
fn full_model(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    let releases = &state.releases;
    let smallest = |here: bool| {
        let fitting = catalog().iter().filter(|release| !here || releases.here.contains(&release.name));
        fitting.min_by_key(|release| release.bytes())
    };
    let Some(models) = &releases.folder else { return };
    if let Some(release) = smallest(true) {
        if quiet_button(ui, None, &format!("Use {}", release.title), true).clicked() {
            actions.push(Action::UseModel(release.folder(models)));
        }
    } else if let Some(release) = smallest(false) {
        let words = format!("Get {} ({})", release.title, gigabytes(release.bytes()));
        if quiet_button(ui, Some(Icon::Save), &words, releases.fetching.is_none()).clicked() {
            actions.push(Action::FetchModel(&release.name));
        }
    }
}

/// What the two stripes under the wave mean.
fn legend(ui: &mut Ui, manner_secs: f32, sound_secs: f32) {
    let p = palette(ui);
    let tip = format!(
        "The model takes the sound of the voice from the first {sound_secs:.0} seconds between the handles, \
         and its manner of speaking from the first {manner_secs:.0}"
    );
    let row = ui.horizontal(|ui| {
        ui.spacing_mut().interact_size.y = 16.0;
        ui.spacing_mut().item_spacing.x = 6.0;
        for (color, name, secs) in [(p.accent, "Sound", sound_secs), (p.weak, "Manner", manner_secs)] {
            let (rect, _) = ui.allocate_exact_size(vec2(10.0, 16.0), Sense::hover());
            let stripe = Rect::from_center_size(rect.center(), vec2(10.0, 3.0));
            ui.painter().rect_filled(stripe, 1.5, color);
            ui.label(RichText::new(format!("{name}, {secs:.0} s")).font(theme::caption()).color(p.weak));
            ui.add_space(6.0);
        }
    });
    row.response.on_hover_text(tip);
}

fn used_label(clip: &Clip) -> String {
    let (used, whole) = (clip.trim.end - clip.trim.start, clip.sound().map_or(0.0, |s| s.pcm.secs()));
    if whole - used < 0.05 { format!("{whole:.1} s") } else { format!("{used:.1} of {whole:.1} s") }
}

fn preparation(ui: &mut Ui, state: &State) {
    let p = palette(ui);
    match &state.voice {
        VoiceState::Unprepared => {}
        VoiceState::Preparing => line(ui, Icon::More, p.weak, "Learning the voice…"),
        // A voice that was learned before took no time now.
        VoiceState::Ready { ms } if *ms > 0.0 => {
            line(ui, Icon::Tick, p.good, &format!("Ready to speak, learned in {}", short_time(*ms)));
        }
        VoiceState::Ready { .. } => line(ui, Icon::Tick, p.good, "Ready to speak"),
        VoiceState::Failed(error) => trouble(ui, error),
    }
}

fn findings(ui: &mut Ui, report: &Report) {
    let p = palette(ui);
    let worst = report.level();
    if worst == Level::Good {
        let all = report.findings.iter().map(|f| f.text.as_str()).collect::<Vec<_>>().join("\n");
        let row = ui.scope(|ui| line(ui, Icon::Tick, p.good, "A clean clip, and long enough"));
        row.response.on_hover_text(all);
        return;
    }
    for finding in report.findings.iter().filter(|f| f.level > Level::Good) {
        line(ui, Icon::Warning, if finding.level == Level::Bad { p.bad } else { p.warn }, &finding.text);
    }
}

fn line(ui: &mut Ui, icon: Icon, color: eframe::egui::Color32, text: &str) {
    ui.horizontal_top(|ui| {
        ui.spacing_mut().item_spacing.x = 6.0;
        let (rect, _) = ui.allocate_exact_size(vec2(14.0, 16.0), Sense::hover());
        icon.paint(ui.painter(), rect.shrink(1.0), color);
        let color = palette(ui).text;
        ui.add(Label::new(RichText::new(text).font(theme::caption()).color(color)).wrap());
    });
}

fn trouble(ui: &mut Ui, error: &str) {
    let p = palette(ui);
    Frame::new().fill(p.bad_soft).corner_radius(RADIUS).inner_margin(8.0).show(ui, |ui| {
        ui.take_available_width();
        ui.add(Label::new(RichText::new(sentence(error)).font(theme::caption()).color(p.text)).wrap());
    });
}

fn recording(ui: &mut Ui, status: &RecorderStatus, actions: &mut Vec<Action>) {
    let p = palette(ui);
    let (figure, words, level, running) = match status {
        RecorderStatus::Countdown { secs, level } => {
            (format!("{:.0}", secs.ceil()), "Get ready. Read something aloud, in your usual voice.", *level, false)
        }
        RecorderStatus::Recording { secs, level } => {
            (format!("{secs:.1} s"), "Recording. Speak on; ten seconds are plenty.", *level, true)
        }
        RecorderStatus::Idle => return,
    };
    section(ui, "Recording");
    Frame::new().fill(p.ground).corner_radius(RADIUS).inner_margin(12.0).show(ui, |ui| {
        ui.take_available_width();
        ui.horizontal(|ui| {
            let (rect, _) = ui.allocate_exact_size(vec2(12.0, 30.0), Sense::hover());
            ui.painter().circle_filled(rect.center(), 5.0, if running { p.bad } else { p.faint });
            ui.label(RichText::new(figure).font(theme::semibold(24.0)));
            if running {
                ui.label(RichText::new(format!("of {MAX_SECS:.0} s")).color(p.weak));
            }
        });
        meter(ui, level);
        ui.add(Label::new(RichText::new(words).font(theme::caption()).color(p.weak)).wrap());
    });
    ui.horizontal(|ui| {
        if quiet_button(ui, Some(Icon::Tick), "Keep", running).clicked() {
            actions.push(Action::FinishRecording);
        }
        if quiet_button(ui, None, "Cancel", true).clicked() {
            actions.push(Action::CancelRecording);
        }
    });
}
