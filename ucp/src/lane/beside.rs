//! The transport that carries no messages and serves beside one of this host that does: memory of the peer's process that is
//! not mapped here is copied by the kernel. Puts and gets, so that the peer need not make progress; and long messages, out of
//! their sender's memory. Opened by `api::context`, used within `put`, `get` and what comes in by `bind`. Never polled: nothing
//! it does is under way when a call returns.

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

/// An interface for memory alone.
pub(crate) struct Beside {
    iface: Iface,
    /// Names its keys among those of the worker's lanes.
    connid: u32,
    /// What peers that read our memory have to know of us.
    here: RmaAddress,
    /// By what it is decided whether messages go this way.
    rule: CopyPolicy,
    /// The counter of ticks, and the clock, as it was opened.
    opened: (u64, Instant),
    /// Peers that messages go to, or come from, that could go this way.
    peers: RefCell<HashMap<PeerId, Known, FxBuildHasher>>,
}

/// What is known of a peer.
#[derive(Default)]
struct Known {
    /// Where it has said that its memory is, if it has.
    met: Option<Met>,
    /// What its messages take.
    receiver: ReceiverTuner,
    /// How ours to it go.
    sender: SenderTuner,
    /// When its last long packet had been taken in, ticks.
    last: u64,
}

/// A peer, where it says it is.
struct Met {
    at: RmaAddress,
    /// `None`: it does not let us in.
    ep: Option<Ep>,
}

/// The way to one peer's memory, made when it is first wanted.
pub(crate) struct Reach {
    /// Where the peer is. `None` if that is no other process of this host, or has no such transport.
    to: Option<Box<Entry>>,
    /// `None` once it has turned out that it does not let us in.
    ep: OnceCell<Option<Ep>>,
}

impl Reach {
    /// No way.
    pub(crate) fn none() -> Reach {
        Reach { to: None, ep: OnceCell::new() }
    }

    /// The endpoint and the peer's name for its keys. The first call asks the system.
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
    /// Opens the first of `found` that the system permits; `None` if it permits none.
    pub(crate) fn open(
        found: &[TlResource],
        source: &Source,
        connid: u32,
        rule: CopyPolicy,
    ) -> Option<Beside> {
        // Nothing is to wait for a poll here.
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

    /// What it says of itself.
    pub(crate) fn attr(&self) -> &IfaceAttr {
        self.iface.attr()
    }

    /// What the worker's address says of it.
    pub(crate) fn entry(&self) -> Entry {
        Entry {
            tl: ArrayVec::try_from(self.iface.attr().tl.as_bytes()).unwrap_or_default(),
            connid: self.connid,
            device: self.iface.device_addr(),
            iface: self.iface.iface_addr(),
        }
    }

    /// A way to the memory of the worker at `address`, if it is in another process that lets us in. `lane` is the lane to
    /// it: only beside one of this host is this any better; `here` is our own process.
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

    /// What the requests say of memory of ours that peers are to read: its key, and where we are. `None`: too much for a request.
    pub(crate) fn offer(&self, piece: Piece) -> Option<u64> {
        if self.here.is_empty() {
            return None;
        }
        // SAFETY: the memory is the sender's to give until its message has been read, as its maker promised; nothing keeps
        // the registration, of which only the name is used.
        let mem = unsafe { self.register(piece.ptr(), piece.len(), uct::api::Access::REMOTE_READ) }?;
        self.iface.md().mr_key(&mem).ok()
    }

    /// Where we are, for readers of what was offered.
    pub(crate) fn here(&self) -> &RmaAddress {
        &self.here
    }

    /// Reads memory that a peer has offered.
    ///
    /// # Safety
    /// The piece is valid for writes, and nobody else's until the call returns.
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

    /// Whether a message may go another way than the one before.
    pub(crate) fn is_open(&self) -> bool {
        self.rule.is_open()
    }

    /// Whether times of packets are of interest.
    pub(crate) fn measures(&self) -> bool {
        self.rule == CopyPolicy::Auto
    }

    /// A long packet of a peer has been taken in, from when until when in ticks. What was waited for it counts too, if it can have
    /// been the sender's copy that was waited for, and is taken for one like ours if it was longer: a program that looks in late,
    /// or sends late, says nothing.
    pub(crate) fn took_packet(&self, peer: PeerId, len: usize, begun: u64, ended: u64) {
        let mut peers = self.peers.borrow_mut();
        let known = peers.entry(peer).or_default();
        let took = ended.wrapping_sub(begun);
        let since = ended.wrapping_sub(std::mem::replace(&mut known.last, ended));
        let time = if since <= took.saturating_mul(4) { since.max(took) } else { took.saturating_mul(2) };
        known.receiver.record_packet(len, time);
    }

    /// Whether a message that a peer has offered is to come in packets all the same.
    pub(crate) fn prefers_packets(&self, peer: PeerId, len: usize) -> bool {
        let judge = |known: &mut Known| known.receiver.choose(self.rule, len) == CopyMethod::Packets;
        self.rule.is_open() && judge(self.peers.borrow_mut().entry(peer).or_default())
    }

    /// How the next message to a peer goes, where both ways are open; `said`: how it would by what is known beforehand.
    pub(crate) fn next(&self, peer: PeerId, len: usize, said: CopyMethod) -> CopyMethod {
        match self.rule {
            CopyPolicy::Auto => self.peers.borrow_mut().entry(peer).or_default().sender.next(len, said),
            // As whether to read is.
            CopyPolicy::Alternate => {
                self.peers.borrow_mut().entry(peer).or_default().receiver.choose(self.rule, len)
            }
            CopyPolicy::Estimated => said,
            CopyPolicy::Kernel => CopyMethod::Kernel,
            CopyPolicy::Packets => CopyMethod::Packets,
        }
    }

    /// How such messages go at present.
    pub(crate) fn now(&self, peer: PeerId, len: usize, said: CopyMethod) -> CopyMethod {
        match self.rule {
            CopyPolicy::Kernel => CopyMethod::Kernel,
            CopyPolicy::Packets => CopyMethod::Packets,
            _ => self.peers.borrow().get(&peer).and_then(|known| known.sender.current(len)).unwrap_or(said),
        }
    }

    /// What a peer has made of an offer.
    pub(crate) fn answered(&self, peer: PeerId, len: usize, read: bool) {
        let mut peers = self.peers.borrow_mut();
        let Some(known) = peers.get_mut(&peer) else { return };
        if read { known.sender.on_read(len) } else { known.sender.on_declined(len) }
    }

    /// The peers of which anything is known.
    pub(crate) fn known(&self) -> Vec<PeerId> {
        let mut all: Vec<PeerId> = self.peers.borrow().keys().copied().collect();
        all.sort_unstable();
        all
    }

    /// What messages of so many bytes from a peer take, in ns for each KiB, as far as it was measured.
    pub(crate) fn figures(&self, peer: PeerId, len: usize) -> Option<CopyTimes> {
        let (ticks_then, then) = self.opened;
        let passed = ticks().wrapping_sub(ticks_then);
        let tick = then.elapsed().as_nanos() as f32 / passed.max(1) as f32;
        let found = self.peers.borrow().get(&peer)?.receiver.times(len);
        let ns = |ticks: f32| ticks * tick;
        Some(CopyTimes { packets: found.packets.map(ns), kernel: found.kernel.map(ns), by: found.by })
    }

    /// The peer is gone, or its number will be another's.
    pub(crate) fn forget(&self, peer: PeerId) {
        self.peers.borrow_mut().remove(&peer);
    }

    /// Lets peers reach memory.
    ///
    /// # Safety
    /// As for [`uct::api::Md::register`].
    pub(crate) unsafe fn register(&self, addr: *mut u8, len: usize, access: uct::api::Access) -> Option<Mem> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.iface.md().register(addr, len, access) }.ok()
    }

    /// The key of registered memory, and by what name it goes.
    pub(crate) fn key(&self, mem: &Mem) -> Option<(u32, uct::api::AddrBuf)> {
        Some((self.connid, self.iface.md().pack_rkey(mem).ok()?))
    }

    /// Reads a peer's key.
    pub(crate) fn unpack(&self, key: &[u8]) -> Option<Rkey> {
        self.iface.md().unpack_rkey(key).ok()
    }
}

/// An address as pieces of no length, 16 bytes in each; none if it is longer than they can be.
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

/// The address that was named, with zeros behind it.
fn told(way: &RmaAddress) -> AddrBuf {
    way.iter().flat_map(|part| [part.addr, part.key]).flat_map(u64::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_comes_back_as_it_was_named() {
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

    /// What a peer says of where its memory is, is a claim.
    #[test]
    fn a_place_that_is_none_is_not_read() {
        let found = uct::any::resources(&Source::empty()).unwrap();
        let cma: Vec<TlResource> = found.into_iter().filter(|r| r.tl == "cma").collect();
        let Some(beside) = Beside::open(&cma, &Source::empty(), 1, CopyPolicy::Auto) else { return };
        let word = 0x0102_0304_0506_0708u64;
        let mut room = [0u8; 8];
        let from = Remote { addr: (&raw const word).addr() as u64, key: 0 };
        // SAFETY: `room` lives as long as the piece is used.
        let piece = unsafe { Piece::new(room.as_mut_ptr(), 8) }.unwrap();
        let read = |way: &RmaAddress, from: Remote| {
            // SAFETY: `room` is ours, and looked at after the call.
            unsafe { beside.read(PeerId(1), piece, from, way) }
        };
        let none = |addr, key| [RmaIov { addr, len: 0, key }].into_iter().collect::<RmaAddress>();
        for way in [none(0, 0), none(u64::MAX, u64::MAX), none(1, 1), none(std::process::id().into(), 7)] {
            assert!(read(&way, from).is_err(), "{way:?}");
        }
        // The right process with a key that is another's, and with its own.
        assert!(read(beside.here(), from).is_err());
        let key =
            beside.iface.md().mr_key(&beside.iface.md().alloc(&uct::api::AllocReq::new(8, "test")).unwrap());
        read(beside.here(), Remote { key: key.unwrap(), ..from }).unwrap();
        assert_eq!(u64::from_ne_bytes(room), word);
        beside.forget(PeerId(1));
        assert!(beside.peers.borrow().is_empty());
    }
}
