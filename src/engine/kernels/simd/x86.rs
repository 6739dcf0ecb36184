//! Vectors of x86: AVX-512 and AVX2.

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
    unsafe fn load_i32(self, p: *const i32) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_cvtepi32_ps(_mm512_loadu_si512(p.cast())) }
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
    unsafe fn load_i32(self, p: *const i32) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_cvtepi32_ps(_mm256_loadu_si256(p.cast())) }
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
