//! Workers: creation, attributes, addresses, progress.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ffi::{c_int, c_uint, c_void};

use ::ucs::Status;
use ucp::mt::{SharedWorker, ThreadMode, Unlocked};
use ucp::{AM_MAX_HEADER, Address};

use crate::am::AmState;
use crate::arg::{AttrPtr, OutPtr, ParamsPtr, StrPtr};
use crate::context::{Context, copy_name};
use crate::entry::{CStatus, invalid};
use crate::ep::{Ep, ReplyEps};
use crate::handle::{Handle, Magic, checked, from_handle, from_ptr, into_handle};
use crate::listener::Listener;
use crate::packed::{Packed, alloc_packed, release};
use crate::request::Allocated;
use crate::stream::StreamState;
use crate::tag::ProbedMessages;
use crate::types::{
    ADDRESS_NET_ONLY, AddressAttr, WorkerAttr, WorkerParams, thread_mode, worker_attr, worker_params,
};
use crate::wakeup::{WAKEUP_EDGE, report_to};

/// `ucp_worker_h`.
///
/// Everything but `shared` and `fixed` is used inside the lock only.
#[repr(C)]
pub(crate) struct Worker {
    magic: Magic,
    pub(crate) shared: SharedWorker,
    mode: c_int,
    pub(crate) name: String,
    /// `UCP_WORKER_PARAM_FIELD_CLIENT_ID`.
    pub(crate) client_id: u64,
    /// Endpoints that the program has not closed. Freed with the worker.
    pub(crate) eps: RefCell<HashSet<*mut Ep>>,
    /// Endpoints to answer senders.
    pub(crate) reply_eps: RefCell<ReplyEps>,
    pub(crate) am: AmState,
    pub(crate) streams: StreamState,
    /// Messages that probes have taken. Freed with the worker.
    pub(crate) taken: ProbedMessages,
    /// Listeners that the program has not destroyed. Freed with the worker.
    pub(crate) listeners: RefCell<HashSet<*mut Listener>>,
    /// Requests of `ucp_request_alloc`. Freed behind the engine, which looks at those that run.
    pub(crate) allocated: Allocated,
    /// Descriptor of the program that reports this worker's events.
    pub(crate) reports_to: Option<c_int>,
    /// Set while the worker is destroyed: callbacks of what ends then are not called.
    pub(crate) ends: Cell<bool>,
}

impl Handle for Worker {
    const MAGIC: u32 = 0x7570_6b77;
    const NAME: &'static str = "worker";
    fn magic(&self) -> &Magic {
        &self.magic
    }
}

impl Worker {
    /// The plain worker, in mode single. `None` in other modes, which use [`Worker::with_worker`].
    // HOT
    #[inline(always)]
    pub(crate) fn unlocked(&self) -> Option<Unlocked<'_>> {
        // SAFETY: UCX's contract of this mode: never two threads at a time. Else as in `with_worker`.
        unsafe { self.shared.unlocked() }
    }

    /// The plain worker in mode single, for the shortest calls. [`Worker::wake_sleepers`] follows an
    /// operation that has begun.
    // HOT
    #[inline(always)]
    pub(crate) fn plain(&self) -> Option<&ucp::Worker> {
        // SAFETY: as in `unlocked`.
        unsafe { self.shared.plain() }
    }

    /// Wakes threads that sleep until there is work.
    // HOT
    #[inline(always)]
    pub(crate) fn wake_sleepers(&self) {
        self.shared.wake_sleepers();
    }

    /// Runs `f` on the plain worker, in the modes of several threads inside the lock.
    pub(crate) fn with_worker<R>(&self, f: impl FnOnce(&ucp::Worker) -> R) -> Result<R, Status> {
        // SAFETY: plain objects of the worker lie in objects of this library, which are used inside only, and
        // freed there or with the worker. In mode single: UCX's contract, never two threads at a time.
        unsafe { self.shared.with_unlocked(f) }.map_err(|error| {
            tracing::error!("{error}");
            Status::Busy
        })
    }

    /// Runs `f`, the fast path of an operation, inside the lock of the modes of several threads. `None`: mode
    /// single, which has no lock; or the lock cannot be had, and the general path tells why.
    // HOT
    #[inline(always)]
    pub(crate) fn locked<R>(&self, f: impl FnOnce(&ucp::Worker) -> R) -> Option<R> {
        if self.plain().is_some() { None } else { self.try_with_worker(f) }
    }

    /// Runs `f`, the fast path of an operation, as [`Worker::with_worker`]. `None`: the lock cannot be had,
    /// and the general path tells why.
    // HOT
    #[inline(always)]
    pub(crate) fn try_with_worker<R>(&self, f: impl FnOnce(&ucp::Worker) -> R) -> Option<R> {
        // SAFETY: as in `with_worker`.
        unsafe { self.shared.with_unlocked(f) }.ok()
    }

    /// The worker for calls that look at the thread: in mode single it becomes the calling one's.
    pub(crate) fn shared_here(&self) -> &SharedWorker {
        // SAFETY: UCX's contract of this mode: never two threads at a time.
        unsafe { self.shared.adopt() };
        &self.shared
    }

    /// Receives and completes. Returns the number of events.
    // HOT
    #[inline(always)]
    pub(crate) fn progress(&self) -> Result<usize, Status> {
        // SAFETY: UCX's contract of mode single: never two threads at a time.
        unsafe { self.shared.progress_unlocked() }.map_err(|_| Status::Busy)
    }

    /// Makes progress until `end` returns a value.
    pub(crate) fn run_until<R>(&self, mut end: impl FnMut() -> Option<R>) -> Result<R, Status> {
        loop {
            if let Some(value) = end() {
                return Ok(value);
            }
            if self.progress()? == 0 {
                std::hint::spin_loop();
            }
        }
    }

    fn packed_address(&self, flags: u32) -> Result<Vec<u8>, Status> {
        self.with_worker(|plain| {
            let address = if flags & ADDRESS_NET_ONLY != 0 { plain.address_net() } else { plain.address() };
            address.pack()
        })
    }
}

/// Begin of a raw address of libfabric's EFA provider: its GID is link-local.
const RAW_BEGIN: [u8; 4] = [0xfe, 0x80, 0, 0];
/// Bytes of a raw address.
const RAW_LEN: usize = 32;

/// The packed address at a pointer, whose length is in its first four bytes, or a raw address of libfabric.
/// # Safety
/// `at` is null, or an address of one of these kinds can be read there.
pub(crate) unsafe fn read_address(at: *const c_void) -> Result<Address, Status> {
    if at.is_null() {
        return Err(invalid("ucp_ep_create: the address is null"));
    }
    // SAFETY: this function's contract: no address is shorter.
    let first = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), 4) };
    let len = if first == RAW_BEGIN { Ok(RAW_LEN) } else { Address::packed_len(first) };
    let len = len.map_err(|error| {
        tracing::error!("{error}");
        Status::InvalidAddr
    })?;
    // SAFETY: as above: that is the length of the address.
    let bytes = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) };
    Address::unpack(bytes).map_err(|error| {
        tracing::error!("{error}");
        Status::InvalidAddr
    })
}

fn new_worker(context: &Context, params: ParamsPtr<WorkerParams>) -> Result<Worker, Status> {
    let params = params.fields("ucp_worker_create")?;
    let mode = field!(params, worker_params::THREAD_MODE, thread_mode).unwrap_or(thread_mode::SINGLE);
    let shared_mode = match mode {
        thread_mode::SINGLE => ThreadMode::Single,
        thread_mode::SERIALIZED => ThreadMode::Serialized,
        thread_mode::MULTI => ThreadMode::Multi,
        _ => return Err(invalid("ucp_worker_create: no such thread_mode")),
    };
    let alignment = field!(params, worker_params::AM_ALIGNMENT, am_alignment).unwrap_or(1);
    if !alignment.is_power_of_two() {
        return Err(invalid("ucp_worker_create: am_alignment is no power of two"));
    }
    let name = field!(params, worker_params::NAME, name).map(|name| {
        // SAFETY: the program's name is a C string.
        unsafe { StrPtr::new(name) }.text()
    });
    let client_id = field!(params, worker_params::CLIENT_ID, client_id).unwrap_or(0);
    let context_of = context.context.clone().with_am_alignment(alignment);
    let shared = context_of.shared_worker(shared_mode).map_err(|error| {
        tracing::error!("{error}");
        crate::context::open_status(&error)
    })?;
    let reports_to = field!(params, worker_params::EVENT_FD, event_fd);
    if let Some(fd) = reports_to {
        let events = field!(params, worker_params::EVENTS, events).unwrap_or(0);
        let user_data = field!(params, worker_params::USER_DATA, user_data);
        report_to(fd, &shared, events & WAKEUP_EDGE != 0, user_data.unwrap_or(std::ptr::null_mut()))?;
    }
    Ok(Worker {
        magic: Magic::of::<Worker>(),
        shared,
        mode,
        name: name.unwrap_or_default(),
        client_id,
        eps: RefCell::default(),
        reply_eps: RefCell::default(),
        am: AmState::new(),
        streams: StreamState::default(),
        taken: ProbedMessages::default(),
        listeners: RefCell::default(),
        allocated: Allocated::new(context.room),
        reports_to,
        ends: Cell::new(false),
    })
}

entry! {
    /// Makes a worker.
    fn ucp_worker_create(context: *mut Context, params: ParamsPtr<WorkerParams>, worker: OutPtr<*mut Worker>) -> CStatus {
        if worker.is_null() {
            return Err(invalid("ucp_worker_create: worker is null"));
        }
        let made = new_worker(checked(context)?, params)?;
        worker.store(into_handle(made))
    }

    /// Frees a worker, and its endpoints, listeners, and messages that probes have taken.
    fn ucp_worker_destroy(worker: *mut Worker) {
        let gone = checked(worker)?;
        gone.ends.set(true);
        let eps = gone.with_worker(|_| std::mem::take(&mut *gone.eps.borrow_mut()))?;
        gone.with_worker(|plain| {
            gone.reply_eps.borrow_mut().clear();
            gone.am.clear();
            gone.streams.clear();
            gone.taken.clear();
            for listener in gone.listeners.take() {
                drop(from_handle(listener));
            }
            gone.allocated.release_held(plain);
            for ep in eps {
                drop(from_handle(ep));
            }
        })?;
        if let Some(fd) = gone.reports_to {
            crate::wakeup::stop_reporting(fd, gone.shared_here());
        }
        from_handle(worker).map(drop)
    }

    /// Thread mode, address and limits of a worker.
    fn ucp_worker_query(worker: *mut Worker, attr: AttrPtr<WorkerAttr>) -> CStatus {
        let worker = checked(worker)?;
        let attr = attr.fields("ucp_worker_query")?;
        answer!(attr, worker_attr::THREAD_MODE, thread_mode = worker.mode);
        if attr.mask() & worker_attr::ADDRESS != 0 {
            let flags = field!(attr, worker_attr::ADDRESS_FLAGS, address_flags).unwrap_or(0);
            let packed = worker.packed_address(flags)?;
            let at = alloc_packed(&packed, Packed::Address)?;
            answer!(attr, worker_attr::ADDRESS, address = at);
            answer!(attr, worker_attr::ADDRESS, address_length = packed.len());
        }
        answer!(attr, worker_attr::MAX_AM_HEADER, max_am_header = AM_MAX_HEADER);
        answer!(attr, worker_attr::NAME, name = copy_name(&worker.name));
        answer!(attr, worker_attr::MAX_INFO_STRING, max_debug_string = 256);
        Ok(())
    }

    /// Address of a worker, to be sent to peers.
    fn ucp_worker_get_address(worker: *mut Worker, address: OutPtr<*mut c_void>, len: OutPtr<usize>) -> CStatus {
        if address.is_null() || len.is_null() {
            return Err(invalid("ucp_worker_get_address: address or len is null"));
        }
        let packed = checked(worker)?.packed_address(0)?;
        address.store(alloc_packed(&packed, Packed::Address)?)?;
        len.store(packed.len())
    }

    /// Frees an address that this library has packed; refuses anything else.
    fn ucp_worker_release_address(worker: *mut Worker, address: *mut c_void) {
        checked(worker)?;
        release(address, Packed::Address)
    }

    /// Number of the worker in an address.
    fn ucp_worker_address_query(address: *mut c_void, attr: AttrPtr<AddressAttr>) -> CStatus {
        let attr = attr.fields("ucp_worker_address_query")?;
        // SAFETY: the caller's contract.
        let uid = unsafe { read_address(address) }?.uid().unwrap_or(0);
        answer!(attr, 1 << 0, worker_uid = uid);
        Ok(())
    }

    /// Raw address of a worker's `efa`, for libfabric; declared in `ucx4efa.h`.
    fn ucx4efa_efa_raw_address(address: *const c_void, raw: OutPtr<[u8; RAW_LEN]>) -> CStatus {
        // SAFETY: the caller's contract.
        let found = unsafe { read_address(address) }?.efa_raw();
        if raw.is_null() {
            return Err(invalid("ucx4efa_efa_raw_address: raw is null"));
        }
        raw.store(found.ok_or(Status::Unreachable)?)
    }

    /// Receives and completes. Returns the number of events.
    // HOT
    fn ucp_worker_progress(worker: *mut Worker) -> c_uint {
        // SAFETY: the caller's contract.
        unsafe { from_ptr(worker) }?.progress().map(|events| events as c_uint)
    }
}
