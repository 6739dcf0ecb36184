//! `config.json` of a model folder: other dimensions and settings than those of the released checkpoints.

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::model_files::ModelFiles;
use crate::s3_tokenizer::S3TokenizerConfig;
use crate::s3gen::FlowConfig;
use crate::s3gen::campplus::CamPPlusConfig;
use crate::s3gen::hift::HiftConfig;
use crate::sampling::SamplingOptions;
use crate::t3::T3Config;
use crate::variant::Variant;
use crate::voice_encoder::VoiceEncoderConfig;

/// Name of the file.
pub(crate) const CONFIG_FILE: &str = "config.json";

/// Dimensions of all networks and the settings the weights were made for.
#[derive(Debug, Clone)]
pub(crate) struct ModelConfig {
    pub voice_encoder: VoiceEncoderConfig,
    pub s3_tokenizer: S3TokenizerConfig,
    pub camp_plus: CamPPlusConfig,
    pub flow: FlowConfig,
    pub hift: HiftConfig,
    pub t3: T3Config,
    /// How tokens are chosen by default.
    pub sampling: SamplingOptions,
    /// Flow steps by default.
    pub flow_steps: usize,
    /// Factor of the flow's initial noise; 1 in the reference.
    pub noise_scale: f32,
    /// Longest text spoken in one go, in characters; longer ones are spoken sentence by sentence.
    pub max_chars: usize,
    /// Whether English numbers and abbreviations are written out in words before they are spoken.
    pub expand_text: bool,
}

/// The file as it is written; what it leaves out is as released.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ConfigFile {
    ve: VoiceEncoderConfig,
    tok: S3TokenizerConfig,
    spk: CamPPlusConfig,
    flow: FlowConfig,
    hift: HiftConfig,
    t3: Option<T3Config>,
    t3_sampling: Option<SamplingFile>,
    cfm_steps: Option<usize>,
    cfm_noise_scale: Option<f32>,
    max_chars: Option<usize>,
    expand_text: bool,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default)]
struct SamplingFile {
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    cfg_weight: Option<f32>,
}

/// Characters that the released models speak well in one go (the maintainers advise up to 30 seconds).
const MAX_CHARS: usize = 300;

impl ModelConfig {
    /// The dimensions of `variant`, changed by the folder's `config.json` if it has one.
    pub(crate) fn load(files: &ModelFiles, variant: Variant) -> Result<Self> {
        let file = match files.read(CONFIG_FILE)? {
            Some(bytes) => serde_json::from_slice(&bytes)
                .map_err(|e| Error::model(files.path(CONFIG_FILE), format!("not a valid configuration: {e}")))?,
            None => ConfigFile::default(),
        };
        let t3 = file.t3.unwrap_or_else(|| match variant {
            Variant::English => T3Config::english(),
            Variant::MultilingualV2 | Variant::MultilingualV3 => T3Config::multilingual(),
            Variant::Turbo => T3Config::turbo(),
            Variant::Nano => T3Config::nano(),
        });
        let mut sampling = SamplingOptions::of(t3.backbone);
        if let Some(given) = file.t3_sampling {
            sampling = SamplingOptions {
                temperature: given.temperature.unwrap_or(sampling.temperature),
                top_k: given.top_k.unwrap_or(sampling.top_k),
                top_p: given.top_p.unwrap_or(sampling.top_p),
                min_p: given.min_p.unwrap_or(sampling.min_p),
                repetition_penalty: given.repetition_penalty.unwrap_or(sampling.repetition_penalty),
                cfg_weight: given.cfg_weight.unwrap_or(sampling.cfg_weight),
            };
        }
        Ok(Self {
            voice_encoder: file.ve,
            s3_tokenizer: file.tok,
            camp_plus: file.spk,
            flow: file.flow,
            hift: file.hift,
            t3,
            sampling,
            flow_steps: file.cfm_steps.unwrap_or(variant.spec().flow_steps),
            noise_scale: file.cfm_noise_scale.unwrap_or(1.0),
            max_chars: file.max_chars.unwrap_or(MAX_CHARS),
            expand_text: file.expand_text,
        })
    }
}
