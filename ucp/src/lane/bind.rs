//! Implements `rdm::io::Wire` on uct: maps peers to endpoints and writes packets into the transport's
//! buffers. Makes no protocol decision and never parses a packet.

#![allow(unsafe_code)]

use uct::api::{
    Caps, ConnectError, Ep as _, Error, Iface as _, Iov, Md as _, Outcome, Pack, Refused as WireRefused,
    Sent, UserQp,
};

use crate::rdm::io::{
    Flushed, LaneId, NotPosted, PacketWriter, PeerError, PeerId, Posted, ReceiveSink, Reg, RegAccess,
    RegError, Remote, RmaAddress, Source, TxToken, Wire,
};
use crate::rdm::{Piece, RecvStatus, WireId};
use crate::wire::{MsgClass, RawAddr, UserRecvQp};

use crate::token::CompletionToken;

use super::errors::{fault_of, is_shortage, refused};
use super::peer_eps::{PeerEp, PeerEps};
use super::regs::{RegTable, needs_alloc};
use super::{IfaceIdx, RmaOnlyLane, WorkerIface};

/// Lanes and endpoints, lent to the engine for one call.
pub(crate) struct Bound<'a, S> {
    pub ifaces: &'a [WorkerIface],
    pub peer_eps: &'a mut PeerEps,
    pub regs: &'a mut RegTable,
    /// Access to peers' memory where their lane has none.
    pub rma_only: Option<&'a RmaOnlyLane>,
    /// Receives completions at once while packets are handled.
    pub sink: Option<S>,
    /// The lane whose packet the engine is handling.
    pub receiving: IfaceIdx,
}

impl<S: ReceiveSink> ReceiveSink for Bound<'_, S> {
    // HOT
    #[inline(always)]
    fn received(&mut self, user: u64, status: RecvStatus, is_next: bool) -> bool {
        self.sink.as_mut().is_some_and(|sink| sink.received(user, status, is_next))
    }

    // HOT
    #[inline]
    fn deliver(&mut self, class: MsgClass, from: PeerId, tag: u64, payload: &[u8]) -> bool {
        self.sink.as_mut().is_some_and(|sink| sink.deliver(class, from, tag, payload))
    }
}

#[derive(Clone, Copy)]
struct PacketPack<F>(F);

impl<F: PacketWriter> Pack for PacketPack<F> {
    // The engine only writes headers and copies bytes.
    const MAY_SEND: bool = false;

    // HOT
    #[inline(always)]
    fn pack(self, slot: &mut [u8]) -> usize {
        self.0.fill(slot)
    }
}

/// Maps the outcome of a packet. It is copied within the call, so no token is ever pending.
// HOT
#[inline(always)]
fn sent(outcome: Outcome<usize>, peer_eps: &mut PeerEps, to: LaneId) -> Result<Posted, NotPosted> {
    match outcome {
        Ok(_) => Ok(Posted::Done),
        Err(WireRefused::NoResource) => Err(NotPosted::Full),
        Err(WireRefused::Failed(e)) => Err(peer_eps.send_error(to, e)),
    }
}

impl<S: ReceiveSink> Wire for Bound<'_, S> {
    #[inline(always)]
    fn mtu(&self, to: PeerId) -> usize {
        self.peer_eps.get(to).map_or(0, PeerEp::mtu)
    }

    // HOT
    #[inline(always)]
    fn send<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        to: LaneId,
        max: usize,
        _token: TxToken,
        fill: F,
    ) -> Result<Posted, NotPosted> {
        let Some(peer_ep) = self.peer_eps.on_lane(to) else { return Err(NotPosted::Peer(PeerError::Gone)) };
        let outcome = peer_ep.ep.am_packet(max, fill);
        sent(outcome, self.peer_eps, to)
    }

    // HOT
    #[inline(always)]
    fn send_short<F: PacketWriter>(&mut self, to: PeerId, max: usize, fill: F) -> Result<Posted, NotPosted> {
        let Some(peer_ep) = self.peer_eps.get(to) else { return Err(NotPosted::Peer(PeerError::Gone)) };
        let outcome = peer_ep.ep.am_short_packet(max, PacketPack(fill));
        sent(outcome, self.peer_eps, to.into())
    }

    fn send_to_user_qp<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        to: PeerId,
        qp: UserRecvQp,
        max: usize,
        imm: Option<u32>,
        fill: F,
    ) -> Result<Posted, NotPosted> {
        let Some(peer_ep) = self.peer_eps.get(to) else { return Err(NotPosted::Peer(PeerError::Gone)) };
        let Ok(qpn) = u16::try_from(qp.qpn) else { return Err(NotPosted::Peer(PeerError::NO_RDMA)) };
        match peer_ep.ep.send_to_user_qp(UserQp { qpn, qkey: qp.qkey }, max, imm, fill) {
            Ok(_) => Ok(Posted::Done),
            Err(WireRefused::NoResource) => Err(NotPosted::Full),
            Err(WireRefused::Failed(Error::Unsupported(_))) => Err(NotPosted::Peer(PeerError::NO_RDMA)),
            Err(WireRefused::Failed(e)) => Err(refused(e)),
        }
    }

    fn post_user_recv(
        &mut self,
        wire: WireId,
        into: Piece,
        reg: &Reg,
        receive: u32,
    ) -> Result<(), NotPosted> {
        let lane = self.ifaces.iter().find(|lane| lane.wire == wire);
        let (Some(lane), Some((_, mem))) = (lane, self.regs.get(reg.id)) else {
            return Err(NotPosted::Peer(PeerError::NO_RDMA));
        };
        let iov = Iov::new(into.ptr(), into.len(), mem);
        // SAFETY: the engine keeps the registration until the completion; the poster keeps others off the
        // memory.
        posted(unsafe { lane.iface.post_user_recv(iov, u64::from(receive)) }).map(drop)
    }

    fn flush_lane(&mut self, to: LaneId) -> Flushed {
        match self.peer_eps.on_lane(to).map(|peer_ep| peer_ep.ep.flush(CompletionToken::Drained(to).comp())) {
            Some(Ok(Sent::InProgress)) => Flushed::Later,
            _ => Flushed::Now,
        }
    }

    fn connect(&mut self, id: LaneId, from: Source, addr: &RawAddr) -> Result<(), PeerError> {
        let raw = addr.to_bytes();
        let lane = &self.ifaces[usize::from(self.receiving.0)];
        let (device, iface) = lane.form.addrs(&raw, &lane.device);
        // Only a refusal must be known now; silence and shortages are retried later.
        let started = |ep: super::Ep| match ep.begin_connecting() {
            Ok(_) => Ok(ep),
            Err(ConnectError::Op(e)) if is_shortage(&e) => Ok(ep),
            Err(e) => Err(e),
        };
        let ep = lane.iface.connect(&device, &iface).and_then(started).map_err(|e| {
            tracing::warn!(
                tl = lane.iface.attr().tl,
                node = from.node,
                port = from.port,
                "cannot answer a new peer: {e}"
            );
            match e {
                ConnectError::Gone => PeerError::Gone,
                ConnectError::Op(e) => fault_of(e),
                _ => PeerError::Unreachable,
            }
        })?;
        self.peer_eps.set(id, self.receiving, ep);
        Ok(())
    }

    fn promote(&mut self, lane: LaneId, peer: PeerId) {
        if let Some(PeerEp { ep, lane, .. }) = self.peer_eps.take_further(lane) {
            self.peer_eps.set(peer, lane, ep);
        }
    }

    fn reroute(&mut self, peer: PeerId, onto: LaneId, addr: &RawAddr) -> Result<(), PeerError> {
        let at = self.peer_eps.on_lane(onto).ok_or(PeerError::Gone)?.lane;
        let lane = &self.ifaces[usize::from(at.0)];
        let (device, iface) = lane.form.addrs(&addr.to_bytes(), &lane.device);
        let ep = lane.iface.connect(&device, &iface).map_err(|e| match e {
            ConnectError::Op(e) => fault_of(e),
            _ => PeerError::Unreachable,
        })?;
        self.peer_eps.replace(peer, at, ep);
        Ok(())
    }

    fn register(&mut self, wire: WireId, piece: Piece, for_what: RegAccess) -> Result<Reg, RegError> {
        let lane = self.ifaces.iter().position(|lane| lane.wire == wire).ok_or(RegError::Refused)?;
        let at = IfaceIdx(lane as u8);
        // SAFETY: the piece is valid until its registration is released; its user holds no reference
        // meanwhile.
        match unsafe { self.regs.register(self.ifaces, at, piece, for_what) } {
            Err(RegError::Refused)
                if for_what == RegAccess::REMOTE_READ && needs_alloc(&self.ifaces[lane].iface) =>
            {
                let key =
                    self.rma_only.and_then(|rma_only| rma_only.offer(piece)).ok_or(RegError::Refused)?;
                self.regs.offer(at, key)
            }
            registered => registered,
        }
    }

    fn rma_address(&self, reg: &Reg) -> Option<RmaAddress> {
        self.rma_only
            .filter(|_| self.regs.is_rma_only(reg.id))
            .map(|rma_only| rma_only.local_address().clone())
    }

    fn read_rma_lane(
        &mut self,
        peer: PeerId,
        to: Piece,
        from: Remote,
        address: &RmaAddress,
    ) -> Option<Result<(), NotPosted>> {
        let peer_ep = self.peer_eps.get(peer)?;
        if !needs_alloc(&self.ifaces[usize::from(peer_ep.lane.0)].iface) {
            return None;
        }
        let Some(rma_only) = self.rma_only else { return Some(Err(NotPosted::Peer(PeerError::NO_RDMA))) };
        // SAFETY: the engine reads into the buffer of a receive, which nobody else writes before its end.
        let read = unsafe { rma_only.read(peer, &peer_ep.ep, to, from, address) };
        Some(read.map_err(|why| match why {
            WireRefused::NoResource => NotPosted::Full,
            // The lane detects the death of a peer, not this transport.
            WireRefused::Failed(Error::Unreachable | Error::Unresponsive | Error::PeerDead) => {
                NotPosted::Peer(PeerError::NO_RDMA)
            }
            WireRefused::Failed(e) => refused(e),
        }))
    }

    fn abandon_rma_lane_read(&mut self, peer: PeerId) {
        if let Some(rma_only) = self.rma_only {
            rma_only.abandon_read(peer);
        }
    }

    fn prefers_packets(&mut self, peer: PeerId, len: usize, _address: &RmaAddress) -> bool {
        let Some(rma_only) = self.rma_only else { return false };
        // Lanes that reach all memory read it themselves. Messages that fit a packet have another reason.
        let applies = |peer_ep: &PeerEp| {
            len > peer_ep.mtu() && needs_alloc(&self.ifaces[usize::from(peer_ep.lane.0)].iface)
        };
        self.peer_eps.get(peer).is_some_and(applies) && rma_only.prefers_packets(peer, len)
    }

    fn on_offer_result(&mut self, peer: PeerId, reg: &Reg, len: usize, read: bool) {
        if let Some(rma_only) = self.rma_only.filter(|_| self.regs.is_rma_only(reg.id)) {
            rma_only.on_offer_result(peer, len, read);
        }
    }

    fn release(&mut self, reg: Reg) {
        self.regs.remove(reg.id);
    }

    fn revoke(&mut self, reg: Reg) {
        self.regs.revoke(reg.id);
    }

    fn read(
        &mut self,
        on: LaneId,
        to: Piece,
        reg: &Reg,
        from: Remote,
        token: TxToken,
    ) -> Result<Posted, NotPosted> {
        let (peer_ep, lane, mem) = self.zcopy_lane(on, reg)?;
        let rkey = lane.iface.md().rkey_from_mr_key(from.key, from.addr, to.len() as u64).map_err(refused)?;
        let iov = [Iov::new(to.ptr(), to.len(), mem)];
        // SAFETY: the engine keeps the piece's registration until the completion; nobody else writes it.
        posted(unsafe { peer_ep.ep.get_zcopy(&iov, from.addr, &rkey, CompletionToken::Engine(token).comp()) })
    }

    fn write(
        &mut self,
        on: LaneId,
        from: Piece,
        reg: &Reg,
        to: Remote,
        imm: Option<u32>,
        token: TxToken,
    ) -> Result<Posted, NotPosted> {
        let (peer_ep, lane, mem) = self.zcopy_lane(on, reg)?;
        let rkey = lane.iface.md().rkey_from_mr_key(to.key, to.addr, from.len() as u64).map_err(refused)?;
        let iov = [Iov::new(from.ptr(), from.len(), mem)];
        let comp = CompletionToken::Engine(token).comp();
        posted(match imm {
            // SAFETY: the piece lies in a registration that the engine keeps unchanged until the completion.
            None => unsafe { peer_ep.ep.put_zcopy(&iov, to.addr, &rkey, comp) },
            // SAFETY: as above.
            Some(imm) => unsafe { peer_ep.ep.put_imm(&iov, to.addr, &rkey, imm, comp) },
        })
    }

    fn write_copy<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        peer: PeerId,
        len: usize,
        fill: F,
        to: Remote,
    ) -> Result<(), NotPosted> {
        let (peer_ep, lane) = self.bcopy_lane(peer, len, Caps::PUT_BCOPY)?;
        let rkey = lane.iface.md().rkey_from_mr_key(to.key, to.addr, len as u64).map_err(refused)?;
        let sent = peer_ep.ep.put_bcopy(len, fill, to.addr, &rkey);
        posted(sent.map(|_| Sent::Done)).map(drop)
    }

    fn read_copy_max(&self, peer: PeerId) -> usize {
        let Some(peer_ep) = self.peer_eps.get(peer) else { return 0 };
        let attr = self.ifaces[usize::from(peer_ep.lane.0)].iface.attr();
        if attr.has(Caps::GET_BCOPY | Caps::MR_KEY) { attr.get.max_bcopy } else { 0 }
    }

    fn read_copy(
        &mut self,
        peer: PeerId,
        to: Piece,
        from: Remote,
        token: TxToken,
    ) -> Result<Posted, NotPosted> {
        let (peer_ep, lane) = self.bcopy_lane(peer, to.len(), Caps::GET_BCOPY)?;
        let rkey = lane.iface.md().rkey_from_mr_key(from.key, from.addr, to.len() as u64).map_err(refused)?;
        let take = move |bytes: &[u8]| {
            let len = bytes.len().min(to.len());
            // SAFETY: the engine keeps the piece until the completion; `bytes` is the transport's own buffer.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.ptr(), len) };
        };
        let comp = CompletionToken::Engine(token).comp();
        posted(peer_ep.ep.get_bcopy(to.len(), take, from.addr, &rkey, comp))
    }
}

impl<S> Bound<'_, S> {
    /// Returns a peer's endpoint and lane, if the lane's own buffers take `len` bytes.
    fn bcopy_lane(&self, peer: PeerId, len: usize, cap: Caps) -> Result<(&PeerEp, &WorkerIface), NotPosted> {
        let peer_ep = self.peer_eps.get(peer).ok_or(NotPosted::Peer(PeerError::Gone))?;
        let lane = &self.ifaces[usize::from(peer_ep.lane.0)];
        let attr = lane.iface.attr();
        let max = if cap == Caps::PUT_BCOPY { attr.put.max_bcopy } else { attr.get.max_bcopy };
        match attr.has(cap | Caps::MR_KEY) && len <= max {
            true => Ok((peer_ep, lane)),
            false => Err(NotPosted::Peer(PeerError::NO_RDMA)),
        }
    }

    /// Returns a peer's endpoint, its lane, and the local registration there, if the lane needs one.
    fn zcopy_lane(
        &self,
        on: LaneId,
        reg: &Reg,
    ) -> Result<(&PeerEp, &WorkerIface, Option<&super::Mem>), NotPosted> {
        let peer_ep = self.peer_eps.on_lane(on).ok_or(NotPosted::Peer(PeerError::Gone))?;
        // A registration on the lane that the peer has left is of no use on its present one.
        let reg = self.regs.get(reg.id).filter(|(lane, _)| *lane == peer_ep.lane);
        let (lane, mem) = reg.ok_or(NotPosted::Peer(PeerError::NO_RDMA))?;
        Ok((peer_ep, &self.ifaces[usize::from(lane.0)], mem))
    }
}

fn posted(outcome: Result<Sent, WireRefused>) -> Result<Posted, NotPosted> {
    match outcome {
        Ok(Sent::Done) => Ok(Posted::Done),
        Ok(Sent::InProgress) => Ok(Posted::Pending),
        Err(WireRefused::NoResource) => Err(NotPosted::Full),
        Err(WireRefused::Failed(e)) => Err(refused(e)),
    }
}
