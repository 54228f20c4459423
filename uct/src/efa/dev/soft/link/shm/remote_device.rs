//! Another process's device: keys, known GIDs, memory, liveness. Trusts no range unchecked.

#![allow(unsafe_code)]

use super::super::{Rdma, SendBuf, Sender, TryOutcome};
use super::copy_marks::{Mark, Marker};
use super::joint_copy::UnfinishedCopies;
use super::seg::{CopySlot, DevSeg};
use super::vm::{self, CopyDir};
use crate::api::Access;
use crate::efa::dev::DevStatus;
use crate::efa::dev::soft::mr::{MrTableView, Region};
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};
use ucs::mem::guard;
use ucs::mem::{SharedMap, SharedMem};
use ucs::sync::Ordering::{Acquire, Relaxed};
use ucs::sync::{AtomicBool, AtomicU32, AtomicU64, fence};
use ucs::sys::{PidFd, ProcId};

/// Mapped regions of a peer per queue pair that uses them.
const MAX_MAPS: usize = 128;
const CHUNK: u32 = 1 << 20;

/// Validity of a liveness check: a pid is not reused before all others were.
const LIVENESS_VALID: Duration = Duration::from_millis(1);

/// A mapped region; `None` if only system calls reach it.
type Map = Option<SharedMap>;

/// A peer's device, shared by the threads of this process.
pub(super) struct RemoteDevice {
    me: ProcId,
    pid: u32,
    /// Pidfd of the peer, and the file of its device with the descriptor; `None` for this process.
    peer: Option<(PidFd, DeviceFile)>,
    dead: AtomicBool,
    /// Bit of each slot of a copy that was given up while the peer copied its part.
    pub(super) given_up: AtomicU32,
    attached: Instant,
    /// Last time that the peer was found alive, ns since it was attached; 0: never.
    last_alive: AtomicU64,
    /// Last time that the file of its device was looked for, as above.
    looked: AtomicU64,
    seg: DevSeg,
    mrs: MrTableView,
}

/// The memory file of a device: number of the descriptor in its process, and inode.
pub(super) struct DeviceFile {
    pub(super) fd: i32,
    pub(super) inode: u64,
}

/// A peer's memory as one remote queue pair, hence one thread, has mapped it.
pub(super) struct RemoteMemory {
    maps: RefCell<FxHashMap<u64, Map>>,
    /// Key used last, and the mapping of its memory file.
    last: Cell<(u64, *mut u8, usize)>,
    /// Epoch for which the peer was found to know this interface id.
    known: Cell<(u64, u64)>,
    pub(super) unfinished: UnfinishedCopies,
    marker: Marker,
}

impl Default for RemoteMemory {
    fn default() -> Self {
        RemoteMemory {
            maps: RefCell::default(),
            last: Cell::new(NOTHING),
            known: Cell::new((u64::MAX, 0)),
            unfinished: UnfinishedCopies::default(),
            marker: Marker::default(),
        }
    }
}

const NOTHING: (u64, *mut u8, usize) = (0, std::ptr::null_mut(), 0);

impl RemoteDevice {
    pub(super) fn new(
        pid: u32,
        peer: Option<(PidFd, DeviceFile)>,
        seg: DevSeg,
        mrs: MrTableView,
    ) -> RemoteDevice {
        let (dead, last_alive) = (AtomicBool::new(false), AtomicU64::new(0));
        RemoteDevice {
            me: ProcId::current(),
            pid,
            peer,
            dead,
            given_up: AtomicU32::new(0),
            attached: Instant::now(),
            last_alive,
            looked: AtomicU64::new(0),
            seg,
            mrs,
        }
    }

    pub(super) fn me(&self) -> ProcId {
        self.me
    }

    /// Marks a copy by `key`, through the peer's queue pair `qpn`, until the mark is dropped. The key and the
    /// queue pair are looked at after this.
    // HOT
    #[inline]
    pub(super) fn mark<'a>(&'a self, memory: &RemoteMemory, qpn: u16, key: u32) -> Mark<'a> {
        memory.marker.mark(self.seg.marks(), self.me, qpn, key)
    }

    /// Gives back what `memory` has in the peer's segment.
    pub(super) fn free_mark(&self, memory: &RemoteMemory) {
        memory.marker.free(self.seg.marks());
    }

    pub(super) fn offers(&self) -> &AtomicU32 {
        &self.seg.hdr().offers.bits
    }

    pub(super) fn copy_slot(&self, at: usize) -> &CopySlot {
        &self.seg.hdr().copies[at]
    }

    fn since_attached(&self) -> u64 {
        self.attached.elapsed().as_nanos() as u64
    }

    /// Checks whether the process is dead, or has closed the device. A process that calls `execve` has: it is
    /// another program then.
    #[cold]
    pub(super) fn is_dead(&self) -> bool {
        let is_gone = |(pidfd, file): &(PidFd, DeviceFile)| pidfd.is_dead() || self.has_closed(file);
        if !self.dead.load(Relaxed) && self.peer.as_ref().is_some_and(is_gone) {
            self.dead.store(true, Relaxed);
        }
        let dead = self.dead.load(Relaxed);
        self.last_alive.store(if dead { 0 } else { self.since_attached().max(1) }, Relaxed);
        dead
    }

    /// Looks for the device's file in its process, if the last look is long ago. No if that cannot be read.
    fn has_closed(&self, file: &DeviceFile) -> bool {
        let now = self.since_attached();
        if now < self.looked.load(Relaxed) + LIVENESS_VALID.as_nanos() as u64 {
            return false;
        }
        self.looked.store(now, Relaxed);
        match std::fs::metadata(format!("/proc/{}/fd/{}", self.pid, file.fd)) {
            Ok(metadata) => metadata.ino() != file.inode,
            Err(e) => e.kind() == std::io::ErrorKind::NotFound,
        }
    }

    pub(super) fn seen_within(&self, ago: Duration) -> bool {
        match self.last_alive.load(Relaxed) {
            0 => false,
            at => self.since_attached().saturating_sub(at) < ago.as_nanos() as u64,
        }
    }

    /// Copies by a system call on the pid, after checking that the pid is still the peer's.
    pub(super) fn copy(&self, raddr: u64, local: *mut u8, len: u32, dir: CopyDir) -> Result<(), DevStatus> {
        if !self.seen_within(LIVENESS_VALID) && self.is_dead() {
            return Err(DevStatus::BadDestQpn);
        }
        let copied = vm::copy(self.pid, raddr, local, len, dir);
        match copied {
            Err(DevStatus::RemoteBadAddress) if !vm::is_mapped(local, len, dir) => {
                Err(DevStatus::InvalidLkey)
            }
            copied => copied,
        }
    }

    #[cold]
    pub(super) fn is_down(&self) -> bool {
        // SYNC(down): the queue pair was read before this.
        fence(Acquire);
        self.seg.hdr().down.load(Relaxed) != 0
    }

    fn has_ah_of(&self, memory: &RemoteMemory, iid: u64) -> bool {
        let h = self.seg.hdr();
        let epoch = h.epoch.load(Acquire);
        if memory.known.get() == (epoch, iid) || h.strict.load(Relaxed) == 0 {
            return true;
        }
        let known = self.seg.known();
        let high = (h.high.load(Relaxed) as usize).min(known.len());
        let found = known[..high].iter().any(|k| k.load(Relaxed) == iid);
        if found {
            memory.known.set((epoch, iid));
        }
        found
    }

    /// Local mapping of `len` bytes at the peer's `addr` in `region`.
    // HOT
    #[inline]
    fn map_range(
        &self,
        memory: &RemoteMemory,
        key: u32,
        region: &Region,
        addr: u64,
        len: u32,
    ) -> Option<*mut u8> {
        let (fd, file_off) = region.file?;
        let unique = self.mrs.unique_key(key);
        let (base, mapped) = match memory.last.get() {
            (last, base, mapped) if last == unique => (base, mapped),
            _ => self.map(memory, key, unique, region, fd)?,
        };
        let off = file_off.checked_add(addr.checked_sub(region.addr)?)?;
        let end = off.checked_add(u64::from(len))?;
        (end <= mapped as u64).then(|| base.wrapping_add(off as usize))
    }

    #[cold]
    fn map(
        &self,
        memory: &RemoteMemory,
        key: u32,
        unique: u64,
        region: &Region,
        fd: i32,
    ) -> Option<(*mut u8, usize)> {
        let mut maps = memory.maps.borrow_mut();
        if maps.len() >= MAX_MAPS && !maps.contains_key(&unique) {
            maps.clear();
            memory.last.set(NOTHING);
        }
        let map = maps.entry(unique).or_insert_with(|| {
            let mem = SharedMem::open_proc(self.pid, fd, 1);
            // The owner removes the key before it closes the file: a key still there proves the file right.
            match mem {
                // While the peer lives, the pid is its own.
                Ok(mem) if self.mrs.find(key) == Some(*region) && !self.is_dead() => {
                    Some(SharedMap::from(mem))
                }
                Ok(_) => None,
                Err(e) => {
                    tracing::debug!("region {key:#x} of process {}: {e}; using system calls", self.pid);
                    None
                }
            }
        });
        let mem = map.as_ref()?;
        let place = (mem.as_ptr(), mem.len());
        memory.last.set((unique, place.0, place.1));
        Some(place)
    }

    fn unmap(&self, memory: &RemoteMemory, key: u32) {
        let unique = self.mrs.unique_key(key);
        memory.maps.borrow_mut().remove(&unique);
        if memory.last.get().0 == unique {
            memory.last.set(NOTHING);
        }
    }

    /// Local mapping of a posted receive. `Err`: no such memory. `Ok(None)`: only system calls reach it.
    // HOT
    #[inline]
    pub(super) fn recv_buffer(
        &self,
        memory: &RemoteMemory,
        pd: u32,
        lkey: u32,
        addr: u64,
        len: u32,
    ) -> Result<Option<*mut u8>, ()> {
        match self.mrs.find(lkey) {
            Some(r) if r.allows(pd, addr, u64::from(len), Access::LOCAL_WRITE) => {
                Ok(self.map_range(memory, lkey, &r, addr, len))
            }
            _ => {
                self.unmap(memory, lkey);
                Err(())
            }
        }
    }

    pub(super) fn read(&self, memory: &RemoteMemory, pd: u32, from: Sender, op: &Rdma) -> TryOutcome {
        self.rdma(memory, pd, from, op, Access::REMOTE_READ, CopyDir::FromPeer)
    }

    pub(super) fn write(&self, memory: &RemoteMemory, pd: u32, from: Sender, op: &Rdma) -> TryOutcome {
        self.rdma(memory, pd, from, op, Access::REMOTE_WRITE, CopyDir::ToPeer)
    }

    fn rdma(
        &self,
        memory: &RemoteMemory,
        pd: u32,
        from: Sender,
        op: &Rdma,
        need: Access,
        dir: CopyDir,
    ) -> TryOutcome {
        if !self.has_ah_of(memory, from.iid) {
            return TryOutcome::Done(DevStatus::UnknownPeer);
        }
        if op.len == 0 {
            // An empty operation still checks liveness.
            let dead = self.is_dead();
            return TryOutcome::Done(if dead { DevStatus::BadDestQpn } else { DevStatus::Ok });
        }
        let region = match self.mrs.find(op.rkey) {
            Some(r) if r.allows(pd, op.raddr, u64::from(op.len), need) => r,
            _ => {
                self.unmap(memory, op.rkey);
                let dead = self.is_dead();
                return TryOutcome::Done(if dead {
                    DevStatus::BadDestQpn
                } else {
                    DevStatus::RemoteBadAddress
                });
            }
        };
        let len = op.len.min(CHUNK);
        let done = match self.map_range(memory, op.rkey, &region, op.raddr, len) {
            Some(there) => {
                let (src, dst) = match dir {
                    CopyDir::FromPeer => (there.cast_const(), op.local),
                    CopyDir::ToPeer => (op.local.cast_const(), there),
                };
                // SAFETY: `there` has `len` mapped bytes (checked in `map_range`); the caller checked the
                // local range for this direction. They may overlap in a self-write.
                match unsafe { guard::copy(src, dst, len as usize) } {
                    true => Ok(len),
                    false => Err(DevStatus::InvalidLkey),
                }
            }
            None => self.copy_jointly(&memory.unfinished, pd, op, len, dir),
        };
        match done {
            Err(status) => TryOutcome::Done(status),
            Ok(0) => TryOutcome::Busy,
            Ok(len) if len < op.len => TryOutcome::Partial(len),
            Ok(_) => TryOutcome::Done(DevStatus::Ok),
        }
    }

    pub(super) fn copy_to_peer(&self, addr: u64, src: &SendBuf<'_>) -> Result<(), DevStatus> {
        self.copy(addr, src.ptr.cast_mut(), src.len, CopyDir::ToPeer)
    }
}
