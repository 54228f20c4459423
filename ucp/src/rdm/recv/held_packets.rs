//! Copies of packet bytes that must wait: out-of-order packets, unexpected messages, packets that came back.
//! Memory follows what has really arrived, never what a header announces; buffers are kept by size for the
//! next one.
//!
//! The count is the cost in memory: a buffer counts with all its bytes, an unexpected message with its
//! entry too.

use ucs::mem::copy_slice;

use crate::rdm::op::rx::Unexpected;
use crate::rdm::recv::held_bytes::HeldBytes;

/// Sizes of buffers: less than half of one is wasted, beyond the smallest.
const CLASSES: [usize; 11] = [32, 64, 128, 256, 512, 1024, 2048, 4096, 9216, 16_384, 65_536];
/// Most bytes of idle buffers kept.
const KEEP: usize = 8 << 20;
/// Overhead of an unexpected message, bytes: its entry, and its place in the queue.
pub const ENTRY: usize = size_of::<Unexpected>() + 48;

/// Overhead of a packet in a reorder window, bytes: its place among the others.
pub const WAITING: usize = 96;

/// The size of the buffer that so many bytes are kept in.
fn size_for(bytes: usize) -> usize {
    CLASSES.iter().copied().find(|&size| bytes <= size).unwrap_or(bytes)
}

/// Where held bytes come from and go back to.
#[derive(Debug)]
#[repr(C)]
pub struct HeldPackets {
    /// Memory of unexpected messages and its limit: first, since every poll compares them.
    unexpected: usize,
    max: usize,
    in_use: usize,
    /// Memory of packets in reorder windows, bytes.
    early: usize,
    /// Bytes of all idle buffers.
    spare: usize,
    idle: [Vec<Box<[u8]>>; CLASSES.len()],
}

impl HeldPackets {
    /// Nothing held. Unexpected messages may cost `max` bytes before they cost too much.
    pub fn new(max: usize) -> HeldPackets {
        HeldPackets { unexpected: 0, max, in_use: 0, early: 0, spare: 0, idle: Default::default() }
    }

    /// A copy of `bytes`.
    #[inline]
    pub fn keep(&mut self, bytes: &[u8]) -> HeldBytes {
        let len = bytes.len();
        self.in_use += len;
        if len == 0 {
            return HeldBytes::default();
        }
        let mut room = match CLASSES.iter().position(|&size| len <= size) {
            Some(class) => match self.idle[class].pop() {
                Some(room) => {
                    self.spare -= room.len();
                    room
                }
                None => vec![0; CLASSES[class]].into_boxed_slice(),
            },
            None => vec![0; len].into_boxed_slice(),
        };
        copy_slice(&mut room[..len], bytes);
        HeldBytes { bytes: room, len }
    }

    /// Gives bytes back.
    #[inline]
    pub fn release(&mut self, held: HeldBytes) {
        self.in_use -= held.len;
        let size = held.bytes.len();
        if let Some(class) = CLASSES.iter().position(|&s| s == size)
            && self.spare + size <= KEEP
        {
            self.spare += size;
            self.idle[class].push(held.bytes);
        }
    }

    /// Whether unexpected messages would cost at most `max` bytes with these of one more packet.
    #[inline]
    pub fn has_room_for(&self, bytes: usize, max: usize) -> bool {
        self.unexpected.saturating_add(size_for(bytes) + ENTRY) <= max
    }

    /// Whether packets before their turn would cost at most `max` bytes with these of one more.
    #[inline]
    pub fn has_room_early(&self, bytes: usize, max: usize) -> bool {
        self.early.saturating_add(size_for(bytes) + WAITING) <= max
    }

    /// A copy of bytes of a packet before its turn.
    #[inline]
    pub fn keep_early(&mut self, bytes: &[u8]) -> HeldBytes {
        let held = self.keep(bytes);
        self.early += held.bytes.len() + WAITING;
        held
    }

    /// Gives bytes of a packet back whose turn has come.
    #[inline]
    pub fn release_early(&mut self, held: HeldBytes) {
        self.early -= held.bytes.len() + WAITING;
        self.release(held);
    }

    /// A copy of bytes of an unexpected message.
    #[inline]
    pub fn keep_part(&mut self, bytes: &[u8]) -> HeldBytes {
        let held = self.keep(bytes);
        self.unexpected += held.bytes.len();
        held
    }

    /// Gives bytes of an unexpected message back.
    #[inline]
    pub fn release_part(&mut self, held: HeldBytes) {
        self.unexpected -= held.bytes.len();
        self.release(held);
    }

    /// An unexpected message is noted.
    #[inline]
    pub fn note_message(&mut self) {
        self.unexpected += ENTRY;
    }

    /// An unexpected message is over.
    #[inline]
    pub fn forget_message(&mut self) {
        self.unexpected -= ENTRY;
    }

    /// Returns the memory of packets in reorder windows, bytes.
    #[cfg(test)]
    pub const fn early(&self) -> usize {
        self.early
    }

    /// Bytes held now.
    pub const fn in_use(&self) -> usize {
        self.in_use
    }

    /// Whether unexpected messages cost more than they may. // HOT
    #[inline(always)]
    pub const fn is_over_limit(&self) -> bool {
        self.unexpected > self.max
    }

    /// Returns the memory of unexpected messages, bytes.
    #[inline(always)]
    pub const fn unexpected(&self) -> usize {
        self.unexpected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back() {
        let mut hold = HeldPackets::new(usize::MAX);
        let a = hold.keep(&[1, 2, 3]);
        let at = a.bytes.as_ptr();
        assert_eq!((a.bytes(), hold.in_use()), (&[1u8, 2, 3][..], 3));
        hold.release(a);
        let b = hold.keep(&[9; 32]);
        assert_eq!((b.bytes.as_ptr(), b.bytes()), (at, &[9u8; 32][..]));
        let big = hold.keep(&[7; 100_000]);
        hold.release(big);
        hold.release(b);
        let none = hold.keep(&[]);
        hold.release(none);
        assert_eq!(hold.in_use(), 0);
    }

    #[test]
    fn what_is_kept_idle_is_bounded() {
        let mut hold = HeldPackets::new(usize::MAX);
        let held: Vec<HeldBytes> = (0..1000).map(|_| hold.keep(&[1; 60_000])).collect();
        held.into_iter().for_each(|held| hold.release(held));
        let idle: usize = hold.idle.iter().flatten().map(|room| room.len()).sum();
        assert!(idle <= KEEP && idle > KEEP / 2 && idle == hold.spare, "{idle}");
    }

    #[test]
    fn a_short_unexpected_message_is_packed() {
        let mut hold = HeldPackets::new(usize::MAX);
        hold.note_message();
        let held = hold.keep_part(&[7; 8]);
        assert!(hold.unexpected() <= 256, "{} bytes for 8", hold.unexpected());
        hold.release_part(held);
        hold.forget_message();
        assert_eq!((hold.unexpected(), hold.in_use()), (0, 0));
    }
}
