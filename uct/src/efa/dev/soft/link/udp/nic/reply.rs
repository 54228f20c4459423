//! Responses to requests of peers, and bytes that peers read.

use super::super::head::{OpHead, Response, op};
use super::{Nic, OK};
use ucs::coll::slots::SlotId;
use usnic::EpId;
use zerocopy::IntoBytes;

/// Replies to a peer that wait in the engine, at most; about as many, for a batch of responses may be
/// several.
const MAX_REPLIES: u32 = 256;

impl Nic {
    /// Whether the engine is given replies to this peer. While it does not acknowledge those that it has,
    /// they wait here, where they are bounded: reads by their number, responses by [`State::max_responses`].
    pub(super) fn takes_replies(&self, ep: EpId) -> bool {
        self.module.replies(ep) < MAX_REPLIES
    }

    /// Goes on with replies that waited, of peers that take some now.
    pub(super) fn resume_replies(&mut self, now: u64) {
        for _ in 0..self.state.held_replies.len() {
            let Some(ep) = self.state.held_replies.pop_front() else { return };
            if !self.takes_replies(ep) {
                self.state.held_replies.push_back(ep);
                continue;
            }
            if let Some(peer) = self.state.peers.get_mut(&ep) {
                peer.is_held = false;
                self.state.mark_dirty(ep);
                self.send_responses(now, ep);
            }
        }
    }

    pub(super) fn send_all_responses(&mut self, now: u64) {
        while let Some(ep) = self.state.with_responses.pop() {
            match self.takes_replies(ep) {
                true => self.send_responses(now, ep),
                false => self.state.hold_replies(ep),
            }
        }
    }

    /// Ends connections to peers that have asked for more than any device does, and acknowledge nothing.
    pub(super) fn close_over_limit_peers(&mut self) {
        while let Some(ep) = self.state.over_limit.pop() {
            if let Some(peer) = self.state.peers.get(&ep) {
                tracing::warn!(
                    "the connection to {} (fe80::{:x}) is closed: it has made {} requests whose outcomes it does not \
                     acknowledge",
                    peer.addr,
                    peer.iid,
                    peer.responses.len()
                );
            }
            self.module.disconnect(ep, &mut self.state);
        }
    }

    fn send_responses(&mut self, now: u64, ep: EpId) {
        let Some(peer) = self.state.peers.get_mut(&ep) else { return };
        let mut responses = std::mem::take(&mut peer.responses);
        let most = self.module.longest_small(ep).min(self.module.config().tiny as usize) / Response::LEN;
        for some in responses.chunks(most.max(1)) {
            let head = OpHead::new(op::RESPONSES, 0).bytes();
            if let Ok(Some(posted)) = self.module.send_reply(now, ep, &head, [some.as_bytes(), &[]]) {
                self.queue(now, posted);
            }
        }
        responses.clear();
        if let Some(peer) = self.state.peers.get_mut(&ep) {
            peer.responses = responses;
        }
    }

    /// Begins to send the bytes of a read.
    pub(super) fn serve_read(&mut self, now: u64, id: SlotId) {
        let Some(service) = self.state.services.get(id) else { return };
        let (ep, len, token) = (service.ep, service.head.arg.get(), service.head.token.get());
        let head = OpHead::new(op::READ_DATA, token).bytes();
        if len as usize > self.module.longest_small(ep) {
            if self.module.send_large(now, ep, &head, len, id.raw().into()).is_err() {
                self.state.end_service(id);
            }
            return;
        }
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        bytes.resize(len as usize, 0);
        if self.state.fetch_for_peer(id, 0, &mut bytes) == OK
            && let Ok(Some(posted)) = self.module.send_reply(now, ep, &head, [&bytes, &[]])
        {
            self.queue(now, posted);
        }
        self.scratch = bytes;
        self.state.end_service(id);
    }
}
