//! Flush and close: operations that complete when all earlier ones have.

use std::rc::Rc;

use ucs::time::Nanos;
use uct::api::{Ep as _, Error as WireError, Iface as _, Outcome, Refused, Sent};

use crate::api::core::ep_state::{EpState, LinkStage};
use crate::api::core::error::Error;
use crate::api::core::flushes::{Flush, FlushScope, OnTimeout, Stage, report_refusal};
use crate::api::core::requests::{Action, Callback, EMPTY_STATUS, RequestId, Role};
use crate::api::core::worker_core::WorkerCore;
use crate::api::ep::end_ops::abort_ep_ops;

use crate::lane::{WorkerIface, fault_of};
use crate::rdm::io::PeerId;
use crate::token::CompletionToken;

impl WorkerCore {
    pub(crate) fn start_flush(
        &mut self,
        of: Option<Rc<EpState>>,
        (deadline, on_timeout): (Nanos, OnTimeout),
        done: Option<Callback>,
    ) -> Result<RequestId, Error> {
        let token = self.reqs.next_token()?;
        let id = self.reqs.start(token, Role::Flush, done);
        self.flush_count = self.flush_count.wrapping_add(1);
        let number = self.flush_count;
        // The acknowledgements of a pending endpoint are requested when it has its peer.
        if of.as_ref().is_none_or(|ep| !ep.is_pending()) {
            let peer = of.as_ref().map(|ep| ep.peer());
            let (engine, mut wire, _) = self.split();
            engine.request_acks(&mut wire, peer);
        }
        // A flush of the worker reports earlier peer failures that no such flush has reported.
        let result = match of {
            None if !self.flushes.iter().any(Flush::is_worker_flush) => {
                self.take_failed_peer_error().map_or(Ok(()), Err)
            }
            _ => Ok(()),
        };
        let scope = of.map_or(FlushScope::Worker, FlushScope::Ep);
        self.flushes.push(Flush { id, number, scope, stage: Stage::Protocol, deadline, on_timeout, result });
        self.needs_poll = true;
        Ok(id)
    }

    fn take_failed_peer_error(&mut self) -> Option<Error> {
        let failed = self.engine.peers_mut().take_failed();
        failed.map(|(peer, fault)| Error::of_peer(peer, fault)).or_else(|| self.deferred.take_lost())
    }

    #[cold]
    pub(crate) fn poll_flushes(&mut self) {
        let mut flushes = std::mem::take(&mut self.flushes);
        if let Some(error) = self.take_failed_peer_error() {
            for flush in flushes.iter_mut().filter(|f| f.is_worker_flush()) {
                flush.result = flush.result.and(Err(error));
            }
        }
        let refused = self.engine.peers_mut().refused_ops.take(|peer| flushes.iter().any(|f| f.covers(peer)));
        for (peer, error) in refused {
            report_refusal(&mut flushes, peer, error);
        }
        for end in self.flushed.drain(..) {
            let Some(flush) = flushes.iter_mut().find(|f| f.number == end.number) else { continue };
            if let Stage::Lanes { waiting, .. } = &mut flush.stage {
                *waiting -= 1;
                let peer = flush.peer();
                flush.result = flush.result.and(end.result.map_err(|e| wire_error(peer, e)));
            }
        }
        let mut timed_out = Vec::new();
        for flush in &mut flushes {
            self.request_late_acks(flush);
            self.advance(flush);
            if let (FlushScope::Ep(ep), Stage::Ended, Err(Error::TimedOut(_))) =
                (&flush.scope, &flush.stage, flush.result)
                && flush.on_timeout == OnTimeout::AbortOps
            {
                timed_out.push(ep.clone());
            }
        }
        flushes.append(&mut self.flushes);
        self.flushes = flushes;
        timed_out.iter().for_each(|ep| abort_ep_ops(self, ep, Error::TimedOut(None)));
    }

    /// Requests the acknowledgements that flushes of an endpoint wait for, once it has its peer.
    pub(crate) fn flush_linked(&mut self, ep: &Rc<EpState>) {
        let is_flushed = |flush: &Flush| matches!(&flush.scope, FlushScope::Ep(of) if Rc::ptr_eq(of, ep));
        if self.flushes.iter().any(is_flushed) {
            let (engine, mut wire, _) = self.split();
            engine.request_acks(&mut wire, Some(ep.peer()));
            self.needs_poll = true;
        }
    }

    /// Requests the acknowledgements of writes that were still queued when the flush began.
    fn request_late_acks(&mut self, flush: &Flush) {
        let peer = flush.peer();
        if matches!(flush.stage, Stage::Protocol) && self.engine.is_flushed(peer) {
            let (engine, mut wire, _) = self.split();
            engine.request_acks(&mut wire, peer);
        }
    }

    fn advance(&self, flush: &mut Flush) {
        match flush.link_stage() {
            LinkStage::Linked => self.advance_linked(flush),
            LinkStage::Failed(error) if !matches!(flush.stage, Stage::Ended) => {
                flush.result = Err(error);
                flush.stage = Stage::Ended;
            }
            LinkStage::Pending | LinkStage::Failed(_) => {}
        }
        if flush.deadline != Nanos::NEVER
            && !matches!(flush.stage, Stage::Ended)
            && self.now() >= flush.deadline
        {
            let peer = flush.peer().filter(|peer| *peer != PeerId::NONE);
            flush.result = flush.result.and(Err(Error::TimedOut(peer)));
            flush.stage = Stage::Ended;
        }
    }

    fn advance_linked(&self, flush: &mut Flush) {
        let peer = flush.peer();
        // Check the engine first: it drops the packets of a failed peer without acknowledgement.
        if let (Some(peer), false) = (peer, matches!(flush.stage, Stage::Ended))
            && let Some(fault) = flush.peer_fault(self.engine.peers())
        {
            flush.result = Err(Error::of_peer(peer, fault));
            flush.stage = Stage::Ended;
        }
        let is_flushed = || self.engine.is_flushed(peer) && (peer.is_some() || self.deferred.is_empty());
        if matches!(flush.stage, Stage::Protocol) && is_flushed() {
            flush.stage = Stage::Lanes { next: 0, waiting: 0 };
        }
        if let Stage::Lanes { next, waiting } = &mut flush.stage {
            let posted = match peer {
                Some(peer) => self.flush_path(peer, flush.number, next, waiting),
                None => flush_lanes(&self.ifaces, flush.number, next, waiting),
            };
            if let Err(error) = posted {
                flush.result = Err(error);
                flush.stage = Stage::Ended;
            } else if *waiting == 0 && *next == usize::MAX {
                // A backed-off peer's packets, returned by the lane, are not delivered.
                let back = self.engine.pending().is_backed_off(self.engine.peers(), peer);
                flush.stage = if back { Stage::Protocol } else { Stage::Ended };
            }
        }
    }

    /// Flushes the uct endpoint of a peer. `next` is `usize::MAX` afterwards.
    fn flush_path(
        &self,
        peer: PeerId,
        number: u32,
        next: &mut usize,
        waiting: &mut usize,
    ) -> Result<(), Error> {
        if *next == usize::MAX {
            return Ok(());
        }
        let Some(path) = self.peer_eps.get(peer) else { return Err(Error::PeerGone(peer)) };
        // After failover, packets on the old and further lanes may come back; their loss is not the peer's.
        let further =
            self.engine.peers().further_lanes(peer).iter().filter_map(|&lane| self.peer_eps.on_lane(lane));
        let further = further.map(|path| &path.ep);
        for ep in self.peer_eps.abandoned(peer).chain(further).chain([&path.ep]).skip(*next) {
            let outcome = ep.flush(CompletionToken::Flush(number).comp());
            let is_main = std::ptr::eq(ep, &path.ep);
            // The engine has all acknowledgements; the endpoint reports a later death.
            let has_died = matches!(outcome, Err(Refused::Failed(WireError::PeerDead)));
            if has_died || !is_main && matches!(outcome, Err(Refused::Failed(_))) {
                *next += 1;
                continue;
            }
            if !count_if_pending(Some(peer), outcome, waiting)? {
                return Ok(());
            }
            *next += 1;
        }
        *next = usize::MAX;
        Ok(())
    }

    /// Completes one ended flush. Returns `None` if there is none, `Some(None)` if there is nothing to run.
    #[cold]
    pub(crate) fn next_flush_action(&mut self) -> Option<Option<Action>> {
        let at = self.flushes.iter().position(|f| matches!(f.stage, Stage::Ended))?;
        let flush = self.flushes.remove(at);
        Some(self.reqs.complete(flush.id, flush.result.map(|()| EMPTY_STATUS)))
    }

    pub(crate) fn cancel_flush(&mut self, id: RequestId) -> bool {
        match self.flushes.iter_mut().find(|f| f.id == id && !matches!(f.stage, Stage::Ended)) {
            Some(flush) => {
                flush.result = Err(Error::Cancelled);
                flush.stage = Stage::Ended;
                self.needs_poll = true;
                true
            }
            None => false,
        }
    }
}

/// Flushes every lane. `next` is `usize::MAX` afterwards.
fn flush_lanes(
    ifaces: &[WorkerIface],
    number: u32,
    next: &mut usize,
    waiting: &mut usize,
) -> Result<(), Error> {
    while let Some(lane) = ifaces.get(*next) {
        if !count_if_pending(None, lane.iface.flush(CompletionToken::Flush(number).comp()), waiting)? {
            return Ok(());
        }
        *next += 1;
    }
    *next = usize::MAX;
    Ok(())
}

/// Whether the transport took the flush; counts it as waiting if it completes later.
fn count_if_pending(peer: Option<PeerId>, outcome: Outcome, waiting: &mut usize) -> Result<bool, Error> {
    match outcome {
        Ok(Sent::Done) => Ok(true),
        Ok(Sent::InProgress) => {
            *waiting += 1;
            Ok(true)
        }
        Err(Refused::NoResource) => Ok(false),
        Err(Refused::Failed(e)) => Err(wire_error(peer, e)),
    }
}

fn wire_error(peer: Option<PeerId>, e: WireError) -> Error {
    match (peer, fault_of(e)) {
        (Some(peer), fault) => Error::of_peer(peer, fault),
        (None, fault) => Error::of_device(fault),
    }
}
