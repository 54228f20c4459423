//! Page size and rounding. Used wherever memory is mapped, locked or registered. No state.

/// Size of a huge page (x86-64, and arm64 with 4 KiB pages).
pub const HUGE_2M: usize = 2 << 20;

/// Size of a cache line, in bytes.
pub const CACHE_LINE: usize = 64;

/// Size of a small page, in bytes.
#[inline]
pub fn page_size() -> usize {
    rustix::param::page_size()
}

/// `n` rounded up to a multiple of `align` (a power of two); `None` on overflow.
#[inline]
pub const fn round_up(n: usize, align: usize) -> Option<usize> {
    debug_assert!(align.is_power_of_two());
    match n.checked_add(align - 1) {
        Some(n) => Some(n & !(align - 1)),
        None => None,
    }
}

/// `n` rounded down to a multiple of `align` (a power of two).
#[inline]
pub const fn round_down(n: usize, align: usize) -> usize {
    debug_assert!(align.is_power_of_two());
    n & !(align - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds() {
        assert_eq!(round_up(0, 64), Some(0));
        assert_eq!(round_up(1, 64), Some(64));
        assert_eq!(round_up(64, 64), Some(64));
        assert_eq!(round_up(usize::MAX, 64), None);
        assert_eq!(round_down(127, 64), 64);
        assert!(page_size().is_power_of_two());
    }
}
