//! The vocabularies: English, multilingual, GPT-2 (Turbo, Nano), read from a model folder by the `tokenizers` crate.
//!
//! [`TextTokenizer::encode`] runs the whole way from a sentence as it was typed to the ids between T3's start and stop
//! tokens, in the reference's order; [`TextTokenizer::encode_normalized`] is its second half. The embedded model's
//! character vocabulary is an English `tokenizer.json` like any other.
//! Source: `models/tokenizers/tokenizer.py` and `tts_turbo.py` of the reference.

use super::expand::expand_english;
use super::languages::{Diacritizer, Language, ja, ko, zh};
use super::normalize::{PunctuationStyle, normalize_punctuation};
use crate::error::{Error, Result};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokenizers::Tokenizer;
use unicode_normalization::UnicodeNormalization;

const ENGLISH_FILE: &str = "tokenizer.json";
const MULTILINGUAL_FILE: &str = "grapheme_mtl_merged_expanded_v1.json";
/// Tokens of the vocabulary format itself, which nobody wants to type.
const CONTROL_TOKENS: [&str; 8] = ["[START]", "[STOP]", "[UNK]", "[SPACE]", "[PAD]", "[SEP]", "[CLS]", "[MASK]"];
/// Longest event tag that is recognised as such, in bytes with its brackets.
const MAX_TAG_BYTES: usize = 32;

/// Which family of vocabularies a model folder holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenizerKind {
    /// `tokenizer.json` with `[SPACE]` for spaces: the English and the embedded model.
    English,
    /// `grapheme_mtl_merged_expanded_v1.json` and, for Chinese, `Cangjie5_TC.json`.
    Multilingual,
    /// Byte-level GPT-2 files or their `tokenizer.json`: Turbo and Nano.
    Gpt2,
}

impl TokenizerKind {
    /// The punctuation normaliser that belongs to this vocabulary.
    pub fn punctuation(self) -> PunctuationStyle {
        match self {
            Self::English => PunctuationStyle::English,
            Self::Multilingual => PunctuationStyle::Multilingual,
            Self::Gpt2 => PunctuationStyle::Turbo,
        }
    }
}

/// A model's vocabulary with everything that stands between typed text and its ids.
#[derive(Debug)]
pub struct TextTokenizer {
    kind: TokenizerKind,
    path: PathBuf,
    vocabulary: Tokenizer,
    cangjie: Option<zh::Cangjie>,
    diacritizers: BTreeMap<Language, Arc<dyn Diacritizer>>,
    max_tokens: Option<usize>,
    expands: bool,
}

impl TextTokenizer {
    /// Reads the vocabulary of `kind` from the model folder `dir`.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Model`] naming the file that is missing or is not what it should be.
    pub fn load(dir: &Path, kind: TokenizerKind) -> Result<Self> {
        let path = match kind {
            TokenizerKind::English => dir.join(ENGLISH_FILE),
            TokenizerKind::Multilingual => dir.join(MULTILINGUAL_FILE),
            TokenizerKind::Gpt2 => gpt2_file(dir),
        };
        let vocabulary = if path.ends_with("vocab.json") { load_gpt2(dir)? } else { load_json(&path)? };
        if kind != TokenizerKind::Gpt2 {
            for required in ["[START]", "[STOP]"] {
                if vocabulary.token_to_id(required).is_none() {
                    let reason = format!("has no {required} token, so it is not a Chatterbox vocabulary");
                    return Err(Error::model(&path, reason));
                }
            }
        }
        let table = dir.join(zh::CANGJIE_FILE);
        let wants_table = kind == TokenizerKind::Multilingual && table.exists();
        Ok(Self {
            kind,
            expands: kind == TokenizerKind::English && wants_expansion(dir, &vocabulary)?,
            vocabulary,
            cangjie: if wants_table { Some(zh::Cangjie::load(&table)?) } else { None },
            diacritizers: BTreeMap::new(),
            max_tokens: if kind == TokenizerKind::Gpt2 { model_max_length(dir)? } else { None },
            path,
        })
    }

    /// A vocabulary from the text of a `tokenizer.json`; `path` only names it in messages. With `expands`, English
    /// numbers and abbreviations are written out in words first.
    ///
    /// # Errors
    /// [`Error::Model`] if it is not what it should be.
    pub fn from_json(path: &Path, json: &[u8], kind: TokenizerKind, expands: bool) -> Result<Self> {
        let vocabulary =
            Tokenizer::from_bytes(json).map_err(|e| Error::model(path, format!("not a tokenizer: {e}")))?;
        let path = path.to_owned();
        Ok(Self { kind, path, vocabulary, expands, cangjie: None, diacritizers: BTreeMap::new(), max_tokens: None })
    }

    /// Lets `diacritizer` mark the texts of `language` (Hebrew vowel points, Russian stress) before they are tokenised.
    #[must_use]
    pub fn with_diacritizer(mut self, language: Language, diacritizer: Arc<dyn Diacritizer>) -> Self {
        self.diacritizers.insert(language, diacritizer);
        self
    }

    /// Which family this vocabulary belongs to.
    pub fn kind(&self) -> TokenizerKind {
        self.kind
    }

    /// One past the highest id, the least number of rows the text embedding must have.
    pub fn id_limit(&self) -> u32 {
        self.vocabulary.get_vocab(true).values().max().map_or(0, |id| id + 1)
    }

    /// The ids of a text as it was typed, without the start and stop ids that T3 adds.
    ///
    /// `language` matters to the multilingual kind only; `None` there leaves out the language token.
    ///
    /// # Errors
    /// [`Error::Input`] if there is nothing to say, the text is longer than the vocabulary's limit, or the model does not
    /// speak the language.
    pub fn encode(&self, text: &str, language: Option<Language>) -> Result<Vec<u32>> {
        if text.trim().is_empty() {
            return Err(Error::input("there is no text to speak; type at least one word"));
        }
        let text = if self.expands { self.expanded(text)?.into() } else { Cow::Borrowed(text) };
        self.encode_normalized(&normalize_punctuation(&text, self.kind.punctuation()), language)
    }

    /// The ids of a text whose punctuation is already normalised; otherwise as [`Self::encode`].
    ///
    /// # Errors
    /// As [`Self::encode`], but empty text has no ids and is no error.
    pub fn encode_normalized(&self, text: &str, language: Option<Language>) -> Result<Vec<u32>> {
        let prepared: Cow<'_, str> = match self.kind {
            TokenizerKind::Multilingual => self.prepare(text, language)?.replace(' ', "[SPACE]").into(),
            TokenizerKind::English | TokenizerKind::Gpt2 if language.is_some_and(|l| l != Language::English) => {
                let name = language.map_or("", Language::english_name);
                return Err(Error::input(format!(
                    "this model speaks English only, not {name}; choose a multilingual model"
                )));
            }
            TokenizerKind::English => text.replace(' ', "[SPACE]").into(),
            TokenizerKind::Gpt2 => text.into(),
        };
        let encoding = self.vocabulary.encode_fast(prepared.as_ref(), true);
        let ids =
            encoding.map_err(|e| Error::model(&self.path, format!("cannot encode this text: {e}")))?.get_ids().to_vec();
        match self.max_tokens {
            Some(limit) if ids.len() > limit => {
                let n = ids.len();
                Err(Error::input(format!("this piece of text is {n} tokens long, the model takes {limit}; split it")))
            }
            _ => Ok(ids),
        }
    }

    /// The text in plain English words, for a vocabulary that knows nothing else.
    fn expanded(&self, text: &str) -> Result<String> {
        let expanded = expand_english(text);
        let is_said = |text: &str| text.chars().any(char::is_alphanumeric);
        if is_said(text) && !is_said(&expanded) {
            let start: String = text.trim().chars().take(20).collect();
            return Err(Error::input(format!("this model speaks English only and cannot say \"{start}\"")));
        }
        Ok(expanded)
    }

    /// The text the multilingual vocabulary sees, before spaces become `[SPACE]`.
    fn prepare(&self, text: &str, language: Option<Language>) -> Result<String> {
        let folded: String = text.to_lowercase().nfkd().collect();
        let Some(language) = language else {
            return Ok(folded);
        };
        let converted = match language {
            Language::Chinese => self.cangjie()?.encode(&zh::segment(&folded)),
            Language::Japanese => ja::to_kana(&folded),
            Language::Korean => ko::to_jamo(&folded),
            _ => match self.diacritizers.get(&language) {
                Some(diacritizer) => diacritizer.add_marks(&folded),
                None => folded,
            },
        };
        Ok(format!("[{}]{converted}", language.code()))
    }

    fn cangjie(&self) -> Result<&zh::Cangjie> {
        let file = zh::CANGJIE_FILE;
        self.cangjie.as_ref().ok_or_else(|| {
            Error::model(self.path.with_file_name(file), "is missing; Chinese needs it: fetch it into the model folder")
        })
    }

    /// Event tags such as `[laugh]` that can be typed and have an id of their own, in the order of the ids.
    pub fn tags(&self) -> Vec<String> {
        let mut tags: Vec<(u32, String)> = self
            .vocabulary
            .get_added_tokens_decoder()
            .into_iter()
            .map(|(id, token)| (id, token.content))
            .filter(|(_, tag)| is_tag_at(tag) == Some(tag.len()) && self.is_event(tag))
            .collect();
        tags.sort();
        tags.into_iter().map(|(_, tag)| tag).collect()
    }

    /// Whether a bracketed token is an event rather than a control, language or Cangjie token. The multilingual
    /// vocabulary is lower-cased first, so a tag with a capital in it can never be reached there.
    fn is_event(&self, tag: &str) -> bool {
        let name = &tag[1..tag.len() - 1];
        let is_language = Language::all().any(|language| language.code() == name);
        let reachable = self.kind != TokenizerKind::Multilingual || tag.to_lowercase() == tag;
        !CONTROL_TOKENS.contains(&tag) && !is_language && reachable
    }
}

/// Length in bytes of the event tag `text` starts with: letters and inner spaces in square brackets.
pub(crate) fn is_tag_at(text: &str) -> Option<usize> {
    let inner = text.strip_prefix('[')?;
    let end = inner.bytes().take(MAX_TAG_BYTES).position(|b| !(b.is_ascii_alphabetic() || b == b' '))?;
    let named = inner.starts_with(|c: char| c.is_ascii_alphabetic());
    (named && end > 1 && inner.as_bytes()[end] == b']' && inner.as_bytes()[end - 1] != b' ').then_some(end + 2)
}

fn load_json(path: &Path) -> Result<Tokenizer> {
    let bytes = std::fs::read(path).map_err(|e| Error::io(path, e))?;
    Tokenizer::from_bytes(bytes)
        .map_err(|e| Error::model(path, format!("is not a tokenizer file ({e}); fetch it again")))
}

/// The file that defines a GPT-2 vocabulary in `dir`: the original pair if it is there, else the combined form.
fn gpt2_file(dir: &Path) -> PathBuf {
    let pair = dir.join("vocab.json");
    let combined = dir.join(ENGLISH_FILE);
    if pair.exists() || !combined.exists() { pair } else { combined }
}

fn read_json(path: &Path) -> Result<Value> {
    let bytes = std::fs::read(path).map_err(|e| Error::io(path, e))?;
    serde_json::from_slice(&bytes).map_err(|e| Error::model(path, format!("is not valid JSON ({e}); fetch it again")))
}

fn read_json_if_present(path: &Path) -> Result<Value> {
    if path.exists() { read_json(path) } else { Ok(Value::Null) }
}

/// Puts `vocab.json`, `merges.txt` and the added tokens together as one byte-level tokenizer.
fn load_gpt2(dir: &Path) -> Result<Tokenizer> {
    let vocab_path = dir.join("vocab.json");
    let merges_path = dir.join("merges.txt");
    let vocab = read_json(&vocab_path)?;
    let merges = std::fs::read_to_string(&merges_path).map_err(|e| Error::io(&merges_path, e))?;
    let merges: Vec<&str> = merges.lines().filter(|line| !line.is_empty() && !line.starts_with("#version")).collect();
    let added = added_tokens(dir)?;
    let whole = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "decoder": null,
        "post_processor": null,
        "added_tokens": added,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "vocab": vocab, "merges": merges,
        },
    });
    let bytes = serde_json::to_vec(&whole).map_err(|e| Error::internal(e.to_string()))?;
    let tokenizer = Tokenizer::from_bytes(bytes).map_err(|e| {
        Error::model(&vocab_path, format!("and merges.txt do not fit together ({e}); fetch both again"))
    })?;
    for token in &added {
        let (content, id) = (token["content"].as_str().unwrap_or_default(), token["id"].as_u64());
        if tokenizer.token_to_id(content).map(u64::from) != id {
            let reason =
                format!("added token {content} should have id {id:?}; the files are of different vocabularies");
            return Err(Error::model(dir.join("added_tokens.json"), reason));
        }
    }
    Ok(tokenizer)
}

/// The added tokens of a GPT-2 folder by id: `added_tokens.json`, overruled by `tokenizer_config.json`, which also says
/// how each one matches.
fn added_tokens(dir: &Path) -> Result<Vec<Value>> {
    let mut by_id: BTreeMap<u64, Value> = BTreeMap::new();
    let list = read_json_if_present(&dir.join("added_tokens.json"))?;
    for (content, id) in list.as_object().into_iter().flatten() {
        if let Some(id) = id.as_u64() {
            by_id.insert(id, json!({ "content": content }));
        }
    }
    let config = read_json_if_present(&dir.join("tokenizer_config.json"))?;
    for (id, token) in config["added_tokens_decoder"].as_object().into_iter().flatten() {
        if let (Ok(id), Some(_)) = (id.parse(), token["content"].as_str()) {
            by_id.insert(id, token.clone());
        }
    }
    let flag = |token: &Value, name: &str| token[name].as_bool().unwrap_or(false);
    let tokens = by_id.iter().map(|(id, token)| {
        json!({
            "id": id, "content": token["content"], "single_word": flag(token, "single_word"),
            "lstrip": flag(token, "lstrip"), "rstrip": flag(token, "rstrip"), "normalized": flag(token, "normalized"),
            "special": flag(token, "special"),
        })
    });
    Ok(tokens.collect())
}

/// Whether the model folder asks for numbers in words, or its vocabulary leaves no choice.
fn wants_expansion(dir: &Path, vocabulary: &Tokenizer) -> Result<bool> {
    let config = read_json_if_present(&dir.join("config.json"))?;
    let lacks_digits = ('0'..='9').any(|digit| vocabulary.token_to_id(digit.encode_utf8(&mut [0; 4])).is_none());
    Ok(config["expand_text"].as_bool().unwrap_or(lacks_digits))
}

/// Longest text a GPT-2 folder allows, in tokens; absent or absurdly large means no limit.
fn model_max_length(dir: &Path) -> Result<Option<usize>> {
    let config = read_json_if_present(&dir.join("tokenizer_config.json"))?;
    Ok(config["model_max_length"].as_u64().and_then(|n| usize::try_from(n).ok()).filter(|&n| n < 1 << 30))
}

#[cfg(test)]
#[path = "tokenizer_tests.rs"]
mod tests;
