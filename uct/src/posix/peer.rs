//! A peer as this interface knows it, shared by all its endpoints: the query for its segment, the [`Link`] to
//! it once it is attached, and why it has failed.

use super::link::{Link, PeerFailure};
use super::pending_order::WaitingQueues;
use super::seg::DEFAULT_SLOT_LEN;
use crate::api::{ConnectError, Error};
use crate::base::ep_table::EpTable;
use crate::host::fd_server::{Alarm, Export, FdServer, Fetched, Name, Query};
use std::cell::{Cell, OnceCell};
use std::sync::Arc;

pub struct Peer {
    name: Name,
    link: OnceCell<Link>,
    /// Reply to a query for another peer of the process, used when this one is attached.
    fetched: Cell<Option<Fetched>>,
    query: Cell<Option<Box<Query>>>,
    /// It was gone when it was to be attached, or its process has died: every call on its endpoints fails.
    failed: Cell<bool>,
    /// It has failed, or a send has found its process dead: its memory stays mapped while a key exists, but
    /// is not touched.
    failed_or_dead: Cell<bool>,
    reported: Cell<bool>,
    /// Why, once it has failed.
    failure: Cell<PeerFailure>,
    /// The log says why it cannot be reached.
    told_why: Cell<bool>,
    /// The ticket below which all is that it can have sent, once it is dead.
    drain_limit: Cell<Option<u64>>,
    pub eps: EpTable,
    pub waiting: WaitingQueues,
}

impl Peer {
    pub fn new(name: Name) -> Peer {
        let (fetched, query) = (Cell::new(None), Cell::new(None));
        let (failed, failed_or_dead) = (Cell::new(false), Cell::new(false));
        let (reported, told_why) = (Cell::new(false), Cell::new(false));
        let failure = Cell::new(PeerFailure::Dead);
        let drain_limit = Cell::new(None);
        let (link, eps, waiting) = (OnceCell::new(), EpTable::default(), WaitingQueues::default());
        Peer {
            name,
            link,
            fetched,
            query,
            failed,
            failed_or_dead,
            reported,
            failure,
            told_why,
            drain_limit,
            eps,
            waiting,
        }
    }

    pub fn name(&self) -> Name {
        self.name
    }

    /// The error of an operation on a peer that cannot be attached. The log tells once what that leaves out.
    #[cold]
    pub fn op_error(&self, why: ConnectError) -> Error {
        match why {
            ConnectError::Gone => self.cause(),
            ConnectError::Op(e) => e,
            why => {
                if !self.told_why.replace(true) {
                    tracing::error!("peer {:#x} on this host cannot be reached: {why}", self.name.0);
                }
                Error::Unreachable
            }
        }
    }

    pub fn needs_query(&self) -> bool {
        self.needs_fetch() && !self.has_query()
    }

    pub fn has_query(&self) -> bool {
        let query = self.query.take();
        let is = query.is_some();
        self.query.set(query);
        is
    }

    fn needs_fetch(&self) -> bool {
        let fetched = self.fetched.take();
        let wanting = fetched.is_none() && self.link.get().is_none() && !self.failed.get();
        self.fetched.set(fetched);
        wanting
    }

    /// Keeps what its fd server returned until it is attached. `alarm` is raised when the peer dies.
    pub fn set_fetched(&self, fetched: Fetched, alarm: &Arc<Alarm>) {
        if self.needs_fetch() {
            fetched.watch.subscribe(alarm);
            self.fetched.set(Some(fetched));
        }
    }

    pub fn take_query(&self) -> Option<Box<Query>> {
        self.query.take()
    }

    pub fn set_query(&self, query: Box<Query>) {
        self.query.set(Some(query));
    }

    pub fn drop_fetched(&self) -> bool {
        self.fetched.take().is_some()
    }

    /// Marks the peer failed, as its process has died, or shared memory is corrupt: every call on its
    /// endpoints fails from now on.
    pub fn mark_failed(&self, failure: PeerFailure) {
        self.failure.set(failure);
        self.set_failed();
        self.reported.set(true);
        if let Some(link) = self.link.get() {
            link.mark_dead(failure);
        }
        self.query.take();
        self.drop_fetched();
    }

    fn set_failed(&self) {
        self.failed.set(true);
        self.failed_or_dead.set(true);
    }

    pub fn has_failed(&self) -> bool {
        self.failed.get()
    }

    /// A send has found its process dead, perhaps before the fd server was notified.
    pub fn set_found_dead(&self) {
        self.failed_or_dead.set(true);
    }

    /// Whether it has failed, or a send has found its process dead.
    // HOT
    #[inline(always)]
    pub fn has_failed_or_died(&self) -> bool {
        self.failed_or_dead.get()
    }

    /// The error of a peer that has failed, or of which a send has found that it will.
    // HOT
    #[inline(always)]
    pub fn cause(&self) -> Error {
        self.failure().error()
    }

    #[cold]
    fn failure(&self) -> PeerFailure {
        match self.link.get() {
            Some(link) => link.failure().unwrap_or(self.failure.get()),
            None => self.failure.get(),
        }
    }

    /// Whether a send has found its segment corrupt, and its endpoints have not been failed.
    pub fn is_found_corrupt(&self) -> bool {
        !self.reported.get() && self.failure() == PeerFailure::Corrupt
    }

    pub fn is_reported(&self) -> bool {
        self.reported.get()
    }

    /// Whether sends to it fail, because it has failed or closed its interface.
    pub fn is_send_failing(&self) -> bool {
        self.failed.get() || self.link.get().is_some_and(|link| link.failure().is_some())
    }

    /// The attached segment.
    // HOT
    #[inline(always)]
    pub fn link(&self) -> Option<&Link> {
        self.link.get()
    }

    /// Attaches the segment if it is not yet, with what was fetched before or what `fetch` returns; `None` if
    /// that is nothing yet. An error that may pass (no descriptor left) is retried by the next call.
    #[cold]
    pub fn attach(
        &self,
        iface: &Export,
        fetch: impl FnOnce() -> Result<Option<Fetched>, ConnectError>,
    ) -> Result<Option<&Link>, ConnectError> {
        if self.failed.get() {
            return Err(ConnectError::Gone);
        }
        if let Some(link) = self.link.get() {
            return Ok(Some(link));
        }
        let fetched = self.fetched.take().map_or_else(fetch, |fetched| Ok(Some(fetched)));
        let attach = |fetched: Option<_>| fetched.map(|it| Link::attach(iface, self.name, it)).transpose();
        match fetched.and_then(attach) {
            Ok(None) => Ok(None),
            Ok(Some(link)) => {
                // A query for another peer may have brought it meanwhile.
                self.query.take();
                Ok(Some(self.link.get_or_init(|| link)))
            }
            Err(why) => {
                if why == ConnectError::Gone {
                    self.set_failed();
                }
                Err(why)
            }
        }
    }

    /// Longest packet it takes, id byte included, if its name says so.
    pub fn default_max_packet(&self) -> Option<usize> {
        self.name.has_default_slots().then_some(DEFAULT_SLOT_LEN)
    }

    pub fn is_alive(&self, server: &FdServer) -> bool {
        match self.link.get() {
            Some(link) => link.is_alive(),
            None => !self.failed.get() && server.is_alive(self.name.owner()),
        }
    }

    /// The ticket below which all is that it can have sent: `claimed`, at the first call after its death.
    pub fn drain_limit(&self, claimed: impl FnOnce() -> u64) -> u64 {
        let last = self.drain_limit.get().unwrap_or_else(claimed);
        self.drain_limit.set(Some(last));
        last
    }

    /// Whether its interface is known to be closed, while its process may live: connecting needs a new peer.
    pub fn is_closed(&self) -> bool {
        match self.link.get() {
            Some(link) => link.is_closed() && !link.has_process_died(),
            None => self.failed.get() && !self.reported.get(),
        }
    }

    pub fn has_died(&self, server: &FdServer) -> bool {
        match self.link.get() {
            Some(link) => link.is_known_dead(),
            None => server.is_known_dead(self.name.owner()),
        }
    }

    /// Whether its process has died and its endpoints have not been [failed](Peer::mark_failed).
    pub fn is_unreported(&self, server: &FdServer) -> bool {
        !self.reported.get() && self.has_died(server)
    }
}
