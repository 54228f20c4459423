//! Allocation by a list of methods, the first that works. Used by all memory domains; registers nothing.

#![allow(unsafe_code)]

use crate::api::{Advice, AllocMethod, AllocReq, Error, Op};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use ucs::mem::page::CACHE_LINE;
use ucs::mem::{FixedMap, MapOpts, Mapping, MemError, Pages, SharedMem};

/// Memory that gives itself back.
#[derive(Debug)]
pub enum Backing {
    Map(Mapping),
    File(SharedMem),
    Fixed(FixedMap),
    Heap(Block),
}

/// A zeroed piece of the heap, on cache lines of its own.
#[derive(Debug)]
pub struct Block {
    at: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its bytes and gives out a pointer only.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    fn new(len: usize) -> Result<Block, Error> {
        let layout = Layout::from_size_align(len.next_multiple_of(CACHE_LINE), CACHE_LINE);
        let layout = layout.map_err(|_| Error::NoMemory)?;
        // SAFETY: the callers ask for at least one byte, so the layout has a size.
        let at = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(Error::NoMemory)?;
        Ok(Block { at, layout })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, once.
        unsafe { dealloc(self.at.as_ptr(), self.layout) };
    }
}

impl Backing {
    pub fn as_ptr(&self) -> *mut u8 {
        match self {
            Backing::Map(map) => map.as_ptr(),
            Backing::File(file) => file.as_ptr(),
            Backing::Fixed(map) => map.as_ptr(),
            Backing::Heap(block) => block.at.as_ptr(),
        }
    }
}

/// Tries the methods of a request in their order. The error is that of the last one.
pub fn by_methods<T>(
    req: &AllocReq<'_>,
    mut one: impl FnMut(AllocMethod) -> Result<T, Error>,
) -> Result<T, Error> {
    if req.len == 0 {
        return Err(Error::InvalidParam("allocation of no bytes"));
    }
    let mut last = Error::InvalidParam("no allocation method given");
    for &method in req.methods {
        match one(method) {
            Ok(made) => return Ok(made),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// How a request wants its pages, by a method that is about pages.
pub fn map_opts(req: &AllocReq<'_>, method: AllocMethod) -> MapOpts {
    let pages = match method {
        AllocMethod::Huge => Pages::Huge2M,
        AllocMethod::Thp => Pages::Transparent,
        AllocMethod::Md | AllocMethod::Memfd | AllocMethod::Mmap | AllocMethod::Heap => Pages::Small,
    };
    MapOpts { pages, fill: req.fill }
}

/// Memory by a method that needs no device. [`AllocMethod::Md`] is refused: only the domain knows its own.
pub fn backing(req: &AllocReq<'_>, method: AllocMethod) -> Result<Backing, Error> {
    let opts = map_opts(req, method);
    let made = match (method, req.at) {
        (AllocMethod::Md, _) | (AllocMethod::Heap | AllocMethod::Memfd, Some(_)) => {
            return Err(Error::Unsupported(Op::Alloc));
        }
        (AllocMethod::Heap, None) => return Block::new(req.len).map(Backing::Heap),
        (AllocMethod::Memfd, None) => SharedMem::create(req.name, req.len, opts).map(Backing::File),
        (_, None) => Mapping::new(req.len, opts).map(Backing::Map),
        (_, Some(at)) => FixedMap::anon(at, req.len, opts).map(Backing::Fixed),
    };
    made.map_err(error)
}

/// `Md::advise`: a hint about whole pages, those `addr..addr + len` lies in.
pub fn advise(addr: *mut u8, len: usize, advice: Advice) -> Result<(), Error> {
    use rustix::mm::Advice as A;
    let how = match advice {
        Advice::Normal => A::Normal,
        Advice::WillNeed => A::WillNeed,
        Advice::Huge => A::LinuxHugepage,
    };
    let before = addr.addr() % ucs::mem::page::page_size();
    let start = addr.wrapping_sub(before);
    // SAFETY: none of these changes a byte; a range that is not mapped is an error.
    match unsafe { rustix::mm::madvise(start.cast(), len + before, how) } {
        // What the kernel has no such advice for stays as it is.
        Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
        Err(e) => Err(Error::Sys { call: "madvise", errno: e.into() }),
    }
}

/// Maps a mapping failure to a transport error.
pub fn error(e: MemError) -> Error {
    match e {
        MemError::BadLength { .. } => Error::InvalidParam("length out of range"),
        MemError::Os { op, errno } => Error::Sys { call: op, errno },
        MemError::Descriptors { .. } => Error::NoDescriptor,
        _ => Error::NoMemory,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn first_working_method_is_used() {
        let req = AllocReq {
            methods: &[AllocMethod::Md, AllocMethod::Memfd, AllocMethod::Heap],
            ..AllocReq::new(100, "t")
        };
        let got = by_methods(&req, |method| backing(&req, method).map(|b| (method, b))).unwrap();
        assert!(matches!(got, (AllocMethod::Memfd, Backing::File(_))));
        let none = AllocReq { methods: &[AllocMethod::Md], ..req };
        let refused = by_methods(&none, |method| backing(&none, method)).err();
        assert_eq!(refused, Some(Error::Unsupported(Op::Alloc)));
    }

    #[test]
    fn heap_blocks_are_zero_and_aligned() {
        let block = Block::new(1000).unwrap();
        let at = block.at.as_ptr();
        assert_eq!(at.addr() % CACHE_LINE, 0);
        // SAFETY: 1000 bytes of ours.
        assert!(unsafe { std::slice::from_raw_parts(at, 1000) }.iter().all(|b| *b == 0));
        assert!(Block::new(usize::MAX - 100).is_err());
    }
}
