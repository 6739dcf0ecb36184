//! The models of the Chatterbox family and what sets them apart: the one table of files, defaults and capabilities.

use serde::{Deserialize, Serialize};

/// A member of the family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// 0.5 B, English, classifier-free guidance and exaggeration.
    English,
    /// 0.5 B, 23 languages, second weights.
    MultilingualV2,
    /// 0.5 B, 23 languages, third weights.
    MultilingualV3,
    /// 350 M, English, event tags, mean-flow decoder.
    Turbo,
    /// 110 M, English, event tags, mean-flow decoder.
    Nano,
}

/// What a variant is made of and can do.
#[derive(Debug)]
pub struct VariantSpec {
    /// Name on the command line.
    pub name: &'static str,
    /// Name for people.
    pub title: &'static str,
    /// Weights of T3; the folder that holds this file is of this variant.
    pub t3_file: &'static str,
    /// Weights of S3Gen, the preferred name first.
    pub s3gen_files: &'static [&'static str],
    /// Weights of the voice encoder, the preferred name first.
    pub voice_encoder_files: &'static [&'static str],
    /// Whether S3Gen is the distilled mean-flow decoder.
    pub mean_flow: bool,
    /// Seconds of the reference that T3 hears.
    pub t3_reference_secs: usize,
    /// Whether guidance (`cfg_weight`) and `exaggeration` have an effect.
    pub guided: bool,
    /// Whether it takes a language.
    pub multilingual: bool,
    /// Default number of flow steps.
    pub flow_steps: usize,
}

impl VariantSpec {
    /// Whether `min_p` has an effect: it filters the tokens of the Llama variants.
    pub fn uses_min_p(&self) -> bool {
        self.guided
    }

    /// Whether `top_k` has an effect: it filters the tokens of the GPT-2 variants.
    pub fn uses_top_k(&self) -> bool {
        !self.guided
    }
}

impl Variant {
    /// All variants.
    pub const ALL: [Self; 5] = [Self::English, Self::MultilingualV2, Self::MultilingualV3, Self::Turbo, Self::Nano];

    /// The facts about this variant.
    pub fn spec(self) -> &'static VariantSpec {
        match self {
            Self::English => &ENGLISH,
            Self::MultilingualV2 => &MULTILINGUAL_V2,
            Self::MultilingualV3 => &MULTILINGUAL_V3,
            Self::Turbo => &TURBO,
            Self::Nano => &NANO,
        }
    }

    /// The variant of that name, also `multilingual` for the third weights.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "multilingual" => Some(Self::MultilingualV3),
            _ => Self::ALL.into_iter().find(|v| v.spec().name == name),
        }
    }
}

impl std::fmt::Display for Variant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.spec().name)
    }
}

static ENGLISH: VariantSpec = VariantSpec {
    name: "english",
    title: "Chatterbox English",
    t3_file: "t3_cfg.safetensors",
    s3gen_files: &["s3gen.safetensors", "s3gen.pt", "s3gen_meanflow.safetensors"],
    voice_encoder_files: &["ve.safetensors", "ve.pt"],
    mean_flow: false,
    t3_reference_secs: 6,
    guided: true,
    multilingual: false,
    flow_steps: 10,
};

static MULTILINGUAL_V2: VariantSpec = VariantSpec {
    name: "multilingual-v2",
    title: "Chatterbox Multilingual v2",
    t3_file: "t3_mtl23ls_v2.safetensors",
    s3gen_files: &["s3gen.pt", "s3gen.safetensors"],
    voice_encoder_files: &["ve.pt", "ve.safetensors"],
    mean_flow: false,
    t3_reference_secs: 6,
    guided: true,
    multilingual: true,
    flow_steps: 10,
};

static MULTILINGUAL_V3: VariantSpec = VariantSpec {
    name: "multilingual-v3",
    title: "Chatterbox Multilingual v3",
    t3_file: "t3_mtl23ls_v3.safetensors",
    s3gen_files: &["s3gen.pt", "s3gen.safetensors"],
    voice_encoder_files: &["ve.pt", "ve.safetensors"],
    mean_flow: false,
    t3_reference_secs: 6,
    guided: true,
    multilingual: true,
    flow_steps: 10,
};

static TURBO: VariantSpec = VariantSpec {
    name: "turbo",
    title: "Chatterbox Turbo",
    t3_file: "t3_turbo_v1.safetensors",
    s3gen_files: &["s3gen_meanflow.safetensors"],
    voice_encoder_files: &["ve.safetensors", "ve.pt"],
    mean_flow: true,
    t3_reference_secs: 15,
    guided: false,
    multilingual: false,
    flow_steps: 2,
};

static NANO: VariantSpec = VariantSpec {
    name: "nano",
    title: "Chatterbox Nano",
    t3_file: "t3_nano_v1.safetensors",
    s3gen_files: &["s3gen_meanflow.safetensors"],
    voice_encoder_files: &["ve.safetensors", "ve.pt"],
    mean_flow: true,
    t3_reference_secs: 15,
    guided: false,
    multilingual: false,
    flow_steps: 2,
};
