//! Streams between two workers: one of the workers themselves, and one of each connection. The tag of a
//! stream's messages is the receiver's number of the connection; 0 for the stream of the workers.

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::rdm::ids::PeerId;
use crate::rdm::next::Next;
use crate::rdm::peers::Peers;
use crate::rdm::peers::limits::queue_ctl;
use crate::rdm::peers::state::PeerFlags;
use crate::rdm::pending::Pending;
use crate::rdm::protocol::{Arrival, requester_id};
use crate::rdm::status::{ABORTED, OpError};
use crate::rdm::trace::DropReason;
use crate::wire::ctl::ErrorRef;

/// Tag of the stream that belongs to a pair of workers.
pub const WORKER_STREAM: u64 = 0;

/// Streams of connections that an endpoint may receive from. Messages of others are dropped.
#[derive(Debug, Default)]
pub struct ConnectionStreams {
    by_tag: HashMap<u64, ConnectionStream, FxBuildHasher>,
}

#[derive(Clone, Copy, Debug)]
struct ConnectionStream {
    /// `None` while the endpoint has no peer yet, which may send before.
    peer: Option<PeerId>,
    /// A piece is missing: what follows is dropped.
    is_broken: bool,
}

/// A message of a stream that is lost.
#[derive(Clone, Copy, Debug)]
pub(in crate::rdm) struct StreamPiece {
    /// Tag of the stream; `None`: not known, as nothing of the message has come.
    pub tag: Option<u64>,
    pub msg_id: u32,
}

impl ConnectionStreams {
    /// Adds the stream of a connection.
    pub fn open(&mut self, tag: u64, peer: Option<PeerId>) {
        self.by_tag.insert(tag, ConnectionStream { peer, is_broken: false });
    }

    /// Sets the peer of a connection that had none.
    pub fn set_peer(&mut self, tag: u64, peer: PeerId) {
        if let Some(stream) = self.by_tag.get_mut(&tag) {
            stream.peer = Some(peer);
        }
    }

    /// Removes the stream of a connection.
    pub fn close(&mut self, tag: u64) {
        self.by_tag.remove(&tag);
    }

    /// The stream, if messages of this peer may be of it.
    fn of(&mut self, peer: PeerId, tag: u64) -> Option<&mut ConnectionStream> {
        self.by_tag.get_mut(&tag).filter(|stream| stream.peer.is_none_or(|of| of == peer))
    }

    /// Breaks the streams of a peer's connections.
    pub(in crate::rdm) fn break_all(&mut self, peer: PeerId) {
        let all = self.by_tag.values_mut().filter(|stream| stream.peer == Some(peer));
        all.for_each(|stream| stream.is_broken = true);
    }
}

/// Whether a message of a stream can still be received.
pub(in crate::rdm) fn takes_stream(peers: &mut Peers, peer: PeerId, tag: u64) -> bool {
    match tag {
        WORKER_STREAM => !peers.table[peer].state.has(PeerFlags::STREAM_BROKEN),
        _ => peers.streams.of(peer, tag).is_some_and(|stream| !stream.is_broken),
    }
}

/// Drops a piece of a stream that nobody receives. A sender that waits for an answer is told.
#[cold]
pub(in crate::rdm) fn refuse_piece(peers: &mut Peers, pending: &mut Pending, a: &Arrival<'_>) {
    peers.drop_packet(a, DropReason::PeerFailed);
    let told = requester_id(a.packet).filter(|_| peers.table[a.peer].state.is_up());
    let Some(id) = told else { return };
    let next = peers.error_to(a.peer, ErrorRef::Op(id), OpError::Aborted(a.peer, ABORTED));
    if let Next::Ctl(ctl) = next {
        queue_ctl(peers, pending, a.peer, ctl);
    }
}

/// Breaks a stream of a peer, or all of them if it is not known which one has lost a piece.
pub(in crate::rdm) fn break_streams(peers: &mut Peers, peer: PeerId, tag: Option<u64>) {
    if matches!(tag, None | Some(WORKER_STREAM)) {
        peers.table[peer].state.insert(PeerFlags::STREAM_BROKEN);
    }
    match tag {
        None => peers.streams.break_all(peer),
        Some(tag) => {
            if let Some(stream) = peers.streams.of(peer, tag) {
                stream.is_broken = true;
            }
        }
    }
}

/// Returns the error after which nothing of this stream can arrive any more.
#[cold]
pub fn stream_error(peers: &mut Peers, id: PeerId, tag: u64) -> Option<OpError> {
    let is_up = peers.table.get(id)?.fault.is_none();
    if !is_up {
        return peers.drain_error(id);
    }
    // Alive, but it has aborted a part of the stream.
    (!takes_stream(peers, id, tag)).then_some(OpError::Aborted(id, ABORTED))
}
