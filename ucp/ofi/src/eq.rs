//! Event queues: insertions of addresses, and events of the program itself.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::abi::ops::{EqOps, FidOps};
use crate::abi::queue::{EqAttr, EqErrEntry};
use crate::abi::{Fid, flags};
use crate::errno::Errno;
use crate::fabric::Fabric;
use crate::object::{Object, Users, checked, from_handle, read, store, store_handle};
use crate::refused;
use crate::wait::Deadline;

/// `FI_AV_COMPLETE`.
pub(crate) const AV_COMPLETE: u32 = 5;
/// Longest wait for the condition between two looks at the deadline.
const SLICE: Duration = Duration::from_millis(100);

struct Event {
    number: u32,
    bytes: Vec<u8>,
}

/// `struct fid_eq`, and what belongs to it.
#[repr(C)]
pub(crate) struct Eq {
    fid: Fid,
    ops: &'static EqOps,
    fabric: *const Fabric,
    users: Users,
    events: Mutex<VecDeque<Event>>,
    has_event: Condvar,
}

impl Object for Eq {
    const CLASS: usize = flags::CLASS_EQ;
    const NAME: &'static str = "an event queue";
    fn users(&self) -> &Users {
        &self.users
    }
}

static FID_OPS: FidOps = refused::fid_ops(close, refused::bind, refused::control);

static OPS: EqOps = EqOps {
    size: size_of::<EqOps>(),
    read: eq_read,
    readerr: eq_readerr,
    write: eq_write,
    sread: eq_sread,
    strerror: eq_strerror,
};

/// Opens an event queue.
pub(crate) fn open(
    fabric: &Fabric,
    attr: *const EqAttr,
    to: *mut *mut Fid,
    context: *mut c_void,
) -> Result<(), Errno> {
    let attr = read(attr)?;
    if attr.wait_obj > flags::WAIT_UNSPEC {
        return Err(refused::log_refusal(&format!("fi_eq_open: wait object {}", attr.wait_obj)));
    }
    let made = Eq {
        fid: refused::fid(flags::CLASS_EQ, context, &FID_OPS),
        ops: &OPS,
        fabric,
        users: Users::default(),
        events: Mutex::default(),
        has_event: Condvar::new(),
    };
    store_handle(to, made)?;
    fabric.users().add();
    Ok(())
}

impl Eq {
    fn events(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, number: u32, bytes: Vec<u8>) {
        self.events().push_back(Event { number, bytes });
        self.has_event.notify_all();
    }

    /// Reports that addresses have been inserted: `struct fi_eq_entry` with their number.
    pub(crate) fn report_insertion(&self, av: *const Fid, context: *mut c_void, inserted: u64) {
        let mut bytes = Vec::with_capacity(24);
        bytes.extend_from_slice(&av.addr().to_ne_bytes());
        bytes.extend_from_slice(&context.addr().to_ne_bytes());
        bytes.extend_from_slice(&inserted.to_ne_bytes());
        self.push(AV_COMPLETE, bytes);
    }

    pub(crate) fn try_wait(&self) -> bool {
        self.events().is_empty()
    }
}

/// Takes the next event, or looks at it.
fn take(
    events: &mut VecDeque<Event>,
    (number, buf, len): (*mut u32, *mut c_void, usize),
    flags: u64,
) -> Result<isize, Errno> {
    let next = events.front().ok_or(Errno::AGAIN)?;
    let count = next.bytes.len();
    if count > len {
        return Err(Errno::TOOSMALL);
    }
    store(number, next.number)?;
    if count > 0 && buf.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller passes memory of this length.
    unsafe { std::ptr::copy_nonoverlapping(next.bytes.as_ptr(), buf.cast::<u8>(), count) };
    if flags & flags::PEEK == 0 {
        events.pop_front();
    }
    Ok(count as isize)
}

calls! {
    fn close(fid: *mut Fid) -> c_int {
        let gone = from_handle::<Eq>(fid)?;
        // SAFETY: a fabric is not closed before its queues.
        unsafe { &*gone.fabric }.users().remove();
        Ok(0)
    }

    /// Reads an event.
    fn eq_read(fid: *mut Fid, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> isize {
        take(&mut checked::<Eq>(fid)?.events(), (event, buf, len), flags)
    }

    /// Reads an error: there are none, as what could fail fails in its call.
    fn eq_readerr(fid: *mut Fid, _entry: *mut EqErrEntry, _flags: u64) -> isize {
        checked::<Eq>(fid)?;
        Err(Errno::AGAIN)
    }

    /// Adds an event of the program.
    fn eq_write(fid: *mut Fid, event: u32, buf: *const c_void, len: usize, flags: u64) -> isize {
        let eq: &Eq = checked(fid)?;
        if flags != 0 {
            return Err(Errno::BADFLAGS);
        }
        if buf.is_null() && len > 0 {
            return Err(Errno::INVAL);
        }
        let mut bytes = vec![0; len];
        // SAFETY: the caller passes memory of this length.
        unsafe { std::ptr::copy_nonoverlapping(buf.cast::<u8>(), bytes.as_mut_ptr(), len) };
        eq.push(event, bytes);
        Ok(len as isize)
    }

    /// Reads an event, sleeping until there is one.
    fn eq_sread(
        fid: *mut Fid, event: *mut u32, buf: *mut c_void, len: usize, timeout: c_int, flags: u64,
    ) -> isize {
        let eq: &Eq = checked(fid)?;
        let deadline = Deadline::after(timeout);
        let mut events = eq.events();
        loop {
            match take(&mut events, (event, buf, len), flags) {
                Err(Errno::AGAIN) if !deadline.is_over() => {}
                done => return done,
            }
            let slice = deadline.left().map_or(SLICE, |left| left.min(SLICE));
            events = eq.has_event.wait_timeout(events, slice).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Text of an error number.
    fn eq_strerror(
        _fid: *mut Fid, number: c_int, _err_data: *const c_void, buf: *mut c_char, len: usize,
    ) -> *const c_char {
        Ok(crate::cq::describe(number, buf, len))
    }
}
