//! Gives the engine the bytes to send: chunks of messages and writes of this process, and memory that peers
//! read. They are fetched when they are sent.

use super::super::{Rdma, RemoteQp, Sender, TryOutcome};
use super::requests::Bytes;
use super::state::State;
use crate::efa::dev::DevStatus;
use ucs::coll::slots::SlotId;
use usnic::Source;

const OK: TryOutcome = TryOutcome::Done(DevStatus::Ok);

impl State {
    /// Reads registered memory of this process for a peer. A failure is kept for the response.
    pub fn fetch_for_peer(&mut self, id: SlotId, offset: u32, to: &mut [u8]) -> TryOutcome {
        let Some(service) = self.services.get(id) else { return TryOutcome::Busy };
        let (iid, head) = (service.iid, service.head);
        let from = Sender { iid, qpn: head.src_qpn.get(), kind: head.kind() };
        let (rkey, qkey) = (head.rkey.get(), head.qkey.get());
        let outcome = match head.raddr.get().checked_add(offset.into()) {
            None => TryOutcome::Done(DevStatus::RemoteBadAddress),
            Some(raddr) => {
                let (local, len) = (to.as_mut_ptr(), to.len() as u32);
                let rdma = Rdma { local, len, raddr, rkey, total: head.arg.get(), lkey: 0, pd: 0 };
                self.locals.with(self.me, (head.dst_qpn.get(), head.kind()), |qp| match qp.has_qkey(qkey) {
                    true => qp.read(from, &rdma),
                    false => TryOutcome::Done(DevStatus::BadDestQpn),
                })
            }
        };
        if outcome != OK
            && let Some(service) = self.services.get_mut(id)
        {
            service.failed = Some(outcome);
        }
        outcome
    }

    /// Ends a read of a peer. If it failed, a response tells so; else the bytes do.
    pub fn end_service(&mut self, id: SlotId) {
        let Some(service) = self.services.remove(id) else { return };
        if let Some(peer) = self.peers.get_mut(&service.ep) {
            peer.serving -= 1;
        }
        if let Some(outcome) = service.failed {
            self.decide(service.ep, service.head.token.get(), outcome);
        }
    }
}

impl Source for State {
    fn fetch(&mut self, token: u64, offset: u32, to: &mut [u8]) -> bool {
        let id = SlotId::from_raw(token as u32);
        let Some(request) = self.requests.get_mut(id) else {
            return self.fetch_for_peer(id, offset, to) == OK;
        };
        let is_there = match &request.bytes {
            Bytes::Staged(buffer) => {
                let from = buffer.get(offset as usize..).and_then(|from| from.get(..to.len()));
                from.map(|from| to.copy_from_slice(from)).is_some()
            }
            Bytes::Source(range) => range.read(offset, to),
            Bytes::Sent | Bytes::Target(_) => false,
        };
        request.lost |= !is_there;
        is_there
    }

    fn on_copied(&mut self, token: u64) {
        let id = SlotId::from_raw(token as u32);
        let Some(request) = self.requests.get_mut(id) else { return self.end_service(id) };
        let (ep, lost) = (request.ep, request.lost);
        if let Bytes::Staged(buffer) = std::mem::replace(&mut request.bytes, Bytes::Sent) {
            self.recycle(buffer);
        }
        if lost {
            // The far side drops what has come.
            self.end_request(ep, id.raw(), OK);
        }
    }
}
