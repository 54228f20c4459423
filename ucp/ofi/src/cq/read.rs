//! Reads of completion queues: entries leave the rings of the endpoints for the program's memory.

use std::ffi::c_void;

use super::Cq;
use crate::abi::FiAddr;
use crate::ep::Ep;
use crate::errno::Errno;
use crate::ring::{Entry, Ring};

/// Memory of the program for entries, as far as it is filled.
struct Out {
    at: *mut u8,
    sources: *mut FiAddr,
    entry_size: usize,
    count: usize,
    filled: usize,
}

/// Result of a call that has taken so many entries.
// HOT
#[inline(always)]
fn result(filled: usize, has_error: bool) -> Result<isize, Errno> {
    match filled {
        0 if has_error => Err(Errno::AVAIL),
        0 => Err(Errno::AGAIN),
        filled => Ok(filled as isize),
    }
}

/// Copies words between memory that need not be aligned. Unsafe: both have as many.
// HOT
#[inline(always)]
unsafe fn copy_words<const N: usize>(from: *const [u64; N], to: *mut [u64; N]) {
    // SAFETY: this function's contract.
    unsafe { to.write_unaligned(from.read_unaligned()) };
}

impl Out {
    fn is_full(&self) -> bool {
        self.filled == self.count
    }

    // HOT
    #[inline(always)]
    fn put(&mut self, entry: &Entry, ep: &Ep) {
        // SAFETY: the caller has passed memory for `count` entries, and for as many sources if not null. Each
        // format is the beginning of the longest.
        unsafe {
            let to = self.at.add(self.filled * self.entry_size).cast::<u64>();
            let from = (&raw const entry.shown).cast::<u64>();
            match self.entry_size {
                8 => copy_words::<1>(from.cast(), to.cast()),
                24 => copy_words::<3>(from.cast(), to.cast()),
                40 => copy_words::<5>(from.cast(), to.cast()),
                _ => copy_words::<6>(from.cast(), to.cast()),
            }
            if !self.sources.is_null() {
                self.sources.add(self.filled).write(ep.source_of(entry.from));
            }
        }
        self.filled += 1;
    }
}

/// Takes entries until the memory is full or an error is next. Returns whether one is.
// HOT
#[inline(always)]
fn drain_ring(ring: &Ring, ep: &Ep, out: &mut Out) -> bool {
    let refuses_unknown = ep.refuses_unknown_sources();
    while let Some(entry) = ring.front() {
        if entry.is_error {
            return true;
        }
        if out.is_full() {
            return false;
        }
        if refuses_unknown && ep.is_unknown(entry.from) {
            ring.fail_front();
            return true;
        }
        out.put(entry, ep);
        ring.pop();
    }
    false
}

impl Cq {
    /// Takes entries, with progress if there are none.
    /// # Safety
    /// `at` is memory for `count` entries; `sources` is null or memory for as many.
    // HOT
    #[inline(always)]
    pub(super) unsafe fn take(
        &self,
        at: *mut c_void,
        count: usize,
        sources: *mut FiAddr,
    ) -> Result<isize, Errno> {
        let mut out = Out { at: at.cast(), sources, entry_size: self.entry_size, count, filled: 0 };
        if let Some(ep) = self.members.only_unlocked()
            && let Some(plain) = ep.plain()
        {
            self.domain().run_work();
            let mut has_progressed = false;
            loop {
                let has_error = self.drain_rings(ep, &mut out);
                if out.filled > 0 || has_error {
                    return result(out.filled, has_error);
                }
                if has_progressed {
                    ep.release_shutdown(plain);
                    // A program may sleep now: what this progress has made due starts before.
                    self.domain().run_work();
                    return Err(Errno::AGAIN);
                }
                plain.progress();
                ep.collect_kept(plain);
                has_progressed = true;
            }
        }
        self.take_locked(out)
    }

    /// Takes entries of endpoints with a lock, or of several.
    #[inline(never)]
    fn take_locked(&self, out: Out) -> Result<isize, Errno> {
        let members = self.members.inside();
        let (filled, has_error) = match members.only() {
            Some(ep) => self.take_of(ep, out),
            None => self.take_in_turn(&members, out),
        };
        drop(members);
        // Behind the progress: a thread that sleeps may wait for work that this has made due.
        self.domain().run_work();
        result(filled, has_error)
    }

    /// Takes entries of the only endpoint. Returns how many, and whether an error is next.
    // HOT
    #[inline(always)]
    fn take_of(&self, ep: &Ep, mut out: Out) -> (usize, bool) {
        let inside = ep.enter();
        if ep.keeps_unreported {
            ep.collect_kept(&inside);
        }
        if out.count == 0 || ep.directions().iter().all(|way| way.ring_of(self).is_none()) {
            ep.shared.progress_inside(&inside);
            ep.collect_kept(&inside);
        }
        let has_error = self.drain_rings(ep, &mut out);
        if out.filled == 0 && !has_error {
            ep.release_shutdown(&inside);
        }
        drop(inside);
        (out.filled, has_error)
    }

    /// Takes entries of several endpoints. Returns how many, and whether an error is next.
    #[inline(never)]
    fn take_in_turn(&self, members: &crate::wait::Inside<'_>, mut out: Out) -> (usize, bool) {
        let has_error = self.drain(members, &mut out);
        if out.filled > 0 || has_error {
            return (out.filled, has_error);
        }
        members.eps().for_each(|ep| ep.progress());
        let has_error = self.drain(members, &mut out);
        if out.filled == 0 && !has_error {
            for ep in members.eps() {
                ep.inside(|plain| ep.release_shutdown(plain));
            }
        }
        (out.filled, has_error)
    }

    /// Takes entries of the endpoints in turn. Returns whether an error is next.
    fn drain(&self, inside: &crate::wait::Inside<'_>, out: &mut Out) -> bool {
        let mut has_error = false;
        let total = inside.eps().count();
        let first = self.turn.get() % total.max(1);
        for ep in inside.eps().cycle().skip(first).take(total) {
            if out.is_full() && out.count > 0 {
                break;
            }
            ep.inside(|plain| {
                ep.collect_kept(plain);
                has_error |= self.drain_rings(ep, out);
            });
        }
        self.turn.set(first + 1);
        has_error
    }

    /// Takes entries of an endpoint, inside its lock. Returns whether an error is next.
    // HOT
    #[inline(always)]
    fn drain_rings(&self, ep: &Ep, out: &mut Out) -> bool {
        let [rx, tx] = ep.directions();
        let has_error = rx.ring_of(self).is_some_and(|ring| drain_ring(ring, ep, out));
        tx.ring_of(self).is_some_and(|ring| drain_ring(ring, ep, out)) || has_error
    }
}
