//! Progress of exchanges: makes endpoints of addresses that have arrived, and calls listeners' callbacks.

use std::rc::Rc;

use crate::api::cm::connect::read_connection;
use crate::api::core::ep_state::EpState;
use crate::api::core::error::Error;
use crate::api::ep::connect::{fail_ep, link_ep};
use crate::api::worker::handle::Worker;
use crate::cm::{Answer, CmEvent};
use crate::lane::ConnectError;

/// Handles what exchanges have come to. Returns the number of events.
#[cold]
pub(crate) fn handle_cm_events(worker: &Worker) -> usize {
    let mut handled = 0;
    loop {
        let event = worker.core().cm.get().and_then(|exchanges| exchanges.take_event());
        let Some(event) = event else { return handled };
        match event {
            CmEvent::Requested(listener, handler, request) => match handler.clone().try_borrow_mut() {
                Ok(mut call) => call(request),
                // The callback makes progress; it gets the next request when it has returned.
                Err(_) => {
                    if let Some(exchanges) = worker.core().cm.get() {
                        exchanges.return_event(CmEvent::Requested(listener, handler, request));
                    }
                    return handled;
                }
            },
            CmEvent::Accepted(id, ep, address, behind) => {
                ep.set_peer_connection(read_connection(&behind));
                let answer = match link_ep(worker, &ep, &address) {
                    Ok(()) => Answer::Connected,
                    Err(ConnectError::EndpointClosed) => Answer::Rejected,
                    Err(error) => {
                        tracing::debug!("cannot connect to the worker that has accepted: {error}");
                        Answer::Unreachable
                    }
                };
                let mut core = worker.core();
                let now = core.now();
                if let Some(exchanges) = core.cm.get() {
                    exchanges.confirm(id, answer, now);
                }
            }
            CmEvent::Failed(ep, why, _) => fail_connection(worker, &ep, Error::ConnectFailed(why)),
            // Exchanges of workers end when both sides are connected.
            CmEvent::Confirmed(_) | CmEvent::Closed(_) => {}
        }
        handled += 1;
    }
}

/// Fails an endpoint whose exchange has failed. Operations of an accepted one that have begun go on: they
/// end as the transport finds out.
fn fail_connection(worker: &Worker, ep: &Rc<EpState>, error: Error) {
    if ep.is_pending() {
        fail_ep(worker, ep, error);
    } else if ep.fail(error) {
        ep.call_error_handler(error);
    }
}
