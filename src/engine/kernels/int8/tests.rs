use super::*;
use crate::kernels::testing::pseudo;

/// Random, and with the largest values there are.
fn bytes(n: usize, seed: u64) -> (Vec<u8>, Vec<i8>) {
    let a = pseudo(n, seed).iter().map(|x| (x * 300.0 + 128.0) as u8).collect();
    let w = pseudo(n, seed + 1).iter().map(|x| ((x * 300.0) as i8).max(-127)).collect();
    (a, w)
}

#[test]
fn every_unit_gives_the_exact_sums() {
    for (rows, panels, depth) in [
        (1, 1, 4),
        (2, 3, 64),
        (3, 4, 36),
        (5, 2, 1024),
        (6, 4, 4096),
        (4, 1, 8),
        (16, 4, 256),
        (16, 3, 64),
        (15, 4, 128),
        (16, 2, 100),
    ] {
        let (a, _) = bytes(rows * depth, 1);
        let (_, w) = bytes(panels * PANEL * depth, 2);
        let full = [
            (a.clone(), w.clone()),
            (vec![255; a.len()], vec![-127; w.len()]),
            (vec![255; a.len()], vec![127; w.len()]),
        ];
        for (a, w) in &full {
            let one = |row: usize, column: usize| {
                let panel = &w[column / PANEL * PANEL * depth..];
                let weight = |i: usize| panel[(i / DEPTH * PANEL + column % PANEL) * DEPTH + i % DEPTH];
                (0..depth).map(|i| i32::from(a[row * depth + i]) * i32::from(weight(i))).sum::<i32>()
            };
            for unit in DotUnit::available() {
                let mut dots = unit.begin();
                let sums = dots.run(Dot { a, w, rows, depth });
                for (row, sums) in sums[..rows].iter().enumerate() {
                    for (column, sum) in sums[..panels * PANEL].iter().enumerate() {
                        assert_eq!(*sum, one(row, column), "{unit:?} {rows} {panels} {depth}: {row} {column}");
                    }
                }
            }
        }
    }
}

#[test]
fn rows_are_quantised_by_their_own_largest_value_on_every_unit() {
    let (t, channels) = (9, 5);
    let mut x = pseudo(t * channels, 3);
    x.iter_mut().enumerate().for_each(|(i, x)| *x *= 1.0 + (i / channels) as f32);
    // A convolution of three taps, dilation two.
    let rows = Rows {
        data: &x,
        batch: 1,
        batch_step: 0,
        rows: t - 4,
        row_step: channels,
        taps: 3,
        tap_step: 2 * channels,
        width: channels,
    };
    for unit in Unit::available() {
        let found = Activations::quantise(unit, &rows, false, true);
        for row in 0..t - 4 {
            let values: Vec<f32> =
                (0..3).flat_map(|tap| x[(row + 2 * tap) * channels..][..channels].to_vec()).collect();
            let largest = values.iter().fold(0f32, |a, b| a.max(b.abs()));
            assert_eq!(found.scales[row], largest / 127.0);
            for (q, x) in found.values[row * 16..].iter().zip(&values) {
                let back = (f32::from(*q) - 128.0) * found.scales[row];
                assert!((back - x).abs() <= found.scales[row] * 0.5001, "{unit:?}: {back} {x}");
            }
            let found = Activations::quantise(unit, &rows, true, true);
            assert_eq!(found.scales[row], largest / 32512.0);
            let (high, low) = found.values[row * 32..][..32].split_at(16);
            for ((high, low), x) in high.iter().zip(low).zip(&values) {
                let back = ((f32::from(*high) - 128.0) * 256.0 + f32::from(*low)) * found.scales[row];
                assert!((back - x).abs() <= found.scales[row] * 0.51, "{unit:?}: {back} {x}");
            }
        }
    }
}

#[test]
fn what_is_not_finite_poisons_its_row_alone_and_zeros_stay_zeros() {
    let k = 21;
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = vec![0.5; 3 * k];
        x[k + 20] = bad;
        x[2 * k..].fill(0.0);
        for (unit, wide) in Unit::available().flat_map(|unit| [(unit, false), (unit, true)]) {
            let scales = Activations::quantise(unit, &Rows::dense(&x, 3, k), wide, false).scales;
            assert!(scales[0] > 0.0 && scales[1].is_nan() && scales[2] == 0.0, "{unit:?} {scales:?}");
        }
    }
}
