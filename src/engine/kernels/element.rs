//! Floating-point numbers as they are stored: computed with in f32, widened when they are read.

use half::{bf16, f16};

use super::simd::Simd;

/// A stored number.
pub(crate) trait Element: Copy + Default + Send + Sync + 'static {
    /// The nearest one.
    fn from_f32(x: f32) -> Self;
    fn to_f32(self) -> f32;
    /// # Safety
    /// `p` must be valid for reading a vector of them.
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::V;
}

impl Element for f32 {
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        x
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { s.load_ptr(p) }
    }
}

impl Element for f16 {
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        Self::from_f32(x)
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { s.load_f16(p) }
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        Self::from_f32(x)
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { s.load_bf16(p) }
    }
}
