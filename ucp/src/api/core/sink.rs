//! What is noted at once while packets are taken in, instead of being told in turn: the ends of receives that nobody is
//! called at, short active messages, and bytes of a stream that somebody waits for.
//! Lent to the engine, or to its wire, by `core` for one poll. Runs no user code: handlers are called by `Worker::progress` behind it.

use crate::api::am::queue::AmQueue;
use crate::api::core::requests::Requests;
use crate::api::stream::state::Streams;

use crate::rdm::RecvStatus;
use crate::rdm::io::{PeerId, ReceiveSink};
use crate::wire::MsgClass;

/// The ways in.
pub(crate) struct Inlet<'a> {
    pub reqs: &'a mut Requests,
    pub streams: &'a mut Streams,
    pub ams: &'a AmQueue,
}

impl ReceiveSink for Inlet<'_> {
    // HOT
    #[inline(always)]
    fn received(&mut self, user: u64, status: RecvStatus) -> bool {
        self.reqs.note_received(user, status)
    }

    // HOT
    #[inline(always)]
    fn deliver(&mut self, class: MsgClass, from: PeerId, tag: u64, payload: &[u8]) -> bool {
        match class {
            MsgClass::Am => self.ams.take_in(from, tag, payload),
            MsgClass::Stream => self.streams.take_in(from, payload, self.reqs),
            MsgClass::Message | MsgClass::AmData => false,
        }
    }
}
