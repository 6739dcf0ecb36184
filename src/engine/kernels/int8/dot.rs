//! Dot products of unsigned activations and signed weights, for each instruction set.

use std::marker::PhantomData;

use super::super::matrix::PANEL;
use super::super::product::{COLUMNS, MAX_TILE, TILE};
use super::DEPTH;
#[cfg(target_arch = "x86_64")]
use super::amx;

/// Up to [`MAX_TILE`] rows of activations against up to four panels.
pub(in super::super) struct Dot<'a> {
    /// `(rows, depth)`.
    pub a: &'a [u8],
    /// Panels of `(depth / 4, 16, 4)`.
    pub w: &'a [i8],
    pub rows: usize,
    pub depth: usize,
}

/// Sums of a [`Dot`], a row of them for each row of activations; each begins at a cache line.
#[repr(align(64))]
pub(super) struct Sums(pub [[i32; COLUMNS]; MAX_TILE]);

/// The instruction sets to choose from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DotUnit {
    /// AMX; AVX-512 with VNNI for what does not fill a tile.
    #[cfg(target_arch = "x86_64")]
    Amx,
    /// AVX-512 with VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// AVX2 with AVX-VNNI.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    /// AVX2: products of 16-bit integers, which cannot overflow.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// NEON with the dot product extension.
    #[cfg(target_arch = "aarch64")]
    NeonDot,
    /// Any processor.
    Plain,
}

impl DotUnit {
    /// Those of this processor, the fastest first.
    pub(crate) fn available() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let all = [Self::Amx, Self::Avx512Vnni, Self::AvxVnni, Self::Avx2, Self::Plain];
        #[cfg(target_arch = "aarch64")]
        let all = [Self::NeonDot, Self::Plain];
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let all = [Self::Plain];
        all.into_iter().filter(|unit| unit.is_available())
    }

    /// The fastest one of this processor.
    pub(crate) fn best() -> Self {
        Self::available().next().unwrap_or(Self::Plain)
    }

    fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx => amx::is_available() && Self::Avx512Vnni.is_available(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "aarch64")]
            Self::NeonDot => std::arch::is_aarch64_feature_detected!("dotprod"),
            Self::Plain => true,
        }
    }

    /// The rows that it does best together.
    pub(in super::super) fn rows(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx => amx::MOST_ROWS,
            _ => TILE,
        }
    }

    /// Gets this thread ready for it.
    pub(in super::super) fn begin(self) -> Dots {
        Dots {
            unit: if self.is_available() { self } else { Self::Plain },
            #[cfg(target_arch = "x86_64")]
            tiles: if self == Self::Amx { amx::Tiles::begin() } else { None },
            sums: Sums([[0; COLUMNS]; MAX_TILE]),
            here: PhantomData,
        }
    }
}

/// A unit that one thread is ready for, until this is dropped.
pub(in super::super) struct Dots {
    unit: DotUnit,
    #[cfg(target_arch = "x86_64")]
    tiles: Option<amx::Tiles>,
    sums: Sums,
    /// Not for other threads.
    here: PhantomData<*const ()>,
}

impl Dots {
    /// The sums of each row; those behind the last row and panel mean nothing.
    ///
    /// # Panics
    /// If the lengths disagree: a defect of the caller.
    pub(in super::super) fn run(&mut self, dot: Dot<'_>) -> &[[i32; COLUMNS]; MAX_TILE] {
        let Dot { a, w, rows, depth } = dot;
        let panels = w.len() / (PANEL * depth).max(1);
        assert!(
            rows <= MAX_TILE
                && panels * PANEL <= COLUMNS
                && depth.is_multiple_of(DEPTH)
                && a.len() == rows * depth
                && w.len() == panels * PANEL * depth,
            "integer products of {rows} rows of {depth}"
        );
        #[cfg(target_arch = "x86_64")]
        if let Some(tiles) = &self.tiles
            && amx::Tiles::fits(rows, depth)
        {
            // SAFETY: the lengths have been checked.
            unsafe { tiles.run(&dot, panels, &mut self.sums) };
            return &self.sums.0;
        }
        for first in (0..rows).step_by(TILE) {
            let rows = TILE.min(rows - first);
            let part = Part { a: &a[first * depth..][..rows * depth], w, rows, depth, sums: &mut self.sums.0[first..] };
            match self.unit {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: `begin` saw that the processor has these features, and the lengths have been checked.
                DotUnit::Amx | DotUnit::Avx512Vnni => unsafe { x86::avx512_vnni(part, panels) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                DotUnit::AvxVnni => unsafe { x86::avx_vnni(part, panels) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                DotUnit::Avx2 => unsafe { x86::avx2(part, panels) },
                #[cfg(target_arch = "aarch64")]
                // SAFETY: as above.
                DotUnit::NeonDot => unsafe { neon::dot(part, panels) },
                DotUnit::Plain => plain(part),
            }
        }
        &self.sums.0
    }
}

/// Of a [`Dot`], what vectors do together: up to [`TILE`] rows.
struct Part<'a> {
    a: &'a [u8],
    w: &'a [i8],
    rows: usize,
    depth: usize,
    sums: &'a mut [[i32; COLUMNS]],
}

fn plain(dot: Part<'_>) {
    for (a, sums) in dot.a.chunks_exact(dot.depth.max(1)).zip(dot.sums) {
        for (panel, sums) in dot.w.chunks_exact((PANEL * dot.depth).max(1)).zip(sums.chunks_exact_mut(PANEL)) {
            sums.fill(0);
            for (a, w) in a.chunks_exact(DEPTH).zip(panel.chunks_exact(PANEL * DEPTH)) {
                for (sum, w) in sums.iter_mut().zip(w.chunks_exact(DEPTH)) {
                    *sum += a.iter().zip(w).map(|(a, w)| i32::from(*a) * i32::from(*w)).sum::<i32>();
                }
            }
        }
    }
}

// Indices, not iterators: with them the compiler keeps the sums in registers.
#[cfg(target_arch = "x86_64")]
#[allow(clippy::needless_range_loop)]
mod x86 {
    use std::arch::x86_64::*;

    use super::{COLUMNS, DEPTH, PANEL, Part, TILE};

    /// Bytes of a panel for one instruction's depth.
    const STEP: usize = PANEL * DEPTH;

    /// Four activations, for every lane.
    ///
    /// # Safety
    /// `a` must be valid for reading four bytes.
    #[inline(always)]
    unsafe fn four(a: *const u8) -> i32 {
        // SAFETY: the caller's promise.
        unsafe { a.cast::<i32>().read_unaligned() }
    }

    /// # Safety
    /// The processor must have the features, and the lengths must agree.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub(super) unsafe fn avx512_vnni(dot: Part<'_>, panels: usize) {
        /// # Safety
        /// As above; `V` panels from `panel` on.
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
        unsafe fn several<const R: usize, const V: usize>(dot: &mut Part<'_>, panel: usize) {
            let depth = dot.depth;
            let (a, w) = (dot.a.as_ptr(), dot.w.as_ptr());
            let mut acc = [[_mm512_setzero_si512(); V]; R];
            let mut i = 0;
            while i < depth {
                let mut row = [_mm512_setzero_si512(); V];
                for v in 0..V {
                    // SAFETY: a panel holds 16 · depth weights.
                    row[v] = unsafe { _mm512_loadu_si512(w.add((panel + v) * PANEL * depth + i * PANEL).cast()) };
                }
                for r in 0..R {
                    // SAFETY: a row holds depth activations.
                    let x = _mm512_set1_epi32(unsafe { four(a.add(r * depth + i)) });
                    for v in 0..V {
                        acc[r][v] = _mm512_dpbusd_epi32(acc[r][v], x, row[v]);
                    }
                }
                i += DEPTH;
            }
            for r in 0..R {
                for v in 0..V {
                    let to = &mut dot.sums[r][(panel + v) * PANEL..][..PANEL];
                    // SAFETY: there is room for 16 sums.
                    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), acc[r][v]) };
                }
            }
        }
        /// # Safety
        /// As above.
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
        unsafe fn rows<const R: usize>(mut dot: Part<'_>, panels: usize) {
            // SAFETY: the caller's promise.
            unsafe {
                if panels == COLUMNS / PANEL {
                    return several::<R, { COLUMNS / PANEL }>(&mut dot, 0);
                }
                (0..panels).for_each(|panel| several::<R, 1>(&mut dot, panel));
            }
        }
        // SAFETY: the caller's promise.
        unsafe {
            match dot.rows {
                1 => rows::<1>(dot, panels),
                2 => rows::<2>(dot, panels),
                3 => rows::<3>(dot, panels),
                4 => rows::<4>(dot, panels),
                5 => rows::<5>(dot, panels),
                _ => rows::<TILE>(dot, panels),
            }
        }
    }

    /// # Safety
    /// The processor must have the features, and the lengths must agree.
    #[target_feature(enable = "avx2,avxvnni")]
    pub(super) unsafe fn avx_vnni(dot: Part<'_>, panels: usize) {
        /// # Safety
        /// As above.
        #[inline]
        #[target_feature(enable = "avx2,avxvnni")]
        unsafe fn rows<const R: usize>(dot: &mut Part<'_>, panel: usize) {
            let depth = dot.depth;
            let (a, w) = (dot.a.as_ptr(), dot.w[panel * PANEL * depth..].as_ptr());
            let mut acc = [[_mm256_setzero_si256(); 2]; R];
            let mut i = 0;
            while i < depth {
                // SAFETY: a panel holds 16 · depth weights.
                let row = unsafe { halves(w.add(i * PANEL)) };
                for r in 0..R {
                    // SAFETY: a row holds depth activations.
                    let x = _mm256_set1_epi32(unsafe { four(a.add(r * depth + i)) });
                    for v in 0..2 {
                        acc[r][v] = _mm256_dpbusd_avx_epi32(acc[r][v], x, row[v]);
                    }
                }
                i += DEPTH;
            }
            for r in 0..R {
                let to = &mut dot.sums[r][panel * PANEL..][..PANEL];
                // SAFETY: there is room for 16 sums.
                unsafe {
                    _mm256_storeu_si256(to.as_mut_ptr().cast(), acc[r][0]);
                    _mm256_storeu_si256(to.as_mut_ptr().add(8).cast(), acc[r][1]);
                }
            }
        }
        let mut dot = dot;
        for panel in 0..panels {
            // SAFETY: the caller's promise.
            unsafe {
                match dot.rows {
                    1 => rows::<1>(&mut dot, panel),
                    2 => rows::<2>(&mut dot, panel),
                    3 => rows::<3>(&mut dot, panel),
                    4 => rows::<4>(&mut dot, panel),
                    5 => rows::<5>(&mut dot, panel),
                    _ => rows::<TILE>(&mut dot, panel),
                }
            }
        }
    }

    /// The two halves of a panel's step.
    ///
    /// # Safety
    /// `w` must be valid for reading 64 bytes.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn halves(w: *const i8) -> [__m256i; 2] {
        // SAFETY: the caller's promise.
        unsafe { [_mm256_loadu_si256(w.cast()), _mm256_loadu_si256(w.add(STEP / 2).cast())] }
    }

    /// # Safety
    /// The processor must have the feature, and the lengths must agree.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn avx2(dot: Part<'_>, panels: usize) {
        /// # Safety
        /// As above; `R` rows from `first` on.
        #[inline]
        #[target_feature(enable = "avx2")]
        unsafe fn rows<const R: usize>(dot: &mut Part<'_>, first: usize, panel: usize) {
            let depth = dot.depth;
            let (a, w) = (dot.a[first * depth..].as_ptr(), dot.w[panel * PANEL * depth..].as_ptr());
            // Four columns to a vector, two half sums each.
            let mut acc = [[_mm256_setzero_si256(); 4]; R];
            let mut i = 0;
            while i < depth {
                let mut x = [_mm256_setzero_si256(); R];
                for r in 0..R {
                    // SAFETY: a row holds depth activations.
                    x[r] = _mm256_cvtepu8_epi16(_mm_set1_epi32(unsafe { four(a.add(r * depth + i)) }));
                }
                for v in 0..4 {
                    // SAFETY: a panel holds 16 · depth weights.
                    let row = unsafe { _mm_loadu_si128(w.add(i * PANEL + v * 4 * DEPTH).cast()) };
                    let row = _mm256_cvtepi8_epi16(row);
                    for r in 0..R {
                        acc[r][v] = _mm256_add_epi32(acc[r][v], _mm256_madd_epi16(x[r], row));
                    }
                }
                i += DEPTH;
            }
            for r in 0..R {
                for v in 0..2 {
                    // Neighbours added: columns 0 1 4 5 | 2 3 6 7 of eight.
                    let sums = _mm256_hadd_epi32(acc[r][2 * v], acc[r][2 * v + 1]);
                    let sums = _mm256_permute4x64_epi64::<0b11_01_10_00>(sums);
                    let to = &mut dot.sums[first + r][panel * PANEL + 8 * v..][..8];
                    // SAFETY: there is room for 8 sums.
                    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), sums) };
                }
            }
        }
        let mut dot = dot;
        for panel in 0..panels {
            let mut first = 0;
            // SAFETY: the caller's promise.
            unsafe {
                while first + 2 <= dot.rows {
                    rows::<2>(&mut dot, first, panel);
                    first += 2;
                }
                if first < dot.rows {
                    rows::<1>(&mut dot, first, panel);
                }
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
#[allow(clippy::needless_range_loop)]
mod neon {
    use std::arch::aarch64::*;
    use std::arch::asm;

    use super::{DEPTH, PANEL, Part};

    /// Adds four products of signed bytes to each of four sums.
    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    fn sdot(mut sums: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: one instruction that touches no memory and belongs to the enabled features.
        unsafe {
            asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) sums, in(vreg) w, in(vreg) x,
                options(pure, nomem, nostack, preserves_flags));
        }
        sums
    }

    /// The instruction multiplies signed bytes: activations come as `x - 128`, and the 128 are added as the sum of the
    /// weights times 128.
    ///
    /// # Safety
    /// The processor must have the features, and the lengths must agree.
    #[target_feature(enable = "neon,dotprod")]
    pub(super) unsafe fn dot(dot: Part<'_>, panels: usize) {
        let depth = dot.depth;
        let (flip, ones) = (vdupq_n_u8(0x80), vdupq_n_s8(1));
        for panel in 0..panels {
            let w = dot.w[panel * PANEL * depth..].as_ptr();
            for (a, sums) in dot.a.chunks_exact(depth).zip(dot.sums.iter_mut()) {
                let (mut acc, mut weights) = ([vdupq_n_s32(0); 4], [vdupq_n_s32(0); 4]);
                for (i, a) in a.chunks_exact(DEPTH).enumerate() {
                    let four = u32::from_le_bytes([a[0], a[1], a[2], a[3]]);
                    let x = vreinterpretq_s8_u8(veorq_u8(vreinterpretq_u8_u32(vdupq_n_u32(four)), flip));
                    for v in 0..4 {
                        // SAFETY: a panel holds 16 · depth weights.
                        let row = unsafe { vld1q_s8(w.add((i * PANEL + 4 * v) * DEPTH)) };
                        acc[v] = sdot(acc[v], row, x);
                        weights[v] = sdot(weights[v], row, ones);
                    }
                }
                for v in 0..4 {
                    let whole = vaddq_s32(acc[v], vshlq_n_s32::<7>(weights[v]));
                    // SAFETY: there is room for 16 sums.
                    unsafe { vst1q_s32(sums[panel * PANEL + 4 * v..][..4].as_mut_ptr(), whole) };
                }
            }
        }
    }
}
