use super::*;
use crate::kernels::testing::pseudo;
use crate::protocol::Precision;

const PRECISIONS: [Precision; 4] = [Precision::F32, Precision::F16, Precision::Bf16, Precision::Int8];

/// The definition in f64.
fn expected(x: &Rows<'_>, w: &[f32], n: usize, finish: &Finish<'_>) -> Vec<f64> {
    let k = x.cols();
    let one = |at: usize| {
        let (row, column) = (at / n, at % n);
        let input = |i: usize| x.data[x.start(row) + i / x.width * x.tap_step + i % x.width];
        let sum: f64 = (0..k).map(|i| f64::from(input(i)) * f64::from(w[column * k + i])).sum();
        let y = sum + finish.bias.map_or(0.0, |b| f64::from(b[column]));
        let y = y + finish.residual.map_or(0.0, |r| f64::from(r[at]));
        match finish.activation {
            Activation::Identity => y,
            Activation::Relu => y.max(0.0),
            Activation::LeakyRelu(slope) => y.max(y * f64::from(slope)),
            Activation::Silu => y / (1.0 + (-y).exp()),
            Activation::Elu => y.max(y.min(0.0).exp_m1()),
            Activation::Mish => y * y.exp().ln_1p().tanh(),
            Activation::GeluTanh => 0.5 * y * (1.0 + (0.797_884_560_8 * (y + 0.044_715 * y.powi(3))).tanh()),
            Activation::Gelu => unreachable!("checked in pointwise"),
        }
    };
    (0..x.count() * n).map(one).collect()
}

fn on(unit: Unit, x: Rows<'_>, w: &Matrix, finish: Finish<'_>, parallel: bool) -> Vec<f32> {
    let mut out = vec![MaybeUninit::new(f32::NAN); x.count() * w.outputs()];
    multiply(unit, x, w, finish, &mut out, parallel);
    // SAFETY: initialised above.
    out.iter().map(|v| unsafe { v.assume_init() }).collect()
}

/// Against the definition with the weights as they are at each precision; with 8 bits the input is rounded as well, to 8
/// bits or 16.
fn check(x: Rows<'_>, n: usize, finish: Finish<'_>) {
    let k = x.cols();
    let rows = pseudo(n * k, 2);
    for (precision, wide, error) in [
        (Precision::F32, false, 1e-5),
        (Precision::F16, false, 1e-5),
        (Precision::Bf16, false, 1e-5),
        (Precision::Int8, false, 1e-2),
        (Precision::Int8, true, 5e-5),
    ] {
        let w = Matrix::pack_for(&rows, n, k, precision, wide);
        let expected = expected(&x, &w.unpack(), n, &finish);
        for unit in Unit::available() {
            let found = on(unit, x, &w, finish, true);
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let near = (f64::from(*found) - expected).abs() < error * (k as f64).sqrt().max(1.0);
                assert!(near, "{precision:?} {unit:?} {x:?} {n} at {i}: {found} {expected}");
            }
            assert_eq!(found, on(unit, x, &w, finish, false), "threads change nothing");
        }
    }
}

#[test]
fn equals_the_plain_sum_for_odd_sizes() {
    for (m, n, k) in [(1, 1, 1), (2, 5, 17), (3, 130, 33), (4, 67, 64), (7, 80, 12), (65, 200, 90), (500, 31, 16)] {
        let (x, bias, residual) = (pseudo(m * k, 1), pseudo(n, 3), pseudo(m * n, 4));
        let x = Rows::dense(&x, m, k);
        check(x, n, Finish::default());
        check(x, n, Finish { bias: Some(&bias), residual: Some(&residual), ..Finish::default() });
        let (silu, mish, leaky) = (Activation::Silu, Activation::Mish, Activation::LeakyRelu(0.1));
        for activation in [Activation::Relu, leaky, silu, Activation::GeluTanh, Activation::Elu, mish] {
            check(x, n, Finish { bias: Some(&bias), activation, residual: Some(&residual) });
        }
    }
}

#[test]
fn rows_may_overlap_and_be_made_of_stretches() {
    // A convolution of three taps, dilation two, stride one, over two sequences of 40 rows of 6 channels.
    let (channels, t) = (6, 40);
    let x = pseudo(2 * t * channels, 5);
    let view = Rows {
        data: &x,
        batch: 2,
        batch_step: t * channels,
        rows: t - 4,
        row_step: channels,
        taps: 3,
        tap_step: 2 * channels,
        width: channels,
    };
    check(view, 33, Finish::default());
    // Dilation one and stride three: the taps touch.
    check(Rows { rows: 12, row_step: 3 * channels, tap_step: channels, ..view }, 20, Finish::default());
}

#[test]
fn a_row_does_not_depend_on_the_rows_beside_it() {
    let (m, n, k) = (13, 70, 129);
    let (x, rows) = (pseudo(m * k, 1), pseudo(n * k, 2));
    for precision in PRECISIONS {
        let w = Matrix::pack(&rows, n, k, precision);
        let whole = product(Rows::dense(&x, m, k), &w, Finish::default());
        for (row, x) in x.chunks_exact(k).enumerate() {
            assert_eq!(product(Rows::dense(x, 1, k), &w, Finish::default()), whole[row * n..][..n]);
        }
    }
}

#[test]
fn what_is_not_a_number_stays_in_its_row() {
    let (n, k) = (40, 50);
    let mut x = pseudo(3 * k, 1);
    x[k + 7] = f32::NAN;
    for precision in PRECISIONS {
        let w = Matrix::pack(&pseudo(n * k, 2), n, k, precision);
        let found = product(Rows::dense(&x, 3, k), &w, Finish::default());
        assert!(found[n..2 * n].iter().all(|y| y.is_nan()));
        assert!(found[..n].iter().chain(&found[2 * n..]).all(|y| y.is_finite()));
    }
}

#[test]
fn nothing_times_something_is_nothing_or_the_bias() {
    let bias = [1.0, 2.0, 3.0];
    let finish = Finish { bias: Some(&bias), ..Finish::default() };
    for precision in PRECISIONS {
        let w = Matrix::pack(&[], 3, 0, precision);
        assert_eq!(product(Rows::dense(&[], 2, 0), &w, finish), [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
        let w = Matrix::pack(&[0.0; 8], 2, 4, precision);
        assert!(product(Rows::dense(&[], 0, 4), &w, Finish::default()).is_empty());
    }
}

#[test]
fn weights_of_sixteen_bits_give_the_same_bits_however_they_are_kept() {
    for (half, round) in [
        (Precision::F16, (|v| half::f16::from_f32(v).to_f32()) as fn(f32) -> f32),
        (Precision::Bf16, |v| half::bf16::from_f32(v).to_f32()),
    ] {
        for (m, n, k) in [(1, 33, 70), (2, 384, 384), (7, 100, 1025), (130, 48, 300)] {
            let rows: Vec<f32> = pseudo(n * k, 5).into_iter().map(round).collect();
            let (x, kept) = (pseudo(m * k, 6), Matrix::pack(&rows, n, k, half));
            let widened = Matrix::pack(&rows, n, k, Precision::F32);
            for unit in Unit::available() {
                let found = |w| on(unit, Rows::dense(&x, m, k), w, Finish::default(), true);
                assert_eq!(found(&kept), found(&widened), "{half:?} {unit:?} {m} {n} {k}");
            }
        }
    }
}
