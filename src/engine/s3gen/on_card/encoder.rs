//! The token encoder on a card; see [`super::super::encoder`].

use super::load::{Loader, Norm, flat};
use crate::cuda::layers::{Act, AttendArgs, Graphs, Input, Layers, Matrix, NormArgs, Room, RowsArgs};
use crate::error::Result;
use crate::s3gen::config::{Chunks, FRAMES_PER_TOKEN, FlowConfig, LOOKAHEAD_TOKENS, MEL_CHANNELS};
use crate::weights::Weights;

/// Slope of the look-ahead's rectifier.
const SLOPE: f32 = 0.01;
/// Memory that relative terms may take at once; heads take turns where they need more.
const TERM_BYTES: usize = 64 << 20;

#[derive(Debug)]
pub(super) struct Encoder {
    dim: usize,
    heads: usize,
    inner: usize,
    layers: usize,
    embedding: u64,
    frequencies: u64,
    embed: InputLayer,
    ahead: Matrix,
    behind: Matrix,
    blocks: Blocks,
    up_conv: Matrix,
    up_embed: InputLayer,
    up_blocks: Blocks,
    after_norm: Norm,
    project: Matrix,
    room: Room,
    /// A pass, for each number of tokens, chunk rule and place of the activations.
    passes: Graphs<(usize, Option<Chunks>, u64)>,
}

#[derive(Debug)]
struct InputLayer {
    linear: Matrix,
    norm: Norm,
}

#[derive(Debug)]
struct Blocks {
    /// Of the distances, for all layers.
    positions: Option<Matrix>,
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Layer {
    norm_mha: Norm,
    /// `q + u`, `q + v`, keys, values.
    qkv: Matrix,
    out: Matrix,
    norm_ff: Norm,
    w_1: Matrix,
    w_2: Matrix,
}

/// Where the activations of a pass lie.
struct Places {
    ids: u64,
    /// In f32: the residual stream and what is normalised to become it.
    x: u64,
    y: u64,
    /// In the numbers of the products.
    h: u64,
    qkv: u64,
    seen: u64,
    inner: u64,
    table: u64,
    positions: u64,
    terms: u64,
    ranges: u64,
    up_ranges: u64,
    mu: u64,
}

impl Encoder {
    /// Loads the tensors of the flow below `w`.
    pub(super) fn load(w: &Weights, config: &FlowConfig, to: &mut Loader<'_>) -> Result<Self> {
        let dim = config.dim;
        let embedding = flat(&w.pp("input_embedding").get("weight", (config.vocab, dim))?)?;
        let step = -(10000f32.ln() / dim as f32);
        let frequencies: Vec<f32> = (0..dim).step_by(2).map(|j| (j as f32 * step).exp()).collect();
        let e = w.pp("encoder");
        let embed = |w: &Weights, to: &mut Loader<'_>| -> Result<InputLayer> {
            Ok(InputLayer { linear: to.linear(&w.pp(0), dim, dim)?, norm: to.norm(&w.pp(1), dim, 1e-5)? })
        };
        let ahead = e.pp("pre_lookahead_layer");
        Ok(Self {
            dim,
            heads: config.heads,
            inner: config.feed_forward,
            layers: config.blocks.max(config.up_blocks),
            embedding: to.store.table(&embedding, to.number)?,
            frequencies: to.store.vector(&frequencies)?,
            embed: embed(&e.pp("embed.out"), to)?,
            ahead: to.conv(&ahead.pp("conv1"), dim, dim, LOOKAHEAD_TOKENS + 1)?,
            behind: to.conv(&ahead.pp("conv2"), dim, dim, 3)?,
            blocks: Blocks::load(&e.pp("encoders"), config.blocks, config, to)?,
            up_conv: to.conv(&e.pp("up_layer.conv"), dim, dim, 5)?,
            up_embed: embed(&e.pp("up_embed.out"), to)?,
            up_blocks: Blocks::load(&e.pp("up_encoders"), config.up_blocks, config, to)?,
            after_norm: to.norm(&e.pp("after_norm"), dim, 1e-5)?,
            project: to.exact(|to| to.linear(&w.pp("encoder_proj"), dim, MEL_CHANNELS))?,
            room: Room::new(),
            passes: Graphs::new(),
        })
    }

    /// `mu (2n, 80)` of n tokens, which see each other by `chunks`.
    pub(super) fn forward(&mut self, on: &Layers, tokens: &[u32], chunks: Option<Chunks>) -> Result<Vec<f32>> {
        let n = tokens.len();
        let frames = FRAMES_PER_TOKEN * n;
        let places = self.places(on, frames)?;
        let ids: Vec<u8> = tokens.iter().flat_map(|id| id.to_le_bytes()).collect();
        on.send_bytes(places.ids, &ids)?;
        let ranges = (
            super::send_ranges(on, places.ranges, n, chunks)?,
            super::send_ranges(on, places.up_ranges, frames, chunks.map(|chunks| chunks.scaled(FRAMES_PER_TOKEN)))?,
        );
        let key = (n, chunks, self.room.address(on.card()));
        // Out of the way of what is recorded with them.
        let mut passes = std::mem::replace(&mut self.passes, Graphs::new());
        let done = passes.run(on, key, || self.pass(on, &places, n, chunks, ranges));
        self.passes = passes;
        done?;
        on.fetch(places.mu, frames * MEL_CHANNELS)
    }

    /// From the ids of `n` tokens to `mu`; `ranges` are what tokens and frames see.
    fn pass(&self, on: &Layers, places: &Places, n: usize, chunks: Option<Chunks>, ranges: (u64, u64)) -> Result<()> {
        let (dim, frames, wide) = (self.dim, FRAMES_PER_TOKEN * n, on.number.bytes() as u64);
        let (x, h, seen) = (places.x, places.h, places.seen);
        let rows = |at: u64, rows: usize| Input { at, batch: 1, rows, pitch: dim };
        on.gather(self.embedding, places.ids, h, n, dim)?;
        self.embed.forward(on, rows(h, n), (places.y, x, seen))?;
        // Behind the last token, and behind a prompt that is a chunk, there are zeros.
        let prompt = chunks.map_or(0, |chunks| chunks.prompt).min(n);
        for (from, count) in [(0, prompt), (prompt, n - prompt)] {
            if count > 0 {
                let at = (from * dim) as u64 * wide;
                let conv = RowsArgs::new(&self.ahead, rows(seen + at, count)).first(Act::Leaky, SLOPE);
                on.rows(&self.ahead, conv.second(h + at, dim))?;
            }
        }
        let conv = RowsArgs::new(&self.behind, rows(h, n)).conv(n, 1, 1, 2);
        on.rows(&self.behind, conv.residual(x).out(x))?;
        self.blocks.forward(on, places, (n, dim, self.heads, self.inner), self.frequencies, ranges.0)?;
        // The last layer leaves its rows in `h` too.
        let conv = RowsArgs::new(&self.up_conv, rows(h, n)).twice().conv(frames, 1, 1, 4);
        on.rows(&self.up_conv, conv.second(seen, dim))?;
        self.up_embed.forward(on, rows(seen, frames), (places.y, x, h))?;
        self.up_blocks.forward(on, places, (frames, dim, self.heads, self.inner), self.frequencies, ranges.1)?;
        on.normalise_exact(&NormArgs { out: places.y, ..self.after_norm.of(x, frames) })?;
        let project = RowsArgs::new(&self.project, rows(places.y, frames));
        on.rows(&self.project, project.out(places.mu))
    }

    fn places(&mut self, on: &Layers, frames: usize) -> Result<Places> {
        let (dim, wide, heads) = (self.dim, on.number.bytes(), self.heads);
        let term = frames * terms_pitch(frames) * 4;
        let [ids, x, y, h, qkv, seen, inner, table, positions, terms, ranges, up_ranges, mu] = self.room.deal(
            on.card(),
            [
                4 * frames,
                4 * frames * dim,
                4 * frames * dim,
                wide * frames * dim,
                wide * frames * 4 * dim,
                wide * frames * dim,
                wide * frames * self.inner,
                wide * 2 * frames * dim,
                wide * 2 * frames * dim * self.layers,
                heads_at_once(term, heads) * term,
                8 * frames,
                8 * frames,
                4 * frames * MEL_CHANNELS,
            ],
        )?;
        Ok(Places { ids, x, y, h, qkv, seen, inner, table, positions, terms, ranges, up_ranges, mu })
    }

    /// Bytes of activations on the card.
    pub(super) fn bytes(&self) -> usize {
        self.room.bytes()
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

fn terms_pitch(rows: usize) -> usize {
    (2 * rows).next_multiple_of(4)
}

fn heads_at_once(bytes: usize, heads: usize) -> usize {
    (TERM_BYTES / bytes.max(1)).clamp(1, heads)
}

impl InputLayer {
    /// `norm(x W + b) sqrt(dim)`: products to `y`, the result to `out` in f32 and to `second`.
    fn forward(&self, on: &Layers, x: Input, (y, out, second): (u64, u64, u64)) -> Result<()> {
        on.rows(&self.linear, RowsArgs::new(&self.linear, x).out(y))?;
        let scale = (self.norm.dim as f32).sqrt();
        on.normalise(&NormArgs { out, second, scale, ..self.norm.of(y, x.rows) })
    }
}

impl Blocks {
    fn load(w: &Weights, count: usize, config: &FlowConfig, to: &mut Loader<'_>) -> Result<Self> {
        let layer = |i: usize| w.pp(i);
        let positions: Vec<Weights> = (0..count).map(|i| layer(i).pp("self_attn.linear_pos")).collect();
        Ok(Self {
            positions: if count > 0 { Some(to.fused(&positions, config.dim, config.dim)?) } else { None },
            layers: (0..count).map(|i| Layer::load(&layer(i), config, to)).collect::<Result<_>>()?,
        })
    }

    /// Over `rows` rows of the residual stream; the last layer leaves them in `h` as well.
    fn forward(
        &self,
        on: &Layers,
        places: &Places,
        (rows, dim, heads, inner): (usize, usize, usize, usize),
        frequencies: u64,
        ranges: u64,
    ) -> Result<()> {
        let Some(positions) = &self.positions else { return Ok(()) };
        let wide = on.number.bytes() as u64;
        let distances = 2 * rows - 1;
        on.distances(frequencies, places.table, rows - 1, distances, dim)?;
        let table = Input { at: places.table, batch: 1, rows: distances, pitch: dim };
        let all = positions.outputs();
        on.rows(positions, RowsArgs::new(positions, table).second(places.positions, all))?;
        let width = dim / heads;
        let pitch = terms_pitch(rows);
        let together = heads_at_once(rows * pitch * 4, heads);
        let input = |at: u64, pitch: usize| Input { at, batch: 1, rows, pitch };
        for (i, layer) in self.layers.iter().enumerate() {
            on.normalise(&NormArgs { second: places.h, ..layer.norm_mha.of(places.x, rows) })?;
            let qkv = RowsArgs::new(&layer.qkv, input(places.h, dim));
            on.rows(&layer.qkv, qkv.second(places.qkv, 4 * dim))?;
            for head in (0..heads).step_by(together) {
                let count = together.min(heads - head);
                let from = (head * width) as u64 * wide;
                let part = |i: usize| places.qkv + (i * dim) as u64 * wide + from;
                let p = places.positions + (i * dim) as u64 * wide + from;
                let terms = RowsArgs::heads(input(part(1), 4 * dim), width, (p, distances, all));
                on.heads(terms.out_pitch(places.terms, pitch).out_head(rows * pitch), count)?;
                let attend = AttendArgs {
                    q: part(0),
                    k: part(2),
                    v: part(3),
                    out: places.seen + from,
                    bias: places.terms,
                    ranges,
                    k_head: width as i64,
                    bias_head: (rows * pitch) as i64,
                    q_pitch: 4 * dim as i32,
                    k_pitch: 4 * dim as i32,
                    out_pitch: dim as i32,
                    bias_pitch: pitch as i32,
                    queries: rows as i32,
                    keys: rows as i32,
                    width: width as i32,
                    scale: 1.0 / (width as f32).sqrt(),
                    ..Default::default()
                };
                on.attend(&attend, count, 1)?;
            }
            let out = RowsArgs::new(&layer.out, input(places.seen, dim));
            on.rows(&layer.out, out.residual(places.x).out(places.x))?;
            on.normalise(&NormArgs { second: places.h, ..layer.norm_ff.of(places.x, rows) })?;
            let hidden = RowsArgs::new(&layer.w_1, input(places.h, dim)).first(Act::Silu, 0.0);
            on.rows(&layer.w_1, hidden.second(places.inner, inner))?;
            let down = RowsArgs::new(&layer.w_2, input(places.inner, inner));
            on.rows(&layer.w_2, down.residual(places.x).out(places.x).second(places.h, dim))?;
        }
        Ok(())
    }
}

impl Layer {
    fn load(w: &Weights, config: &FlowConfig, to: &mut Loader<'_>) -> Result<Self> {
        let (dim, heads, inner) = (config.dim, config.heads, config.feed_forward);
        let attn = w.pp("self_attn");
        let part = |name: &str| -> Result<(Vec<f32>, Vec<f32>)> {
            let w = attn.pp(name);
            Ok((flat(&w.get("weight", (dim, dim))?)?, flat(&w.get("bias", dim)?)?))
        };
        let (q, k, v) = (part("linear_q")?, part("linear_k")?, part("linear_v")?);
        let turned = |name: &str| -> Result<Vec<f32>> {
            let more = flat(&attn.get(name, (heads, dim / heads))?)?;
            Ok(q.1.iter().zip(more).map(|(a, b)| a + b).collect())
        };
        let bias = [turned("pos_bias_u")?, turned("pos_bias_v")?, k.1, v.1].concat();
        let weight = [q.0.as_slice(), &q.0, &k.0, &v.0].concat();
        Ok(Self {
            norm_mha: to.norm(&w.pp("norm_mha"), dim, 1e-12)?,
            qkv: to.store.matrix(&weight, 4 * dim, dim, Some(&bias), to.number)?,
            out: to.linear(&attn.pp("linear_out"), dim, dim)?,
            norm_ff: to.norm(&w.pp("norm_ff"), dim, 1e-12)?,
            w_1: to.linear(&w.pp("feed_forward.w_1"), dim, inner)?,
            w_2: to.linear(&w.pp("feed_forward.w_2"), inner, dim)?,
        })
    }
}
