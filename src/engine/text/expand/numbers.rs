//! English names of numbers.

const ONES: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];
const TENS: [&str; 10] = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
const SCALES: [(u64, &str); 5] = [
    (1_000_000_000_000_000, "quadrillion"),
    (1_000_000_000_000, "trillion"),
    (1_000_000_000, "billion"),
    (1_000_000, "million"),
    (1_000, "thousand"),
];
/// Ordinals that are not the cardinal with `th`.
const ODD_ORDINALS: [(&str, &str); 7] = [
    ("one", "first"),
    ("two", "second"),
    ("three", "third"),
    ("five", "fifth"),
    ("eight", "eighth"),
    ("nine", "ninth"),
    ("twelve", "twelfth"),
];

/// `1234` -> `one thousand two hundred thirty four`.
pub(super) fn cardinal(n: u64) -> String {
    for (scale, name) in SCALES {
        if n >= scale {
            return join(&format!("{} {name}", cardinal(n / scale)), n % scale);
        }
    }
    let small = usize::try_from(n).unwrap_or(0);
    match small {
        0..20 => ONES[small].to_owned(),
        20..100 => join(TENS[small / 10], n % 10),
        _ => join(&format!("{} hundred", ONES[small / 100]), n % 100),
    }
}

fn join(head: &str, rest: u64) -> String {
    if rest == 0 { head.to_owned() } else { format!("{head} {}", cardinal(rest)) }
}

/// `21` -> `twenty first`.
pub(super) fn ordinal(n: u64) -> String {
    let name = cardinal(n);
    let (head, last) = name.rsplit_once(' ').map_or(("", name.as_str()), |(head, last)| (head, last));
    let odd = ODD_ORDINALS.iter().find(|(cardinal, _)| *cardinal == last).map(|(_, ordinal)| (*ordinal).to_owned());
    let last = odd.unwrap_or_else(|| match last.strip_suffix('y') {
        Some(stem) => format!("{stem}ieth"),
        None => format!("{last}th"),
    });
    if head.is_empty() { last } else { format!("{head} {last}") }
}

/// A year as it is said: `1984` -> `nineteen eighty four`, `1905` -> `nineteen oh five`, `2005` -> `two thousand five`.
pub(super) fn year(n: u64) -> String {
    match (n / 100, n % 100) {
        (20, 0..10) | (10, _) => cardinal(n),
        (century, 0) => format!("{} hundred", cardinal(century)),
        (century, rest @ 1..10) => format!("{} oh {}", cardinal(century), cardinal(rest)),
        (century, rest) => format!("{} {}", cardinal(century), cardinal(rest)),
    }
}

/// Digit by digit: `007` -> `zero zero seven`; anything else in between is skipped.
pub(super) fn digits(text: &str) -> String {
    let names = text.chars().filter_map(|c| c.to_digit(10)).map(|d| ONES[d as usize]);
    names.collect::<Vec<_>>().join(" ")
}

/// The plural of a spoken number: `nineteen ninety` -> `nineteen nineties`.
pub(super) fn plural(name: &str) -> String {
    match name.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None if name.ends_with('x') => format!("{name}es"),
        None => format!("{name}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cardinals() {
        for (n, name) in [
            (0, "zero"),
            (13, "thirteen"),
            (40, "forty"),
            (99, "ninety nine"),
            (100, "one hundred"),
            (512, "five hundred twelve"),
            (1000, "one thousand"),
            (1_000_001, "one million one"),
            (20_305, "twenty thousand three hundred five"),
        ] {
            assert_eq!(cardinal(n), name);
        }
        assert!(cardinal(u64::MAX).starts_with("eighteen thousand four hundred forty six quadrillion"));
    }

    #[test]
    fn ordinals_years_digits_and_plurals() {
        for (n, name) in
            [(1, "first"), (12, "twelfth"), (20, "twentieth"), (33, "thirty third"), (100, "one hundredth")]
        {
            assert_eq!(ordinal(n), name);
        }
        let years = [
            (1900, "nineteen hundred"),
            (1066, "one thousand sixty six"),
            (2010, "twenty ten"),
            (1804, "eighteen oh four"),
        ];
        for (n, name) in years {
            assert_eq!(year(n), name);
        }
        assert_eq!(year(2000), "two thousand");
        assert_eq!(digits("0-07"), "zero zero seven");
        assert_eq!(
            (plural("eighty").as_str(), plural("six").as_str(), plural("ten").as_str()),
            ("eighties", "sixes", "tens")
        );
    }
}
