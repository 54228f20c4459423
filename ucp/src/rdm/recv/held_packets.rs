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
const MAX_IDLE_BYTES: usize = 8 << 20;
/// Overhead of an unexpected message, bytes: its entry, and its place in the queue.
pub const MSG_OVERHEAD: usize = size_of::<Unexpected>() + 48;

/// Overhead of a packet in a reorder window, bytes: its place among the others.
pub const REORDER_OVERHEAD: usize = 96;

/// Returns the size of the buffer for so many bytes.
fn buffer_size(bytes: usize) -> usize {
    CLASSES.iter().copied().find(|&size| bytes <= size).unwrap_or(bytes)
}

/// A pool of copies of packet bytes, with counts of their memory.
#[derive(Debug)]
#[repr(C)]
pub struct HeldPackets {
    /// Memory of unexpected messages and its limit: first, since every poll compares them.
    unexpected: usize,
    max: usize,
    in_use: usize,
    /// Memory of packets in reorder windows, bytes.
    reordered: usize,
    /// Bytes of all idle buffers.
    idle_bytes: usize,
    idle: [Vec<Box<[u8]>>; CLASSES.len()],
}

impl HeldPackets {
    /// Creates an empty pool. Unexpected messages may use `max` bytes.
    pub fn new(max: usize) -> HeldPackets {
        HeldPackets { unexpected: 0, max, in_use: 0, reordered: 0, idle_bytes: 0, idle: Default::default() }
    }

    /// Copies `bytes`.
    #[inline]
    pub fn copy(&mut self, bytes: &[u8]) -> HeldBytes {
        let len = bytes.len();
        self.in_use += len;
        if len == 0 {
            return HeldBytes::default();
        }
        let mut buf = match CLASSES.iter().position(|&size| len <= size) {
            Some(class) => match self.idle[class].pop() {
                Some(buf) => {
                    self.idle_bytes -= buf.len();
                    buf
                }
                None => vec![0; CLASSES[class]].into_boxed_slice(),
            },
            None => vec![0; len].into_boxed_slice(),
        };
        copy_slice(&mut buf[..len], bytes);
        HeldBytes { bytes: buf, len }
    }

    /// Releases a copy.
    #[inline]
    pub fn release(&mut self, held: HeldBytes) {
        self.in_use -= held.len;
        let size = held.bytes.len();
        if let Some(class) = CLASSES.iter().position(|&s| s == size)
            && self.idle_bytes + size <= MAX_IDLE_BYTES
        {
            self.idle_bytes += size;
            self.idle[class].push(held.bytes);
        }
    }

    /// Gives idle buffers back beyond `keep` bytes of each size.
    #[cold]
    pub fn trim(&mut self, keep: usize) {
        for (idle, size) in self.idle.iter_mut().zip(CLASSES) {
            let kept = idle.len().min(keep / size);
            self.idle_bytes -= (idle.len() - kept) * size;
            idle.truncate(kept);
            idle.shrink_to_fit();
        }
    }

    /// Whether unexpected messages would use at most `max` bytes with one more packet.
    #[inline]
    pub fn has_unexpected_room(&self, bytes: usize, max: usize) -> bool {
        self.unexpected.saturating_add(buffer_size(bytes) + MSG_OVERHEAD) <= max
    }

    /// Whether reorder windows would use at most `max` bytes with one more packet.
    #[inline]
    pub fn has_reorder_room(&self, bytes: usize, max: usize) -> bool {
        self.reordered.saturating_add(buffer_size(bytes) + REORDER_OVERHEAD) <= max
    }

    /// Copies a packet for a reorder window.
    #[inline]
    pub fn copy_reordered(&mut self, bytes: &[u8]) -> HeldBytes {
        let held = self.copy(bytes);
        self.reordered += held.bytes.len() + REORDER_OVERHEAD;
        held
    }

    /// Releases a packet of a reorder window.
    #[inline]
    pub fn release_reordered(&mut self, held: HeldBytes) {
        self.reordered -= held.bytes.len() + REORDER_OVERHEAD;
        self.release(held);
    }

    /// Copies bytes of an unexpected message.
    #[inline]
    pub fn copy_unexpected(&mut self, bytes: &[u8]) -> HeldBytes {
        let held = self.copy(bytes);
        self.unexpected += held.bytes.len();
        held
    }

    /// Releases bytes of an unexpected message.
    #[inline]
    pub fn release_unexpected(&mut self, held: HeldBytes) {
        self.unexpected -= held.bytes.len();
        self.release(held);
    }

    /// Counts an unexpected message.
    #[inline]
    pub fn add_unexpected(&mut self) {
        self.unexpected += MSG_OVERHEAD;
    }

    /// Counts memory of messages that are kept elsewhere with the unexpected ones, unless all would use more
    /// than `max` bytes.
    pub fn add_external(&mut self, bytes: usize, max: usize) -> bool {
        let has_room = self.unexpected.saturating_add(bytes) <= max;
        self.unexpected += if has_room { bytes } else { 0 };
        has_room
    }

    /// Uncounts memory of messages that were kept elsewhere.
    pub fn remove_external(&mut self, bytes: usize) {
        self.unexpected -= bytes;
    }

    /// Uncounts an unexpected message.
    #[inline]
    pub fn remove_unexpected(&mut self) {
        self.unexpected -= MSG_OVERHEAD;
    }

    /// Returns the memory of packets in reorder windows, bytes.
    #[cfg(test)]
    pub const fn reordered(&self) -> usize {
        self.reordered
    }

    /// Returns the bytes held now.
    pub const fn in_use(&self) -> usize {
        self.in_use
    }

    /// Whether unexpected messages use more than their limit.
    // HOT
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
    fn buffers_are_reused() {
        let mut pool = HeldPackets::new(usize::MAX);
        let a = pool.copy(&[1, 2, 3]);
        let at = a.bytes.as_ptr();
        assert_eq!((a.bytes(), pool.in_use()), (&[1u8, 2, 3][..], 3));
        pool.release(a);
        let b = pool.copy(&[9; 32]);
        assert_eq!((b.bytes.as_ptr(), b.bytes()), (at, &[9u8; 32][..]));
        let big = pool.copy(&[7; 100_000]);
        pool.release(big);
        pool.release(b);
        let none = pool.copy(&[]);
        pool.release(none);
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn idle_buffers_are_bounded() {
        let mut pool = HeldPackets::new(usize::MAX);
        let held: Vec<HeldBytes> = (0..1000).map(|_| pool.copy(&[1; 60_000])).collect();
        held.into_iter().for_each(|held| pool.release(held));
        let idle: usize = pool.idle.iter().flatten().map(|buf| buf.len()).sum();
        assert!(idle <= MAX_IDLE_BYTES && idle > MAX_IDLE_BYTES / 2 && idle == pool.idle_bytes, "{idle}");
    }

    #[test]
    fn idle_buffers_are_given_back() {
        let mut pool = HeldPackets::new(usize::MAX);
        let held: Vec<HeldBytes> = (0..1000).map(|n| pool.copy(&[1; 5000][..n * 5])).collect();
        held.into_iter().for_each(|held| pool.release(held));
        pool.trim(10_000);
        let idle: usize = pool.idle.iter().flatten().map(|buf| buf.len()).sum();
        assert!(idle == pool.idle_bytes && idle <= 10_000 * CLASSES.len() && idle > 10_000, "{idle}");
    }

    #[test]
    fn short_unexpected_message_uses_little_memory() {
        let mut pool = HeldPackets::new(usize::MAX);
        pool.add_unexpected();
        let held = pool.copy_unexpected(&[7; 8]);
        assert!(pool.unexpected() <= 256, "{} bytes for 8", pool.unexpected());
        pool.release_unexpected(held);
        pool.remove_unexpected();
        assert_eq!((pool.unexpected(), pool.in_use()), (0, 0));
    }
}
