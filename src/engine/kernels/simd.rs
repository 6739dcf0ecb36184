//! Vectors of f32 for the processor at hand.
//!
//! A kernel is written once over [`Simd`] and compiled for AVX-512, for AVX2 and in plain Rust; [`dispatch`] picks at
//! run time. Work for other threads must dispatch inside of each task, since a closure is compiled without the
//! features of the function that makes it.

use std::mem::MaybeUninit;

use half::{bf16, f16};

#[cfg(target_arch = "x86_64")]
mod x86;

/// A vector unit. A value of an implementing type says that the processor has it.
pub(crate) trait Simd: Copy {
    /// [`Self::LANES`] values.
    type V: Copy;
    /// Values to a vector.
    const LANES: usize;

    fn splat(self, x: f32) -> Self::V;
    /// Asks for the cache line at `p`, which need not be valid.
    #[inline(always)]
    fn prefetch<T>(self, _: *const T) {}
    /// # Safety
    /// `p` must be valid for reading [`Self::LANES`] values.
    unsafe fn load_ptr(self, p: *const f32) -> Self::V;
    /// # Safety
    /// `p` must be valid for writing [`Self::LANES`] values.
    unsafe fn store_ptr(self, p: *mut f32, v: Self::V);
    /// Widens 16-bit floats.
    ///
    /// # Safety
    /// `p` must be valid for reading [`Self::LANES`] values.
    unsafe fn load_f16(self, p: *const f16) -> Self::V;
    /// Widens 16-bit brain floats.
    ///
    /// # Safety
    /// `p` must be valid for reading [`Self::LANES`] values.
    unsafe fn load_bf16(self, p: *const bf16) -> Self::V;
    /// Widens whole numbers.
    ///
    /// # Safety
    /// `p` must be valid for reading [`Self::LANES`] values.
    unsafe fn load_i8(self, p: *const i8) -> Self::V;
    /// Rounds whole numbers where they have more than 24 bits.
    ///
    /// # Safety
    /// `p` must be valid for reading [`Self::LANES`] values.
    unsafe fn load_i32(self, p: *const i32) -> Self::V;
    /// Whole values in 0..=255 as bytes.
    ///
    /// # Safety
    /// `p` must be valid for writing [`Self::LANES`] bytes.
    unsafe fn store_bytes_ptr(self, p: *mut u8, v: Self::V);
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a · b + c`.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger one; `b` where one is not a number.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// The smaller one; `b` where one is not a number.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// To the nearest whole number.
    fn round(self, a: Self::V) -> Self::V;
    /// `a · 2ⁿ` for whole `n` in -126..=127.
    fn scale_by_power(self, a: Self::V, n: Self::V) -> Self::V;
    /// `x` where `a < b`, else `y`.
    fn select_less(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V;

    /// The first values of `xs`, which has at least [`Self::LANES`].
    #[inline(always)]
    fn load(self, xs: &[f32]) -> Self::V {
        assert!(xs.len() >= Self::LANES);
        // SAFETY: the slice is long enough.
        unsafe { self.load_ptr(xs.as_ptr()) }
    }

    /// To the front of `xs`, which has room for at least [`Self::LANES`].
    #[inline(always)]
    fn store(self, xs: &mut [f32], v: Self::V) {
        assert!(xs.len() >= Self::LANES);
        // SAFETY: the slice is long enough.
        unsafe { self.store_ptr(xs.as_mut_ptr(), v) }
    }

    /// Whole numbers from the front of `xs`, which has at least [`Self::LANES`].
    #[inline(always)]
    fn load_whole(self, xs: &[i32]) -> Self::V {
        assert!(xs.len() >= Self::LANES);
        // SAFETY: the slice is long enough.
        unsafe { self.load_i32(xs.as_ptr()) }
    }

    /// The first values of `xs`, and `fill` behind them if it is too short for a vector.
    #[inline(always)]
    fn load_part(self, xs: &[f32], fill: f32) -> Self::V {
        if xs.len() >= Self::LANES {
            return self.load(xs);
        }
        let mut lanes = [fill; MAX_LANES];
        lanes[..xs.len()].copy_from_slice(xs);
        self.load(&lanes)
    }

    /// As many values as `xs` has room for.
    #[inline(always)]
    fn store_part(self, xs: &mut [f32], v: Self::V) {
        if xs.len() >= Self::LANES {
            return self.store(xs, v);
        }
        for (to, from) in xs.iter_mut().zip(self.lanes(v)) {
            *to = from;
        }
    }

    /// [`Self::store_part`] to where nothing was before.
    #[inline(always)]
    fn fill_part(self, xs: &mut [MaybeUninit<f32>], v: Self::V) {
        if xs.len() >= Self::LANES {
            // SAFETY: the slice is long enough.
            return unsafe { self.store_ptr(xs.as_mut_ptr().cast(), v) };
        }
        for (to, from) in xs.iter_mut().zip(self.lanes(v)) {
            to.write(from);
        }
    }

    /// Whole values in 0..=255 as bytes, as many as there is room for.
    #[inline(always)]
    fn store_bytes(self, xs: &mut [u8], v: Self::V) {
        if xs.len() >= Self::LANES {
            // SAFETY: the slice is long enough.
            return unsafe { self.store_bytes_ptr(xs.as_mut_ptr(), v) };
        }
        for (to, from) in xs.iter_mut().zip(self.lanes(v)) {
            *to = from as u8;
        }
    }

    /// The values; those behind [`Self::LANES`] are 0.
    #[inline(always)]
    fn lanes(self, v: Self::V) -> [f32; MAX_LANES] {
        let mut lanes = [0.0; MAX_LANES];
        self.store(&mut lanes, v);
        lanes
    }

    /// The sum of all values, halves first.
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        let mut lanes = self.lanes(v);
        let mut n = Self::LANES;
        while n > 1 {
            n /= 2;
            for i in 0..n {
                lanes[i] += lanes[i + n];
            }
        }
        lanes[0]
    }

    /// The largest value.
    #[inline(always)]
    fn largest(self, v: Self::V) -> f32 {
        let lanes = self.lanes(v);
        lanes[1..Self::LANES].iter().fold(lanes[0], |a, b| if *b > a { *b } else { a })
    }
}

/// The widest vector there is.
pub(crate) const MAX_LANES: usize = 16;

/// Work that is compiled once for every vector unit.
pub(crate) trait Kernel {
    type Output;
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// The vector units to choose from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Plain,
}

impl Unit {
    /// Those of this processor, the widest first.
    pub(crate) fn available() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let all = [Self::Avx512, Self::Avx2, Self::Plain];
        #[cfg(not(target_arch = "x86_64"))]
        let all = [Self::Plain];
        all.into_iter().filter(|unit| unit.is_available())
    }

    /// The widest one of this processor.
    pub(crate) fn best() -> Self {
        Self::available().next().unwrap_or(Self::Plain)
    }

    fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => is_x86_feature_detected!("avx512f") && Self::Avx2.is_available(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            }
            Self::Plain => true,
        }
    }
}

/// Runs `kernel` on the widest vector unit of this processor.
#[inline]
pub(crate) fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    dispatch_on(Unit::best(), kernel)
}

/// Runs `kernel` on one vector unit, or in plain Rust where the processor lacks it.
#[inline]
pub(crate) fn dispatch_on<K: Kernel>(unit: Unit, kernel: K) -> K::Output {
    match unit {
        #[cfg(target_arch = "x86_64")]
        Unit::Avx512 if unit.is_available() => {
            // SAFETY: the processor has these features.
            unsafe { x86::on_avx512(kernel) }
        }
        #[cfg(target_arch = "x86_64")]
        Unit::Avx2 if unit.is_available() => {
            // SAFETY: the processor has these features.
            unsafe { x86::on_avx2(kernel) }
        }
        _ => kernel.run(Plain),
    }
}

/// Arrays that the compiler maps to what the target always has: SSE2, NEON.
#[derive(Clone, Copy)]
pub(crate) struct Plain;

const PLAIN: usize = 8;

#[inline(always)]
fn each(f: impl Fn(usize) -> f32) -> [f32; PLAIN] {
    std::array::from_fn(f)
}

impl Simd for Plain {
    type V = [f32; PLAIN];
    const LANES: usize = PLAIN;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; PLAIN]
    }
    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> Self::V {
        // SAFETY: the caller's promise; arrays of f32 have the alignment of f32.
        unsafe { p.cast::<Self::V>().read() }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, v: Self::V) {
        // SAFETY: the caller's promise; arrays of f32 have the alignment of f32.
        unsafe { p.cast::<Self::V>().write(v) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const f16) -> Self::V {
        // SAFETY: the caller's promise.
        each(|i| unsafe { p.add(i).read() }.to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const bf16) -> Self::V {
        // SAFETY: the caller's promise.
        each(|i| unsafe { p.add(i).read() }.to_f32())
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> Self::V {
        // SAFETY: the caller's promise.
        each(|i| f32::from(unsafe { p.add(i).read() }))
    }
    #[inline(always)]
    unsafe fn load_i32(self, p: *const i32) -> Self::V {
        // SAFETY: the caller's promise.
        each(|i| unsafe { p.add(i).read() } as f32)
    }
    #[inline(always)]
    unsafe fn store_bytes_ptr(self, p: *mut u8, v: Self::V) {
        for (i, x) in v.into_iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { p.add(i).write(x as u8) };
        }
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // Without an instruction for it, `mul_add` is a call.
        if cfg!(target_arch = "aarch64") { each(|i| a[i].mul_add(b[i], c[i])) } else { each(|i| a[i] * b[i] + c[i]) }
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        each(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        // Adding 1.5 · 2²³ pushes the fraction out of the mantissa.
        each(|i| (a[i] + 12_582_912.0) - 12_582_912.0)
    }
    #[inline(always)]
    fn scale_by_power(self, a: Self::V, n: Self::V) -> Self::V {
        each(|i| a[i] * f32::from_bits(((n[i] + 127.0) as i32 as u32) << 23))
    }
    #[inline(always)]
    fn select_less(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V {
        each(|i| if a[i] < b[i] { x[i] } else { y[i] })
    }
}
