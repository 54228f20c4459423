//! Memory that workers map for each other and revoke while it is in use. A use of a revoked key must fail,
//! and the memory must not be accessed any more. Called by `step`, `completions` and `job`.
//!
//! A region has bytes that are only read, cells that are written once each, and a word that is added to. Its
//! last contents are kept when it is revoked; then it is overwritten, and must stay so.

use super::Failed;
use super::job::Job;
use crate::pattern::{Pattern, mix};
use std::collections::BTreeSet;
use ucp::select::DeliveryComplete;
use ucp::{Access, AtomicOp, Error, FetchRequest, Mem, MemError, RecvRequest, Rkey, RmaParams, SendRequest};

const CELL: usize = 12 << 10;
const CELLS: usize = 6;
/// Offsets: the word, the bytes that are read, the cells.
const WORD: usize = 0;
const READ: usize = 64;
const WRITTEN: usize = READ + CELL;
const LEN: usize = WRITTEN + CELLS * CELL;
const REVOKED_FILL: u8 = 0xdb;
/// Regions mapped and uses in flight of a worker, at most.
const MAX_MAPPED: usize = 2;
const MAX_OPEN: usize = 6;

struct Cell {
    len: usize,
}

pub struct RevocableMem {
    /// Before the bytes, so dropped before them. `None` when revoked.
    mem: Option<Mem>,
    buf: Vec<u8>,
    packed: Vec<u8>,
    addr: u64,
    key: u64,
    cells: Vec<Cell>,
    /// Additions of one that were started.
    added: u64,
    /// Old values that additions have returned.
    fetched: BTreeSet<u64>,
    final_bytes: Vec<u8>,
}

impl RevocableMem {
    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        match &self.mem {
            Some(mem) => mem.read(at, &mut bytes),
            None => bytes.copy_from_slice(&self.final_bytes[at..at + len]),
        }
        bytes
    }

    fn word(&self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|k| self.bytes(WORD + k, 1)[0]))
    }
}

enum UseOp {
    Put(usize, DeliveryComplete, SendRequest<Vec<u8>>),
    Get(usize, RecvRequest<Box<[u8]>>),
    Add(FetchRequest<u64>),
}

struct PendingUse {
    to: usize,
    region: usize,
    op: UseOp,
}

struct Use {
    by: usize,
    /// The owner, and the number of the region.
    to: usize,
    region: usize,
    rkey: Rkey,
    len: usize,
}

#[derive(Default)]
pub struct RevocableState {
    open: Vec<PendingUse>,
    owned: Vec<RevocableMem>,
    /// Owners of memory that was written without acknowledgement: a late refusal disconnects.
    pub unconfirmed_to: BTreeSet<usize>,
}

impl RevocableState {
    pub fn open(&self) -> usize {
        self.open.len()
    }

    pub fn any_revoked(&self) -> bool {
        self.owned.iter().any(|region| region.mem.is_none())
    }

    fn mapped(&self) -> impl Iterator<Item = usize> {
        self.owned.iter().enumerate().filter(|(_, region)| region.mem.is_some()).map(|(at, _)| at)
    }
}

impl Job {
    pub(super) fn step_revocable(&mut self, n: usize) -> Result<(), Failed> {
        match self.rng.below(8) {
            0 => self.map_memory(n),
            1 => self.revoke_one(n),
            _ => self.use_memory(n),
        }?;
        self.reap_revocable(n)
    }

    fn pattern_of(&self, owner: usize, region: usize, part: usize) -> Pattern {
        Pattern::new(self.seed, 0x10a4 + owner as u64, (region << 8 | part) as u64)
    }

    fn map_memory(&mut self, n: usize) -> Result<(), Failed> {
        if self.workers[n].revocable.mapped().count() >= MAX_MAPPED {
            return Ok(());
        }
        let number = self.workers[n].revocable.owned.len();
        let mut buf = vec![0; LEN];
        self.pattern_of(n, number, 0).fill(&mut buf[READ..WRITTEN]);
        // SAFETY: the bytes stay where they are, and are looked at through the `Mem` only, until that is
        // dropped.
        let mem = unsafe { self.workers[n].worker.mem_map(buf.as_mut_ptr(), LEN, Access::all()) };
        let mem = mem.map_err(|e: MemError| self.fail(format!("worker {n} cannot map memory: {e}")))?;
        let (packed, addr, key) = (mem.pack_rkey(), mem.addr(), mem.key());
        self.trace
            .record(&[60, n as u64, number as u64], format_args!("{}: {n} maps region {number}", self.step));
        self.workers[n].revocable.owned.push(RevocableMem {
            mem: Some(mem),
            buf,
            packed,
            addr,
            key,
            cells: Vec::new(),
            added: 0,
            fetched: BTreeSet::new(),
            final_bytes: Vec::new(),
        });
        Ok(())
    }

    fn revoke_one(&mut self, n: usize) -> Result<(), Failed> {
        let out: Vec<usize> = self.workers[n].revocable.mapped().collect();
        match out.is_empty() {
            true => Ok(()),
            false => {
                let region = *self.rng.pick(&out);
                self.revoke(n, region);
                Ok(())
            }
        }
    }

    fn revoke(&mut self, n: usize, number: usize) {
        let in_use = |by: &PendingUse| (by.to, by.region) == (n, number);
        let users =
            self.workers.iter().filter(|sim_worker| sim_worker.revocable.open.iter().any(in_use)).count();
        let region = &mut self.workers[n].revocable.owned[number];
        region.final_bytes = region.bytes(0, LEN);
        region.mem = None;
        region.buf.fill(REVOKED_FILL);
        self.outcome.revoked_in_use += u64::from(users > 0);
        self.trace.record(
            &[61, n as u64, number as u64, users as u64],
            format_args!("{}: {n} revokes region {number}, which {users} are using", self.step),
        );
    }

    fn use_memory(&mut self, n: usize) -> Result<(), Failed> {
        let to = self.any_worker();
        let out: Vec<usize> = self.workers[to].revocable.mapped().collect();
        let all = self.workers[to].revocable.owned.len();
        // A key may be older than the memory.
        let number = match self.rng.percent(10) || out.is_empty() {
            true if all > 0 => self.rng.below(all as u64) as usize,
            true => return Ok(()),
            false => *self.rng.pick(&out),
        };
        if self.workers[n].revocable.open() >= MAX_OPEN || !self.connect(n, to)? {
            return Ok(());
        }
        let by_packets = self.rng.percent(30);
        let region = &self.workers[to].revocable.owned[number];
        let Some(ep) = &self.workers[n].eps[to] else { return Err(self.fail("just connected")) };
        let rkey = match by_packets {
            true => Ok(Rkey::from_key(region.key)),
            false => ep.unpack_rkey(&region.packed),
        };
        let rkey = rkey.map_err(|e| self.fail(format!("worker {n}: key of {to}: {e}")))?;
        let len = self.params.sizes.draw(&mut self.rng).min(CELL);
        let what = Use { by: n, to, region: number, rkey, len };
        self.outcome.rma_ops += 1;
        match self.rng.below(4) {
            0 => self.add_one(&what),
            1 => self.read_revocable(&what),
            _ => self.write_revocable(&what),
        }
    }

    fn add_one(&mut self, what: &Use) -> Result<(), Failed> {
        let Use { by: n, to, region: number, ref rkey, .. } = *what;
        self.trace.record(
            &[62, n as u64, to as u64, number as u64],
            format_args!("{}: {n} adds to region {number} of {to}", self.step),
        );
        let region = &mut self.workers[to].revocable.owned[number];
        region.added += 1;
        let remote = region.addr + WORD as u64;
        let Some(ep) = &self.workers[n].eps[to] else { return Ok(()) };
        let op = UseOp::Add(ep.atomic_fetch(AtomicOp::Sum, 1u64, remote, rkey));
        self.workers[n].revocable.open.push(PendingUse { to, region: number, op });
        Ok(())
    }

    fn read_revocable(&mut self, what: &Use) -> Result<(), Failed> {
        let Use { by: n, to, region: number, ref rkey, len } = *what;
        let at = self.rng.below((CELL - len + 1) as u64) as usize;
        self.trace.record(
            &[63, n as u64, to as u64, number as u64, at as u64, len as u64],
            format_args!("{}: {n} reads {len} bytes at {at} of region {number} of {to}", self.step),
        );
        let remote = self.workers[to].revocable.owned[number].addr + (READ + at) as u64;
        let Some(ep) = &self.workers[n].eps[to] else { return Ok(()) };
        let op = UseOp::Get(at, ep.get(vec![0; len].into_boxed_slice(), remote, rkey));
        self.workers[n].revocable.open.push(PendingUse { to, region: number, op });
        Ok(())
    }

    fn write_revocable(&mut self, what: &Use) -> Result<(), Failed> {
        let Use { by: n, to, region: number, ref rkey, len } = *what;
        let cell = self.workers[to].revocable.owned[number].cells.len();
        if cell == CELLS {
            return Ok(());
        }
        let sync = if self.rng.percent(75) { DeliveryComplete::Yes } else { DeliveryComplete::No };
        let word = mix(self.seed ^ 0x10a4 ^ (to as u64) << 32 ^ (number << 8 | cell) as u64);
        let cq_data = self.rng.percent(15).then_some(word >> (32 * self.rng.below(2)));
        self.trace.record(
            &[64, n as u64, to as u64, number as u64, cell as u64, len as u64],
            format_args!(
                "{}: {n} writes {len} bytes to cell {cell} of region {number} of {to}, {sync:?}, {cq_data:x?}",
                self.step
            ),
        );
        let mut bytes = vec![0; len];
        self.pattern_of(to, number, 1 + cell).fill(&mut bytes);
        let region = &mut self.workers[to].revocable.owned[number];
        region.cells.push(Cell { len });
        let remote = region.addr + (WRITTEN + cell * CELL) as u64;
        let sim_worker = &mut self.workers[n];
        if sync == DeliveryComplete::No {
            sim_worker.revocable.unconfirmed_to.insert(to);
        }
        let Some(ep) = &sim_worker.eps[to] else { return Ok(()) };
        let params = RmaParams { sync, cq_data, ..RmaParams::default() };
        let op = UseOp::Put(cell, sync, ep.put_with(bytes, remote, rkey, &params));
        sim_worker.revocable.open.push(PendingUse { to, region: number, op });
        Ok(())
    }

    pub(super) fn reap_revocable(&mut self, n: usize) -> Result<(), Failed> {
        self.take_peer_failures(n)?;
        let is_done = |by: &mut PendingUse| match &mut by.op {
            UseOp::Put(.., request) => request.is_done(),
            UseOp::Get(_, request) => request.is_done(),
            UseOp::Add(request) => request.is_done(),
        };
        let ended: Vec<_> = self.workers[n].revocable.open.extract_if(.., is_done).collect();
        for PendingUse { to, region, op } in ended {
            let (end, may_refuse) = match op {
                UseOp::Put(cell, sync, request) => {
                    let end = request.wait().0;
                    if end.is_ok() && sync == DeliveryComplete::Yes {
                        self.check_write(n, (to, region), cell)?;
                    }
                    (end, sync == DeliveryComplete::Yes && self.workers[to].withholds_dc())
                }
                UseOp::Get(at, request) => {
                    let (end, bytes) = request.wait();
                    if end.is_ok() {
                        self.check_read(n, (to, region), at, &bytes)?;
                    }
                    (end.map(drop), false)
                }
                UseOp::Add(request) => {
                    let end = request.wait();
                    if let Ok(found) = end {
                        self.check_add(n, (to, region), found)?;
                    }
                    (end.map(drop), false)
                }
            };
            self.trace.record(
                &[65, n as u64, to as u64, region as u64, u64::from(end.is_ok())],
                format_args!("{}: what {n} did on region {region} of {to} ended {end:?}", self.step),
            );
            match end {
                Ok(()) => {}
                Err(Error::RemoteAccess(_)) if self.workers[to].revocable.owned[region].mem.is_none() => {
                    self.outcome.access_denied += 1;
                }
                Err(Error::Unsupported) if may_refuse => {}
                Err(_) if self.is_uncertain(n, to) => {}
                Err(error) => {
                    return Err(
                        self.fail(format!("worker {n}: use of region {region} of {to} ended {error:?}"))
                    );
                }
            }
        }
        Ok(())
    }

    /// Checks that an acknowledged write is in the memory, or was when it was revoked.
    fn check_write(&self, n: usize, (to, number): (usize, usize), cell: usize) -> Result<(), Failed> {
        let region = &self.workers[to].revocable.owned[number];
        let mut want = vec![0; region.cells[cell].len];
        self.pattern_of(to, number, 1 + cell).fill(&mut want);
        match region.bytes(WRITTEN + cell * CELL, want.len()) == want {
            true => Ok(()),
            false => {
                Err(self.fail(format!("worker {n}: cell {cell} of region {number} of {to} is not written")))
            }
        }
    }

    fn check_read(
        &self,
        n: usize,
        (to, number): (usize, usize),
        at: usize,
        bytes: &[u8],
    ) -> Result<(), Failed> {
        let mut want = vec![0; CELL];
        self.pattern_of(to, number, 0).fill(&mut want);
        match want[at..at + bytes.len()] == *bytes {
            true => Ok(()),
            false => Err(self.fail(format!("worker {n}: what was read of region {number} of {to} is wrong"))),
        }
    }

    fn check_add(&mut self, n: usize, (to, number): (usize, usize), found: u64) -> Result<(), Failed> {
        let region = &mut self.workers[to].revocable.owned[number];
        match found < region.word() && region.fetched.insert(found) {
            true => Ok(()),
            false => {
                Err(self.fail(format!("worker {n}: found {found} in the word of region {number} of {to}")))
            }
        }
    }

    /// Revokes everything in an idle job, and checks that revoked memory was left alone.
    pub(super) fn check_revocable(&mut self) -> Result<(), Failed> {
        for n in self.living() {
            for number in 0..self.workers[n].revocable.owned.len() {
                if self.workers[n].revocable.owned[number].mem.is_some() {
                    self.revoke(n, number);
                }
                self.check_revocable_mem(n, number)?;
            }
        }
        Ok(())
    }

    fn check_revocable_mem(&self, n: usize, number: usize) -> Result<(), Failed> {
        let region = &self.workers[n].revocable.owned[number];
        let wrong = |what: String| Err(self.fail(format!("region {number} of {n}: {what}")));
        if let Some(at) = region.buf.iter().position(|byte| *byte != REVOKED_FILL) {
            return wrong(format!("byte {at} was written when it was taken back"));
        }
        if self.pattern_of(n, number, 0).check(&region.final_bytes[READ..WRITTEN]).is_err() {
            return wrong("bytes that are only read were written".into());
        }
        let (found, word) = (region.fetched.len() as u64, region.word());
        if word < found || word > region.added {
            return wrong(format!("{found} of {} have added, but the word is {word}", region.added));
        }
        for cell in 0..CELLS {
            let bytes = &region.final_bytes[WRITTEN + cell * CELL..][..CELL];
            let mut may = vec![0; CELL];
            let len = region.cells.get(cell).map_or(0, |cell| cell.len);
            self.pattern_of(n, number, 1 + cell).fill(&mut may[..len]);
            if let Some(at) = bytes.iter().zip(&may).position(|(is, may)| *is != 0 && is != may) {
                return wrong(format!("byte {at} of cell {cell} is {}", bytes[at]));
            }
        }
        Ok(())
    }
}
