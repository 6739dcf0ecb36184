//! Threads that stay together through a decode step.
//!
//! A step has hundreds of parts of some tens of microseconds, each of which wants all threads, and to wake a thread takes
//! as long as such a part. So the threads of the pool come once for a step ([`together`]) and wait for its parts without
//! sleeping. They take shares of parts ([`share_out`]) and nothing else: no other work of the pool can get between. A thread
//! that comes late, or that gave up because nothing came for a while, is not waited for: whoever is there does the work.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use rayon::prelude::*;

/// Looks for a share without one, before a thread lets others have its core between them.
const PATIENT: usize = 1 << 8;
/// Looks without a share, after which a thread goes: some milliseconds.
const GIVE_UP: usize = 1 << 12;
/// In place of the number of a share: no part is open.
const CLOSED: u64 = u32::MAX as u64;

/// What the threads of a step share.
#[derive(Default)]
struct Team {
    /// The number of the part in the upper half, the next share of it, or [`CLOSED`], in the lower one.
    next: AtomicU64,
    /// How many shares the open part has.
    shares: AtomicUsize,
    /// Shares that are done.
    done: AtomicUsize,
    /// The part: a pointer to a `Share` on the stack of who leads.
    work: AtomicUsize,
    /// Whether a share panicked.
    failed: AtomicBool,
    over: AtomicBool,
}

/// A part, as it is handed to other threads.
struct Share<'a>(&'a (dyn Fn(usize) + Sync));

impl Share<'_> {
    /// Whether one of its shares was done without a panic.
    fn runs(&self, index: usize) -> bool {
        catch_unwind(AssertUnwindSafe(|| (self.0)(index))).is_ok()
    }
}

thread_local! {
    /// The team that this thread leads.
    static LED: Cell<Option<*const Team>> = const { Cell::new(None) };
}

/// Runs `f`, the parts of which other threads of this pool help with.
pub(crate) fn together<R>(f: impl FnOnce() -> R) -> R {
    /// Ends the step, also where `f` panics.
    struct Lead(Arc<Team>);
    impl Drop for Lead {
        fn drop(&mut self) {
            self.0.over.store(true, Ordering::Release);
            LED.set(None);
        }
    }
    let threads = rayon::current_num_threads();
    if threads == 1 || rayon::current_thread_index().is_none() || LED.get().is_some() {
        return f();
    }
    let team = Arc::new(Team::default());
    team.next.store(CLOSED, Ordering::Relaxed);
    for _ in 1..threads {
        let team = team.clone();
        rayon::spawn(move || team.help());
    }
    let lead = Lead(team);
    LED.set(Some(Arc::as_ptr(&lead.0)));
    f()
}

/// Calls `work` with `0..shares`, in any order, on the threads of the step, or of the pool where there is none.
pub(crate) fn share_out(shares: usize, work: impl Fn(usize) + Sync + Send) {
    match LED.get() {
        // SAFETY: `together`, further down on this stack, holds the team.
        Some(team) if shares > 1 => unsafe { &*team }.lead(shares, &work),
        Some(_) => (0..shares).for_each(work),
        None => (0..shares).into_par_iter().for_each(work),
    }
}

impl Team {
    /// Opens a part and works on it until it is done.
    fn lead(&self, shares: usize, work: &(dyn Fn(usize) + Sync)) {
        assert!((shares as u64) < CLOSED, "{shares} shares");
        if self.next.load(Ordering::Relaxed) & CLOSED != CLOSED {
            // A part within a part.
            return (0..shares).for_each(work);
        }
        let share = Share(work);
        let number = (self.next.load(Ordering::Relaxed) >> 32) + 1;
        self.shares.store(shares, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        self.work.store((&raw const share).expose_provenance(), Ordering::Relaxed);
        self.next.store(number << 32, Ordering::Release);
        let mut fine = true;
        while let Some(index) = self.take() {
            fine &= share.runs(index);
            self.done.fetch_add(1, Ordering::Release);
        }
        // Others use what is on this stack.
        let mut looks = 0;
        while self.done.load(Ordering::Acquire) < shares {
            wait(&mut looks);
        }
        self.next.store(number << 32 | CLOSED, Ordering::Relaxed);
        assert!(fine && !self.failed.load(Ordering::Relaxed), "a share of a part failed");
    }

    /// The number of a share that is from now on this thread's to do.
    fn take(&self) -> Option<usize> {
        let mut next = self.next.load(Ordering::Acquire);
        loop {
            let index = next & CLOSED;
            // What belongs to a part is read before its share is taken: if that succeeds, the part was still open.
            if index == CLOSED || index as usize >= self.shares.load(Ordering::Relaxed) {
                return None;
            }
            match self.next.compare_exchange_weak(next, next + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(index as usize),
                Err(now) => next = now,
            }
        }
    }

    /// Takes shares until the step is over or nothing comes any more.
    fn help(&self) {
        let mut looks = 0;
        while looks < GIVE_UP && !self.over.load(Ordering::Acquire) {
            let Some(index) = self.take() else {
                wait(&mut looks);
                continue;
            };
            looks = 0;
            // SAFETY: who leads stays where it is until this share counts as done.
            let share = unsafe { &*std::ptr::with_exposed_provenance::<Share<'_>>(self.work.load(Ordering::Relaxed)) };
            if !share.runs(index) {
                self.failed.store(true, Ordering::Relaxed);
            }
            self.done.fetch_add(1, Ordering::Release);
        }
    }
}

/// A moment without work.
fn wait(looks: &mut usize) {
    *looks += 1;
    if *looks < PATIENT {
        // Some tens of nanoseconds each.
        (0..4).for_each(|_| std::hint::spin_loop());
    } else {
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rayon::ThreadPoolBuilder;

    use super::*;

    /// Every share of `parts` parts, each of another number of them, is done once.
    fn step(parts: usize) {
        for part in 0..parts {
            let counts: Vec<AtomicUsize> = (0..part % 37).map(|_| AtomicUsize::new(0)).collect();
            share_out(counts.len(), |i| {
                std::hint::black_box((0..(part + i) % 50 * 10).sum::<usize>());
                counts[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1), "part {part}");
        }
    }

    #[test]
    fn every_share_is_done_once_by_whoever_is_there() {
        for threads in [1, 2, 3, 8] {
            let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            for _ in 0..40 {
                pool.install(|| together(|| step(60)));
            }
            // The threads are to be had again.
            assert_eq!(pool.broadcast(|thread| thread.index()).len(), threads);
        }
        together(|| step(40));
        step(40);
    }

    #[test]
    fn steps_that_meet_in_one_pool_do_not_wait_for_each_other() {
        let pool = ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50).for_each(|_| pool.install(|| together(|| step(30)))));
                // Other work of the pool, in which threads wait for each other.
                scope.spawn(|| {
                    for _ in 0..50 {
                        let sum = pool.install(|| (0..2000usize).into_par_iter().map(|i| i ^ 5).sum::<usize>());
                        assert_eq!(sum, (0..2000).map(|i| i ^ 5).sum::<usize>());
                    }
                });
            }
        });
    }

    #[test]
    fn a_share_that_panics_fails_its_step_and_no_other() {
        let pool = ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        for bad in 0..20 {
            let failed = || pool.install(|| together(|| share_out(20, |i| assert!(i != bad, "share {bad}"))));
            assert!(catch_unwind(AssertUnwindSafe(failed)).is_err(), "{bad}");
            pool.install(|| together(|| step(40)));
        }
    }
}
