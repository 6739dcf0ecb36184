//! Numbers as they are stored: computed with in f32, widened when they are read.

use half::{bf16, f16};

use super::simd::Simd;
use crate::protocol::Precision;

/// A stored number.
pub(crate) trait Element: Copy + Default + Send + Sync + 'static {
    /// The largest one, where they are whole and stand for shares of it; a row of them then has a scale of its own.
    const LARGEST: Option<f32> = None;
    /// What they are called.
    const PRECISION: Precision;

    /// The nearest one.
    fn from_f32(x: f32) -> Self;
    fn to_f32(self) -> f32;
    /// # Safety
    /// `p` must be valid for reading a vector of them.
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::V;
}

impl Element for f32 {
    const PRECISION: Precision = Precision::F32;

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
    const PRECISION: Precision = Precision::F16;

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
    const PRECISION: Precision = Precision::Bf16;

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

impl Element for i8 {
    const LARGEST: Option<f32> = Some(127.0);
    const PRECISION: Precision = Precision::Int8;

    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        x.round_ties_even() as Self
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from(self)
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { s.load_i8(p) }
    }
}
