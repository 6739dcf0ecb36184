//! VoiceEncoder: a clip of any length to one unit vector that says who speaks, which T3 is conditioned on.
//!
//! Silence is trimmed from both ends; windows of 1.6 s, 1.3 to the second, each pass three LSTM layers, a projection and
//! ReLU and are scaled to unit length; their mean, scaled again, is the embedding (after Resemblyzer: Wan et al.,
//! "Generalized end-to-end loss for speaker verification", 2018).

use candle_core::{D, Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::dsp::Features;
use crate::dsp::mel::voice_encoder_mel;
use crate::dsp::trim::trim;
use crate::error::{Error, Result};
use crate::nn::{Linear, Lstm};
use crate::weights::Weights;

/// Bands of [`voice_encoder_mel`].
const MELS: usize = 40;
/// Below the loudest frame by more than this is silence.
const TRIM_DB: f64 = 20.0;
/// Frames from one window to the next: 16000 / 1.3 / 160.
const STEP_FRAMES: usize = 77;
/// A last window that is filled to less than this share is left out.
const MIN_COVERAGE: f64 = 0.8;
/// A trimmed clip shorter than this cannot be transformed and is used untrimmed.
const MIN_SAMPLES: usize = 201;

/// Dimensions: the `ve` section of a model's `config.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VoiceEncoderConfig {
    /// Mel bands.
    pub num_mels: usize,
    /// Width of the LSTM.
    pub hidden: usize,
    /// Size of the embedding.
    pub embed: usize,
    /// LSTM layers.
    pub layers: usize,
    /// Frames in a window.
    #[serde(rename = "partial")]
    pub partial_frames: usize,
}

impl Default for VoiceEncoderConfig {
    fn default() -> Self {
        Self { num_mels: 40, hidden: 256, embed: 256, layers: 3, partial_frames: 160 }
    }
}

/// The network; weights only.
#[derive(Debug, Clone)]
pub struct VoiceEncoder {
    lstm: Lstm,
    proj: Linear,
    config: VoiceEncoderConfig,
    device: Device,
}

impl VoiceEncoder {
    /// Loads a `ve` checkpoint.
    ///
    /// # Errors
    /// If the file cannot be read or the dimensions are impossible; missing tensors are told by [`Weights::finish`].
    pub fn load(w: &Weights, config: &VoiceEncoderConfig) -> Result<Self> {
        if config.num_mels != MELS || config.hidden == 0 || config.layers == 0 || config.partial_frames == 0 {
            return Err(Error::model(
                w.path(),
                format!("its configuration cannot be that of a VoiceEncoder: {config:?}"),
            ));
        }
        // Scale and bias of the training loss.
        w.ignore("similarity_weight");
        w.ignore("similarity_bias");
        Ok(Self {
            lstm: Lstm::load(&w.pp("lstm"), config.num_mels, config.hidden, config.layers)?,
            proj: Linear::load(&w.pp("proj"), config.hidden, config.embed)?,
            config: config.clone(),
            device: w.device().clone(),
        })
    }

    /// A whole 16 kHz clip, however long, to its embedding, `(1, embed)`, of unit length.
    ///
    /// # Errors
    /// If the clip is shorter than 13 ms or holds values that are not numbers.
    pub fn embed(&self, wav16: &[f32]) -> Result<Tensor> {
        let voiced = &wav16[trim(wav16, TRIM_DB)];
        let mel = voice_encoder_mel(if voiced.len() < MIN_SAMPLES { wav16 } else { voiced })?;
        let partials = self.embed_partials(&self.partials(&mel)?)?;
        unit_length(&partials.mean_keepdim(0)?)
    }

    /// Windows `(B, partial, mels)`; the last one may end in silence.
    fn partials(&self, mel: &Features) -> Result<Tensor> {
        let (window, bands) = (self.config.partial_frames, mel.bands);
        let count = partial_count(mel.frames, window);
        let mut data = vec![0f32; count * window * bands];
        for (i, partial) in data.chunks_exact_mut(window * bands).enumerate() {
            let rest = mel.data.get(i * STEP_FRAMES * bands..).unwrap_or_default();
            let filled = rest.len().min(partial.len());
            partial[..filled].copy_from_slice(&rest[..filled]);
        }
        Ok(Tensor::from_vec(data, (count, window, bands), &self.device)?)
    }

    /// `(B, partial, mels) -> (B, embed)`, each of unit length.
    fn embed_partials(&self, partials: &Tensor) -> Result<Tensor> {
        unit_length(&self.proj.forward(&self.lstm.last(partials)?)?.relu()?)
    }
}

/// How many windows a mel of `frames` is cut into.
fn partial_count(frames: usize, window: usize) -> usize {
    let overlap = window.saturating_sub(STEP_FRAMES);
    let steps = frames.saturating_sub(overlap);
    let (count, rest) = (steps / STEP_FRAMES, steps % STEP_FRAMES);
    let covered = (rest + overlap) as f64 / window as f64 >= MIN_COVERAGE;
    count + usize::from(count == 0 || covered)
}

/// Each row divided by its length. A row of zeros, of which the reference makes NaN, stays.
fn unit_length(xs: &Tensor) -> Result<Tensor> {
    let norm = xs.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?.maximum(1e-12)?;
    Ok(xs.broadcast_div(&norm)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::dsp::testing::{Fixture, load_config, on_threads, relative_error};

    fn tiny() -> VoiceEncoder {
        let w = Weights::open(&Fixture::path("tiny/shared/ve.safetensors"), &Device::Cpu).unwrap();
        let ve = VoiceEncoder::load(&w, &load_config("tiny/english/config.json", "ve")).unwrap();
        w.finish().unwrap();
        ve
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn equals_the_reference() {
        let (ve, stage, input) =
            (tiny(), Fixture::open("tiny/stages/voice_encoder"), Fixture::open("tiny/stages/frontend"));
        let wav16 = input.values("wav16");
        let ends = trim(&wav16, TRIM_DB);
        assert_eq!(vec![ends.start as i64, ends.end as i64], stage.integers("trim_index"));
        let mel = voice_encoder_mel(&wav16[ends]).unwrap();
        let partials = ve.partials(&mel).unwrap();
        assert_eq!(partials.dims()[0] as i64, stage.integers("num_wins")[0]);
        let hidden = ve.lstm.last(&partials).unwrap();
        assert!(relative_error(&values(&hidden), &stage.values("lstm_last_hidden")) < 1e-5);
        assert!(relative_error(&values(&ve.proj.forward(&hidden).unwrap()), &stage.values("proj_out")) < 1e-5);
        assert!(relative_error(&values(&ve.embed(&wav16).unwrap()), &stage.values("speaker_emb")) < 1e-5);
    }

    #[test]
    fn the_embedded_encoder_loads_and_a_nonsensical_one_is_refused() {
        let w = Weights::open(&Fixture::path("../../models/embedded/ve.safetensors"), &Device::Cpu).unwrap();
        let config: VoiceEncoderConfig = load_config("../../models/embedded/config.json", "ve");
        let ve = VoiceEncoder::load(&w, &config).unwrap();
        w.finish().unwrap();
        let tone: Vec<f32> = (0..40_000).map(|n| (n as f32 * 0.05).sin() * 0.3).collect();
        assert_eq!(ve.embed(&tone).unwrap().dims(), [1, config.embed]);
        for wrong in [
            VoiceEncoderConfig { num_mels: 80, ..config.clone() },
            VoiceEncoderConfig { hidden: 0, ..config.clone() },
            VoiceEncoderConfig { partial_frames: 0, ..config },
        ] {
            assert!(VoiceEncoder::load(&w, &wrong).unwrap_err().is_bad_input());
        }
    }

    #[test]
    fn the_number_of_threads_changes_nothing() {
        let ve = tiny();
        let noise: Vec<f32> = (0..100_000).map(|n| ((n * n) as f32).sin() * 0.1).collect();
        let run = |threads| on_threads(threads, || values(&ve.embed(&noise).unwrap()));
        assert_eq!(run(1), run(3));
    }

    #[test]
    fn windows_are_counted_as_the_reference_counts_them() {
        // 0.8 of a window is 128 frames: 45 beyond the overlap of 83.
        for (frames, expected) in
            [(0, 1), (1, 1), (127, 1), (160, 1), (204, 1), (205, 2), (236, 2), (237, 2), (282, 3), (1001, 12)]
        {
            assert_eq!(partial_count(frames, 160), expected, "{frames}");
        }
    }

    #[test]
    fn any_clip_gives_a_vector_or_an_error() {
        let ve = tiny();
        let noise: Vec<f32> = (0..16_000).map(|n| ((n * n) as f32).sin() * 0.1).collect();
        for clip in [&noise[..], &noise[..201], &[0.0; 4000]] {
            let found = values(&ve.embed(clip).unwrap());
            let norm = found.iter().map(|x| x * x).sum::<f32>().sqrt();
            assert!((norm - 1.0).abs() < 1e-5 || norm == 0.0, "{norm}");
        }
        for clip in [&[][..], &noise[..200], &[f32::NAN; 4000]] {
            assert!(ve.embed(clip).unwrap_err().is_bad_input());
        }
    }
}
