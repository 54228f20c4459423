//! Message buffers, used again and again by size class, so that the run times messages and not the allocator.
//! One store per direction and process. Never zeroes what will be written anyway.

/// Capacities of the classes, bytes.
const CLASSES: [usize; 4] = [1 << 10, 16 << 10, 128 << 10, crate::sizes::MAX];

/// Buffers to lend.
#[derive(Debug, Default)]
pub struct Buffers([Vec<Vec<u8>>; CLASSES.len()]);

impl Buffers {
    /// A buffer of some length that holds at least `len` bytes, at most [`crate::sizes::MAX`].
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let class = CLASSES.iter().position(|c| len <= *c).unwrap_or(CLASSES.len() - 1);
        self.0[class].pop().unwrap_or_else(|| Vec::with_capacity(CLASSES[class]))
    }

    /// Takes one back.
    pub fn put_back(&mut self, buf: Vec<u8>) {
        if let Some(class) = CLASSES.iter().position(|c| buf.capacity() == *c) {
            self.0[class].push(buf);
        }
    }
}
