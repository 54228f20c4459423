//! The receiving half of one process: posts the receives of the plan block by block, checks each, and returns
//! credits. Never waits.

use super::buffers::Buffers;
use super::plan::{Block, Message, Plan, Posting, Receive};
use super::{CREDIT_EVERY, Failure};
use crate::pattern::Pattern;
use std::collections::VecDeque;
use ucp::rdm::RecvStatus;
use ucp::{ANY_TAG, Ep, Error, Match, RecvRequest, SendRequest, Worker};

enum Request {
    Whole(RecvRequest<Vec<u8>>),
    /// Too short; boxes have no spare capacity.
    Short(RecvRequest<Box<[u8]>>),
}

struct Open {
    message: Message,
    /// `None`: claimed by a probe.
    receive: Option<Receive>,
    request: Request,
}

pub struct Receiver {
    plan: Plan,
    seed: u64,
    partner: u64,
    window: usize,
    block: Block,
    next_block: u64,
    /// A block drawn and not posted: it waits for its first message.
    waiting: Option<Posting>,
    open: VecDeque<Open>,
    buffers: Buffers,
    credits: VecDeque<SendRequest<Vec<u8>>>,
    credits_given: u64,
    pub received: u64,
    pub bytes: u64,
    pub truncated: u64,
    /// Blocks posted after their first message had come.
    pub late_blocks: u64,
}

impl Receiver {
    /// Receives `plan` from sender `partner`; posts a new block while fewer than `window` receives are open.
    pub fn new(plan: Plan, seed: u64, partner: u64, window: usize) -> Receiver {
        Receiver {
            plan,
            seed,
            partner,
            window,
            block: Block::default(),
            next_block: 0,
            waiting: None,
            open: VecDeque::new(),
            buffers: Buffers::default(),
            credits: VecDeque::new(),
            credits_given: 0,
            received: 0,
            bytes: 0,
            truncated: 0,
            late_blocks: 0,
        }
    }

    pub fn is_done(&self) -> bool {
        self.received == self.plan.total() && self.credits.is_empty()
    }

    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Posts and checks what it can; answers whether anything moved.
    pub fn step(&mut self, worker: &Worker, ep: &Ep) -> Result<bool, Failure> {
        let before = (self.received, self.next_block, self.credits.len());
        while self.open.len() < self.window
            && (self.waiting.is_some() || self.next_block < self.plan.blocks())
        {
            if !self.post_block(worker, ep)? {
                break;
            }
        }
        while self.open.front_mut().is_some_and(|open| open.request.is_done()) {
            let Some(open) = self.open.pop_front() else { break };
            self.check(open, ep)?;
        }
        while self.credits_given < self.received / CREDIT_EVERY {
            self.credits_given += 1;
            self.credits.push_back(ep.msg_send(self.credits_given.to_le_bytes().to_vec()));
        }
        while self.credits.front().is_some_and(SendRequest::is_done) {
            let Some(Ok((result, _))) = self.credits.pop_front().map(SendRequest::test) else { break };
            result.map_err(|error| Failure::Reported { what: "send of a credit".into(), error })?;
        }
        Ok(before != (self.received, self.next_block, self.credits.len()))
    }

    /// Posts the next block, unless it has to wait for its first message.
    fn post_block(&mut self, worker: &Worker, ep: &Ep) -> Result<bool, Failure> {
        let posting = match self.waiting.take() {
            Some(posting) => posting,
            None => {
                self.next_block += 1;
                self.plan.draw(self.next_block - 1, &mut self.block)
            }
        };
        let mut taken = None;
        if posting != Posting::Early {
            let any = Match::tagged(0, ANY_TAG);
            let Some(found) = worker.probe(any) else {
                self.waiting = Some(posting);
                return Ok(false);
            };
            // Earlier blocks have all receives posted: the oldest unexpected message is this block's first.
            let first = self.block.messages[0];
            if (found.tag, found.len, found.from) != (first.tag, first.len as u64, ep.peer()) {
                return Err(Failure::wrong("probe", &first, None, &found));
            }
            self.late_blocks += 1;
            if posting == Posting::Probed {
                let message = worker.mprobe(any).ok_or_else(|| {
                    Failure::Violation(format!("message {} was probed and cannot be taken", first.seq))
                })?;
                let request = match first.short {
                    Some(room) => Request::Short(message.recv(vec![0; room].into_boxed_slice())),
                    None => Request::Whole(message.recv(self.buffers.take(first.len))),
                };
                self.open.push_back(Open { message: first, receive: None, request });
                taken = Some(0);
            }
        }
        for receive in self.block.receives.iter().filter(|r| Some(r.of) != taken) {
            let message = self.block.messages[receive.of];
            let mut what = Match::tagged(receive.tag, receive.mask);
            if receive.from_partner {
                what = what.from(ep);
            }
            let request = match message.short {
                Some(room) => Request::Short(worker.recv(what, vec![0; room].into_boxed_slice())),
                None => Request::Whole(worker.recv(what, self.buffers.take(message.len))),
            };
            self.open.push_back(Open { message, receive: Some(*receive), request });
        }
        Ok(true)
    }

    fn check(&mut self, open: Open, ep: &Ep) -> Result<(), Failure> {
        let Open { message, receive, request } = open;
        let pattern = Pattern::new(self.seed, self.partner, message.seq);
        let wrong =
            |got: &Result<RecvStatus, Error>| Failure::wrong("receive", &message, receive.as_ref(), got);
        match request {
            Request::Whole(request) => {
                let Ok((end, buf)) = request.test() else { return Ok(()) };
                let fits = |s: &RecvStatus| {
                    (s.tag, s.len, s.from, s.cq_data) == (message.tag, message.len, ep.peer(), None)
                };
                match end {
                    Ok(status) if fits(&status) && buf.len() == message.len => {}
                    _ => return Err(wrong(&end)),
                }
                pattern.check(&buf).map_err(|e| Failure::damaged(&message, e))?;
                self.buffers.put_back(buf);
            }
            Request::Short(request) => {
                let Ok((end, buf)) = request.test() else { return Ok(()) };
                match end {
                    Err(Error::Truncated { len, room })
                        if (len as usize, room) == (message.len, buf.len()) => {}
                    _ => return Err(wrong(&end)),
                }
                pattern.check(&buf).map_err(|e| Failure::damaged(&message, e))?;
                self.truncated += 1;
            }
        }
        self.received += 1;
        self.bytes += message.len as u64;
        Ok(())
    }
}

impl Request {
    fn is_done(&mut self) -> bool {
        match self {
            Request::Whole(request) => request.is_done(),
            Request::Short(request) => request.is_done(),
        }
    }
}
