//! Registered memory of a test: the target of puts, gets and atomics, and the source and sink of zcopy.
//! The only place of this tool that touches such memory. The peer may write the target at any moment, so it is only
//! read and written by atomic accesses, never through a Rust reference.

use std::cell::Cell;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use uct::api::{Access, AddrBuf, AllocReq, Fill, Iov, Md, Memory};

use crate::fail::Failure;
use crate::page_buffer::{PageBuffer, zeros};
use crate::payload;
use crate::spec::{Pages, Target};

/// Memory of the process's own that begins with a page, as registered memory does and as UCX's tool has it: a copy from
/// somewhere else in a page takes up to a third longer.
pub struct AlignedBuffer {
    bytes: Vec<u8>,
    range: Range<usize>,
}

impl AlignedBuffer {
    /// `len` zeros.
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

/// Registered memory.
pub struct RegisteredMemory<M: Md> {
    /// Ends before the memory that it is of.
    mem: M::Mem,
    own: Option<PageBuffer>,
    peers_done: Cell<bool>,
}

impl<M: Md> Drop for RegisteredMemory<M> {
    fn drop(&mut self) {
        // After a failure the other side may still write, by the kernel, where this was; then it stays.
        if !self.peers_done.get() {
            std::mem::forget(self.own.take());
        }
    }
}

impl<M: Md> RegisteredMemory<M> {
    /// At least `len` bytes, zero, registered for everything: the domain's, or the program's own.
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
        // SAFETY: the memory outlives the registration (it is the later field), and is only accessed by atomics meanwhile.
        let mem = unsafe { md.register(own.start().as_ptr(), len, Access::ALL) };
        let mem = mem.map_err(|e| {
            Failure::Unsupported(format!("--own: cannot register {len} bytes of memory: {e}"))
        })?;
        Ok(RegisteredMemory { mem, own: Some(own), peers_done: Cell::new(false) })
    }

    /// All sides have ended.
    pub fn mark_ended(&self) {
        self.peers_done.set(true);
    }

    /// Its remote key.
    pub fn rkey(&self, md: &M) -> Result<AddrBuf, Failure> {
        let attr = md.attr();
        if self.own.is_some() && attr.rkey_needs_alloc {
            let why = "peers reach only memory that it has allocated";
            return Err(Failure::Unsupported(format!("--own: transport '{}': {why}", attr.component)));
        }
        Ok(md.pack_rkey(&self.mem)?)
    }

    /// First address, as peers name it.
    pub fn addr(&self) -> u64 {
        self.mem.addr().addr() as u64
    }

    /// Length, bytes.
    pub fn len(&self) -> usize {
        self.mem.len()
    }

    /// `len` bytes from `at`, as a piece of a zcopy. Panics if they are not inside.
    pub fn piece(&self, at: usize, len: usize) -> Iov<'_, M::Mem> {
        Iov::new(self.at(at, len), len, Some(&self.mem))
    }

    fn at(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= self.len() && len <= self.len() - at, "{len} bytes at {at} of {}", self.len());
        self.mem.addr().wrapping_add(at)
    }

    /// The byte at `at`. HOT
    #[inline(always)]
    pub fn load(&self, at: usize) -> u8 {
        let byte = self.at(at, 1);
        // SAFETY: `at` gave an address inside the registration, which lives as long as `self`; the memory is shared
        // with peers and is accessed atomically by both.
        let byte = unsafe { AtomicU8::from_ptr(byte) };
        byte.load(Ordering::Acquire)
    }

    /// Sets the byte at `at`.
    pub fn store(&self, at: usize, value: u8) {
        let byte = self.at(at, 1);
        // SAFETY: as in `load`.
        let byte = unsafe { AtomicU8::from_ptr(byte) };
        byte.store(value, Ordering::Release);
    }

    /// The word at the start; of one of 16 bytes the lower half. HOT
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

    /// Sets the word at the start to zero.
    pub fn clear_word(&self) {
        (0..16).for_each(|at| self.store(at, 0));
    }

    /// Writes `bytes` at `at`.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let to = self.at(at, bytes.len());
        // SAFETY: the range is inside the registration; the caller's slice is no part of it, as no reference into
        // it is ever made; nobody else writes this range now (sources are ours, targets are filled before use).
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// A copy of `len` bytes at `at`.
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

    /// Checks the message at `at`.
    pub fn check(&self, at: usize, len: usize, seq: u64) -> Result<(), String> {
        payload::check(&self.read(at, len), seq, len)
    }
}
