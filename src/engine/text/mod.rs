//! From what a person typed to the token ids T3 reads.
//!
//! ```text
//! text -> sentences::split -> per piece: TextTokenizer::encode
//!           = expand (only where the vocabulary has no digits) -> normalize -> language step -> vocabulary
//! ```
//! [`sentences`] decides what is spoken in one go, [`normalize`] tidies punctuation as the reference does,
//! [`languages`] holds the 23 languages and their script conversions, [`tokenizer`] the vocabularies.

pub mod expand;
pub mod languages;
pub mod normalize;
pub mod sentences;
pub mod tokenizer;

pub use languages::{Diacritizer, Language};
pub use normalize::{PunctuationStyle, normalize_punctuation};
pub use sentences::{Boundary, Pauses, Sentence, SplitOptions, split};
pub use tokenizer::{TextTokenizer, TokenizerKind};
