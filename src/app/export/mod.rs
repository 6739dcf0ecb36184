//! Saving what was spoken: WAV or FLAC, with its provenance written into the file; all at once, or as it is made.

mod flac;
mod wav;

use std::io::Write;
use std::path::Path;

use hound::{SampleFormat, WavSpec};
use myna_engine::dsp::loudness::gain_to;
use myna_engine::files::AtomicFile;
use myna_engine::protocol::{ModelInfo, SpeakSettings};
use myna_engine::{Error, Result, Voice};
use serde::{Deserialize, Serialize};

use self::flac::FlacFile;
use self::wav::WavFile;

/// Rates at which sound can be saved; the first is that at which it is made.
pub const RATES_HZ: [u32; 3] = [24_000, 44_100, 48_000];
/// Loudness of saved files that ask for it, after EBU R 128 for streaming.
const EVEN_LUFS: f64 = -16.0;
/// A decibel below full scale.
const HIGHEST_PEAK: f32 = 0.89;

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

    /// Of what this model says in this voice; hashes the voice.
    pub fn of(model: &ModelInfo, voice: &Voice, settings: &SpeakSettings) -> Self {
        Self {
            software: Self::software(),
            kind: Self::KIND.to_owned(),
            model: format!("{} {}", model.title, model.precision.name()),
            model_hash: model.model_hash.clone(),
            voice: voice.name.clone(),
            voice_hash: voice.hash(),
            settings: settings.clone(),
        }
    }

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
    let mut file = SoundFile::create(path, sample_rate_hz, format, provenance)?;
    file.push(samples)?;
    file.finish()
}

/// Brings a whole clip to a common loudness, but never into clipping.
pub fn even_out(samples: &mut [f32], sample_rate_hz: u32) {
    let peak = samples.iter().fold(0.0f32, |a, s| a.max(s.abs()));
    let gain = gain_to(samples, sample_rate_hz, EVEN_LUFS).min(HIGHEST_PEAK / peak.max(1e-6));
    samples.iter_mut().for_each(|sample| *sample *= gain);
}

/// A file of mono samples that grows as they are made. Nobody sees it before it is finished; dropped, it leaves nothing.
pub struct SoundFile {
    file: AtomicFile,
    encoder: Encoder,
    about: String,
}

impl std::fmt::Debug for SoundFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SoundFile").field("path", &self.file.path()).finish_non_exhaustive()
    }
}

enum Encoder {
    Wav(WavFile),
    Flac(Box<FlacFile>),
}

impl SoundFile {
    /// Begins a file.
    ///
    /// # Errors
    /// If it cannot be written there.
    pub fn create(path: &Path, sample_rate_hz: u32, format: Format, provenance: &Provenance) -> Result<Self> {
        let about = provenance.json()?;
        let mut file = AtomicFile::create(path)?;
        let encoder = file.file().try_clone().and_then(|file| {
            Ok(match format {
                Format::Flac => Encoder::Flac(Box::new(FlacFile::new(file, sample_rate_hz, &about)?)),
                _ => Encoder::Wav(WavFile::new(file, format.wav_spec(sample_rate_hz))?),
            })
        });
        let encoder = encoder.map_err(|e| Error::io(path, e))?;
        Ok(Self { file, encoder, about })
    }

    /// More samples.
    ///
    /// # Errors
    /// If the disk is full.
    pub fn push(&mut self, samples: &[f32]) -> Result<()> {
        let done = match &mut self.encoder {
            Encoder::Wav(wav) => wav.push(samples),
            Encoder::Flac(flac) => flac.push(samples),
        };
        done.map_err(|e| Error::io(self.file.path(), e))
    }

    /// Puts the whole file in its place.
    ///
    /// # Errors
    /// If the disk is full; what was at the path is then as it was.
    pub fn finish(self) -> Result<()> {
        let Self { mut file, encoder, about } = self;
        let done = match encoder {
            Encoder::Wav(wav) => wav.finish(file.file(), &about),
            Encoder::Flac(flac) => flac.finish(),
        };
        done.map_err(|e| Error::io(file.path(), e))?;
        file.commit()
    }
}

/// Samples on their way to another program, as WAV or without any header.
#[derive(Debug)]
pub struct SoundPipe<W> {
    out: W,
    spec: WavSpec,
}

impl<W: Write> SoundPipe<W> {
    /// As a WAV of unknown length that says where it comes from.
    ///
    /// # Errors
    /// If the format is not WAV, or nobody reads.
    pub fn wav(mut out: W, sample_rate_hz: u32, format: Format, provenance: &Provenance) -> Result<Self> {
        if format == Format::Flac {
            return Err(Error::input("FLAC cannot be piped; choose a WAV format, or write to a file"));
        }
        let spec = format.wav_spec(sample_rate_hz);
        out.write_all(&wav::endless_header(spec, &provenance.json()?)).map_err(pipe_error)?;
        Ok(Self { out, spec })
    }

    /// As bare little-endian samples.
    pub fn raw(out: W, format: Format) -> Self {
        Self { out, spec: format.wav_spec(RATES_HZ[0]) }
    }

    /// More samples, at once.
    ///
    /// # Errors
    /// If nobody reads.
    pub fn push(&mut self, samples: &[f32]) -> Result<()> {
        wav::write_samples(&mut self.out, samples, self.spec).and_then(|()| self.out.flush()).map_err(pipe_error)
    }
}

fn pipe_error(error: std::io::Error) -> Error {
    Error::io(Path::new("standard output"), error)
}

/// Rounds to an integer of `bits`, clipping at full scale.
fn quantize(sample: f32, bits: u16) -> i32 {
    let full = f64::from(1i32 << (bits - 1));
    (f64::from(sample) * full).round().clamp(-full, full - 1.0) as i32
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
    fn a_file_written_piece_by_piece_is_the_file_written_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let samples: Vec<f32> = (0..30_000).map(|i| (i as f32 * 0.03).sin() * 0.7).collect();
        for format in Format::ALL {
            let [whole, pieces] = ["whole", "pieces"].map(|name| folder.path().join(name));
            save(&whole, &samples, 48_000, format, &provenance()).unwrap();
            let mut file = SoundFile::create(&pieces, 48_000, format, &provenance()).unwrap();
            samples.chunks(777).for_each(|part| file.push(part).unwrap());
            assert!(!pieces.exists(), "{format:?} was there before it was whole");
            file.finish().unwrap();
            assert!(std::fs::read(&whole).unwrap() == std::fs::read(&pieces).unwrap(), "{format:?}");
            std::fs::remove_file(pieces).unwrap();
        }
        drop(SoundFile::create(&folder.path().join("dropped"), 24_000, Format::Wav16, &provenance()).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "a dropped file left something");
    }

    #[test]
    fn a_pipe_is_a_wav_that_says_where_it_is_from_or_bare_samples() {
        let samples: Vec<f32> = (0..2400).map(|i| (i as f32 * 0.03).sin() * 0.7).collect();
        for format in [Format::Wav16, Format::Wav24, Format::Wav32f] {
            let mut bytes = Vec::new();
            let mut pipe = SoundPipe::wav(&mut bytes, 24_000, format, &provenance()).unwrap();
            samples.chunks(100).for_each(|part| pipe.push(part).unwrap());
            let mut raw = Vec::new();
            SoundPipe::raw(&mut raw, format).push(&samples).unwrap();
            assert_eq!(raw.len(), samples.len() * usize::from(format.wav_spec(1).bits_per_sample / 8));
            assert!(bytes.ends_with(&raw));
            assert!(String::from_utf8_lossy(&bytes[..bytes.len() - raw.len()]).contains("AI-generated speech"));
            let file = tempfile::NamedTempFile::with_suffix(".wav").unwrap();
            std::fs::write(file.path(), &bytes).unwrap();
            let back = decode(file.path()).unwrap();
            assert_eq!((back.samples.len(), back.sample_rate_hz), (samples.len(), 24_000), "{format:?}");
            assert!(samples.iter().zip(&back.samples).all(|(a, b)| (a - b).abs() < 2e-5), "{format:?}");
        }
        assert!(SoundPipe::wav(Vec::new(), 24_000, Format::Flac, &provenance()).is_err());
    }

    #[test]
    fn loudness_is_evened_out_without_clipping() {
        let tone = |gain: f32| (0..48_000).map(|i| (i as f32 * 0.2).sin() * gain).collect::<Vec<f32>>();
        let (mut loud, mut quiet) = (tone(0.9), tone(0.01));
        even_out(&mut loud, 24_000);
        even_out(&mut quiet, 24_000);
        assert!(loud.iter().zip(&quiet).all(|(a, b)| (a - b).abs() < 1e-3));
        let mut peaky = tone(0.001);
        peaky[24_000] = 0.9;
        even_out(&mut peaky, 24_000);
        assert!(peaky.iter().all(|s| s.abs() <= HIGHEST_PEAK + 1e-6));
    }

    #[test]
    fn samples_beyond_full_scale_are_clipped_and_not_wrapped() {
        assert_eq!(quantize(1.5, 16), 32767);
        assert_eq!(quantize(-7.0, 24), -8_388_608);
        assert_eq!(quantize(0.0, 16), 0);
    }
}
