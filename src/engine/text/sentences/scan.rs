//! One walk over a text that finds every place where it may be cut, and how strong each place is.

use super::abbreviations::{self, Dot};
use super::{Boundary, Piece};
use crate::text::tokenizer::is_tag_at;
use std::ops::Range;
use unicode_segmentation::GraphemeCursor;

/// A bracket that closes within this many characters keeps its sentences together.
const MAX_BRACKET_CHARS: usize = 160;
/// A line shorter than this may be one of verse or a heading; a longer one was broken to fit a page.
const SHORT_LINE_CHARS: usize = 50;
const OPENERS: &str = "\"'“‘«‹(（[【「『〈《{„‚¿¡";
const CLOSERS: &str = "\"'”’»›)）]】」』〉》}";
/// Sentence ends that need no space after them.
const WIDE_ENDS: &str = "。！？｡．‼⁇⁈⁉।॥؟۔።။។։";
const NARROW_ENDS: &str = ".!?…";
/// Clause marks that need no space after them.
const WIDE_CLAUSES: &str = "、，；：،؛—―";
const NARROW_CLAUSES: &str = ",;:)]–\u{37e}·";

/// What holds at one character.
#[derive(Clone, Copy)]
struct Mark {
    byte: usize,
    c: char,
    /// Length of everything before it, in Latin characters.
    length: usize,
    /// The same for letters and digits alone.
    letters: usize,
    guard: Guard,
}

/// Whether a cut before a character would tear something apart.
#[derive(Clone, Copy, PartialEq)]
enum Guard {
    Free,
    Bracket,
    Tag,
}

/// A text with its measures and its possible cuts. Positions count characters; the last one is the end.
pub(super) struct Scan<'a> {
    text: &'a str,
    marks: Vec<Mark>,
    /// Positions after white space or a mark, in order.
    breaks: Vec<(usize, Boundary)>,
}

impl<'a> Scan<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let mut scan = Self { text, marks: measure(text), breaks: Vec::new() };
        scan.guard();
        scan.walk();
        scan
    }

    fn end(&self) -> usize {
        self.marks.len() - 1
    }

    pub(super) fn byte(&self, at: usize) -> usize {
        self.marks[at].byte
    }

    /// The position of the character that starts at `byte`.
    pub(super) fn position(&self, byte: usize) -> usize {
        self.marks.partition_point(|mark| mark.byte < byte)
    }

    pub(super) fn slice(&self, range: Range<usize>) -> &'a str {
        &self.text[self.byte(range.start)..self.byte(range.end)]
    }

    /// How long a trimmed range is, in Latin characters.
    pub(super) fn length(&self, range: &Range<usize>) -> usize {
        self.marks[range.end].length - self.marks[range.start].length
    }

    /// Letters and digits of a range, in Latin characters.
    pub(super) fn letters(&self, range: &Range<usize>) -> usize {
        self.marks[range.end].letters - self.marks[range.start].letters
    }

    /// The range without white space at its ends.
    pub(super) fn trimmed(&self, mut range: Range<usize>) -> Range<usize> {
        while range.start < range.end && self.marks[range.end - 1].c.is_whitespace() {
            range.end -= 1;
        }
        while range.start < range.end && self.marks[range.start].c.is_whitespace() {
            range.start += 1;
        }
        range
    }

    /// The possible cuts strictly between two positions.
    pub(super) fn breaks_within(&self, start: usize, end: usize) -> &[(usize, Boundary)] {
        let from = self.breaks.partition_point(|&(at, _)| at <= start);
        let to = self.breaks.partition_point(|&(at, _)| at < end);
        &self.breaks[from..to.max(from)]
    }

    /// The text cut at every sentence end; nothing if it is all white space.
    pub(super) fn sentences(&self) -> Vec<Piece> {
        let mut out = Vec::new();
        let mut start = 0;
        let strong = self.breaks.iter().copied().filter(|&(at, kind)| kind >= Boundary::Sentence && at < self.end());
        for (end, boundary) in strong.chain([(self.end(), Boundary::Paragraph)]) {
            let spoken = self.trimmed(start..end);
            if !spoken.is_empty() {
                out.push(Piece { start, end, spoken, boundary });
                start = end;
            }
        }
        if let Some(last) = out.last_mut() {
            last.end = self.end();
        }
        out
    }

    /// Whether a cut at this position would tear an event tag.
    pub(super) fn in_tag(&self, at: usize) -> bool {
        self.marks[at].guard == Guard::Tag
    }

    fn c(&self, at: usize) -> Option<char> {
        self.marks.get(at).map(|mark| mark.c).filter(|_| at < self.end())
    }

    fn is(&self, at: usize, set: &str) -> bool {
        self.c(at).is_some_and(|c| set.contains(c))
    }

    fn is_space(&self, at: usize) -> bool {
        self.c(at).is_none_or(char::is_whitespace)
    }

    /// Marks the inside of event tags and of short brackets.
    fn guard(&mut self) {
        let mut open: Vec<(usize, char)> = Vec::new();
        for at in 0..self.end() {
            let c = self.marks[at].c;
            match c {
                '[' if is_tag_at(&self.text[self.byte(at)..]).is_some() => {
                    let length = is_tag_at(&self.text[self.byte(at)..]).unwrap_or(0);
                    self.marks[at + 1..at + length].iter_mut().for_each(|mark| mark.guard = Guard::Tag);
                }
                '(' | '[' | '（' | '【' => open.push((at, c)),
                ')' | ']' | '）' | '】' => {
                    let wanted = [('(', ')'), ('[', ']'), ('（', '）'), ('【', '】')].iter().find(|pair| pair.1 == c);
                    let Some(found) = open.iter().rposition(|&(_, o)| wanted.is_some_and(|pair| pair.0 == o)) else {
                        continue;
                    };
                    let from = open[found].0;
                    open.truncate(found);
                    if at - from <= MAX_BRACKET_CHARS {
                        let inside = self.marks[from + 1..=at].iter_mut().filter(|mark| mark.guard == Guard::Free);
                        inside.for_each(|mark| mark.guard = Guard::Bracket);
                    }
                }
                _ => open.retain(|&(from, _)| at - from <= MAX_BRACKET_CHARS),
            }
        }
    }

    /// Records a cut before `at` unless something would be torn apart.
    fn push(&mut self, at: usize, kind: Boundary) {
        let mark = self.marks[at];
        let kind = match mark.guard {
            _ if kind == Boundary::Paragraph => kind,
            Guard::Tag => return,
            Guard::Bracket => kind.min(Boundary::Clause),
            Guard::Free => kind,
        };
        let joins = mark.c >= '\u{300}'
            && !GraphemeCursor::new(mark.byte, self.text.len(), true).is_boundary(self.text, 0).unwrap_or(true);
        if !joins {
            self.breaks.push((at, kind));
        }
    }

    fn walk(&mut self) {
        let mut at = 0;
        let mut line_start = 0;
        let mut pending = Boundary::Word;
        while at < self.end() {
            if self.is_space(at) {
                let from = at;
                at = self.skip(at, char::is_whitespace);
                let lines = self.line_break(line_start, from, at);
                if self.slice(from..at).contains(is_newline) {
                    line_start = at;
                }
                self.push(at, pending.max(lines));
                pending = Boundary::Word;
            } else if self.is(at, WIDE_ENDS) || self.is(at, NARROW_ENDS) {
                (at, pending) = self.sentence_end(line_start, at);
            } else if self.is(at, WIDE_CLAUSES) || self.is(at, NARROW_CLAUSES) || self.c(at) == Some('-') {
                (at, pending) = self.clause_end(at);
            } else {
                at += 1;
            }
        }
    }

    fn skip(&self, mut at: usize, what: impl Fn(char) -> bool) -> usize {
        while self.c(at).is_some_and(&what) {
            at += 1;
        }
        at
    }

    /// Closing quotes and brackets from `at` on. A straight quote closes only where a space or another closer follows.
    fn skip_closers(&self, mut at: usize) -> usize {
        while self.is(at, CLOSERS) {
            let straight = self.is(at, "\"'");
            if straight && !(self.is_space(at + 1) || self.is(at + 1, CLOSERS) || self.is(at + 1, NARROW_CLAUSES)) {
                break;
            }
            at += 1;
        }
        at
    }

    /// What the white space `from..to` amounts to by its line breaks.
    fn line_break(&self, line_start: usize, from: usize, to: usize) -> Boundary {
        let space = self.slice(from..to);
        let newlines = space.chars().filter(|&c| is_newline(c)).count() - space.matches("\r\n").count();
        if newlines == 0 {
            return Boundary::Word;
        }
        if newlines > 1 || space.contains(['\u{2029}', '\u{c}']) {
            return Boundary::Paragraph;
        }
        let raised = |at: usize| self.c(at).is_some_and(|c| c.is_uppercase() || c.is_numeric() || is_wide(c));
        let next = self.skip(to, |c| OPENERS.contains(c));
        let short = from - line_start < SHORT_LINE_CHARS;
        if self.is_list_item(to) || (short && raised(next)) { Boundary::Sentence } else { Boundary::Word }
    }

    /// Whether a line that starts at `at` is an item of a list: `- x`, `• x`, `1. x`, `b) x`.
    fn is_list_item(&self, at: usize) -> bool {
        if self.is(at, "-*•‣◦▪–—+") {
            return self.is_space(at + 1);
        }
        let number = self.skip(at, |c| c.is_ascii_digit());
        let marked = if number > at { number } else { self.skip(at, char::is_alphabetic).min(at + 1) };
        marked > at && marked - at <= 3 && self.is(marked, ".)") && self.is_space(marked + 1)
    }

    /// From a sentence mark at `at`: the position after it and its closers, and what the next white space is worth.
    fn sentence_end(&mut self, line_start: usize, at: usize) -> (usize, Boundary) {
        let marks_end = self.skip(at, |c| WIDE_ENDS.contains(c) || NARROW_ENDS.contains(c));
        let end = self.skip_closers(marks_end);
        let wide = (at..marks_end).any(|i| self.is(i, WIDE_ENDS));
        let last = self.c(marks_end - 1);
        let next = self.c(end);
        let decimal = last == Some('．') && next.is_some_and(|c| c.is_numeric() || c.is_alphabetic() && !is_wide(c));
        if wide && !decimal {
            let quoted_only = end > marks_end && self.is(end, "とっ");
            let kind = if quoted_only { Boundary::Clause } else { Boundary::Sentence };
            return self.cut_now(end, kind);
        }
        if self.is_space(end) {
            return (end, self.narrow_end(line_start, at, marks_end, end));
        }
        let between_wide = next.is_some_and(is_wide) && at > 0 && self.c(at - 1).is_some_and(is_wide);
        if between_wide && last != Some('…') { self.cut_now(end, Boundary::Sentence) } else { (end, Boundary::Word) }
    }

    /// A cut that needs no white space; where some follows, the cut waits for its end.
    fn cut_now(&mut self, at: usize, kind: Boundary) -> (usize, Boundary) {
        if self.is_space(at) {
            return (at, kind);
        }
        self.push(at, kind);
        (at, Boundary::Word)
    }

    /// What `.`, `!`, `?` or `…` before white space is worth.
    fn narrow_end(&self, line_start: usize, at: usize, marks_end: usize, end: usize) -> Boundary {
        let next = self.skip(self.skip(end, char::is_whitespace), |c| OPENERS.contains(c));
        let Some(next_char) = self.c(next) else {
            return Boundary::Sentence;
        };
        let quoted = end > marks_end;
        let goes_on = next_char.is_lowercase();
        let single_dot = marks_end - at == 1 && self.c(at) == Some('.');
        if !single_dot {
            let trails = (at..marks_end).all(|i| self.is(i, ".…"));
            return if goes_on && (trails || quoted) { Boundary::Clause } else { Boundary::Sentence };
        }
        if quoted {
            return if goes_on { Boundary::Clause } else { Boundary::Sentence };
        }
        let furthest = at.saturating_sub(24);
        let from = (furthest..at).rev().find(|&i| self.is_space(i) || self.is(i, OPENERS)).map_or(furthest, |i| i + 1);
        let next_end = self.skip(next, char::is_alphanumeric).min(next + 24);
        let dot = Dot {
            word: self.slice(from..at),
            next: self.slice(next..next_end),
            next_has_dot: self.is(next_end, "."),
            starts_line: from == line_start,
        };
        abbreviations::judge(&dot)
    }

    /// From a clause mark at `at`: as [`Self::sentence_end`].
    fn clause_end(&mut self, at: usize) -> (usize, Boundary) {
        let end = self.skip_closers(at + 1);
        if self.is(at, WIDE_CLAUSES) {
            return self.cut_now(end, Boundary::Clause);
        }
        let hyphen = self.is(at, "-–");
        let stands_alone = !hyphen || at == 0 || self.is_space(at - 1);
        (end, if self.is_space(end) && stands_alone { Boundary::Clause } else { Boundary::Word })
    }
}

/// Characters of the text with their running measures, and one more for the end.
fn measure(text: &str) -> Vec<Mark> {
    let mut marks = Vec::with_capacity(text.len() + 1);
    let (mut length, mut letters, mut after_space) = (0, 0, false);
    for (byte, c) in text.char_indices() {
        marks.push(Mark { byte, c, length, letters, guard: Guard::Free });
        let space = c.is_whitespace();
        let width = if space && after_space { 0 } else { width(c) };
        length += width;
        letters += if c.is_alphanumeric() { width } else { 0 };
        after_space = space;
    }
    marks.push(Mark { byte: text.len(), c: '\n', length, letters, guard: Guard::Free });
    marks
}

fn is_newline(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// How much speech a character stands for, in Latin characters.
fn width(c: char) -> usize {
    match u32::from(c) {
        0x3040..=0x30FF | 0xAC00..=0xD7A3 => 2,
        0x3400..=0x9FFF | 0xF900..=0xFAFF | 0x2_0000..=0x3_FFFF => 3,
        _ => 1,
    }
}

/// Whether a character belongs to a script that is written without spaces and without case.
fn is_wide(c: char) -> bool {
    width(c) > 1
}
