//! Rows of f32 in little more than a quarter of the space: 8 bits for each value, and a scale for each row.

use super::simd::{Kernel, Simd, dispatch};

/// The largest code.
const LARGEST: f32 = 127.0;

/// Rows of one width; a value is its code times the scale of its row, at most 1/254 of the row's largest value away from
/// what it was.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct PackedRows {
    codes: Vec<i8>,
    scales: Vec<f32>,
}

impl PackedRows {
    /// Room for `rows` rows of `width` values.
    pub(crate) fn with_capacity(rows: usize, width: usize) -> Self {
        Self { codes: Vec::with_capacity(rows * width), scales: Vec::with_capacity(rows) }
    }

    /// Appends a row. One that holds something that is not a finite number is not finite either when it comes back.
    pub(crate) fn push(&mut self, row: &[f32]) {
        let start = self.codes.len();
        self.codes.resize(start + row.len(), 0);
        self.scales.push(dispatch(Pack { row, codes: &mut self.codes[start..] }));
    }

    /// Writes the rows from the `start`th on, `width` values each, until `out` is full.
    pub(crate) fn unpack(&self, start: usize, width: usize, out: &mut [f32]) {
        dispatch(Unpack { rows: self, start, width, out });
    }
}

struct Pack<'a> {
    row: &'a [f32],
    codes: &'a mut [i8],
}

impl Kernel for Pack<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> f32 {
        let largest = self.row.iter().fold(0f32, |a, x| if x.abs() > a || x.is_nan() { x.abs() } else { a });
        let inverse = if largest > 0.0 { LARGEST / largest } else { 0.0 };
        for (code, x) in self.codes.iter_mut().zip(self.row) {
            *code = (x * inverse).round_ties_even() as i8;
        }
        largest / LARGEST
    }
}

struct Unpack<'a> {
    rows: &'a PackedRows,
    start: usize,
    width: usize,
    out: &'a mut [f32],
}

impl Kernel for Unpack<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let codes = self.rows.codes[self.start * self.width..].chunks_exact(self.width);
        let scales = &self.rows.scales[self.start..];
        for ((out, codes), scale) in self.out.chunks_exact_mut(self.width).zip(codes).zip(scales) {
            for (x, code) in out.iter_mut().zip(codes) {
                *x = f32::from(*code) * scale;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::simd::{Unit, dispatch_on};
    use crate::kernels::testing::pseudo;

    #[test]
    fn a_row_comes_back_nearly_as_it_was_and_then_stays() {
        let rows: Vec<f32> = (0..5 * 37).map(|i| (i as f32 * 0.7).sin() * (1 + i / 37) as f32).collect();
        let pack = |rows: &[f32]| {
            let mut packed = PackedRows::with_capacity(5, 37);
            rows.chunks_exact(37).for_each(|row| packed.push(row));
            packed
        };
        let packed = pack(&rows);
        let mut back = vec![0.0; 4 * 37];
        packed.unpack(1, 37, &mut back);
        for (row, back) in rows.chunks_exact(37).skip(1).zip(back.chunks_exact(37)) {
            let largest = row.iter().fold(0f32, |a, x| a.max(x.abs()));
            assert!(row.iter().zip(back).all(|(a, b)| (a - b).abs() <= largest / 253.0));
        }
        let again = pack(&back);
        assert_eq!(again.codes, packed.codes[37..]);
    }

    #[test]
    fn nothing_and_what_is_no_number_stay_so() {
        let mut packed = PackedRows::default();
        packed.push(&[0.0, 0.0]);
        packed.push(&[1.0, f32::NAN]);
        let mut back = [9.0; 4];
        packed.unpack(0, 2, &mut back);
        assert_eq!(back[..2], [0.0, 0.0]);
        assert!(back[2].is_nan() && back[3].is_nan());
    }

    #[test]
    fn every_unit_packs_to_the_same_codes() {
        for n in [1, 15, 16, 37, 256] {
            let row: Vec<f32> =
                pseudo(n, 5).iter().enumerate().map(|(i, x)| x * 10f32.powi(i as i32 % 60 - 30)).collect();
            for row in [row, vec![f32::MAX; n], vec![-1e-38; n], vec![f32::NEG_INFINITY; n]] {
                let on = |unit| {
                    let mut codes = vec![0; n];
                    let scale = dispatch_on(unit, Pack { row: &row, codes: &mut codes });
                    (codes, scale.to_bits())
                };
                let plain = on(Unit::Plain);
                Unit::available().for_each(|unit| assert_eq!(on(unit), plain, "{unit:?} {n}"));
            }
        }
    }
}
