//! Few rows times a large f32 weight matrix: one decode step.
//!
//! Such a product is bound by reading the weights, so each weight is read once for all rows, and four weight rows are
//! read side by side, which keeps more of the memory busy than one long stream.

use rayon::prelude::*;

/// Most rows of `x` for which this beats a packed matrix product.
pub(crate) const MAX_ROWS: usize = 4;

/// Weight rows per task.
const TASK_ROWS: usize = 64;
/// Weight rows read side by side.
const BLOCK_ROWS: usize = 4;
/// Below this many multiplications one thread is faster.
const PARALLEL_WORK: usize = 1 << 17;

/// `out (M, N) += x (M, K) · wᵀ`, with `w (N, K)` row-major and M up to [`MAX_ROWS`].
///
/// # Panics
/// If a slice has another length: a defect of the caller.
pub(crate) fn gemv_nt(x: &[f32], w: &[f32], out: &mut [f32], m: usize, n: usize, k: usize) {
    assert!(x.len() == m * k && w.len() == n * k && out.len() == m * n, "gemv_nt shapes");
    match m {
        1 => rows::<1>(x, w, out, n, k),
        2 => rows::<2>(x, w, out, n, k),
        3 => rows::<3>(x, w, out, n, k),
        4 => rows::<4>(x, w, out, n, k),
        _ => unreachable!("gemv_nt takes up to {MAX_ROWS} rows"),
    }
}

fn rows<const M: usize>(x: &[f32], w: &[f32], out: &mut [f32], n: usize, k: usize) {
    let xs: [&[f32]; M] = std::array::from_fn(|i| &x[i * k..(i + 1) * k]);
    let task = |w: &[f32], sums: &mut [[f32; M]]| dots::<M>(w, &xs, sums, k);
    let mut sums = vec![[0f32; M]; n];
    if n * k * M < PARALLEL_WORK || rayon::current_num_threads() == 1 {
        task(w, &mut sums);
    } else {
        sums.par_chunks_mut(TASK_ROWS).zip(w.par_chunks(TASK_ROWS * k)).for_each(|(sums, w)| task(w, sums));
    }
    for (row, out) in out.chunks_exact_mut(n).enumerate() {
        out.iter_mut().zip(&sums).for_each(|(out, sums)| *out += sums[row]);
    }
}

/// One dot product per weight row and row of `x`.
fn dots<const M: usize>(w: &[f32], xs: &[&[f32]; M], sums: &mut [[f32; M]], k: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has AVX-512F.
            return unsafe { dots_avx512::<M>(w, xs, sums, k) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has AVX2 and FMA.
            return unsafe { dots_avx2::<M>(w, xs, sums, k) };
        }
    }
    dots_any::<M, 8>(w, xs, sums, k);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn dots_avx512<const M: usize>(w: &[f32], xs: &[&[f32]; M], sums: &mut [[f32; M]], k: usize) {
    let blocked = sums.len() / BLOCK_ROWS * BLOCK_ROWS;
    let (blocks, rest) = sums.split_at_mut(blocked);
    let (w_blocks, w_rest) = w.split_at(blocked * k);
    for (w, sums) in w_blocks.chunks_exact(BLOCK_ROWS * k).zip(blocks.chunks_exact_mut(BLOCK_ROWS)) {
        block_avx512::<M, BLOCK_ROWS>(w, xs, sums, k);
    }
    for (w, sums) in w_rest.chunks_exact(k).zip(rest.chunks_exact_mut(1)) {
        block_avx512::<M, 1>(w, xs, sums, k);
    }
}

/// By hand: the compiler keeps the accumulators of [`block`] in memory, which costs a factor of four to six.
#[cfg(target_arch = "x86_64")]
#[allow(clippy::needless_range_loop)]
#[target_feature(enable = "avx512f")]
fn block_avx512<const M: usize, const R: usize>(w: &[f32], xs: &[&[f32]; M], sums: &mut [[f32; M]], k: usize) {
    use std::arch::x86_64::{_mm512_fmadd_ps, _mm512_loadu_ps, _mm512_reduce_add_ps, _mm512_setzero_ps};
    assert!(w.len() >= R * k && xs.iter().all(|x| x.len() >= k) && sums.len() >= R);
    let mut acc = [[_mm512_setzero_ps(); M]; R];
    let whole = k / 16 * 16;
    let mut at = 0;
    while at < whole {
        let mut x = [_mm512_setzero_ps(); M];
        for m in 0..M {
            // SAFETY: at + 16 <= k, and every row of x holds k values, as asserted.
            x[m] = unsafe { _mm512_loadu_ps(xs[m].as_ptr().add(at)) };
        }
        for r in 0..R {
            // SAFETY: at + 16 <= k, and w holds R rows of k values, as asserted.
            let row = unsafe { _mm512_loadu_ps(w.as_ptr().add(r * k + at)) };
            for m in 0..M {
                acc[r][m] = _mm512_fmadd_ps(row, x[m], acc[r][m]);
            }
        }
        at += 16;
    }
    for r in 0..R {
        for m in 0..M {
            let tail: f32 = w[r * k + whole..(r + 1) * k].iter().zip(&xs[m][whole..k]).map(|(w, x)| w * x).sum();
            sums[r][m] = _mm512_reduce_add_ps(acc[r][m]) + tail;
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn dots_avx2<const M: usize>(w: &[f32], xs: &[&[f32]; M], sums: &mut [[f32; M]], k: usize) {
    dots_any::<M, 8>(w, xs, sums, k);
}

#[inline(always)]
fn dots_any<const M: usize, const LANES: usize>(w: &[f32], xs: &[&[f32]; M], sums: &mut [[f32; M]], k: usize) {
    let blocked = sums.len() / BLOCK_ROWS * BLOCK_ROWS;
    let (blocks, rest) = sums.split_at_mut(blocked);
    let (w_blocks, w_rest) = w.split_at(blocked * k);
    for (w, sums) in w_blocks.chunks_exact(BLOCK_ROWS * k).zip(blocks.chunks_exact_mut(BLOCK_ROWS)) {
        block::<M, BLOCK_ROWS, LANES>(w, xs, sums, k);
    }
    for (w, sums) in w_rest.chunks_exact(k).zip(rest.chunks_exact_mut(1)) {
        block::<M, 1, LANES>(w, xs, sums, k);
    }
}

#[inline(always)]
fn block<const M: usize, const R: usize, const LANES: usize>(
    w: &[f32],
    xs: &[&[f32]; M],
    sums: &mut [[f32; M]],
    k: usize,
) {
    let w: [&[f32]; R] = std::array::from_fn(|r| &w[r * k..(r + 1) * k]);
    let mut acc = [[[0f32; LANES]; M]; R];
    let whole = k / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        for r in 0..R {
            let w = &w[r][at..at + LANES];
            for m in 0..M {
                let x = &xs[m][at..at + LANES];
                for l in 0..LANES {
                    acc[r][m][l] = w[l].mul_add(x[l], acc[r][m][l]);
                }
            }
        }
    }
    for r in 0..R {
        for m in 0..M {
            let tail: f32 = w[r][whole..].iter().zip(&xs[m][whole..]).map(|(w, x)| w * x).sum();
            sums[r][m] = acc[r][m].iter().sum::<f32>() + tail;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::pseudo;

    #[test]
    fn equals_the_plain_sum_for_odd_sizes() {
        for (m, n, k) in [(1, 1, 1), (2, 5, 17), (3, 130, 33), (4, 67, 64), (1, 1000, 300), (2, 515, 1024)] {
            let (x, w) = (pseudo(m * k, 1), pseudo(n * k, 2));
            let mut out = pseudo(m * n, 3);
            let before = out.clone();
            gemv_nt(&x, &w, &mut out, m, n, k);
            for row in 0..m {
                for col in 0..n {
                    let sum: f64 = (0..k).map(|i| f64::from(x[row * k + i]) * f64::from(w[col * k + i])).sum();
                    let expected = sum as f32 + before[row * n + col];
                    let found = out[row * n + col];
                    assert!((found - expected).abs() < 1e-4 * (k as f32).sqrt(), "{m} {n} {k}: {found} {expected}");
                }
            }
        }
    }
}
