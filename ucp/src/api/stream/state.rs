//! Streams of a worker by peer: bytes that have come and receives that wait. Holds no reference to the worker.

use std::collections::VecDeque;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use ucs::coll::slots::SlotId;

use crate::api::core::error::Error;
use crate::api::core::requests::{Ended, Requests};

use crate::rdm::io::PeerId;
use crate::rdm::{OpError, RecvBuf, RecvStatus};

/// When a receive from a stream is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamRecvMode {
    /// With what there is, at least one byte.
    Some,
    /// With the buffer full.
    WaitAll,
}

/// A receive from a stream.
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

/// A message of the stream that is being received.
pub(crate) enum Pull {
    /// Into the first waiter's buffer: so many bytes.
    Direct(usize),
    /// Into a buffer of ours: so many bytes.
    Own(Vec<u8>, usize),
}

/// The stream from one peer.
#[derive(Default)]
pub(crate) struct Stream {
    /// Bytes of a message that no receive has taken: from `at` on.
    pub(crate) left: Vec<u8>,
    pub(crate) at: usize,
    pub(crate) pull: Option<Pull>,
    pub(crate) waiters: VecDeque<Waiter>,
    /// Why nothing more is received of it, beside the peer's failure.
    pub(crate) failed: Option<Error>,
    /// A piece was lost: nothing behind it is received.
    pub(crate) broken: bool,
}

/// The streams of a worker.
#[derive(Default)]
pub(crate) struct Streams {
    pub(crate) from: HashMap<PeerId, Stream, FxBuildHasher>,
    /// Receives that are served and not settled.
    pub(crate) ended: VecDeque<(SlotId, Ended)>,
    /// Peers somebody waits for.
    pub(crate) waited: Vec<PeerId>,
}

impl Streams {
    /// Whether no end is to be told. // HOT
    #[inline(always)]
    pub(crate) fn is_idle(&self) -> bool {
        self.ended.is_empty()
    }

    /// Whether somebody waits. // HOT
    #[inline(always)]
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.waited.is_empty()
    }

    /// Whether nobody waits and no end is to be told. // HOT
    #[inline(always)]
    pub(crate) fn is_settled(&self) -> bool {
        self.ended.is_empty() && self.waited.is_empty()
    }

    /// Takes a message of the stream from `from` in, if somebody waits for nothing but it; what does not fit is left for the next
    /// receive. // HOT
    #[inline]
    pub(crate) fn take_in(&mut self, from: PeerId, bytes: &[u8], reqs: &mut Requests) -> bool {
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

    /// The next receive to settle.
    pub(crate) fn next_ended(&mut self) -> Option<(SlotId, Ended)> {
        self.ended.pop_front()
    }
}

impl Stream {
    /// Bytes of a message, from a packet: to the first waiter what he has room for, the rest is left. Nothing was left before.
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

    /// Gives what is left to those who wait, and ends the ones that are served: in `reqs` those that nobody is called at, by
    /// `ended` the others. // HOT
    pub(crate) fn hand_out(
        &mut self,
        peer: PeerId,
        ended: &mut VecDeque<(SlotId, Ended)>,
        reqs: &mut Requests,
    ) {
        // A buffer that a message is coming into is not touched meanwhile.
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
            // They end in their order: those that are told of later hold back the rest.
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

    /// A pull has ended.
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
                // SAFETY: the engine has written `len` bytes into the vector's room, which is at least as long.
                unsafe { bytes.set_len(len) };
                self.left = bytes;
                self.at = 0;
            }
            (None, Ok(())) => {}
        }
    }
}
