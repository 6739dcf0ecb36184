//! AMX of Intel's processors for servers and workstations (2023 on): one instruction multiplies 16 rows of 64 bytes with
//! a panel and adds to 256 sums. Rust has no stable functions for it, so these are the instructions themselves.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

use super::dot::{Dot, Sums};
use crate::kernels::matrix::PANEL;
use crate::kernels::product::COLUMNS;

/// Rows of a tile.
const ROWS: usize = 16;
/// The rows of two tiles, which share what is loaded of the panels.
pub(super) const MOST_ROWS: usize = 2 * ROWS;
/// Activations of a row that one instruction multiplies.
pub(super) const DEPTH: usize = 64;
/// Bytes of a panel for one instruction.
const STEP: usize = PANEL * DEPTH;

/// Whether the processor has it and the system lets this process use it.
pub(super) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        const FEATURES: u32 = 7;
        /// Bits of EDX: tiles, and their products of bytes.
        const TILE_AND_INT8: u32 = 0b11 << 24;
        __cpuid_count(0, 0).eax >= FEATURES
            && __cpuid_count(FEATURES, 0).edx & TILE_AND_INT8 == TILE_AND_INT8
            && allowed_by_the_system()
    })
}

/// Asks Linux for the room that the tiles of each thread take; other systems are not asked.
fn allowed_by_the_system() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const TILE_DATA: libc::c_long = 18;
        // SAFETY: the call takes two numbers and touches no memory of ours.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    false
}

/// What the eight tiles are.
#[repr(C, align(64))]
struct Palette([u8; 64]);

/// All tiles of 16 rows of 64 bytes.
static WHOLE: Palette = {
    let mut bytes = [0; 64];
    bytes[0] = 1;
    let mut tile = 0;
    while tile < 8 {
        bytes[16 + 2 * tile] = DEPTH as u8;
        bytes[48 + tile] = ROWS as u8;
        tile += 1;
    }
    Palette(bytes)
};

/// The tiles of this thread are set up as long as this lives.
pub(super) struct Tiles(());

impl Tiles {
    /// Sets them up; nothing where there are none.
    pub(super) fn begin() -> Option<Self> {
        is_available().then(|| {
            // SAFETY: the processor has tiles and the system lets us use them.
            unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const WHOLE, options(nostack, readonly)) };
            Self(())
        })
    }

    /// Whether such rows fill tiles.
    pub(super) fn fits(rows: usize, depth: usize) -> bool {
        [ROWS, MOST_ROWS].contains(&rows) && depth > 0 && depth.is_multiple_of(DEPTH)
    }

    /// All sums of what [`Self::fits`].
    ///
    /// # Safety
    /// The lengths must agree.
    pub(super) unsafe fn run(&self, dot: &Dot<'_>, panels: usize, sums: &mut Sums) {
        let (steps, a, out) = (dot.depth / DEPTH, dot.a.as_ptr(), sums.0.as_mut_ptr().cast::<i32>());
        let mut panel = 0;
        while panel < panels {
            let w: [*const i8; 4] =
                std::array::from_fn(|i| dot.w.as_ptr().wrapping_add((panel + i) * PANEL * dot.depth));
            let out = out.wrapping_add(panel * PANEL);
            // SAFETY: rows and panels hold `steps` whole steps, a row of sums has room for the panels, and the tiles are
            // set up.
            unsafe {
                match (dot.rows == MOST_ROWS, panels - panel) {
                    (true, 2..) => {
                        two_by_two(a, dot.depth, [w[0], w[1]], steps, out);
                        panel += 2;
                    }
                    (false, 4..) => {
                        one_by_four(a, dot.depth, w, steps, out);
                        panel += 4;
                    }
                    _ => {
                        for first in (0..dot.rows).step_by(ROWS) {
                            let out = out.wrapping_add(first * COLUMNS);
                            one_by_one(a.wrapping_add(first * dot.depth), dot.depth, w[0], steps, out);
                        }
                        panel += 1;
                    }
                }
            }
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: tiles were set up.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// # Safety
/// Tiles must be set up, `a` and `w` hold `steps` whole steps, and `out` 16 rows of four panels.
unsafe fn one_by_four(a: *const u8, depth: usize, w: [*const i8; 4], steps: usize, out: *mut i32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{a} + {depth}]",
            "tileloadd tmm5, [{w0} + {line}]",
            "tdpbusd tmm0, tmm4, tmm5",
            "tileloadd tmm6, [{w1} + {line}]",
            "tdpbusd tmm1, tmm4, tmm6",
            "tileloadd tmm7, [{w2} + {line}]",
            "tdpbusd tmm2, tmm4, tmm7",
            "tileloadd tmm5, [{w3} + {line}]",
            "tdpbusd tmm3, tmm4, tmm5",
            "add {a}, {line}",
            "add {w0}, {step}",
            "add {w1}, {step}",
            "add {w2}, {step}",
            "add {w3}, {step}",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{out} + {row}], tmm0",
            "tilestored [{out} + {row} + 64], tmm1",
            "tilestored [{out} + {row} + 128], tmm2",
            "tilestored [{out} + {row} + 192], tmm3",
            a = inout(reg) a => _,
            w0 = inout(reg) w[0] => _,
            w1 = inout(reg) w[1] => _,
            w2 = inout(reg) w[2] => _,
            w3 = inout(reg) w[3] => _,
            steps = inout(reg) steps => _,
            depth = in(reg) depth,
            line = in(reg) DEPTH,
            row = in(reg) COLUMNS * size_of::<i32>(),
            out = in(reg) out,
            step = const STEP,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// # Safety
/// As above, with 32 rows and two panels.
unsafe fn two_by_two(a: *const u8, depth: usize, w: [*const i8; 2], steps: usize, out: *mut i32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{a0} + {depth}]",
            "tileloadd tmm6, [{w0} + {line}]",
            "tdpbusd tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{w1} + {line}]",
            "tdpbusd tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{a1} + {depth}]",
            "tdpbusd tmm2, tmm5, tmm6",
            "tdpbusd tmm3, tmm5, tmm7",
            "add {a0}, {line}",
            "add {a1}, {line}",
            "add {w0}, {step}",
            "add {w1}, {step}",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{out0} + {row}], tmm0",
            "tilestored [{out0} + {row} + 64], tmm1",
            "tilestored [{out1} + {row}], tmm2",
            "tilestored [{out1} + {row} + 64], tmm3",
            a0 = inout(reg) a => _,
            a1 = inout(reg) a.wrapping_add(ROWS * depth) => _,
            w0 = inout(reg) w[0] => _,
            w1 = inout(reg) w[1] => _,
            steps = inout(reg) steps => _,
            depth = in(reg) depth,
            line = in(reg) DEPTH,
            row = in(reg) COLUMNS * size_of::<i32>(),
            out0 = in(reg) out,
            out1 = in(reg) out.wrapping_add(ROWS * COLUMNS),
            step = const STEP,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// # Safety
/// As above, with 16 rows and one panel.
unsafe fn one_by_one(a: *const u8, depth: usize, w: *const i8, steps: usize, out: *mut i32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tilezero tmm0",
            "2:",
            "tileloadd tmm4, [{a} + {depth}]",
            "tileloadd tmm5, [{w} + {line}]",
            "tdpbusd tmm0, tmm4, tmm5",
            "add {a}, {line}",
            "add {w}, {step}",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{out} + {row}], tmm0",
            a = inout(reg) a => _,
            w = inout(reg) w => _,
            steps = inout(reg) steps => _,
            depth = in(reg) depth,
            line = in(reg) DEPTH,
            row = in(reg) COLUMNS * size_of::<i32>(),
            out = in(reg) out,
            step = const STEP,
            out("tmm0") _, out("tmm4") _, out("tmm5") _,
            options(nostack),
        );
    }
}
