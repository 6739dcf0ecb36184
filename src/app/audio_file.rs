//! Decoding of audio files: wav, flac, mp3, ogg, m4a and more, any rate, any channel count, to mono.

use std::fs::File;
use std::path::Path;

use myna_engine::protocol::Pcm;
use myna_engine::{Error, Result};
use symphonia::core::codecs::audio::AudioDecoderOptions;
use symphonia::core::errors::Error as DecodeError;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatReader, TrackType};
use symphonia::core::io::MediaSourceStream;

/// Longest recording taken in, which bounds memory (10 minutes at 192 kHz are 460 MB).
pub const MAX_SECS: f64 = 600.0;

/// A WAV written to a pipe cannot know its length and claims about four gigabytes.
const UNKNOWN_LENGTH_BYTES: u64 = 0xFFFF_0000;

/// Reads an audio file and averages its channels.
///
/// # Errors
/// If the file is no audio, is damaged, empty or longer than [`MAX_SECS`]; the text says which and what to do.
pub fn decode(path: &Path) -> Result<Pcm> {
    let file = File::open(path).map_err(|e| Error::io(path, e))?;
    let size = file.metadata().map_err(|e| Error::io(path, e))?;
    if size.is_dir() {
        return Err(bad(path, "is a folder; choose an audio file"));
    }
    if size.len() == 0 {
        return Err(bad(path, "is empty; choose an audio file"));
    }
    let mut hint = Hint::new();
    if let Some(extension) = path.extension().and_then(|e| e.to_str()) {
        hint.with_extension(extension);
    }
    decode_stream(path, MediaSourceStream::new(Box::new(file), Default::default()), &hint)
}

/// Reads audio that is part of the program; `name` stands for its file.
///
/// # Errors
/// As [`decode`].
pub fn decode_bytes(name: &str, bytes: &'static [u8]) -> Result<Pcm> {
    let stream = MediaSourceStream::new(Box::new(std::io::Cursor::new(bytes)), Default::default());
    decode_stream(Path::new(name), stream, &Hint::new())
}

fn decode_stream(path: &Path, stream: MediaSourceStream<'_>, hint: &Hint) -> Result<Pcm> {
    let mut format = symphonia::default::get_probe()
        .probe(hint, stream, Default::default(), Default::default())
        .map_err(|_| bad(path, "is not an audio file that Myna reads (wav, flac, mp3, ogg, m4a, aiff)"))?;
    read_track(path, format.as_mut())
}

fn bad(path: &Path, reason: &str) -> Error {
    Error::input(format!("{} {reason}", path.display()))
}

fn read_track(path: &Path, format: &mut dyn FormatReader) -> Result<Pcm> {
    let track = format.default_track(TrackType::Audio).ok_or_else(|| bad(path, "holds no sound"))?;
    let (track_id, expected) = (track.id, track.num_frames);
    let parameters = track.codec_params.as_ref().and_then(|p| p.audio()).ok_or_else(|| bad(path, "holds no sound"))?;
    let block = parameters.bits_per_sample.unwrap_or(16).div_ceil(8) as u64;
    let mut decoder = symphonia::default::get_codecs()
        .make_audio_decoder(parameters, &AudioDecoderOptions::default())
        .map_err(|e| bad(path, &format!("uses a codec that Myna does not read ({e})")))?;
    let (mut samples, mut interleaved) = (Vec::new(), Vec::<f32>::new());
    let (mut rate, mut channels, mut damaged) = (0u32, 1, false);
    loop {
        let packet = match format.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => break,
            // The end of the file in the middle of a packet: judged below by what is missing.
            Err(DecodeError::IoError(e)) if e.kind() == std::io::ErrorKind::UnexpectedEof => break,
            Err(_) => {
                damaged = true;
                break;
            }
        };
        if packet.track_id != track_id {
            continue;
        }
        let buffer = match decoder.decode(&packet) {
            Ok(buffer) => buffer,
            Err(DecodeError::DecodeError(_)) => {
                damaged = true;
                continue;
            }
            Err(e) => return Err(bad(path, &format!("cannot be decoded: {e}"))),
        };
        if rate != 0 && rate != buffer.spec().rate() {
            return Err(bad(path, "changes its sample rate in the middle; convert it to one rate first"));
        }
        rate = buffer.spec().rate();
        channels = buffer.spec().channels().count().max(1);
        interleaved.resize(buffer.samples_interleaved(), 0.0);
        buffer.copy_to_slice_interleaved(&mut interleaved);
        samples.extend(interleaved.chunks_exact(channels).map(|frame| frame.iter().sum::<f32>() / channels as f32));
        if samples.len() as f64 > MAX_SECS * f64::from(rate.max(1)) {
            return Err(bad(path, "is longer than 10 minutes; cut out the part that you need"));
        }
    }
    let claimed = expected.filter(|frames| frames * block * (channels as u64) < UNKNOWN_LENGTH_BYTES);
    if let Some(frames) = claimed.filter(|&frames| (samples.len() as u64) < frames / 100 * 99) {
        let (has, should) = (samples.len() as f64 / f64::from(rate.max(1)), frames as f64 / f64::from(rate.max(1)));
        return Err(bad(path, &format!("is cut short: {has:.1} of {should:.1} seconds are there; copy it again")));
    }
    if samples.is_empty() || rate == 0 {
        return Err(bad(path, if damaged { "is damaged: nothing in it can be decoded" } else { "holds no sound" }));
    }
    if let Some(at) = samples.iter().position(|s| !s.is_finite()) {
        let secs = at as f64 / f64::from(rate);
        return Err(bad(path, &format!("holds a sample that is not a number, at {secs:.2} s; export it again")));
    }
    Ok(Pcm { samples, sample_rate_hz: rate })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use hound::{SampleFormat, WavSpec, WavWriter};

    fn wav(folder: &Path, channels: u16, rate: u32, bits: u16, frames: usize) -> std::path::PathBuf {
        let path = folder.join(format!("{channels}_{rate}_{bits}.wav"));
        let sample_format = if bits == 32 { SampleFormat::Float } else { SampleFormat::Int };
        let mut writer =
            WavWriter::create(&path, WavSpec { channels, sample_rate: rate, bits_per_sample: bits, sample_format })
                .unwrap();
        for i in 0..frames {
            for c in 0..channels {
                // The channels cancel but for the first.
                let x = (i as f32 * 0.05).sin() * if c == 0 { 0.5 } else { 0.0 };
                match bits {
                    32 => writer.write_sample(x).unwrap(),
                    _ => writer
                        .write_sample((x * f32::from(i16::MAX) * f32::powi(2.0, i32::from(bits) - 16)) as i32)
                        .unwrap(),
                }
            }
        }
        writer.finalize().unwrap();
        path
    }

    #[test]
    fn every_depth_rate_and_channel_count_gives_the_same_wave() {
        let folder = tempfile::tempdir().unwrap();
        for (channels, rate, bits) in [(1, 8000, 16), (2, 44_100, 24), (1, 48_000, 32), (6, 24_000, 16), (1, 11_025, 8)]
        {
            let pcm = decode(&wav(folder.path(), channels, rate, bits, 1000)).unwrap();
            assert_eq!((pcm.samples.len(), pcm.sample_rate_hz), (1000, rate));
            let tolerance = if bits == 8 { 0.01 } else { 1e-4 };
            for (i, s) in pcm.samples.iter().enumerate() {
                let expected = (i as f32 * 0.05).sin() * 0.5 / f32::from(channels);
                assert!((s - expected).abs() < tolerance, "{channels} {rate} {bits}: sample {i} {s} {expected}");
            }
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let says = |name: &str, bytes: &[u8], words: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let error = decode(&path).unwrap_err();
            assert!(error.is_bad_input() && error.to_string().contains(words), "{error}");
        };
        says("empty.wav", b"", "is empty");
        says("text.wav", b"This is a letter and not a sound.\n".repeat(50).as_slice(), "not an audio file");
        let whole = std::fs::read(wav(folder.path(), 1, 16_000, 16, 16_000)).unwrap();
        says("short.wav", &whole[..whole.len() / 2], "cut short");
        let path = wav(folder.path(), 1, 16_000, 32, 100);
        let mut bytes = std::fs::read(&path).unwrap();
        let end = bytes.len();
        bytes[end - 40..end - 36].copy_from_slice(&f32::NAN.to_le_bytes());
        says("nan.wav", &bytes, "not a number");
        says("nothing.wav", &std::fs::read(wav(folder.path(), 1, 16_000, 16, 0)).unwrap(), "no sound");
        assert!(decode(folder.path()).unwrap_err().to_string().contains("folder"));
        assert!(decode(Path::new("no/such.wav")).unwrap_err().to_string().contains("no/such.wav"));
    }

    #[test]
    fn hours_of_sound_are_refused_early() {
        let folder = tempfile::tempdir().unwrap();
        let path = wav(folder.path(), 1, 8000, 16, 8000 * 601);
        assert!(decode(&path).unwrap_err().to_string().contains("10 minutes"));
    }
}
