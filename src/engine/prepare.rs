//! From a clip to a voice: what the reference calls `prepare_conditionals`.
//!
//! ```text
//! clip -> 24 kHz -> (Turbo, Nano: to -27 LUFS) -> first 10 s -> mel 80
//!                                              -> 16 kHz (torchaudio's sinc) -> CAMPPlus, S3 tokens
//!                -> 16 kHz (soxr) -> whole clip -> VoiceEncoder
//!                                 -> first 6 or 15 s -> S3 tokens
//! ```

use candle_core::Tensor;

use crate::dsp::loudness::gain_to;
use crate::dsp::mel::s3gen_mel;
use crate::dsp::resample::{Resampler, resample};
use crate::error::{Error, Result};
use crate::model::{Model, S3GEN_REFERENCE_SECS};
use crate::protocol::{CancelToken, Pcm};
use crate::trace::Trace;
use crate::voice::{Voice, VoiceS3Gen, VoiceT3};

/// Below this there is not enough to hear a voice in.
const MIN_SECS: f32 = 0.5;
/// Peak below which a clip is silence (-60 dBFS).
const MIN_PEAK: f32 = 1e-3;
/// Loudness to which Turbo and Nano bring the clip first.
const TURBO_LUFS: f64 = -27.0;
/// Loudness is measured from this length on.
const LOUDNESS_MIN_SECS: f32 = 0.4;

impl Model {
    /// Prepares a voice from a clip.
    ///
    /// # Errors
    /// If the clip is too short, silent or not a sound; or cancelled.
    pub fn prepare_voice(&self, clip: &Pcm, name: &str, cancel: &CancelToken, trace: &Trace) -> Result<Voice> {
        check_clip(clip)?;
        self.lanes.all.install(|| self.prepare(clip, name, cancel, trace))
    }

    fn prepare(&self, clip: &Pcm, name: &str, cancel: &CancelToken, trace: &Trace) -> Result<Voice> {
        let mut wav24 = clip.at_rate(24_000)?.into_owned();
        if self.variant.spec().mean_flow && !self.info().embedded && clip.secs() >= LOUDNESS_MIN_SECS {
            let gain = gain_to(&wav24, 24_000, TURBO_LUFS);
            wav24.iter_mut().for_each(|s| *s *= gain);
        }
        let wav16 = resample(&wav24, 24_000, 16_000)?;
        let head24 = &wav24[..wav24.len().min(S3GEN_REFERENCE_SECS * 24_000)];
        let head16 = &wav16[..wav16.len().min(self.config.t3.prompt_tokens * 16_000 / 25)];
        stop_if(cancel)?;
        let (s3gen, (speaker_emb, prompt_tokens)) = rayon::join(
            || self.s3gen_side(head24, cancel),
            || {
                rayon::join(
                    || self.voice_encoder.embed(&wav16),
                    || self.s3_tokenizer.encode(head16, Some(self.config.t3.prompt_tokens)),
                )
            },
        );
        let voice = Voice {
            name: name.to_owned(),
            t3: VoiceT3 { speaker_emb: speaker_emb?.flatten_all()?.to_vec1()?, prompt_tokens: prompt_tokens? },
            s3gen: s3gen?,
        };
        trace.floats("speaker_emb", &voice.t3.speaker_emb, (1, voice.t3.speaker_emb.len()))?;
        trace.ids("cond_prompt_tokens", &voice.t3.prompt_tokens)?;
        trace.ids("prompt_token", &voice.s3gen.prompt_token)?;
        let frames = voice.s3gen.prompt_feat.len() / 80;
        trace.floats("prompt_feat", &voice.s3gen.prompt_feat, (1, frames, 80))?;
        trace.floats("x_vector", &voice.s3gen.x_vector, (1, voice.s3gen.x_vector.len()))?;
        Ok(voice)
    }

    /// `embed_ref` of the reference.
    fn s3gen_side(&self, wav24: &[f32], cancel: &CancelToken) -> Result<VoiceS3Gen> {
        let mel = s3gen_mel(wav24)?;
        let wav16 = Resampler::sinc_hann(24_000, 16_000)?.resample(wav24);
        stop_if(cancel)?;
        let (x_vector, tokens) =
            rayon::join(|| self.camp_plus.x_vector(&wav16), || self.s3_tokenizer.encode(&wav16, None));
        let x_vector: Tensor = x_vector?;
        let mut prompt_token = tokens?;
        // A mel of odd length keeps its last frame; the codes are cut to whole pairs of frames.
        prompt_token.truncate(mel.frames / 2);
        Ok(VoiceS3Gen { prompt_token, prompt_feat: mel.data, x_vector: x_vector.flatten_all()?.to_vec1()? })
    }
}

fn stop_if(cancel: &CancelToken) -> Result<()> {
    if cancel.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
}

fn check_clip(clip: &Pcm) -> Result<()> {
    clip.check()?;
    let secs = clip.secs();
    if secs < MIN_SECS {
        return Err(Error::input(format!(
            "the clip is {secs:.1} seconds long; a voice needs at least {MIN_SECS}, better 10"
        )));
    }
    let peak = clip.samples.iter().fold(0f32, |peak, s| peak.max(s.abs()));
    if peak < MIN_PEAK {
        return Err(Error::input("the clip is silent; choose one with somebody speaking"));
    }
    Ok(())
}
