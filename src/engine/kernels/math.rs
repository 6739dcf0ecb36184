//! Elementary functions over vectors, to a few units in the last place.

use super::simd::Simd;

/// `eˣ` to 2⁻²²; 0 below -87.3, where the result would be subnormal, and infinite above 88.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    const LOWEST: f32 = -87.3;
    const HIGHEST: f32 = 88.0;
    let clamped = s.max(s.splat(LOWEST), s.min(s.splat(HIGHEST), x));
    // x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 in two parts, so that r is exact.
    let n = s.round(s.mul(clamped, s.splat(std::f32::consts::LOG2_E)));
    let r = s.fma(n, s.splat(-0.693_359_4), clamped);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    // Cephes expf: e^r = 1 + r + r² p(r).
    let p =
        polynomial(s, r, [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.500_000_06]);
    let e = s.add(s.fma(s.mul(r, r), p, r), s.splat(1.0));
    let y = s.scale_by_power(e, n);
    let y = s.select_less(s.splat(HIGHEST), x, s.splat(f32::INFINITY), y);
    s.select_less(x, s.splat(LOWEST), s.splat(0.0), y)
}

/// `2ˣ` to 1.1e-4, for x in -126..=127.
#[inline(always)]
pub(crate) fn exp2<S: Simd>(s: S, x: S::V) -> S::V {
    let n = s.round(x);
    // Least error over -0.5..=0.5 with the value at 0 exact.
    let p = polynomial(s, s.sub(x, n), [0.055_008_93, 0.242_210_96, 0.693_282_9, 1.0]);
    s.scale_by_power(p, n)
}

/// `1 / (1 + e⁻ˣ)`.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    let e = exp(s, s.sub(s.splat(0.0), x));
    s.div(s.splat(1.0), s.add(s.splat(1.0), e))
}

/// The error function to 4e-7: x times a rational of x².
#[inline(always)]
pub(crate) fn erf<S: Simd>(s: S, x: S::V) -> S::V {
    let x = s.max(s.splat(-4.0), s.min(s.splat(4.0), x));
    let x2 = s.mul(x, x);
    let above = polynomial(
        s,
        x2,
        [
            -2.726_142_3e-10,
            2.770_681_4e-8,
            -2.101_024e-6,
            -5.692_506_5e-5,
            -7.349_906_3e-4,
            -2.954_6e-3,
            -1.609_603_3e-2,
        ],
    );
    let below = polynomial(s, x2, [-1.456_607_2e-5, -2.133_740_6e-4, -1.682_827e-3, -7.373_329_2e-3, -1.426_473_9e-2]);
    s.div(s.mul(x, above), below)
}

/// `sin²(x)` for `|x|` up to some ten thousand: x is brought into `[-π/2, π/2]`, where the Taylor polynomial of degree
/// 11 is off by less than 6e-8.
#[inline(always)]
pub(crate) fn sin_squared<S: Simd>(s: S, x: S::V) -> S::V {
    // π in three parts: the product of the first two with a small whole number is exact.
    let n = s.round(s.mul(x, s.splat(std::f32::consts::FRAC_1_PI)));
    let r = s.fma(n, s.splat(-3.140_625), x);
    let r = s.fma(n, s.splat(-9.675_026e-4), r);
    let r = s.fma(n, s.splat(-1.509_958e-7), r);
    let q = s.mul(r, r);
    const C: [f32; 5] = [-1.0 / 39_916_800.0, 1.0 / 362_880.0, -1.0 / 5_040.0, 1.0 / 120.0, -1.0 / 6.0];
    let sine = s.fma(s.mul(r, q), polynomial(s, q, C), r);
    s.mul(sine, sine)
}

/// Horner's rule, the highest power first.
#[inline(always)]
pub(crate) fn polynomial<S: Simd, const N: usize>(s: S, x: S::V, coefficients: [f32; N]) -> S::V {
    let mut sum = s.splat(coefficients[0]);
    for c in &coefficients[1..] {
        sum = s.fma(sum, x, s.splat(*c));
    }
    sum
}
