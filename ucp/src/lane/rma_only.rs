//! The RMA-only lane: an interface (`cma`) that reads and writes memory of other processes of this host and
//! sends no packets. It serves puts, gets and long messages of a lane that has packets. Puts and gets
//! complete in the call. A read of a message may be shared with the peer, which copies a part of it; then the
//! engine repeats the call. Polled only when the worker is otherwise idle.

#![allow(unsafe_code)]

use std::cell::{Cell, OnceCell, RefCell};
use std::time::Instant;

use arrayvec::ArrayVec;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use ucs::config::Source;
use ucs::time::ticks;
use uct::api::{
    AddrBuf, Am, Comp, ConnectError, DevKind, Ep as _, EpTag, Error, Iface as _, IfaceAttr, Iov, Md as _,
    Refused, RemoteIov, Sent, Sink,
};
use zerocopy::IntoBytes;

use crate::address::{Address, Entry};
use crate::rdm::io::{PeerId, Remote, RmaAddress};
use crate::rdm::{Access, Header, Piece, PublishedRegions};
use crate::select::copy_method::{CopyMethod, CopyPolicy, CopyTimes, ReceiverTuner, SenderTuner};
use crate::wire::RmaIov;

use super::domains::{Domain, Domains, domain_label};
use super::{Ep, Iface, Mem, Rkey};

/// Most reads that one poll ends.
const MAX_COMPLETIONS: usize = 16;

/// An interface without packets, and the state of its peers.
pub(crate) struct RmaOnlyLane {
    iface: Iface,
    /// Connection id of its address entry.
    connid: u32,
    /// The address that peers need to read our memory.
    address: RmaAddress,
    /// How the copy method is chosen.
    policy: CopyPolicy,
    /// Tick counter and clock at opening; converts ticks to time.
    opened: (u64, Instant),
    /// Reads that have waited.
    reads: Cell<u32>,
    peers: RefCell<HashMap<PeerId, PeerState, FxBuildHasher>>,
}

#[derive(Default)]
struct PeerState {
    /// The address at which the peer's memory is read, once it has sent one.
    remote: Option<RemoteMem>,
    receiver: ReceiverTuner,
    sender: SenderTuner,
    /// When its last long packet had been received, ticks.
    last_packet: u64,
    waiting: Option<WaitingRead>,
}

/// A read that waits for the part of its peer: the engine asks for it again.
struct WaitingRead {
    /// Number that its completion carries. That of a read that was given up is dropped.
    number: u32,
    to: *mut u8,
    from: Remote,
    result: Option<Result<(), Error>>,
}

/// Takes the results of reads that have waited.
struct EndedReads<'a>(&'a RmaOnlyLane);

impl Sink for EndedReads<'_> {
    fn on_am(&mut self, _: Am<'_>) {}

    fn on_comp(&mut self, token: u64, result: Result<(), Error>) {
        let mut peers = self.0.peers.borrow_mut();
        if let Some(state) = peers.get_mut(&PeerId(token as u32))
            && let Some(read) = state.waiting.as_mut().filter(|read| read.number == (token >> 32) as u32)
        {
            read.result = Some(result);
        }
    }

    /// The lane of packets detects deaths.
    fn on_ep_error(&mut self, _: EpTag, _: Error) {}
}

/// Access to the memory that a peer has offered.
struct RemoteMem {
    address: RmaAddress,
    /// `None` if the peer denies access.
    ep: Option<Ep>,
}

/// Access to one peer's memory. `None`: the peer is this process, is on another host, or lacks the transport.
pub(crate) struct RmaOnlyEp(Option<Box<PeerProcess>>);

/// Another process of this host.
struct PeerProcess {
    entry: Entry,
    /// The process as the lane of packets knows it.
    process: Option<u64>,
    /// Opened on first use; `None` inside once the peer has denied access.
    ep: OnceCell<Option<Ep>>,
    /// Memory that the peer publishes; `None` inside if it publishes nothing.
    regions: OnceCell<Option<Box<RefCell<PublishedRegions>>>>,
}

impl RmaOnlyEp {
    pub(crate) fn none() -> RmaOnlyEp {
        RmaOnlyEp(None)
    }

    fn new(entry: Entry, process: Option<u64>) -> RmaOnlyEp {
        let (ep, regions) = (OnceCell::new(), OnceCell::new());
        RmaOnlyEp(Some(Box::new(PeerProcess { entry, process, ep, regions })))
    }

    /// Returns the endpoint. The first call opens it.
    pub(crate) fn get(&self, rma_only: Option<&RmaOnlyLane>) -> Option<&Ep> {
        let peer = self.0.as_ref()?;
        let ep = match peer.ep.get() {
            Some(ep) => ep,
            None => peer.ep.get_or_init(|| {
                let Entry { device, iface, .. } = &peer.entry;
                let ep = rma_only?.connect(device, iface, peer.process);
                ep.inspect_err(|why| {
                    tracing::debug!("cannot connect to the peer's process, puts and gets use packets: {why}")
                })
                .ok()
            }),
        };
        ep.as_ref()
    }

    /// Finds memory of the peer that a number names, by what the peer publishes: the endpoint, where the
    /// bytes are, and a key for them. `None`: only packets reach it, or tell why nothing does.
    pub(crate) fn resolve(
        &self,
        rma_only: Option<&RmaOnlyLane>,
        piece: &RmaIov,
        need: Access,
    ) -> Option<(&Ep, u64, Rkey)> {
        let (ep, md) = (self.get(rma_only)?, rma_only?.iface.md());
        let owner = ep.peer_process()?;
        let at = self.regions(ep)?.borrow_mut().resolve(piece, need, |from, words| {
            let bytes = words.as_mut_bytes();
            let key = md.rkey_from_mr_key(owner, from, bytes.len() as u64).ok()?;
            matches!(ep.get_short(bytes, from, &key), Ok(Sent::Done)).then_some(())
        })?;
        Some((ep, at, md.rkey_from_mr_key(owner, at, piece.len).ok()?))
    }

    /// Reads memory that the peer publishes under a key; the same system call reads the table's header, which
    /// tells whether our copy of the table is current. `Some(false)`: it was not; the bytes at `to` are
    /// undefined.
    /// # Safety
    /// As many bytes as `piece` has can be written at `to`, and nobody else uses them until the call returns.
    // HOT
    pub(crate) unsafe fn read(
        &self,
        rma_only: Option<&RmaOnlyLane>,
        piece: &RmaIov,
        to: *mut u8,
    ) -> Option<bool> {
        let (ep, md) = (self.get(rma_only)?, rma_only?.iface.md());
        let owner = ep.peer_process()?;
        let mut regions = self.regions(ep)?.borrow_mut();
        let (at, len) = (regions.known(piece, Access::READ)?, usize::try_from(piece.len).ok()?);
        let (mut header, header_at, header_len) =
            (Header::default(), regions.header_at(), size_of::<Header>());
        let keys = (
            md.rkey_from_mr_key(owner, header_at, header_len as u64).ok()?,
            md.rkey_from_mr_key(owner, at, piece.len).ok()?,
        );
        // The header last: if it is current, the bytes were the peer's to give when they were read.
        let local = [Iov::new(to, len, None), Iov::new(header.as_mut_ptr().cast(), header_len, None)];
        let remote = [RemoteIov::new(at, len, &keys.1), RemoteIov::new(header_at, header_len, &keys.0)];
        // SAFETY: `header` is ours, the rest the caller's promise.
        let sent = unsafe { ep.get_sgl(&local, &remote, Comp::None) };
        Some(sent == Ok(Sent::Done) && regions.is_current(&header))
    }

    /// Whether the peer publishes its memory.
    pub(crate) fn is_published(&self, rma_only: Option<&RmaOnlyLane>) -> bool {
        self.get(rma_only).is_some_and(|ep| self.regions(ep).is_some())
    }

    fn regions(&self, ep: &Ep) -> Option<&RefCell<PublishedRegions>> {
        let open =
            || ep.published().filter(|at| *at != 0).map(|at| Box::new(PublishedRegions::new(at).into()));
        self.0.as_ref()?.regions.get_or_init(open).as_deref()
    }
}

impl RmaOnlyLane {
    /// Opens an interface on the first RMA-only domain that the system permits; `None` if it permits none.
    pub(crate) fn open(
        domains: &Domains,
        source: &Source,
        connid: u32,
        policy: CopyPolicy,
    ) -> Option<RmaOnlyLane> {
        let open = |domain: &Domain| {
            // Batching would leave operations pending until a poll, which never comes.
            let source = source.clone().with(&format!("UCX_{}_BATCH", domain.tl.to_ascii_uppercase()), "1");
            let iface = uct::any::open_iface(&domain.md, &source);
            iface
                .inspect_err(|why| {
                    tracing::debug!(
                        tl = domain.tl,
                        "cannot open the RMA-only interface, puts and gets use packets: {why}"
                    )
                })
                .ok()
        };
        let mut rma_only = domains.iter().map(|(_, domain)| domain).filter(|domain| domain.is_rma_only);
        rma_only.find_map(open).map(|iface| {
            let address = encode_address(&iface.iface_addr());
            let opened = (ticks(), Instant::now());
            RmaOnlyLane {
                iface,
                connid,
                address,
                policy,
                opened,
                reads: Cell::new(0),
                peers: RefCell::default(),
            }
        })
    }

    /// Lets peers find memory of this process by its numbers, in the table at this address.
    pub(crate) fn publish(&self, table: u64) {
        self.iface.publish(table);
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
    pub(crate) fn ep_to(&self, lane: &Iface, lane_ep: &Ep, process: u32, address: &Address) -> RmaOnlyEp {
        if lane.attr().kind != DevKind::Shm || address.id.process == process {
            return RmaOnlyEp::none();
        }
        let entry = address.entries.iter().find(|entry| entry.tl() == self.iface.attr().tl);
        entry.map_or_else(RmaOnlyEp::none, |entry| RmaOnlyEp::new(entry.clone(), lane_ep.peer_process()))
    }

    /// Connects to the process that a peer has named, which must be `process`, its own: the memory of a third
    /// one is not its to give away.
    #[cold]
    fn connect(&self, device: &[u8], iface: &[u8], process: Option<u64>) -> Result<Ep, ConnectError> {
        let ep = self.iface.connect(device, iface)?;
        if process.is_none() || ep.peer_process() != process {
            let why = Error::InvalidParam("a peer has named the memory of another process than its own");
            return Err(why.into());
        }
        Ok(ep)
    }

    /// Registers memory for peers to read and returns its key. `None` if our address does not fit a request.
    pub(crate) fn offer(&self, piece: Piece) -> Option<u64> {
        if self.address.is_empty() {
            return None;
        }
        // SAFETY: the caller keeps the piece valid until its message has been read; only the key is kept.
        let mem = unsafe { self.register(piece.ptr(), piece.len(), uct::api::Access::REMOTE_READ) }?;
        self.iface.md().mr_key(&mem).ok()
    }

    /// Returns the address that requests carry for readers of offered memory.
    pub(crate) fn local_address(&self) -> &RmaAddress {
        &self.address
    }

    /// Whether nothing is to be polled: no peer offers a part of its read, and no read of ours waits.
    // HOT
    #[inline(always)]
    pub(crate) fn is_idle(&self) -> bool {
        self.iface.is_idle()
    }

    /// Copies our part of reads that peers share with us, and completes our own shared reads.
    #[cold]
    pub(crate) fn poll(&self) {
        self.iface.poll(MAX_COMPLETIONS, &mut EndedReads(self));
    }

    /// Result of our shared read of this peer's memory; `None`: there is none. `NoResource`: it is not
    /// complete.
    #[cold]
    fn waited(&self, peer: PeerId, to: Piece, from: &Remote) -> Option<Result<(), Refused>> {
        self.poll();
        let mut peers = self.peers.borrow_mut();
        let waiting = &mut peers.get_mut(&peer)?.waiting;
        let read = waiting.take_if(|read| read.result.is_some());
        let is_it = |read: &WaitingRead| (read.to, read.from) == (to.ptr(), *from);
        match read {
            Some(read) if is_it(&read) => Some(read.result?.map_err(Refused::Failed)),
            // Of a message that has failed meanwhile.
            Some(_) => None,
            None => waiting.is_some().then_some(Err(Refused::NoResource)),
        }
    }

    /// Reads memory that a peer has offered; `lane_ep` is the endpoint of packets to it. No resource: the
    /// peer copies a part of it, and the same call is to be made again.
    /// # Safety
    /// The piece is valid for writes, and no one else uses it until the call has returned a result.
    pub(crate) unsafe fn read(
        &self,
        peer: PeerId,
        lane_ep: &Ep,
        to: Piece,
        from: Remote,
        address: &RmaAddress,
    ) -> Result<(), Refused> {
        if self.peers.borrow().get(&peer).is_some_and(|state| state.waiting.is_some())
            && let Some(result) = self.waited(peer, to, &from)
        {
            return result;
        }
        let mut peers = self.peers.borrow_mut();
        let state = peers.entry(peer).or_default();
        if state.remote.as_ref().is_none_or(|remote| remote.address != *address) {
            state.remote = Some(self.connect_offer(address, lane_ep));
        }
        let remote = state.remote.as_ref().filter(|_| self.policy != CopyPolicy::Packets);
        let ep = remote.and_then(|remote| remote.ep.as_ref()).ok_or(Error::Unreachable)?;
        let rkey = self.iface.md().rkey_from_mr_key(from.key, from.addr, to.len() as u64)?;
        let iov = Iov::new(to.ptr(), to.len(), None);
        let number = self.reads.get();
        let comp = Comp::Token(u64::from(number) << 32 | u64::from(peer.0));
        let start = ticks();
        // SAFETY: the caller's promise; the transport needs no registration of ours.
        match unsafe { ep.get_zcopy(&[iov], from.addr, &rkey, comp) }? {
            Sent::Done => {
                state.receiver.record_read(to.len(), ticks().wrapping_sub(start));
                Ok(())
            }
            Sent::InProgress => {
                state.waiting = Some(WaitingRead { number, to: to.ptr(), from, result: None });
                self.reads.set(number.wrapping_add(1));
                Err(Refused::NoResource)
            }
        }
    }

    /// Gives up a read that waits for the part of its peer. The endpoint goes with it, which waits until the
    /// peer copies no longer.
    #[cold]
    pub(crate) fn abandon_read(&self, peer: PeerId) {
        let mut peers = self.peers.borrow_mut();
        let given_up = |state: &mut PeerState| state.waiting.take().and_then(|_| state.remote.take());
        let remote = peers.get_mut(&peer).and_then(given_up);
        drop(peers);
        drop(remote);
    }

    #[cold]
    fn connect_offer(&self, address: &RmaAddress, lane_ep: &Ep) -> RemoteMem {
        let mut iface = decode_address(address);
        iface.truncate(self.attr().iface_addr_len);
        let ep = self.connect(&self.iface.device_addr(), &iface, lane_ep.peer_process());
        let ep = ep.inspect_err(|why| tracing::debug!("messages of a peer come in packets: {why}")).ok();
        RemoteMem { address: address.clone(), ep }
    }

    /// Whether the copy method may change from one message to the next.
    pub(crate) fn method_may_change(&self) -> bool {
        self.policy.method_may_change()
    }

    /// Whether the policy needs measured packet times.
    pub(crate) fn measures_packets(&self) -> bool {
        self.policy == CopyPolicy::Auto
    }

    /// Notes that a long packet was received between two ticks. A short wait before it may have been the
    /// sender's copy and counts; a longer one says only that the program polled or sent late.
    pub(crate) fn record_packet(&self, peer: PeerId, len: usize, start: u64, end: u64) {
        let mut peers = self.peers.borrow_mut();
        let state = peers.entry(peer).or_default();
        let took = end.wrapping_sub(start);
        let since = end.wrapping_sub(std::mem::replace(&mut state.last_packet, end));
        let time = if since <= took.saturating_mul(4) { since.max(took) } else { took.saturating_mul(2) };
        state.receiver.record_packet(len, time);
    }

    /// Decides whether a message that a peer has offered shall come in packets instead.
    pub(crate) fn prefers_packets(&self, peer: PeerId, len: usize) -> bool {
        let prefers = |state: &mut PeerState| state.receiver.choose(self.policy, len) == CopyMethod::Packets;
        self.policy.method_may_change() && prefers(self.peers.borrow_mut().entry(peer).or_default())
    }

    /// Chooses the copy method of the next message to a peer; `estimated` is the choice by the cost model.
    pub(crate) fn next_method(&self, peer: PeerId, len: usize, estimated: CopyMethod) -> CopyMethod {
        match self.policy {
            CopyPolicy::Auto => self.peers.borrow_mut().entry(peer).or_default().sender.next(len, estimated),
            CopyPolicy::Alternate => {
                self.peers.borrow_mut().entry(peer).or_default().receiver.choose(self.policy, len)
            }
            CopyPolicy::Estimated => estimated,
            CopyPolicy::Kernel => CopyMethod::Kernel,
            CopyPolicy::Packets => CopyMethod::Packets,
        }
    }

    /// Returns the copy method in use at present, without advancing the choice.
    pub(crate) fn current_method(&self, peer: PeerId, len: usize, estimated: CopyMethod) -> CopyMethod {
        match self.policy {
            CopyPolicy::Kernel => CopyMethod::Kernel,
            CopyPolicy::Packets => CopyMethod::Packets,
            _ => self
                .peers
                .borrow()
                .get(&peer)
                .and_then(|state| state.sender.current(len))
                .unwrap_or(estimated),
        }
    }

    /// Notes whether a peer read an offered message.
    pub(crate) fn on_offer_result(&self, peer: PeerId, len: usize, read: bool) {
        let mut peers = self.peers.borrow_mut();
        let Some(state) = peers.get_mut(&peer) else { return };
        if read { state.sender.on_read(len) } else { state.sender.on_declined(len) }
    }

    /// Returns the peers with state here, in order.
    pub(crate) fn peers(&self) -> Vec<PeerId> {
        let mut all: Vec<PeerId> = self.peers.borrow().keys().copied().collect();
        all.sort_unstable();
        all
    }

    /// Returns the measured times of messages of `len` bytes from a peer, ns per KiB.
    pub(crate) fn copy_times(&self, peer: PeerId, len: usize) -> Option<CopyTimes> {
        let (start_ticks, start) = self.opened;
        let passed = ticks().wrapping_sub(start_ticks);
        let ns_per_tick = start.elapsed().as_nanos() as f32 / passed.max(1) as f32;
        let measured = self.peers.borrow().get(&peer)?.receiver.times(len);
        let ns = |ticks: f32| ticks * ns_per_tick;
        Some(CopyTimes {
            packets: measured.packets.map(ns),
            kernel: measured.kernel.map(ns),
            method: measured.method,
        })
    }

    /// Drops all state of a peer; its id may be reused.
    pub(crate) fn remove_peer(&self, peer: PeerId) {
        self.peers.borrow_mut().remove(&peer);
    }

    /// Registers memory for access by peers.
    /// # Safety
    /// As for [`uct::api::Md::register`].
    pub(crate) unsafe fn register(&self, addr: *mut u8, len: usize, access: uct::api::Access) -> Option<Mem> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.iface.md().register(addr, len, access) }.ok()
    }

    /// Label of the memory domains of this transport, our own and a peer's.
    pub(crate) fn domain_label(&self) -> u32 {
        let attr = self.iface.attr();
        domain_label(attr.tl, attr.kind, &[])
    }

    /// Unpacks a peer's key; `None` if it is malformed.
    pub(crate) fn unpack_rkey(&self, key: &[u8]) -> Option<Rkey> {
        self.iface.md().unpack_rkey(key).ok()
    }
}

/// Encodes an address as iovs of length 0, 16 bytes in each; empty if it does not fit.
fn encode_address(address: &[u8]) -> RmaAddress {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let mut encoded = RmaAddress::new();
    for part in address.chunks(16) {
        let (addr, key) = part.split_at(part.len().min(8));
        if encoded.try_push(RmaIov { addr: word(addr), len: 0, key: word(key) }).is_err() {
            return RmaAddress::new();
        }
    }
    encoded
}

/// Decodes the address from its iovs, padded with zeros.
fn decode_address(address: &RmaAddress) -> AddrBuf {
    address.iter().flat_map(|part| [part.addr, part.key]).flat_map(u64::to_le_bytes).collect()
}

#[cfg(test)]
mod tests;
