//! Mappings at a chosen address, for symmetric heaps. Never replaces an existing mapping.

#![allow(unsafe_code)]

use super::map::{Fill, MapOpts, MemError, Pages, SharedMem, advise_huge, check_room, populate};
use super::page::{HUGE_2M, page_size, round_up};
use crate::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::ptr::NonNull;

/// Memory at a chosen address; unmapped on drop.
#[derive(Debug)]
pub struct FixedMap {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; the value gives out a pointer only.
unsafe impl Send for FixedMap {}
// SAFETY: as above.
unsafe impl Sync for FixedMap {}

fn check_len(at: NonNull<u8>, len: usize, pages: Pages) -> Result<usize, MemError> {
    let unit = if pages == Pages::Huge2M { HUGE_2M } else { page_size() };
    let bad = MemError::BadLength { len };
    let len = round_up(len, unit).filter(|n| *n > 0 && *n <= isize::MAX as usize).ok_or(bad)?;
    if !at.addr().get().is_multiple_of(unit) {
        return Err(MemError::Os {
            op: "mmap at an address that is not page aligned",
            errno: Errno(libc::EINVAL),
        });
    }
    Ok(len)
}

impl FixedMap {
    /// Maps at least `len` zeroed bytes of this process alone at `at`.
    pub fn anon(at: NonNull<u8>, len: usize, opts: MapOpts) -> Result<FixedMap, MemError> {
        let len = check_len(at, len, opts.pages)?;
        check_room("memory at a fixed address", len, opts)?;
        let mut flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        if opts.pages == Pages::Huge2M {
            flags |= MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        }
        flags.set(MapFlags::POPULATE, opts.fill == Fill::Now && opts.pages != Pages::Transparent);
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without replacing what is there, a new mapping changes no memory that anybody uses.
        let got = unsafe { rustix::mm::mmap_anonymous(at.as_ptr().cast(), len, prot, flags) };
        let map = FixedMap::from_mmap(at, len, got)?;
        if opts.pages == Pages::Transparent {
            advise_huge(map.as_ptr(), len);
        }
        if opts.fill == Fill::Now {
            // The flag of `mmap` says nothing of a failure.
            populate(map.as_ptr(), len)?;
        }
        Ok(map)
    }

    /// Reserves `at` for a memory file, inaccessible and without memory until it is [mapped](Self::map_file):
    /// the file's first mapping could otherwise land there.
    pub fn reserve(at: NonNull<u8>, len: usize, pages: Pages) -> Result<FixedMap, MemError> {
        let len = check_len(at, len, pages)?;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE | MapFlags::NORESERVE;
        // SAFETY: as in `anon`.
        let got = unsafe { rustix::mm::mmap_anonymous(at.as_ptr().cast(), len, ProtFlags::empty(), flags) };
        FixedMap::from_mmap(at, len, got)
    }

    /// Maps a memory file once more, at `at`.
    pub fn file(at: NonNull<u8>, mem: &SharedMem) -> Result<FixedMap, MemError> {
        let len = check_len(at, mem.len(), Pages::Small)?;
        let (prot, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED_NOREPLACE);
        // SAFETY: as in `anon`.
        let got = unsafe { rustix::mm::mmap(at.as_ptr().cast(), len, prot, flags, mem, 0) };
        FixedMap::from_mmap(at, len, got)
    }

    /// Maps a memory file of the same length over these pages, whose contents are lost.
    pub fn map_file(&mut self, mem: &SharedMem, opts: MapOpts) -> Result<(), MemError> {
        if mem.len() != self.len {
            return Err(MemError::BadLength { len: mem.len() });
        }
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: what is replaced is this very mapping, which `&mut self` has to itself.
        unsafe { rustix::mm::mmap(self.at.as_ptr().cast(), self.len, prot, flags, mem, 0) }
            .map_err(|e| MemError::Os { op: "mmap", errno: e.into() })?;
        if opts.pages == Pages::Transparent {
            advise_huge(self.as_ptr(), self.len);
        }
        if opts.fill == Fill::Now {
            // As of the file's own mapping: a hint, since the file has its pages.
            let _ = populate(self.as_ptr(), self.len);
        }
        Ok(())
    }

    fn from_mmap(
        at: NonNull<u8>,
        len: usize,
        got: Result<*mut std::ffi::c_void, rustix::io::Errno>,
    ) -> Result<FixedMap, MemError> {
        let taken = MemError::Os { op: "mmap: the address is taken", errno: Errno(libc::EEXIST) };
        match got {
            Ok(there) if there.cast::<u8>() == at.as_ptr() => Ok(FixedMap { at, len }),
            Ok(elsewhere) => {
                // A kernel that does not know the flag takes the address for a wish. SAFETY: just mapped, and
                // nobody has heard of it.
                let _ = unsafe { rustix::mm::munmap(elsewhere, len) };
                Err(taken)
            }
            Err(rustix::io::Errno::EXIST) => Err(taken),
            Err(rustix::io::Errno::NOMEM) => Err(MemError::Exhausted {
                what: "memory at a fixed address",
                len,
                errno: Errno(libc::ENOMEM),
            }),
            Err(e) => Err(MemError::Os { op: "mmap", errno: e.into() }),
        }
    }

    /// First byte.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    /// Length, bytes: what was asked for, rounded up to whole pages.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for FixedMap {
    fn drop(&mut self) {
        // SAFETY: mapped by us, once; whoever used the pointer promised not to outlive this.
        if let Err(e) = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.len) } {
            tracing::warn!("cannot unmap {} bytes: {e}", self.len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::map::Mapping;
    use super::*;

    #[test]
    fn a_fixed_address_is_used_or_refused() {
        let probe = Mapping::new(1 << 16, MapOpts::default()).unwrap();
        let at = NonNull::new(probe.as_ptr()).unwrap();
        assert!(FixedMap::anon(at, 4096, MapOpts::default()).is_err(), "taken");
        drop(probe);
        let map = FixedMap::anon(at, 5000, MapOpts::default()).unwrap();
        assert_eq!((map.as_ptr(), map.len()), (at.as_ptr(), 8192));
        // SAFETY: inside the mapping, which is ours.
        assert_eq!(unsafe { at.as_ptr().wrapping_add(4999).read() }, 0);
        drop(map);
        let mem = SharedMem::create("fixed", 4096, MapOpts::default()).unwrap();
        let second = FixedMap::file(at, &mem).unwrap();
        // SAFETY: inside both mappings, which are ours.
        unsafe { second.as_ptr().write_volatile(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { mem.as_ptr().read_volatile() }, 7);
        drop(second);
        let mut reserved = FixedMap::anon(at, 4096, MapOpts::default()).unwrap();
        reserved.map_file(&mem, MapOpts::default()).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { reserved.as_ptr().read_volatile() }, 7);
        let odd = at.map_addr(|a| a | std::num::NonZero::<usize>::MIN);
        assert!(FixedMap::anon(odd, 4096, MapOpts::default()).is_err());
    }

    #[test]
    fn a_file_of_any_pages_is_put_at_an_address() {
        // Where the system puts nothing by itself, so that other tests do not come in between.
        let mut free = 0x3800_0000_0000_usize;
        for (pages, len) in [(Pages::Small, 5000), (Pages::Transparent, 3 << 20), (Pages::Huge2M, 5000)] {
            for fill in [Fill::Now, Fill::Lazy] {
                free += 1 << 30;
                let (opts, at) = (MapOpts { pages, fill }, std::ptr::without_provenance_mut(free));
                let at = NonNull::new(at).unwrap();
                let mut there = FixedMap::reserve(at, len, pages).unwrap();
                let file = match SharedMem::create("fixed", len, opts) {
                    Ok(file) => file,
                    Err(e) if pages == Pages::Huge2M => {
                        assert!(matches!(e, MemError::Exhausted { .. } | MemError::Os { .. }), "{e}");
                        continue;
                    }
                    Err(e) => panic!("{e}"),
                };
                there.map_file(&file, opts).unwrap();
                assert_eq!((there.as_ptr(), there.len()), (at.as_ptr(), file.len()));
                let mapped = crate::mem::query::mapped_bytes(at.addr().get()).unwrap();
                assert_eq!(mapped, if fill == Fill::Now { file.len() } else { 0 }, "{opts:?}");
                // SAFETY: inside the mapping, which is ours.
                unsafe { there.as_ptr().wrapping_add(len - 1).write_volatile(7) };
                // SAFETY: the same byte of the file.
                assert_eq!(unsafe { file.as_ptr().wrapping_add(len - 1).read_volatile() }, 7);
            }
        }
    }

    #[test]
    fn reserving_costs_no_memory() {
        // More than any machine has, above where a sanitizer keeps its own.
        let len = 1 << 45;
        let at = NonNull::new(std::ptr::without_provenance_mut(0x1100_0000_0000)).unwrap();
        assert_eq!(FixedMap::reserve(at, len, Pages::Small).unwrap().len(), len);
        assert!(FixedMap::anon(at, len, MapOpts::default()).is_err(), "that is to be had now");
    }
}
