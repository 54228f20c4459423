//! The engine: EFA RDM v4 without I/O. It takes packets and requests for operations, sends through
//! [`io::Wire`], and hands out [`EngineEvent`]s. It uses no socket, clock, thread, log or transport, and
//! builds without `uct`.
//!
//! Order of calls: add the wires ([`Engine::wires_mut`]), then anything. A call returns what it completes
//! itself; everything else comes from [`Pending::take_event`]. Call `resume` whenever the wires may have room
//! again.
//!
//! The state has owners, whose methods take the other parts that they need:
//!
//! | Owner | Part of the state |
//! |---|---|
//! | [`Pending`] | work that waits, events, kept packet bytes |
//! | [`Peers`] | peers, our wires, counters |
//! | `Operations` | the operations in progress, by their owners: |
//! | · `Recvs` | receives, matching, unexpected messages, multi-receives |
//! | · `Sends` | sends that are not complete |
//! | · `RmaOps` | one-sided operations, and the memory that peers may access |
//! | · `Reads` | reads of peers' memory |
//!
//! | Step of a packet | Where |
//! |---|---|
//! | parse | `wire::parse` |
//! | resolve the sender | `peers` |
//! | queue our HANDSHAKE on a peer's first packet | `protocols::handshake` |
//! | find the handler of its type | `handlers` |
//! | keep the order of messages | `recv::reorder` |
//! | handle it | `protocols` |
//! | match a receive | `recv` |
//! | send again when the receiver was not ready | `flow::backoff` |
//! | read a peer's memory | `protocols::longread` |
//! | grant and send long data, also over several lanes | `flow::window`, `rails` |
//! | go on over another lane after a NIC was lost | `rails::failover` |
//! | resolve memory that a request names | `rma::mem` |

mod dispatch;
mod flow;
mod handlers;
mod ids;
mod next;
mod op;
mod operations;
mod peers;
mod pending;
mod protocols;
mod rails;
mod send;
mod snapshot;
mod status;

pub mod amo;
pub mod features;
pub mod io;
pub mod protocol;
pub mod recv;
pub mod rma;
pub mod stats;
pub mod trace;
pub mod types;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use ucs::time::Nanos;

use crate::rdm::stats::Counters;
use crate::wire::{self, Features, MsgClass, ParseError, PktType};
use io::{Rdma, Wire};
use next::Next;
use operations::Operations;
use peers::state::PeerFlags;
use peers::{conversation, identify};
use protocol::{Arrival, HandlerKind};
use protocols::zcopy_recv::ZcopyRecv;
use protocols::{close, handshake, peer_error};
use rails::announce;
use rails::rail_set;
use recv::sequence::{MsgIdUse, MsgOrder, msg_order};
use rma::fast_path;
use rma::ops;
use trace::{DropReason, TraceEvent};

pub use flow::backoff::Returns;
pub use flow::retry::RetryPolicy;
pub use ids::*;
pub use op::{
    ContigBuf, Gather, GenericData, GenericOps, PACK_PANICKED, Payload, Piece, RecvBuf, RecvList, Scatter,
    SendBuf, UNPACK_PANICKED, in_callback,
};
pub use peers::Peers;
pub use peers::conversation::Conversation;
pub use peers::counters::served;
pub use peers::end_ops_where::{EndedSend, end_ops_where};
pub use peers::peer::FailedLane;
pub use peers::unknown_peers::{has_unknown_peers, mark_connected, remove_unknown_peers};
pub use peers::wires::Wires;
pub use peers::workers::is_same_worker;
pub use pending::Pending;
pub use protocol::{DeliveryComplete, Kind, Protocol};
#[cfg(feature = "lanes")]
pub(crate) use protocols::atomic::max_atomic;
pub use protocols::note::{Note, send_note};
pub use protocols::peer_error::notify_lost_peers;
pub use protocols::zcopy_recv::UserRecvEnd;
pub use rails::rail_plan::{MAX_RAILS, rails_for};
pub use rails::rail_set::LaneRank;
pub use recv::discard_queue::Discard;
pub use recv::discards::discard;
pub use recv::external_bytes::close_over_limit;
pub use recv::receives::Receives;
use recv::streams::break_streams;
pub use recv::streams::{ConnectionStreams, WORKER_STREAM, stream_error};
pub use rma::mem::{Access, MemKey, Region};
pub use rma::mem_table::MemTable;
pub use rma::own_memory::{OwnAtomic, OwnMemory};
#[cfg(feature = "lanes")]
pub(crate) use rma::published::{Header, PublishedRegions};
pub use rma::region_counts::RegionCounts;
pub use rma::{AtomicArgs, GetArgs, PutArgs, RailKeys, RmaProtocol};
pub use send::cancel::Cancel;
pub use snapshot::EngineSnapshot;
pub use stats::{PeerStats, RdmStats};
pub use status::*;
pub use trace::TraceEvents;
pub use types::*;

/// The protocol state of one worker: its owners, each with a part of the state, and the dispatch between
/// them.
///
/// Field order in memory: first what every poll reads, then what every short message reads, then the rest. A
/// program that serves many workers in turn has few cache lines of each.
#[repr(C)]
pub struct Engine {
    pending: Pending,
    /// State of zero-copy receive mode.
    zcopy_recv: Option<Box<ZcopyRecv>>,
    peers: Peers,
    ops: Operations,
}

impl Engine {
    /// Makes an engine without wires and peers, with a memory table of its own.
    pub fn new(cfg: EngineConfig) -> Engine {
        Engine::with_memory(cfg, Arc::new(MemTable::new(cfg.nonce)))
    }

    /// Makes an engine without wires and peers, which serves the memory of this table.
    pub fn with_memory(cfg: EngineConfig, memory: Arc<MemTable>) -> Engine {
        Engine {
            pending: Pending::new(&cfg),
            zcopy_recv: None,
            peers: Peers::new(cfg),
            ops: Operations::new(memory),
        }
    }

    /// Returns the work that waits: what every poll asks.
    #[inline(always)]
    pub fn pending(&self) -> &Pending {
        &self.pending
    }

    /// Returns the work that waits, to take events from it.
    #[inline(always)]
    pub fn pending_mut(&mut self) -> &mut Pending {
        &mut self.pending
    }

    /// Returns the wires, to add one or to set what one can do.
    pub fn wires_mut(&mut self) -> &mut Wires {
        &mut self.peers.wires
    }

    /// Returns the peers.
    #[inline]
    pub fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Returns the peers, to add one or to note something about one.
    #[inline]
    pub fn peers_mut(&mut self) -> &mut Peers {
        &mut self.peers
    }

    /// Handles a packet that has arrived on `wire`. Malformed packets are counted and dropped.
    // HOT
    // [M10.6]
    #[inline(always)]
    pub fn on_packet<W: Wire>(&mut self, w: &mut W, _now: Nanos, wire: WireId, from: Source, packet: &[u8]) {
        if !self.receives().recv_short(w, wire, from, packet)
            && !fast_path::recv_short_rma(self, w, wire, from, packet)
        {
            on_packet_general(self, w, wire, from, packet);
        }
    }

    /// Does what a handler asks for.
    #[inline]
    pub(in crate::rdm) fn follow<W: Wire>(&mut self, w: &mut W, peer: PeerId, next: Next) {
        match next {
            Next::Nothing => {}
            Next::Ctl(ctl) => self.send_ctl(w, peer, ctl),
            Next::Drive => _ = self.drive(w, peer),
            Next::DriveRails => {
                rail_set::trigger_rails(&mut self.peers, w, peer);
                self.fail_lost_lanes(w);
                self.drive(w, peer);
            }
            Next::HandshakeReceived => {
                peer_error::send_unsent_errors(self, w, peer);
                rail_set::trigger_rails(&mut self.peers, w, peer);
                self.fail_lost_lanes(w);
                announce::announce_lanes(&mut self.peers, &mut self.pending, w, peer.into());
                self.drive(w, peer);
            }
            Next::InOrder => dispatch_in_order(self, w, peer),
            Next::Closed { code, taken } => {
                conversation::on_close(self, w, peer, (code, taken));
                self.drive(w, peer);
            }
            Next::CloseConfirmed => {
                let next = close::on_receipt(&mut self.peers, peer);
                self.follow(w, peer, next);
            }
            Next::Fail(fault) => self.fail_peer(w, peer, fault),
            Next::LaneLost => self.on_send_error(w, peer, PeerError::Gone),
        }
    }

    /// True if an unexpected message of this kind waits.
    // HOT
    #[inline(always)]
    pub fn has_unexpected(&self, kind: Kind) -> bool {
        !self.ops.recvs.match_queues[kind as usize].unexpected.is_empty()
    }

    /// True if the engine is idle, no event waits to be taken, and no active message waits for a receive.
    // HOT
    #[inline(always)]
    pub fn is_fully_idle(&self) -> bool {
        let undelivered =
            self.pending.events.len() | self.ops.recvs.match_queues[Kind::Am as usize].unexpected.len();
        undelivered | self.pending.waiting() == 0 && !self.pending.is_over_limit()
    }
}

/// True if engines handle packets of this type; others are counted and dropped.
pub fn handles(ty: PktType) -> bool {
    handlers::TABLE[usize::from(ty.0)].kind != HandlerKind::None
}

/// Dispatches packets of the reorder window that are in order now.
fn dispatch_in_order<W: Wire>(e: &mut Engine, w: &mut W, peer: PeerId) {
    let mut ready = std::mem::take(&mut e.ops.recvs.in_order_buf);
    loop {
        let from = &mut e.peers.table[peer];
        let next = from.next_rx;
        let Some(queue) = &mut from.queue else { break };
        if !queue.reorder.take(next, &mut ready) {
            let reordering = !queue.reorder.is_empty();
            from.state.set(PeerFlags::REORDERING, reordering);
            break;
        }
        from.next_rx = next.wrapping_add(1);
        let mut order = MsgOrder::Next;
        for held in ready.drain(..) {
            if let Ok(packet) = wire::parse(held.bytes()) {
                let handler = &handlers::TABLE[usize::from(packet.ty().0)];
                dispatch(e, w, &Arrival { peer, handler, packet: &packet, order });
            }
            order = MsgOrder::Past;
            e.pending.held_packets.release_reordered(held);
        }
    }
    e.ops.recvs.in_order_buf = ready;
}

/// Handles any packet. Out of line, so that the fast path needs little stack.
#[inline(never)]
fn on_packet_general<W: Wire>(e: &mut Engine, w: &mut W, wire: WireId, from: Source, packet: &[u8]) {
    ops::in_memory(e, w, |e, w| handle_packet(e, w, wire, from, packet));
}

#[inline]
fn dispatch<W: Wire>(e: &mut Engine, w: &mut W, a: &Arrival<'_>) {
    let next = dispatch::handle(e, w, a);
    e.follow(w, a.peer, next);
}

/// Closes the peers that have exceeded a limit. Of one that is closed already no conversation follows.
#[cold]
fn close_peers_over_limit<W: Wire>(e: &mut Engine, w: &mut W) {
    for id in std::mem::take(&mut e.peers.over_limit) {
        // A peer that was removed meanwhile has left its number to another.
        let over_limit = e.peers.table.get_mut(id).filter(|peer| peer.state.has(PeerFlags::OVER_LIMIT));
        let Some(peer) = over_limit else { continue };
        if peer.may_reopen() {
            peer.lose_order(&mut e.pending.held_packets);
        } else {
            conversation::force_close_with(e, w, id, PeerError::OverLimit);
        }
        e.pending.schedule(&mut e.peers, id);
    }
}

/// True if nothing more of a peer is taken.
fn is_lost(peers: &Peers, id: PeerId) -> bool {
    let peer = &peers.table[id];
    peer.state.is_drained() && !peer.may_reopen()
}

/// Handles, keeps or drops a packet of the message order.
// HOT
#[inline]
fn on_ordered<W: Wire>(
    e: &mut Engine,
    w: &mut W,
    a: &Arrival<'_>,
    id_use: MsgIdUse,
    msg_id: u32,
    bytes: &[u8],
) {
    match a.order {
        MsgOrder::Next => {
            e.peers.table[a.peer].next_rx = msg_id.wrapping_add(1);
            dispatch(e, w, a);
            if e.peers.table[a.peer].state.has(PeerFlags::REORDERING) {
                dispatch_in_order(e, w, a.peer);
            }
        }
        MsgOrder::Past if id_use != MsgIdUse::Single => dispatch(e, w, a),
        // [M4.5]
        MsgOrder::Past => _ = e.peers.drop_packet(a, DropReason::Duplicate),
        // The messages before it will not arrive.
        MsgOrder::Early
            if e.peers.table[a.peer].state.refuses_packets() && !e.peers.table[a.peer].keeps_order() =>
        {
            if close::is_close(a.packet) {
                peer_error::notify_lost(&mut e.peers, w, a.peer);
            }
            e.peers.refuse_closed(&mut e.pending, a);
            let peer = &mut e.peers.table[a.peer];
            let has_room = e.pending.held_packets.has_reorder_room(0, e.peers.cfg.unexpected_hard_max);
            if peer.may_reopen() && has_room {
                peer.state.insert(PeerFlags::REORDERING);
                peer.queue_mut().reorder.skip(&mut e.pending.held_packets, msg_id);
            } else if peer.may_reopen() {
                // The number would be missing in the next conversation: there is none.
                peer.lose_order(&mut e.pending.held_packets);
            }
        }
        MsgOrder::Early if is_lost(&e.peers, a.peer) => {
            dispatch::drop_and_notify(&mut e.peers, w, a);
        }
        MsgOrder::Early
            if !e.pending.held_packets.has_reorder_room(bytes.len(), e.peers.cfg.unexpected_hard_max) =>
        {
            e.peers.refuse_over_limit(a);
        }
        MsgOrder::Early => {
            let from = &mut e.peers.table[a.peer];
            from.state.insert(PeerFlags::REORDERING);
            if from.queue_mut().reorder.keep(&mut e.pending.held_packets, msg_id, id_use, bytes) {
                e.peers.counters.stats.rare.out_of_order += 1;
            } else {
                e.peers.drop_packet(a, DropReason::Duplicate);
            }
        }
    }
}

#[inline(always)]
fn handle_packet<W: Wire>(e: &mut Engine, w: &mut W, wire: WireId, from: Source, packet: &[u8]) {
    // By reference: a parsed packet is large, and a move costs more than the parse.
    let parsed = wire::parse(packet);
    let parsed = match &parsed {
        Ok(parsed) => parsed,
        Err(reject) => return e.peers.counters.count_reject(from, packet, *reject),
    };
    let ty = parsed.ty();
    let lane = match identify::identify(e, w, wire, from, parsed) {
        Ok(lane) => lane,
        Err(why) => return e.peers.counters.count_drop(why, ty.0, from),
    };
    e.peers.counters.stats.rx_pkts[usize::from(ty.0)] += 1;
    let peer =
        lane.first_of().or_else(|| announce::on_packet(&mut e.peers, &mut e.pending, w, lane, (ty, parsed)));
    let Some(peer) = peer else { return };
    e.peers.counters.by_peer.of(peer).rx_pkts += 1;
    if e.peers.table[peer].state.owes_handshake() {
        handshake::queue_handshake(e, w, peer.into());
    }
    let handler = &handlers::TABLE[usize::from(ty.0)];
    match (handler.id_use, parsed.msg_id()) {
        (Some(id_use), Some(msg_id)) => {
            let order = msg_order(e.peers.table[peer].next_rx, msg_id);
            let arrival = Arrival { peer, handler, packet: parsed, order };
            on_ordered(e, w, &arrival, id_use, msg_id, packet);
        }
        _ => dispatch(e, w, &Arrival { peer, handler, packet: parsed, order: MsgOrder::Next }),
    }
    if !e.peers.over_limit.is_empty() {
        close_peers_over_limit(e, w);
    }
}

impl Pending {
    /// Bytes held of unexpected messages and reorder windows.
    pub fn held_bytes(&self) -> usize {
        self.held_packets.in_use()
    }

    /// True if something waits for room on a wire.
    #[inline]
    pub fn waits_for_room(&self) -> bool {
        !self.scheduled.is_empty()
    }

    /// Zero if nothing waits: one branch for all, since every poll asks.
    // HOT
    #[inline(always)]
    pub(in crate::rdm) fn waiting(&self) -> usize {
        let peers = self.scheduled.len() | self.backed_off.len() | self.draining.len();
        peers | self.unused_regs.len() | self.revoked_regs.len()
    }

    /// True if nothing waits for room, a deadline, a draining wire or memory: the engine only needs packets.
    // HOT
    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        self.waiting() == 0 && !self.is_over_limit()
    }
}

impl Peers {
    #[cold]
    pub(in crate::rdm) fn drop_packet(&mut self, a: &Arrival<'_>, why: DropReason) -> Next {
        let from = self.table[a.peer].from();
        self.counters.count_drop(why, a.handler.ty.0, from);
        Next::Nothing
    }

    /// Returns the RDMA capabilities of a peer's wire.
    pub fn rdma(&self, peer: PeerId) -> Rdma {
        self.table.get(peer).map_or(Rdma::NONE, |peer| self.wires[peer.wire].rdma)
    }

    /// Drops a packet that needs its failed sender. A stream breaks at a piece lost this way.
    // [M11.7]
    #[cold]
    pub(in crate::rdm) fn drop_of_failed(&mut self, a: &Arrival<'_>) -> Next {
        if a.packet.opts().is_some_and(|opts| opts.class == MsgClass::Stream) {
            let tag = if let wire::Packet::Rtm(rtm) = a.packet { rtm.tag } else { None };
            break_streams(self, a.peer, tag);
        }
        self.drop_packet(a, DropReason::PeerFailed)
    }

    /// Returns the features of a peer's HANDSHAKE, once it has arrived.
    #[inline]
    pub fn features(&self, peer: PeerId) -> Option<Features> {
        let peer = self.table.get(peer)?;
        peer.state.has(PeerFlags::HANDSHAKE_RECEIVED).then_some(peer.features)
    }

    /// Returns the peer that has this source now.
    pub fn at(&mut self, wire: WireId, from: Source) -> Option<PeerId> {
        self.lookup.current(wire, from).and_then(|lane| self.table.peer_of(lane))
    }

    /// Iterates over all peers with their counters.
    pub fn iter_with_stats(&self) -> impl Iterator<Item = (PeerId, PeerView, PeerStats)> {
        self.table.iter().map(|(id, peer)| {
            let view = peer.view(self.wires[peer.wire].rdma, peer.outstanding);
            (id, view, self.peer_stats(id))
        })
    }
}

impl Counters {
    #[cold]
    pub(in crate::rdm) fn count_drop(&mut self, why: DropReason, ty: u8, from: Source) {
        self.stats.count_drop(why);
        self.trace.push(TraceEvent::Dropped { why, ty, from });
    }

    #[cold]
    pub(in crate::rdm) fn count_reject(&mut self, from: Source, packet: &[u8], reject: ParseError) {
        let why = match reject {
            ParseError::UnknownType(_) | ParseError::ReservedType(_) | ParseError::NeverSent(_) => {
                DropReason::Unsupported
            }
            _ => DropReason::Malformed,
        };
        self.count_drop(why, wire::peek_type(packet).map_or(0, |ty| ty.0), from);
    }
}
