//! A partitioned global address space in two hundred lines, with OpenSHMEM's operations.
//!
//! | here | `uct` |
//! |---|---|
//! | the heap | one allocation of the memory domain, one key, given to everybody once |
//! | an address | an offset in the heap; `base of the PE + offset` is the remote address |
//! | `put`, `iput`, `get` | `put_short`, `get_short`, in pieces of at most what the attributes say |
//! | `get` on a network | `get_bcopy` |
//! | `fadd`, `swap` | `atomic_fetch` |
//! | `fence`, `quiet` | `Iface::fence`, `Iface::flush` |
//! | `barrier` | flags in the heap: log2(PEs) rounds of one put each |
//!
//! Others may write any heap word at any time: words are accessed as atomics, without references.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use uct::any::{Ep, Iface, Mem, Rkey};
use uct::api::{
    AllocReq, AtomicOp, AtomicOps, Caps, Comp, Completion, Ep as _, Iface as _, Md as _, Memory as _,
    Outcome, Refused, Sent,
};

use crate::job::Job;

const WORD: usize = 8;
/// Words in front of the heap for the barrier: one a round, enough for 2^16 PEs.
const FLAGS: usize = 16;

const PATIENCE: u32 = 100;
const NAP: Duration = Duration::from_micros(50);

/// Some words at the same place in every PE's heap.
#[derive(Clone, Copy, Debug)]
pub struct Sym {
    first: usize,
    len: usize,
}

impl Sym {
    /// How many words.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The `n` words from `at` of it. Panics if there are not so many.
    pub fn part(&self, at: usize, n: usize) -> Sym {
        assert!(at <= self.len && n <= self.len - at, "{n} words at {at} of {}", self.len);
        Sym { first: self.first + at, len: n }
    }
}

struct Way {
    ep: Ep,
    rkey: Rkey,
    base: u64,
}

/// This process, a PE among `npes`.
pub struct Shmem {
    /// Number of this PE.
    pub me: usize,
    /// How many there are.
    pub npes: usize,
    iface: Iface,
    heap: Mem,
    ways: Vec<Way>,
    next: Cell<usize>,
    rounds: Cell<u64>,
}

impl Shmem {
    /// Makes a heap of `words` words in each PE, and ways to all of them. Every PE calls it.
    pub fn init(iface: Iface, words: usize, job: &mut Job) -> Result<Shmem, Box<dyn Error>> {
        let attr = iface.attr();
        let get = if attr.has(Caps::GET_SHORT) { Caps::GET_SHORT } else { Caps::GET_BCOPY };
        let need = Caps::PUT_SHORT | get | Caps::ATOMIC | Caps::CONNECT_TO_IFACE;
        let ops = AtomicOps::ADD | AtomicOps::SWAP;
        if !attr.has(need) || !attr.atomics.fetch(WORD).contains(ops) {
            let lacks: Vec<&str> = (need - attr.caps).iter_names().map(|(name, _)| name).collect();
            let lacks = if lacks.is_empty() { "64-bit atomics".into() } else { lacks.join(", ") };
            return Err(format!("{}/{} lacks {lacks} (see ucx-info -d)", attr.tl, attr.dev).into());
        }
        let heap = iface.md().alloc(&AllocReq::new((FLAGS + words) * WORD, "pgas heap"))?;
        let bases = job.gather(&(heap.addr() as u64).to_le_bytes())?;
        let keys = job.gather(&iface.md().pack_rkey(&heap)?)?;
        let devices = job.gather(&iface.device_addr())?;
        let ifaces = job.gather(&iface.iface_addr())?;
        let mut ways = Vec::with_capacity(job.size);
        for pe in 0..job.size {
            ways.push(Way {
                ep: iface.connect(&devices[pe], &ifaces[pe])?,
                rkey: iface.md().unpack_rkey(&keys[pe])?,
                base: u64::from_le_bytes(bases[pe][..].try_into()?),
            });
        }
        let (next, rounds) = (Cell::new(FLAGS), Cell::new(0));
        let shmem = Shmem { me: job.rank, npes: job.size, iface, heap, ways, next, rounds };
        // Nobody writes to a heap before its owner has it, and everybody has all keys now.
        job.gather(&[])?;
        Ok(shmem)
    }

    /// Allocates `len` zeroed words. All PEs allocate the same in the same order.
    pub fn alloc(&self, len: usize) -> Result<Sym, Box<dyn Error>> {
        let first = self.next.get();
        if self.heap.len() / WORD - first < len {
            return Err(format!("the symmetric heap has no {len} words left").into());
        }
        self.next.set(first + len);
        Ok(Sym { first, len })
    }

    /// Writes `words` to `to` in PE `pe`; the buffer is free at once, arrival is up to `quiet`.
    pub fn put(&self, to: Sym, words: &[u64], pe: usize) -> Result<(), Box<dyn Error>> {
        assert!(words.len() <= to.len);
        let most = (self.iface.attr().put.max_short / WORD).max(1);
        for (n, piece) in words.chunks(most).enumerate() {
            let bytes: Vec<u8> = piece.iter().flat_map(|w| w.to_ne_bytes()).collect();
            let (way, at) = self.remote(to.part(n * most, piece.len()), pe);
            self.retry(|| way.ep.put_short(&bytes, at, &way.rkey))?;
        }
        Ok(())
    }

    /// Writes every `from_step`th of `words` to every `to_step`th of `to`: `n` words.
    pub fn iput(
        &self,
        (to, to_step): (Sym, usize),
        (words, from_step): (&[u64], usize),
        n: usize,
        pe: usize,
    ) -> Result<(), Box<dyn Error>> {
        (0..n).try_for_each(|i| self.put(to.part(i * to_step, 1), &words[i * from_step..][..1], pe))
    }

    /// Reads the words at `from` in PE `pe`.
    pub fn get(&self, from: Sym, pe: usize) -> Result<Vec<u64>, Box<dyn Error>> {
        let attr = self.iface.attr();
        let is_short = attr.has(Caps::GET_SHORT);
        let most = if is_short { attr.get.max_short } else { attr.get.max_bcopy };
        let most = (most / WORD).max(1);
        let mut bytes = vec![0; from.len * WORD];
        for (n, piece) in bytes.chunks_mut(most.saturating_mul(WORD)).enumerate() {
            let (way, at) = self.remote(from.part(n * most, piece.len() / WORD), pe);
            if is_short {
                self.retry(|| way.ep.get_short(piece, at, &way.rkey))?;
            } else {
                self.get_copied(way, at, piece)?;
            }
        }
        let word = |b: &[u8]| u64::from_ne_bytes(b.try_into().expect("chunks of a word"));
        Ok(bytes.chunks_exact(WORD).map(word).collect())
    }

    /// Reads over a network: the bytes come later.
    fn get_copied(&self, way: &Way, at: u64, piece: &mut [u8]) -> Result<(), Box<dyn Error>> {
        let got = Rc::new(RefCell::new(Vec::new()));
        self.finish(|comp| {
            let got = got.clone();
            let unpack = move |bytes: &[u8]| got.borrow_mut().extend_from_slice(bytes);
            way.ep.get_bcopy(piece.len(), unpack, at, &way.rkey, comp)
        })?;
        piece.copy_from_slice(&got.borrow());
        Ok(())
    }

    /// Adds to the first word of `at` in PE `pe`; answers what was there.
    pub fn fadd(&self, at: Sym, value: u64, pe: usize) -> Result<u64, Box<dyn Error>> {
        self.fetch(AtomicOp::Add, at, value, pe)
    }

    /// Replaces the first word of `at` in PE `pe`; answers what was there.
    pub fn swap(&self, at: Sym, value: u64, pe: usize) -> Result<u64, Box<dyn Error>> {
        self.fetch(AtomicOp::Swap, at, value, pe)
    }

    /// Orders writes to each other PE: later ones are seen after earlier ones.
    pub fn fence(&self) -> Result<(), Box<dyn Error>> {
        self.retry(|| self.iface.fence())
    }

    /// Everything that this PE has written so far is where it belongs.
    pub fn quiet(&self) -> Result<(), Box<dyn Error>> {
        self.finish(|comp| self.iface.flush(comp))
    }

    /// Dissemination barrier: in round k a PE signals the one 2^k further on and waits for the one 2^k
    /// before.
    pub fn barrier(&self) -> Result<(), Box<dyn Error>> {
        self.quiet()?;
        let count = self.rounds.get() + 1;
        self.rounds.set(count);
        let flags = Sym { first: 0, len: FLAGS };
        for round in (0..FLAGS).take_while(|k| 1 << k < self.npes) {
            let flag = flags.part(round, 1);
            self.put(flag, &[count], (self.me + (1 << round)) % self.npes)?;
            self.wait_until(flag, |word| word >= count);
        }
        // Nobody may make progress afterwards: the last signal has to arrive before.
        self.quiet()
    }

    /// Waits until the first word of `at`, in this PE, is as wanted.
    pub fn wait_until(&self, at: Sym, wanted: impl Fn(u64) -> bool) {
        let mut looks = 0;
        while !wanted(self.read(at, 0)) {
            self.iface.progress(16);
            looks += 1;
            // There may be more PEs than cores: yielding lets another waiter run, sleeping lets a worker run.
            if looks < PATIENCE { std::thread::yield_now() } else { std::thread::sleep(NAP) }
        }
    }

    /// Word `n` of `at`, in this PE.
    pub fn read(&self, at: Sym, n: usize) -> u64 {
        self.local(at.part(n, 1)).load(Ordering::Acquire)
    }

    /// Sets word `n` of `at`, in this PE.
    pub fn write(&self, at: Sym, n: usize, value: u64) {
        self.local(at.part(n, 1)).store(value, Ordering::Release);
    }

    fn local(&self, at: Sym) -> &AtomicU64 {
        let word = self.heap.addr().wrapping_add(at.first * WORD).cast();
        // SAFETY: inside the heap by construction of `Sym`, aligned as the heap is, and touched by atomics
        // only, ours and those of peers.
        unsafe { AtomicU64::from_ptr(word) }
    }

    fn remote(&self, at: Sym, pe: usize) -> (&Way, u64) {
        let way = &self.ways[pe];
        (way, way.base + (at.first * WORD) as u64)
    }

    fn fetch(&self, op: AtomicOp, at: Sym, value: u64, pe: usize) -> Result<u64, Box<dyn Error>> {
        let (way, at) = self.remote(at.part(0, 1), pe);
        let old = Cell::new(0u64);
        let into = NonNull::from(&old).cast();
        // SAFETY: `old` lives until `finish` has seen the operation's end.
        self.finish(|comp| unsafe { way.ep.atomic_fetch(op, value, into, at, &way.rkey, comp) })?;
        Ok(old.get())
    }

    fn retry(&self, mut op: impl FnMut() -> Outcome) -> Result<(), Box<dyn Error>> {
        loop {
            match op() {
                Ok(_) => return Ok(()),
                Err(Refused::NoResource) => self.iface.progress(16),
                Err(Refused::Failed(e)) => return Err(e.into()),
            };
        }
    }

    fn finish(&self, op: impl Fn(Comp) -> Outcome) -> Result<(), Box<dyn Error>> {
        let ended = Rc::new(Cell::new(None));
        let tell = ended.clone();
        let comp = Completion::new(1, move |result| tell.set(Some(result)));
        loop {
            match op(Comp::Handle(comp.clone())) {
                Ok(Sent::Done) => return Ok(()),
                Ok(Sent::InProgress) => break,
                Err(Refused::NoResource) => self.iface.progress(16),
                Err(Refused::Failed(e)) => return Err(e.into()),
            };
        }
        loop {
            self.iface.progress(16);
            if let Some(result) = ended.take() {
                return Ok(result?);
            }
        }
    }
}
