//! Violations that `check` finds.

use ucp::wire::Features;

/// A violation of the protocol (section numbers: docs/spec/wire-facts.md).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Finding {
    #[error("rejected: {0}")]
    Rejected(String),
    /// Class flag missing or of another class (2).
    #[error("flags: {0}")]
    Flags(&'static str),
    /// (3.2)
    #[error("a second HANDSHAKE to this peer")]
    HandshakeTwice,
    /// (3.1)
    #[error("the peer has not announced {0}")]
    Unannounced(Features),
    /// REQ packet (2).
    #[error("no raw address, though the peer's HANDSHAKE has not come")]
    NoRawAddr,
    /// (1.6)
    #[error("the raw address is not the sender's")]
    WrongRawAddr,
    /// (1.5)
    #[error("raw address and connid in one packet")]
    TwoConnids,
    /// (3.4)
    #[error("data within a window, though the peer's HANDSHAKE has not come")]
    DataBeforeHandshake,
    /// (4)
    #[error("msg_id {0} was there before")]
    Duplicate(u32),
    #[error("msg_id {0}: the packets of the message disagree about {1}")]
    Disagree(u32, &'static str),
    /// (4)
    #[error("{from} > {to}: msg_id {first} to {last} never came, though later ones did")]
    Gap { from: String, to: String, first: u32, last: u32 },
    /// Response with an unknown id.
    #[error("{field} {id}: no operation of this id waits for {packet}")]
    Unknown { packet: &'static str, field: &'static str, id: u32 },
    /// (5.5)
    #[error("{over} bytes more than the window allows")]
    Overrun { over: u64 },
    /// Past the end of the message (5.5).
    #[error("bytes {from} to {to} of a message of {total}")]
    Outside { from: u64, to: u64, total: u64 },
    #[error("bytes {from} to {to} came before")]
    Again { from: u64, to: u64 },
    /// CTS before the previous window is complete (5.5).
    #[error("a window, though {left} bytes of the last one are outstanding")]
    EarlyCts { left: u64 },
    /// CTS of 0 bytes, or past the end (5.5).
    #[error("a window of {granted} bytes where {missing} are missing")]
    WrongCts { granted: u64, missing: u64 },
    /// (9.2)
    #[error("the answer to a READ_NACK carries data")]
    NackWithData,
}
