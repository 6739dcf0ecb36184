//! What is in a model folder, and whether it is whole: checked by name and shape, without reading the weights.

use std::path::Path;

use candle_core::Device;
use serde::Serialize;

use crate::config::{CONFIG_FILE, ModelConfig};
use crate::error::{Error, Result};
use crate::model_files::ModelFiles;
use crate::protocol::ModelSource;
use crate::s3_tokenizer::S3Tokenizer;
use crate::s3gen::S3Gen;
use crate::s3gen::campplus::CamPPlus;
use crate::s3gen::hift::Hift;
use crate::t3::T3;
use crate::text::{TextTokenizer, TokenizerKind};
use crate::variant::Variant;
use crate::voice::Voice;
use crate::voice_encoder::VoiceEncoder;

/// The outcome.
#[derive(Debug, Serialize)]
pub struct Inspection {
    /// The folder.
    pub folder: String,
    /// Its files that a model may use.
    pub files: Vec<FileReport>,
    /// The variants whose T3 is here.
    pub variants: Vec<VariantReport>,
}

/// One file.
#[derive(Debug, Serialize)]
pub struct FileReport {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

/// One variant.
#[derive(Debug, Serialize)]
pub struct VariantReport {
    /// Its name.
    pub name: &'static str,
    /// Whether it can be loaded.
    pub complete: bool,
    /// What is missing or does not fit, each with what to do.
    pub problems: Vec<String>,
}

/// Inspects `folder`.
///
/// # Errors
/// If it is no folder or cannot be read.
pub fn inspect(folder: &Path) -> Result<Inspection> {
    let model = ModelFiles::of(&ModelSource::Folder(folder.to_owned()))?;
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|e| Error::io(folder, e))? {
        let entry = entry.map_err(|e| Error::io(folder, e))?;
        let data = entry.metadata().map_err(|e| Error::io(entry.path(), e))?;
        if data.is_file() {
            files.push(FileReport { name: entry.file_name().to_string_lossy().into_owned(), bytes: data.len() });
        }
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    let variants = model.variants().into_iter().map(|variant| report(&model, folder, variant)).collect();
    Ok(Inspection { folder: folder.display().to_string(), files, variants })
}

fn report(files: &ModelFiles, folder: &Path, variant: Variant) -> VariantReport {
    let mut problems = Vec::new();
    let mut note = |outcome: Result<()>| {
        if let Err(error) = outcome {
            problems.push(error.to_string());
        }
    };
    match ModelConfig::load(files, variant) {
        Ok(config) => {
            note(TextTokenizer::load(folder, variant.tokenizer_kind()).map(drop));
            note(check_voice_encoder(files, variant, &config));
            note(check_t3(files, variant, &config));
            note(check_s3gen(files, variant, &config));
            let conds = folder.join("conds.pt");
            if conds.exists() {
                note(Voice::load(&conds).map(drop));
            }
        }
        Err(error) => problems.push(error.to_string()),
    }
    VariantReport { name: variant.spec().name, complete: problems.is_empty(), problems }
}

fn check_voice_encoder(files: &ModelFiles, variant: Variant, config: &ModelConfig) -> Result<()> {
    let w = files.weights(variant.spec().voice_encoder_files, &Device::Cpu)?.shapes_only();
    VoiceEncoder::load(&w, &config.voice_encoder)?;
    w.finish()
}

fn check_t3(files: &ModelFiles, variant: Variant, config: &ModelConfig) -> Result<()> {
    let w = files.weights(&[variant.spec().t3_file], &Device::Cpu)?.shapes_only();
    T3::load(&w, &config.t3)?;
    w.finish()
}

fn check_s3gen(files: &ModelFiles, variant: Variant, config: &ModelConfig) -> Result<()> {
    let w = files.weights(variant.spec().s3gen_files, &Device::Cpu)?.shapes_only();
    S3Gen::load(&w, &config.flow)?;
    Hift::load(&w.pp("mel2wav"), &config.hift)?;
    S3Tokenizer::load(&w.pp("tokenizer"), &config.s3_tokenizer)?;
    CamPPlus::load(&w.pp("speaker_encoder"), &config.camp_plus)?;
    w.finish()
}

impl Variant {
    /// The vocabulary of this variant.
    pub fn tokenizer_kind(self) -> TokenizerKind {
        match self {
            Self::English => TokenizerKind::English,
            Self::MultilingualV2 | Self::MultilingualV3 => TokenizerKind::Multilingual,
            Self::Turbo | Self::Nano => TokenizerKind::Gpt2,
        }
    }
}

impl std::fmt::Display for Inspection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}", self.folder)?;
        for file in &self.files {
            writeln!(f, "  {:>9.1} MB  {}", file.bytes as f64 / 1e6, file.name)?;
        }
        if self.variants.is_empty() {
            let names: Vec<_> = Variant::ALL.iter().map(|v| v.spec().t3_file).collect();
            return write!(
                f,
                "no model: none of {} is here ({CONFIG_FILE} may give other dimensions)",
                names.join(", ")
            );
        }
        for (i, variant) in self.variants.iter().enumerate() {
            let end = if i + 1 < self.variants.len() { "\n" } else { "" };
            if variant.complete {
                write!(f, "{}: complete{end}", variant.name)?;
            } else {
                write!(f, "{}: cannot be loaded\n  {}{end}", variant.name, variant.problems.join("\n  "))?;
            }
        }
        Ok(())
    }
}
