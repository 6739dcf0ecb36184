//! S3TokenizerV2: 16 kHz speech to 25 codes a second, each one of 3^8.
//!
//! Log-mel at 100 frames/s, two convolutions of stride 2, transformer blocks whose attention also remembers its values
//! through a depthwise convolution (FSMN), and finite scalar quantisation: eight numbers in -1..1, each rounded to one of
//! three, read as the digits of a number to the base 3. Source: CosyVoice 2 (Du et al. 2024), package `s3tokenizer`.

use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::dsp::Features;
use crate::dsp::mel::s3_log_mel;
use crate::error::{Error, Result};
use crate::nn::{Activation, Conv1d, ConvConfig, DepthwiseConv1d, LayerNorm, Linear, Mask, Rope, add, attend};
use crate::weights::Weights;

/// Bands of [`s3_log_mel`].
const MELS: usize = 128;
/// Mel frames to one code.
const FRAMES_PER_CODE: usize = 4;
/// A longer mel is cut into windows of this many frames, 30 s,
const WINDOW_FRAMES: usize = 3000;
/// one every 26 s, so that neighbours share 4 s,
const WINDOW_STEP_FRAMES: usize = 2600;
/// of which each gives up half.
const MARGIN_CODES: usize = (WINDOW_FRAMES - WINDOW_STEP_FRAMES) / FRAMES_PER_CODE / 2;
const LAYER_NORM_EPS: f32 = 1e-5;
const ROPE_THETA: f32 = 10_000.0;
const FSMN_KERNEL: usize = 31;
const DIGITS: usize = 8;
/// Keeps `tanh` away from the ends of its range; to f32 precision the value in the reference.
const FSQ_BOUND: f32 = 0.999;

/// Dimensions: the `tok` section of a model's `config.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct S3TokenizerConfig {
    /// Mel bands.
    pub n_mels: usize,
    /// Width.
    #[serde(rename = "state")]
    pub dim: usize,
    /// Attention heads.
    #[serde(rename = "head")]
    pub heads: usize,
    /// Transformer blocks.
    #[serde(rename = "layer")]
    pub layers: usize,
}

impl Default for S3TokenizerConfig {
    fn default() -> Self {
        Self { n_mels: 128, dim: 1280, heads: 20, layers: 6 }
    }
}

/// The network; weights only.
#[derive(Debug, Clone)]
pub struct S3Tokenizer {
    conv1: Conv1d,
    conv2: Conv1d,
    blocks: Vec<Block>,
    project_down: Linear,
    rope: Rope,
    device: Device,
}

impl S3Tokenizer {
    /// Loads the tensors below `tokenizer` of an S3Gen checkpoint.
    ///
    /// # Errors
    /// If the file cannot be read or the dimensions are impossible; missing tensors are told by [`Weights::finish`].
    pub fn load(w: &Weights, config: &S3TokenizerConfig) -> Result<Self> {
        if config.n_mels != MELS || config.heads == 0 || !config.dim.is_multiple_of(2 * config.heads) {
            return Err(Error::model(w.path(), format!("its configuration cannot be that of a tokenizer: {config:?}")));
        }
        // Tables that are computed here.
        w.ignore("_mel_filters");
        w.ignore("window");
        let (dim, encoder) = (config.dim, w.pp("encoder"));
        let head_dim = dim / config.heads;
        let inv_freq: Vec<f32> =
            (0..head_dim / 2).map(|k| 1.0 / ROPE_THETA.powf((2 * k) as f32 / head_dim as f32)).collect();
        let halve = ConvConfig::strided(3, 2, 1);
        Ok(Self {
            conv1: Conv1d::load(&encoder.pp("conv1"), config.n_mels, dim, halve)?,
            conv2: Conv1d::load(&encoder.pp("conv2"), dim, dim, halve)?,
            blocks: (0..config.layers)
                .map(|i| Block::load(&encoder.pp("blocks").pp(i), dim, config.heads))
                .collect::<Result<_>>()?,
            project_down: Linear::load(&w.pp("quantizer._codebook.project_down"), dim, DIGITS)?,
            rope: Rope::new(&inv_freq, WINDOW_FRAMES / FRAMES_PER_CODE, w.device())?,
            device: w.device().clone(),
        })
    }

    /// The codes of a 16 kHz clip, one to 40 ms (the last may be shorter); at most `max_codes` from its start.
    ///
    /// # Errors
    /// If the clip is shorter than 13 ms or holds values that are not numbers.
    pub fn encode(&self, wav16: &[f32], max_codes: Option<usize>) -> Result<Vec<u32>> {
        // The level of the whole clip counts, also where only its start is encoded.
        let mut mel = s3_log_mel(wav16)?;
        if let Some(frames) = max_codes.map(|codes| codes.saturating_mul(FRAMES_PER_CODE)) {
            mel.frames = mel.frames.min(frames);
            mel.data.truncate(mel.frames * mel.bands);
        }
        self.encode_mel(&mel)
    }

    /// The codes of a log-mel of any length.
    ///
    /// Windows overlap and meet in the middle of what they share. The reference opens one more window where its
    /// predecessor already reaches the end, and then drops up to 50 codes, two seconds of speech, at their seam; here
    /// that window is not opened. For all other lengths the codes are those of the reference.
    fn encode_mel(&self, mel: &Features) -> Result<Vec<u32>> {
        let starts: Vec<usize> = windows(mel.frames).collect();
        let mut codes = Vec::with_capacity(mel.frames.div_ceil(FRAMES_PER_CODE));
        for (i, &start) in starts.iter().enumerate() {
            let end = mel.frames.min(start + WINDOW_FRAMES);
            let data = mel.data[start * mel.bands..end * mel.bands].to_vec();
            let window = Features { data, frames: end - start, bands: mel.bands };
            let window = self.encode_window(&window.tensor(&self.device)?)?;
            let first = if i == 0 { 0 } else { MARGIN_CODES };
            let last = if i + 1 == starts.len() { window.len() } else { window.len() - MARGIN_CODES };
            codes.extend_from_slice(&window[first..last]);
        }
        Ok(codes)
    }

    /// `mel: (1, T, 128)`, T up to 3000, to `ceil(T / 4)` codes.
    fn encode_window(&self, mel: &Tensor) -> Result<Vec<u32>> {
        let digits = self.project_down.forward(&self.hidden(mel)?)?.squeeze(0)?.to_vec2::<f32>()?;
        Ok(digits.iter().map(|row| code(row)).collect())
    }

    /// `mel: (1, T, 128) -> (1, ceil(T / 4), dim)`.
    fn hidden(&self, mel: &Tensor) -> Result<Tensor> {
        let mut xs = self.conv1.forward_act(mel, Activation::Gelu)?;
        xs = self.conv2.forward_act(&xs, Activation::Gelu)?;
        for block in &self.blocks {
            xs = block.forward(&xs, &self.rope)?;
        }
        Ok(xs)
    }
}

/// Where the windows of a mel start. Each but the first has something that its predecessor has not.
fn windows(frames: usize) -> impl Iterator<Item = usize> {
    let overlap = WINDOW_FRAMES - WINDOW_STEP_FRAMES;
    let single = frames <= WINDOW_FRAMES;
    (0..frames)
        .step_by(WINDOW_STEP_FRAMES)
        .take_while(move |&start| start == 0 || (!single && start + overlap <= frames))
}

/// Finite scalar quantisation: eight values to one code, the first the lowest digit.
fn code(values: &[f32]) -> u32 {
    // A value that is not a number becomes the digit 0.
    let digit = |x: &f32| ((x.tanh() * FSQ_BOUND).round_ties_even() + 1.0) as u32;
    values.iter().rev().fold(0, |code, x| 3 * code + digit(x))
}

#[derive(Debug, Clone)]
struct Block {
    attn: FsmnAttention,
    attn_ln: LayerNorm,
    mlp_in: Linear,
    mlp_out: Linear,
    mlp_ln: LayerNorm,
}

impl Block {
    fn load(w: &Weights, dim: usize, heads: usize) -> Result<Self> {
        Ok(Self {
            attn: FsmnAttention::load(&w.pp("attn"), dim, heads)?,
            attn_ln: LayerNorm::load(&w.pp("attn_ln"), dim, LAYER_NORM_EPS)?,
            mlp_in: Linear::load(&w.pp("mlp.0"), dim, 4 * dim)?,
            mlp_out: Linear::load(&w.pp("mlp.2"), 4 * dim, dim)?,
            mlp_ln: LayerNorm::load(&w.pp("mlp_ln"), dim, LAYER_NORM_EPS)?,
        })
    }

    /// `(1, T, dim) -> (1, T, dim)`.
    fn forward(&self, xs: &Tensor, rope: &Rope) -> Result<Tensor> {
        let xs = add(xs, &self.attn.forward(&self.attn_ln.forward(xs)?, rope)?)?;
        let inner = self.mlp_in.forward_act(&self.mlp_ln.forward(&xs)?, Activation::Gelu)?;
        self.mlp_out.forward_add(&inner, &xs)
    }
}

/// Attention over the whole window, plus a memory of its values: `out(softmax(q kᵀ / √d) v) + fsmn(v) + v`.
#[derive(Debug, Clone)]
struct FsmnAttention {
    /// Query, key and value as one product.
    qkv: Linear,
    out: Linear,
    fsmn_block: DepthwiseConv1d,
    heads: usize,
}

impl FsmnAttention {
    fn load(w: &Weights, dim: usize, heads: usize) -> Result<Self> {
        let query = Linear::load(&w.pp("query"), dim, dim)?;
        let value = Linear::load(&w.pp("value"), dim, dim)?;
        // The key has no bias.
        let zeros = Tensor::zeros(dim, candle_core::DType::F32, w.device())?;
        let w_key = w.pp("key");
        let key = Linear::made(&w_key, (dim, dim), || w_key.get("weight", (dim, dim)), Some(zeros))?;
        Ok(Self {
            qkv: Linear::fuse(&[&query, &key, &value])?,
            out: Linear::load(&w.pp("out"), dim, dim)?,
            fsmn_block: DepthwiseConv1d::load(&w.pp("fsmn_block"), dim, FSMN_KERNEL)?,
            heads,
        })
    }

    /// `(1, T, dim) -> (1, T, dim)`.
    fn forward(&self, xs: &Tensor, rope: &Rope) -> Result<Tensor> {
        let (batch, t, dim) = xs.dims3()?;
        let head_dim = dim / self.heads;
        let qkv = self.qkv.forward(xs)?;
        let part = |i: usize| qkv.narrow(2, i * dim, dim)?.contiguous();
        let heads = |xs: &Tensor| xs.reshape((batch, t, self.heads, head_dim));
        let v = part(2)?;
        let memory = add(&self.fsmn_block.forward(&v)?, &v)?;
        let (q, k) = (rope.apply(&heads(&part(0)?)?, 0)?, rope.apply(&heads(&part(1)?)?, 0)?);
        let scale = (head_dim as f64).powf(-0.5);
        let context = attend(&q, &k, &heads(&v)?, scale, &Mask::Full, None)?;
        self.out.forward_add(&context, &memory)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::dsp::testing::{Fixture, load_config, on_threads, relative_error};
    use crate::nn::gelu;

    fn tiny() -> S3Tokenizer {
        let w = Weights::open(&Fixture::path("tiny/shared/s3gen_meanflow.safetensors"), &Device::Cpu).unwrap();
        let tokenizer = S3Tokenizer::load(&w.pp("tokenizer"), &load_config("tiny/english/config.json", "tok")).unwrap();
        w.ignore("flow.");
        w.ignore("mel2wav.");
        w.ignore("speaker_encoder.");
        w.finish().unwrap();
        tokenizer
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    /// A fixture of channels before time, `(1, C, T)`.
    fn transposed(fixture: &Fixture, name: &str) -> Vec<f32> {
        values(&fixture.tensor(name).transpose(1, 2).unwrap())
    }

    fn as_i64(codes: &[u32]) -> Vec<i64> {
        codes.iter().map(|c| i64::from(*c)).collect()
    }

    #[test]
    fn layers_equal_the_reference() {
        let (tokenizer, stage) = (tiny(), Fixture::open("tiny/stages/s3_tokenizer"));
        let mel = stage.tensor("log_mel").t().unwrap().unsqueeze(0).unwrap().contiguous().unwrap();
        let conv1 = tokenizer.conv1.forward(&mel).unwrap();
        assert!(relative_error(&values(&conv1), &transposed(&stage, "conv1_pre_gelu")) < 1e-5);
        let conv2 = tokenizer.conv2.forward(&gelu(&conv1).unwrap()).unwrap();
        assert!(relative_error(&values(&conv2), &transposed(&stage, "conv2_pre_gelu")) < 1e-5);
        let block = &tokenizer.blocks[0];
        let xs = gelu(&conv2).unwrap();
        let attended = block.attn.forward(&block.attn_ln.forward(&xs).unwrap(), &tokenizer.rope).unwrap();
        assert!(relative_error(&values(&attended), &stage.values("block0_attn")) < 1e-5);
        let first = block.forward(&xs, &tokenizer.rope).unwrap();
        assert!(relative_error(&values(&first), &stage.values("block0")) < 1e-5);
        let hidden = tokenizer.hidden(&mel).unwrap();
        assert!(relative_error(&values(&hidden), &stage.values("block1")) < 1e-5);
        let down = tokenizer.project_down.forward(&hidden).unwrap();
        assert!(relative_error(&values(&down), &stage.values("project_down")) < 1e-5);
    }

    #[test]
    fn codes_equal_the_reference() {
        let (tokenizer, stage, input) =
            (tiny(), Fixture::open("tiny/stages/s3_tokenizer"), Fixture::open("tiny/stages/frontend"));
        let wav16 = input.values("wav16");
        let clip = &wav16[6000..14_160];
        assert_eq!(clip.len() as i64, stage.integers("n_samples")[0]);
        assert_eq!(as_i64(&tokenizer.encode(clip, None).unwrap()), stage.integers("codes"));
        assert_eq!(as_i64(&tokenizer.encode(&wav16, None).unwrap()), stage.integers("codes_no_max_len"));
        assert_eq!(as_i64(&tokenizer.encode(&wav16, Some(20)).unwrap()), stage.integers("codes_max_len_20"));
    }

    /// The mel that `long_log_mel` of `tests/reference/stages.py` makes.
    fn long_mel(frames: usize) -> Features {
        let mut data = vec![0f32; frames * 128];
        for (i, x) in data.iter_mut().enumerate() {
            let k = (i % 128 * frames + i / 128) as f64;
            *x = (((k.powf(1.5) * 0.001) % (2.0 * std::f64::consts::PI)).sin() * 0.5) as f32 - 0.2;
        }
        Features { data, frames, bands: 128 }
    }

    #[test]
    fn long_clips_equal_the_reference_where_it_loses_nothing() {
        let (tokenizer, stage) = (tiny(), Fixture::open("tiny/stages/s3_tokenizer"));
        let mel = long_mel(3100);
        let head = stage.tensor("long3100_mel_head").t().unwrap();
        assert!(relative_error(&mel.data[..4 * 128], &values(&head)) < 1e-6);
        assert_eq!(as_i64(&tokenizer.encode_mel(&mel).unwrap()), stage.integers("long3100_codes"));
        // Here the reference drops the last two seconds.
        let codes = as_i64(&tokenizer.encode_mel(&long_mel(5300)).unwrap());
        let reference = stage.integers("long5300_codes");
        assert_eq!((codes.len(), reference.len()), (1325, 1275));
        assert_eq!(codes[..1275], reference);
    }

    #[test]
    fn no_length_loses_codes() {
        for frames in (1..=12_000).chain([30_001, 60_123]) {
            let starts: Vec<usize> = windows(frames).collect();
            let mut codes = 0;
            for (i, start) in starts.iter().enumerate() {
                let window = (frames - start).min(WINDOW_FRAMES).div_ceil(FRAMES_PER_CODE);
                let first = if i == 0 { 0 } else { MARGIN_CODES };
                let last = if i + 1 == starts.len() { window } else { window - MARGIN_CODES };
                assert_eq!(codes, start / FRAMES_PER_CODE + first, "a seam of {frames} frames");
                codes += last - first;
            }
            assert_eq!(codes, frames.div_ceil(FRAMES_PER_CODE), "{frames} frames");
        }
    }

    #[test]
    fn lengths_of_short_clips() {
        let tokenizer = tiny();
        for (samples, codes) in [(201, 1), (640, 1), (1280, 2), (16_160, 26)] {
            assert_eq!(tokenizer.encode(&vec![0.1; samples], None).unwrap().len(), codes);
        }
        assert!(tokenizer.encode(&[0.0; 1280], None).unwrap().iter().all(|code| *code < 6561));
        assert!(tokenizer.encode(&[0.1; 1280], Some(0)).unwrap().is_empty());
        for clip in [&[][..], &[0.1; 200], &[f32::NAN; 4000]] {
            assert!(tokenizer.encode(clip, None).unwrap_err().is_bad_input());
        }
    }

    #[test]
    fn the_embedded_tokenizer_runs_alike_on_any_threads_and_a_nonsensical_one_is_refused() {
        let path = Fixture::path("../../models/embedded/s3gen_meanflow.safetensors");
        let root = Weights::open(&path, &Device::Cpu).unwrap();
        let w = root.pp("tokenizer");
        let config: S3TokenizerConfig = load_config("../../models/embedded/config.json", "tok");
        let tokenizer = S3Tokenizer::load(&w, &config).unwrap();
        ["flow.", "mel2wav.", "speaker_encoder."].iter().for_each(|other| root.ignore(other));
        root.finish().unwrap();
        assert_eq!(tokenizer.encode(&[0.1; 16_000], None).unwrap().len(), 25);
        let speech: Vec<f32> = (0..60_000).map(|n| ((n * n) as f32 * 1e-4).sin() * 0.3).collect();
        let hidden = || values(&tokenizer.hidden(&s3_log_mel(&speech).unwrap().tensor(&Device::Cpu).unwrap()).unwrap());
        assert_eq!(on_threads(1, hidden), on_threads(3, hidden));
        for heads in [0, 5] {
            let wrong = S3TokenizerConfig { heads, ..config.clone() };
            assert!(S3Tokenizer::load(&w, &wrong).unwrap_err().is_bad_input());
        }
    }

    #[test]
    fn digits_round_half_to_even() {
        let half = (0.5f32 / FSQ_BOUND).atanh();
        assert_eq!(code(&[-9.0, -9.0, -9.0, -9.0, -9.0, -9.0, -9.0, -9.0]), 0);
        assert_eq!(code(&[9.0, -9.0, -9.0, -9.0, -9.0, -9.0, -9.0, 0.0]), 2 + 2187);
        assert!([1, 2].contains(&code(&[half, -9.0, -9.0, -9.0, -9.0, -9.0, -9.0, -9.0])));
        assert!(code(&[f32::NAN; 8]) < 6561);
    }
}
