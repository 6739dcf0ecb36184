//! The tokenizers against what the reference made of the same texts (`tests/fixtures/text`).
#![allow(clippy::unwrap_used)]

use super::*;
use crate::text::normalize::normalize_punctuation;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/text")
}

fn cases() -> Value {
    read_json(&fixtures().join("text_cases.json")).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

fn load(kind: TokenizerKind) -> TextTokenizer {
    let folder = match kind {
        TokenizerKind::English => "english",
        TokenizerKind::Multilingual => "multilingual",
        TokenizerKind::Gpt2 => "gpt2",
    };
    TextTokenizer::load(&fixtures().join(folder), kind).unwrap()
}

#[test]
fn punctuation_and_ids_are_the_references() {
    let english = load(TokenizerKind::English);
    let turbo = load(TokenizerKind::Gpt2);
    let multilingual = load(TokenizerKind::Multilingual);
    let cases = cases();
    let cases = cases["cases"].as_array().unwrap();
    assert!(cases.len() >= 40);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        for (tokenizer, field) in [(&english, "english"), (&turbo, "turbo"), (&multilingual, "multilingual")] {
            let normalized = normalize_punctuation(text, tokenizer.kind().punctuation());
            assert_eq!(normalized, case[field].as_str().unwrap(), "{field} {text:?}");
            let field = format!("{field}_ids");
            let expected =
                if tokenizer.kind() == TokenizerKind::Multilingual { &case[&field]["none"] } else { &case[&field] };
            assert_eq!(tokenizer.encode_normalized(&normalized, None).unwrap(), ids(expected), "{field} {text:?}");
        }
    }
}

#[test]
fn language_steps_are_the_references() {
    let tokenizer = load(TokenizerKind::Multilingual);
    let cases = cases();
    for case in cases["cases"].as_array().unwrap() {
        let normalized = case["multilingual"].as_str().unwrap();
        let folded = tokenizer.prepare(normalized, None).unwrap();
        assert_eq!(folded, case["mtl_lower_nfkd"].as_str().unwrap());
        assert_eq!(ko::to_jamo(&folded), case["ko"].as_str().unwrap());
        assert_eq!(tokenizer.cangjie().unwrap().encode(&folded), case["zh_unsegmented"].as_str().unwrap());
        for code in ["en", "fr", "ko"] {
            let expected = ids(&case["multilingual_ids"][code]);
            assert_eq!(
                tokenizer.encode_normalized(normalized, Some(code.parse().unwrap())).unwrap(),
                expected,
                "{code} {normalized:?}"
            );
        }
    }
}

#[test]
fn special_tokens_and_spaces_are_the_references() {
    let cases = cases();
    for (kind, field) in [(TokenizerKind::English, "english"), (TokenizerKind::Gpt2, "turbo")] {
        let tokenizer = load(kind);
        for case in cases["tokenizer_only"][field].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            assert_eq!(tokenizer.encode_normalized(text, None).unwrap(), ids(&case["ids"]), "{field} {text:?}");
        }
    }
}

#[test]
fn chinese_is_segmented_then_coded() {
    let tokenizer = load(TokenizerKind::Multilingual);
    let id = |token: &str| tokenizer.vocabulary.token_to_id(token).unwrap();
    let prepared = tokenizer.prepare("中國人，你好", Some(Language::Chinese)).unwrap();
    assert_eq!(
        prepared,
        "[zh][cj_l][cj_.][cj_w][cj_i][cj_r][cj_m][cj_.][cj_o][cj_.] , [cj_o][cj_n][cj_f][cj_.][cj_v][cj_n][cj_d][cj_.]"
    );
    let encoded = tokenizer.encode("你好", Some(Language::Chinese)).unwrap();
    assert_eq!(encoded[..2], [id("[zh]"), id("[cj_o]")]);
}

#[test]
fn tags_are_the_typeable_events() {
    assert_eq!(load(TokenizerKind::English).tags(), ["[UH]", "[giggle]"]);
    assert_eq!(load(TokenizerKind::Multilingual).tags(), Vec::<String>::new());
    let turbo = load(TokenizerKind::Gpt2).tags();
    assert_eq!(turbo.len(), 19);
    assert_eq!((turbo[0].as_str(), turbo[10].as_str(), turbo[18].as_str()), ("[angry]", "[clear throat]", "[laugh]"));
}

#[test]
fn a_tag_is_letters_in_brackets() {
    assert_eq!(is_tag_at("[laugh] x"), Some(7));
    assert_eq!(is_tag_at("[clear throat]"), Some(14));
    for other in [
        "",
        "[",
        "[]",
        "[ a]",
        "[a ]",
        "[1]",
        "laugh]",
        "[lau",
        "[日]",
        "[a",
        "[abcdefghijklmnopqrstuvwxyzabcdefghijklmno]",
    ] {
        assert_eq!(is_tag_at(other), None, "{other}");
    }
}

#[test]
fn nothing_to_say_and_foreign_languages_are_refused() {
    let english = load(TokenizerKind::English);
    for nothing in ["", " ", "\n\t\u{3000}"] {
        assert!(matches!(english.encode(nothing, None), Err(Error::Input(_))));
    }
    let message = english.encode("Bonjour", Some(Language::French)).unwrap_err().to_string();
    assert!(message.contains("French") && message.contains("multilingual"), "{message}");
    assert!(english.encode("Hello", Some(Language::English)).is_ok());
}

#[test]
fn a_piece_beyond_the_models_limit_is_refused_not_cut() {
    let turbo = load(TokenizerKind::Gpt2);
    assert!(turbo.encode(&"x ".repeat(2000), None).unwrap_err().to_string().contains("1024"));
}

#[test]
fn chinese_without_its_table_says_what_to_fetch() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(fixtures().join("multilingual").join(MULTILINGUAL_FILE), dir.path().join(MULTILINGUAL_FILE)).unwrap();
    let tokenizer = TextTokenizer::load(dir.path(), TokenizerKind::Multilingual).unwrap();
    assert!(tokenizer.encode("Bonjour", Some(Language::French)).is_ok());
    assert!(tokenizer.encode("你好", Some(Language::Chinese)).unwrap_err().to_string().contains(zh::CANGJIE_FILE));
}

#[test]
fn missing_and_damaged_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let kinds = [
        (TokenizerKind::English, ENGLISH_FILE),
        (TokenizerKind::Multilingual, MULTILINGUAL_FILE),
        (TokenizerKind::Gpt2, "vocab.json"),
    ];
    for (kind, file) in kinds {
        assert!(TextTokenizer::load(dir.path(), kind).unwrap_err().to_string().contains(file));
    }
    for (kind, file) in kinds {
        std::fs::write(dir.path().join(file), "{\"a\": 0}").unwrap();
        std::fs::write(dir.path().join("merges.txt"), "#version: 0.2\nq q\n").unwrap();
        assert!(TextTokenizer::load(dir.path(), kind).unwrap_err().to_string().contains(file), "{file}");
    }
}

#[test]
fn gpt2_reads_the_combined_file_where_that_is_what_there_is() {
    let pair = load(TokenizerKind::Gpt2);
    let dir = tempfile::tempdir().unwrap();
    pair.vocabulary.save(dir.path().join(ENGLISH_FILE), false).unwrap();
    let combined = TextTokenizer::load(dir.path(), TokenizerKind::Gpt2).unwrap();
    let text = "Hello [laugh] the naïve world";
    assert_eq!(combined.encode(text, None).unwrap(), pair.encode(text, None).unwrap());
    assert_eq!(combined.tags(), pair.tags());
}

#[test]
fn a_diacritizer_is_used_where_one_is_given() {
    #[derive(Debug)]
    struct Stress;
    impl Diacritizer for Stress {
        fn add_marks(&self, text: &str) -> String {
            text.replace('о', "о\u{301}")
        }
    }
    let plain = load(TokenizerKind::Multilingual);
    assert_eq!(plain.prepare("Кот", Some(Language::Russian)).unwrap(), "[ru]кот");
    let marked = load(TokenizerKind::Multilingual).with_diacritizer(Language::Russian, Arc::new(Stress));
    assert_eq!(marked.prepare("Кот", Some(Language::Russian)).unwrap(), "[ru]ко\u{301}т");
    assert_eq!(marked.prepare("кот", Some(Language::Hebrew)).unwrap(), "[he]кот");
}

#[test]
fn every_language_has_its_token_in_front() {
    let tokenizer = load(TokenizerKind::Multilingual);
    for language in Language::all() {
        let first = tokenizer.encode("a", Some(language)).unwrap()[0];
        assert_eq!(tokenizer.vocabulary.id_to_token(first).unwrap(), format!("[{language}]"));
    }
}

#[test]
fn numbers_become_words_where_the_folder_asks_for_it_or_digits_are_missing() {
    let plain = load(TokenizerKind::English);
    let words = plain.encode("I have two cats, one dog", None).unwrap();
    assert_ne!(plain.encode("I have 2 cats, 1 dog", None).unwrap(), words);

    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(fixtures().join("english").join(ENGLISH_FILE), dir.path().join(ENGLISH_FILE)).unwrap();
    std::fs::write(dir.path().join("config.json"), "{\"expand_text\": true}").unwrap();
    let asked = TextTokenizer::load(dir.path(), TokenizerKind::English).unwrap();
    assert_eq!(asked.encode("I have 2 cats, 1 dog", None).unwrap(), words);
    let message = asked.encode("日本語", None).unwrap_err().to_string();
    assert!(message.contains("日本語") && message.contains("English"), "{message}");

    let mut vocabulary = read_json(&dir.path().join(ENGLISH_FILE)).unwrap();
    vocabulary["model"]["vocab"].as_object_mut().unwrap().remove("7");
    std::fs::write(dir.path().join(ENGLISH_FILE), vocabulary.to_string()).unwrap();
    std::fs::remove_file(dir.path().join("config.json")).unwrap();
    let without = TextTokenizer::load(dir.path(), TokenizerKind::English).unwrap();
    assert_eq!(without.encode("I have 2 cats, 1 dog", None).unwrap(), words);
}

#[test]
fn the_embedded_model_speaks_words_and_knows_every_letter() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/embedded");
    let tokenizer = TextTokenizer::load(&dir, TokenizerKind::English).unwrap();
    let unknown = tokenizer.vocabulary.token_to_id("[UNK]").unwrap();
    let text =
        "On 5 May 2024, at 10:30 a.m., Dr. Müller paid $3.50 (50%) for a “café crème” — why? It's naïve; isn't it!";
    let ids = tokenizer.encode(text, None).unwrap();
    assert!(!ids.contains(&unknown), "{:?}", tokenizer.vocabulary.decode(&ids, false));
    let digits: Vec<u32> = ('0'..='9').filter_map(|d| tokenizer.vocabulary.token_to_id(&d.to_string())).collect();
    assert!(!ids.iter().any(|id| digits.contains(id)));
    assert_eq!(tokenizer.tags(), Vec::<String>::new());
}
