//! Copies of payloads to and from shared memory. Short ones are the compiler's, long ones ours.
//!
//! glibc uses `rep movsb` from about 2 KiB on. On Zen 3 and 4 that moves 3 GB/s instead of 60 if the target
//! is 1 to 63 bytes after the source modulo 4096, as a payload behind a header is; and it takes twice as long
//! as plain stores if the target's lines are in another core's cache. Later glibc versions avoid the first.

#![allow(unsafe_code)]

/// From here on a copy is worth a call of our own, and `memcpy` may choose `rep movsb`.
const LONG: usize = 2048;

/// Copies `len` bytes; of long copies the last bytes are written last.
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`], but others may write the source: then bytes are mixed.
// HOT
#[inline(always)]
pub unsafe fn copy_bytes(from: *const u8, to: *mut u8, len: usize) {
    if len < LONG {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    } else {
        // SAFETY: the caller's promise, and `len` is at least LONG.
        unsafe { copy_long(from, to, len) };
    }
}

/// Copies, with one store for a machine word: a reader that polls the word sees it whole.
/// # Safety
/// As for [`copy_bytes`].
// HOT
#[inline(always)]
pub unsafe fn copy_word_or_bytes(from: *const u8, to: *mut u8, len: usize) {
    if len == 8 {
        // SAFETY: the caller vouches for eight bytes on either side.
        let word = unsafe { from.cast::<u64>().read_unaligned() };
        // SAFETY: as above. Volatile: one store, not to be split or merged.
        unsafe { to.cast::<Unaligned<u64>>().write_volatile(Unaligned(word)) };
    } else {
        // SAFETY: the caller's promise is this call's.
        unsafe { copy_bytes(from, to, len) };
    }
}

#[repr(C, packed)]
struct Unaligned<T>(T);

/// Copies `from` to `to`.
/// # Panics
/// If they are not of one length.
// HOT
#[inline(always)]
pub fn copy_slice(to: &mut [u8], from: &[u8]) {
    assert!(to.len() == from.len(), "{} bytes for {}", from.len(), to.len());
    // SAFETY: both are valid for their length, and a `&mut` overlaps nothing.
    unsafe { copy_bytes(from.as_ptr(), to.as_mut_ptr(), from.len()) };
}

/// Of C's convention because it does not unwind: callers keep nothing for that.
/// # Safety
/// As for [`copy_bytes`], with at least [`LONG`] bytes.
#[inline(never)]
unsafe extern "C" fn copy_long(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: the caller's promise; the processor has AVX.
        return unsafe { copy_avx(from, to, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
}

/// Two cache lines at a time, by aligned stores.
/// # Safety
/// As for [`copy_long`], on a processor with AVX.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
unsafe fn copy_avx(from: *const u8, to: *mut u8, len: usize) {
    const STEP: usize = 128;
    const { assert!(LONG >= 32 + STEP) };
    let skip = 32 - (to as usize & 31);
    // In assembly: the compiler turns such a loop into a call of `memcpy`. SAFETY: every access lies within
    // `len` bytes: the head has 32, a step begins below the last STEP bytes, where the tail begins.
    // `clobber_abi` covers all vector registers, whose upper halves are cleared at the end.
    unsafe {
        core::arch::asm!(
            "vmovdqu ymm0, [rsi]",
            "vmovdqu [rdi], ymm0",
            "add rsi, {skip}",
            "add rdi, {skip}",
            "2:",
            "vmovdqu ymm0, [rsi]",
            "vmovdqu ymm1, [rsi + 32]",
            "vmovdqu ymm2, [rsi + 64]",
            "vmovdqu ymm3, [rsi + 96]",
            "vmovdqa [rdi], ymm0",
            "vmovdqa [rdi + 32], ymm1",
            "vmovdqa [rdi + 64], ymm2",
            "vmovdqa [rdi + 96], ymm3",
            "sub rsi, -128",
            "sub rdi, -128",
            "cmp rdi, {tail_to}",
            "jb 2b",
            "vmovdqu ymm0, [{tail_from}]",
            "vmovdqu ymm1, [{tail_from} + 32]",
            "vmovdqu ymm2, [{tail_from} + 64]",
            "vmovdqu ymm3, [{tail_from} + 96]",
            "vmovdqu [{tail_to}], ymm0",
            "vmovdqu [{tail_to} + 32], ymm1",
            "vmovdqu [{tail_to} + 64], ymm2",
            "vmovdqu [{tail_to} + 96], ymm3",
            "vzeroupper",
            skip = in(reg) skip,
            tail_from = in(reg) from.wrapping_add(len - STEP),
            tail_to = in(reg) to.wrapping_add(len - STEP),
            inout("rsi") from => _,
            inout("rdi") to => _,
            clobber_abi("C"),
            options(nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(len: usize, from_at: usize, to_at: usize) {
        let from: Vec<u8> = (0..from_at + len + 64).map(|i| (i * 7 + i / 251) as u8).collect();
        let mut to = vec![0xa5; to_at + len + 64];
        copy_slice(&mut to[to_at..to_at + len], &from[from_at..from_at + len]);
        assert!(to[..to_at].iter().all(|&b| b == 0xa5), "before: {len} {from_at} {to_at}");
        assert!(to[to_at + len..].iter().all(|&b| b == 0xa5), "behind: {len} {from_at} {to_at}");
        assert!(to[to_at..to_at + len] == from[from_at..from_at + len], "{len} {from_at} {to_at}");
    }

    #[test]
    fn every_alignment_around_the_border() {
        for len in [0, 1, 31, LONG - 1, LONG, LONG + 1, LONG + 127, LONG + 128, LONG + 129] {
            for to_at in 0..64 {
                check(len, 0, to_at);
                check(len, to_at, 3);
            }
        }
    }

    #[test]
    fn every_length_of_some_steps() {
        (LONG..LONG + 300).for_each(|len| check(len, 5, 40));
    }

    proptest! {
        #[test]
        fn any_length_and_alignment(len in 0usize..70_000, from_at in 0usize..4200, to_at in 0usize..4200) {
            check(len, from_at, to_at);
        }
    }

    #[test]
    #[should_panic = "3 bytes for 4"]
    fn lengths_that_differ_are_refused() {
        copy_slice(&mut [0; 4], &[0; 3]);
    }
}
