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
use crate::rdm::peers::aliases::Aliases;
use crate::rdm::protocol::Kind;
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
        let multi = self.recvs.multi_recvs.insert(multi).map_err(|_| OpError::NoResource)?;
        let make = |entry| RxOp {
            role: RecvRole::Multi(multi),
            ..RxOp::posted(RecvBuf::EMPTY, r.user, entry, kind)
        };
        let Some(id) = self.post_expected(kind, pattern, make) else {
            self.recvs.multi_recvs.remove(multi);
            return Err(OpError::NoResource);
        };
        if let Some(multi) = self.recvs.multi_recvs.get_mut(multi) {
            multi.posted = Some(id);
        }
        while self.recvs.multi_recvs.get(multi).is_some_and(|multi| multi.posted.is_some())
            && let Some(held) = self.find_unexpected(kind, &pattern)
        {
            if self.recvs.table.is_full() {
                self.close_multi(multi, Err(OpError::NoResource));
                break;
            }
            let Some(len) = self.recvs.unexpected.get(held).map(|held| held.envelope.len) else { break };
            let Some((buf, role)) = self.reserve_multi(multi, len) else { break };
            match self.recv_unexpected(w, held, buf, r.user, role) {
                Started::Done(status) => self.end_multi_message(role, Ok(status)),
                Started::Failed(error) => self.end_multi_message(role, Err(error)),
                Started::Pending(_) => {}
            }
        }
        // What has come of it is taken; nothing more will come.
        if let Some(error) = r.from.and_then(|from| self.drain_error(from)) {
            self.close_multi(multi, Err(error));
        }
        Ok(OpId(id))
    }

    /// Takes the receive that matches this message, when there are multi-receives.
    pub(in crate::rdm) fn take_expected_multi(
        &mut self,
        kind: Kind,
        rtm: &Rtm<'_>,
        from: PeerId,
    ) -> Option<SlotId> {
        let expected = &mut self.recvs.match_queues[kind as usize].expected;
        let from = Aliases::new(&self.peers, kind).sender(from);
        let at = expected.find(&mut self.recvs.table, rtm.tag.unwrap_or(0), from)?;
        let id = self.recvs.table.id_at(at as usize)?;
        let Some(&RxOp { role: RecvRole::Multi(multi), user, .. }) = self.recvs.table.get(id) else {
            expected.remove(&mut self.recvs.table, at);
            return Some(id);
        };
        if self.recvs.table.is_full() {
            self.close_multi(multi, Err(OpError::NoResource));
            return None;
        }
        let (buf, role) = self.reserve_multi(multi, msg_len(rtm))?;
        self.recvs.table.insert(RxOp { role, ..RxOp::begun(buf, user, kind) }).ok()
    }

    /// Reserves buffer for a message of `len` bytes. Closes the multi-receive if too little is left.
    fn reserve_multi(&mut self, id: SlotId, len: u64) -> Option<(RecvBuf, RecvRole)> {
        let multi = self.recvs.multi_recvs.get_mut(id)?;
        let (at, left) = (multi.used, multi.buf.len() - multi.used);
        let len = usize::try_from(len).map_or(left, |len| len.min(left));
        let buf = multi.buf.part(at, len);
        multi.used += len;
        multi.in_progress += 1;
        if left - len < multi.min_len {
            self.close_multi(id, Ok(()));
        }
        Some((buf, RecvRole::Part(id, at)))
    }

    /// Closes a multi-receive: it takes no more messages.
    pub(in crate::rdm) fn close_multi(&mut self, id: SlotId, end: Result<(), OpError>) {
        let Some(multi) = self.recvs.multi_recvs.get_mut(id) else { return };
        let Some(posted) = multi.posted.take() else { return };
        multi.end = end;
        if self.recvs.table.contains(posted) {
            self.recvs.match_queues[multi.kind as usize]
                .expected
                .remove(&mut self.recvs.table, index_of(posted));
            self.recvs.table.remove(posted);
        }
        self.finish_multi_if_done(id);
    }

    /// Ends the receive of one message.
    pub(in crate::rdm) fn end_multi_message(
        &mut self,
        role: RecvRole,
        result: Result<crate::rdm::RecvStatus, OpError>,
    ) {
        let RecvRole::Part(id, at) = role else { return };
        let Some(multi) = self.recvs.multi_recvs.get_mut(id) else { return };
        multi.in_progress -= 1;
        self.pending.events.push_back(EngineEvent::MultiRecvMessage { user: multi.user, at, result });
        self.finish_multi_if_done(id);
    }

    fn finish_multi_if_done(&mut self, id: SlotId) {
        let Some(multi) = self.recvs.multi_recvs.get(id) else { return };
        if multi.in_progress == 0 && multi.posted.is_none() {
            let result = multi.end.map(|()| multi.used);
            self.pending.events.push_back(EngineEvent::MultiRecvDone { user: multi.user, result });
            self.recvs.multi_recvs.remove(id);
        }
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
