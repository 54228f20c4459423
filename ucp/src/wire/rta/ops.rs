//! Numbers of atomic operations and data types on the wire.

use num_enum::{IntoPrimitive, TryFromPrimitive};

/// An atomic operation, by its number on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, IntoPrimitive, TryFromPrimitive)]
#[repr(u32)]
pub enum AtomicOp {
    /// Smaller of the two.
    Min = 0,
    /// Larger of the two.
    Max = 1,
    /// Sum.
    Sum = 2,
    /// Product.
    Prod = 3,
    /// Logical or: 0 or 1.
    LogicOr = 4,
    /// Logical and: 0 or 1.
    LogicAnd = 5,
    /// Bitwise or.
    BitOr = 6,
    /// Bitwise and.
    BitAnd = 7,
    /// Logical exclusive or: 0 or 1.
    LogicXor = 8,
    /// Bitwise exclusive or.
    BitXor = 9,
    /// The target's value, unchanged.
    Read = 10,
    /// The operand.
    Write = 11,
    /// The operand if compare equals the target.
    CompareSwap = 12,
    /// The operand if compare differs from the target.
    CompareSwapNe = 13,
    /// The operand if compare <= target.
    CompareSwapLe = 14,
    /// The operand if compare < target.
    CompareSwapLt = 15,
    /// The operand if compare >= target.
    CompareSwapGe = 16,
    /// The operand if compare > target.
    CompareSwapGt = 17,
    /// The operand's bits where compare has ones.
    MaskSwap = 18,
    /// Difference; newest header only, supported by nobody.
    Diff = 19,
}

/// A type of atomic elements, by its number on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, IntoPrimitive, TryFromPrimitive)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum Datatype {
    Int8 = 0,
    Uint8 = 1,
    Int16 = 2,
    Uint16 = 3,
    Int32 = 4,
    Uint32 = 5,
    Int64 = 6,
    Uint64 = 7,
    Float = 8,
    Double = 9,
    FloatComplex = 10,
    DoubleComplex = 11,
    LongDouble = 12,
    LongDoubleComplex = 13,
    Int128 = 14,
    Uint128 = 15,
    Float16 = 16,
    Bfloat16 = 17,
    Fp8E4m3 = 18,
    Fp8E5m2 = 19,
}

impl Datatype {
    /// Bytes of one element, as on x86-64.
    pub const fn size(self) -> usize {
        use Datatype::*;
        match self {
            Int8 | Uint8 | Fp8E4m3 | Fp8E5m2 => 1,
            Int16 | Uint16 | Float16 | Bfloat16 => 2,
            Int32 | Uint32 | Float => 4,
            Int64 | Uint64 | Double | FloatComplex => 8,
            DoubleComplex | LongDouble | Int128 | Uint128 => 16,
            LongDoubleComplex => 32,
        }
    }
}
