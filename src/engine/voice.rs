//! A voice: what T3 and S3Gen know of a speaker, as plain numbers; its file, and the `conds.pt` of the reference.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use safetensors::tensor::{Dtype, TensorView};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::files::write_atomically;
use crate::weights::Weights;

/// Version of the voice file; a newer one is refused.
const FILE_VERSION: i64 = 1;

/// Mel bins of S3Gen.
const MEL_BINS: usize = 80;

/// A speaker, prepared from a clip. Cheap to keep and to save; loads in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Voice {
    /// Name for people.
    pub name: String,
    /// What T3 is conditioned on.
    pub t3: VoiceT3,
    /// What S3Gen is conditioned on.
    pub s3gen: VoiceS3Gen,
}

/// The T3 side of a voice.
#[derive(Debug, Clone, PartialEq)]
pub struct VoiceT3 {
    /// VoiceEncoder embedding.
    pub speaker_emb: Vec<f32>,
    /// Speech codes of the first seconds of the clip.
    pub prompt_tokens: Vec<u32>,
}

/// The S3Gen side of a voice.
#[derive(Debug, Clone, PartialEq)]
pub struct VoiceS3Gen {
    /// Speech codes of the first ten seconds of the clip.
    pub prompt_token: Vec<u32>,
    /// Their mel, row-major `(frames, 80)`; twice as many frames as codes, or one more.
    pub prompt_feat: Vec<f32>,
    /// CAMPPlus embedding.
    pub x_vector: Vec<f32>,
}

impl Voice {
    /// Saves the voice as safetensors.
    ///
    /// # Errors
    /// If the file cannot be written; an older one is then untouched.
    pub fn save(&self, path: &Path) -> Result<()> {
        let floats = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let ids = |ids: &[u32]| ids.iter().flat_map(|&id| i64::from(id).to_le_bytes()).collect::<Vec<u8>>();
        let frames = self.s3gen.prompt_feat.len() / MEL_BINS;
        let parts = [
            ("version", Dtype::I64, vec![1], FILE_VERSION.to_le_bytes().to_vec()),
            ("t3.speaker_emb", Dtype::F32, vec![1, self.t3.speaker_emb.len()], floats(&self.t3.speaker_emb)),
            (
                "t3.cond_prompt_speech_tokens",
                Dtype::I64,
                vec![1, self.t3.prompt_tokens.len()],
                ids(&self.t3.prompt_tokens),
            ),
            ("gen.prompt_token", Dtype::I64, vec![1, self.s3gen.prompt_token.len()], ids(&self.s3gen.prompt_token)),
            ("gen.prompt_feat", Dtype::F32, vec![1, frames, MEL_BINS], floats(&self.s3gen.prompt_feat)),
            ("gen.embedding", Dtype::F32, vec![1, self.s3gen.x_vector.len()], floats(&self.s3gen.x_vector)),
        ];
        let mut views = Vec::new();
        for (name, dtype, shape, bytes) in &parts {
            let view = TensorView::new(*dtype, shape.clone(), bytes).map_err(|e| Error::internal(e.to_string()))?;
            views.push((*name, view));
        }
        let about =
            HashMap::from([("format".to_owned(), "myna-voice".to_owned()), ("name".to_owned(), self.name.clone())]);
        let bytes = safetensors::serialize(views, Some(about)).map_err(|e| Error::internal(e.to_string()))?;
        write_atomically(path, |file| file.write_all(&bytes))
    }

    /// SHA-256 of all that is known of the speaker, in hex; the name does not count.
    pub fn hash(&self) -> String {
        let mut hasher = Sha256::new();
        for values in [&self.t3.speaker_emb, &self.s3gen.prompt_feat, &self.s3gen.x_vector] {
            hasher.update((values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| hasher.update(value.to_le_bytes()));
        }
        for ids in [&self.t3.prompt_tokens, &self.s3gen.prompt_token] {
            hasher.update((ids.len() as u64).to_le_bytes());
            ids.iter().for_each(|id| hasher.update(id.to_le_bytes()));
        }
        hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Loads a voice file of ours, or a `conds.pt` of the reference.
    ///
    /// # Errors
    /// If the file is neither.
    pub fn load(path: &Path) -> Result<Self> {
        let w = Weights::open(path, &Device::Cpu)?;
        if !w.contains("gen.prompt_token") {
            return Err(Error::model(
                path,
                "not a voice: it lacks gen.prompt_token; make one with `myna voice prepare`",
            ));
        }
        if let Some(version) = w.get_raw("version")? {
            let version = version.to_vec1::<i64>()?.first().copied().unwrap_or_default();
            if version != FILE_VERSION {
                return Err(Error::model(
                    path,
                    format!("a voice file of version {version}; this Myna reads version {FILE_VERSION}: update it"),
                ));
            }
        }
        let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        let voice = Self {
            name: w.metadata("name").filter(|name| !name.is_empty()).unwrap_or(name),
            t3: VoiceT3 {
                speaker_emb: floats(&w, "t3.speaker_emb")?,
                prompt_tokens: ids(&w, "t3.cond_prompt_speech_tokens")?,
            },
            s3gen: VoiceS3Gen {
                prompt_token: ids(&w, "gen.prompt_token")?,
                prompt_feat: floats(&w, "gen.prompt_feat")?,
                x_vector: floats(&w, "gen.embedding")?,
            },
        };
        voice.check(path)?;
        Ok(voice)
    }

    fn check(&self, path: &Path) -> Result<()> {
        let (frames, rest) = (self.s3gen.prompt_feat.len() / MEL_BINS, self.s3gen.prompt_feat.len() % MEL_BINS);
        let codes = self.s3gen.prompt_token.len();
        if rest != 0 || (frames != 2 * codes && frames != 2 * codes + 1) {
            return Err(Error::model(
                path,
                format!("a broken voice: {codes} prompt codes with {frames} mel frames; make it again"),
            ));
        }
        let finite = |values: &[f32]| values.iter().all(|v| v.is_finite());
        if !finite(&self.t3.speaker_emb) || !finite(&self.s3gen.prompt_feat) || !finite(&self.s3gen.x_vector) {
            return Err(Error::model(path, "a broken voice: it holds numbers that are not finite; make it again"));
        }
        Ok(())
    }
}

fn missing(w: &Weights, name: &str) -> Error {
    Error::model(w.path(), format!("not a voice: it lacks {name}; make one with `myna voice prepare`"))
}

fn floats(w: &Weights, name: &str) -> Result<Vec<f32>> {
    let tensor = w.get_raw(name)?.ok_or_else(|| missing(w, name))?;
    Ok(tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
}

/// Codes, also where the reference's own generation has turned them into floats in place.
fn ids(w: &Weights, name: &str) -> Result<Vec<u32>> {
    let tensor: Tensor = w.get_raw(name)?.ok_or_else(|| missing(w, name))?;
    let values = tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
    let id = |v: &f64| (v.fract() == 0.0 && (0.0..6561.0).contains(v)).then_some(*v as u32);
    values
        .iter()
        .map(|v| {
            id(v)
                .ok_or_else(|| Error::model(w.path(), format!("{name} holds {v}, which is no speech code (0 to 6560)")))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn fixture(name: &str) -> std::path::PathBuf {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/tiny")).join(name)
    }

    #[test]
    fn conds_of_the_reference_are_read_also_with_float_codes() {
        let expected = Weights::open(&fixture("stages/legacy_conds.safetensors"), &Device::Cpu).unwrap();
        for file in ["legacy/conds.pt", "legacy/conds_float_tokens.pt"] {
            let voice = Voice::load(&fixture(file)).unwrap();
            assert_eq!(voice.t3.speaker_emb, floats(&expected, "t3.speaker_emb").unwrap(), "{file}");
            assert_eq!(voice.t3.prompt_tokens, ids(&expected, "t3.cond_prompt_speech_tokens").unwrap(), "{file}");
            assert_eq!(voice.s3gen.prompt_token, ids(&expected, "gen.prompt_token").unwrap(), "{file}");
            assert_eq!(voice.s3gen.prompt_feat, floats(&expected, "gen.prompt_feat").unwrap(), "{file}");
            assert_eq!(voice.s3gen.x_vector, floats(&expected, "gen.embedding").unwrap(), "{file}");
        }
    }

    #[test]
    fn a_saved_voice_comes_back_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let mut voice = Voice::load(&fixture("legacy/conds.pt")).unwrap();
        voice.name = "Ada, warm".to_owned();
        voice.save(&path).unwrap();
        assert_eq!(Voice::load(&path).unwrap(), voice);
    }

    #[test]
    fn what_is_no_voice_is_refused() {
        let error = Voice::load(&fixture("shared/ve.safetensors")).unwrap_err().to_string();
        assert!(error.contains("not a voice"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let mut voice = Voice::load(&fixture("legacy/conds.pt")).unwrap();
        voice.s3gen.prompt_feat.truncate(160);
        voice.save(&path).unwrap();
        assert!(Voice::load(&path).unwrap_err().to_string().contains("broken voice"));
    }
}
