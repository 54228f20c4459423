//! Words that are read one by one. Compilers copy neighbouring fields by loads of 16 and 32 bytes; a
//! processor cannot give such a load what stores of 8 bytes have just written, and waits until they have left
//! its store buffer: a dozen cycles, and more behind a store to a line that another core has. Used where
//! something is noted and picked up a moment later.

#![allow(unsafe_code)]

/// `word`, which the compiler now has in a register of its own. Costs no instruction. // HOT
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
    fn a_word_stays_what_it_is() {
        assert!([0, 1, u64::MAX, 1 << 63].iter().all(|&word| super::scalar_load(word) == word));
    }
}
