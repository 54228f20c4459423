//! One-sided operations in a job: each worker has memory that the others write, read and add to, by the device or by
//! packets, against a model of every byte. Called by `act` to start, by `settle` to look at ends, by the world at the end.
//!
//! Each write has a cell of its own, so that the order of writes does not matter; reads are of bytes nobody writes; words
//! shared by all are only added to, and the old values that come back are all different.

use super::Failed;
use super::world::World;
use crate::pattern::Pattern;
use ucp::{
    Access, AtomicOp, FetchRequest, Mem, RecvRequest, Rkey, RmaParams, SendRequest, Worker, select::Sync,
};

/// Bytes of a cell, and cells.
const CELL: usize = 16 << 10;
const CELLS: usize = 12;
/// Two words first, then cells that are written, then bytes that are read.
const WRITTEN: usize = 64;
const READ: usize = WRITTEN + CELLS * CELL;
const LEN: usize = READ + CELL;
/// Tickets are drawn here, sums added up there.
const TICKETS: usize = 0;
const SUM: usize = 8;
/// Operations running at a time in a worker.
const MAX_OPEN: usize = 8;

/// A read that has not ended.
struct Getting {
    /// Of whom.
    to: usize,
    /// Where in the memory.
    at: usize,
    request: RecvRequest<Box<[u8]>>,
}

/// A worker's memory and its operations on that of others.
pub struct Shore {
    puts: Vec<SendRequest<Vec<u8>>>,
    gets: Vec<Getting>,
    tickets: Vec<FetchRequest<u64>>,
    /// Keys of the others' memory: as their owners packed them, and for packets alone.
    keys: Vec<Option<[Rkey; 2]>>,
    mem: Mem,
    /// What must be in it at the end.
    model: Vec<u8>,
    next: usize,
    drawn: Vec<u64>,
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
            keys: (0..workers).map(|_| None).collect(),
            mem,
            model,
            next: 0,
            drawn: Vec::new(),
        })
    }

    /// Operations that have not ended.
    pub fn open(&self) -> usize {
        self.puts.len() + self.gets.len() + self.tickets.len()
    }
}

impl World {
    /// Starts one operation of worker `n` on the memory of any.
    pub(super) fn reach(&mut self, n: usize) -> Result<(), Failed> {
        if self.nodes[n].shore.open() >= MAX_OPEN {
            return Ok(());
        }
        let to = self.dice.below(self.nodes.len() as u64) as usize;
        self.connect(n, to)?;
        if self.nodes[n].shore.keys[to].is_none() {
            let mem = &self.nodes[to].shore.mem;
            let (packed, key) = (mem.pack_rkey(), mem.key());
            let Some(ep) = &self.nodes[n].eps[to] else { return Err(self.fail("just connected")) };
            let rkey = ep.unpack_rkey(&packed);
            let rkey = rkey.map_err(|e| self.fail(format!("worker {n}: key of {to}: {e}")))?;
            self.nodes[n].shore.keys[to] = Some([rkey, Rkey::of_key(key)]);
        }
        let len = self.knobs.sizes.draw(&mut self.dice).min(CELL);
        let (what, by, fence) = (self.dice.below(4), self.dice.below(2) as usize, self.dice.percent(10));
        let at = self.dice.below((CELL - len + 1) as u64) as usize;
        self.trace.tell(
            &[12, n as u64, to as u64, what, by as u64, len as u64],
            format_args!("{}: {n} reaches {to}: kind {what}, key {by}, {len} bytes", self.step),
        );
        let base = self.nodes[to].shore.mem.addr();
        // The target's model changes with the operation; its cells are given out once.
        let cell = self.nodes[to].shore.next;
        let mut bytes = Vec::new();
        match what {
            0 if cell < CELLS => {
                bytes = vec![0; len];
                Pattern::new(self.seed, to as u64, cell as u64).fill(&mut bytes);
                let place = WRITTEN + cell * CELL;
                self.nodes[to].shore.model[place..place + len].copy_from_slice(&bytes);
                self.nodes[to].shore.next += 1;
            }
            2 => add(&mut self.nodes[to].shore.model, SUM, len as u64),
            3 => add(&mut self.nodes[to].shore.model, TICKETS, 1),
            _ => {}
        }
        let node = &mut self.nodes[n];
        let (Some(ep), Some(keys)) = (&node.eps[to], &node.shore.keys[to]) else { return Ok(()) };
        let rkey = &keys[by];
        if fence {
            ep.fence();
        }
        match what {
            0 if cell < CELLS => {
                let sync = if fence { Sync::Yes } else { Sync::No };
                let params = RmaParams { sync, ..RmaParams::default() };
                let put = ep.put_with(bytes, base + (WRITTEN + cell * CELL) as u64, rkey, &params);
                node.shore.puts.push(put);
            }
            2 => {
                let added = ep.atomic_post(AtomicOp::Sum, len as u64, base + SUM as u64, rkey);
                added.map_err(|e| self.fail(format!("worker {n}: adding at {to}: {e}")))?;
            }
            3 => node.shore.tickets.push(ep.atomic_fetch(AtomicOp::Sum, 1u64, base + TICKETS as u64, rkey)),
            _ => {
                let room = vec![0; len].into_boxed_slice();
                let request = ep.get(room, base + (READ + at) as u64, rkey);
                node.shore.gets.push(Getting { to, at: READ + at, request });
            }
        }
        self.settle_shore(n)
    }

    /// Looks at what has ended.
    pub(super) fn settle_shore(&mut self, n: usize) -> Result<(), Failed> {
        let shore = &mut self.nodes[n].shore;
        let puts: Vec<_> = shore.puts.extract_if(.., |put| put.is_done()).collect();
        let gets: Vec<_> = shore.gets.extract_if(.., |get| get.request.is_done()).collect();
        let tickets: Vec<_> = shore.tickets.extract_if(.., |ticket| ticket.is_done()).collect();
        for put in puts {
            put.wait().0.map_err(|e| self.fail(format!("worker {n}: a put ended {e:?}")))?;
        }
        for Getting { to, at, request } in gets {
            let (end, bytes) = request.wait();
            end.map_err(|e| self.fail(format!("worker {n}: a get ended {e:?}")))?;
            if self.nodes[to].shore.model[at..at + bytes.len()] != bytes[..] {
                let len = bytes.len();
                return Err(self.fail(format!("worker {n}: {len} bytes read at {at} of {to} are wrong")));
            }
        }
        for ticket in tickets {
            let old = ticket.wait().map_err(|e| self.fail(format!("worker {n}: a ticket ended {e:?}")))?;
            self.nodes[n].shore.drawn.push(old);
        }
        Ok(())
    }

    /// At rest: every byte is as it must be, and each ticket was drawn once.
    pub(super) fn look_at_shores(&self) -> Result<(), Failed> {
        let mut drawn: Vec<u64> = self.nodes.iter().flat_map(|node| node.shore.drawn.clone()).collect();
        drawn.sort_unstable();
        let mut due = Vec::new();
        for (n, node) in self.nodes.iter().enumerate() {
            let mut bytes = vec![0; LEN];
            node.shore.mem.read(0, &mut bytes);
            let wrong = bytes.iter().zip(&node.shore.model).position(|(is, must)| is != must);
            if let Some(at) = wrong {
                let (is, must) = (bytes[at], node.shore.model[at]);
                return Err(self.fail(format!("memory of {n}: byte {at} is {is}, not {must}")));
            }
            due.extend(0..node.shore.mem.word(TICKETS));
        }
        due.sort_unstable();
        if drawn != due {
            return Err(self.fail(format!("tickets drawn: {drawn:?}, not {due:?}")));
        }
        Ok(())
    }
}

fn add(model: &mut [u8], at: usize, value: u64) {
    if let Some(word) = model[at..].first_chunk_mut::<8>() {
        *word = (u64::from_le_bytes(*word) + value).to_le_bytes();
    }
}
