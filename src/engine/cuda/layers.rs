//! Layers of S3Gen on a card, over channels-last activations: products of rows (projections and convolutions), norms,
//! attention.
//!
//! Activations and weights are addresses; what they point to belongs to a [`Store`] or a [`Room`], whose owner sees to it
//! that they are large enough.

use std::sync::Arc;

use std::ffi::c_void;

use cudarc::driver::{CudaFunction, LaunchConfig, result};

use super::card::{Card, arg, failed};
pub(crate) use super::graphs::Graphs;
use super::layer_args::RowsSetArgs;
pub(crate) use super::layer_args::{Act, AttendArgs, FlowArgs, Input, Matrix, NormArgs, RowsArgs, SnakesArgs};
use super::net::{Number, bytes_of};
pub(crate) use super::store::{Room, Store};
use crate::error::{Error, Result};

/// A product kernel, and its tile.
#[derive(Debug)]
struct Tile {
    kernel: CudaFunction,
    side: (usize, usize),
    threads: u32,
    shared: usize,
    /// Whether it may begin before the kernel in front of it has ended.
    overlaps: bool,
}

/// The kernels for one kind of number.
#[derive(Debug)]
pub(crate) struct Layers {
    card: Arc<Card>,
    /// How activations and weights of the products are kept.
    pub(crate) number: Number,
    /// For many tiles, for just as many as there are multiprocessors, and for few.
    tiles: [Tile; 3],
    exact: [Tile; 2],
    pitch: Tile,
    normalise: CudaFunction,
    normalise_exact: CudaFunction,
    gather: CudaFunction,
    distances: CudaFunction,
    stack: CudaFunction,
    advance: CudaFunction,
    /// For heads of up to 32 and up to 64 values, and for those of T3's cache.
    attend: [(CudaFunction, usize); 3],
    stft: CudaFunction,
    istft: CudaFunction,
    snakes: CudaFunction,
    mean3: CudaFunction,
}

/// Values of a row of the vocoder's spectra: 18, and zeros.
pub(crate) const SPECTRUM: usize = 20;
/// Most values of a row that is normalised.
const MOST_NORMALISED: usize = 512;
/// Widest head.
const MOST_HEAD: usize = 64;

impl Layers {
    /// Makes the kernels ready.
    ///
    /// # Errors
    /// If the card lacks shared memory or fails.
    pub(crate) fn new(card: Arc<Card>, number: Number) -> Result<Self> {
        let name = number.name();
        let tile = |shape: &str, number: &str, side: (usize, usize), threads: u32, shared: usize| {
            Ok::<_, Error>(Tile {
                kernel: card.kernel(&format!("rows_{shape}_{number}"), shared)?,
                side,
                threads,
                shared,
                overlaps: number.ends_with("16"),
            })
        };
        // `RowTile` and `ExactTile` of `rows.cuh`.
        let much = card.much_shared_memory;
        let exact_stages = if much { 4 } else { 3 };
        let exact = || {
            let bytes = |rows: usize| exact_stages * (rows + 64) * 36 * 4;
            Ok::<_, Error>([
                tile("wide", "f32", (64, 64), 256, bytes(64))?,
                tile("deep", "f32", (32, 64), 128, bytes(32))?,
            ])
        };
        let bytes = |sides: usize, groups: usize| {
            let stages = if much { 4 } else { 3 - usize::from(groups * sides > 192) };
            groups * stages * sides * 72 * 2
        };
        let tiles = match number {
            Number::F16 | Number::Bf16 => [
                tile("wide", name, (64, 128), 256, bytes(64 + 128, 1))?,
                tile("even", name, (64, 64), 256, bytes(64 + 64, 2))?,
                tile("deep", name, (32, 64), 256, bytes(32 + 64, 2))?,
            ],
            _ => {
                let [wide, deep] = exact()?;
                [wide, tile("deep", "f32", (32, 64), 128, deep.shared)?, deep]
            }
        };
        // `Flash::Memory` of `attention.cuh`: queries, and of two groups two stages of keys and values.
        let flash = |head: usize| 9 * 64 * (head + 8) * 2;
        let attend = |which: &str, head: usize| {
            Ok::<_, Error>(match number {
                Number::F16 | Number::Bf16 => {
                    (card.kernel(&format!("attend_{which}_{name}"), flash(head))?, flash(head))
                }
                _ => (card.kernel("attend_exact_f32", 0)?, 0),
            })
        };
        let plain = |name: &str| card.kernel(name, 0);
        let own = |what: &str| card.kernel(&format!("{what}_{name}"), 0);
        Ok(Self {
            number,
            tiles,
            exact: exact()?,
            pitch: tile("deep", "f64", (32, 64), 128, exact_stages * 96 * 34 * 8)?,
            normalise: own("normalise_rows")?,
            normalise_exact: plain("normalise_rows_f32")?,
            gather: own("gather")?,
            distances: own("distances")?,
            stack: own("stack_inputs")?,
            advance: own("advance")?,
            attend: [attend("32", 32)?, attend("64", 64)?, attend("cache", 64)?],
            stft: plain("stft_f32")?,
            istft: plain("istft_f32")?,
            snakes: plain("snakes_f32")?,
            mean3: plain("mean3_f32")?,
            card,
        })
    }

    pub(crate) fn card(&self) -> &Arc<Card> {
        &self.card
    }

    /// Products of one kind of number and one size, of which there are up to three, each for all of `heads` heads.
    fn launch_rows(&self, tiles: &[&Tile], parts: &[RowsArgs], heads: usize) -> Result<()> {
        let [first, ..] = parts else { return Ok(()) };
        let mut set = RowsSetArgs { each: [*first; 3], count: parts.len().min(3) as i32 };
        set.each.iter_mut().zip(parts).for_each(|(to, part)| *to = *part);
        let depth = parts.len() * heads;
        let grid = |tile: &Tile| {
            let (rows, columns) = tile.side;
            ((first.n as usize).div_ceil(columns), ((first.batch * first.rows) as usize).div_ceil(rows), depth)
        };
        let all = self.card.multiprocessors();
        // The first that keeps the multiprocessors busy; one between the largest and the smallest has to do so in one go.
        let busy = |at: usize, tile: &Tile| {
            let (x, y, z) = grid(tile);
            let blocks = x * y * z;
            if at == 0 || at + 1 == tiles.len() { blocks >= all } else { (all * 3 / 4..=all).contains(&blocks) }
        };
        let chosen = tiles.iter().enumerate().find(|(at, tile)| busy(*at, tile)).map(|(_, tile)| tile);
        let Some(tile) = chosen.or(tiles.last()) else { return Ok(()) };
        let operations = 2.0 * (first.batch * first.rows) as f64 * first.n as f64 * heads as f64;
        let operations = operations * parts.iter().map(|part| f64::from(part.k)).sum::<f64>();
        // The longer ones, without tensor cores, lose more to multiprocessors that are filled unevenly than they gain.
        self.launch_counted(
            &tile.kernel,
            grid(tile),
            (tile.threads, tile.shared),
            &mut [arg(&set)],
            (tile.overlaps, operations),
        )
    }

    /// One product in the numbers of `w`.
    pub(crate) fn rows(&self, w: &Matrix, args: RowsArgs) -> Result<()> {
        match w.number {
            Number::F64 => self.launch_rows(&[&self.pitch], &[args], 1),
            Number::F32 => self.exact_rows(&[args]),
            _ => self.launch_rows(&self.tiles.each_ref(), &[args], 1),
        }
    }

    /// Up to three products of the same size, in f32.
    pub(crate) fn exact_rows(&self, parts: &[RowsArgs]) -> Result<()> {
        self.launch_rows(&self.exact.each_ref(), parts, 1)
    }

    /// [`RowsArgs::heads`] for `heads` of them.
    pub(crate) fn heads(&self, args: RowsArgs, heads: usize) -> Result<()> {
        self.launch_rows(&self.tiles.each_ref(), &[args], heads)
    }

    /// Attention of `heads` heads over `batch` rows.
    pub(crate) fn attend(&self, args: &AttendArgs, heads: usize, batch: usize) -> Result<()> {
        self.attend_by(&self.attend[usize::from(args.width > 32)], args, heads, batch)
    }

    /// The same where queries, keys and values are in the numbers of T3's cache: 16-bit floats, unless all is f32.
    pub(crate) fn attend_cache(&self, args: &AttendArgs, heads: usize, batch: usize) -> Result<()> {
        self.attend_by(&self.attend[2], args, heads, batch)
    }

    fn attend_by(
        &self,
        (kernel, shared): &(CudaFunction, usize),
        args: &AttendArgs,
        heads: usize,
        batch: usize,
    ) -> Result<()> {
        let (side, threads) = if *shared == 0 { (32, 128) } else { (64, 256) };
        let grid = ((args.queries as usize).div_ceil(side), heads, batch);
        let pairs = f64::from(args.queries) * f64::from(args.keys) * if args.causal == 0 { 1.0 } else { 0.5 };
        let operations = 4.0 * (heads * batch) as f64 * pairs * f64::from(args.width);
        // Its few blocks want a multiprocessor each, and would share those that the kernel before it has left.
        self.launch_counted(kernel, grid, (threads, *shared), &mut [arg(args)], (false, operations))
    }

    /// A layer norm whose `second` is in the numbers of the products.
    pub(crate) fn normalise(&self, args: &NormArgs) -> Result<()> {
        self.launch(&self.normalise, ((args.rows as usize).div_ceil(8), 1, 1), 256, 0, &mut [arg(args)])
    }

    /// A layer norm in f32.
    pub(crate) fn normalise_exact(&self, args: &NormArgs) -> Result<()> {
        self.launch(&self.normalise_exact, ((args.rows as usize).div_ceil(8), 1, 1), 256, 0, &mut [arg(args)])
    }

    /// Rows `ids` of a table, `(count, dim)`.
    pub(crate) fn gather(&self, table: u64, ids: u64, out: u64, count: usize, dim: usize) -> Result<()> {
        let dim = dim as i32;
        self.launch(&self.gather, (count, 1, 1), 256, 0, &mut [arg(&table), arg(&ids), arg(&out), arg(&dim)])
    }

    /// Sinusoids of `rows` distances from `furthest` down, `(rows, dim)`.
    pub(crate) fn distances(&self, frequencies: u64, out: u64, furthest: usize, rows: usize, dim: usize) -> Result<()> {
        let (furthest, dim) = (furthest as i32, dim as i32);
        let args = &mut [arg(&frequencies), arg(&out), arg(&furthest), arg(&dim)];
        self.launch(&self.distances, (rows, 1, 1), 256, 0, args)
    }

    /// The estimator's inputs before the first step.
    pub(crate) fn stack_inputs(&self, args: &FlowArgs) -> Result<()> {
        self.launch(&self.stack, (args.frames as usize, args.batch as usize, 1), 320, 0, &mut [arg(args)])
    }

    /// A step along the velocity.
    pub(crate) fn advance(&self, args: &FlowArgs) -> Result<()> {
        self.launch(&self.advance, ((args.frames as usize * 80).div_ceil(256), 1, 1), 256, 0, &mut [arg(args)])
    }

    /// `samples` samples to `(samples / 4 + 1, SPECTRUM)`.
    pub(crate) fn stft(&self, wav: u64, basis: u64, out: u64, samples: usize) -> Result<()> {
        let blocks = ((samples / 4 + 1) * SPECTRUM).div_ceil(256);
        let samples = samples as i32;
        self.launch(&self.stft, (blocks, 1, 1), 256, 0, &mut [arg(&wav), arg(&basis), arg(&out), arg(&samples)])
    }

    /// `(rows, SPECTRUM)` to `4 (rows - 1)` samples.
    pub(crate) fn istft(&self, xs: u64, bases: (u64, u64), wav: u64, rows: usize, limit: f32) -> Result<()> {
        let blocks = (4 * (rows - 1)).div_ceil(256);
        let rows = rows as i32;
        let args = &mut [arg(&xs), arg(&bases.0), arg(&bases.1), arg(&wav), arg(&rows), arg(&limit)];
        self.launch(&self.istft, (blocks, 1, 1), 256, 0, args)
    }

    /// The same rows through so many snakes.
    pub(crate) fn snakes(&self, args: &SnakesArgs, count: usize) -> Result<()> {
        self.launch(&self.snakes, ((args.size as usize).div_ceil(256), count, 1), 256, 0, &mut [arg(args)])
    }

    /// The leaky rectifier of the mean of three.
    pub(crate) fn mean3(&self, parts: [u64; 3], out: u64, size: usize, slope: f32) -> Result<()> {
        let blocks = size.div_ceil(256);
        let ([a, b, c], size) = (&parts, size as i32);
        let args = &mut [arg(a), arg(b), arg(c), arg(&out), arg(&size), arg(&slope)];
        self.launch(&self.mean3, (blocks, 1, 1), 256, 0, args)
    }

    /// Copies on the card.
    pub(crate) fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        // SAFETY: both lie in buffers of a `Room` that are large enough; the stream keeps the order.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.card.stream.cu_stream()) }.map_err(failed)
    }

    /// Numbers to the card.
    pub(crate) fn send(&self, to: u64, values: &[f32]) -> Result<()> {
        self.send_bytes(to, bytes_of(values))
    }

    /// Bytes to the card.
    pub(crate) fn send_bytes(&self, to: u64, bytes: &[u8]) -> Result<()> {
        self.card.context.bind_to_thread().map_err(failed)?;
        // SAFETY: as above; memory that is not pinned has been read when the call returns.
        unsafe { result::memcpy_htod_async(to, bytes, self.card.stream.cu_stream()) }.map_err(failed)
    }

    /// `count` numbers from the card, once all before them is done.
    pub(crate) fn fetch(&self, from: u64, count: usize) -> Result<Vec<f32>> {
        let mut bytes = vec![0u8; 4 * count];
        self.card.context.bind_to_thread().map_err(failed)?;
        // SAFETY: as above; the stream is waited for before the bytes are looked at.
        unsafe { result::memcpy_dtoh_async(&mut bytes, from, self.card.stream.cu_stream()) }.map_err(failed)?;
        self.card.synchronize()?;
        Ok(bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect())
    }

    pub(super) fn launch(
        &self,
        kernel: &CudaFunction,
        grid: (usize, usize, usize),
        threads: u32,
        shared: usize,
        args: &mut [*mut c_void],
    ) -> Result<()> {
        self.launch_counted(kernel, grid, (threads, shared), args, (true, 0.0))
    }

    fn launch_counted(
        &self,
        kernel: &CudaFunction,
        grid: (usize, usize, usize),
        (threads, shared): (u32, usize),
        args: &mut [*mut c_void],
        how: (bool, f64),
    ) -> Result<()> {
        let config = LaunchConfig {
            grid_dim: (grid.0 as u32, grid.1 as u32, grid.2 as u32),
            block_dim: (threads, 1, 1),
            shared_mem_bytes: shared as u32,
        };
        // SAFETY: the arguments have the layout of the kernel's and point to buffers of the sizes it expects.
        unsafe { self.card.start(kernel, config, args, how) }
    }

    /// Fails where rows are wider than a norm's kernel holds or a head than attention's.
    pub(crate) fn check(&self, dim: usize, head: usize) -> Result<()> {
        if dim > MOST_NORMALISED || head > MOST_HEAD || !head.is_multiple_of(8) || !dim.is_multiple_of(8) {
            return Err(Error::device(format!(
                "its kernels are made for at most {MOST_NORMALISED} channels and heads of {MOST_HEAD}, in steps of 8"
            )));
        }
        Ok(())
    }
}
