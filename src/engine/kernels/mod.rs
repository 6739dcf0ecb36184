//! CPU kernels under `nn`: the only place that knows how numbers are multiplied.
//!
//! Networks never call these; they use `nn`, which picks a kernel by device, shape and precision.

pub(crate) mod attention;
pub(crate) mod element;
pub(crate) mod int8;
pub(crate) mod lstm;
pub(crate) mod math;
pub(crate) mod matrix;
pub(crate) mod memory;
pub(crate) mod norm;
pub(crate) mod packed;
pub(crate) mod pointwise;
pub(crate) mod product;
pub(crate) mod simd;
pub(crate) mod team;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod toom_cook;
pub(crate) mod trig;
pub(crate) mod view;
