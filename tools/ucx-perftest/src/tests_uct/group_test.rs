//! One interface and many peers, whose targets take turns: active messages with credits, puts, gets, atomics.
//! A message begins with its number, which includes the sender's rank; each sender has its own target range.

mod rma;

use tools_common::boot::HexBytes;
use tools_common::meter::Meter;
use ucs::mem::copy_slice;
use uct::api::{Am, Comp, Ep as _, EpTag, Error, Iface, Md as _, Outcome, Refused, Rkey as _, Sent, Sink};

use super::context::{CREDIT, MSG};
use super::layout;
use super::memory::RegisteredMemory;
use super::setup::Setup;
use crate::backoff::Backoff;
use crate::fail::Failure;
use crate::iteration_counter::IterationCounter;
use crate::link::Link;
use crate::page_buffer::zeros;
use crate::payload::{self, SEQ_LEN, SeenMessages};
use crate::report::{Report, TestResult, UsedTransport};
use crate::spec::{Layout, Pattern, Spec, Test, Validate};

const POLL_BATCH: usize = 32;
const FLUSH: u64 = u64::MAX;
/// Bits of the message number below the rank.
const NUMBER_BITS: u32 = 40;

struct Events {
    got: Vec<u64>,
    credit: Vec<u64>,
    seen: Vec<SeenMessages>,
    size: usize,
    free: Vec<u32>,
    flushed: bool,
    error: Option<Failure>,
}

impl Sink for Events {
    #[inline(always)]
    fn on_am(&mut self, am: Am<'_>) {
        let Some(number) = payload::seq(am.data()) else { return };
        let (from, count) = ((number >> NUMBER_BITS) as usize, number & ((1 << NUMBER_BITS) - 1));
        match am.id() {
            MSG if from < self.got.len() => {
                self.got[from] += 1;
                if !self.seen.is_empty() {
                    self.check(from, count, am.data());
                }
            }
            CREDIT if from < self.credit.len() => self.credit[from] = self.credit[from].max(count),
            _ => self.error(Failure::Validation(format!("a message of rank {from}"))),
        }
    }

    #[inline(always)]
    fn on_comp(&mut self, token: u64, result: Result<(), Error>) {
        if let Err(e) = result {
            self.error(Failure::Run(format!("an operation failed: {e}")));
        }
        match token {
            FLUSH => self.flushed = true,
            slot => self.free.push(slot as u32),
        }
    }

    #[cold]
    fn on_ep_error(&mut self, _: EpTag, error: Error) {
        self.error(Failure::Run(format!("an endpoint failed: {error}")));
    }
}

impl Events {
    #[cold]
    fn check(&mut self, from: usize, count: u64, data: &[u8]) {
        let whole = payload::check(data, number(from, count), self.size);
        if let Err(why) = whole.and_then(|()| self.seen[from].mark(count)) {
            self.error(Failure::Validation(format!("from rank {from}: {why}")));
        }
    }

    fn error(&mut self, failure: Failure) {
        self.error.get_or_insert(failure);
    }
}

/// Mask of the bits that a word holds, of the lower 64.
fn bits(size: usize) -> u64 {
    u64::MAX >> (64 - 8 * size.min(8))
}

fn number(rank: usize, count: u64) -> u64 {
    (rank as u64) << NUMBER_BITS | count
}

struct Peer<I: Iface> {
    ep: I::Ep,
    rkey: <I::Md as uct::api::Md>::Rkey,
    addr: u64,
}

struct GroupTest<'a, I: Iface> {
    spec: &'a Spec,
    layout: Layout,
    iface: &'a I,
    link: &'a mut Link,
    me: usize,
    /// By rank; `None` for this member.
    peers: Vec<Option<Peer<I>>>,
    targets: Vec<usize>,
    sources: Vec<usize>,
    target: RegisteredMemory<I::Md>,
    source: RegisteredMemory<I::Md>,
    events: Events,
    counter: IterationCounter<'a>,
    backoff: Backoff,
    /// Sum of changes by this member's swaps, for the word of each rank.
    deltas: Vec<u64>,
}

pub fn run<I: Iface>(
    spec: &Spec,
    iface: &I,
    link: &mut Link,
    report: &Report,
) -> Result<TestResult, Failure> {
    let (me, size) = (link.rank(), link.size());
    let prepared = prepare(spec, iface, size);
    let (mine, memory) = match prepared {
        Ok((setup, memory)) => (Ok(setup), Some(memory)),
        Err(e) => (Err(e), None),
    };
    let all: Vec<Setup> = link.allgather_result(mine)?;
    let Some((layout, target, source)) = memory else { return Err(Failure::Run("not prepared".into())) };
    let connect = |(n, setup): (usize, &Setup)| (n != me).then(|| connect_peer(iface, setup)).transpose();
    let connected: Result<Vec<_>, Failure> = all.iter().enumerate().map(connect).collect();
    link.allgather_result(connected.as_ref().map(drop).map_err(|e| Failure::Run(e.to_string())))?;
    let peers = connected?;
    let others = || (0..size).filter(|n| *n != me);
    let (targets, sources): (Vec<usize>, Vec<usize>) = match (spec.pattern, me) {
        (Pattern::Incast, 0) => (Vec::new(), others().collect()),
        (Pattern::Incast, _) => (vec![0], Vec::new()),
        _ => (others().collect(), others().collect()),
    };
    let attr = iface.attr().clone();
    let path = UsedTransport { transport: attr.tl.into(), device: attr.dev, data_path: layout.name().into() };
    let mut show = |meter: &mut Meter| report.progress(spec, &path, meter.read(spec.rank));
    let (backoff, counter) = (Backoff::new(link), IterationCounter::new(&mut show));
    let events = Events {
        got: vec![0; size],
        credit: vec![0; size],
        seen: Vec::new(),
        size: spec.size(),
        free: (0..spec.window).rev().collect(),
        flushed: false,
        error: None,
    };
    let mut test = GroupTest {
        spec,
        layout,
        iface,
        link,
        me,
        peers,
        targets,
        sources,
        target,
        source,
        events,
        counter,
        backoff,
        deltas: vec![0; size],
    };
    if spec.warmup > 0 {
        test.counter.set_warm_up(true);
        test.measure(spec.warmup)?;
        test.counter.set_warm_up(false);
    }
    test.measure(spec.iters)?;
    let meter = &mut test.counter.meter;
    let (reading, hist) = (meter.read(spec.rank), Report::histogram(spec, meter));
    let done = TestResult::new(spec, path.clone(), reading, hist);
    test.flush()?;
    test.barrier()?;
    Ok(done)
}

type TestMemory<I> = (Layout, RegisteredMemory<<I as Iface>::Md>, RegisteredMemory<<I as Iface>::Md>);

fn prepare<I: Iface>(spec: &Spec, iface: &I, members: usize) -> Result<(Setup, TestMemory<I>), Failure> {
    let (md, size) = (iface.md(), spec.size());
    let layout = layout::select(spec, iface.attr())?;
    let is_am = matches!(spec.test, Test::AmBw | Test::AmMr);
    if is_am && layout == Layout::Zcopy {
        let why = format!("--pattern {}: {} does not take {layout}", spec.pattern, spec.test.name());
        return Err(Failure::Unsupported(why));
    }
    let all = |n: usize| {
        size.checked_mul(n).ok_or_else(|| Failure::Unsupported("-s, -O and --procs: too much memory".into()))
    };
    let target = RegisteredMemory::new(md, all(members)?, spec.target, spec.pages)?;
    let source = RegisteredMemory::new(
        md,
        if layout == Layout::Zcopy { all(spec.window as usize)? } else { 0 },
        spec.target,
        spec.pages,
    )?;
    let rkey = if !is_am || md.attr().has_rkey { target.rkey(md)? } else { Default::default() };
    let setup = Setup {
        device: HexBytes(iface.device_addr().to_vec()),
        iface: HexBytes(iface.iface_addr().to_vec()),
        rkey: HexBytes(rkey.to_vec()),
        addr: target.addr(),
    };
    Ok((setup, (layout, target, source)))
}

fn connect_peer<I: Iface>(iface: &I, setup: &Setup) -> Result<Peer<I>, Failure> {
    let ep = iface.connect(&setup.device.0, &setup.iface.0)?;
    let rkey = iface.md().unpack_rkey(&setup.rkey.0)?;
    if rkey.range().0 != setup.addr {
        return Err(Failure::Run("a key of another rank is for other memory".into()));
    }
    Ok(Peer { ep, rkey, addr: setup.addr })
}

impl<I: Iface> GroupTest<'_, I> {
    fn validates(&self) -> bool {
        self.spec.validate == Validate::Yes
    }

    fn operations_each(&self, iters: u64, targets: usize) -> u64 {
        (iters / targets.max(1) as u64).max(1)
    }

    /// Operations of each other member on this one.
    fn expected(&self, iters: u64) -> u64 {
        match self.spec.pattern {
            Pattern::AllToAll => self.operations_each(iters, self.link.size() - 1),
            _ => self.operations_each(iters, 1),
        }
    }

    fn measure(&mut self, iters: u64) -> Result<(), Failure> {
        let each = self.operations_each(iters, self.targets.len());
        self.reset(iters)?;
        self.barrier()?;
        self.counter.start();
        match self.spec.test {
            Test::AmBw | Test::AmMr => self.messages(each, iters)?,
            Test::PutBw => self.puts(each)?,
            Test::Get | Test::GetBw => self.gets(each)?,
            _ => self.atomics(each)?,
        }
        self.flush()?;
        self.counter.stop();
        if self.validates() {
            self.barrier()?;
            self.check_target(iters)?;
        }
        Ok(())
    }

    fn reset(&mut self, iters: u64) -> Result<(), Failure> {
        self.events.got.fill(0);
        self.events.credit.fill(0);
        self.target.clear_word();
        self.deltas.fill(0);
        if self.validates() {
            let expected = self.expected(iters);
            self.events.seen = self.events.got.iter().map(|_| SeenMessages::new(expected)).collect();
            if matches!(self.spec.test, Test::Get | Test::GetBw) {
                let mut bytes = zeros(self.spec.size())?;
                payload::fill(&mut bytes, number(self.me, 0));
                self.target.write(0, &bytes);
            }
        }
        Ok(())
    }

    fn check_target(&mut self, iters: u64) -> Result<(), Failure> {
        let (size, expected) = (self.spec.size(), self.expected(iters));
        match self.spec.test {
            Test::PutBw => self.sources.iter().try_for_each(|from| {
                self.target.check(from * size, size, number(*from, expected - 1)).map_err(Failure::Validation)
            }),
            Test::AddMr | Test::Fadd => {
                let (word, want) =
                    (self.target.word(size), (expected * self.sources.len() as u64) & bits(size));
                let same = word == want;
                same.then_some(()).ok_or_else(|| {
                    Failure::Validation(format!("the word of rank {} is {word} instead of {want}", self.me))
                })
            }
            Test::Swap | Test::Cswap => {
                let (iface, events) = (self.iface, &mut self.events);
                let all = self.link.allgather(&self.deltas, || iface.poll(POLL_BATCH, events))?;
                let changes = all.iter().filter_map(|deltas| deltas.get(self.me));
                let want = changes.fold(0u64, |sum, change| sum.wrapping_add(*change)) & bits(size);
                let word = self.target.word(size);
                let same = word == want;
                same.then_some(()).ok_or_else(|| {
                    let me = self.me;
                    Failure::Validation(format!(
                        "the word of rank {me} is {word}, its changes sum up to {want}"
                    ))
                })
            }
            _ => Ok(()),
        }
    }

    // HOT
    #[inline(always)]
    fn poll(&mut self) -> Result<(), Failure> {
        if self.iface.poll(POLL_BATCH, &mut self.events) > 0 {
            self.backoff.reset();
        } else {
            self.backoff.idle(self.link)?;
        }
        self.events.error.take().map_or(Ok(()), Err)
    }

    /// Starts `op` on the endpoint to rank `to`; polls while there are no resources.
    // HOT
    #[inline(always)]
    fn post<T>(
        &mut self,
        to: usize,
        mut op: impl FnMut(&Self, &Peer<I>) -> Outcome<T>,
    ) -> Result<T, Failure> {
        loop {
            let Some(peer) = &self.peers[to] else {
                return Err(Failure::Run("no endpoint to that rank".into()));
            };
            match op(self, peer) {
                Ok(sent) => return Ok(sent),
                Err(Refused::NoResource) => self.poll()?,
                Err(Refused::Failed(e)) => return Err(e.into()),
            }
        }
    }

    /// As [`post`](Self::post) with a slot, which is freed when the operation ends.
    // HOT
    #[inline(always)]
    fn post_slot(
        &mut self,
        to: usize,
        mut op: impl FnMut(&Self, &Peer<I>, u32) -> Outcome,
    ) -> Result<(), Failure> {
        let slot = loop {
            match self.events.free.pop() {
                Some(slot) => break slot,
                None => self.poll()?,
            }
        };
        if let Sent::Done = self.post(to, |test, peer| op(test, peer, slot))? {
            self.events.free.push(slot);
        }
        Ok(())
    }

    fn each_target(
        &mut self,
        each: u64,
        mut op: impl FnMut(&mut Self, usize, u64) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        for seq in 0..each {
            for at in 0..self.targets.len() {
                op(self, self.targets[at], seq)?;
                self.counter.tick_stream();
            }
        }
        Ok(())
    }

    fn messages(&mut self, each: u64, iters: u64) -> Result<(), Failure> {
        let (credits, expected) = (u64::from(self.spec.credits), self.expected(iters));
        let step = (credits / 2).max(1);
        let mut credited = vec![0; self.events.got.len()];
        let mut bytes = zeros(self.spec.size())?;
        payload::fill(&mut bytes, number(self.me, 0));
        self.each_target(each, |test, to, seq| {
            while seq - test.events.credit[to] >= credits {
                test.poll()?;
                test.send_credits(&mut credited, step, expected)?;
            }
            let n = number(test.me, seq);
            if test.validates() {
                payload::fill(&mut bytes, n);
            } else {
                bytes[..SEQ_LEN].copy_from_slice(&n.to_le_bytes());
            }
            let message = &bytes[..];
            match test.layout {
                Layout::Bcopy => {
                    let pack = |buf: &mut [u8]| {
                        copy_slice(&mut buf[..message.len()], message);
                        message.len()
                    };
                    test.post(to, |_, peer| peer.ep.am_bcopy(MSG, pack)).map(drop)
                }
                _ => test.post(to, |_, peer| peer.ep.am_short(MSG, n, &message[SEQ_LEN..])).map(drop),
            }?;
            // Members that only send would never take in messages of one another.
            if seq.is_multiple_of(16) {
                test.poll()?;
                test.send_credits(&mut credited, step, expected)?;
            }
            Ok(())
        })?;
        loop {
            let sent = self.targets.iter().all(|to| self.events.credit[*to] >= each);
            let received = self.sources.iter().all(|from| credited[*from] >= expected);
            if sent && received {
                return Ok(());
            }
            self.poll()?;
            self.send_credits(&mut credited, step, expected)?;
        }
    }

    /// Returns credits to the senders.
    #[inline(always)]
    fn send_credits(&mut self, credited: &mut [u64], step: u64, expected: u64) -> Result<(), Failure> {
        for at in 0..self.sources.len() {
            let from = self.sources[at];
            let have = self.events.got[from];
            if have - credited[from] >= step || (have >= expected && credited[from] < have) {
                let n = number(self.me, have);
                self.post(from, |_, peer| {
                    peer.ep.am_bcopy(CREDIT, |buf| {
                        buf[..SEQ_LEN].copy_from_slice(&n.to_le_bytes());
                        SEQ_LEN
                    })
                })?;
                credited[from] = have;
            }
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<(), Failure> {
        while self.events.free.len() < self.spec.window as usize {
            self.poll()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.drain()?;
        self.events.flushed = false;
        let sent = loop {
            match self.iface.flush(Comp::Token(FLUSH)) {
                Ok(sent) => break sent,
                Err(Refused::NoResource) => self.poll()?,
                Err(Refused::Failed(e)) => return Err(e.into()),
            }
        };
        while sent == Sent::InProgress && !self.events.flushed {
            self.poll()?;
        }
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), Failure> {
        let (iface, events) = (self.iface, &mut self.events);
        self.link.barrier(|| iface.poll(POLL_BATCH, events))?;
        self.events.error.take().map_or(Ok(()), Err)
    }
}
