//! S3Gen: speech tokens and a reference voice to a mel spectrogram.

mod config;

pub use config::{ChunkCausalConfig, EstimatorConfig, FRAMES_PER_TOKEN, FlowConfig, LOOKAHEAD_TOKENS, MEL_CHANNELS};
