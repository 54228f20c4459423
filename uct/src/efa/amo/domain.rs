//! Atomics of a memory domain: the regions that peers may change, operations under way from it, and the
//! thread.

#![allow(unsafe_code)]

use super::server::{self, Server};
use super::wire::{AmoKind, OpId, Request};
use crate::api::{Access, Error, OpenError, Refused, Word};
use crate::base::direct::{self, Window};
use crate::base::mem_ptr::MemPtr;
use crate::efa::dev::{Dev, Gid};
use rustc_hash::FxHashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::thread::JoinHandle;
use ucs::sys::thread::spawn_masked;
use ucs::sys::{EventFd, proc};

const STACK: usize = 256 << 10;

/// Address of a queue pair that takes requests or responses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(in crate::efa) struct AmoAddr {
    pub(in crate::efa) gid: Gid,
    pub(in crate::efa) qpn: u16,
    pub(in crate::efa) qkey: u32,
}

/// State of a domain that its thread, its memory and its interfaces share.
pub(super) struct Shared {
    /// By remote key. An operation runs under the lock, so a region taken out is not in use.
    regions: Mutex<FxHashMap<u32, (MemPtr, usize)>>,
    clients: Mutex<Vec<Weak<Watch>>>,
    /// Whether the thread looks after operations under way.
    watching: AtomicBool,
    tick: AtomicU32,
    pub(super) stop: AtomicBool,
    pub(super) wake: EventFd,
}

/// Operations of one interface that wait for responses, by slot.
pub(super) struct Watch {
    pub(super) reply_to: AmoAddr,
    entries: Mutex<Box<[Option<Watched>]>>,
}

#[derive(Clone, Copy)]
struct Watched {
    generation: u32,
    target: AmoAddr,
    since: u32,
}

/// The emulated atomics of a memory domain.
pub(in crate::efa) struct AmoDomain {
    shared: Arc<Shared>,
    thread: Mutex<Option<ServerThread>>,
}

struct ServerThread {
    addr: AmoAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Process that has the thread.
    pid: u32,
}

/// Membership of a registration in the table of regions that peers may change. Ends with `close` or its drop.
pub(in crate::efa) struct AmoRegion {
    shared: Arc<Shared>,
    key: u32,
    open: AtomicBool,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AmoDomain {
    pub(in crate::efa) fn new() -> Result<AmoDomain, OpenError> {
        let wake = EventFd::new().map_err(|errno| Error::Sys { call: "eventfd", errno })?;
        let shared = Shared {
            regions: Mutex::default(),
            clients: Mutex::default(),
            watching: AtomicBool::new(false),
            tick: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            wake,
        };
        Ok(AmoDomain { shared: Arc::new(shared), thread: Mutex::new(None) })
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Lets peers change `len` bytes at `addr` by `key`, which is registered.
    pub(in crate::efa) fn add_region(&self, key: u32, addr: *mut u8, len: usize) -> AmoRegion {
        lock(&self.shared.regions).insert(key, (MemPtr(addr), len));
        AmoRegion { shared: self.shared.clone(), key, open: AtomicBool::new(true) }
    }

    /// Starts the thread unless it runs; answers the address that takes requests.
    pub(in crate::efa) fn start<D: Dev>(&self, dev: &D, pd: &D::Pd) -> Result<AmoAddr, Error> {
        let mut thread = lock(&self.thread);
        if let Some(running) = &*thread {
            return Ok(running.addr);
        }
        let (tell, told) = mpsc::channel();
        let (dev, pd, shared) = (dev.clone(), pd.clone(), self.shared.clone());
        let body = move || match Server::open(dev, pd, shared) {
            Ok(server) => {
                let _ = tell.send(Ok(server.addr()));
                server::serve(server);
            }
            Err(e) => drop(tell.send(Err(e))),
        };
        let failed = |errno| Error::Sys { call: "pthread_create", errno };
        let handle = spawn_masked("efa-atomics", STACK, body).map_err(failed)?;
        let opened = told.recv().unwrap_or(Err(OpenError::Op(Error::Exhausted("threads"))));
        let addr = opened.map_err(|e| match e {
            OpenError::Op(e) => e,
            other => {
                tracing::warn!(error = %other, "no queue pair for atomics");
                Error::Exhausted("queue pairs")
            }
        })?;
        *thread =
            Some(ServerThread { addr, shared: self.shared.clone(), thread: Some(handle), pid: proc::pid() });
        Ok(addr)
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        if self.pid != proc::pid() {
            // A forked child has no such thread, and shares the descriptor with its parent.
            std::mem::forget(self.thread.take());
            return;
        }
        self.shared.stop.store(true, Ordering::Release);
        // It can only fail for want of the descriptor, which we hold.
        let _ = self.shared.wake.signal();
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::warn!("the thread for atomics panicked");
        }
    }
}

impl AmoRegion {
    /// Ends the access; an operation that another thread carries out ends before the return.
    pub(in crate::efa) fn close(&self) {
        // The device may give the key to another registration from now on.
        if self.open.swap(false, Ordering::AcqRel) {
            lock(&self.shared.regions).remove(&self.key);
        }
    }
}

impl Drop for AmoRegion {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    /// Carries a request out; answers what the word held.
    pub(super) fn apply(&self, request: &Request) -> Result<u64, Error> {
        let regions = lock(&self.regions);
        let &(MemPtr(addr), len) = regions.get(&request.key).ok_or(Error::RemoteAccess)?;
        // SAFETY: whoever registered the memory has promised that it is valid for writes until the
        // registration is dropped or revoked, which takes it out of `regions` under the lock held here.
        let window = unsafe { Window::new(addr.addr() as u64, len, addr, Access::REMOTE_ATOMIC) };
        match request.width {
            4 => apply_word::<u32>(&window, request),
            _ => apply_word::<u64>(&window, request),
        }
    }

    pub(super) fn add_client(&self, reply_to: AmoAddr, slots: u32) -> Arc<Watch> {
        let watch = Arc::new(Watch { reply_to, entries: Mutex::new((0..slots).map(|_| None).collect()) });
        let mut clients = lock(&self.clients);
        clients.retain(|client| client.strong_count() > 0);
        clients.push(Arc::downgrade(&watch));
        watch
    }

    /// Has the thread look after an operation until [`Watch::end`].
    pub(super) fn watch(&self, watch: &Watch, id: OpId, target: AmoAddr) {
        let since = self.tick.load(Ordering::Relaxed);
        let entry = Watched { generation: id.generation, target, since };
        lock(&watch.entries)[id.slot as usize] = Some(entry);
        // SYNC(amo_watch): the thread looks again after it has stored false, and then sees the entry.
        if !self.watching.swap(true, Ordering::AcqRel) {
            let _ = self.wake.signal();
        }
    }

    pub(super) fn is_watching(&self) -> bool {
        self.watching.load(Ordering::Acquire)
    }

    /// Stops looking after operations if there are none.
    pub(super) fn rest(&self) -> bool {
        // SYNC(amo_watch)
        self.watching.swap(false, Ordering::AcqRel);
        let idle = self.clients().iter().all(|client| lock(&client.entries).iter().all(Option::is_none));
        if !idle {
            self.watching.store(true, Ordering::Release);
        }
        idle
    }

    fn clients(&self) -> Vec<Arc<Watch>> {
        lock(&self.clients).iter().filter_map(Weak::upgrade).collect()
    }

    /// Counts time on; answers the targets that have left an operation waiting for two ticks or more.
    pub(super) fn silent_targets(&self) -> Vec<AmoAddr> {
        let now = self.tick.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let mut silent = Vec::new();
        for client in self.clients() {
            let waiting = lock(&client.entries);
            silent
                .extend(waiting.iter().flatten().filter(|w| now.wrapping_sub(w.since) > 2).map(|w| w.target));
        }
        silent.sort_unstable();
        silent.dedup();
        silent
    }

    /// Operations that wait for `target`, each with the queue pair that waits.
    pub(super) fn waiting_for(&self, target: AmoAddr) -> Vec<(AmoAddr, OpId)> {
        let mut all = Vec::new();
        for client in self.clients() {
            let entries = lock(&client.entries);
            let of = entries.iter().enumerate().filter_map(|(slot, w)| Some((slot, (*w)?)));
            all.extend(
                of.filter(|(_, w)| w.target == target)
                    .map(|(slot, w)| (client.reply_to, OpId { slot: slot as u32, generation: w.generation })),
            );
        }
        all
    }
}

impl Watch {
    pub(super) fn end(&self, slot: u32) {
        lock(&self.entries)[slot as usize] = None;
    }
}

fn apply_word<W: Word>(window: &Window, request: &Request) -> Result<u64, Error> {
    let mut old = W::from_u64(0);
    let (value, result) = (W::from_u64(request.value), NonNull::from(&mut old));
    let done = match request.kind {
        // SAFETY: `old` is ours.
        AmoKind::Op(op) => unsafe { direct::atomic_fetch(window, op, value, result, request.remote) },
        AmoKind::Cswap => {
            let compare = W::from_u64(request.compare);
            // SAFETY: as above.
            unsafe { direct::atomic_cswap(window, compare, value, result, request.remote) }
        }
    };
    match done {
        Ok(_) => Ok(old.to_u64()),
        Err(Refused::Failed(e)) => Err(e),
        Err(Refused::NoResource) => Err(Error::NotReady),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::api::AtomicOp;

    fn add(key: u32, remote: u64, width: usize) -> Request {
        let id = OpId { slot: 0, generation: 1 };
        let kind = AmoKind::Op(AtomicOp::Add);
        Request { kind, width, id, qkey: 0, key, remote, value: 1, compare: 0 }
    }

    #[test]
    fn key_range_and_alignment_are_checked() {
        let mut mem = [u64::MAX; 2];
        let at = mem.as_mut_ptr() as u64;
        let domain = AmoDomain::new().unwrap();
        let region = domain.add_region(9, mem.as_mut_ptr().cast(), 16);
        let apply = |request| domain.shared.apply(&request);
        assert_eq!(apply(add(8, at, 8)), Err(Error::RemoteAccess));
        assert_eq!(apply(add(9, at + 12, 8)), Err(Error::RemoteAccess));
        assert_eq!(apply(add(9, u64::MAX - 3, 8)), Err(Error::RemoteAccess));
        assert!(matches!(apply(add(9, at + 4, 8)), Err(Error::InvalidParam(_))));
        assert_eq!(apply(add(9, at + 4, 4)), Ok(u64::from(u32::MAX)));
        assert_eq!(apply(add(9, at + 8, 8)), Ok(u64::MAX));
        region.close();
        assert_eq!(apply(add(9, at, 8)), Err(Error::RemoteAccess));
        // The key of a revoked registration may be another's.
        let again = domain.add_region(9, mem.as_mut_ptr().cast(), 16);
        drop(region);
        assert_eq!(apply(add(9, at + 8, 8)), Ok(0));
        drop(again);
        assert_eq!(mem, [u64::from(u32::MAX), 1]);
    }

    #[test]
    fn operations_without_an_answer_are_found() {
        let domain = AmoDomain::new().unwrap();
        let shared = domain.shared();
        let addr = |qpn| AmoAddr { gid: Gid::link_local(1), qpn, qkey: 0 };
        let watch = shared.add_client(addr(1), 4);
        let id = OpId { slot: 3, generation: 7 };
        assert!(!shared.is_watching());
        shared.watch(&watch, id, addr(2));
        assert!(shared.is_watching() && !shared.rest() && shared.is_watching());
        assert!(shared.silent_targets().is_empty() && shared.silent_targets().is_empty());
        assert_eq!(shared.silent_targets(), [addr(2)]);
        assert_eq!(shared.waiting_for(addr(2)), [(addr(1), id)]);
        watch.end(3);
        assert!(shared.silent_targets().is_empty() && shared.rest() && !shared.is_watching());
    }
}
