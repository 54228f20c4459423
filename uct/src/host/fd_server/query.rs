//! A query to a peer's fd server: sent once, its reply received when it arrives. Interfaces go on meanwhile.
//! A stopped process does not reply and is not dead; the caller says how long it waits.

use super::client::{self, RETRY_INTERVAL, ReceivedExport, SPIN_TIME};
use super::watch::WatchMethod;
use super::{Capability, FdServer, Fetched, MAX_NAMES, Name, PerName};
use crate::api::ConnectError;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A query that was sent. Dropping it gives it up.
pub struct Query {
    wanted: PerName<Capability>,
    /// The connection, and how to watch the peer; `None` while its backlog is full or after a hang-up.
    connection: Option<(OwnedFd, WatchMethod)>,
    sent_at: Instant,
    /// An fd server replies in microseconds, a starved one in milliseconds; later it counts as unreachable.
    answer_timeout: Duration,
    next_attempt: Instant,
}

pub enum QueryResult {
    Pending(Box<Query>),
    Answered(Vec<(Name, Result<Fetched, ConnectError>)>),
}

impl Query {
    /// Whether the answer timeout is over. A late reply is received all the same.
    pub fn is_overdue(&self) -> bool {
        self.sent_at.elapsed() >= self.answer_timeout
    }

    /// Lets the peer's fd server run, which may need this core.
    fn pause(&self, waited: Duration, left: Duration) -> Result<(), ConnectError> {
        match &self.connection {
            _ if waited < SPIN_TIME => std::thread::yield_now(),
            Some((socket, _)) => client::wait_readable(socket, left)?,
            None => std::thread::sleep(RETRY_INTERVAL.min(left)),
        }
        Ok(())
    }
}

impl FdServer {
    /// Queries the owner of what is `wanted`, of which the first [`MAX_NAMES`] count, without waiting. The
    /// results are independent of each other, except that descriptors may suffice for the first ones only.
    /// The query is overdue after `answer_timeout`.
    pub fn query(
        &self,
        wanted: impl IntoIterator<Item = impl Into<Capability>>,
        answer_timeout: Duration,
    ) -> Result<Box<Query>, ConnectError> {
        let wanted: PerName<Capability> = wanted.into_iter().take(MAX_NAMES).map(Into::into).collect();
        let connection =
            self.send_query(&wanted).inspect_err(|why| self.unlink_stale(wanted.first(), *why))?;
        let now = Instant::now();
        Ok(Box::new(Query { wanted, connection, sent_at: now, answer_timeout, next_attempt: now }))
    }

    /// A process listens before anybody knows its name, so the socket file of one that is gone is stale.
    fn unlink_stale(&self, first: Option<&Capability>, why: ConnectError) {
        if let (ConnectError::Gone, Some(first)) = (why, first) {
            self.namespace.unlink(first.name.owner());
        }
    }

    /// Connects and sends. `None`: try again. A server that hangs up is short of something, or closed.
    fn send_query(&self, wanted: &[Capability]) -> Result<Option<(OwnedFd, WatchMethod)>, ConnectError> {
        let owner = wanted.first().ok_or(ConnectError::Malformed)?.name.owner();
        let Some(socket) = client::connect(&self.namespace, owner)? else { return Ok(None) };
        let method = self.shared.watches.identify(owner, &socket)?;
        match client::send_request(&socket, wanted, method.keep_open()) {
            Err(ConnectError::Gone) if method.may_be_alive() => Ok(None),
            query => query.map(|()| Some((socket, method))),
        }
    }

    /// The reply, if it has arrived or does within `timeout`. Without a timeout it may be called often: the
    /// attempts to receive become rarer, down to one in a millisecond.
    pub fn wait(&self, mut query: Box<Query>, timeout: Duration) -> Result<QueryResult, ConnectError> {
        let start = Instant::now();
        if timeout.is_zero() && start < query.next_attempt {
            return Ok(QueryResult::Pending(query));
        }
        let until = start + timeout.min(query.answer_timeout.saturating_sub(start - query.sent_at));
        loop {
            let first = query.wanted.first().copied();
            query =
                match self.try_receive(query).inspect_err(|why| self.unlink_stale(first.as_ref(), *why))? {
                    QueryResult::Pending(query) => query,
                    all => return Ok(all),
                };
            let now = Instant::now();
            if now >= until {
                query.next_attempt = now + ((now - query.sent_at) / 16).min(RETRY_INTERVAL);
                return Ok(QueryResult::Pending(query));
            }
            query.pause(now - start, until - now)?;
        }
    }

    fn try_receive(&self, mut query: Box<Query>) -> Result<QueryResult, ConnectError> {
        if query.connection.is_none() {
            query.connection = self.send_query(&query.wanted)?;
        }
        let Some((socket, method)) = query.connection.take() else { return Ok(QueryResult::Pending(query)) };
        let received = match client::receive_reply(&socket, &query.wanted) {
            Ok(Some(received)) => received,
            Ok(None) => {
                query.connection = Some((socket, method));
                return Ok(QueryResult::Pending(query));
            }
            Err(ConnectError::Gone) if method.may_be_alive() => return Ok(QueryResult::Pending(query)),
            Err(why) => return Err(why),
        };
        let owner = query.wanted.first().ok_or(ConnectError::Malformed)?.name.owner();
        let watch = self.shared.watches.watch(owner, method, socket)?;
        let fetched = |ReceivedExport { mem, kind }| Fetched { mem, kind, watch: watch.clone() };
        let received = received.into_iter().map(|received| received.map(fetched));
        Ok(QueryResult::Answered(query.wanted.iter().map(|it| it.name).zip(received).collect()))
    }
}
