//! Saving what was spoken: WAV or FLAC, with its provenance written into the file.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use flacenc::bitsink::ByteSink;
use flacenc::component::{BitRepr, MetadataBlockData};
use flacenc::error::Verify;
use hound::{SampleFormat, WavSpec, WavWriter};
use myna_engine::files::write_atomically;
use myna_engine::protocol::SpeakSettings;
use myna_engine::{Error, Result};
use serde::{Deserialize, Serialize};

/// How a sample is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// WAV, 16-bit integers: every program reads it.
    #[default]
    Wav16,
    /// WAV, 24-bit integers.
    Wav24,
    /// WAV, 32-bit floats: exactly what was made.
    Wav32f,
    /// FLAC, 24-bit: lossless, about half the size.
    Flac,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 4] = [Self::Wav16, Self::Wav24, Self::Wav32f, Self::Flac];

    /// Name for people.
    pub fn title(self) -> &'static str {
        match self {
            Self::Wav16 => "WAV 16-bit",
            Self::Wav24 => "WAV 24-bit",
            Self::Wav32f => "WAV 32-bit float",
            Self::Flac => "FLAC",
        }
    }

    /// File extension.
    pub fn extension(self) -> &'static str {
        if self == Self::Flac { "flac" } else { "wav" }
    }

    fn wav_spec(self, sample_rate: u32) -> WavSpec {
        let (bits_per_sample, sample_format) = match self {
            Self::Wav16 => (16, SampleFormat::Int),
            Self::Wav24 | Self::Flac => (24, SampleFormat::Int),
            Self::Wav32f => (32, SampleFormat::Float),
        };
        WavSpec { channels: 1, sample_rate, bits_per_sample, sample_format }
    }
}

/// Where a sound comes from; written into the file so that it can be made again, and told from a recording.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// Program and version.
    pub software: String,
    /// Always [`Self::KIND`].
    pub kind: String,
    /// Model title and precision.
    pub model: String,
    /// Fingerprint of the T3 weights, in hex.
    pub model_hash: String,
    /// Name of the voice.
    pub voice: String,
    /// SHA-256 of the voice, in hex.
    pub voice_hash: String,
    /// Settings with the seed.
    pub settings: SpeakSettings,
}

impl Provenance {
    /// What every file of ours says it is.
    pub const KIND: &'static str = "AI-generated speech";

    /// The software's name and version.
    pub fn software() -> String {
        format!("Myna {}", env!("CARGO_PKG_VERSION"))
    }

    fn json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|e| Error::internal(e.to_string()))
    }
}

/// Writes mono samples; `path` is untouched unless the whole file could be written.
///
/// # Errors
/// If the file cannot be written.
pub fn save(path: &Path, samples: &[f32], sample_rate_hz: u32, format: Format, provenance: &Provenance) -> Result<()> {
    let about = provenance.json()?;
    match format {
        Format::Flac => {
            let bytes = flac(samples, sample_rate_hz, &about)?;
            write_atomically(path, |file| file.write_all(&bytes))
        }
        _ => write_atomically(path, |file| wav(file, samples, format.wav_spec(sample_rate_hz), &about)),
    }
}

fn wav(file: &mut File, samples: &[f32], spec: WavSpec, about: &str) -> std::io::Result<()> {
    let other = |e: hound::Error| match e {
        hound::Error::IoError(e) => e,
        e => std::io::Error::other(e),
    };
    let mut writer = WavWriter::new(std::io::BufWriter::new(&mut *file), spec).map_err(other)?;
    for &sample in samples {
        match spec.sample_format {
            SampleFormat::Float => writer.write_sample(sample),
            SampleFormat::Int => writer.write_sample(quantize(sample, spec.bits_per_sample)),
        }
        .map_err(other)?;
    }
    writer.finalize().map_err(other)?;
    let end = file.seek(SeekFrom::End(0))?;
    let list = info_list(about);
    file.write_all(&list)?;
    file.seek(SeekFrom::Start(4))?;
    file.write_all(&((end as usize + list.len() - 8) as u32).to_le_bytes())
}

/// Rounds to an integer of `bits`, clipping at full scale.
fn quantize(sample: f32, bits: u16) -> i32 {
    let full = f64::from(1i32 << (bits - 1));
    (f64::from(sample) * full).round().clamp(-full, full - 1.0) as i32
}

/// A RIFF `LIST INFO` chunk: software and comment.
fn info_list(about: &str) -> Vec<u8> {
    let mut body = b"INFO".to_vec();
    for (id, text) in [(b"ISFT", Provenance::software().as_str()), (b"ICMT", about)] {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        body.extend_from_slice(id);
        body.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        body.extend_from_slice(&bytes);
        if bytes.len() % 2 == 1 {
            body.push(0);
        }
    }
    let mut chunk = b"LIST".to_vec();
    chunk.extend_from_slice(&(body.len() as u32).to_le_bytes());
    chunk.extend_from_slice(&body);
    chunk
}

fn flac(samples: &[f32], sample_rate_hz: u32, about: &str) -> Result<Vec<u8>> {
    let failed = |what: &str| Error::internal(format!("FLAC encoding failed: {what}"));
    let config = flacenc::config::Encoder::default().into_verified().map_err(|(_, e)| failed(&e.to_string()))?;
    let integers: Vec<i32> = samples.iter().map(|&s| quantize(s, 24)).collect();
    let source = flacenc::source::MemSource::from_samples(&integers, 1, 24, sample_rate_hz as usize);
    let mut stream = flacenc::encode_with_fixed_block_size(&config, source, config.block_size)
        .map_err(|e| failed(&e.to_string()))?;
    // The shorter last block does not count; decoders take a smaller minimum for a stream of varying blocks.
    let block = config.block_size;
    stream.stream_info_mut().set_block_sizes(block, block).map_err(|e| failed(&e.to_string()))?;
    let comment = MetadataBlockData::new_unknown(4, &vorbis_comment(about)).map_err(|e| failed(&e.to_string()))?;
    stream.add_metadata_block(comment);
    let mut sink = ByteSink::new();
    stream.write(&mut sink).map_err(|e| failed(&e.to_string()))?;
    Ok(sink.into_inner())
}

/// A Vorbis comment block: vendor, then `NAME=value` pairs, lengths little-endian.
fn vorbis_comment(about: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut push = |bytes: &[u8]| {
        out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        out.extend_from_slice(bytes);
    };
    push(Provenance::software().as_bytes());
    let comments = [format!("ENCODER={}", Provenance::software()), format!("COMMENT={about}")];
    let mut rest = Vec::new();
    rest.extend_from_slice(&(comments.len() as u32).to_le_bytes());
    for comment in &comments {
        rest.extend_from_slice(&(comment.len() as u32).to_le_bytes());
        rest.extend_from_slice(comment.as_bytes());
    }
    out.extend_from_slice(&rest);
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::audio_file::decode;

    fn provenance() -> Provenance {
        Provenance {
            software: Provenance::software(),
            kind: "AI-generated speech".into(),
            model: "Test f32".into(),
            model_hash: "00ff".into(),
            voice: "Ada, \"warm\"".into(),
            voice_hash: "11".into(),
            settings: SpeakSettings { seed: 4242, ..Default::default() },
        }
    }

    #[test]
    fn every_format_comes_back_and_says_where_it_is_from() {
        let folder = tempfile::tempdir().unwrap();
        let samples: Vec<f32> = (0..24_000).map(|i| (i as f32 * 0.03).sin() * 0.7).collect();
        for (format, tolerance) in
            [(Format::Wav16, 2e-5), (Format::Wav24, 1e-6), (Format::Wav32f, 0.0), (Format::Flac, 1e-6)]
        {
            let path = folder.path().join(format!("{format:?}.{}", format.extension()));
            save(&path, &samples, 24_000, format, &provenance()).unwrap();
            let back = decode(&path).unwrap();
            assert_eq!((back.samples.len(), back.sample_rate_hz), (samples.len(), 24_000), "{format:?}");
            for (a, b) in samples.iter().zip(&back.samples) {
                assert!((a - b).abs() <= tolerance, "{format:?}: {a} {b}");
            }
            let bytes = std::fs::read(&path).unwrap();
            let text = String::from_utf8_lossy(&bytes);
            assert!(text.contains("AI-generated speech") && text.contains("4242"), "{format:?}");
            if format != Format::Flac {
                assert_eq!(u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize + 8, bytes.len());
            }
        }
    }

    #[test]
    fn samples_beyond_full_scale_are_clipped_and_not_wrapped() {
        assert_eq!(quantize(1.5, 16), 32767);
        assert_eq!(quantize(-7.0, 24), -8_388_608);
        assert_eq!(quantize(0.0, 16), 0);
    }
}
