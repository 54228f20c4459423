//! One-sided operations: each worker has memory that the others write, read and add to, by the device or by
//! packets, whole or in pieces, with a request or without. A copy holds the expected bytes. Called by `step`,
//! `completions` and `job`.
//!
//! Each write has a cell of its own, so the order of writes does not matter. Reads are of bytes that nobody
//! writes. Shared words are only added to, and the returned old values are all different. Slots have one
//! writer (`atomics`).

use super::Failed;
use super::atomic_lists::AREA;
use super::atomics::{PendingAtomic, SLOT};
use super::job::Job;
use super::job_params::{MAX_WORKERS, Scope};
use crate::pattern::{Pattern, mix};
use std::collections::BTreeMap;
use std::ops::Range;
use ucp::rdm::io::PeerId;
use ucp::select::DeliveryComplete;
use ucp::{
    Access, AtomicOp, Error, FetchRequest, Iov, Mem, OpStatus, RecvRequest, RemoteIov, RequestId, Rkey,
    RmaParams, SendRequest, Worker,
};

const CELL: usize = 16 << 10;
const CELLS: usize = 24;
/// Offsets: two words, slots and areas, cells that are written, bytes that are read.
const TICKETS: usize = 0;
const SUM: usize = 8;
pub const SLOTS: usize = 64;
pub const AREAS: usize = SLOTS + MAX_WORKERS * SLOT;
const WRITTEN: usize = AREAS + MAX_WORKERS * AREA;
const READ: usize = WRITTEN + CELLS * CELL;
const LEN: usize = READ + CELL;
const MAX_OPEN: usize = 8;
pub const PIECES: usize = 4;

enum PendingRma<R> {
    Owned(R),
    /// In pieces, by id; keeps the result and the bytes.
    Iov(RequestId, Option<Result<(), Error>>, Vec<u8>),
}

trait Poll {
    fn is_complete(&mut self) -> bool;
}

impl Poll for SendRequest<Vec<u8>> {
    fn is_complete(&mut self) -> bool {
        self.is_done()
    }
}

impl Poll for RecvRequest<Box<[u8]>> {
    fn is_complete(&mut self) -> bool {
        self.is_done()
    }
}

impl<R: Poll> PendingRma<R> {
    fn is_done(&mut self, worker: &Worker) -> bool {
        match self {
            PendingRma::Owned(request) => request.is_complete(),
            PendingRma::Iov(id, end, _) => {
                *end = end.or_else(|| worker.test(*id).map(|end| end.map(drop)));
                end.is_some()
            }
        }
    }
}

struct PendingPut {
    to: usize,
    cell: usize,
    cancelled: bool,
    form: PendingRma<SendRequest<Vec<u8>>>,
}

struct PendingGet {
    to: usize,
    at: usize,
    cancelled: bool,
    form: PendingRma<RecvRequest<Box<[u8]>>>,
}

/// A read without a request, completed by a flush.
pub struct ImplicitGet {
    to: usize,
    at: usize,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
pub struct Cell {
    by: usize,
    len: usize,
    cq_data: Option<u64>,
    /// The target does not acknowledge: the write must fail, or may if the device can do without.
    refused: Refused,
    state: PutState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refused {
    No,
    Perhaps,
    Yes,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PutState {
    Pending,
    Done,
    /// It never took place.
    Cancelled,
}

pub struct RmaState {
    puts: Vec<PendingPut>,
    gets: Vec<PendingGet>,
    tickets: Vec<(usize, FetchRequest<u64>)>,
    pub atomics: Vec<PendingAtomic>,
    /// Reads without a request that no flush has covered yet.
    implicit_gets: Vec<ImplicitGet>,
    kept: Vec<Vec<u8>>,
    /// Keys of the others' memory: as packed by their owners, and for packets only.
    pub keys: Vec<Option<[Rkey; 2]>>,
    mem: Mem,
    pub expected: Vec<u8>,
    cells: Vec<Cell>,
    /// Remote-write completions: peer and length, by data.
    announced: BTreeMap<u64, (PeerId, u64)>,
    tickets_seen: Vec<u64>,
    /// A lost worker may have added to the shared words.
    words_unknown: bool,
    /// Ranges that a lost worker may have written.
    unknown: Vec<Range<usize>>,
}

impl RmaState {
    pub fn new(n: usize, workers: usize, worker: &Worker) -> Result<RmaState, ucp::MemError> {
        let mem = worker.mem_alloc(LEN, Access::all())?;
        let mut model = vec![0; LEN];
        Pattern::new(0x5ea, n as u64, 0).fill(&mut model[READ..]);
        mem.write(0, &model);
        Ok(RmaState {
            puts: Vec::new(),
            gets: Vec::new(),
            tickets: Vec::new(),
            atomics: Vec::new(),
            implicit_gets: Vec::new(),
            kept: Vec::new(),
            keys: (0..workers).map(|_| None).collect(),
            mem,
            expected: model,
            cells: Vec::new(),
            announced: BTreeMap::new(),
            tickets_seen: Vec::new(),
            words_unknown: false,
            unknown: Vec::new(),
        })
    }

    pub fn open(&self) -> usize {
        self.puts.len() + self.gets.len() + self.tickets.len() + self.atomics.len()
    }

    /// Keeps the reads of a flush that did not complete.
    pub fn keep_implicit_gets(&mut self, implicit_gets: Vec<ImplicitGet>) {
        self.implicit_gets.extend(implicit_gets);
    }

    pub fn addr(&self) -> u64 {
        self.mem.addr()
    }
}

impl Job {
    pub(super) fn start_rma(&mut self, n: usize) -> Result<(), Failed> {
        if self.workers[n].rma.open() >= MAX_OPEN {
            return Ok(());
        }
        let to = self.any_worker();
        if !self.connect(n, to)? {
            return Ok(());
        }
        if self.workers[n].rma.keys[to].is_none() {
            let mem = &self.workers[to].rma.mem;
            let (packed, key) = (mem.pack_rkey(), mem.key());
            let Some(ep) = &self.workers[n].eps[to] else { return Err(self.fail("just connected")) };
            let rkey = ep.unpack_rkey(&packed);
            let rkey = rkey.map_err(|e| self.fail(format!("worker {n}: key of {to}: {e}")))?;
            self.workers[n].rma.keys[to] = Some([rkey, Rkey::from_key(key)]);
        }
        if self.rng.percent(10)
            && let Some(ep) = &self.workers[n].eps[to]
        {
            ep.fence();
        }
        match self.rng.below(6) {
            0 | 1 if self.workers[to].rma.cells.len() < CELLS => self.put(n, to)?,
            2 => self.add(n, to)?,
            3 => self.fetch_ticket(n, to),
            4 if self.limits.scope >= Scope::AtomicLists && self.rng.percent(40) => {
                self.start_atomic_list(n, to)?
            }
            4 => self.start_atomic(n, to)?,
            _ => self.get(n, to)?,
        }
        self.outcome.rma_ops += 1;
        self.reap_rma(n)
    }

    fn put(&mut self, n: usize, to: usize) -> Result<(), Failed> {
        let len = self.params.sizes.draw(&mut self.rng).min(CELL);
        let (by, how) = (self.rng.below(2) as usize, self.rng.below(4));
        let cell = self.workers[to].rma.cells.len();
        // 32 bits of data may go with a write of the device.
        let word = mix(self.seed ^ (to as u64) << 32 ^ cell as u64) >> (32 * self.rng.below(2));
        let cq_data = self.rng.percent(20).then_some(word);
        // A put without a request cannot be sync.
        let plain = how == 0 && cq_data.is_none();
        let sync = if !plain && self.rng.percent(30) { DeliveryComplete::Yes } else { DeliveryComplete::No };
        let refused = match sync == DeliveryComplete::Yes && self.workers[to].withholds_dc() {
            false => Refused::No,
            // Otherwise the device does it, or the target reads.
            true if (by == 1 || cq_data.is_some_and(|data| data >> 32 != 0))
                && self.params.min_read_write.is_none() =>
            {
                Refused::Yes
            }
            true => Refused::Perhaps,
        };
        self.trace.record(
            &[12, n as u64, to as u64, cell as u64, by as u64, len as u64, how],
            format_args!(
                "{}: {n} writes {len} bytes to cell {cell} of {to}: key {by}, form {how}, {sync:?}, {cq_data:x?}",
                self.step
            ),
        );
        let mut bytes = vec![0; len];
        Pattern::new(self.seed, to as u64, cell as u64).fill(&mut bytes);
        let offset = WRITTEN + cell * CELL;
        let remote = self.workers[to].rma.addr() + offset as u64;
        let lost = self.is_lost(n, to);
        let rma = &mut self.workers[to].rma;
        rma.expected[offset..offset + len].copy_from_slice(&bytes);
        // A worker that was given up may not know yet.
        rma.unknown.extend(lost.then_some(offset..offset + len));
        rma.cells.push(Cell { by: n, len, cq_data, refused, state: PutState::Pending });
        let cuts = (self.cut(len), self.cut(len));
        let sim_worker = &mut self.workers[n];
        let (Some(ep), Some(keys)) = (&sim_worker.eps[to], &sim_worker.rma.keys[to]) else { return Ok(()) };
        let (rkey, params) = (&keys[by], RmaParams { sync, cq_data, ..RmaParams::default() });
        if plain {
            // SAFETY: the bytes are kept, unchanged, until the end of the run.
            let begun = unsafe { ep.put_nbi(bytes.as_ptr(), len, remote, rkey) };
            sim_worker.rma.kept.push(bytes);
            return match begun {
                Err(_) if self.is_uncertain(n, to) => Ok(()),
                Err(e) => Err(self.fail(format!("worker {n}: a put without request to {to}: {e:?}"))),
                Ok(()) => {
                    self.workers[to].rma.cells[cell].state = PutState::Done;
                    Ok(())
                }
            };
        }
        if how == 1 {
            let local = local_iov(&mut bytes, &cuts.0);
            // SAFETY: the bytes are kept, unchanged, with the request.
            let begun = unsafe { ep.put_iov_raw(&local, &remote_iov(remote, rkey, &cuts.1), &params) };
            return match begun {
                Ok(OpStatus::InProgress(id)) => {
                    let form = PendingRma::Iov(id, None, bytes);
                    sim_worker.rma.puts.push(PendingPut { to, cell, cancelled: false, form });
                    Ok(())
                }
                Ok(OpStatus::Done(())) => self.put_ended(n, to, cell, false, Ok(())),
                Err(e) => self.put_ended(n, to, cell, false, Err(e)),
            };
        }
        let form = PendingRma::Owned(ep.put_with(bytes, remote, rkey, &params));
        sim_worker.rma.puts.push(PendingPut { to, cell, cancelled: false, form });
        Ok(())
    }

    fn get(&mut self, n: usize, to: usize) -> Result<(), Failed> {
        let len = self.params.sizes.draw(&mut self.rng).min(CELL);
        let (by, how) = (self.rng.below(2) as usize, self.rng.below(4));
        let at = READ + self.rng.below((CELL - len + 1) as u64) as usize;
        self.trace.record(
            &[13, n as u64, to as u64, at as u64, by as u64, len as u64, how],
            format_args!("{}: {n} reads {len} bytes at {at} of {to}: key {by}, form {how}", self.step),
        );
        let remote = self.workers[to].rma.addr() + at as u64;
        let mut bytes = vec![0; len];
        let cuts = (self.cut(len), self.cut(len));
        let sim_worker = &mut self.workers[n];
        let (Some(ep), Some(keys)) = (&sim_worker.eps[to], &sim_worker.rma.keys[to]) else { return Ok(()) };
        let rkey = &keys[by];
        match how {
            0 => {
                // SAFETY: the room is kept until a flush, or to the end of the run, and nobody looks at it
                // before.
                let begun = unsafe { ep.get_nbi(bytes.as_mut_ptr(), len, remote, rkey) };
                sim_worker.rma.implicit_gets.push(ImplicitGet { to, at, bytes });
                match begun {
                    Err(e) if !self.is_uncertain(n, to) => {
                        Err(self.fail(format!("worker {n}: a get without request from {to}: {e:?}")))
                    }
                    _ => Ok(()),
                }
            }
            1 => {
                let (local, far) = (local_iov(&mut bytes, &cuts.0), remote_iov(remote, rkey, &cuts.1));
                // SAFETY: the room is kept with the request, and nobody looks at it before its end.
                match unsafe { ep.get_iov_raw(&local, &far, &RmaParams::default()) } {
                    Ok(OpStatus::InProgress(id)) => {
                        let form = PendingRma::Iov(id, None, bytes);
                        sim_worker.rma.gets.push(PendingGet { to, at, cancelled: false, form });
                        Ok(())
                    }
                    Ok(OpStatus::Done(_)) => self.got(n, to, at, false, Ok(()), &bytes),
                    Err(e) => self.got(n, to, at, false, Err(e), &bytes),
                }
            }
            _ => {
                let form = PendingRma::Owned(ep.get(bytes.into_boxed_slice(), remote, rkey));
                sim_worker.rma.gets.push(PendingGet { to, at, cancelled: false, form });
                Ok(())
            }
        }
    }

    /// Adds to the sum of a worker without fetching it.
    fn add(&mut self, n: usize, to: usize) -> Result<(), Failed> {
        let value = self.rng.below(1000);
        add(&mut self.workers[to].rma.expected, SUM, value);
        let remote = self.workers[to].rma.addr() + SUM as u64;
        let sim_worker = &mut self.workers[n];
        let (Some(ep), Some(keys)) = (&sim_worker.eps[to], &sim_worker.rma.keys[to]) else { return Ok(()) };
        match ep.atomic_post(AtomicOp::Sum, value, remote, &keys[0]) {
            Err(e) if !self.is_lost(n, to) => Err(self.fail(format!("worker {n}: adding at {to}: {e}"))),
            _ => Ok(()),
        }
    }

    fn fetch_ticket(&mut self, n: usize, to: usize) {
        add(&mut self.workers[to].rma.expected, TICKETS, 1);
        let remote = self.workers[to].rma.addr() + TICKETS as u64;
        let sim_worker = &mut self.workers[n];
        let (Some(ep), Some(keys)) = (&sim_worker.eps[to], &sim_worker.rma.keys[to]) else { return };
        sim_worker.rma.tickets.push((to, ep.atomic_fetch(AtomicOp::Sum, 1u64, remote, &keys[0])));
    }

    /// Cancels the latest put and get, if they have not begun.
    pub(super) fn cancel_rma(&mut self, n: usize) {
        let rma = &mut self.workers[n].rma;
        let mut granted = false;
        if let Some(PendingPut { form: PendingRma::Owned(request), cancelled, .. }) = rma.puts.last_mut() {
            *cancelled |= request.cancel();
            granted |= *cancelled;
        }
        if let Some(PendingGet { form: PendingRma::Owned(request), cancelled, .. }) = rma.gets.last_mut() {
            *cancelled |= request.cancel();
            granted |= *cancelled;
        }
        self.outcome.rma_cancelled += u64::from(granted);
        self.trace.record(
            &[14, n as u64, u64::from(granted)],
            format_args!("{}: {n} cancels a put and a get: {granted}", self.step),
        );
    }

    pub(super) fn reap_rma(&mut self, n: usize) -> Result<(), Failed> {
        let sim_worker = &mut self.workers[n];
        let (rma, worker) = (&mut sim_worker.rma, &sim_worker.worker);
        let puts: Vec<_> = rma.puts.extract_if(.., |put| put.form.is_done(worker)).collect();
        let gets: Vec<_> = rma.gets.extract_if(.., |get| get.form.is_done(worker)).collect();
        let tickets: Vec<_> = rma.tickets.extract_if(.., |(_, ticket)| ticket.is_done()).collect();
        for PendingPut { to, cell, cancelled, form } in puts {
            let end = match form {
                PendingRma::Owned(request) => request.wait().0,
                PendingRma::Iov(_, end, _) => end.unwrap_or(Ok(())),
            };
            self.put_ended(n, to, cell, cancelled, end)?;
        }
        for PendingGet { to, at, cancelled, form } in gets {
            let (end, bytes) = match form {
                PendingRma::Owned(request) => {
                    let (end, bytes) = request.wait();
                    (end.map(drop), bytes.into_vec())
                }
                PendingRma::Iov(_, end, bytes) => (end.unwrap_or(Ok(())), bytes),
            };
            self.got(n, to, at, cancelled, end, &bytes)?;
        }
        for (to, ticket) in tickets {
            match ticket.wait() {
                Ok(old) if !self.is_lost(n, to) => self.workers[n].rma.tickets_seen.push(old),
                Err(e) if !self.is_lost(n, to) => {
                    return Err(self.fail(format!("worker {n}: a ticket ended {e:?}")));
                }
                _ => {}
            }
        }
        while let Some(write) = self.workers[n].worker.take_remote_write() {
            if self.workers[n].rma.announced.insert(write.cq_data, (write.from, write.len)).is_some() {
                return Err(self.fail(format!("worker {n} is announced twice of {write:?}")));
            }
        }
        self.reap_atomics(n)
    }

    fn put_ended(
        &mut self,
        n: usize,
        to: usize,
        cell: usize,
        cancelled: bool,
        end: Result<(), Error>,
    ) -> Result<(), Failed> {
        let lost = self.is_uncertain(n, to);
        let what = &mut self.workers[to].rma.cells[cell];
        let (refused, len) = (what.refused, what.len);
        what.state = match end {
            Ok(()) if !cancelled && refused != Refused::Yes => PutState::Done,
            Err(Error::Cancelled) if cancelled => PutState::Cancelled,
            Err(Error::Unsupported) if refused != Refused::No => PutState::Cancelled,
            Err(_) if lost => PutState::Cancelled,
            _ => {
                let what = *what;
                return Err(self.fail(format!("worker {n}: put {cell} of {to} {what:?} ended {end:?}")));
            }
        };
        if self.workers[to].rma.cells[cell].state == PutState::Cancelled {
            let offset = WRITTEN + cell * CELL;
            self.workers[to].rma.expected[offset..offset + len].fill(0);
            // The device may have written a part before packets were needed.
            if refused == Refused::Perhaps || lost {
                self.workers[to].rma.unknown.push(offset..offset + len);
            }
        }
        Ok(())
    }

    fn got(
        &mut self,
        n: usize,
        to: usize,
        at: usize,
        cancelled: bool,
        end: Result<(), Error>,
        bytes: &[u8],
    ) -> Result<(), Failed> {
        match end {
            Ok(()) if !cancelled => {
                let right = self.workers[to].rma.expected[at..at + bytes.len()] == *bytes;
                let wrong = format!("worker {n}: {} bytes read at {at} of {to} are wrong", bytes.len());
                if right { Ok(()) } else { Err(self.fail(wrong)) }
            }
            Err(Error::Cancelled) if cancelled => Ok(()),
            Err(_) if self.is_uncertain(n, to) => Ok(()),
            _ => Err(self.fail(format!("worker {n}: a get of {} from {to} ended {end:?}", bytes.len()))),
        }
    }

    /// Operations that a flush of worker `n` covers: reads without request, and writes by target and cell.
    pub(super) fn flush_covers(
        &mut self,
        n: usize,
        of: Option<usize>,
    ) -> (Vec<ImplicitGet>, Vec<(usize, usize)>) {
        let implicit_gets = self.workers[n]
            .rma
            .implicit_gets
            .extract_if(.., |implicit_gets| of.is_none_or(|of| of == implicit_gets.to))
            .collect();
        let mut cells = Vec::new();
        for (to, sim_worker) in
            self.workers.iter().enumerate().filter(|(to, _)| of.is_none_or(|of| of == *to))
        {
            let mine = sim_worker.rma.cells.iter().enumerate().filter(|(_, cell)| cell.by == n);
            cells.extend(mine.map(|(cell, _)| (to, cell)));
        }
        (implicit_gets, cells)
    }

    pub(super) fn check_flush_covered(
        &mut self,
        n: usize,
        implicit_gets: &[ImplicitGet],
        cells: &[(usize, usize)],
    ) -> Result<(), Failed> {
        for ImplicitGet { to, at, bytes } in
            implicit_gets.iter().filter(|implicit_gets| !self.is_uncertain(n, implicit_gets.to))
        {
            if self.workers[*to].rma.expected[*at..*at + bytes.len()] != bytes[..] {
                return Err(self.fail(format!("worker {n}: flushed, but what was read from {to} is wrong")));
            }
        }
        for (to, cell) in cells {
            let sim_worker = &self.workers[*to];
            let what = sim_worker.rma.cells[*cell];
            // Withdrawn puts may not be recorded yet, and a target without acknowledgements confirms nothing.
            if self.is_lost(n, *to) || sim_worker.withholds_dc() || what.state != PutState::Done {
                continue;
            }
            let offset = WRITTEN + cell * CELL;
            let mut bytes = vec![0; what.len];
            sim_worker.rma.mem.read(offset, &mut bytes);
            if sim_worker.rma.expected[offset..offset + what.len] != bytes {
                return Err(self.fail(format!("worker {n}: flushed, but cell {cell} of {to} is not written")));
            }
        }
        Ok(())
    }

    /// Operations of `by` on worker `to` may have taken effect, or not, or in part.
    pub(super) fn forget_rma(&mut self, by: usize, to: usize) {
        let (slot, area) = (SLOTS + by * SLOT, AREAS + by * AREA);
        let rma = &mut self.workers[to].rma;
        rma.words_unknown = true;
        rma.unknown.extend([slot..slot + SLOT, area..area + AREA]);
        self.forget_writes(by, to);
    }

    /// Writes of `by` to worker `to` may have taken effect, or not, or in part.
    pub(super) fn forget_writes(&mut self, by: usize, to: usize) {
        let rma = &mut self.workers[to].rma;
        for (at, cell) in rma.cells.iter_mut().enumerate().filter(|(_, cell)| cell.by == by) {
            let offset = WRITTEN + at * CELL;
            rma.unknown.push(offset..offset + cell.len);
            cell.cq_data = None;
            cell.state = PutState::Cancelled;
        }
    }

    pub(super) fn check_memory(&mut self) -> Result<(), Failed> {
        for n in 0..self.workers.len() {
            if self.is_dead(n) {
                continue;
            }
            let rma = &self.workers[n].rma;
            let mut bytes = vec![0; LEN];
            rma.mem.read(0, &mut bytes);
            let mut must = rma.expected.clone();
            let words = if rma.words_unknown { TICKETS..SUM + 8 } else { 0..0 };
            for range in rma.unknown.iter().cloned().chain([words]) {
                must[range.clone()].copy_from_slice(&bytes[range]);
            }
            if let Some(at) = (0..LEN).find(|at| bytes[*at] != must[*at]) {
                let (is, must) = (bytes[at], must[at]);
                return Err(self.fail(format!("memory of {n}: byte {at} is {is}, not {must}")));
            }
            for cell in &rma.cells {
                let Some(data) = cell.cq_data else { continue };
                let due = (cell.state == PutState::Done).then_some((cell.by, cell.len as u64));
                // A peer that never sent a message is known by number only.
                let who = |from| self.workers[n].peers.get(from).copied().unwrap_or(cell.by);
                let announced = rma.announced.get(&data).map(|(from, len)| (who(from), *len));
                if announced != due && !self.is_lost(n, cell.by) {
                    return Err(self.fail(format!("worker {n} was announced {announced:?} of {cell:?}")));
                }
            }
        }
        self.check_tickets()
    }

    fn check_tickets(&mut self) -> Result<(), Failed> {
        if (0..self.workers.len()).any(|n| self.has_losses(n)) {
            return Ok(());
        }
        let mut tickets_seen: Vec<u64> =
            self.workers.iter().flat_map(|sim_worker| sim_worker.rma.tickets_seen.clone()).collect();
        let mut due: Vec<u64> = self.workers.iter().flat_map(|n| 0..n.rma.mem.word(TICKETS)).collect();
        tickets_seen.sort_unstable();
        due.sort_unstable();
        match tickets_seen == due {
            true => Ok(()),
            false => Err(self.fail(format!("tickets drawn: {tickets_seen:?}, not {due:?}"))),
        }
    }

    /// Cuts a length into up to four, some of them perhaps 0.
    pub(super) fn cut(&mut self, len: usize) -> Vec<usize> {
        let mut at: Vec<usize> =
            (0..self.rng.below(PIECES as u64)).map(|_| self.rng.below(len as u64 + 1) as usize).collect();
        at.extend([0, len]);
        at.sort_unstable();
        at.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }
}

pub fn local_iov(bytes: &mut [u8], cuts: &[usize]) -> Vec<Iov> {
    let mut at = bytes.as_mut_ptr();
    let piece = |len: &usize| {
        let piece = Iov { addr: at, len: *len };
        at = at.wrapping_add(*len);
        piece
    };
    cuts.iter().map(piece).collect()
}

fn remote_iov<'a>(mut at: u64, rkey: &'a Rkey, cuts: &[usize]) -> Vec<RemoteIov<'a>> {
    let piece = |len: &usize| {
        let piece = RemoteIov { addr: at, len: *len, rkey };
        at += *len as u64;
        piece
    };
    cuts.iter().map(piece).collect()
}

fn add(memory: &mut [u8], at: usize, value: u64) {
    if let Some(word) = memory[at..].first_chunk_mut::<8>() {
        *word = (u64::from_le_bytes(*word) + value).to_le_bytes();
    }
}
