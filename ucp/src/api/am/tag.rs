//! Tag of an active message: handler number, header length, connection, and protocol of the data.
//!
//! | Bits | Meaning |
//! |---|---|
//! | 0..16 | handler number |
//! | 16..32 | length of the header |
//! | 32..60 | the receiver's number of the connection; 0: none |
//! | 61 | a reply is asked for |
//! | 62 | longer than a posted buffer |
//! | 63 | rendezvous |

use crate::token::CONNECTIONS;

/// Longest eager message that fits a posted buffer, bytes.
pub(crate) const POSTED_LEN: usize = 8 << 10;

/// Longest header of an active message, bytes.
pub const AM_MAX_HEADER: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AmTag {
    pub id: u16,
    pub header_len: u16,
    pub kind: AmKind,
    /// The sender asks for a reply ([`AmMessage::wants_reply`](crate::AmMessage::wants_reply)).
    pub reply: bool,
    /// The receiver's number of the connection on which the message is sent
    /// ([`SocketAddrs::connection`](crate::SocketAddrs::connection)).
    pub connection: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AmKind {
    Eager,
    Rendezvous,
}

impl AmTag {
    const RENDEZVOUS: u64 = 1 << 63;
    pub const EXCEEDS_POSTED: u64 = 1 << 62;
    const REPLY: u64 = 1 << 61;

    #[inline]
    pub fn encode(self, len: usize) -> u64 {
        let exceeds = if len > POSTED_LEN { AmTag::EXCEEDS_POSTED } else { 0 };
        let kind = if self.kind == AmKind::Rendezvous { AmTag::RENDEZVOUS } else { 0 };
        let reply = if self.reply { AmTag::REPLY } else { 0 };
        u64::from(self.id)
            | u64::from(self.header_len) << 16
            | AmTag::connection_bits(self.connection)
            | exceeds
            | kind
            | reply
    }

    /// The number of a connection in its place.
    #[inline(always)]
    pub const fn connection_bits(connection: u32) -> u64 {
        (connection as u64) << 32
    }

    /// Length of the header of a message with this tag.
    // HOT
    #[inline(always)]
    pub const fn header_len_of(tag: u64) -> u16 {
        (tag >> 16) as u16
    }

    pub fn decode(tag: u64) -> AmTag {
        let kind = if tag & AmTag::RENDEZVOUS != 0 { AmKind::Rendezvous } else { AmKind::Eager };
        let connection = (tag >> 32) as u32 & (CONNECTIONS - 1);
        AmTag {
            id: tag as u16,
            header_len: AmTag::header_len_of(tag),
            kind,
            reply: tag & AmTag::REPLY != 0,
            connection,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn am_tag_round_trips() {
        for kind in [AmKind::Eager, AmKind::Rendezvous] {
            for (id, header_len) in [(0, 0), (u16::MAX, AM_MAX_HEADER as u16), (7, 1)] {
                let connection = if id == 7 { CONNECTIONS - 1 } else { u32::from(header_len) };
                let am_tag = AmTag { id, header_len, kind, reply: id == 7, connection };
                assert_eq!(AmTag::decode(am_tag.encode(5)), am_tag);
                assert_eq!(AmTag::decode(am_tag.encode(POSTED_LEN + 1)), am_tag);
                assert_eq!(am_tag.encode(POSTED_LEN) & AmTag::EXCEEDS_POSTED, 0);
                assert_ne!(am_tag.encode(POSTED_LEN + 1) & AmTag::EXCEEDS_POSTED, 0);
            }
        }
    }
}
