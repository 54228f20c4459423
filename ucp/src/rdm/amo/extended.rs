//! `long double` of x86-64: the 80-bit format of the x87 in 16 bytes, the last six unused. Arithmetic is
//! LLVM's software implementation, since Rust has none. Used by `amo` only.

use std::cmp::Ordering;
use std::ops::{Add, Mul, Sub};

use rustc_apfloat::Float;
use rustc_apfloat::ieee::X87DoubleExtended;

use super::elem::Elem;

/// Bytes in use.
const LEN: usize = 10;

/// One number, as in memory. Results keep the unused bytes of their left operand.
#[derive(Clone, Copy, Debug)]
pub struct Extended([u8; 16]);

impl Extended {
    fn value(self) -> X87DoubleExtended {
        let mut bits = [0; 16];
        bits[..LEN].copy_from_slice(&self.0[..LEN]);
        X87DoubleExtended::from_bits(u128::from_le_bytes(bits))
    }

    fn with(mut self, value: X87DoubleExtended) -> Extended {
        self.0[..LEN].copy_from_slice(&value.to_bits().to_le_bytes()[..LEN]);
        self
    }
}

impl Add for Extended {
    type Output = Self;
    fn add(self, with: Self) -> Self {
        self.with((self.value() + with.value()).value)
    }
}

impl Sub for Extended {
    type Output = Self;
    fn sub(self, with: Self) -> Self {
        self.with((self.value() - with.value()).value)
    }
}

impl Mul for Extended {
    type Output = Self;
    fn mul(self, with: Self) -> Self {
        self.with((self.value() * with.value()).value)
    }
}

/// Compares as numbers: the two zeros are equal, and no NaN equals anything.
impl PartialEq for Extended {
    fn eq(&self, with: &Self) -> bool {
        self.value() == with.value()
    }
}

impl Elem<16> for Extended {
    const ZERO: Self = Extended([0; 16]);
    const ONE: Self = Extended([0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x3f, 0, 0, 0, 0, 0, 0]);

    fn of(bytes: [u8; 16]) -> Self {
        Extended(bytes)
    }
    fn bytes(self) -> [u8; 16] {
        self.0
    }
    fn sum(self, with: Self) -> Self {
        self + with
    }
    fn prod(self, with: Self) -> Self {
        self * with
    }
    fn less(self, than: Self) -> bool {
        self.value().partial_cmp(&than.value()) == Some(Ordering::Less)
    }
}
