//! CAM++: 16 kHz speech to an x-vector that says who speaks, which the flow is conditioned on.
//!
//! Filter bank, a small 2-D residual network (FCM) that keeps time and divides frequency by 8, then a time-delay network
//! of densely connected layers, each scaled by a mask that looks at its surroundings (context-aware masking), then mean and
//! deviation over time and a projection (Wang et al., "CAM++: a fast and efficient network for speaker verification using
//! context-aware masking", 2023).

use candle_core::{D, Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::dsp::fbank::fbank;
use crate::dsp::features::check_audio;
use crate::error::{Error, Result};
use crate::nn::{Activation, BatchNorm, Conv1d, Conv2d, ConvConfig, Linear};
use crate::protocol::Precision;
use crate::weights::Weights;

/// Bands of the filter bank.
const BANDS: usize = 80;
/// Strides of the FCM together.
const FREQUENCY_STRIDE: usize = 8;
const BATCH_NORM_EPS: f64 = 1e-5;
/// Frames that share a mask.
const SEGMENT_FRAMES: usize = 100;
/// Dilations of the three dense blocks.
const DILATIONS: [usize; 3] = [1, 2, 2];
/// Three frames of the filter bank: fewer leave nothing to take a deviation of.
const MIN_SAMPLES: usize = 720;

/// Dimensions: the `spk` section of a model's `config.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CamPPlusConfig {
    /// Channels of the 2-D network.
    #[serde(rename = "m")]
    pub fcm_channels: usize,
    /// Channels into the first dense block.
    #[serde(rename = "init")]
    pub init_channels: usize,
    /// Channels each dense layer adds.
    pub growth: usize,
    /// Width of a dense layer's bottleneck, in multiples of `growth`.
    #[serde(rename = "bn")]
    pub bottleneck: usize,
    /// Layers of each dense block.
    pub blocks: [usize; 3],
    /// Size of the x-vector.
    pub embed: usize,
}

impl Default for CamPPlusConfig {
    fn default() -> Self {
        Self { fcm_channels: 32, init_channels: 128, growth: 32, bottleneck: 4, blocks: [12, 24, 16], embed: 192 }
    }
}

/// The network; weights only.
#[derive(Debug, Clone)]
pub struct CamPPlus {
    head: Fcm,
    tdnn: Conv1d,
    blocks: Vec<(Vec<DenseLayer>, Transit)>,
    out_nonlinear: BatchNorm,
    dense: Linear,
    device: Device,
}

impl CamPPlus {
    /// Loads the tensors below `speaker_encoder` of an S3Gen checkpoint.
    ///
    /// # Errors
    /// If the file cannot be read or the dimensions are impossible; missing tensors are told by [`Weights::finish`].
    pub fn load(w: &Weights, config: &CamPPlusConfig) -> Result<Self> {
        if config.fcm_channels == 0 || config.init_channels == 0 || config.growth == 0 || config.bottleneck == 0 {
            return Err(Error::model(w.path(), format!("its configuration cannot be that of CAM++: {config:?}")));
        }
        let x = w.pp("xvector");
        let mut channels = config.init_channels;
        let fcm_channels = config.fcm_channels * (BANDS / FREQUENCY_STRIDE);
        let tdnn = folded_conv(&x.pp("tdnn"), fcm_channels, channels, ConvConfig::strided(5, 2, 2))?;
        let mut blocks = Vec::new();
        for (i, (&layers, dilation)) in config.blocks.iter().zip(DILATIONS).enumerate() {
            let block = x.pp(format!("block{}", i + 1));
            let layer = |j: usize| {
                let inputs = channels + j * config.growth;
                DenseLayer::load(&block.pp(format!("tdnnd{}", j + 1)), inputs, config, dilation)
            };
            let layers = (0..layers).map(layer).collect::<Result<Vec<_>>>()?;
            channels += layers.len() * config.growth;
            blocks.push((layers, Transit::load(&x.pp(format!("transit{}", i + 1)), channels)?));
            channels /= 2;
        }
        let dense_norm = BatchNorm::load(&x.pp("dense.nonlinear.batchnorm"), config.embed, BATCH_NORM_EPS, false)?;
        Ok(Self {
            head: Fcm::load(&w.pp("head"), config.fcm_channels)?,
            tdnn,
            blocks,
            out_nonlinear: batch_norm(&x.pp("out_nonlinear.batchnorm"), channels)?,
            dense: folded_linear(&x.pp("dense.linear"), &dense_norm, 2 * channels, config.embed)?,
            device: w.device().clone(),
        })
    }

    /// A 16 kHz clip to its x-vector, `(1, embed)`, not scaled to unit length.
    ///
    /// # Errors
    /// If the clip is shorter than 45 ms or holds values that are not numbers.
    pub fn x_vector(&self, wav16: &[f32]) -> Result<Tensor> {
        check_audio(wav16, MIN_SAMPLES, 16_000)?;
        self.forward(&fbank(wav16)?.tensor(&self.device)?)
    }

    /// `features: (1, T, 80) -> (1, embed)`.
    fn forward(&self, features: &Tensor) -> Result<Tensor> {
        let mut xs = self.tdnn.forward_act(&self.head.forward(features)?, Activation::Relu)?;
        let segments = Segments::new(xs.dims3()?.1, &self.device)?;
        for (layers, transit) in &self.blocks {
            for layer in layers {
                xs = Tensor::cat(&[&xs, &layer.forward(&xs, &segments)?], 2)?;
            }
            xs = transit.forward(&xs)?;
        }
        self.dense.forward(&statistics(&self.out_nonlinear.forward_relu(&xs)?)?)
    }
}

/// Mean and unbiased deviation over time: `(1, T, C) -> (1, 2C)`.
fn statistics(xs: &Tensor) -> Result<Tensor> {
    let xs = xs.transpose(1, 2)?.contiguous()?;
    let deviation = xs.var(D::Minus1)?.sqrt()?;
    Ok(Tensor::cat(&[&xs.mean(D::Minus1)?, &deviation], 1)?)
}

/// Two residual stages and a convolution, each of which halves the frequency.
#[derive(Debug, Clone)]
struct Fcm {
    conv1: Conv2d,
    layers: Vec<ResBlock>,
    conv2: Conv2d,
}

impl Fcm {
    fn load(w: &Weights, channels: usize) -> Result<Self> {
        let mut layers = Vec::new();
        for stage in ["layer1", "layer2"] {
            for (i, stride) in [2, 1].into_iter().enumerate() {
                layers.push(ResBlock::load(&w.pp(stage).pp(i), channels, stride)?);
            }
        }
        Ok(Self {
            conv1: Conv2d::load(&w.pp("conv1"), &batch_norm(&w.pp("bn1"), channels)?, 1, 3, 1)?,
            layers,
            conv2: Conv2d::load(&w.pp("conv2"), &batch_norm(&w.pp("bn2"), channels)?, channels, 3, 2)?,
        })
    }

    /// `(1, T, 80) -> (1, T, 10 · C)`, channel `c` of frequency `f` at `10 c + f`.
    fn forward(&self, features: &Tensor) -> Result<Tensor> {
        let mut xs = self.conv1.forward(&features.transpose(1, 2)?.unsqueeze(3)?, None, true)?;
        for layer in &self.layers {
            xs = layer.forward(&xs)?;
        }
        let ys = self.conv2.forward(&xs, None, true)?;
        let (batch, high, t, c) = ys.dims4()?;
        Ok(ys.permute((0, 2, 3, 1))?.contiguous()?.reshape((batch, t, c * high))?)
    }
}

#[derive(Debug, Clone)]
struct ResBlock {
    conv1: Conv2d,
    conv2: Conv2d,
    /// Present where the block changes the frequency.
    shortcut: Option<Conv2d>,
}

impl ResBlock {
    fn load(w: &Weights, channels: usize, stride: usize) -> Result<Self> {
        let conv = |conv: &str, norm: &str, kernel: usize, stride: usize| {
            Conv2d::load(&w.pp(conv), &batch_norm(&w.pp(norm), channels)?, channels, kernel, stride)
        };
        Ok(Self {
            conv1: conv("conv1", "bn1", 3, stride)?,
            conv2: conv("conv2", "bn2", 3, 1)?,
            shortcut: (stride > 1).then(|| conv("shortcut.0", "shortcut.1", 1, stride)).transpose()?,
        })
    }

    /// `(1, F, T, C) -> (1, ceil(F / stride), T, C)`.
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.conv1.forward(xs, None, true)?;
        match &self.shortcut {
            Some(shortcut) => self.conv2.forward(&ys, Some(&shortcut.forward(xs, None, false)?), true),
            None => self.conv2.forward(&ys, Some(xs), true),
        }
    }
}

/// Layer of a dense block: bottleneck, then a convolution scaled by its context's mask.
#[derive(Debug, Clone)]
struct DenseLayer {
    nonlinear1: BatchNorm,
    /// With the normalisation behind it folded in.
    linear1: Linear,
    cam: CamLayer,
}

impl DenseLayer {
    fn load(w: &Weights, inputs: usize, config: &CamPPlusConfig, dilation: usize) -> Result<Self> {
        let width = config.bottleneck * config.growth;
        let norm2 = batch_norm(&w.pp("nonlinear2.batchnorm"), width)?;
        Ok(Self {
            nonlinear1: batch_norm(&w.pp("nonlinear1.batchnorm"), inputs)?,
            linear1: folded_linear(&w.pp("linear1"), &norm2, inputs, width)?,
            cam: CamLayer::load(&w.pp("cam_layer"), width, config.growth, dilation)?,
        })
    }

    /// `(1, T, C) -> (1, T, growth)`.
    fn forward(&self, xs: &Tensor, segments: &Segments) -> Result<Tensor> {
        let xs = self.linear1.forward_act(&self.nonlinear1.forward_relu(xs)?, Activation::Relu)?;
        self.cam.forward(&xs, segments)
    }
}

/// `conv(x) · σ(W₂ relu(W₁ context))`, the context being the mean over the clip plus the mean over 100 frames.
#[derive(Debug, Clone)]
struct CamLayer {
    linear_local: Conv1d,
    linear1: Linear,
    linear2: Linear,
}

impl CamLayer {
    fn load(w: &Weights, inputs: usize, outputs: usize, dilation: usize) -> Result<Self> {
        let local = ConvConfig::same(3, dilation);
        Ok(Self {
            linear_local: Conv1d::load_no_bias(&w.pp("linear_local"), inputs, outputs, local)?,
            linear1: pointwise(&w.pp("linear1"), inputs, inputs / 2)?,
            linear2: pointwise(&w.pp("linear2"), inputs / 2, outputs)?,
        })
    }

    /// `(1, T, in) -> (1, T, out)`.
    fn forward(&self, xs: &Tensor, segments: &Segments) -> Result<Tensor> {
        let context = self.linear1.forward_act(&segments.context(xs)?, Activation::Relu)?;
        let mask = candle_nn::ops::sigmoid(&self.linear2.forward(&context)?)?;
        Ok((self.linear_local.forward(xs)? * segments.spread(&mask)?)?)
    }
}

/// The contexts of a clip. All frames of a segment share one, so only one mask per segment is computed.
struct Segments {
    /// `(1, S, T)`: row s averages over the clip and over segment s.
    averages: Tensor,
    /// The segment of each frame.
    index: Tensor,
}

impl Segments {
    fn new(frames: usize, device: &Device) -> Result<Self> {
        let count = frames.div_ceil(SEGMENT_FRAMES);
        let mut averages = vec![1.0 / frames as f32; count * frames];
        for (s, row) in averages.chunks_exact_mut(frames.max(1)).enumerate() {
            let end = frames.min((s + 1) * SEGMENT_FRAMES);
            let segment = &mut row[s * SEGMENT_FRAMES..end];
            let share = 1.0 / segment.len() as f32;
            segment.iter_mut().for_each(|x| *x += share);
        }
        let index: Vec<u32> = (0..frames).map(|t| (t / SEGMENT_FRAMES) as u32).collect();
        Ok(Self {
            averages: Tensor::from_vec(averages, (1, count, frames), device)?,
            index: Tensor::from_vec(index, frames, device)?,
        })
    }

    /// `(1, T, C) -> (1, S, C)`.
    fn context(&self, xs: &Tensor) -> Result<Tensor> {
        Ok(self.averages.matmul(xs)?)
    }

    /// `(1, S, C) -> (1, T, C)`.
    fn spread(&self, xs: &Tensor) -> Result<Tensor> {
        Ok(xs.index_select(&self.index, 1)?)
    }
}

/// Between dense blocks: half the channels.
#[derive(Debug, Clone)]
struct Transit {
    nonlinear: BatchNorm,
    linear: Linear,
}

impl Transit {
    fn load(w: &Weights, channels: usize) -> Result<Self> {
        let w_linear = w.pp("linear");
        let weight = || Ok(w_linear.get("weight", (channels / 2, channels, 1))?.squeeze(2)?);
        Ok(Self {
            nonlinear: batch_norm(&w.pp("nonlinear.batchnorm"), channels)?,
            linear: Linear::made(&w_linear, (channels / 2, channels), weight, None)?,
        })
    }

    /// `(1, T, C) -> (1, T, C / 2)`.
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.linear.forward(&self.nonlinear.forward_relu(xs)?)
    }
}

fn batch_norm(w: &Weights, channels: usize) -> Result<BatchNorm> {
    BatchNorm::load(w, channels, BATCH_NORM_EPS, true)
}

/// A convolution of one tap with a bias.
fn pointwise(w: &Weights, inputs: usize, outputs: usize) -> Result<Linear> {
    let bias = Some(w.get("bias", outputs)?);
    Linear::made(w, (outputs, inputs), || Ok(w.get("weight", (outputs, inputs, 1))?.squeeze(2)?), bias)
}

/// A convolution of one tap without bias and the normalisation behind it, as one projection.
fn folded_linear(w: &Weights, norm: &BatchNorm, inputs: usize, outputs: usize) -> Result<Linear> {
    let (scale, shift) = norm.scale_shift();
    let weight = || {
        let weight = w.get("weight", (outputs, inputs, 1))?.squeeze(2)?;
        Ok(weight.broadcast_mul(&scale.unsqueeze(1)?)?)
    };
    Linear::made(w, (outputs, inputs), weight, Some(shift.clone()))
}

/// A convolution without bias (`linear`) and the normalisation behind it (`nonlinear.batchnorm`), as one.
fn folded_conv(w: &Weights, inputs: usize, outputs: usize, config: ConvConfig) -> Result<Conv1d> {
    let norm = batch_norm(&w.pp("nonlinear.batchnorm"), outputs)?;
    let (scale, shift) = norm.scale_shift();
    let w = w.pp("linear").at(Precision::F32);
    let weight = || {
        let weight = w.get("weight", (outputs, inputs, config.kernel))?;
        Ok(weight.broadcast_mul(&scale.reshape((outputs, 1, 1))?)?)
    };
    Conv1d::made(&w, (outputs, inputs), weight, Some(shift.clone()), config)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::dsp::testing::{Fixture, load_config, on_threads, relative_error};

    fn tiny() -> CamPPlus {
        let w = Weights::open(&Fixture::path("tiny/shared/s3gen_meanflow.safetensors"), &Device::Cpu).unwrap();
        let net = CamPPlus::load(&w.pp("speaker_encoder"), &load_config("tiny/english/config.json", "spk")).unwrap();
        w.ignore("flow.");
        w.ignore("mel2wav.");
        w.ignore("tokenizer.");
        w.finish().unwrap();
        net
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    /// A fixture keeps the first frames, channels before time, `(1, C, T)` or `(1, C, F, T)`.
    fn check(name: &str, stage: &Fixture, found: &Tensor) {
        let expected = stage.tensor(name);
        let expected = match expected.rank() {
            4 => expected.permute((0, 2, 3, 1)).unwrap(),
            _ => expected.transpose(1, 2).unwrap(),
        };
        let time = found.rank() - 2;
        let found = found.narrow(time, 0, expected.dims()[time]).unwrap();
        assert_eq!(found.dims(), expected.dims(), "{name}");
        let error = relative_error(&values(&found), &values(&expected));
        assert!(error < 1e-5, "{name}: {error:e}");
    }

    #[test]
    fn layers_and_x_vector_equal_the_reference() {
        let (net, stage, input) =
            (tiny(), Fixture::open("tiny/stages/campplus"), Fixture::open("tiny/stages/frontend"));
        let wav16 = &input.values("wav16")[..stage.integers("n_samples")[0] as usize];
        let features = fbank(wav16).unwrap().tensor(&Device::Cpu).unwrap();

        let head = &net.head;
        let mut xs = head.conv1.forward(&features.transpose(1, 2).unwrap().unsqueeze(3).unwrap(), None, true).unwrap();
        for layer in &head.layers[..2] {
            xs = layer.forward(&xs).unwrap();
        }
        check("head_layer1", &stage, &xs);
        let mut xs = head.forward(&features).unwrap();
        check("head", &stage, &xs);
        xs = net.tdnn.forward(&xs).unwrap().relu().unwrap();
        check("tdnn", &stage, &xs);

        let segments = Segments::new(xs.dims()[1], &Device::Cpu).unwrap();
        check("block1_tdnnd1", &stage, &net.blocks[0].0[0].forward(&xs, &segments).unwrap());
        for (i, (layers, transit)) in net.blocks.iter().enumerate() {
            for layer in layers {
                xs = Tensor::cat(&[&xs, &layer.forward(&xs, &segments).unwrap()], 2).unwrap();
            }
            check(&format!("block{}", i + 1), &stage, &xs);
            xs = transit.forward(&xs).unwrap();
            check(&format!("transit{}", i + 1), &stage, &xs);
        }
        let pooled = statistics(&net.out_nonlinear.forward_relu(&xs).unwrap()).unwrap();
        assert!(relative_error(&values(&pooled), &stage.values("stats")) < 1e-5);
        assert!(relative_error(&values(&net.x_vector(wav16).unwrap()), &stage.values("x_vector")) < 1e-5);
    }

    #[test]
    fn the_embedded_encoder_runs_alike_on_any_threads_and_a_nonsensical_one_is_refused() {
        let path = Fixture::path("../../models/embedded/s3gen_meanflow.safetensors");
        let root = Weights::open(&path, &Device::Cpu).unwrap();
        let config: CamPPlusConfig = load_config("../../models/embedded/config.json", "spk");
        let net = CamPPlus::load(&root.pp("speaker_encoder"), &config).unwrap();
        ["flow.", "mel2wav.", "tokenizer."].iter().for_each(|other| root.ignore(other));
        root.finish().unwrap();
        let tone: Vec<f32> = (0..40_000).map(|n| (n as f32 * 0.05).sin() * 0.3).collect();
        assert_eq!(net.x_vector(&tone).unwrap().dims(), [1, 192]);
        let run = || values(&net.x_vector(&tone).unwrap());
        assert_eq!(on_threads(1, run), on_threads(3, run));
        let wrong = CamPPlusConfig { growth: 0, ..config };
        assert!(CamPPlus::load(&root.pp("speaker_encoder"), &wrong).unwrap_err().is_bad_input());
    }

    #[test]
    fn segments_average_over_their_own_length() {
        let segments = Segments::new(150, &Device::Cpu).unwrap();
        let xs: Vec<f32> = (0..150).map(|t| if t < 100 { 1.0 } else { 4.0 }).collect();
        let context = segments.context(&Tensor::from_vec(xs, (1, 150, 1), &Device::Cpu).unwrap()).unwrap();
        assert!(relative_error(&values(&context), &[2.0 + 1.0, 2.0 + 4.0]) < 1e-6);
        let spread = values(&segments.spread(&context).unwrap());
        assert_eq!((spread.len(), spread[99], spread[100]), (150, values(&context)[0], values(&context)[1]));
    }

    #[test]
    fn any_clip_gives_a_vector_or_an_error() {
        let net = tiny();
        for clip in [&[0.0; 4000][..], &[0.1; 720], &[0.5; 1281]] {
            assert!(values(&net.x_vector(clip).unwrap()).iter().all(|x| x.is_finite()));
        }
        for clip in [&[][..], &[0.1; 719], &[f32::NAN; 4000]] {
            assert!(net.x_vector(clip).unwrap_err().is_bad_input());
        }
    }
}
