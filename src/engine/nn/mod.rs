//! Layers shared by all networks. Activations are channels-last, `(B, T, C)`, everywhere: a convolution then reads
//! overlapping rows of its input and a projection needs no transpose.
//!
//! Weights are `&self`; whatever changes between steps lives in a separate state value.

mod activation;
mod attention;
mod conv;
mod conv2d;
mod depthwise;
mod linear;
mod lstm;
mod norm;
mod rope;
mod weight;

pub(crate) use crate::kernels::team::together;
pub use activation::{Activation, Snake, activate, add, elu, gelu, gelu_tanh, leaky_relu, mish, silu, silu_gate};
pub use attention::{KvCache, Mask, PackedKeys, attend, attend_packed, attend_relative};
pub use conv::{Conv1d, ConvConfig, ConvTranspose1d};
pub use conv2d::Conv2d;
pub use depthwise::DepthwiseConv1d;
pub use linear::{Embedding, Linear};
pub use lstm::Lstm;
pub use norm::{BatchNorm, LayerNorm, RmsNorm};
pub use rope::Rope;
pub use weight::{LayerError, LayerErrors};
