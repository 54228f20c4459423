//! A question to a peer's fd server: asked once, its answer heard when it comes. Used by interfaces, which go on meanwhile, and by
//! memory domains. A stopped process does not answer and is not dead: whoever asked it says how long that may take.

use super::client::{self, RETRY_INTERVAL, ReceivedExport, SPIN_TIME};
use super::watch::WatchMethod;
use super::{FdServer, Fetched, MAX_NAMES, Name, PerName};
use crate::api::ConnectError;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A question that was asked. Dropped, nobody waits for the answer.
pub struct Query {
    names: PerName<Name>,
    /// Where the answer comes, and how the peer can be watched; none while more wait at its door than may, or it has hung up.
    connection: Option<(OwnedFd, WatchMethod)>,
    sent_at: Instant,
    /// An fd server answers in microseconds, a starved one in milliseconds; who has not after this long is as good as out of reach.
    answer_timeout: Duration,
    /// Not looked for again before.
    next_attempt: Instant,
}

/// What has come of a question.
pub enum QueryResult {
    /// Nothing yet.
    Pending(Box<Query>),
    /// The answer, name by name.
    Answered(Vec<(Name, Result<Fetched, ConnectError>)>),
}

impl Query {
    /// Whether its answer was waited for longer than anybody's should be. It is heard all the same, should it come.
    pub fn is_overdue(&self) -> bool {
        self.sent_at.elapsed() >= self.answer_timeout
    }

    /// Lets the peer's fd server run, which may have to have this core.
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
    /// Asks the owner of `names`, of which the first [`MAX_NAMES`] count, for what they name, and does not wait. What is said of one
    /// does not depend on the others, but for descriptors: if they do not suffice, the first names get them. Nobody is to wait
    /// for the answer longer than `answer_timeout`.
    pub fn query(
        &self,
        names: impl IntoIterator<Item = Name>,
        answer_timeout: Duration,
    ) -> Result<Box<Query>, ConnectError> {
        let names: PerName<Name> = names.into_iter().take(MAX_NAMES).collect();
        let connection = self.send_query(&names).inspect_err(|why| self.unlink_stale(names.first(), *why))?;
        let now = Instant::now();
        Ok(Box::new(Query { names, connection, sent_at: now, answer_timeout, next_attempt: now }))
    }

    /// Who is gone has listened before it told anybody its name, so a socket that it has left in a directory is nobody's.
    fn unlink_stale(&self, first: Option<&Name>, why: ConnectError) {
        if let (ConnectError::Gone, Some(name)) = (why, first) {
            self.namespace.unlink(name.owner());
        }
    }

    /// `None`: it is to be tried again. An fd server that hangs up, and whose process lives, is short of something; or it has closed
    /// its door, which the next try tells.
    fn send_query(&self, names: &[Name]) -> Result<Option<(OwnedFd, WatchMethod)>, ConnectError> {
        let owner = names.first().ok_or(ConnectError::Malformed)?.owner();
        let Some(socket) = client::connect(&self.namespace, owner)? else { return Ok(None) };
        let method = self.shared.watches.identify(owner, &socket)?;
        match client::send_request(&socket, names, method.keep_open()) {
            Err(ConnectError::Gone) if method.may_be_alive() => Ok(None),
            query => query.map(|()| Some((socket, method))),
        }
    }

    /// What has come of a question by now, or comes within `wait`. Whoever does not wait may ask as often as it likes: the
    /// longer nothing has come, the less often that is looked for, up to a millisecond. An error is an answer too.
    pub fn wait(&self, mut query: Box<Query>, timeout: Duration) -> Result<QueryResult, ConnectError> {
        let start = Instant::now();
        if timeout.is_zero() && start < query.next_attempt {
            return Ok(QueryResult::Pending(query));
        }
        let until = start + timeout.min(query.answer_timeout.saturating_sub(start - query.sent_at));
        loop {
            let first = query.names.first().copied();
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
            query.connection = self.send_query(&query.names)?;
        }
        let Some((socket, method)) = query.connection.take() else { return Ok(QueryResult::Pending(query)) };
        let received = match client::receive_reply(&socket, &query.names) {
            Ok(Some(received)) => received,
            Ok(None) => {
                query.connection = Some((socket, method));
                return Ok(QueryResult::Pending(query));
            }
            Err(ConnectError::Gone) if method.may_be_alive() => return Ok(QueryResult::Pending(query)),
            Err(why) => return Err(why),
        };
        let owner = query.names.first().ok_or(ConnectError::Malformed)?.owner();
        let watch = self.shared.watches.watch(owner, method, socket)?;
        let fetched = |ReceivedExport { mem, kind }| Fetched { mem, kind, watch: watch.clone() };
        let received = received.into_iter().map(|received| received.map(fetched));
        Ok(QueryResult::Answered(query.names.iter().copied().zip(received).collect()))
    }
}
