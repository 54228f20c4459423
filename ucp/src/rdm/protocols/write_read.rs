//! LONGREAD_RTW: a write that the target reads from the requester's memory. EOR ends it; after a READ_NACK it
//! starts over by long-CTS. Not in order with messages (RDM v4, wire facts 7.1 and 9.2).

use arrayvec::ArrayVec;
use ucs::coll::slots::SlotId;

use crate::rdm::io::{RegAccess, RegError, Wire};
use crate::rdm::next::Next;
use crate::rdm::op::rma_op::{Ack, Job, RmaOp, RmaState};
use crate::rdm::op::rma_read::RmaRead;
use crate::rdm::peers::Peers;
use crate::rdm::peers::state::PeerFlags;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{Arrival, HandlerKind, PacketHandler, Protocol, SendProgress};
use crate::rdm::rma::Reads;
use crate::rdm::rma::RmaOps;
use crate::rdm::rma::args::RmaProtocol;
use crate::rdm::rma::mem::Access;
use crate::rdm::status::OpError;
use crate::rdm::trace::DropReason;
use crate::wire::rtw::{LongRead, RtwBody};
use crate::wire::{Features, Iovs, MAX_IOV, Packet, PktType, RmaIov, header_len};

pub(in crate::rdm) const HANDLERS: [PacketHandler; 1] =
    [PacketHandler { ty: PktType::LONGREAD_RTW, kind: HandlerKind::WriteRead, id_use: None }];

/// Sends the request of the write at the head of its peer's queue.
// [M8.8]
pub(in crate::rdm) fn push<W: Wire>(
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    w: &mut W,
    id: SlotId,
) -> SendProgress {
    let Some(rma) = rma_ops.table.get(id) else { return SendProgress::Done };
    let (to, remote, len, cq_data) = (rma.peer, rma.remote, rma.len, rma.cq_data);
    let opts = peers.wires.req_opts(&peers.table[to], cq_data);
    let header = header_len(PktType::LONGREAD_RTW, remote.count(), &opts);
    let max = header + MAX_IOV * RmaIov::LEN;
    let eager = header_len(PktType::DC_EAGER_RTW, remote.count(), &opts) as u64;
    let one_packet = eager.saturating_add(len) <= w.mtu(to) as u64;
    if one_packet || max > w.mtu(to) || !peers.may_be_read(to, Protocol::LongRead) {
        return by_packets(rma_ops, id);
    }
    // [M7.8]
    let Ok(read_iov) = expose(rma_ops, peers, w, id) else {
        rma_ops.release_own_regs(w, id);
        return by_packets(rma_ops, id);
    };
    let hdr = LongRead { rma_iov: remote, msg_length: len, send_id: id.raw(), read_iov, opts };
    if let Err(refused) = peers.post(w, to, PktType::LONGREAD_RTW, max, |slot| hdr.write(slot)) {
        return refused.into();
    }
    if let Some(rma) = rma_ops.table.get_mut(id) {
        rma.state = RmaState::BeingRead;
    }
    SendProgress::Done
}

/// Continues by packets.
fn by_packets(rma_ops: &mut RmaOps, id: SlotId) -> SendProgress {
    if let Some(rma) = rma_ops.table.get_mut(id) {
        rma.go_by_packets();
    }
    SendProgress::Sent
}

/// Registers the pieces of a write that are not registered yet. Returns their names.
fn expose<W: Wire>(rma_ops: &mut RmaOps, peers: &Peers, w: &mut W, id: SlotId) -> Result<Iovs, RegError> {
    let Some(rma) = rma_ops.table.get_mut(id) else { return Err(RegError::Refused) };
    let Job::Put(local) = &rma.job else { return Err(RegError::Refused) };
    let wire = peers.table[rma.peer].wire;
    let mut list = ArrayVec::<RmaIov, MAX_IOV>::new();
    for (buf, reg) in local.pieces().iter().zip(&mut rma.regs).filter(|(buf, _)| !buf.is_empty()) {
        let piece = buf.piece().ok_or(RegError::Refused)?;
        let key = match reg {
            Some(reg) => reg.key,
            None => reg.insert(w.register(wire, piece, RegAccess::REMOTE_READ)?).key,
        };
        list.push(RmaIov { addr: piece.ptr() as u64, len: piece.len() as u64, key });
    }
    Iovs::try_from(list.as_slice()).map_err(|_| RegError::Refused)
}

/// Serves a write that we read.
pub(in crate::rdm) fn on_recv(
    rma_ops: &mut RmaOps,
    reads: &mut Reads,
    peers: &mut Peers,
    a: &Arrival<'_>,
) -> Next {
    let Packet::Rtw(rtw) = a.packet else { return Next::Nothing };
    let RtwBody::LongRead { send_id, read_iov, .. } = rtw.body else { return Next::Nothing };
    let spans = match rma_ops.resolve(peers, a, &rtw.rma_iov, Access::WRITE) {
        Ok(spans) => spans,
        Err(next) => return next,
    };
    let len = spans.len();
    // [M7.10]
    if read_iov.total().is_none_or(|total| total < len) {
        return peers.refuse_request(a, DropReason::BadSegment);
    }
    let Ok(rma_read) = reads.table.insert(RmaRead::new(a.peer, read_iov, 0)) else {
        return peers.refuse_request(a, DropReason::NoRoom);
    };
    let mut rma = RmaOp::new(a.peer, Job::Store(spans), RmaProtocol::LongReadWrite, len);
    rma.state = RmaState::BeingRead;
    rma.remote_id = Some(send_id);
    rma.cq_data = rtw.opts.cq_data;
    match rma_ops.insert_served(peers, a, rma) {
        Ok(id) => reads.start_of_write(rma_ops, peers, rma_read, id),
        Err(next) => {
            reads.table.remove(rma_read);
            next
        }
    }
}

impl RmaOps {
    /// Finds one of our writes that this peer may be reading.
    pub(in crate::rdm) fn being_read(&self, a: &Arrival<'_>, id: SlotId) -> Option<(RmaProtocol, u64)> {
        let rma = self.table.get(id)?;
        let ours = rma.is_ours() && rma.peer == a.peer && rma.state == RmaState::BeingRead;
        ours.then_some((rma.protocol, rma.len))
    }

    /// Ends the target's right to read a write.
    pub(in crate::rdm) fn release_own_regs<W: Wire>(&mut self, w: &mut W, id: SlotId) {
        let Some(rma) = self.table.get_mut(id) else { return };
        rma.regs.iter_mut().filter_map(Option::take).for_each(|reg| w.release(reg));
    }

    /// Ends one of our writes that the target has read.
    // [M8.8]
    pub(in crate::rdm) fn on_eor(
        &mut self,
        peers: &mut Peers,
        pending: &mut Pending,
        a: &Arrival<'_>,
        id: SlotId,
    ) -> Next {
        let Some((protocol, len)) = self.being_read(a, id) else {
            return peers.drop_packet(a, DropReason::BadId);
        };
        peers.counters.count_initiated(a.peer, protocol, len);
        self.finish(peers, pending, id, Ok(()));
        Next::Nothing
    }

    /// Starts a write over that the target cannot read, before all that waits.
    // [M7.7]
    pub(in crate::rdm) fn on_nack<W: Wire>(
        &mut self,
        peers: &mut Peers,
        pending: &mut Pending,
        w: &mut W,
        a: &Arrival<'_>,
        id: SlotId,
    ) -> Next {
        if self.being_read(a, id).is_none() {
            return peers.drop_packet(a, DropReason::BadId);
        }
        peers.counters.stats.rare.nacks_received += 1;
        self.release_own_regs(w, id);
        let acknowledges = peers.table[a.peer].features.contains(Features::DELIVERY_COMPLETE);
        let Some(rma) = self.table.get_mut(id) else { return Next::Nothing };
        (rma.state, rma.protocol) = (RmaState::Nacked, RmaProtocol::LongCtsWrite);
        match rma.ack {
            Ack::Wanted if !acknowledges => {
                self.finish(peers, pending, id, Err(OpError::Unsupported));
                return Next::Nothing;
            }
            Ack::IfAble if !acknowledges => rma.ack = Ack::No,
            _ => {}
        }
        let peer = &mut peers.table[a.peer];
        peer.queue_mut().sends.push_front(id);
        peer.state.insert(PeerFlags::SENDS_QUEUED);
        Next::Drive
    }
}
