//! Reads of peers' memory, of messages and of writes to us: their table, destinations and registrations. The
//! protocol is `longread`. Withdrawn memory is not waited for, as its registration ends at once.

use ucs::coll::slots::SlotId;

use crate::rdm::features::supports_rails;
use crate::rdm::ids::{PeerId, is_rma_id};
use crate::rdm::io::Wire;
use crate::rdm::next::Next;
use crate::rdm::op::Piece;
use crate::rdm::op::rma_op::Job;
use crate::rdm::op::rma_read::{RmaRead, Stop};
use crate::rdm::op::staged::Staged;
use crate::rdm::peers::Peers;
use crate::rdm::peers::peer::PartialMsg;
use crate::rdm::peers::state::PeerFlags;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::Protocol;
use crate::rdm::recv::Recvs;
use crate::rdm::rma::Reads;
use crate::rdm::rma::RmaOps;
use crate::rdm::status::OpError;
use crate::wire::{Features, MAX_IOV};

impl Reads {
    /// Removes a read and releases its registrations. Returns what it was for.
    pub(in crate::rdm) fn take<W: Wire>(&mut self, w: &mut W, id: SlotId) -> Option<(RmaRead, SlotId)> {
        let mut rma_read = self.table.remove(id)?;
        if rma_read.lane_waits {
            w.abandon_rma_lane_read(rma_read.peer);
        }
        rma_read.regs.iter_mut().filter_map(Option::take).for_each(|reg| w.release(reg));
        let striped = rma_read.rail_plan.as_mut().map(|rail_plan| rail_plan.0.take_regs());
        striped.into_iter().flatten().for_each(|reg| w.release(reg));
        if let Some(staged) = &mut rma_read.staged {
            staged.end_access();
        }
        let to = rma_read.to?;
        Some((rma_read, to))
    }

    /// Stops a read. False: the device still writes, and the receive ends with `error` once it no longer
    /// does.
    pub(in crate::rdm) fn stop<W: Wire>(&mut self, w: &mut W, id: SlotId, error: OpError) -> bool {
        match self.table.get_mut(id) {
            Some(rma_read) if rma_read.in_flight > 0 => {
                rma_read.stop = Some(Stop::Fail(error));
                false
            }
            _ => {
                self.take(w, id);
                true
            }
        }
    }

    /// Drops the read of a write whose memory is withdrawn: its registrations end at once.
    pub(in crate::rdm) fn withdraw<W: Wire>(&mut self, w: &mut W, id: SlotId) {
        let Some(rma_read) = self.table.get_mut(id) else { return };
        rma_read.to = None;
        rma_read.stop = Some(Stop::Fail(OpError::Access(rma_read.peer)));
        if rma_read.in_flight == 0 {
            self.take(w, id);
        } else {
            rma_read.regs.iter_mut().filter_map(Option::take).for_each(|reg| w.release(reg));
        }
    }

    /// Queues a read behind others of its peer, if it is not queued.
    pub(in crate::rdm) fn queue(&mut self, peers: &mut Peers, id: SlotId) {
        let Some(rma_read) = self.table.get_mut(id) else { return };
        if !std::mem::replace(&mut rma_read.queued, true) {
            let peer = rma_read.peer;
            peers.table[peer].queue_mut().reads.push_back(id);
        }
    }

    /// Reads a message that callbacks unpack into memory of ours, from its beginning. False: it is another
    /// receive, such memory did not help, or there is none.
    // [M7.5]
    pub(in crate::rdm) fn stage(&mut self, recvs: &Recvs, id: SlotId) -> bool {
        let Some(rma_read) = self.table.get_mut(id) else { return false };
        let op = rma_read.to.filter(|to| !is_rma_id(*to)).and_then(|rx| recvs.table.get(rx));
        if !op.is_some_and(|op| op.buf.is_generic()) || rma_read.staged.is_some() {
            return false;
        }
        rma_read.staged = usize::try_from(rma_read.end - rma_read.from).ok().and_then(Staged::new);
        let is_staged = rma_read.staged.is_some();
        if is_staged {
            (rma_read.at, rma_read.stop) = (rma_read.from, None);
        }
        is_staged
    }

    /// Ends a read with an error, and what it was for.
    pub(in crate::rdm) fn fail<W: Wire>(
        &mut self,
        recvs: &mut Recvs,
        rma_ops: &mut RmaOps,
        peers: &mut Peers,
        pending: &mut Pending,
        w: &mut W,
        (id, error): (SlotId, OpError),
    ) {
        let Some((rma_read, rx)) = self.take(w, id) else { return };
        if is_rma_id(rx) {
            rma_ops.table.remove(rx);
            return;
        }
        if let Some((_, rxe)) = recvs.rxe(rx) {
            rxe.rma_read = None;
            let msg_id = rxe.envelope.msg_id;
            if let Some(queue) = &mut peers.table[rma_read.peer].queue
                && queue.partial_msgs.get(&msg_id) == Some(&PartialMsg::Rx(rx))
            {
                queue.partial_msgs.remove(&msg_id);
            }
        }
        recvs.fail(pending, rx, error);
    }

    /// Returns the destination of the next byte: the number of the piece to register, the piece, and the
    /// offset in it. Lists with too many pieces are not registered: the number is [`MAX_IOV`].
    pub(in crate::rdm) fn read_to(
        &self,
        recvs: &Recvs,
        rma_ops: &RmaOps,
        rma_read: &RmaRead,
    ) -> Option<(usize, Piece, usize)> {
        let to = rma_read.to?;
        if is_rma_id(to) {
            return match &rma_ops.table.get(to)?.job {
                Job::Store(spans) => spans.piece_at(rma_read.at),
                _ => None,
            };
        }
        let from = rma_read.from as usize;
        if let Some(staged) = &rma_read.staged {
            return Some((0, staged.piece(), rma_read.at as usize - from));
        }
        let buf = &recvs.table.get(to)?.buf;
        if let Some(list) = buf.list() {
            let few = list.pieces().len() <= MAX_IOV;
            let (n, piece, into) = list.piece_at(rma_read.at)?;
            return Some((if few { n } else { MAX_IOV }, piece, into));
        }
        let dest = buf.piece()?;
        let dest = dest.part(from, (rma_read.end - rma_read.from) as usize);
        Some((0, dest, rma_read.at as usize - from))
    }

    /// Starts the RMA read of a peer's write to our memory.
    // [M8.8]
    pub(in crate::rdm) fn start_of_write(
        &mut self,
        rma_ops: &mut RmaOps,
        peers: &mut Peers,
        id: SlotId,
        rma: SlotId,
    ) -> Next {
        let (Some(write), Some(rma_read)) = (rma_ops.table.get_mut(rma), self.table.get_mut(id)) else {
            return Next::Nothing;
        };
        write.rma_read = Some(id);
        rma_read.to = Some(rma);
        rma_read.end = write.len;
        self.queue(peers, id);
        Next::Drive
    }
}

impl Peers {
    /// True if a peer has never been denied a read over the RMA-only lane.
    pub fn can_read_us(&self, to: PeerId) -> bool {
        self.table.get(to).is_some_and(|peer| !peer.state.has(PeerFlags::READ_DENIED))
    }

    /// True if messages of this protocol, or writes to be read, may be announced to `to`: both ends read (RDM
    /// v4 3.4), and READ_NACK is possible if the peer may fail over.
    // [M3.7]
    pub(in crate::rdm) fn may_be_read(&self, to: PeerId, protocol: Protocol) -> bool {
        let peer = &self.table[to];
        let needs = match protocol {
            Protocol::RuntRead => Features::RDMA_READ.union(Features::RUNT_READ),
            _ => Features::RDMA_READ,
        };
        let wire = &self.wires[peer.wire];
        let never_moves = wire.rail_wires.is_empty() || !supports_rails(peer.features);
        let has_nack = never_moves || !self.cfg.withhold.contains(Features::READ_NACK);
        wire.rdma.read > 0
            && has_nack
            && peer.state.has(PeerFlags::HANDSHAKE_RECEIVED)
            && peer.features.contains(needs)
    }
}
