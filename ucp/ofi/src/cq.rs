//! Completion queues. The entries lie in the endpoints, which their locks protect; reading a queue takes them
//! out of there, and lets the endpoints make progress if there are none.

use std::cell::{Cell, UnsafeCell};
use std::ffi::{CString, c_char, c_int, c_void};

use ucs::Status;

use crate::abi::ops::{CqOps, FidOps};
use crate::abi::queue::{CqAttr, CqErrEntry, CqTaggedEntry};
use crate::abi::{FiAddr, Fid, flags};
use crate::domain::Domain;
use crate::ep::Ep;
use crate::errno::Errno;
use crate::info::MAX_ERR_DATA;
use crate::object::{Object, UserCount, checked, from_fid, from_handle, read, store_error_entry};
use crate::refused;
use crate::ring::{Cause, Entry, Failure, Ring};
use crate::wait::{Deadline, Members};

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
    unsafe fn take(&self, at: *mut c_void, count: usize, sources: *mut FiAddr) -> Result<isize, Errno> {
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

    /// Takes an error.
    /// # Safety
    /// `to` is an entry, with the memory that it names.
    unsafe fn take_error(&self, to: *mut CqErrEntry) -> Result<isize, Errno> {
        let inside = self.members.inside();
        for ep in inside.eps() {
            let next = ep.inside(|_| {
                let found = ep.rings_of(self).find_map(Ring::take_error);
                found.map(|(entry, failure)| match failure.cause {
                    // Answers to the program rather than failures. Programs read them into entries that
                    // they have not initialized, as `fi_recv_cancel` of fabtests: no data is written.
                    Cause::Failed(error) if matches!(Errno::from(error), Errno::CANCELED | Errno::NOMSG) => {
                        (entry, failure, Vec::new())
                    }
                    Cause::Failed(error) => (entry, failure, text_bytes(ep.text_of(error))),
                    Cause::UnknownSource => (entry, failure, ep.name_of(entry.from)),
                })
            });
            if let Some((entry, failure, made)) = next {
                // SAFETY: inside the lock of the members.
                let data = unsafe { &mut *self.err_data.get() };
                *data = made;
                // SAFETY: the caller passes an entry.
                unsafe { write_error(to, &entry, failure, data, self.domain().fabric().has_error_data()) };
                return Ok(1);
            }
        }
        Err(Errno::AGAIN)
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

/// A text as the data of an error: as much as fits, and a zero.
fn text_bytes(words: String) -> Vec<u8> {
    let mut bytes = words.into_bytes();
    bytes.truncate(MAX_ERR_DATA - 1);
    bytes.push(0);
    bytes
}

/// Provider's number of an error whose data is the name of an unknown sender. Others are not positive.
const UNKNOWN_SOURCE: c_int = Errno::ADDRNOTAVAIL.0;

/// Writes an error entry. Its data is copied to the memory that the entry names, or stays in `data`. A text
/// that has no room is cut, and ends with a zero. `has_size`: the entry has a size of its data, which those
/// of programs of versions before 1.5 do not have.
/// # Safety
/// `to` is an entry of the caller, without its last field unless `has_size`.
unsafe fn write_error(to: *mut CqErrEntry, entry: &Entry, failure: Failure, data: &[u8], has_size: bool) {
    let (room, size) = match has_size {
        // SAFETY: this function's contract.
        true => unsafe { ((*to).err_data, (*to).err_data_size) },
        false => (std::ptr::null_mut(), 0),
    };
    let (err_data, err_data_size) = if data.is_empty() {
        // `fi_cq_strerror` of a null pointer describes the number.
        (std::ptr::null_mut(), 0)
    } else if size > 0 && !room.is_null() {
        let len = data.len().min(size);
        // SAFETY: the caller's memory has this size.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), room.cast::<u8>(), len) };
        if matches!(failure.cause, Cause::Failed(_)) {
            // SAFETY: as above; it is not empty.
            unsafe { room.cast::<u8>().add(len - 1).write(0) };
        }
        (room, len)
    } else {
        (data.as_ptr().cast_mut().cast(), data.len())
    };
    let (err, prov_errno) = match failure.cause {
        Cause::Failed(error) => (Errno::from(error), error.status().code()),
        Cause::UnknownSource => (Errno::ADDRNOTAVAIL, UNKNOWN_SOURCE),
    };
    let shown = entry.shown;
    let made = CqErrEntry {
        op_context: shown.op_context,
        flags: shown.flags,
        len: shown.len,
        buf: shown.buf,
        data: shown.data,
        tag: shown.tag,
        olen: failure.cut,
        err: err.0,
        prov_errno,
        err_data,
        err_data_size,
    };
    // SAFETY: this function's contract.
    unsafe { store_error_entry(to, &made, has_size) };
}

/// Description of a provider's error number, in the caller's memory if there is some.
/// # Safety
/// `buf` is null or memory of `len` bytes.
pub(crate) unsafe fn describe(number: c_int, buf: *mut c_char, len: usize) -> *const c_char {
    const UNKNOWN_SENDER: &str = "the sender is not in the address vector";
    static NAMES: std::sync::Mutex<Vec<(c_int, &'static CString)>> = std::sync::Mutex::new(Vec::new());
    let mut names = NAMES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let known = names.iter().find(|(known, _)| *known == number).map(|(_, text)| *text);
    let words = match number {
        UNKNOWN_SOURCE => Some(UNKNOWN_SENDER.to_owned()),
        number => Status::from_code(number).map(|status| status.to_string()),
    };
    let text = match (known, words) {
        (Some(text), _) => text,
        (None, Some(words)) => {
            // Kept for the life of the process, as callers keep what they get. There are few numbers.
            let text = CString::new(words).unwrap_or_default();
            let text: &'static CString = Box::leak(Box::new(text));
            names.push((number, text));
            text
        }
        (None, None) => return c"unknown error of the provider".as_ptr(),
    };
    if !buf.is_null() && len > 0 {
        let bytes = text.as_bytes();
        let copied = bytes.len().min(len - 1);
        // SAFETY: the caller passes memory of this length.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast::<u8>(), copied);
            buf.add(copied).write(0);
        }
    }
    text.as_ptr()
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
