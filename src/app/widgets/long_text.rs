//! Lays out a text of any length in pieces, so that a key press in a very long paragraph costs no more than in a short one.
//!
//! egui remembers the layout of every paragraph. A paragraph of thousands of characters is therefore cut here, at ends of
//! sentences, into pieces that egui remembers as well. A piece begins a new row; nothing is put into the text.

use std::sync::Arc;

use eframe::egui::text::{LayoutJob, TextFormat};
use eframe::egui::{Galley, Ui};

/// A paragraph with fewer bytes is laid out whole.
const LONG: usize = 1600;
/// A piece ends with the first sentence that ends behind so many bytes, with the first word behind twice as many, and
/// anywhere behind three times as many.
const PIECE: usize = 600;

/// A part of a text, without the line break at its end.
#[derive(Debug, PartialEq, Eq)]
struct Piece<'a> {
    text: &'a str,
    line_break: bool,
}

/// Lays out `text` in rows no wider than `width`.
pub fn lay_out(ui: &Ui, text: &str, format: &TextFormat, width: f32) -> Arc<Galley> {
    let job = |text: &str| {
        let mut job = LayoutJob::single_section(text.to_owned(), format.clone());
        job.wrap.max_width = width;
        job
    };
    if text.split('\n').all(|paragraph| paragraph.len() < LONG) {
        return ui.fonts_mut(|fonts| fonts.layout_job(job(text)));
    }
    let pieces = pieces(text);
    let galleys: Vec<Arc<Galley>> =
        ui.fonts_mut(|fonts| pieces.iter().map(|piece| fonts.layout_job(job(piece.text))).collect());
    let mut whole = Galley::concat(Arc::new(job(text)), &galleys, ui.pixels_per_point());
    // It takes every part but the last for a paragraph with a line break behind it.
    let mut rows = 0;
    for (galley, piece) in galleys.iter().zip(&pieces).take(pieces.len().saturating_sub(1)) {
        rows += galley.rows.len();
        if let Some(row) = whole.rows.get_mut(rows.saturating_sub(1)) {
            row.ends_with_newline = piece.line_break;
        }
    }
    Arc::new(whole)
}

fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    // A break at the very end stays with what is before it: there is no piece behind it.
    let body = text.strip_suffix('\n').unwrap_or(text);
    let mut start = 0;
    for paragraph in body.split('\n') {
        let end = start + paragraph.len();
        let is_last = end == body.len();
        let mut rest = &text[start..if is_last { text.len() } else { end }];
        while rest.len() >= LONG {
            let (piece, more) = rest.split_at(cut(rest));
            pieces.push(Piece { text: piece, line_break: false });
            rest = more;
        }
        pieces.push(Piece { text: rest, line_break: !is_last });
        start = end + 1;
    }
    pieces
}

/// Where the first piece of a long paragraph ends.
fn cut(paragraph: &str) -> usize {
    let mut sentence_over = false;
    for (at, c) in paragraph.char_indices() {
        let space = c.is_whitespace();
        let behind = at + c.len_utf8();
        let here = match at {
            at if at < PIECE => false,
            at if at < 2 * PIECE => (space && sentence_over) || matches!(c, '。' | '！' | '？'),
            at if at < 3 * PIECE => space,
            _ => true,
        };
        if here {
            return behind;
        }
        sentence_over =
            matches!(c, '.' | '!' | '?' | '…') || (sentence_over && matches!(c, '"' | '\'' | '”' | '’' | ')'));
    }
    paragraph.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use eframe::egui::{Color32, FontId, Pos2, Rect};

    fn long(sentences: usize) -> String {
        "The quick brown fox jumps over the lazy dog, and nobody minds. ".repeat(sentences)
    }

    fn joined(text: &str) -> String {
        pieces(text).iter().fold(String::new(), |all, p| all + p.text + if p.line_break { "\n" } else { "" })
    }

    #[test]
    fn pieces_put_together_are_the_text() {
        let texts = [
            String::new(),
            "\n".to_owned(),
            long(400),
            format!("{}\n\n{}\nshort\n", long(60), long(90)),
            "a".repeat(10_000),
            "日本語の長い文章です。".repeat(700),
            format!("{}\n", "ü".repeat(3000)),
        ];
        for text in texts {
            assert_eq!(joined(&text), text);
        }
    }

    #[test]
    fn a_change_at_the_start_leaves_later_pieces_as_they_were() {
        let before = long(400);
        let after = format!("A few words more. {before}");
        let (before, after) = (pieces(&before), pieces(&after));
        let known = after.iter().filter(|piece| before.contains(piece)).count();
        assert!(known + 4 >= after.len(), "{known} of {} pieces are known", after.len());
        assert!(after.iter().all(|piece| piece.text.len() < LONG));
    }

    #[test]
    fn the_cursor_finds_every_character() {
        let text = format!("{}\n\n{}\nThe end.\n", long(60), "word ".repeat(800));
        let context = eframe::egui::Context::default();
        let _ = context.run_ui(Default::default(), |ui| {
            let format = TextFormat::simple(FontId::proportional(18.0), Color32::WHITE);
            let galley = lay_out(ui, &text, &format, 500.0);
            let characters: usize = galley.rows.iter().map(|row| row.char_count_including_newline().0).sum();
            assert_eq!(characters, text.chars().count());
            assert!(galley.rows.windows(2).all(|rows| rows[1].pos.y > rows[0].pos.y), "rows go down");
            let inside = Rect::from_min_max(Pos2::ZERO, Pos2::new(510.0, f32::INFINITY));
            assert!(galley.rows.iter().all(|row| inside.contains_rect(row.rect())));
        });
    }
}
