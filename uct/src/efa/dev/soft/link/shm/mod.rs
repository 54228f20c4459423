//! The link between processes of one host and user, without files: segments are sealed memory files that
//! peers open through `/proc`, names are abstract sockets, and both vanish with their process.
//!
//! * `seg`: layout and checks of shared segments. * `ring`: the synchronisation, with loom models. *
//!   `lookup`: from (GID, queue pair number) to a segment. * `permissions`: what the system allows.
//! * `recv_queue`: the receive side. * `remote_qp`: the send side. * `remote_device`: a peer's keys, memory
//!   and liveness. * `vm`: copies by system call; `joint_copy`: those that both processes carry out.
//! * `copy_marks`: marks of copies that peers make in memory of a device; `mark` is the synchronisation.
//! * `comp_channel`: completion channels.
//!
//! Polling needs no thread and no system call; RDMA needs no code on the target, and is faster if it polls.

mod comp_channel;
mod copy_marks;
mod joint_copy;
mod lookup;
mod mark;
pub mod permissions;
mod recv_queue;
mod remote_device;
mod remote_qp;
mod ring;
mod seg;
#[cfg(test)]
mod tests;
mod vm;

use super::{Channel, Link, Progress, RecvQueueInit, TryOutcome};
use crate::api::{ConnectError, Error, OpenError};
use crate::base::alloc;
use crate::efa::dev::reachability::{self, HostId};
use crate::efa::dev::soft::ah::OUT_OF_AHS;
use crate::efa::dev::soft::mr::{Memory, MrTable, Region};
use crate::efa::dev::soft::profile::Profile;
use crate::efa::dev::{DevStatus, Gid, Placement, QpKind};
pub use comp_channel::ShmCompChannel;
use lookup::{LookupError, QpName};
pub use recv_queue::ShmRecvQueue;
use remote_device::{DeviceFile, RemoteDevice};
pub use remote_qp::ShmRemoteQp;
use rustc_hash::FxHashMap;
use seg::{DevSeg, QpIdentity, QpLayout, QpSeg};
use std::cell::Cell;
use std::rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Instant;
use ucs::mem::{FixedMap, MapOpts, MemError, SharedMem};
use ucs::sync::Ordering::{Relaxed, Release};
use ucs::sync::{AtomicBool, AtomicU16};
use ucs::sys::proc::{self, WatchError};
use ucs::sys::{PidFd, ProcId};

const UNSOL_RING: u32 = 1024;

/// Connection of one device to the processes of this host. Clones, in any thread, share it.
#[derive(Clone)]
pub struct Shm(Arc<ShmDevice>);

/// A device, which the clones of a [`Shm`] share.
pub struct ShmDevice {
    iid: u64,
    /// Tag of the job, which comes of its secret; empty without one.
    job: Box<str>,
    host: HostId,
    me: ProcId,
    mtu: u32,
    seg: DevSeg,
    table: MrTable,
    /// As in the segment, which other processes can write.
    down: AtomicBool,
    next_qpn: AtomicU16,
    known: Mutex<KnownPeers>,
    /// By process, its start, and the inode of the device's memory file.
    remotes: Mutex<FxHashMap<(u32, u64, u64), Weak<RemoteDevice>>>,
    born: Instant,
    /// Read while a part of a joint copy is copied, after whose check of the key it may be removed.
    copies: RwLock<()>,
}

#[derive(Default)]
struct KnownPeers {
    /// By interface id: count, and index in the segment.
    by_iid: FxHashMap<u64, (u32, usize)>,
    free: Vec<usize>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Data behind these locks is consistent between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ShmDevice {
    fn is_owner_process(&self) -> bool {
        self.me.pid == proc::pid()
    }
}

fn no_segment(what: &str, e: &MemError) -> OpenError {
    OpenError::memory(format_args!("no shared memory for {what} of the software EFA device"), e)
}

impl Shm {
    /// Opens a device with GID `fe80::` + `iid`, for processes with the tag `job`. `first_qpn` is where queue
    /// pair numbers start.
    pub(in crate::efa::dev::soft) fn open(
        (iid, job): (u64, &str),
        profile: &Profile,
        first_qpn: u16,
    ) -> Result<Shm, OpenError> {
        proc::allow_ptrace(profile.allow_peers);
        let attr = &profile.attr;
        let (seg, table) = DevSeg::create("softefa.dev", attr.max_ah, attr.max_mr, profile.strict)
            .map_err(|e| no_segment("the key table", &e))?;
        let device = ShmDevice {
            iid,
            job: job.into(),
            host: HostId::current(),
            me: ProcId::current(),
            mtu: attr.mtu,
            seg,
            table,
            down: AtomicBool::new(false),
            next_qpn: AtomicU16::new(first_qpn),
            known: Mutex::default(),
            remotes: Mutex::default(),
            born: Instant::now(),
            copies: RwLock::default(),
        };
        Ok(Shm(Arc::new(device)))
    }

    /// Another handle to a device.
    pub(super) fn of(device: Arc<ShmDevice>) -> Shm {
        Shm(device)
    }

    /// The device, without keeping it.
    pub(super) fn downgrade(&self) -> Weak<ShmDevice> {
        Arc::downgrade(&self.0)
    }

    /// Resolves a queue pair; passes the reason to `on_denied` if it exists but cannot be reached.
    pub(super) fn resolve_or(
        &self,
        iid: u64,
        qpn: u16,
        kind: QpKind,
        on_denied: impl FnOnce(&str),
    ) -> Result<ShmRemoteQp, TryOutcome> {
        self.attach(iid, qpn, kind).map_err(|lost| match lost {
            LookupError::NotFound => TryOutcome::Done(DevStatus::BadDestQpn),
            LookupError::Retry => TryOutcome::Busy,
            LookupError::DeviceDown => TryOutcome::Done(DevStatus::Unreachable),
            LookupError::Denied(why) => {
                on_denied(&why);
                TryOutcome::Done(DevStatus::Unreachable)
            }
        })
    }

    /// Attaches the device of a process, once.
    fn remote(&self, identity: &QpIdentity) -> Result<Arc<RemoteDevice>, LookupError> {
        // Not by the descriptor: a process that closes a device and opens another one may use it again.
        let inode = lookup::inode(identity.pid, identity.dev_fd).ok_or(LookupError::NotFound)?;
        let key = (identity.pid, identity.start, inode);
        let mut remotes = lock(&self.0.remotes);
        if let Some(remote) = remotes.get(&key).and_then(Weak::upgrade) {
            return Ok(remote);
        }
        let id = ProcId { pid: identity.pid, start: identity.start };
        let pidfd = (id != ProcId::current()).then(|| PidFd::open(id)).transpose().map_err(|e| match e {
            WatchError::Gone { .. } => LookupError::NotFound,
            e @ WatchError::Os { errno, .. } => {
                LookupError::Denied(format!("{e} ({})", lookup::remedy(errno)))
            }
        })?;
        let mem = SharedMem::open_proc(identity.pid, identity.dev_fd, 1).map_err(|e| match e {
            MemError::Gone { .. } => LookupError::NotFound,
            e => LookupError::Denied(e.to_string()),
        })?;
        let other_version =
            || LookupError::Denied(format!("process {} has a device of another version", identity.pid));
        let (seg, mrs) = DevSeg::attach(mem).ok_or_else(other_version)?;
        let peer = pidfd.map(|pidfd| (pidfd, DeviceFile { fd: identity.dev_fd, inode }));
        let remote = Arc::new(RemoteDevice::new(identity.pid, peer, seg, mrs));
        remotes.retain(|_, r| r.strong_count() > 0);
        remotes.insert(key, Arc::downgrade(&remote));
        Ok(remote)
    }

    fn attach(&self, iid: u64, qpn: u16, kind: QpKind) -> Result<ShmRemoteQp, LookupError> {
        let (mem, pid) = lookup::lookup(&self.0.job, iid, qpn)?;
        let other_version =
            || LookupError::Denied(format!("process {pid} has a queue pair of another version"));
        let (seg, identity) = QpSeg::attach(mem).ok_or_else(other_version)?;
        if (identity.iid, identity.qpn, identity.pid) != (iid, qpn, pid) {
            return Err(LookupError::Denied(format!(
                "process {pid} answers for a queue pair that is not its own"
            )));
        }
        if identity.kind != kind {
            return Err(LookupError::NotFound);
        }
        let remote = self.remote(&identity)?;
        if remote.is_down() {
            return Err(LookupError::DeviceDown);
        }
        if identity.mtu != self.0.mtu {
            let (theirs, ours) = (identity.mtu, self.0.mtu);
            tracing::warn!(
                "the EFA device of process {pid} has an MTU of {theirs} bytes, this one {ours}: longer messages will \
                 fail (give both the same, SOFTEFA_MTU)"
            );
        }
        Ok(ShmRemoteQp::new(self.0.me.pid, seg, identity, remote))
    }
}

impl Link for Shm {
    const SERVES_THREADS: bool = true;

    type RecvQueue = ShmRecvQueue;
    type RemoteQp = ShmRemoteQp;
    type CompChannel = ShmCompChannel;

    #[inline]
    fn iid(&self) -> u64 {
        self.0.iid
    }

    fn check_reachable(&self, other: Gid) -> Result<(), ConnectError> {
        reachability::check(Gid::link_local(self.0.iid), || self.0.host, other)
    }

    #[inline]
    fn regions(&self) -> &MrTable {
        &self.0.table
    }

    fn alloc(&self, len: usize, place: Placement) -> Result<(Memory, Option<i32>), Error> {
        let opts = MapOpts { fill: place.fill, ..MapOpts::default() };
        // Reserved first, so that the file's own mapping does not take it.
        let reserve = |at| FixedMap::reserve(at, len, opts.pages).map_err(alloc::error);
        let fixed = place.at.map(reserve).transpose()?;
        let mem = SharedMem::create("softefa.mr", len, opts).map_err(alloc::error)?;
        let fd = mem.fd();
        let memory = match fixed {
            Some(mut fixed) => {
                fixed.map_file(&mem, opts).map_err(alloc::error)?;
                Memory::FixedFile(Arc::new((fixed, mem)))
            }
            None => Memory::Shared(Arc::new(mem)),
        };
        Ok((memory, Some(fd)))
    }

    fn open_recv_queue(
        &self,
        init: RecvQueueInit<ShmCompChannel>,
        free: &dyn Fn(u16) -> bool,
    ) -> Result<ShmRecvQueue, OpenError> {
        let dev = &self.0;
        for _ in 0..u16::MAX {
            let qpn = dev.next_qpn.load(Relaxed).checked_add(1).unwrap_or(1);
            dev.next_qpn.store(qpn, Relaxed);
            if !free(qpn) {
                continue;
            }
            let Some(name) = QpName::bind(&dev.job, dev.iid, qpn)? else { continue };
            let layout = QpLayout {
                ring: init.depth.next_power_of_two(),
                unsol: if init.unsolicited { UNSOL_RING } else { 0 },
                slot_len: dev.mtu.next_multiple_of(64),
            };
            let identity = QpIdentity {
                iid: dev.iid,
                qpn,
                pid: dev.me.pid,
                start: dev.me.start,
                dev_fd: dev.seg.fd(),
                qkey: init.qkey,
                pd: init.pd,
                wake_fd: init.channel.as_ref().map_or(-1, |channel| channel.pipe_fd()),
                mtu: dev.mtu,
                kind: init.kind,
            };
            let seg = QpSeg::create(&lookup::memory_name(&dev.job, dev.iid, qpn), layout, &identity)
                .map_err(|e| no_segment("a queue pair", &e))?;
            name.listen()?;
            return Ok(ShmRecvQueue::new(dev.clone(), name, seg, qpn, init.pd));
        }
        Err(Error::Exhausted("queue pair numbers").into())
    }

    #[cold]
    fn resolve(&self, iid: u64, qpn: u16, kind: QpKind) -> Result<ShmRemoteQp, TryOutcome> {
        self.resolve_or(iid, qpn, kind, |why| tracing::error!("queue pair {qpn} of fe80::{iid:x}: {why}"))
    }

    fn create_channel(&self, channel: Channel) -> Result<Option<ShmCompChannel>, OpenError> {
        if channel == Channel::Without {
            return Ok(None);
        }
        let created = ShmCompChannel::new();
        created.map(Some).map_err(|errno| {
            let hint = "it takes four descriptors: raise the limit, see `ulimit -n`";
            let why = format!("no completion channel for the software EFA device: {errno} ({hint})");
            OpenError::Exhausted { why, errno }
        })
    }

    fn is_owner_process(&self) -> bool {
        self.0.is_owner_process()
    }

    fn await_copies(&self, key: u32, region: &Region) {
        drop(self.0.copies.write().unwrap_or_else(PoisonError::into_inner));
        if region.is_for_peers() {
            self.0.seg.marks().await_key(key);
        }
    }

    fn set_peer_known(&self, iid: u64, known: bool) -> Result<(), Error> {
        if !self.is_owner_process() {
            return Ok(());
        }
        let KnownPeers { by_iid: all, free } = &mut *lock(&self.0.known);
        let (h, slots) = (self.0.seg.hdr(), self.0.seg.known());
        match (known, all.get_mut(&iid)) {
            (true, Some((n, _))) => *n += 1,
            (true, None) => {
                let high = h.high.load(Relaxed) as usize;
                let slot = free.pop().unwrap_or(high);
                let entry = slots.get(slot).ok_or(Error::Exhausted(OUT_OF_AHS))?;
                entry.store(iid, Relaxed);
                h.high.store(high.max(slot + 1) as u32, Relaxed);
                h.epoch.fetch_add(1, Release);
                all.insert(iid, (1, slot));
            }
            (false, Some((1, slot))) => {
                slots[*slot].store(0, Relaxed);
                free.push(*slot);
                h.epoch.fetch_add(1, Release);
                all.remove(&iid);
            }
            (false, Some((n, _))) => *n -= 1,
            (false, None) => {}
        }
        Ok(())
    }

    // HOT
    #[inline]
    fn on_poll(&self, polls: &Cell<u64>) {
        polls.set(polls.get() + 1);
    }

    #[inline]
    fn ticks(&self, polls: &Cell<u64>) -> u64 {
        polls.get()
    }

    fn clock(&self) -> u64 {
        self.0.born.elapsed().as_nanos() as u64
    }

    /// Checking for a posted receive costs nanoseconds: at every poll.
    fn retry_ticks(&self, _interval_ns: u64) -> u64 {
        1
    }

    fn register_progress(&self, _progress: rc::Weak<dyn Progress>) {}

    fn go_down(&self) -> bool {
        // SYNC(down).
        self.0.seg.hdr().down.store(1, Relaxed);
        !self.0.down.swap(true, Relaxed)
    }

    // HOT
    #[inline]
    fn is_down(&self) -> bool {
        self.0.down.load(Relaxed)
    }

    #[inline]
    fn alive(&self) -> bool {
        true
    }

    // HOT
    #[inline]
    fn has_offers(&self) -> bool {
        self.0.seg.hdr().offers.bits.load(Relaxed) != 0
    }

    #[cold]
    fn join_copy(&self) {
        Shm::join_copy(self);
    }
}
