//! Element types of typed atomic operations.

use crate::wire::Datatype;

/// Size of the longest [`AtomicType`], bytes.
pub(crate) const MAX: usize = 16;

mod sealed {
    /// Every bit pattern is a value, and there is no padding.
    pub trait Sealed {}
}

/// Element type of atomic operations: an integer or floating-point number.
pub trait AtomicType: sealed::Sealed + Copy + 'static {
    /// Datatype number on the wire.
    const TYPE: Datatype;
    /// Little-endian bytes, padded with zeros.
    fn to_bytes(self) -> [u8; MAX];
    /// Inverse of [`to_bytes`](Self::to_bytes).
    fn from_bytes(bytes: [u8; MAX]) -> Self;
}

macro_rules! types {
    ($($T:ty = $name:ident,)*) => {$(
        impl sealed::Sealed for $T {}
        impl AtomicType for $T {
            const TYPE: Datatype = Datatype::$name;
            #[inline]
            fn to_bytes(self) -> [u8; MAX] {
                let mut bytes = [0; MAX];
                bytes[..size_of::<$T>()].copy_from_slice(&self.to_le_bytes());
                bytes
            }
            #[inline]
            fn from_bytes(bytes: [u8; MAX]) -> Self {
                <$T>::from_le_bytes(*bytes.first_chunk().expect("no type has more than 16 bytes"))
            }
        }
    )*};
}
types! {
    i8 = Int8, u8 = Uint8, i16 = Int16, u16 = Uint16, i32 = Int32, u32 = Uint32, i64 = Int64, u64 = Uint64,
    i128 = Int128, u128 = Uint128, f32 = Float, f64 = Double,
}
