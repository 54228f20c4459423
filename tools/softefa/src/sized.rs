//! Structures whose length the caller gives, since rdma-core appends fields. Copies what both sides have.

use crate::errno::Errno;

/// Whether a structure of `inlen` bytes has at least its first `len`.
pub fn covers(inlen: u32, len: usize) -> bool {
    inlen as usize >= len
}

/// Fills a structure of `inlen` bytes with `value`, then zeros. Unsafe: `to` is writable for `inlen` bytes.
pub unsafe fn copy_out<T: Copy>(to: *mut T, inlen: u32, value: T) {
    let len = inlen as usize;
    // SAFETY: writable for `inlen` bytes by contract.
    unsafe { std::ptr::write_bytes(to.cast::<u8>(), 0, len) };
    let n = len.min(size_of::<T>());
    // SAFETY: as above, and `n` bytes are inside `value`.
    unsafe { std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), to.cast::<u8>(), n) };
}

/// Reads `inlen` bytes; unknown fields must be zero. Unsafe: `from` is readable, `T` all integers.
pub unsafe fn copy_in<T: Copy + Default>(from: *const T, inlen: u32) -> Result<T, Errno> {
    let len = inlen as usize;
    let mut value = T::default();
    let n = len.min(size_of::<T>());
    // SAFETY: readable by contract, and `n` bytes fit `value`; any bytes are valid integers.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut value).cast::<u8>(), n) };
    // SAFETY: the rest is readable by contract.
    let tail = unsafe { std::slice::from_raw_parts(from.cast::<u8>().wrapping_add(n), len - n) };
    if tail.iter().any(|b| *b != 0) { Err(libc::EINVAL) } else { Ok(value) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::EfadvCqInitAttr;

    #[test]
    fn copy_out_fills_what_the_caller_has() {
        let mut room = [0xffu8; 24];
        let value = EfadvCqInitAttr { comp_mask: 1, wc_flags: 2 };
        // SAFETY: 24 bytes of room.
        unsafe { copy_out(room.as_mut_ptr().cast(), 24, value) };
        assert_eq!((room[0], room[8], &room[16..]), (1, 2, &[0; 8][..]));
        let mut room = [0xffu8; 12];
        // SAFETY: 12 bytes of room.
        unsafe { copy_out(room.as_mut_ptr().cast(), 10, value) };
        assert_eq!((room[8], room[9], room[10]), (2, 0, 0xff));
    }

    #[test]
    fn copy_in_rejects_a_nonzero_tail() {
        let mut given = [0u64; 4];
        given[1] = 7;
        // SAFETY: 32 bytes are there.
        let read = unsafe { copy_in::<EfadvCqInitAttr>(given.as_ptr().cast(), 32) };
        assert_eq!(read.map(|a| a.wc_flags), Ok(7));
        given[3] = 1;
        // SAFETY: as above.
        let read = unsafe { copy_in::<EfadvCqInitAttr>(given.as_ptr().cast(), 32) };
        assert_eq!(read.map(|a| a.wc_flags), Err(libc::EINVAL));
        // SAFETY: as above.
        let read = unsafe { copy_in::<EfadvCqInitAttr>(given.as_ptr().cast(), 8) };
        assert_eq!(read.map(|a| a.wc_flags), Ok(0), "a shorter structure has zeros where it ends");
    }
}
