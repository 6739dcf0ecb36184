//! Normalisation of rows.

use std::mem::MaybeUninit;

use super::pointwise::{Identity, Mish, Unary, produce};
use super::product::FEW_ROWS;
use super::simd::{Kernel, Simd, dispatch};
use crate::meter::{Kind, counted};
use crate::protocol::Precision;

/// `(x - mean) / √(variance + eps) · weight + bias` of every row.
///
/// # Panics
/// If the lengths disagree: a defect of the caller.
pub(crate) fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32) -> Vec<f32> {
    assert!(weight.len() == bias.len() && x.len().is_multiple_of(weight.len().max(1)), "layer norm");
    rows(x, weight.len(), |x, out| dispatch(LayerNorm { x, weight, bias, eps, op: Identity, shift: None, out }))
}

/// `mish(layer_norm(x)) + shift` of every row.
///
/// # Panics
/// If the lengths disagree: a defect of the caller.
pub(crate) fn layer_norm_mish(x: &[f32], weight: &[f32], bias: &[f32], eps: f32, shift: Option<&[f32]>) -> Vec<f32> {
    assert!(weight.len() == bias.len() && x.len().is_multiple_of(weight.len().max(1)), "layer norm");
    assert!(shift.is_none_or(|shift| shift.len() == weight.len()), "shift of a layer norm");
    rows(x, weight.len(), |x, out| dispatch(LayerNorm { x, weight, bias, eps, op: Mish, shift, out }))
}

/// `x / √(mean(x²) + eps) · weight` of every row.
///
/// # Panics
/// If the lengths disagree: a defect of the caller.
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    assert!(x.len().is_multiple_of(weight.len().max(1)), "rms norm");
    rows(x, weight.len(), |x, out| dispatch(RmsNorm { x, weight, eps, out }))
}

/// `max(0, x · scale + shift)`, each channel with its own scale and shift.
///
/// # Panics
/// If the lengths disagree: a defect of the caller.
pub(crate) fn affine_relu(x: &[f32], scale: &[f32], shift: &[f32]) -> Vec<f32> {
    assert!(scale.len() == shift.len() && x.len().is_multiple_of(scale.len().max(1)), "affine");
    rows(x, scale.len(), |x, out| dispatch(AffineRelu { x, scale, shift, out }))
}

/// Rows of `n` values through `one`, which must fill its output.
fn rows(x: &[f32], n: usize, one: impl Fn(&[f32], &mut [MaybeUninit<f32>]) + Sync) -> Vec<f32> {
    let n = n.max(1);
    let kind = Kind { kernel: "norm", precision: Precision::F32, many_rows: x.len() > FEW_ROWS * n };
    // SAFETY: `one` fills each of its rows, and there are as many of input as of output.
    counted(kind, 0, 2 * size_of_val(x), || unsafe {
        produce(x.len(), n, |at, out| {
            x[at..].chunks_exact(n).zip(out.chunks_exact_mut(n)).for_each(|(x, out)| one(x, out));
        })
    })
}

struct LayerNorm<'a, O> {
    x: &'a [f32],
    weight: &'a [f32],
    bias: &'a [f32],
    eps: f32,
    op: O,
    /// Added at the end, one value for each channel.
    shift: Option<&'a [f32]>,
    out: &'a mut [MaybeUninit<f32>],
}

impl<O: Unary> Kernel for LayerNorm<'_, O> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.x.len() as f32;
        let mut sum = s.splat(0.0);
        for x in self.x.chunks(S::LANES) {
            sum = s.add(sum, s.load_part(x, 0.0));
        }
        let mean = s.sum(sum) / n;
        let center = s.splat(mean);
        let mut squares = s.splat(0.0);
        for x in self.x.chunks(S::LANES) {
            let x = s.sub(s.load_part(x, mean), center);
            squares = s.fma(x, x, squares);
        }
        let inverse = s.splat(1.0 / (s.sum(squares) / n + self.eps).sqrt());
        let parameters = self.weight.chunks(S::LANES).zip(self.bias.chunks(S::LANES));
        let rows = self.out.chunks_mut(S::LANES).zip(self.x.chunks(S::LANES));
        for (i, ((out, x), (weight, bias))) in rows.zip(parameters).enumerate() {
            let x = s.mul(s.sub(s.load_part(x, 0.0), center), inverse);
            let mut y = self.op.apply(s, s.fma(x, s.load_part(weight, 0.0), s.load_part(bias, 0.0)));
            if let Some(shift) = self.shift {
                y = s.add(y, s.load_part(&shift[i * S::LANES..], 0.0));
            }
            s.fill_part(out, y);
        }
    }
}

struct RmsNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [MaybeUninit<f32>],
}

impl Kernel for RmsNorm<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut squares = s.splat(0.0);
        for x in self.x.chunks(S::LANES) {
            let x = s.load_part(x, 0.0);
            squares = s.fma(x, x, squares);
        }
        let inverse = s.splat(1.0 / (s.sum(squares) / self.x.len() as f32 + self.eps).sqrt());
        let rows = self.out.chunks_mut(S::LANES).zip(self.x.chunks(S::LANES));
        for ((out, x), weight) in rows.zip(self.weight.chunks(S::LANES)) {
            s.fill_part(out, s.mul(s.mul(s.load_part(x, 0.0), inverse), s.load_part(weight, 0.0)));
        }
    }
}

struct AffineRelu<'a> {
    x: &'a [f32],
    scale: &'a [f32],
    shift: &'a [f32],
    out: &'a mut [MaybeUninit<f32>],
}

impl Kernel for AffineRelu<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let parameters = self.scale.chunks(S::LANES).zip(self.shift.chunks(S::LANES));
        for ((out, x), (scale, shift)) in self.out.chunks_mut(S::LANES).zip(self.x.chunks(S::LANES)).zip(parameters) {
            let y = s.fma(s.load_part(x, 0.0), s.load_part(scale, 0.0), s.load_part(shift, 0.0));
            s.fill_part(out, s.max(s.splat(0.0), y));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::simd::{Unit, dispatch_on};
    use crate::kernels::testing::pseudo;

    /// One row through every kernel on one unit.
    fn on(unit: Unit, x: &[f32], a: &[f32], b: &[f32]) -> [Vec<f32>; 3] {
        let mut out = [(); 3].map(|()| vec![MaybeUninit::new(f32::NAN); x.len()]);
        let [layer, rms, affine] = &mut out;
        dispatch_on(unit, LayerNorm { x, weight: a, bias: b, eps: 1e-5, op: Identity, shift: None, out: layer });
        dispatch_on(unit, RmsNorm { x, weight: a, eps: 1e-5, out: rms });
        dispatch_on(unit, AffineRelu { x, scale: a, shift: b, out: affine });
        // SAFETY: initialised above.
        out.map(|row| row.iter().map(|v| unsafe { v.assume_init() }).collect())
    }

    #[test]
    fn rows_equal_the_definitions_on_every_unit_and_any_number_of_threads() {
        for (rows, n) in [(1, 1), (3, 7), (2, 16), (5, 33), (90, 515)] {
            let (a, b) = (pseudo(n, 1), pseudo(n, 2));
            // Far from zero, where a variance by the difference of two sums would fail.
            let x: Vec<f32> = pseudo(rows * n, 3).iter().map(|x| x + 10.0).collect();
            let whole = [layer_norm(&x, &a, &b, 1e-5), rms_norm(&x, &a, 1e-5), affine_relu(&x, &a, &b)];
            for (r, x) in x.chunks_exact(n).enumerate() {
                let wide = || x.iter().map(|x| f64::from(*x));
                let mean = wide().sum::<f64>() / n as f64;
                let variance = wide().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
                let square = wide().map(|x| x * x).sum::<f64>() / n as f64;
                for unit in Unit::available() {
                    let found = on(unit, x, &a, &b);
                    for (i, x) in wide().enumerate() {
                        let (a, b) = (f64::from(a[i]), f64::from(b[i]));
                        let expected = [
                            (x - mean) / (variance + 1e-5).sqrt() * a + b,
                            x / (square + 1e-5).sqrt() * a,
                            (x * a + b).max(0.0),
                        ];
                        for (found, expected) in found.iter().zip(expected) {
                            assert!((f64::from(found[i]) - expected).abs() < 3e-5, "{unit:?} {rows}x{n}: {}", found[i]);
                        }
                    }
                    if Unit::available().next() == Some(unit) {
                        assert!(found.iter().zip(&whole).all(|(row, whole)| *row == whole[r * n..][..n]));
                    }
                }
            }
        }
    }

    #[test]
    fn mish_and_shift_come_after_the_norm() {
        let (rows, n) = (7, 37);
        let (a, b, shift, x) = (pseudo(n, 1), pseudo(n, 2), pseudo(n, 3), pseudo(rows * n, 4));
        let normed = layer_norm(&x, &a, &b, 1e-5);
        let found = layer_norm_mish(&x, &a, &b, 1e-5, Some(&shift));
        for (i, (found, x)) in found.iter().zip(normed).enumerate() {
            let expected = f64::from(x) * f64::from(x).exp().ln_1p().tanh() + f64::from(shift[i % n]);
            assert!((f64::from(*found) - expected).abs() < 2e-6, "{found} {expected}");
        }
    }

    #[test]
    fn very_small_and_large_rows_are_normed_and_what_is_not_a_number_stays_in_its_row() {
        let n = 37;
        let (a, b) = (pseudo(n, 1), pseudo(n, 2));
        for size in [1e-18f32, 1e-3, 1e15] {
            let x: Vec<f32> = pseudo(n, 3).iter().map(|x| x * size).collect();
            let square = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / n as f64;
            for unit in Unit::available() {
                let [layer, rms, _] = on(unit, &x, &a, &b);
                assert!(layer.iter().all(|y| y.abs() < 10.0), "{unit:?} {size}");
                for ((y, x), a) in rms.iter().zip(&x).zip(&a) {
                    let expected = f64::from(*x) / (square + 1e-5).sqrt() * f64::from(*a);
                    assert!((f64::from(*y) - expected).abs() < 1e-5, "{unit:?} {size}: {y} {expected}");
                }
            }
        }
        let mut x = pseudo(3 * n, 4);
        x[n + 5] = f32::NAN;
        for normed in [layer_norm(&x, &a, &b, 1e-5), rms_norm(&x, &a, 1e-5)] {
            let finite: Vec<bool> = normed.chunks_exact(n).map(|row| row.iter().all(|y| y.is_finite())).collect();
            assert_eq!(finite, [true, false, true]);
        }
    }
}
