//! Elements of atomic operations: every type with its few primitives, and the operations in terms of these, written
//! once. Bytes are little endian, as everything on the wire. Used by `amo` only.

use crate::wire::AtomicOp;

/// A type of element. Defaults are for what a type does not have; `has_type` keeps callers from them.
pub trait Elem: Copy + PartialEq {
    /// Its zero, the only value that is false.
    const ZERO: Self;
    /// Its one, the value of true.
    const ONE: Self;

    /// From as many bytes as it has; `None` if there are not as many.
    fn load(bytes: &[u8]) -> Option<Self>;
    /// To as many bytes as it has.
    fn store(self, to: &mut [u8]);
    /// Sum; integers wrap.
    fn sum(self, with: Self) -> Self;
    /// Product; integers wrap.
    fn prod(self, with: Self) -> Self;
    /// Smaller; false if they have no order.
    fn less(self, _than: Self) -> bool {
        false
    }
    /// Bitwise operations, on integers.
    fn bits(self, _op: AtomicOp, _with: Self, _mask: Self) -> Self {
        self
    }

    // [M9.6]
    /// What `op` makes of `old`; compare values stand on the left: `than op old`.
    #[inline]
    fn compute(op: AtomicOp, old: Self, with: Self, than: Self) -> Self {
        use AtomicOp::*;
        let truth = |yes| if yes { Self::ONE } else { Self::ZERO };
        let swap_if = |yes| if yes { with } else { old };
        let (is, and) = (old != Self::ZERO, with != Self::ZERO);
        match op {
            Min => swap_if(with.less(old)),
            Max => swap_if(old.less(with)),
            Sum => old.sum(with),
            Prod => old.prod(with),
            LogicOr => truth(is || and),
            LogicAnd => truth(is && and),
            LogicXor => truth(is != and),
            BitOr | BitAnd | BitXor | MaskSwap => old.bits(op, with, than),
            Read | Diff => old,
            Write => with,
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
        #[inline]
        fn load(bytes: &[u8]) -> Option<Self> {
            Some(<$T>::from_le_bytes(bytes.try_into().ok()?))
        }
        #[inline]
        fn store(self, to: &mut [u8]) {
            to.copy_from_slice(&self.to_le_bytes());
        }
        #[inline]
        fn less(self, than: Self) -> bool {
            self < than
        }
    };
}

macro_rules! int {
    ($($T:ty)*) => {$(
        impl Elem for $T {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            bytes!($T);
            #[inline]
            fn sum(self, with: Self) -> Self {
                self.wrapping_add(with)
            }
            #[inline]
            fn prod(self, with: Self) -> Self {
                self.wrapping_mul(with)
            }
            #[inline]
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
        impl Elem for $T {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            bytes!($T);
            #[inline]
            fn sum(self, with: Self) -> Self {
                self + with
            }
            #[inline]
            fn prod(self, with: Self) -> Self {
                self * with
            }
        }
    )*};
}
float!(f32 f64);

/// Real part, then imaginary part.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Complex<T>(pub T, pub T);

impl<T> Elem for Complex<T>
where
    T: Elem + std::ops::Mul<Output = T> + std::ops::Add<Output = T> + std::ops::Sub<Output = T>,
{
    const ZERO: Self = Complex(T::ZERO, T::ZERO);
    const ONE: Self = Complex(T::ONE, T::ZERO);

    #[inline]
    fn load(bytes: &[u8]) -> Option<Self> {
        let (re, im) = bytes.split_at(bytes.len() / 2);
        Some(Complex(T::load(re)?, T::load(im)?))
    }
    #[inline]
    fn store(self, to: &mut [u8]) {
        let (re, im) = to.split_at_mut(to.len() / 2);
        self.0.store(re);
        self.1.store(im);
    }
    #[inline]
    fn sum(self, with: Self) -> Self {
        Complex(self.0 + with.0, self.1 + with.1)
    }
    #[inline]
    fn prod(self, with: Self) -> Self {
        Complex(self.0 * with.0 - self.1 * with.1, self.0 * with.1 + self.1 * with.0)
    }
}
