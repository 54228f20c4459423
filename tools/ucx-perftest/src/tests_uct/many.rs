//! One interface and many peers: everybody to the first, or everybody to everybody. Messages with credits from each
//! receiver, puts, gets and atomics. Run by `tests_uct` on every seat of a group; targets take turns, one operation each.
//!
//! A message starts with its number, which says who sent it. Everybody has a room of its own in each target.

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::rc::Rc;

use tools_common::boot::Blob;
use tools_common::meter::Meter;
use ucs::mem::copy_slice;
use uct::api::{
    Am, AtomicOp, Comp, Ep as _, EpTag, Error, Iface, Md as _, Outcome, Refused, Rkey as _, Sent, Sink, Word,
};

use super::mem::Room;
use super::rig::{CREDIT, MSG};
use super::{Setup, path};
use crate::fail::Failure;
use crate::heap::zeros;
use crate::link::Link;
use crate::patience::Patience;
use crate::pattern::{self, SEQ, Seen};
use crate::pulse::Pulse;
use crate::report::{Done, Path, Report};
use crate::spec::{Layout, Pattern, Spec, Test, Validate};

const BATCH: usize = 32;
const FLUSH: u64 = u64::MAX;
/// Bits of a message's number below the sender's.
const NUMBER_BITS: u32 = 40;

/// What the interface has reported.
struct Events {
    /// Messages from each.
    got: Vec<u64>,
    /// Messages that each has confirmed.
    credit: Vec<u64>,
    /// Numbers seen from each, where that is checked.
    seen: Vec<Seen>,
    size: usize,
    free: Vec<u32>,
    flushed: bool,
    wrong: Option<Failure>,
}

impl Sink for Events {
    #[inline(always)]
    fn on_am(&mut self, am: Am<'_>) {
        let Some(number) = pattern::seq(am.data()) else { return };
        let (from, count) = ((number >> NUMBER_BITS) as usize, number & ((1 << NUMBER_BITS) - 1));
        match am.id() {
            MSG if from < self.got.len() => {
                self.got[from] += 1;
                if !self.seen.is_empty() {
                    self.check(from, count, am.data());
                }
            }
            CREDIT if from < self.credit.len() => self.credit[from] = self.credit[from].max(count),
            _ => self.wrong(Failure::Corrupt(format!("a message of seat {from}"))),
        }
    }

    #[inline(always)]
    fn on_comp(&mut self, token: u64, result: Result<(), Error>) {
        if let Err(e) = result {
            self.wrong(Failure::Run(format!("an operation failed: {e}")));
        }
        match token {
            FLUSH => self.flushed = true,
            slot => self.free.push(slot as u32),
        }
    }

    #[cold]
    fn on_ep_error(&mut self, _: EpTag, error: Error) {
        self.wrong(Failure::Run(format!("an endpoint failed: {error}")));
    }
}

impl Events {
    #[cold]
    fn check(&mut self, from: usize, count: u64, data: &[u8]) {
        let whole = pattern::check(data, number(from, count), self.size);
        if let Err(why) = whole.and_then(|()| self.seen[from].mark(count)) {
            self.wrong(Failure::Corrupt(format!("from seat {from}: {why}")));
        }
    }

    fn wrong(&mut self, failure: Failure) {
        self.wrong.get_or_insert(failure);
    }
}

/// The bits of a number that a word of so many bytes keeps; of more than 64 the lower ones.
fn bits(size: usize) -> u64 {
    u64::MAX >> (64 - 8 * size.min(8))
}

fn number(seat: usize, count: u64) -> u64 {
    (seat as u64) << NUMBER_BITS | count
}

/// The way to one peer, and its memory.
struct Way<I: Iface> {
    ep: I::Ep,
    rkey: <I::Md as uct::api::Md>::Rkey,
    addr: u64,
}

/// An interface with ways to everybody.
struct Crowd<'a, I: Iface> {
    spec: &'a Spec,
    layout: Layout,
    iface: &'a I,
    link: &'a mut Link,
    me: usize,
    /// By number; `None` for this seat.
    ways: Vec<Option<Way<I>>>,
    /// Whom this seat sends to.
    targets: Vec<usize>,
    /// Who sends to this seat.
    sources: Vec<usize>,
    target: Room<I::Md>,
    source: Room<I::Md>,
    events: Events,
    pulse: Pulse<'a>,
    patience: Patience,
    /// What swaps of this seat have changed in each seat's word, where that is checked.
    deltas: Vec<u64>,
}

/// Runs one test on an open interface; answers what this seat did.
pub fn run<I: Iface>(spec: &Spec, iface: &I, link: &mut Link, report: &Report) -> Result<Done, Failure> {
    let (me, size) = (link.rank(), link.size());
    let prepared = prepare(spec, iface, size);
    let (mine, rooms) = match prepared {
        Ok((setup, rooms)) => (Ok(setup), Some(rooms)),
        Err(e) => (Err(e), None),
    };
    let all: Vec<Setup> = link.gather_result(mine)?;
    let Some((layout, target, source)) = rooms else { return Err(Failure::Run("not prepared".into())) };
    let connect = |(n, setup): (usize, &Setup)| (n != me).then(|| way(iface, setup)).transpose();
    let connected: Result<Vec<_>, Failure> = all.iter().enumerate().map(connect).collect();
    link.gather_result(connected.as_ref().map(drop).map_err(|e| Failure::Run(e.to_string())))?;
    let ways = connected?;
    let others = || (0..size).filter(|n| *n != me);
    let (targets, sources): (Vec<usize>, Vec<usize>) = match (spec.pattern, me) {
        (Pattern::Incast, 0) => (Vec::new(), others().collect()),
        (Pattern::Incast, _) => (vec![0], Vec::new()),
        _ => (others().collect(), others().collect()),
    };
    let attr = iface.attr().clone();
    let path = Path { transport: attr.tl.into(), device: attr.dev, data_path: layout.name().into() };
    let mut show = |meter: &mut Meter| report.progress(spec, &path, meter.read(spec.rank));
    let (patience, pulse) = (Patience::new(link), Pulse::new(&mut show));
    let events = Events {
        got: vec![0; size],
        credit: vec![0; size],
        seen: Vec::new(),
        size: spec.size(),
        free: (0..spec.window).rev().collect(),
        flushed: false,
        wrong: None,
    };
    let mut crowd = Crowd {
        spec,
        layout,
        iface,
        link,
        me,
        ways,
        targets,
        sources,
        target,
        source,
        events,
        pulse,
        patience,
        deltas: vec![0; size],
    };
    if spec.warmup > 0 {
        crowd.measure(spec.warmup)?;
    }
    crowd.measure(spec.iters)?;
    let meter = &mut crowd.pulse.meter;
    let (reading, hist) = (meter.read(spec.rank), Report::histogram(spec, meter));
    let done = Done::new(spec, path.clone(), reading, hist);
    crowd.flush()?;
    crowd.barrier()?;
    Ok(done)
}

type Rooms<I> = (Layout, Room<<I as Iface>::Md>, Room<<I as Iface>::Md>);

fn prepare<I: Iface>(spec: &Spec, iface: &I, seats: usize) -> Result<(Setup, Rooms<I>), Failure> {
    let (md, size) = (iface.md(), spec.size());
    let layout = path::choose(spec, iface.attr())?;
    let is_am = matches!(spec.test, Test::AmBw | Test::AmMr);
    if is_am && layout == Layout::Zcopy {
        let why = format!("--pattern {}: {} does not take {layout}", spec.pattern, spec.test.name());
        return Err(Failure::Cannot(why));
    }
    let all = |n: usize| {
        size.checked_mul(n).ok_or_else(|| Failure::Cannot("-s, -O and --procs: too much memory".into()))
    };
    let target = Room::new(md, all(seats)?, spec.target, spec.pages)?;
    let source = Room::new(
        md,
        if layout == Layout::Zcopy { all(spec.window as usize)? } else { 0 },
        spec.target,
        spec.pages,
    )?;
    let rkey = if !is_am || md.attr().has_rkey { target.rkey(md)? } else { Default::default() };
    let setup = Setup {
        device: Blob(iface.device_addr().to_vec()),
        iface: Blob(iface.iface_addr().to_vec()),
        rkey: Blob(rkey.to_vec()),
        addr: target.addr(),
    };
    Ok((setup, (layout, target, source)))
}

fn way<I: Iface>(iface: &I, setup: &Setup) -> Result<Way<I>, Failure> {
    let ep = iface.connect(&setup.device.0, &setup.iface.0)?;
    let rkey = iface.md().unpack_rkey(&setup.rkey.0)?;
    if rkey.range().0 != setup.addr {
        return Err(Failure::Run("a key of another seat is for other memory".into()));
    }
    Ok(Way { ep, rkey, addr: setup.addr })
}

impl<I: Iface> Crowd<'_, I> {
    fn validates(&self) -> bool {
        self.spec.validate == Validate::Yes
    }

    /// Operations on each target.
    fn share(&self, iters: u64, targets: usize) -> u64 {
        (iters / targets.max(1) as u64).max(1)
    }

    /// How many operations each of the others does on this seat.
    fn expected(&self, iters: u64) -> u64 {
        match self.spec.pattern {
            Pattern::AllToAll => self.share(iters, self.link.size() - 1),
            _ => self.share(iters, 1),
        }
    }

    fn measure(&mut self, iters: u64) -> Result<(), Failure> {
        let each = self.share(iters, self.targets.len());
        self.reset(iters)?;
        self.barrier()?;
        self.pulse.start();
        match self.spec.test {
            Test::AmBw | Test::AmMr => self.messages(each, iters)?,
            Test::PutBw => self.puts(each)?,
            Test::Get | Test::GetBw => self.gets(each)?,
            _ => self.atomics(each)?,
        }
        self.flush()?;
        if self.validates() {
            // `measure` again would count this time too: the reading is taken before the next start.
            self.barrier()?;
            self.look(iters)?;
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
            self.events.seen = self.events.got.iter().map(|_| Seen::new(expected)).collect();
            if matches!(self.spec.test, Test::Get | Test::GetBw) {
                let mut bytes = zeros(self.spec.size())?;
                pattern::fill(&mut bytes, number(self.me, 0));
                self.target.write(0, &bytes);
            }
        }
        Ok(())
    }

    /// After all have ended: what the others left here is what they should have.
    fn look(&mut self, iters: u64) -> Result<(), Failure> {
        let (size, expected) = (self.spec.size(), self.expected(iters));
        match self.spec.test {
            Test::PutBw => self.sources.iter().try_for_each(|from| {
                self.target.check(from * size, size, number(*from, expected - 1)).map_err(Failure::Corrupt)
            }),
            Test::AddMr | Test::Fadd => {
                let (word, want) =
                    (self.target.word(size), (expected * self.sources.len() as u64) & bits(size));
                let same = word == want;
                same.then_some(()).ok_or_else(|| {
                    Failure::Corrupt(format!("the word of seat {} is {word} instead of {want}", self.me))
                })
            }
            Test::Swap | Test::Cswap => {
                let (iface, events) = (self.iface, &mut self.events);
                let all = self.link.gather(&self.deltas, || iface.poll(BATCH, events))?;
                let changes = all.iter().filter_map(|deltas| deltas.get(self.me));
                let want = changes.fold(0u64, |sum, change| sum.wrapping_add(*change)) & bits(size);
                let word = self.target.word(size);
                let same = word == want;
                same.then_some(()).ok_or_else(|| {
                    let me = self.me;
                    Failure::Corrupt(format!("the word of seat {me} is {word}, its changes sum up to {want}"))
                })
            }
            _ => Ok(()),
        }
    }

    /// HOT
    #[inline(always)]
    fn poll(&mut self) -> Result<(), Failure> {
        if self.iface.poll(BATCH, &mut self.events) > 0 {
            self.patience.renew();
        } else {
            self.patience.lose(self.link)?;
        }
        self.events.wrong.take().map_or(Ok(()), Err)
    }

    /// Does `op` on the way to `to` until there is room for it. HOT
    #[inline(always)]
    fn post<T>(&mut self, to: usize, mut op: impl FnMut(&Self, &Way<I>) -> Outcome<T>) -> Result<T, Failure> {
        loop {
            let Some(way) = &self.ways[to] else { return Err(Failure::Run("a seat without a way".into())) };
            match op(self, way) {
                Ok(sent) => return Ok(sent),
                Err(Refused::NoResource) => self.poll()?,
                Err(Refused::Failed(e)) => return Err(e.into()),
            }
        }
    }

    /// The same with a slot, which comes back when the operation ends. HOT
    #[inline(always)]
    fn post_slot(
        &mut self,
        to: usize,
        mut op: impl FnMut(&Self, &Way<I>, u32) -> Outcome,
    ) -> Result<(), Failure> {
        let slot = loop {
            match self.events.free.pop() {
                Some(slot) => break slot,
                None => self.poll()?,
            }
        };
        if let Sent::Done = self.post(to, |crowd, way| op(crowd, way, slot))? {
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
                self.pulse.beat();
            }
        }
        Ok(())
    }

    fn messages(&mut self, each: u64, iters: u64) -> Result<(), Failure> {
        let (credits, expected) = (u64::from(self.spec.credits), self.expected(iters));
        let step = (credits / 2).max(1);
        let mut told = vec![0; self.events.got.len()];
        let mut bytes = zeros(self.spec.size())?;
        pattern::fill(&mut bytes, number(self.me, 0));
        self.each_target(each, |crowd, to, seq| {
            while seq - crowd.events.credit[to] >= credits {
                crowd.poll()?;
                crowd.tell(&mut told, step, expected)?;
            }
            let n = number(crowd.me, seq);
            if crowd.validates() {
                pattern::fill(&mut bytes, n);
            } else {
                bytes[..SEQ].copy_from_slice(&n.to_le_bytes());
            }
            let message = &bytes[..];
            match crowd.layout {
                Layout::Bcopy => {
                    let pack = |room: &mut [u8]| {
                        copy_slice(&mut room[..message.len()], message);
                        message.len()
                    };
                    crowd.post(to, |_, way| way.ep.am_bcopy(MSG, pack)).map(drop)
                }
                _ => crowd.post(to, |_, way| way.ep.am_short(MSG, n, &message[SEQ..])).map(drop),
            }?;
            // Receivers of one another must also take in what comes.
            if seq.is_multiple_of(16) {
                crowd.poll()?;
                crowd.tell(&mut told, step, expected)?;
            }
            Ok(())
        })?;
        loop {
            let sent = self.targets.iter().all(|to| self.events.credit[*to] >= each);
            let come = self.sources.iter().all(|from| told[*from] >= expected);
            if sent && come {
                return Ok(());
            }
            self.poll()?;
            self.tell(&mut told, step, expected)?;
        }
    }

    /// Tells senders how many of their messages are here.
    #[inline(always)]
    fn tell(&mut self, told: &mut [u64], step: u64, expected: u64) -> Result<(), Failure> {
        for at in 0..self.sources.len() {
            let from = self.sources[at];
            let have = self.events.got[from];
            if have - told[from] >= step || (have >= expected && told[from] < have) {
                let n = number(self.me, have);
                self.post(from, |_, way| {
                    way.ep.am_bcopy(CREDIT, |room| {
                        room[..SEQ].copy_from_slice(&n.to_le_bytes());
                        SEQ
                    })
                })?;
                told[from] = have;
            }
        }
        Ok(())
    }

    fn puts(&mut self, each: u64) -> Result<(), Failure> {
        let (size, me) = (self.spec.size(), self.me);
        let room = (me * size) as u64;
        let mut bytes = zeros(size)?;
        pattern::fill(&mut bytes, number(me, 0));
        self.each_target(each, |crowd, to, seq| {
            if crowd.validates() {
                pattern::fill(&mut bytes, number(me, seq));
                // The last to arrive stays, so on an unordered wire they go one by one.
                crowd.drain()?;
            }
            let bytes = &bytes[..];
            match crowd.layout {
                Layout::Zcopy => crowd.post_slot(to, |crowd, way, slot| {
                    let at = slot as usize * size;
                    if crowd.validates() {
                        crowd.source.write(at, bytes);
                    }
                    let iov = [crowd.source.piece(at, size)];
                    // SAFETY: the piece is in registered memory that outlives the interface's use of it (the crowd
                    // flushes before it ends), and is written again only after its completion gave the slot back.
                    unsafe { way.ep.put_zcopy(&iov, way.addr + room, &way.rkey, Comp::Token(slot.into())) }
                }),
                Layout::Bcopy => {
                    let fill = |room: &mut [u8]| {
                        copy_slice(&mut room[..size], bytes);
                        size
                    };
                    crowd
                        .post(to, |_, way| way.ep.put_bcopy(size, fill, way.addr + room, &way.rkey))
                        .map(drop)
                }
                _ => crowd.post(to, |_, way| way.ep.put_short(bytes, way.addr + room, &way.rkey)).map(drop),
            }
        })
    }

    fn gets(&mut self, each: u64) -> Result<(), Failure> {
        let size = self.spec.size();
        let mut bytes = zeros(size)?;
        let unpacked = Rc::new(RefCell::new(zeros(size)?));
        self.each_target(each, |crowd, to, _| {
            let mut used = 0;
            match crowd.layout {
                Layout::Zcopy => crowd.post_slot(to, |crowd, way, slot| {
                    used = slot as usize * size;
                    let iov = [crowd.source.piece(used, size)];
                    // SAFETY: the piece is in registered memory that outlives the interface's use of it, and is not
                    // touched before its completion.
                    unsafe { way.ep.get_zcopy(&iov, way.addr, &way.rkey, Comp::Token(slot.into())) }
                }),
                Layout::Bcopy => crowd.post_slot(to, |_, way, slot| {
                    let into = unpacked.clone();
                    let unpack = move |bytes: &[u8]| into.borrow_mut()[..bytes.len()].copy_from_slice(bytes);
                    way.ep.get_bcopy(size, unpack, way.addr, &way.rkey, Comp::Token(slot.into()))
                }),
                _ => crowd.post(to, |_, way| way.ep.get_short(&mut bytes, way.addr, &way.rkey)).map(drop),
            }?;
            if crowd.validates() {
                crowd.drain()?;
                match crowd.layout {
                    Layout::Zcopy => bytes = crowd.source.read(used, size),
                    Layout::Bcopy => bytes.copy_from_slice(&unpacked.borrow()),
                    _ => {}
                }
                pattern::check(&bytes, number(to, 0), size).map_err(Failure::Corrupt)?;
            }
            Ok(())
        })
    }

    fn atomics(&mut self, each: u64) -> Result<(), Failure> {
        match self.spec.size() {
            1 => self.atomics_of::<u8>(each),
            2 => self.atomics_of::<u16>(each),
            4 => self.atomics_of::<u32>(each),
            8 => self.atomics_of::<u64>(each),
            _ => self.atomics_of::<u128>(each),
        }
    }

    fn atomics_of<W: Word>(&mut self, each: u64) -> Result<(), Failure> {
        let (results, one) = (vec![Cell::new(W::from_u64(0)); self.spec.window as usize], W::from_u64(1));
        let test = self.spec.test;
        // What each seat's word was when this one last saw it.
        let mut known = vec![0u64; self.deltas.len()];
        let done = self.each_target(each, |crowd, to, seq| {
            if test == Test::AddMr {
                let add =
                    |_: &Self, way: &Way<I>| way.ep.atomic_post(AtomicOp::Add, one, way.addr, &way.rkey);
                return crowd.post(to, add).map(drop);
            }
            let (before, after) = match test {
                Test::Swap => (0, W::from_u64(number(crowd.me, seq)).to_u64()),
                _ => (known[to], W::from_u64(known[to].wrapping_add(1)).to_u64()),
            };
            let mut used = 0;
            crowd.post_slot(to, |_, way, slot| {
                used = slot as usize;
                let result = NonNull::from(&results[used]).cast();
                let (to, key, comp) = (way.addr, &way.rkey, Comp::Token(slot.into()));
                let (old, new) = (W::from_u64(before), W::from_u64(after));
                // SAFETY: in each case the results outlive the operations: drained, or leaked, below.
                match test {
                    // SAFETY: see above.
                    Test::Fadd => unsafe { way.ep.atomic_fetch(AtomicOp::Add, one, result, to, key, comp) },
                    // SAFETY: see above.
                    Test::Swap => unsafe { way.ep.atomic_fetch(AtomicOp::Swap, new, result, to, key, comp) },
                    // SAFETY: see above.
                    _ => unsafe { way.ep.atomic_cswap(old, new, result, to, key, comp) },
                }
            })?;
            if test != Test::Fadd && crowd.validates() {
                crowd.drain()?;
                let got = results[used].get().to_u64();
                let change = if test == Test::Swap || got == before { after.wrapping_sub(got) } else { 0 };
                crowd.deltas[to] = crowd.deltas[to].wrapping_add(change);
                known[to] = if got == before { after } else { got };
            }
            Ok(())
        });
        // Results must outlive the operations, whatever went wrong.
        if self.drain().is_err() {
            std::mem::forget(results);
        }
        done
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
        self.link.barrier(|| iface.poll(BATCH, events))?;
        self.events.wrong.take().map_or(Ok(()), Err)
    }
}
