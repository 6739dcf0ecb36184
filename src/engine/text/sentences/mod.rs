//! Long text cut into pieces that are spoken in one go each.
//!
//! Pieces end at sentences where they can, at clause marks where a sentence is longer than the limit, then between words,
//! then between graphemes. A very short sentence joins its neighbour in the same paragraph, because the models
//! mumble on a word or two. Every piece carries its byte range in the original, so that a window can mark what
//! is spoken, and the pause that should follow. [`scan`] finds the places, this file chooses among them; both walk
//! the text once, so time and memory are linear.

mod abbreviations;
mod scan;

use scan::Scan;
use std::ops::Range;
use unicode_segmentation::UnicodeSegmentation;

/// What follows a piece, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Boundary {
    /// A word, or only a grapheme: the piece had to end somewhere.
    Word,
    /// A comma, a dash, a bracket.
    Clause,
    /// The end of a sentence or of a list item.
    Sentence,
    /// A blank line, or the end of the text.
    Paragraph,
}

/// Silence after each kind of boundary, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pauses {
    /// After a piece that ends at a clause mark.
    pub clause_secs: f32,
    /// After a sentence.
    pub sentence_secs: f32,
    /// After a paragraph.
    pub paragraph_secs: f32,
}

impl Default for Pauses {
    fn default() -> Self {
        Self { clause_secs: 0.12, sentence_secs: 0.3, paragraph_secs: 0.7 }
    }
}

/// How to split.
///
/// Lengths are in Latin characters' worth of speech: kana and Hangul count 2, Han characters 3, a run of white space 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SplitOptions {
    /// No piece is longer; at least [`SplitOptions::LEAST_MAX_CHARS`] is used.
    pub max_chars: usize,
    /// The first piece may end at an earlier clause mark to be no longer than this, so that sound starts sooner.
    pub first_max_chars: Option<usize>,
    /// A sentence with fewer letters and digits than this joins its neighbour.
    pub min_chars: usize,
    /// The silences.
    pub pauses: Pauses,
}

impl SplitOptions {
    /// The smallest limit that is honoured: below it event tags could not be kept whole.
    pub const LEAST_MAX_CHARS: usize = 40;
}

impl Default for SplitOptions {
    fn default() -> Self {
        Self { max_chars: 240, first_max_chars: None, min_chars: 12, pauses: Pauses::default() }
    }
}

/// One piece of a text.
#[derive(Debug, Clone, PartialEq)]
pub struct Sentence {
    /// Bytes of the original it stands for, with the white space around it; ranges follow each other without gaps.
    pub range: Range<usize>,
    /// What to speak: runs of white space made one space, ornaments such as `***` left out.
    pub text: String,
    /// What it ends with.
    pub boundary: Boundary,
    /// Silence after it, in seconds; 0 after the last.
    pub pause_secs: f32,
}

/// Splits `text` for speech. Text without anything but white space gives no pieces; the caller says so to its user.
pub fn split(text: &str, options: &SplitOptions) -> Vec<Sentence> {
    let max = options.max_chars.max(SplitOptions::LEAST_MAX_CHARS);
    let scan = Scan::new(text);
    let sentences = absorb_ornaments(scan.sentences(), &scan);
    let joined = join_short(sentences, &scan, options.min_chars, max);
    let cut = joined.into_iter().flat_map(|piece| cut_long(piece, &scan, max)).collect();
    let mut pieces = absorb_ornaments(cut, &scan);
    if let Some(limit) = options.first_max_chars {
        shorten_first(&mut pieces, &scan, limit, options.min_chars);
    }
    let last = pieces.len().saturating_sub(1);
    let sentence = |(i, piece): (usize, &Piece)| Sentence {
        range: scan.byte(piece.start)..scan.byte(piece.end),
        text: collapse(&text[scan.byte(piece.spoken.start)..scan.byte(piece.spoken.end)]),
        boundary: piece.boundary,
        pause_secs: if i == last { 0.0 } else { options.pauses.after(piece.boundary) },
    };
    pieces.iter().enumerate().map(sentence).collect()
}

impl Pauses {
    fn after(&self, boundary: Boundary) -> f32 {
        match boundary {
            Boundary::Word => 0.0,
            Boundary::Clause => self.clause_secs,
            Boundary::Sentence => self.sentence_secs,
            Boundary::Paragraph => self.paragraph_secs,
        }
    }
}

/// A piece in the making; positions count characters of the scan.
#[derive(Debug, Clone)]
struct Piece {
    start: usize,
    end: usize,
    /// The part of it that is spoken, without white space at its ends.
    spoken: Range<usize>,
    boundary: Boundary,
}

/// Joins pieces without a letter or digit to their predecessor (or the first successor), silently.
fn absorb_ornaments(pieces: Vec<Piece>, scan: &Scan<'_>) -> Vec<Piece> {
    let mut out: Vec<Piece> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match out.last_mut() {
            Some(last) if scan.letters(&piece.spoken) == 0 => {
                last.end = piece.end;
                last.boundary = last.boundary.max(piece.boundary);
            }
            Some(last) if scan.letters(&last.spoken) == 0 => {
                *last = Piece { start: last.start, ..piece };
            }
            _ => out.push(piece),
        }
    }
    out
}

/// Joins sentences of less than `min` letters to the next one of the paragraph, or at its end to the one before.
fn join_short(pieces: Vec<Piece>, scan: &Scan<'_>, min: usize, max: usize) -> Vec<Piece> {
    let mut out: Vec<Piece> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        if let Some(last) = out.last_mut().filter(|last| last.boundary < Boundary::Paragraph) {
            let both = last.spoken.start..piece.spoken.end;
            let short = |p: &Piece| scan.letters(&p.spoken) < min;
            let ends_here = piece.boundary == Boundary::Paragraph;
            if (short(last) || (ends_here && short(&piece))) && scan.length(&both) <= max {
                *last = Piece { start: last.start, end: piece.end, spoken: both, boundary: piece.boundary };
                continue;
            }
        }
        out.push(piece);
    }
    out
}

/// Cuts a piece longer than `max` into the fewest parts of about one length.
fn cut_long(piece: Piece, scan: &Scan<'_>, max: usize) -> Vec<Piece> {
    let mut out = Vec::new();
    let mut rest = piece;
    loop {
        let length = scan.length(&rest.spoken);
        if length <= max {
            out.push(rest);
            return out;
        }
        let target = length.div_ceil(length.div_ceil(max));
        let (at, boundary) = best_cut(&rest, scan, target, max);
        let (head, tail) = cut_at(&rest, scan, at, boundary);
        out.push(head);
        rest = tail;
    }
}

/// Both halves of `piece` at character `at`.
fn cut_at(piece: &Piece, scan: &Scan<'_>, at: usize, boundary: Boundary) -> (Piece, Piece) {
    let head = Piece { end: at, spoken: scan.trimmed(piece.spoken.start..at), boundary, ..piece.clone() };
    let tail = Piece { start: at, spoken: scan.trimmed(at..piece.spoken.end), ..piece.clone() };
    (head, tail)
}

/// Where to cut: the clause mark nearest to `target` unless all are far from it, else the space nearest to it, else the
/// last grapheme that fits.
fn best_cut(piece: &Piece, scan: &Scan<'_>, target: usize, max: usize) -> (usize, Boundary) {
    let inner = scan.breaks_within(piece.spoken.start, piece.spoken.end);
    let measured = inner.iter().map(|&(at, kind)| (scan.length(&scan.trimmed(piece.spoken.start..at)), at, kind));
    let fitting: Vec<(usize, usize, Boundary)> = measured.take_while(|&(length, ..)| length <= max).collect();
    let nearest = |least: Boundary, from: usize| {
        let candidates = fitting.iter().filter(|&&(length, _, kind)| kind >= least && length >= from);
        candidates.min_by_key(|&&(length, ..)| length.abs_diff(target)).map(|&(_, at, kind)| (at, kind))
    };
    nearest(Boundary::Clause, target / 2)
        .or_else(|| nearest(Boundary::Word, target / 4))
        .unwrap_or_else(|| (last_grapheme(piece, scan, max), Boundary::Word))
}

/// The last grapheme boundary of the piece that fits `max`; a single grapheme longer than that is cut.
fn last_grapheme(piece: &Piece, scan: &Scan<'_>, max: usize) -> usize {
    let start = piece.spoken.start;
    let fits = |at: usize| scan.length(&(start..at)) <= max;
    let widest = (start + 1..piece.spoken.end).take_while(|&at| fits(at)).last().unwrap_or(start + 1);
    let window = scan.slice(start..(widest + 1).min(piece.spoken.end));
    let ends = window.grapheme_indices(true).map(|(i, _)| scan.byte(start) + i);
    let cut = ends.rev().find(|&byte| byte <= scan.byte(widest));
    let whole = cut.map_or(widest, |byte| scan.position(byte));
    let at = (start + 1..=whole).rev().find(|&at| !scan.in_tag(at));
    at.unwrap_or(widest)
}

/// Ends the first piece at its last clause mark within `limit`, if what is before it is not too short to be spoken alone.
fn shorten_first(pieces: &mut Vec<Piece>, scan: &Scan<'_>, limit: usize, min: usize) {
    let Some(first) = pieces.first().filter(|piece| scan.length(&piece.spoken) > limit) else {
        return;
    };
    let candidates = scan.breaks_within(first.spoken.start, first.spoken.end).iter().rev();
    let cut = candidates.copied().find(|&(at, kind)| {
        let head = scan.trimmed(first.spoken.start..at);
        kind >= Boundary::Clause
            && scan.length(&head) <= limit
            && scan.letters(&head) >= min
            && scan.letters(&(at..first.spoken.end)) > 0
    });
    if let Some((at, kind)) = cut {
        let (head, tail) = cut_at(first, scan, at, kind);
        pieces.splice(0..1, [head, tail]);
    }
}

/// Runs of white space as one space.
fn collapse(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
    }
    out
}

#[cfg(test)]
mod tests;
