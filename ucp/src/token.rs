//! Numbers that come back with a completion: of a lane ([`CompletionToken`]) and of the engine
//! ([`UserToken`]). Each is packed into a word when an operation starts and unpacked at its end. Knows no
//! operation.

use uct::api::Comp;

use crate::rdm::io::{LaneId, PeerId, TxToken};

/// Completion of an operation on a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CompletionToken {
    /// A send, read or write of the engine.
    Engine(TxToken),
    /// Everything sent on a lane before has been delivered.
    Drained(LaneId),
    /// Part of the flush with this number.
    Flush(u32),
    /// A keepalive check of a lane.
    LaneCheck(LaneId),
}

/// Position of the kind; the payload lies below.
const KIND_SHIFT: u32 = 62;
const PAYLOAD: u64 = (1 << KIND_SHIFT) - 1;

impl CompletionToken {
    /// The word that a transport carries.
    #[inline(always)]
    pub(crate) fn pack(self) -> u64 {
        let (kind, payload) = match self {
            CompletionToken::Engine(token) => (0, token.pack()),
            CompletionToken::Drained(lane) => (1, u64::from(lane.0)),
            CompletionToken::Flush(number) => (2, u64::from(number)),
            CompletionToken::LaneCheck(lane) => (3, u64::from(lane.0)),
        };
        debug_assert!(payload <= PAYLOAD, "{payload:#x}");
        kind << KIND_SHIFT | payload
    }

    /// Reads a word made by [`CompletionToken::pack`].
    #[inline(always)]
    pub(crate) fn unpack(word: u64) -> CompletionToken {
        match word >> KIND_SHIFT {
            0 => CompletionToken::Engine(TxToken::unpack(word)),
            1 => CompletionToken::Drained(LaneId(word as u32)),
            2 => CompletionToken::Flush(word as u32),
            _ => CompletionToken::LaneCheck(LaneId(word as u32)),
        }
    }

    /// The completion that a transport is given.
    #[inline(always)]
    pub(crate) fn comp(self) -> Comp {
        Comp::Token(self.pack())
    }
}

/// A stream from a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct StreamId {
    pub(crate) peer: PeerId,
    /// Number of the connection at this worker; 0: the stream of endpoints that were made of an address.
    pub(crate) connection: u32,
}

impl StreamId {
    /// The stream of a message; `None`: its tag is no number of a connection.
    // HOT
    #[inline(always)]
    pub(crate) fn of_message(peer: PeerId, tag: u64) -> Option<StreamId> {
        u32::try_from(tag).ok().map(|connection| StreamId { peer, connection })
    }

    /// Tag of the stream's messages.
    pub(crate) fn tag(self) -> u64 {
        u64::from(self.connection)
    }
}

/// User data of an operation of the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UserToken {
    /// The request of the program with this address, which is even.
    Request(usize),
    /// The receive of the next message of a stream.
    Stream(StreamId),
    /// A note, whose end nobody waits for.
    Note,
}

const STREAM: u64 = 1;
/// The word of [`UserToken::Note`], which no stream has.
const NOTE: u64 = STREAM | 1 << 63;
/// Numbers of connections are less than this.
pub(crate) const CONNECTIONS: u32 = 1 << 28;
/// Position of the peer of a stream; the connection lies below.
const PEER_SHIFT: u32 = 29;

impl UserToken {
    /// The word that the engine carries.
    #[inline(always)]
    pub(crate) fn pack(self) -> u64 {
        match self {
            UserToken::Request(address) => address as u64,
            UserToken::Stream(StreamId { peer, connection }) => {
                STREAM | u64::from(connection) << 1 | u64::from(peer.0) << PEER_SHIFT
            }
            UserToken::Note => NOTE,
        }
    }

    /// Reads a word made by [`UserToken::pack`].
    #[inline(always)]
    pub(crate) fn unpack(word: u64) -> UserToken {
        match word & STREAM {
            0 => UserToken::Request(word as usize),
            _ if word == NOTE => UserToken::Note,
            _ => UserToken::Stream(StreamId {
                peer: PeerId((word >> PEER_SHIFT) as u32),
                connection: (word >> 1) as u32 & (CONNECTIONS - 1),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completion_tokens_round_trip() {
        for n in [0, 1, 0x8000_0000, u32::MAX] {
            let peer = PeerId(n);
            let tokens = [
                CompletionToken::Engine(TxToken::unpack(u64::from(n))),
                CompletionToken::Drained(peer.into()),
                CompletionToken::Flush(n),
                CompletionToken::LaneCheck(peer.into()),
            ];
            for (k, token) in tokens.iter().enumerate() {
                assert_eq!(CompletionToken::unpack(token.pack()), *token);
                assert!(tokens[..k].iter().all(|other| other.pack() != token.pack()));
            }
        }
        let long = CompletionToken::Engine(TxToken::unpack(PAYLOAD));
        assert_eq!(CompletionToken::unpack(long.pack()), long);
    }

    #[test]
    fn user_tokens_round_trip() {
        for n in [0, 1, 0x8000_0000, u32::MAX] {
            let stream = StreamId { peer: PeerId(n), connection: n % CONNECTIONS };
            for token in [UserToken::Request(n as usize * 16), UserToken::Stream(stream), UserToken::Note] {
                assert_eq!(UserToken::unpack(token.pack()), token);
            }
        }
    }
}
