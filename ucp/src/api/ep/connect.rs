//! Making of endpoints: to an address, to a peer that has sent its address, and without a peer.

use std::rc::Rc;

use arrayvec::ArrayVec;
use uct::api::Iface as _;

use crate::address::Address;
use crate::api::core::ep_config::table_index;
use crate::api::core::ep_state::{EpLink, EpState, Rails};
use crate::api::core::error::{ConnectFailure, Error};
use crate::api::core::worker_core::{ConnectCheck, WorkerCore};
use crate::api::ep::config::tables;
use crate::api::ep::deferred::start_deferred;
use crate::api::ep::handle::{Ep, EpParams};
use crate::api::ep::rails::{add_rails, rank};
use crate::api::worker::handle::Worker;

use crate::lane::{ConnectError, IfaceIdx, RmaOnlyEp, routes};
use crate::rdm::Conversation;
use crate::rdm::io::PeerId;
use crate::rdm::mark_connected;
use crate::select::{CqData, DeliveryComplete, Kind};

/// Gives an endpoint of [`Worker::connect_later`] its peer. Dropping it before fails the endpoint with
/// [`ConnectFailure::Cancelled`].
#[must_use = "an endpoint without a peer fails when this is dropped"]
pub struct EpConnector {
    worker: Worker,
    ep: Rc<EpState>,
}

impl Worker {
    /// Creates an endpoint to the worker at `address`. The peer learns of this worker from its first packet.
    pub fn connect(&self, address: &Address, params: EpParams) -> Result<Ep, ConnectError> {
        let mut core = self.core();
        let check = if params.check_peer { ConnectCheck::Now } else { ConnectCheck::Later };
        let link = link_to(self, &mut core, address, check)?;
        Ok(make_ep(self, &mut core, link, params))
    }

    /// Creates an endpoint whose peer is not known yet. Operations on it wait until
    /// [`EpConnector::connect`], and then start in the order of their calls. They end with an error if that
    /// never happens.
    pub fn connect_later(&self, params: EpParams) -> (Ep, EpConnector) {
        let ep = make_pending_ep(self, params);
        let connector = EpConnector { worker: self.clone(), ep: ep.state().clone() };
        (ep, connector)
    }
}

pub(crate) fn make_pending_ep(worker: &Worker, params: EpParams) -> Ep {
    let mut core = worker.core();
    let tables = tables(&mut core, PeerId::NONE, &worker.inner.limits);
    let state = EpState::pending(tables, params.errors);
    Ep::from_state(worker.clone(), add_ep(&mut core, state))
}

/// Creates an endpoint to a peer that has sent its address.
pub(crate) fn ep_to(worker: &Worker, peer: PeerId) -> Option<Ep> {
    let mut core = worker.core();
    let view = core.engine.peers().info(peer).filter(|view| view.fault.is_none())?;
    core.peer_eps.get(peer)?;
    mark_connected(core.engine.peers_mut(), peer);
    let lane = core.ifaces.iter().position(|lane| lane.wire == view.wire)?;
    let link = EpLink {
        peer,
        lanes: ArrayVec::from_iter([IfaceIdx(lane as u8)]),
        rails: Rails::new(),
        rma_only_ep: RmaOnlyEp::none(),
        tables: tables(&mut core, peer, &worker.inner.limits),
        over_loopback: core.is_self(peer),
        to_self: false,
        conversation: Conversation::with(core.engine.peers(), peer).number,
    };
    Some(make_ep(worker, &mut core, link, EpParams::default()))
}

/// Adds the peer at `address` and chooses the lanes to it.
fn link_to(
    worker: &Worker,
    core: &mut WorkerCore,
    address: &Address,
    check: ConnectCheck,
) -> Result<EpLink, ConnectError> {
    let mut routes = routes(&core.ifaces, core.id.process, address)?;
    routes.sort_by_key(|route| rank(core, route));
    let mut tried = Vec::new();
    let (mut peer, mut rails) = (None, Rails::new());
    let mut lanes = ArrayVec::new();
    for route in &routes {
        if peer.is_none() {
            // Another lane may reach it.
            let check = match check {
                ConnectCheck::Later if routes.len() > 1 => ConnectCheck::Briefly,
                check => check,
            };
            match core.add_peer(route, check) {
                Ok(id) => {
                    rails = add_rails(core, id, route, address);
                    peer = Some(id);
                }
                Err(why) => {
                    let lane = &core.ifaces[usize::from(route.lane.0)];
                    tried.push((lane.iface.attr().tl, why));
                    continue;
                }
            }
        }
        if !lanes.contains(&route.lane) && lanes.try_push(route.lane).is_err() {
            break;
        }
    }
    let Some(peer) = peer else { return Err(ConnectError::Unreachable { tried }) };
    let packets = core.peer_eps.get(peer).zip(core.rma_only.as_ref());
    let rma_only_ep = lanes.first().zip(packets).map_or_else(RmaOnlyEp::none, |(at, (peer_ep, rma_only))| {
        let lane = &core.ifaces[usize::from(at.0)].iface;
        rma_only.ep_to(lane, &peer_ep.ep, core.id.process, address)
    });
    let (tables, over_loopback) = (tables(core, peer, &worker.inner.limits), core.is_self(peer));
    let conversation = Conversation::with(core.engine.peers(), peer).number;
    let to_self = address.id.uid != 0 && address.id.uid == core.id.uid;
    Ok(EpLink { peer, lanes, rma_only_ep, rails, tables, over_loopback, to_self, conversation })
}

fn make_ep(worker: &Worker, core: &mut WorkerCore, link: EpLink, params: EpParams) -> Ep {
    let short_below = short_below(&link);
    let state = add_ep(core, EpState::linked(link, short_below, params.errors));
    Ep::from_state(worker.clone(), state)
}

/// Gives a pending endpoint its peer, and starts its operations. If that fails, so does the endpoint.
pub(crate) fn link_ep(worker: &Worker, ep: &Rc<EpState>, address: &Address) -> Result<(), ConnectError> {
    if !ep.is_pending() {
        return Err(ConnectError::EndpointClosed);
    }
    let mut core = worker.core();
    // The worker has just told its address.
    let link = match link_to(worker, &mut core, address, ConnectCheck::Later) {
        Ok(link) => link,
        Err(error) => {
            drop(core);
            fail_ep(worker, ep, Error::ConnectFailed(ConnectFailure::Unreachable));
            return Err(error);
        }
    };
    core.engine.peers_mut().streams.set_peer(u64::from(ep.connection()), link.peer);
    drop(core);
    if ep.was_closed_by(link.peer) {
        fail_ep(worker, ep, Error::Reset(link.peer));
        return Err(ConnectError::EndpointClosed);
    }
    let short_below = short_below(&link);
    ep.set_link(link);
    if ep.refusal.get() == Some(Error::NotConnected) {
        ep.refusal.set(None);
    }
    start_deferred(worker, ep);
    if ep.refusal.get().is_none() {
        ep.allow_short(short_below);
    }
    worker.core().flush_linked(ep);
    Ok(())
}

/// Fails a pending endpoint, its operations and flushes.
pub(crate) fn fail_ep(worker: &Worker, ep: &Rc<EpState>, error: Error) {
    if !ep.is_pending() {
        return;
    }
    let calls = ep.fail_link(error);
    {
        let mut core = worker.core();
        let core = &mut *core;
        core.deferred.fail(ep, error, &mut core.reqs);
    }
    // User code, which may use the worker: nothing of it is borrowed.
    if calls {
        ep.call_error_handler(error);
    }
}

fn add_ep(core: &mut WorkerCore, state: EpState) -> Rc<EpState> {
    let state = Rc::new(state);
    if core.eps.len() == core.eps.capacity() {
        core.eps.retain(|ep| ep.strong_count() > 0);
    }
    core.eps.push(Rc::downgrade(&state));
    state
}

fn short_below(link: &EpLink) -> usize {
    let default = table_index(Kind::Tagged, DeliveryComplete::No, CqData::No);
    link.tables.short_max(default).map_or(0, |max| max.saturating_add(1))
}

impl EpConnector {
    /// Connects the endpoint to the worker at `address`. If no lane reaches it, the endpoint fails, too.
    /// [`ConnectError::EndpointClosed`]: nobody waits for the peer any more.
    pub fn connect(self, address: &Address) -> Result<(), ConnectError> {
        link_ep(&self.worker, &self.ep, address)
    }

    /// Fails the endpoint and all its operations.
    pub fn fail(self, error: Error) {
        fail_ep(&self.worker, &self.ep, error);
    }

    /// Whether the endpoint still waits for its peer: it has not been closed by force, or in vain.
    pub fn is_awaited(&self) -> bool {
        self.ep.is_pending()
    }
}

impl Drop for EpConnector {
    fn drop(&mut self) {
        fail_ep(&self.worker, &self.ep, Error::ConnectFailed(ConnectFailure::Cancelled));
    }
}

impl std::fmt::Debug for EpConnector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EpConnector").field("stage", &self.ep.stage()).finish()
    }
}
