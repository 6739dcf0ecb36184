//! The element-wise part of an LSTM step: gates to cell and output.

use super::math::sigmoid;
use super::simd::{Kernel, Simd, dispatch};

/// One row: `gates` i, f, g, o of `n` each, `cell` and `output` of `n`.
pub(crate) struct Step<'a> {
    pub gates: &'a [f32],
    pub cell: &'a mut [f32],
    pub output: &'a mut [f32],
}

impl Step<'_> {
    /// `c = σ(f) c + σ(i) tanh(g)`, `h = σ(o) tanh(c)`.
    ///
    /// # Panics
    /// If the lengths disagree: a defect of the caller.
    pub(crate) fn run(self) {
        dispatch(self);
    }
}

impl Kernel for Step<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.cell.len();
        assert!(self.gates.len() == 4 * n && self.output.len() == n, "gates of {} for {n} cells", self.gates.len());
        let gate = |k: usize| self.gates[k * n..(k + 1) * n].chunks(S::LANES);
        let gates = gate(0).zip(gate(1)).zip(gate(2).zip(gate(3)));
        let states = self.cell.chunks_mut(S::LANES).zip(self.output.chunks_mut(S::LANES));
        for (((i, f), (g, o)), (cell, output)) in gates.zip(states) {
            let load = |xs: &[f32]| if xs.len() == S::LANES { s.load(xs) } else { s.load_part(xs, 0.0) };
            let new = s.mul(sigmoid(s, load(i)), tanh(s, load(g)));
            let c = s.fma(sigmoid(s, load(f)), load(cell), new);
            let h = s.mul(sigmoid(s, load(o)), tanh(s, c));
            s.store_part(cell, c);
            s.store_part(output, h);
        }
    }
}

/// `2 σ(2x) - 1`, to 1e-7 of full scale.
#[inline(always)]
fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    s.fma(s.splat(2.0), sigmoid(s, s.add(x, x)), s.splat(-1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::simd::{Unit, dispatch_on};

    #[test]
    fn every_unit_equals_the_definition() {
        let n = 37;
        let values = |count: usize, seed: f32| (0..count).map(|i| (i as f32 * seed).sin() * 9.0).collect::<Vec<f32>>();
        let (gates, before) = (values(4 * n, 0.7), values(n, 1.3));
        let sigmoid = |x: f32| 1.0 / (1.0 + (-f64::from(x)).exp());
        for unit in Unit::available() {
            let (mut cell, mut output) = (before.clone(), vec![0.0; n]);
            dispatch_on(unit, Step { gates: &gates, cell: &mut cell, output: &mut output });
            for at in 0..n {
                let gate = |k: usize| gates[k * n + at];
                let c = sigmoid(gate(1)) * f64::from(before[at]) + sigmoid(gate(0)) * f64::from(gate(2)).tanh();
                let h = sigmoid(gate(3)) * c.tanh();
                assert!((f64::from(cell[at]) - c).abs() < 2e-6, "{unit:?} {at}: {} {c}", cell[at]);
                assert!((f64::from(output[at]) - h).abs() < 5e-7, "{unit:?} {at}: {} {h}", output[at]);
            }
        }
    }

    #[test]
    fn gates_far_out_close_or_open_and_what_is_not_a_number_stays_in_its_cell() {
        let n = 19;
        let far = [1e30f32, -1e30, f32::INFINITY, f32::NEG_INFINITY, 0.0];
        let gates: Vec<f32> = (0..4 * n).map(|i| far[(i * 7 + i / n) % far.len()]).collect();
        for unit in Unit::available() {
            let (mut cell, mut output) = (vec![0.5; n], vec![9.0; n]);
            dispatch_on(unit, Step { gates: &gates, cell: &mut cell, output: &mut output });
            assert!(cell.iter().all(|c| c.abs() <= 1.5 + 1e-6), "{unit:?} {cell:?}");
            assert!(output.iter().all(|h| h.abs() <= 1.0 + 1e-6), "{unit:?} {output:?}");
            let mut gates = vec![0.1; 4 * n];
            gates[2 * n + 3] = f32::NAN;
            let (mut cell, mut output) = (vec![0.5; n], vec![9.0; n]);
            dispatch_on(unit, Step { gates: &gates, cell: &mut cell, output: &mut output });
            for at in 0..n {
                assert_eq!((cell[at].is_nan(), output[at].is_nan()), (at == 3, at == 3), "{unit:?} {at}");
            }
        }
    }
}
