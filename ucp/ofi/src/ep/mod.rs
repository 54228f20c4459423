//! Endpoints: each is a worker of the engine, with its completions.
//!
//! | File | Contents |
//! |---|---|
//! | `setup.rs` | opening and closing; names |
//! | `options.rs` | options |
//! | `bind.rs` | what is bound to an endpoint; enabling |
//! | `ep_fid.rs` | handles of an endpoint: its own, and aliases |
//! | `sep.rs` | scalable endpoints and their contexts |
//! | `stx.rs`, `srx.rs` | shared transmit contexts, shared receive contexts |
//! | `deferred.rs`, `triggered.rs` | operations of deferred work, operations with `FI_TRIGGER` |
//! | `owned_op.rs` | operations that wait |
//! | `complete.rs` | records of operations that run, and entries of those that have ended |
//! | `connection.rs` | the connection of an endpoint of type `FI_EP_MSG` |
//! | `peers.rs` | endpoints of the engine by `fi_addr_t`, and the other way round |
//! | `sleep.rs` | descriptors on which threads sleep |
//! | `flush_thread.rs` | the thread for datagrams that found no room |
//! | `transmit.rs` | what sends and operations on memory of peers have in common |
//! | `send.rs`, `recv.rs`, `peek.rs` | starting of messages |
//! | `one_sided.rs`, `atomics.rs` | starting of operations on memory of peers |
//! | `multi_recv.rs` | receives of many messages |
//! | `remote_writes.rs` | writes of peers that carry completion data, and other things kept until asked for |
//! | `groups.rs` | collective groups: joining, leaving, starting of their operations |
//! | `msg.rs`, `tagged.rs`, `rma.rs`, `atomic.rs`, `collective.rs` | the tables of functions |

mod atomic;
mod atomics;
mod bind;
mod collective;
pub(crate) mod complete;
mod connection;
mod deferred;
mod ep_fid;
mod flush_thread;
mod groups;
mod msg;
mod multi_recv;
mod one_sided;
mod options;
mod owned_op;
mod peek;
mod peers;
mod recv;
mod remote_writes;
mod rma;
mod send;
pub(crate) mod sep;
mod setup;
mod sleep;
pub(crate) mod srx;
pub(crate) mod stx;
mod tagged;
mod transmit;
mod triggered;

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Mutex, OnceLock};

use ucp::mt::{ProgressThread, SharedWorker, WorkerGuard};
use ucs::sys::TimerFd;

use crate::abi::{FiAddr, flags};
use crate::av::Av;
use crate::cntr::Cntr;
use crate::cq::Cq;
use crate::domain::Domain;
use crate::info::EpKind;
use crate::name_server::Service;
use crate::object::{Object, UserCount};
use crate::ring::Ring;

use complete::{InjectBuf, Running};
use peers::Peers;

pub(crate) use atomic::query_atomic;
pub(crate) use collective::query_collective;
pub(crate) use complete::OP_SIZE;
pub(crate) use deferred::operation;
pub(crate) use ep_fid::EpFid;
pub(crate) use owned_op::OwnedOp;
pub(crate) use setup::{open, store_name};

/// One direction of an endpoint: where its completions go.
#[derive(Default)]
pub(crate) struct Direction {
    /// Queue; null: none.
    cq: Cell<*const Cq>,
    /// Completions are reported only of operations that ask for it.
    is_selective: Cell<bool>,
    cntr: Cell<*const Cntr>,
    /// Most operations that run, or have ended and are not read.
    size: usize,
    running: Cell<usize>,
    pub(crate) ring: Ring,
}

/// `struct fid_ep`, and what belongs to it.
///
/// Everything behind `shared` that is not atomic is used inside the lock of the worker, or by calls that the
/// program does not make at the same time as others (opening, closing).
#[repr(C)]
pub(crate) struct Ep {
    ep_fid: EpFid,
    domain: *const Domain,
    users: UserCount,
    /// Dropped before the worker.
    progress_thread: RefCell<Option<ProgressThread>>,
    /// Dropped before the worker. There once a datagram has found no room. Inside the lock.
    flush_thread: RefCell<Option<flush_thread::FlushThread>>,
    pub(crate) shared: SharedWorker,
    caps: u64,
    /// Wakes sleepers to look for kept events. Made when somebody sleeps. Set inside the lock.
    kept_events_timer: OnceLock<TimerFd>,
    /// Whether a sleeper or reader has to look for what the engine keeps: the thread that makes progress
    /// tells nobody of it.
    pub(crate) keeps_unreported: bool,
    name: Vec<u8>,
    av: Cell<*const Av>,
    /// Bits of an address for receive contexts: those of the address vector.
    rx_ctx_bits: Cell<u32>,
    is_enabled: AtomicBool,
    /// Enabled, and receives are its own.
    can_recv: AtomicBool,
    /// Enabled, and connected if the type asks for that. The thread of connections sets it, too.
    can_send: AtomicBool,
    kind: EpKind,
    /// Bits of a `fi_addr_t` that are looked at: none of an endpoint with one peer.
    address_mask: FiAddr,
    connection: connection::Connection,
    /// Whether it was opened for a shared transmit context, and the one that is bound.
    shares_tx: bool,
    stx: Cell<*const stx::Stx>,
    /// The shared receive context that is bound.
    srx: Cell<*const srx::Srx>,
    tx: Direction,
    rx: Direction,
    /// Counters of operations on memory of peers.
    reads: Cell<*const Cntr>,
    writes: Cell<*const Cntr>,
    /// Counters of operations of peers on memory of this process, and how many those have got.
    remote_reads: Cell<*const Cntr>,
    remote_writes: Cell<*const Cntr>,
    served: Cell<ucp::ServedOps>,
    /// Counter of operations that start now, if they are deferred work: see [`complete::Op::cntr`].
    deferred: Cell<*const Cntr>,
    /// Counters of deferred work and of regions, whose waits make progress here.
    joined: Mutex<Vec<*const Cntr>>,
    peers: Peers,
    /// Receives that run, and other operations: to be cancelled by their context.
    running: Running,
    running_tx: Running,
    /// Receives of many messages that run, in the order in which they were posted.
    multi_recvs: RefCell<Vec<multi_recv::Multi>>,
    /// `FI_OPT_MIN_MULTI_RECV`.
    min_multi_recv: AtomicUsize,
    options: options::Options,
    service: Service,
    /// Messages that peeks have claimed.
    claimed: RefCell<Vec<peek::Claimed>>,
    groups: groups::Groups,
    /// Memory for copies. Boxed, as operations that run hold its address.
    #[allow(clippy::vec_box)]
    inject_bufs: RefCell<Vec<Box<InjectBuf>>>,
}

impl Object for Ep {
    const CLASS: usize = flags::CLASS_EP;
    const NAME: &'static str = "an endpoint";
    fn users(&self) -> &UserCount {
        &self.users
    }
}

impl Ep {
    /// The plain worker, in the mode in which never two threads use a domain, for the shortest calls.
    /// `None`: it has a lock.
    // HOT
    #[inline(always)]
    pub(crate) fn plain(&self) -> Option<&ucp::Worker> {
        // SAFETY: as in `enter`.
        unsafe { self.shared.plain() }
    }

    /// Takes the lock of the worker until the result is dropped. There is none in the mode in which never two
    /// threads use a domain.
    // HOT
    #[inline(always)]
    pub(crate) fn enter(&self) -> WorkerGuard<'_> {
        // SAFETY: plain objects of the worker lie in this endpoint, are used inside only, and dropped there.
        // Without a lock: libfabric's contract of that mode.
        unsafe { self.shared.lock_unless_single() }
    }

    /// Runs `f` inside the lock, on the plain worker.
    pub(crate) fn inside<R>(&self, f: impl FnOnce(&ucp::Worker) -> R) -> R {
        f(&self.enter())
    }

    /// Gives the worker to the calling thread where it has no lock, for calls of the engine that look at the
    /// thread: a program may use such an endpoint in any thread, in one at a time.
    pub(crate) fn adopt(&self) {
        // SAFETY: libfabric's contract of these modes: never two threads at a time.
        unsafe { self.shared.adopt() };
    }

    /// Receives and completes, unless another thread is inside.
    #[inline(never)]
    pub(crate) fn progress(&self) {
        // SAFETY: without a lock: as in `enter`.
        let _ = unsafe { self.shared.progress_unlocked() };
        if self.caps & remote_writes::KEPT != 0 {
            self.inside(|plain| self.collect_kept(plain));
        }
    }

    /// Receives and sends.
    // HOT
    #[inline(always)]
    pub(crate) fn directions(&self) -> [&Direction; 2] {
        [&self.rx, &self.tx]
    }

    /// Entries that a queue reads.
    pub(crate) fn rings_of(&self, cq: &Cq) -> impl Iterator<Item = &Ring> {
        self.directions().into_iter().filter_map(|way| way.ring_of(cq))
    }

    fn domain(&self) -> &Domain {
        // SAFETY: a domain is not closed before its endpoints.
        unsafe { &*self.domain }
    }

    fn av(&self) -> Option<&Av> {
        // SAFETY: an address vector is not closed before the endpoints that use it.
        unsafe { self.av.get().as_ref() }
    }
}
