//! Splitting: sentences a person would agree with, then properties on any Unicode.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;

/// Pieces with nothing joined, at a limit no example reaches.
fn sentences(text: &str) -> Vec<String> {
    let options = SplitOptions { max_chars: 10_000, min_chars: 0, ..SplitOptions::default() };
    split(text, &options).into_iter().map(|s| s.text).collect()
}

/// `|` marks where the text must come apart, and nowhere else.
fn check(marked: &[&str]) {
    for case in marked {
        let expected: Vec<String> = case.split('|').map(collapse).collect();
        assert_eq!(sentences(&case.replace('|', "")), expected, "{case}");
    }
}

#[test]
fn plain_sentences() {
    check(&[
        "Hello there. |How are you? |Fine! |Good.",
        "One sentence without an end",
        "He left. |she stayed behind. |it was late.",
        "What?! |No way... |Really.",
        "Wait... what did he say?",
        "It was good … and then it was not. |Yes.",
        "In the end... |Nobody knew.",
    ]);
}

#[test]
fn abbreviations_initials_and_acronyms() {
    check(&[
        "Dr. Smith met Mrs. Jones at St. Paul's. |They talked.",
        "The U.S. Army came. |The U.S. |It is large.",
        "Use a tool, e.g. Myna, or i.e. Parrot, etc. |The rest is easy.",
        "J. R. R. Tolkien wrote it. |George W. Bush read it.",
        "Acme Inc. makes it. |Acme Inc. |They sell it.",
        "We met at 5 p.m. on Monday. |We left at 6 a.m. |Then it rained.",
        "See No. 5 and Fig. 3 on p. 12, vol. II. |Is it true? |No. |Never say no. |I mean it.",
        "On Jan. 5 he sat. |On Sat. he sat.",
        "She has a Ph.D. in physics. |He has none.",
        "It costs approx. five pounds vs. six.",
        "Take vitamin C. |The doctor said so.",
        "Am 3. Mai kam der 2. Zug, d.h. nicht der 1. Zug. |Das war 1999. |Dann nichts.",
    ]);
}

#[test]
fn numbers_times_and_addresses() {
    check(&[
        "Pi is 3.14159, not 3.2. |It costs $1,000.50 today.",
        "At 10:30 we ran version 2.0.1. |Then 1.5 hours passed.",
        "It happened in 1999. |Nobody cared.",
        "Visit https://example.com/a.b?c=1!d now. |Or write to me@example.org. |Thanks.",
        "The file main.rs is here. |Open example.com. |Then read.",
    ]);
}

#[test]
fn quotes_and_brackets() {
    check(&[
        "“Come here.” |She came.",
        "\"What?\" he asked. |\"Nothing,\" she said. |\"Go!\"",
        "‘Stop!’ |He ran. |«Halt!» rief er. |„Warum?“ fragte sie.",
        "He left (he was tired. It was late.) and slept. |Good.",
        "He left. |(He was tired.) |He slept.",
        "She said 'no.' |I said yes.",
        "Is it [sic] right? |Yes.",
    ]);
}

#[test]
fn other_scripts() {
    check(&[
        "你好。|今天天气很好！|我们去公园吧？|好的。",
        "他说：“你好。”|然后走了。",
        "圆周率是3.14。|真的吗?|是的",
        "彼は来た。|「もう帰る。」と言った。|そして去った！",
        "「本当？」|はい。",
        "안녕하세요. |반갑습니다! |네.",
        "यह एक वाक्य है। |यह दूसरा है॥ |बस।",
        "هل أنت هنا؟ |نعم، أنا هنا. |شكرا!",
        "Привет, мир. |Как дела? |Живёт на ул. Ленина.",
        "¿Qué tal? |¡Muy bien! |El Sr. Pérez vino.",
    ]);
}

#[test]
fn lines_lists_and_paragraphs() {
    check(&[
        "Title\n\n|The first paragraph\nis wrapped here and goes on\nto its end. |Second.",
        "Roses are red\n|Violets are blue",
        "This is a line that was broken after more than fifty characters by\nSomebody who likes short lines.",
        "Buy:\n|- milk\n|- two eggs\n|* bread",
        "1. First thing\n|2. Second thing\n|10. Last thing. |Done.",
        "a) one\n|b) two",
        "One\r\ntwo\r\n\r\n|Three",
    ]);
    let pieces = split("First one here.\n\nSecond one here. Third one here.", &SplitOptions::default());
    let boundaries: Vec<Boundary> = pieces.iter().map(|p| p.boundary).collect();
    assert_eq!(boundaries, [Boundary::Paragraph, Boundary::Sentence, Boundary::Paragraph]);
    let pauses = Pauses::default();
    assert_eq!(pieces[0].pause_secs, pauses.paragraph_secs);
    assert_eq!(pieces[1].pause_secs, pauses.sentence_secs);
    assert_eq!(pieces[2].pause_secs, 0.0);
}

#[test]
fn short_sentences_join_their_neighbours() {
    let texts = |text: &str| split(text, &SplitOptions::default()).into_iter().map(|s| s.text).collect::<Vec<_>>();
    assert_eq!(
        texts("Yes. No. Maybe it will rain tomorrow. I am not sure about it."),
        ["Yes. No. Maybe it will rain tomorrow.", "I am not sure about it."]
    );
    assert_eq!(texts("It will rain tomorrow. Yes."), ["It will rain tomorrow. Yes."]);
    assert_eq!(texts("Chapter 1\n\nIt was a dark and stormy night."), ["Chapter 1", "It was a dark and stormy night."]);
}

#[test]
fn ornaments_are_not_spoken_but_covered() {
    let text = "  ***\n\nIt was late in the evening.\n\n* * *\n\nShe slept until the morning. 🎉\n";
    let pieces = split(text, &SplitOptions::default());
    let texts: Vec<&str> = pieces.iter().map(|p| p.text.as_str()).collect();
    assert_eq!(texts, ["It was late in the evening.", "She slept until the morning."]);
    assert_eq!(pieces[0].range.start, 0);
    assert_eq!(pieces[1].range.end, text.len());
    assert_eq!(split("...", &SplitOptions::default())[0].text, "...");
}

#[test]
fn a_long_sentence_is_cut_at_clauses_of_about_one_length() {
    let text = "When the rain had stopped, the children ran into the garden, where the old tree stood, \
                and they climbed it, laughing and shouting, until the bell rang for supper and they had to go in.";
    let options = SplitOptions { max_chars: 100, ..SplitOptions::default() };
    let pieces = split(text, &options);
    assert_eq!(pieces.len(), 2, "{pieces:?}");
    assert!(pieces[0].text.ends_with(','));
    assert_eq!(pieces[0].boundary, Boundary::Clause);
    assert_eq!(pieces[0].pause_secs, options.pauses.clause_secs);
    let lengths: Vec<usize> = pieces.iter().map(|p| p.text.len()).collect();
    assert!(lengths.iter().all(|l| (70..=100).contains(l)), "{lengths:?}");
}

#[test]
fn without_clauses_it_is_cut_between_words_and_graphemes() {
    let options = SplitOptions { max_chars: 50, ..SplitOptions::default() };
    let words = split(&"word ".repeat(40), &options);
    assert!(words.iter().all(|p| p.text.split(' ').all(|w| w == "word") && p.boundary >= Boundary::Word));
    let family = "👨‍👩‍👧‍👦";
    let text = format!("a{}", family.repeat(30));
    for piece in split(&text, &options) {
        assert_eq!(piece.text.trim_start_matches('a').replace(family, ""), "", "{}", piece.text);
    }
    let han = split(&"山".repeat(100), &options);
    assert!(han.iter().all(|p| p.text.chars().count() <= 50 / 3));
}

#[test]
fn tags_stay_whole() {
    let text = format!("{}[clear throat] and so on.", "x".repeat(45));
    for max_chars in 40..70 {
        let pieces = split(&text, &SplitOptions { max_chars, ..SplitOptions::default() });
        assert!(pieces.iter().any(|p| p.text.contains("[clear throat]")), "{max_chars} {pieces:?}");
    }
    check(&["[laugh] That is funny! |[sigh] Well."]);
}

#[test]
fn the_first_piece_may_be_shorter() {
    let text = "Good morning everybody, and welcome to the long awaited opening of our museum. Come in.";
    let options = SplitOptions { first_max_chars: Some(40), ..SplitOptions::default() };
    let pieces = split(text, &options);
    assert_eq!(pieces[0].text, "Good morning everybody,");
    assert_eq!(pieces.len(), 2);
    let no_clause = split("Good morning everybody and welcome to the long awaited opening.", &options);
    assert_eq!(no_clause.len(), 1);
}

#[test]
fn nothing_gives_no_pieces() {
    for text in ["", " ", "\n\n\t\u{3000}\u{2029}"] {
        assert!(split(text, &SplitOptions::default()).is_empty());
    }
}

/// A small seeded generator: xorshift64*.
struct Seeded(u64);

impl Seeded {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        usize::try_from(self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33).unwrap() % n
    }

    fn text(&mut self) -> String {
        const PARTS: &[&str] = &[
            " ",
            " ",
            " ",
            "\n",
            "\n\n",
            "\r\n",
            ".",
            ". ",
            "...",
            "? ",
            "! ",
            ", ",
            "。",
            "、",
            "「",
            "」",
            "(",
            ")",
            "[",
            "]",
            "[laugh]",
            "[clear throat]",
            "\"",
            "”",
            "“",
            "Dr.",
            "U.S.",
            "e.g.",
            "3.14",
            "1. ",
            "- ",
            "—",
            " – ",
            "word",
            "Word",
            "I",
            "a",
            "本",
            "か",
            "ガ",
            "한",
            "e\u{301}",
            "\u{308}",
            "\u{200d}",
            "👨‍👩‍👧",
            "🇩🇪",
            "ह",
            "ि",
            "।",
            "؟",
            "،",
            "\u{2029}",
            "\u{0}",
            "https://a.b/c?d=e",
            "ß",
            "İ",
        ];
        (0..self.below(160))
            .map(|_| match self.below(12) {
                0 => char::from_u32(u32::try_from(self.below(0x11_0000)).unwrap()).unwrap_or('\u{fffd}').to_string(),
                _ => PARTS[self.below(PARTS.len())].to_owned(),
            })
            .collect()
    }
}

#[test]
fn any_text_is_covered_within_the_limit_and_cut_at_graphemes() {
    let mut seeded = Seeded(0x5EED);
    for round in 0..4000 {
        let text = seeded.text();
        let options = SplitOptions {
            max_chars: 40 + seeded.below(120),
            first_max_chars: (seeded.below(2) == 0).then_some(30),
            min_chars: seeded.below(20),
            ..SplitOptions::default()
        };
        let pieces = split(&text, &options);
        assert_eq!(pieces.is_empty(), text.trim().is_empty(), "round {round}: {text:?}");
        let mut end = 0;
        for piece in &pieces {
            assert_eq!(piece.range.start, end, "round {round}: {text:?}");
            end = piece.range.end;
            assert!(
                !piece.text.is_empty() && piece.text.chars().count() <= options.max_chars,
                "round {round}: {piece:?}"
            );
            assert!(collapse(&text[piece.range.clone()]).contains(&piece.text), "round {round}: {text:?} {piece:?}");
        }
        assert!(pieces.is_empty() || end == text.len(), "round {round}: {text:?}");
        assert_eq!(whole_graphemes(&text, &pieces), None, "round {round}: {text:?}");
        assert_eq!(split(&text, &options), pieces);
    }
}

/// The first cut inside a grapheme that would have fitted a piece.
fn whole_graphemes(text: &str, pieces: &[Sentence]) -> Option<usize> {
    let cuts: Vec<usize> = pieces.iter().map(|p| p.range.end).collect();
    let inside = |(at, grapheme): (usize, &str)| {
        let fits = grapheme.chars().count() <= SplitOptions::LEAST_MAX_CHARS;
        cuts.iter().copied().find(|&cut| fits && cut > at && cut < at + grapheme.len())
    };
    text.grapheme_indices(true).find_map(inside)
}

#[test]
fn spoken_letters_are_all_there() {
    let mut seeded = Seeded(7);
    let letters = |text: &str| text.chars().filter(|c| c.is_alphanumeric()).collect::<String>();
    for _ in 0..500 {
        let text = seeded.text();
        let spoken: String = split(&text, &SplitOptions::default()).into_iter().map(|s| s.text).collect();
        assert_eq!(letters(&spoken), letters(&text));
    }
}

#[test]
fn twenty_thousand_characters_take_a_moment() {
    let paragraph = "Dr. Smith said, “It is 3.5 miles to the U.S. border.” Then he left (it was late). 你好。\n\n";
    let text = paragraph.repeat(20_000 / paragraph.chars().count() + 1);
    let once = |text: &str| {
        let start = std::time::Instant::now();
        assert!(split(text, &SplitOptions::default()).len() > 100);
        start.elapsed()
    };
    let best = (0..5).map(|_| once(&text)).min().unwrap();
    let hostile = [
        "[".repeat(20_000),
        "a".repeat(20_000),
        ".".repeat(20_000),
        "(a".repeat(10_000),
        "a, ".repeat(7000),
        "'. ".repeat(7000),
    ];
    for text in hostile {
        let start = std::time::Instant::now();
        split(&text, &SplitOptions::default());
        assert!(start.elapsed().as_millis() < 500, "{:?} for {}", start.elapsed(), &text[..4]);
    }
    assert!(best.as_millis() < 50, "{best:?}");
}
