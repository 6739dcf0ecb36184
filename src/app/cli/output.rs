//! Where spoken sound goes: a file that appears when it is whole, or standard output while it is made.

use std::io::{Stdout, stdout};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use myna_engine::Error;
use myna_engine::files::AtomicFile;

use super::report::{Report, print_json, print_line, print_note};
use crate::export::{Format, Provenance, RATES_HZ, SoundFile, SoundPipe, even_out};
use crate::player::StreamResampler;

/// Options of commands that make sound.
#[derive(Debug, Clone, Args)]
pub struct OutputArgs {
    /// Where to write the sound: a file ending in .wav or .flac, or `-` for standard output, sample by sample as it is made.
    #[arg(long, value_name = "FILE|-")]
    out: Option<PathBuf>,
    /// How samples are stored [default: by the name of the file: 16-bit WAV or FLAC]. The pcm formats have no header and are
    /// for standard output only.
    #[arg(long, value_enum)]
    format: Option<FormatArg>,
    /// Samples per second: 24000, 44100 or 48000.
    #[arg(long, value_name = "HZ", default_value_t = RATES_HZ[0], value_parser = parse_rate)]
    rate: u32,
    /// Bring the loudness to -16 LUFS; the sound is then written when all of it is made.
    #[arg(long)]
    normalize: bool,
    /// Print one JSON object with all figures (to standard error where the sound goes to standard output).
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FormatArg {
    Wav16,
    Wav24,
    Wav32f,
    Flac,
    Pcm16,
    Pcm24,
    Pcm32f,
}

impl FormatArg {
    fn format(self) -> Format {
        match self {
            Self::Wav16 | Self::Pcm16 => Format::Wav16,
            Self::Wav24 | Self::Pcm24 => Format::Wav24,
            Self::Wav32f | Self::Pcm32f => Format::Wav32f,
            Self::Flac => Format::Flac,
        }
    }

    fn is_raw(self) -> bool {
        matches!(self, Self::Pcm16 | Self::Pcm24 | Self::Pcm32f)
    }
}

fn parse_rate(text: &str) -> Result<u32, String> {
    let rate = text.parse().ok().filter(|rate| RATES_HZ.contains(rate));
    rate.ok_or_else(|| format!("choose one of {}", RATES_HZ.map(|rate| rate.to_string()).join(", ")))
}

/// A checked destination.
#[derive(Debug)]
enum Target {
    File(PathBuf, Format),
    Pipe(Format),
    Raw(Format),
    /// Only played.
    Nowhere,
}

impl OutputArgs {
    /// Refuses an output before minutes of work, not after. Sound that is `heard` need not be written.
    pub fn check(&self, heard: bool) -> anyhow::Result<()> {
        match self.target()? {
            Target::File(path, _) => drop(AtomicFile::create(&path)?),
            Target::Nowhere if !heard => return Err(Error::input("say where the sound goes: `--out FILE`").into()),
            _ => {}
        }
        Ok(())
    }

    fn target(&self) -> anyhow::Result<Target> {
        let Some(path) = &self.out else { return Ok(Target::Nowhere) };
        let format = self.format;
        if path.as_os_str() == "-" {
            return match format {
                Some(FormatArg::Flac) => Err(Error::input("FLAC cannot be piped; choose a WAV format").into()),
                Some(raw) if raw.is_raw() => Ok(Target::Raw(raw.format())),
                other => Ok(Target::Pipe(other.map_or(Format::Wav16, FormatArg::format))),
            };
        }
        if format.is_some_and(FormatArg::is_raw) {
            let message =
                "bare samples could not say that they are generated; write a WAV, or pipe them with `--out -`";
            return Err(Error::input(message).into());
        }
        let format = format.map_or_else(|| format_of(path), |format| Ok(format.format()))?;
        Ok(Target::File(path.clone(), format))
    }

    /// Begins the output.
    pub fn open(&self, provenance: &Provenance) -> anyhow::Result<Sink> {
        let kind = match self.target()? {
            Target::File(path, format) => Kind::File(SoundFile::create(&path, self.rate, format, provenance)?),
            Target::Pipe(format) => Kind::Pipe(SoundPipe::wav(stdout(), self.rate, format, provenance)?),
            Target::Raw(format) => Kind::Pipe(SoundPipe::raw(stdout(), format)),
            Target::Nowhere => Kind::Nowhere,
        };
        let held = self.normalize.then(Vec::new);
        Ok(Sink { kind, resampler: StreamResampler::new(self.rate)?, rate_hz: self.rate, held, ready: Vec::new() })
    }

    /// Says what was done, where it does not mix with the sound.
    pub fn report(&self, report: &Report) -> anyhow::Result<()> {
        let piped = self.out.as_ref().is_some_and(|path| path.as_os_str() == "-");
        if piped {
            print_note(&if self.json { serde_json::to_string(report)? } else { report.line() });
            return Ok(());
        }
        match &self.out {
            _ if self.json => print_json(report),
            Some(path) => print_line(&format!("{}: {}", path.display(), report.line())),
            None => print_line(&report.line()),
        }
    }
}

/// The format for a file name.
fn format_of(path: &Path) -> anyhow::Result<Format> {
    let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default();
    match extension.as_str() {
        "wav" => Ok(Format::Wav16),
        "flac" => Ok(Format::Flac),
        _ => Err(Error::input(format!("{}: the name must end in .wav or .flac", path.display())).into()),
    }
}

/// An output under way.
#[derive(Debug)]
pub struct Sink {
    kind: Kind,
    resampler: StreamResampler,
    rate_hz: u32,
    /// All samples so far, where the loudness of the whole must be known first.
    held: Option<Vec<f32>>,
    ready: Vec<f32>,
}

#[derive(Debug)]
enum Kind {
    File(SoundFile),
    Pipe(SoundPipe<Stdout>),
    Nowhere,
}

impl Sink {
    /// More sound, at 24 kHz.
    pub fn push(&mut self, samples: &[f32]) -> anyhow::Result<()> {
        self.resampler.push(samples, &mut self.ready);
        self.write()
    }

    fn write(&mut self) -> anyhow::Result<()> {
        if let Some(held) = &mut self.held {
            held.append(&mut self.ready);
            return Ok(());
        }
        match &mut self.kind {
            Kind::File(file) => file.push(&self.ready)?,
            Kind::Pipe(pipe) => pipe.push(&self.ready)?,
            Kind::Nowhere => {}
        }
        self.ready.clear();
        Ok(())
    }

    /// All sound was pushed.
    pub fn finish(mut self) -> anyhow::Result<()> {
        self.resampler.finish(&mut self.ready);
        self.write()?;
        if let Some(mut whole) = self.held.take() {
            even_out(&mut whole, self.rate_hz);
            self.ready = whole;
            self.write()?;
        }
        match self.kind {
            Kind::File(file) => Ok(file.finish()?),
            Kind::Pipe(_) | Kind::Nowhere => Ok(()),
        }
    }
}
