//! Where large arrays live.
//!
//! An allocator keeps what is freed for later calls of the same thread. A cache of hundreds of megabytes has to go back
//! to the system instead: when a sentence is over, the decoder needs the room, on other threads.

use std::fmt;
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

/// Bytes of a cache line, and of the longest vector.
const LINE: usize = 64;

/// Numbers from the allocator that begin at a cache line: no vector of them lies on two.
pub(crate) struct Lines<T> {
    store: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Copy + Default> Lines<T> {
    /// `len` zeros, which take no memory until they are touched.
    pub(crate) fn zeros(len: usize) -> Self {
        let spare = LINE / size_of::<T>();
        let store = vec![T::default(); len + spare];
        let start = store.as_ptr().align_offset(LINE).min(spare);
        Self { store, start, len }
    }
}

impl<T> Deref for Lines<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.store[self.start..self.start + self.len]
    }
}

impl<T> DerefMut for Lines<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.store[self.start..self.start + self.len]
    }
}

impl<T: Copy + Default> Clone for Lines<T> {
    fn clone(&self) -> Self {
        let mut copy = Self::zeros(self.len);
        copy.copy_from_slice(self);
        copy
    }
}

impl<T: PartialEq> PartialEq for Lines<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: fmt::Debug> fmt::Debug for Lines<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Zeros at first.
#[derive(Debug)]
pub(crate) enum Memory<E> {
    /// From the allocator: for what comes and goes with a call.
    Heap(Lines<E>),
    /// So many of them in pages of their own, taken from the system as they are written and given back when dropped.
    Pages(MmapMut, usize),
}

impl<E: Element> Memory<E> {
    /// `len` zeros from the allocator.
    pub(crate) fn heap(len: usize) -> Self {
        Self::Heap(Lines::zeros(len))
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
