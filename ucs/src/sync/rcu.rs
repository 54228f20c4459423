//! Read-copy-update with cheap readers, as liburcu's "memb" flavour: a reader marks a read-side critical
//! section by two plain stores; a writer that has withdrawn something waits until every section that may
//! still use it has ended. The writer pays for the ordering, by one membarrier system call.

use super::{Arc, AtomicBool, AtomicU64, CachePadded, Mutex, Ordering, fence, hint, thread};

/// The readers of some shared state, and the writer's side.
#[derive(Debug, Default)]
pub struct Rcu {
    readers: Mutex<Vec<Arc<Sections>>>,
}

/// Read-side sections of one reader: odd while inside.
#[derive(Debug)]
struct Sections {
    count: CachePadded<AtomicU64>,
    /// The reader was dropped.
    closed: AtomicBool,
}

/// One reader: a worker, or whatever else is used by one thread at a time.
#[derive(Debug)]
pub struct RcuReader {
    sections: Arc<Sections>,
    /// The kernel lacks membarrier, so that each section begins with a fence.
    fences: bool,
}

impl Rcu {
    /// Adds a reader.
    pub fn reader(&self) -> RcuReader {
        let sections =
            Arc::new(Sections { count: CachePadded::new(AtomicU64::new(0)), closed: AtomicBool::new(false) });
        self.readers().push(sections.clone());
        RcuReader { sections, fences: !barrier::is_supported() }
    }

    /// Waits until every section that began before this call has ended. Sections that begin later see all
    /// that the caller stored before. Must not be called inside a section: it would wait for itself.
    pub fn synchronize(&self) {
        let readers: Vec<_> = {
            let mut all = self.readers();
            all.retain(|reader| !reader.closed.load(Ordering::Acquire));
            all.clone()
        };
        if readers.is_empty() {
            return;
        }
        // SYNC(rcu): either a section's start is visible here, or the section sees what was stored before.
        barrier::heavy();
        for reader in readers {
            let seen = reader.count.load(Ordering::Acquire);
            if seen % 2 == 0 {
                continue;
            }
            let mut spins = 0u32;
            // SYNC(rcu): acquire pairs with the release at the section's end.
            while reader.count.load(Ordering::Acquire) == seen {
                spins = spins.wrapping_add(1);
                // The reader may be waiting for a core.
                if spins.is_multiple_of(64) { thread::yield_now() } else { hint::spin_loop() }
            }
        }
    }

    fn readers(&self) -> super::MutexGuard<'_, Vec<Arc<Sections>>> {
        self.readers.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl RcuReader {
    /// Begins a section. False: the caller is inside one already, which goes on.
    // HOT
    #[inline(always)]
    #[must_use]
    pub fn enter(&self) -> bool {
        let count = self.sections.count.load(Ordering::Relaxed);
        if count % 2 == 1 {
            return false;
        }
        self.sections.count.store(count + 1, Ordering::Relaxed);
        // SYNC(rcu): pairs with the heavy barrier of `synchronize`.
        if self.fences {
            fence(Ordering::SeqCst)
        } else {
            barrier::light()
        }
        true
    }

    /// Ends a section that [`enter`](RcuReader::enter) has begun.
    // HOT
    #[inline(always)]
    pub fn leave(&self) {
        let count = self.sections.count.load(Ordering::Relaxed);
        // SYNC(rcu): the uses inside the section come before its end.
        self.sections.count.store(count + 1, Ordering::Release);
    }

    /// Whether a section is under way.
    // HOT
    #[inline(always)]
    pub fn is_inside(&self) -> bool {
        self.sections.count.load(Ordering::Relaxed) % 2 == 1
    }
}

impl Drop for RcuReader {
    fn drop(&mut self) {
        // A panic may have ended a section.
        if self.is_inside() {
            self.leave();
        }
        self.sections.closed.store(true, Ordering::Release);
    }
}

/// The asymmetric barrier: `light` is free, `heavy` makes every running thread of the process do a fence.
#[cfg(not(loom))]
mod barrier {
    use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};
    use std::sync::OnceLock;
    use std::sync::atomic::{Ordering, compiler_fence, fence};

    /// Whether the kernel has membarrier. Asks only: to register a process of several threads takes ten to
    /// thirty milliseconds, which the first [`heavy`] pays.
    pub fn is_supported() -> bool {
        static SUPPORTED: OnceLock<bool> = OnceLock::new();
        *SUPPORTED.get_or_init(|| {
            let need = MembarrierQuery::PRIVATE_EXPEDITED | MembarrierQuery::REGISTER_PRIVATE_EXPEDITED;
            membarrier_query().contains(need)
        })
    }

    /// Registers the process once. Readers need not wait for it: the barrier acts on every thread that runs
    /// when it is called. A forked child is registered as its parent was.
    fn register() -> bool {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        *REGISTERED.get_or_init(|| membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok())
    }

    #[inline(always)]
    pub fn light() {
        compiler_fence(Ordering::SeqCst);
    }

    pub fn heavy() {
        // Readers have fences of their own where this is not supported.
        let done = is_supported()
            && (register() && membarrier(MembarrierCommand::PrivateExpedited).is_ok()
                || membarrier(MembarrierCommand::Global).is_ok());
        if !done {
            fence(Ordering::SeqCst);
        }
    }
}

/// Loom has no membarrier: both sides do a full fence.
#[cfg(loom)]
mod barrier {
    use super::{Ordering, fence};

    pub fn is_supported() -> bool {
        true
    }

    pub fn light() {
        fence(Ordering::SeqCst);
    }

    pub fn heavy() {
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AtomicU32, model};
    use super::*;

    #[test]
    fn loom_no_section_uses_what_was_withdrawn() {
        model(|| {
            // 1: offered, 0: withdrawn; `freed` is set when no section may use it any more.
            let shared = Arc::new((Rcu::default(), AtomicU32::new(1), AtomicU32::new(0)));
            let reader = shared.0.reader();
            let other = {
                let shared = shared.clone();
                thread::spawn(move || {
                    assert!(reader.enter() && !reader.enter());
                    if shared.1.load(Ordering::Relaxed) == 1 {
                        assert_eq!(shared.2.load(Ordering::Relaxed), 0, "used after it was freed");
                    }
                    reader.leave();
                })
            };
            shared.1.store(0, Ordering::Relaxed);
            shared.0.synchronize();
            shared.2.store(1, Ordering::Relaxed);
            other.join().unwrap();
        });
    }

    #[cfg(not(loom))]
    #[test]
    fn a_writer_waits_for_sections_and_not_for_closed_readers() {
        let rcu = Arc::new(Rcu::default());
        let (reader, gone) = (rcu.reader(), rcu.reader());
        assert!(gone.enter());
        drop(gone);
        assert!(reader.enter());
        let waiting = {
            let rcu = rcu.clone();
            thread::spawn(move || rcu.synchronize())
        };
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!waiting.is_finished());
        reader.leave();
        waiting.join().unwrap();
        rcu.synchronize();
        assert_eq!(rcu.readers().len(), 1);
    }

    #[cfg(not(loom))]
    #[test]
    fn memory_is_not_used_after_it_was_withdrawn() {
        use std::sync::atomic::AtomicPtr;
        let rcu = Arc::new(Rcu::default());
        let at = Arc::new(AtomicPtr::new(Box::into_raw(Box::new(AtomicU64::new(7)))));
        let stop = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (reader, at, stop) = (rcu.reader(), at.clone(), stop.clone());
                thread::spawn(move || {
                    let mut uses = 0u64;
                    while !stop.load(Ordering::Relaxed) || uses == 0 {
                        assert!(reader.enter());
                        let word = at.load(Ordering::Acquire);
                        #[allow(unsafe_code)]
                        // SAFETY: a word that a section has found is freed after the section.
                        let value = unsafe { (*word).load(Ordering::Relaxed) };
                        assert_eq!(value, 7);
                        uses += 1;
                        reader.leave();
                    }
                    uses
                })
            })
            .collect();
        for _ in 0..2000 {
            let old = at.swap(Box::into_raw(Box::new(AtomicU64::new(7))), Ordering::AcqRel);
            rcu.synchronize();
            #[allow(unsafe_code)]
            // SAFETY: from `Box::into_raw`, and no section uses it any more.
            let old = unsafe { Box::from_raw(old) };
            old.store(0, Ordering::Relaxed);
        }
        stop.store(true, Ordering::Relaxed);
        assert!(readers.into_iter().all(|reader| reader.join().unwrap() > 0));
        #[allow(unsafe_code)]
        // SAFETY: the readers are gone.
        drop(unsafe { Box::from_raw(at.load(Ordering::Relaxed)) });
    }
}
