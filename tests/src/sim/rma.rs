//! One-sided operations in a job: each worker has memory that the others write, read and compute in, by the device or by
//! packets, whole or in pieces, with a request or without, against a model of every byte. Called by `act` to start, by
//! `settle` to look at ends, by the world at the end.
//!
//! Each write has a cell of its own, so that the order of writes does not matter; reads are of bytes nobody writes; words
//! shared by all are only added to, and the old values that come back are all different; slots have one writer (`amo`).

use super::Failed;
use super::amo::{Computing, SLOT};
use super::knobs::{MAX_WORKERS, Scope};
use super::lists::AREA;
use super::world::World;
use crate::pattern::{Pattern, mix};
use std::collections::BTreeMap;
use std::ops::Range;
use ucp::rdm::io::PeerId;
use ucp::select::Sync;
use ucp::{
    Access, AtomicOp, Error, FetchRequest, Mem, Piece, RecvRequest, RemotePiece, RequestId, Rkey, RmaParams,
    SendRequest, Started, Worker,
};

/// Bytes of a cell, and cells.
const CELL: usize = 16 << 10;
const CELLS: usize = 24;
/// Two words first, then slots and areas, then cells that are written, then bytes that are read.
const TICKETS: usize = 0;
const SUM: usize = 8;
/// Where the slots of the workers begin.
pub const SLOTS: usize = 64;
/// Where their areas for lists begin.
pub const AREAS: usize = SLOTS + MAX_WORKERS * SLOT;
const WRITTEN: usize = AREAS + MAX_WORKERS * AREA;
const READ: usize = WRITTEN + CELLS * CELL;
const LEN: usize = READ + CELL;
/// Operations running at a time in a worker.
const MAX_OPEN: usize = 8;
/// Pieces of one side of an operation.
pub const PIECES: usize = 4;

/// Where the end of an operation is told.
enum Form<R> {
    Owned(R),
    /// In pieces, by an id; the end and the bytes are kept here.
    Pieces(RequestId, Option<Result<(), Error>>, Vec<u8>),
}

/// What can be asked whether it has ended.
trait Ends {
    fn has_ended(&mut self) -> bool;
}

impl Ends for SendRequest<Vec<u8>> {
    fn has_ended(&mut self) -> bool {
        self.is_done()
    }
}

impl Ends for RecvRequest<Box<[u8]>> {
    fn has_ended(&mut self) -> bool {
        self.is_done()
    }
}

impl<R: Ends> Form<R> {
    fn is_done(&mut self, worker: &Worker) -> bool {
        match self {
            Form::Owned(request) => request.has_ended(),
            Form::Pieces(id, end, _) => {
                *end = end.or_else(|| worker.test(*id).map(|end| end.map(drop)));
                end.is_some()
            }
        }
    }
}

/// A write that has not ended.
struct Putting {
    to: usize,
    cell: usize,
    cancelled: bool,
    form: Form<SendRequest<Vec<u8>>>,
}

/// A read that has not ended.
struct Getting {
    to: usize,
    /// Where in the memory.
    at: usize,
    cancelled: bool,
    form: Form<RecvRequest<Box<[u8]>>>,
}

/// A read without a request: a flush tells its end.
pub struct Lent {
    to: usize,
    at: usize,
    bytes: Vec<u8>,
}

/// A write, by target and cell.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    by: usize,
    len: usize,
    cq_data: Option<u64>,
    /// The target does not acknowledge, so it must fail, or may if the device can do without.
    refused: Refused,
    fate: Fate,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refused {
    No,
    Perhaps,
    Yes,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Going,
    Done,
    /// It never was.
    Off,
}

/// A worker's memory and its operations on that of others.
pub struct Shore {
    puts: Vec<Putting>,
    gets: Vec<Getting>,
    tickets: Vec<(usize, FetchRequest<u64>)>,
    /// See `amo`.
    pub computing: Vec<Computing>,
    /// Reads without a request that no flush has covered yet.
    lent: Vec<Lent>,
    /// Bytes of writes without a request.
    kept: Vec<Vec<u8>>,
    /// Keys of the others' memory: as their owners packed them, and for packets alone.
    pub keys: Vec<Option<[Rkey; 2]>>,
    mem: Mem,
    /// What must be in it at the end.
    pub model: Vec<u8>,
    cells: Vec<Cell>,
    /// Announced writes that have come: who and how long, by data.
    told: BTreeMap<u64, (PeerId, u64)>,
    drawn: Vec<u64>,
    /// A worker that has died may have drawn from here or added.
    unsure: bool,
    /// What it may have written, or not.
    unknown: Vec<Range<usize>>,
}

impl Shore {
    /// Memory of worker number `n` of `workers`.
    pub fn new(n: usize, workers: usize, worker: &Worker) -> Result<Shore, ucp::MemError> {
        let mem = worker.mem_alloc(LEN, Access::all())?;
        let mut model = vec![0; LEN];
        Pattern::new(0x5ea, n as u64, 0).fill(&mut model[READ..]);
        mem.write(0, &model);
        Ok(Shore {
            puts: Vec::new(),
            gets: Vec::new(),
            tickets: Vec::new(),
            computing: Vec::new(),
            lent: Vec::new(),
            kept: Vec::new(),
            keys: (0..workers).map(|_| None).collect(),
            mem,
            model,
            cells: Vec::new(),
            told: BTreeMap::new(),
            drawn: Vec::new(),
            unsure: false,
            unknown: Vec::new(),
        })
    }

    /// Operations that have not ended.
    pub fn open(&self) -> usize {
        self.puts.len() + self.gets.len() + self.tickets.len() + self.computing.len()
    }

    /// A flush that was not started ends no read.
    pub fn uncover(&mut self, lent: Vec<Lent>) {
        self.lent.extend(lent);
    }

    /// First address.
    pub fn addr(&self) -> u64 {
        self.mem.addr()
    }
}

impl World {
    /// Starts one operation of worker `n` on the memory of any.
    pub(super) fn reach(&mut self, n: usize) -> Result<(), Failed> {
        if self.nodes[n].shore.open() >= MAX_OPEN {
            return Ok(());
        }
        let to = self.any_worker();
        if !self.connect(n, to)? {
            return Ok(());
        }
        if self.nodes[n].shore.keys[to].is_none() {
            let mem = &self.nodes[to].shore.mem;
            let (packed, key) = (mem.pack_rkey(), mem.key());
            let Some(ep) = &self.nodes[n].eps[to] else { return Err(self.fail("just connected")) };
            let rkey = ep.unpack_rkey(&packed);
            let rkey = rkey.map_err(|e| self.fail(format!("worker {n}: key of {to}: {e}")))?;
            self.nodes[n].shore.keys[to] = Some([rkey, Rkey::of_key(key)]);
        }
        if self.rng.percent(10)
            && let Some(ep) = &self.nodes[n].eps[to]
        {
            ep.fence();
        }
        match self.rng.below(6) {
            0 | 1 if self.nodes[to].shore.cells.len() < CELLS => self.put(n, to)?,
            2 => self.add(n, to)?,
            3 => self.draw_ticket(n, to),
            4 if self.limits.scope >= Scope::Lists && self.rng.percent(40) => self.compute_list(n, to)?,
            4 => self.compute(n, to)?,
            _ => self.get(n, to)?,
        }
        self.outcome.reached += 1;
        self.settle_shore(n)
    }

    fn put(&mut self, n: usize, to: usize) -> Result<(), Failed> {
        let len = self.knobs.sizes.draw(&mut self.rng).min(CELL);
        let (by, how) = (self.rng.below(2) as usize, self.rng.below(4));
        let cell = self.nodes[to].shore.cells.len();
        // A word of 32 bits may go with a write of the device.
        let word = mix(self.seed ^ (to as u64) << 32 ^ cell as u64) >> (32 * self.rng.below(2));
        let cq_data = self.rng.percent(20).then_some(word);
        // What has no request has no end to be asked for either.
        let plain = how == 0 && cq_data.is_none();
        let sync = if !plain && self.rng.percent(30) { Sync::Yes } else { Sync::No };
        let refused = match sync == Sync::Yes && self.nodes[to].withholds_dc() {
            false => Refused::No,
            // Else the device does it, or the target reads it.
            true if (by == 1 || cq_data.is_some_and(|data| data >> 32 != 0))
                && self.knobs.min_read_write.is_none() =>
            {
                Refused::Yes
            }
            true => Refused::Perhaps,
        };
        self.trace.tell(
            &[12, n as u64, to as u64, cell as u64, by as u64, len as u64, how],
            format_args!(
                "{}: {n} writes {len} bytes to cell {cell} of {to}: key {by}, form {how}, {sync:?}, {cq_data:x?}",
                self.step
            ),
        );
        let mut bytes = vec![0; len];
        Pattern::new(self.seed, to as u64, cell as u64).fill(&mut bytes);
        let place = WRITTEN + cell * CELL;
        let remote = self.nodes[to].shore.addr() + place as u64;
        let lost = self.is_lost(n, to);
        let shore = &mut self.nodes[to].shore;
        shore.model[place..place + len].copy_from_slice(&bytes);
        // Who has been given up may not know it yet.
        shore.unknown.extend(lost.then_some(place..place + len));
        shore.cells.push(Cell { by: n, len, cq_data, refused, fate: Fate::Going });
        let cuts = (self.cut(len), self.cut(len));
        let node = &mut self.nodes[n];
        let (Some(ep), Some(keys)) = (&node.eps[to], &node.shore.keys[to]) else { return Ok(()) };
        let (rkey, params) = (&keys[by], RmaParams { sync, cq_data, done: None });
        if plain {
            // SAFETY: the bytes are kept, unchanged, until the end of the run.
            let begun = unsafe { ep.put_nbi(bytes.as_ptr(), len, remote, rkey) };
            node.shore.kept.push(bytes);
            return match begun {
                Err(_) if self.is_unsure(n, to) => Ok(()),
                Err(e) => Err(self.fail(format!("worker {n}: a put without request to {to}: {e:?}"))),
                Ok(()) => {
                    self.nodes[to].shore.cells[cell].fate = Fate::Done;
                    Ok(())
                }
            };
        }
        if how == 1 {
            let local = local(&mut bytes, &cuts.0);
            // SAFETY: the bytes are kept, unchanged, with the request.
            let begun = unsafe { ep.put_iov_raw(&local, &far(remote, rkey, &cuts.1), &params) };
            return match begun {
                Ok(Started::Running(id)) => {
                    let form = Form::Pieces(id, None, bytes);
                    node.shore.puts.push(Putting { to, cell, cancelled: false, form });
                    Ok(())
                }
                Ok(Started::Done(())) => self.put_ended(n, to, cell, false, Ok(())),
                Err(e) => self.put_ended(n, to, cell, false, Err(e)),
            };
        }
        let form = Form::Owned(ep.put_with(bytes, remote, rkey, &params));
        node.shore.puts.push(Putting { to, cell, cancelled: false, form });
        Ok(())
    }

    fn get(&mut self, n: usize, to: usize) -> Result<(), Failed> {
        let len = self.knobs.sizes.draw(&mut self.rng).min(CELL);
        let (by, how) = (self.rng.below(2) as usize, self.rng.below(4));
        let at = READ + self.rng.below((CELL - len + 1) as u64) as usize;
        self.trace.tell(
            &[13, n as u64, to as u64, at as u64, by as u64, len as u64, how],
            format_args!("{}: {n} reads {len} bytes at {at} of {to}: key {by}, form {how}", self.step),
        );
        let remote = self.nodes[to].shore.addr() + at as u64;
        let mut bytes = vec![0; len];
        let cuts = (self.cut(len), self.cut(len));
        let node = &mut self.nodes[n];
        let (Some(ep), Some(keys)) = (&node.eps[to], &node.shore.keys[to]) else { return Ok(()) };
        let rkey = &keys[by];
        match how {
            0 => {
                // SAFETY: the room is kept until a flush, or to the end of the run, and nobody looks at it before.
                let begun = unsafe { ep.get_nbi(bytes.as_mut_ptr(), len, remote, rkey) };
                node.shore.lent.push(Lent { to, at, bytes });
                match begun {
                    Err(e) if !self.is_unsure(n, to) => {
                        Err(self.fail(format!("worker {n}: a get without request from {to}: {e:?}")))
                    }
                    _ => Ok(()),
                }
            }
            1 => {
                let (local, far) = (local(&mut bytes, &cuts.0), far(remote, rkey, &cuts.1));
                // SAFETY: the room is kept with the request, and nobody looks at it before its end.
                match unsafe { ep.get_iov_raw(&local, &far, &RmaParams::default()) } {
                    Ok(Started::Running(id)) => {
                        let form = Form::Pieces(id, None, bytes);
                        node.shore.gets.push(Getting { to, at, cancelled: false, form });
                        Ok(())
                    }
                    Ok(Started::Done(_)) => self.got(n, to, at, false, Ok(()), &bytes),
                    Err(e) => self.got(n, to, at, false, Err(e), &bytes),
                }
            }
            _ => {
                let form = Form::Owned(ep.get(bytes.into_boxed_slice(), remote, rkey));
                node.shore.gets.push(Getting { to, at, cancelled: false, form });
                Ok(())
            }
        }
    }

    /// Adds to the sum of a worker, without asking for the old one.
    fn add(&mut self, n: usize, to: usize) -> Result<(), Failed> {
        let value = self.rng.below(1000);
        add(&mut self.nodes[to].shore.model, SUM, value);
        let remote = self.nodes[to].shore.addr() + SUM as u64;
        let node = &mut self.nodes[n];
        let (Some(ep), Some(keys)) = (&node.eps[to], &node.shore.keys[to]) else { return Ok(()) };
        match ep.atomic_post(AtomicOp::Sum, value, remote, &keys[0]) {
            Err(e) if !self.is_lost(n, to) => Err(self.fail(format!("worker {n}: adding at {to}: {e}"))),
            _ => Ok(()),
        }
    }

    fn draw_ticket(&mut self, n: usize, to: usize) {
        add(&mut self.nodes[to].shore.model, TICKETS, 1);
        let remote = self.nodes[to].shore.addr() + TICKETS as u64;
        let node = &mut self.nodes[n];
        let (Some(ep), Some(keys)) = (&node.eps[to], &node.shore.keys[to]) else { return };
        node.shore.tickets.push((to, ep.atomic_fetch(AtomicOp::Sum, 1u64, remote, &keys[0])));
    }

    /// Gives the latest put and get up, if they have not begun.
    pub(super) fn cancel_reach(&mut self, n: usize) {
        let shore = &mut self.nodes[n].shore;
        let mut granted = false;
        if let Some(Putting { form: Form::Owned(request), cancelled, .. }) = shore.puts.last_mut() {
            *cancelled |= request.cancel();
            granted |= *cancelled;
        }
        if let Some(Getting { form: Form::Owned(request), cancelled, .. }) = shore.gets.last_mut() {
            *cancelled |= request.cancel();
            granted |= *cancelled;
        }
        self.outcome.called_off += u64::from(granted);
        self.trace.tell(
            &[14, n as u64, u64::from(granted)],
            format_args!("{}: {n} cancels a put and a get: {granted}", self.step),
        );
    }

    /// Looks at what has ended.
    pub(super) fn settle_shore(&mut self, n: usize) -> Result<(), Failed> {
        let node = &mut self.nodes[n];
        let (shore, worker) = (&mut node.shore, &node.worker);
        let puts: Vec<_> = shore.puts.extract_if(.., |put| put.form.is_done(worker)).collect();
        let gets: Vec<_> = shore.gets.extract_if(.., |get| get.form.is_done(worker)).collect();
        let tickets: Vec<_> = shore.tickets.extract_if(.., |(_, ticket)| ticket.is_done()).collect();
        for Putting { to, cell, cancelled, form } in puts {
            let end = match form {
                Form::Owned(request) => request.wait().0,
                Form::Pieces(_, end, _) => end.unwrap_or(Ok(())),
            };
            self.put_ended(n, to, cell, cancelled, end)?;
        }
        for Getting { to, at, cancelled, form } in gets {
            let (end, bytes) = match form {
                Form::Owned(request) => {
                    let (end, bytes) = request.wait();
                    (end.map(drop), bytes.into_vec())
                }
                Form::Pieces(_, end, bytes) => (end.unwrap_or(Ok(())), bytes),
            };
            self.got(n, to, at, cancelled, end, &bytes)?;
        }
        for (to, ticket) in tickets {
            match ticket.wait() {
                Ok(old) if !self.is_lost(n, to) => self.nodes[n].shore.drawn.push(old),
                Err(e) if !self.is_lost(n, to) => {
                    return Err(self.fail(format!("worker {n}: a ticket ended {e:?}")));
                }
                _ => {}
            }
        }
        while let Some(write) = self.nodes[n].worker.take_remote_write() {
            if self.nodes[n].shore.told.insert(write.cq_data, (write.from, write.len)).is_some() {
                return Err(self.fail(format!("worker {n} is told twice of {write:?}")));
            }
        }
        self.settle_computing(n)
    }

    fn put_ended(
        &mut self,
        n: usize,
        to: usize,
        cell: usize,
        cancelled: bool,
        end: Result<(), Error>,
    ) -> Result<(), Failed> {
        let lost = self.is_unsure(n, to);
        let what = &mut self.nodes[to].shore.cells[cell];
        let (refused, len) = (what.refused, what.len);
        what.fate = match end {
            Ok(()) if !cancelled && refused != Refused::Yes => Fate::Done,
            Err(Error::Cancelled) if cancelled => Fate::Off,
            Err(Error::Unsupported) if refused != Refused::No => Fate::Off,
            Err(_) if lost => Fate::Off,
            _ => {
                let what = *what;
                return Err(self.fail(format!("worker {n}: put {cell} of {to} {what:?} ended {end:?}")));
            }
        };
        if self.nodes[to].shore.cells[cell].fate == Fate::Off {
            let place = WRITTEN + cell * CELL;
            self.nodes[to].shore.model[place..place + len].fill(0);
            // The device may have done a part before packets were needed.
            if refused == Refused::Perhaps || lost {
                self.nodes[to].shore.unknown.push(place..place + len);
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
                let right = self.nodes[to].shore.model[at..at + bytes.len()] == *bytes;
                let wrong = format!("worker {n}: {} bytes read at {at} of {to} are wrong", bytes.len());
                if right { Ok(()) } else { Err(self.fail(wrong)) }
            }
            Err(Error::Cancelled) if cancelled => Ok(()),
            Err(_) if self.is_unsure(n, to) => Ok(()),
            _ => Err(self.fail(format!("worker {n}: a get of {} from {to} ended {end:?}", bytes.len()))),
        }
    }

    /// What a flush of worker `n` that starts now stands for: reads without request, and writes by target and cell.
    pub(super) fn covered(&mut self, n: usize, of: Option<usize>) -> (Vec<Lent>, Vec<(usize, usize)>) {
        let lent =
            self.nodes[n].shore.lent.extract_if(.., |lent| of.is_none_or(|of| of == lent.to)).collect();
        let mut cells = Vec::new();
        for (to, node) in self.nodes.iter().enumerate().filter(|(to, _)| of.is_none_or(|of| of == *to)) {
            let mine = node.shore.cells.iter().enumerate().filter(|(_, cell)| cell.by == n);
            cells.extend(mine.map(|(cell, _)| (to, cell)));
        }
        (lent, cells)
    }

    /// A flush has ended well: what it stood for is in place.
    pub(super) fn check_covered(
        &mut self,
        n: usize,
        lent: &[Lent],
        cells: &[(usize, usize)],
    ) -> Result<(), Failed> {
        for Lent { to, at, bytes } in lent.iter().filter(|lent| !self.is_unsure(n, lent.to)) {
            if self.nodes[*to].shore.model[*at..*at + bytes.len()] != bytes[..] {
                return Err(self.fail(format!("worker {n}: flushed, but what was read from {to} is wrong")));
            }
        }
        for (to, cell) in cells {
            let node = &self.nodes[*to];
            let what = node.shore.cells[*cell];
            // Ends of withdrawn puts may not have been looked at, and a target without acknowledgements gives none.
            if self.is_lost(n, *to) || node.withholds_dc() || what.fate != Fate::Done {
                continue;
            }
            let place = WRITTEN + cell * CELL;
            let mut bytes = vec![0; what.len];
            node.shore.mem.read(place, &mut bytes);
            if node.shore.model[place..place + what.len] != bytes {
                return Err(self.fail(format!("worker {n}: flushed, but cell {cell} of {to} is not written")));
            }
        }
        Ok(())
    }

    /// What `by` was doing to worker `to` when they lost each other is done, or not, or in part.
    pub(super) fn forget_reach(&mut self, by: usize, to: usize) {
        let (slot, area) = (SLOTS + by * SLOT, AREAS + by * AREA);
        let shore = &mut self.nodes[to].shore;
        shore.unsure = true;
        shore.unknown.extend([slot..slot + SLOT, area..area + AREA]);
        self.forget_writes(by, to);
    }

    /// What `by` was writing to worker `to` is written, or not, or in part.
    pub(super) fn forget_writes(&mut self, by: usize, to: usize) {
        let shore = &mut self.nodes[to].shore;
        for (at, cell) in shore.cells.iter_mut().enumerate().filter(|(_, cell)| cell.by == by) {
            let place = WRITTEN + at * CELL;
            shore.unknown.push(place..place + cell.len);
            cell.cq_data = None;
            cell.fate = Fate::Off;
        }
    }

    /// At rest: every byte is as it must be, each ticket was drawn once, and each announced write was told of.
    pub(super) fn look_at_shores(&mut self) -> Result<(), Failed> {
        for n in 0..self.nodes.len() {
            if self.is_dead(n) {
                continue;
            }
            let shore = &self.nodes[n].shore;
            let mut bytes = vec![0; LEN];
            shore.mem.read(0, &mut bytes);
            let mut must = shore.model.clone();
            let words = if shore.unsure { TICKETS..SUM + 8 } else { 0..0 };
            for range in shore.unknown.iter().cloned().chain([words]) {
                must[range.clone()].copy_from_slice(&bytes[range]);
            }
            if let Some(at) = (0..LEN).find(|at| bytes[*at] != must[*at]) {
                let (is, must) = (bytes[at], must[at]);
                return Err(self.fail(format!("memory of {n}: byte {at} is {is}, not {must}")));
            }
            for cell in &shore.cells {
                let Some(data) = cell.cq_data else { continue };
                let due = (cell.fate == Fate::Done).then_some((cell.by, cell.len as u64));
                // Who never sent a message has no name here but its number.
                let who = |from| self.nodes[n].peers.get(from).copied().unwrap_or(cell.by);
                let told = shore.told.get(&data).map(|(from, len)| (who(from), *len));
                if told != due && !self.is_lost(n, cell.by) {
                    return Err(self.fail(format!("worker {n} was told {told:?} of {cell:?}")));
                }
            }
        }
        self.look_at_tickets()
    }

    fn look_at_tickets(&mut self) -> Result<(), Failed> {
        if (0..self.nodes.len()).any(|n| self.has_losses(n)) {
            return Ok(());
        }
        let mut drawn: Vec<u64> = self.nodes.iter().flat_map(|node| node.shore.drawn.clone()).collect();
        let mut due: Vec<u64> = self.nodes.iter().flat_map(|n| 0..n.shore.mem.word(TICKETS)).collect();
        drawn.sort_unstable();
        due.sort_unstable();
        match drawn == due {
            true => Ok(()),
            false => Err(self.fail(format!("tickets drawn: {drawn:?}, not {due:?}"))),
        }
    }

    /// Cuts a length into up to four, some of them perhaps of nothing.
    pub(super) fn cut(&mut self, len: usize) -> Vec<usize> {
        let mut at: Vec<usize> =
            (0..self.rng.below(PIECES as u64)).map(|_| self.rng.below(len as u64 + 1) as usize).collect();
        at.extend([0, len]);
        at.sort_unstable();
        at.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }
}

pub fn local(bytes: &mut [u8], cuts: &[usize]) -> Vec<Piece> {
    let mut at = bytes.as_mut_ptr();
    let piece = |len: &usize| {
        let piece = Piece { addr: at, len: *len };
        at = at.wrapping_add(*len);
        piece
    };
    cuts.iter().map(piece).collect()
}

fn far<'a>(mut at: u64, rkey: &'a Rkey, cuts: &[usize]) -> Vec<RemotePiece<'a>> {
    let piece = |len: &usize| {
        let piece = RemotePiece { addr: at, len: *len, rkey };
        at += *len as u64;
        piece
    };
    cuts.iter().map(piece).collect()
}

fn add(model: &mut [u8], at: usize, value: u64) {
    if let Some(word) = model[at..].first_chunk_mut::<8>() {
        *word = (u64::from_le_bytes(*word) + value).to_le_bytes();
    }
}
