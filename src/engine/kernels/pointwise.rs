//! Functions of single values over whole tensors: vectorised, shared out to all threads, one allocation.

use std::mem::MaybeUninit;

use rayon::prelude::*;

use super::math::{erf, exp, sigmoid, sin_squared};
use super::simd::{Kernel, Simd, dispatch};
use crate::meter::{Kind, counted};
use crate::protocol::Precision;

/// Values to a task: large enough to be worth handing out, small enough for L1.
const GRAIN: usize = 1 << 13;

/// `n` values, written by `write` in stretches of whole `row`s; it is told where a stretch begins.
///
/// # Safety
/// `write` must write every value of its stretch.
pub(crate) unsafe fn produce(n: usize, row: usize, write: impl Fn(usize, &mut [MaybeUninit<f32>]) + Sync) -> Vec<f32> {
    let mut out = Vec::with_capacity(n);
    let space = &mut out.spare_capacity_mut()[..n];
    let grain = GRAIN.div_ceil(row.max(1)) * row.max(1);
    if n < 2 * grain {
        write(0, space);
    } else {
        space.par_chunks_mut(grain).enumerate().for_each(|(i, part)| write(i * grain, part));
    }
    // SAFETY: the caller's promise.
    unsafe { out.set_len(n) };
    out
}

/// Calls `f`, which reads and writes `count` values in all.
fn values<R>(count: usize, f: impl FnOnce() -> R) -> R {
    /// As many as two rows of a decode step come to at the most.
    const FEW: usize = 1 << 16;
    let kind = Kind { kernel: "values", precision: Precision::F32, many_rows: count > FEW };
    counted(kind, 0, count * size_of::<f32>(), f)
}

/// A function of one value.
pub(crate) trait Unary: Copy + Sync {
    fn apply<S: Simd>(self, s: S, x: S::V) -> S::V;
}

/// A function of two values.
pub(crate) trait Binary: Copy + Sync {
    fn apply<S: Simd>(self, s: S, a: S::V, b: S::V) -> S::V;
}

/// `op` of every value.
pub(crate) fn map(op: impl Unary, x: &[f32]) -> Vec<f32> {
    // SAFETY: the input is as long as the output.
    values(2 * x.len(), || unsafe {
        produce(x.len(), 1, |at, out| dispatch(Map { op, x: &x[at..][..out.len()], out }))
    })
}

/// `op` of every pair of values.
///
/// # Panics
/// If the lengths differ: a defect of the caller.
pub(crate) fn zip(op: impl Binary, a: &[f32], b: &[f32]) -> Vec<f32> {
    assert_eq!(a.len(), b.len(), "pairs");
    // SAFETY: the inputs are as long as the output.
    values(3 * a.len(), || unsafe {
        produce(a.len(), 1, |at, out| {
            let range = at..at + out.len();
            dispatch(Zip { op, a: &a[range.clone()], b: &b[range], out });
        })
    })
}

/// `op` of the first and the second half of every row of `2 n` values.
///
/// # Panics
/// If there is half a row: a defect of the caller.
pub(crate) fn zip_halves(op: impl Binary, x: &[f32], n: usize) -> Vec<f32> {
    assert!(n > 0 && x.len().is_multiple_of(2 * n), "halves");
    // SAFETY: there is a pair of halves for each row of the output.
    values(x.len() / 2 * 3, || unsafe {
        produce(x.len() / 2, n, |at, out| {
            for (x, out) in x[2 * at..].chunks_exact(2 * n).zip(out.chunks_exact_mut(n)) {
                dispatch(Zip { op, a: &x[..n], b: &x[n..], out });
            }
        })
    })
}

/// Snake, `x + sin²(αx) / α`, over rows of channels; `alpha` and its `reciprocal` are as long as one or more rows.
///
/// # Panics
/// If they differ in length: a defect of the caller.
pub(crate) fn snake(x: &[f32], alpha: &[f32], reciprocal: &[f32]) -> Vec<f32> {
    assert_eq!(alpha.len(), reciprocal.len(), "snake");
    let row = alpha.len().max(1);
    // SAFETY: the chunks of input and output are equally long.
    values(2 * x.len(), || unsafe {
        produce(x.len(), row, |at, out| {
            for (x, out) in x[at..].chunks(row).zip(out.chunks_mut(row)) {
                dispatch(SnakeRow { x, alpha, reciprocal, out });
            }
        })
    })
}

struct Map<'a, O> {
    op: O,
    x: &'a [f32],
    out: &'a mut [MaybeUninit<f32>],
}

impl<O: Unary> Kernel for Map<'_, O> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (out, x) in self.out.chunks_mut(S::LANES).zip(self.x.chunks(S::LANES)) {
            s.fill_part(out, self.op.apply(s, s.load_part(x, 0.0)));
        }
    }
}

struct Zip<'a, O> {
    op: O,
    a: &'a [f32],
    b: &'a [f32],
    out: &'a mut [MaybeUninit<f32>],
}

impl<O: Binary> Kernel for Zip<'_, O> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let pairs = self.a.chunks(S::LANES).zip(self.b.chunks(S::LANES));
        for (out, (a, b)) in self.out.chunks_mut(S::LANES).zip(pairs) {
            s.fill_part(out, self.op.apply(s, s.load_part(a, 0.0), s.load_part(b, 0.0)));
        }
    }
}

struct SnakeRow<'a> {
    x: &'a [f32],
    alpha: &'a [f32],
    reciprocal: &'a [f32],
    out: &'a mut [MaybeUninit<f32>],
}

impl Kernel for SnakeRow<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let parameters = self.alpha.chunks(S::LANES).zip(self.reciprocal.chunks(S::LANES));
        let rows = self.out.chunks_mut(S::LANES).zip(self.x.chunks(S::LANES));
        for ((out, x), (alpha, reciprocal)) in rows.zip(parameters) {
            let x = s.load_part(x, 0.0);
            let sine = sin_squared(s, s.mul(x, s.load_part(alpha, 0.0)));
            s.fill_part(out, s.fma(sine, s.load_part(reciprocal, 0.0), x));
        }
    }
}

/// `x`.
#[derive(Clone, Copy)]
pub(crate) struct Identity;

impl Unary for Identity {
    #[inline(always)]
    fn apply<S: Simd>(self, _: S, x: S::V) -> S::V {
        x
    }
}

/// `max(0, x)`.
#[derive(Clone, Copy)]
pub(crate) struct Relu;

impl Unary for Relu {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::V) -> S::V {
        // The second operand stays where it is not a number.
        s.max(s.splat(0.0), x)
    }
}

/// `x · sigmoid(x)`.
#[derive(Clone, Copy)]
pub(crate) struct Silu;

impl Unary for Silu {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::V) -> S::V {
        s.mul(x, sigmoid(s, x))
    }
}

/// `x · Φ(x)`.
#[derive(Clone, Copy)]
pub(crate) struct Gelu;

impl Unary for Gelu {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::V) -> S::V {
        let half = s.mul(x, s.splat(0.5));
        let y = s.fma(half, erf(s, s.mul(x, s.splat(std::f32::consts::FRAC_1_SQRT_2))), half);
        // Down there the error function is -1 to f32 precision; the smallest difference would be taken times x.
        s.select_less(x, s.splat(-5.6), s.splat(0.0), y)
    }
}

/// `x · (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2`, of which all but the first factor is a sigmoid.
#[derive(Clone, Copy)]
pub(crate) struct GeluTanh;

impl Unary for GeluTanh {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::V) -> S::V {
        const DOUBLE_ROOT: f32 = 2.0 * 0.797_884_6;
        let inner = s.fma(s.mul(x, x), s.splat(DOUBLE_ROOT * 0.044_715), s.splat(DOUBLE_ROOT));
        s.mul(x, sigmoid(s, s.mul(x, inner)))
    }
}

/// `x` if positive, else `slope · x`.
#[derive(Clone, Copy)]
pub(crate) struct LeakyRelu(pub f32);

impl Unary for LeakyRelu {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::V) -> S::V {
        s.select_less(x, s.splat(0.0), s.mul(x, s.splat(self.0)), x)
    }
}

/// `x` if positive, else `eˣ - 1`.
#[derive(Clone, Copy)]
pub(crate) struct Elu;

impl Unary for Elu {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::V) -> S::V {
        s.select_less(x, s.splat(0.0), s.sub(exp(s, x), s.splat(1.0)), x)
    }
}

/// `x · tanh(ln(1 + eˣ))`, computed as `x · (n² + 2n) / (n² + 2n + 2)` with `n = eˣ`, which needs one exponential.
#[derive(Clone, Copy)]
pub(crate) struct Mish;

impl Unary for Mish {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, x: S::V) -> S::V {
        // Above 20 the fraction is 1 to f32 precision, and the bound keeps n² finite.
        let n = exp(s, s.min(s.splat(20.0), x));
        let p = s.mul(n, s.add(n, s.splat(2.0)));
        s.mul(x, s.div(p, s.add(p, s.splat(2.0))))
    }
}

/// `silu(a) · b`.
#[derive(Clone, Copy)]
pub(crate) struct SiluTimes;

impl Binary for SiluTimes {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, a: S::V, b: S::V) -> S::V {
        s.mul(Silu.apply(s, a), b)
    }
}

/// `a + b`.
#[derive(Clone, Copy)]
pub(crate) struct Add;

impl Binary for Add {
    #[inline(always)]
    fn apply<S: Simd>(self, s: S, a: S::V, b: S::V) -> S::V {
        s.add(a, b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::simd::{Unit, dispatch_on};

    /// Odd in number, and from far below to far above where any of the functions changes.
    fn inputs() -> Vec<f32> {
        let mut x: Vec<f32> = (-3000..3003).map(|i| i as f32 * 0.0313).collect();
        x.extend([0.0, -0.0, 1e-20, -1e-20, 1e-4, -1e-4, f32::MAX, f32::MIN]);
        x
    }

    fn check(op: impl Unary, definition: impl Fn(f64) -> f64, absolute: f64, relative: f64) {
        let x = inputs();
        for unit in Unit::available() {
            for len in [1, 7, 8, 15, 16, 17, x.len()] {
                let mut out = vec![MaybeUninit::new(f32::NAN); len];
                dispatch_on(unit, Map { op, x: &x[x.len() - len..], out: &mut out });
                for (x, found) in x[x.len() - len..].iter().zip(&out) {
                    // SAFETY: initialised above.
                    let found = f64::from(unsafe { found.assume_init() });
                    let expected = definition(f64::from(*x));
                    let near = (found - expected).abs() <= absolute + relative * expected.abs();
                    assert!(near, "{unit:?} f({x}) = {found}, not {expected}");
                }
            }
        }
        let through_threads = map(op, &x.repeat(7));
        let once = map(op, &x);
        assert!(through_threads.iter().zip(once.iter().cycle()).all(|(a, b)| a.to_bits() == b.to_bits()));
        assert!(map(op, &[f32::NAN; 20]).iter().all(|y| y.is_nan()), "not a number stays so");
    }

    fn error_function(x: f64) -> f64 {
        // The integral by Simpson's rule, whose error is far below f32's.
        let (end, steps) = (x.clamp(-6.0, 6.0), 2000);
        let h = end / f64::from(steps);
        let f = |i: i32| (-(h * f64::from(i)).powi(2)).exp();
        let inner: f64 = (1..steps).map(|i| if i % 2 == 1 { 4.0 } else { 2.0 } * f(i)).sum();
        (f(0) + inner + f(steps)) * h / 3.0 * std::f64::consts::FRAC_2_SQRT_PI
    }

    #[test]
    fn functions_equal_their_definitions_on_every_unit() {
        check(Identity, |x| x, 0.0, 0.0);
        check(Relu, |x| x.max(0.0), 0.0, 0.0);
        check(Silu, |x| x / (1.0 + (-x).exp()), 1e-34, 6e-7);
        check(GeluTanh, |x| 0.5 * x * (1.0 + (0.797_884_560_8 * (x + 0.044_715 * x.powi(3))).tanh()), 1e-6, 2e-6);
        check(LeakyRelu(0.1), |x| if x > 0.0 { x } else { 0.1 * x }, 0.0, 2e-7);
        check(Elu, |x| if x > 0.0 { x } else { x.exp_m1() }, 2e-7, 1e-6);
        check(Mish, |x| x * x.exp().ln_1p().tanh(), 1e-34, 1e-6);
        check(Gelu, |x| if x < -6.0 { 0.0 } else { 0.5 * x * (1.0 + error_function(x / 2f64.sqrt())) }, 2e-5, 4e-7);
    }

    #[test]
    fn pairs_and_halves_are_taken_from_where_they_belong() {
        let (rows, n) = (7, 2501);
        let x: Vec<f32> = (0..2 * rows * n).map(|i| (i as f32 * 0.37).sin()).collect();
        let found = zip_halves(SiluTimes, &x, n);
        for (i, found) in found.iter().enumerate() {
            let (a, b) = (x[i / n * 2 * n + i % n], x[i / n * 2 * n + n + i % n]);
            assert!((found - a / (1.0 + (-a).exp()) * b).abs() < 1e-6);
        }
        let sums = zip(Add, &x[..rows * n], &x[rows * n..]);
        assert!(sums.iter().enumerate().all(|(i, sum)| *sum == x[i] + x[rows * n + i]));
    }

    #[test]
    fn snake_is_the_formula_for_small_and_large_arguments() {
        let alpha = [0.3f32, 1.0, 7.5, 0.02, 3.0].repeat(7);
        let reciprocal: Vec<f32> = alpha.iter().map(|a| 1.0 / a).collect();
        let x: Vec<f32> = (0..40_000).map(|i| (i as f32 - 20_000.0) * 0.0031).collect();
        for (i, (x, y)) in x.iter().zip(snake(&x, &alpha, &reciprocal)).enumerate() {
            let a = alpha[i % 35];
            let expected = f64::from(*x) + f64::from(*x * a).sin().powi(2) / f64::from(a);
            assert!(
                (f64::from(y) - expected).abs() < 4e-6 + 2e-7 / f64::from(a),
                "snake({x}) with {a}: {y}, {expected}"
            );
        }
    }
}
