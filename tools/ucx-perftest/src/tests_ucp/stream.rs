//! A stream of bytes as a way for `mail`: receives of one message's length each are posted in advance, as many as the
//! window allows, and filled in order.

use std::collections::VecDeque;

use ucp::{Ep, RecvRequest, SendRequest};

use super::mail::{Running, Way, failed};
use super::scattered::Scattered;
use crate::fail::Failure;
use crate::pattern;
use crate::spec::{Flow, Receive, Spec, Validate};

/// The way.
pub struct Bytes<'a> {
    ep: &'a Ep,
    size: usize,
    window: u64,
    checks: bool,
    into: Option<Scattered>,
    receive: Receive,
    /// Of a message that has come in part, as the library's memory has it.
    part: Vec<u8>,
    posted: VecDeque<RecvRequest<Vec<u8>>>,
    /// Receives that are not posted yet, of those expected.
    left: u64,
    come: u64,
}

impl<'a> Bytes<'a> {
    /// Nothing is expected yet.
    pub fn new(spec: &Spec, ep: &'a Ep) -> Self {
        let window = if spec.test.flow() == Flow::PingPong { 1 } else { spec.window.into() };
        let checks = spec.validate == Validate::Yes;
        let into = Scattered::of_receiver(spec);
        Bytes {
            ep,
            size: spec.size(),
            window,
            checks,
            into,
            receive: spec.receive,
            part: Vec::new(),
            posted: VecDeque::new(),
            left: 0,
            come: 0,
        }
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
    fn post(&mut self, room: Vec<u8>) {
        self.left -= 1;
        self.posted.push_back(self.ep.stream_recv_full(room));
    }
}

impl Way for Bytes<'_> {
    type Sent = SendRequest<Vec<u8>>;

    fn expect(&mut self, count: u64) -> Result<(), Failure> {
        (self.left, self.come) = (count, 0);
        if self.receive == Receive::Data {
            return Ok(());
        }
        for _ in 0..count.min(self.window) {
            self.post(Vec::with_capacity(self.size));
        }
        Ok(())
    }

    #[inline(always)]
    fn send(&mut self, bytes: Vec<u8>) -> SendRequest<Vec<u8>> {
        self.ep.stream_send(bytes)
    }

    #[inline(always)]
    fn come(&mut self) -> Result<u64, Failure> {
        if self.receive == Receive::Data {
            self.take()?;
        }
        while self.posted.front_mut().is_some_and(RecvRequest::is_done) {
            let Some(front) = self.posted.pop_front() else { break };
            let (status, mut room) = front.wait();
            status.map_err(failed)?;
            self.arrived(&room)?;
            if self.left > 0 {
                room.clear();
                self.post(room);
            }
        }
        Ok(self.come)
    }
}

impl Running for SendRequest<Vec<u8>> {
    #[inline(always)]
    fn is_done(&mut self) -> bool {
        SendRequest::is_done(self)
    }

    #[inline(always)]
    fn end(self) -> (Result<(), ucp::Error>, Vec<u8>) {
        self.wait()
    }
}
