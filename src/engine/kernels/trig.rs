//! Sines of whole slices, written so that the compiler turns them into vector instructions; [`dispatch`] only picks the
//! instruction set.
//!
//! The argument is brought into `[-π/2, π/2]`, where the Taylor polynomial of degree 11 is off by less than 6e-8. Only
//! additions and products in a fixed order: every machine and every vector width gives the same bits.

use super::simd::{Kernel, Simd, dispatch};

/// Added and taken away again, it rounds any `|x| < 2²²` to the nearest integer without a call.
const ROUND: f32 = 12_582_912.0;
/// The same for f64.
const ROUND_F64: f64 = 6_755_399_441_055_744.0;

/// `sin(x)` for `|x| <= π/2`.
#[inline(always)]
fn sin_quarter(x: f32) -> f32 {
    const C3: f32 = -1.0 / 6.0;
    const C5: f32 = 1.0 / 120.0;
    const C7: f32 = -1.0 / 5_040.0;
    const C9: f32 = 1.0 / 362_880.0;
    const C11: f32 = -1.0 / 39_916_800.0;
    let q = x * x;
    x + x * q * (C3 + q * (C5 + q * (C7 + q * (C9 + q * C11))))
}

/// Snake, `x += sin²(αx) / α`, over rows of channels; `alpha` and its `reciprocal` are as long as one or more rows.
pub(crate) fn snake(xs: &mut [f32], alpha: &[f32], reciprocal: &[f32]) {
    dispatch(Snake { xs, alpha, reciprocal });
}

/// `out[k] += gain · sin(2π (start + (k + 1) · step))`; phases in turns, so that a long phase keeps its precision.
pub(crate) fn add_sines(out: &mut [f32], start: f64, step: f64, gain: f32) {
    dispatch(AddSines { out, start, step, gain });
}

struct Snake<'a> {
    xs: &'a mut [f32],
    alpha: &'a [f32],
    reciprocal: &'a [f32],
}

impl Kernel for Snake<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        // π in two parts: the product of the first with a small integer is exact.
        const PI_HIGH: f32 = 3.140_625;
        const PI_LOW: f32 = 9.676_536e-4;
        for row in self.xs.chunks_mut(self.alpha.len()) {
            for ((x, &a), &r) in row.iter_mut().zip(self.alpha).zip(self.reciprocal) {
                let y = *x * a;
                let turns = (y * std::f32::consts::FRAC_1_PI + ROUND) - ROUND;
                let s = sin_quarter((y - turns * PI_HIGH) - turns * PI_LOW);
                *x += r * (s * s);
            }
        }
    }
}

struct AddSines<'a> {
    out: &'a mut [f32],
    start: f64,
    step: f64,
    gain: f32,
}

impl Kernel for AddSines<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (k, o) in self.out.iter_mut().enumerate() {
            let turns = self.start + self.step * (k as f64 + 1.0);
            // To [-1/2, 1/2], then mirrored at a quarter turn, where the sine is symmetric.
            let t = (turns - ((turns + ROUND_F64) - ROUND_F64)) as f32;
            let quarter = 0.25 - (t.abs() - 0.25).abs();
            *o += self.gain * sin_quarter((std::f32::consts::TAU * quarter).copysign(t));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snake_is_the_formula_for_small_and_large_arguments() {
        let alpha = [0.3f32, 1.0, 7.5];
        let reciprocal = alpha.map(|a| 1.0 / a);
        let xs: Vec<f32> = (0..3000).map(|i| (i as f32 - 1500.0) * 0.031).collect();
        let mut ys = xs.clone();
        snake(&mut ys, &alpha, &reciprocal);
        for (i, (x, y)) in xs.iter().zip(&ys).enumerate() {
            let a = f64::from(alpha[i % 3]);
            let wanted = f64::from(*x) + (f64::from(*x * alpha[i % 3])).sin().powi(2) / a;
            assert!((f64::from(*y) - wanted).abs() < 4e-6, "snake({x}) with {a}: {y}, not {wanted}");
        }
    }

    #[test]
    fn sines_keep_their_precision_far_from_the_start() {
        for start in [0.0, 0.4, 1e6 + 0.25] {
            let mut out = vec![0.5f32; 1000];
            add_sines(&mut out, start, 0.0123, 2.0);
            for (k, y) in out.iter().enumerate() {
                let wanted = 0.5 + 2.0 * (std::f64::consts::TAU * (start + 0.0123 * (k as f64 + 1.0)).fract()).sin();
                assert!((f64::from(*y) - wanted).abs() < 1e-6, "sample {k} from {start}: {y}, not {wanted}");
            }
        }
    }
}
