//! Text and a reference voice in, speech out: the Chatterbox family of models.

pub mod error;
mod kernels;
pub mod nn;
pub mod noise;
pub mod weights;

pub use error::{Error, Result};
