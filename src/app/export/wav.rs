//! WAV: files through `hound`, pipes with a header that promises no length; both with a `LIST INFO` chunk.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};

use hound::{Sample, SampleFormat, WavSpec, WavWriter};

use super::{Provenance, quantize};

/// A WAV file under way.
pub(super) struct WavFile {
    writer: WavWriter<BufWriter<File>>,
    spec: WavSpec,
}

impl WavFile {
    pub(super) fn new(file: File, spec: WavSpec) -> std::io::Result<Self> {
        Ok(Self { writer: WavWriter::new(BufWriter::new(file), spec).map_err(io)?, spec })
    }

    pub(super) fn push(&mut self, samples: &[f32]) -> std::io::Result<()> {
        for &sample in samples {
            match self.spec.sample_format {
                SampleFormat::Float => self.writer.write_sample(sample),
                SampleFormat::Int => self.writer.write_sample(quantize(sample, self.spec.bits_per_sample)),
            }
            .map_err(io)?;
        }
        Ok(())
    }

    /// Writes the lengths into the header, and the provenance behind the samples of `file`, the same file.
    pub(super) fn finish(self, file: &mut File, about: &str) -> std::io::Result<()> {
        self.writer.finalize().map_err(io)?;
        let end = file.seek(SeekFrom::End(0))?;
        let list = info_list(about);
        file.write_all(&list)?;
        file.seek(SeekFrom::Start(4))?;
        file.write_all(&((end as usize + list.len() - 8) as u32).to_le_bytes())
    }
}

/// The header of a WAV whose end is not known, with its provenance in front of the samples.
pub(super) fn endless_header(spec: WavSpec, about: &str) -> Vec<u8> {
    /// The chunk of samples has a name and a length, and nothing follows them.
    const DATA_HEADER: usize = 8;
    let mut header = spec.into_header_for_infinite_file();
    let data = header.len() - DATA_HEADER;
    header.splice(data..data, info_list(about));
    header
}

/// Samples as they stand in a WAV file.
pub(super) fn write_samples(out: &mut impl Write, samples: &[f32], spec: WavSpec) -> std::io::Result<()> {
    let mut bytes = Vec::with_capacity(samples.len() * usize::from(spec.bits_per_sample / 8));
    for &sample in samples {
        match spec.sample_format {
            SampleFormat::Float => sample.write(&mut bytes, spec.bits_per_sample),
            SampleFormat::Int => quantize(sample, spec.bits_per_sample).write(&mut bytes, spec.bits_per_sample),
        }
        .map_err(io)?;
    }
    out.write_all(&bytes)
}

fn io(error: hound::Error) -> std::io::Error {
    match error {
        hound::Error::IoError(e) => e,
        e => std::io::Error::other(e),
    }
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
