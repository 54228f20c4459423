//! Memory of chunks of pools: functions that programs put into the operations of a pool.

use std::ffi::c_void;

use ::ucs::Status;

use super::mpool::Pool;
use crate::entry::CStatus;

/// Header in front of the memory of a chunk.
#[repr(C, align(16))]
struct Mapped {
    /// Bytes that are mapped; 0 if the memory is of `malloc`.
    size: usize,
}

const HEADER: usize = size_of::<Mapped>();

/// Size of a huge page; smaller chunks get none.
const HUGE_PAGE: usize = 2 << 20;

/// Size of a page.
pub(super) fn page() -> usize {
    // SAFETY: a question without arguments that matter.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Maps memory. Null if there is none.
fn map(size: usize, flags: i32) -> *mut c_void {
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags);
    // SAFETY: new pages, at any address.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), size, access, flags, -1, 0) };
    if at == libc::MAP_FAILED { std::ptr::null_mut() } else { at }
}

/// Gives memory for a chunk to the caller: behind a header at `at`, which has `total` bytes.
///
/// # Safety
/// `size` and `chunk` are the caller's; `at` is memory of that size, or null.
unsafe fn give(
    at: *mut c_void,
    mapped: usize,
    total: usize,
    size: *mut usize,
    chunk: *mut *mut c_void,
) -> Result<(), Status> {
    if at.is_null() {
        return Err(Status::NoMemory);
    }
    // SAFETY: the contract of this function.
    unsafe {
        at.cast::<Mapped>().write(Mapped { size: mapped });
        size.write(total - HEADER);
        chunk.write(at.cast::<u8>().add(HEADER).cast());
    }
    Ok(())
}

/// Asked size with a header, in whole pages of a size.
///
/// # Safety
/// `size` is the caller's, or null.
unsafe fn total(size: *const usize, chunk: *mut *mut c_void, unit: usize) -> Result<usize, Status> {
    if size.is_null() || chunk.is_null() {
        return Err(Status::InvalidParam);
    }
    // SAFETY: the contract of this function.
    let size = unsafe { size.read() };
    size.checked_add(HEADER).and_then(|size| size.checked_next_multiple_of(unit)).ok_or(Status::NoMemory)
}

/// Frees a chunk.
///
/// # Safety
/// It is of [`give`], or null.
unsafe fn free(chunk: *mut c_void) {
    if chunk.is_null() {
        return;
    }
    let at = chunk.cast::<u8>().wrapping_sub(HEADER).cast::<c_void>();
    // SAFETY: the contract of this function.
    unsafe {
        match (*at.cast::<Mapped>()).size {
            0 => libc::free(at),
            size => _ = libc::munmap(at, size),
        }
    }
}

entry! {
    /// Takes memory of `malloc` for a chunk.
    fn ucs_mpool_chunk_malloc(_pool: *mut Pool, size: *mut usize, chunk: *mut *mut c_void) -> CStatus {
        // SAFETY: both are the caller's.
        unsafe {
            if size.is_null() || chunk.is_null() {
                return Err(Status::InvalidParam);
            }
            let at = libc::malloc(size.read());
            if at.is_null() {
                return Err(Status::NoMemory);
            }
            chunk.write(at);
        }
        Ok(())
    }

    /// Frees a chunk of [`ucs_mpool_chunk_malloc`], or of `malloc`.
    fn ucs_mpool_chunk_free(_pool: *mut Pool, chunk: *mut c_void) {
        // SAFETY: the chunk is of these functions.
        unsafe { libc::free(chunk) };
        Ok(())
    }

    /// Maps whole pages for a chunk.
    fn ucs_mpool_chunk_mmap(_pool: *mut Pool, size: *mut usize, chunk: *mut *mut c_void) -> CStatus {
        // SAFETY: both are the caller's.
        unsafe {
            let total = total(size, chunk, page())?;
            give(map(total, 0), total, total, size, chunk)
        }
    }

    /// Unmaps a chunk of [`ucs_mpool_chunk_mmap`].
    fn ucs_mpool_chunk_munmap(_pool: *mut Pool, chunk: *mut c_void) {
        // SAFETY: the chunk is of that function.
        unsafe { free(chunk) };
        Ok(())
    }

    /// Maps huge pages for a chunk that fills one at least, if there are any; else takes memory of `malloc`.
    fn ucs_mpool_hugetlb_malloc(_pool: *mut Pool, size: *mut usize, chunk: *mut *mut c_void) -> CStatus {
        // SAFETY: both are the caller's.
        unsafe {
            let least = total(size, chunk, HEADER)?;
            if least >= HUGE_PAGE {
                let total = total(size, chunk, HUGE_PAGE)?;
                let at = map(total, libc::MAP_HUGETLB);
                if !at.is_null() {
                    return give(at, total, total, size, chunk);
                }
            }
            give(libc::malloc(least), 0, least, size, chunk)
        }
    }

    /// Frees a chunk of [`ucs_mpool_hugetlb_malloc`].
    fn ucs_mpool_hugetlb_free(_pool: *mut Pool, chunk: *mut c_void) {
        // SAFETY: the chunk is of that function.
        unsafe { free(chunk) };
        Ok(())
    }
}
