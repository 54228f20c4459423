//! Completions handled while packets are received, without engine events. Runs no user code.

use crate::api::am::queue::AmQueue;
use crate::api::core::requests::Requests;
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
