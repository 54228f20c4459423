//! Deferred work and triggered operations, which start when a counter reaches a threshold. The program keeps
//! descriptions of deferred work until it has completed, so that starting it is the call that the description
//! is for. An operation with the flag `FI_TRIGGER` is kept here.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::{Fid, Ioc, Msg, MsgAtomic, MsgRma, MsgTagged, flags};
use crate::cntr::Cntr;
use crate::domain::Domain;
use crate::ep::{DeferredCalls, Ep, Face, Triggered};
use crate::errno::Errno;
use crate::object::{Object, checked, read};

/// `struct fi_deferred_work`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Description {
    context: [*mut c_void; 8],
    threshold: u64,
    triggering: *mut Fid,
    completion: *mut Fid,
    op_type: u32,
    op: *const c_void,
}

/// `struct fi_op_msg` and its relatives.
#[derive(Clone, Copy)]
#[repr(C)]
struct Of<M> {
    ep: *mut Fid,
    msg: M,
    flags: u64,
}

/// `struct fi_op_fetch_atomic`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Fetch {
    ep: *mut Fid,
    msg: MsgAtomic,
    result: Elements,
    flags: u64,
}

/// `struct fi_op_compare_atomic`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Compare {
    ep: *mut Fid,
    msg: MsgAtomic,
    result: Elements,
    compare: Elements,
    flags: u64,
}

/// `struct fi_msg_fetch` and `struct fi_msg_compare`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Elements {
    iov: *mut Ioc,
    desc: *mut *mut c_void,
    count: usize,
}

/// `struct fi_op_cntr`.
#[derive(Clone, Copy)]
#[repr(C)]
struct OfCounter {
    cntr: *mut Fid,
    value: u64,
}

/// Types of operations.
const RECV: u32 = 0;
const SEND: u32 = 1;
const TRECV: u32 = 2;
const TSEND: u32 = 3;
const READ: u32 = 4;
const WRITE: u32 = 5;
const ATOMIC: u32 = 6;
const FETCH_ATOMIC: u32 = 7;
const COMPARE_ATOMIC: u32 = 8;
const CNTR_SET: u32 = 9;
const CNTR_ADD: u32 = 10;

/// Work that waits.
pub(crate) enum Work {
    /// Deferred work: its description in memory of the program, and its endpoint; null: none.
    Described(*const c_void, *const Ep),
    /// An operation with the flag `FI_TRIGGER`.
    Triggered(Box<Triggered>),
}

// SAFETY: the program keeps the description, or the memory of an operation, for whichever thread starts it.
unsafe impl Send for Work {}

/// The work queue of a domain: counters for which work waits.
#[derive(Default)]
pub(crate) struct WorkQueue {
    counters: Mutex<Vec<*const Cntr>>,
    waiting: AtomicUsize,
    is_running: AtomicBool,
}

impl Work {
    /// Starts the operation. [`Errno::AGAIN`]: there is no room.
    fn start(&self) -> Result<(), Errno> {
        match self {
            Work::Described(at, _) => {
                let it: Description = read(at.cast())?;
                it.start().or_else(|errno| fail(errno, &it))
            }
            Work::Triggered(operation) => operation.start(),
        }
    }

    /// The endpoint, which is not closed while the work waits.
    fn ep(&self) -> Option<&Ep> {
        match self {
            // SAFETY: an endpoint is not closed while work of it waits.
            Work::Described(_, ep) => unsafe { ep.as_ref() },
            Work::Triggered(operation) => Some(operation.ep()),
        }
    }

    fn is_at(&self, description: *const c_void) -> bool {
        matches!(self, Work::Described(at, _) if std::ptr::eq(*at, description))
    }

    fn is_triggered_at(&self, ep: &Ep) -> bool {
        matches!(self, Work::Triggered(operation) if std::ptr::eq(operation.ep(), ep))
    }
}

impl Description {
    /// The endpoint; every description but those of counters begins with it.
    fn ep<'a>(&self) -> Result<&'a Ep, Errno> {
        Ok(Face::checked(read(self.op.cast::<*mut Fid>())?)?.0)
    }

    fn completion<'a>(&self) -> Result<Option<&'a Cntr>, Errno> {
        if self.completion.is_null() { Ok(None) } else { checked(self.completion).map(Some) }
    }

    fn is_of_counter(&self) -> bool {
        matches!(self.op_type, CNTR_SET | CNTR_ADD)
    }

    /// Starts the operation.
    fn start(&self) -> Result<(), Errno> {
        if self.is_of_counter() {
            let op: OfCounter = read(self.op.cast())?;
            let cntr: &Cntr = checked(op.cntr)?;
            match self.op_type {
                CNTR_SET => cntr.set(op.value),
                _ => cntr.count_many(op.value),
            }
            return Ok(());
        }
        let ep = self.ep()?;
        ep.start_deferred(self.completion()?, |calls| self.call(calls))
    }

    fn call(&self, calls: &DeferredCalls) -> Result<isize, Errno> {
        // SAFETY: the description is one of this type, and its endpoint has been checked.
        let result = unsafe {
            match self.op_type {
                RECV | SEND => {
                    let op: Of<Msg> = read(self.op.cast())?;
                    let call = if self.op_type == RECV { calls.msg.recvmsg } else { calls.msg.sendmsg };
                    call(op.ep, &op.msg, op.flags)
                }
                TRECV | TSEND => {
                    let op: Of<MsgTagged> = read(self.op.cast())?;
                    let is_recv = self.op_type == TRECV;
                    let call = if is_recv { calls.tagged.recvmsg } else { calls.tagged.sendmsg };
                    call(op.ep, &op.msg, op.flags)
                }
                READ | WRITE => {
                    let op: Of<MsgRma> = read(self.op.cast())?;
                    let call = if self.op_type == READ { calls.rma.readmsg } else { calls.rma.writemsg };
                    call(op.ep, &op.msg, op.flags)
                }
                ATOMIC => {
                    let op: Of<MsgAtomic> = read(self.op.cast())?;
                    (calls.atomic.writemsg)(op.ep, &op.msg, op.flags)
                }
                FETCH_ATOMIC => {
                    let op: Fetch = read(self.op.cast())?;
                    let Elements { iov, desc, count } = op.result;
                    (calls.atomic.readwritemsg)(op.ep, &op.msg, iov, desc, count, op.flags)
                }
                COMPARE_ATOMIC => {
                    let op: Compare = read(self.op.cast())?;
                    let (than, to) = (op.compare, op.result);
                    (calls.atomic.compwritemsg)(
                        op.ep, &op.msg, than.iov, than.desc, than.count, to.iov, to.desc, to.count, op.flags,
                    )
                }
                _ => return Err(Errno::NOSYS),
            }
        };
        if result < 0 { Err(Errno(-result as c_int)) } else { Ok(result) }
    }
}

impl Domain {
    /// `fi_control` of the work queue.
    pub(crate) fn control_work(&self, command: c_int, arg: *mut c_void) -> Result<c_int, Errno> {
        let it = || read::<Description>(arg.cast());
        match command {
            flags::QUEUE_WORK => self.queue_work(arg)?,
            flags::CANCEL_WORK => {
                let cntr: &Cntr = checked(it()?.triggering)?;
                let work = cntr.triggers.cancel(|work| work.is_at(arg)).ok_or(Errno::NOENT)?;
                self.leave_queue(cntr, &work);
            }
            // Of one counter, if a description names it; else of all.
            flags::FLUSH_WORK if arg.is_null() => {
                self.counters_with_work().into_iter().for_each(|cntr| self.flush_work(cntr));
            }
            flags::FLUSH_WORK => self.flush_work(checked(it()?.triggering)?),
            command => {
                return Err(crate::refused::log_refusal(&format!(
                    "fi_control of a domain: command {command}"
                )));
            }
        }
        Ok(0)
    }

    fn queue_work(&self, at: *const c_void) -> Result<(), Errno> {
        let it: Description = read(at.cast())?;
        let mut ep = std::ptr::null();
        if self.caps & flags::TRIGGER == 0 {
            tracing::debug!("FI_QUEUE_WORK: the domain was opened without FI_TRIGGER");
            return Err(Errno::NOSYS);
        }
        let cntr: &Cntr = checked(it.triggering)?;
        if it.op_type > CNTR_ADD {
            return Err(Errno::NOSYS);
        }
        if it.is_of_counter() {
            checked::<Cntr>(read(it.op.cast::<OfCounter>())?.cntr)?;
            if !it.completion.is_null() {
                return Err(Errno::INVAL);
            }
        } else {
            let of_work = it.ep()?;
            // Whoever waits for a counter makes progress of the endpoint.
            for of in [Some(cntr), it.completion()?].into_iter().flatten() {
                of_work.join(of)?;
            }
            ep = of_work;
        }
        self.wait_for(cntr, it.threshold, Work::Described(at, ep));
        self.run_work();
        Ok(())
    }

    /// Makes an operation wait for a counter.
    pub(crate) fn trigger(&self, cntr: &Cntr, threshold: u64, operation: Triggered) -> Result<(), Errno> {
        operation.ep().join(cntr)?;
        self.wait_for(cntr, threshold, Work::Triggered(Box::new(operation)));
        Ok(())
    }

    fn wait_for(&self, cntr: &Cntr, threshold: u64, work: Work) {
        if let Some(ep) = work.ep() {
            ep.users().add();
        }
        cntr.users().add();
        self.work.waiting.fetch_add(1, Ordering::AcqRel);
        let mut counters = self.work.lock();
        if !counters.iter().any(|known| std::ptr::eq(*known, cntr)) {
            counters.push(cntr);
        }
        cntr.triggers.defer(threshold, work);
    }

    /// Forgets triggered operations of an endpoint that is closed.
    pub(crate) fn forget_triggered(&self, ep: &Ep) {
        if self.work.waiting.load(Ordering::Acquire) == 0 {
            return;
        }
        for cntr in self.counters_with_work() {
            while let Some(work) = cntr.triggers.cancel(|work| work.is_triggered_at(ep)) {
                self.leave_queue(cntr, &work);
            }
        }
    }

    /// Starts work whose counter has reached its threshold. Outside the locks of endpoints. // HOT
    #[inline(always)]
    pub(crate) fn run_work(&self) {
        if self.work.waiting.load(Ordering::Acquire) > 0 {
            self.run_waiting();
        }
    }

    #[cold]
    #[inline(never)]
    fn run_waiting(&self) {
        if self.work.is_running.swap(true, Ordering::AcqRel) {
            return;
        }
        // Work may change counters for which other work waits.
        while self.counters_with_work().into_iter().any(|cntr| self.run_work_of(cntr)) {}
        self.work.is_running.store(false, Ordering::Release);
    }

    /// Starts what is due at a counter. Returns whether something has started.
    fn run_work_of(&self, cntr: &Cntr) -> bool {
        let mut has_started = false;
        while let Some((threshold, work)) = cntr.triggers.take_due(cntr.total()) {
            match work.start() {
                Err(Errno::AGAIN) => {
                    cntr.triggers.put_back(threshold, work);
                    break;
                }
                _ => self.leave_queue(cntr, &work),
            }
            has_started = true;
        }
        has_started
    }

    fn flush_work(&self, cntr: &Cntr) {
        while let Some(work) = cntr.triggers.cancel(|_| true) {
            self.leave_queue(cntr, &work);
        }
    }

    /// Work of a counter waits no more.
    fn leave_queue(&self, cntr: &Cntr, work: &Work) {
        let mut counters = self.work.lock();
        if cntr.triggers.is_empty() {
            counters.retain(|known| !std::ptr::eq(*known, cntr));
        }
        drop(counters);
        self.work.waiting.fetch_sub(1, Ordering::AcqRel);
        cntr.users().remove();
        if let Some(ep) = work.ep() {
            ep.users().remove();
        }
    }

    fn counters_with_work<'a>(&self) -> Vec<&'a Cntr> {
        // SAFETY: a counter is not closed while work waits for it.
        self.work.lock().iter().map(|cntr| unsafe { &**cntr }).collect()
    }
}

/// Tells the completion counter that work could not start; there is nobody else. It waits if that was for
/// lack of room.
fn fail(errno: Errno, it: &Description) -> Result<(), Errno> {
    if errno == Errno::AGAIN {
        return Err(errno);
    }
    tracing::error!("deferred work of type {} could not start: error {}", it.op_type, errno.0);
    if let Ok(Some(cntr)) = it.completion() {
        cntr.count(true);
    }
    Ok(())
}

impl WorkQueue {
    fn lock(&self) -> MutexGuard<'_, Vec<*const Cntr>> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
