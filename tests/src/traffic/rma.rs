//! Puts, gets and atomics of one process on memory of the other, all checked. A put is read back by a get. A
//! word that only this process changes tells whether an atomic was lost or executed twice.

use super::Failure;
use crate::pattern::Pattern;
use crate::rng::Rng;
use crate::sizes::Sizes;
use serde::{Deserialize, Serialize};
use ucp::{Access, AtomicOp, Ep, Error, FlushRequest, Mem, RecvRequest, Rkey, SendRequest, Worker};

/// Operations of one kind in flight.
const SLOTS: usize = 16;
/// Words for atomics, each in a cache line of its own.
const WORDS: usize = 4;
const LINE: usize = 64;
/// Word of posted adds.
const POSTED: usize = 0;
/// Word of fetching adds.
const FETCHED: usize = 1;
/// Word of compare-and-swaps.
const SWAPPED: usize = 2;
/// Streams of patterns and random numbers: messages have those of the process's number.
const STREAM: u64 = 2;

/// A process's memory, as the other one is told.
#[derive(Debug, Serialize, Deserialize)]
pub struct MemInfo {
    rkey: Vec<u8>,
    addr: u64,
}

/// Operations that were checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RmaReport {
    /// Puts, each read back.
    pub puts: u64,
    /// Gets of what was put.
    pub gets: u64,
    /// Adds and compare-and-swaps.
    pub atomics: u64,
}

/// Memory for the other process's operations: bytes of the puts, then the words.
pub fn alloc(worker: &Worker, max: usize) -> Result<(Mem, MemInfo), Failure> {
    let access = Access::READ | Access::WRITE | Access::ATOMIC;
    let mem = worker.mem_alloc(SLOTS * slot_len(max) + WORDS * LINE, access);
    let mem = mem.map_err(|error| Failure::Violation(format!("no memory for the other process: {error}")))?;
    let info = MemInfo { rkey: mem.pack_rkey(), addr: mem.addr() };
    Ok((mem, info))
}

fn slot_len(max: usize) -> usize {
    max.next_multiple_of(LINE)
}

fn reported(what: &str) -> impl Fn(Error) -> Failure {
    move |error| Failure::Reported { what: what.into(), error }
}

/// Operations in flight.
enum Phase {
    Puts(Vec<SendRequest<Vec<u8>>>),
    Flush(FlushRequest),
    Gets(Vec<RecvRequest<Vec<u8>>>),
    Adds(Vec<ucp::FetchRequest<u64>>),
    Swap(ucp::FetchRequest<u64>),
    FinalFlush(FlushRequest),
    /// The word of posted adds, read.
    Total(ucp::FetchRequest<u64>),
    Done,
}

/// The operations of one process.
pub struct Rma {
    rkey: Rkey,
    addr: u64,
    slot_len: usize,
    sizes: Sizes,
    rng: Rng,
    seed: u64,
    me: u64,
    /// Operations of each kind to do.
    wanted: u64,
    lens: [usize; SLOTS],
    phase: Phase,
    pub report: RmaReport,
}

impl Rma {
    /// Operations on the memory that `info` names: `wanted` puts, as many gets, and as many atomics or more.
    pub fn new(
        ep: &Ep,
        info: &MemInfo,
        sizes: Sizes,
        (seed, me, wanted): (u64, u64, u64),
    ) -> Result<Rma, Failure> {
        let rkey = ep.unpack_rkey(&info.rkey);
        let rkey = rkey.map_err(|error| Failure::Violation(format!("the other's remote key: {error}")))?;
        Ok(Rma {
            rkey,
            addr: info.addr,
            slot_len: slot_len(sizes.max()),
            sizes,
            rng: Rng::new(seed, STREAM + me),
            seed,
            me,
            wanted,
            lens: [0; SLOTS],
            phase: Phase::Puts(Vec::new()),
            report: RmaReport::default(),
        })
    }

    pub fn is_done(&self) -> bool {
        matches!(self.phase, Phase::Done)
    }

    fn slot(&self, n: usize) -> u64 {
        self.addr + (n * self.slot_len) as u64
    }

    fn word(&self, n: usize) -> u64 {
        self.addr + (SLOTS * self.slot_len + n * LINE) as u64
    }

    fn pattern(&self, n: usize) -> Pattern {
        Pattern::new(self.seed, STREAM + self.me, self.report.gets + n as u64)
    }

    /// Checks what has ended, and starts what follows; answers whether anything moved.
    pub fn step(&mut self, ep: &Ep) -> Result<bool, Failure> {
        let is_ready = match &self.phase {
            Phase::Puts(puts) => puts.iter().all(|put| put.is_done()),
            Phase::Flush(flush) | Phase::FinalFlush(flush) => flush.is_done(),
            Phase::Gets(gets) => gets.iter().all(|get| get.is_done()),
            Phase::Adds(adds) => adds.iter().all(|add| add.is_done()),
            Phase::Swap(one) | Phase::Total(one) => one.is_done(),
            Phase::Done => false,
        };
        if is_ready {
            self.phase = match std::mem::replace(&mut self.phase, Phase::Done) {
                Phase::Puts(puts) if puts.is_empty() => self.next_round(ep),
                Phase::Puts(puts) => {
                    self.report.puts += puts.len() as u64;
                    for put in puts {
                        put.wait().0.map_err(reported("put"))?;
                    }
                    Phase::Flush(ep.flush())
                }
                Phase::Flush(flush) => {
                    flush.wait().map_err(reported("flush of puts"))?;
                    Phase::Gets((0..SLOTS).map(|n| self.get(ep, n)).collect())
                }
                Phase::Gets(gets) => self.check_gets(ep, gets)?,
                Phase::Adds(adds) => self.check_adds(ep, adds)?,
                Phase::Swap(swap) => {
                    let (old, rounds) = (swap.wait().map_err(reported("compare-and-swap"))?, self.rounds());
                    check_word("compare-and-swap", old, rounds)?;
                    self.report.atomics += 1;
                    self.next_round(ep)
                }
                Phase::FinalFlush(flush) => {
                    flush.wait().map_err(reported("flush of adds"))?;
                    Phase::Total(ep.atomic_fetch(AtomicOp::Sum, 0, self.word(POSTED), &self.rkey))
                }
                Phase::Total(total) => {
                    let total = total.wait().map_err(reported("atomic read"))?;
                    check_word("posted adds", total, self.report.gets)?;
                    Phase::Done
                }
                Phase::Done => Phase::Done,
            };
        }
        Ok(is_ready)
    }

    /// Rounds whose gets were checked, but for the present one.
    fn rounds(&self) -> u64 {
        self.report.gets / SLOTS as u64 - 1
    }

    fn next_round(&mut self, ep: &Ep) -> Phase {
        if self.report.gets >= self.wanted {
            return Phase::FinalFlush(ep.flush());
        }
        let puts = (0..SLOTS).map(|n| {
            let len = self.sizes.draw(&mut self.rng);
            self.lens[n] = len;
            let mut bytes = vec![0; len];
            self.pattern(n).fill(&mut bytes);
            ep.put(bytes, self.slot(n), &self.rkey)
        });
        Phase::Puts(puts.collect())
    }

    fn get(&self, ep: &Ep, n: usize) -> RecvRequest<Vec<u8>> {
        ep.get(Vec::with_capacity(self.lens[n]), self.slot(n), &self.rkey)
    }

    fn check_gets(&mut self, ep: &Ep, gets: Vec<RecvRequest<Vec<u8>>>) -> Result<Phase, Failure> {
        for (n, get) in gets.into_iter().enumerate() {
            let (end, bytes) = get.wait();
            end.map_err(reported("get"))?;
            // A container may have more room than was asked for.
            let want = bytes.get(..self.lens[n]).ok_or_else(|| {
                Failure::Violation(format!("a get of {} bytes ends with {}", self.lens[n], bytes.len()))
            })?;
            self.pattern(n).check(want).map_err(|mismatch| {
                Failure::Violation(format!("put and get of {} bytes: {mismatch}", self.lens[n]))
            })?;
        }
        self.report.gets += SLOTS as u64;
        let mut adds = Vec::new();
        for _ in 0..SLOTS {
            ep.atomic_post(AtomicOp::Sum, 1u64, self.word(POSTED), &self.rkey).map_err(reported("add"))?;
            adds.push(ep.atomic_fetch(AtomicOp::Sum, 1u64, self.word(FETCHED), &self.rkey));
        }
        Ok(Phase::Adds(adds))
    }

    /// Each value below the number of adds must have been fetched once, in whatever order.
    fn check_adds(&mut self, ep: &Ep, adds: Vec<ucp::FetchRequest<u64>>) -> Result<Phase, Failure> {
        let first = self.rounds() * SLOTS as u64;
        let mut old = Vec::new();
        for add in adds {
            old.push(add.wait().map_err(reported("fetching add"))?);
        }
        old.sort_unstable();
        for (n, old) in old.into_iter().enumerate() {
            check_word("fetching add", old, first + n as u64)?;
        }
        self.report.atomics += 2 * SLOTS as u64;
        let (from, word) = (self.rounds(), self.word(SWAPPED));
        Ok(Phase::Swap(ep.atomic_compare(AtomicOp::CompareSwap, from, from + 1, word, &self.rkey)))
    }
}

fn check_word(what: &str, got: u64, want: u64) -> Result<(), Failure> {
    match got == want {
        true => Ok(()),
        false => Err(Failure::Violation(format!("{what}: the word is {got}, not {want}"))),
    }
}
