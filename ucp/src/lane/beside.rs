//! A transport that reads and writes the memory of other processes of this host (CMA), beside a lane that
//! carries packets. Opened by `api::context`; serves puts, gets and long messages. Never polled: an operation
//! has ended when its call returns.

#![allow(unsafe_code)]

use std::cell::{OnceCell, RefCell};
use std::time::Instant;

use arrayvec::ArrayVec;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use ucs::config::Source;
use ucs::time::ticks;
use uct::api::{
    AddrBuf, Comp, DevKind, Ep as _, Error, Iface as _, IfaceAttr, Iov, Md as _, Refused, Sent, TlResource,
};

use crate::address::{Address, Entry};
use crate::rdm::Piece;
use crate::rdm::io::{PeerId, Remote, RmaAddress};
use crate::select::copy_method::{CopyMethod, CopyPolicy, CopyTimes, ReceiverTuner, SenderTuner};
use crate::wire::RmaIov;

use super::{Ep, Iface, Mem, Rkey};

/// A memory-only interface, and the state of its peers.
pub(crate) struct Beside {
    iface: Iface,
    /// Names its keys among those of the worker's lanes.
    connid: u32,
    /// The address that peers need to read our memory.
    here: RmaAddress,
    /// The configured choice between packets and copies (`CopyPolicy`).
    rule: CopyPolicy,
    /// Tick counter and clock at opening; converts ticks to time.
    opened: (u64, Instant),
    peers: RefCell<HashMap<PeerId, Known, FxBuildHasher>>,
}

#[derive(Default)]
struct Known {
    /// The address at which the peer's memory is read, once it has sent one.
    met: Option<Met>,
    receiver: ReceiverTuner,
    sender: SenderTuner,
    /// When its last long packet had been received, ticks.
    last: u64,
}

struct Met {
    at: RmaAddress,
    /// `None` if the peer denies access.
    ep: Option<Ep>,
}

/// An endpoint to one peer's memory, opened on first use.
pub(crate) struct Reach {
    /// The peer's address. `None` if it is this process, is on another host, or lacks this transport.
    to: Option<Box<Entry>>,
    /// `None` inside once the peer has denied access.
    ep: OnceCell<Option<Ep>>,
}

impl Reach {
    pub(crate) fn none() -> Reach {
        Reach { to: None, ep: OnceCell::new() }
    }

    /// Returns the endpoint and the connection id of the peer's keys. The first call opens the endpoint.
    pub(crate) fn get(&self, beside: Option<&Beside>) -> Option<(&Ep, u32)> {
        let to = self.to.as_ref()?;
        let ep = match self.ep.get() {
            Some(ep) => ep,
            None => self.ep.get_or_init(|| beside?.connect(to)),
        };
        Some((ep.as_ref()?, to.connid))
    }
}

impl Beside {
    /// Opens the first resource of `found` that the system permits; `None` if it permits none.
    pub(crate) fn open(
        found: &[TlResource],
        source: &Source,
        connid: u32,
        rule: CopyPolicy,
    ) -> Option<Beside> {
        // Batching would leave operations pending until a poll, which never comes.
        let source = &source.clone().with("UCX_CMA_BATCH", "1");
        let open = |r: &TlResource| {
            let iface = uct::any::open(r.tl, &r.dev, source);
            iface.inspect_err(|why| tracing::debug!(tl = r.tl, "memory goes by packets: {why}")).ok()
        };
        found.iter().find_map(open).map(|iface| {
            let here = named(&iface.iface_addr());
            let opened = (ticks(), Instant::now());
            Beside { iface, connid, here, rule, opened, peers: RefCell::default() }
        })
    }

    pub(crate) fn attr(&self) -> &IfaceAttr {
        self.iface.attr()
    }

    /// Returns the entry of this transport in the worker's address.
    pub(crate) fn entry(&self) -> Entry {
        Entry {
            tl: ArrayVec::try_from(self.iface.attr().tl.as_bytes()).unwrap_or_default(),
            connid: self.connid,
            device: self.iface.device_addr(),
            iface: self.iface.iface_addr(),
        }
    }

    /// Returns access to the memory of the worker at `address`; empty if it is not another process of this
    /// host.
    pub(crate) fn reach(&self, lane: &Iface, here: u64, address: &Address) -> Reach {
        if lane.attr().kind != DevKind::Shm || address.process == here {
            return Reach::none();
        }
        let to = address.entries.iter().find(|entry| entry.tl() == self.iface.attr().tl);
        Reach { to: to.cloned().map(Box::new), ep: OnceCell::new() }
    }

    #[cold]
    fn connect(&self, to: &Entry) -> Option<Ep> {
        let ep = self.iface.connect(&to.device, &to.iface);
        ep.inspect_err(|why| tracing::debug!("memory of a peer goes by packets: {why}")).ok()
    }

    /// Registers memory for peers to read and returns its key. `None` if our address does not fit a request.
    pub(crate) fn offer(&self, piece: Piece) -> Option<u64> {
        if self.here.is_empty() {
            return None;
        }
        // SAFETY: the caller keeps the piece valid until its message has been read; only the key is kept.
        let mem = unsafe { self.register(piece.ptr(), piece.len(), uct::api::Access::REMOTE_READ) }?;
        self.iface.md().mr_key(&mem).ok()
    }

    /// Returns the address that requests carry for readers of offered memory.
    pub(crate) fn here(&self) -> &RmaAddress {
        &self.here
    }

    /// Reads memory that a peer has offered.
    /// # Safety
    /// The piece is valid for writes, and no one else uses it until the call returns.
    pub(crate) unsafe fn read(
        &self,
        peer: PeerId,
        to: Piece,
        from: Remote,
        way: &RmaAddress,
    ) -> Result<(), Refused> {
        let mut peers = self.peers.borrow_mut();
        let known = peers.entry(peer).or_default();
        if known.met.as_ref().is_none_or(|met| met.at != *way) {
            known.met = Some(self.meet(way));
        }
        let met = known.met.as_ref().filter(|_| self.rule != CopyPolicy::Packets);
        let ep = met.and_then(|met| met.ep.as_ref()).ok_or(Error::Unreachable)?;
        let rkey = self.iface.md().rkey_from_mr_key(from.key, from.addr, to.len() as u64)?;
        let iov = Iov::new(to.ptr(), to.len(), None);
        let begun = ticks();
        // SAFETY: the caller's promise; the transport needs no registration of ours.
        match unsafe { ep.get_zcopy(&[iov], from.addr, &rkey, Comp::None) }? {
            Sent::Done => {
                known.receiver.record_read(to.len(), ticks().wrapping_sub(begun));
                Ok(())
            }
            Sent::InProgress => Err(Error::Unreachable.into()),
        }
    }

    #[cold]
    fn meet(&self, way: &RmaAddress) -> Met {
        let mut iface = told(way);
        iface.truncate(self.attr().iface_addr_len);
        let ep = self.iface.connect(&self.iface.device_addr(), &iface);
        let ep = ep.inspect_err(|why| tracing::debug!("messages of a peer come in packets: {why}")).ok();
        Met { at: way.clone(), ep }
    }

    /// Whether the copy method may change from one message to the next.
    pub(crate) fn is_open(&self) -> bool {
        self.rule.is_open()
    }

    /// Whether packet times are measured.
    pub(crate) fn measures(&self) -> bool {
        self.rule == CopyPolicy::Auto
    }

    /// Notes that a long packet was received between two ticks. A short wait before it may have been the
    /// sender's copy and counts; a longer one says only that the program polled or sent late.
    pub(crate) fn took_packet(&self, peer: PeerId, len: usize, begun: u64, ended: u64) {
        let mut peers = self.peers.borrow_mut();
        let known = peers.entry(peer).or_default();
        let took = ended.wrapping_sub(begun);
        let since = ended.wrapping_sub(std::mem::replace(&mut known.last, ended));
        let time = if since <= took.saturating_mul(4) { since.max(took) } else { took.saturating_mul(2) };
        known.receiver.record_packet(len, time);
    }

    /// Decides whether a message that a peer has offered shall come in packets instead.
    pub(crate) fn prefers_packets(&self, peer: PeerId, len: usize) -> bool {
        let judge = |known: &mut Known| known.receiver.choose(self.rule, len) == CopyMethod::Packets;
        self.rule.is_open() && judge(self.peers.borrow_mut().entry(peer).or_default())
    }

    /// Chooses the copy method of the next message to a peer; `said` is the choice by static estimates.
    pub(crate) fn next(&self, peer: PeerId, len: usize, said: CopyMethod) -> CopyMethod {
        match self.rule {
            CopyPolicy::Auto => self.peers.borrow_mut().entry(peer).or_default().sender.next(len, said),
            CopyPolicy::Alternate => {
                self.peers.borrow_mut().entry(peer).or_default().receiver.choose(self.rule, len)
            }
            CopyPolicy::Estimated => said,
            CopyPolicy::Kernel => CopyMethod::Kernel,
            CopyPolicy::Packets => CopyMethod::Packets,
        }
    }

    /// Returns the copy method in use at present, without advancing the choice.
    pub(crate) fn now(&self, peer: PeerId, len: usize, said: CopyMethod) -> CopyMethod {
        match self.rule {
            CopyPolicy::Kernel => CopyMethod::Kernel,
            CopyPolicy::Packets => CopyMethod::Packets,
            _ => self.peers.borrow().get(&peer).and_then(|known| known.sender.current(len)).unwrap_or(said),
        }
    }

    /// Notes whether a peer read an offered message.
    pub(crate) fn answered(&self, peer: PeerId, len: usize, read: bool) {
        let mut peers = self.peers.borrow_mut();
        let Some(known) = peers.get_mut(&peer) else { return };
        if read { known.sender.on_read(len) } else { known.sender.on_declined(len) }
    }

    pub(crate) fn known(&self) -> Vec<PeerId> {
        let mut all: Vec<PeerId> = self.peers.borrow().keys().copied().collect();
        all.sort_unstable();
        all
    }

    /// Returns the measured times of messages of `len` bytes from a peer, ns per KiB.
    pub(crate) fn figures(&self, peer: PeerId, len: usize) -> Option<CopyTimes> {
        let (ticks_then, then) = self.opened;
        let passed = ticks().wrapping_sub(ticks_then);
        let tick = then.elapsed().as_nanos() as f32 / passed.max(1) as f32;
        let found = self.peers.borrow().get(&peer)?.receiver.times(len);
        let ns = |ticks: f32| ticks * tick;
        Some(CopyTimes { packets: found.packets.map(ns), kernel: found.kernel.map(ns), by: found.by })
    }

    /// Drops all state of a peer; its id may be reused.
    pub(crate) fn forget(&self, peer: PeerId) {
        self.peers.borrow_mut().remove(&peer);
    }

    /// Registers memory for access by peers.
    /// # Safety
    /// As for [`uct::api::Md::register`].
    pub(crate) unsafe fn register(&self, addr: *mut u8, len: usize, access: uct::api::Access) -> Option<Mem> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.iface.md().register(addr, len, access) }.ok()
    }

    /// Returns the connection id and the packed key of registered memory.
    pub(crate) fn key(&self, mem: &Mem) -> Option<(u32, uct::api::AddrBuf)> {
        Some((self.connid, self.iface.md().pack_rkey(mem).ok()?))
    }

    pub(crate) fn unpack(&self, key: &[u8]) -> Option<Rkey> {
        self.iface.md().unpack_rkey(key).ok()
    }
}

/// Encodes an address as iovs of length 0, 16 bytes in each; empty if it does not fit.
fn named(address: &[u8]) -> RmaAddress {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let mut way = RmaAddress::new();
    for part in address.chunks(16) {
        let (addr, key) = part.split_at(part.len().min(8));
        if way.try_push(RmaIov { addr: word(addr), len: 0, key: word(key) }).is_err() {
            return RmaAddress::new();
        }
    }
    way
}

/// Decodes the address from its iovs, padded with zeros.
fn told(way: &RmaAddress) -> AddrBuf {
    way.iter().flat_map(|part| [part.addr, part.key]).flat_map(u64::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_survives_encoding() {
        for len in 0..=48u8 {
            let address: Vec<u8> = (1..=len).collect();
            let way = named(&address);
            assert_eq!(way.len(), usize::from(len).div_ceil(16));
            assert!(way.iter().all(|part| part.len == 0));
            let told = told(&way);
            assert_eq!(told[..address.len()], address);
            assert!(told[address.len()..].iter().all(|byte| *byte == 0));
        }
        assert!(named(&[1; 49]).is_empty(), "too long for a request");
    }

    #[test]
    fn invalid_address_is_not_read() {
        let found = uct::any::resources(&Source::empty()).unwrap();
        let cma: Vec<TlResource> = found.into_iter().filter(|r| r.tl == "cma").collect();
        let Some(beside) = Beside::open(&cma, &Source::empty(), 1, CopyPolicy::Auto) else { return };
        let word = 0x0102_0304_0506_0708u64;
        let mut room = [0u8; 8];
        let from = Remote { addr: (&raw const word).addr() as u64, key: 0 };
        // SAFETY: `room` outlives the piece.
        let piece = unsafe { Piece::new(room.as_mut_ptr(), 8) }.unwrap();
        let read = |way: &RmaAddress, from: Remote| {
            // SAFETY: `room` is ours and is read after the call only.
            unsafe { beside.read(PeerId(1), piece, from, way) }
        };
        let none = |addr, key| [RmaIov { addr, len: 0, key }].into_iter().collect::<RmaAddress>();
        for way in [none(0, 0), none(u64::MAX, u64::MAX), none(1, 1), none(std::process::id().into(), 7)] {
            assert!(read(&way, from).is_err(), "{way:?}");
        }
        // The right process, first with a foreign key, then with its own.
        assert!(read(beside.here(), from).is_err());
        let key =
            beside.iface.md().mr_key(&beside.iface.md().alloc(&uct::api::AllocReq::new(8, "test")).unwrap());
        read(beside.here(), Remote { key: key.unwrap(), ..from }).unwrap();
        assert_eq!(u64::from_ne_bytes(room), word);
        beside.forget(PeerId(1));
        assert!(beside.peers.borrow().is_empty());
    }
}
