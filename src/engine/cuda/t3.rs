//! T3 on the card: prefill in launches of its own, then many tokens in one launch.

use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaSlice, LaunchConfig, PushKernelArg};

use super::args::{HeadsArgs, JobArgs, NormArgs, SamplingArgs};
use super::card::{Card, THREADS, arg, failed};
use super::layers::{Act, AttendArgs, Input, Layers, Matrix, RowsArgs};
use super::net::{Net, Number, address_of, bytes_of};
use crate::error::{Error, Result};
use crate::meter::CardWork;
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
    normalise: CudaFunction,
    turn: CudaFunction,
    /// For weights of 8 bits.
    widen: Option<CudaFunction>,
}

/// T3's transformer on a card.
#[derive(Debug)]
pub struct CudaT3 {
    card: Arc<Card>,
    net: Net,
    layers: Layers,
    kernels: Kernels,
    /// The matrices of a layer in the numbers of the products, where the net keeps them in 8 bits.
    wide: Option<CudaSlice<u8>>,
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
    forced: CudaSlice<u8>,
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
    queries: CudaSlice<u8>,
    normed: CudaSlice<u8>,
    inner: CudaSlice<u8>,
}

impl CudaT3 {
    /// Makes the kernels ready for a network.
    ///
    /// # Errors
    /// If the card has too little shared memory or fails.
    pub fn new(card: Arc<Card>, net: Net) -> Result<Self> {
        let (s, number) = (net.shape, net.number);
        let (dim_padded, mlp_padded) = (s.dim_padded(number), s.mlp_padded(number));
        let blocks = card.multiprocessors();
        let sums = |rows: usize, width: usize| rows.div_ceil(blocks) * (width / 256) * 2;
        let sums = [
            sums(3 * s.dim, dim_padded),
            2 * sums(s.inner_rows().div_ceil(2), dim_padded),
            sums(s.dim, mlp_padded),
            sums(s.vocab, dim_padded),
            WARPS * (HEAD + 2),
            s.heads * SPLITS * 2,
        ];
        let sums = sums.into_iter().max().unwrap_or(0);
        let sums_at = (2 * mlp_padded.max(dim_padded)).max(s.vocab).max(6 * HEAD).next_multiple_of(4);
        let shared = card.stream_bytes() + (sums_at + sums) * 4;
        let decode = |name: &str| card.kernel(&format!("decode_{name}_{}", number.name()), shared);
        let layers = Layers::new(card.counting(), number.of_products())?;
        let own = |name: &str| card.kernel(&format!("{name}_{}", number.of_products().name()), 0);
        let is_int8 = number == Number::Int8;
        let kernels = Kernels {
            decode: if s.gpt2 {
                [decode("gpt2")?, decode("gpt2")?]
            } else {
                [decode("llama")?, decode("llama_guided")?]
            },
            normalise: own("normalise")?,
            turn: own("turn")?,
            widen: if is_int8 { Some(card.kernel("widen_int8", 0)?) } else { None },
        };
        let bytes = net.args.layer_size as usize * number.of_products().bytes();
        let wide = if is_int8 { Some(card.stream.alloc_zeros(bytes).map_err(failed)?) } else { None };
        Ok(Self { card, net, layers, kernels, wide, sums_at, shared })
    }

    /// A state for `rows` rows of at most `capacity` positions.
    ///
    /// # Errors
    /// If the card lacks memory.
    pub fn new_state(&self, rows: usize, capacity: usize) -> Result<CudaState> {
        let s = self.net.shape;
        let element = self.cache_bytes();
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
            forced: zeros(4 * MOST_STEPS)?,
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
        let (dp, mp) = (s.dim_padded(self.net.number), s.mlp_padded(self.net.number));
        let m = xs.len() / s.dim;
        let length = m / batch.max(1);
        if state.len + length > state.capacity || (batch != 1 && batch != state.rows) || m == 0 {
            return Err(Error::internal(format!("{length} positions do not fit a card's state of {}", state.capacity)));
        }
        let element = self.cache_bytes();
        if state.scratch.as_ref().is_none_or(|scratch| scratch.positions < m) {
            state.scratch = None;
            let (positions, wide) = (m.next_multiple_of(128), self.net.number.of_products().bytes());
            let zeros = |bytes: usize| self.card.stream.alloc_zeros::<u8>(bytes).map_err(failed);
            state.scratch = Some(Scratch {
                positions,
                x: zeros(positions * s.dim * 4)?,
                qkv: zeros(positions * 3 * s.dim * 4)?,
                queries: zeros(positions * s.dim * element)?,
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
        let queries = address_of(card, &scratch.queries);
        let normed = address_of(card, &scratch.normed);
        let inner = address_of(card, &scratch.inner);
        let cache = address_of(card, &state.cache);
        let (net, on, gpt2) = (&self.net.args, &self.layers, i32::from(s.gpt2));
        let half = (state.rows * s.heads * state.capacity * HEAD * element) as u64;
        let rows = |at: u64, pitch: usize| Input { at, batch: 1, rows: m, pitch };
        for layer in 0..s.layers {
            let vector = |k: usize| net.vectors + 4 * (layer as u64 * net.vector_size as u64 + net.vector_at[k] as u64);
            let norm =
                |k: usize| NormArgs { x, norm: vector(k), out: normed, dim: s.dim as i32, width: dp as i32, gpt2 };
            let product = |k: usize, bias: usize, from: Input| {
                let w = self.matrix(layer, k, vector(bias), (s.rows()[k], from.pitch));
                (w, RowsArgs::new(&w, from).made(self.wide.is_some()))
            };
            let keys = cache + 2 * layer as u64 * half;
            let heads = HeadsArgs {
                qkv,
                queries,
                cache: keys,
                cosines: net.cosines,
                sines: net.sines,
                length: length as i32,
                start: state.len as i32,
                batch: batch as i32,
                rows: state.rows as i32,
                heads: s.heads as i32,
                capacity: state.capacity as i32,
                gpt2,
            };
            let attend = AttendArgs {
                q: queries,
                k: keys,
                v: keys + half,
                out: normed,
                q_batch: (length * s.dim) as i64,
                k_batch: (s.heads * state.capacity * HEAD) as i64,
                k_head: (state.capacity * HEAD) as i64,
                out_batch: (length * dp) as i64,
                q_pitch: s.dim as i32,
                k_pitch: HEAD as i32,
                out_pitch: dp as i32,
                queries: length as i32,
                keys: (state.len + length) as i32,
                width: HEAD as i32,
                causal: 1,
                scale: 1.0 / (HEAD as f32).sqrt(),
                ..Default::default()
            };
            self.widen(layer, vector)?;
            on.launch(&self.kernels.normalise, (m, 1, 1), 128, 0, &mut [arg(&norm(0))])?;
            let (w, args) = product(0, 1, rows(normed, dp));
            on.rows(&w, args.out(qkv))?;
            on.launch(&self.kernels.turn, (length, batch, 1), 256, 0, &mut [arg(&heads)])?;
            on.attend_cache(&attend, s.heads, batch)?;
            let (w, args) = product(1, 2, rows(normed, dp));
            on.rows(&w, args.residual(x).out(x))?;
            on.launch(&self.kernels.normalise, (m, 1, 1), 128, 0, &mut [arg(&norm(3))])?;
            let (w, args) = product(2, 4, rows(normed, dp));
            on.rows(&w, args.first(if s.gpt2 { Act::GeluTanh } else { Act::Gate }, 0.0).second(inner, mp))?;
            let (w, args) = product(3, 5, rows(inner, mp));
            on.rows(&w, args.residual(x).out(x))?;
        }
        state.len += length;
        let stride = (length * s.dim) as i64;
        state.hidden = Some((x + 4 * ((length - 1) * s.dim) as u64, if batch == 1 { 0 } else { stride }));
        Ok(())
    }

    /// What prompts and tokens had the card do so far.
    pub fn work(&self) -> (CardWork, CardWork) {
        (self.layers.card().work(), self.card.work())
    }

    /// The card.
    pub fn card(&self) -> &Card {
        &self.card
    }

    /// Bytes of a value of the cache.
    fn cache_bytes(&self) -> usize {
        if self.net.number == Number::F32 { 4 } else { 2 }
    }

    /// A matrix of a layer in the numbers of the products, `(n, k)`.
    fn matrix(&self, layer: usize, k: usize, bias: u64, shape: (usize, usize)) -> Matrix {
        let (net, number) = (&self.net.args, self.net.number.of_products());
        let at = match &self.wide {
            Some(wide) => address_of(&self.card, wide) + number.bytes() as u64 * net.offset[k],
            None => net.layers + number.bytes() as u64 * (layer as u64 * net.layer_size + net.offset[k]),
        };
        Matrix::at(at, bias, shape, number)
    }

    /// Makes the matrices of a layer out of those of 8 bits, if that is what they are.
    fn widen(&self, layer: usize, vector: impl Fn(usize) -> u64) -> Result<()> {
        let (Some(kernel), s, net) = (&self.kernels.widen, self.net.shape, &self.net.args) else { return Ok(()) };
        for (k, rows) in s.rows().into_iter().enumerate() {
            let width = if k == 3 { net.mlp_padded } else { net.dim_padded };
            let from = net.layers + layer as u64 * net.layer_size + net.offset[k];
            let (to, scales) = (self.matrix(layer, k, 0, (rows, width as usize)).at, vector(6 + k));
            let args = &mut [arg(&from), arg(&scales), arg(&to), arg(&width)];
            self.layers.launch(kernel, (rows, 1, 1), 128, 0, args)?;
        }
        Ok(())
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
    /// the stop id. With `forced` tokens, one for each, these are taken instead and nothing stops. The raw logits, `(steps, rows, vocab)`, are appended to `logits` if given.
    ///
    /// # Errors
    /// If the state is full, the logits are no numbers or the card fails.
    pub fn decode(
        &self,
        state: &mut CudaState,
        options: &SamplingOptions,
        uniforms: &[f32],
        forced: &[u32],
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
        if !forced.is_empty() {
            let ids: Vec<u8> = forced.iter().take(steps).flat_map(|id| id.to_le_bytes()).collect();
            self.card.stream.memcpy_htod(&ids, &mut state.forced.slice_mut(0..ids.len())).map_err(failed)?;
        }
        let answers = address_of(&self.card, &state.answers);
        let (hidden, hidden_stride) = state.hidden.unwrap_or((0, 0));
        let job = JobArgs {
            cache: address_of(&self.card, &state.cache),
            cells: address_of(&self.card, &state.cells),
            hidden,
            logits: raw.as_ref().map_or(0, |raw| address_of(&self.card, raw)),
            seen: address_of(&self.card, &state.seen),
            uniforms: address_of(&self.card, &state.uniforms),
            forced: if forced.len() < steps { 0 } else { address_of(&self.card, &state.forced) },
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
        let s = self.net.shape;
        let cached = (state.len + fed / 2) * 2 * s.layers * state.rows * s.dim * self.cache_bytes();
        let bytes = (sampled * (self.net.step_bytes() + cached)) as f64;
        self.card.count(CardWork { launches: 1, kernels: 1, operations: 0.0, bytes });
        state.len += fed;
        state.spoken += fed;
        state.hidden = None;
        state.started = true;
        state.token = tokens.last().copied().unwrap_or(state.token);
        Ok(tokens)
    }
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
