//! One-sided operations: start, cancel, fences and acknowledgements. A write without
//! [`DeliveryComplete::Yes`] is complete when its bytes may be reused. On an ordered wire the acknowledgement
//! of an empty write behind it ([`Engine::request_acks`]) tells that it has arrived; elsewhere each write is
//! acknowledged by itself, in the DC form of its packet.

use std::sync::Arc;

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::amo;
use crate::rdm::ids::PeerId;
use crate::rdm::ids::{OpId, is_rma_id};
use crate::rdm::io::Wire;
use crate::rdm::op::Gather;
use crate::rdm::op::rma_op::{Ack, Atomic, Job, Operands, RmaOp, RmaState};
use crate::rdm::peers::Peers;
use crate::rdm::peers::state::PeerFlags;
use crate::rdm::protocol::DeliveryComplete;
use crate::rdm::protocols::{atomic, write};
use crate::rdm::rails::rail_set;
use crate::rdm::rma::args::{AtomicArgs, FenceScope, GetArgs, PacketOrder, PutArgs, RailKeys, RmaProtocol};
use crate::rdm::rma::mem::MemKey;
use crate::rdm::rma::mem_table::MemTable;
use crate::rdm::status::OpError;
use crate::rdm::types::{Emulation, Started};
use crate::wire::ctl::ErrorRef;
use crate::wire::{AtomicOp, Iovs, RmaIov};

/// Entry of a fence in a peer's queue.
pub(in crate::rdm) const FENCE: SlotId = SlotId::NONE;

impl Engine {
    /// Returns the memory that this engine serves, shared by the workers of a context.
    pub fn memory(&self) -> &Arc<MemTable> {
        self.ops.rma_ops.regions.table()
    }

    /// Withdraws a region: no request and no device accesses it from now on. Operations of peers that use it
    /// end with an error, at this engine now, at others of the table when they progress.
    pub fn remove_memory<W: Wire>(&mut self, w: &mut W, key: MemKey) -> bool {
        let removed = self.memory().remove(key);
        in_memory(self, w, |_, _| ());
        removed
    }

    /// Begins a section in which memory of the table stays valid, for devices too: follows the table, and
    /// another thread that withdraws memory waits for the section's end. False: one is under way.
    // HOT
    #[inline(always)]
    #[must_use]
    pub fn enter_memory<W: Wire>(&mut self, w: &mut W) -> bool {
        let entered = self.ops.rma_ops.regions.enter();
        if entered && self.ops.rma_ops.regions.is_stale() {
            follow_memory(self, w);
        }
        entered
    }

    /// Ends a section that [`Engine::enter_memory`] has begun.
    // HOT
    #[inline(always)]
    pub fn leave_memory(&self) {
        self.ops.rma_ops.regions.leave();
    }

    /// Starts a put.
    // HOT
    #[inline]
    pub fn put<W: Wire>(&mut self, w: &mut W, to: PeerId, p: PutArgs) -> Started<()> {
        let Some(peer) = self.peers.table.get(to) else { return Started::Failed(OpError::Unknown) };
        if p.remote.count() == 0 || p.remote.total() != Some(p.local.len() as u64) {
            return Started::Failed(OpError::Invalid);
        }
        let plain = p.protocol == RmaProtocol::EagerWrite
            && p.sync == DeliveryComplete::No
            && self.peers.keeps_order(to);
        let plain = plain && self.peers.cfg.emulation == Emulation::Allowed;
        if plain
            && !peer.state.is_blocked()
            && let Some(Ok(())) = write::start(&mut self.peers, w, to, &p)
        {
            return Started::Done(());
        }
        let ack = self.peers.ack_for(to, p.sync);
        if ack != Ack::No
            && let Some(id) = write::start_short(&mut self.ops.rma_ops, &mut self.peers, w, to, &p, ack)
        {
            return if ack == Ack::Wanted { Started::Pending(OpId(id)) } else { Started::Done(()) };
        }
        let mut rma = RmaOp::new(to, Job::Put(p.local), p.protocol, p.local.len() as u64);
        rma.ack = ack;
        (rma.user, rma.remote, rma.cq_data) = (p.user, p.remote, p.cq_data);
        start_rma(self, w, to, rma)
    }

    /// Starts an RDMA write of one piece that may use the peer's rails, by these keys.
    pub fn put_striped<W: Wire>(
        &mut self,
        w: &mut W,
        to: PeerId,
        p: PutArgs,
        keys: &RailKeys,
    ) -> Started<()> {
        let [iov] = p.remote.as_slice() else { return self.put(w, to, p) };
        let whole =
            iov.len == p.local.len() as u64 && matches!(p.local.pieces(), [one] if one.piece().is_some());
        if p.protocol != RmaProtocol::DirectWrite || p.cq_data.is_some() || !whole {
            return self.put(w, to, p);
        }
        let mut rma = RmaOp::new(to, Job::Put(p.local), p.protocol, iov.len);
        rma.ack = self.peers.ack_for(to, p.sync);
        (rma.user, rma.remote) = (p.user, p.remote);
        plan_rma_rails(&self.peers, to, &mut rma, *iov, keys);
        start_rma(self, w, to, rma)
    }

    /// Starts an RDMA read of one piece that may use the peer's rails, by these keys.
    pub fn get_striped<W: Wire>(
        &mut self,
        w: &mut W,
        to: PeerId,
        g: GetArgs,
        keys: &RailKeys,
    ) -> Started<()> {
        let [iov] = g.remote.as_slice() else { return self.get(w, to, g) };
        if g.protocol != RmaProtocol::DirectRead || iov.len != g.local.len() as u64 || g.local.pieces() != 1 {
            return self.get(w, to, g);
        }
        let mut rma = RmaOp::new(to, Job::Get(g.local), g.protocol, iov.len);
        (rma.user, rma.remote) = (g.user, g.remote);
        plan_rma_rails(&self.peers, to, &mut rma, *iov, keys);
        start_rma(self, w, to, rma)
    }

    /// Starts a get.
    pub fn get<W: Wire>(&mut self, w: &mut W, to: PeerId, g: GetArgs) -> Started<()> {
        let len = g.local.len() as u64;
        if g.remote.count() == 0 || g.remote.total() != Some(len) {
            return Started::Failed(OpError::Invalid);
        }
        let mut rma = RmaOp::new(to, Job::Get(g.local), g.protocol, len);
        (rma.user, rma.remote) = (g.user, g.remote);
        start_rma(self, w, to, rma)
    }

    /// Starts an atomic, which is in order with messages to `to`.
    pub fn atomic<W: Wire>(&mut self, w: &mut W, to: PeerId, mut a: AtomicArgs) -> Started<()> {
        let (form, protocol) = match (&a.result, &a.compare) {
            (None, None) => (amo::Form::Write, RmaProtocol::WriteAtomic),
            (Some(_), None) => (amo::Form::Fetch, RmaProtocol::FetchAtomic),
            (_, Some(_)) => (amo::Form::Compare, RmaProtocol::CompareAtomic),
        };
        let size = a.ty.size() as u64;
        let whole = a.remote.as_slice().iter().all(|iov| iov.len.is_multiple_of(size));
        let (len, no_operand) =
            (a.remote.total().unwrap_or(0), a.op == AtomicOp::Read && a.operand.is_empty());
        let len_fits = |bytes: usize| bytes as u64 == len;
        let fits = whole
            && len > 0
            && (no_operand || len_fits(a.operand.len()))
            && a.compare.as_ref().is_none_or(|compare| len_fits(compare.len()))
            && a.result.as_ref().is_none_or(|result| len_fits(result.len()));
        if !fits
            || !amo::has_form(a.op, form)
            || !amo::has_type(a.op, a.ty)
            || (form == amo::Form::Compare && a.result.is_none())
        {
            return Started::Failed(OpError::Invalid);
        }
        if self.peers.table.get(to).is_none() {
            return Started::Failed(OpError::Unknown);
        }
        let ack = if a.result.is_none() { self.peers.ack_for(to, a.sync) } else { Ack::No };
        if form == amo::Form::Fetch
            && let Some(id) = atomic::start_short(&mut self.ops.rma_ops, &mut self.peers, w, to, &mut a)
        {
            return Started::Pending(OpId(id));
        }
        let operands = Operands::new(&a.operand, a.compare.as_ref().unwrap_or(&Gather::EMPTY));
        let (op, ty, result) = (a.op, a.ty, a.result);
        let mut rma = RmaOp::new(to, Job::Atomic(Atomic { op, ty, operands, result }), protocol, len);
        (rma.user, rma.remote, rma.ack) = (a.user, a.remote, ack);
        start_rma(self, w, to, rma)
    }

    /// Cancels an operation of which no packet has gone out; its event says `Cancelled`. False: too late.
    pub fn cancel_rma(&mut self, op: OpId) -> bool {
        match self.ops.rma_ops.table.get(op.0) {
            Some(rma) if rma.state == RmaState::Queued && rma.is_ours() && !rma.notified => {
                self.ops.rma_ops.finish(&mut self.peers, &mut self.pending, op.0, Err(OpError::Cancelled));
                true
            }
            _ => false,
        }
    }

    /// Orders one-sided operations and atomics at the target: those started from now on take effect after
    /// those before. With [`FenceScope::Memory`] this includes RMA that bypasses packets, once
    /// [`Peers::may_bypass_queue`](crate::rdm::Peers::may_bypass_queue) allows it.
    pub fn fence<W: Wire>(&mut self, w: &mut W, to: PeerId, scope: FenceScope) {
        if scope == FenceScope::Memory {
            self.request_acks(w, Some(to));
        }
        let Some(peer) = self.peers.table.get(to) else { return };
        let busy = peer.queue.as_ref().is_some_and(|queue| queue.open_rma > 0);
        if (busy || peer.state.has(PeerFlags::SENDS_QUEUED)) && !peer.state.is_failed() {
            let peer = &mut self.peers.table[to];
            peer.state.insert(PeerFlags::SENDS_QUEUED);
            peer.queue_mut().sends.push_back(FENCE);
            self.pending.schedule(&mut self.peers, to);
        }
    }

    /// Requests an acknowledgement of every write that is complete here, from `to` or from all peers.
    /// [`Engine::is_flushed`] tells when it has arrived. Targets before libfabric 1.12 give none.
    pub fn request_acks<W: Wire>(&mut self, w: &mut W, to: Option<PeerId>) {
        match to {
            Some(to) => request_ack(self, w, to),
            None => {
                for n in 0..self.peers.table.slots() {
                    request_ack(self, w, PeerId(n));
                }
            }
        }
    }
}

/// Runs `work` in a section in which memory of the table stays valid; see [`Engine::enter_memory`].
// HOT
#[inline(always)]
pub(in crate::rdm) fn in_memory<W: Wire, R>(
    e: &mut Engine,
    w: &mut W,
    work: impl FnOnce(&mut Engine, &mut W) -> R,
) -> R {
    let entered = e.enter_memory(w);
    let result = work(e, w);
    if entered {
        e.leave_memory();
    }
    result
}

/// Ends the operations of peers that use withdrawn memory.
#[cold]
fn follow_memory<W: Wire>(e: &mut Engine, w: &mut W) {
    for region in e.ops.rma_ops.regions.update() {
        let uses = e.ops.rma_ops.table.iter().filter(|(_, rma)| rma.uses(region));
        for id in uses.map(|(id, _)| id).collect::<Vec<_>>() {
            let Some(rma) = e.ops.rma_ops.table.remove(id) else { continue };
            if let Some(rma_read) = rma.rma_read {
                e.ops.reads.withdraw(w, rma_read);
            }
            if let (Some(remote_id), false) = (rma.remote_id, rma.detached) {
                let next = e.peers.error_to(rma.peer, ErrorRef::Op(remote_id), OpError::Access(rma.peer));
                e.follow(w, rma.peer, next);
            }
        }
    }
}

fn request_ack<W: Wire>(e: &mut Engine, w: &mut W, to: PeerId) {
    if e.peers.table.get(to).is_none_or(|peer| !peer.state.has(PeerFlags::UNACKED)) {
        return;
    }
    let mut rma = RmaOp::new(to, Job::Put(Gather::EMPTY), RmaProtocol::EagerWrite, 0);
    (rma.remote, rma.ack, rma.notified) = (Iovs::one(RmaIov::default()), Ack::IfAble, true);
    // Without a slot the flag stays, and a later flush tries again.
    if !matches!(start_rma(e, w, to, rma), Started::Failed(OpError::NoResource)) {
        e.peers.table[to].state.remove(PeerFlags::UNACKED);
    }
}

fn start_rma<W: Wire>(e: &mut Engine, w: &mut W, to: PeerId, rma: RmaOp) -> Started<()> {
    let Some(peer) = e.peers.table.get(to) else { return Started::Failed(OpError::Unknown) };
    if let Some(fault) = peer.fault {
        return Started::Failed(OpError::Peer(to, fault));
    }
    let notified = rma.notified;
    let Some(id) = e.ops.rma_ops.table.insert(rma) else { return Started::Failed(OpError::NoResource) };
    let peer = &mut e.peers.table[to];
    peer.outstanding += 1;
    peer.queue_mut().sends.push_back(id);
    if peer.state.has(PeerFlags::SENDS_QUEUED) {
        e.pending.schedule(&mut e.peers, to);
        return Started::Pending(OpId(id));
    }
    peer.state.insert(PeerFlags::SENDS_QUEUED);
    // No callback runs in here, so calls do not nest.
    e.ops.rma_ops.in_call = (!notified).then_some((id, None));
    e.drive(w, to);
    match e.ops.rma_ops.in_call.take() {
        Some((_, Some(Ok(())))) => Started::Done(()),
        Some((_, Some(Err(error)))) => Started::Failed(error),
        _ => Started::Pending(OpId(id)),
    }
}

impl Peers {
    #[inline]
    pub(in crate::rdm) fn keeps_order(&self, to: PeerId) -> bool {
        self.wires[self.table[to].wire].order == PacketOrder::Kept
    }

    pub(in crate::rdm) fn ack_for(&self, to: PeerId, sync: DeliveryComplete) -> Ack {
        match sync {
            DeliveryComplete::Yes => Ack::Wanted,
            DeliveryComplete::No if self.table.get(to).is_none() || self.keeps_order(to) => Ack::No,
            DeliveryComplete::No => Ack::IfAble,
        }
    }

    /// Returns the policy for one-sided operations that no device does.
    pub fn emulation(&self) -> Emulation {
        self.cfg.emulation
    }

    /// True if an operation that uses no packets may go ahead: the peer's queue holds neither operations nor
    /// fences.
    // HOT
    #[inline]
    pub fn may_bypass_queue(&self, to: PeerId) -> bool {
        self.table.get(to).is_some_and(|peer| !peer.state.is_blocked())
    }
}

/// Plans the rails of an operation on one piece.
pub(in crate::rdm) fn plan_rma_rails(
    peers: &Peers,
    to: PeerId,
    rma: &mut RmaOp,
    iov: RmaIov,
    keys: &RailKeys,
) {
    let Some(key) =
        peers.table.get(to).and_then(|peer| rail_set::key_on_current_lane(peers, peer, iov.key, keys))
    else {
        return;
    };
    if peers.table[to].has_failed_over() {
        rma.first_key = Some(iov.key);
        rma.remote = Iovs::one(RmaIov { key, ..iov });
    }
    rma.rail_plan = peers.linked_rails(to, key, keys);
}

/// True if an entry of a peer's queue is a one-sided operation or a fence.
#[inline]
pub(in crate::rdm) const fn is_rma_entry(op: SlotId) -> bool {
    is_rma_id(op) || op.raw() == FENCE.raw()
}

#[cfg(test)]
impl Engine {
    /// Sets what a peer's HANDSHAKE is to have said.
    pub fn set_features(&mut self, peer: PeerId, features: crate::wire::Features) {
        self.peers.table[peer].features = features;
    }

    /// Sets whether one-sided operations may go by packets.
    pub fn set_emulation(&mut self, emulation: Emulation) {
        self.peers.cfg.emulation = emulation;
    }

    /// The next `msg_id` of a peer.
    pub fn next_rx(&self, peer: PeerId) -> u32 {
        self.peers.table[peer].next_rx
    }

    /// Nothing one-sided is kept, at either end, and no bytes.
    pub fn quiet(&self) -> bool {
        self.ops.rma_ops.table.is_empty()
            && self.ops.reads.table.is_empty()
            && self.pending.held_packets.in_use() == 0
    }
}
