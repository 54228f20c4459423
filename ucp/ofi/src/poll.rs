//! Poll sets: progress of many queues and counters by one call, which tells those that have something new.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::ops::{FidOps, PollOps};
use crate::abi::{Fid, flags};
use crate::domain::Domain;
use crate::errno::Errno;
use crate::object::{Object, UserCount, checked, from_handle, read, store_handle};
use crate::refused;
use crate::wait_set::Source;

/// `struct fid_poll`, and what belongs to it.
#[repr(C)]
pub(crate) struct Poll {
    fid: Fid,
    ops: &'static PollOps,
    domain: *const Domain,
    users: UserCount,
    sources: Mutex<Vec<Source>>,
}

impl Object for Poll {
    const CLASS: usize = flags::CLASS_POLL;
    const NAME: &'static str = "a poll set";
    fn users(&self) -> &UserCount {
        &self.users
    }
}

static FID_OPS: FidOps = refused::fid_ops(close, refused::bind, refused::control);

static OPS: PollOps = PollOps { size: size_of::<PollOps>(), poll, poll_add, poll_del };

/// Opens a poll set. The attributes are flags, of which there are none.
/// # Safety
/// `attr` is null or whole; `to` is null or can be written.
pub(crate) unsafe fn open(domain: &Domain, attr: *const u64, to: *mut *mut Fid) -> Result<(), Errno> {
    // SAFETY: this function's contract.
    if !attr.is_null() && unsafe { read(attr) }? != 0 {
        return Err(Errno::BADFLAGS);
    }
    let made = Poll {
        fid: refused::fid(flags::CLASS_POLL, std::ptr::null_mut(), &FID_OPS),
        ops: &OPS,
        domain,
        users: UserCount::default(),
        sources: Mutex::default(),
    };
    // SAFETY: as above.
    unsafe { store_handle(to, made) }?;
    domain.users().add();
    Ok(())
}

impl Poll {
    fn sources(&self) -> MutexGuard<'_, Vec<Source>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

calls! {
    fn close(fid: *mut Fid) -> c_int {
        let gone = from_handle::<Poll>(fid)?;
        gone.sources().iter().for_each(Source::release);
        // SAFETY: a domain is not closed before its poll sets.
        unsafe { &*gone.domain }.users().remove();
        Ok(0)
    }

    /// Makes progress. Stores the contexts of objects that have something new, and returns their number.
    fn poll(fid: *mut Fid, contexts: *mut *mut c_void, count: c_int) -> c_int {
        let set: &Poll = checked(fid)?;
        let most = usize::try_from(count).map_err(|_| Errno::INVAL)?;
        if contexts.is_null() && most > 0 {
            return Err(Errno::INVAL);
        }
        let mut found = 0;
        for source in set.sources().iter_mut() {
            source.progress();
            if found < most && source.has_news() {
                // SAFETY: the caller passes memory for `count` contexts.
                unsafe { contexts.add(found).write(source.context()) };
                found += 1;
            }
        }
        Ok(found as c_int)
    }

    fn poll_add(fid: *mut Fid, object: *mut Fid, flags: u64) -> c_int {
        let set: &Poll = checked(fid)?;
        if flags != 0 {
            return Err(Errno::BADFLAGS);
        }
        let mut sources = set.sources();
        if sources.iter().any(|source| source.is(object)) {
            return Err(Errno::INVAL);
        }
        let source = Source::of(object)?;
        source.hold();
        sources.push(source);
        Ok(0)
    }

    fn poll_del(fid: *mut Fid, object: *mut Fid, flags: u64) -> c_int {
        let set: &Poll = checked(fid)?;
        if flags != 0 {
            return Err(Errno::BADFLAGS);
        }
        let mut sources = set.sources();
        let at = sources.iter().position(|source| source.is(object)).ok_or(Errno::INVAL)?;
        sources.remove(at).release();
        Ok(0)
    }
}
