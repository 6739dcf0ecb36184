//! HiFT on a card: pitch in f64, all else in f32; see [`super::super::hift`].

use std::f64::consts::TAU;
use std::ops::Range;

use candle_core::{DType, Tensor};

use super::load::{flat, taps_first};
use crate::cuda::layers::{Act, Graphs, Input, Layers, Matrix, Room, RowsArgs, SPECTRUM, SnakesArgs, Store};
use crate::error::{Error, Result};
use crate::s3gen::MEL_CHANNELS;
use crate::s3gen::hift::f0::{LAYERS as F0_LAYERS, TAPS as F0_TAPS};
use crate::s3gen::hift::generator::{
    AUDIO_LIMIT, BINS, DILATIONS, HOP, N_FFT, REACH_FRAMES, RESBLOCK_KERNELS, STAGES, STFT_PER_FRAME, StageShape,
};
use crate::s3gen::hift::{HiftConfig, SAMPLES_PER_FRAME, weight_norm};
use crate::weights::Weights;

const SLOPE: f32 = 0.1;
const LAST_SLOPE: f32 = 0.01;

#[derive(Debug)]
pub(super) struct Vocoder {
    base: usize,
    f0_channels: usize,
    condnet: Vec<Matrix>,
    classifier: Matrix,
    stft: u64,
    istft: (u64, u64),
    conv_pre: Matrix,
    stages: Vec<Stage>,
    conv_post: Matrix,
    room: Room,
    /// The pitch of so many frames, and the sound of some of them, for each place of the activations.
    passes: Graphs<(usize, Option<Range<usize>>, u64)>,
    store: Store,
}

#[derive(Debug)]
struct Stage {
    up: Matrix,
    source_down: Matrix,
    source: ResBlock,
    resblocks: [ResBlock; 3],
}

/// For each dilation: a snake, a convolution, a snake, a convolution.
#[derive(Debug)]
struct ResBlock {
    kernel: usize,
    layers: Vec<(u64, Matrix, u64, Matrix)>,
}

/// A weight-normed convolution's weights and bias, `(out, taps, in)`.
fn normed(w: &Weights, shape: (usize, usize, usize)) -> Result<(Vec<f32>, Vec<f32>)> {
    let weight = weight_norm(w, shape, DType::F32)?;
    Ok((flat(&taps_first(&weight)?)?, flat(&w.get("bias", shape.0)?)?))
}

fn conv(w: &Weights, shape: (usize, usize, usize), store: &mut Store) -> Result<Matrix> {
    let (weight, bias) = normed(w, shape)?;
    store.matrix(&weight, shape.0, shape.1, Some(&bias), crate::cuda::Number::F32)
}

impl Vocoder {
    /// Loads the tensors below `w`.
    pub(super) fn load(w: &Weights, config: &HiftConfig, mut store: Store) -> Result<Self> {
        let (base, f0) = (config.base_channels, config.f0_channels);
        let to = &mut store;
        let pitch = w.pp("f0_predictor");
        let exact = |t: &Tensor| -> Result<Vec<f64>> { Ok(t.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?) };
        let mut condnet = Vec::new();
        for i in 0..F0_LAYERS {
            // Activations stand between the convolutions in the checkpoint's numbering.
            let (w, inputs) = (pitch.pp("condnet").pp(2 * i), if i == 0 { MEL_CHANNELS } else { f0 });
            let weight = taps_first(&weight_norm(&w, (f0, inputs, F0_TAPS), DType::F64)?)?;
            condnet.push(to.exact_matrix(&exact(&weight)?, f0, inputs, &flat(&w.get("bias", f0)?)?)?);
        }
        let w_class = pitch.pp("classifier");
        let weight = exact(&w_class.get("weight", (1, f0))?)?;
        let classifier = to.exact_matrix(&weight, 1, f0, &flat(&w_class.get("bias", 1)?)?)?;
        let stage = |(i, shape): (usize, &StageShape)| Stage::load(w, i, shape, base >> i, to);
        let stages = STAGES.iter().enumerate().map(stage).collect::<Result<_>>()?;
        let (forward, inverse, window) = bases();
        Ok(Self {
            base,
            f0_channels: f0,
            condnet,
            classifier,
            stft: to.vector(&forward)?,
            istft: (to.vector(&inverse)?, to.vector(&window)?),
            conv_pre: conv(&w.pp("conv_pre"), (base, MEL_CHANNELS, 7), to)?,
            stages,
            conv_post: conv(&w.pp("conv_post"), (2 * BINS, base >> STAGES.len(), 7), to)?,
            room: Room::new(),
            passes: Graphs::new(),
            store,
        })
    }

    /// Bytes of weights and activations on the card.
    pub(super) fn bytes(&self) -> (usize, usize) {
        (self.store.bytes(), self.room.bytes())
    }

    /// `mel (T, 80)` to T pitches in Hz.
    pub(super) fn pitch(&mut self, on: &Layers, mel: &[f32]) -> Result<Vec<f32>> {
        let frames = mel.len() / MEL_CHANNELS;
        let widest = self.f0_channels.max(MEL_CHANNELS);
        let [from, to, out] = self.room.deal(on.card(), [8 * frames * widest, 8 * frames * widest, 4 * frames])?;
        let exact: Vec<u8> = mel.iter().flat_map(|x| f64::from(*x).to_le_bytes()).collect();
        on.send_bytes(from, &exact)?;
        let key = (frames, None, self.room.address(on.card()));
        self.recorded(on, key, |vocoder| vocoder.pass_pitch(on, frames, (from, to, out)))?;
        on.fetch(out, frames)
    }

    /// Does `work` or has the card do it as it did before.
    fn recorded(
        &mut self,
        on: &Layers,
        key: (usize, Option<Range<usize>>, u64),
        work: impl FnOnce(&Self) -> Result<()>,
    ) -> Result<()> {
        // Out of the way of what is recorded with them.
        let mut passes = std::mem::replace(&mut self.passes, Graphs::new());
        let done = passes.run(on, key, || work(self));
        self.passes = passes;
        done
    }

    /// From the mel in f64 at `from` to pitches at `out`.
    fn pass_pitch(&self, on: &Layers, frames: usize, (mut from, mut to, out): (u64, u64, u64)) -> Result<()> {
        let mut channels = MEL_CHANNELS;
        for w in &self.condnet {
            let x = Input { at: from, batch: 1, rows: frames, pitch: channels };
            channels = self.f0_channels;
            let conv = RowsArgs::new(w, x).conv(frames, 1, 1, F0_TAPS / 2);
            on.rows(w, conv.second(to, channels).then(Act::Elu, 0.0))?;
            std::mem::swap(&mut from, &mut to);
        }
        let x = Input { at: from, batch: 1, rows: frames, pitch: channels };
        let pitch = RowsArgs::new(&self.classifier, x).first(Act::Abs, 0.0);
        on.rows(&self.classifier, pitch.out_pitch(out, 1))
    }

    /// The samples of frames `keep` from `mel (T, 80)` and its excitation of 480 T samples.
    pub(super) fn render(&mut self, on: &Layers, mel: &[f32], source: &[f32], keep: Range<usize>) -> Result<Vec<f32>> {
        let frames = mel.len() / MEL_CHANNELS;
        let first = around(&keep, REACH_FRAMES, frames);
        let samples = first.len() * SAMPLES_PER_FRAME;
        // The widest rows: those of a stage, or those that enter the first.
        let widest =
            STAGES.iter().enumerate().map(|(i, shape)| STFT_PER_FRAME / shape.source_down.1 * (self.base >> (i + 1)));
        let size = 4 * (first.len() + 1) * widest.max().unwrap_or(0).max(self.base);
        let [at_mel, wav, spectrum, input, up, s, seen, hidden, x, a0, a1, a2, h0, h1, h2, r0, r1, r2] =
            self.room.deal(
                on.card(),
                [
                    4 * first.len() * MEL_CHANNELS,
                    4 * samples,
                    4 * (samples / HOP + 1) * SPECTRUM,
                    size,
                    size,
                    size,
                    size,
                    size,
                    size,
                    size,
                    size,
                    size,
                    size,
                    size,
                    size,
                    size,
                    size,
                    size,
                ],
            )?;
        let (a, h, r) = ([a0, a1, a2], [h0, h1, h2], [r0, r1, r2]);
        let places = Places { mel: at_mel, wav, spectrum, input, up, s, seen, hidden, x, a, h, r };
        on.send(at_mel, &mel[first.start * MEL_CHANNELS..first.end * MEL_CHANNELS])?;
        on.send(wav, &source[first.start * SAMPLES_PER_FRAME..first.end * SAMPLES_PER_FRAME])?;
        let key = (frames, Some(keep.clone()), self.room.address(on.card()));
        self.recorded(on, key, |vocoder| vocoder.pass(on, &places, frames, &keep))?;
        // The last stage is the one that sees least around it.
        let reach = REACH_FRAMES - STAGES[..STAGES.len() - 1].iter().map(|shape| shape.reach).sum::<usize>();
        let start = (keep.start - around(&keep, reach, frames).start) * SAMPLES_PER_FRAME;
        on.fetch(wav + 4 * start as u64, keep.len() * SAMPLES_PER_FRAME)
    }

    /// From mel and excitation to the samples of the frames `keep` of `frames`, and of some around them.
    fn pass(&self, on: &Layers, places: &Places, frames: usize, keep: &Range<usize>) -> Result<()> {
        let mut reach = REACH_FRAMES;
        let mut span = around(keep, reach, frames);
        let first = span.clone();
        let (wav, spectrum, input) = (places.wav, places.spectrum, places.input);
        on.stft(wav, self.stft, spectrum, first.len() * SAMPLES_PER_FRAME)?;
        let rows = Input { at: places.mel, batch: 1, rows: first.len(), pitch: MEL_CHANNELS };
        let pre = RowsArgs::new(&self.conv_pre, rows).conv(first.len(), 1, 1, 3);
        on.rows(&self.conv_pre, pre.second(input, self.base).then(Act::Leaky, SLOPE))?;
        let (mut xs, mut rows) = (input, first.len());
        for (i, (stage, shape)) in self.stages.iter().zip(&STAGES).enumerate() {
            let last = i + 1 == STAGES.len();
            let channels = self.base >> (i + 1);
            let from = spectrum + ((span.start - first.start) * STFT_PER_FRAME * SPECTRUM * 4) as u64;
            let heard = Input { at: from, batch: 1, rows: span.len() * STFT_PER_FRAME + 1, pitch: SPECTRUM };
            rows = stage.forward(on, shape, places, (xs, rows, channels), heard, last)?;
            let slope = if last { LAST_SLOPE } else { SLOPE };
            on.mean3(places.r, input, rows * channels, slope)?;
            xs = input;
            if !last {
                reach -= shape.reach;
                let rate = rows / span.len();
                let next = around(keep, reach, frames);
                xs = input + ((next.start - span.start) * rate * channels * 4) as u64;
                rows = next.len() * rate;
                span = next;
            }
        }
        let post = RowsArgs::new(&self.conv_post, Input { at: xs, batch: 1, rows, pitch: self.base >> STAGES.len() });
        on.rows(&self.conv_post, post.conv(rows, 1, 1, 3).out_pitch(spectrum, SPECTRUM))?;
        on.istft(spectrum, self.istft, wav, rows, AUDIO_LIMIT)
    }

    #[cfg(test)]
    pub(super) fn poison(&mut self, on: &Layers) {
        self.room.poison(on.card());
    }

    #[cfg(test)]
    pub(super) fn record(&mut self, records: bool) {
        self.passes.records = records;
    }
}

/// `keep` and up to `reach` frames on either side of it.
fn around(keep: &Range<usize>, reach: usize, frames: usize) -> Range<usize> {
    keep.start.saturating_sub(reach)..(keep.end + reach).min(frames)
}

/// Where the activations of a stage lie.
struct Places {
    mel: u64,
    wav: u64,
    spectrum: u64,
    /// What enters a stage.
    input: u64,
    up: u64,
    s: u64,
    seen: u64,
    hidden: u64,
    x: u64,
    /// Of the three residual blocks, which run side by side: what a convolution reads, what stands between two, results.
    a: [u64; 3],
    h: [u64; 3],
    r: [u64; 3],
}

impl Stage {
    fn load(w: &Weights, i: usize, shape: &StageShape, inputs: usize, to: &mut Store) -> Result<Self> {
        let channels = inputs / 2;
        let (kernel, stride, _) = shape.up;
        let up = w.pp("ups").pp(i);
        let weight = flat(&weight_norm(&up, (inputs, channels, kernel), DType::F32)?)?;
        let bias = flat(&up.get("bias", channels)?)?.repeat(stride);
        let turned = transposed(&weight, (inputs, channels, kernel), stride);
        let down = w.pp("source_downs").pp(i);
        let taps = shape.source_down.0;
        let plain = flat(&taps_first(&down.get("weight", (channels, 2 * BINS, taps))?)?)?;
        // The spectrum's rows end in zeros.
        let padded: Vec<f32> = plain
            .chunks_exact(2 * BINS)
            .flat_map(|tap| tap.iter().copied().chain(std::iter::repeat_n(0.0, SPECTRUM - 2 * BINS)))
            .collect();
        let number = crate::cuda::Number::F32;
        let source = ResBlock::load(&w.pp("source_resblocks").pp(i), channels, shape.source_kernel, to)?;
        let count = RESBLOCK_KERNELS.len();
        let mut block =
            |j: usize| ResBlock::load(&w.pp("resblocks").pp(count * i + j), channels, RESBLOCK_KERNELS[j], to);
        let resblocks = [block(0)?, block(1)?, block(2)?];
        Ok(Self {
            up: to.matrix(&turned, stride * channels, inputs, Some(&bias), number)?,
            source_down: to.matrix(&padded, channels, SPECTRUM, Some(&flat(&down.get("bias", channels)?)?), number)?,
            source,
            resblocks,
        })
    }

    /// `xs (rows, 2C)`, through a leaky rectifier already, and the spectrum beside it to three times `(rows · rate, C)`,
    /// one row more in the last stage. Returns how many rows.
    fn forward(
        &self,
        on: &Layers,
        shape: &StageShape,
        p: &Places,
        (xs, rows, channels): (u64, usize, usize),
        heard: Input,
        last: bool,
    ) -> Result<usize> {
        let (kernel, stride, padding) = shape.up;
        let (taps, many) = (kernel.div_ceil(stride), rows * stride);
        // In the last stage the row in front, mirrored, makes as many rows as the STFT has frames.
        let front = if last { (4 * channels) as u64 } else { 0 };
        let all = many + usize::from(last);
        let x = Input { at: xs, batch: 1, rows, pitch: 2 * channels };
        let up = RowsArgs::new(&self.up, x).conv((many - 1 + padding) / stride + 1, 1, 1, taps - 1);
        on.rows(&self.up, up.out(p.up + front).moved(padding * channels, many * channels))?;
        if last {
            on.copy(p.up, p.up + 2 * front, 4 * channels)?;
        }
        let (_, down_stride, down_padding) = shape.source_down;
        let down = RowsArgs::new(&self.source_down, heard).conv(all, down_stride, 1, down_padding);
        let [(alpha, ..), ..] = self.source.layers.as_slice() else {
            return Err(Error::internal("a residual block without layers"));
        };
        on.rows(&self.source_down, down.out(p.s).second(p.seen, channels).snake(*alpha))?;
        let rows = |at: u64| Input { at, batch: 1, rows: all, pitch: channels };
        let dilated = |w: &Matrix, at: u64, kernel: usize, dilation: usize| {
            RowsArgs::new(w, rows(at)).conv(all, 1, dilation, (kernel - 1) * dilation / 2)
        };
        let count = DILATIONS.len();
        for (l, (&dilation, (_, conv1, alpha2, conv2))) in DILATIONS.iter().zip(&self.source.layers).enumerate() {
            let kernel = self.source.kernel;
            let hidden = dilated(conv1, p.seen, kernel, dilation).second(p.hidden, channels).snake(*alpha2);
            on.rows(conv1, hidden)?;
            let added = dilated(conv2, p.hidden, kernel, 1).residual(p.s);
            let next = self.source.layers.get(l + 1).map(|next| next.0);
            let added = match next {
                Some(alpha) => added.out(p.s).second(p.seen, channels).snake(alpha),
                None => added.add(p.up).out(p.x),
            };
            on.rows(conv2, added)?;
        }
        let alpha = |j: usize, l: usize| self.resblocks[j].layers.get(l).map_or(0, |layer| layer.0);
        let snakes = SnakesArgs {
            x: p.x,
            alpha: [alpha(0, 0), alpha(1, 0), alpha(2, 0)],
            out: p.a,
            size: (all * channels) as i32,
            channels: channels as i32,
        };
        on.snakes(&snakes, 3)?;
        for (l, &dilation) in DILATIONS.iter().enumerate() {
            let mut hidden = Vec::with_capacity(3);
            let mut added = Vec::with_capacity(3);
            for (j, block) in self.resblocks.iter().enumerate() {
                let Some((_, conv1, alpha2, conv2)) = block.layers.get(l) else { continue };
                let first = dilated(conv1, p.a[j], block.kernel, dilation);
                hidden.push(first.second(p.h[j], channels).snake(*alpha2));
                let before = if l == 0 { p.x } else { p.r[j] };
                let second = dilated(conv2, p.h[j], block.kernel, 1).residual(before).out(p.r[j]);
                let more = l + 1 < count;
                added.push(if more { second.second(p.a[j], channels).snake(alpha(j, l + 1)) } else { second });
            }
            on.exact_rows(&hidden)?;
            on.exact_rows(&added)?;
        }
        Ok(all)
    }
}

impl ResBlock {
    fn load(w: &Weights, channels: usize, kernel: usize, to: &mut Store) -> Result<Self> {
        let mut layers = Vec::new();
        for i in 0..DILATIONS.len() {
            let conv = |name: &str, to: &mut Store| conv(&w.pp(name).pp(i), (channels, channels, kernel), to);
            let snake = |name: &str, to: &mut Store| -> Result<u64> {
                let alpha = flat(&w.pp(name).pp(i).get("alpha", channels)?)?;
                let reciprocals: Vec<f32> = alpha.iter().map(|a| 1.0 / (a + 1e-9)).collect();
                to.vector(&[alpha, reciprocals].concat())
            };
            layers.push((
                snake("activations1", to)?,
                conv("convs1", to)?,
                snake("activations2", to)?,
                conv("convs2", to)?,
            ));
        }
        Ok(Self { kernel, layers })
    }
}

/// A transposed convolution as a product: `(in, out, kernel)` to `(stride · out, taps · in)`, which makes the `stride` rows
/// that begin in one input row out of it and those before it.
fn transposed(weight: &[f32], (inputs, outputs, kernel): (usize, usize, usize), stride: usize) -> Vec<f32> {
    let taps = kernel.div_ceil(stride);
    let mut out = vec![0.0; stride * outputs * taps * inputs];
    for (at, value) in out.iter_mut().enumerate() {
        let (i, rest) = (at % inputs, at / inputs);
        let (tap, rest) = (rest % taps, rest / taps);
        let (o, phase) = (rest % outputs, rest / outputs);
        let k = stride * (taps - 1 - tap) + phase;
        if k < kernel {
            *value = weight[(i * outputs + o) * kernel + k];
        }
    }
    out
}

/// Fourier bases of both ways, `(18, 16)`, windowed, and the squared window.
fn bases() -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let n = N_FFT as f64;
    let hann: Vec<f64> = (0..N_FFT).map(|i| 0.5 - 0.5 * (TAU * i as f64 / n).cos()).collect();
    let (mut forward, mut inverse) = (Vec::new(), Vec::new());
    for row in 0..2 * BINS {
        let bin = row % BINS;
        // The real parts of bins 0 and 8 stand for themselves, all others also for their mirror image.
        let mirrored = if bin == 0 || bin == N_FFT / 2 { 1.0 } else { 2.0 };
        for (i, hann) in hann.iter().enumerate() {
            let angle = TAU * ((bin * i) % N_FFT) as f64 / n;
            let wave = if row < BINS { angle.cos() } else { -angle.sin() };
            forward.push((hann * wave) as f32);
            inverse.push((mirrored * wave * hann / n) as f32);
        }
    }
    (forward, inverse, hann.iter().map(|h| (h * h) as f32).collect())
}
