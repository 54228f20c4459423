//! The arithmetic of atomic operations: one definition of each operation for each type of element, on the bytes of one
//! element. Which pairs there are is wire facts 6.2 and 6.4 of RDM v4; the numbers are those of the wire. Pure: the
//! memory is `mem`'s, the packets are `rooms::atomic`'s.

mod elem;

use crate::wire::{AtomicOp, Datatype};
use elem::{Complex, Elem};

/// Which packet carries an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Without result.
    Write,
    /// With the old value as result.
    Fetch,
    /// With a compare value and the old value as result.
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

/// Whether `op` exists for elements of this type here. 128-bit integers are more than libfabric's provider takes;
/// types whose arithmetic this language has no means for (long double, the 8- and 16-bit floats) are less.
pub const fn has_type(op: AtomicOp, ty: Datatype) -> bool {
    use AtomicOp::*;
    use Datatype::*;
    let (int, complex) = match ty {
        Int8 | Uint8 | Int16 | Uint16 | Int32 | Uint32 | Int64 | Uint64 | Int128 | Uint128 => (true, false),
        Float | Double => (false, false),
        FloatComplex | DoubleComplex => (false, true),
        LongDouble | LongDoubleComplex | Float16 | Bfloat16 | Fp8E4m3 | Fp8E5m2 => return false,
    };
    match op {
        Min | Max | CompareSwapLe | CompareSwapLt | CompareSwapGe | CompareSwapGt => !complex,
        BitOr | BitAnd | BitXor | MaskSwap => int,
        Sum | Prod | LogicOr | LogicAnd | LogicXor | Read | Write | CompareSwap | CompareSwapNe => true,
        Diff => false,
    }
}

/// Replaces the element `target` by what `op` makes of it. `operand` (and `compare`, for operations that compare) are
/// elements of the same type; `Read` needs neither. A pair that [`has_type`] denies changes nothing. // HOT
#[inline]
pub fn apply(op: AtomicOp, ty: Datatype, target: &mut [u8], operand: &[u8], compare: &[u8]) {
    use Datatype::*;
    if !has_type(op, ty) || op == AtomicOp::Read {
        return;
    }
    match ty {
        Int8 => on::<i8>(op, target, operand, compare),
        Uint8 => on::<u8>(op, target, operand, compare),
        Int16 => on::<i16>(op, target, operand, compare),
        Uint16 => on::<u16>(op, target, operand, compare),
        Int32 => on::<i32>(op, target, operand, compare),
        Uint32 => on::<u32>(op, target, operand, compare),
        Int64 => on::<i64>(op, target, operand, compare),
        Uint64 => on::<u64>(op, target, operand, compare),
        Int128 => on::<i128>(op, target, operand, compare),
        Uint128 => on::<u128>(op, target, operand, compare),
        Float => on::<f32>(op, target, operand, compare),
        Double => on::<f64>(op, target, operand, compare),
        FloatComplex => on::<Complex<f32>>(op, target, operand, compare),
        DoubleComplex => on::<Complex<f64>>(op, target, operand, compare),
        LongDouble | LongDoubleComplex | Float16 | Bfloat16 | Fp8E4m3 | Fp8E5m2 => {}
    }
}

#[inline]
fn on<T: Elem>(op: AtomicOp, target: &mut [u8], operand: &[u8], compare: &[u8]) {
    let (Some(old), Some(with)) = (T::load(target), T::load(operand)) else { return };
    let than = T::load(compare).unwrap_or(with);
    T::compute(op, old, with, than).store(target);
}

#[cfg(test)]
mod tests;
