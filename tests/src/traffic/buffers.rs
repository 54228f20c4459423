//! A pool of message buffers by size class, so that a run does not time the allocator. One for each direction
//! and process.

/// Capacities of the classes, bytes.
const CLASSES: [usize; 4] = [1 << 10, 16 << 10, 128 << 10, crate::sizes::MAX];

#[derive(Debug, Default)]
pub struct Buffers([Vec<Vec<u8>>; CLASSES.len()]);

impl Buffers {
    /// Takes a buffer of any length with a capacity of at least `len` bytes.
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let class = CLASSES.iter().position(|c| len <= *c).unwrap_or(CLASSES.len() - 1);
        self.0[class].pop().unwrap_or_else(|| Vec::with_capacity(CLASSES[class]))
    }

    pub fn put_back(&mut self, buf: Vec<u8>) {
        if let Some(class) = CLASSES.iter().position(|c| buf.capacity() == *c) {
            self.0[class].push(buf);
        }
    }
}
