//! Japanese: kanji read as hiragana.

/// Text with its kanji read.
pub fn to_kana(folded: &str) -> String {
    folded.to_owned()
}
