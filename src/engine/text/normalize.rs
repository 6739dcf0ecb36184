//! The reference's `punc_norm`: punctuation reduced to the few marks the models were trained on.
//!
//! Order matters and is kept even where it looks odd: the first letter is raised before spaces are collapsed (so a
//! leading space prevents it), and double spaces made by a replacement stay (`Hi... there` -> `Hi,  there.`).
//! Source: `punc_norm` of `tts.py`, `mtl_tts.py` and `tts_turbo.py` of the reference.

/// Which of the three near-identical normalisers a model was trained with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PunctuationStyle {
    /// The English model.
    English,
    /// English plus full-width sentence ends.
    Multilingual,
    /// Turbo and Nano: `...`, ` - ` and `;` stay as they are.
    Turbo,
}

/// What the reference speaks when it is given nothing.
const NOTHING_TO_SAY: &str = "You need to add some text for me to talk.";

/// Replacements in the order they are applied; the flag says whether Turbo makes them too.
const REPLACEMENTS: [(&str, &str, bool); 12] = [
    ("...", ", ", false),
    ("…", ", ", true),
    (":", ",", true),
    (" - ", ", ", false),
    (";", ", ", false),
    ("—", "-", true),
    ("–", "-", true),
    (" ,", ",", true),
    ("“", "\"", true),
    ("”", "\"", true),
    ("‘", "'", true),
    ("’", "'", true),
];
const ENDS: &[char] = &['.', '!', '?', '-', ','];
const FULL_WIDTH_ENDS: &[char] = &['、', '，', '。', '？', '！'];

/// Tidies `text` exactly as the reference does before tokenising. Not idempotent: apply it once.
///
/// An empty string becomes the reference's own request for text, white space alone becomes `.`.
pub fn normalize_punctuation(text: &str, style: PunctuationStyle) -> String {
    let Some(first) = text.chars().next() else {
        return NOTHING_TO_SAY.to_owned();
    };
    let raised: String =
        if first.is_lowercase() { first.to_uppercase().chain(text.chars().skip(1)).collect() } else { text.to_owned() };
    let words: Vec<&str> = raised.split(is_python_space).filter(|word| !word.is_empty()).collect();
    let mut out = words.join(" ");
    for (from, to, turbo_too) in REPLACEMENTS {
        if (turbo_too || style != PunctuationStyle::Turbo) && out.contains(from) {
            out = out.replace(from, to);
        }
    }
    out.truncate(out.trim_end_matches(' ').len());
    let ended = out.ends_with(ENDS) || (style == PunctuationStyle::Multilingual && out.ends_with(FULL_WIDTH_ENDS));
    if !ended {
        out.push('.');
    }
    out
}

/// White space as Python's `str.split` sees it: Unicode's, plus the four information separators.
fn is_python_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn information_separators_are_spaces_as_in_python() {
        assert_eq!(normalize_punctuation("a\u{1c}b\u{1f}c", PunctuationStyle::English), "A b c.");
    }

    #[test]
    fn zero_width_space_is_not_white_space() {
        assert_eq!(normalize_punctuation("a\u{200b}b", PunctuationStyle::English), "A\u{200b}b.");
    }

    #[test]
    fn turbo_keeps_what_the_others_replace() {
        let text = "wait; what - yes... no";
        assert_eq!(normalize_punctuation(text, PunctuationStyle::Turbo), "Wait; what - yes... no.");
        assert_eq!(normalize_punctuation(text, PunctuationStyle::English), "Wait,  what, yes,  no.");
    }

    #[test]
    fn only_the_multilingual_model_accepts_a_full_width_end() {
        assert_eq!(normalize_punctuation("你好！", PunctuationStyle::Multilingual), "你好！");
        assert_eq!(normalize_punctuation("你好！", PunctuationStyle::English), "你好！.");
    }
}
