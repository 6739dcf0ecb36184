//! Korean: syllables apart into Jamo, as the vocabulary holds them.
//!
//! A syllable is `0xAC00 + (initial * 21 + medial) * 28 + final`. After NFKD nothing is left to decompose and only the
//! trimming acts; the arithmetic stays for text that was not normalised.

const FIRST_SYLLABLE: u32 = 0xAC00;
const LAST_SYLLABLE: u32 = 0xD7A3;

/// Hangul syllables as initial, medial and (if any) final Jamo; the ends trimmed.
pub fn to_jamo(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    for c in text.chars() {
        let code = u32::from(c);
        if !(FIRST_SYLLABLE..=LAST_SYLLABLE).contains(&code) {
            out.push(c);
            continue;
        }
        let base = code - FIRST_SYLLABLE;
        let jamo = [0x1100 + base / 588, 0x1161 + base % 588 / 28, 0x11A7 + base % 28];
        let parts = if base.is_multiple_of(28) { 2 } else { 3 };
        out.extend(jamo[..parts].iter().filter_map(|&code| char::from_u32(code)));
    }
    out.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use unicode_normalization::UnicodeNormalization;

    #[test]
    fn every_syllable_comes_apart_as_in_unicode() {
        for c in '\u{AC00}'..='\u{D7A3}' {
            assert_eq!(to_jamo(&c.to_string()), c.nfd().collect::<String>());
        }
    }

    #[test]
    fn other_text_is_only_trimmed() {
        assert_eq!(to_jamo(" 한 a\u{D7B0} "), "\u{1112}\u{1161}\u{11AB} a\u{D7B0}");
    }
}
