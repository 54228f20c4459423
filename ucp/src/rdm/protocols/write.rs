//! Emulated writes: EAGER_RTW in one packet, LONGCTS_RTW with data as the target grants, and their DC forms,
//! acknowledged by RECEIPT. They are not in order with messages. An EAGER_RTW without pieces is the trigger
//! (RDM v4, wire facts 3.3 and 7.1).

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::flow::window;
use crate::rdm::ids::WireId;
use crate::rdm::ids::{PeerId, Source};
use crate::rdm::io::{NotPosted, Wire};
use crate::rdm::next::Next;
use crate::rdm::op::rma_op::{Ack, Job, RmaOp, RmaState};
use crate::rdm::op::rma_ops::CompactRmaOp;
use crate::rdm::peers::Peers;
use crate::rdm::peers::peer::Ctl;
use crate::rdm::peers::refused_ops::refuse_flush;
use crate::rdm::peers::state::PeerFlags;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{Arrival, HandlerKind, PacketHandler, SendProgress};
use crate::rdm::rma::RmaOps;
use crate::rdm::rma::args::{PutArgs, RmaProtocol};
use crate::rdm::rma::mem::Access;
use crate::rdm::status::OpError;
use crate::wire::rtw::{Eager, LongCts, Rtw, RtwBody, Short};
use crate::wire::{Delivery, Features, Packet, PktType, header_len};

pub(in crate::rdm) const HANDLERS: [PacketHandler; 4] = [
    handler(PktType::EAGER_RTW),
    handler(PktType::DC_EAGER_RTW),
    handler(PktType::LONGCTS_RTW),
    handler(PktType::DC_LONGCTS_RTW),
];

const fn handler(ty: PktType) -> PacketHandler {
    PacketHandler { ty, kind: HandlerKind::Write, id_use: None }
}

/// Writes in one packet without acknowledgement. `None`: it does not fit.
// HOT
#[inline]
pub(in crate::rdm) fn start<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    to: PeerId,
    p: &PutArgs,
) -> Option<Result<(), NotPosted>> {
    let (opts, len) = (peers.wires.req_opts(&peers.table[to], p.cq_data), p.local.len());
    let hdr = Eager { rma_iov: p.remote, receipt: None, opts };
    let posted = post_eager(peers, w, to, &hdr, len as u64, |slot| p.local.copy_to(0, slot))?;
    if posted.is_ok() {
        peers.table[to].state.insert(PeerFlags::UNACKED);
        peers.counters.count_initiated(to, RmaProtocol::EagerWrite, len as u64);
    }
    Some(posted)
}

/// Posts a write of `len` bytes as one packet. `None`: it does not fit one.
// [M8.2]
#[inline]
fn post_eager<W: Wire>(
    peers: &mut Peers,
    w: &mut W,
    to: PeerId,
    hdr: &Eager,
    len: u64,
    copy: impl FnOnce(&mut [u8]) -> usize,
) -> Option<Result<(), NotPosted>> {
    let ty = if hdr.receipt.is_some() { PktType::DC_EAGER_RTW } else { PktType::EAGER_RTW };
    let max = (header_len(ty, hdr.rma_iov.count(), &hdr.opts) as u64).saturating_add(len);
    if max > w.mtu(to) as u64 {
        return None;
    }
    let posted = peers.post(w, to, ty, max as usize, |slot| {
        let at = hdr.write(slot);
        at + copy(&mut slot[at..])
    });
    Some(posted)
}

/// Fast path: writes one piece in one acknowledged packet to a known peer with nothing queued. `None`: not
/// possible, and nothing has happened.
// HOT
// [M3.7] [M8.9]
#[inline]
pub(in crate::rdm) fn start_short<W: Wire>(
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    w: &mut W,
    to: PeerId,
    p: &PutArgs,
    ack: Ack,
) -> Option<SlotId> {
    let &[iov] = p.remote.as_slice() else { return None };
    let connid = peers.fast_path_connid(to)?;
    let able = peers.table[to].features.contains(Features::DELIVERY_COMPLETE);
    if p.protocol != RmaProtocol::EagerWrite || p.cq_data.is_some() || !able {
        return None;
    }
    let hdr = Short { send_id: 0, iov, connid };
    let max = Short::wire_len() + p.local.len();
    if max > w.mtu(to) {
        return None;
    }
    let rma = CompactRmaOp { peer: to, user: p.user, protocol: RmaProtocol::EagerWrite, ack, len: iov.len };
    rma_ops.send_short(peers, w, (PktType::DC_EAGER_RTW, max), rma, |send_id, slot| {
        let at = Short { send_id, ..hdr }.write(slot);
        at + p.local.copy_to(0, &mut slot[at..])
    })
}

/// Fast path: takes a short write to writable memory. False: it is another packet, and nothing has happened.
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
    if !e.ops.rma_ops.regions.put(e.peers.wires[wire].domain, &hdr.iov, payload) {
        return false;
    }
    e.peers.counters.count_fast_path(peer, PktType::DC_EAGER_RTW);
    let next = e.ops.rma_ops.finish_served_write(
        &mut e.peers,
        &mut e.pending,
        peer,
        RmaProtocol::EagerWrite,
        hdr.iov.len,
        (None, Some(hdr.send_id)),
    );
    e.follow(w, peer, next);
    true
}

/// Sends the first or only packet of the write at the head of its peer's queue.
pub(in crate::rdm) fn push<W: Wire>(
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    id: SlotId,
) -> SendProgress {
    let Some(rma) = rma_ops.table.get(id) else { return SendProgress::Done };
    let to = rma.peer;
    let opts = peers.wires.req_opts(&peers.table[to], rma.cq_data);
    let acked = rma.ack != Ack::No;
    if rma.protocol == RmaProtocol::EagerWrite {
        let hdr = Eager { rma_iov: rma.remote, receipt: acked.then_some(id.raw()), opts };
        match post_eager(peers, w, to, &hdr, rma.len, |slot| rma.copy_to(0, slot)) {
            None => {}
            Some(Err(refused)) => return refused.into(),
            Some(Ok(())) => {
                rma_ops.all_sent(peers, pending, id);
                return SendProgress::Done;
            }
        }
    }
    let mtu = w.mtu(to);
    let (long, delivery) = match acked {
        true => (PktType::DC_LONGCTS_RTW, Delivery::Complete),
        false => (PktType::LONGCTS_RTW, Delivery::Plain),
    };
    let header = header_len(long, rma.remote.count(), &opts);
    let capacity = mtu.saturating_sub(header);
    if rma.len <= capacity as u64 {
        // The first packet must not be the whole write: it fits an eager one.
        return switch_protocol(rma_ops, id, RmaProtocol::EagerWrite);
    }
    if window::data_per_packet(mtu) == 0 {
        return SendProgress::Fail(OpError::Unsupported);
    }
    let hdr = LongCts {
        rma_iov: rma.remote,
        delivery,
        msg_length: rma.len,
        send_id: id.raw(),
        credit_request: peers.cfg.cts_credits,
        opts,
    };
    let posted = peers.post(w, to, long, header + capacity, |slot| {
        let at = hdr.write(slot);
        at + rma.copy_to(0, &mut slot[at..at + capacity])
    });
    if let Err(refused) = posted {
        return refused.into();
    }
    if let Some(rma) = rma_ops.table.get_mut(id) {
        rma.protocol = RmaProtocol::LongCtsWrite;
        rma.sent = capacity as u64;
        rma.state = RmaState::Moving;
    }
    SendProgress::Done
}

/// Continues by another protocol.
fn switch_protocol(rma_ops: &mut RmaOps, id: SlotId, protocol: RmaProtocol) -> SendProgress {
    match rma_ops.table.get_mut(id) {
        Some(rma) if rma.protocol != protocol => {
            rma.protocol = protocol;
            SendProgress::Sent
        }
        _ => SendProgress::Fail(OpError::Unsupported),
    }
}

/// Serves a write of a peer.
// HOT
#[inline]
pub(in crate::rdm) fn on_recv(
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    pending: &mut Pending,
    a: &Arrival<'_>,
) -> Next {
    let Packet::Rtw(rtw) = a.packet else { return Next::Nothing };
    // [M3.9]
    if rtw.is_trigger() {
        peers.counters.stats.rare.triggered += 1;
        return peers.on_trigger(a.peer, &rtw.opts);
    }
    if let (true, Some(send_id)) = (rtw.is_flush(), rtw.receipt)
        && peers.table[a.peer].state.has(PeerFlags::UNREPORTED_REFUSAL)
        && let Some(next) = refuse_flush(peers, a.peer, send_id)
    {
        return next;
    }
    let spans = match rma_ops.resolve(peers, a, &rtw.rma_iov, Access::WRITE) {
        Ok(spans) => spans,
        Err(next) => return next,
    };
    let cq_data = rtw.opts.cq_data;
    match rtw.body {
        RtwBody::Eager => {
            spans.put(0, rtw.payload);
            rma_ops.regions.count(&spans, false);
            rma_ops.finish_served_write(
                peers,
                pending,
                a.peer,
                RmaProtocol::EagerWrite,
                spans.len(),
                (cq_data, rtw.receipt),
            )
        }
        RtwBody::LongCts { send_id, .. } => {
            spans.put(0, rtw.payload);
            if rtw.payload.len() as u64 == spans.len() {
                rma_ops.regions.count(&spans, false);
                return rma_ops.finish_served_write(
                    peers,
                    pending,
                    a.peer,
                    RmaProtocol::LongCtsWrite,
                    spans.len(),
                    (cq_data, rtw.receipt),
                );
            }
            // [M8.3]
            let rma = RmaOp::new(a.peer, Job::Store(spans.clone()), RmaProtocol::LongCtsWrite, spans.len());
            begin(rma_ops, peers, a, rtw, rma, send_id)
        }
        // A protocol of `write_read`.
        RtwBody::LongRead { .. } => Next::Nothing,
    }
}

/// Begins a write whose data follow as we grant.
fn begin(
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    a: &Arrival<'_>,
    rtw: &Rtw<'_>,
    mut rma: RmaOp,
    send_id: u32,
) -> Next {
    rma.state = RmaState::Moving;
    rma.remote_id = Some(send_id);
    rma.cq_data = rtw.opts.cq_data;
    rma.ack = if rtw.receipt.is_some() { Ack::Wanted } else { Ack::No };
    rma.received.add(0, rtw.payload.len() as u64);
    match rma_ops.insert_served(peers, a, rma) {
        Ok(id) => Next::Ctl(Ctl::Cts(id)),
        Err(next) => next,
    }
}
