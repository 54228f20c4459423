//! Counters of completions and errors.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::ops::{CntrOps, FidOps};
use crate::abi::queue::CntrAttr;
use crate::abi::{Fid, flags};
use crate::deferred::Work;
use crate::domain::Domain;
use crate::errno::Errno;
use crate::object::{Object, UserCount, checked, from_fid, from_handle, read, store};
use crate::refused;
use crate::wait::{Deadline, Members};

/// Looks at the value before a thread sleeps.
const SPINS: u32 = 2000;

/// `struct fid_cntr`, and what belongs to it.
#[repr(C)]
pub(crate) struct Cntr {
    fid: Fid,
    ops: &'static CntrOps,
    domain: *const Domain,
    users: UserCount,
    pub(crate) members: Members,
    wait_obj: u32,
    wait_set: *mut Fid,
    value: AtomicU64,
    errors: AtomicU64,
    /// The total when the program read it last.
    seen: AtomicU64,
    /// Deferred work that waits for it.
    pub(crate) triggers: ucp::Triggers<Work>,
}

impl Object for Cntr {
    const CLASS: usize = flags::CLASS_CNTR;
    const NAME: &'static str = "a counter";
    fn users(&self) -> &UserCount {
        &self.users
    }
}

static FID_OPS: FidOps = refused::fid_ops(close, refused::bind, control);

static OPS: CntrOps = CntrOps {
    size: size_of::<CntrOps>(),
    read: cntr_read,
    readerr: cntr_readerr,
    add: cntr_add,
    set: cntr_set,
    wait: cntr_wait,
    adderr: cntr_adderr,
    seterr: cntr_seterr,
};

/// Opens a counter.
/// # Safety
/// `attr` is null or whole, with objects that are open; `to` is null or can be written.
pub(crate) unsafe fn open(
    domain: &Domain,
    attr: *const CntrAttr,
    to: *mut *mut Fid,
    context: *mut c_void,
) -> Result<(), Errno> {
    // SAFETY: this function's contract.
    let attr = if attr.is_null() { None } else { Some(unsafe { read(attr) }?) };
    if attr.is_some_and(|attr| attr.events != 0 || attr.flags != 0) {
        tracing::error!("fi_cntr_open: counters count completions, without flags");
        return Err(Errno::INVAL);
    }
    let wait_obj = attr.map_or(flags::WAIT_UNSPEC, |attr| attr.wait_obj);
    let wait_set = attr.map_or(std::ptr::null_mut(), |attr| attr.wait_set);
    // SAFETY: as above.
    let wait_set = unsafe { crate::wait_set::asked(wait_obj, wait_set) }?;
    let made = Cntr {
        fid: refused::fid(flags::CLASS_CNTR, context, &FID_OPS),
        ops: &OPS,
        domain,
        users: UserCount::default(),
        members: Members::new(domain.mode, wait_obj)?,
        wait_obj,
        wait_set,
        value: AtomicU64::new(0),
        errors: AtomicU64::new(0),
        seen: AtomicU64::new(0),
        triggers: ucp::Triggers::default(),
    };
    // SAFETY: as above.
    unsafe { crate::wait_set::store_joined(to, made, wait_set, |cntr: &Cntr| cntr.members.fd()) }?;
    domain.users().add();
    Ok(())
}

impl Cntr {
    /// Counts an operation that has ended.
    // HOT
    #[inline]
    pub(crate) fn count(&self, is_error: bool) {
        let of = if is_error { &self.errors } else { &self.value };
        of.fetch_add(1, Ordering::Release);
    }

    /// Counts operations that have ended well.
    pub(crate) fn count_many(&self, number: u64) {
        self.value.fetch_add(number, Ordering::Release);
    }

    /// Sets the number of operations that have ended well.
    pub(crate) fn set(&self, value: u64) {
        self.value.store(value, Ordering::Release);
    }

    /// Value and errors, which the program is told.
    // HOT
    #[inline]
    fn see(&self) -> (u64, u64) {
        let (value, errors) = (self.value.load(Ordering::Acquire), self.errors.load(Ordering::Acquire));
        self.seen.store(value.wrapping_add(errors), Ordering::Relaxed);
        (value, errors)
    }

    /// Progress of its endpoints, and deferred work that is due then.
    pub(crate) fn progress(&self) {
        self.members.progress();
        // SAFETY: a domain is not closed before its counters.
        unsafe { &*self.domain }.run_work();
    }

    /// Number of operations that have ended, and of changes by the program.
    pub(crate) fn total(&self) -> u64 {
        let (value, errors) = (self.value.load(Ordering::Acquire), self.errors.load(Ordering::Acquire));
        value.wrapping_add(errors)
    }

    /// Whether work that waits for it is to start.
    pub(crate) fn is_due(&self) -> bool {
        self.triggers.is_due(self.total())
    }

    fn wait(&self, threshold: u64, timeout: c_int) -> Result<c_int, Errno> {
        let deadline = Deadline::after(timeout);
        let errors = self.errors.load(Ordering::Acquire);
        let mut spins = 0;
        loop {
            self.progress();
            let now = self.see();
            if now.0 >= threshold {
                return Ok(0);
            }
            if now.1 != errors {
                return Err(Errno::AVAIL);
            }
            spins += 1;
            if (spins % 64 == 0 || spins > SPINS) && deadline.is_over() {
                return Err(Errno::TIMEDOUT);
            }
            if spins > SPINS {
                let has_ended = || {
                    self.value.load(Ordering::Acquire) >= threshold
                        || self.errors.load(Ordering::Acquire) != errors
                };
                self.members.sleep(&deadline, has_ended);
            }
        }
    }

    /// Whether a program may sleep on the descriptor: it has been told of the total, by a read of the counter
    /// or by the wait set that has reported `reported`, and there is nothing to do.
    pub(crate) fn try_wait(&self, reported: Option<u64>) -> bool {
        self.members.try_wait(|| {
            let total = self.total();
            total != self.seen.load(Ordering::Relaxed) && Some(total) != reported
        })
    }
}

/// Changes a value, and wakes a thread that waits for it.
/// # Safety
/// As for [`from_fid`], of a counter.
unsafe fn change(fid: *mut Fid, change: impl FnOnce(&Cntr)) -> Result<c_int, Errno> {
    // SAFETY: this function's contract.
    let cntr: &Cntr = unsafe { from_fid(fid) }?;
    change(cntr);
    cntr.members.wake_all();
    // SAFETY: a domain is not closed before its counters.
    unsafe { &*cntr.domain }.run_work();
    Ok(0)
}

calls! {
    fn close(fid: *mut Fid) -> c_int {
        let gone = from_handle::<Cntr>(fid)?;
        // SAFETY: a domain is not closed before its counters.
        let domain = unsafe { &*gone.domain };
        let joins = domain.lock_joins();
        gone.members.inside().eps().for_each(|ep| ep.leave(&gone));
        drop(joins);
        crate::wait_set::leave(gone.wait_set, &gone.fid);
        domain.users().remove();
        Ok(0)
    }

    fn control(fid: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
        let cntr: &Cntr = checked(fid)?;
        match command {
            flags::GETWAIT => store(arg.cast::<c_int>(), cntr.members.fd()?)?,
            flags::GETWAITOBJ => store(arg.cast::<u32>(), cntr.wait_obj)?,
            command => return Err(refused::log_refusal(&format!("fi_control of a counter: command {command}"))),
        }
        Ok(0)
    }

    /// Number of operations that have ended well, after progress.
    // HOT
    fn cntr_read(fid: *mut Fid) -> u64 {
        let cntr: &Cntr = from_fid(fid)?;
        cntr.progress();
        Ok(cntr.see().0)
    }

    /// Number of operations that have failed.
    fn cntr_readerr(fid: *mut Fid) -> u64 {
        let cntr: &Cntr = from_fid(fid)?;
        cntr.progress();
        Ok(cntr.see().1)
    }

    fn cntr_add(fid: *mut Fid, value: u64) -> c_int {
        change(fid, |cntr| _ = cntr.value.fetch_add(value, Ordering::AcqRel))
    }

    fn cntr_set(fid: *mut Fid, value: u64) -> c_int {
        change(fid, |cntr| cntr.set(value))
    }

    fn cntr_adderr(fid: *mut Fid, value: u64) -> c_int {
        change(fid, |cntr| _ = cntr.errors.fetch_add(value, Ordering::AcqRel))
    }

    fn cntr_seterr(fid: *mut Fid, value: u64) -> c_int {
        change(fid, |cntr| cntr.errors.store(value, Ordering::Release))
    }

    /// Waits until the value reaches the threshold, an operation fails, or the timeout.
    fn cntr_wait(fid: *mut Fid, threshold: u64, timeout: c_int) -> c_int {
        from_fid::<Cntr>(fid)?.wait(threshold, timeout)
    }
}
