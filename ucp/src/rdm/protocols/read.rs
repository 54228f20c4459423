//! Emulated reads: SHORT_RTR, answered by one READRSP, and LONGCTS_RTR, answered by a READRSP and CTSDATA as
//! the requester grants. The first grant travels in the request; READRSP counts against it (RDM v4, wire
//! facts 5.6).

use ucs::coll::slots::SlotId;

use crate::rdm::flow::window;
use crate::rdm::ids::PeerId;
use crate::rdm::io::{NotPosted, Wire};
use crate::rdm::next::Next;
use crate::rdm::op::rma_op::{Job, RmaOp, RmaState};
use crate::rdm::peers::Peers;
use crate::rdm::peers::peer::Ctl;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{Arrival, HandlerKind, PacketHandler, SendProgress};
use crate::rdm::rma::RmaOps;
use crate::rdm::rma::args::RmaProtocol;
use crate::rdm::rma::mem::Access;
use crate::rdm::status::OpError;
use crate::rdm::trace::DropReason;
use crate::wire::ctl::ReadRsp;
use crate::wire::rtr::{ReadKind, Rtr};
use crate::wire::{Packet, PktType, header_len};

pub(in crate::rdm) const HANDLERS: [PacketHandler; 3] =
    [handler(PktType::SHORT_RTR), handler(PktType::LONGCTS_RTR), handler(PktType::READRSP)];

const fn handler(ty: PktType) -> PacketHandler {
    PacketHandler { ty, kind: HandlerKind::Read, id_use: None }
}

/// Sends the request of the read at the head of its peer's queue.
pub(in crate::rdm) fn push<W: Wire>(
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    w: &mut W,
    id: SlotId,
) -> SendProgress {
    let Some(rma) = rma_ops.table.get(id) else { return SendProgress::Done };
    let (to, len) = (rma.peer, rma.len);
    // Strictly less: that is how libfabric tells the two.
    let short = len < w.mtu(to).saturating_sub(ReadRsp::LEN) as u64;
    let (kind, ty, protocol) = match short {
        true => (ReadKind::Short, PktType::SHORT_RTR, RmaProtocol::ShortRead),
        false => (ReadKind::LongCts, PktType::LONGCTS_RTR, RmaProtocol::LongCtsRead),
    };
    let first = w.mtu(to).saturating_sub(ReadRsp::LEN) as u64;
    if first == 0 || window::data_per_packet(w.mtu(to)) == 0 {
        return SendProgress::Fail(OpError::Unsupported);
    }
    // The answer's first packet counts, so the window holds it at least; its field has 32 bits.
    let window = match short {
        true => len,
        false => window::grant(peers, w, to, len).max(first.min(len)).min(u64::from(u32::MAX)),
    };
    let hdr = Rtr {
        kind,
        rma_iov: rma.remote,
        msg_length: len,
        recv_id: id.raw(),
        recv_length: u32::try_from(window).unwrap_or(u32::MAX),
        opts: peers.wires.req_opts(&peers.table[to], None),
    };
    let max = header_len(ty, hdr.rma_iov.count(), &hdr.opts);
    if let Err(refused) = peers.post(w, to, ty, max, |slot| hdr.write(slot)) {
        return refused.into();
    }
    if let Some(rma) = rma_ops.table.get_mut(id) {
        rma.protocol = protocol;
        rma.window = window;
        rma.state = RmaState::Moving;
    }
    SendProgress::Done
}

/// Handles a packet of this protocol.
pub(in crate::rdm) fn on_recv<W: Wire>(
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    a: &Arrival<'_>,
) -> Next {
    match a.packet {
        Packet::Rtr(rtr) => on_request(rma_ops, peers, w, a, rtr),
        Packet::ReadRsp(hdr, payload) => on_response(rma_ops, peers, pending, a, hdr, payload),
        _ => Next::Nothing,
    }
}

/// A peer reads our memory.
fn on_request<W: Wire>(rma_ops: &mut RmaOps, peers: &mut Peers, w: &W, a: &Arrival<'_>, rtr: &Rtr) -> Next {
    let spans = match rma_ops.resolve(peers, a, &rtr.rma_iov, Access::READ) {
        Ok(spans) => spans,
        Err(next) => return next,
    };
    let len = spans.len();
    let capacity = w.mtu(a.peer).saturating_sub(ReadRsp::LEN) as u64;
    // [M8.4]
    let (protocol, window) = match rtr.kind {
        ReadKind::Short => (RmaProtocol::ShortRead, len),
        ReadKind::LongCts => (RmaProtocol::LongCtsRead, u64::from(rtr.recv_length).min(len)),
    };
    if (rtr.kind == ReadKind::Short && len > capacity) || (window == 0 && len > 0) {
        return peers.refuse_request(a, DropReason::BadWindow);
    }
    let mut rma = RmaOp::new(a.peer, Job::Load(spans), protocol, len);
    rma.state = RmaState::Moving;
    rma.remote_id = Some(rtr.recv_id);
    rma.window = window;
    match rma_ops.insert_served(peers, a, rma) {
        Ok(id) => Next::Ctl(Ctl::ReadRsp(id)),
        Err(next) => next,
    }
}

/// Sends the first packet of an answer; nothing if the memory is gone meanwhile.
pub(in crate::rdm) fn push_response<W: Wire>(
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    to: PeerId,
    id: SlotId,
) -> Result<(), NotPosted> {
    let Some(rma) = rma_ops.table.get(id) else { return Ok(()) };
    let capacity = w.mtu(to).saturating_sub(ReadRsp::LEN);
    let len = capacity.min(usize::try_from(rma.window).unwrap_or(usize::MAX));
    let hdr = ReadRsp {
        recv_id: rma.remote_id.unwrap_or(0),
        send_id: id.raw(),
        seg_length: len as u64,
        connid: Some(peers.wires.own_addr(&peers.table[to]).connid),
    };
    peers.post(w, to, PktType::READRSP, ReadRsp::LEN + len, |slot| {
        let at = hdr.write(slot);
        at + rma.copy_to(0, &mut slot[at..at + len])
    })?;
    let Some(rma) = rma_ops.table.get_mut(id) else { return Ok(()) };
    rma.sent = len as u64;
    // [M8.5]
    rma.window -= len as u64;
    let (protocol, total, peer) = (rma.protocol, rma.len, rma.peer);
    if rma.sent == total {
        if let Some(served) = rma_ops.table.remove(id) {
            rma_ops.count_region(&served);
        }
        peers.counters.count_served(peer, protocol, total);
    } else if rma.window > 0 {
        rma.in_data_queue = true;
        peers.table[to].queue_mut().grants.push_back(id);
        pending.schedule(peers, to);
    }
    Ok(())
}

/// The first data, or all, of a read of ours.
fn on_response(
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    pending: &mut Pending,
    a: &Arrival<'_>,
    hdr: &ReadRsp,
    payload: &[u8],
) -> Next {
    let id = SlotId::from_raw(hdr.recv_id);
    match rma_ops.table.get_mut(id) {
        Some(rma) if rma.peer == a.peer && matches!(rma.job, Job::Get(_)) && rma.remote_id.is_none() => {
            rma.remote_id = Some(hdr.send_id);
        }
        _ => return peers.on_late_answer(a, id, hdr.send_id),
    }
    rma_ops.on_data(peers, pending, a, id, 0, payload)
}
