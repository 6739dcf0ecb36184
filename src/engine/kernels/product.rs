//! Matrix products `y = act(x Wᵀ + b + r)` for any number of rows.
//!
//! A weight matrix is kept as panels of [`PANEL`] outputs, `(K, 16)` each ([`super::matrix`]). A tile of up to six rows
//! goes against up to four panels with all its sums in registers, so one layout serves a decode step, where every weight
//! is read once from memory for all rows, and a long sequence, where as much of a group of panels as fits the first
//! cache stays there while the rows pass by, their sums so far waiting beside it. A sum always runs over K from front to
//! back in one accumulator: a row's result depends neither on the rows beside it nor on the number of threads.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::element::Element;
use super::int8::{Activations, DotUnit, Int8};
use super::matrix::{Data, Matrix, PANEL};
use super::pointwise::{Elu, Gelu, GeluTanh, Identity, LeakyRelu, Mish, Relu, Silu, Unary};
use super::simd::{Kernel, MAX_LANES, Simd, Unit, dispatch_on};
use super::team;
use crate::meter::{Kind, counted};
use crate::protocol::Precision;

/// Rows of a tile: six rows times four vectors fill the registers of AVX-512, times two those of AVX2.
pub(super) const TILE: usize = 6;
/// Rows of the largest tile there is, that of AMX.
pub(super) const MAX_TILE: usize = 32;
/// Panels of a group: what one tile multiplies with.
const GROUP: usize = 4;
/// Columns of a group.
pub(super) const COLUMNS: usize = GROUP * PANEL;
/// Rows of a task: enough to be worth bringing a group into the cache, few enough to share out.
const TASK_ROWS: usize = TASK_TILES * TILE;
const TASK_TILES: usize = 32;
/// So few rows are done with a weight before the next has come from memory.
const STREAMED_ROWS: usize = 2;
/// Weights of a panel that are asked for ahead, in steps of K, where rows are that few.
const AHEAD: usize = 64;
/// Bytes of a group that stay in the first cache (32 to 48 KiB) while rows pass by.
const CACHED_BYTES: usize = 32 << 10;
/// The rows of a decode step, guidance included.
pub(super) const FEW_ROWS: usize = 2;
/// Below this many multiplications one thread is faster.
const PARALLEL_WORK: usize = 1 << 17;

/// The left factor: rows that may overlap and consist of several stretches, which is how a convolution reads its input.
///
/// Row `r` of sequence `b` is made of `taps` stretches of `width` values; stretch `t` begins at
/// `b · batch_step + r · row_step + t · tap_step`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub data: &'a [f32],
    pub batch: usize,
    pub batch_step: usize,
    pub rows: usize,
    pub row_step: usize,
    pub taps: usize,
    pub tap_step: usize,
    pub width: usize,
}

impl<'a> Rows<'a> {
    /// Rows one after the other.
    pub(crate) fn dense(data: &'a [f32], rows: usize, width: usize) -> Self {
        Self { data, batch: 1, batch_step: 0, rows, row_step: width, taps: 1, tap_step: width, width }
    }

    /// Rows of all sequences.
    pub(crate) fn count(&self) -> usize {
        self.batch * self.rows
    }

    /// Values of a row.
    pub(crate) fn cols(&self) -> usize {
        self.taps * self.width
    }

    /// Where a row begins, counted through all sequences.
    pub(super) fn start(&self, row: usize) -> usize {
        row / self.rows * self.batch_step + row % self.rows * self.row_step
    }

    fn fits(&self) -> bool {
        if self.count() == 0 || self.cols() == 0 {
            return true;
        }
        let last = (self.batch - 1) * self.batch_step + (self.rows - 1) * self.row_step;
        last + (self.taps - 1) * self.tap_step + self.width <= self.data.len()
    }

    /// The same with stretches that touch made one.
    fn joined(self) -> Self {
        if self.taps > 1 && self.tap_step == self.width { Self { taps: 1, width: self.cols(), ..self } } else { self }
    }
}

/// A function on the way out of a product.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Activation {
    /// None.
    #[default]
    Identity,
    /// `max(0, x)`.
    Relu,
    /// `x` if positive, else `slope · x`.
    LeakyRelu(f32),
    /// `x · sigmoid(x)`.
    Silu,
    /// `x · Φ(x)`.
    Gelu,
    /// The tanh approximation of GPT-2.
    GeluTanh,
    /// `x` if positive, else `exp(x) - 1`.
    Elu,
    /// `x · tanh(ln(1 + eˣ))`.
    Mish,
}

/// What becomes of the sums: `act(sum + bias + residual)`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Finish<'a> {
    /// One value for each column.
    pub bias: Option<&'a [f32]>,
    pub activation: Activation,
    /// As large as the output.
    pub residual: Option<&'a [f32]>,
}

/// `act(x Wᵀ + bias + residual)`, `(rows, N)`, on all threads.
///
/// # Panics
/// If the shapes disagree: a defect of the caller.
pub(crate) fn product(x: Rows<'_>, w: &Matrix, finish: Finish<'_>) -> Vec<f32> {
    let n = x.count() * w.outputs();
    let mut out = Vec::with_capacity(n);
    let kind = Kind { kernel: "product", precision: w.precision(), many_rows: x.count() > FEW_ROWS };
    let operations = 2 * x.count() * w.outputs() * w.inputs() * w.passes();
    let bytes = w.bytes() + size_of::<f32>() * (x.count() * x.cols() + n);
    counted(kind, operations, bytes, || {
        multiply(Unit::best(), x, w, finish, &mut out.spare_capacity_mut()[..n], true);
    });
    // SAFETY: `multiply` writes all of its output.
    unsafe { out.set_len(n) };
    out
}

/// [`product`] on the calling thread alone, for callers that share out whole products.
///
/// # Panics
/// If the shapes disagree: a defect of the caller.
pub(crate) fn product_serial(x: Rows<'_>, w: &Matrix, finish: Finish<'_>, out: &mut [f32]) {
    // SAFETY: initialised values are written to, never the other way round.
    let out = unsafe { &mut *(std::ptr::from_mut(out) as *mut [MaybeUninit<f32>]) };
    multiply(Unit::best(), x, w, finish, out, false);
}

/// [`product_serial`] with some outputs of an f32 matrix, whole panels of them.
///
/// # Panics
/// If the shapes disagree: a defect of the caller.
pub(super) fn product_part(unit: Unit, x: Rows<'_>, w: &Matrix, outputs: Range<usize>, out: &mut [f32]) {
    let (n, k) = (outputs.len(), w.inputs());
    assert!(x.fits() && x.cols() == k && out.len() == x.count() * n, "a product of {n} x {k}");
    assert!(outputs.start.is_multiple_of(PANEL) && n.is_multiple_of(PANEL), "{n} outputs");
    assert!(w.precision() == Precision::F32, "a part of a matrix at {:?}", w.precision());
    let call = Call { unit, x: x.joined(), n, finish: Finish::default(), out: Output(out.as_mut_ptr()) };
    if let Data::F32(panels) = w.data() {
        call.share_out(&panels[outputs.start * k..outputs.end * k], false);
    }
}

fn multiply(unit: Unit, x: Rows<'_>, w: &Matrix, finish: Finish<'_>, out: &mut [MaybeUninit<f32>], parallel: bool) {
    let (m, n, k) = (x.count(), w.outputs(), w.inputs());
    assert!(x.fits() && x.cols() == k && out.len() == m * n, "product of {m} rows of {} with {n} x {k}", x.cols());
    assert!(finish.bias.is_none_or(|b| b.len() == n), "a bias for {n} outputs");
    assert!(finish.residual.is_none_or(|r| r.len() == m * n), "a residual for {m} x {n}");
    if m == 0 || n == 0 {
        return;
    }
    let call = Call { unit, x: x.joined(), n, finish, out: Output(out.as_mut_ptr().cast()) };
    let parallel = parallel && m * n * k >= PARALLEL_WORK && rayon::current_num_threads() > 1;
    match w.data() {
        Data::F32(w) => call.share_out(&**w, parallel),
        Data::F16(w) => call.share_out(&**w, parallel),
        Data::Bf16(w) => call.share_out(&**w, parallel),
        Data::Int8(panels) => {
            let activations = Activations::quantise(unit, &call.x, panels.is_wide(), parallel);
            call.share_out(Int8 { activations: &activations, panels, unit: DotUnit::best() }, parallel);
        }
    }
}

/// Where tasks write: each to its own rows and columns.
#[derive(Clone, Copy)]
struct Output(*mut f32);

// SAFETY: no two tasks write to the same place, and nobody reads before all are done.
unsafe impl Sync for Output {}
// SAFETY: as above.
unsafe impl Send for Output {}

/// Weights that a tile can be multiplied with.
pub(super) trait Weights: Copy + Sync {
    /// What a thread needs for the tiles of a task.
    type Ready;

    /// Gets a thread ready.
    fn ready(self) -> Self::Ready;

    /// The rows of a tile, at most [`MAX_TILE`].
    fn rows(self) -> usize;

    /// Values of K to multiply with before the next rows come.
    fn depth(self, k: usize) -> usize;

    /// Asks the memory for one of `of` shares of a part of some panels, which comes next.
    fn prefetch<S: Simd>(self, s: S, k: usize, panels: &Range<usize>, depth: &Range<usize>, share: usize, of: usize);

    /// A block's products: written to `sums` if it is the first part of K, else added.
    fn tile<S: Simd>(self, s: S, ready: &mut Self::Ready, x: &Rows<'_>, block: &Block, sums: &mut [[f32; COLUMNS]]);
}

/// What is multiplied at once.
pub(super) struct Block {
    /// A tile of rows.
    pub rows: Range<usize>,
    /// Up to [`GROUP`].
    pub panels: Range<usize>,
    /// A part of K.
    pub depth: Range<usize>,
}

/// The sums of a tile of vectors.
type Sums = [[f32; COLUMNS]; TILE];

#[derive(Clone, Copy)]
struct Call<'a> {
    unit: Unit,
    x: Rows<'a>,
    n: usize,
    finish: Finish<'a>,
    out: Output,
}

impl Call<'_> {
    /// All groups for one stretch of rows, then the next stretch: its rows stay in the cache.
    fn share_out<W: Weights>(&self, w: W, parallel: bool) {
        let (m, panels) = (self.x.count(), self.n.div_ceil(PANEL));
        let groups = panels.div_ceil(GROUP);
        let tasks = m.div_ceil(TASK_ROWS) * groups;
        let one = |task: usize| {
            let (stretch, group) = (task / groups, task % groups);
            let rows = stretch * TASK_ROWS..m.min((stretch + 1) * TASK_ROWS);
            let panels = group * GROUP..panels.min((group + 1) * GROUP);
            dispatch_on(self.unit, Task { call: self, w, rows, panels });
        };
        if parallel {
            team::share_out(tasks, one);
        } else {
            (0..tasks).for_each(one);
        }
    }
}

/// A stretch of rows times a group of panels.
struct Task<'a, W> {
    call: &'a Call<'a>,
    w: W,
    rows: Range<usize>,
    panels: Range<usize>,
}

impl<W: Weights> Kernel for Task<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let k = self.call.x.cols();
        let mut ready = self.w.ready();
        // What reads the weights once reads them best in one go.
        let depth = if self.rows.len() <= TILE { k } else { self.w.depth(k) };
        if depth >= k {
            let mut sums = [[0.0; COLUMNS]; MAX_TILE];
            for tile in self.tiles(self.w.rows()) {
                let block = Block { rows: tile, panels: self.panels.clone(), depth: 0..k };
                self.w.tile(s, &mut ready, &self.call.x, &block, &mut sums);
                self.act_and_write(s, block.rows, &sums);
            }
            return;
        }
        let mut waiting: [Sums; TASK_TILES] = [[[0.0; COLUMNS]; TILE]; TASK_TILES];
        let (tiles, all_panels) = (self.rows.len().div_ceil(TILE), self.call.n.div_ceil(PANEL));
        for from in (0..k).step_by(depth) {
            let part = from..k.min(from + depth);
            let (next_panels, next_part) = if part.end < k {
                (self.panels.clone(), part.end..k.min(part.end + depth))
            } else {
                (self.panels.end..all_panels.min(self.panels.end + GROUP), 0..depth)
            };
            for (i, (tile, sums)) in self.tiles(TILE).zip(&mut waiting).enumerate() {
                self.w.prefetch(s, k, &next_panels, &next_part, i, tiles);
                let block = Block { rows: tile, panels: self.panels.clone(), depth: part.clone() };
                self.w.tile(s, &mut ready, &self.call.x, &block, sums);
                if part.end == k {
                    self.act_and_write(s, block.rows, sums);
                }
            }
        }
    }
}

impl<W: Weights> Task<'_, W> {
    fn tiles(&self, rows: usize) -> impl Iterator<Item = Range<usize>> + use<W> {
        let Range { start, end } = self.rows;
        (start..end).step_by(rows).map(move |first| first..end.min(first + rows))
    }

    #[inline(always)]
    fn act_and_write<S: Simd>(&self, s: S, tile: Range<usize>, sums: &[[f32; COLUMNS]]) {
        let (first, rows) = (tile.start, tile.len());
        match self.call.finish.activation {
            Activation::Identity => self.finish(s, Identity, first, rows, sums),
            Activation::Relu => self.finish(s, Relu, first, rows, sums),
            Activation::LeakyRelu(slope) => self.finish(s, LeakyRelu(slope), first, rows, sums),
            Activation::Silu => self.finish(s, Silu, first, rows, sums),
            Activation::Gelu => self.finish(s, Gelu, first, rows, sums),
            Activation::GeluTanh => self.finish(s, GeluTanh, first, rows, sums),
            Activation::Elu => self.finish(s, Elu, first, rows, sums),
            Activation::Mish => self.finish(s, Mish, first, rows, sums),
        }
    }

    #[inline(always)]
    fn finish<S: Simd>(&self, s: S, op: impl Unary, first: usize, rows: usize, sums: &[[f32; COLUMNS]]) {
        let Call { n, finish, out, .. } = *self.call;
        let column = self.panels.start * PANEL;
        let columns = n.min(self.panels.end * PANEL) - column;
        for (r, sums) in sums[..rows].iter().enumerate() {
            let at = (first + r) * n + column;
            for c in (0..columns).step_by(S::LANES) {
                let len = S::LANES.min(columns - c);
                let mut v = s.load(&sums[c..]);
                if let Some(bias) = finish.bias {
                    v = s.add(v, s.load_part(&bias[column + c..column + c + len], 0.0));
                }
                if let Some(residual) = finish.residual {
                    v = s.add(v, s.load_part(&residual[at + c..at + c + len], 0.0));
                }
                // SAFETY: `multiply` checked the length of the output, and these rows and columns are ours alone.
                let to = unsafe { std::slice::from_raw_parts_mut(out.0.add(at + c).cast::<MaybeUninit<f32>>(), len) };
                s.fill_part(to, op.apply(s, v));
            }
        }
    }
}

impl<E: Element> Weights for &[E] {
    type Ready = ();

    fn ready(self) {}

    fn rows(self) -> usize {
        TILE
    }

    fn depth(self, _: usize) -> usize {
        CACHED_BYTES / (COLUMNS * size_of::<E>())
    }

    #[inline(always)]
    fn prefetch<S: Simd>(self, s: S, k: usize, panels: &Range<usize>, depth: &Range<usize>, share: usize, of: usize) {
        let rows = depth.len() * panels.len();
        let each = rows.div_ceil(of);
        for i in share * each..rows.min((share + 1) * each) {
            let row = (panels.start + i / depth.len()) * k + depth.start + i % depth.len();
            s.prefetch(self.as_ptr().wrapping_add(row * PANEL));
        }
    }

    #[inline(always)]
    fn tile<S: Simd>(
        self,
        s: S,
        (): &mut (),
        x: &Rows<'_>,
        Block { rows, panels, depth }: &Block,
        sums: &mut [[f32; COLUMNS]],
    ) {
        let w = &self[panels.start * PANEL * x.cols()..panels.end * PANEL * x.cols()];
        match rows.len() {
            1 => part_of_tile::<S, E, 1>(s, x, rows.start, w, depth, sums),
            2 => part_of_tile::<S, E, 2>(s, x, rows.start, w, depth, sums),
            3 => part_of_tile::<S, E, 3>(s, x, rows.start, w, depth, sums),
            4 => part_of_tile::<S, E, 4>(s, x, rows.start, w, depth, sums),
            5 => part_of_tile::<S, E, 5>(s, x, rows.start, w, depth, sums),
            _ => part_of_tile::<S, E, TILE>(s, x, rows.start, w, depth, sums),
        }
    }
}

/// `R` rows against all panels of `w`, as many columns at once as there are registers for their sums.
#[inline(always)]
fn part_of_tile<S: Simd, E: Element, const R: usize>(
    s: S,
    x: &Rows<'_>,
    first: usize,
    w: &[E],
    depth: &Range<usize>,
    sums: &mut [[f32; COLUMNS]],
) {
    let a: [*const f32; R] = std::array::from_fn(|r| x.data[x.start(first + r)..].as_ptr());
    let columns = w.len() / x.cols().max(1);
    let mut column = 0;
    while column < columns {
        let vectors = (columns - column) / S::LANES;
        column += if S::LANES == MAX_LANES && vectors >= 4 {
            several::<S, E, R, 4>(s, x, &a, w, column, depth, sums)
        } else if vectors >= 2 {
            several::<S, E, R, 2>(s, x, &a, w, column, depth, sums)
        } else {
            several::<S, E, R, 1>(s, x, &a, w, column, depth, sums)
        };
    }
}

/// `V` vectors of columns from `column` on.
#[inline(always)]
fn several<S: Simd, E: Element, const R: usize, const V: usize>(
    s: S,
    x: &Rows<'_>,
    a: &[*const f32; R],
    w: &[E],
    column: usize,
    depth: &Range<usize>,
    sums: &mut [[f32; COLUMNS]],
) -> usize {
    let k = x.cols();
    let b: [*const E; V] = std::array::from_fn(|v| {
        let c = column + v * S::LANES;
        w[c / PANEL * PANEL * k + c % PANEL..].as_ptr()
    });
    let mut acc = [[s.splat(0.0); V]; R];
    if depth.start > 0 {
        for r in 0..R {
            for v in 0..V {
                acc[r][v] = s.load(&sums[r][column + v * S::LANES..]);
            }
        }
    }
    let mut at = depth.start;
    while at < depth.end {
        let (tap, from) = (at / x.width, at % x.width);
        let to = x.width.min(from + depth.end - at);
        at += to - from;
        for i in from..to {
            if R <= STREAMED_ROWS {
                b.iter().for_each(|b| s.prefetch(b.wrapping_add((tap * x.width + i + AHEAD) * PANEL)));
            }
            // SAFETY: a panel holds K times 16 weights.
            let row: [S::V; V] = std::array::from_fn(|v| unsafe { E::load(s, b[v].add((tap * x.width + i) * PANEL)) });
            for r in 0..R {
                // SAFETY: `multiply` checked that every row of x lies within its data.
                let value = s.splat(unsafe { *a[r].add(tap * x.tap_step + i) });
                for v in 0..V {
                    acc[r][v] = s.fma(value, row[v], acc[r][v]);
                }
            }
        }
    }
    for r in 0..R {
        for v in 0..V {
            s.store(&mut sums[r][column + v * S::LANES..], acc[r][v]);
        }
    }
    V * S::LANES
}

#[cfg(test)]
mod tests;
