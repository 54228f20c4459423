//! Memory that workers lend each other and take back while it is in use: whoever lives off a key that is gone is told so,
//! and from then on nobody writes to the memory and nobody reads it. Called by `act` to start, by `settle` to look at ends,
//! by the world at the end.
//!
//! A loan has bytes that are only read, cells that are written once each, and a word that is added to. What it held when it
//! was taken back is kept; then every byte of it is overwritten, and must stay so.

use super::Failed;
use super::world::World;
use crate::pattern::{Pattern, mix};
use std::collections::BTreeSet;
use ucp::select::Sync;
use ucp::{Access, AtomicOp, Error, FetchRequest, Mem, MemError, RecvRequest, Rkey, RmaParams, SendRequest};

/// Bytes of a cell and of the bytes that are read, and cells.
const CELL: usize = 12 << 10;
const CELLS: usize = 6;
/// The word, the bytes that are read, the cells.
const WORD: usize = 0;
const READ: usize = 64;
const WRITTEN: usize = READ + CELL;
const LEN: usize = WRITTEN + CELLS * CELL;
/// What memory holds once it is taken back.
const GONE: u8 = 0xdb;
/// Loans a worker has out at a time, and operations it has running on those of others.
const MAX_OUT: usize = 2;
const MAX_OPEN: usize = 6;

/// A write to a cell, or one that was tried.
struct Cell {
    len: usize,
}

/// Memory of one worker that the others reach.
pub struct Loan {
    /// Before the bytes, so dropped before them. None: taken back.
    mem: Option<Mem>,
    home: Vec<u8>,
    packed: Vec<u8>,
    addr: u64,
    key: u64,
    cells: Vec<Cell>,
    /// Additions of one that were started.
    added: u64,
    /// What those that ended well have found.
    found: BTreeSet<u64>,
    /// What it held when it was taken back.
    last: Vec<u8>,
}

impl Loan {
    /// What is there, or was at the end.
    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        match &self.mem {
            Some(mem) => mem.read(at, &mut bytes),
            None => bytes.copy_from_slice(&self.last[at..at + len]),
        }
        bytes
    }

    fn word(&self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|k| self.bytes(WORD + k, 1)[0]))
    }
}

enum Doing {
    Put(usize, Sync, SendRequest<Vec<u8>>),
    Get(usize, RecvRequest<Box<[u8]>>),
    Add(FetchRequest<u64>),
}

/// An operation on memory of another that has not ended.
struct Borrowing {
    to: usize,
    loan: usize,
    doing: Doing,
}

/// What is about to be used, by whom.
struct Use {
    by: usize,
    /// The owner, and which of his loans.
    to: usize,
    loan: usize,
    rkey: Rkey,
    len: usize,
}

/// A worker's part.
#[derive(Default)]
pub struct Loans {
    open: Vec<Borrowing>,
    mine: Vec<Loan>,
    /// Whose memory was written without asking for the end, and then taken back: who refuses that late is lost.
    pub hasty: BTreeSet<usize>,
}

impl Loans {
    /// Operations that have not ended.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Whether any of this worker's memory was taken back.
    pub fn any_gone(&self) -> bool {
        self.mine.iter().any(|loan| loan.mem.is_none())
    }

    fn out(&self) -> impl Iterator<Item = usize> {
        self.mine.iter().enumerate().filter(|(_, loan)| loan.mem.is_some()).map(|(at, _)| at)
    }
}

impl World {
    /// Worker `n` lends memory, takes some back, or uses what another has lent.
    pub(super) fn borrow_or_lend(&mut self, n: usize) -> Result<(), Failed> {
        match self.rng.below(8) {
            0 => self.lend(n),
            1 => self.take_back_one(n),
            _ => self.borrow(n),
        }?;
        self.settle_loans(n)
    }

    fn pattern_of(&self, owner: usize, loan: usize, part: usize) -> Pattern {
        Pattern::new(self.seed, 0x10a4 + owner as u64, (loan << 8 | part) as u64)
    }

    fn lend(&mut self, n: usize) -> Result<(), Failed> {
        if self.nodes[n].loans.out().count() >= MAX_OUT {
            return Ok(());
        }
        let number = self.nodes[n].loans.mine.len();
        let mut home = vec![0; LEN];
        self.pattern_of(n, number, 0).fill(&mut home[READ..WRITTEN]);
        // SAFETY: the bytes stay where they are, and are looked at through the `Mem` only, until that is dropped.
        let mem = unsafe { self.nodes[n].worker.mem_map(home.as_mut_ptr(), LEN, Access::all()) };
        let mem = mem.map_err(|e: MemError| self.fail(format!("worker {n} cannot lend: {e}")))?;
        let (packed, addr, key) = (mem.pack_rkey(), mem.addr(), mem.key());
        self.trace.tell(&[60, n as u64, number as u64], format_args!("{}: {n} lends {number}", self.step));
        self.nodes[n].loans.mine.push(Loan {
            mem: Some(mem),
            home,
            packed,
            addr,
            key,
            cells: Vec::new(),
            added: 0,
            found: BTreeSet::new(),
            last: Vec::new(),
        });
        Ok(())
    }

    fn take_back_one(&mut self, n: usize) -> Result<(), Failed> {
        let out: Vec<usize> = self.nodes[n].loans.out().collect();
        match out.is_empty() {
            true => Ok(()),
            false => {
                let loan = *self.rng.pick(&out);
                self.take_back(n, loan);
                Ok(())
            }
        }
    }

    /// From here on nobody has anything to do with the memory.
    fn take_back(&mut self, n: usize, number: usize) {
        let in_use = |by: &Borrowing| (by.to, by.loan) == (n, number);
        let users = self.nodes.iter().filter(|node| node.loans.open.iter().any(in_use)).count();
        let loan = &mut self.nodes[n].loans.mine[number];
        loan.last = loan.bytes(0, LEN);
        loan.mem = None;
        loan.home.fill(GONE);
        self.outcome.taken_back += u64::from(users > 0);
        self.trace.tell(
            &[61, n as u64, number as u64, users as u64],
            format_args!("{}: {n} takes {number} back, which {users} are using", self.step),
        );
    }

    fn borrow(&mut self, n: usize) -> Result<(), Failed> {
        let to = self.any_worker();
        let out: Vec<usize> = self.nodes[to].loans.out().collect();
        let all = self.nodes[to].loans.mine.len();
        // Now and then what is not there any more: a key may be older than the memory.
        let number = match self.rng.percent(10) || out.is_empty() {
            true if all > 0 => self.rng.below(all as u64) as usize,
            true => return Ok(()),
            false => *self.rng.pick(&out),
        };
        if self.nodes[n].loans.open() >= MAX_OPEN || !self.connect(n, to)? {
            return Ok(());
        }
        let by_packets = self.rng.percent(30);
        let loan = &self.nodes[to].loans.mine[number];
        let Some(ep) = &self.nodes[n].eps[to] else { return Err(self.fail("just connected")) };
        let rkey = match by_packets {
            true => Ok(Rkey::of_key(loan.key)),
            false => ep.unpack_rkey(&loan.packed),
        };
        let rkey = rkey.map_err(|e| self.fail(format!("worker {n}: key of {to}: {e}")))?;
        let len = self.knobs.sizes.draw(&mut self.rng).min(CELL);
        let what = Use { by: n, to, loan: number, rkey, len };
        self.outcome.reached += 1;
        match self.rng.below(4) {
            0 => self.add_one(&what),
            1 => self.read_loan(&what),
            _ => self.write_loan(&what),
        }
    }

    fn add_one(&mut self, what: &Use) -> Result<(), Failed> {
        let Use { by: n, to, loan: number, ref rkey, .. } = *what;
        self.trace.tell(
            &[62, n as u64, to as u64, number as u64],
            format_args!("{}: {n} adds to loan {number} of {to}", self.step),
        );
        let loan = &mut self.nodes[to].loans.mine[number];
        loan.added += 1;
        let remote = loan.addr + WORD as u64;
        let Some(ep) = &self.nodes[n].eps[to] else { return Ok(()) };
        let doing = Doing::Add(ep.atomic_fetch(AtomicOp::Sum, 1u64, remote, rkey));
        self.nodes[n].loans.open.push(Borrowing { to, loan: number, doing });
        Ok(())
    }

    fn read_loan(&mut self, what: &Use) -> Result<(), Failed> {
        let Use { by: n, to, loan: number, ref rkey, len } = *what;
        let at = self.rng.below((CELL - len + 1) as u64) as usize;
        self.trace.tell(
            &[63, n as u64, to as u64, number as u64, at as u64, len as u64],
            format_args!("{}: {n} reads {len} bytes at {at} of loan {number} of {to}", self.step),
        );
        let remote = self.nodes[to].loans.mine[number].addr + (READ + at) as u64;
        let Some(ep) = &self.nodes[n].eps[to] else { return Ok(()) };
        let doing = Doing::Get(at, ep.get(vec![0; len].into_boxed_slice(), remote, rkey));
        self.nodes[n].loans.open.push(Borrowing { to, loan: number, doing });
        Ok(())
    }

    fn write_loan(&mut self, what: &Use) -> Result<(), Failed> {
        let Use { by: n, to, loan: number, ref rkey, len } = *what;
        let cell = self.nodes[to].loans.mine[number].cells.len();
        if cell == CELLS {
            return Ok(());
        }
        let sync = if self.rng.percent(75) { Sync::Yes } else { Sync::No };
        let word = mix(self.seed ^ 0x10a4 ^ (to as u64) << 32 ^ (number << 8 | cell) as u64);
        let cq_data = self.rng.percent(15).then_some(word >> (32 * self.rng.below(2)));
        self.trace.tell(
            &[64, n as u64, to as u64, number as u64, cell as u64, len as u64],
            format_args!(
                "{}: {n} writes {len} bytes to cell {cell} of loan {number} of {to}, {sync:?}, {cq_data:x?}",
                self.step
            ),
        );
        let mut bytes = vec![0; len];
        self.pattern_of(to, number, 1 + cell).fill(&mut bytes);
        let loan = &mut self.nodes[to].loans.mine[number];
        loan.cells.push(Cell { len });
        let remote = loan.addr + (WRITTEN + cell * CELL) as u64;
        let node = &mut self.nodes[n];
        if sync == Sync::No {
            node.loans.hasty.insert(to);
        }
        let Some(ep) = &node.eps[to] else { return Ok(()) };
        let params = RmaParams { sync, cq_data, done: None };
        let doing = Doing::Put(cell, sync, ep.put_with(bytes, remote, rkey, &params));
        node.loans.open.push(Borrowing { to, loan: number, doing });
        Ok(())
    }

    /// Looks at what has ended.
    pub(super) fn settle_loans(&mut self, n: usize) -> Result<(), Failed> {
        self.note_losses(n)?;
        let is_done = |by: &mut Borrowing| match &mut by.doing {
            Doing::Put(.., request) => request.is_done(),
            Doing::Get(_, request) => request.is_done(),
            Doing::Add(request) => request.is_done(),
        };
        let ended: Vec<_> = self.nodes[n].loans.open.extract_if(.., is_done).collect();
        for Borrowing { to, loan, doing } in ended {
            let (end, may_refuse) = match doing {
                Doing::Put(cell, sync, request) => {
                    let end = request.wait().0;
                    if end.is_ok() && sync == Sync::Yes {
                        self.wrote(n, (to, loan), cell)?;
                    }
                    (end, sync == Sync::Yes && self.nodes[to].withholds_dc())
                }
                Doing::Get(at, request) => {
                    let (end, bytes) = request.wait();
                    if end.is_ok() {
                        self.read(n, (to, loan), at, &bytes)?;
                    }
                    (end.map(drop), false)
                }
                Doing::Add(request) => {
                    let end = request.wait();
                    if let Ok(found) = end {
                        self.added(n, (to, loan), found)?;
                    }
                    (end.map(drop), false)
                }
            };
            self.trace.tell(
                &[65, n as u64, to as u64, loan as u64, u64::from(end.is_ok())],
                format_args!("{}: what {n} did on loan {loan} of {to} ended {end:?}", self.step),
            );
            match end {
                Ok(()) => {}
                Err(Error::RemoteAccess(_)) if self.nodes[to].loans.mine[loan].mem.is_none() => {
                    self.outcome.denied += 1;
                }
                Err(Error::Unsupported) if may_refuse => {}
                Err(_) if self.is_unsure(n, to) => {}
                Err(error) => {
                    return Err(self.fail(format!("worker {n}: use of loan {loan} of {to} ended {error:?}")));
                }
            }
        }
        Ok(())
    }

    /// A write has ended that ends at the target: all of it is there, or was when the memory was taken back.
    fn wrote(&self, n: usize, (to, number): (usize, usize), cell: usize) -> Result<(), Failed> {
        let loan = &self.nodes[to].loans.mine[number];
        let mut want = vec![0; loan.cells[cell].len];
        self.pattern_of(to, number, 1 + cell).fill(&mut want);
        match loan.bytes(WRITTEN + cell * CELL, want.len()) == want {
            true => Ok(()),
            false => {
                Err(self.fail(format!("worker {n}: cell {cell} of loan {number} of {to} is not written")))
            }
        }
    }

    fn read(&self, n: usize, (to, number): (usize, usize), at: usize, bytes: &[u8]) -> Result<(), Failed> {
        let mut want = vec![0; CELL];
        self.pattern_of(to, number, 0).fill(&mut want);
        match want[at..at + bytes.len()] == *bytes {
            true => Ok(()),
            false => Err(self.fail(format!("worker {n}: what was read of loan {number} of {to} is wrong"))),
        }
    }

    fn added(&mut self, n: usize, (to, number): (usize, usize), found: u64) -> Result<(), Failed> {
        let loan = &mut self.nodes[to].loans.mine[number];
        match found < loan.word() && loan.found.insert(found) {
            true => Ok(()),
            false => {
                Err(self.fail(format!("worker {n}: found {found} in the word of loan {number} of {to}")))
            }
        }
    }

    /// At rest: takes everything back, and looks whether all of it was left alone since it was.
    pub(super) fn look_at_loans(&mut self) -> Result<(), Failed> {
        for n in self.living() {
            for number in 0..self.nodes[n].loans.mine.len() {
                if self.nodes[n].loans.mine[number].mem.is_some() {
                    self.take_back(n, number);
                }
                self.look_at_loan(n, number)?;
            }
        }
        Ok(())
    }

    fn look_at_loan(&self, n: usize, number: usize) -> Result<(), Failed> {
        let loan = &self.nodes[n].loans.mine[number];
        let wrong = |what: String| Err(self.fail(format!("loan {number} of {n}: {what}")));
        if let Some(at) = loan.home.iter().position(|byte| *byte != GONE) {
            return wrong(format!("byte {at} was written when it was taken back"));
        }
        if self.pattern_of(n, number, 0).check(&loan.last[READ..WRITTEN]).is_err() {
            return wrong("bytes that are only read were written".into());
        }
        let (found, word) = (loan.found.len() as u64, loan.word());
        if word < found || word > loan.added {
            return wrong(format!("{found} of {} have added, but the word is {word}", loan.added));
        }
        for cell in 0..CELLS {
            let bytes = &loan.last[WRITTEN + cell * CELL..][..CELL];
            let mut may = vec![0; CELL];
            let len = loan.cells.get(cell).map_or(0, |cell| cell.len);
            self.pattern_of(n, number, 1 + cell).fill(&mut may[..len]);
            if let Some(at) = bytes.iter().zip(&may).position(|(is, may)| *is != 0 && is != may) {
                return wrong(format!("byte {at} of cell {cell} is {}", bytes[at]));
            }
        }
        Ok(())
    }
}
