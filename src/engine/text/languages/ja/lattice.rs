//! The cheapest row of words through a text: Viterbi over word costs and connection costs.
//!
//! `cost = sum over words of (word cost + connection(class before, class))`, from the text's start to its end; what the
//! dictionary lacks is covered by unknown words of one script each, as in MeCab.

use super::dictionary::{Dictionary, Match};
use super::is_kanji;
use std::ops::Range;

/// A word of the best row.
#[derive(Debug)]
pub(super) struct Reading {
    /// Characters of the text.
    pub range: Range<usize>,
    /// Hiragana; empty for an unknown word.
    pub reading: String,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    start: usize,
    end: usize,
    class: u16,
    /// Of the whole row up to here.
    cost: i32,
    /// The node before; that of the first word is itself.
    before: usize,
    word: Option<usize>,
}

/// Scripts that an unknown word does not leave.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Script {
    Kanji,
    Hiragana,
    Katakana,
    Other,
}

impl Script {
    fn of(c: char) -> Self {
        match c {
            _ if is_kanji(c) => Self::Kanji,
            'ぁ'..='ゟ' => Self::Hiragana,
            'ァ'..='ヿ' => Self::Katakana,
            _ => Self::Other,
        }
    }

    /// IPADIC's cost of an unknown word, in steps of 64.
    fn cost(self) -> i32 {
        match self {
            Self::Kanji => 178,
            Self::Hiragana => 204,
            Self::Katakana => 148,
            Self::Other => 75,
        }
    }
}

/// The words of `text`, in order and without gaps.
pub(super) fn words(dictionary: &Dictionary, text: &[char]) -> Vec<Reading> {
    if text.is_empty() {
        return Vec::new();
    }
    let mut nodes: Vec<Node> = Vec::new();
    let mut ending: Vec<Vec<usize>> = vec![Vec::new(); text.len() + 1];
    for start in 0..text.len() {
        if start > 0 && ending[start].is_empty() {
            continue;
        }
        for found in candidates(dictionary, text, start) {
            let before = cheapest(dictionary, &nodes, &ending[start], found.1.class);
            let (cost, before) = before.unwrap_or((dictionary.connection(dictionary.ends, found.1.class), nodes.len()));
            let end = start + found.1.length;
            ending[end].push(nodes.len());
            let word = found.0.then_some(found.1.word);
            nodes.push(Node { start, end, class: found.1.class, cost: cost + found.1.cost, before, word });
        }
    }
    let mut row = Vec::new();
    let last = cheapest(dictionary, &nodes, &ending[text.len()], dictionary.ends);
    let mut at = last.map(|(_, node)| node);
    while let Some(node) = at {
        let Node { start, end, before, word, .. } = nodes[node];
        let reading = word.map_or_else(String::new, |word| dictionary.reading(word, &text[start..end]));
        row.push(Reading { range: start..end, reading });
        at = (before != node).then_some(before);
    }
    row.reverse();
    row
}

/// The best way to come to a word of `class`: the cost so far and the node.
fn cheapest(dictionary: &Dictionary, nodes: &[Node], ending: &[usize], class: u16) -> Option<(i32, usize)> {
    ending.iter().map(|&node| (nodes[node].cost + dictionary.connection(nodes[node].class, class), node)).min()
}

/// What may stand at `start`: known words (true) and unknown ones (false).
fn candidates(dictionary: &Dictionary, text: &[char], start: usize) -> Vec<(bool, Match)> {
    let mut out = Vec::new();
    let after_number = start > 0 && is_numeral(text[start - 1]);
    let text = &text[start..];
    dictionary.matches(text, |found| {
        if !(after_number && dictionary.is_counted(found.word)) {
            out.push((true, found));
        }
    });
    let script = Script::of(text[0]);
    if !out.is_empty() && script != Script::Katakana {
        return out;
    }
    let run = match script {
        Script::Kanji => 1,
        _ => text.iter().take_while(|&&c| Script::of(c) == script).count(),
    };
    out.push((false, Match { length: run, class: dictionary.unknown, cost: script.cost(), word: 0 }));
    if run > 1 && script != Script::Other {
        out.push((false, Match { length: 1, class: dictionary.unknown, cost: script.cost(), word: 0 }));
    }
    out
}

fn is_numeral(c: char) -> bool {
    c.is_ascii_digit() || "一二三四五六七八九十百千万億兆".contains(c)
}
