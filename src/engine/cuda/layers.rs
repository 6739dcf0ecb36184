//! Layers of S3Gen on a card, over channels-last activations: products of rows (projections and convolutions), norms,
//! attention.
//!
//! Activations and weights are addresses; what they point to belongs to a [`Store`] or a [`Room`], whose owner sees to it
//! that they are large enough.

use std::sync::Arc;

use cudarc::driver::{CudaFunction, LaunchArgs, LaunchConfig, PushKernelArg, result};

use super::card::{Card, failed};
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
}

/// The kernels for one kind of number.
#[derive(Debug)]
pub(crate) struct Layers {
    card: Arc<Card>,
    /// How activations and weights of the products are kept.
    pub(crate) number: Number,
    /// For many tiles, and for few.
    tiles: [Tile; 2],
    exact: [Tile; 2],
    pitch: Tile,
    normalise: CudaFunction,
    normalise_exact: CudaFunction,
    gather: CudaFunction,
    distances: CudaFunction,
    stack: CudaFunction,
    advance: CudaFunction,
    /// For heads of up to 32 and up to 64 values.
    attend: [(CudaFunction, usize); 2],
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
            })
        };
        // `RowTile` and `ExactTile` of `rows.cuh`.
        let exact = || {
            let bytes = |rows: usize| 4 * (rows + 64) * 36 * 4;
            Ok::<_, Error>([
                tile("wide", "f32", (64, 64), 256, bytes(64))?,
                tile("deep", "f32", (32, 64), 128, bytes(32))?,
            ])
        };
        let bytes = |sides: usize, groups: usize| groups * 4 * sides * 72 * 2;
        let tiles = match number {
            Number::F32 | Number::F64 => exact()?,
            Number::F16 | Number::Bf16 => [
                tile("wide", name, (64, 128), 256, bytes(64 + 128, 1))?,
                tile("deep", name, (32, 64), 256, bytes(32 + 64, 2))?,
            ],
        };
        // `Flash::Memory` of `attention.cuh`: queries, and of two groups two stages of keys and values.
        let flash = |head: usize| 9 * 64 * (head + 8) * 2;
        let attend = |head: usize| {
            Ok::<_, Error>(match number {
                Number::F32 | Number::F64 => (card.kernel("attend_exact_f32", 0)?, 0),
                _ => (card.kernel(&format!("attend_{head}_{name}"), flash(head))?, flash(head)),
            })
        };
        let plain = |name: &str| card.kernel(name, 0);
        let own = |what: &str| card.kernel(&format!("{what}_{name}"), 0);
        Ok(Self {
            number,
            tiles,
            exact: exact()?,
            pitch: tile("deep", "f64", (32, 64), 128, 4 * 96 * 34 * 8)?,
            normalise: own("normalise_rows")?,
            normalise_exact: plain("normalise_rows_f32")?,
            gather: own("gather")?,
            distances: own("distances")?,
            stack: own("stack_inputs")?,
            advance: own("advance")?,
            attend: [attend(32)?, attend(64)?],
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
        // The first that keeps all multiprocessors busy.
        let busy = |tile: &&&Tile| {
            let (x, y, z) = grid(tile);
            x * y * z >= self.card.multiprocessors()
        };
        let Some(tile) = tiles.iter().find(busy).or(tiles.last()) else { return Ok(()) };
        let args = &set;
        self.launch(&tile.kernel, grid(tile), tile.threads, tile.shared, |launch| {
            launch.arg(args);
        })
    }

    /// One product in the numbers of `w`.
    pub(crate) fn rows(&self, w: &Matrix, args: RowsArgs) -> Result<()> {
        match w.number {
            Number::F64 => self.launch_rows(&[&self.pitch], &[args], 1),
            Number::F32 => self.exact_rows(&[args]),
            Number::F16 | Number::Bf16 => self.launch_rows(&[&self.tiles[0], &self.tiles[1]], &[args], 1),
        }
    }

    /// Up to three products of the same size, in f32.
    pub(crate) fn exact_rows(&self, parts: &[RowsArgs]) -> Result<()> {
        self.launch_rows(&[&self.exact[0], &self.exact[1]], parts, 1)
    }

    /// [`RowsArgs::heads`] for `heads` of them.
    pub(crate) fn heads(&self, args: RowsArgs, heads: usize) -> Result<()> {
        self.launch_rows(&[&self.tiles[0], &self.tiles[1]], &[args], heads)
    }

    /// Attention of `heads` heads over `batch` rows.
    pub(crate) fn attend(&self, args: &AttendArgs, heads: usize, batch: usize) -> Result<()> {
        let (kernel, shared) = &self.attend[usize::from(args.width > 32)];
        let (side, threads) = if self.number == Number::F32 { (32, 128) } else { (64, 256) };
        self.launch(kernel, ((args.queries as usize).div_ceil(side), heads, batch), threads, *shared, |launch| {
            launch.arg(args);
        })
    }

    /// A layer norm whose `second` is in the numbers of the products.
    pub(crate) fn normalise(&self, args: &NormArgs) -> Result<()> {
        self.launch(&self.normalise, ((args.rows as usize).div_ceil(8), 1, 1), 256, 0, |launch| {
            launch.arg(args);
        })
    }

    /// A layer norm in f32.
    pub(crate) fn normalise_exact(&self, args: &NormArgs) -> Result<()> {
        self.launch(&self.normalise_exact, ((args.rows as usize).div_ceil(8), 1, 1), 256, 0, |launch| {
            launch.arg(args);
        })
    }

    /// Rows `ids` of a table, `(count, dim)`.
    pub(crate) fn gather(&self, table: u64, ids: u64, out: u64, count: usize, dim: usize) -> Result<()> {
        let dim = dim as i32;
        self.launch(&self.gather, (count, 1, 1), 256, 0, |launch| {
            launch.arg(&table).arg(&ids).arg(&out).arg(&dim);
        })
    }

    /// Sinusoids of `rows` distances from `furthest` down, `(rows, dim)`.
    pub(crate) fn distances(&self, frequencies: u64, out: u64, furthest: usize, rows: usize, dim: usize) -> Result<()> {
        let (furthest, dim) = (furthest as i32, dim as i32);
        self.launch(&self.distances, (rows, 1, 1), 256, 0, |launch| {
            launch.arg(&frequencies).arg(&out).arg(&furthest).arg(&dim);
        })
    }

    /// The estimator's inputs before the first step.
    pub(crate) fn stack_inputs(&self, args: &FlowArgs) -> Result<()> {
        self.launch(&self.stack, (args.frames as usize, args.batch as usize, 1), 320, 0, |launch| {
            launch.arg(args);
        })
    }

    /// A step along the velocity.
    pub(crate) fn advance(&self, args: &FlowArgs) -> Result<()> {
        self.launch(&self.advance, ((args.frames as usize * 80).div_ceil(256), 1, 1), 256, 0, |launch| {
            launch.arg(args);
        })
    }

    /// `samples` samples to `(samples / 4 + 1, SPECTRUM)`.
    pub(crate) fn stft(&self, wav: u64, basis: u64, out: u64, samples: usize) -> Result<()> {
        let blocks = ((samples / 4 + 1) * SPECTRUM).div_ceil(256);
        let samples = samples as i32;
        self.launch(&self.stft, (blocks, 1, 1), 256, 0, |launch| {
            launch.arg(&wav).arg(&basis).arg(&out).arg(&samples);
        })
    }

    /// `(rows, SPECTRUM)` to `4 (rows - 1)` samples.
    pub(crate) fn istft(&self, xs: u64, bases: (u64, u64), wav: u64, rows: usize, limit: f32) -> Result<()> {
        let blocks = (4 * (rows - 1)).div_ceil(256);
        let rows = rows as i32;
        self.launch(&self.istft, (blocks, 1, 1), 256, 0, |launch| {
            launch.arg(&xs).arg(&bases.0).arg(&bases.1).arg(&wav).arg(&rows).arg(&limit);
        })
    }

    /// The same rows through so many snakes.
    pub(crate) fn snakes(&self, args: &SnakesArgs, count: usize) -> Result<()> {
        self.launch(&self.snakes, ((args.size as usize).div_ceil(256), count, 1), 256, 0, |launch| {
            launch.arg(args);
        })
    }

    /// The leaky rectifier of the mean of three.
    pub(crate) fn mean3(&self, parts: [u64; 3], out: u64, size: usize, slope: f32) -> Result<()> {
        let blocks = size.div_ceil(256);
        let size = size as i32;
        self.launch(&self.mean3, (blocks, 1, 1), 256, 0, |launch| {
            launch.arg(&parts[0]).arg(&parts[1]).arg(&parts[2]).arg(&out).arg(&size).arg(&slope);
        })
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

    fn launch<'a>(
        &'a self,
        kernel: &'a CudaFunction,
        grid: (usize, usize, usize),
        threads: u32,
        shared: usize,
        args: impl FnOnce(&mut LaunchArgs<'a>),
    ) -> Result<()> {
        let config = LaunchConfig {
            grid_dim: (grid.0 as u32, grid.1 as u32, grid.2 as u32),
            block_dim: (threads, 1, 1),
            shared_mem_bytes: shared as u32,
        };
        let mut launch = self.card.stream.launch_builder(kernel);
        args(&mut launch);
        // SAFETY: the arguments have the layout of the kernel's and point to buffers of the sizes it expects.
        unsafe { launch.launch(config) }.map_err(failed)?;
        self.card.count_launch();
        Ok(())
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
