//! A stream of bytes as a way for `mail`: receives of one message's length each are posted in advance, as many as the
//! window allows, and filled in order.

use ucp::{Ep, Started, Worker};

use super::mail::Way;
use super::ring::{Buffers, Message, Ring, failed};
use super::scattered::Scattered;
use crate::fail::Failure;
use crate::pattern;
use crate::spec::{Flow, Receive, Spec, Validate};

/// The way.
pub struct Bytes<'a> {
    ep: &'a Ep,
    size: usize,
    checks: bool,
    into: Option<Scattered>,
    receive: Receive,
    /// Of a message that has come in part, as the library's memory has it.
    part: Vec<u8>,
    room: Ring,
    /// The receive that is served next.
    next: usize,
    /// Receives that are not posted yet, of those expected; those that are.
    left: u64,
    posted: u64,
    come: u64,
}

impl<'a> Bytes<'a> {
    /// Nothing is expected yet.
    pub fn new(spec: &Spec, worker: &Worker, ep: &'a Ep) -> Result<Self, Failure> {
        let window = if spec.test.flow() == Flow::PingPong { 1 } else { spec.window as usize };
        let checks = spec.validate == Validate::Yes;
        // What comes in memory of the library's is scattered by us.
        let into = match spec.receive {
            Receive::Data => Scattered::of_receiver(spec)?,
            Receive::Recv => None,
        };
        // What is looked at must not be written by the next one meanwhile.
        let buffers = if checks || into.is_some() { Buffers::Each } else { Buffers::One };
        let room = Ring::of_receiver(spec, worker, window, buffers)?;
        let (size, receive) = (spec.size(), spec.receive);
        Ok(Bytes {
            ep,
            size,
            checks,
            into,
            receive,
            part: Vec::new(),
            room,
            next: 0,
            left: 0,
            posted: 0,
            come: 0,
        })
    }

    /// A message has come into a buffer of ours. HOT
    #[inline(always)]
    fn arrived_in(&mut self, slot: usize) -> Result<(), Failure> {
        if self.into.is_none() && !self.checks {
            self.come += 1;
            return Ok(());
        }
        let mut message = std::mem::take(&mut self.part);
        message.clear();
        message.extend_from_slice(&self.room.received(slot));
        let seen = self.arrived(&message);
        message.clear();
        self.part = message;
        seen
    }

    /// A message has come. HOT
    #[inline(always)]
    fn arrived(&mut self, message: &[u8]) -> Result<(), Failure> {
        let mut back = None;
        if let Some(into) = &mut self.into {
            into.scatter(message);
            back = into.back(message.len());
        }
        if self.checks {
            let message = back.as_deref().unwrap_or(message);
            pattern::check(message, self.come, self.size).map_err(Failure::Corrupt)?;
        }
        self.come += 1;
        Ok(())
    }

    /// Takes what there is, cut into messages as they were sent. HOT
    fn take(&mut self) -> Result<(), Failure> {
        while let Some(data) = self.ep.stream_recv_data().map_err(failed)? {
            let mut rest = &data[..];
            while self.part.len() + rest.len() >= self.size {
                let (head, after) = rest.split_at(self.size - self.part.len());
                rest = after;
                if self.part.is_empty() {
                    self.arrived(head)?;
                    continue;
                }
                let mut whole = std::mem::take(&mut self.part);
                whole.extend_from_slice(head);
                self.arrived(&whole)?;
                whole.clear();
                self.part = whole;
            }
            self.part.extend_from_slice(rest);
        }
        Ok(())
    }

    #[inline(always)]
    fn post(&mut self, slot: usize) -> Result<(), Failure> {
        (self.left, self.posted) = (self.left - 1, self.posted + 1);
        self.room.stream_recv(slot, self.ep)
    }
}

impl Way for Bytes<'_> {
    fn expect(&mut self, count: u64) -> Result<(), Failure> {
        (self.left, self.posted, self.come, self.next) = (count, 0, 0, 0);
        if self.receive == Receive::Data {
            return Ok(());
        }
        let window = self.room.len();
        (0..window.min(usize::try_from(count).unwrap_or(window))).try_for_each(|slot| self.post(slot))
    }

    #[inline(always)]
    unsafe fn send(&mut self, message: Message<'_>) -> Result<Started<()>, ucp::Error> {
        match message {
            // SAFETY: this function's contract.
            Message::One(at, len) => unsafe { self.ep.stream_send_raw(at, len, None) },
            // SAFETY: this function's contract.
            Message::Pieces(pieces) => unsafe { self.ep.stream_send_iov_raw(pieces, None) },
        }
    }

    #[inline(always)]
    fn come(&mut self) -> Result<u64, Failure> {
        if self.receive == Receive::Data {
            self.take()?;
        }
        while self.posted > 0 && self.room.poll(self.next)?.is_some() {
            let slot = self.next;
            self.next = if slot + 1 == self.room.len() { 0 } else { slot + 1 };
            self.posted -= 1;
            self.arrived_in(slot)?;
            if self.left > 0 {
                self.post(slot)?;
            }
        }
        Ok(self.come)
    }
}
