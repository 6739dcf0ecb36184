//! Signal processing on plain slices: everything between a file's samples and what a network reads.

pub mod fbank;
pub mod loudness;
pub mod mel;
pub mod resample;
pub mod stft;
pub mod trim;

pub(crate) mod features;
mod pcm;
#[cfg(test)]
pub(crate) mod testing;

pub use features::Features;
pub use pcm::Pcm;
