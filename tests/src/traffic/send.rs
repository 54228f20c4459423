//! The sending half of one process: fills and sends the messages of the plan, within a window of sends and
//! the credits returned by the partner. Never waits.

use super::buffers::Buffers;
use super::plan::{Block, CompleteOn, Plan};
use super::{CREDIT_EVERY, Failure};
use crate::pattern::Pattern;
use std::collections::VecDeque;
use ucp::{Ep, RecvRequest, SendRequest, Worker};

const CREDIT_RECEIVES: usize = 4;

pub struct Sender {
    plan: Plan,
    seed: u64,
    me: u64,
    window: usize,
    /// Messages that may be sent beyond those acknowledged.
    ahead: u64,
    block: Block,
    next_block: u64,
    next: usize,
    running: VecDeque<SendRequest<Vec<u8>>>,
    buffers: Buffers,
    credits: VecDeque<RecvRequest<Vec<u8>>>,
    credits_got: u64,
    pub started: u64,
    pub ended: u64,
    pub sync: u64,
}

impl Sender {
    /// Sends `plan` as sender `me` with at most `window` sends in flight.
    pub fn new(plan: Plan, seed: u64, me: u64, window: usize) -> Sender {
        Sender {
            plan,
            seed,
            me,
            window,
            ahead: (4 * window as u64).max(256),
            block: Block::default(),
            next_block: 0,
            next: 0,
            running: VecDeque::new(),
            buffers: Buffers::default(),
            credits: VecDeque::new(),
            credits_got: 0,
            started: 0,
            ended: 0,
            sync: 0,
        }
    }

    pub fn acknowledged(&self) -> u64 {
        self.credits_got * CREDIT_EVERY
    }

    pub fn is_done(&self) -> bool {
        self.ended == self.plan.total() && self.credits_got == self.plan.total() / CREDIT_EVERY
    }

    pub fn step(&mut self, worker: &Worker, ep: &Ep) -> Result<bool, Failure> {
        let before = (self.started, self.ended, self.credits_got);
        self.take_credits(worker)?;
        while self.running.len() < self.window
            && self.started < self.plan.total()
            && self.started - self.acknowledged() < self.ahead
        {
            self.start(ep);
        }
        while self.running.front().is_some_and(SendRequest::is_done) {
            let Some(Ok((result, buf))) = self.running.pop_front().map(SendRequest::test) else { break };
            result.map_err(|error| Failure::Reported { what: format!("send {}", self.ended), error })?;
            self.buffers.put_back(buf);
            self.ended += 1;
        }
        Ok(before != (self.started, self.ended, self.credits_got))
    }

    fn start(&mut self, ep: &Ep) {
        if self.next == self.block.messages.len() {
            self.plan.draw(self.next_block, &mut self.block);
            self.next_block += 1;
            self.next = 0;
        }
        let message = self.block.messages[self.next];
        self.next += 1;
        self.started += 1;
        let mut buf = self.buffers.take(message.len);
        buf.resize(message.len, 0);
        Pattern::new(self.seed, self.me, message.seq).fill(&mut buf);
        self.running.push_back(match message.complete_on {
            CompleteOn::Sent => ep.tag_send(message.tag, buf),
            CompleteOn::Received => {
                self.sync += 1;
                ep.tag_send_sync(message.tag, buf)
            }
        });
    }

    /// Credits are numbered untagged messages: their order is checked too.
    fn take_credits(&mut self, worker: &Worker) -> Result<(), Failure> {
        while self.credits.len() < CREDIT_RECEIVES {
            self.credits.push_back(worker.msg_recv(Vec::with_capacity(16)));
        }
        while self.credits.front().is_some_and(RecvRequest::is_done) {
            let Some(Ok((result, buf))) = self.credits.pop_front().map(RecvRequest::test) else { break };
            let status =
                result.map_err(|error| Failure::Reported { what: "receive of a credit".into(), error })?;
            let want = (self.credits_got + 1).to_le_bytes();
            if buf != want || status.len != want.len() {
                return Err(Failure::Violation(format!(
                    "credit {}: got {buf:?} of {status:?}",
                    self.credits_got + 1
                )));
            }
            self.credits_got += 1;
            self.credits.push_back(worker.msg_recv(buf));
        }
        Ok(())
    }

    pub fn close(&mut self) -> Result<(), Failure> {
        for request in self.credits.drain(..) {
            match (request.cancel(), request.wait()) {
                (true, (Err(ucp::Error::Cancelled), _)) => {}
                (asked, end) => {
                    return Err(Failure::Violation(format!("idle receive, cancelled ({asked}): {end:?}")));
                }
            }
        }
        Ok(())
    }
}
