//! The environment of a low-level test: interface, endpoint, memory, counter, and functions that post, poll
//! and wait. Used by `am`, `rma` and `amo`.

use std::cell::Cell;
use std::rc::Rc;

use arrayvec::ArrayVec;
use ucs::sync::SpinHint;
use uct::api::{Am, Comp, EpTag, Error, Iface, Iov, Md, Outcome, Refused, Sent, Sink};

use super::memory::RegisteredMemory;
use crate::backoff::Backoff;
use crate::fail::Failure;
use crate::iteration_counter::IterationCounter;
use crate::link::{Link, Side};
use crate::payload::{self, SeenMessages};
use crate::spec::{Spec, Validate};
use tools_common::meter::Meter;

const POLL_BATCH: usize = 32;
pub const MSG: u8 = 1;
/// Active message id of the receiver's credits.
pub const CREDIT: u8 = 2;

/// Token of a flush; other tokens are slots.
const FLUSH: u64 = u64::MAX;

pub struct Events {
    pub msgs: Rc<Cell<u64>>,
    pub credit: u64,
    pub free: Vec<u32>,
    pub ended: u64,
    flushed: bool,
    error: Option<Failure>,
    check: Check,
}

pub enum Check {
    No,
    /// In order: the number of the next message, and the length of all.
    Next {
        seq: u64,
        len: usize,
    },
    /// In any order, each once, of this length.
    Each {
        seen: SeenMessages,
        len: usize,
    },
}

impl Sink for Events {
    #[inline(always)]
    fn on_am(&mut self, am: Am<'_>) {
        if am.id() == MSG {
            self.msgs.set(self.msgs.get() + 1);
            if !matches!(self.check, Check::No) {
                self.check(am.data());
            }
        } else if let (CREDIT, Some(count)) = (am.id(), am.data().first_chunk()) {
            self.credit = self.credit.max(u64::from_le_bytes(*count));
        }
    }

    #[inline(always)]
    fn on_comp(&mut self, token: u64, result: Result<(), Error>) {
        if let Err(e) = result {
            self.error(Failure::Run(format!("an operation failed: {e}")));
        }
        if token == FLUSH {
            self.flushed = true;
        } else {
            self.ended += 1;
            self.free.push(token as u32);
        }
    }

    #[cold]
    fn on_ep_error(&mut self, _: EpTag, error: Error) {
        self.error(Failure::Run(format!("the endpoint failed: {error}")));
    }
}

impl Events {
    #[cold]
    fn check(&mut self, data: &[u8]) {
        let result = match &mut self.check {
            Check::No => Ok(()),
            Check::Next { seq, len } => {
                *seq += 1;
                payload::check(data, *seq - 1, *len)
            }
            Check::Each { seen, len } => match payload::seq(data) {
                Some(seq) => payload::check(data, seq, *len).and_then(|()| seen.mark(seq)),
                None => payload::check(data, 0, *len),
            },
        };
        if let Err(why) = result {
            self.error(Failure::Validation(why));
        }
    }

    fn error(&mut self, failure: Failure) {
        self.error.get_or_insert(failure);
    }
}

pub struct TestContext<'a, I: Iface> {
    pub spec: &'a Spec,
    pub side: Side,
    pub events: Events,
    /// Memory that the other side accesses.
    pub target: &'a RegisteredMemory<I::Md>,
    /// Memory of zcopy: one message per slot.
    pub source: &'a RegisteredMemory<I::Md>,
    /// Address and key of the other side's target.
    pub remote: (u64, <I::Md as Md>::Rkey),
    pub counter: IterationCounter<'a>,
    ep: I::Ep,
    iface: &'a I,
    link: &'a mut Link,
    backoff: Backoff,
    spin_hint: SpinHint,
}

pub type Pieces<'a, I> = ArrayVec<Iov<'a, <<I as Iface>::Md as Md>::Mem>, 64>;

pub struct ContextParts<'a, I: Iface> {
    pub spec: &'a Spec,
    pub iface: &'a I,
    pub ep: I::Ep,
    pub link: &'a mut Link,
    pub target: &'a RegisteredMemory<I::Md>,
    pub source: &'a RegisteredMemory<I::Md>,
    pub remote: (u64, <I::Md as Md>::Rkey),
    pub show: &'a mut dyn FnMut(&mut Meter),
}

impl<'a, I: Iface> TestContext<'a, I> {
    pub fn new(parts: ContextParts<'a, I>) -> Self {
        let ContextParts { spec, iface, ep, link, target, source, remote, show } = parts;
        let events = Events {
            msgs: Rc::default(),
            credit: 0,
            free: (0..spec.window).rev().collect(),
            ended: 0,
            flushed: false,
            error: None,
            check: Check::No,
        };
        let (side, counter, backoff) = (link.side(), IterationCounter::new(show), Backoff::new(link));
        if side == Side::Both && spec.validate != Validate::Yes && iface.deliver_within_send(true) {
            // UCX also delivers a message to itself within the send. Validation needs polls.
            let msgs = events.msgs.clone();
            iface.set_am_handler(MSG, Some(Box::new(move |_| msgs.set(msgs.get() + 1))));
        }
        let spin_hint = SpinHint::measured();
        TestContext {
            spec,
            side,
            events,
            target,
            source,
            remote,
            counter,
            ep,
            iface,
            link,
            backoff,
            spin_hint,
        }
    }

    pub fn ep(&self) -> &I::Ep {
        &self.ep
    }

    pub fn validates(&self) -> bool {
        self.spec.validate == Validate::Yes
    }

    pub fn scatter(&self, slot: u32, mut bytes: &[u8]) {
        let base = slot as usize * self.spec.span();
        for (at, len) in self.spec.piece_ranges() {
            let (piece, rest) = bytes.split_at(len);
            self.source.write(base + at, piece);
            bytes = rest;
        }
    }

    pub fn gather(&self, slot: u32) -> Vec<u8> {
        let base = slot as usize * self.spec.span();
        self.spec.piece_ranges().flat_map(|(at, len)| self.source.read(base + at, len)).collect()
    }

    /// The pieces of a source slot without their first `skip` bytes.
    // HOT
    #[inline(always)]
    pub fn iov(&self, slot: u32, mut skip: usize) -> Pieces<'a, I> {
        let base = slot as usize * self.spec.span();
        let mut iov = Pieces::<I>::new();
        for (at, len) in self.spec.piece_ranges() {
            let taken = skip.min(len);
            if len > taken {
                iov.push(self.source.piece(base + at + taken, len - taken));
            }
            skip -= taken;
        }
        iov
    }

    /// Sets how arriving messages are checked; returns how many expected by the previous check are missing.
    pub fn expect(&mut self, check: Check) -> u64 {
        match std::mem::replace(&mut self.events.check, check) {
            Check::Each { seen, .. } => seen.missing(),
            _ => 0,
        }
    }

    /// Polls once; returns the number of events.
    // HOT
    #[inline(always)]
    pub fn poll(&mut self) -> Result<usize, Failure> {
        let n = self.iface.poll(POLL_BATCH, &mut self.events);
        if n > 0 {
            self.backoff.reset();
        } else {
            self.backoff.idle(self.link)?;
        }
        match self.events.error {
            None => Ok(n),
            Some(_) => Err(self.take_error()),
        }
    }

    #[cold]
    fn take_error(&mut self) -> Failure {
        self.events.error.take().unwrap_or(Failure::Run("an operation failed".into()))
    }

    /// Polls until `done`, which is asked between any two polls.
    // HOT
    #[inline(always)]
    pub fn poll_until(&mut self, mut done: impl FnMut(&Self) -> bool) -> Result<(), Failure> {
        loop {
            let mut events = 0;
            for _ in 0..self.backoff.batch() {
                if done(self) {
                    return Ok(());
                }
                events += self.iface.poll(POLL_BATCH, &mut self.events);
            }
            self.after_batch(events)?;
        }
    }

    /// As [`poll_until`](Self::poll_until), with a pause between reads of memory that the other side writes:
    /// reads without a pause delay its writes.
    // HOT
    #[inline(always)]
    pub fn poll_memory_until(&mut self, mut done: impl FnMut(&Self) -> bool) -> Result<(), Failure> {
        let spin_hint = self.spin_hint;
        self.poll_until(|ctx| {
            done(ctx) || {
                spin_hint.pause();
                false
            }
        })
    }

    #[cold]
    fn after_batch(&mut self, events: usize) -> Result<(), Failure> {
        if events > 0 {
            self.backoff.reset();
        } else {
            self.backoff.idle_batch(self.link)?;
        }
        if self.events.error.is_some() { Err(self.take_error()) } else { Ok(()) }
    }

    /// Starts `op` with endpoint and remote key; polls while there are no resources.
    // HOT
    #[inline(always)]
    pub fn post(
        &mut self,
        mut op: impl FnMut(&I::Ep, &<I::Md as Md>::Rkey) -> Outcome<()>,
    ) -> Result<(), Failure> {
        match op(&self.ep, &self.remote.1) {
            Ok(()) => Ok(()),
            Err(why) => self.post_retry(why, op),
        }
    }

    /// Not cold, as streams often run out of resources, but not inlined into loops that need all registers.
    #[inline(never)]
    fn post_retry(
        &mut self,
        mut why: Refused,
        mut op: impl FnMut(&I::Ep, &<I::Md as Md>::Rkey) -> Outcome<()>,
    ) -> Result<(), Failure> {
        loop {
            match why {
                Refused::NoResource => self.poll()?,
                Refused::Failed(e) => return Err(e.into()),
            };
            match op(&self.ep, &self.remote.1) {
                Ok(()) => return Ok(()),
                Err(again) => why = again,
            }
        }
    }

    /// Starts `op` with a free source slot; frees the slot if the operation ends in the call.
    // HOT
    #[inline(always)]
    pub fn post_slot(&mut self, mut op: impl FnMut(&Self, u32) -> Outcome) -> Result<(), Failure> {
        let slot = loop {
            match self.events.free.pop() {
                Some(slot) => break slot,
                None => self.poll()?,
            };
        };
        loop {
            match op(self, slot) {
                Ok(Sent::InProgress) => return Ok(()),
                Ok(Sent::Done) => {
                    self.events.ended += 1;
                    self.events.free.push(slot);
                    return Ok(());
                }
                Err(Refused::NoResource) => self.poll()?,
                Err(Refused::Failed(e)) => return Err(e.into()),
            };
        }
    }

    #[inline(always)]
    pub fn drain(&mut self) -> Result<(), Failure> {
        let all = self.spec.window as usize;
        self.poll_until(|ctx| ctx.events.free.len() == all)
    }

    /// Waits until everything sent has arrived, as far as the interface can tell.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.drain()?;
        self.events.flushed = false;
        let sent = loop {
            match self.iface.flush(Comp::Token(FLUSH)) {
                Ok(sent) => break sent,
                Err(Refused::NoResource) => self.poll()?,
                Err(Refused::Failed(e)) => return Err(e.into()),
            };
        };
        match sent {
            Sent::Done => Ok(()),
            Sent::InProgress => self.poll_until(|ctx| ctx.events.flushed),
        }
    }

    pub fn barrier(&mut self) -> Result<(), Failure> {
        let (iface, events) = (self.iface, &mut self.events);
        self.link.barrier(|| iface.poll(POLL_BATCH, events))?;
        self.events.error.take().map_or(Ok(()), Err)
    }

    /// A barrier after which nothing is left to do: that the other side has gone is no error.
    pub fn last_barrier(&mut self) -> Result<(), Failure> {
        let (iface, events) = (self.iface, &mut self.events);
        Ok(self.link.barrier(|| iface.poll(POLL_BATCH, events))?)
    }

    pub fn barrier_idle(&mut self) -> Result<(), Failure> {
        Ok(self.link.barrier(|| 0)?)
    }
}
