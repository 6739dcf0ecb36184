//! Vectors of f32 for the processor at hand.
//!
//! A kernel is written once over [`Simd`] and compiled for AVX-512, for AVX2 and in plain Rust; [`dispatch`] picks at
//! run time. Work for other threads must dispatch inside of each task, since a closure is compiled without the
//! features of the function that makes it.

use std::mem::MaybeUninit;

use half::{bf16, f16};

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

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use half::{bf16, f16};

    use super::{Kernel, Simd};

    /// # Safety
    /// The processor must have AVX-512F, AVX2, FMA and F16C.
    #[target_feature(enable = "avx512f,avx2,fma,f16c")]
    pub(super) unsafe fn on_avx512<K: Kernel>(kernel: K) -> K::Output {
        kernel.run(Avx512(()))
    }

    /// # Safety
    /// The processor must have AVX2, FMA and F16C.
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn on_avx2<K: Kernel>(kernel: K) -> K::Output {
        kernel.run(Avx2(()))
    }

    #[derive(Clone, Copy)]
    pub(crate) struct Avx512(());

    #[derive(Clone, Copy)]
    pub(crate) struct Avx2(());

    /// Methods that are one instruction.
    macro_rules! instructions {
        ($($name:ident($($arg:ident),+) = $intrinsic:expr;)+) => {
            $(#[inline(always)]
            fn $name(self, $($arg: Self::V),+) -> Self::V {
                // SAFETY: a value of this type exists only where the processor has these features.
                unsafe { $intrinsic }
            })+
        };
    }

    impl Simd for Avx512 {
        type V = __m512;
        const LANES: usize = 16;

        #[inline(always)]
        fn splat(self, x: f32) -> __m512 {
            // SAFETY: a value of this type exists only where the processor has these features.
            unsafe { _mm512_set1_ps(x) }
        }
        #[inline(always)]
        fn prefetch<T>(self, p: *const T) {
            // SAFETY: a prefetch does not fault.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) };
        }
        #[inline(always)]
        unsafe fn load_ptr(self, p: *const f32) -> __m512 {
            // SAFETY: the caller's promise.
            unsafe { _mm512_loadu_ps(p) }
        }
        #[inline(always)]
        unsafe fn store_ptr(self, p: *mut f32, v: __m512) {
            // SAFETY: the caller's promise.
            unsafe { _mm512_storeu_ps(p, v) }
        }
        #[inline(always)]
        unsafe fn load_f16(self, p: *const f16) -> __m512 {
            // SAFETY: the caller's promise.
            unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
        }
        #[inline(always)]
        unsafe fn load_bf16(self, p: *const bf16) -> __m512 {
            // SAFETY: the caller's promise.
            unsafe {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            }
        }
        #[inline(always)]
        unsafe fn load_i8(self, p: *const i8) -> __m512 {
            // SAFETY: the caller's promise.
            unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
        }
        #[inline(always)]
        unsafe fn store_bytes_ptr(self, p: *mut u8, v: __m512) {
            // SAFETY: the caller's promise.
            unsafe { _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v))) }
        }
        instructions! {
            add(a, b) = _mm512_add_ps(a, b);
            sub(a, b) = _mm512_sub_ps(a, b);
            mul(a, b) = _mm512_mul_ps(a, b);
            div(a, b) = _mm512_div_ps(a, b);
            fma(a, b, c) = _mm512_fmadd_ps(a, b, c);
            max(a, b) = _mm512_max_ps(a, b);
            min(a, b) = _mm512_min_ps(a, b);
            round(a) = _mm512_roundscale_ps::<0>(a);
            scale_by_power(a, n) = _mm512_scalef_ps(a, n);
            select_less(a, b, x, y) = _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), y, x);
        }
        #[inline(always)]
        fn sum(self, v: __m512) -> f32 {
            // SAFETY: a value of this type exists only where the processor has these features.
            unsafe { _mm512_reduce_add_ps(v) }
        }
        #[inline(always)]
        fn largest(self, v: __m512) -> f32 {
            // SAFETY: a value of this type exists only where the processor has these features.
            unsafe { _mm512_reduce_max_ps(v) }
        }
    }

    impl Simd for Avx2 {
        type V = __m256;
        const LANES: usize = 8;

        #[inline(always)]
        fn splat(self, x: f32) -> __m256 {
            // SAFETY: a value of this type exists only where the processor has these features.
            unsafe { _mm256_set1_ps(x) }
        }
        #[inline(always)]
        fn prefetch<T>(self, p: *const T) {
            // SAFETY: a prefetch does not fault.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) };
        }
        #[inline(always)]
        unsafe fn load_ptr(self, p: *const f32) -> __m256 {
            // SAFETY: the caller's promise.
            unsafe { _mm256_loadu_ps(p) }
        }
        #[inline(always)]
        unsafe fn store_ptr(self, p: *mut f32, v: __m256) {
            // SAFETY: the caller's promise.
            unsafe { _mm256_storeu_ps(p, v) }
        }
        #[inline(always)]
        unsafe fn load_f16(self, p: *const f16) -> __m256 {
            // SAFETY: the caller's promise.
            unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
        }
        #[inline(always)]
        unsafe fn load_bf16(self, p: *const bf16) -> __m256 {
            // SAFETY: the caller's promise.
            unsafe {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            }
        }
        #[inline(always)]
        unsafe fn load_i8(self, p: *const i8) -> __m256 {
            // SAFETY: the caller's promise.
            unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()))) }
        }
        #[inline(always)]
        unsafe fn store_bytes_ptr(self, p: *mut u8, v: __m256) {
            // SAFETY: the caller's promise.
            unsafe {
                let whole = _mm256_cvtps_epi32(v);
                let (low, high) = (_mm256_castsi256_si128(whole), _mm256_extracti128_si256::<1>(whole));
                let words = _mm_packus_epi32(low, high);
                _mm_storel_epi64(p.cast(), _mm_packus_epi16(words, words));
            }
        }
        instructions! {
            add(a, b) = _mm256_add_ps(a, b);
            sub(a, b) = _mm256_sub_ps(a, b);
            mul(a, b) = _mm256_mul_ps(a, b);
            div(a, b) = _mm256_div_ps(a, b);
            fma(a, b, c) = _mm256_fmadd_ps(a, b, c);
            max(a, b) = _mm256_max_ps(a, b);
            min(a, b) = _mm256_min_ps(a, b);
            round(a) = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a);
            scale_by_power(a, n) = {
                let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
                _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
            };
            select_less(a, b, x, y) = _mm256_blendv_ps(y, x, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b));
        }
    }
}
