//! Atomic operations on remote words of 8 to 128 bits. An interface lists its own in [`AtomicCaps`].

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

/// Atomic operations an interface does itself, by width and form.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AtomicCaps {
    post: [AtomicOps; 5],
    fetch: [AtomicOps; 5],
}

impl AtomicCaps {
    /// The widths there are, bytes.
    pub const WIDTHS: [usize; 5] = [1, 2, 4, 8, 16];

    fn row(bytes: usize) -> Option<usize> {
        Self::WIDTHS.iter().position(|width| *width == bytes)
    }

    /// Adds operations on words of `bytes` bytes (one of [`AtomicCaps::WIDTHS`]): post and fetch form.
    pub fn with(mut self, bytes: usize, post: AtomicOps, fetch: AtomicOps) -> Self {
        if let Some(row) = Self::row(bytes) {
            self.post[row] = post - AtomicOps::SWAP - AtomicOps::CSWAP;
            self.fetch[row] = fetch;
        }
        self
    }

    /// Operations without a result on words of `bytes` bytes.
    pub fn post(&self, bytes: usize) -> AtomicOps {
        Self::row(bytes).map_or(AtomicOps::empty(), |row| self.post[row])
    }

    /// Operations that give the old value of words of `bytes` bytes.
    pub fn fetch(&self, bytes: usize) -> AtomicOps {
        Self::row(bytes).map_or(AtomicOps::empty(), |row| self.fetch[row])
    }
}

/// A word atomics work on: `u8` to `u128`, naturally aligned at the target.
pub trait Word: Copy + Eq + std::fmt::Debug + sealed::Sealed + 'static {
    /// Width in bytes.
    const BYTES: usize;
    /// Widens without change of value; a 128-bit word loses its upper half.
    fn to_u64(self) -> u64;
    /// Truncates to the word's width, or widens with zeros.
    fn from_u64(v: u64) -> Self;
    /// Widens without change of value.
    fn to_u128(self) -> u128;
    /// Truncates to the word's width.
    fn from_u128(v: u128) -> Self;
}

macro_rules! words {
    ($($Word:ty),+) => {$(
        impl Word for $Word {
            const BYTES: usize = size_of::<$Word>();
            #[inline(always)]
            fn to_u64(self) -> u64 {
                self as u64
            }
            #[inline(always)]
            fn from_u64(v: u64) -> Self {
                v as $Word
            }
            #[inline(always)]
            fn to_u128(self) -> u128 {
                self as u128
            }
            #[inline(always)]
            fn from_u128(v: u128) -> Self {
                v as $Word
            }
        }
        impl sealed::Sealed for $Word {}
    )+};
}

words!(u8, u16, u32, u64, u128);

mod sealed {
    pub trait Sealed {}
}
