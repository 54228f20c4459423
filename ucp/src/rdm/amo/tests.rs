//! Every operation on every type against a model: integers by wider arithmetic, floats by the text of the
//! rules.

use proptest::prelude::*;

use super::*;

const OPS: [AtomicOp; 19] = {
    use AtomicOp::*;
    [
        Min,
        Max,
        Sum,
        Prod,
        LogicOr,
        LogicAnd,
        BitOr,
        BitAnd,
        LogicXor,
        BitXor,
        Read,
        Write,
        CompareSwap,
        CompareSwapNe,
        CompareSwapLe,
        CompareSwapLt,
        CompareSwapGe,
        CompareSwapGt,
        MaskSwap,
    ]
};

/// Models integer operations on `width` bits without any operation of that width.
fn int_model(op: AtomicOp, signed: bool, width: u32, old: u128, with: u128, than: u128) -> u128 {
    use AtomicOp::*;
    let mask = if width == 128 { u128::MAX } else { (1 << width) - 1 };
    // Flipping the sign bit maps signed order to unsigned order.
    let rank = |v: u128| if signed { (v & mask) ^ (1 << (width - 1)) } else { v & mask };
    let (o, w, t) = (rank(old), rank(with), rank(than));
    let new = match op {
        Min => {
            if w < o {
                with
            } else {
                old
            }
        }
        Max => {
            if w > o {
                with
            } else {
                old
            }
        }
        Sum => {
            let (mut sum, mut carry) = (0, 0);
            for bit in 0..width {
                let (a, b) = (old >> bit & 1, with >> bit & 1);
                sum |= (a ^ b ^ carry) << bit;
                carry = (a & b) | (carry & (a ^ b));
            }
            sum
        }
        Prod => (0..width)
            .filter(|bit| with >> bit & 1 == 1)
            .fold(0, |sum, bit| int_model(Sum, signed, width, sum, old << bit & mask, 0)),
        LogicOr => u128::from(old != 0 || with != 0),
        LogicAnd => u128::from(old != 0 && with != 0),
        LogicXor => u128::from((old == 0) != (with == 0)),
        BitOr => old | with,
        BitAnd => old & with,
        BitXor => old ^ with,
        Read | Diff => old,
        Write => with,
        CompareSwap => {
            if t == o {
                with
            } else {
                old
            }
        }
        CompareSwapNe => {
            if t == o {
                old
            } else {
                with
            }
        }
        CompareSwapLe => {
            if t <= o {
                with
            } else {
                old
            }
        }
        CompareSwapLt => {
            if t < o {
                with
            } else {
                old
            }
        }
        CompareSwapGe => {
            if t >= o {
                with
            } else {
                old
            }
        }
        CompareSwapGt => {
            if t > o {
                with
            } else {
                old
            }
        }
        MaskSwap => with & than | old & !than,
    };
    new & mask
}

fn word() -> impl Strategy<Value = u128> {
    prop_oneof![any::<u128>(), (0u128..4), Just(u128::MAX), (0u32..128).prop_map(|bit| 1 << bit)]
}

// [M9.6]
proptest! {
    #[test]
    fn integers_agree_with_the_model(old in word(), with in word(), than in word(), same in any::<bool>()) {
        use Datatype::*;
        let than = if same { old } else { than };
        for (n, ty) in [Int8, Uint8, Int16, Uint16, Int32, Uint32, Int64, Uint64, Int128, Uint128].into_iter().enumerate() {
            let (size, signed) = (ty.size(), n % 2 == 0);
            let cut = |v: u128| v.to_le_bytes()[..size].to_vec();
            let whole = |bytes: &[u8]| bytes.iter().rev().fold(0, |v, b| v << 8 | u128::from(*b));
            for op in OPS {
                prop_assert!(has_type(op, ty));
                let mut target = cut(old);
                apply(op, ty, &mut target, &cut(with), &cut(than));
                let (o, w, t) = (whole(&cut(old)), whole(&cut(with)), whole(&cut(than)));
                let want = int_model(op, signed, size as u32 * 8, o, w, t);
                prop_assert_eq!(whole(&target), want, "{:?} {:?} {:x} {:x} {:x}", op, ty, o, w, t);
            }
        }
    }

    #[test]
    fn floats_agree_with_the_rules(old in any::<f64>(), with in any::<f64>(), than in any::<f64>(), same in any::<bool>()) {
        use AtomicOp::*;
        let than = if same { old } else { than };
        let (t, f) = (1.0, 0.0);
        for op in OPS.into_iter().filter(|op| has_type(*op, Datatype::Double)) {
            let want = match op {
                Min => if old > with { with } else { old },
                Max => if old < with { with } else { old },
                Sum => old + with,
                Prod => old * with,
                LogicOr => if old != 0.0 || with != 0.0 { t } else { f },
                LogicAnd => if old != 0.0 && with != 0.0 { t } else { f },
                LogicXor => if (old != 0.0) != (with != 0.0) { t } else { f },
                Read => old,
                Write => with,
                CompareSwap => if than == old { with } else { old },
                CompareSwapNe => if than != old { with } else { old },
                CompareSwapLe => if than <= old { with } else { old },
                CompareSwapLt => if than < old { with } else { old },
                CompareSwapGe => if than >= old { with } else { old },
                CompareSwapGt => if than > old { with } else { old },
                _ => unreachable!("bits of floats"),
            };
            let mut target = old.to_le_bytes();
            apply(op, Datatype::Double, &mut target, &with.to_le_bytes(), &than.to_le_bytes());
            prop_assert_eq!(f64::from_le_bytes(target).to_bits(), want.to_bits(), "{:?} {} {} {}", op, old, with, than);
        }
    }
}

#[test]
fn complex_numbers() {
    let bytes = |re: f32, im: f32| [re.to_le_bytes(), im.to_le_bytes()].concat();
    let run = |op, old: (f32, f32), with: (f32, f32), than: (f32, f32)| {
        let mut target = bytes(old.0, old.1);
        apply(op, Datatype::FloatComplex, &mut target, &bytes(with.0, with.1), &bytes(than.0, than.1));
        target
    };
    let zero = (0.0, 0.0);
    assert_eq!(run(AtomicOp::Sum, (1.0, 2.0), (3.0, -5.0), zero), bytes(4.0, -3.0));
    assert_eq!(run(AtomicOp::Prod, (1.0, 2.0), (3.0, -5.0), zero), bytes(13.0, 1.0));
    assert_eq!(run(AtomicOp::LogicAnd, (0.0, 2.0), (3.0, 0.0), zero), bytes(1.0, 0.0));
    assert_eq!(run(AtomicOp::LogicXor, (0.0, 2.0), (3.0, 0.0), zero), bytes(0.0, 0.0));
    assert_eq!(run(AtomicOp::CompareSwap, (1.0, 2.0), (7.0, 8.0), (1.0, 2.0)), bytes(7.0, 8.0));
    assert_eq!(run(AtomicOp::CompareSwap, (1.0, 2.0), (7.0, 8.0), (1.0, 0.0)), bytes(1.0, 2.0));
    assert!(!has_type(AtomicOp::Min, Datatype::DoubleComplex));
    assert_eq!(run(AtomicOp::Min, (9.0, 9.0), (1.0, 1.0), zero), bytes(9.0, 9.0));
}

#[test]
fn long_double_numbers() {
    use AtomicOp::*;
    let number = |sign_and_exponent: u16, fraction: u64| {
        let mut bytes = [0xee; 16];
        bytes[..8].copy_from_slice(&fraction.to_le_bytes());
        bytes[8..10].copy_from_slice(&sign_and_exponent.to_le_bytes());
        bytes
    };
    let (one, two_and_half) = (number(0x3fff, 1 << 63), number(0xc000, 0xa000_0000_0000_0000));
    let tenth = number(0x3ffb, 0xcccc_cccc_cccc_cccd);
    let (zero, minus_zero, tiny) = (number(0, 0), number(0x8000, 0), number(0, 1));
    let largest = number(0x7ffe, u64::MAX);
    for (op, old, with, than, want) in [
        (Sum, one, two_and_half, zero, number(0xbfff, 0xc000_0000_0000_0000)),
        (Sum, one, tenth, zero, number(0x3fff, 0x8ccc_cccc_cccc_cccd)),
        (Sum, largest, largest, zero, number(0x7fff, 1 << 63)),
        (Prod, tenth, tenth, zero, number(0x3ff8, 0xa3d7_0a3d_70a3_d70b)),
        (Prod, tiny, tenth, zero, zero),
        (Min, one, two_and_half, zero, two_and_half),
        (Max, one, two_and_half, zero, one),
        (CompareSwap, zero, one, minus_zero, one),
        (CompareSwapLt, one, tenth, two_and_half, tenth),
        (CompareSwapLt, one, tenth, one, one),
        (Read, tenth, one, one, tenth),
    ] {
        let mut target = old;
        apply(op, Datatype::LongDouble, &mut target, &with, &than);
        assert_eq!(target, want, "{op:?} {old:02x?} {with:02x?}");
    }
    let mut target = [one, tenth].concat();
    apply(Prod, Datatype::LongDoubleComplex, &mut target, &[two_and_half, zero].concat(), &[]);
    assert_eq!(target[..16], two_and_half);
    assert!(!has_type(Max, Datatype::LongDoubleComplex) && !has_type(BitOr, Datatype::LongDouble));
}

#[test]
fn forms_are_those_of_the_packets() {
    let count = |form| OPS.into_iter().filter(|op| has_form(*op, form)).count();
    assert_eq!((count(Form::Write), count(Form::Fetch), count(Form::Compare)), (11, 12, 7));
    assert!(!has_form(AtomicOp::Read, Form::Write) && !has_form(AtomicOp::Diff, Form::Compare));
}

#[test]
fn short_operands_change_nothing() {
    let mut target = [5; 8];
    apply(AtomicOp::Sum, Datatype::Uint64, &mut target, &[1; 7], &[]);
    apply(AtomicOp::BitAnd, Datatype::Double, &mut target, &[1; 8], &[]);
    assert_eq!(target, [5; 8]);
}
