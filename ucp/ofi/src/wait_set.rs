//! Wait sets: sleep until one of many queues and counters has something new. A queue that is opened with a
//! wait set has a descriptor, and the set has them all in one.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::abi::ops::{FidOps, WaitOps};
use crate::abi::queue::WaitAttr;
use crate::abi::{Fid, flags};
use crate::cntr::Cntr;
use crate::cq::Cq;
use crate::eq::Eq;
use crate::errno::Errno;
use crate::fabric::Fabric;
use crate::object::{Object, UserCount, checked, from_fid, from_handle, read, store, store_handle};
use crate::refused;
use crate::wait::{Deadline, new_epoll};

/// Looks at all objects before a thread sleeps.
const SPINS: u32 = 200;
/// Longest sleep between two looks, as some transports have timers that no descriptor reports.
const SLICE: Duration = Duration::from_millis(10);

/// A queue or counter in a set.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    object: *mut Fid,
    /// Value of a counter when it was reported.
    reported: u64,
}

impl Source {
    /// The object of a caller, which has to be one that reports something.
    /// # Safety
    /// `object` is null or an object of this crate, which is open as long as the result is used.
    pub(crate) unsafe fn of(object: *mut Fid) -> Result<Source, Errno> {
        // SAFETY: every object begins with its class.
        let reported = match unsafe { object.as_ref() }.ok_or(Errno::INVAL)?.fclass {
            flags::CLASS_CQ | flags::CLASS_EQ => 0,
            // SAFETY: this function's contract.
            flags::CLASS_CNTR => unsafe { checked::<Cntr>(object) }?.total(),
            class => {
                tracing::error!("an object of class {class} reports nothing");
                return Err(Errno::INVAL);
            }
        };
        Ok(Source { object, reported })
    }

    /// Class of the object: 0 if it is just being closed, which waits until it has left the set.
    fn class(&self) -> usize {
        // SAFETY: the object is not freed while it is in a set.
        unsafe { self.object.as_ref() }.map_or(0, |fid| fid.fclass)
    }

    fn users(&self) -> Option<&UserCount> {
        match self.class() {
            // SAFETY: the object is not freed while it is in a set.
            flags::CLASS_CQ => unsafe { from_fid::<Cq>(self.object) }.ok().map(Object::users),
            // SAFETY: as above.
            flags::CLASS_CNTR => unsafe { from_fid::<Cntr>(self.object) }.ok().map(Object::users),
            // SAFETY: as above.
            flags::CLASS_EQ => unsafe { from_fid::<Eq>(self.object) }.ok().map(Object::users),
            _ => None,
        }
    }

    /// Keeps the object from being closed.
    pub(crate) fn hold(&self) {
        self.users().into_iter().for_each(UserCount::add);
    }

    pub(crate) fn release(&self) {
        self.users().into_iter().for_each(UserCount::remove);
    }

    pub(crate) fn is(&self, object: *const Fid) -> bool {
        std::ptr::eq(self.object, object)
    }

    pub(crate) fn context(&self) -> *mut c_void {
        // SAFETY: the object is not freed while it is in a set.
        unsafe { self.object.as_ref() }.map_or(std::ptr::null_mut(), |fid| fid.context)
    }

    /// Makes progress. An event queue has none.
    pub(crate) fn progress(&self) {
        match self.class() {
            // SAFETY: the object is not freed while it is in a set.
            flags::CLASS_CQ => unsafe { from_fid::<Cq>(self.object) }.into_iter().for_each(Cq::progress),
            flags::CLASS_CNTR => {
                // SAFETY: as above.
                unsafe { from_fid::<Cntr>(self.object) }.into_iter().for_each(Cntr::progress)
            }
            _ => {}
        }
    }

    /// Whether a program may sleep on the descriptor of the object; of a counter, which has been told of the
    /// total by the set.
    fn try_wait(&self) -> bool {
        match self.class() {
            // SAFETY: the object is not freed while it is in a set.
            flags::CLASS_CQ => unsafe { from_fid::<Cq>(self.object) }.is_ok_and(Cq::try_wait),
            flags::CLASS_CNTR => {
                // SAFETY: as above.
                unsafe { from_fid::<Cntr>(self.object) }.is_ok_and(|cntr| cntr.try_wait(Some(self.reported)))
            }
            // SAFETY: as above.
            flags::CLASS_EQ => unsafe { from_fid::<Eq>(self.object) }.is_ok_and(Eq::try_wait),
            _ => true,
        }
    }

    /// Whether there is something to read, or a counter has another value than when it was reported last.
    pub(crate) fn has_news(&mut self) -> bool {
        match self.class() {
            // SAFETY: the object is not freed while it is in a set.
            flags::CLASS_CQ => unsafe { from_fid::<Cq>(self.object) }.is_ok_and(|cq| cq.has_entries()),
            // SAFETY: as above.
            flags::CLASS_EQ => unsafe { from_fid::<Eq>(self.object) }.is_ok_and(|eq| !eq.try_wait()),
            // SAFETY: as above.
            flags::CLASS_CNTR => unsafe { from_fid::<Cntr>(self.object) }.is_ok_and(|cntr| {
                let total = cntr.total();
                std::mem::replace(&mut self.reported, total) != total
            }),
            _ => false,
        }
    }
}

/// Whether a program may sleep on the descriptor of an object.
/// # Safety
/// `object` is null or an object of this crate that is open.
pub(crate) unsafe fn try_wait(object: *mut Fid) -> Result<bool, Errno> {
    // SAFETY: every object begins with its class.
    match unsafe { object.as_ref() }.ok_or(Errno::INVAL)?.fclass {
        // SAFETY: this function's contract.
        flags::CLASS_CQ => Ok(unsafe { from_fid::<Cq>(object) }?.try_wait()),
        // SAFETY: as above.
        flags::CLASS_CNTR => Ok(unsafe { from_fid::<Cntr>(object) }?.try_wait(None)),
        // SAFETY: as above.
        flags::CLASS_EQ => Ok(unsafe { from_fid::<Eq>(object) }?.try_wait()),
        // SAFETY: as above.
        flags::CLASS_WAIT => Ok(unsafe { from_fid::<WaitSet>(object) }?.may_sleep()),
        class => {
            tracing::error!("fi_trywait: nothing waits for an object of class {class}");
            Err(Errno::INVAL)
        }
    }
}

/// `struct fid_wait`, and what belongs to it.
#[repr(C)]
pub(crate) struct WaitSet {
    fid: Fid,
    ops: &'static WaitOps,
    fabric: *const Fabric,
    users: UserCount,
    fd: OwnedFd,
    sources: Mutex<Vec<Source>>,
}

impl Object for WaitSet {
    const CLASS: usize = flags::CLASS_WAIT;
    const NAME: &'static str = "a wait set";
    fn users(&self) -> &UserCount {
        &self.users
    }
}

static FID_OPS: FidOps = refused::fid_ops(close, refused::bind, control);

static OPS: WaitOps = WaitOps { size: size_of::<WaitOps>(), wait };

/// Opens a wait set.
/// # Safety
/// `attr` is null or whole; `to` is null or can be written.
pub(crate) unsafe fn open(fabric: &Fabric, attr: *const WaitAttr, to: *mut *mut Fid) -> Result<(), Errno> {
    // SAFETY: this function's contract.
    let attr = unsafe { read(attr) }?;
    if attr.flags != 0 {
        return Err(Errno::BADFLAGS);
    }
    if ![flags::WAIT_UNSPEC, flags::WAIT_FD].contains(&attr.wait_obj) {
        return Err(refused::log_refusal(&format!("fi_wait_open: wait object {}", attr.wait_obj)));
    }
    let made = WaitSet {
        fid: refused::fid(flags::CLASS_WAIT, std::ptr::null_mut(), &FID_OPS),
        ops: &OPS,
        fabric,
        users: UserCount::default(),
        fd: new_epoll()?,
        sources: Mutex::default(),
    };
    // SAFETY: as above.
    unsafe { store_handle(to, made) }?;
    fabric.users().add();
    Ok(())
}

/// The wait set that an attribute asks for; null: none.
/// # Safety
/// As for [`checked`], of a set that is asked for.
pub(crate) unsafe fn asked(wait_obj: u32, set: *mut Fid) -> Result<*mut Fid, Errno> {
    if wait_obj != flags::WAIT_SET {
        return Ok(std::ptr::null_mut());
    }
    // SAFETY: this function's contract.
    unsafe { checked::<WaitSet>(set) }.map(|_| set)
}

/// Stores the handle of a new object, which joins the wait set `set` if there is one: by the descriptor `fd`.
/// # Safety
/// `to` is null or can be written; `set` is null or open.
pub(crate) unsafe fn store_joined<T: Object>(
    to: *mut *mut Fid,
    made: T,
    set: *mut Fid,
    fd: impl FnOnce(&T) -> Result<RawFd, Errno>,
) -> Result<(), Errno> {
    let made = Box::new(made);
    let fd = if to.is_null() || set.is_null() { None } else { Some(fd(&made)?) };
    let object = Box::into_raw(made);
    let joined = fd.map_or(Ok(()), |fd| {
        // SAFETY: this function's contract; the object leaves the set when it is closed.
        unsafe { join(set, object.cast(), fd) }
    });
    // SAFETY: as above.
    joined.and_then(|()| unsafe { store(to, object.cast()) }).inspect_err(|_| {
        // SAFETY: it has just been boxed, and has not joined.
        drop(unsafe { Box::from_raw(object) });
    })
}

/// Adds an object that was opened with the wait set `set`.
/// # Safety
/// Both are open, until the object leaves the set.
unsafe fn join(set: *mut Fid, object: *mut Fid, fd: RawFd) -> Result<(), Errno> {
    // SAFETY: this function's contract.
    let set: &WaitSet = unsafe { checked(set) }?;
    // SAFETY: as above.
    let source = unsafe { Source::of(object) }?;
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: the event outlives the call; the kernel checks both descriptors.
    if unsafe { libc::epoll_ctl(set.fd.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) } < 0 {
        return Err(Errno::NOMEM);
    }
    set.sources().push(source);
    set.users.add();
    Ok(())
}

/// Removes an object that is closed. Its descriptor leaves the set by its end.
/// # Safety
/// `set` is null or open.
pub(crate) unsafe fn leave(set: *mut Fid, object: *const Fid) {
    // SAFETY: this function's contract.
    if let Ok(set) = unsafe { checked::<WaitSet>(set) } {
        set.sources().retain(|source| !source.is(object));
        set.users.remove();
    }
}

impl WaitSet {
    fn sources(&self) -> MutexGuard<'_, Vec<Source>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a program may sleep on the descriptor. Objects leave the set inside the lock before they are
    /// freed.
    fn may_sleep(&self) -> bool {
        self.sources().iter().all(Source::try_wait)
    }

    /// Makes progress. Whether an object has something new.
    fn has_news(&self) -> bool {
        let mut any = false;
        for source in self.sources().iter_mut() {
            source.progress();
            any |= source.has_news();
        }
        any
    }
}

calls! {
    fn close(fid: *mut Fid) -> c_int {
        let gone = from_handle::<WaitSet>(fid)?;
        // SAFETY: a fabric is not closed before its wait sets.
        unsafe { &*gone.fabric }.users().remove();
        Ok(0)
    }

    fn control(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
        let set: &WaitSet = checked(fid)?;
        match command {
            flags::GETWAIT => store(arg.cast::<c_int>(), set.fd.as_raw_fd())?,
            flags::GETWAITOBJ => store(arg.cast::<u32>(), flags::WAIT_FD)?,
            command => return Err(refused::log_refusal(&format!("fi_control of a wait set: command {command}"))),
        }
        Ok(0)
    }

    /// Sleeps until an object has something new.
    fn wait(fid: *mut Fid, timeout: c_int) -> c_int {
        let set: &WaitSet = checked(fid)?;
        let deadline = Deadline::after(timeout);
        let mut spins = 0;
        loop {
            if set.has_news() {
                return Ok(0);
            }
            if deadline.is_over() {
                return Err(Errno::TIMEDOUT);
            }
            if spins < SPINS {
                spins += 1;
            } else if set.may_sleep() {
                let slice = deadline.left().map_or(SLICE, |left| left.min(SLICE));
                let mut fd = libc::pollfd { fd: set.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: one descriptor.
                unsafe { libc::poll(&mut fd, 1, slice.as_micros().div_ceil(1000) as c_int) };
            }
        }
    }
}
