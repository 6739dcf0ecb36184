//! Weight matrices in the order in which products read them.

use std::io;

use half::{bf16, f16};
use rayon::prelude::*;

use super::element::Element;
use super::int8;
use super::memory::Lines;
use crate::protocol::Precision;
use crate::weights::Form;

/// Outputs to a panel.
pub(crate) const PANEL: usize = 16;

/// A weight matrix `(N, K)`: N outputs of K inputs each, at one of the precisions.
///
/// It is cut into panels of [`PANEL`] outputs; a panel holds its weights as `(K, 16)`. The last one is filled up with
/// zeros. No other copy of the weights is kept.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Matrix {
    n: usize,
    k: usize,
    data: Data,
}

/// The panels.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Data {
    F32(Lines<f32>),
    F16(Lines<f16>),
    Bf16(Lines<bf16>),
    Int8(int8::Panels),
}

impl Matrix {
    /// Packs `rows`, `(N, K)` row-major.
    ///
    /// # Panics
    /// If there are not N times K of them: a defect of the caller.
    pub(crate) fn pack(rows: &[f32], n: usize, k: usize, precision: Precision) -> Self {
        Self::pack_for(rows, n, k, precision, false)
    }

    /// [`Self::pack`]; with `wide`, 8-bit weights are multiplied with 16-bit activations.
    pub(crate) fn pack_for(rows: &[f32], n: usize, k: usize, precision: Precision, wide: bool) -> Self {
        assert_eq!(rows.len(), n * k, "a matrix of {n} x {k}");
        let data = match precision {
            Precision::F32 => Data::F32(panels(rows, n, k)),
            Precision::F16 => Data::F16(panels(rows, n, k)),
            Precision::Bf16 => Data::Bf16(panels(rows, n, k)),
            Precision::Int8 => Data::Int8(int8::Panels::pack(rows, n, k, wide)),
        };
        Self { n, k, data }
    }

    /// A matrix of zeros, which takes no memory until it is read.
    pub(crate) fn zeros(n: usize, k: usize) -> Self {
        Self { n, k, data: Data::F32(Lines::zeros(n.next_multiple_of(PANEL) * k)) }
    }

    /// The rows of all `parts`, which are of one precision, as one matrix.
    ///
    /// # Panics
    /// If they differ in K: a defect of the caller.
    pub(crate) fn stack(parts: &[&Self]) -> Self {
        let (k, precision) = parts.first().map_or((0, Precision::F32), |part| (part.k, part.precision()));
        assert!(parts.iter().all(|part| part.k == k), "matrices of different width");
        let n = parts.iter().map(|part| part.n).sum();
        let whole_panels = parts.iter().all(|part| part.n.is_multiple_of(PANEL) && part.precision() == precision);
        if !whole_panels {
            let rows: Vec<f32> = parts.iter().flat_map(|part| part.unpack()).collect();
            let wide = parts.iter().any(|part| matches!(&part.data, Data::Int8(panels) if panels.is_wide()));
            return Self::pack_for(&rows, n, k, precision, wide);
        }
        macro_rules! all {
            ($kind:ident) => {
                parts.iter().filter_map(|part| match &part.data {
                    Data::$kind(panels) => Some(panels),
                    _ => None,
                })
            };
        }
        let data = match precision {
            Precision::F32 => Data::F32(joined(all!(F32), n * k)),
            Precision::F16 => Data::F16(joined(all!(F16), n * k)),
            Precision::Bf16 => Data::Bf16(joined(all!(Bf16), n * k)),
            Precision::Int8 => Data::Int8(int8::Panels::stack(&all!(Int8).collect::<Vec<_>>())),
        };
        Self { n, k, data }
    }

    /// The weights as `(N, K)` row-major, as they are at this precision.
    pub(crate) fn unpack(&self) -> Vec<f32> {
        let at = |output: usize, input: usize| (output / PANEL * self.k + input) * PANEL + output % PANEL;
        let one = |i: usize| {
            let (output, input) = (i / self.k, i % self.k);
            match &self.data {
                Data::F32(panels) => panels[at(output, input)],
                Data::F16(panels) => panels[at(output, input)].to_f32(),
                Data::Bf16(panels) => panels[at(output, input)].to_f32(),
                Data::Int8(panels) => panels.weight(output, input),
            }
        };
        (0..self.n * self.k).map(one).collect()
    }

    /// N.
    pub(crate) fn outputs(&self) -> usize {
        self.n
    }

    /// K.
    pub(crate) fn inputs(&self) -> usize {
        self.k
    }

    /// Bytes that a product reads.
    pub(crate) fn bytes(&self) -> usize {
        self.parts().iter().map(|part| part.len()).sum()
    }

    /// Multiplications to a weight and row.
    pub(crate) fn passes(&self) -> usize {
        if matches!(&self.data, Data::Int8(panels) if panels.is_wide()) { 2 } else { 1 }
    }

    /// How the weights are stored.
    pub(crate) fn precision(&self) -> Precision {
        match self.data {
            Data::F32(_) => Precision::F32,
            Data::F16(_) => Precision::F16,
            Data::Bf16(_) => Precision::Bf16,
            Data::Int8(_) => Precision::Int8,
        }
    }

    /// What has to be kept of it, as bytes of this machine.
    pub(crate) fn parts(&self) -> Vec<&[u8]> {
        match &self.data {
            Data::F32(panels) => vec![bytes(panels)],
            Data::F16(panels) => vec![bytes(panels)],
            Data::Bf16(panels) => vec![bytes(panels)],
            Data::Int8(panels) => panels.parts().to_vec(),
        }
    }

    /// A matrix of what [`Self::parts`] gave, which `fill` writes part by part.
    ///
    /// # Errors
    /// Those of `fill`.
    pub(crate) fn read(form: Form, mut fill: impl FnMut(&mut [u8]) -> io::Result<()>) -> io::Result<Self> {
        let Form { outputs: n, inputs: k, precision, wide } = form;
        let len = n.next_multiple_of(PANEL) * k;
        let data = match precision {
            Precision::F32 => Data::F32(filled(len, &mut fill)?),
            Precision::F16 => Data::F16(filled(len, &mut fill)?),
            Precision::Bf16 => Data::Bf16(filled(len, &mut fill)?),
            Precision::Int8 => Data::Int8(int8::Panels::read(n, k, wide, &mut fill)?),
        };
        Ok(Self { n, k, data })
    }

    pub(super) fn data(&self) -> &Data {
        &self.data
    }
}

fn panels<E: Element>(rows: &[f32], n: usize, k: usize) -> Lines<E> {
    let mut data = Lines::zeros(n.next_multiple_of(PANEL) * k);
    data.par_chunks_exact_mut((PANEL * k).max(1)).enumerate().for_each(|(p, panel)| {
        for (column, row) in rows[p * PANEL * k..].chunks_exact(k.max(1)).take(PANEL).enumerate() {
            panel[column..].iter_mut().step_by(PANEL).zip(row).for_each(|(to, from)| *to = E::from_f32(*from));
        }
    });
    data
}

/// Numbers of which every pattern of bits is one.
pub(super) trait Bits: Copy + Default {}
impl Bits for f32 {}
impl Bits for f16 {}
impl Bits for bf16 {}
impl Bits for i8 {}
impl Bits for i32 {}

/// Numbers as they are in memory.
pub(super) fn bytes<T: Bits>(values: &[T]) -> &[u8] {
    // SAFETY: numbers have no bytes between them, and bytes may lie anywhere.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// `len` numbers whose bytes `fill` writes.
pub(super) fn filled<T: Bits>(len: usize, fill: &mut impl FnMut(&mut [u8]) -> io::Result<()>) -> io::Result<Lines<T>> {
    let mut values: Lines<T> = Lines::zeros(len);
    // SAFETY: as above, and whatever is written, it is numbers.
    fill(unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(&values[..])) })?;
    Ok(values)
}

pub(super) fn joined<'a, T: Copy + Default + 'a>(parts: impl Iterator<Item = &'a Lines<T>>, len: usize) -> Lines<T> {
    let mut whole = Lines::zeros(len);
    let mut rest = &mut whole[..];
    for part in parts {
        let (to, behind) = rest.split_at_mut(part.len());
        to.copy_from_slice(part);
        rest = behind;
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::pseudo;

    #[test]
    fn rows_come_back_and_stack_at_every_precision() {
        let precisions =
            [(Precision::F32, 0.0), (Precision::F16, 5e-4), (Precision::Bf16, 4e-3), (Precision::Int8, 4e-3)];
        for (precision, error) in precisions {
            for (n, k) in [(1, 1), (16, 5), (33, 7), (80, 32)] {
                let (rows, others) = (pseudo(n * k, 1), pseudo(16 * k, 2));
                let (a, b) = (Matrix::pack(&rows, n, k, precision), Matrix::pack(&others, 16, k, precision));
                assert!(a.unpack().iter().zip(&rows).all(|(found, x)| (found - x).abs() <= error), "{precision:?}");
                let both = Matrix::stack(&[&b, &a, &b]);
                assert_eq!((both.outputs(), both.inputs(), both.precision()), (n + 32, k, precision));
                let expected = [b.unpack(), a.unpack(), b.unpack()].concat();
                assert!(both.unpack().iter().zip(&expected).all(|(found, x)| (found - x).abs() < 1e-6));
            }
        }
    }
}
