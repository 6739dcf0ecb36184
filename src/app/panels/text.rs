//! The text panel: the editor, the language, the tags, and the button that speaks.

use eframe::egui::text::{CCursor, CCursorRange, TextFormat};
use eframe::egui::{
    Align, Frame, Id, Layout, Rect, RichText, ScrollArea, TextBuffer, TextEdit, Ui, UiBuilder, pos2, vec2,
};

use crate::action::Action;
use crate::state::{JobState, State, estimated_secs};
use crate::theme::{self, EditorType, GAP, palette};
use crate::widgets::{Icon, chip, combo, lay_out, primary_button, quiet_button};

/// The editor, for whoever must know whether it has the keyboard.
pub const EDITOR: &str = "editor";

const HINT: &str = "Type what the voice should say, then press Ctrl+Enter.";
/// Sentences to try a voice with.
const EXAMPLES: [&str; 3] = [
    "Good morning. The kettle is on, and the rain has stopped.",
    "The ferry leaves at a quarter past nine, so please be early.",
    "Once upon a time there was a bird that could say anything.",
];
const FOOT: f32 = 48.0;

/// The panel. The text itself is changed in place.
pub fn show(ui: &mut Ui, state: &mut State, actions: &mut Vec<Action>) {
    let whole = ui.available_rect_before_wrap();
    // A line of comfortable length, in the middle of a wide window.
    let set = theme::editor(whole.width());
    let width = whole.width().min(set.measure);
    let left = whole.left() + (whole.width() - width) / 2.0;
    let column = Rect::from_min_size(pos2(left, whole.top()), vec2(width, whole.height()));
    ui.scope_builder(UiBuilder::new().max_rect(column), |ui| {
        tags(ui, state, actions);
        let height = ui.available_height() - FOOT - GAP;
        let top = ui.cursor().top();
        editor(ui, state, &set, height);
        if state.settings.text.is_empty() && height > 160.0 {
            // Over the editor, and therefore no part of the column's flow.
            let below_hint =
                Rect::from_min_size(pos2(left, top + 2.0 * set.line), vec2(width, height - 2.0 * set.line));
            examples(&mut ui.new_child(UiBuilder::new().max_rect(below_hint)), state, actions);
        }
        ui.add_space(GAP);
        ui.allocate_ui_with_layout(vec2(ui.available_width(), 40.0), Layout::right_to_left(Align::Center), |ui| {
            speak_button(ui, state, actions);
            ui.with_layout(Layout::left_to_right(Align::Center), |ui| {
                language(ui, state, actions);
                measure(ui, &state.settings.text);
            });
        });
    });
}

fn tags(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    let Some(info) = state.model.described().filter(|info| !info.tags.is_empty()) else { return };
    ui.horizontal_wrapped(|ui| {
        ui.spacing_mut().item_spacing = vec2(6.0, 6.0);
        for tag in &info.tags {
            if chip(ui, tag, false).on_hover_text("Put this sound into the text").clicked() {
                actions.push(Action::InsertTag(tag.clone()));
            }
        }
    });
}

/// What to begin with, where somebody has no words of their own yet.
fn examples(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    let speak = state.speak();
    if speak.language.is_some_and(|language| language != "en") {
        return;
    }
    ui.label(RichText::new("Or try one of these").font(theme::caption()).color(palette(ui).weak));
    ui.spacing_mut().item_spacing.y = 6.0;
    for text in EXAMPLES {
        if chip(ui, text, false).clicked() {
            actions.push(Action::TryText(text));
        }
    }
}

fn editor(ui: &mut Ui, state: &mut State, set: &EditorType, height: f32) {
    let id = Id::unique(EDITOR);
    if let Some(insert) = state.insert.take() {
        insert_at_cursor(ui, id, &mut state.settings.text, &insert);
    }
    let p = palette(ui);
    ScrollArea::vertical().id_salt("text").max_height(height).auto_shrink([false, false]).show(ui, |ui| {
        let hint = RichText::new(HINT).font(set.font.clone()).line_height(Some(set.line)).color(p.weak);
        let format =
            TextFormat { line_height: Some(set.line), ..TextFormat::simple(set.font.clone(), palette(ui).text) };
        let mut lay_out = |ui: &Ui, text: &dyn TextBuffer, width: f32| lay_out(ui, text.as_str(), &format, width);
        let edit = TextEdit::multiline(&mut state.settings.text)
            .id(id)
            .font(set.font.clone())
            .layouter(&mut lay_out)
            .hint_text(hint)
            .frame(Frame::NONE)
            .margin(vec2(2.0, 4.0))
            .desired_width(f32::INFINITY)
            .min_size(vec2(0.0, height - 4.0));
        let response = ui.add(edit);
        if std::mem::take(&mut state.focus_editor) {
            response.request_focus();
            put_cursor(ui, id, state.settings.text.chars().count());
        }
        ui.ctx().accesskit_node_builder(response.id, |node| node.set_label("Text to speak"));
    });
}

fn insert_at_cursor(ui: &Ui, id: Id, text: &mut String, insert: &str) {
    let edit = TextEdit::load_state(ui.ctx(), id).unwrap_or_default();
    let length = text.chars().count();
    let at = edit.cursor.char_range().map_or(length, |range| range.primary.index.0.min(length));
    let byte = text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte);
    let before = text[..byte].chars().next_back().is_some_and(|c| !c.is_whitespace());
    let spaced = format!("{}{insert} ", if before { " " } else { "" });
    text.insert_str(byte, &spaced);
    put_cursor(ui, id, at + spaced.chars().count());
    ui.memory_mut(|memory| memory.request_focus(id));
}

/// Puts the cursor behind so many characters.
fn put_cursor(ui: &Ui, id: Id, characters: usize) {
    let mut edit = TextEdit::load_state(ui.ctx(), id).unwrap_or_default();
    edit.cursor.set_char_range(Some(CCursorRange::one(CCursor::new(characters))));
    edit.store(ui.ctx(), id);
}

fn language(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    let Some(info) = state.model.described().filter(|info| !info.languages.is_empty()) else { return };
    let mut speak = state.speak();
    let current = speak.language.clone().unwrap_or_else(|| "en".to_owned());
    let mut chosen = current.clone();
    ui.name_inputs("Language", |ui| {
        combo("language", 128.0).selected_text(language_name(&current)).show_ui(ui, |ui| {
            for code in &info.languages {
                ui.selectable_value(&mut chosen, code.clone(), language_name(code));
            }
        });
    });
    if chosen != current {
        speak.language = Some(chosen);
        actions.push(Action::Settings(speak));
    }
}

fn measure(ui: &mut Ui, text: &str) {
    let characters = text.chars().count();
    let secs = estimated_secs(text);
    let words = match characters {
        0 => String::new(),
        1 => "1 character".to_owned(),
        n if secs < 90.0 => format!("{n} characters, about {secs:.0} s"),
        n => format!("{n} characters, about {:.0} min", secs / 60.0),
    };
    ui.label(RichText::new(words).color(palette(ui).weak));
}

fn speak_button(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    if state.job.is_busy() {
        if quiet_button(ui, Some(Icon::Stop), "Stop", true).on_hover_text("Esc").clicked() {
            actions.push(Action::Stop);
        }
        let words = match &state.job {
            JobState::Waiting if state.model.info().is_none() => "waiting for the model",
            JobState::Waiting => "learning the voice",
            _ => "speaking",
        };
        ui.label(RichText::new(words).color(palette(ui).weak));
        return;
    }
    let obstacle = state.obstacle();
    let hint = obstacle.unwrap_or("Ctrl+Enter");
    if primary_button(ui, Icon::Play, "Speak", hint, obstacle.is_none()).clicked() {
        actions.push(Action::Speak);
    }
}

fn language_name(code: &str) -> &str {
    match code {
        "ar" => "Arabic",
        "da" => "Danish",
        "de" => "German",
        "el" => "Greek",
        "en" => "English",
        "es" => "Spanish",
        "fi" => "Finnish",
        "fr" => "French",
        "he" => "Hebrew",
        "hi" => "Hindi",
        "it" => "Italian",
        "ja" => "Japanese",
        "ko" => "Korean",
        "ms" => "Malay",
        "nl" => "Dutch",
        "no" => "Norwegian",
        "pl" => "Polish",
        "pt" => "Portuguese",
        "ru" => "Russian",
        "sv" => "Swedish",
        "sw" => "Swahili",
        "tr" => "Turkish",
        "zh" => "Chinese",
        other => other,
    }
}
