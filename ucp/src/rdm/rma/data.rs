//! Data of one-sided operations: memory that requests name, windows, data within them, and the end of served
//! requests.

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::flow::window;
use crate::rdm::ids::{DomainId, WireId};
use crate::rdm::ids::{PeerId, Source};
use crate::rdm::io::Wire;
use crate::rdm::next::Next;
use crate::rdm::op::rma_op::{Ack, Job, RmaOp, RmaState};
use crate::rdm::peers::Peers;
use crate::rdm::peers::lanes;
use crate::rdm::peers::peer::Ctl;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{Arrival, SendProgress};
use crate::rdm::protocols::direct;
use crate::rdm::rails::striping::{self, Granted, TransferKind};
use crate::rdm::rma::RmaOps;
use crate::rdm::rma::args::RmaProtocol;
use crate::rdm::rma::mem::{Access, Spans};
use crate::rdm::status::OpError;
use crate::rdm::trace::DropReason;
use crate::rdm::types::EngineEvent;
use crate::wire::Iovs;
use crate::wire::ctl::{Cts, CtsFor};

impl Engine {
    /// Handles immediate data of a peer's RDMA write to our memory.
    // [M8.10]
    pub fn on_imm<W: Wire>(&mut self, w: &mut W, wire: WireId, from: Source, len: u64, word: u32) {
        // From a further lane after a failover, or of a conversation that begins there.
        let lane = self.peers.lookup.current(wire, from);
        let peer = lane.and_then(|lane| match self.peers.table.peer_of(lane) {
            None => lanes::promote(&mut self.peers, &mut self.pending, w, lane),
            known => known,
        });
        match peer {
            Some(peer) => on_rdma_write(&mut self.peers, &mut self.pending, peer, len, word),
            None => self.peers.counters.count_drop(DropReason::UnknownSender, 0, from),
        }
    }
}

/// Sends one packet of the grant of `id`, after the peer's HANDSHAKE.
pub(in crate::rdm) fn push_rma_data<W: Wire>(
    rma_ops: &mut RmaOps,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    id: SlotId,
) -> SendProgress {
    let Some(rma) = rma_ops.table.get(id) else { return SendProgress::Done };
    if rma.rail_plan.is_some() {
        return direct::push_stripes(rma_ops, peers, pending, w, id);
    }
    let (to, at) = (rma.peer, rma.sent);
    let recv_id = rma.remote_id.unwrap_or(0);
    let (window, total, kind) = (rma.window, rma.len, TransferKind::Memory);
    let granted = Granted { to, recv_id, at, window, total, kind };
    let Some(sent) = peers.post_granted(w, granted, |slot| rma.copy_to(at, slot)) else {
        return SendProgress::Fail(OpError::Unsupported);
    };
    let len = match striping::count_granted(peers, to, sent) {
        Ok(len) => len,
        Err(push) => return push,
    };
    let Some(rma) = rma_ops.table.get_mut(id) else { return SendProgress::Done };
    rma.sent += len as u64;
    rma.window -= len as u64;
    if rma.window > 0 {
        return SendProgress::Sent;
    }
    rma.in_data_queue = false;
    if rma.sent == rma.len {
        match rma.job {
            Job::Load(_) => {
                let (protocol, len, peer) = (rma.protocol, rma.len, rma.peer);
                if let Some(served) = rma_ops.table.remove(id) {
                    rma_ops.count_region(&served);
                }
                peers.counters.count_served(peer, protocol, len);
            }
            _ => rma_ops.all_sent(peers, pending, id),
        }
    }
    SendProgress::Done
}

impl RmaOps {
    /// Handles the acknowledgement of a write. False: the operation does not expect one.
    // HOT
    #[inline]
    pub(in crate::rdm) fn on_ack(
        &mut self,
        peers: &mut Peers,
        pending: &mut Pending,
        peer: PeerId,
        id: SlotId,
    ) -> bool {
        match self.table.get(id) {
            // While the device uses the memory, an acknowledgement is forged.
            Some(rma)
                if rma.peer == peer
                    && rma.state == RmaState::AllSent
                    && rma.ack != Ack::No
                    && (rma.compact || rma.in_flight == 0) =>
            {
                self.finish(peers, pending, id, Ok(()));
                true
            }
            _ => false,
        }
    }

    /// Resolves the memory of a request, or refuses it.
    pub(in crate::rdm) fn resolve(
        &mut self,
        peers: &mut Peers,
        a: &Arrival<'_>,
        iovs: &Iovs,
        need: Access,
    ) -> Result<Spans, Next> {
        let domain = peers.domain_of(a.peer);
        self.regions.resolve(domain, iovs, need).ok_or_else(|| peers.refuse_request(a, DropReason::BadAccess))
    }

    /// Keeps a request until it is served, or refuses it for lack of room.
    pub(in crate::rdm) fn insert_served(
        &mut self,
        peers: &mut Peers,
        a: &Arrival<'_>,
        rma: RmaOp,
    ) -> Result<SlotId, Next> {
        self.table.insert(rma).ok_or_else(|| peers.refuse_request(a, DropReason::NoRoom))
    }

    /// Handles a grant for our write, or for a read that we serve.
    pub(in crate::rdm) fn on_cts(&mut self, peers: &mut Peers, a: &Arrival<'_>, cts: &Cts) -> Next {
        let id = SlotId::from_raw(cts.send_id);
        let rma = match self.table.get_mut(id) {
            Some(rma) if rma.peer == a.peer && rma.state == RmaState::Moving => rma,
            _ => return peers.on_late_answer(a, id, cts.recv_id),
        };
        let of = match rma.job {
            Job::Put(_) => CtsFor::Send,
            Job::Load(_) => CtsFor::Read,
            _ => return peers.drop_packet(a, DropReason::BadId),
        };
        // An operation of the device takes no grants.
        if cts.of != of || rma.in_flight > 0 || !rma.protocol.is_emulated() {
            return peers.drop_packet(a, DropReason::BadId);
        }
        if cts.recv_length == 0 {
            return peers.drop_packet(a, DropReason::BadWindow);
        }
        rma.window = cts.recv_length.min(rma.len - rma.sent);
        rma.remote_id = Some(cts.recv_id);
        if !std::mem::replace(&mut rma.in_data_queue, true) {
            peers.table[a.peer].queue_mut().grants.push_back(id);
        }
        Next::DriveRails
    }

    /// Counts a served request by its regions.
    pub(in crate::rdm) fn count_region(&self, rma: &RmaOp) {
        if let Job::Load(spans) | Job::Store(spans) = &rma.job {
            self.regions.count(spans, matches!(rma.job, Job::Load(_)));
        }
    }

    /// Completes a write to us.
    pub(in crate::rdm) fn finish_served_write(
        &mut self,
        peers: &mut Peers,
        pending: &mut Pending,
        from: PeerId,
        protocol: RmaProtocol,
        len: u64,
        (cq_data, receipt): (Option<u64>, Option<u32>),
    ) -> Next {
        peers.counters.count_served(from, protocol, len);
        // [M8.10]
        if let Some(cq_data) = cq_data {
            pending.events.push_back(EngineEvent::RemoteWrite { from, len, cq_data });
        }
        match receipt {
            Some(send_id) => Next::Ctl(Ctl::Receipt { send_id, msg_id: 0 }),
            None => Next::Nothing,
        }
    }

    /// Ends a write to us in several packets.
    pub(in crate::rdm) fn finish_stored(
        &mut self,
        peers: &mut Peers,
        pending: &mut Pending,
        id: SlotId,
    ) -> Next {
        let Some(rma) = self.table.remove(id) else { return Next::Nothing };
        self.count_region(&rma);
        let receipt = (rma.ack == Ack::Wanted).then_some(rma.remote_id).flatten();
        self.finish_served_write(peers, pending, rma.peer, rma.protocol, rma.len, (rma.cq_data, receipt))
    }

    /// Takes data within a granted window, of a write to us or of our read.
    // HOT
    pub(in crate::rdm) fn on_data(
        &mut self,
        peers: &mut Peers,
        pending: &mut Pending,
        a: &Arrival<'_>,
        id: SlotId,
        at: u64,
        payload: &[u8],
    ) -> Next {
        let moved = peers.table[a.peer].has_failed_over();
        let rma = match self.table.get_mut(id) {
            Some(rma) if rma.peer == a.peer && rma.state == RmaState::Moving => rma,
            _ => return peers.drop_packet(a, DropReason::BadId),
        };
        if !matches!(rma.job, Job::Get(_) | Job::Store(_)) || rma.in_flight > 0 {
            return peers.drop_packet(a, DropReason::BadId);
        }
        let len = payload.len() as u64;
        // [M8.7]: data of a read need not wait for its READRSP.
        if let Err(why) = window::admit(&mut rma.received, &mut rma.window, rma.len, at, len, moved) {
            return peers.drop_packet(a, why);
        }
        rma.put(at, payload);
        if rma.received.bytes() == rma.len {
            return match rma.job {
                Job::Store(_) => self.finish_stored(peers, pending, id),
                _ => {
                    let (protocol, len) = (rma.protocol, rma.len);
                    peers.counters.count_initiated(a.peer, protocol, len);
                    self.finish(peers, pending, id, Ok(()));
                    Next::Nothing
                }
            };
        }
        if rma.window == 0 && len > 0 && rma.remote_id.is_some() {
            return Next::Ctl(Ctl::Cts(id));
        }
        Next::Nothing
    }
}

impl Peers {
    /// Returns the memory domain that a peer's requests name device keys of.
    // HOT
    #[inline]
    pub(in crate::rdm) fn domain_of(&self, peer: PeerId) -> DomainId {
        self.wires[self.table[peer].home].domain
    }
}

pub(in crate::rdm) fn on_rdma_write(
    peers: &mut Peers,
    pending: &mut Pending,
    from: PeerId,
    len: u64,
    word: u32,
) {
    peers.counters.count_served(from, RmaProtocol::DirectWrite, len);
    pending.events.push_back(EngineEvent::RemoteWrite { from, len, cq_data: u64::from(word) });
}
