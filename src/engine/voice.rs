//! A voice: what T3 and S3Gen know of a speaker, as plain numbers.

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
    /// Their mel, row-major `(frames, 80)`.
    pub prompt_feat: Vec<f32>,
    /// CAMPPlus embedding, 192 values.
    pub x_vector: Vec<f32>,
}
