//! Chinese: words apart, then every character as the Cangjie keys it is typed with.
//!
//! `你好` -> `[cj_o][cj_n][cj_f][cj_.][cj_v][cj_n][cj_d][cj_.]`. Where several characters share a code, the second and
//! later ones carry their place in the table as a digit. The reference segments with pkuseg, whose model is a download;
//! here jieba with its built-in dictionary does it.

use crate::error::{Error, Result};
use crate::text::tokenizer::is_tag_at;
use jieba_rs::Jieba;
use std::collections::HashMap;
use std::path::Path;
use std::sync::LazyLock;
use unicode_general_category::{GeneralCategory, get_general_category};

/// The model folder's table of Cangjie codes.
pub const CANGJIE_FILE: &str = "Cangjie5_TC.json";

/// Character -> Cangjie code, with the digit that tells characters of one code apart.
#[derive(Debug)]
pub struct Cangjie {
    codes: HashMap<char, String>,
}

impl Cangjie {
    /// Reads `Cangjie5_TC.json`: a JSON list of `character<TAB>code<TAB>...`, whose order defines the digits.
    ///
    /// A character listed twice takes its last code, but still counts among those of the first.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Model`] if the file cannot be read or is something else.
    pub fn load(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|e| Error::io(path, e))?;
        let lines: Vec<String> = serde_json::from_slice(&bytes)
            .map_err(|e| Error::model(path, format!("is not a list of Cangjie codes ({e}); fetch the file again")))?;
        let mut code_of: HashMap<char, &str> = HashMap::new();
        let mut sharing: HashMap<&str, Vec<char>> = HashMap::new();
        for line in &lines {
            let mut fields = line.split('\t');
            let (Some(word), Some(code)) = (fields.next(), fields.next()) else {
                return Err(Error::model(path, format!("has a line without a code: {line:?}; fetch the file again")));
            };
            let mut chars = word.chars();
            if let (Some(c), None) = (chars.next(), chars.next()) {
                code_of.insert(c, code);
                sharing.entry(code).or_default().push(c);
            }
        }
        let codes = code_of.into_iter().map(|(c, code)| {
            let place = sharing.get(code).and_then(|list| list.iter().position(|&other| other == c)).unwrap_or(0);
            (c, if place == 0 { code.to_owned() } else { format!("{code}{place}") })
        });
        Ok(Self { codes: codes.collect() })
    }

    /// Replaces every letter without case that the table knows by its code; all else stays.
    pub fn encode(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() * 4);
        for c in text.chars() {
            let code = self.codes.get(&c).filter(|_| get_general_category(c) == GeneralCategory::OtherLetter);
            let Some(code) = code else {
                out.push(c);
                continue;
            };
            for key in code.chars().chain(['.']) {
                out.push_str("[cj_");
                out.push(key);
                out.push(']');
            }
        }
        out
    }
}

/// Words separated by single spaces, white space of the text dropped, event tags such as `[laugh]` kept whole.
pub fn segment(text: &str) -> String {
    static JIEBA: LazyLock<Jieba> = LazyLock::new(Jieba::new);
    let mut words: Vec<&str> = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(length) = is_tag_at(rest) {
            words.push(&rest[..length]);
            rest = &rest[length..];
            continue;
        }
        let opening = rest.chars().next().map_or(0, char::len_utf8);
        let end = rest[opening..].find('[').map_or(rest.len(), |i| i + opening);
        words.extend(JIEBA.cut(&rest[..end], true).iter().map(|token| token.word));
        rest = &rest[end..];
    }
    words.retain(|word| !word.trim().is_empty());
    words.join(" ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn words_come_apart_and_tags_stay_whole() {
        assert_eq!(segment("我来到北京清华大学。"), "我 来到 北京 清华大学 。");
        assert_eq!(segment("你好 [laugh]世界 abc"), "你好 [laugh] 世界 abc");
        assert_eq!(segment("[["), "[ [");
        assert_eq!(segment(""), "");
    }

    #[test]
    fn a_damaged_table_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(CANGJIE_FILE);
        for damaged in ["{}", "[\"你\"]", "[1]", ""] {
            std::fs::write(&path, damaged).unwrap();
            assert!(Cangjie::load(&path).unwrap_err().to_string().contains(CANGJIE_FILE));
        }
    }
}
