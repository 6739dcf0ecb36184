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
    multiply(x, w, out, out_stride, n, add, parallelism(x.rows * x.cols * n));
}

/// [`matmul_nt`] on the calling thread alone, for callers that share out whole products.
pub(crate) fn matmul_nt_serial(x: Rows<'_>, w: &[f32], out: &mut [f32], out_stride: usize, n: usize, add: bool) {
    multiply(x, w, out, out_stride, n, add, Parallelism::None);
}

fn multiply(x: Rows<'_>, w: &[f32], out: &mut [f32], out_stride: usize, n: usize, add: bool, threads: Parallelism) {
    let (m, k) = (x.rows, x.cols);
    assert!(x.fits() && w.len() >= n * k && (m == 0 || out.len() >= (m - 1) * out_stride + n), "matmul_nt shapes");
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
            w.as_ptr(),
            k as isize,
            1,
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
