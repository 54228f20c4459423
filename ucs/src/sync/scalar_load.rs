//! Forces single-word loads. Compilers merge neighbouring fields into 16 or 32 byte loads, which stall on
//! recent 8-byte stores (no store forwarding) for a dozen cycles and more.

#![allow(unsafe_code)]

/// `word`, which the compiler now has in a register of its own. Costs no instruction.
// HOT
#[inline(always)]
pub fn scalar_load(word: u64) -> u64 {
    #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(loom), not(miri)))]
    {
        let mut word = word;
        // SAFETY: there is no instruction in it.
        unsafe {
            core::arch::asm!("/* {0} */", inout(reg) word, options(pure, nomem, nostack, preserves_flags));
        }
        word
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(loom), not(miri))))]
    word
}

#[cfg(test)]
mod tests {
    #[test]
    fn scalar_load_keeps_the_value() {
        assert!([0, 1, u64::MAX, 1 << 63].iter().all(|&word| super::scalar_load(word) == word));
    }
}
