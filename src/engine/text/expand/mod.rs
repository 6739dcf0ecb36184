//! English numbers, amounts, times, abbreviations and signs written out as words.
//!
//! The Chatterbox models read `$3.50` by themselves and their reference expands nothing. A small character model, such as
//! the embedded one, has only seen plain words and few digits; for it this runs before everything else. A model
//! folder asks for it with `"expand_text": true` in `config.json`, and it is on wherever the vocabulary has no digits.
//! Letters with accents lose them; characters that no English word has are left out.
//!
//! Word by word: the punctuation around a word stays, the core is tried as an abbreviation, a number with what belongs to
//! it, an address, a row of capitals, and else only loses its signs.

mod numbers;
mod tables;

use numbers::{cardinal, digits, ordinal, plural, year};
use tables::{
    ABBREVIATIONS, ADDRESS_SIGNS, BEFORE_NUMBER, CURRENCIES, DOMAINS, LETTERS, SCALES, SIGNS, SPELLED, UNITS,
};
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

const OPENING: &[char] = &['(', '[', '{', '"', '\''];
const CLOSING: &[char] = &[')', ']', '}', '"', '\'', ',', ';', ':', '!', '?', '.'];

/// `text` in plain English words, its sentence marks kept.
pub fn expand_english(text: &str) -> String {
    let plain = plain_letters(text);
    let words: Vec<&str> = plain.split_whitespace().collect();
    let mut out: Vec<String> = Vec::with_capacity(words.len());
    let mut at = 0;
    while at < words.len() {
        let (spoken, used) = expand_word(words[at], &words[at + 1..]);
        out.push(spoken);
        at += used;
    }
    out.retain(|word| !word.is_empty());
    out.join(" ")
}

/// Accents off, typographic marks to ASCII, what no English word has dropped; signs that can be said stay.
fn plain_letters(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if let Some((_, letters)) = LETTERS.iter().find(|(letter, _)| *letter == c) {
            out.push_str(letters);
        } else if c.is_ascii()
            || SIGNS.iter().any(|(sign, _)| *sign == c)
            || CURRENCIES.iter().any(|row| row.0 == c)
            || c == '¢'
        {
            out.push(c);
        } else if c.is_whitespace() {
            out.push(' ');
        } else {
            out.extend(std::iter::once(c).nfkd().filter(|&d| d.is_ascii() && !is_combining_mark(d)));
        }
    }
    out
}

/// The spoken form of `word` and how many words it used up, `next` being those behind it.
fn expand_word(word: &str, next: &[&str]) -> (String, usize) {
    let inner = word.trim_start_matches(OPENING);
    let front = &word[..word.len() - inner.len()];
    let core = inner.trim_end_matches(CLOSING);
    let back = &inner[core.len()..];
    if core.is_empty() {
        return (word.to_owned(), 1);
    }
    if let Some(spoken) = abbreviation(core, back, next) {
        let rest = &back[1..];
        let ends = next.is_empty() && rest.is_empty();
        return (format!("{front}{spoken}{}{rest}", if ends { "." } else { "" }), 1);
    }
    if let Some((spoken, used, rest)) = number(core, back, next) {
        return (format!("{front}{spoken}{rest}"), used);
    }
    let spoken = if is_address(core) { address(core) } else { spelled(core).unwrap_or_else(|| signs(core)) };
    (format!("{front}{spoken}{back}"), 1)
}

/// `Dr.`, `e.g.`, `No.` before a number, `St.` before or behind a name.
fn abbreviation(core: &str, back: &str, next: &[&str]) -> Option<String> {
    if !back.starts_with('.') {
        return None;
    }
    let lower = core.to_lowercase();
    let find =
        |table: &[(&str, &str)]| table.iter().find(|(short, _)| *short == lower).map(|(_, long)| (*long).to_owned());
    let follows = |what: fn(&char) -> bool| next.first().and_then(|word| word.chars().next()).is_some_and(|c| what(&c));
    if let Some(long) = find(BEFORE_NUMBER).filter(|_| follows(char::is_ascii_digit)) {
        return Some(long);
    }
    if lower == "st" {
        return Some(if follows(char::is_ascii_uppercase) { "saint" } else { "street" }.to_owned());
    }
    let acronym = core.contains('.')
        && core.split('.').all(|part| part.len() == 1 && part.chars().all(|c| c.is_ascii_uppercase()));
    find(ABBREVIATIONS).or_else(|| acronym.then(|| core.replace('.', " ")))
}

/// A number as it was written.
struct Number<'a> {
    sign: &'static str,
    currency: Option<char>,
    /// Digits before the point, without grouping commas.
    whole: String,
    grouped: bool,
    fraction: Option<&'a str>,
    rest: &'a str,
}

/// Takes sign, currency, digits and fraction off the front of `core`.
fn parse(core: &str) -> Option<Number<'_>> {
    let (sign, unsigned) = match core.strip_prefix(['-', '−']) {
        Some(rest) => ("minus ", rest),
        None => ("", core.strip_prefix('+').map_or(core, |rest| rest)),
    };
    let currency = unsigned.chars().next().filter(|c| CURRENCIES.iter().any(|row| row.0 == *c));
    let body = &unsigned[currency.map_or(0, char::len_utf8)..];
    let mut whole: String = body.chars().take_while(char::is_ascii_digit).collect();
    let mut rest = &body[whole.len()..];
    let mut grouped = false;
    while (1..=3).contains(&whole.len()) || grouped {
        let group = rest.strip_prefix(',').and_then(|group| group.get(..3));
        let Some(group) = group.filter(|group| group.bytes().all(|b| b.is_ascii_digit())) else {
            break;
        };
        if rest[4..].starts_with(|c: char| c.is_ascii_digit()) {
            break;
        }
        whole.push_str(group);
        rest = &rest[4..];
        grouped = true;
    }
    let tail = rest.strip_prefix('.').unwrap_or("");
    let digits = tail.len() - tail.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let fraction = (digits > 0).then(|| &tail[..digits]);
    if whole.is_empty() && fraction.is_none() {
        return None;
    }
    let rest = if digits > 0 { &tail[digits..] } else { rest };
    Some(Number { sign, currency, whole, grouped, fraction, rest })
}

impl Number<'_> {
    fn value(&self) -> Option<u64> {
        self.whole.parse().ok().filter(|&n: &u64| n < 1_000_000_000_000_000_000)
    }

    fn is_one(&self) -> bool {
        self.whole == "1" && self.fraction.is_none()
    }

    /// As a quantity: `3.14` -> `three point one four`; a leading zero or too many digits make it a row of digits.
    fn quantity(&self) -> String {
        let row = (self.whole.len() > 1 && self.whole.starts_with('0')) || (self.whole.len() > 6 && !self.grouped);
        let whole = match self.value() {
            _ if self.whole.is_empty() => String::new(),
            Some(n) if !row => cardinal(n),
            _ => digits(&self.whole),
        };
        let fraction = self.fraction.map(|f| format!("point {}", digits(f)));
        [Some(whole), fraction].into_iter().flatten().filter(|s| !s.is_empty()).collect::<Vec<_>>().join(" ")
    }

    /// On its own: a year if it looks like one.
    fn alone(&self) -> String {
        match self.value() {
            Some(n @ 1100..=2099) if self.fraction.is_none() && !self.grouped && self.whole.len() == 4 => year(n),
            _ => self.quantity(),
        }
    }

    /// With its currency: `$3.50` -> `three dollars and fifty cents`.
    fn amount(&self, sign: char, scale: Option<&str>) -> String {
        let (_, one, many, part) = CURRENCIES.iter().find(|row| row.0 == sign).copied().unwrap_or(('$', "", "", ""));
        if let Some(scale) = scale {
            return format!("{} {scale} {many}", self.quantity());
        }
        let cents = self.fraction.filter(|f| f.len() == 2).and_then(|f| f.parse::<u64>().ok());
        let (Some(cents), Some(whole)) = (cents, self.value()) else {
            return format!("{} {}", self.quantity(), if self.is_one() { one } else { many });
        };
        let name = |n: u64, one: &str, many: &str| format!("{} {}", cardinal(n), if n == 1 { one } else { many });
        let parts = if part == "penny" { "pence".to_owned() } else { plural(part) };
        match (whole, cents) {
            (whole, 0) => name(whole, one, many),
            (0, cents) => name(cents, part, &parts),
            _ => format!("{} and {}", name(whole, one, many), name(cents, part, &parts)),
        }
    }
}

/// A number with everything that belongs to it: what is said, the words used, and the marks that remain behind it.
fn number<'a>(core: &str, back: &'a str, next: &[&'a str]) -> Option<(String, usize, &'a str)> {
    if let Some(decade) = core.strip_suffix('s').and_then(decade_name) {
        return Some((decade, 1, back));
    }
    let (core, prefix) = core.strip_prefix('#').map_or((core, ""), |rest| (rest, "number "));
    let number = parse(core)?;
    let say = |spoken: String| format!("{prefix}{}{spoken}", number.sign);
    let following = next.first().filter(|_| back.is_empty()).copied().unwrap_or("");
    let bare = following.trim_end_matches(CLOSING);
    let marks = &following[bare.len()..];
    let lower = bare.to_lowercase();
    let rest = number.rest;

    if let Some((clock, used_half)) = clock(&number, rest, &lower) {
        // the stop of `p.m.` belongs to it unless the text ends there
        let marks = if used_half && marks.starts_with('.') && next.len() > 1 { &marks[1..] } else { marks };
        return Some((say(clock), 1 + usize::from(used_half), if used_half { marks } else { back }));
    }
    let trailing =
        rest.chars().next().filter(|c| rest.len() == c.len_utf8() && CURRENCIES.iter().any(|row| row.0 == *c));
    if let Some(sign) = number.currency.or(trailing) {
        let scale = |word: &str| SCALES.iter().find(|(short, _)| *short == word).map(|(_, long)| *long);
        if let Some(scale) = scale(rest).filter(|_| !rest.is_empty()) {
            return Some((say(number.amount(sign, Some(scale))), 1, back));
        }
        if let Some(scale) = scale(&lower).filter(|_| lower.len() > 3 && (rest.is_empty() || trailing.is_some())) {
            return Some((say(number.amount(sign, Some(scale))), 2, marks));
        }
        if rest.is_empty() || trailing.is_some() {
            return Some((say(number.amount(sign, None)), 1, back));
        }
    }
    let spoken = match rest {
        "" => number.alone(),
        "st" | "nd" | "rd" | "th" if number.fraction.is_none() => ordinal(number.value()?),
        _ => match UNITS.iter().find(|(short, ..)| *short == rest) {
            Some((_, one, many)) => format!("{} {}", number.quantity(), if number.is_one() { one } else { many }),
            None => chain(&number, rest),
        },
    };
    Some((say(spoken), 1, back))
}

/// `90` -> `nineties`, `1990` -> `nineteen nineties`.
fn decade_name(text: &str) -> Option<String> {
    let n: u64 = text.parse().ok().filter(|n| n % 10 == 0)?;
    match (text.len(), n) {
        (2, 20..=90) => Some(plural(&cardinal(n))),
        (4, 1100..=2090) => Some(plural(&year(n))),
        _ => None,
    }
}

/// `10:30`, `10:30pm`, `3 p.m.`: what is said, and whether the next word was used.
fn clock(number: &Number<'_>, rest: &str, next: &str) -> Option<(String, bool)> {
    let half = |text: &str| match text {
        "am" | "a.m" | "a.m." | "AM" => Some("a m"),
        "pm" | "p.m" | "p.m." | "PM" => Some("p m"),
        _ => None,
    };
    let hour = number.value().filter(|&h| h <= 24 && number.currency.is_none() && number.fraction.is_none())?;
    let (minute, rest) = match rest.strip_prefix(':') {
        Some(tail) => {
            let minute = tail.get(..2).and_then(|m| m.parse::<u64>().ok()).filter(|&m| m < 60)?;
            (Some(minute), &tail[2..])
        }
        None => (None, rest),
    };
    let (half, used) = match (half(rest), half(next)) {
        (Some(half), _) => (Some(half), false),
        (None, Some(half)) if rest.is_empty() => (Some(half), true),
        _ if rest.is_empty() && minute.is_some() => (None, false),
        _ => return None,
    };
    let hour = cardinal(hour);
    let time = match minute {
        None => hour,
        Some(0) if half.is_some() => hour,
        Some(0) => format!("{hour} o'clock"),
        Some(m @ 1..10) => format!("{hour} oh {}", cardinal(m)),
        Some(m) => format!("{hour} {}", cardinal(m)),
    };
    Some((half.map_or_else(|| time.clone(), |half| format!("{time} {half}")), used))
}

/// A number with something unforeseen behind it: ranges, fractions, dates, phone numbers, models (`5-10`, `3/4`, `4K`).
fn chain(number: &Number<'_>, rest: &str) -> String {
    if let Some(tail) =
        rest.strip_prefix('/').and_then(parse).filter(|tail| tail.rest.is_empty() && tail.fraction.is_none())
    {
        return fraction(number, &tail);
    }
    if let Some(tail) = rest.strip_prefix('-').and_then(parse).filter(|tail| tail.currency.is_none()) {
        let phone = number.whole.len() >= 3
            && tail.whole.len() >= 3
            && (tail.whole.len() > 4 || number.whole.len() == 3 && tail.whole.len() == 4);
        if phone || tail.rest.starts_with('-') {
            return format!("{}, {}", digits(&number.whole), digits(rest));
        }
        if tail.rest.is_empty() {
            return format!("{} to {}", number.alone(), tail.alone());
        }
    }
    let behind = rest.trim_start_matches(['-', '/', ':', '.', ',', '\'']);
    let joined = if behind.chars().any(|c| c.is_ascii_digit()) { runs(behind) } else { signs(behind) };
    format!("{} {joined}", number.alone()).trim_end().to_owned()
}

/// `1/2` -> `one half`, `3/4` -> `three quarters`, `2/3` -> `two thirds`.
fn fraction(over: &Number<'_>, under: &Number<'_>) -> String {
    let (Some(n), Some(d)) = (over.value(), under.value()) else {
        return format!("{} over {}", over.quantity(), under.quantity());
    };
    let name = match d {
        2 => "half".to_owned(),
        4 => "quarter".to_owned(),
        3 | 5..=20 => ordinal(d),
        _ => return format!("{} over {}", cardinal(n), cardinal(d)),
    };
    match n {
        1 => format!("one {name}"),
        _ if d == 2 => format!("{} halves", cardinal(n)),
        _ => format!("{} {}", cardinal(n), plural(&name)),
    }
}

/// Letters and numbers in turn: `B2B` -> `B two B`; up to four digits are a number, more a row of digits.
fn runs(text: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let digit = first.is_ascii_digit();
        let end = rest.find(|c: char| c.is_ascii_digit() != digit).unwrap_or(rest.len());
        let (run, tail) = rest.split_at(end);
        let plain = run.len() <= 4 && !(run.len() > 1 && run.starts_with('0'));
        out.push(match run.parse::<u64>() {
            Ok(n) if digit && plain => cardinal(n),
            _ if digit => digits(run),
            _ => signs(run.trim_matches(['-', '/', ':', '.', ','])),
        });
        rest = tail;
    }
    out.retain(|run| !run.is_empty());
    out.join(" ")
}

/// Whether a word is a web or mail address.
fn is_address(core: &str) -> bool {
    let host = core.split_once("://").map_or(core, |(_, rest)| rest).split('/').next().unwrap_or("");
    let domain = host.rsplit_once('.').is_some_and(|(name, end)| !name.is_empty() && DOMAINS.contains(&end));
    core.contains("://") || core.starts_with("www.") || domain && core.bytes().all(|b| b.is_ascii_graphic())
}

fn address(core: &str) -> String {
    let core = core.split_once("://").map_or(core, |(_, rest)| rest).trim_end_matches('/');
    let mut out = String::new();
    for c in core.chars() {
        match ADDRESS_SIGNS.iter().find(|(sign, _)| *sign == c) {
            Some((_, name)) => out.push_str(&format!(" {name} ")),
            None => out.push(c),
        }
    }
    out.split_whitespace().map(runs).collect::<Vec<_>>().join(" ")
}

/// `USB` -> `U S B`; words in capitals stay.
fn spelled(core: &str) -> Option<String> {
    let (word, s) = core.strip_suffix('s').map_or((core, ""), |word| (word, "s"));
    let capitals = (2..=5).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_uppercase());
    let unsayable = !word.bytes().any(|b| b"AEIOUY".contains(&b));
    (capitals && (unsayable || SPELLED.contains(&word))).then(|| {
        let letters: Vec<String> = word.chars().map(String::from).collect();
        letters.join(" ") + s
    })
}

/// Signs as words, digits inside words as numbers; everything else as it is.
fn signs(core: &str) -> String {
    if core.chars().any(|c| c.is_ascii_digit()) {
        return runs(core);
    }
    let mut out = String::with_capacity(core.len());
    for c in core.replace("and/or", "and or").chars() {
        match SIGNS.iter().find(|(sign, _)| *sign == c) {
            Some((_, name)) => out.push_str(&format!(" {name} ")),
            None if "*_^|\\`".contains(c) => out.push(' '),
            None if c == '/' => out.push_str(" or "),
            None => out.push(c),
        }
    }
    out.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
