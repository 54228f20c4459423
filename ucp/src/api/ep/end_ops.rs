//! The end of one endpoint's operations: by its close, or because its other end was closed by force. Other
//! endpoints to the same peer go on.

use std::rc::{Rc, Weak};

use crate::api::am::send::rts_number;
use crate::api::am::tag::{AmKind, AmTag};
use crate::api::core::ep_state::EpState;
use crate::api::core::error::Error;
use crate::api::core::notes::send_note;
use crate::api::core::requests::Action;
use crate::api::core::worker_core::WorkerCore;

use crate::api::stream::ops::end_stream;

use crate::rdm::io::{PeerError, PeerId};
use crate::rdm::{Conversation, EndedSend, Note, OpError, WORKER_STREAM, end_ops_where, is_same_worker};
use crate::wire::MsgClass;

/// Aborts the operations of an endpoint; `deferred` is the error of those that have not begun. The
/// conversation with the peer ends with the last endpoint to it.
pub(crate) fn abort_ep_ops(core: &mut WorkerCore, ep: &Rc<EpState>, deferred: Error) {
    if ep.is_pending() {
        ep.fail_link(deferred);
        return core.deferred.end(ep, deferred, &mut core.reqs);
    }
    // Another conversation with the peer is not this endpoint's.
    if !is_current(core, ep) {
        return;
    }
    if !has_others(core, ep) {
        let (engine, mut wire, _) = core.split();
        return engine.force_close(&mut wire, ep.peer());
    }
    end_ops(core, ep, OpError::Cancelled);
    if ep.peer_connection() != 0 {
        send_note(core, ep.peer(), Note::Closed { connection: ep.peer_connection() });
    }
}

/// Whether the conversation with its peer is the one that the endpoint was made for.
fn is_current(core: &WorkerCore, ep: &EpState) -> bool {
    Conversation::with(core.engine.peers(), ep.peer()).number == ep.conversation()
}

/// Whether another endpoint to the peer is open, or is being closed and waits for its operations. The peer of
/// one that is being connected may be any.
fn has_others(core: &WorkerCore, ep: &Rc<EpState>) -> bool {
    let peers = core.engine.peers();
    let is_to_peer = |other: &EpState| match other.is_pending() {
        true => ep.connection() != 0,
        false => is_same_worker(peers, other.peer(), ep.peer()),
    };
    // Nobody can close one that the program has dropped, and of which a flush is left.
    let is_held = |other: &Rc<EpState>| {
        Rc::strong_count(other) > 1 + core.flushes.iter().filter(|flush| flush.is_of(other)).count()
    };
    let is_used = |other: &Rc<EpState>| {
        other.is_open() && is_held(other) || core.flushes.iter().any(|flush| flush.closes(other))
    };
    let is_other = |other: &Rc<EpState>| !Rc::ptr_eq(other, ep) && is_to_peer(other) && is_used(other);
    core.eps.iter().filter_map(Weak::upgrade).any(|other| is_other(&other))
}

/// Ends the operations of an endpoint. The peer is told of the data that it would wait for in vain.
fn end_ops(core: &mut WorkerCore, ep: &EpState, error: OpError) {
    let (mut withdrawn, mut unannounced, mut lacks_piece) = (Vec::new(), Vec::new(), false);
    let note = |send: EndedSend| match send.class {
        MsgClass::AmData => withdrawn.push(send.tag),
        MsgClass::Am if AmTag::decode(send.tag).kind == AmKind::Rendezvous => {
            unannounced.push(rts_number(&send.buf));
        }
        MsgClass::Stream if send.tag == WORKER_STREAM => lacks_piece |= send.is_unsent,
        _ => {}
    };
    core.idle = false;
    core.needs_poll = true;
    let (engine, mut wire, reqs) = core.split();
    let is_one = |user| reqs.is_of_ep(user, ep.number());
    end_ops_where(engine, &mut wire, (ep.peer(), error), is_one, note);
    withdrawn.retain(|number| !unannounced.contains(number));
    for number in withdrawn {
        send_note(core, ep.peer(), Note::Withdrawn { number });
    }
    // What another endpoint sends would follow a gap.
    if lacks_piece {
        send_note(core, ep.peer(), Note::StreamBroken);
    }
}

impl WorkerCore {
    /// Fails the endpoint of a connection that the peer says it has closed by force.
    #[cold]
    pub(crate) fn on_connection_closed(&mut self, peer: PeerId, connection: u32) -> Option<Action> {
        let ep = self.cm.ep_of(connection)?;
        if ep.is_pending() {
            ep.note_closed_by(peer);
            return None;
        }
        // A peer may end its own connections only.
        if !is_same_worker(self.engine.peers(), peer, ep.peer()) || !is_current(self, &ep) {
            tracing::debug!(
                peer = peer.0,
                connection,
                "ignored a close of a connection that does not belong to the peer"
            );
            return None;
        }
        let error = Error::of_peer(ep.peer(), PeerError::Closed);
        let is_told = ep.fail(error);
        end_ops(self, &ep, OpError::Peer(ep.peer(), PeerError::Closed));
        end_stream(self, &ep, error);
        is_told.then(|| Action::Failed(vec![ep], error))
    }
}
