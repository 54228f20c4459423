//! Discards messages that the program does not want but whose senders wait for completion: they are received
//! into no memory. Without a free receive entry they wait in the queue of their peer. Called by `api` and by
//! that queue.

use crate::rdm::Engine;
use crate::rdm::ids::{MsgHandle, PeerId};
use crate::rdm::io::Wire;
use crate::rdm::op::RecvBuf;
use crate::rdm::op::rx::{RecvRole, RxOp};
use crate::rdm::peers::limits::note_over_limit;
use crate::rdm::protocol::{Kind, Step};
use crate::rdm::recv::discard_queue::{Discard, drop_message};
use crate::rdm::recv::receives::recv_unexpected;
use crate::rdm::types::RecvKind;
use crate::wire::MsgClass;

/// Most messages of a peer that wait to be discarded: a worker has no more sends in progress.
const MAX_WAITING: usize = 1 << 20;

/// Discards a message of a peer now, or once a receive is free. Announced data may have arrived or not. The
/// sender's operation completes as if it had been received.
pub fn discard<W: Wire>(e: &mut Engine, w: &mut W, from: PeerId, message: Discard) {
    if e.peers.table.get(from).is_none() || try_discard(e, w, from, message) {
        return;
    }
    let peer = &mut e.peers.table[from];
    if peer.state.is_up() {
        let discards = &mut peer.queue_mut().discards;
        discards.push_back(message);
        if discards.len() > MAX_WAITING {
            note_over_limit(&mut e.peers, from);
        }
        return e.pending.schedule(&mut e.peers, from);
    }
    // Nothing can be said to its sender.
    if let Discard::Probed(MsgHandle(id)) = message {
        drop_message(&mut e.ops.recvs, &mut e.ops.reads, &mut e.peers, &mut e.pending, w, (id, from));
    }
}

/// Discards a message unless there is no receive for it.
fn try_discard<W: Wire>(e: &mut Engine, w: &mut W, from: PeerId, message: Discard) -> bool {
    let arrived = match message {
        Discard::Probed(MsgHandle(id)) => {
            let is_probed = e.ops.recvs.unexpected.get(id).is_some_and(|held| held.queued.is_none());
            Some(id).filter(|_| is_probed)
        }
        // No receive of it can be posted.
        Discard::Announced(_) if e.zcopy_recv.is_some() => None,
        Discard::Announced(number) => {
            let pattern = data_of(number).pattern(Some(from));
            let arrived = e.ops.recvs.find_unexpected(&e.peers, Kind::AmData, &pattern);
            if arrived.is_none() && e.peers.drain_error(from).is_none() {
                let make = |entry| RxOp {
                    role: RecvRole::Discarded,
                    ..RxOp::posted(RecvBuf::EMPTY, 0, entry, Kind::AmData)
                };
                return e.ops.recvs.post_expected(Kind::AmData, pattern, make).is_some();
            }
            arrived
        }
    };
    let Some(id) = arrived else { return true };
    recv_unexpected(e, w, id, RecvBuf::EMPTY, 0, RecvRole::Discarded);
    e.ops.recvs.unexpected.get(id).is_none()
}

/// Returns what a receive of announced data matches.
const fn data_of(number: u64) -> RecvKind {
    RecvKind::Class { class: MsgClass::AmData, tag: number, mask: u64::MAX }
}

/// Discards the first message of a peer that waits for a receive.
pub(in crate::rdm) fn step_discards<W: Wire>(e: &mut Engine, w: &mut W, id: PeerId) -> Step {
    let queue = e.peers.table[id].queue.as_mut();
    // Taken out first: what follows may come here again.
    let Some(message) = queue.and_then(|queue| queue.discards.pop_front()) else { return Step::Idle };
    if try_discard(e, w, id, message) {
        return Step::Done;
    }
    e.peers.table[id].queue_mut().discards.push_front(message);
    Step::Full
}
