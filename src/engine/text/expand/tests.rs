//! What is said for what is written.

use super::*;

fn check(cases: &[(&str, &str)]) {
    for (written, said) in cases {
        assert_eq!(expand_english(written), *said, "{written}");
    }
}

#[test]
fn plain_text_stays() {
    for text in [
        "Hello, world!",
        "It's John's \"idea\" (really).",
        "Well... yes - no; maybe: so?",
        "A well-known fact.",
        "[laugh] I see.",
    ] {
        assert_eq!(expand_english(text), text);
    }
}

#[test]
fn numbers_and_ordinals() {
    check(&[
        ("I have 2 cats, 17 dogs.", "I have two cats, seventeen dogs."),
        ("1,234,567 stars", "one million two hundred thirty four thousand five hundred sixty seven stars"),
        ("Pi is 3.14, e is 2.718.", "Pi is three point one four, e is two point seven one eight."),
        ("It was -5 or .5", "It was minus five or point five"),
        ("the 1st, 2nd, 3rd and 21st", "the first, second, third and twenty first"),
        ("agent 007", "agent zero zero seven"),
        ("5-10 people, 3/4 of it, 1/2, 2/3", "five to ten people, three quarters of it, one half, two thirds"),
        ("#5 and No. 7.", "number five and number seven."),
        ("No. I said no.", "No. I said no."),
        ("(42)", "(forty two)"),
        ("call 555-1234", "call five five five, one two three four"),
        ("1,2,3", "one two three"),
    ]);
}

#[test]
fn years_and_decades() {
    check(&[
        ("In 1984, 1905 and 2005.", "In nineteen eighty four, nineteen oh five and two thousand five."),
        ("the 1990s, the '80s and 2024", "the nineteen nineties, the 'eighties and twenty twenty four"),
        ("from 1914-1918", "from nineteen fourteen to nineteen eighteen"),
        ("1,984 men", "one thousand nine hundred eighty four men"),
        ("On Jan. 5 we left.", "On January five we left."),
    ]);
}

#[test]
fn money() {
    check(&[
        ("$1, $5 and $3.50.", "one dollar, five dollars and three dollars and fifty cents."),
        ("£1.01 or £0.99", "one pound and one penny or ninety nine pence"),
        ("$5 million, €1.2 billion!", "five million dollars, one point two billion euros!"),
        ("$10k for 20€", "ten thousand dollars for twenty euros"),
        ("$1,000.00", "one thousand dollars"),
        ("¥500", "five hundred yen"),
    ]);
}

#[test]
fn times_units_and_percentages() {
    check(&[
        ("At 10:30, 10:05 and 12:00.", "At ten thirty, ten oh five and twelve o'clock."),
        ("3pm, 3:15 p.m. and 7 AM", "three p m, three fifteen p m and seven a m"),
        ("We left at 6 p.m.", "We left at six p m."),
        ("50% of 1kg is 500g", "fifty percent of one kilogram is five hundred grams"),
        ("20°C, 60mph", "twenty degrees Celsius, sixty miles per hour"),
        ("a 4K screen", "a four K screen"),
    ]);
}

#[test]
fn abbreviations_and_capitals() {
    check(&[
        ("Dr. Smith vs. Mr. Jones, etc.", "doctor Smith versus mister Jones, et cetera."),
        ("St. Paul lives in Main St. today", "saint Paul lives in Main street today"),
        ("The U.S. and the USA, NATO, FBI", "The U S and the U S A, NATO, F B I"),
        ("two PCs", "two P Cs"),
        ("use e.g. this, i.e. that", "use for example this, that is that"),
    ]);
}

#[test]
fn signs_addresses_and_foreign_letters() {
    check(&[
        ("you & me @ home + 1 = fun", "you and me at home plus one equals fun"),
        ("AT&T and/or B2B, he/she", "AT and T and or B two B, he or she"),
        ("see https://example.com/a-b or me@mail.org.", "see example dot com slash a dash b or me at mail dot org."),
        ("café naïve Straße Łódź “quoted” it’s", "cafe naive Strasse Lodz \"quoted\" it's"),
        ("done 🎉 日本", "done"),
        ("*bold* _it_", "bold it"),
    ]);
}

#[test]
fn no_digit_and_no_foreign_letter_survives_and_nothing_panics() {
    let alphabet: Vec<char> = "0123456789.,:-/$€%°#&@+='\"()[]sthndkmMap KéßĐ日\u{301}🎉 \n½".chars().collect();
    let mut state = 12_345_u32;
    for _ in 0..20_000 {
        let text: String = (0..14)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                alphabet[(state >> 10) as usize % alphabet.len()]
            })
            .collect();
        let said = expand_english(&text);
        assert!(!said.chars().any(|c| c.is_ascii_digit() || !c.is_ascii()), "{text:?} {said:?}");
    }
}
