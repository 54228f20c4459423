//! State of a worker's streams: unread bytes and waiting receives. Holds no reference to the worker.

#![allow(unsafe_code)]

use std::collections::VecDeque;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::api::core::error::Error;
use crate::api::core::requests::{RequestId, Requests};

use crate::rdm::io::PeerId;
use crate::rdm::{OpError, RecvBuf, RecvStatus};
use crate::token::StreamId;

/// Condition that completes a receive from a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StreamRecvMode {
    /// At least one byte has been received.
    Some,
    /// The buffer is full.
    WaitAll,
    /// At least one element of this many bytes has been received, and no part of another: what is left of the
    /// bytes stays for the next receive. The buffer has room for whole elements. 0 is as 1.
    Elements(usize),
}

pub(crate) struct Waiter {
    pub(crate) id: RequestId,
    pub(crate) buf: RecvBuf,
    pub(crate) len: usize,
    pub(crate) filled: usize,
    pub(crate) mode: StreamRecvMode,
    /// It waits for what the engine fills it with now, and for nothing else: no endpoint is left.
    pub(crate) is_last: bool,
}

impl Waiter {
    fn is_complete(&self) -> bool {
        self.is_last || self.filled == self.len || self.filled >= self.least()
    }

    /// Result of a receive that ends before it is complete: what it holds, of which part of an element is
    /// nothing.
    pub(crate) fn cut_short(&self, from: PeerId) -> Result<RecvStatus, Error> {
        let least = if let StreamRecvMode::Elements(size) = self.mode { size } else { 1 };
        let status = RecvStatus { len: self.filled, tag: 0, from, cq_data: None };
        if self.filled >= least.max(1) { Ok(status) } else { Err(Error::Cancelled) }
    }

    /// Bytes that end the receive, if the buffer has room for more.
    fn least(&self) -> usize {
        match self.mode {
            StreamRecvMode::Some => 1,
            StreamRecvMode::WaitAll => self.len,
            StreamRecvMode::Elements(size) => size.max(1),
        }
    }

    /// Bytes of those that are there that go to the buffer next.
    fn room_for(&self, there: usize) -> usize {
        let n = there.min(self.len - self.filled);
        match self.mode {
            StreamRecvMode::Elements(size) if size > 1 => {
                // Of the first element, any part. Behind it, whole ones.
                let end = self.filled + n;
                let whole = end - end % size;
                if whole == 0 { n } else { whole.saturating_sub(self.filled) }
            }
            _ => n,
        }
    }

    /// Whether a message of this length may be received into the buffer as a whole.
    pub(crate) fn has_room_for_all(&self, len: usize) -> bool {
        let has_room = len <= self.len - self.filled;
        has_room && self.buf.piece().is_some() && self.room_for(len) == len
    }
}

/// Destination of a stream message that is being received, and the message's length in bytes.
pub(crate) enum InflightRecv {
    /// The buffer of the first waiter.
    Direct(usize),
    /// A vector, as no waiter has contiguous memory for all of it.
    Buffered(Vec<u8>, usize),
}

#[derive(Default)]
pub(crate) struct Stream {
    /// Received bytes; the first `read_pos` of them have been read.
    pub(crate) unread: Vec<u8>,
    pub(crate) read_pos: usize,
    pub(crate) inflight: Option<InflightRecv>,
    pub(crate) waiters: VecDeque<Waiter>,
    /// Reason of the end of the stream, other than the peer's failure.
    pub(crate) error: Option<Error>,
    /// Set when a message was lost.
    pub(crate) broken: bool,
    /// Number of the conversation with the peer.
    pub(crate) conversation: u32,
}

#[derive(Default)]
pub(crate) struct Streams {
    pub(crate) by_id: HashMap<StreamId, Stream, FxBuildHasher>,
    /// Streams with waiting receives.
    pub(crate) with_waiters: Vec<StreamId>,
    /// Streams that are over, with memory that the engine may still write to.
    pub(crate) ending: Vec<(StreamId, Stream)>,
}

impl Streams {
    /// Whether a peer has a stream, or one that is ending.
    pub(crate) fn has(&self, peer: PeerId) -> bool {
        self.by_id.keys().chain(self.ending.iter().map(|(of, _)| of)).any(|of| of.peer == peer)
    }

    /// Whether a receive is waiting.
    // HOT
    #[inline(always)]
    pub(crate) fn has_waiters(&self) -> bool {
        !self.with_waiters.is_empty()
    }

    /// Gives a message to the waiting receive, if nothing precedes it, and keeps the rest.
    // HOT
    #[inline]
    pub(crate) fn try_deliver(&mut self, id: StreamId, bytes: &[u8], reqs: &mut Requests) -> bool {
        if self.with_waiters.is_empty() {
            return false;
        }
        let Some(stream) = self.by_id.get_mut(&id) else { return false };
        let is_next = stream.inflight.is_none() && !stream.broken && stream.read_pos == stream.unread.len();
        if !is_next || stream.waiters.is_empty() || bytes.is_empty() {
            return false;
        }
        stream.copy_packet(bytes);
        stream.fill_waiters(id.peer, reqs);
        if stream.waiters.is_empty() {
            self.with_waiters.retain(|of| *of != id);
        }
        true
    }
}

impl Stream {
    /// Copies a message into the first waiter's buffer and keeps the rest. Earlier bytes must have been read.
    #[inline]
    pub(crate) fn copy_packet(&mut self, bytes: &[u8]) {
        let Some(waiter) = self.waiters.front_mut() else { return };
        let n = waiter.room_for(bytes.len());
        waiter.buf.put(waiter.filled as u64, &bytes[..n]);
        waiter.filled += n;
        self.unread.clear();
        self.unread.extend_from_slice(&bytes[n..]);
        self.read_pos = 0;
    }

    /// Copies unread bytes to waiters, and ends complete ones.
    // HOT
    pub(crate) fn fill_waiters(&mut self, peer: PeerId, reqs: &mut Requests) {
        // Only the engine writes to the buffer of a direct receive.
        while !matches!(self.inflight, Some(InflightRecv::Direct(_)))
            && let Some(waiter) = self.waiters.front_mut()
        {
            let unread = &self.unread[self.read_pos..];
            let n = waiter.room_for(unread.len());
            waiter.buf.put(waiter.filled as u64, &unread[..n]);
            self.read_pos += n;
            waiter.filled += n;
            if !waiter.is_complete() && waiter.len > 0 {
                break;
            }
            let status = RecvStatus { len: waiter.filled, tag: 0, from: peer, cq_data: None };
            let ended = match waiter.buf.error() {
                Some(error) => Err(Error::Datatype(error)),
                None if waiter.is_last => waiter.cut_short(peer),
                None => Ok(status),
            };
            reqs.end(waiter.id, ended);
            self.waiters.pop_front();
        }
        if self.read_pos == self.unread.len() {
            self.unread.clear();
            self.read_pos = 0;
        }
    }

    pub(crate) fn on_recv_done(&mut self, result: Result<(), OpError>) {
        match (self.inflight.take(), result) {
            (_, Err(error)) => {
                self.error = Some(error.into());
                self.broken = true;
                // The first receive ends with the error, as all others.
                self.waiters.iter_mut().for_each(|waiter| waiter.is_last = false);
            }
            (Some(InflightRecv::Direct(len)), Ok(())) => {
                if let Some(waiter) = self.waiters.front_mut() {
                    waiter.filled += len;
                }
            }
            (Some(InflightRecv::Buffered(mut bytes, len)), Ok(())) => {
                // SAFETY: the engine has written `len` bytes, and the capacity is at least `len`.
                unsafe { bytes.set_len(len) };
                self.unread = bytes;
                self.read_pos = 0;
            }
            (None, Ok(())) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::core::requests::{RequestParams, Role};

    /// The engine fills a receive of elements directly when its last endpoint is closed.
    #[test]
    fn a_receive_that_is_cut_short_ends_with_whole_elements() {
        let from = PeerId(3);
        for (mode, first, then, wanted) in [
            (StreamRecvMode::Elements(8), 0, 3, Err(Error::Cancelled)),
            (StreamRecvMode::Elements(8), 3, 5, Ok(8)),
            (StreamRecvMode::WaitAll, 0, 3, Ok(3)),
        ] {
            let (mut reqs, mut room) = (Requests::new(RequestParams::default()), [0u8; 16]);
            let token = reqs.next_token().unwrap();
            let id = reqs.start(token, Role::Stream, None);
            // SAFETY: the buffer lives longer than the stream, and nobody else uses it.
            let buf = unsafe { RecvBuf::new(room.as_mut_ptr(), room.len()) };
            let mut stream = Stream { inflight: Some(InflightRecv::Direct(then)), ..Stream::default() };
            stream.waiters.push_back(Waiter { id, buf, len: 16, filled: first, mode, is_last: true });
            stream.on_recv_done(Ok(()));
            stream.fill_waiters(from, &mut reqs);
            assert_eq!(reqs.take(id).map(|ended| ended.map(|status| status.len)), Some(wanted), "{mode:?}");
        }
    }
}
