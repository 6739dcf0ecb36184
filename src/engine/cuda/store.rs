//! Memory of the layers: weights, which stay, and room for activations.

use std::sync::Arc;

use cudarc::driver::CudaSlice;

use super::card::Card;
use super::layer_args::Matrix;
use super::net::{Number, address_of, bytes_of, packed};
use crate::error::{Error, Result};

/// Weights on the card.
#[derive(Debug)]
pub(crate) struct Store {
    card: Arc<Card>,
    buffers: Vec<CudaSlice<u8>>,
}

impl Store {
    pub(crate) fn new(card: Arc<Card>) -> Self {
        Self { card, buffers: Vec::new() }
    }

    fn put(&mut self, data: &[u8]) -> Result<u64> {
        let buffer = self.card.stream.clone_htod(data).map_err(|e| {
            Error::device(format!("{} has no room for {} KB of weights ({e})", self.card.name(), data.len() >> 10))
        })?;
        let address = address_of(&self.card, &buffer);
        self.buffers.push(buffer);
        Ok(address)
    }

    /// Numbers as they are.
    pub(crate) fn vector(&mut self, values: &[f32]) -> Result<u64> {
        self.put(bytes_of(values))
    }

    /// Numbers, rounded.
    pub(crate) fn table(&mut self, values: &[f32], number: Number) -> Result<u64> {
        self.put(&packed(values, values.len().max(1), values.len().max(1), number))
    }

    /// `weight (n, taps · channels)`, rounded.
    pub(crate) fn matrix(
        &mut self,
        weight: &[f32],
        n: usize,
        channels: usize,
        bias: Option<&[f32]>,
        number: Number,
    ) -> Result<Matrix> {
        let k = weight.len() / n.max(1);
        let width = 16 / number.bytes().min(4);
        if n == 0 || !k.is_multiple_of(channels.max(1)) || !channels.is_multiple_of(width) {
            return Err(Error::device(format!(
                "its kernels are made for multiples of {width} channels, not {channels}"
            )));
        }
        let at = self.put(&packed(weight, k, k, number))?;
        let bias = bias.map_or(Ok(0), |bias| self.vector(bias))?;
        Ok(Matrix { at, bias, n, k, channels, number, norm: (0, 0.0) })
    }

    /// [`Self::matrix`] of a projection behind a layer norm with weights and shifts, which becomes a part of it.
    pub(crate) fn normed_matrix(
        &mut self,
        weight: &[f32],
        bias: Option<&[f32]>,
        (norm_weight, norm_bias, eps): (&[f32], &[f32], f32),
        number: Number,
    ) -> Result<Matrix> {
        let k = norm_weight.len();
        let n = weight.len() / k.max(1);
        let scaled: Vec<f32> =
            weight.chunks_exact(k).flat_map(|row| row.iter().zip(norm_weight).map(|(w, g)| w * g)).collect();
        let shifted = |(row, weights): (usize, &[f32])| {
            let shift: f64 = weights.iter().zip(norm_bias).map(|(w, b)| f64::from(*w) * f64::from(*b)).sum();
            shift as f32 + bias.map_or(0.0, |bias| bias[row])
        };
        let bias: Vec<f32> = weight.chunks_exact(k).enumerate().map(shifted).collect();
        // Of the weights as the product sees them.
        let sums: Vec<f32> = scaled
            .chunks_exact(k)
            .map(|row| row.iter().map(|w| f64::from(number.rounded(*w))).sum::<f64>() as f32)
            .collect();
        let sums = self.vector(&sums)?;
        Ok(Matrix { norm: (sums, eps), ..self.matrix(&scaled, n, k, Some(&bias), number)? })
    }

    /// [`Self::matrix`] in f64.
    pub(crate) fn exact_matrix(&mut self, weight: &[f64], n: usize, channels: usize, bias: &[f32]) -> Result<Matrix> {
        if n == 0 || !channels.is_multiple_of(4) {
            return Err(Error::device(format!("its kernels are made for multiples of 4 channels, not {channels}")));
        }
        let bytes: Vec<u8> = weight.iter().flat_map(|x| x.to_le_bytes()).collect();
        Ok(Matrix {
            at: self.put(&bytes)?,
            bias: self.vector(bias)?,
            n,
            k: weight.len() / n,
            channels,
            number: Number::F64,
            norm: (0, 0.0),
        })
    }

    /// Bytes on the card.
    pub(crate) fn bytes(&self) -> usize {
        self.buffers.iter().map(CudaSlice::len).sum()
    }
}

/// Room for the activations of a network: one piece of memory, dealt out anew for every pass.
#[derive(Debug)]
pub(crate) struct Room {
    memory: Option<CudaSlice<u8>>,
}

/// Activations begin at multiples of this.
const ALIGNED: usize = 256;

impl Room {
    pub(crate) fn new() -> Self {
        Self { memory: None }
    }

    /// Addresses of pieces of so many bytes.
    pub(crate) fn deal<const N: usize>(&mut self, card: &Card, bytes: [usize; N]) -> Result<[u64; N]> {
        let all: usize = bytes.iter().map(|bytes| bytes.next_multiple_of(ALIGNED)).sum();
        if self.memory.as_ref().is_none_or(|memory| memory.len() < all) {
            self.memory = None;
            // A little more, so that slightly longer passes find room too.
            let wanted = (all + all / 8).next_multiple_of(1 << 20);
            // SAFETY: every kernel writes what a later one reads.
            let memory = unsafe { card.stream.alloc::<u8>(wanted) };
            self.memory = Some(memory.map_err(|e| {
                Error::device(format!("{} has no room for {} MB more ({e})", card.name(), wanted >> 20))
            })?);
        }
        let mut at = self.address(card);
        Ok(bytes.map(|bytes| {
            let start = at;
            at += bytes.next_multiple_of(ALIGNED) as u64;
            start
        }))
    }

    /// Where it lies.
    pub(crate) fn address(&self, card: &Card) -> u64 {
        self.memory.as_ref().map_or(0, |memory| address_of(card, memory))
    }

    /// Bytes on the card.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.as_ref().map_or(0, CudaSlice::len)
    }

    /// Fills it with what is no number.
    #[cfg(test)]
    pub(crate) fn poison(&mut self, card: &Card) {
        if let Some(memory) = &mut self.memory {
            let ones = vec![0xff; memory.len()];
            assert!(card.stream.memcpy_htod(&ones, memory).is_ok());
        }
    }
}
