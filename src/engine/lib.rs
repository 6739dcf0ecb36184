//! Text and a reference voice in, speech out: the Chatterbox family of models.

pub mod agreement;
mod config;
pub mod convert;
#[cfg(feature = "cuda")]
pub mod cuda;
mod device;
pub mod draft;
pub mod dsp;
pub mod error;
pub mod files;
pub mod inspect;
mod kernels;
pub mod meter;
pub mod model;
mod model_files;
pub mod nn;
pub mod noise;
mod prepare;
pub mod protocol;
pub mod replay;
pub mod s3_tokenizer;
pub mod s3gen;
pub mod sampling;
pub mod synthesis;
pub mod t3;
pub mod text;
mod token_feed;
pub mod trace;
pub mod variant;
pub mod voice;
pub mod voice_encoder;
pub mod watermark;
pub mod weights;
pub mod worker;

pub use error::{Error, Result};
pub use kernels::memory::give_back as give_back_memory;
pub use protocol::{Command, Event};
pub use variant::Variant;
pub use voice::Voice;
pub use worker::Engine;
