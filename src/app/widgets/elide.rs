//! One line of text, cut with an ellipsis where it is too long.

use std::sync::Arc;

use eframe::egui::text::{LayoutJob, TextWrapping};
use eframe::egui::{Color32, FontId, Galley, Ui};

/// Lays out a line no wider than `width`.
pub fn elided(ui: &Ui, text: &str, font: FontId, color: Color32, width: f32) -> Arc<Galley> {
    let mut job = LayoutJob::simple_singleline(text.to_owned(), font, color);
    job.wrap = TextWrapping { max_rows: 1, break_anywhere: true, ..TextWrapping::wrap_at_width(width) };
    ui.painter().layout_job(job)
}

/// An error as a sentence: the engine's begin small and end bare, because they follow a file's name elsewhere.
pub fn sentence(text: &str) -> String {
    let mut characters = text.chars();
    // What begins with a name of a file or an option stays as it is.
    let bare = text.split([' ', ':']).next().is_some_and(|word| word.chars().all(char::is_alphabetic));
    let first = characters.next().filter(|_| bare).map(|c| c.to_uppercase().collect::<String>());
    let text = first.map_or_else(|| text.to_owned(), |first| first + characters.as_str());
    if text.ends_with(['.', '!', '?']) { text } else { text + "." }
}

#[cfg(test)]
mod tests {
    use super::sentence;

    #[test]
    fn errors_become_sentences_and_names_of_files_stay() {
        assert_eq!(sentence("the clip is silent; choose another"), "The clip is silent; choose another.");
        assert_eq!(sentence("/models/x: no such folder"), "/models/x: no such folder.");
        assert_eq!(sentence("clip.wav is empty"), "clip.wav is empty.");
        assert_eq!(sentence("It went wrong."), "It went wrong.");
    }
}
