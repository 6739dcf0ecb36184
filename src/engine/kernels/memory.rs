//! Where large arrays live.
//!
//! An allocator keeps what is freed for later calls of the same thread. A cache of hundreds of megabytes has to go back
//! to the system instead: when a sentence is over, the decoder needs the room, on other threads.

use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

use super::element::Element;

/// Has the allocator give back to the system what was freed: a model that is gone leaves holes that it would keep for
/// another one. Other allocators than the GNU one do so of themselves.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes locks of its own and touches nothing but free memory.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Zeros at first.
#[derive(Debug)]
pub(crate) enum Memory<E> {
    /// From the allocator: for what comes and goes with a call.
    Heap(Vec<E>),
    /// So many of them in pages of their own, taken from the system as they are written and given back when dropped.
    Pages(MmapMut, usize),
}

impl<E: Element> Memory<E> {
    /// `len` zeros from the allocator.
    pub(crate) fn heap(len: usize) -> Self {
        Self::Heap(vec![E::default(); len])
    }

    /// `len` zeros in pages of their own; from the allocator where the system has none to give.
    pub(crate) fn pages(len: usize) -> Self {
        match MmapMut::map_anon(len.saturating_mul(size_of::<E>()).max(1)) {
            Ok(map) => Self::Pages(map, len),
            Err(_) => Self::heap(len),
        }
    }
}

impl<E: Element> Deref for Memory<E> {
    type Target = [E];

    fn deref(&self) -> &[E] {
        match self {
            Self::Heap(values) => values,
            // SAFETY: the mapping has room for them, begins at a page, and zeros are numbers of every `Element`.
            Self::Pages(map, len) => unsafe { std::slice::from_raw_parts(map.as_ptr().cast(), *len) },
        }
    }
}

impl<E: Element> DerefMut for Memory<E> {
    fn deref_mut(&mut self) -> &mut [E] {
        match self {
            Self::Heap(values) => values,
            // SAFETY: as above, and the mapping is borrowed by us alone.
            Self::Pages(map, len) => unsafe { std::slice::from_raw_parts_mut(map.as_mut_ptr().cast(), *len) },
        }
    }
}
