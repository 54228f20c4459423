//! Layout of shared segments: one per device (keys, known GIDs) and one per queue pair (receive ring). Fields
//! are atomics that another process may change at any time, checked at attach and bounds-checked.

#![allow(unsafe_code)]

use super::copy_marks::{MARK_SLOTS, MarkSlot, Marks};
use crate::efa::dev::QpKind;
use crate::efa::dev::soft::mr::{Memory, MrTable, MrTableView};
use std::ptr::NonNull;
use std::sync::Arc;
use ucs::mem::{MemError, SharedMem};
use ucs::sync::{AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};

const DEV_MAGIC: u64 = u64::from_le_bytes(*b"softefaD");
const QP_MAGIC: u64 = u64::from_le_bytes(*b"softefaQ");
/// Incremented with any change of these layouts.
const VERSION: u32 = 7;
const HDR: usize = 4096;
/// Alignment that avoids sharing a prefetched pair of lines.
const NO_SHARE: usize = 128;

/// Message bytes in the descriptor.
pub(super) const INLINE: usize = 32;
/// Message bytes with the descriptor's extension.
pub(super) const SHORT: usize = INLINE + size_of::<DescExt>();

/// Header of a device segment, followed by the known GIDs, the key table and the marks of copies.
#[repr(C)]
pub(super) struct DevHdr {
    magic: AtomicU64,
    version: AtomicU32,
    pub(super) strict: AtomicU32,
    max_ah: AtomicU32,
    max_mr: AtomicU32,
    pub(super) epoch: AtomicU64,
    /// Known GIDs lie below this index.
    pub(super) high: AtomicU32,
    /// Non-zero: the device is down while its process lives.
    pub(super) down: AtomicU32,
    /// Slots of marks that have been used.
    marks_used: AtomicU32,
    pub(super) offers: Offers,
    pub(super) copies: [CopySlot; COPY_SLOTS],
}

const MARKS_LEN: usize = MARK_SLOTS * size_of::<MarkSlot>();

/// Copies that peers offer to share at a time.
pub(super) const COPY_SLOTS: usize = 8;

/// Bit of each slot with an offer. A line of its own, which the owner reads at every idle poll.
#[repr(C, align(128))]
pub(super) struct Offers {
    pub(super) bits: AtomicU32,
}

/// A copy between a requester and the owner of the segment that both carry out (`joint_copy`).
#[repr(C, align(128))]
pub(super) struct CopySlot {
    /// State of the copy (`joint`).
    pub(super) word: AtomicU64,
    /// The requester's process.
    pub(super) pid: AtomicU32,
    pub(super) pd: AtomicU32,
    pub(super) start: AtomicU64,
    /// The owner's memory, and the key of it.
    pub(super) raddr: AtomicU64,
    pub(super) rkey: AtomicU32,
    /// Non-zero: the owner's memory is written.
    pub(super) write: AtomicU32,
    /// The requester's memory.
    pub(super) laddr: AtomicU64,
    pub(super) len: AtomicU32,
    /// Length of a part.
    pub(super) part: AtomicU32,
}

/// Descriptor of a receive ring, one cache line. Written by senders, except if abandoned by a dead one.
#[repr(C, align(64))]
pub(super) struct Desc {
    /// Claim index plus one, once published. SYNC(publish): release by the sender, acquire by the owner.
    pub(super) seq: AtomicU32,
    pub(super) len: AtomicU32,
    pub(super) src_iid: AtomicU64,
    pub(super) imm: AtomicU32,
    /// Sender's queue pair in the low half, flags in the high half.
    pub(super) src: AtomicU32,
    pub(super) claimer: AtomicU32,
    /// Process of the claim before, with this claim's lap.
    pub(super) before: AtomicU32,
    pub(super) body: [AtomicU64; INLINE / 8],
}

/// Descriptor extension of a message of medium length, apart so that shorter messages touch one line.
#[repr(C, align(64))]
pub(super) struct DescExt(pub(super) [AtomicU64; 8]);

/// Receive WQE: buffer of one posted receive, apart from the descriptor. Written before the credit.
#[repr(C)]
pub(super) struct RecvWqe {
    /// Buffer address, if senders write there.
    pub(super) addr: AtomicU64,
    /// Length in the low half, local key in the high half; key 0: use a payload slot.
    pub(super) len_lkey: AtomicU64,
}

pub(super) const FLAG_IMM: u32 = 1 << 16;
pub(super) const FLAG_INLINE: u32 = 1 << 17;
pub(super) const FLAG_WRITE: u32 = 1 << 18;
/// The receive WQE was unusable: nothing was written.
pub(super) const FLAG_ABORT: u32 = 1 << 19;
/// Message in a recycled payload slot.
pub(super) const FLAG_HOT: u32 = 1 << 20;
/// Message in the claim's own payload slot.
pub(super) const FLAG_COLD: u32 = 1 << 21;
/// The message exceeded its receive: nothing was written.
pub(super) const FLAG_TOO_LONG: u32 = 1 << 22;
/// The sender had no message to write after its claim: the receive stays posted.
pub(super) const FLAG_VOID: u32 = 1 << 23;

const _: () = assert!(size_of::<Desc>() == 64);

/// Claim counter: index low, last claimer's pid high, [`CLOSED`](super::ring::CLOSED) on top.
#[repr(C, align(128))]
pub(super) struct Head {
    pub(super) word: AtomicU64,
}

#[repr(C, align(128))]
pub(super) struct Credit {
    /// Receives posted so far. SYNC(credit): release by the owner, acquire by senders.
    pub(super) posted: AtomicU32,
    /// Length of the shortest receive posted so far.
    pub(super) min_recv_len: AtomicU32,
    /// Non-zero: senders write directly into some receive.
    pub(super) direct: AtomicU32,
    /// Claims taken. SYNC(taken): release by the owner after its copy, acquire by senders before theirs.
    pub(super) taken: AtomicU32,
}

#[repr(C, align(128))]
pub(super) struct ArmStatus {
    pub(super) flag: AtomicU32,
}

/// Header of a queue pair segment, followed by the ring, the ring of unsolicited arrivals, descriptor
/// extensions, receive WQEs and payload slots: first a few recycled ones, which stay in cache while the owner
/// keeps up, then one per descriptor.
#[repr(C)]
pub(super) struct QpHdr {
    magic: AtomicU64,
    version: AtomicU32,
    qpn: AtomicU32,
    iid: AtomicU64,
    pid: AtomicU32,
    dev_fd: AtomicI32,
    start: AtomicU64,
    qkey: AtomicU32,
    pub(super) pd: AtomicU32,
    wake_fd: AtomicI32,
    ring: AtomicU32,
    unsol: AtomicU32,
    slot_len: AtomicU32,
    mtu: AtomicU32,
    ud: AtomicU32,
    pub(super) head: Head,
    pub(super) credit: Credit,
    pub(super) armed: ArmStatus,
    pub(super) unsol_head: Head,
    pub(super) unsol_credit: Credit,
}

const _: () =
    assert!(size_of::<QpHdr>() <= HDR && align_of::<QpHdr>() == NO_SHARE && size_of::<DevHdr>() <= HDR);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct QpLayout {
    /// Ring descriptors, a power of two.
    pub(super) ring: u32,
    /// Descriptors for unsolicited arrivals, a power of two or 0.
    pub(super) unsol: u32,
    pub(super) slot_len: u32,
}

/// Most recycled payload slots: about half an L2 cache.
const HOT: u32 = 64;

impl QpLayout {
    const MAX_RING: u32 = 1 << 16;
    const MAX_SLOT: u32 = 1 << 16;

    fn is_valid(&self) -> bool {
        self.ring.is_power_of_two()
            && self.ring <= Self::MAX_RING
            && (self.unsol == 0 || self.unsol.is_power_of_two() && self.unsol <= Self::MAX_RING)
            && self.slot_len <= Self::MAX_SLOT
    }

    fn desc_exts_at(&self) -> usize {
        HDR + (self.ring as usize + self.unsol as usize) * size_of::<Desc>()
    }

    fn recv_wqes_at(&self) -> usize {
        self.desc_exts_at() + self.ring as usize * size_of::<DescExt>()
    }

    fn slots_at(&self) -> usize {
        (self.recv_wqes_at() + self.ring as usize * size_of::<RecvWqe>()).next_multiple_of(64)
    }

    /// Recycled payload slots, a power of two.
    #[inline]
    pub(super) fn hot(&self) -> u32 {
        self.ring.min(HOT)
    }

    fn bytes(&self) -> usize {
        self.slots_at() + (self.hot() as usize + self.ring as usize) * self.slot_len as usize
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct QpIdentity {
    pub(super) iid: u64,
    pub(super) qpn: u16,
    pub(super) pid: u32,
    pub(super) start: u64,
    pub(super) dev_fd: i32,
    pub(super) qkey: u32,
    pub(super) pd: u32,
    pub(super) wake_fd: i32,
    pub(super) mtu: u32,
    pub(super) kind: QpKind,
}

/// A mapped queue pair segment, own or a peer's. `layout` is checked against the mapping.
pub(super) struct QpSeg {
    mem: SharedMem,
    layout: QpLayout,
    /// Offsets that the layout gives.
    desc_exts_at: usize,
    recv_wqes_at: usize,
}

impl QpSeg {
    /// `layout` fits `mem`.
    fn new(mem: SharedMem, layout: QpLayout) -> QpSeg {
        let (desc_exts_at, recv_wqes_at) = (layout.desc_exts_at(), layout.recv_wqes_at());
        QpSeg { mem, layout, desc_exts_at, recv_wqes_at }
    }

    pub(super) fn create(name: &str, layout: QpLayout, identity: &QpIdentity) -> Result<QpSeg, MemError> {
        let lazy = ucs::mem::MapOpts { fill: ucs::mem::Fill::Lazy, ..Default::default() };
        let seg = QpSeg::new(SharedMem::create(name, layout.bytes(), lazy)?, layout);
        let h = seg.hdr();
        h.version.store(VERSION, Relaxed);
        h.qpn.store(identity.qpn.into(), Relaxed);
        h.iid.store(identity.iid, Relaxed);
        h.pid.store(identity.pid, Relaxed);
        h.start.store(identity.start, Relaxed);
        h.dev_fd.store(identity.dev_fd, Relaxed);
        h.qkey.store(identity.qkey, Relaxed);
        h.pd.store(identity.pd, Relaxed);
        h.wake_fd.store(identity.wake_fd, Relaxed);
        h.mtu.store(identity.mtu, Relaxed);
        h.ud.store((identity.kind == QpKind::Ud).into(), Relaxed);
        h.ring.store(layout.ring, Relaxed);
        h.unsol.store(layout.unsol, Relaxed);
        h.slot_len.store(layout.slot_len, Relaxed);
        h.credit.min_recv_len.store(u32::MAX, Relaxed);
        h.magic.store(QP_MAGIC, Relaxed);
        // Fault the rings in now.
        (0..layout.ring).for_each(|i| seg.desc(i).seq.store(0, Relaxed));
        (0..layout.ring).for_each(|i| seg.desc_ext(i).0[0].store(0, Relaxed));
        (0..layout.unsol).for_each(|i| seg.unsol_desc(i).seq.store(0, Relaxed));
        Ok(seg)
    }

    pub(super) fn attach(mem: SharedMem) -> Option<(QpSeg, QpIdentity)> {
        if mem.len() < HDR {
            return None;
        }
        let mut seg = QpSeg::new(mem, QpLayout { ring: 1, unsol: 0, slot_len: 0 });
        let h = seg.hdr();
        if h.magic.load(Relaxed) != QP_MAGIC || h.version.load(Relaxed) != VERSION {
            return None;
        }
        let layout = QpLayout {
            ring: h.ring.load(Relaxed),
            unsol: h.unsol.load(Relaxed),
            slot_len: h.slot_len.load(Relaxed),
        };
        let identity = QpIdentity {
            iid: h.iid.load(Relaxed),
            qpn: u16::try_from(h.qpn.load(Relaxed)).ok()?,
            pid: h.pid.load(Relaxed),
            start: h.start.load(Relaxed),
            dev_fd: h.dev_fd.load(Relaxed),
            qkey: h.qkey.load(Relaxed),
            pd: h.pd.load(Relaxed),
            wake_fd: h.wake_fd.load(Relaxed),
            mtu: h.mtu.load(Relaxed),
            kind: if h.ud.load(Relaxed) == 0 { QpKind::Srd } else { QpKind::Ud },
        };
        if !layout.is_valid() || layout.bytes() > seg.mem.len() {
            return None;
        }
        seg = QpSeg::new(seg.mem, layout);
        Some((seg, identity))
    }

    #[cfg(test)]
    pub(super) fn into_mem(self) -> SharedMem {
        self.mem
    }

    #[inline]
    pub(super) fn hdr(&self) -> &QpHdr {
        // SAFETY: the mapping is page aligned, at least HDR long (checked in `attach`, so made in `create`),
        // lives as long as self, and every bit pattern is a header of atomics.
        unsafe { &*self.mem.as_ptr().cast::<QpHdr>() }
    }

    pub(super) fn set_qkey(&self, qkey: u32) {
        self.hdr().qkey.store(qkey, Relaxed);
    }

    /// Whether a process maps the segment; `None` if that cannot be read.
    #[cold]
    pub(super) fn is_mapped_by(&self, pid: u32) -> Option<bool> {
        let inode = super::lookup::inode(std::process::id(), self.mem.fd())?.to_string();
        // Empty if the first thread of the process has ended.
        let maps =
            std::fs::read_to_string(format!("/proc/{pid}/maps")).ok().filter(|maps| !maps.is_empty())?;
        // Address, access, offset, device, inode, and the file, which names a queue pair.
        let is_it = |line: &str| {
            line.contains("/memfd:") && line.split_ascii_whitespace().nth(4) == Some(inode.as_str())
        };
        Some(maps.lines().any(is_it))
    }

    pub(super) fn layout(&self) -> QpLayout {
        self.layout
    }

    #[inline]
    fn desc_at(&self, slot: usize) -> &Desc {
        let at = self.mem.as_ptr().wrapping_add(HDR + slot * size_of::<Desc>()).cast::<Desc>();
        // SAFETY: callers pass a slot below `ring + unsol`, which lies inside the mapping (checked), 64-byte
        // aligned; every bit pattern is a descriptor of atomics.
        unsafe { &*at }
    }

    // HOT
    #[inline]
    pub(super) fn desc(&self, index: u32) -> &Desc {
        self.desc_at((index & (self.layout.ring - 1)) as usize)
    }

    // HOT
    #[inline]
    pub(super) fn desc_ext(&self, index: u32) -> &DescExt {
        let slot = (index & (self.layout.ring - 1)) as usize;
        let at = self.mem.as_ptr().wrapping_add(self.desc_exts_at + slot * size_of::<DescExt>());
        // SAFETY: `slot` is below `ring`; that many lie inside the mapping (checked), 64-byte aligned, and
        // every bit pattern is one of atomics.
        unsafe { &*at.cast::<DescExt>() }
    }

    // HOT
    #[inline]
    pub(super) fn recv_wqe(&self, index: u32) -> &RecvWqe {
        let slot = (index & (self.layout.ring - 1)) as usize;
        let at = self.mem.as_ptr().wrapping_add(self.recv_wqes_at + slot * size_of::<RecvWqe>());
        // SAFETY: `slot` is below `ring`; that many lie inside the mapping (checked), 16-byte aligned, and
        // every bit pattern is one of atomics.
        unsafe { &*at.cast::<RecvWqe>() }
    }

    /// Descriptor of claim `index` in the ring of unsolicited arrivals; panics without one.
    pub(super) fn unsol_desc(&self, index: u32) -> &Desc {
        assert!(self.layout.unsol > 0);
        self.desc_at((self.layout.ring + (index & (self.layout.unsol - 1))) as usize)
    }

    /// Offset of claim `index`'s recycled payload slot.
    // HOT
    #[inline]
    pub(super) fn hot_slot(&self, index: u32) -> u64 {
        let slot = index & (self.layout.hot() - 1);
        (self.layout.slots_at() + slot as usize * self.layout.slot_len as usize) as u64
    }

    #[inline]
    pub(super) fn cold_slot(&self, index: u32) -> u64 {
        let slot = self.layout.hot() + (index & (self.layout.ring - 1));
        (self.layout.slots_at() + slot as usize * self.layout.slot_len as usize) as u64
    }

    #[inline]
    pub(super) fn payload(&self, offset: u64, len: u32) -> Option<*mut u8> {
        let end = offset.checked_add(u64::from(len))?;
        let inside = offset >= self.layout.slots_at() as u64 && end <= self.layout.bytes() as u64;
        inside.then(|| self.mem.as_ptr().wrapping_add(offset as usize))
    }
}

pub(super) struct DevSeg {
    mem: Arc<SharedMem>,
    max_ah: usize,
    marks_at: usize,
}

fn known_bytes(max_ah: usize) -> usize {
    (max_ah * size_of::<AtomicU64>()).next_multiple_of(64)
}

/// Offset of the marks, on a page of their own.
fn marks_at(entries_at: usize, max_mr: usize) -> usize {
    (entries_at + MrTable::bytes(max_mr)).next_multiple_of(HDR)
}

impl DevSeg {
    pub(super) fn create(
        name: &str,
        max_ah: u32,
        max_mr: u32,
        strict: bool,
    ) -> Result<(DevSeg, MrTable), MemError> {
        let lazy = ucs::mem::MapOpts { fill: ucs::mem::Fill::Lazy, ..Default::default() };
        let entries_at = HDR + known_bytes(max_ah as usize);
        let marks_at = marks_at(entries_at, max_mr as usize);
        let mem = Arc::new(SharedMem::create(name, marks_at + MARKS_LEN, lazy)?);
        let seg = DevSeg { mem: mem.clone(), max_ah: max_ah as usize, marks_at };
        let h = seg.hdr();
        h.version.store(VERSION, Relaxed);
        h.strict.store(strict.into(), Relaxed);
        h.max_ah.store(max_ah, Relaxed);
        h.max_mr.store(max_mr, Relaxed);
        h.magic.store(DEV_MAGIC, Relaxed);
        let shown = MrTableView::new(Memory::Shared(mem), entries_at, max_mr as usize);
        Ok((seg, MrTable::new(max_mr as usize, Some(shown))?))
    }

    pub(super) fn attach(mem: SharedMem) -> Option<(DevSeg, MrTableView)> {
        if mem.len() < HDR {
            return None;
        }
        let mut seg = DevSeg { mem: Arc::new(mem), max_ah: 0, marks_at: 0 };
        let h = seg.hdr();
        let (ah, mr) = (h.max_ah.load(Relaxed) as usize, h.max_mr.load(Relaxed) as usize);
        let good = h.magic.load(Relaxed) == DEV_MAGIC && h.version.load(Relaxed) == VERSION;
        let entries_at = HDR + known_bytes(ah.min(1 << 20));
        let marks_at = marks_at(entries_at, mr.min(1 << 16));
        if !good || ah > 1 << 20 || mr > 1 << 16 || marks_at + MARKS_LEN > seg.mem.len() {
            return None;
        }
        (seg.max_ah, seg.marks_at) = (ah, marks_at);
        let mrs = MrTableView::new(Memory::Shared(seg.mem.clone()), entries_at, mr);
        Some((seg, mrs))
    }

    pub(super) fn hdr(&self) -> &DevHdr {
        // SAFETY: as for `QpSeg::hdr`.
        unsafe { &*self.mem.as_ptr().cast::<DevHdr>() }
    }

    /// Marks of copies in memory of the device.
    // HOT
    #[inline]
    pub(super) fn marks(&self) -> Marks<'_> {
        let first = self.mem.as_ptr().wrapping_add(self.marks_at).cast::<MarkSlot>();
        // SAFETY: `MARK_SLOTS` slots from `marks_at` on lie inside the mapping (by construction or checked),
        // page aligned; every bit pattern is one of atomics.
        let slots = unsafe { std::slice::from_raw_parts(first, MARK_SLOTS) };
        Marks { slots, used: &self.hdr().marks_used }
    }

    pub(super) fn fd(&self) -> i32 {
        self.mem.fd()
    }

    /// Known GIDs; 0 is a free entry.
    pub(super) fn known(&self) -> &[AtomicU64] {
        let first = NonNull::new(self.mem.as_ptr().wrapping_add(HDR)).expect("a mapping is not at null");
        // SAFETY: `max_ah` aligned words after the header lie inside the mapping (by construction or
        // checked); every bit pattern is an AtomicU64.
        unsafe { std::slice::from_raw_parts(first.as_ptr().cast(), self.max_ah) }
    }
}
