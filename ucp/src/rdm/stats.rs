//! Counters of one engine: packets by type, messages and bytes by protocol, and rare events. Never reset:
//! take a copy and subtract.

use crate::rdm::ids::PeerId;
use crate::rdm::protocol::Protocol;
use crate::rdm::rma::args::RmaProtocol;
use crate::rdm::trace::{DropReason, TraceEvents};

ucs::counters! {
    /// Rare events.
    pub struct Rare {
        /// Packets that did not parse.
        malformed,
        /// Packets of a type no protocol handles.
        unsupported,
        /// Packets from an unknown sender, without a raw address.
        unknown_sender,
        /// Packets from an unknown sender, with a raw address that is not their source's.
        wrong_address,
        /// Packets whose sender cannot be connected to.
        no_path,
        /// Messages seen already.
        duplicate,
        /// Segments that repeat bytes or disagree with their message.
        bad_segment,
        /// Control packets and data for no operation of their sender.
        bad_id,
        /// Data beyond the window granted.
        bad_window,
        /// Messages dropped, as the table of unexpected messages was full.
        no_room,
        /// Requests that name memory they may not access, or operands that do not fit.
        bad_access,
        /// Packets of failed peers that would need an answer.
        peer_failed,
        /// Packets kept in a reorder window.
        out_of_order,
        /// Unexpected messages.
        unexpected,
        /// Unexpected messages that arrived over the memory limit.
        over_limit,
        /// Times that polling stopped, as unexpected messages were over `UCX_UNEXP_MEM`.
        poll_stops,
        /// Receives shorter than their message (truncated).
        truncated,
        /// Times the wire had no room.
        full,
        /// Packets handed back, as the receiver was not ready (RNR).
        not_ready,
        /// Packets sent again after RNR.
        sent_again,
        /// Messages in packets that were forwarded to user receives (zero-copy receive mode).
        forwarded,
        /// Messages to this worker itself that were copied straight into a posted receive; counted here only.
        passed_to_self,
        /// RDMA reads posted.
        reads,
        /// RDMA reads that the device ended with an error.
        read_errors,
        /// Transfers over several rails.
        striped,
        /// Pieces of transfers posted to rails.
        pieces,
        /// CTSDATA packets sent over a further lane.
        ctsdata_striped,
        /// Pieces that failed on one rail and went over another.
        rails_lost,
        /// Peers that failed over to another pair of NICs.
        failovers,
        /// Packets sent again after a failover.
        resent_after_failover,
        /// Operations that ended with a lane and may have taken effect.
        outcome_unknown,
        /// READ_NACKs sent: messages that we could not read.
        nacks_sent,
        /// READ_NACKs sent by choice, as packets were faster.
        nacks_by_choice,
        /// READ_NACKs received: messages of ours that were sent after all.
        nacks_received,
        /// PEER_ERRORs sent.
        errors_sent,
        /// PEER_ERRORs received that named an operation or a message.
        errors_received,
        /// HANDSHAKEs not delivered, to peers that got nothing else.
        handshakes_lost,
        /// Triggers (empty EAGER_RTW) sent.
        triggers,
        /// Triggers received.
        triggered,
        /// Peers that introduced themselves.
        peers_found,
        /// Peers whose queue pair number went to another.
        peers_displaced,
        /// Peers that failed.
        peers_failed,
        /// Peers removed that had introduced themselves, and of which nobody was there.
        unknown_peers_removed,
    }
}

/// Messages and bytes of one protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Messages.
    pub msgs: u64,
    /// Bytes of application data.
    pub bytes: u64,
}

/// Traffic with one peer. Bytes are of messages and one-sided operations, without headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerStats {
    /// Packets sent.
    pub tx_pkts: u64,
    /// Packets received.
    pub rx_pkts: u64,
    /// Bytes of messages sent, of puts and atomics, and of what it read.
    pub tx_bytes: u64,
    /// Bytes of messages received, of what was read from it, and of its puts and atomics.
    pub rx_bytes: u64,
}

/// Counters by peer, in blocks allocated when one of their peers is first counted: a quiet peer costs
/// nothing.
#[derive(Debug, Default)]
pub(super) struct CountersByPeer(Vec<Option<Box<[PeerStats; CountersByPeer::BLOCK]>>>);

impl CountersByPeer {
    const BLOCK: usize = 16;

    /// Returns a peer's counters for update.
    // HOT
    #[inline]
    pub(super) fn of(&mut self, peer: PeerId) -> &mut PeerStats {
        let (block, at) = (peer.0 as usize / Self::BLOCK, peer.0 as usize % Self::BLOCK);
        match self.0.get_mut(block) {
            Some(Some(_)) => {}
            _ => self.allocate(block),
        }
        let block = self.0[block].as_mut().expect("just allocated");
        &mut block[at]
    }

    #[cold]
    fn allocate(&mut self, block: usize) {
        if self.0.len() <= block {
            self.0.resize_with(block + 1, || None);
        }
        self.0[block] = Some(Box::default());
    }

    /// Returns a peer's counters; zeros if nothing was counted.
    pub(super) fn get(&self, peer: PeerId) -> PeerStats {
        let block = self.0.get(peer.0 as usize / Self::BLOCK).and_then(Option::as_ref);
        block.map_or_else(PeerStats::default, |block| block[peer.0 as usize % Self::BLOCK])
    }

    /// Counts a one-sided operation of ours.
    // HOT
    #[inline]
    pub(super) fn initiated(&mut self, peer: PeerId, protocol: RmaProtocol, len: u64) {
        match protocol {
            RmaProtocol::DirectRead | RmaProtocol::ShortRead | RmaProtocol::LongCtsRead => {
                self.of(peer).rx_bytes += len
            }
            _ => self.of(peer).tx_bytes += len,
        }
    }

    /// Counts a one-sided operation of a peer.
    // HOT
    #[inline]
    pub(super) fn served(&mut self, peer: PeerId, protocol: RmaProtocol, len: u64) {
        match protocol {
            RmaProtocol::DirectRead | RmaProtocol::ShortRead | RmaProtocol::LongCtsRead => {
                self.of(peer).tx_bytes += len
            }
            _ => self.of(peer).rx_bytes += len,
        }
    }

    /// Resets the counters of a slot that goes to another peer.
    pub(super) fn forget(&mut self, peer: PeerId) {
        if self.get(peer) != PeerStats::default() {
            *self.of(peer) = PeerStats::default();
        }
    }
}

/// The counters of an engine, those of each peer, and the trace events.
#[derive(Debug, Default)]
pub(in crate::rdm) struct Counters {
    /// Counters of the engine, without the short ones of its peers.
    pub stats: RdmStats,
    /// Counters by peer, without the short ones.
    pub by_peer: CountersByPeer,
    pub trace: TraceEvents,
}

impl Counters {
    /// Counts a message sent to `to`.
    // HOT
    #[inline]
    pub fn count_sent(&mut self, to: PeerId, protocol: Protocol, len: usize) {
        self.stats.count_sent(protocol, len);
        self.by_peer.of(to).tx_bytes += len as u64;
    }

    /// Counts a one-sided operation of ours at `peer`.
    // HOT
    #[inline]
    pub fn count_initiated(&mut self, peer: PeerId, protocol: RmaProtocol, len: u64) {
        self.stats.count_rma(protocol, len);
        self.by_peer.initiated(peer, protocol, len);
    }

    /// Counts a one-sided operation of `peer` that was served.
    // HOT
    #[inline]
    pub fn count_served(&mut self, peer: PeerId, protocol: RmaProtocol, len: u64) {
        self.stats.count_served(protocol, len);
        self.by_peer.served(peer, protocol, len);
    }
}

/// All counters of one engine.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RdmStats {
    /// Packets received, by type byte.
    pub rx_pkts: [u64; 256],
    /// Packets sent, by type byte.
    pub tx_pkts: [u64; 256],
    /// Messages sent, by [`Protocol`] (in order of [`Protocol::ALL`]).
    pub sent: [Traffic; 9],
    /// Messages received, by [`Protocol`] (in order of [`Protocol::ALL`]).
    pub received: [Traffic; 9],
    /// One-sided operations of ours, by [`RmaProtocol`] (in order of [`RmaProtocol::ALL`]).
    pub initiated: [Traffic; 10],
    /// One-sided operations served for peers by packets, by [`RmaProtocol`] (in order of
    /// [`RmaProtocol::ALL`]).
    pub served: [Traffic; 10],
    /// The rest.
    pub rare: Rare,
}

impl Default for RdmStats {
    fn default() -> Self {
        RdmStats {
            rx_pkts: [0; 256],
            tx_pkts: [0; 256],
            sent: [Traffic::default(); 9],
            received: [Traffic::default(); 9],
            initiated: [Traffic::default(); 10],
            served: [Traffic::default(); 10],
            rare: Rare::default(),
        }
    }
}

impl RdmStats {
    /// Returns the traffic sent by `protocol`.
    pub fn sent(&self, protocol: Protocol) -> Traffic {
        self.sent[protocol as usize]
    }

    /// Returns the traffic received by `protocol`.
    pub fn received(&self, protocol: Protocol) -> Traffic {
        self.received[protocol as usize]
    }

    /// Returns our one-sided operations by `protocol`.
    pub fn initiated(&self, protocol: RmaProtocol) -> Traffic {
        self.initiated[protocol as usize]
    }

    /// Returns the one-sided operations served for peers by `protocol`.
    pub fn served(&self, protocol: RmaProtocol) -> Traffic {
        self.served[protocol as usize]
    }

    /// Counts a one-sided operation of ours.
    // HOT
    #[inline]
    pub(super) fn count_rma(&mut self, protocol: RmaProtocol, bytes: u64) {
        let traffic = &mut self.initiated[protocol as usize];
        traffic.msgs += 1;
        traffic.bytes += bytes;
    }

    /// Counts a one-sided operation of a peer.
    // HOT
    #[inline]
    pub(super) fn count_served(&mut self, protocol: RmaProtocol, bytes: u64) {
        let traffic = &mut self.served[protocol as usize];
        traffic.msgs += 1;
        traffic.bytes += bytes;
    }

    /// Returns the number of packets dropped for `why`.
    pub fn dropped(&self, why: DropReason) -> u64 {
        let mut copy = self.rare;
        *counter(&mut copy, why)
    }

    /// Counts a message sent.
    // HOT
    #[inline]
    pub(super) fn count_sent(&mut self, protocol: Protocol, bytes: usize) {
        let traffic = &mut self.sent[protocol as usize];
        traffic.msgs += 1;
        traffic.bytes += bytes as u64;
    }

    /// Counts a message received.
    // HOT
    #[inline]
    pub(super) fn count_received(&mut self, protocol: Protocol, bytes: usize) {
        let traffic = &mut self.received[protocol as usize];
        traffic.msgs += 1;
        traffic.bytes += bytes as u64;
    }

    /// Counts a packet dropped.
    #[cold]
    pub(super) fn count_drop(&mut self, why: DropReason) {
        *counter(&mut self.rare, why) += 1;
    }
}

fn counter(rare: &mut Rare, why: DropReason) -> &mut u64 {
    match why {
        DropReason::Malformed => &mut rare.malformed,
        DropReason::Unsupported => &mut rare.unsupported,
        DropReason::UnknownSender => &mut rare.unknown_sender,
        DropReason::WrongAddress => &mut rare.wrong_address,
        DropReason::NoPath => &mut rare.no_path,
        DropReason::Duplicate => &mut rare.duplicate,
        DropReason::BadSegment => &mut rare.bad_segment,
        DropReason::BadId => &mut rare.bad_id,
        DropReason::BadWindow => &mut rare.bad_window,
        DropReason::NoRoom => &mut rare.no_room,
        DropReason::BadAccess => &mut rare.bad_access,
        DropReason::PeerFailed => &mut rare.peer_failed,
    }
}
