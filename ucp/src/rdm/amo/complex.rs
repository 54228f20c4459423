//! Complex elements of atomic operations, of each floating type. Used by `amo` only.

use super::elem::Elem;
use super::extended::Extended;

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Complex<T>(pub T, pub T);

macro_rules! complex {
    ($($T:ty)*) => {$(
        impl Elem<{ 2 * size_of::<$T>() }> for Complex<$T> {
            const ZERO: Self = Complex(<$T>::ZERO, <$T>::ZERO);
            const ONE: Self = Complex(<$T>::ONE, <$T>::ZERO);
            #[inline(always)]
            fn of(bytes: [u8; 2 * size_of::<$T>()]) -> Self {
                const HALF: usize = size_of::<$T>();
                let (mut re, mut im) = ([0; HALF], [0; HALF]);
                re.copy_from_slice(&bytes[..HALF]);
                im.copy_from_slice(&bytes[HALF..]);
                Complex(<$T>::of(re), <$T>::of(im))
            }
            #[inline(always)]
            fn bytes(self) -> [u8; 2 * size_of::<$T>()] {
                const HALF: usize = size_of::<$T>();
                let mut bytes = [0; 2 * HALF];
                bytes[..HALF].copy_from_slice(&Elem::bytes(self.0));
                bytes[HALF..].copy_from_slice(&Elem::bytes(self.1));
                bytes
            }
            #[inline(always)]
            fn sum(self, with: Self) -> Self {
                Complex(self.0 + with.0, self.1 + with.1)
            }
            #[inline(always)]
            fn prod(self, with: Self) -> Self {
                Complex(self.0 * with.0 - self.1 * with.1, self.0 * with.1 + self.1 * with.0)
            }
        }
    )*};
}
complex!(f32 f64 Extended);
