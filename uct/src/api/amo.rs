//! Atomic operations on remote memory: 32 and 64 bit words.

use bitflags::bitflags;

/// An atomic operation with one operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AtomicOp {
    /// Wrapping sum.
    Add,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// Replace. Fetch form only.
    Swap,
}

bitflags! {
    /// A set of atomic operations, as capabilities.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct AtomicOps: u8 {
        /// [`AtomicOp::Add`].
        const ADD = 1;
        /// [`AtomicOp::And`].
        const AND = 2;
        /// [`AtomicOp::Or`].
        const OR = 4;
        /// [`AtomicOp::Xor`].
        const XOR = 8;
        /// [`AtomicOp::Swap`].
        const SWAP = 16;
        /// Compare and swap.
        const CSWAP = 32;
    }
}

/// A word atomics work on: `u32` or `u64`, naturally aligned at the target.
pub trait Word: Copy + Eq + std::fmt::Debug + sealed::Sealed + 'static {
    /// Width in bytes.
    const BYTES: usize;
    /// Widens without change of value.
    fn to_u64(self) -> u64;
    /// Truncates to the word's width.
    fn from_u64(v: u64) -> Self;
}

impl Word for u32 {
    const BYTES: usize = 4;
    #[inline(always)]
    fn to_u64(self) -> u64 {
        u64::from(self)
    }
    #[inline(always)]
    fn from_u64(v: u64) -> Self {
        v as u32
    }
}

impl Word for u64 {
    const BYTES: usize = 8;
    #[inline(always)]
    fn to_u64(self) -> u64 {
        self
    }
    #[inline(always)]
    fn from_u64(v: u64) -> Self {
        v
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
}
