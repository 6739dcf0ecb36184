//! IPADIC reduced to what it takes to read kanji: `assets/ja/readings.bin.z`, made by `assets/ja/build.py`.
//!
//! The file is one zlib stream, little endian:
//! - `MYJA`, words (u32), context classes, paradigms, the class of a text's ends, that of unknown words (u16 each);
//! - the connection costs, classes x classes (i8, steps of 64);
//! - per paradigm beyond one for each class: number of forms (u8), per form its class (u16), suffix length (u8), suffix (u16s);
//! - nine streams with a length (u32) in front, one value per word, words sorted by surface: characters shared with the
//!   word before; characters added; the added characters' high bytes; low bytes; paradigm, high and low byte; cost (i8, steps of 64); length of
//!   the reading; readings as indices into the kana from U+3041 (86 is ー). A reading lacks the kana at both ends of
//!   its surface, unless the top bit of its length is set.
//!
//! A word of paradigm `p` below the number of classes is whole and of class `p`; of a higher one it is the stem of a verb or
//! adjective, followed by one of the paradigm's suffixes. The last paradigm holds numbers with their counter (`二人`), which
//! are no words behind another number (`十二人`).

use super::to_hiragana;
use flate2::read::ZlibDecoder;
use std::io::Read;
use std::ops::Range;

static PACKED: &[u8] = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/ja/readings.bin.z"));

#[derive(Debug, Clone, Copy)]
struct Word {
    paradigm: u16,
    cost: i8,
    reading_length: u8,
    reading_start: u32,
}

#[derive(Debug)]
struct Form {
    class: u16,
    suffix: Vec<char>,
}

/// A word found in a text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Match {
    /// Characters it covers.
    pub length: usize,
    /// Its context class.
    pub class: u16,
    /// Its own cost, in steps of 64.
    pub cost: i32,
    /// For [`Dictionary::reading`].
    pub word: usize,
}

/// Surfaces with readings, classes and costs.
#[derive(Debug, Default)]
pub(super) struct Dictionary {
    classes: usize,
    /// Class of both ends of a text.
    pub ends: u16,
    /// Class of words it does not hold.
    pub unknown: u16,
    connection: Vec<i8>,
    paradigms: Vec<Vec<Form>>,
    characters: Vec<u16>,
    starts: Vec<u32>,
    words: Vec<Word>,
    kana: Vec<u8>,
}

/// Takes bytes off the front; a short file reads as `None`.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|b| b[0])
    }

    fn short(&mut self) -> Option<u16> {
        let bytes = self.take(2)?.try_into().ok()?;
        Some(u16::from_le_bytes(bytes))
    }

    fn length(&mut self) -> Option<usize> {
        let bytes = self.take(4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    }

    fn stream(&mut self) -> Option<&'a [u8]> {
        let n = self.length()?;
        self.take(n)
    }
}

impl Dictionary {
    /// The dictionary that is part of the program.
    pub(super) fn embedded() -> Self {
        let mut bytes = Vec::new();
        let unpacked = ZlibDecoder::new(PACKED).read_to_end(&mut bytes);
        unpacked.ok().and_then(|_| Self::parse(&bytes)).unwrap_or_default()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.take(4)? != b"MYJA" {
            return None;
        }
        let count = reader.length()?;
        let (classes, paradigms) = (usize::from(reader.short()?), usize::from(reader.short()?));
        let (ends, unknown) = (reader.short()?, reader.short()?);
        let connection = reader.take(classes * classes)?.iter().map(|b| b.cast_signed()).collect();
        let paradigms = (classes..paradigms).map(|_| parse_paradigm(&mut reader)).collect::<Option<Vec<_>>>()?;
        let mut stream = || reader.stream();
        let (shared, added, high, low) = (stream()?, stream()?, stream()?, stream()?);
        let (paradigm_high, paradigm_low) = (stream()?, stream()?);
        let (costs, lengths, kana) = (stream()?, stream()?, stream()?);
        let (characters, starts) = unshare(shared, added, high, low)?;
        let mut reading_start = 0;
        let mut words = Vec::with_capacity(count);
        for i in 0..count {
            let reading_length = *lengths.get(i)?;
            let paradigm = u16::from_le_bytes([*paradigm_low.get(i)?, *paradigm_high.get(i)?]);
            let cost = costs.get(i)?.cast_signed();
            words.push(Word { paradigm, cost, reading_length, reading_start });
            reading_start += u32::from(reading_length & 127);
        }
        let whole = starts.len() == count + 1 && usize::try_from(reading_start).ok()? == kana.len();
        let dictionary =
            Self { classes, ends, unknown, connection, paradigms, characters, starts, words, kana: kana.to_vec() };
        whole.then_some(dictionary)
    }

    /// The cost of one class before another, in steps of 64.
    pub(super) fn connection(&self, left: u16, right: u16) -> i32 {
        let at = usize::from(left) * self.classes + usize::from(right);
        self.connection.get(at).map_or(0, |&cost| i32::from(cost))
    }

    fn surface(&self, word: usize) -> &[u16] {
        &self.characters[self.starts[word] as usize..self.starts[word + 1] as usize]
    }

    /// Every word that `text` starts with.
    pub(super) fn matches(&self, text: &[char], mut found: impl FnMut(Match)) {
        let mut words = 0..self.words.len();
        for (at, &c) in text.iter().enumerate() {
            let Ok(code) = u16::try_from(u32::from(c)) else {
                return;
            };
            let first = |words: &Range<usize>, least: u16| {
                partition(words.clone(), |word| self.surface(word).get(at).copied() < Some(least))
            };
            words.start = first(&words, code);
            words.end = code.checked_add(1).map_or(words.end, |next| first(&words, next));
            if words.is_empty() {
                return;
            }
            for word in words.clone().take_while(|&word| self.surface(word).len() == at + 1) {
                self.forms(word, at + 1, &text[at + 1..], &mut found);
            }
        }
    }

    /// The forms of a word of `length` characters that agree with what follows it.
    fn forms(&self, word: usize, length: usize, rest: &[char], found: &mut impl FnMut(Match)) {
        let Word { paradigm, cost, .. } = self.words[word];
        let cost = i32::from(cost);
        match usize::from(paradigm).checked_sub(self.classes) {
            None => found(Match { length, class: paradigm, cost, word }),
            Some(p) => {
                let forms = self.paradigms.get(p).into_iter().flatten();
                for form in forms.filter(|form| rest.starts_with(&form.suffix)) {
                    found(Match { length: length + form.suffix.len(), class: form.class, cost, word });
                }
            }
        }
    }

    /// Whether a word is a number with its counter.
    pub(super) fn is_counted(&self, word: usize) -> bool {
        usize::from(self.words[word].paradigm) + 1 == self.classes + self.paradigms.len()
    }

    /// How `surface`, found as `word`, is read; a suffix is read as it is written.
    pub(super) fn reading(&self, word: usize, surface: &[char]) -> String {
        let entry = self.words[word];
        let length = usize::from(entry.reading_length & 127);
        let start = entry.reading_start as usize;
        let kana = self.kana[start..start + length].iter().map(|&index| match index {
            86 => 'ー',
            _ => char::from_u32(0x3041 + u32::from(index)).unwrap_or('ー'),
        });
        let (stem, suffix) = surface.split_at(self.surface(word).len().min(surface.len()));
        let whole = entry.reading_length & 128 != 0;
        let is_fixed = |c: &char| whole || !is_kana(*c);
        let head = stem.iter().position(is_fixed).unwrap_or(stem.len());
        let tail = stem[head..].iter().rev().position(is_fixed).unwrap_or(0);
        let hiragana = |part: &[char]| part.iter().copied().map(to_hiragana).collect::<String>();
        let mut out = hiragana(&stem[..head]);
        out.extend(kana);
        out + &hiragana(&stem[stem.len() - tail..]) + &hiragana(suffix)
    }
}

fn is_kana(c: char) -> bool {
    matches!(c, 'ぁ'..='ゖ' | 'ァ'..='ヶ' | 'ー')
}

/// The first index of the range for which `below` does not hold; it holds for those in front of it.
fn partition(mut range: Range<usize>, below: impl Fn(usize) -> bool) -> usize {
    while !range.is_empty() {
        let middle = range.start.midpoint(range.end);
        if below(middle) {
            range.start = middle + 1;
        } else {
            range.end = middle;
        }
    }
    range.start
}

fn parse_paradigm(reader: &mut Reader<'_>) -> Option<Vec<Form>> {
    let forms = reader.byte()?;
    let form = |_| {
        let (class, length) = (reader.short()?, usize::from(reader.byte()?));
        let bytes = reader.take(length * 2)?;
        let codes = bytes.chunks_exact(2).map(|b| u32::from(u16::from_le_bytes([b[0], b[1]])));
        Some(Form { class, suffix: codes.map(char::from_u32).collect::<Option<_>>()? })
    };
    (0..forms).map(form).collect()
}

/// Surfaces from what each shares with the one before: all characters, and where each surface starts.
fn unshare(shared: &[u8], added: &[u8], high: &[u8], low: &[u8]) -> Option<(Vec<u16>, Vec<u32>)> {
    let mut new = high.iter().zip(low).map(|(&high, &low)| u16::from_le_bytes([low, high]));
    let mut characters: Vec<u16> = Vec::with_capacity(high.len() * 3);
    let mut starts = vec![0];
    let mut previous = 0;
    for (&shared, &added) in shared.iter().zip(added) {
        let start = characters.len();
        let end = previous + usize::from(shared);
        if end > start {
            return None;
        }
        characters.extend_from_within(previous..end);
        characters.extend(new.by_ref().take(usize::from(added)));
        starts.push(u32::try_from(characters.len()).ok()?);
        previous = start;
    }
    Some((characters, starts))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_embedded_file_is_whole_and_sorted() {
        let dictionary = Dictionary::embedded();
        assert!(dictionary.words.len() > 100_000);
        assert!((1..dictionary.words.len()).all(|i| dictionary.surface(i - 1) <= dictionary.surface(i)));
        assert!(PACKED.len() <= 1_200_000);
    }

    #[test]
    fn a_cut_file_is_refused() {
        let mut bytes = Vec::new();
        ZlibDecoder::new(PACKED).read_to_end(&mut bytes).unwrap();
        for n in [0, 3, 4, 8, 11, 12, 500, 30_000, bytes.len() / 2, bytes.len() - 1] {
            assert!(Dictionary::parse(&bytes[..n]).is_none(), "{n}");
        }
        assert!(Dictionary::parse(&bytes).is_some());
    }

    #[test]
    fn words_and_inflected_forms_are_found_with_their_readings() {
        let dictionary = Dictionary::embedded();
        for (surface, reading) in
            [("食べ", "たべ"), ("東京", "とうきょう"), ("大人", "おとな"), ("書い", "かい"), ("引き金", "ひきがね")]
        {
            let text: Vec<char> = surface.chars().collect();
            let mut readings = Vec::new();
            dictionary.matches(&text, |found| {
                if found.length == text.len() {
                    readings.push(dictionary.reading(found.word, &text));
                }
            });
            assert!(readings.iter().any(|r| r == reading), "{surface}: {readings:?}");
        }
    }
}
