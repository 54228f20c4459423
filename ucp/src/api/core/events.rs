//! Events of the engine: each completes an operation, or becomes an [`Action`] that is run with nothing
//! borrowed.

use std::rc::{Rc, Weak};

use crate::api::core::ep_state::EpState;
use crate::api::core::error::Error;
use crate::api::core::flushes;
use crate::api::core::requests::{Action, EMPTY_STATUS};
use crate::api::core::worker_core::WorkerCore;
use crate::api::mem::remote_writes::RemoteWrite;
use crate::rdm::io::{PeerError, PeerId};
use crate::rdm::{Conversation, EngineEvent, OpError};
use crate::token::UserToken;

impl WorkerCore {
    /// Completes operations until one has an action to run; `None` when all are complete.
    // HOT
    #[inline]
    pub(crate) fn next_action(&mut self) -> Option<Action> {
        if let Some(action) = self.reqs.next_ready() {
            return Some(action);
        }
        while let Some(event) = self.engine.pending_mut().take_event() {
            let action = match event {
                EngineEvent::RmaDone { user, result } => {
                    if let Err(error) = result {
                        on_rma_failed(self, user, error);
                    }
                    self.reqs.complete_rma(user, result)
                }
                EngineEvent::SendDone { user, result } => match UserToken::unpack(user) {
                    UserToken::Request(_) => self.reqs.complete_token(user, result.map(|()| EMPTY_STATUS)),
                    UserToken::Stream(_) | UserToken::Note => None,
                },
                EngineEvent::RecvDone { user, result } => match UserToken::unpack(user) {
                    UserToken::Request(_) => self.reqs.complete_token(user, result),
                    UserToken::Stream(id) => {
                        self.on_stream_recv_done(id, result);
                        None
                    }
                    UserToken::Note => None,
                },
                EngineEvent::MultiRecvMessage { user, at, result } => {
                    self.on_multi_recv_message(user, at, result)
                }
                EngineEvent::MultiRecvDone { user, result } => self.on_multi_recv_done(user, result),
                EngineEvent::RemoteWrite { from, len, cq_data } => {
                    self.remote_writes.push(RemoteWrite { from, len, cq_data });
                    None
                }
                EngineEvent::ConnectionClosed { peer, connection } => {
                    self.on_connection_closed(peer, connection)
                }
                EngineEvent::PeerFailed { peer, fault } => self.peer_failed(peer, fault),
                EngineEvent::UnknownPeersRefused { limit } => {
                    tracing::warn!(
                        "{limit} senders have introduced themselves and not answered: packets of further unknown \
                         senders are dropped (UCX_UNKNOWN_PEERS_MAX)"
                    );
                    None
                }
            };
            if action.is_some() {
                return action;
            }
        }
        // Events may end receives of streams.
        self.reqs.next_ready()
    }

    /// Makes the endpoints of a failed peer refuse operations, and notifies them.
    #[cold]
    fn peer_failed(&mut self, peer: PeerId, fault: PeerError) -> Option<Action> {
        let error = Error::of_peer(peer, fault);
        let conversation = Conversation::with(self.engine.peers(), peer);
        self.eps.retain(|ep| ep.strong_count() > 0);
        let failed: Vec<Rc<EpState>> = self
            .eps
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|ep| {
                ep.peer() == peer && !(conversation.is_open && ep.conversation() == conversation.number)
            })
            .filter(|ep| ep.fail(error))
            .collect();
        // A peer closed by force is told, and another conversation with it may have begun.
        if conversation.is_open || conversation.may_follow {
            self.ended.note(peer);
            // Announcements of the next conversation are handled later.
            self.engine.receives().end_announced(peer, OpError::Peer(peer, fault));
        } else if !conversation.is_notifiable {
            self.peer_eps.forget(peer);
        }
        if let Some(rma_only) = &self.rma_only {
            rma_only.remove_peer(peer);
        }
        if self.streams.has_waiters() {
            self.progress_streams();
        }
        if failed.is_empty() {
            tracing::debug!(peer = peer.0, "peer without an endpoint failed: {fault}");
            return None;
        }
        Some(Action::Failed(failed, error))
    }
}

/// Has the flushes that cover a failed operation on memory report it, or the next one, if nobody waits for
/// it. Called before flushes of the same call of progress are reported.
#[cold]
fn on_rma_failed(core: &mut WorkerCore, token: u64, error: OpError) {
    let (OpError::Access(peer) | OpError::Aborted(peer, _) | OpError::Peer(peer, _)) = error else { return };
    let is_unreported = error.is_refusal() && core.reqs.is_detached(token);
    if is_unreported && !flushes::report_refusal(&mut core.flushes, peer, error) {
        core.engine.peers_mut().refused_ops.note(peer, error);
    }
}
