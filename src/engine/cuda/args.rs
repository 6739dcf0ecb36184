//! Arguments of the kernels: each the twin of a struct in `kernels/`, field by field.

use cudarc::driver::DeviceRepr;

use crate::sampling::SamplingOptions;

/// `struct Sampling` of `sampler.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct SamplingArgs {
    pub temperature: f32,
    pub top_p: f32,
    pub log_min_p: f32,
    pub penalty: f32,
    pub top_k: i32,
    pub vocab: i32,
    pub gpt2: i32,
}
// SAFETY: plain numbers in the layout of the kernels' struct.
unsafe impl DeviceRepr for SamplingArgs {}

impl SamplingArgs {
    pub fn new(options: &SamplingOptions, vocab: usize, gpt2: bool) -> Self {
        Self {
            temperature: options.temperature,
            top_p: options.top_p,
            log_min_p: options.min_p.ln(),
            penalty: options.repetition_penalty,
            top_k: options.top_k.min(vocab) as i32,
            vocab: vocab as i32,
            gpt2: i32::from(gpt2),
        }
    }
}

/// `struct Job` of `decode.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct JobArgs {
    pub cache: u64,
    pub cells: u64,
    pub hidden: u64,
    pub logits: u64,
    pub seen: u64,
    pub uniforms: u64,
    pub forced: u64,
    pub tokens: u64,
    pub report: u64,
    pub hidden_stride: i64,
    pub sampling: SamplingArgs,
    pub cfg_weight: f32,
    pub capacity: i32,
    pub position: i32,
    pub spoken: i32,
    pub steps: i32,
    pub token: u32,
    pub epoch: u32,
    pub stop: u32,
    pub started: i32,
    pub sums_at: i32,
}
// SAFETY: as above.
unsafe impl DeviceRepr for JobArgs {}

/// `struct Norm` of `prefill.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct NormArgs {
    pub x: u64,
    pub norm: u64,
    pub out: u64,
    pub dim: i32,
    pub width: i32,
    pub gpt2: i32,
}
// SAFETY: as above.
unsafe impl DeviceRepr for NormArgs {}

/// `struct Heads` of `prefill.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct HeadsArgs {
    pub qkv: u64,
    pub queries: u64,
    pub cache: u64,
    pub cosines: u64,
    pub sines: u64,
    pub length: i32,
    pub start: i32,
    pub batch: i32,
    pub rows: i32,
    pub heads: i32,
    pub capacity: i32,
    pub gpt2: i32,
}
// SAFETY: as above.
unsafe impl DeviceRepr for HeadsArgs {}
