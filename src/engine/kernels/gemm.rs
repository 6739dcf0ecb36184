//! Dense f32 matrix products through the `gemm` crate (AVX-512 where the machine has it).

use gemm::Parallelism;

/// A row-major view whose rows may overlap (`row_stride < cols`), which is how a convolution reads its input.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub data: &'a [f32],
    pub rows: usize,
    pub cols: usize,
    pub row_stride: usize,
}

impl<'a> Rows<'a> {
    pub(crate) fn dense(data: &'a [f32], rows: usize, cols: usize) -> Self {
        Self { data, rows, cols, row_stride: cols }
    }

    fn fits(&self) -> bool {
        self.rows == 0 || self.cols == 0 || (self.rows - 1) * self.row_stride + self.cols <= self.data.len()
    }
}

/// `out (M, N) = x (M, K) · wᵀ`, where `w` is `(N, K)` row-major as checkpoints store it; `add` accumulates into `out`.
///
/// # Panics
/// If a view does not fit its data: a defect of the caller.
pub(crate) fn matmul_nt(x: Rows<'_>, w: &[f32], out: &mut [f32], out_stride: usize, n: usize, add: bool) {
    let threads = parallelism(x.rows * x.cols * n);
    multiply(x, Factor::rows(w, x.cols, n), out, out_stride, add, threads);
}

/// [`matmul_nt`] on the calling thread alone, for callers that share out whole products.
pub(crate) fn matmul_nt_serial(x: Rows<'_>, w: &[f32], out: &mut [f32], out_stride: usize, n: usize, add: bool) {
    multiply(x, Factor::rows(w, x.cols, n), out, out_stride, add, Parallelism::None);
}

/// [`matmul_nt_serial`] with `w` transposed, `(K, N)`: much faster where `x` has few rows, because `w` is read as it lies.
pub(crate) fn matmul_nn_serial(x: Rows<'_>, w: &[f32], out: &mut [f32], out_stride: usize, n: usize, add: bool) {
    multiply(x, Factor::columns(w, x.cols, n), out, out_stride, add, Parallelism::None);
}

/// A `(K, N)` right factor in either order.
struct Factor<'a> {
    data: &'a [f32],
    n: usize,
    k_stride: usize,
    n_stride: usize,
}

impl<'a> Factor<'a> {
    fn rows(data: &'a [f32], k: usize, n: usize) -> Self {
        Self { data: &data[..n * k], n, k_stride: 1, n_stride: k }
    }

    fn columns(data: &'a [f32], k: usize, n: usize) -> Self {
        Self { data: &data[..n * k], n, k_stride: n, n_stride: 1 }
    }
}

fn multiply(x: Rows<'_>, w: Factor<'_>, out: &mut [f32], out_stride: usize, add: bool, threads: Parallelism) {
    let (m, k, n) = (x.rows, x.cols, w.n);
    assert!(x.fits() && w.data.len() == n * k && (m == 0 || out.len() >= (m - 1) * out_stride + n), "product shapes");
    if m == 0 || n == 0 {
        return;
    }
    // SAFETY: the assertion above keeps every index of the three views inside its slice.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            out_stride as isize,
            add,
            x.data.as_ptr(),
            1,
            x.row_stride as isize,
            w.data.as_ptr(),
            w.n_stride as isize,
            w.k_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            threads,
        );
    }
}

/// Threads only where the work outweighs handing it out.
fn parallelism(work: usize) -> Parallelism {
    if work < 1 << 18 || rayon::current_num_threads() == 1 {
        Parallelism::None
    } else {
        Parallelism::Rayon(rayon::current_num_threads())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_equal_the_definition_in_every_order() {
        let values = |count: usize, seed: f32| (0..count).map(|i| (i as f32 * seed).sin()).collect::<Vec<f32>>();
        for (m, k, n) in [(1usize, 3usize, 5usize), (6, 32, 128), (70, 40, 33)] {
            // Rows that overlap, and an output with a gap behind each row.
            let (row_stride, out_stride) = (k.div_ceil(2), n + 2);
            let (x, w, start) = (values(m * row_stride + k, 0.7), values(n * k, 0.3), values(m * out_stride, 1.1));
            let transposed: Vec<f32> = (0..k * n).map(|i| w[i % n * k + i / n]).collect();
            let view = Rows { data: &x, rows: m, cols: k, row_stride };
            let mut found = [start.clone(), start.clone(), start.clone()];
            matmul_nt(view, &w, &mut found[0], out_stride, n, true);
            matmul_nt_serial(view, &w, &mut found[1], out_stride, n, true);
            matmul_nn_serial(view, &transposed, &mut found[2], out_stride, n, true);
            for (i, before) in start.iter().enumerate() {
                let (row, column) = (i / out_stride, i % out_stride);
                let dot = |c: usize| (0..k).map(|j| x[row * row_stride + j] * w[c * k + j]).sum::<f32>();
                let expected = if column < n { before + dot(column) } else { *before };
                assert!(found.iter().all(|f| (f[i] - expected).abs() < 1e-4), "{m} {k} {n} at {i}");
            }
        }
    }
}
