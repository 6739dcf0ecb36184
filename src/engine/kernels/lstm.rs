//! The element-wise part of an LSTM step: gates to cell and output.
//!
//! One body, compiled for the widest vectors the processor has; the compiler vectorises it because the exponential is a
//! polynomial without branches.

/// One row: `gates` i, f, g, o of `n` each, `cell` and `output` of `n`.
///
/// # Panics
/// If the lengths disagree: a defect of the caller.
pub(crate) fn step(gates: &[f32], cell: &mut [f32], output: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has the features.
            return unsafe { step_avx512(gates, cell, output) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has the features.
            return unsafe { step_avx2(gates, cell, output) };
        }
    }
    body(gates, cell, output);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,fma")]
fn step_avx512(gates: &[f32], cell: &mut [f32], output: &mut [f32]) {
    body(gates, cell, output);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn step_avx2(gates: &[f32], cell: &mut [f32], output: &mut [f32]) {
    body(gates, cell, output);
}

#[inline(always)]
fn body(gates: &[f32], cell: &mut [f32], output: &mut [f32]) {
    let n = cell.len();
    assert!(gates.len() == 4 * n && output.len() == n, "gates of {} for {n} cells", gates.len());
    let (i, rest) = gates.split_at(n);
    let (f, rest) = rest.split_at(n);
    let (g, o) = rest.split_at(n);
    for at in 0..n {
        let c = sigmoid(f[at]) * cell[at] + sigmoid(i[at]) * tanh(g[at]);
        cell[at] = c;
        output[at] = sigmoid(o[at]) * tanh(c);
    }
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[inline(always)]
fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (exp(2.0 * x) + 1.0)
}

/// `eˣ` to a few units in the last place, saturating at both ends: `2ⁿ eʳ` with `|r| <= ln 2 / 2`, `eʳ` by Taylor.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // Adding and subtracting it rounds to a whole number, which is then also in its low bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts, the first short enough that its product with n is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.0, 88.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + c;
    }
    f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_is_accurate_over_its_range() {
        for k in -8700..=8800 {
            let x = k as f32 / 100.0 + 0.003;
            let (found, expected) = (f64::from(exp(x)), f64::from(x.clamp(-87.0, 88.0)).exp());
            assert!((found / expected - 1.0).abs() < 3e-7, "{x}: {found} {expected}");
        }
        assert!(sigmoid(f32::NEG_INFINITY) >= 0.0 && sigmoid(f32::INFINITY) == 1.0);
        assert!(tanh(-200.0) == -1.0 && tanh(200.0) == 1.0);
    }

    #[test]
    fn dispatched_equals_its_scalar_twin_and_the_definition() {
        let n = 37;
        let values = |count: usize, seed: f32| (0..count).map(|i| (i as f32 * seed).sin() * 4.0).collect::<Vec<f32>>();
        let (gates, cell) = (values(4 * n, 0.7), values(n, 1.3));
        let (mut cell_a, mut out_a) = (cell.clone(), vec![0.0; n]);
        step(&gates, &mut cell_a, &mut out_a);
        let (mut cell_b, mut out_b) = (cell.clone(), vec![0.0; n]);
        body(&gates, &mut cell_b, &mut out_b);
        let exact = |x: f32| 1.0 / (1.0 + (-f64::from(x)).exp());
        for at in 0..n {
            let gate = |k: usize| gates[k * n + at];
            let c = exact(gate(1)) * f64::from(cell[at]) + exact(gate(0)) * f64::from(gate(2)).tanh();
            let h = exact(gate(3)) * c.tanh();
            for (c_found, h_found) in [(cell_a[at], out_a[at]), (cell_b[at], out_b[at])] {
                assert!((f64::from(c_found) - c).abs() < 1e-6 && (f64::from(h_found) - h).abs() < 1e-6);
            }
        }
    }
}
