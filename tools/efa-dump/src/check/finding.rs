//! What can be wrong with a packet, in words. Made by `check`.

use ucp::wire::Features;

/// A violation of the protocol (section numbers: docs/spec/wire-facts.md).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Finding {
    /// The packet does not parse.
    #[error("rejected: {0}")]
    Rejected(String),
    /// A class flag is missing, or one is there that is not the packet's (2).
    #[error("flags: {0}")]
    Flags(&'static str),
    /// A second HANDSHAKE to the same peer (3.2).
    #[error("a second HANDSHAKE to this peer")]
    HandshakeTwice,
    /// The peer's HANDSHAKE does not announce what the packet needs (3.1).
    #[error("the peer has not announced {0}")]
    Unannounced(Features),
    /// A REQ packet before the peer's HANDSHAKE, without a raw address (2).
    #[error("no raw address, though the peer's HANDSHAKE has not come")]
    NoRawAddr,
    /// The raw address is not that of the sender (1.6).
    #[error("the raw address is not the sender's")]
    WrongRawAddr,
    /// Raw address and connid at once (1.5).
    #[error("raw address and connid in one packet")]
    TwoConnids,
    /// CTSDATA before the peer's HANDSHAKE (3.4).
    #[error("data within a window, though the peer's HANDSHAKE has not come")]
    DataBeforeHandshake,
    /// A msg_id for the second time (4).
    #[error("msg_id {0} was there before")]
    Duplicate(u32),
    /// Packets of one message that disagree about it.
    #[error("msg_id {0}: the packets of the message disagree about {1}")]
    Disagree(u32, &'static str),
    /// MsgIds that never came, though later ones did (4).
    #[error("{from} > {to}: msg_id {first} to {last} never came, though later ones did")]
    Gap {
        /// Sender.
        from: String,
        /// Receiver.
        to: String,
        /// The first missing.
        first: u32,
        /// The last missing of this hole.
        last: u32,
    },
    /// An answer to nothing.
    #[error("{field} {id}: no operation of this id waits for {packet}")]
    Unknown {
        /// The answer.
        packet: &'static str,
        /// Its field.
        field: &'static str,
        /// The value.
        id: u32,
    },
    /// More data than was granted (5.5).
    #[error("{over} bytes more than the window allows")]
    Overrun {
        /// Bytes beyond the window.
        over: u64,
    },
    /// Data beyond the end (5.5).
    #[error("bytes {from} to {to} of a message of {total}")]
    Outside {
        /// First byte.
        from: u64,
        /// Byte behind the last.
        to: u64,
        /// Length of the message.
        total: u64,
    },
    /// Bytes that came before.
    #[error("bytes {from} to {to} came before")]
    Again {
        /// First byte.
        from: u64,
        /// Byte behind the last.
        to: u64,
    },
    /// A window opened while the last one is open (5.5).
    #[error("a window, though {left} bytes of the last one are outstanding")]
    EarlyCts {
        /// Bytes of the last window that did not come.
        left: u64,
    },
    /// A window that is longer than what is missing, or nothing (5.5).
    #[error("a window of {granted} bytes where {missing} are missing")]
    WrongCts {
        /// Bytes granted.
        granted: u64,
        /// Bytes not granted yet.
        missing: u64,
    },
    /// The answer to a READ_NACK carries data (9.2).
    #[error("the answer to a READ_NACK carries data")]
    NackWithData,
}
