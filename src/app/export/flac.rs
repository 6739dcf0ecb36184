//! FLAC, 24-bit, block by block through `flacenc`.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};

use flacenc::bitsink::ByteSink;
use flacenc::component::{BitRepr, MetadataBlockData, Stream, StreamInfo};
use flacenc::config::Encoder;
use flacenc::encode_fixed_size_frame;
use flacenc::error::{Verified, Verify};
use flacenc::source::{Context, Fill, FrameBuf};

use super::{Provenance, quantize};

const BITS: u16 = 24;

/// A FLAC file under way.
pub(super) struct FlacFile {
    out: BufWriter<File>,
    config: Verified<Encoder>,
    info: StreamInfo,
    /// Of all samples: their digest and number.
    context: Context,
    frame: FrameBuf,
    /// Samples that are no whole block yet.
    waiting: Vec<i32>,
    about: String,
    frames: usize,
}

impl FlacFile {
    pub(super) fn new(file: File, sample_rate_hz: u32, about: &str) -> std::io::Result<Self> {
        let config = Encoder::default().into_verified().map_err(|(_, e)| failed(e))?;
        let mut info = StreamInfo::new(sample_rate_hz as usize, 1, usize::from(BITS)).map_err(failed)?;
        // The shorter last block does not count; decoders take a smaller minimum for a stream of varying blocks.
        info.set_block_sizes(config.block_size, config.block_size).map_err(failed)?;
        let frame = FrameBuf::with_size(1, config.block_size).map_err(failed)?;
        let context = Context::new(usize::from(BITS), 1);
        let out = BufWriter::new(file);
        let mut flac =
            Self { out, config, info, context, frame, waiting: Vec::new(), about: about.to_owned(), frames: 0 };
        flac.write_header()?;
        Ok(flac)
    }

    pub(super) fn push(&mut self, samples: &[f32]) -> std::io::Result<()> {
        self.waiting.extend(samples.iter().map(|&sample| quantize(sample, BITS)));
        let block = self.config.block_size;
        let whole = self.waiting.len() / block * block;
        let blocks: Vec<i32> = self.waiting.drain(..whole).collect();
        blocks.chunks(block).try_for_each(|block| self.write_block(block))
    }

    /// Writes what waits, and the header again with what is known by now.
    pub(super) fn finish(mut self) -> std::io::Result<()> {
        let rest = std::mem::take(&mut self.waiting);
        if !rest.is_empty() {
            self.write_block(&rest)?;
        }
        self.info.set_total_samples(self.context.total_samples());
        self.info.set_md5_digest(&self.context.md5_digest());
        self.out.seek(SeekFrom::Start(0))?;
        self.write_header()?;
        self.out.flush()
    }

    fn write_block(&mut self, samples: &[i32]) -> std::io::Result<()> {
        self.context.fill_interleaved(samples).map_err(failed)?;
        if samples.len() < self.config.block_size {
            self.frame = FrameBuf::with_size(1, samples.len()).map_err(failed)?;
        }
        self.frame.fill_interleaved(samples).map_err(failed)?;
        let frame = encode_fixed_size_frame(&self.config, &self.frame, self.frames, &self.info).map_err(failed)?;
        self.frames += 1;
        let mut sink = ByteSink::new();
        frame.write(&mut sink).map_err(failed)?;
        self.out.write_all(&sink.into_inner())
    }

    /// Everything before the samples; always of the same length.
    fn write_header(&mut self) -> std::io::Result<()> {
        let mut stream = Stream::with_stream_info(self.info.clone());
        /// The type of a block of Vorbis comments.
        const VORBIS_COMMENT: u8 = 4;
        let comment = MetadataBlockData::new_unknown(VORBIS_COMMENT, &vorbis_comment(&self.about)).map_err(failed)?;
        stream.add_metadata_block(comment);
        let mut sink = ByteSink::new();
        stream.write(&mut sink).map_err(failed)?;
        self.out.write_all(&sink.into_inner())
    }
}

fn failed(error: impl std::fmt::Display) -> std::io::Error {
    std::io::Error::other(format!("FLAC encoding failed: {error}"))
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
