//! Handles arrivals: messages, writes, reads, bytes that were read, responses. Nothing of a datagram is
//! trusted: a length is compared with the memory it goes to, a token with the peer that was asked.

use super::super::{Msg, Rdma, RemoteQp, SendBuf, Sender, TryOutcome};
use super::head::{OpHead, Response, op};
use super::requests::{Arrival, ArrivalTo, Bytes, ReadService};
use super::size::header_len;
use super::state::State;
use crate::efa::dev::DevStatus;
use ucs::coll::slots::SlotId;
use usnic::auth::OVERHEAD;
use usnic::{CloseReason, EpId, Head, Sink};
use zerocopy::FromBytes;

/// Reads of one peer that are served at once, at most. Others are to be asked for again.
const MAX_SERVING: u32 = 4096;

const OK: TryOutcome = TryOutcome::Done(DevStatus::Ok);

impl State {
    fn iid(&self, ep: EpId) -> u64 {
        self.peers.get(&ep).map_or(0, |peer| peer.iid)
    }

    /// Delivers a message into a posted receive.
    fn deliver(&mut self, iid: u64, head: &OpHead, bytes: &[u8]) -> TryOutcome {
        let from = Sender { iid, qpn: head.src_qpn.get(), kind: head.kind() };
        let msg = Msg { bufs: [SendBuf::of(bytes), SendBuf::EMPTY], imm: head.imm() };
        let qkey = head.qkey.get();
        self.locals.with(self.me, (head.dst_qpn.get(), head.kind()), |qp| match qp.has_qkey(qkey) {
            true => qp.send(from, &msg),
            false => TryOutcome::Done(DevStatus::BadDestQpn),
        })
    }

    /// Writes bytes into registered memory, and delivers the immediate data of a whole write.
    fn store(
        &mut self,
        iid: u64,
        head: &OpHead,
        (offset, bytes): (u32, &[u8]),
        total: u32,
        imm: Option<u32>,
    ) -> TryOutcome {
        let from = Sender { iid, qpn: head.src_qpn.get(), kind: head.kind() };
        let Some(raddr) = head.raddr.get().checked_add(offset.into()) else {
            return TryOutcome::Done(DevStatus::RemoteBadAddress);
        };
        let (local, len) = (bytes.as_ptr().cast_mut(), bytes.len() as u32);
        let rdma = Rdma { local, len, raddr, rkey: head.rkey.get(), total, lkey: 0, pd: 0 };
        let qkey = head.qkey.get();
        self.locals.with(self.me, (head.dst_qpn.get(), head.kind()), |qp| match qp.has_qkey(qkey) {
            true => qp.write(from, &rdma, imm),
            false => TryOutcome::Done(DevStatus::BadDestQpn),
        })
    }

    /// Notes a read of a peer. Its bytes go when the present datagram is dealt with.
    fn on_read(&mut self, ep: EpId, head: OpHead) {
        let token = head.token.get();
        let Some(peer) = self.peers.get_mut(&ep) else { return };
        if peer.serving >= MAX_SERVING {
            return self.decide(ep, token, TryOutcome::Busy);
        }
        let service = ReadService { ep, iid: peer.iid, head, failed: None };
        let Ok(id) = self.services.insert(service) else { return self.decide(ep, token, TryOutcome::Busy) };
        peer.serving += 1;
        peer.to_serve.push_back(id);
        self.mark_dirty(ep);
    }

    /// Stores bytes that a request of this process reads from that peer. Returns whether there is one, of
    /// this length.
    fn on_read_data(&mut self, ep: EpId, token: u32, total: u32, offset: u32, bytes: &[u8]) -> bool {
        let Some(request) = self.requests.get_mut(SlotId::from_raw(token)) else { return false };
        let Bytes::Target(range) = &request.bytes else { return false };
        if request.ep != ep || range.len != total {
            return false;
        }
        request.lost |= !range.write(offset, bytes);
        true
    }

    /// Takes the response that a message has brought along.
    fn on_response_of(&mut self, ep: EpId, head: &OpHead) {
        if let Some(response) = head.response() {
            self.end_request(ep, response.token(), response.outcome());
        }
    }

    fn on_responses(&mut self, ep: EpId, payload: &[u8]) {
        let Ok(all) = <[Response]>::ref_from_bytes(payload) else { return };
        for response in all {
            self.end_request(ep, response.token(), response.outcome());
        }
    }
}

/// The end of a connection, in words for its user.
fn cause_of(death: CloseReason) -> &'static str {
    match death {
        CloseReason::Unreachable => {
            "it has never answered. Nobody listens there, a firewall drops the datagrams, or the two hosts have \
             different secrets (SOFTEFA_SECRET_FILE): `softefa doctor` tells which"
        }
        CloseReason::Unresponsive => "it no longer answers",
        CloseReason::Undelivered { .. } => "its path drops long datagrams",
        CloseReason::Restarted => "another process is at its address now",
        CloseReason::Left => "it has left",
        CloseReason::Violation => "it breaks the rules of the protocol",
        CloseReason::Disconnected => "the connection was closed here",
    }
}

impl Sink for State {
    fn on_accept(&mut self, ep: EpId, node: u64) {
        tracing::debug!("fe80::{node:x} at {} has connected", self.from);
        self.add_peer(ep, node, self.from);
    }

    fn on_dead(&mut self, ep: EpId, node: u64, why: CloseReason) {
        let status = match why {
            CloseReason::Unreachable => DevStatus::Unreachable,
            CloseReason::Unresponsive | CloseReason::Undelivered { .. } => DevStatus::Unresponsive,
            CloseReason::Restarted | CloseReason::Left => DevStatus::BadDestQpn,
            CloseReason::Violation => DevStatus::BadStatus,
            CloseReason::Disconnected => DevStatus::RemoteAbort,
        };
        if let CloseReason::Undelivered { len } = why {
            tracing::error!(
                "the path from {} to {} has become shorter: it drops datagrams of {len} bytes. Set SOFTEFA_UDP_MTU on both \
                 hosts to what `softefa doctor` says",
                self.ip,
                self.name_of(node)
            );
        } else if let Some(peer) = self.peers.get(&ep).filter(|peer| peer.outstanding != 0 && !peer.was_left)
        {
            tracing::warn!("connection to {} (fe80::{node:x}) lost: {}", peer.addr, cause_of(why));
        }
        self.end_peer(ep, status);
    }

    fn on_path(&mut self, _: EpId, node: u64, carried: u32, wanted: u32) {
        let of_sessions = if self.is_sealed { OVERHEAD as u32 } else { 0 };
        let [carried, wanted] = [carried, wanted].map(|len| len + of_sessions + header_len(self.ip));
        tracing::error!(
            "the path from {} to {} does not carry packets of {wanted} bytes, so they are of {carried}: \
             SOFTEFA_UDP_MTU={carried} on both hosts saves the search, and `softefa doctor` finds the best value",
            self.ip,
            self.name_of(node)
        );
    }

    fn on_frag(&mut self, ep: EpId, head: &Head, payload: &[u8]) {
        let (head, iid) = (OpHead::of(head), self.iid(ep));
        let token = head.token.get();
        self.on_response_of(ep, &head);
        match head.op {
            op::SEND => {
                let outcome = self.deliver(iid, &head, payload);
                self.decide(ep, token, outcome);
            }
            op::WRITE => {
                let outcome = self.store(iid, &head, (0, payload), payload.len() as u32, head.imm());
                self.decide(ep, token, outcome);
            }
            op::READ => self.on_read(ep, head),
            op::READ_DATA => {
                if self.on_read_data(ep, token, payload.len() as u32, 0, payload) {
                    self.end_request(ep, token, OK);
                }
            }
            op::RESPONSES => self.on_responses(ep, payload),
            _ => self.decide(ep, token, TryOutcome::Done(DevStatus::FeatureMismatch)),
        }
    }

    fn on_first_chunk(&mut self, ep: EpId, head: &Head, total: u32) -> Option<u64> {
        let (head, iid) = (OpHead::of(head), self.iid(ep));
        self.on_response_of(ep, &head);
        let to = match head.op {
            op::SEND if total <= self.mtu => ArrivalTo::Message(self.buffer(total as usize)),
            op::SEND => {
                self.decide(ep, head.token.get(), TryOutcome::Done(DevStatus::RemoteBadLength));
                return None;
            }
            op::WRITE => ArrivalTo::Memory(OK),
            op::READ_DATA if self.on_read_data(ep, head.token.get(), total, 0, &[]) => ArrivalTo::Read,
            _ => return None,
        };
        let id = self.arrivals.insert(Arrival { ep, iid, head, total, to }).ok()?;
        Some(id.raw().into())
    }

    fn on_chunk(&mut self, target: u64, offset: u32, bytes: &[u8]) {
        let id = SlotId::from_raw(target as u32);
        let Some(arrival) = self.arrivals.get_mut(id) else { return };
        let (ep, iid, head) = (arrival.ep, arrival.iid, arrival.head);
        match &mut arrival.to {
            ArrivalTo::Message(buffer) => {
                if let Some(to) = buffer.get_mut(offset as usize..).and_then(|to| to.get_mut(..bytes.len())) {
                    to.copy_from_slice(bytes);
                }
            }
            ArrivalTo::Memory(OK) => {
                let stored = self.store(iid, &head, (offset, bytes), 0, None);
                if stored != OK
                    && let Some(Arrival { to: ArrivalTo::Memory(outcome), .. }) = self.arrivals.get_mut(id)
                {
                    *outcome = stored;
                }
            }
            ArrivalTo::Memory(_) => {}
            ArrivalTo::Read => {
                let token = head.token.get();
                let total = arrival.total;
                self.on_read_data(ep, token, total, offset, bytes);
            }
        }
    }

    fn on_last_chunk(&mut self, ep: EpId, target: u64, _head: &Head, whole: bool) {
        let Some(arrival) = self.arrivals.remove(SlotId::from_raw(target as u32)) else { return };
        let token = arrival.head.token.get();
        match arrival.to {
            ArrivalTo::Message(buffer) => {
                if whole {
                    let outcome = self.deliver(arrival.iid, &arrival.head, &buffer);
                    self.decide(ep, token, outcome);
                }
                self.recycle(buffer);
            }
            // The requester knows that its source is gone.
            ArrivalTo::Memory(_) if !whole => {}
            ArrivalTo::Memory(outcome) => {
                let outcome = match (outcome, arrival.head.imm()) {
                    (OK, imm @ Some(_)) => {
                        self.store(arrival.iid, &arrival.head, (0, &[]), arrival.total, imm)
                    }
                    (outcome, _) => outcome,
                };
                self.decide(ep, token, outcome);
            }
            // Else a response follows.
            ArrivalTo::Read if whole => self.end_request(ep, token, OK),
            ArrivalTo::Read => {}
        }
    }
}
