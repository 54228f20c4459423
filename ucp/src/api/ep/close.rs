//! Flush and close of endpoints.

use std::rc::{Rc, Weak};
use std::time::Duration;

use ucs::time::Nanos;

use crate::api::core::ep_state::EpState;
use crate::api::core::error::Error;
use crate::api::core::flushes::OnTimeout;
use crate::api::ep::end_ops::abort_ep_ops;
use crate::api::ep::handle::Ep;
use crate::api::request::handles::FlushRequest;
use crate::api::stream::ops::close_stream;

/// Mode of closing an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CloseMode {
    /// Flushes for at most this long, then forces.
    Flush(Duration),
    /// Aborts at once: the operations of the endpoint end, and those of others to the peer go on. The other
    /// end of a connection ([`Worker::connect_to`](crate::Worker::connect_to)) fails with [`Error::Reset`].
    /// With the last endpoint to a peer the conversation ends: all endpoints of the peer's side fail.
    Force,
}

impl Ep {
    /// Completes when everything sent to this peer was handed over and acknowledged as its protocol requires.
    /// Fails with [`Error::PeerGone`], [`Error::Unreachable`] or [`Error::Unresponsive`] if the peer is or
    /// gets lost.
    pub fn flush(&self) -> FlushRequest {
        flush_until(self, Nanos::NEVER, OnTimeout::EndFlush)
    }

    /// Flushes within the time limit. [`Error::TimedOut`]: data is still in flight.
    pub fn flush_within(&self, limit: Duration) -> FlushRequest {
        let now = self.worker().core().now();
        flush_until(self, now + limit, OnTimeout::EndFlush)
    }

    /// Closes the endpoint: further sends fail. [`Error::TimedOut`]: not everything arrived in time. If no
    /// other endpoint to the peer is open, receives that wait for its stream end as cancelled.
    pub fn close(self, how: CloseMode) -> FlushRequest {
        cancel_stream_recvs(&self);
        match how {
            CloseMode::Flush(within) if self.state().failure().is_none() => {
                let now = self.worker().core().now();
                let request = flush_until(&self, now + within, OnTimeout::AbortOps);
                self.state().refuse(Error::Closed);
                request
            }
            _ => {
                let ended = self.state().failure().map_or(Ok(()), Err);
                self.state().refuse(Error::Closed);
                abort_ep_ops(&mut self.worker().core(), self.state(), Error::Cancelled);
                FlushRequest::new(self.worker(), ended.map(|()| None))
            }
        }
    }
}

/// Ends the receives from the stream of an endpoint's connection, or from that of its peer, unless another
/// endpoint to the peer is open.
pub(crate) fn cancel_stream_recvs(ep: &Ep) {
    // A handle may be dropped where the worker is borrowed; then its receives stay.
    let Ok(mut core) = ep.worker().inner.core.try_borrow_mut() else { return };
    if ep.state().connection() != 0 {
        core.idle = false;
        return close_stream(&mut core, ep.state());
    }
    if !core.streams.has_waiters() {
        return;
    }
    let (state, peer) = (ep.state(), ep.peer());
    let is_other = |ep: &Rc<EpState>| !Rc::ptr_eq(ep, state) && ep.peer() == peer && ep.is_open();
    if !core.eps.iter().filter_map(Weak::upgrade).any(|ep| is_other(&ep)) {
        core.idle = false;
        core.cancel_stream_recvs(ep.state().stream());
    }
}

impl Drop for Ep {
    fn drop(&mut self) {
        // Operations that wait for the peer hold the state, too.
        if Rc::strong_count(self.state()) == 1 {
            cancel_stream_recvs(self);
        }
    }
}

fn flush_until(ep: &Ep, deadline: Nanos, on_timeout: OnTimeout) -> FlushRequest {
    let started = ep.worker().core().start_flush(Some(ep.state().clone()), (deadline, on_timeout), None);
    FlushRequest::new(ep.worker(), started.map(Some))
}
