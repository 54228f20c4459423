//! One-sided operations of ours as they move on: their turn in a peer's queue, the peer's consent, their end. Called by
//! `outgoing` for queues, by rooms and `people` for ends.

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::features::{direct_read, direct_write};
use crate::rdm::io::{PeerId, Wire};
use crate::rdm::op::rma_op::{Ack, Atomic, Job, One, OneState};
use crate::rdm::peers::peer::Was;
use crate::rdm::protocol::SendProgress;
use crate::rdm::protocols::{atomic, direct, handshake, read, write, write_read};
use crate::rdm::rma::args::RmaProtocol;
use crate::rdm::rma::ops::FENCE;
use crate::rdm::send::sends::Step;
use crate::rdm::types::{Emulation, EngineEvent, OpError};
use crate::wire::Features;

impl Engine {
    /// One step for the one-sided operation, or fence, at the head of a peer's queue.
    pub(in crate::rdm) fn step_one<W: Wire>(&mut self, w: &mut W, id: PeerId, op: SlotId) -> Step {
        let Some(one) = self.one.get(op) else {
            let waits = op == FENCE && self.peers[id].work.as_ref().is_some_and(|work| work.ones > 0);
            if waits {
                return Step::Idle;
            }
            self.pop_send(id);
            return Step::Done;
        };
        let queued = one.protocol;
        let push = match self.may_start_one(w, id, op) {
            Some(push) => push,
            None => match self.one.get(op).map_or(queued, |one| one.protocol) {
                RmaProtocol::EagerWrite | RmaProtocol::LongCtsWrite => write::push(self, w, op),
                RmaProtocol::ShortRead | RmaProtocol::LongCtsRead => read::push(self, w, op),
                RmaProtocol::WriteAtomic | RmaProtocol::FetchAtomic | RmaProtocol::CompareAtomic => {
                    atomic::push(self, w, op)
                }
                RmaProtocol::DirectWrite | RmaProtocol::DirectRead => direct::push(self, w, op),
                RmaProtocol::LongReadWrite => write_read::push(self, w, op),
            },
        };
        match push {
            SendProgress::Sent | SendProgress::Switch(_) => Step::Done,
            SendProgress::AwaitHandshake => Step::Idle,
            SendProgress::Full => Step::Full,
            SendProgress::PeerFailed(fault) if self.move_on(w, id, fault) => Step::Done,
            SendProgress::Done | SendProgress::Fail(_) | SendProgress::PeerFailed(_) => {
                self.pop_send(id);
                if let Some(one) = self.one.get_mut(op)
                    && !std::mem::replace(&mut one.counted, true)
                {
                    self.peers[id].work().ones += 1;
                }
                self.ended_one(w, id, op, push)
            }
        }
    }

    fn pop_send(&mut self, id: PeerId) {
        if let Some(work) = &mut self.peers[id].work {
            work.sends.pop_front();
        }
    }

    /// Acknowledged forms, and those by RDMA at either end, need the peer's consent, which its HANDSHAKE gives. `None`:
    /// go on.
    // [M3.7] [M8.9]
    fn may_start_one<W: Wire>(&mut self, w: &mut W, id: PeerId, op: SlotId) -> Option<SendProgress> {
        let one = self.one.get(op).filter(|one| one.state == OneState::Queued)?;
        if one.len == 0 && one.cq_data.is_none() && !one.protocol.is_emulated() {
            return None;
        }
        let by_device = self.by_device(w, one);
        let refused = self.cfg.emulation == Emulation::Refused;
        let peer = &self.peers[id];
        let one = self.one.get_mut(op)?;
        // What flushes send for themselves is nobody's operation; what has no bytes asks nobody.
        if refused && !one.told && one.len > 0 && (one.protocol.is_emulated() || !by_device) {
            return Some(SendProgress::Fail(OpError::Emulated));
        }
        if !by_device {
            one.go_by_packets();
            if one.ack == Ack::No {
                return None;
            }
        }
        if peer.was.contains(Was::MET) {
            if by_device || peer.features.contains(Features::DELIVERY_COMPLETE) {
                return None;
            }
            if one.ack == Ack::Wanted {
                return Some(SendProgress::Fail(OpError::Unsupported));
            }
            one.ack = Ack::No;
            return None;
        }
        Some(match handshake::trigger(self, w, id) {
            Ok(()) => SendProgress::AwaitHandshake,
            Err(refused) => refused.into(),
        })
    }

    /// Whether a device is to carry the bytes of an operation, as far as the peer has said. Not the last word: memory may
    /// turn out not to be registrable.
    fn by_device<W: Wire>(&self, w: &W, one: &One) -> bool {
        let (peer, rdma) = (&self.peers[one.peer], self.rdma(one.peer));
        let features = peer.was.contains(Was::MET).then_some(peer.features);
        // The key is that of the device it was met on, unless it is known on the one it has now.
        let key_fits = !self.has_moved(one.peer)
            || one.first_key.is_some()
            || one.protocol == RmaProtocol::LongReadWrite;
        one.len > 0
            && key_fits
            && match one.protocol {
                RmaProtocol::DirectWrite => {
                    (one.cq_data.is_none() || direct::takes_data(self, w, one))
                        && direct_write(rdma, features, one.len, one.cq_data).is_ok()
                }
                // Who reads is the target, so it says the same bit, and we do.
                RmaProtocol::DirectRead | RmaProtocol::LongReadWrite => direct_read(rdma, features).is_ok(),
                _ => false,
            }
    }

    /// An operation that left its queue: a failed one is over, and so is its peer if that is to blame.
    pub(in crate::rdm) fn ended_one<W: Wire>(
        &mut self,
        w: &mut W,
        id: PeerId,
        op: SlotId,
        push: SendProgress,
    ) -> Step {
        match push {
            SendProgress::PeerFailed(fault) | SendProgress::Fail(OpError::Peer(_, fault)) => {
                self.fail_peer(w, id, fault)
            }
            SendProgress::Fail(error) => self.finish_one(op, Err(error)),
            _ => {}
        }
        Step::Done
    }

    /// The last byte of a write, or the request of an atomic, has been taken by the wire. // HOT
    pub(in crate::rdm) fn one_out(&mut self, id: SlotId) {
        let Some(one) = self.one.get_mut(id) else { return };
        one.state = OneState::AllOut;
        let (protocol, len, ack, peer) = (one.protocol, one.len, one.ack, one.peer);
        let waits = matches!(&one.job, Job::Atomic(Atomic { result: Some(_), .. }));
        self.stats.count_rma(protocol, len);
        self.by_peer.asked(peer, protocol, len);
        match ack {
            _ if waits => {}
            Ack::Wanted => {}
            Ack::IfAble => self.tell(id),
            Ack::No => {
                self.peers[peer].was |= Was::UNACKED;
                self.finish_one(id, Ok(()));
            }
        }
    }

    /// The caller's part of an operation is over; the acknowledgement is still to come.
    fn tell(&mut self, id: SlotId) {
        let Some(one) = self.one.get_mut(id) else { return };
        if !std::mem::replace(&mut one.told, true) {
            let user = one.user;
            self.answer(id, user, Ok(()));
        }
    }

    fn answer(&mut self, id: SlotId, user: u64, result: Result<(), OpError>) {
        match &mut self.in_call {
            Some((asked, answer)) if *asked == id => *answer = Some(result),
            _ => self.outs.push_back(EngineEvent::RmaDone { user, result }),
        }
    }

    /// An operation is over. Its ids in queues are stale from now on.
    pub(in crate::rdm) fn finish_one(&mut self, id: SlotId, result: Result<(), OpError>) {
        let Some(one) = self.one.get_mut(id) else { return };
        // A peer that reads one of our writes has not said that it has read it all.
        let ended = if result.is_ok() { &mut self.unused } else { &mut self.revoked };
        if !one.brief {
            ended.extend(one.regs.iter_mut().filter_map(Option::take));
            ended.extend(one.stripes.iter_mut().flat_map(|stripes| stripes.take_regs()));
        }
        let (ours, orphan, counted, told) = (one.is_ours(), one.orphan, one.counted, one.told);
        let (id_of_peer, user) = (one.peer, one.user);
        self.one.discard(id);
        if !ours {
            return;
        }
        if !orphan {
            let peer = &mut self.peers[id_of_peer];
            peer.outstanding -= 1;
            if counted && let Some(work) = &mut peer.work {
                work.ones -= 1;
                // A fence may be waiting for this.
                if peer.was.contains(Was::QUEUED) {
                    self.list(id_of_peer);
                }
            }
        }
        if !told {
            self.answer(id, user, result);
        }
    }

    /// Releases what ended operations had registered. Before anybody is told of their end.
    pub(in crate::rdm) fn release_regs<W: Wire>(&mut self, w: &mut W) {
        self.unused.drain(..).for_each(|reg| w.release(reg));
        self.revoked.drain(..).for_each(|reg| w.revoke(reg));
    }

    /// Everything under way with a peer, at either end, is over.
    pub(in crate::rdm) fn end_ones<W: Wire>(&mut self, w: &mut W, peer: PeerId, error: OpError) {
        let ids: Vec<_> = self.one.iter().filter(|(_, one)| one.peer == peer).map(|(id, _)| id).collect();
        for id in ids {
            let Some(one) = self.one.get_mut(id) else { continue };
            if one.orphan {
                continue;
            }
            if one.flying > 0 {
                // The device still uses the caller's memory: the end is told when it does not any more.
                one.orphan = true;
                one.failed.get_or_insert(error);
                self.peers[peer].outstanding -= 1;
                continue;
            }
            let reading = one.reading;
            if reading.is_some_and(|reading| !self.stop_reading(w, reading, error)) {
                // The device still writes to our memory: kept, so that it is found when that is taken back.
                if let Some(one) = self.one.get_mut(id) {
                    one.orphan = true;
                }
                continue;
            }
            match self.one.get(id).map(|one| &one.job) {
                Some(Job::Answer(_)) => self.drop_answer(id),
                _ => self.finish_one(id, Err(error)),
            }
        }
    }

    /// An answer that nobody waits for any more.
    pub(in crate::rdm) fn drop_answer(&mut self, id: SlotId) {
        if let Some(One { job: Job::Answer(bytes), .. }) = self.one.remove(id) {
            self.hold.release(bytes);
        }
    }
}
