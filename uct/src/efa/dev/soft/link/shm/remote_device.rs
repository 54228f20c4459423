//! Another process's device: its keys, its known GIDs, its memory, and whether it is still alive.
//! Shared by all ways to queue pairs of that device. Never believes a range it has not checked.

use super::super::{Rdma, SendBuf, Sender, TryOutcome};
use super::seg::DevSeg;
use super::vm::{self, CopyDir};
use crate::api::Access;
use crate::efa::dev::DevStatus;
use crate::efa::dev::soft::mr::{MrTableView, Region};
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use ucs::mem::SharedMem;
use ucs::sync::Ordering::{Acquire, Relaxed};
use ucs::sync::fence;
use ucs::sys::PidFd;

/// Regions of one peer kept mapped; each costs a descriptor.
const MAX_MAPS: usize = 128;
/// Longest piece of an RDMA operation done in one go, bytes.
const CHUNK: u32 = 1 << 20;

/// A look at the peer's process holds for so long: its pid is not another's before all others were given out.
const LIVENESS_VALID: Duration = Duration::from_millis(1);

/// A mapped region of the peer: `None` if it cannot be mapped and is reached by system calls.
type Map = Option<Rc<SharedMem>>;

pub(super) struct RemoteDevice {
    pid: u32,
    /// Tells of its death; `None`: it is this process.
    pidfd: Option<PidFd>,
    dead: Cell<bool>,
    /// When it was last seen alive, unless it is known to be dead.
    last_alive: Cell<Option<Instant>>,
    seg: DevSeg,
    mrs: MrTableView,
    /// By the stamps of their keys.
    maps: RefCell<FxHashMap<u64, Map>>,
    /// The stamp of the key used last and where its region's memory file is mapped.
    last: Cell<(u64, *mut u8, usize)>,
    /// Interface id and epoch for which the peer was found to know us.
    known: Cell<(u64, u64)>,
}

impl RemoteDevice {
    pub(super) fn new(pid: u32, pidfd: Option<PidFd>, seg: DevSeg, mrs: MrTableView) -> RemoteDevice {
        RemoteDevice {
            pid,
            pidfd,
            dead: Cell::new(false),
            last_alive: Cell::new(None),
            seg,
            mrs,
            maps: RefCell::default(),
            last: Cell::new((0, std::ptr::null_mut(), 0)),
            known: Cell::new((0, u64::MAX)),
        }
    }

    /// Whether its process is gone. One system call.
    #[cold]
    pub(super) fn is_dead(&self) -> bool {
        if !self.dead.get() && self.pidfd.as_ref().is_some_and(PidFd::is_dead) {
            self.dead.set(true);
        }
        let dead = self.dead.get();
        self.last_alive.set((!dead).then(Instant::now));
        dead
    }

    /// Whether it was alive so long ago, or later.
    pub(super) fn seen_within(&self, ago: Duration) -> bool {
        self.last_alive.get().is_some_and(|at| at.elapsed() < ago)
    }

    /// Copies between its memory and ours by a system call, which goes by its pid: not after the pid may be another's.
    fn copy(&self, raddr: u64, local: *mut u8, len: u32, dir: CopyDir) -> Result<(), DevStatus> {
        if !self.seen_within(LIVENESS_VALID) && self.is_dead() {
            return Err(DevStatus::BadDestQpn);
        }
        vm::copy(self.pid, raddr, local, len, dir)
    }

    /// Whether the device went down while its process lives.
    #[cold]
    pub(super) fn is_down(&self) -> bool {
        // SYNC(down): our look at the queue pair before our look here.
        fence(Acquire);
        self.seg.hdr().down.load(Relaxed) != 0
    }

    /// Whether the peer has an address handle of `iid`, or does not care.
    fn has_ah_of(&self, iid: u64) -> bool {
        let h = self.seg.hdr();
        let epoch = h.epoch.load(Acquire);
        if self.known.get() == (iid, epoch) || h.strict.load(Relaxed) == 0 {
            return true;
        }
        let known = self.seg.known();
        let high = (h.high.load(Relaxed) as usize).min(known.len());
        let found = known[..high].iter().any(|k| k.load(Relaxed) == iid);
        if found {
            self.known.set((iid, epoch));
        }
        found
    }

    /// Where `len` bytes at the peer's `addr`, inside `region`, are mapped here. // HOT
    #[inline]
    fn map_range(&self, key: u32, region: &Region, addr: u64, len: u32) -> Option<*mut u8> {
        let (fd, file_off) = region.file?;
        let unique = self.mrs.unique_key(key);
        let (base, mapped) = match self.last.get() {
            (last, base, mapped) if last == unique => (base, mapped),
            _ => self.map(key, unique, region, fd)?,
        };
        let off = file_off.checked_add(addr.checked_sub(region.addr)?)?;
        let end = off.checked_add(u64::from(len))?;
        (end <= mapped as u64).then(|| base.wrapping_add(off as usize))
    }

    #[cold]
    fn map(&self, key: u32, unique: u64, region: &Region, fd: i32) -> Option<(*mut u8, usize)> {
        let mut maps = self.maps.borrow_mut();
        if maps.len() >= MAX_MAPS && !maps.contains_key(&unique) {
            maps.clear();
            self.last.set((0, std::ptr::null_mut(), 0));
        }
        let map = maps.entry(unique).or_insert_with(|| {
            let mem = SharedMem::open_proc(self.pid, fd, 1);
            // The owner takes the key out before it closes the file: if the key is still there, the file was the one.
            match mem {
                // And if it lives, the pid is its own.
                Ok(mem) if self.mrs.find(key) == Some(*region) && !self.is_dead() => Some(Rc::new(mem)),
                Ok(_) => None,
                Err(e) => {
                    tracing::debug!("region {key:#x} of process {}: {e}; using system calls", self.pid);
                    None
                }
            }
        });
        let mem = map.as_ref()?;
        let place = (mem.as_ptr(), mem.len());
        self.last.set((unique, place.0, place.1));
        Some(place)
    }

    fn unmap(&self, key: u32) {
        let unique = self.mrs.unique_key(key);
        self.maps.borrow_mut().remove(&unique);
        if self.last.get().0 == unique {
            self.last.set((0, std::ptr::null_mut(), 0));
        }
    }

    /// Where a posted receive of the peer is, for `len` bytes at `addr` under its local key. `Err`: no such memory.
    /// `Ok(None)`: only system calls reach it. // HOT
    #[inline]
    pub(super) fn recv_buffer(&self, pd: u32, lkey: u32, addr: u64, len: u32) -> Result<Option<*mut u8>, ()> {
        match self.mrs.find(lkey) {
            Some(r) if r.allows(pd, addr, u64::from(len), Access::LOCAL_WRITE) => {
                Ok(self.map_range(lkey, &r, addr, len))
            }
            _ => {
                self.unmap(lkey);
                Err(())
            }
        }
    }

    /// One piece of an RDMA read.
    pub(super) fn read(&self, pd: u32, from: Sender, op: &Rdma) -> TryOutcome {
        self.rdma(pd, from, op, Access::REMOTE_READ, CopyDir::FromPeer)
    }

    /// One piece of an RDMA write.
    pub(super) fn write(&self, pd: u32, from: Sender, op: &Rdma) -> TryOutcome {
        self.rdma(pd, from, op, Access::REMOTE_WRITE, CopyDir::ToPeer)
    }

    fn rdma(&self, pd: u32, from: Sender, op: &Rdma, need: Access, dir: CopyDir) -> TryOutcome {
        if !self.has_ah_of(from.iid) {
            return TryOutcome::Done(DevStatus::UnknownPeer);
        }
        if op.len == 0 {
            // Nothing to move, but a question all the same: does it live?
            let dead = self.is_dead();
            return TryOutcome::Done(if dead { DevStatus::BadDestQpn } else { DevStatus::Ok });
        }
        let region = match self.mrs.find(op.rkey) {
            Some(r) if r.allows(pd, op.raddr, u64::from(op.len), need) => r,
            _ => {
                self.unmap(op.rkey);
                let dead = self.is_dead();
                return TryOutcome::Done(if dead {
                    DevStatus::BadDestQpn
                } else {
                    DevStatus::RemoteBadAddress
                });
            }
        };
        let len = op.len.min(CHUNK);
        match self.map_range(op.rkey, &region, op.raddr, len) {
            Some(there) => {
                let (src, dst) = match dir {
                    CopyDir::FromPeer => (there.cast_const(), op.local),
                    CopyDir::ToPeer => (op.local.cast_const(), there),
                };
                // SAFETY: `there` has `len` mapped bytes (checked in `here`); the local range was checked against
                // its key by the caller, for the access this direction needs. They may overlap in a self-write.
                unsafe { std::ptr::copy(src, dst, len as usize) };
            }
            None => {
                if let Err(status) = self.copy(op.raddr, op.local, len, dir) {
                    return TryOutcome::Done(status);
                }
            }
        }
        if len < op.len { TryOutcome::Partial(len) } else { TryOutcome::Done(DevStatus::Ok) }
    }

    /// Writes a piece of a message into the peer's memory by a system call.
    pub(super) fn copy_to_peer(&self, addr: u64, piece: &SendBuf<'_>) -> Result<(), DevStatus> {
        self.copy(addr, piece.ptr.cast_mut(), piece.len, CopyDir::ToPeer)
    }
}
