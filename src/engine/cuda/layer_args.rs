//! Arguments of the layers' kernels: each struct the twin of one in `kernels/`, field by field.

use cudarc::driver::DeviceRepr;

use super::net::Number;

/// What becomes of a value: `Act` of `rows.cuh`; 0 leaves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Silu = 1,
    Gelu = 2,
    Leaky = 3,
    Snake = 4,
    Elu = 5,
    Abs = 6,
    GeluTanh = 7,
    /// Columns in turns, gate and up: half as many come out.
    Gate = 8,
}

/// `struct Rows` of `rows.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RowsArgs {
    a: u64,
    w: u64,
    bias: u64,
    residual: u64,
    add: u64,
    alpha: u64,
    norm_sums: u64,
    out: u64,
    second: u64,
    a_batch: i64,
    a_head: i64,
    w_head: i64,
    out_head: i64,
    offset: i64,
    limit: i64,
    pub(super) batch: i32,
    pub(super) rows: i32,
    in_rows: i32,
    pub(super) n: i32,
    pub(super) k: i32,
    channels: i32,
    pitch: i32,
    w_pitch: i32,
    out_pitch: i32,
    second_pitch: i32,
    stride: i32,
    dilation: i32,
    left: i32,
    twice: i32,
    made: i32,
    first: i32,
    then: i32,
    slope: f32,
    eps: f32,
}

/// `struct RowsSet` of `rows.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct RowsSetArgs {
    pub each: [RowsArgs; 3],
    pub count: i32,
}

/// `struct Attend` of `attention.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AttendArgs {
    /// Queries, keys, values and what the heads gather; of each row, a head's values side by side.
    pub q: u64,
    pub k: u64,
    pub v: u64,
    pub out: u64,
    /// Added to the scores, or 0; see the kernel.
    pub bias: u64,
    /// Two `i32` for each query, or 0: the first key it sees and the one behind the last.
    pub ranges: u64,
    pub q_batch: i64,
    pub k_batch: i64,
    /// From one head's keys to the next's.
    pub k_head: i64,
    pub out_batch: i64,
    pub bias_head: i64,
    pub q_pitch: i32,
    pub k_pitch: i32,
    pub out_pitch: i32,
    pub bias_pitch: i32,
    pub queries: i32,
    pub keys: i32,
    /// Of a head.
    pub width: i32,
    /// 1: the last query sees all keys, and each before it one less.
    pub causal: i32,
    pub scale: f32,
}

/// `struct NormRows` of `pointwise.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NormArgs {
    pub x: u64,
    pub weight: u64,
    pub bias: u64,
    /// Added behind the activation, or 0.
    pub shift: u64,
    /// In f32, or 0.
    pub out: u64,
    /// In the numbers of the products, or 0.
    pub second: u64,
    pub rows: i32,
    pub dim: i32,
    pub second_pitch: i32,
    pub mish: i32,
    pub eps: f32,
    pub scale: f32,
}

/// `struct FlowState` of `pointwise.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlowArgs {
    pub x: u64,
    pub velocity: u64,
    pub mu: u64,
    pub speaker: u64,
    pub cond: u64,
    pub inputs: u64,
    pub frames: i32,
    pub batch: i32,
    pub step: f32,
    pub guidance: f32,
}

/// `struct Snakes` of `vocoder.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct SnakesArgs {
    pub x: u64,
    pub alpha: [u64; 3],
    pub out: [u64; 3],
    pub size: i32,
    pub channels: i32,
}

// SAFETY: plain numbers in the layouts of the kernels' structs.
unsafe impl DeviceRepr for RowsSetArgs {}
// SAFETY: as above.
unsafe impl DeviceRepr for AttendArgs {}
// SAFETY: as above.
unsafe impl DeviceRepr for NormArgs {}
// SAFETY: as above.
unsafe impl DeviceRepr for FlowArgs {}
// SAFETY: as above.
unsafe impl DeviceRepr for SnakesArgs {}

/// The weights of a projection or a convolution on the card, `(n, taps · channels)`, and its bias.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix {
    pub(super) at: u64,
    pub(super) bias: u64,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) channels: usize,
    pub(super) number: Number,
    /// Of a layer norm that is part of it: the sums of its rows and what is added to the variance; 0 for none.
    pub(super) norm: (u64, f32),
}

impl Matrix {
    /// A projection whose weights and bias lie on the card already.
    pub(crate) fn at(at: u64, bias: u64, (n, k): (usize, usize), number: Number) -> Self {
        Self { at, bias, n, k, channels: k, number, norm: (0, 0.0) }
    }

    /// Outputs.
    pub(crate) fn outputs(&self) -> usize {
        self.n
    }
}

/// Where the rows that a product reads lie: `(batch, rows, pitch)`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Input {
    pub at: u64,
    pub batch: usize,
    pub rows: usize,
    pub pitch: usize,
}

impl RowsArgs {
    /// A row of the result for each of the input.
    pub(crate) fn new(w: &Matrix, x: Input) -> Self {
        let out_pitch = w.n.next_multiple_of(4);
        Self {
            a: x.at,
            w: w.at,
            bias: w.bias,
            a_batch: (x.rows * x.pitch) as i64,
            limit: i64::MAX,
            batch: x.batch as i32,
            rows: x.rows as i32,
            in_rows: x.rows as i32,
            n: w.n as i32,
            k: w.k as i32,
            channels: w.channels as i32,
            pitch: x.pitch as i32,
            w_pitch: w.k as i32,
            norm_sums: w.norm.0,
            eps: w.norm.1,
            out_pitch: out_pitch as i32,
            second_pitch: out_pitch as i32,
            stride: 1,
            dilation: 1,
            ..Self::default()
        }
    }

    /// `q kᵀ` for each of `heads` heads of `width` values side by side in `q` and in the `n` rows of `w_pitch` at `w`.
    pub(crate) fn heads(q: Input, width: usize, (w, n, w_pitch): (u64, usize, usize)) -> Self {
        let matrix = Matrix::at(w, 0, (n, width), Number::F32);
        Self { a_head: width as i64, w_head: width as i64, w_pitch: w_pitch as i32, made: 1, ..Self::new(&matrix, q) }
    }

    /// The weights were made on the card, by a kernel that may not have ended.
    pub(crate) fn made(self, made: bool) -> Self {
        Self { made: i32::from(made), ..self }
    }

    /// From one product of a launch to the next in `out`.
    pub(crate) fn out_head(self, values: usize) -> Self {
        Self { out_head: values as i64, ..self }
    }

    /// Row `t` and tap `i` read row `t · stride + i · dilation - left`; `rows` of them come out.
    pub(crate) fn conv(self, rows: usize, stride: usize, dilation: usize, left: usize) -> Self {
        Self { rows: rows as i32, stride: stride as i32, dilation: dilation as i32, left: left as i32, ..self }
    }

    /// Every row of the input stands for two.
    pub(crate) fn twice(self) -> Self {
        Self { twice: 1, rows: 2 * self.rows, ..self }
    }

    pub(crate) fn first(self, act: Act, slope: f32) -> Self {
        Self { first: act as i32, slope, ..self }
    }

    pub(crate) fn residual(self, at: u64) -> Self {
        Self { residual: at, ..self }
    }

    pub(crate) fn add(self, at: u64) -> Self {
        Self { add: at, ..self }
    }

    /// The result in f32.
    pub(crate) fn out(self, at: u64) -> Self {
        Self { out: at, ..self }
    }

    /// The result in f32, `pitch` values from row to row.
    pub(crate) fn out_pitch(self, at: u64, pitch: usize) -> Self {
        Self { out: at, out_pitch: pitch as i32, ..self }
    }

    /// All places of the result moved back by `offset` values; those outside of `0 .. limit` are left out.
    pub(crate) fn moved(self, offset: usize, limit: usize) -> Self {
        Self { offset: -(offset as i64), limit: limit as i64, ..self }
    }

    /// The result in the numbers of the product, `pitch` values from row to row.
    pub(crate) fn second(self, at: u64, pitch: usize) -> Self {
        Self { second: at, second_pitch: pitch as i32, ..self }
    }

    /// What comes upon `second`.
    pub(crate) fn then(self, act: Act, slope: f32) -> Self {
        Self { then: act as i32, slope, ..self }
    }

    /// `second` through a snake with these factors.
    pub(crate) fn snake(self, alpha: u64) -> Self {
        Self { then: Act::Snake as i32, alpha, ..self }
    }
}
