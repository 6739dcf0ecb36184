//! Plain slices out of CPU tensors and back.

use candle_core::{Device, Shape, Storage, Tensor};

use crate::error::{Error, Result};

/// Calls `f` with the values of an f32 CPU tensor in row-major order, copying only if it is strided.
pub(crate) fn with_f32<R>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> Result<R>) -> Result<R> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(cpu) = &*storage else {
        return Err(Error::internal("a CPU kernel was given a tensor of another device"));
    };
    let all = cpu.as_slice::<f32>()?;
    f(&all[layout.start_offset()..layout.start_offset() + layout.shape().elem_count()])
}

/// A CPU tensor that takes over `data`.
pub(crate) fn from_f32(data: Vec<f32>, shape: impl Into<Shape>) -> Result<Tensor> {
    Ok(Tensor::from_vec(data, shape.into(), &Device::Cpu)?)
}

/// Calls `f` with the values of an f32 CPU tensor from its first one on, and its strides; the last one is 1. Copies
/// only if it is not.
pub(crate) fn with_strided<R>(tensor: &Tensor, f: impl FnOnce(&[f32], &[usize]) -> Result<R>) -> Result<R> {
    let tensor = if tensor.stride().last() == Some(&1) { tensor.clone() } else { tensor.force_contiguous()? };
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(cpu) = &*storage else {
        return Err(Error::internal("a CPU kernel was given a tensor of another device"));
    };
    f(&cpu.as_slice::<f32>()?[layout.start_offset()..], layout.stride())
}
