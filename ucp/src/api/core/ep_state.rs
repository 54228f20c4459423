//! State of an endpoint, shared by its handle and the worker.

use std::cell::{Cell, OnceCell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrayvec::ArrayVec;

use crate::api::core::ep_config::{EpConfig, table_index};
use crate::api::core::error::Error;

use crate::lane::{self, IfaceIdx, RmaOnlyEp, RmaOnlyLane};
use crate::rdm::MAX_RAILS;
use crate::rdm::io::{LaneId, PeerId};
use crate::select::{CqData, DeliveryComplete, Kind};
use crate::token::StreamId;

pub(crate) const MAX_LANES: usize = 4;

/// Further lanes of an endpoint.
pub(crate) type Rails = ArrayVec<LaneId, { MAX_RAILS - 1 }>;

/// Handling of a failure of an endpoint's peer.
#[derive(Default)]
#[non_exhaustive]
pub enum ErrorMode {
    /// Operations complete with the error; there is no other notification.
    #[default]
    None,
    /// This callback is also called, once: by progress, or within [`EpConnector`](crate::EpConnector)'s
    /// `connect`, `fail` and drop.
    Peer(Box<dyn FnMut(Error)>),
}

static NO_RAILS: Rails = Rails::new_const();

/// A number that no living endpoint of the process has, of 2^32.
fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The connection of an endpoint to its peer.
pub(crate) struct EpLink {
    /// Peer on the lane that carries messages.
    pub(crate) peer: PeerId,
    /// Lanes to the peer, cheapest first.
    pub(crate) lanes: ArrayVec<IfaceIdx, MAX_LANES>,
    pub(crate) rma_only_ep: RmaOnlyEp,
    pub(crate) rails: Rails,
    pub(crate) tables: Rc<EpConfig>,
    pub(crate) over_loopback: bool,
    /// Whether the peer is the worker itself, by whichever lane.
    pub(crate) to_self: bool,
    /// Number of the conversation with the peer.
    pub(crate) conversation: u32,
}

/// Stage of an endpoint's connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LinkStage {
    /// The peer is not known yet; operations are deferred.
    Pending,
    Linked,
    /// The peer never became known.
    Failed(Error),
}

pub(crate) struct EpState {
    /// Number of the peer, [`PeerId::NONE`] without a link.
    peer: Cell<PeerId>,
    /// Bound below which messages may go as one packet within the call; 0 once sends are refused, and to
    /// this worker itself.
    pub(crate) short_below: Cell<usize>,
    /// Bound below which messages to this worker itself are short; 0 to other peers, and once sends are
    /// refused.
    pub(crate) short_to_self_below: Cell<usize>,
    /// Error of every send, once the endpoint is closed or failed; [`Error::NotConnected`] while pending.
    pub(crate) refusal: Cell<Option<Error>>,
    over_loopback: Cell<bool>,
    to_self: Cell<bool>,
    stage: Cell<LinkStage>,
    /// Tables while there is no link: an estimate.
    tables: Rc<EpConfig>,
    link: OnceCell<EpLink>,
    pub(crate) errors: RefCell<ErrorMode>,
    sockets: OnceCell<Box<(SocketAddr, SocketAddr)>>,
    /// Number of the endpoint, for its operations.
    number: u32,
    /// The peer that has closed the connection by force before this end had its peer.
    closed_by: Cell<Option<PeerId>>,
    /// Number of the connection at this worker, and at the peer; 0: the endpoint was made of an address.
    connection: Cell<u32>,
    peer_connection: Cell<u32>,
}

impl EpState {
    /// State of an endpoint whose peer is not known yet.
    pub(crate) fn pending(tables: Rc<EpConfig>, errors: ErrorMode) -> EpState {
        EpState {
            peer: Cell::new(PeerId::NONE),
            short_below: Cell::new(0),
            short_to_self_below: Cell::new(0),
            refusal: Cell::new(Some(Error::NotConnected)),
            over_loopback: Cell::new(false),
            to_self: Cell::new(false),
            stage: Cell::new(LinkStage::Pending),
            tables,
            link: OnceCell::new(),
            errors: RefCell::new(errors),
            sockets: OnceCell::new(),
            number: next_number(),
            closed_by: Cell::new(None),
            connection: Cell::new(0),
            peer_connection: Cell::new(0),
        }
    }

    /// State of an endpoint with a peer. Messages below `short_below` are short.
    pub(crate) fn linked(link: EpLink, short_below: usize, errors: ErrorMode) -> EpState {
        let state = EpState::pending(link.tables.clone(), errors);
        state.set_link(link);
        state.refusal.set(None);
        state.allow_short(short_below);
        state
    }

    /// Lets messages below a bound be sent within the call.
    pub(crate) fn allow_short(&self, below: usize) {
        if self.is_over_loopback() {
            self.short_to_self_below.set(below);
        } else {
            self.short_below.set(below);
        }
    }

    /// Sets the peer of a pending endpoint. Operations are still refused.
    pub(crate) fn set_link(&self, link: EpLink) {
        self.peer.set(link.peer);
        self.over_loopback.set(link.over_loopback);
        self.to_self.set(link.to_self);
        self.stage.set(LinkStage::Linked);
        let first = self.link.set(link).is_ok();
        debug_assert!(first, "an endpoint has one peer");
    }

    /// Ends the wait for the peer with an error. Returns true if the failure callback is to be called.
    pub(crate) fn fail_link(&self, error: Error) -> bool {
        self.stage.set(LinkStage::Failed(error));
        self.fail(error)
    }

    // HOT
    #[inline(always)]
    pub(crate) fn peer(&self) -> PeerId {
        self.peer.get()
    }

    pub(crate) fn stage(&self) -> LinkStage {
        self.stage.get()
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.stage.get() == LinkStage::Pending
    }

    #[inline]
    pub(crate) fn is_over_loopback(&self) -> bool {
        self.over_loopback.get()
    }

    /// Whether the peer is the worker itself, by whichever lane.
    // HOT
    #[inline(always)]
    pub(crate) fn is_to_self(&self) -> bool {
        self.to_self.get()
    }

    // HOT
    #[inline(always)]
    pub(crate) fn tables(&self) -> &EpConfig {
        self.link.get().map_or(&self.tables, |link| &link.tables)
    }

    #[inline]
    pub(crate) fn lanes(&self) -> &[IfaceIdx] {
        self.link.get().map_or(&[], |link| &link.lanes)
    }

    /// Number of the conversation with the peer; the endpoint ends with it.
    pub(crate) fn conversation(&self) -> u32 {
        self.link.get().map_or(0, |link| link.conversation)
    }

    /// Whether it may be used: it is neither closed nor failed.
    pub(crate) fn is_open(&self) -> bool {
        self.refusal.get().is_none_or(|refusal| refusal == Error::NotConnected)
    }

    pub(crate) fn rails(&self) -> &Rails {
        self.link.get().map_or(&NO_RAILS, |link| &link.rails)
    }

    /// Lane of messages.
    #[inline]
    pub(crate) fn lane(&self) -> Option<IfaceIdx> {
        self.lanes().first().copied()
    }

    /// Kernel access to the peer's memory.
    pub(crate) fn kernel_copy_ep(&self, rma_only: Option<&RmaOnlyLane>) -> Option<&lane::Ep> {
        self.link.get()?.rma_only_ep.get(rma_only)
    }

    /// Kernel access to memory of the peer that a number names.
    pub(crate) fn rma_only_ep(&self) -> Option<&RmaOnlyEp> {
        self.link.get().map(|link| &link.rma_only_ep)
    }

    /// Longest tagged message sent in one packet, bytes.
    // HOT
    #[inline]
    pub(crate) fn eager_max(&self) -> usize {
        self.tables().send[table_index(Kind::Tagged, DeliveryComplete::No, CqData::No)].eager_max()
    }

    /// Error with which the endpoint refuses operations.
    #[inline]
    pub(crate) fn usable(&self) -> Result<(), Error> {
        self.refusal.get().map_or(Ok(()), Err)
    }

    /// Records the peer's failure. Returns true the first time, if a callback is set.
    pub(crate) fn fail(&self, error: Error) -> bool {
        let first = self.failure().is_none();
        if self.refusal.get().is_none_or(|refusal| refusal == Error::NotConnected) {
            self.refuse(error);
        }
        first && matches!(&*self.errors.borrow(), ErrorMode::Peer(_))
    }

    pub(crate) fn refuse(&self, why: Error) {
        self.refusal.set(Some(why));
        self.short_below.set(0);
        self.short_to_self_below.set(0);
    }

    pub(crate) fn failure(&self) -> Option<Error> {
        self.refusal.get().filter(|e| !matches!(e, Error::Closed | Error::NotConnected))
    }

    /// Sets the socket addresses, ours and the peer's.
    pub(crate) fn set_sockets(&self, local: SocketAddr, remote: SocketAddr) {
        let first = self.sockets.set(Box::new((local, remote))).is_ok();
        debug_assert!(first, "an endpoint has one exchange");
    }

    pub(crate) fn sockets(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.sockets.get().map(|both| **both)
    }

    /// Number of the endpoint, which its operations have.
    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Notes that a peer has closed the connection, of which this end does not know the peer yet.
    pub(crate) fn note_closed_by(&self, peer: PeerId) {
        self.closed_by.set(self.closed_by.get().or(Some(peer)));
    }

    /// Whether this peer has closed the connection before this end knew its peer.
    pub(crate) fn was_closed_by(&self, peer: PeerId) -> bool {
        self.closed_by.get() == Some(peer)
    }

    /// Number of the connection at this worker; 0: none.
    pub(crate) fn connection(&self) -> u32 {
        self.connection.get()
    }

    pub(crate) fn set_connection(&self, number: u32) {
        self.connection.set(number);
    }

    /// The peer's number of the connection; 0: none.
    // HOT
    #[inline(always)]
    pub(crate) fn peer_connection(&self) -> u32 {
        self.peer_connection.get()
    }

    pub(crate) fn set_peer_connection(&self, number: u32) {
        self.peer_connection.set(number);
    }

    /// The stream that the endpoint receives from. The peer numbers its messages if it knows connections.
    pub(crate) fn stream(&self) -> StreamId {
        let connection = if self.peer_connection() == 0 { 0 } else { self.connection() };
        StreamId { peer: self.peer(), connection }
    }

    /// Sets the handling of the peer's failure, unless there is a callback. Returns what is not set, whose
    /// drop is user code.
    #[must_use]
    pub(crate) fn set_default_error_mode(&self, errors: ErrorMode) -> ErrorMode {
        let mut present = self.errors.borrow_mut();
        match &*present {
            ErrorMode::None => std::mem::replace(&mut *present, errors),
            ErrorMode::Peer(_) => errors,
        }
    }

    /// Removes the failure callback, whose drop is user code.
    #[must_use]
    pub(crate) fn take_error_handler(&self) -> ErrorMode {
        std::mem::take(&mut *self.errors.borrow_mut())
    }

    /// Calls the failure callback, which is user code.
    pub(crate) fn call_error_handler(&self, error: Error) {
        if let ErrorMode::Peer(mut call) = self.take_error_handler() {
            call(error);
        }
    }
}
