//! The arithmetic of atomic operations: one definition of each operation for each type of element, on the
//! bytes of one element. Which pairs there are is wire facts 6.2 and 6.4 of RDM v4; the numbers are those of
//! the wire. Pure: the memory is `mem`'s, the packets are `protocols::atomic`'s.

mod complex;
mod elem;
mod extended;

use crate::wire::{AtomicOp, Datatype};
use complex::Complex;
use elem::Elem;
use extended::Extended;

/// Packet form of an atomic operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Without result.
    Write,
    /// Returns the old value.
    Fetch,
    /// Takes a compare value and returns the old value.
    Compare,
}

/// Whether `op` exists in this form.
pub const fn has_form(op: AtomicOp, form: Form) -> bool {
    let n = op as u32;
    match form {
        Form::Write => n <= AtomicOp::BitXor as u32 || n == AtomicOp::Write as u32,
        Form::Fetch => n <= AtomicOp::Write as u32,
        Form::Compare => n >= AtomicOp::CompareSwap as u32 && n <= AtomicOp::MaskSwap as u32,
    }
}

/// Whether `op` is supported for this element type. Extensions over libfabric's provider: 128-bit integers,
/// and in some of its builds long double and double complex. Missing as there: 8- and 16-bit floats.
pub const fn has_type(op: AtomicOp, ty: Datatype) -> bool {
    use AtomicOp::*;
    use Datatype::*;
    let (int, complex) = match ty {
        Int8 | Uint8 | Int16 | Uint16 | Int32 | Uint32 | Int64 | Uint64 | Int128 | Uint128 => (true, false),
        Float | Double | LongDouble => (false, false),
        FloatComplex | DoubleComplex | LongDoubleComplex => (false, true),
        Float16 | Bfloat16 | Fp8E4m3 | Fp8E5m2 => return false,
    };
    match op {
        Min | Max | CompareSwapLe | CompareSwapLt | CompareSwapGe | CompareSwapGt => !complex,
        BitOr | BitAnd | BitXor | MaskSwap => int,
        Sum | Prod | LogicOr | LogicAnd | LogicXor | Read | Write | CompareSwap | CompareSwapNe => true,
        Diff => false,
    }
}

/// Whether `op` makes one element of two of this type, as a reduction does: it neither reads, writes nor
/// compares.
pub const fn combines(op: AtomicOp, ty: Datatype) -> bool {
    op as u32 <= AtomicOp::BitXor as u32 && has_type(op, ty)
}

/// The elements that an operation changes.
pub trait Elements {
    /// Replaces each element by `change(element, operand, compare value)`, unless `None`.
    fn replace<const N: usize>(self, change: impl Fn([u8; N], [u8; N], [u8; N]) -> Option<[u8; N]>);
}

/// Does `op` on all elements, dispatched once. Nothing for a pair that [`has_type`] denies.
// HOT
pub fn run(op: AtomicOp, ty: Datatype, on: impl Elements) {
    use Datatype::*;
    if !has_type(op, ty) {
        return;
    }
    match ty {
        Int8 => each::<i8, 1>(op, on),
        Uint8 => each::<u8, 1>(op, on),
        Int16 => each::<i16, 2>(op, on),
        Uint16 => each::<u16, 2>(op, on),
        Int32 => each::<i32, 4>(op, on),
        Uint32 => each::<u32, 4>(op, on),
        Int64 => each::<i64, 8>(op, on),
        Uint64 => each::<u64, 8>(op, on),
        Int128 => each::<i128, 16>(op, on),
        Uint128 => each::<u128, 16>(op, on),
        Float => each::<f32, 4>(op, on),
        Double => each::<f64, 8>(op, on),
        FloatComplex => each::<Complex<f32>, 8>(op, on),
        DoubleComplex => each::<Complex<f64>, 16>(op, on),
        LongDouble => each::<Extended, 16>(op, on),
        LongDoubleComplex => each::<Complex<Extended>, 32>(op, on),
        Float16 | Bfloat16 | Fp8E4m3 | Fp8E5m2 => {}
    }
}

/// Has one loop per operation, so that nothing is dispatched within.
#[inline]
fn each<T: Elem<N>, const N: usize>(op: AtomicOp, on: impl Elements) {
    macro_rules! loops {
        ($($Op:ident)*) => {
            match op {
                $(AtomicOp::$Op => on.replace(|old, with, than| {
                    T::compute(AtomicOp::$Op, T::of(old), T::of(with), T::of(than)).map(T::bytes)
                }),)*
            }
        };
    }
    loops! {
        Min Max Sum Prod LogicOr LogicAnd BitOr BitAnd LogicXor BitXor Read Write
        CompareSwap CompareSwapNe CompareSwapLe CompareSwapLt CompareSwapGe CompareSwapGt MaskSwap Diff
    }
}

/// Replaces the element `target` by the result of `op`. `Read` needs no operand, `compare` serves operations
/// that compare. Nothing for a pair that [`has_type`] denies, or without an operand.
pub fn apply(op: AtomicOp, ty: Datatype, target: &mut [u8], operand: &[u8], compare: &[u8]) {
    struct One<'a>(&'a mut [u8], &'a [u8], &'a [u8]);
    impl Elements for One<'_> {
        fn replace<const N: usize>(self, change: impl Fn([u8; N], [u8; N], [u8; N]) -> Option<[u8; N]>) {
            let One(target, operand, compare) = self;
            let (Ok(old), Ok(with)) = (<[u8; N]>::try_from(&*target), operand.try_into()) else { return };
            if let Some(new) = change(old, with, compare.try_into().unwrap_or(with)) {
                target.copy_from_slice(&new);
            }
        }
    }
    run(op, ty, One(target, operand, compare));
}

#[cfg(test)]
mod tests;
