//! Japanese: kanji read as hiragana; kana and everything else stay as they are.
//!
//! The reference uses pykakasi, whose dictionary is not free to embed. Here a small lattice ([`lattice`]) over a reduction
//! of IPADIC ([`dictionary`], `assets/ja`) finds the cheapest row of words, and every word with a kanji in it is
//! replaced by its reading. As in the reference a reading that starts with は or へ gets a space in front, so that it is not
//! taken for the particle, a kanji without a reading is dropped, and the result is decomposed again. Unlike the
//! reference the text is composed before the search: the reference looks decomposed text up, where 急いで is 急いて and a
//! mark, and reads worse for it.
//!
//! Measured on 135 everyday sentences (`tests/fixtures/languages/japanese.tsv`, readings checked by hand): 130 are read right;
//! pykakasi 2.3.0 matches the list on 112, and on 101 when it is given decomposed text as the reference does. It agrees with this
//! module on 114 (113 counting spaces), most differences being its own (朝ご飯 as あさごめし, 今日は as こんにちは). MeCab with the whole of IPADIC agrees on 121, the
//! rest being counters and dates (二人, 三日, 三本), whose readings IPADIC lacks and `build.py` adds.

mod dictionary;
mod lattice;

use dictionary::Dictionary;
use std::sync::LazyLock;
use unicode_normalization::UnicodeNormalization;

/// Reads the kanji of a lower-case NFKD text; the result is NFKD too.
pub fn to_kana(folded: &str) -> String {
    static DICTIONARY: LazyLock<Dictionary> = LazyLock::new(Dictionary::embedded);
    let text: Vec<char> = folded.nfc().collect();
    let mut out = String::with_capacity(folded.len());
    let mut before = String::new();
    for word in lattice::words(&DICTIONARY, &text) {
        let surface = &text[word.range];
        if surface == ['々'] {
            out.push_str(&before);
            continue;
        }
        before.clone_from(&word.reading);
        if !surface.iter().any(|&c| is_kanji(c)) {
            out.extend(surface);
            continue;
        }
        if word.reading.starts_with(['は', 'へ']) {
            out.push(' ');
        }
        out.push_str(&word.reading);
    }
    out.nfkd().collect()
}

fn is_kanji(c: char) -> bool {
    ('\u{4e00}'..='\u{9fff}').contains(&c)
}

/// Katakana as hiragana; anything else as it is.
fn to_hiragana(c: char) -> char {
    match c {
        'ァ'..='ヶ' => char::from_u32(u32::from(c) - 0x60).unwrap_or(c),
        _ => c,
    }
}

#[cfg(test)]
mod tests;
