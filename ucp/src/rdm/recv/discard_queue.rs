//! Queue of messages to discard for which no receive entry was free.

use ucs::coll::slots::SlotId;

use crate::rdm::ids::{MsgHandle, PeerId};
use crate::rdm::io::Wire;
use crate::rdm::peers::Peers;
use crate::rdm::pending::Pending;
use crate::rdm::recv::Recvs;
use crate::rdm::rma::Reads;
use crate::rdm::status::OpError;

/// A message that nobody wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Discard {
    /// A message that a probe has removed from the queue.
    Probed(MsgHandle),
    /// Data that an active message has announced with this number.
    Announced(u64),
}

/// Drops the messages of a peer that wait to be discarded: their senders have ended.
pub(in crate::rdm) fn drop_discards<W: Wire>(
    recvs: &mut Recvs,
    reads: &mut Reads,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    id: PeerId,
) {
    let Some(queue) = &mut peers.table[id].queue else { return };
    for message in std::mem::take(&mut queue.discards) {
        if let Discard::Probed(MsgHandle(held)) = message {
            drop_message(recvs, reads, peers, pending, w, (held, id));
        }
    }
}

/// Drops a message of a peer, if it is still there.
pub(in crate::rdm) fn drop_message<W: Wire>(
    recvs: &mut Recvs,
    reads: &mut Reads,
    peers: &mut Peers,
    pending: &mut Pending,
    w: &mut W,
    (held, from): (SlotId, PeerId),
) {
    if recvs.unexpected.get(held).is_some_and(|held| held.envelope.from == from) {
        recvs.drop_unexpected(reads, peers, pending, w, held, OpError::Cancelled);
    }
}
