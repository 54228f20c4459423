//! Requests of this process: messages, writes and reads that it posts.

use super::super::head::{OpHead, RESPONSE_IN_HEAD, op};
use super::super::requests::{self, Bytes, LocalRange, Request};
use super::{Nic, Target};
use crate::efa::dev::DevStatus;
use crate::efa::dev::soft::link::shm::Shm;
use crate::efa::dev::soft::link::{Msg, Rdma, Sender, TryOutcome};
use usnic::{CHUNK_HEADER, EpId, SendError};

/// Bytes of requests of which the kernel is told without a poll.
const COALESCED: usize = 64 << 10;

impl Nic {
    /// Connection to a device, asked for if there is none.
    fn connect(&mut self, now: u64, iid: u64) -> Result<EpId, TryOutcome> {
        if let Some(&ep) = self.state.by_iid.get(&iid) {
            if self.state.peers.get(&ep).is_none_or(|peer| !peer.was_left) {
                return Ok(ep);
            }
            // The peer has ended this connection.
            self.module.disconnect(ep, &mut self.state);
        }
        let addr = self.state.addr_of(iid).ok_or(TryOutcome::Done(DevStatus::Unreachable))?;
        let ep = self.module.connect(now, iid).ok_or(TryOutcome::Busy)?;
        self.state.add_peer(ep, iid, addr);
        Ok(ep)
    }

    fn head(op: u8, from: Sender, to: &Target) -> OpHead {
        let mut head = OpHead::new(op, 0).with_kind(from.kind);
        head.src_qpn.set(from.qpn);
        head.dst_qpn.set(to.qpn);
        head.qkey.set(to.qkey);
        head
    }

    /// Starts a request: its first bytes go now, if windows allow.
    fn start(
        &mut self,
        now: u64,
        ep: EpId,
        qpn: u16,
        mut head: OpHead,
        len: u32,
        bytes: Bytes,
    ) -> TryOutcome {
        let large = matches!(bytes, Bytes::Staged(_) | Bytes::Source(_));
        let Ok(id) = self.state.requests.insert(Request { ep, qpn, bytes, lost: false }) else {
            return TryOutcome::Busy;
        };
        head.token.set(id.raw());
        if head.op == op::SEND
            && self.module.features(ep) & RESPONSE_IN_HEAD != 0
            && let Some(response) = self.state.take_only_response(ep)
        {
            head = head.with_response(response);
        }
        let sent = if large {
            self.module.send_large(now, ep, &head.bytes(), len, id.raw().into()).map(|()| None)
        } else {
            self.module.send(now, ep, &head.bytes(), [&self.scratch, &[]])
        };
        match sent {
            Ok(posted) => posted.into_iter().for_each(|posted| self.queue(now, posted)),
            Err(SendError::Gone | SendError::TooLong) => {
                self.state.requests.remove(id);
                return TryOutcome::Busy;
            }
        }
        if let Some(peer) = self.state.peers.get_mut(&ep) {
            peer.outstanding += 1;
        }
        self.state.mark_dirty(ep);
        // The first request since the last poll goes at once. Those that follow it go in batches, at the
        // latest with the next poll of a program that polls.
        self.coalesced += len as usize + CHUNK_HEADER;
        let waits = std::mem::replace(&mut self.has_posted, true) && self.is_polled;
        if !waits || self.coalesced >= COALESCED {
            self.coalesced = 0;
            self.send_all_responses(now);
            self.flush(now);
        }
        TryOutcome::Pending(id.raw())
    }

    /// Sends a message.
    pub fn send(&mut self, now: u64, to: &Target, from: Sender, msg: &Msg<'_>) -> TryOutcome {
        self.state.now = now;
        let ep = match self.connect(now, to.iid) {
            Ok(ep) => ep,
            Err(outcome) => return outcome,
        };
        let head = Nic::head(op::SEND, from, to).with_imm(msg.imm);
        let len = msg.len() as usize;
        let bytes = if len <= self.module.longest_small(ep) {
            self.scratch.resize(len, 0);
            if !requests::copy_message(msg, &mut self.scratch) {
                return TryOutcome::Done(DevStatus::InvalidLkey);
            }
            Bytes::Sent
        } else {
            let mut buffer = self.state.buffer(len);
            if !requests::copy_message(msg, &mut buffer) {
                return TryOutcome::Done(DevStatus::InvalidLkey);
            }
            Bytes::Staged(buffer)
        };
        self.start(now, ep, from.qpn, head, msg.len(), bytes)
    }

    /// Writes remote memory.
    pub fn write(
        &mut self,
        now: u64,
        (to, dev): (&Target, &Shm),
        from: Sender,
        rdma: &Rdma,
        imm: Option<u32>,
    ) -> TryOutcome {
        self.state.now = now;
        let ep = match self.connect(now, to.iid) {
            Ok(ep) => ep,
            Err(outcome) => return outcome,
        };
        let mut head = Nic::head(op::WRITE, from, to).with_imm(imm);
        head.rkey.set(rdma.rkey);
        head.raddr.set(rdma.raddr);
        let bytes = if rdma.len as usize <= self.module.longest_small(ep) {
            self.scratch.resize(rdma.len as usize, 0);
            if !requests::copy_checked(rdma, &mut self.scratch) {
                return TryOutcome::Done(DevStatus::InvalidLkey);
            }
            Bytes::Sent
        } else {
            Bytes::Source(LocalRange::new(dev, rdma))
        };
        self.start(now, ep, from.qpn, head, rdma.len, bytes)
    }

    /// Reads remote memory.
    pub fn read(&mut self, now: u64, (to, dev): (&Target, &Shm), from: Sender, rdma: &Rdma) -> TryOutcome {
        self.state.now = now;
        let ep = match self.connect(now, to.iid) {
            Ok(ep) => ep,
            Err(outcome) => return outcome,
        };
        let mut head = Nic::head(op::READ, from, to);
        head.rkey.set(rdma.rkey);
        head.raddr.set(rdma.raddr);
        head.arg.set(rdma.len);
        self.scratch.clear();
        let bytes = Bytes::Target(LocalRange::new(dev, rdma));
        self.start(now, ep, from.qpn, head, 0, bytes)
    }
}
