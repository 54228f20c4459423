//! A byte stream as a message channel: receives of one message each are posted in advance, as many as the
//! window allows, and complete in order.

use ucp::{Ep, OpParams, OpStatus};

use super::message_io::MessageIo;
use super::scatter::ScatterBuffer;
use super::test_worker::TestWorker;
use super::waiter::op_failed;
use super::window::{Message, Sharing, WindowBuffers};
use crate::fail::Failure;
use crate::payload;
use crate::spec::{Flow, Receive, Spec, Validate};

pub struct StreamIo<'a> {
    ep: &'a Ep,
    size: usize,
    checks: bool,
    into: Option<ScatterBuffer>,
    receive: Receive,
    /// Start of a message whose rest has not arrived (`recv_data`).
    partial: Vec<u8>,
    buffers: WindowBuffers,
    /// Slot of the oldest posted receive.
    next: usize,
    /// Receives still to be posted, and posted ones.
    to_post: u64,
    posted: u64,
    received: u64,
}

impl<'a> StreamIo<'a> {
    pub fn new(spec: &Spec, worker: &TestWorker, ep: &'a Ep) -> Result<Self, Failure> {
        let window = if spec.test.flow() == Flow::PingPong { 1 } else { spec.window as usize };
        let checks = spec.validate == Validate::Yes;
        // Data in the library's memory are scattered here.
        let into = match spec.receive {
            Receive::Data => ScatterBuffer::of_receiver(spec)?,
            Receive::Recv => None,
        };
        // A buffer that is read must not be overwritten by the next message.
        let sharing = if checks || into.is_some() { Sharing::PerSlot } else { Sharing::Shared };
        let buffers = WindowBuffers::of_receiver(spec, worker, window, sharing)?;
        let (size, receive) = (spec.size(), spec.receive);
        Ok(StreamIo {
            ep,
            size,
            checks,
            into,
            receive,
            partial: Vec::new(),
            buffers,
            next: 0,
            to_post: 0,
            posted: 0,
            received: 0,
        })
    }

    // HOT
    #[inline(always)]
    fn arrived_in(&mut self, slot: usize) -> Result<(), Failure> {
        if self.into.is_none() && !self.checks {
            self.received += 1;
            return Ok(());
        }
        let mut message = std::mem::take(&mut self.partial);
        message.clear();
        message.extend_from_slice(&self.buffers.received(slot));
        let seen = self.arrived(&message);
        message.clear();
        self.partial = message;
        seen
    }

    // HOT
    #[inline(always)]
    fn arrived(&mut self, message: &[u8]) -> Result<(), Failure> {
        let mut gathered = None;
        if let Some(into) = &mut self.into {
            into.scatter(message);
            gathered = into.gathered(message.len());
        }
        if self.checks {
            let message = gathered.as_deref().unwrap_or(message);
            payload::check(message, self.received, self.size).map_err(Failure::Validation)?;
        }
        self.received += 1;
        Ok(())
    }

    /// Takes available data and cuts them into messages.
    // HOT
    fn take_data(&mut self) -> Result<(), Failure> {
        while let Some(data) =
            self.buffers.worker().call(|_| self.ep.stream_recv_data()).map_err(op_failed)?
        {
            let mut rest = &data[..];
            while self.partial.len() + rest.len() >= self.size {
                let (head, after) = rest.split_at(self.size - self.partial.len());
                rest = after;
                if self.partial.is_empty() {
                    self.arrived(head)?;
                    continue;
                }
                let mut whole = std::mem::take(&mut self.partial);
                whole.extend_from_slice(head);
                self.arrived(&whole)?;
                whole.clear();
                self.partial = whole;
            }
            self.partial.extend_from_slice(rest);
        }
        Ok(())
    }

    #[inline(always)]
    fn post(&mut self, slot: usize) -> Result<(), Failure> {
        (self.to_post, self.posted) = (self.to_post - 1, self.posted + 1);
        self.buffers.stream_recv(slot, self.ep)
    }
}

impl MessageIo for StreamIo<'_> {
    fn expect(&mut self, count: u64) -> Result<(), Failure> {
        (self.to_post, self.posted, self.received, self.next) = (count, 0, 0, 0);
        if self.receive == Receive::Data {
            return Ok(());
        }
        let window = self.buffers.len();
        (0..window.min(usize::try_from(count).unwrap_or(window))).try_for_each(|slot| self.post(slot))
    }

    #[inline(always)]
    unsafe fn send(&mut self, message: Message<'_>) -> Result<OpStatus<()>, ucp::Error> {
        match message {
            // SAFETY: this function's contract.
            Message::One(at, len) => unsafe { self.ep.stream_send_raw(at, len, &OpParams::default()) },
            // SAFETY: this function's contract.
            Message::Pieces(pieces) => unsafe {
                self.ep.stream_send_layout_raw(pieces, &OpParams::default())
            },
        }
    }

    #[inline(always)]
    fn received(&mut self) -> Result<u64, Failure> {
        if self.receive == Receive::Data {
            self.take_data()?;
        }
        while self.posted > 0 && self.buffers.poll(self.next)?.is_some() {
            let slot = self.next;
            self.next = if slot + 1 == self.buffers.len() { 0 } else { slot + 1 };
            self.posted -= 1;
            self.arrived_in(slot)?;
            if self.to_post > 0 {
                self.post(slot)?;
            }
        }
        Ok(self.received)
    }
}
