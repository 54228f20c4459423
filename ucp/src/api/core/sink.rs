//! Completions handled while packets are received, without engine events. Runs no user code.

use crate::api::am::queue::AmQueue;
use crate::api::core::requests::{ReadyCall, Requests};
use crate::api::stream::state::Streams;

use crate::rdm::RecvStatus;
use crate::rdm::io::{PeerId, ReceiveSink};
use crate::token::StreamId;
use crate::wire::MsgClass;

pub(crate) struct CompletionSink<'a> {
    pub reqs: &'a mut Requests,
    pub streams: &'a mut Streams,
    pub am_queue: &'a AmQueue,
}

/// Completions of a send to oneself, which may take the callback of the receive to call it.
pub(crate) struct SelfSink<'a> {
    pub sink: CompletionSink<'a>,
    /// The callback may be taken.
    pub calls: bool,
    /// The callback that was taken.
    pub call: Option<ReadyCall>,
}

impl ReceiveSink for SelfSink<'_> {
    // HOT
    #[inline(always)]
    fn received(&mut self, user: u64, status: RecvStatus, is_next: bool) -> bool {
        if self.calls && is_next {
            self.call = self.sink.reqs.end_awaited_recv(user, status);
        }
        self.call.is_some() || self.sink.received(user, status, is_next)
    }

    #[inline(always)]
    fn deliver(&mut self, class: MsgClass, from: PeerId, tag: u64, payload: &[u8]) -> bool {
        self.sink.deliver(class, from, tag, payload)
    }
}

impl ReceiveSink for CompletionSink<'_> {
    // HOT
    #[inline(always)]
    fn received(&mut self, user: u64, status: RecvStatus, is_next: bool) -> bool {
        self.reqs.complete_recv(user, status, is_next)
    }

    // HOT
    #[inline(always)]
    fn deliver(&mut self, class: MsgClass, from: PeerId, tag: u64, payload: &[u8]) -> bool {
        match class {
            MsgClass::Am => self.am_queue.try_push(from, tag, payload),
            MsgClass::Stream => StreamId::of_message(from, tag)
                .is_some_and(|id| self.streams.try_deliver(id, payload, self.reqs)),
            MsgClass::Message | MsgClass::AmData => false,
        }
    }
}
