//! Readings against a list read by hand, and against the recorded cases of the reference.
#![allow(clippy::unwrap_used)]

use super::*;
use std::path::Path;

fn fixture(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)).unwrap()
}

fn read(text: &str) -> String {
    to_kana(&text.to_lowercase().nfkd().collect::<String>())
}

#[test]
fn sentences_are_read_as_a_person_reads_them() {
    let list = fixture("languages/japanese.tsv");
    let (mut right, mut wrong) = (0, Vec::new());
    for line in list.lines() {
        let (text, expected) = line.split_once('\t').unwrap();
        let got: String = read(text).nfc().collect();
        if got == expected { right += 1 } else { wrong.push((expected, got)) }
    }
    assert!(right + wrong.len() >= 135);
    assert!(right >= 130, "{wrong:#?}");
}

#[test]
fn recorded_cases_agree_but_for_what_the_reference_garbles() {
    // pykakasi repeats Latin letters around an accent, and knows no character that is not Japanese.
    let garbled = ["éa", "ǆ", "İstanbul", "naïve café", "Ünïcödé Ｆｕｌｌ，ｗｉｄｔｈ", "你好。", "你好"];
    let cases: serde_json::Value = serde_json::from_str(&fixture("text/text_cases.json")).unwrap();
    for case in cases["cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let agrees = to_kana(case["mtl_lower_nfkd"].as_str().unwrap()) == case["ja"].as_str().unwrap();
        assert_eq!(agrees, !garbled.contains(&text), "{text}: {}", to_kana(case["mtl_lower_nfkd"].as_str().unwrap()));
    }
}

#[test]
fn text_without_kanji_stays_as_it_is() {
    for text in ["", " ", "hello, [laugh] world 123", "ひらがな と カタカナー", "é \u{308} \u{0} 👨‍👩‍👧 한국", "は。へ！"]
    {
        assert_eq!(read(text), text.nfkd().collect::<String>());
    }
}

#[test]
fn counters_and_dates_are_read_together() {
    for (text, reading) in [
        ("二人", "ふたり"),
        ("十二人", "じゅうににん"),
        ("三本", "さんぼん"),
        ("五月五日", "ごがついつか"),
        ("昔々", "むかしむかし"),
    ] {
        assert_eq!(read(text), reading.nfkd().collect::<String>());
    }
}

#[test]
fn a_long_text_takes_a_moment_and_no_text_panics() {
    let start = std::time::Instant::now();
    let long = "母は毎朝六時に起きて、朝ご飯を作ります。".repeat(200);
    assert!(read(&long).len() > long.len() / 2);
    assert_eq!(read(&"龘".repeat(5000)), "");
    read(&"ー".repeat(2000));
    assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
    let mut state = 1_u32;
    for _ in 0..300 {
        let text: String = (0..40)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let ranges =
                    [(0x4E00, 0x5200), (0x3041, 0x56), (0x30A1, 0x5A), (0x20, 0x60), (0x1_F600, 0x40), (0x3005, 2)];
                let (first, count) = ranges[(state >> 8) as usize % ranges.len()];
                char::from_u32(first + (state >> 12) % count).unwrap_or('x')
            })
            .collect();
        assert!(!read(&text).chars().any(is_kanji), "{text}");
    }
}
