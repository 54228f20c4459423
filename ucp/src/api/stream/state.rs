//! State of a worker's streams by peer: unread bytes and waiting receives. Holds no reference to the worker.

#![allow(unsafe_code)]

use std::collections::VecDeque;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use ucs::coll::slots::SlotId;

use crate::api::core::error::Error;
use crate::api::core::requests::{Ended, Requests};

use crate::rdm::io::PeerId;
use crate::rdm::{OpError, RecvBuf, RecvStatus};

/// Condition that completes a receive from a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamRecvMode {
    /// At least one byte has been received.
    Some,
    /// The buffer is full.
    WaitAll,
}

pub(crate) struct Waiter {
    pub(crate) id: SlotId,
    pub(crate) buf: RecvBuf,
    pub(crate) len: usize,
    pub(crate) filled: usize,
    pub(crate) until: StreamRecvMode,
}

impl Waiter {
    fn is_served(&self) -> bool {
        self.filled == self.len || self.filled > 0 && self.until == StreamRecvMode::Some
    }
}

/// Destination of a stream message that is being received, and the message's length in bytes.
pub(crate) enum Pull {
    /// The buffer of the first waiter.
    Direct(usize),
    /// A vector of its own.
    Own(Vec<u8>, usize),
}

#[derive(Default)]
pub(crate) struct Stream {
    /// Received bytes; those from `at` on are unread.
    pub(crate) left: Vec<u8>,
    pub(crate) at: usize,
    pub(crate) pull: Option<Pull>,
    pub(crate) waiters: VecDeque<Waiter>,
    /// Reason of the end of the stream, other than the peer's failure.
    pub(crate) failed: Option<Error>,
    /// Set when a message was lost.
    pub(crate) broken: bool,
}

#[derive(Default)]
pub(crate) struct Streams {
    pub(crate) from: HashMap<PeerId, Stream, FxBuildHasher>,
    pub(crate) ended: VecDeque<(SlotId, Ended)>,
    /// Peers with waiting receives.
    pub(crate) waited: Vec<PeerId>,
}

impl Streams {
    /// Whether no result is pending. // HOT
    #[inline(always)]
    pub(crate) fn is_idle(&self) -> bool {
        self.ended.is_empty()
    }

    /// Whether a receive is waiting. // HOT
    #[inline(always)]
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.waited.is_empty()
    }

    /// Whether no receive is waiting and no result is pending. // HOT
    #[inline(always)]
    pub(crate) fn is_settled(&self) -> bool {
        self.ended.is_empty() && self.waited.is_empty()
    }

    /// Gives a message to the waiting receive, if nothing precedes it, and keeps the rest. // HOT
    #[inline]
    pub(crate) fn try_deliver(&mut self, from: PeerId, bytes: &[u8], reqs: &mut Requests) -> bool {
        if self.waited.is_empty() {
            return false;
        }
        let Some(stream) = self.from.get_mut(&from) else { return false };
        let clear = stream.pull.is_none() && !stream.broken && stream.at == stream.left.len();
        if !clear || stream.waiters.is_empty() || bytes.is_empty() {
            return false;
        }
        stream.take(bytes);
        stream.hand_out(from, &mut self.ended, reqs);
        if stream.waiters.is_empty() {
            self.waited.retain(|peer| *peer != from);
        }
        true
    }

    pub(crate) fn next_ended(&mut self) -> Option<(SlotId, Ended)> {
        self.ended.pop_front()
    }
}

impl Stream {
    /// Copies a message into the first waiter's buffer and keeps the rest. All earlier bytes have been read.
    #[inline]
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        let Some(waiter) = self.waiters.front_mut() else { return };
        let n = bytes.len().min(waiter.len - waiter.filled);
        waiter.buf.put(waiter.filled as u64, &bytes[..n]);
        waiter.filled += n;
        self.left.clear();
        self.left.extend_from_slice(&bytes[n..]);
        self.at = 0;
    }

    /// Gives unread bytes to waiters; served ones end in `reqs`, or in `ended` with a callback. // HOT
    pub(crate) fn hand_out(
        &mut self,
        peer: PeerId,
        ended: &mut VecDeque<(SlotId, Ended)>,
        reqs: &mut Requests,
    ) {
        // Only the engine writes to the buffer of a direct receive.
        while !matches!(self.pull, Some(Pull::Direct(_)))
            && let Some(waiter) = self.waiters.front_mut()
        {
            let left = &self.left[self.at..];
            let n = left.len().min(waiter.len - waiter.filled);
            waiter.buf.put(waiter.filled as u64, &left[..n]);
            self.at += n;
            waiter.filled += n;
            if !waiter.is_served() && waiter.len > 0 {
                break;
            }
            let status = RecvStatus { len: waiter.filled, tag: 0, from: peer, cq_data: None };
            // Keeps the order: a pending result holds back all later ones.
            if !ended.is_empty() || !reqs.note_received(u64::from(waiter.id.raw()), status) {
                ended.push_back((waiter.id, Ok(status)));
            }
            self.waiters.pop_front();
        }
        if self.at == self.left.len() {
            self.left.clear();
            self.at = 0;
        }
    }

    pub(crate) fn pulled(&mut self, result: Result<(), OpError>) {
        match (self.pull.take(), result) {
            (_, Err(error)) => {
                self.failed = Some(error.into());
                self.broken = true;
            }
            (Some(Pull::Direct(len)), Ok(())) => {
                if let Some(waiter) = self.waiters.front_mut() {
                    waiter.filled += len;
                }
            }
            (Some(Pull::Own(mut bytes, len)), Ok(())) => {
                // SAFETY: the engine has written `len` bytes, and the capacity is at least `len`.
                unsafe { bytes.set_len(len) };
                self.left = bytes;
                self.at = 0;
            }
            (None, Ok(())) => {}
        }
    }
}
