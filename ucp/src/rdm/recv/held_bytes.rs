//! Bytes copied out of a packet, which outlive it. Made and taken back by `HeldPackets`.

/// Bytes copied out of a packet.
#[derive(Debug, Default)]
pub struct HeldBytes {
    pub(super) bytes: Box<[u8]>,
    pub(super) len: usize,
}

impl HeldBytes {
    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
