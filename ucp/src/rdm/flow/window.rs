//! Windows of long-CTS, for messages, writes and reads: the bytes that a CTS grants and a CTSDATA carries
//! (RDM v4, wire facts 5.5). One grant at a time per message; the next follows when it is used up exactly.

use ucs::coll::slots::SlotId;

use crate::rdm::features::ReqHdr;
use crate::rdm::ids::{LaneId, PeerId, TxToken, is_rma_id};
use crate::rdm::io::{NotPosted, Posted, Wire};
use crate::rdm::op::received_ranges::ReceivedRanges;
use crate::rdm::op::rma_op::Job;
use crate::rdm::peers::Peers;
use crate::rdm::peers::lanes;
use crate::rdm::recv::Recvs;
use crate::rdm::rma::RmaOps;
use crate::rdm::trace::DropReason;
use crate::rdm::types::Grant;
use crate::wire::PktType;
use crate::wire::ctl::{Cts, CtsData, CtsFor};

/// Payload of a CTSDATA: room for the connid header is left in any case, as in libfabric.
#[inline]
pub(in crate::rdm) const fn data_per_packet(mtu: usize) -> usize {
    mtu.saturating_sub(CtsData::header_len(Some(0)))
}

/// Packets of a granted message sent before the next one: the quantum of their round robin.
const QUANTUM: usize = 32;

/// True if the quantum of a granted message is used up.
pub(in crate::rdm) const fn ends_quantum(sent: usize, mtu: usize) -> bool {
    match data_per_packet(mtu) {
        0 => true,
        per_packet => (sent / per_packet).is_multiple_of(QUANTUM),
    }
}

/// Bytes to grant to `to` when `missing` are outstanding.
pub(in crate::rdm) fn grant<W: Wire>(peers: &Peers, w: &W, to: PeerId, missing: u64) -> u64 {
    let credits = u64::from(peers.cfg.cts_credits.max(1));
    match peers.wires[peers.table[to].wire].grant {
        Grant::Window => missing.min(credits * data_per_packet(w.mtu(to)).max(1) as u64),
        Grant::Whole => missing,
    }
}

/// Sends the CTS of receive, write or read `id`; nothing if it is gone.
pub(in crate::rdm) fn push_cts<W: Wire>(
    recvs: &mut Recvs,
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    w: &mut W,
    to: PeerId,
    id: SlotId,
) -> Result<(), NotPosted> {
    let fields = if is_rma_id(id) { rma_cts(rma_ops, to, id) } else { rx_cts(recvs, to, id) };
    let Some((send_id, missing, of)) = fields else { return Ok(()) };
    let grant = grant(peers, w, to, missing);
    let connid = Some(peers.wires.own_addr(&peers.table[to]).connid);
    let hdr = Cts { of, send_id, recv_id: id.raw(), recv_length: grant, connid };
    peers.post(w, to, PktType::CTS, Cts::LEN, |slot| hdr.write(slot))?;
    if let Some(rma) = rma_ops.table.get_mut(id) {
        rma.window = grant;
    } else if let Some((_, rxe)) = recvs.rxe(id) {
        rxe.window = grant;
    }
    Ok(())
}

/// Returns the fields of a CTS for a message whose window is used up.
fn rx_cts(recvs: &mut Recvs, to: PeerId, id: SlotId) -> Option<(u32, u64, CtsFor)> {
    let (_, rxe) = recvs.rxe(id)?;
    let envelope = &rxe.envelope;
    let fields = (envelope.send_id, envelope.len - rxe.received.bytes(), CtsFor::Send);
    (envelope.from == to && rxe.window == 0).then_some(fields)
}

/// Returns the fields of a CTS for a write to us, or for a read of ours.
fn rma_cts(rma_ops: &RmaOps, to: PeerId, id: SlotId) -> Option<(u32, u64, CtsFor)> {
    let rma = rma_ops.table.get(id).filter(|rma| rma.peer == to && rma.window == 0)?;
    let of = match rma.job {
        Job::Store(_) => CtsFor::Send,
        // [M8.6]
        Job::Get(_) => CtsFor::Read,
        _ => return None,
    };
    Some((rma.remote_id?, rma.len - rma.received.bytes(), of))
}

/// Header fields of a CTSDATA.
#[derive(Clone, Copy)]
pub(in crate::rdm) struct Segment {
    pub to: LaneId,
    /// The receiver's id, from its CTS.
    pub recv_id: u32,
    /// Offset in the message.
    pub at: u64,
    pub len: usize,
}

impl Segment {
    /// Sends it: `fill` copies the bytes. Returns the wire's result, for `Peers::posted`.
    // HOT
    #[inline]
    pub fn send<W: Wire>(
        self,
        w: &mut W,
        connid: Option<u32>,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<Posted, NotPosted> {
        let Segment { to, recv_id, at, len } = self;
        let hdr = CtsData { recv_id, seg_length: len as u64, seg_offset: at, connid };
        w.send(to, CtsData::header_len(connid) + len, TxToken::Packet, |slot| {
            let at = hdr.write(slot);
            at + fill(&mut slot[at..at + len])
        })
    }
}

/// Returns our connid for CTSDATA on a lane, if the peer asks for it.
#[inline]
pub(in crate::rdm) fn data_connid(peers: &Peers, on: LaneId) -> Option<u32> {
    let connid = lanes::own_addr(peers, on)?.connid;
    (peers.table.lane(on)?.hdr() == ReqHdr::Connid).then_some(connid)
}

/// Checks that `len` bytes at `at` of `total` lie in the window and none of them is a duplicate, and notes
/// them. After a failover (`moved`) a grant may have been sent twice: then the window is no bound.
// HOT
#[inline]
pub(in crate::rdm) fn admit(
    received: &mut ReceivedRanges,
    window: &mut u64,
    total: u64,
    at: u64,
    len: u64,
    moved: bool,
) -> Result<(), DropReason> {
    let outside = len > *window && !moved;
    if at.checked_add(len).is_none_or(|end| end > total) || outside && !received.touches(at, len) {
        return Err(DropReason::BadWindow);
    }
    // A duplicate from a failed lane may arrive after the window is used up.
    if outside || !received.add(at, len) {
        return Err(DropReason::BadSegment);
    }
    *window = window.saturating_sub(len);
    Ok(())
}
