//! Elements of atomic operations: every type with its few primitives, and the operations in terms of these,
//! written once. Bytes are little endian, as everything on the wire. Used by `amo` only.

use crate::wire::AtomicOp;

/// An element type of `N` bytes. Defaults stand for missing primitives; `has_type` keeps callers from them.
pub trait Elem<const N: usize>: Copy + PartialEq {
    /// Zero, the only value that is false.
    const ZERO: Self;
    const ONE: Self;

    fn of(bytes: [u8; N]) -> Self;
    fn bytes(self) -> [u8; N];
    fn sum(self, with: Self) -> Self;
    fn prod(self, with: Self) -> Self;
    /// Whether self is smaller; false for types without order.
    fn less(self, _than: Self) -> bool {
        false
    }
    /// Bitwise operations, on integers.
    fn bits(self, _op: AtomicOp, _with: Self, _mask: Self) -> Self {
        self
    }

    // [M9.6]
    /// Returns the new value, or `None` if unchanged. Compares as `than op old`.
    // HOT
    #[inline(always)]
    fn compute(op: AtomicOp, old: Self, with: Self, than: Self) -> Option<Self> {
        use AtomicOp::*;
        let truth = |yes| Some(if yes { Self::ONE } else { Self::ZERO });
        let swap_if = |yes: bool| yes.then_some(with);
        let (is, and) = (old != Self::ZERO, with != Self::ZERO);
        match op {
            Min => swap_if(with.less(old)),
            Max => swap_if(old.less(with)),
            Sum => Some(old.sum(with)),
            Prod => Some(old.prod(with)),
            LogicOr => truth(is || and),
            LogicAnd => truth(is && and),
            LogicXor => truth(is != and),
            BitOr | BitAnd | BitXor | MaskSwap => Some(old.bits(op, with, than)),
            Read | Diff => None,
            Write => Some(with),
            CompareSwap => swap_if(than == old),
            CompareSwapNe => swap_if(than != old),
            CompareSwapLe => swap_if(than.less(old) || than == old),
            CompareSwapLt => swap_if(than.less(old)),
            CompareSwapGe => swap_if(old.less(than) || than == old),
            CompareSwapGt => swap_if(old.less(than)),
        }
    }
}

macro_rules! bytes {
    ($T:ty) => {
        #[inline(always)]
        fn of(bytes: [u8; size_of::<$T>()]) -> Self {
            <$T>::from_le_bytes(bytes)
        }
        #[inline(always)]
        fn bytes(self) -> [u8; size_of::<$T>()] {
            self.to_le_bytes()
        }
        #[inline(always)]
        fn less(self, than: Self) -> bool {
            self < than
        }
    };
}

macro_rules! int {
    ($($T:ty)*) => {$(
        impl Elem<{ size_of::<$T>() }> for $T {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            bytes!($T);
            #[inline(always)]
            fn sum(self, with: Self) -> Self {
                self.wrapping_add(with)
            }
            #[inline(always)]
            fn prod(self, with: Self) -> Self {
                self.wrapping_mul(with)
            }
            #[inline(always)]
            fn bits(self, op: AtomicOp, with: Self, mask: Self) -> Self {
                match op {
                    AtomicOp::BitOr => self | with,
                    AtomicOp::BitAnd => self & with,
                    AtomicOp::BitXor => self ^ with,
                    _ => with & mask | self & !mask,
                }
            }
        }
    )*};
}
int!(i8 u8 i16 u16 i32 u32 i64 u64 i128 u128);

macro_rules! float {
    ($($T:ty)*) => {$(
        impl Elem<{ size_of::<$T>() }> for $T {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            bytes!($T);
            #[inline(always)]
            fn sum(self, with: Self) -> Self {
                self + with
            }
            #[inline(always)]
            fn prod(self, with: Self) -> Self {
                self * with
            }
        }
    )*};
}
float!(f32 f64);
