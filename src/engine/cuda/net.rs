//! The weights of T3 on the card.

use cudarc::driver::{CudaSlice, DevicePtr, DeviceRepr};
use half::{bf16, f16};

use super::card::{Card, failed};
use crate::error::{Error, Result};

/// Columns that a warp multiplies at once, `SLICE` of the kernels' `Weight`: matrices are padded to a multiple of it.
fn slice(number: Number) -> usize {
    if number == Number::Int8 { 512 } else { 256 }
}
/// Widest MLP.
const MOST_MLP: usize = 4096;
/// Width of an attention head that the kernels are made for.
const HEAD: usize = 64;
/// Widest residual stream.
const MOST_DIM: usize = 1024;
/// Most logits: what the sampler's threads hold.
const MOST_VOCAB: usize = 17 * 512;

/// How the card keeps weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// 16-bit brain floats.
    Bf16,
    /// 64-bit floats: of the pitch alone.
    F64,
    /// Whole numbers of 8 bits, symmetric, with one scale for each row of a matrix: T3's layers and head alone.
    Int8,
}

impl Number {
    /// Its name in those of the kernels.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F64 => "f64",
            Self::Int8 => "int8",
        }
    }

    /// What the products of many rows compute with.
    pub(crate) fn of_products(self) -> Self {
        if self == Self::Int8 { Self::Bf16 } else { self }
    }

    /// The nearest number of this kind.
    pub(super) fn rounded(self, x: f32) -> f32 {
        match self {
            Self::F16 => f16::from_f32(x).to_f32(),
            Self::Bf16 => bf16::from_f32(x).to_f32(),
            Self::F32 | Self::F64 | Self::Int8 => x,
        }
    }

    /// Bytes of one.
    pub fn bytes(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Int8 => 1,
        }
    }
}

/// Dimensions.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// GPT-2 or else Llama.
    pub gpt2: bool,
    /// Width of the residual stream.
    pub dim: usize,
    /// Attention heads.
    pub heads: usize,
    /// Layers.
    pub layers: usize,
    /// Width of the MLP.
    pub mlp: usize,
    /// Number of logits.
    pub vocab: usize,
}

impl Shape {
    pub(super) fn dim_padded(&self, number: Number) -> usize {
        self.dim.next_multiple_of(slice(number))
    }

    pub(super) fn mlp_padded(&self, number: Number) -> usize {
        self.mlp.next_multiple_of(slice(number))
    }

    /// Rows of the first matrix of the MLP: gate and up in turns with Llama.
    pub(super) fn inner_rows(&self) -> usize {
        if self.gpt2 { self.mlp } else { 2 * self.mlp }
    }

    fn check(&self) -> Result<()> {
        if self.dim != self.heads * HEAD || self.dim > MOST_DIM || self.mlp > MOST_MLP || self.vocab > MOST_VOCAB {
            return Err(Error::device(format!(
                "its kernels are made for heads of {HEAD}, at most {MOST_DIM} channels, {MOST_MLP} in the MLP and {MOST_VOCAB} speech ids"
            )));
        }
        Ok(())
    }

    /// Rows of the matrices of a layer.
    pub(super) fn rows(&self) -> [usize; 4] {
        [3 * self.dim, self.dim, self.inner_rows(), self.dim]
    }

    /// Where the parts of a layer's vectors begin, and their size: norm1, qkv_bias, out_bias, norm2, inner_bias, down_bias,
    /// and with 8 bits the scales of the four matrices.
    fn vectors(&self, number: Number) -> ([usize; 10], usize) {
        let norm = if self.gpt2 { 2 * self.dim } else { self.dim };
        let [qkv, out, inner, down] = self.rows();
        let scales = self.rows().map(|rows| if number == Number::Int8 { rows } else { 0 });
        let sizes = [norm, qkv, out, norm, inner, down, scales[0], scales[1], scales[2], scales[3]];
        let mut at = 0;
        let starts = sizes.map(|size| {
            let start = at;
            at += size;
            start
        });
        (starts, at)
    }

    /// Where the matrices of a layer begin, and their size, in values.
    fn matrices(&self, number: Number) -> ([u64; 4], u64) {
        let (dim, mlp) = (self.dim_padded(number), self.mlp_padded(number));
        let [qkv, out, inner, down] = self.rows();
        let sizes = [qkv * dim, out * dim, inner * dim, down * mlp];
        let mut at = 0;
        let starts = sizes.map(|size| {
            let start = at;
            at += size as u64;
            start
        });
        (starts, at)
    }
}

/// One layer in f32. Matrices are `(outputs, inputs)`, biases and shifts empty with Llama.
#[derive(Debug, Clone)]
pub struct LayerWeights {
    /// Before attention: weights, then shifts.
    pub norm1: Vec<f32>,
    /// Queries, keys and values.
    pub qkv: Vec<f32>,
    pub qkv_bias: Vec<f32>,
    /// Behind attention.
    pub out: Vec<f32>,
    pub out_bias: Vec<f32>,
    /// Before the MLP: weights, then shifts.
    pub norm2: Vec<f32>,
    /// Into the MLP; rows of gate and up in turns with Llama.
    pub inner: Vec<f32>,
    pub inner_bias: Vec<f32>,
    /// Out of the MLP.
    pub down: Vec<f32>,
    pub down_bias: Vec<f32>,
}

/// What is not in the layers.
#[derive(Debug)]
pub struct OuterWeights {
    /// Weights, then shifts (GPT-2).
    pub final_norm: Vec<f32>,
    /// `(vocab, dim)`.
    pub head: Vec<f32>,
    /// Empty with Llama.
    pub head_bias: Vec<f32>,
    /// Of speech ids, `(vocab, dim)`.
    pub embedding: Vec<f32>,
    /// Of generated tokens (Llama) or of the whole sequence (GPT-2), `(.., dim)`.
    pub positions: Vec<f32>,
    /// Of the rotary embedding, `(positions, 32)`; empty with GPT-2.
    pub cosines: Vec<f32>,
    /// As `cosines`.
    pub sines: Vec<f32>,
}

/// What the kernels are told of the weights; `struct Net` of `decode.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct NetArgs {
    pub layers: u64,
    pub head: u64,
    pub vectors: u64,
    pub final_norm: u64,
    pub head_bias: u64,
    pub head_scale: u64,
    pub embedding: u64,
    pub positions: u64,
    pub cosines: u64,
    pub sines: u64,
    pub layer_size: u64,
    pub offset: [u64; 4],
    pub vector_size: i32,
    /// See [`Shape::vectors`].
    pub vector_at: [i32; 10],
    pub dim: i32,
    pub dim_padded: i32,
    pub mlp: i32,
    pub mlp_padded: i32,
    pub heads: i32,
    pub count: i32,
    pub vocab: i32,
}

// SAFETY: plain numbers in the layout of the kernels' struct.
unsafe impl DeviceRepr for NetArgs {}

/// The weights.
#[derive(Debug)]
pub struct Net {
    /// Dimensions.
    pub shape: Shape,
    /// How weights are kept.
    pub number: Number,
    pub(super) args: NetArgs,
    /// Everything that `args` points to.
    buffers: Vec<CudaSlice<u8>>,
}

impl Net {
    /// Uploads weights, layer by layer.
    ///
    /// # Errors
    /// If the kernels do not fit the shape, the card lacks memory or fails, or `layer` does.
    pub fn upload(
        card: &Card,
        shape: Shape,
        number: Number,
        outer: &OuterWeights,
        mut layer: impl FnMut(usize) -> Result<LayerWeights>,
    ) -> Result<Self> {
        shape.check()?;
        let (offset, layer_size) = shape.matrices(number);
        let (vector_at, vector_size) = shape.vectors(number);
        let (dim_padded, mlp_padded) = (shape.dim_padded(number), shape.mlp_padded(number));
        let bytes = layer_size as usize * shape.layers * number.bytes();
        let (free, _) = card.context.mem_get_info().map_err(failed)?;
        let needed = bytes + (shape.vocab * (dim_padded * number.bytes() + shape.dim * 4)) + (600 << 20);
        if needed > free {
            return Err(Error::device(format!(
                "{} has {} MB free, and this model needs {} MB there",
                card.name(),
                free >> 20,
                needed >> 20
            )));
        }
        let mut layers = card.stream.alloc_zeros::<u8>(bytes).map_err(failed)?;
        let mut vectors = vec![0f32; vector_size * shape.layers];
        for i in 0..shape.layers {
            let w = layer(i)?;
            let (d, dp, mp) = (shape.dim, dim_padded, mlp_padded);
            let mut scales = [const { Vec::new() }; 4];
            let matrices = [(&w.qkv, d, dp), (&w.out, d, dp), (&w.inner, d, dp), (&w.down, shape.mlp, mp)];
            for (k, (matrix, columns, padded)) in matrices.into_iter().enumerate() {
                let data = match number {
                    Number::Int8 => {
                        let (data, found) = quantised(matrix, columns, padded);
                        scales[k] = found;
                        data
                    }
                    _ => packed(matrix, columns, padded, number),
                };
                let start = (layer_size as usize * i + offset[k] as usize) * number.bytes();
                let mut place = layers.slice_mut(start..start + data.len());
                card.stream.memcpy_htod(&data, &mut place).map_err(failed)?;
            }
            let parts = [&w.norm1, &w.qkv_bias, &w.out_bias, &w.norm2, &w.inner_bias, &w.down_bias];
            for (part, at) in parts.into_iter().chain(&scales).zip(vector_at) {
                let start = vector_size * i + at;
                vectors[start..start + part.len()].copy_from_slice(part);
            }
        }
        let mut buffers = vec![layers];
        let mut put = |data: &[u8]| -> Result<u64> {
            let buffer = if data.is_empty() {
                card.stream.alloc_zeros::<u8>(16).map_err(failed)?
            } else {
                card.stream.clone_htod(data).map_err(failed)?
            };
            let address = address_of(card, &buffer);
            buffers.push(buffer);
            Ok(address)
        };
        let mut head_bias = outer.head_bias.clone();
        head_bias.resize(shape.vocab, 0.0);
        let (head, head_scale) = match number {
            Number::Int8 => quantised(&outer.head, shape.dim, dim_padded),
            _ => (packed(&outer.head, shape.dim, dim_padded, number), Vec::new()),
        };
        let mut args = NetArgs {
            layers: 0,
            head: put(&head)?,
            vectors: put(bytes_of(&vectors))?,
            final_norm: put(bytes_of(&outer.final_norm))?,
            head_bias: put(bytes_of(&head_bias))?,
            head_scale: put(bytes_of(&head_scale))?,
            embedding: put(bytes_of(&outer.embedding))?,
            positions: put(bytes_of(&outer.positions))?,
            cosines: put(bytes_of(&outer.cosines))?,
            sines: put(bytes_of(&outer.sines))?,
            layer_size,
            offset,
            vector_size: vector_size as i32,
            vector_at: vector_at.map(|at| at as i32),
            dim: shape.dim as i32,
            dim_padded: dim_padded as i32,
            mlp: shape.mlp as i32,
            mlp_padded: mlp_padded as i32,
            heads: shape.heads as i32,
            count: shape.layers as i32,
            vocab: shape.vocab as i32,
        };
        args.layers = address_of(card, &buffers[0]);
        card.synchronize()?;
        Ok(Self { shape, number, args, buffers })
    }

    /// Bytes of weights that a token needs: all layers and the head.
    pub(super) fn step_bytes(&self) -> usize {
        let head = self.shape.vocab * self.shape.dim_padded(self.number);
        (self.args.layer_size as usize * self.shape.layers + head) * self.number.bytes()
    }

    /// Bytes on the card.
    pub fn bytes(&self) -> usize {
        self.buffers.iter().map(CudaSlice::len).sum()
    }
}

/// Rows padded with zeros and rounded.
pub(super) fn packed(matrix: &[f32], columns: usize, padded: usize, number: Number) -> Vec<u8> {
    let rows = matrix.len() / columns.max(1);
    let mut out = vec![0u8; rows * padded * number.bytes()];
    for (row, to) in matrix.chunks_exact(columns).zip(out.chunks_exact_mut(padded * number.bytes())) {
        let to = to.chunks_exact_mut(number.bytes()).zip(row);
        match number {
            Number::F64 => to.for_each(|(to, x)| to.copy_from_slice(&f64::from(*x).to_le_bytes())),
            Number::F32 => to.for_each(|(to, x)| to.copy_from_slice(&x.to_le_bytes())),
            Number::F16 => to.for_each(|(to, x)| to.copy_from_slice(&f16::from_f32(*x).to_le_bytes())),
            Number::Bf16 => to.for_each(|(to, x)| to.copy_from_slice(&bf16::from_f32(*x).to_le_bytes())),
            Number::Int8 => to.for_each(|(to, x)| to.copy_from_slice(&(x.round() as i8).to_le_bytes())),
        }
    }
    out
}

/// Rows padded with zeros, in 127ths of the largest value of each, and what these are measured in.
pub(super) fn quantised(matrix: &[f32], columns: usize, padded: usize) -> (Vec<u8>, Vec<f32>) {
    let scale = |row: &[f32]| row.iter().fold(0f32, |most, x| most.max(x.abs())) / 127.0;
    let scales: Vec<f32> = matrix.chunks_exact(columns.max(1)).map(scale).collect();
    let rows = matrix.chunks_exact(columns.max(1)).zip(&scales);
    let steps: Vec<f32> =
        rows.flat_map(|(row, scale)| row.iter().map(move |x| x / scale.max(f32::MIN_POSITIVE))).collect();
    (packed(&steps, columns, padded, Number::Int8), scales)
}

/// The bytes of numbers, as the card has them too: little end first.
pub(super) fn bytes_of(values: &[f32]) -> &[u8] {
    // SAFETY: floats have no padding, and bytes no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// Where a buffer lies on the card.
pub(super) fn address_of(card: &Card, buffer: &CudaSlice<u8>) -> u64 {
    buffer.device_ptr(&card.stream).0
}
