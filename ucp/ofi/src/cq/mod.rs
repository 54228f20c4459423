//! Completion queues. The entries lie in the endpoints, which their locks protect; reading a queue takes them
//! out of there, and lets the endpoints make progress if there are none.

mod error;
mod read;

use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_char, c_int, c_void};

use crate::abi::ops::{CqOps, FidOps};
use crate::abi::queue::{CqAttr, CqErrEntry, CqTaggedEntry};
use crate::abi::{FiAddr, Fid, flags};
use crate::domain::Domain;
use crate::errno::Errno;
use crate::object::{Object, UserCount, checked, from_fid, from_handle, read};
use crate::refused;
use crate::wait::{Deadline, Members};

use error::UNKNOWN_SOURCE;
pub(crate) use error::describe;

/// Reads of an empty queue before a thread sleeps.
const SPINS: u32 = 2000;

/// `struct fid_cq`, and what belongs to it.
#[repr(C)]
pub(crate) struct Cq {
    fid: Fid,
    ops: &'static CqOps,
    domain: *const Domain,
    users: UserCount,
    pub(crate) members: Members,
    wait_obj: u32,
    wait_set: *mut Fid,
    /// Whether a condition of a sleep is the number of entries to wait for.
    has_threshold: bool,
    /// Bytes of an entry of the program.
    entry_size: usize,
    /// Endpoint that is read first. Inside the lock of the members.
    turn: Cell<usize>,
    /// Data of the error that was read last: a text that ends with a zero, or a name. Inside the lock of the
    /// members.
    err_data: UnsafeCell<Vec<u8>>,
}

impl Object for Cq {
    const CLASS: usize = flags::CLASS_CQ;
    const NAME: &'static str = "a completion queue";
    fn users(&self) -> &UserCount {
        &self.users
    }
}

static FID_OPS: FidOps = refused::fid_ops(close, refused::bind, control);

static OPS: CqOps = CqOps {
    size: size_of::<CqOps>(),
    read: cq_read,
    readfrom: cq_readfrom,
    readerr: cq_readerr,
    sread: cq_sread,
    sreadfrom: cq_sreadfrom,
    signal: cq_signal,
    strerror: cq_strerror,
};

/// Opens a completion queue.
/// # Safety
/// `attr` is null or whole, with objects that are open; `to` is null or can be written.
pub(crate) unsafe fn open(
    domain: &Domain,
    attr: *const CqAttr,
    to: *mut *mut Fid,
    context: *mut c_void,
) -> Result<(), Errno> {
    // SAFETY: this function's contract.
    let attr = if attr.is_null() { None } else { Some(unsafe { read(attr) }?) };
    let format = attr.map_or(flags::CQ_FORMAT_UNSPEC, |attr| attr.format);
    let wait_obj = attr.map_or(flags::WAIT_NONE, |attr| attr.wait_obj);
    let wait_set = attr.map_or(std::ptr::null_mut(), |attr| attr.wait_set);
    // SAFETY: as above.
    let wait_set = unsafe { crate::wait_set::asked(wait_obj, wait_set) }?;
    let entry_size = match format {
        flags::CQ_FORMAT_UNSPEC | flags::CQ_FORMAT_CONTEXT => 8,
        flags::CQ_FORMAT_MSG => 24,
        flags::CQ_FORMAT_DATA => 40,
        flags::CQ_FORMAT_TAGGED => size_of::<CqTaggedEntry>(),
        format => {
            tracing::error!("fi_cq_open: there is no format {format}");
            return Err(Errno::INVAL);
        }
    };
    let made = Cq {
        fid: refused::fid(flags::CLASS_CQ, context, &FID_OPS),
        ops: &OPS,
        domain,
        users: UserCount::default(),
        members: Members::new(domain.mode, wait_obj)?,
        wait_obj,
        wait_set,
        has_threshold: attr.is_some_and(|attr| attr.wait_cond == flags::CQ_COND_THRESHOLD),
        entry_size,
        turn: Cell::new(0),
        err_data: UnsafeCell::default(),
    };
    // SAFETY: as above.
    unsafe { crate::wait_set::store_joined(to, made, wait_set, |cq: &Cq| cq.members.fd()) }?;
    domain.users().add();
    Ok(())
}

impl Cq {
    // HOT
    #[inline(always)]
    fn domain(&self) -> &Domain {
        // SAFETY: a domain is not closed before its queues.
        unsafe { &*self.domain }
    }

    /// Progress of its endpoints, and deferred work that is due then.
    pub(crate) fn progress(&self) {
        self.members.progress();
        self.domain().run_work();
    }

    /// Takes entries, sleeping until there are some, or as many as the condition says.
    /// # Safety
    /// As for [`Cq::take`].
    unsafe fn wait(
        &self,
        (at, count): (*mut c_void, usize),
        sources: *mut FiAddr,
        cond: *const c_void,
        timeout: c_int,
    ) -> Result<isize, Errno> {
        if self.wait_obj == flags::WAIT_NONE {
            return Err(refused::log_refusal("fi_cq_sread: the queue was opened without a wait object"));
        }
        let deadline = Deadline::after(timeout);
        let threshold = if self.has_threshold { cond.addr() } else { 1 };
        let mut spins = 0;
        loop {
            let is_enough = threshold <= 1 || deadline.is_over() || {
                self.progress();
                self.holds(threshold)
            };
            if is_enough {
                // SAFETY: this function's contract.
                match unsafe { self.take(at, count, sources) } {
                    Err(Errno::AGAIN) => {}
                    done => return done,
                }
            }
            if self.members.takes_signal() {
                return Err(Errno::AGAIN);
            }
            if spins < SPINS {
                spins += 1;
                if spins % 64 != 0 || !deadline.is_over() {
                    continue;
                }
            }
            if deadline.is_over() {
                return Err(Errno::AGAIN);
            }
            self.members.sleep(&deadline, || self.holds(threshold.max(1)));
        }
    }

    /// Whether a program may sleep on the descriptor: there is nothing to read, and nothing to do.
    pub(crate) fn try_wait(&self) -> bool {
        self.members.try_wait(|| self.has_entries())
    }

    /// Whether so many entries are there, or an error, or as many of one direction as it has room for: no
    /// operation more can start until they are read.
    fn holds(&self, threshold: usize) -> bool {
        let mut total = 0usize;
        for ep in self.members.inside().eps() {
            let counted = ep.inside(|plain| {
                ep.collect_kept(plain);
                let ways = ep.directions().into_iter();
                ways.filter(|way| way.ring_of(self).is_some()).fold((0, false), |(sum, is_enough), way| {
                    (sum + way.ring.len(), is_enough || way.ring.has_error() || way.is_full_of_entries())
                })
            });
            match counted {
                (sum, false) => total += sum,
                (_, true) => return true,
            }
        }
        total >= threshold
    }

    /// Whether there is something to read.
    pub(crate) fn has_entries(&self) -> bool {
        self.holds(1)
    }
}

calls! {
    fn close(fid: *mut Fid) -> c_int {
        let gone = from_handle::<Cq>(fid)?;
        crate::wait_set::leave(gone.wait_set, &gone.fid);
        // SAFETY: a domain is not closed before its queues.
        unsafe { &*gone.domain }.users().remove();
        Ok(0)
    }

    fn control(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
        let cq: &Cq = checked(fid)?;
        match command {
            flags::GETWAIT => crate::object::store(arg.cast::<c_int>(), cq.members.fd()?)?,
            flags::GETWAITOBJ => crate::object::store(arg.cast::<u32>(), cq.wait_obj)?,
            command => return Err(refused::log_refusal(&format!("fi_control of a queue: command {command}"))),
        }
        Ok(0)
    }

    /// Reads entries.
    // HOT
    fn cq_read(fid: *mut Fid, buf: *mut c_void, count: usize) -> isize {
        from_fid::<Cq>(fid)?.take(buf, count, std::ptr::null_mut())
    }

    /// Reads entries, and from whom they are.
    // HOT
    fn cq_readfrom(fid: *mut Fid, buf: *mut c_void, count: usize, sources: *mut FiAddr) -> isize {
        from_fid::<Cq>(fid)?.take(buf, count, sources)
    }

    /// Reads an error.
    fn cq_readerr(fid: *mut Fid, entry: *mut CqErrEntry, flags: u64) -> isize {
        if flags != 0 {
            return Err(Errno::BADFLAGS);
        }
        if entry.is_null() {
            return Err(Errno::INVAL);
        }
        from_fid::<Cq>(fid)?.take_error(entry)
    }

    /// Reads entries, sleeping until there are some.
    fn cq_sread(fid: *mut Fid, buf: *mut c_void, count: usize, cond: *const c_void, timeout: c_int) -> isize {
        from_fid::<Cq>(fid)?.wait((buf, count), std::ptr::null_mut(), cond, timeout)
    }

    /// Reads entries and their sources, sleeping until there are some.
    fn cq_sreadfrom(
        fid: *mut Fid, buf: *mut c_void, count: usize, sources: *mut FiAddr, cond: *const c_void, timeout: c_int,
    ) -> isize {
        from_fid::<Cq>(fid)?.wait((buf, count), sources, cond, timeout)
    }

    /// Ends the sleep of a reader.
    fn cq_signal(fid: *mut Fid) -> c_int {
        checked::<Cq>(fid)?.members.signal();
        Ok(0)
    }

    /// Text of an error: that of the entry if there is one, else that of its number.
    fn cq_strerror(
        _fid: *mut Fid, number: c_int, err_data: *const c_void, buf: *mut c_char, len: usize,
    ) -> *const c_char {
        if err_data.is_null() || number == UNKNOWN_SOURCE {
            return Ok(describe(number, buf, len));
        }
        if !buf.is_null() && len > 0 {
            // SAFETY: the data of an error entry is a text; the caller's memory has this length.
            unsafe { libc::snprintf(buf, len, c"%s".as_ptr(), err_data.cast::<c_char>()) };
            return Ok(buf.cast_const());
        }
        Ok(err_data.cast())
    }
}
