//! Whether a full stop ends a sentence: titles, initials, acronyms, numbered things, ordinals.
//!
//! The price of the two mistakes differs: a missed end makes a longer piece, a wrong one a pause inside a name. So the
//! rules lean towards going on, and ask for a common first word of a sentence where a stop may be either.

use super::Boundary;

/// A full stop with what stands around it.
pub(super) struct Dot<'a> {
    /// The word before it, with inner stops (`U.S`) but without it.
    pub word: &'a str,
    /// The next word's letters and digits; may be empty.
    pub next: &'a str,
    /// Whether that word ends in a stop itself.
    pub next_has_dot: bool,
    /// Whether `word` is the first of its line.
    pub starts_line: bool,
}

/// Stand before a name and end no sentence.
const TITLES: &[&str] = &[
    "dr", "mr", "mrs", "ms", "mx", "prof", "gen", "sen", "rep", "lt", "col", "capt", "cpt", "sgt", "maj", "cmdr",
    "rev", "hon", "gov", "pres", "messrs", "mme", "mlle", "hr", "fr", "sra", "srta", "dra", "dott", "sig", "ing",
    "mag", "dipl", "mt", "ft", "vs", "cf", "viz", "ca", "bzw", "ggf", "evtl", "inkl", "vgl", "sog", "approx", "esp",
    "incl", "resp", "p.ej", "e.g", "i.e", "z.b", "d.h", "u.a", "o.ä", "z.t", "п", "г", "ул", "им",
];
/// Go on before a number; otherwise they may be words.
const NUMBERED: &[&str] = &[
    "no", "nos", "nr", "art", "fig", "figs", "vol", "vols", "ch", "chap", "sec", "p", "pp", "pg", "eq", "abb", "abs",
    "kap", "bd", "núm", "num", "n", "nº", "pág", "ed", "op", "ser", "ver", "v", "tel", "рис", "стр", "гл",
];
/// End a sentence only before a word that commonly starts one.
const EITHER: &[&str] = &[
    "etc", "inc", "ltd", "co", "corp", "bros", "jr", "sr", "st", "ave", "blvd", "rd", "dept", "est", "al", "usw",
    "u.s.w", "min", "max", "sec", "hr", "hrs", "ext", "gmbh", "ph.d", "др", "т.д", "т.п",
];
/// As [`EITHER`], but only with a capital: the same letters in lower case are words.
const CALENDAR: &[&str] = &[
    "Jan", "Feb", "Mar", "Apr", "Jun", "Jul", "Aug", "Sep", "Sept", "Oct", "Nov", "Dec", "Mon", "Tue", "Tues", "Wed",
    "Thu", "Thur", "Thurs", "Fri", "Sat", "Sun",
];
const STARTERS: &[&str] = &[
    "The", "A", "An", "He", "She", "It", "We", "They", "I", "You", "This", "That", "These", "Those", "There", "Then",
    "But", "And", "Or", "So", "In", "On", "At", "As", "If", "For", "To", "From", "By", "With", "When", "While", "What",
    "Where", "Why", "Who", "How", "My", "Your", "His", "Her", "Their", "Our", "Its", "After", "Before", "However",
    "Yet", "Still", "Not", "No", "Yes", "Now", "Here", "Some", "Many", "Most", "All", "Both", "Each", "One", "Two",
    "Der", "Die", "Das", "Er", "Sie", "Es", "Wir", "Ich", "Ein", "Eine", "Und", "Aber", "Le", "La", "Les", "Il",
    "Elle", "Un", "Une", "Je", "Nous", "Vous", "Et", "Mais", "El", "Los", "Las", "Una", "Yo", "Ella", "Pero", "O",
    "Os", "Ele", "Ela", "Uma", "Mas", "Lo", "Gli", "Io", "Ma", "De", "Het", "Een", "Hij", "Zij", "Wij", "Он", "Она",
    "Это", "Они", "Мы", "Я", "Но", "И", "В",
];

/// What the stop is worth; [`Boundary::Word`] means it ends nothing.
pub(super) fn judge(dot: &Dot<'_>) -> Boundary {
    let word = dot.word.trim_start_matches(|c: char| !c.is_alphanumeric());
    let lower = word.to_lowercase();
    let known = |list: &[&str]| list.contains(&lower.as_str());
    let starts = STARTERS.contains(&dot.next) && !dot.next_has_dot;
    let either = if starts { Boundary::Sentence } else { Boundary::Word };
    let numeric = !word.is_empty() && word.chars().all(|c| c.is_ascii_digit());
    let next_is_number = dot.next.starts_with(|c: char| c.is_numeric()) || is_roman(dot.next);
    let goes_on = dot.next.starts_with(char::is_lowercase);

    if numeric {
        // `3. Mai`, `2. Zug`: German ordinals stand before a capital, so a small number needs more evidence.
        let marker = dot.starts_line && word.len() <= 3;
        return match word.len() {
            _ if marker || goes_on => Boundary::Word,
            1 | 2 => either,
            _ => Boundary::Sentence,
        };
    }
    if known(TITLES) {
        return Boundary::Word;
    }
    if known(NUMBERED) && next_is_number {
        return Boundary::Word;
    }
    if known(EITHER) || CALENDAR.contains(&word) {
        return either;
    }
    let letters = word.chars().filter(|c| c.is_alphabetic()).count();
    let marker = dot.starts_line && letters == 1 && word.len() == 1;
    let initial = letters == 1 && word.chars().all(char::is_uppercase);
    let acronym = word.contains('.') && word.split('.').all(|part| part.chars().count() <= 2 && !part.is_empty());
    let caseless = |c: char| c.is_alphabetic() && !c.is_lowercase() && !c.is_uppercase();
    let caseless_next = dot.next.starts_with(caseless);
    if marker || initial || acronym {
        return if marker || !caseless_next { either } else { Boundary::Sentence };
    }
    if !goes_on || letters > 3 { Boundary::Sentence } else { Boundary::Clause }
}

/// A Roman numeral as it follows `vol.`; a lone `I` is the pronoun.
fn is_roman(word: &str) -> bool {
    !word.is_empty() && word != "I" && word.len() <= 5 && word.chars().all(|c| "IVXLC".contains(c))
}
