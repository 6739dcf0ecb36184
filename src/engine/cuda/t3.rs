//! T3 on the card: prefill in launches of its own, then many tokens in one launch.

use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaSlice, DeviceRepr, LaunchConfig, PushKernelArg};

use super::args::{ADD, GATE, GELU, HeadsArgs, JobArgs, NormArgs, ProductArgs, STORE, SamplingArgs};
use super::card::{Card, THREADS, failed};
use super::net::{Net, Number, address_of, bytes_of};
use crate::error::{Error, Result};
use crate::sampling::SamplingOptions;
use crate::t3::STOP_SPEECH;

/// Parts that a head's positions are dealt out to.
const SPLITS: usize = 4;
const WARPS: usize = THREADS / 32;
const HEAD: usize = 64;
/// Most tokens of one launch.
pub const MOST_STEPS: usize = 64;

#[derive(Debug)]
struct Kernels {
    decode: [CudaFunction; 2],
    product: CudaFunction,
    normalise: CudaFunction,
    turn: CudaFunction,
    attend: CudaFunction,
}

/// T3's transformer on a card.
#[derive(Debug)]
pub struct CudaT3 {
    card: Arc<Card>,
    net: Net,
    kernels: Kernels,
    /// Floats of shared memory for activations, and bytes in all.
    sums_at: usize,
    shared: usize,
}

/// What one sequence leaves behind on the card.
#[derive(Debug)]
pub struct CudaState {
    cache: CudaSlice<u8>,
    cells: CudaSlice<u8>,
    seen: CudaSlice<u8>,
    uniforms: CudaSlice<u8>,
    /// Tokens of a launch, then its report.
    answers: CudaSlice<u8>,
    scratch: Option<Scratch>,
    rows: usize,
    capacity: usize,
    len: usize,
    /// Generated tokens fed so far.
    spoken: usize,
    epoch: u32,
    /// The token sampled last, not yet fed.
    token: u32,
    started: bool,
    /// Where the hidden values of the last position of a prefill lie.
    hidden: Option<(u64, i64)>,
}

/// Activations of a prefill.
#[derive(Debug)]
struct Scratch {
    positions: usize,
    x: CudaSlice<u8>,
    qkv: CudaSlice<u8>,
    normed: CudaSlice<u8>,
    inner: CudaSlice<u8>,
}

impl CudaT3 {
    /// Makes the kernels ready for a network.
    ///
    /// # Errors
    /// If the card has too little shared memory or fails.
    pub fn new(card: Arc<Card>, net: Net) -> Result<Self> {
        let s = net.shape;
        let blocks = card.multiprocessors();
        let sums = |rows: usize, width: usize| rows.div_ceil(blocks) * (width / 256) * 2;
        let sums = [
            sums(3 * s.dim, s.dim_padded()),
            2 * sums(s.inner_rows().div_ceil(2), s.dim_padded()),
            sums(s.dim, s.mlp_padded()),
            sums(s.vocab, s.dim_padded()),
            WARPS * (HEAD + 2),
            s.heads * SPLITS * 2,
        ];
        let sums = sums.into_iter().max().unwrap_or(0);
        let sums_at = (2 * s.mlp_padded().max(s.dim_padded())).max(s.vocab).max(6 * HEAD).next_multiple_of(4);
        let shared = card.stream_bytes() + (sums_at + sums) * 4;
        let number = net.number.name();
        let decode = |name: &str| card.kernel(&format!("decode_{name}_{number}"), shared);
        let kernels = Kernels {
            decode: if s.gpt2 {
                [decode("gpt2")?, decode("gpt2")?]
            } else {
                [decode("llama")?, decode("llama_guided")?]
            },
            product: card.kernel(&format!("product_{number}"), product_bytes(net.number))?,
            normalise: card.kernel(&format!("normalise_{number}"), 0)?,
            turn: card.kernel(&format!("turn_{number}"), 0)?,
            attend: card.kernel(&format!("attend_{number}"), 0)?,
        };
        Ok(Self { card, net, kernels, sums_at, shared })
    }

    /// A state for `rows` rows of at most `capacity` positions.
    ///
    /// # Errors
    /// If the card lacks memory.
    pub fn new_state(&self, rows: usize, capacity: usize) -> Result<CudaState> {
        let s = self.net.shape;
        let element = if self.net.number.bytes() == 4 { 4 } else { 2 };
        let cell = 8 * rows;
        let cells = cell * ((9 * s.dim) + SPLITS * s.heads * 2 + s.mlp) + 8 * s.vocab;
        let zeros = |bytes: usize| {
            self.card.stream.alloc_zeros::<u8>(bytes).map_err(|e| {
                Error::device(format!("{} has no room for {} MB more ({e})", self.card.name(), bytes >> 20))
            })
        };
        Ok(CudaState {
            cache: zeros(s.layers * 2 * rows * s.heads * capacity * HEAD * element)?,
            cells: zeros(cells)?,
            seen: zeros(s.vocab.div_ceil(32) * 4)?,
            uniforms: zeros(4 * MOST_STEPS)?,
            answers: zeros(4 * (MOST_STEPS + 2))?,
            scratch: None,
            rows,
            capacity,
            len: 0,
            spoken: 0,
            epoch: 0,
            token: 0,
            started: false,
            hidden: None,
        })
    }

    /// Runs `xs (batch, length, dim)` behind what the state holds; a batch of one goes to all rows.
    ///
    /// # Errors
    /// If the state is full or the card fails.
    pub fn prefill(&self, state: &mut CudaState, xs: &[f32], batch: usize) -> Result<()> {
        let s = self.net.shape;
        let (dp, mp) = (s.dim_padded(), s.mlp_padded());
        let m = xs.len() / s.dim;
        let length = m / batch.max(1);
        if state.len + length > state.capacity || (batch != 1 && batch != state.rows) || m == 0 {
            return Err(Error::internal(format!("{length} positions do not fit a card's state of {}", state.capacity)));
        }
        let wide = self.net.number.bytes();
        if state.scratch.as_ref().is_none_or(|scratch| scratch.positions < m) {
            state.scratch = None;
            let positions = m.next_multiple_of(128);
            let zeros = |bytes: usize| self.card.stream.alloc_zeros::<u8>(bytes).map_err(failed);
            state.scratch = Some(Scratch {
                positions,
                x: zeros(positions * s.dim * 4)?,
                qkv: zeros(positions * 3 * s.dim * 4)?,
                normed: zeros(positions * dp * wide)?,
                inner: zeros(positions * mp * wide)?,
            });
        }
        let Some(scratch) = state.scratch.as_mut() else {
            return Err(Error::internal("no room for a prefill"));
        };
        let card = &*self.card;
        card.stream.memcpy_htod(bytes_of(xs), &mut scratch.x.slice_mut(0..xs.len() * 4)).map_err(failed)?;
        let x = address_of(card, &scratch.x);
        let qkv = address_of(card, &scratch.qkv);
        let normed = address_of(card, &scratch.normed);
        let inner = address_of(card, &scratch.inner);
        let cache = address_of(card, &state.cache);
        let net = &self.net.args;
        let element = if self.net.number.bytes() == 4 { 4 } else { 2 };
        let plane = (2 * state.rows * s.heads * state.capacity * HEAD * element) as u64;
        let gpt2 = i32::from(s.gpt2);
        for layer in 0..s.layers {
            let vector = |k: usize| net.vectors + 4 * (layer as u64 * net.vector_size as u64 + net.vector_at[k] as u64);
            let matrix = |k: usize| {
                net.layers + self.net.number.bytes() as u64 * (layer as u64 * net.layer_size + net.offset[k])
            };
            let norm =
                |k: usize| NormArgs { x, norm: vector(k), out: normed, dim: s.dim as i32, width: dp as i32, gpt2 };
            let product = |a: u64, k: usize, bias: usize, out: u64, n: usize, finish: i32| ProductArgs {
                a,
                w: matrix(k),
                bias: vector(bias),
                out,
                inner,
                m: m as i32,
                n: n as i32,
                k: if a == inner { mp } else { dp } as i32,
                inner_width: mp as i32,
                finish,
            };
            let heads = HeadsArgs {
                qkv,
                cache: cache + layer as u64 * plane,
                out: normed,
                cosines: net.cosines,
                sines: net.sines,
                length: length as i32,
                start: state.len as i32,
                batch: batch as i32,
                rows: state.rows as i32,
                heads: s.heads as i32,
                capacity: state.capacity as i32,
                width: dp as i32,
                gpt2,
            };
            let kernels = &self.kernels;
            self.launch(&kernels.normalise, &norm(0), (m, 1, 1), 128, 0)?;
            self.multiply(&product(normed, 0, 1, qkv, 3 * s.dim, STORE))?;
            self.launch(&kernels.turn, &heads, (length, batch, 1), 256, 0)?;
            self.launch(&kernels.attend, &heads, (length.div_ceil(32), s.heads, batch), 128, 0)?;
            self.multiply(&product(normed, 1, 2, x, s.dim, ADD))?;
            self.launch(&kernels.normalise, &norm(3), (m, 1, 1), 128, 0)?;
            self.multiply(&product(normed, 2, 4, 0, s.inner_rows(), if s.gpt2 { GELU } else { GATE }))?;
            self.multiply(&product(inner, 3, 5, x, s.dim, ADD))?;
        }
        state.len += length;
        let stride = (length * s.dim) as i64;
        state.hidden = Some((x + 4 * ((length - 1) * s.dim) as u64, if batch == 1 { 0 } else { stride }));
        Ok(())
    }

    /// Starts a kernel that takes one struct.
    fn launch<T: DeviceRepr>(
        &self,
        kernel: &CudaFunction,
        args: &T,
        grid: (usize, usize, usize),
        threads: u32,
        shared: usize,
    ) -> Result<()> {
        let grid_dim = (grid.0 as u32, grid.1 as u32, grid.2 as u32);
        let config = LaunchConfig { grid_dim, block_dim: (threads, 1, 1), shared_mem_bytes: shared as u32 };
        let mut launch = self.card.stream.launch_builder(kernel);
        launch.arg(args);
        // SAFETY: the argument has the layout of the kernel's and points to buffers of the sizes it expects.
        unsafe { launch.launch(config) }.map_err(failed)?;
        Ok(())
    }

    fn multiply(&self, args: &ProductArgs) -> Result<()> {
        let tiles = |n: i32| (n as usize).div_ceil(64);
        self.launch(&self.kernels.product, args, (tiles(args.n), tiles(args.m), 1), 256, product_bytes(self.net.number))
    }

    /// Begins a sequence of tokens behind a prefill: `seen` are the ids that count for the penalty.
    ///
    /// # Errors
    /// If the card fails.
    pub fn begin(&self, state: &mut CudaState, seen: &[u32]) -> Result<()> {
        let mut words = vec![0u32; self.net.shape.vocab.div_ceil(32)];
        for &id in seen {
            if let Some(word) = words.get_mut(id as usize / 32) {
                *word |= 1 << (id % 32);
            }
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.card.stream.memcpy_htod(&bytes, &mut state.seen).map_err(failed)?;
        (state.spoken, state.started) = (0, false);
        Ok(())
    }

    /// Samples a token for each of `uniforms` (at most [`MOST_STEPS`]), feeding each to get the next, and stops behind
    /// the stop id. The raw logits, `(steps, rows, vocab)`, are appended to `logits` if given.
    ///
    /// # Errors
    /// If the state is full, the logits are no numbers or the card fails.
    pub fn decode(
        &self,
        state: &mut CudaState,
        options: &SamplingOptions,
        uniforms: &[f32],
        mut logits: Option<&mut Vec<f32>>,
    ) -> Result<Vec<u32>> {
        let steps = uniforms.len().min(MOST_STEPS);
        let feeds = steps - usize::from(state.hidden.is_some()).min(steps);
        if steps == 0 || state.len + feeds > state.capacity {
            return Err(Error::internal(format!("{steps} tokens do not fit a card's state of {}", state.capacity)));
        }
        let shape = self.net.shape;
        let step_logits = state.rows * shape.vocab;
        let raw = match &logits {
            Some(_) => Some(self.card.stream.alloc_zeros::<u8>(4 * steps * step_logits).map_err(failed)?),
            None => None,
        };
        let numbers = bytes_of(&uniforms[..steps]);
        self.card.stream.memcpy_htod(numbers, &mut state.uniforms.slice_mut(0..4 * steps)).map_err(failed)?;
        let answers = address_of(&self.card, &state.answers);
        let (hidden, hidden_stride) = state.hidden.unwrap_or((0, 0));
        let job = JobArgs {
            cache: address_of(&self.card, &state.cache),
            cells: address_of(&self.card, &state.cells),
            hidden,
            logits: raw.as_ref().map_or(0, |raw| address_of(&self.card, raw)),
            seen: address_of(&self.card, &state.seen),
            uniforms: address_of(&self.card, &state.uniforms),
            tokens: answers,
            report: answers + 4 * MOST_STEPS as u64,
            hidden_stride,
            sampling: SamplingArgs::new(options, shape.vocab, shape.gpt2),
            cfg_weight: options.cfg_weight,
            capacity: state.capacity as i32,
            position: state.len as i32,
            spoken: state.spoken as i32,
            steps: steps as i32,
            token: state.token,
            epoch: state.epoch,
            stop: STOP_SPEECH,
            started: i32::from(state.started),
            sums_at: self.sums_at as i32,
        };
        // Cells of earlier launches must not be taken for this one's.
        state.epoch = state.epoch.wrapping_add((steps * (self.net.shape.layers + 1)) as u32);
        let config = LaunchConfig {
            grid_dim: (self.card.multiprocessors() as u32, 1, 1),
            block_dim: (THREADS as u32, 1, 1),
            shared_mem_bytes: self.shared as u32,
        };
        let mut launch = self.card.stream.launch_builder(&self.kernels.decode[state.rows - 1]);
        launch.arg(&self.net.args).arg(&job);
        // SAFETY: the arguments have the layout of the kernel's and point to buffers of the sizes it expects. Blocks
        // wait for each other, and a cooperative launch has all of them run at once.
        unsafe { launch.launch_cooperative(config) }.map_err(failed)?;
        let answers = self.card.stream.clone_dtoh(&state.answers).map_err(failed)?;
        let answers: Vec<u32> = answers.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let (sampled, fault) = (answers[MOST_STEPS] as usize, answers[MOST_STEPS + 1]);
        let tokens = answers[..sampled.min(steps)].to_vec();
        if fault != 0 {
            return Err(Error::internal(
                "the logits of T3 are not numbers: load the model again, with f32 precision if it was less",
            ));
        }
        if let (Some(logits), Some(raw)) = (logits.as_mut(), raw) {
            let bytes = self.card.stream.clone_dtoh(&raw).map_err(failed)?;
            let values = bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word));
            logits.extend(values.take(tokens.len() * step_logits));
        }
        let fed = sampled - usize::from(state.hidden.is_some()).min(sampled);
        state.len += fed;
        state.spoken += fed;
        state.hidden = None;
        state.started = true;
        state.token = tokens.last().copied().unwrap_or(state.token);
        Ok(tokens)
    }
}

/// Shared memory of the product of 16-bit numbers, in bytes: `Tile` of `prefill.cuh`.
fn product_bytes(number: Number) -> usize {
    if number == Number::F32 { 0 } else { 2 * 3 * 2 * 64 * 40 * 2 }
}

impl CudaState {
    /// Most positions it can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Rows that run along.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Has this token fed next, in place of the one sampled last.
    pub fn force(&mut self, token: u32) {
        self.token = token;
    }

    /// Positions filled.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is filled.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills the cache with what is no number.
    #[cfg(test)]
    pub(super) fn poison(&mut self, card: &Card) {
        let ones = vec![0xff; self.cache.len()];
        assert!(card.stream.memcpy_htod(&ones, &mut self.cache).is_ok());
    }

    /// Forgets all but the first `len` positions.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.hidden = None;
        self.spoken = 0;
    }
}
