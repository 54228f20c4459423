//! Fast path of one-sided operations: writes and fetching atomics in one packet, and their responses, of
//! known peers. Everything else takes the general path, untouched.

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::features::ReqHdr;
use crate::rdm::ids::WireId;
use crate::rdm::ids::{PeerId, Source, TxToken};
use crate::rdm::io::Wire;
use crate::rdm::op::rma_ops::CompactRmaOp;
use crate::rdm::peers::Peers;
use crate::rdm::protocols::{atomic, receipt, write};
use crate::rdm::rma::RmaOps;
use crate::rdm::rma::ops;
use crate::rdm::stats::Counters;
use crate::rdm::types::Emulation;
use crate::wire::{PktType, peek_type};

impl RmaOps {
    /// Starts an operation with its only packet, of at most `max` bytes, which `fill` writes. `None`: no
    /// room, and nothing has happened.
    // HOT
    #[inline]
    pub(in crate::rdm) fn send_short<W: Wire>(
        &mut self,
        peers: &mut Peers,
        w: &mut W,
        (ty, max): (PktType, usize),
        rma: CompactRmaOp,
        fill: impl FnOnce(u32, &mut [u8]) -> usize,
    ) -> Option<SlotId> {
        let (to, protocol, len) = (rma.peer, rma.protocol, rma.len);
        let id = self.table.insert_compact(rma)?;
        if w.send(to.into(), max, TxToken::Packet, |slot| fill(id.raw(), slot)).is_err() {
            self.table.discard(id);
            return None;
        }
        let peer = &mut peers.table[to];
        peer.outstanding += 1;
        peer.queue_mut().open_rma += 1;
        peers.counters.stats.tx_pkts[usize::from(ty.0)] += 1;
        peers.counters.stats.count_rma(protocol, len);
        let of_peer = peers.counters.by_peer.of(to);
        (of_peer.tx_pkts, of_peer.tx_bytes) = (of_peer.tx_pkts + 1, of_peer.tx_bytes + len);
        Some(id)
    }
}

impl Peers {
    /// Returns the connid for a request that may be sent at once: the peer is known, has not failed, and
    /// nothing is queued to it.
    // HOT
    #[inline]
    pub(in crate::rdm) fn fast_path_connid(&self, to: PeerId) -> Option<u32> {
        let peer = self.table.get(to)?;
        match peer.hdr() {
            _ if !peer.state.is_ready_for_rma() || self.cfg.emulation == Emulation::Refused => None,
            ReqHdr::Connid => Some(peer.own_connid),
            ReqHdr::RawAddr | ReqHdr::Bare => None,
        }
    }

    /// Resolves the sender of a packet with this connid, if it has been seen and has not failed.
    // HOT
    #[inline]
    pub(in crate::rdm) fn fast_path_sender(
        &mut self,
        wire: WireId,
        from: Source,
        connid: Option<u32>,
    ) -> Option<PeerId> {
        let lane = self.lookup.current(wire, from)?;
        let (id, peer) = self.table.by_first_lane(lane)?;
        (peer.state.takes_request() && connid.is_none_or(|connid| connid == peer.addr.connid)).then_some(id)
    }
}

impl Counters {
    /// Counts a packet of a peer.
    // HOT
    #[inline]
    pub(in crate::rdm) fn count_fast_path(&mut self, peer: PeerId, ty: PktType) {
        self.stats.rx_pkts[usize::from(ty.0)] += 1;
        self.by_peer.of(peer).rx_pkts += 1;
    }
}

/// Handles such a packet. False: it is another one, and nothing has happened.
// HOT
// [M10.6]
#[inline(never)]
pub(in crate::rdm) fn recv_short_rma<W: Wire>(
    e: &mut Engine,
    w: &mut W,
    wire: WireId,
    from: Source,
    packet: &[u8],
) -> bool {
    match peek_type(packet) {
        Some(PktType::DC_EAGER_RTW) => {
            ops::in_memory(e, w, |e, w| write::recv_short(e, w, wire, from, packet))
        }
        Some(PktType::RECEIPT) => {
            receipt::recv_short(&mut e.ops.rma_ops, &mut e.peers, &mut e.pending, wire, from, packet)
        }
        Some(PktType::FETCH_RTA) => ops::in_memory(e, w, |e, w| atomic::recv_short(e, w, wire, from, packet)),
        Some(PktType::ATOMRSP) => {
            atomic::recv_short_response(&mut e.ops.rma_ops, &mut e.peers, &mut e.pending, wire, from, packet)
        }
        _ => false,
    }
}
