//! Event queues: insertions of addresses, connections, and events of the program itself.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ucs::sys::EventFd;

use crate::abi::info::Info;
use crate::abi::ops::{EqOps, FidOps};
use crate::abi::queue::{EqAttr, EqErrEntry};
use crate::abi::{Fid, flags};
use crate::errno::Errno;
use crate::fabric::Fabric;
use crate::object::{Object, UserCount, checked, from_handle, read, store, store_error_entry};
use crate::refused;
use crate::wait::Deadline;

/// `FI_AV_COMPLETE`.
pub(crate) const AV_COMPLETE: u32 = 5;
/// `FI_JOIN_COMPLETE`.
pub(crate) const JOIN_COMPLETE: u32 = 6;
/// Longest wait for the condition between two looks at the deadline.
const SLICE: Duration = Duration::from_millis(100);

/// Longest time for which a program reads the queue without the end of a connection, while it does not read
/// what has arrived before.
const MAX_HOLD: Duration = Duration::from_millis(100);

/// Bytes of `struct fi_eq_cm_entry` before its data.
const CM_ENTRY: usize = 16;

struct Event {
    number: u32,
    bytes: Vec<u8>,
    /// The object that it is of; null: none, or it may be closed before.
    of: *const Fid,
    /// Description of a request that the entry points to; the program frees it.
    info: Option<OwnedInfo>,
    error: Option<EqErrEntry>,
}

/// The end of a connection, which is reported when all that has arrived before is read.
struct Held {
    /// The endpoint.
    of: *const Fid,
    /// When the program has first read the queue since.
    since: Option<Instant>,
}

/// A request to be connected that no program has read: its end rejects it.
pub(crate) struct OwnedInfo(*mut Info);

impl OwnedInfo {
    /// Takes a description.
    /// # Safety
    /// As for [`crate::info::free`].
    pub(crate) unsafe fn new(info: *mut Info) -> OwnedInfo {
        OwnedInfo(info)
    }
}

impl Drop for OwnedInfo {
    fn drop(&mut self) {
        // SAFETY: the list is whole, and nobody else's.
        let handle = unsafe { self.0.as_ref() }.map_or(std::ptr::null_mut(), |info| info.handle);
        drop(crate::pep::take_request(handle));
        // SAFETY: the contract of `new`.
        unsafe { crate::info::free(self.0) };
    }
}

/// Failure of a connection.
pub(crate) struct CmError {
    pub errno: Errno,
    pub prov_errno: c_int,
    pub data: Vec<u8>,
}

/// `struct fid_eq`, and what belongs to it.
#[repr(C)]
pub(crate) struct Eq {
    fid: Fid,
    ops: &'static EqOps,
    fabric: *const Fabric,
    users: UserCount,
    events: Mutex<VecDeque<Event>>,
    /// Locked after the events.
    held: Mutex<Vec<Held>>,
    has_event: Condvar,
    /// Readable while there are events, for programs that sleep on it.
    fd: Option<EventFd>,
    wait_obj: u32,
    wait_set: *mut Fid,
    /// Data of the error that was read last.
    error_data: Mutex<Vec<u8>>,
}

impl Object for Eq {
    const CLASS: usize = flags::CLASS_EQ;
    const NAME: &'static str = "an event queue";
    fn users(&self) -> &UserCount {
        &self.users
    }
}

static FID_OPS: FidOps = refused::fid_ops(close, refused::bind, control);

static OPS: EqOps = EqOps {
    size: size_of::<EqOps>(),
    read: eq_read,
    readerr: eq_readerr,
    write: eq_write,
    sread: eq_sread,
    strerror: eq_strerror,
};

/// Opens an event queue.
/// # Safety
/// `attr` is null or whole, with objects that are open; `to` is null or can be written.
pub(crate) unsafe fn open(
    fabric: &Fabric,
    attr: *const EqAttr,
    to: *mut *mut Fid,
    context: *mut c_void,
) -> Result<(), Errno> {
    // SAFETY: this function's contract.
    let attr = unsafe { read(attr) }?;
    crate::wait::check_wait_object(attr.wait_obj)?;
    let fd = match attr.wait_obj {
        flags::WAIT_FD | flags::WAIT_SET => Some(EventFd::new().map_err(|error| Errno(error.0))?),
        _ => None,
    };
    // SAFETY: as above.
    let wait_set = unsafe { crate::wait_set::asked(attr.wait_obj, attr.wait_set) }?;
    let made = Eq {
        fid: refused::fid(flags::CLASS_EQ, context, &FID_OPS),
        ops: &OPS,
        fabric,
        users: UserCount::default(),
        events: Mutex::default(),
        held: Mutex::default(),
        has_event: Condvar::new(),
        fd,
        wait_obj: attr.wait_obj,
        wait_set,
        error_data: Mutex::default(),
    };
    let fd = |eq: &Eq| Ok(eq.fd.as_ref().ok_or(Errno::NOSYS)?.as_fd().as_raw_fd());
    // SAFETY: as above.
    unsafe { crate::wait_set::store_joined(to, made, wait_set, fd) }?;
    fabric.users().add();
    Ok(())
}

impl Eq {
    fn events(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, event: Event) {
        self.push_to(&mut self.events(), event);
    }

    fn push_to(&self, events: &mut VecDeque<Event>, event: Event) {
        events.push_back(event);
        self.signal();
    }

    /// Wakes those that wait for an event. The events are locked.
    fn signal(&self) {
        if let Some(fd) = &self.fd {
            let _ = fd.signal();
        }
        self.has_event.notify_all();
    }

    /// Reports an event of a connection. A request has an `info`.
    pub(crate) fn report_cm(&self, number: u32, of: *const Fid, info: Option<OwnedInfo>, data: &[u8]) {
        self.push(cm_event(number, of, info, data));
    }

    fn held(&self) -> MutexGuard<'_, Vec<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports the end of a connection, after [`Eq::release_shutdown`] or [`MAX_HOLD`]: a program closes the
    /// endpoint when it has read the event, and loses what it has not received until then.
    pub(crate) fn hold_shutdown(&self, of: *const Fid) {
        let events = self.events();
        self.held().push(Held { of, since: None });
        self.signal();
        drop(events);
    }

    /// Reports the end of the connection of an endpoint now, if it is held.
    pub(crate) fn release_shutdown(&self, of: *const Fid) {
        self.release(|held| held.of == of);
    }

    /// Reports the ends of connections that have been held for long enough, as the program reads the queue.
    fn release_late(&self) {
        let now = Instant::now();
        self.release(|held| now.duration_since(*held.since.get_or_insert(now)) >= MAX_HOLD);
    }

    fn release(&self, is_next: impl FnMut(&mut Held) -> bool) {
        let mut events = self.events();
        let released: Vec<Held> = self.held().extract_if(.., is_next).collect();
        for Held { of, .. } in released {
            self.push_to(&mut events, cm_event(flags::SHUTDOWN, of, None, &[]));
        }
    }

    /// Reports that there is no connection.
    pub(crate) fn report_cm_error(&self, of: &Fid, error: CmError) {
        let CmError { errno, prov_errno, data } = error;
        let (context, of) = (of.context, std::ptr::from_ref(of).cast_mut());
        let (err_data, err_data_size) = (std::ptr::null_mut(), 0);
        let entry =
            EqErrEntry { fid: of, context, data: 0, err: errno.0, prov_errno, err_data, err_data_size };
        self.push(Event { number: 0, bytes: data, of, info: None, error: Some(entry) });
    }

    /// Discards events of an object that is closed.
    pub(crate) fn discard(&self, of: *const Fid) {
        let mut events = self.events();
        let (gone, kept): (Vec<Event>, Vec<Event>) = events.drain(..).partition(|event| event.of == of);
        events.extend(kept);
        self.held().retain(|held| held.of != of);
        self.clear_fd(&events);
        drop(events);
        drop(gone);
    }

    /// Makes the descriptor unreadable if nothing is left.
    fn clear_fd(&self, events: &VecDeque<Event>) {
        if let (Some(fd), true) = (&self.fd, events.is_empty() && self.held().is_empty()) {
            let _ = fd.clear();
        }
    }

    /// Reports that addresses have been inserted: `struct fi_eq_entry` with their number.
    pub(crate) fn report_insertion(&self, av: *const Fid, context: *mut c_void, inserted: u64) {
        self.push_entry(AV_COMPLETE, (av, std::ptr::null()), context, inserted);
    }

    /// Reports that the name at a position is no address that could be inserted.
    pub(crate) fn report_bad_address(&self, av: &Fid, context: *mut c_void, at: u64) {
        let (fid, prov_errno) = (std::ptr::from_ref(av).cast_mut(), ucs::Status::InvalidParam.code());
        let (err, err_data, err_data_size) = (Errno::INVAL.0, std::ptr::null_mut(), 0);
        let entry = EqErrEntry { fid, context, data: at, err, prov_errno, err_data, err_data_size };
        let (bytes, of) = (Vec::new(), std::ptr::null());
        self.push(Event { number: AV_COMPLETE, bytes, of, info: None, error: Some(entry) });
    }

    /// Reports that an endpoint has joined a collective group: `struct fi_eq_entry`.
    pub(crate) fn report_join(&self, mc: *const Fid, context: *mut c_void) {
        self.push_entry(JOIN_COMPLETE, (mc, mc), context, 0);
    }

    /// Pushes an event that names an object, and goes with `of`, if that is not null.
    fn push_entry(
        &self,
        number: u32,
        (named, of): (*const Fid, *const Fid),
        context: *mut c_void,
        data: u64,
    ) {
        let mut bytes = Vec::with_capacity(24);
        bytes.extend_from_slice(&named.addr().to_ne_bytes());
        bytes.extend_from_slice(&context.addr().to_ne_bytes());
        bytes.extend_from_slice(&data.to_ne_bytes());
        self.push(Event { number, bytes, of, info: None, error: None });
    }

    pub(crate) fn try_wait(&self) -> bool {
        self.events().is_empty()
    }
}

/// An event of a connection: `struct fi_eq_cm_entry` with data.
fn cm_event(number: u32, of: *const Fid, info: Option<OwnedInfo>, data: &[u8]) -> Event {
    let mut bytes = Vec::with_capacity(CM_ENTRY + data.len());
    bytes.extend_from_slice(&of.addr().to_ne_bytes());
    bytes.extend_from_slice(&info.as_ref().map_or(0, |info| info.0.addr()).to_ne_bytes());
    bytes.extend_from_slice(data);
    Event { number, bytes, of, info, error: None }
}

/// Takes the next event, or looks at it. Data of a connection or a join that has no room is cut.
/// # Safety
/// `number` is null or can be written; `buf` is null or memory of `len` bytes.
unsafe fn take(
    eq: &Eq,
    events: &mut VecDeque<Event>,
    (number, buf, len): (*mut u32, *mut c_void, usize),
    flags: u64,
) -> Result<isize, Errno> {
    let next = events.front().ok_or(Errno::AGAIN)?;
    if next.error.is_some() {
        return Err(Errno::AVAIL);
    }
    // Programs read the end of a join with the room of an event of a connection, too, or with none, as they
    // want to know that it has come: libfabric cuts it.
    let is_cut = !next.of.is_null() || next.number == JOIN_COMPLETE;
    let is_enough = len >= CM_ENTRY || len == 0 && next.number == JOIN_COMPLETE;
    let count = if is_cut && is_enough { next.bytes.len().min(len) } else { next.bytes.len() };
    if count > len {
        return Err(Errno::TOOSMALL);
    }
    // SAFETY: this function's contract.
    unsafe { store(number, next.number) }?;
    if count > 0 && buf.is_null() {
        return Err(Errno::INVAL);
    }
    if count > 0 {
        // SAFETY: the caller passes memory of this length.
        unsafe { std::ptr::copy_nonoverlapping(next.bytes.as_ptr(), buf.cast::<u8>(), count) };
    }
    if flags & flags::PEEK == 0 {
        if let Some(Event { info: Some(info), .. }) = events.pop_front() {
            // The program has its address.
            std::mem::forget(info);
        }
        eq.clear_fd(events);
    }
    Ok(count as isize)
}

calls! {
    fn close(fid: *mut Fid) -> c_int {
        let gone = from_handle::<Eq>(fid)?;
        crate::wait_set::leave(gone.wait_set, &gone.fid);
        // SAFETY: a fabric is not closed before its queues.
        unsafe { &*gone.fabric }.users().remove();
        Ok(0)
    }

    /// Reads an event.
    fn eq_read(fid: *mut Fid, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> isize {
        let eq: &Eq = checked(fid)?;
        eq.release_late();
        take(eq, &mut eq.events(), (event, buf, len), flags)
    }

    fn control(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
        let eq: &Eq = checked(fid)?;
        match command {
            flags::GETWAIT => {
                let fd = eq.fd.as_ref().ok_or(Errno::NOSYS)?;
                store(arg.cast::<c_int>(), fd.as_fd().as_raw_fd())?;
            }
            flags::GETWAITOBJ => store(arg.cast::<u32>(), eq.wait_obj)?,
            command => return Err(refused::log_refusal(&format!("fi_control of an event queue: command {command}"))),
        }
        Ok(0)
    }

    /// Reads an error: a connection that has failed. Data of a peer that has rejected goes to the memory that
    /// the entry names; without any it stays here until the next error is read.
    fn eq_readerr(fid: *mut Fid, entry: *mut EqErrEntry, flags: u64) -> isize {
        let eq: &Eq = checked(fid)?;
        if flags & !flags::PEEK != 0 {
            return Err(Errno::BADFLAGS);
        }
        if entry.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: a fabric is not closed before its queues.
        let has_size = unsafe { &*eq.fabric }.has_error_data();
        let (room, size) = match has_size {
            // SAFETY: the caller passes an entry, which has a size.
            true => unsafe { ((*entry).err_data, (*entry).err_data_size) },
            false => (std::ptr::null_mut(), 0),
        };
        let mut events = eq.events();
        let next = events.front().ok_or(Errno::AGAIN)?;
        let mut error = next.error.ok_or(Errno::AGAIN)?;
        let data = &next.bytes;
        if size > 0 && !room.is_null() {
            error.err_data_size = data.len().min(size);
            error.err_data = room;
            // SAFETY: the caller's memory has this size.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), room.cast::<u8>(), error.err_data_size) };
        } else if !data.is_empty() {
            let mut kept = eq.error_data.lock().unwrap_or_else(PoisonError::into_inner);
            kept.clone_from(data);
            error.err_data = kept.as_mut_ptr().cast();
            error.err_data_size = kept.len();
        }
        let written = store_error_entry(entry, &error, has_size);
        if flags & flags::PEEK == 0 {
            events.pop_front();
            eq.clear_fd(&events);
        }
        Ok(written as isize)
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
        eq.push(Event { number: event, bytes, of: std::ptr::null(), info: None, error: None });
        Ok(len as isize)
    }

    /// Reads an event, sleeping until there is one.
    fn eq_sread(
        fid: *mut Fid, event: *mut u32, buf: *mut c_void, len: usize, timeout: c_int, flags: u64,
    ) -> isize {
        let eq: &Eq = checked(fid)?;
        let deadline = Deadline::after(timeout);
        loop {
            eq.release_late();
            let mut events = eq.events();
            match take(eq, &mut events, (event, buf, len), flags) {
                Err(Errno::AGAIN) if !deadline.is_over() => {}
                done => return done,
            }
            let slice = deadline.left().map_or(SLICE, |left| left.min(SLICE));
            drop(eq.has_event.wait_timeout(events, slice).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Text of an error number.
    fn eq_strerror(
        _fid: *mut Fid, number: c_int, _err_data: *const c_void, buf: *mut c_char, len: usize,
    ) -> *const c_char {
        Ok(crate::cq::describe(number, buf, len))
    }
}
