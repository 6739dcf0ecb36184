//! T3 and S3Gen on an NVIDIA card, with kernels of their own; nothing of CUDA is needed to start, since the driver's library
//! is opened when a card is asked for.
//!
//! [`Card`] is driver and kernels, [`Net`] the weights, [`CudaT3`] and [`CudaState`] what [`crate::t3`] is built on where
//! there is a card. Why a step is one kernel and how blocks talk to each other is told in `kernels/decode.cuh`. [`layers`]
//! are what [`crate::s3gen`] is built on there, launch by launch.

mod args;
mod card;
mod graphs;
mod layer_args;
pub(crate) mod layers;
mod net;
mod store;
mod t3;
#[cfg(test)]
pub(crate) mod tests;

pub use card::Card;
pub use net::{LayerWeights, Net, Number, OuterWeights, Shape};
pub use t3::{CudaState, CudaT3, MOST_STEPS};
