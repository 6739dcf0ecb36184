//! The 23 languages of the multilingual models and what each script needs before the vocabulary.
//!
//! Every step receives lower-cased NFKD text (accents apart, Hangul as Jamo, full-width forms folded) and returns text:
//! Chinese becomes Cangjie codes ([`zh`]), Japanese kana ([`ja`]), Korean Jamo ([`ko`]); Hebrew and Russian pass
//! through a [`Diacritizer`] if one is given and stay as they are otherwise, which is what the reference does without its
//! optional packages. All others need nothing.
//! Source: `models/tokenizers/tokenizer.py` and `SUPPORTED_LANGUAGES` of the reference.

pub mod ja;
pub mod ko;
pub mod zh;

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A language of the multilingual models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
#[allow(missing_docs)]
pub enum Language {
    Arabic,
    Danish,
    German,
    Greek,
    English,
    Spanish,
    Finnish,
    French,
    Hebrew,
    Hindi,
    Italian,
    Japanese,
    Korean,
    Malay,
    Dutch,
    Norwegian,
    Polish,
    Portuguese,
    Russian,
    Swedish,
    Swahili,
    Turkish,
    Chinese,
}

/// Language, code, English name, own name; in the order of the enum.
const TABLE: [(Language, &str, &str, &str); 23] = [
    (Language::Arabic, "ar", "Arabic", "العربية"),
    (Language::Danish, "da", "Danish", "Dansk"),
    (Language::German, "de", "German", "Deutsch"),
    (Language::Greek, "el", "Greek", "Ελληνικά"),
    (Language::English, "en", "English", "English"),
    (Language::Spanish, "es", "Spanish", "Español"),
    (Language::Finnish, "fi", "Finnish", "Suomi"),
    (Language::French, "fr", "French", "Français"),
    (Language::Hebrew, "he", "Hebrew", "עברית"),
    (Language::Hindi, "hi", "Hindi", "हिन्दी"),
    (Language::Italian, "it", "Italian", "Italiano"),
    (Language::Japanese, "ja", "Japanese", "日本語"),
    (Language::Korean, "ko", "Korean", "한국어"),
    (Language::Malay, "ms", "Malay", "Bahasa Melayu"),
    (Language::Dutch, "nl", "Dutch", "Nederlands"),
    (Language::Norwegian, "no", "Norwegian", "Norsk"),
    (Language::Polish, "pl", "Polish", "Polski"),
    (Language::Portuguese, "pt", "Portuguese", "Português"),
    (Language::Russian, "ru", "Russian", "Русский"),
    (Language::Swedish, "sv", "Swedish", "Svenska"),
    (Language::Swahili, "sw", "Swahili", "Kiswahili"),
    (Language::Turkish, "tr", "Turkish", "Türkçe"),
    (Language::Chinese, "zh", "Chinese", "中文"),
];

impl Language {
    /// Every supported language, ordered by code.
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        TABLE.iter().map(|row| row.0)
    }

    /// The two-letter code, as in the models' language tokens.
    pub fn code(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// Its name in English.
    pub fn english_name(self) -> &'static str {
        TABLE[self as usize].2
    }

    /// Its name in itself.
    pub fn native_name(self) -> &'static str {
        TABLE[self as usize].3
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

impl FromStr for Language {
    type Err = Error;

    /// Reads a code in any case (`fr`, `FR`) or an English name (`French`).
    ///
    /// # Errors
    /// [`Error::Input`] with the list of what is supported.
    fn from_str(text: &str) -> Result<Self> {
        let wanted = text.trim();
        let found = TABLE
            .iter()
            .find(|(_, code, english, _)| wanted.eq_ignore_ascii_case(code) || wanted.eq_ignore_ascii_case(english));
        found.map(|row| row.0).ok_or_else(|| {
            let known: Vec<String> = TABLE.iter().map(|(_, code, name, _)| format!("{code} ({name})")).collect();
            Error::input(format!("language \"{wanted}\" is not supported; choose one of {}", known.join(", ")))
        })
    }
}

impl From<Language> for String {
    fn from(language: Language) -> Self {
        language.code().to_owned()
    }
}

impl TryFrom<String> for Language {
    type Error = Error;

    fn try_from(code: String) -> Result<Self> {
        code.parse()
    }
}

/// Adds vowel points (Hebrew) or stress marks (Russian) to a text.
///
/// The reference uses `dicta_onnx` and `russian_text_stresser` where they are installed; none is part of Myna. One that is
/// handed to [`TextTokenizer::with_diacritizer`](super::TextTokenizer::with_diacritizer) runs in their place.
pub trait Diacritizer: fmt::Debug + Send + Sync {
    /// The same text with marks added; `text` is lower case and NFKD.
    fn add_marks(&self, text: &str) -> String;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_enum_and_of_the_codes() {
        for (i, (language, ..)) in TABLE.iter().enumerate() {
            assert_eq!(*language as usize, i);
            assert_eq!(language.code().parse::<Language>().unwrap(), *language);
            assert_eq!(language.english_name().parse::<Language>().unwrap(), *language);
        }
        assert!(TABLE.windows(2).all(|pair| pair[0].1 < pair[1].1));
        assert_eq!(Language::all().len(), 23);
    }

    #[test]
    fn an_unknown_language_lists_the_known_ones() {
        let message = "xx".parse::<Language>().unwrap_err().to_string();
        assert!(
            message.contains("\"xx\"") && message.contains("ar (Arabic)") && message.contains("zh (Chinese)"),
            "{message}"
        );
    }

    #[test]
    fn codes_are_read_in_any_case_and_survive_json() {
        assert_eq!(" ZH ".parse::<Language>().unwrap(), Language::Chinese);
        let json = serde_json::to_string(&Language::Norwegian).unwrap();
        assert_eq!(json, "\"no\"");
        assert_eq!(serde_json::from_str::<Language>(&json).unwrap(), Language::Norwegian);
        assert!(serde_json::from_str::<Language>("\"tlh\"").is_err());
    }
}
