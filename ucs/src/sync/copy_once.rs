//! A copy of bytes that another process may write meanwhile.

#![allow(unsafe_code)]

/// A word at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Unaligned<T>(T);

/// Copies `from` to `to`, which is as long, and reads each byte of `from` once. The copy is what was there at
/// that moment, whoever writes later: the compiler must not read the source again, as it may after a plain
/// copy. A length that is known at compile time takes one load for each word. Panics if the lengths
/// differ.
// HOT
#[inline(always)]
pub fn copy_once(from: &[u8], to: &mut [u8]) {
    assert!(from.len() == to.len(), "copy of {} bytes to {}", from.len(), to.len());
    let (len, from, to) = (from.len(), from.as_ptr(), to.as_mut_ptr());
    let mut at = 0;
    while at + 8 <= len {
        // SAFETY: `at + 8` is within both slices.
        unsafe { copy_word::<u64>(from.wrapping_add(at), to.wrapping_add(at)) };
        at += 8;
    }
    if at + 4 <= len {
        // SAFETY: `at + 4` is within both slices.
        unsafe { copy_word::<u32>(from.wrapping_add(at), to.wrapping_add(at)) };
        at += 4;
    }
    if at + 2 <= len {
        // SAFETY: `at + 2` is within both slices.
        unsafe { copy_word::<u16>(from.wrapping_add(at), to.wrapping_add(at)) };
        at += 2;
    }
    if at < len {
        // SAFETY: `at` is within both slices.
        unsafe { copy_word::<u8>(from.wrapping_add(at), to.wrapping_add(at)) };
    }
}

/// # Safety
/// Both addresses are valid for a `T`, which is a plain number.
#[inline(always)]
unsafe fn copy_word<T: Copy>(from: *const u8, to: *mut u8) {
    // SAFETY: the caller vouches for `from`; the type has no alignment.
    let word = unsafe { from.cast::<Unaligned<T>>().read_volatile() };
    // SAFETY: the caller vouches for `to`; the type has no alignment.
    unsafe { to.cast::<Unaligned<T>>().write(word) };
}

#[cfg(test)]
mod tests {
    use super::copy_once;

    #[test]
    fn copies_every_length_at_every_offset() {
        let bytes: Vec<u8> = (1..=60).collect();
        for at in 0..9 {
            for len in 0..=40 {
                let mut copy = [0; 60];
                copy_once(&bytes[at..at + len], &mut copy[..len]);
                assert!(copy[..len] == bytes[at..at + len] && copy[len..].iter().all(|byte| *byte == 0));
            }
        }
    }

    #[test]
    #[should_panic(expected = "copy of 3 bytes to 4")]
    fn lengths_that_differ_panic() {
        copy_once(&[0; 3], &mut [0; 4]);
    }
}
