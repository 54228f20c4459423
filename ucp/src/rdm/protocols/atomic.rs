//! Atomics: WRITE_RTA, DC_WRITE_RTA (acknowledged by RECEIPT), FETCH_RTA and COMPARE_RTA (answered by ATOMRSP
//! with the old values). They are in order with messages, and each fits one packet (RDM v4, wire facts 6).

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::amo::{self, Elements, Form};
use crate::rdm::ids::WireId;
use crate::rdm::ids::{PeerId, Source};
use crate::rdm::io::{NotPosted, Wire};
use crate::rdm::next::Next;
use crate::rdm::op::Scatter;
use crate::rdm::op::rma_op::{Ack, Atomic, Job, RmaOp, RmaState};
use crate::rdm::op::rma_ops::CompactRmaOp;
use crate::rdm::peers::Peers;
use crate::rdm::peers::peer::Ctl;
use crate::rdm::peers::state::PeerFlags;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{Arrival, HandlerKind, PacketHandler, SendProgress};
use crate::rdm::recv::sequence::MsgIdUse;
use crate::rdm::rma::RmaOps;
use crate::rdm::rma::args::{AtomicArgs, RmaProtocol};
use crate::rdm::rma::mem::{Access, Spans};
use crate::rdm::status::OpError;
use crate::rdm::status::PeerError;
use crate::rdm::trace::DropReason;
use crate::wire::ctl::AtomRsp;
use crate::wire::rta::{Rta, RtaKind, Short};
use crate::wire::{AtomicOp, Datatype, Opts, Packet, PktType, RawAddr, header_len};

pub(in crate::rdm) const HANDLERS: [PacketHandler; 5] = [
    rta(PktType::WRITE_RTA),
    rta(PktType::DC_WRITE_RTA),
    rta(PktType::FETCH_RTA),
    rta(PktType::COMPARE_RTA),
    PacketHandler { ty: PktType::ATOMRSP, kind: HandlerKind::Atomic, id_use: None },
];

const fn rta(ty: PktType) -> PacketHandler {
    // [M9.5]
    PacketHandler { ty, kind: HandlerKind::Atomic, id_use: Some(MsgIdUse::Single) }
}

/// Most bytes of elements of which `copies` fit a packet of `mtu` bytes behind `header`, and whose old values
/// fit the response.
fn max_len(mtu: usize, header: usize, copies: usize) -> usize {
    let operands = mtu.saturating_sub(header).checked_div(copies).unwrap_or(usize::MAX);
    operands.min(mtu.saturating_sub(AtomRsp::LEN + 1))
}

/// Most bytes of elements of one atomic, over a wire of this MTU, whatever the state of the connection.
#[cfg_attr(not(feature = "lanes"), allow(dead_code))]
pub(crate) fn max_atomic(mtu: usize, form: Form) -> usize {
    let (ty, copies) = match form {
        Form::Write => (PktType::DC_WRITE_RTA, 1),
        Form::Fetch => (PktType::FETCH_RTA, 1),
        Form::Compare => (PktType::COMPARE_RTA, 2),
    };
    // The longest header is that of a peer which is not met.
    let opts = Opts::raw_addr(RawAddr::default());
    max_len(mtu, header_len(ty, 1, &opts), copies)
}

/// Sends the request at the head of its peer's queue.
pub(in crate::rdm) fn push<W: Wire>(
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    id: SlotId,
) -> SendProgress {
    let Some(rma) = rma_ops.table.get(id) else { return SendProgress::Done };
    let Job::Atomic(what) = &rma.job else { return SendProgress::Done };
    let to = rma.peer;
    let (kind, ty) = match (rma.protocol, rma.ack) {
        (RmaProtocol::FetchAtomic, _) => (RtaKind::Fetch { recv_id: id.raw() }, PktType::FETCH_RTA),
        (RmaProtocol::CompareAtomic, _) => (RtaKind::Compare { recv_id: id.raw() }, PktType::COMPARE_RTA),
        (_, Ack::No) => (RtaKind::Write, PktType::WRITE_RTA),
        _ => (RtaKind::DcWrite { send_id: id.raw() }, PktType::DC_WRITE_RTA),
    };
    let msg_id = peers.table[to].next_tx;
    let opts = peers.wires.req_opts(&peers.table[to], None);
    let (datatype, op) = (what.ty.into(), what.op.into());
    let hdr = Rta { kind, msg_id, rma_iov: rma.remote, datatype, op, opts };
    let max = header_len(ty, rma.remote.count(), &opts) + what.operands.len();
    let response_len = AtomRsp::LEN as u64 + rma.len;
    if max > w.mtu(to) || response_len >= w.mtu(to) as u64 {
        let len = usize::try_from(rma.len).unwrap_or(usize::MAX);
        let copies = what.operands.len() / len.max(1);
        let max = max_len(w.mtu(to), max - what.operands.len(), copies);
        return SendProgress::Fail(OpError::AtomicTooLong { len, max });
    }
    let posted = peers.post(w, to, ty, max, |slot| {
        let at = hdr.write(slot);
        // [M9.1]
        at + what.operands.copy_to(&mut slot[at..])
    });
    if let Err(refused) = posted {
        return refused.into();
    }
    peers.table[to].next_tx = msg_id.wrapping_add(1);
    rma_ops.all_sent(peers, pending, id);
    SendProgress::Done
}

/// Fast path: sends a fetching atomic of one piece to a known peer with nothing queued. `None`: not possible,
/// and nothing has happened.
// HOT
// [M9.1]
#[inline]
pub(in crate::rdm) fn start_short<W: Wire>(
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    w: &mut W,
    to: PeerId,
    a: &mut AtomicArgs,
) -> Option<SlotId> {
    let (connid, &[iov]) = (peers.fast_path_connid(to)?, a.remote.as_slice()) else { return None };
    let (msg_id, datatype, op) = (peers.table[to].next_tx, a.ty, a.op);
    let hdr = Short { msg_id, recv_id: 0, datatype, op, iov, connid };
    let (max, mtu) = (Short::wire_len() + a.operand.len(), w.mtu(to));
    if max > mtu || AtomRsp::LEN as u64 + iov.len >= mtu as u64 {
        return None;
    }
    // After the send only the result buffer is needed.
    a.result.as_ref().filter(|result| result.pieces() == 1)?;
    let rma = CompactRmaOp {
        peer: to,
        user: a.user,
        protocol: RmaProtocol::FetchAtomic,
        ack: Ack::No,
        len: iov.len,
    };
    let id = rma_ops.send_short(peers, w, (PktType::FETCH_RTA, max), rma, |recv_id, slot| {
        let at = Short { recv_id, ..hdr }.write(slot);
        at + a.operand.copy_to(0, &mut slot[at..])
    })?;
    if let Some(rma) = rma_ops.table.get_mut(id) {
        rma.result = a.result.take().and_then(Scatter::into_one);
    }
    peers.table[to].next_tx = msg_id.wrapping_add(1);
    Some(id)
}

/// Fast path: serves a valid fetching atomic of one piece, in order. False: not possible, and nothing has
/// happened.
// HOT
#[inline]
pub(in crate::rdm) fn recv_short<W: Wire>(
    e: &mut Engine,
    w: &mut W,
    wire: WireId,
    from: Source,
    packet: &[u8],
) -> bool {
    let Some((hdr, payload)) = Short::read(packet) else { return false };
    let Some(peer) = e.peers.fast_path_sender(wire, from, Some(hdr.connid)) else { return false };
    let sender = &e.peers.table[peer];
    let (op, ty) = (hdr.op, hdr.datatype);
    let in_order = hdr.msg_id == sender.next_rx && !sender.state.has(PeerFlags::REORDERING);
    if !in_order
        || !e.peers.table.may_send_ctl(peer)
        || !amo::has_form(op, Form::Fetch)
        || !amo::has_type(op, ty)
    {
        return false;
    }
    let domain = e.peers.wires[wire].domain;
    let Some(spans) = e.ops.rma_ops.regions.resolve_one(domain, &hdr.iov, Access::ATOMIC) else {
        return false;
    };
    let computation = Computation { op, ty, spans: &spans, payload };
    if !computation.has_valid_lengths(Form::Fetch) || !computation.has_room(w.mtu(peer)) {
        return false;
    }
    match send_response(&mut e.peers, w, peer, hdr.recv_id, &computation) {
        Response::No => return false,
        Response::Lost(fault) => e.fail_peer(w, peer, fault),
        Response::Yes => {}
    }
    e.ops.rma_ops.regions.count(&spans, true);
    e.peers.table[peer].next_rx = hdr.msg_id.wrapping_add(1);
    e.peers.counters.count_fast_path(peer, PktType::FETCH_RTA);
    e.peers.counters.count_served(peer, RmaProtocol::FetchAtomic, spans.len());
    true
}

/// Fast path: takes the response to an atomic of ours. False: it is another packet, and nothing has happened.
// HOT
#[inline]
pub(in crate::rdm) fn recv_short_response(
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    pending: &mut Pending,
    wire: WireId,
    from: Source,
    packet: &[u8],
) -> bool {
    let Some((hdr, payload)) = AtomRsp::read(packet) else { return false };
    let Some(peer) = peers.fast_path_sender(wire, from, hdr.connid) else { return false };
    if finish_fetch(rma_ops, peers, pending, peer, &hdr, payload).is_err() {
        return false;
    }
    peers.counters.count_fast_path(peer, PktType::ATOMRSP);
    true
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
        Packet::Rta(rta, payload) => on_request(rma_ops, peers, pending, w, a, rta, payload),
        Packet::AtomRsp(hdr, payload) => {
            on_response(rma_ops, peers, pending, a, hdr, payload);
            Next::Nothing
        }
        _ => Next::Nothing,
    }
}

/// Serves a request. Its `msg_id` is used up in any case.
fn on_request<W: Wire>(
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    a: &Arrival<'_>,
    rta: &Rta,
    payload: &[u8],
) -> Next {
    let (form, protocol) = match rta.kind {
        RtaKind::Write | RtaKind::DcWrite { .. } => (Form::Write, RmaProtocol::WriteAtomic),
        RtaKind::Fetch { .. } => (Form::Fetch, RmaProtocol::FetchAtomic),
        RtaKind::Compare { .. } => (Form::Compare, RmaProtocol::CompareAtomic),
    };
    let (Some(op), Some(ty)) = (rta.op(), rta.datatype()) else {
        return peers.refuse_request(a, DropReason::Unsupported);
    };
    // [M9.4]
    if !amo::has_form(op, form) || !amo::has_type(op, ty) {
        return peers.refuse_request(a, DropReason::Unsupported);
    }
    let spans = match rma_ops.resolve(peers, a, &rta.rma_iov, Access::ATOMIC) {
        Ok(spans) => spans,
        Err(next) => return next,
    };
    let (len, computation) = (spans.len(), Computation { op, ty, spans: &spans, payload });
    if !computation.has_valid_lengths(form) || (form != Form::Write && !computation.has_room(w.mtu(a.peer))) {
        return peers.refuse_request(a, DropReason::BadAccess);
    }
    rma_ops.regions.count(&spans, form != Form::Write);
    match rta.kind {
        RtaKind::Write => {
            computation.compute(&mut []);
            rma_ops.finish_served_write(peers, pending, a.peer, protocol, len, (None, None))
        }
        RtaKind::DcWrite { send_id } => {
            computation.compute(&mut []);
            rma_ops.finish_served_write(peers, pending, a.peer, protocol, len, (None, Some(send_id)))
        }
        RtaKind::Fetch { recv_id } | RtaKind::Compare { recv_id } => {
            compute_and_respond(rma_ops, peers, pending, w, a, (recv_id, protocol), &computation)
        }
    }
}

/// A checked request to compute.
pub(in crate::rdm) struct Computation<'a> {
    pub op: AtomicOp,
    pub ty: Datatype,
    pub spans: &'a Spans,
    /// One operand per element, then one compare value per element.
    pub payload: &'a [u8],
}

impl Computation<'_> {
    /// True if the lengths of operands and pieces agree.
    // [M9.2]
    #[inline]
    pub fn has_valid_lengths(&self, form: Form) -> bool {
        let (len, payload_len) = (self.spans.len(), self.payload.len() as u64);
        let operands = match form {
            _ if self.op == AtomicOp::Read => true,
            Form::Write | Form::Fetch => payload_len == len,
            Form::Compare => len.checked_mul(2) == Some(payload_len),
        };
        operands && self.spans.lens().all(|piece| piece.is_multiple_of(self.ty.size()))
    }

    /// True if the old values fit one packet.
    #[inline]
    fn has_room(&self, mtu: usize) -> bool {
        (AtomRsp::LEN as u64).saturating_add(self.spans.len()) < mtu as u64
    }

    /// Computes on every element, in order; writes as many old values as fit to `old`.
    // HOT
    pub fn compute(&self, old: &mut [u8]) {
        struct On<'a>(&'a Spans, (&'a [u8], &'a [u8]), &'a mut [u8]);
        impl Elements for On<'_> {
            #[inline]
            fn replace<const N: usize>(self, change: impl Fn([u8; N], [u8; N], [u8; N]) -> Option<[u8; N]>) {
                let On(spans, (operands, compares), old) = self;
                spans.update(operands, compares, old, change);
            }
        }
        let split = (self.spans.len() as usize).min(self.payload.len());
        amo::run(self.op, self.ty, On(self.spans, self.payload.split_at(split), old));
    }
}

/// Computes and responds: straight into the packet, if it can be sent now.
fn compute_and_respond<W: Wire>(
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    a: &Arrival<'_>,
    (recv_id, protocol): (u32, RmaProtocol),
    computation: &Computation<'_>,
) -> Next {
    let len = computation.spans.len();
    let response = if peers.table.may_send_ctl(a.peer) {
        send_response(peers, w, a.peer, recv_id, computation)
    } else {
        Response::No
    };
    let next = match response {
        Response::Yes => Next::Nothing,
        Response::Lost(fault) => return Next::Fail(fault),
        Response::No => {
            // Reserved first, so that nothing is computed without a response.
            let mut rma = RmaOp::new(a.peer, Job::Response(Default::default()), protocol, len);
            rma.remote_id = Some(recv_id);
            let id = match rma_ops.insert_served(peers, a, rma) {
                Ok(id) => id,
                Err(next) => return next,
            };
            let mut old = std::mem::take(&mut rma_ops.old_values);
            old.clear();
            old.resize(len as usize, 0);
            computation.compute(&mut old);
            let held = pending.held_packets.copy(&old);
            rma_ops.old_values = old;
            if let Some(rma) = rma_ops.table.get_mut(id) {
                rma.job = Job::Response(held);
            }
            Next::Ctl(Ctl::AtomRsp(id))
        }
    };
    peers.counters.count_served(a.peer, protocol, len);
    next
}

/// Result of sending a response.
enum Response {
    /// Computed and sent.
    Yes,
    /// Nothing has happened.
    No,
    /// Computed, but the peer failed.
    Lost(PeerError),
}

/// Computes while the packet is written; a wire without room reports that before.
// HOT
// [M9.3]
#[inline]
fn send_response<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    to: PeerId,
    recv_id: u32,
    computation: &Computation<'_>,
) -> Response {
    let len = computation.spans.len();
    let hdr =
        AtomRsp { recv_id, seg_length: len, connid: Some(peers.wires.own_addr(&peers.table[to]).connid) };
    let mut computed = false;
    let posted = peers.post(w, to, PktType::ATOMRSP, AtomRsp::LEN + len as usize, |slot| {
        let at = hdr.write(slot);
        let end = at + len as usize;
        computation.compute(&mut slot[at..end]);
        computed = true;
        end
    });
    match posted {
        Ok(()) => Response::Yes,
        Err(NotPosted::Peer(fault)) if computed => Response::Lost(fault),
        Err(_) => Response::No,
    }
}

/// Sends a queued response.
pub(in crate::rdm) fn push_response<W: Wire>(
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    to: PeerId,
    id: SlotId,
) -> Result<(), NotPosted> {
    let Some(RmaOp { job: Job::Response(old), remote_id, .. }) = rma_ops.table.get(id) else { return Ok(()) };
    let connid = Some(peers.wires.own_addr(&peers.table[to]).connid);
    let hdr = AtomRsp { recv_id: remote_id.unwrap_or(0), seg_length: old.bytes().len() as u64, connid };
    peers.post(w, to, PktType::ATOMRSP, AtomRsp::LEN + old.bytes().len(), |slot| {
        let at = hdr.write(slot);
        let end = at + old.bytes().len();
        slot[at..end].copy_from_slice(old.bytes());
        end
    })?;
    rma_ops.drop_response(pending, id);
    Ok(())
}

/// Handles a response to an atomic of ours.
fn on_response(
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    pending: &mut Pending,
    a: &Arrival<'_>,
    hdr: &AtomRsp,
    payload: &[u8],
) {
    if let Err(why) = finish_fetch(rma_ops, peers, pending, a.peer, hdr, payload) {
        peers.drop_packet(a, why);
    }
}

/// Ends the atomic that these old values belong to.
// HOT
#[inline]
fn finish_fetch(
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    pending: &mut Pending,
    peer: PeerId,
    hdr: &AtomRsp,
    payload: &[u8],
) -> Result<(), DropReason> {
    let id = SlotId::from_raw(hdr.recv_id);
    let rma = match rma_ops.table.get_mut(id) {
        Some(rma) if rma.peer == peer && rma.state == RmaState::AllSent => rma,
        _ => return Err(DropReason::BadId),
    };
    let fits = payload.len() as u64 == rma.len;
    match (&mut rma.result, &mut rma.job) {
        (Some(result), _) if fits => _ = result.put(0, payload),
        (None, Job::Atomic(Atomic { result: Some(result), .. })) if fits => result.put(0, payload),
        (Some(_), _) | (None, Job::Atomic(Atomic { result: Some(_), .. })) => {
            return Err(DropReason::BadSegment);
        }
        _ => return Err(DropReason::BadId),
    }
    rma_ops.finish(peers, pending, id, Ok(()));
    Ok(())
}
