//! Sines of whole slices, written so that the compiler turns them into vector instructions; [`dispatch`] only picks the
//! instruction set.
//!
//! The argument is brought into `[-π/2, π/2]`, where the Taylor polynomial of degree 11 is off by less than 6e-8. Only
//! additions and products in a fixed order: every machine and every vector width gives the same bits.

use super::simd::{Kernel, Simd, dispatch};

/// Added and taken away again, it rounds any `|x| < 2⁵¹` to the nearest integer without a call.
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

/// `out[k] += gain · sin(2π (start + (k + 1) · step))`; phases in turns, so that a long phase keeps its precision.
pub(crate) fn add_sines(out: &mut [f32], start: f64, step: f64, gain: f32) {
    dispatch(AddSines { out, start, step, gain });
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
    use crate::kernels::simd::{Unit, dispatch_on};

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

    #[test]
    fn every_unit_gives_the_same_bits() {
        for (start, step) in [(0.1, 0.37), (-3e5, 1e-7), (1e9 + 0.5, 0.5), (0.0, 0.0), (f64::INFINITY, 1.0)] {
            let on = |unit| {
                let mut out = vec![-0.25f32; 103];
                dispatch_on(unit, AddSines { out: &mut out, start, step, gain: 0.7 });
                out.iter().map(|y| if y.is_nan() { u32::MAX } else { y.to_bits() }).collect::<Vec<u32>>()
            };
            let plain = on(Unit::Plain);
            Unit::available().for_each(|unit| assert_eq!(on(unit), plain, "{unit:?} from {start} by {step}"));
            assert_eq!(plain.contains(&u32::MAX), start.is_infinite());
        }
    }
}
