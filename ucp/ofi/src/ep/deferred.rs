//! Operations of deferred work: how they start at an endpoint, and which counters their ends reach.

use std::sync::{MutexGuard, PoisonError};

use super::Ep;
use super::complete::{Entry, NO_CNTR, Op};
use crate::abi::ops::{AtomicTable, MsgOps, RmaOps, TaggedOps};
use crate::cntr::Cntr;
use crate::errno::Errno;
use crate::object::Object;

/// Functions that start operations.
pub(crate) struct DeferredCalls {
    pub msg: &'static MsgOps,
    pub tagged: &'static TaggedOps,
    pub rma: &'static RmaOps,
    pub atomic: &'static AtomicTable,
}

static CALLS: DeferredCalls = DeferredCalls {
    msg: &super::msg::OPS,
    tagged: &super::tagged::OPS,
    rma: &super::rma::OPS,
    atomic: &super::atomic::OPS,
};

impl Ep {
    /// Starts an operation of deferred work, whose end is counted by `completion` alone unless it asks for a
    /// completion.
    pub(crate) fn start_deferred(
        &self,
        completion: Option<&Cntr>,
        start: impl FnOnce(&DeferredCalls) -> Result<isize, Errno>,
    ) -> Result<(), Errno> {
        self.inside(|_| {
            // With room, no progress is made in the call, so that no other operation starts in it.
            if !self.tx.has_room() || !self.rx.has_room() {
                self.progress();
                return Err(Errno::AGAIN);
            }
            if let Some(cntr) = completion {
                cntr.users().add();
            }
            self.deferred.set(completion.map_or(NO_CNTR, std::ptr::from_ref));
            let started = start(&CALLS);
            self.deferred.set(std::ptr::null());
            if let (Err(_), Some(cntr)) = (&started, completion) {
                cntr.users().remove();
            }
            started.map(drop)
        })?
    }

    /// Counts the end of deferred work. Returns the endpoint's counter if that counts it, too.
    #[cold]
    pub(super) fn end_deferred(&self, op: &Op, of_ep: *const Cntr, entry: &Entry) -> *const Cntr {
        if op.cntr != NO_CNTR {
            // SAFETY: a counter is not closed while deferred work uses it.
            let cntr = unsafe { &*op.cntr };
            cntr.count(entry.error.is_some());
            cntr.members.wake(self);
            cntr.users().remove();
        }
        if op.is_reported && of_ep != op.cntr { of_ep } else { std::ptr::null() }
    }

    /// Makes progress of this endpoint part of waiting for a counter.
    pub(crate) fn join(&self, cntr: &Cntr) -> Result<(), Errno> {
        let is_known = |known: *const Cntr| std::ptr::eq(known, cntr);
        if self.counters().iter().any(|(_, of)| is_known(of.get())) {
            return Ok(());
        }
        let mut joined = self.joined();
        if !joined.iter().any(|known| is_known(*known)) {
            cntr.members.add(self)?;
            joined.push(cntr);
        }
        Ok(())
    }

    fn joined(&self) -> MutexGuard<'_, Vec<*const Cntr>> {
        self.joined.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a counter that is closed.
    pub(crate) fn leave(&self, cntr: &Cntr) {
        self.joined().retain(|known| !std::ptr::eq(*known, cntr));
    }

    /// Leaves all counters of deferred work.
    pub(super) fn leave_all(&self) {
        let joined = std::mem::take(&mut *self.joined());
        for cntr in joined {
            // SAFETY: a counter that is closed leaves the list.
            unsafe { &*cntr }.members.remove(self);
        }
    }
}
