//! Multi-receives: one posted buffer that takes message after message until less than a minimum is left.
//! Called by `api` through the public methods, by `recv` when something matches.
//!
//! For every message that it matches, a multi-receive begins an ordinary receive into its part of the buffer,
//! so the protocols know nothing of it.

use ucs::coll::slots::SlotId;

use crate::rdm::Engine;
use crate::rdm::ids::OpId;
use crate::rdm::ids::PeerId;
use crate::rdm::io::Wire;
use crate::rdm::op::RecvBuf;
use crate::rdm::op::rx::{RecvRole, RxOp};
use crate::rdm::op::table::index_of;
use crate::rdm::peers::Peers;
use crate::rdm::peers::workers::WorkerSender;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::Kind;
use crate::rdm::recv::Recvs;
use crate::rdm::recv::receives;
use crate::rdm::status::OpError;
use crate::rdm::types::{EngineEvent, RecvArgs, Started};
use crate::wire::rtm::{Rtm, RtmBody};

/// A multi-receive: one buffer for many messages.
#[derive(Debug)]
pub struct MultiRecv {
    buf: RecvBuf,
    user: u64,
    kind: Kind,
    /// Bytes given to messages.
    used: usize,
    /// Closes when fewer bytes than this are left.
    min_len: usize,
    /// Messages being received into it.
    in_progress: u32,
    /// The posted receive that stands for it; `None` once it takes no more messages.
    posted: Option<SlotId>,
    /// How it ended, if by itself.
    end: Result<(), OpError>,
}

impl Engine {
    /// Posts a receive that takes every matching message until less than `min_len` bytes (at least one) of
    /// its buffer are left. Each message is an [`EngineEvent::MultiRecvMessage`];
    /// [`EngineEvent::MultiRecvDone`] follows when the buffer is free again.
    pub fn recv_multi<W: Wire>(&mut self, w: &mut W, r: RecvArgs, min_len: usize) -> Result<OpId, OpError> {
        if self.zcopy_recv.is_some() {
            return Err(OpError::Unsupported);
        }
        if r.buf.piece().is_none() && !r.buf.is_empty() {
            return Err(OpError::Invalid);
        }
        let (pattern, kind) = (r.kind.pattern(r.from), r.kind.kind());
        let min_len = min_len.max(1);
        let multi = MultiRecv {
            buf: r.buf,
            user: r.user,
            kind,
            used: 0,
            min_len,
            in_progress: 0,
            posted: None,
            end: Ok(()),
        };
        let multi = self.ops.recvs.multi_recvs.insert(multi).map_err(|_| OpError::NoResource)?;
        let make = |entry| RxOp {
            role: RecvRole::Multi(multi),
            ..RxOp::posted(RecvBuf::EMPTY, r.user, entry, kind)
        };
        let Some(id) = self.ops.recvs.post_expected(kind, pattern, make) else {
            self.ops.recvs.multi_recvs.remove(multi);
            return Err(OpError::NoResource);
        };
        if let Some(multi) = self.ops.recvs.multi_recvs.get_mut(multi) {
            multi.posted = Some(id);
        }
        while self.ops.recvs.multi_recvs.get(multi).is_some_and(|multi| multi.posted.is_some())
            && let Some(held) = self.ops.recvs.find_unexpected(&self.peers, kind, &pattern)
        {
            if self.ops.recvs.table.is_full() {
                self.ops.recvs.close_multi(&mut self.pending, multi, Err(OpError::NoResource));
                break;
            }
            let Some(len) = self.ops.recvs.unexpected.get(held).map(|held| held.envelope.len) else { break };
            let Some((buf, role)) = self.ops.recvs.reserve_multi(&mut self.pending, multi, len) else {
                break;
            };
            match receives::recv_unexpected(self, w, held, buf, r.user, role) {
                Started::Done(status) => {
                    self.ops.recvs.end_multi_message(&mut self.pending, role, Ok(status))
                }
                Started::Failed(error) => {
                    self.ops.recvs.end_multi_message(&mut self.pending, role, Err(error))
                }
                Started::Pending(_) => {}
            }
        }
        // What has come of it is taken; nothing more will come.
        if let Some(error) = r.from.and_then(|from| self.peers.drain_error(from)) {
            self.ops.recvs.close_multi(&mut self.pending, multi, Err(error));
        }
        Ok(OpId(id))
    }
}

impl Recvs {
    pub(in crate::rdm) fn finish_multi_if_done(&mut self, pending: &mut Pending, id: SlotId) {
        let Some(multi) = self.multi_recvs.get(id) else { return };
        if multi.in_progress == 0 && multi.posted.is_none() {
            let result = multi.end.map(|()| multi.used);
            pending.events.push_back(EngineEvent::MultiRecvDone { user: multi.user, result });
            self.multi_recvs.remove(id);
        }
    }

    /// Closes a multi-receive: it takes no more messages.
    pub(in crate::rdm) fn close_multi(
        &mut self,
        pending: &mut Pending,
        id: SlotId,
        end: Result<(), OpError>,
    ) {
        let Some(multi) = self.multi_recvs.get_mut(id) else { return };
        let Some(posted) = multi.posted.take() else { return };
        multi.end = end;
        if self.table.contains(posted) {
            self.match_queues[multi.kind as usize].expected.remove(&mut self.table, index_of(posted));
            self.table.remove(posted);
        }
        self.finish_multi_if_done(pending, id);
    }

    /// Ends the receive of one message.
    pub(in crate::rdm) fn end_multi_message(
        &mut self,
        pending: &mut Pending,
        role: RecvRole,
        result: Result<crate::rdm::RecvStatus, OpError>,
    ) {
        let RecvRole::Part(id, at) = role else { return };
        let Some(multi) = self.multi_recvs.get_mut(id) else { return };
        multi.in_progress -= 1;
        pending.events.push_back(EngineEvent::MultiRecvMessage { user: multi.user, at, result });
        self.finish_multi_if_done(pending, id);
    }

    /// Reserves buffer for a message of `len` bytes. Closes the multi-receive if too little is left.
    pub(in crate::rdm) fn reserve_multi(
        &mut self,
        pending: &mut Pending,
        id: SlotId,
        len: u64,
    ) -> Option<(RecvBuf, RecvRole)> {
        let multi = self.multi_recvs.get_mut(id)?;
        let (at, left) = (multi.used, multi.buf.len() - multi.used);
        let len = usize::try_from(len).map_or(left, |len| len.min(left));
        let buf = multi.buf.part(at, len);
        multi.used += len;
        multi.in_progress += 1;
        if left - len < multi.min_len {
            self.close_multi(pending, id, Ok(()));
        }
        Some((buf, RecvRole::Part(id, at)))
    }

    /// Takes the receive that matches this message, when there are multi-receives.
    pub(in crate::rdm) fn take_expected_multi(
        &mut self,
        peers: &Peers,
        pending: &mut Pending,
        kind: Kind,
        rtm: &Rtm<'_>,
        from: PeerId,
    ) -> Option<SlotId> {
        let expected = &mut self.match_queues[kind as usize].expected;
        let from = WorkerSender::new(peers, kind, from);
        let at = expected.find(&mut self.table, rtm.tag.unwrap_or(0), from)?;
        let id = self.table.id_at(at as usize)?;
        let Some(&RxOp { role: RecvRole::Multi(multi), user, .. }) = self.table.get(id) else {
            expected.remove(&mut self.table, at);
            return Some(id);
        };
        if self.table.is_full() {
            self.close_multi(pending, multi, Err(OpError::NoResource));
            return None;
        }
        let (buf, role) = self.reserve_multi(pending, multi, msg_len(rtm))?;
        self.table.insert(RxOp { role, ..RxOp::begun(buf, user, kind) }).ok()
    }
}

/// Returns the length of the whole message.
fn msg_len(rtm: &Rtm<'_>) -> u64 {
    match rtm.body {
        RtmBody::Eager => rtm.payload.len() as u64,
        RtmBody::Medium { msg_length, .. }
        | RtmBody::LongCts { msg_length, .. }
        | RtmBody::LongRead { msg_length, .. }
        | RtmBody::RuntRead { msg_length, .. } => msg_length,
    }
}
