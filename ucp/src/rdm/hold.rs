//! Copies of packet bytes that must wait: out-of-order packets and unexpected messages. Memory follows what has
//! really arrived, never what a header announces; buffers are kept by size for the next one.

/// Sizes of buffers that are kept: small ones share nothing but waste little.
const CLASSES: [usize; 5] = [128, 512, 2048, 9216, 65536];
/// Most bytes of idle buffers kept per class.
const KEEP: usize = 8 << 20;

/// Bytes copied out of a packet.
#[derive(Debug, Default)]
pub struct Held {
    bytes: Box<[u8]>,
    len: usize,
}

impl Held {
    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Where held bytes come from and go back to.
#[derive(Debug, Default)]
pub struct Hold {
    idle: [Vec<Box<[u8]>>; CLASSES.len()],
    in_use: usize,
}

impl Hold {
    /// Nothing held.
    pub fn new() -> Hold {
        Hold::default()
    }

    /// A copy of `bytes`.
    #[inline]
    pub fn keep(&mut self, bytes: &[u8]) -> Held {
        let len = bytes.len();
        self.in_use += len;
        if len == 0 {
            return Held::default();
        }
        let mut room = match CLASSES.iter().position(|&size| len <= size) {
            Some(class) => match self.idle[class].pop() {
                Some(room) => room,
                None => vec![0; CLASSES[class]].into_boxed_slice(),
            },
            None => vec![0; len].into_boxed_slice(),
        };
        room[..len].copy_from_slice(bytes);
        Held { bytes: room, len }
    }

    /// Gives bytes back.
    #[inline]
    pub fn release(&mut self, held: Held) {
        self.in_use -= held.len;
        let size = held.bytes.len();
        if let Some(class) = CLASSES.iter().position(|&s| s == size)
            && self.idle[class].len() < KEEP / size
        {
            self.idle[class].push(held.bytes);
        }
    }

    /// Bytes held now.
    pub const fn in_use(&self) -> usize {
        self.in_use
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back() {
        let mut hold = Hold::new();
        let a = hold.keep(&[1, 2, 3]);
        let at = a.bytes.as_ptr();
        assert_eq!((a.bytes(), hold.in_use()), (&[1u8, 2, 3][..], 3));
        hold.release(a);
        let b = hold.keep(&[9; 100]);
        assert_eq!((b.bytes.as_ptr(), b.bytes()), (at, &[9u8; 100][..]));
        let big = hold.keep(&[7; 100_000]);
        hold.release(big);
        hold.release(b);
        let none = hold.keep(&[]);
        hold.release(none);
        assert_eq!(hold.in_use(), 0);
    }
}
