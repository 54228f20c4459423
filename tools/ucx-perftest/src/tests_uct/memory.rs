//! Registered memory of a test: target of puts, gets and atomics, source and sink of zcopy. Peers may write
//! it at any time, so it is only accessed by atomics, never through a Rust reference.

use std::cell::Cell;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use uct::api::{Access, AddrBuf, AllocReq, Fill, Iov, Md, Memory};

use crate::fail::Failure;
use crate::page_buffer::{PageBuffer, zeros};
use crate::payload;
use crate::spec::{Pages, Target};

/// Page-aligned memory of the process: a copy from another offset takes up to a third longer.
pub struct AlignedBuffer {
    bytes: Vec<u8>,
    range: Range<usize>,
}

impl AlignedBuffer {
    pub fn new(len: usize) -> Result<AlignedBuffer, Failure> {
        let page = rustix::param::page_size();
        let bytes = zeros(len + page)?;
        let start = bytes.as_ptr().addr().wrapping_neg() & (page - 1);
        Ok(AlignedBuffer { bytes, range: start..start + len })
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }
}

impl DerefMut for AlignedBuffer {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.range.clone()]
    }
}

pub struct RegisteredMemory<M: Md> {
    /// Dropped before `own`, which it registers.
    mem: M::Mem,
    own: Option<PageBuffer>,
    peers_done: Cell<bool>,
}

impl<M: Md> Drop for RegisteredMemory<M> {
    fn drop(&mut self) {
        // After a failure the other side may still write here by the kernel: leak it.
        if !self.peers_done.get() {
            std::mem::forget(self.own.take());
        }
    }
}

impl<M: Md> RegisteredMemory<M> {
    /// At least `len` zero bytes, registered for all access; allocated by the domain or the program.
    pub fn new(md: &M, len: usize, whose: Target, pages: Pages) -> Result<Self, Failure> {
        if whose == Target::Own {
            return RegisteredMemory::of_program(md, len.max(64), pages);
        }
        let fill = if pages == Pages::Lazy { Fill::Lazy } else { Fill::Now };
        let mem = md
            .alloc(&AllocReq { fill, ..AllocReq::new(len.max(64), "ucx-perftest") })
            .map_err(|e| Failure::Unsupported(format!("cannot get {len} bytes of registered memory: {e}")))?;
        Ok(RegisteredMemory { mem, own: None, peers_done: Cell::new(false) })
    }

    fn of_program(md: &M, len: usize, pages: Pages) -> Result<Self, Failure> {
        let own = PageBuffer::new(len, pages);
        let own =
            own.ok_or_else(|| Failure::Unsupported(format!("--own: cannot get {len} bytes of memory")))?;
        // SAFETY: the memory outlives the registration (a later field), and is only accessed by atomics
        // meanwhile.
        let mem = unsafe { md.register(own.start().as_ptr(), len, Access::ALL) };
        let mem = mem.map_err(|e| {
            Failure::Unsupported(format!("--own: cannot register {len} bytes of memory: {e}"))
        })?;
        Ok(RegisteredMemory { mem, own: Some(own), peers_done: Cell::new(false) })
    }

    /// No side will access the memory any more.
    pub fn mark_ended(&self) {
        self.peers_done.set(true);
    }

    pub fn rkey(&self, md: &M) -> Result<AddrBuf, Failure> {
        let attr = md.attr();
        if self.own.is_some() && attr.rkey_needs_alloc {
            let why = "peers reach only memory that it has allocated";
            return Err(Failure::Unsupported(format!("--own: transport '{}': {why}", attr.component)));
        }
        Ok(md.pack_rkey(&self.mem)?)
    }

    pub fn addr(&self) -> u64 {
        self.mem.addr().addr() as u64
    }

    pub fn len(&self) -> usize {
        self.mem.len()
    }

    /// `len` bytes at `at`, as a piece of a zcopy. Panics if they are out of range.
    pub fn piece(&self, at: usize, len: usize) -> Iov<'_, M::Mem> {
        Iov::new(self.at(at, len), len, Some(&self.mem))
    }

    fn at(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= self.len() && len <= self.len() - at, "{len} bytes at {at} of {}", self.len());
        self.mem.addr().wrapping_add(at)
    }

    // HOT
    #[inline(always)]
    pub fn load(&self, at: usize) -> u8 {
        let byte = self.at(at, 1);
        // SAFETY: `at` gave an address inside the registration, which lives as long as `self`; the memory is
        // shared with peers and is accessed atomically by both.
        let byte = unsafe { AtomicU8::from_ptr(byte) };
        byte.load(Ordering::Acquire)
    }

    pub fn store(&self, at: usize, value: u8) {
        let byte = self.at(at, 1);
        // SAFETY: as in `load`.
        let byte = unsafe { AtomicU8::from_ptr(byte) };
        byte.store(value, Ordering::Release);
    }

    /// The word at the start; the lower half of a word of 16 bytes.
    // HOT
    #[inline(always)]
    pub fn word(&self, bytes: usize) -> u64 {
        let word = self.at(0, bytes);
        match bytes {
            1 => u64::from(self.load(0)),
            2 => {
                // SAFETY: as in `load`; allocations are page aligned.
                let word = unsafe { AtomicU16::from_ptr(word.cast()) };
                u64::from(word.load(Ordering::Acquire))
            }
            4 => {
                // SAFETY: as in `load`; allocations are page aligned.
                let word = unsafe { AtomicU32::from_ptr(word.cast()) };
                u64::from(word.load(Ordering::Acquire))
            }
            _ => {
                // SAFETY: as in `load`; allocations are page aligned.
                let word = unsafe { AtomicU64::from_ptr(word.cast()) };
                word.load(Ordering::Acquire)
            }
        }
    }

    pub fn clear_word(&self) {
        (0..16).for_each(|at| self.store(at, 0));
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        let to = self.at(at, bytes.len());
        // SAFETY: the range is inside the registration. The slice is no part of it, as no reference into it
        // is ever made. Nobody else writes it now (sources are ours, targets are filled before use).
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let from = self.at(at, len);
        (0..len)
            .map(|i| {
                // SAFETY: `at` gave the start of `len` bytes inside the registration; as in `load`.
                let byte = unsafe { AtomicU8::from_ptr(from.wrapping_add(i)) };
                byte.load(Ordering::Relaxed)
            })
            .collect()
    }

    pub fn check(&self, at: usize, len: usize, seq: u64) -> Result<(), String> {
        payload::check(&self.read(at, len), seq, len)
    }
}
