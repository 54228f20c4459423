//! Layout of what processes share: one segment per device (keys, known GIDs) and one per queue pair (receive ring).
//! Written by the owner at creation, checked by a peer when it attaches. Every field is an atomic, because another
//! process may change it at any time; nothing here is believed without a bound.

use crate::efa::dev::QpKind;
use crate::efa::dev::soft::mr::{Memory, MrTable, MrTableView};
use std::ptr::NonNull;
use std::sync::Arc;
use ucs::mem::{MemError, SharedMem};
use ucs::sync::{AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};

const DEV_MAGIC: u64 = u64::from_le_bytes(*b"softefaD");
const QP_MAGIC: u64 = u64::from_le_bytes(*b"softefaQ");
/// Changes with any layout in this file.
const VERSION: u32 = 5;
/// Room for a header.
const HDR: usize = 4096;
/// Cache lines that must not share a prefetch pair.
const NO_SHARE: usize = 128;

/// Bytes of a message carried in the descriptor itself.
pub(super) const INLINE: usize = 32;
/// Bytes of one that has the descriptor's annex too.
pub(super) const SHORT: usize = INLINE + size_of::<DescExt>();

/// Header of a device segment. Followed by the known GIDs and by the rows of the key table.
#[repr(C)]
pub(super) struct DevHdr {
    magic: AtomicU64,
    version: AtomicU32,
    pub(super) strict: AtomicU32,
    max_ah: AtomicU32,
    max_mr: AtomicU32,
    /// Changes whenever the known GIDs do.
    pub(super) epoch: AtomicU64,
    /// Known GIDs lie below this place.
    pub(super) high: AtomicU32,
    /// Not zero: the device went down, its process lives on.
    pub(super) down: AtomicU32,
}

/// One descriptor of a receive ring: a cache line. Only senders write it; the owner, who watches it, never does
/// (but for a claim that a dead sender has left).
#[repr(C, align(64))]
pub(super) struct Desc {
    /// Index of the claim plus one, once the message is there. SYNC(publish): release by the sender, acquire by the owner.
    pub(super) seq: AtomicU32,
    pub(super) len: AtomicU32,
    pub(super) src_iid: AtomicU64,
    pub(super) imm: AtomicU32,
    /// Sender's queue pair in the low half, flags in the high.
    pub(super) src: AtomicU32,
    /// Process that claimed the descriptor ([`sign`](super::ring::sign)).
    pub(super) claimer: AtomicU32,
    /// Process that made the claim before this one (signed as this claim's).
    pub(super) before: AtomicU32,
    /// A short message's bytes.
    pub(super) body: [AtomicU64; INLINE / 8],
}

/// The rest of a message that is somewhat longer than a descriptor has room for: one for each descriptor of the ring, apart from
/// it, so that those which fit touch one line.
#[repr(C, align(64))]
pub(super) struct DescExt(pub(super) [AtomicU64; 8]);

/// Where a long message for one posted receive goes. Written by the owner at the post, before the credit; read by
/// senders if receives differ. Apart from the descriptor, so that posts leave the line alone that short messages
/// travel in.
#[repr(C)]
pub(super) struct RecvWqe {
    /// Address of the buffer, if senders are to write there.
    pub(super) addr: AtomicU64,
    /// Room in the low half, local key in the high; key 0: the message goes to a payload slot.
    pub(super) len_lkey: AtomicU64,
}

pub(super) const FLAG_IMM: u32 = 1 << 16;
pub(super) const FLAG_INLINE: u32 = 1 << 17;
pub(super) const FLAG_WRITE: u32 = 1 << 18;
/// The landing could not be used: nothing was written.
pub(super) const FLAG_ABORT: u32 = 1 << 19;
/// The bytes are in the payload slot of the claim: of the few that are used in turn, or of the many.
pub(super) const FLAG_HOT: u32 = 1 << 20;
/// As above.
pub(super) const FLAG_COLD: u32 = 1 << 21;
/// The message was too long for the receive it uses up: nothing was written.
pub(super) const FLAG_TOO_LONG: u32 = 1 << 22;

const _: () = assert!(size_of::<Desc>() == 64);

/// Where senders claim: index in the low half, the last claimer's pid in the high, [`CLOSED`](super::ring::CLOSED) on top.
#[repr(C, align(128))]
pub(super) struct Head {
    pub(super) word: AtomicU64,
}

/// What the owner grants.
#[repr(C, align(128))]
pub(super) struct Credit {
    /// Receives posted ever: claims stay below. SYNC(credit): release by the owner, acquire by senders.
    pub(super) posted: AtomicU32,
    /// No receive posted so far is shorter.
    pub(super) min_recv_len: AtomicU32,
    /// Not zero: some receive posted so far is to be written by senders.
    pub(super) direct: AtomicU32,
    /// Claims below were taken. SYNC(taken): release by the owner after its copy, acquire by senders before theirs.
    pub(super) taken: AtomicU32,
}

#[repr(C, align(128))]
pub(super) struct ArmStatus {
    /// Not zero: the next arrival wakes the channel.
    pub(super) flag: AtomicU32,
}

/// Header of a queue pair's segment. Followed by the ring, the ring of unsolicited arrivals, the
/// annexes and the landings of the ring, and payload slots: few that are used in turn while the owner keeps up, so that they stay in
/// caches, and behind them one for each descriptor.
#[repr(C)]
pub(super) struct QpHdr {
    magic: AtomicU64,
    version: AtomicU32,
    qpn: AtomicU32,
    iid: AtomicU64,
    pid: AtomicU32,
    /// Descriptor of the device's segment in the owner's process.
    dev_fd: AtomicI32,
    /// Start time of the owner.
    start: AtomicU64,
    qkey: AtomicU32,
    pub(super) pd: AtomicU32,
    /// Descriptor of the channel's wake-up pipe, or -1.
    wake_fd: AtomicI32,
    ring: AtomicU32,
    unsol: AtomicU32,
    slot_len: AtomicU32,
    /// Longest message its device sends.
    mtu: AtomicU32,
    /// Not zero: a datagram queue pair.
    ud: AtomicU32,
    pub(super) head: Head,
    pub(super) credit: Credit,
    pub(super) armed: ArmStatus,
    pub(super) unsol_head: Head,
    pub(super) unsol_credit: Credit,
}

const _: () =
    assert!(size_of::<QpHdr>() <= HDR && align_of::<QpHdr>() == NO_SHARE && size_of::<DevHdr>() <= HDR);

/// Lengths of the parts of a queue pair's segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct QpLayout {
    /// Descriptors of the ring, a power of two.
    pub(super) ring: u32,
    /// Descriptors of the ring of unsolicited arrivals, a power of two or 0.
    pub(super) unsol: u32,
    /// Bytes of a payload slot.
    pub(super) slot_len: u32,
}

/// Payload slots that are used in turn: about half a second-level cache.
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

    #[inline]
    fn desc_exts_at(&self) -> usize {
        HDR + (self.ring as usize + self.unsol as usize) * size_of::<Desc>()
    }

    #[inline]
    fn recv_wqes_at(&self) -> usize {
        self.desc_exts_at() + self.ring as usize * size_of::<DescExt>()
    }

    fn slots_at(&self) -> usize {
        (self.recv_wqes_at() + self.ring as usize * size_of::<RecvWqe>()).next_multiple_of(64)
    }

    /// Slots used in turn, a power of two.
    #[inline]
    pub(super) fn hot(&self) -> u32 {
        self.ring.min(HOT)
    }

    fn bytes(&self) -> usize {
        self.slots_at() + (self.hot() as usize + self.ring as usize) * self.slot_len as usize
    }
}

/// Who a queue pair is.
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

/// A mapped queue pair segment, one's own or a peer's. `shape` is checked against the mapping.
pub(super) struct QpSeg {
    mem: SharedMem,
    layout: QpLayout,
}

impl QpSeg {
    /// Makes the segment of a queue pair, complete before anybody can find it.
    pub(super) fn create(name: &str, layout: QpLayout, identity: &QpIdentity) -> Result<QpSeg, MemError> {
        let lazy = ucs::mem::MapOpts { fill: ucs::mem::Fill::Lazy, ..Default::default() };
        let seg = QpSeg { mem: SharedMem::create(name, layout.bytes(), lazy)?, layout };
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
        // Touch the rings now: the first messages should not fault.
        (0..layout.ring).for_each(|i| seg.desc(i).seq.store(0, Relaxed));
        (0..layout.ring).for_each(|i| seg.desc_ext(i).0[0].store(0, Relaxed));
        (0..layout.unsol).for_each(|i| seg.unsol_desc(i).seq.store(0, Relaxed));
        Ok(seg)
    }

    /// Checks a peer's segment. `None`: it is not one, or not of this version.
    pub(super) fn attach(mem: SharedMem) -> Option<(QpSeg, QpIdentity)> {
        if mem.len() < HDR {
            return None;
        }
        let mut seg = QpSeg { mem, layout: QpLayout { ring: 1, unsol: 0, slot_len: 0 } };
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
        seg.layout = layout;
        Some((seg, identity))
    }

    #[cfg(test)]
    pub(super) fn into_mem(self) -> SharedMem {
        self.mem
    }

    #[inline]
    pub(super) fn hdr(&self) -> &QpHdr {
        // SAFETY: the mapping is page aligned, at least HDR long (checked in `attach`, so made in `create`), lives as
        // long as self, and every bit pattern is a header of atomics.
        unsafe { &*self.mem.as_ptr().cast::<QpHdr>() }
    }

    /// The q-key that peers find when they attach from now on.
    pub(super) fn set_qkey(&self, qkey: u32) {
        self.hdr().qkey.store(qkey, Relaxed);
    }

    pub(super) fn layout(&self) -> QpLayout {
        self.layout
    }

    #[inline]
    fn desc_at(&self, slot: usize) -> &Desc {
        let at = self.mem.as_ptr().wrapping_add(HDR + slot * size_of::<Desc>()).cast::<Desc>();
        // SAFETY: callers pass a place below `ring + side`; those descriptors lie inside the mapping (checked
        // against its length), 64-byte aligned, and every bit pattern is a descriptor of atomics.
        unsafe { &*at }
    }

    /// The descriptor of claim `index`. // HOT
    #[inline]
    pub(super) fn desc(&self, index: u32) -> &Desc {
        self.desc_at((index & (self.layout.ring - 1)) as usize)
    }

    /// The annex of claim `index`. // HOT
    #[inline]
    pub(super) fn desc_ext(&self, index: u32) -> &DescExt {
        let slot = (index & (self.layout.ring - 1)) as usize;
        let at = self.mem.as_ptr().wrapping_add(self.layout.desc_exts_at() + slot * size_of::<DescExt>());
        // SAFETY: `place` is below `ring`; that many annexes lie inside the mapping (checked against its length),
        // 64-byte aligned, and every bit pattern is an annex of atomics.
        unsafe { &*at.cast::<DescExt>() }
    }

    /// The landing of claim `index`. // HOT
    #[inline]
    pub(super) fn recv_wqe(&self, index: u32) -> &RecvWqe {
        let slot = (index & (self.layout.ring - 1)) as usize;
        let at = self.mem.as_ptr().wrapping_add(self.layout.recv_wqes_at() + slot * size_of::<RecvWqe>());
        // SAFETY: `place` is below `ring`; that many landings lie inside the mapping (checked against its length),
        // 16-byte aligned, and every bit pattern is a landing of atomics.
        unsafe { &*at.cast::<RecvWqe>() }
    }

    /// The descriptor of claim `index` in the ring of unsolicited arrivals.
    ///
    /// # Panics
    /// If there is none.
    pub(super) fn unsol_desc(&self, index: u32) -> &Desc {
        assert!(self.layout.unsol > 0);
        self.desc_at((self.layout.ring + (index & (self.layout.unsol - 1))) as usize)
    }

    /// Offset of claim `index`'s slot among those used in turn. // HOT
    #[inline]
    pub(super) fn hot_slot(&self, index: u32) -> u64 {
        let slot = index & (self.layout.hot() - 1);
        (self.layout.slots_at() + slot as usize * self.layout.slot_len as usize) as u64
    }

    /// Offset of claim `index`'s own slot.
    #[inline]
    pub(super) fn cold_slot(&self, index: u32) -> u64 {
        let slot = self.layout.hot() + (index & (self.layout.ring - 1));
        (self.layout.slots_at() + slot as usize * self.layout.slot_len as usize) as u64
    }

    /// The first of `len` payload bytes at `offset`, if they lie in the payload area.
    #[inline]
    pub(super) fn payload(&self, offset: u64, len: u32) -> Option<*mut u8> {
        let end = offset.checked_add(u64::from(len))?;
        let inside = offset >= self.layout.slots_at() as u64 && end <= self.layout.bytes() as u64;
        inside.then(|| self.mem.as_ptr().wrapping_add(offset as usize))
    }
}

/// A mapped device segment.
pub(super) struct DevSeg {
    mem: Arc<SharedMem>,
    max_ah: usize,
}

fn known_bytes(max_ah: usize) -> usize {
    (max_ah * size_of::<AtomicU64>()).next_multiple_of(64)
}

impl DevSeg {
    /// Makes the segment of a device, and its key table.
    pub(super) fn create(
        name: &str,
        max_ah: u32,
        max_mr: u32,
        strict: bool,
    ) -> Result<(DevSeg, MrTable), MemError> {
        let lazy = ucs::mem::MapOpts { fill: ucs::mem::Fill::Lazy, ..Default::default() };
        let entries_at = HDR + known_bytes(max_ah as usize);
        let len = entries_at + MrTable::bytes(max_mr as usize);
        let mem = Arc::new(SharedMem::create(name, len, lazy)?);
        let seg = DevSeg { mem: mem.clone(), max_ah: max_ah as usize };
        let h = seg.hdr();
        h.version.store(VERSION, Relaxed);
        h.strict.store(strict.into(), Relaxed);
        h.max_ah.store(max_ah, Relaxed);
        h.max_mr.store(max_mr, Relaxed);
        h.magic.store(DEV_MAGIC, Relaxed);
        Ok((seg, MrTable::new(MrTableView::new(Memory::Shared(mem), entries_at, max_mr as usize))))
    }

    /// Checks a peer's device segment. `None`: it is not one.
    pub(super) fn attach(mem: SharedMem) -> Option<(DevSeg, MrTableView)> {
        if mem.len() < HDR {
            return None;
        }
        let mut seg = DevSeg { mem: Arc::new(mem), max_ah: 0 };
        let h = seg.hdr();
        let (ah, mr) = (h.max_ah.load(Relaxed) as usize, h.max_mr.load(Relaxed) as usize);
        let good = h.magic.load(Relaxed) == DEV_MAGIC && h.version.load(Relaxed) == VERSION;
        let entries_at = HDR + known_bytes(ah.min(1 << 20));
        if !good || ah > 1 << 20 || mr > 1 << 16 || entries_at + MrTable::bytes(mr) > seg.mem.len() {
            return None;
        }
        seg.max_ah = ah;
        let mrs = MrTableView::new(Memory::Shared(seg.mem.clone()), entries_at, mr);
        Some((seg, mrs))
    }

    pub(super) fn hdr(&self) -> &DevHdr {
        // SAFETY: as for `QpSeg::hdr`.
        unsafe { &*self.mem.as_ptr().cast::<DevHdr>() }
    }

    pub(super) fn fd(&self) -> i32 {
        self.mem.fd()
    }

    /// The places of known GIDs; 0 is an empty place.
    pub(super) fn known(&self) -> &[AtomicU64] {
        let first = NonNull::new(self.mem.as_ptr().wrapping_add(HDR)).expect("a mapping is not at null");
        // SAFETY: `max_ah` words after the header lie inside the mapping (by construction or checked), are aligned,
        // and every bit pattern is an AtomicU64.
        unsafe { std::slice::from_raw_parts(first.as_ptr().cast(), self.max_ah) }
    }
}
