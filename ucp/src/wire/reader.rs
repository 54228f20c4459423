//! Bytes in and out: the cursor that parsers take headers from, and the write of one header.
//!
//! Used by all parsers and builders of `wire`.

use super::error::{ParseError, Section};
use zerocopy::{FromBytes, Immutable, IntoBytes, Unaligned};

/// What is left of a packet while it is parsed. Every `take` copies out of packet memory, once: another
/// process may be writing to it.
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
    pub fn take<T: FromBytes + Unaligned>(&mut self, section: Section) -> Result<T, ParseError> {
        match T::read_from_prefix(self.rest) {
            Ok((value, rest)) => {
                self.rest = rest;
                Ok(value)
            }
            Err(_) => Err(truncated(section, size_of::<T>() as u64, self.rest.len())),
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

    /// All that is left.
    #[inline(always)]
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// How much is left.
    #[inline(always)]
    pub fn left(&self) -> usize {
        self.rest.len()
    }
}

#[cold]
fn truncated(section: Section, need: u64, have: usize) -> ParseError {
    ParseError::Truncated { section, need, have }
}

/// Writes `value` at `buf[at..]`; answers the offset behind it. Panics if it does not fit: the caller asked for
/// the room.
#[inline(always)]
pub(super) fn put<T: IntoBytes + Immutable>(buf: &mut [u8], at: usize, value: &T) -> usize {
    let end = at + size_of::<T>();
    buf[at..end].copy_from_slice(value.as_bytes());
    end
}
