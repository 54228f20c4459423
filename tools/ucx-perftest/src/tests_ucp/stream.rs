//! A stream of bytes as a way for `mail`: receives of one message's length each are posted in advance, as many as the
//! window allows, and filled in order.

use std::collections::VecDeque;

use ucp::{Ep, RecvRequest, SendRequest};

use super::mail::{Running, Way, failed};
use super::scattered::Scattered;
use crate::fail::Failure;
use crate::pattern;
use crate::spec::{Flow, Spec, Validate};

/// The way.
pub struct Bytes<'a> {
    ep: &'a Ep,
    size: usize,
    window: u64,
    checks: bool,
    into: Option<Scattered>,
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
        Bytes { ep, size: spec.size(), window, checks, into, posted: VecDeque::new(), left: 0, come: 0 }
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
        while self.posted.front_mut().is_some_and(RecvRequest::is_done) {
            let Some(front) = self.posted.pop_front() else { break };
            let (status, mut room) = front.wait();
            status.map_err(failed)?;
            let mut back = None;
            if let Some(into) = &mut self.into {
                into.scatter(&room);
                back = into.back(room.len());
            }
            if self.checks {
                pattern::check(back.as_ref().unwrap_or(&room), self.come, self.size)
                    .map_err(Failure::Corrupt)?;
            }
            self.come += 1;
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
