//! Cursor for parsers, and `put` for builders.

use super::base::PktType;
use super::error::{ParseError, Section};
use ucs::sync::copy_once;
use zerocopy::{FromBytes, Immutable, IntoBytes, Unaligned};

/// Cursor over a packet. `take` copies each field out once: another process may be writing to the memory.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    #[inline(always)]
    pub fn new(packet: &'a [u8]) -> Self {
        Reader { rest: packet }
    }

    /// Copies the next `T` out.
    // [M1.3]
    #[inline(always)]
    pub fn take<T: FromBytes + IntoBytes + Unaligned>(&mut self, section: Section) -> Result<T, ParseError> {
        match read_prefix(self.rest) {
            Some((value, rest)) => {
                self.rest = rest;
                Ok(value)
            }
            None => Err(truncated(section, size_of::<T>() as u64, self.rest.len())),
        }
    }

    /// The next `len` bytes, which stay where they are.
    #[inline(always)]
    pub fn bytes(&mut self, len: u64, section: Section) -> Result<&'a [u8], ParseError> {
        let split = usize::try_from(len).ok().and_then(|len| self.rest.split_at_checked(len));
        let Some((bytes, rest)) = split else { return Err(truncated(section, len, self.rest.len())) };
        self.rest = rest;
        Ok(bytes)
    }

    #[inline(always)]
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    #[inline(always)]
    pub fn left(&self) -> usize {
        self.rest.len()
    }
}

/// Copies a `T` out of the beginning of `bytes`, which another process may be writing: reads each byte once.
// HOT
#[inline(always)]
pub(super) fn read_prefix<T: FromBytes + IntoBytes + Unaligned>(bytes: &[u8]) -> Option<(T, &[u8])> {
    let (head, rest) = bytes.split_at_checked(size_of::<T>())?;
    let mut value = T::new_zeroed();
    copy_once(head, value.as_mut_bytes());
    Some((value, rest))
}

/// The type of a packet, read once: a hint, since another process may be writing to the packet. Who goes by
/// it checks the type in the header that it copies.
// HOT
#[inline(always)]
pub fn peek_type(packet: &[u8]) -> Option<PktType> {
    read_prefix(packet).map(|(ty, _)| PktType(ty))
}

#[cold]
fn truncated(section: Section, need: u64, have: usize) -> ParseError {
    ParseError::Truncated { section, need, have }
}

/// Writes `value` at `buf[at..]` and returns the offset behind it. Panics if `buf` is too short.
#[inline(always)]
pub(super) fn put<T: IntoBytes + Immutable>(buf: &mut [u8], at: usize, value: &T) -> usize {
    let end = at + size_of::<T>();
    buf[at..end].copy_from_slice(value.as_bytes());
    end
}
