//! Deferred work and operations with `FI_TRIGGER`, which start when a counter reaches a threshold.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::{Fid, flags};
use crate::cntr::Cntr;
use crate::domain::Domain;
use crate::ep::{Ep, OwnedOp};
use crate::errno::Errno;
use crate::object::{Object, UserCount, checked, read};

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

/// `struct fi_op_cntr`.
#[derive(Clone, Copy)]
#[repr(C)]
struct OfCounter {
    cntr: *mut Fid,
    value: u64,
}

/// Types of operations that change counters.
const CNTR_SET: u32 = 9;
const CNTR_ADD: u32 = 10;

/// Work that waits. Descriptions are copied: the program may change them after the call.
pub(crate) struct Work {
    /// Where the program has the description, which names the work; null of an operation with `FI_TRIGGER`.
    at: *const c_void,
    what: What,
    /// Counter of the end; null: none.
    completion: *const Cntr,
}

enum What {
    Operation(*const Ep, Box<OwnedOp>),
    /// A change of a counter.
    Counter {
        cntr: *const Cntr,
        op_type: u32,
        value: u64,
    },
}

// SAFETY: the program keeps the memory of an operation for whichever thread starts it.
unsafe impl Send for Work {}

/// The work queue of a domain: counters for which work waits.
#[derive(Default)]
pub(crate) struct WorkQueue {
    counters: Mutex<Vec<*const Cntr>>,
    waiting: AtomicUsize,
    /// Held while work starts, and while it is taken back: none of it is between both then.
    starts: Mutex<()>,
}

impl Work {
    /// The work that a description is of.
    /// # Safety
    /// `at` is null or a whole description, whose objects are open.
    unsafe fn described(at: *const c_void) -> Result<Work, Errno> {
        // SAFETY: this function's contract.
        let it: Description = unsafe { read(at.cast()) }?;
        if !matches!(it.op_type, CNTR_SET | CNTR_ADD) {
            let completion: *const Cntr = match it.completion.is_null() {
                true => std::ptr::null(),
                // SAFETY: as above.
                false => unsafe { checked::<Cntr>(it.completion) }?,
            };
            // SAFETY: as above.
            let (ep, op) = unsafe { crate::ep::operation(it.op_type, it.op) }?;
            return Ok(Work { at, what: What::Operation(ep, Box::new(op)), completion });
        }
        // SAFETY: as above.
        let op: OfCounter = unsafe { read(it.op.cast()) }?;
        // SAFETY: as above.
        let cntr: &Cntr = unsafe { checked(op.cntr) }?;
        if !it.completion.is_null() {
            return Err(Errno::INVAL);
        }
        let what = What::Counter { cntr, op_type: it.op_type, value: op.value };
        Ok(Work { at, what, completion: std::ptr::null() })
    }

    fn completion(&self) -> Option<&Cntr> {
        // SAFETY: a counter is not closed while work uses it.
        unsafe { self.completion.as_ref() }
    }

    /// The counter that the work changes.
    fn changed(&self) -> Option<&Cntr> {
        match self.what {
            // SAFETY: as above.
            What::Counter { cntr, .. } => Some(unsafe { &*cntr }),
            What::Operation(..) => None,
        }
    }

    /// The endpoint, which is not closed while the work waits.
    fn ep(&self) -> Option<&Ep> {
        match self.what {
            // SAFETY: an endpoint is not closed while work of it waits.
            What::Operation(ep, _) => Some(unsafe { &*ep }),
            What::Counter { .. } => None,
        }
    }

    /// The operation, if it is one of this endpoint, and of this direction if there is one: that of receives
    /// or that of other operations.
    fn op_of(&self, ep: &Ep, is_recv: Option<bool>) -> Option<&OwnedOp> {
        match &self.what {
            What::Operation(of, op) if std::ptr::eq(*of, ep) => {
                Some(&**op).filter(|op| is_recv.is_none_or(|is_recv| op.is_recv() == is_recv))
            }
            What::Operation(..) | What::Counter { .. } => None,
        }
    }

    /// Whether it is an operation with `FI_TRIGGER`.
    fn is_triggered(&self) -> bool {
        self.at.is_null()
    }

    /// Objects that are not closed while the work waits.
    fn uses(&self) -> impl Iterator<Item = &UserCount> {
        let counters = [self.changed(), self.completion()].into_iter().flatten().map(Object::users);
        counters.chain(self.ep().map(Object::users))
    }

    /// Starts the operation. [`Errno::AGAIN`]: there is no room.
    fn start(&self) -> Result<(), Errno> {
        match &self.what {
            What::Counter { cntr, op_type, value } => {
                // SAFETY: a counter is not closed while work uses it.
                let cntr = unsafe { &**cntr };
                match *op_type {
                    CNTR_SET => cntr.set(*value),
                    _ => cntr.count_many(*value),
                }
                cntr.members.wake_all();
                Ok(())
            }
            What::Operation(ep, op) => {
                // SAFETY: as in `ep`.
                let ep = unsafe { &**ep };
                if self.is_triggered() {
                    return op.start(ep);
                }
                ep.start_deferred(self.completion(), op).or_else(|errno| self.fail(errno))
            }
        }
    }

    /// Tells the completion counter that work could not start; there is nobody else. It waits if that was for
    /// lack of room.
    fn fail(&self, errno: Errno) -> Result<(), Errno> {
        if errno == Errno::AGAIN {
            return Err(errno);
        }
        tracing::error!("deferred work could not start: error {}", errno.0);
        if let Some(cntr) = self.completion() {
            cntr.count(true);
            cntr.members.wake_all();
        }
        Ok(())
    }
}

impl Domain {
    /// `fi_control` of the work queue.
    /// # Safety
    /// `arg` is null or a whole description, whose objects are open.
    pub(crate) unsafe fn control_work(&self, command: c_int, arg: *mut c_void) -> Result<c_int, Errno> {
        // SAFETY: this function's contract.
        let it = || unsafe { read::<Description>(arg.cast()) };
        match command {
            // SAFETY: as above.
            flags::QUEUE_WORK => unsafe { self.queue_work(arg) }?,
            flags::CANCEL_WORK => {
                // SAFETY: as above.
                let cntr: &Cntr = unsafe { checked(it()?.triggering) }?;
                self.between_starts(|| {
                    let found = cntr.triggers.cancel(|work| std::ptr::eq(work.at, arg));
                    found.map(|work| self.leave_queue(cntr, &work)).ok_or(Errno::NOENT)
                })?;
            }
            // Of one counter, if a description names it; else of all.
            flags::FLUSH_WORK if arg.is_null() => {
                self.between_starts(|| {
                    self.counters_with_work().into_iter().for_each(|cntr| self.take_back(cntr, |_| true));
                });
            }
            flags::FLUSH_WORK => {
                // SAFETY: as above.
                let cntr: &Cntr = unsafe { checked(it()?.triggering) }?;
                self.between_starts(|| self.take_back(cntr, |_| true));
            }
            command => {
                return Err(crate::refused::log_refusal(&format!(
                    "fi_control of a domain: command {command}"
                )));
            }
        }
        Ok(0)
    }

    /// # Safety
    /// As for [`Work::described`].
    unsafe fn queue_work(&self, at: *const c_void) -> Result<(), Errno> {
        // SAFETY: this function's contract.
        let it: Description = unsafe { read(at.cast()) }?;
        if self.caps & flags::TRIGGER == 0 {
            tracing::debug!("FI_QUEUE_WORK: the domain was opened without FI_TRIGGER");
            return Err(Errno::NOSYS);
        }
        // SAFETY: this function's contract.
        let cntr: &Cntr = unsafe { checked(it.triggering) }?;
        // SAFETY: as above.
        self.wait_for(cntr, it.threshold, unsafe { Work::described(at) }?)
    }

    /// Makes an operation wait for a counter.
    pub(crate) fn trigger(&self, cntr: &Cntr, threshold: u64, ep: &Ep, op: OwnedOp) -> Result<(), Errno> {
        let what = What::Operation(ep, Box::new(op));
        self.wait_for(cntr, threshold, Work { at: std::ptr::null(), what, completion: std::ptr::null() })
    }

    fn wait_for(&self, cntr: &Cntr, threshold: u64, work: Work) -> Result<(), Errno> {
        let joins = self.lock_joins();
        // Whoever waits for a counter that the work uses makes progress of all that it waits for.
        let counted: Vec<*const Ep> = cntr.members.inside().eps().map(std::ptr::from_ref).collect();
        let counted = counted.into_iter().map(|ep| {
            // SAFETY: an endpoint leaves its counters before it is closed, none of them while others join.
            unsafe { &*ep }
        });
        for ep in counted.chain(work.ep()) {
            for of in [Some(cntr), work.completion(), work.changed()].into_iter().flatten() {
                ep.join(of)?;
            }
        }
        work.uses().chain([cntr.users()]).for_each(UserCount::add);
        drop(joins);
        self.work.waiting.fetch_add(1, Ordering::AcqRel);
        self.list(cntr, || cntr.triggers.defer(threshold, work));
        self.run_work();
        Ok(())
    }

    /// Forgets triggered operations of an endpoint that is closed, or of one direction of it: that of
    /// receives or that of other operations. [`Errno::BUSY`], and nothing is forgotten: deferred work of it
    /// waits, or, where there is no direction, something else uses the endpoint.
    pub(crate) fn forget_triggered(&self, ep: &Ep, is_recv: Option<bool>) -> Result<(), Errno> {
        if self.work.waiting.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let is_its = |work: &Work, is_triggered: bool| {
            work.is_triggered() == is_triggered && work.op_of(ep, is_recv).is_some()
        };
        self.between_starts(|| {
            let counters = self.counters_with_work();
            let count = |is_triggered: bool| -> usize {
                counters.iter().map(|cntr| cntr.triggers.count(|work| is_its(work, is_triggered))).sum()
            };
            let is_used = is_recv.is_none() && ep.users().count() > count(true);
            if is_used || count(false) > 0 {
                tracing::debug!("{} cannot be closed: deferred work or an object uses it", Ep::NAME);
                return Err(Errno::BUSY);
            }
            counters.into_iter().for_each(|cntr| self.take_back(cntr, |work| is_its(work, true)));
            Ok(())
        })
    }

    /// Cancels a triggered operation of an endpoint, which ends, or one that has just started.
    pub(crate) fn cancel_triggered(
        &self,
        ep: &Ep,
        context: *mut c_void,
        is_recv: Option<bool>,
    ) -> Result<(), Errno> {
        if self.work.waiting.load(Ordering::Acquire) == 0 {
            return Err(Errno::NOENT);
        }
        let is_it = |work: &Work| {
            work.is_triggered() && work.op_of(ep, is_recv).is_some_and(|op| op.context() == context)
        };
        self.between_starts(|| {
            if ep.cancel_running(context, is_recv) {
                return Ok(());
            }
            for cntr in self.counters_with_work() {
                if let Some(work) = cntr.triggers.cancel(is_it) {
                    work.op_of(ep, None).into_iter().for_each(|op| op.end_cancelled(ep));
                    self.leave_queue(cntr, &work);
                    return Ok(());
                }
            }
            Err(Errno::NOENT)
        })
    }

    /// Runs `f` while no work starts, then starts what has become due meanwhile. Outside the locks of
    /// endpoints.
    fn between_starts<R>(&self, f: impl FnOnce() -> R) -> R {
        let starts = self.work.lock_starts();
        let result = f();
        drop(starts);
        self.run_work();
        result
    }

    /// Starts work whose counter has reached its threshold. Outside the locks of endpoints.
    // HOT
    #[inline(always)]
    pub(crate) fn run_work(&self) {
        if self.work.waiting.load(Ordering::Acquire) > 0 {
            self.run_waiting();
        }
    }

    #[cold]
    #[inline(never)]
    fn run_waiting(&self) {
        // SAFETY: a counter leaves the list before its work lets it be closed.
        let is_due = |cntr: &*const Cntr| unsafe { &**cntr }.is_due();
        if !self.work.lock().iter().any(is_due) {
            return;
        }
        // Another thread may have looked before the counter has reached the threshold: no leaving it to that.
        let _starts = self.work.lock_starts();
        // Work may change counters for which other work waits.
        while self.counters_with_work().into_iter().any(|cntr| self.run_work_of(cntr)) {}
    }

    /// Starts what is due at a counter. Returns whether something has started.
    fn run_work_of(&self, cntr: &Cntr) -> bool {
        let mut has_started = false;
        let mut next = cntr.triggers.take_due(cntr.total());
        while let Some((threshold, work)) = next {
            if work.start() == Err(Errno::AGAIN) {
                self.list(cntr, || cntr.triggers.put_back(threshold, work));
                break;
            }
            has_started = true;
            // The program may close the counter as soon as its last work has left.
            next = cntr.triggers.take_due(cntr.total());
            self.leave_queue(cntr, &work);
        }
        has_started
    }

    /// Work waits for a counter, to which `add` adds it.
    fn list(&self, cntr: &Cntr, add: impl FnOnce()) {
        let mut counters = self.work.lock();
        if !counters.iter().any(|known| std::ptr::eq(*known, cntr)) {
            counters.push(cntr);
        }
        add();
    }

    /// Takes back the work of a counter for which `is_its` is true. Between starts.
    fn take_back(&self, cntr: &Cntr, is_its: impl Fn(&Work) -> bool) {
        let mut next = cntr.triggers.cancel(&is_its);
        while let Some(work) = next {
            // As in `run_work_of`.
            next = cntr.triggers.cancel(&is_its);
            self.leave_queue(cntr, &work);
        }
    }

    /// Work of a counter waits no more. A counter that no work uses may be closed from now on.
    fn leave_queue(&self, cntr: &Cntr, work: &Work) {
        let mut counters = self.work.lock();
        if cntr.triggers.is_empty() {
            counters.retain(|known| !std::ptr::eq(*known, cntr));
        }
        drop(counters);
        self.work.waiting.fetch_sub(1, Ordering::AcqRel);
        work.uses().chain([cntr.users()]).for_each(UserCount::remove);
    }

    fn counters_with_work<'a>(&self) -> Vec<&'a Cntr> {
        // SAFETY: a counter is not closed while work waits for it.
        self.work.lock().iter().map(|cntr| unsafe { &**cntr }).collect()
    }
}

impl WorkQueue {
    fn lock(&self) -> MutexGuard<'_, Vec<*const Cntr>> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_starts(&self) -> MutexGuard<'_, ()> {
        self.starts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
