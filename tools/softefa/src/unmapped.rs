//! Registered memory that the program unmapped. A NIC has the pages pinned, or answers with a status; this
//! device would crash the program. With `SOFTEFA_WATCH_MEMORY=y` the kernel reports what goes ([`Watch`]),
//! and the region's keys end. Not by default: a page has one watcher, and registration caches need it.

use std::ptr::NonNull;
use ucs::coll::slots::Slots;
use ucs::mem::page::page_size;
use ucs::mem::rights::may_access;
use ucs::mem::watch::{Cursor, Watch};
use uct::efa::dev::DevMr;
use uct::efa::dev::soft::{Mr, Net};

/// Events of this process's memory, as far as one context has seen them.
pub struct Unmapped {
    watch: Option<Watch>,
    seen: Cursor,
}

impl Unmapped {
    /// Watches from now on, or nothing at all.
    pub fn new(wanted: bool) -> Unmapped {
        let mut seen = Cursor::default();
        let watch = wanted.then(Watch::open).and_then(|watch| match watch {
            Ok(watch) => Some(watch),
            Err(errno) => {
                ucs::stderr_line!(
                    "softefa: memory is not watched (SOFTEFA_WATCH_MEMORY): userfaultfd: {errno} (allow it in the container's \
                     profile; Linux 5.11)"
                );
                None
            }
        });
        if let Some(watch) = &watch {
            watch.drain(&mut seen, |_, _| {});
        }
        Unmapped { watch, seen }
    }

    /// Watches the pages of memory that is about to be registered, if they can be.
    pub fn add(&self, addr: usize, len: usize) {
        let start = addr & !(page_size() - 1);
        let end = addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(page_size()));
        let first = NonNull::new(std::ptr::with_exposed_provenance_mut(start));
        if let (Some(watch), Some(first), Some(end)) = (&self.watch, first, end) {
            // Pages of another kind, or watched by the program itself, go unnoticed.
            let _ = watch.add(first, end - start);
        }
    }

    /// Ends the keys of regions that are not wholly mapped any more.
    // HOT
    #[inline]
    pub fn revoke(&mut self, mrs: &Slots<Mr<Net>>) {
        if let Some(watch) = &self.watch {
            watch.drain(&mut self.seen, |start, len| revoke_in(mrs, start, len));
        }
    }
}

#[cold]
fn revoke_in(mrs: &Slots<Mr<Net>>, start: usize, len: usize) {
    let end = start.saturating_add(len);
    let overlaps = |mr: &Mr<Net>| (mr.addr() as usize) < end && start < mr.addr() as usize + mr.len();
    let gone = mrs.iter().map(|(_, mr)| mr).filter(|mr| !mr.is_revoked() && overlaps(mr));
    // Pages that were only given back, or that something else is mapped over by now, do no harm.
    gone.filter(|mr| !may_access(mr.addr() as usize, mr.len(), false)).for_each(Mr::revoke);
}
