//! Text and a reference voice in, speech out: the Chatterbox family of models.

pub mod dsp;
pub mod error;
pub mod files;
mod kernels;
pub mod nn;
pub mod noise;
pub mod protocol;
pub mod s3_tokenizer;
pub mod s3gen;
pub mod sampling;
pub mod t3;
pub mod text;
pub mod variant;
pub mod voice;
pub mod voice_encoder;
pub mod watermark;
pub mod weights;
pub mod worker;

pub use error::{Error, Result};
pub use protocol::{Command, Event};
pub use variant::Variant;
pub use voice::Voice;
pub use worker::Engine;
