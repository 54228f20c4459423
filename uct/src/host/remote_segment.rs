//! Memory of peers that is mapped here: shared by the keys that name it, and kept for those that come as one word, which
//! have no life of their own. Used by the memory domains of `posix` and `cma`. Touches no byte of it. Whose memory was mapped
//! here is watched from then on, until it dies: who puts and gets sends nothing by which its death could be noticed.

use super::fd_server::{
    Alarm, ExportKind, FdServer, Fetched, MemRange, Name, ProcKey, ProcWatch, Query, QueryResult, as_error,
};
use crate::api::{Access, ConnectError, Error};
use crate::base::direct::Window;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use rustc_hash::FxBuildHasher;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use ucs::mem::{MemError, SharedMap};

/// Most mappings kept for words: what makes room for another is what was used longest ago.
pub const MAX_CACHED: usize = 256;
/// Most names asked for at a time: each takes a descriptor, and another if its process is not watched yet.
const MAX_QUERIES: usize = 32;

/// A peer's memory, mapped here.
#[derive(Debug)]
pub struct RemoteSegment {
    map: SharedMap,
    range: MemRange,
    /// Kept as long as the memory is, so that an endpoint made later can know.
    _watch: Option<Arc<ProcWatch>>,
}

/// A mapping, and when a word last named it.
struct CachedSegment {
    segment: Rc<RemoteSegment>,
    last_used: Cell<u64>,
}

/// All of it, of one memory domain.
pub struct RemoteSegments {
    server: Arc<FdServer>,
    /// Raised when an owner dies; none if that is known otherwise.
    alarm: Option<Arc<Alarm>>,
    /// Owners of what was ever mapped here that live, or are still to be mourned.
    watches: RefCell<HashMap<ProcKey, Arc<ProcWatch>, FxBuildHasher>>,
    /// Those that somebody has.
    segments: RefCell<HashMap<Name, Weak<RemoteSegment>, FxBuildHasher>>,
    cached: RefCell<HashMap<Name, CachedSegment, FxBuildHasher>>,
    use_count: Cell<u64>,
    /// Names that are asked for: those that words have said, and those that were waited for in vain.
    queries: RefCell<HashMap<Name, Box<Query>, FxBuildHasher>>,
    /// How long an owner may take to answer.
    answer_timeout: Duration,
}

impl RemoteSegment {
    /// A part of it, with as much of `access` as its owner gives everybody: whatever a key claims.
    pub fn window(&self, addr: u64, len: usize, access: Access) -> Result<Window, Error> {
        // An address below it wraps to a huge offset.
        let (into, all) = (addr.wrapping_sub(self.range.addr.get()), self.map.len());
        if into > all as u64 || len > all - into as usize {
            return Err(Error::RemoteAccess);
        }
        let at = self.map.as_ptr().wrapping_add(into as usize);
        let access = access & self.access();
        // SAFETY: `len` bytes from there on are mapped (just checked) as long as `self`, which is kept beside the window; to be
        // written if the owner allows that, without which nothing is written through the window.
        Ok(unsafe { Window::new(addr, len, at, access) })
    }

    /// All of it, with the rights that its owner gives everybody.
    pub fn all(&self) -> Result<Window, Error> {
        let len = usize::try_from(self.range.len.get()).map_err(|_| Error::RemoteAccess)?;
        self.window(self.range.addr.get(), len, self.access())
    }

    fn access(&self) -> Access {
        access(&self.range)
    }
}

/// What the owner lets everybody do.
fn access(range: &MemRange) -> Access {
    Access::from_bits_truncate(range.access.get())
}

impl RemoteSegments {
    pub fn new(server: Arc<FdServer>, alarm: Option<Arc<Alarm>>, answer_timeout: Duration) -> RemoteSegments {
        let (segments, cached, queries) = (RefCell::default(), RefCell::default(), RefCell::default());
        RemoteSegments {
            server,
            alarm,
            watches: RefCell::default(),
            segments,
            cached,
            use_count: Cell::new(0),
            queries,
            answer_timeout,
        }
    }

    /// Our own fd server, which asks those of peers.
    pub fn server(&self) -> &Arc<FdServer> {
        &self.server
    }

    /// What a key names, mapped as long as somebody has the answer. Waits for the fd server of its owner; once only, if that does
    /// not answer in time (it is stopped, perhaps), and not again for any key of its until it has answered.
    pub fn map(&self, name: Name) -> Result<Rc<RemoteSegment>, Error> {
        if let Some(segment) = self.segments.borrow().get(&name).and_then(Weak::upgrade) {
            return Ok(segment);
        }
        let fetched = self.fetch(name).map_err(as_error)?;
        self.insert_segment(name, fetched)
    }

    fn fetch(&self, name: Name) -> Result<Fetched, ConnectError> {
        let wait = if self.is_unresponsive(name.owner()) { Duration::ZERO } else { self.answer_timeout };
        let earlier = self.queries.borrow_mut().remove(&name);
        let query = earlier.map_or_else(|| self.server.query([name], self.answer_timeout), Ok)?;
        match self.server.wait(query, wait)? {
            QueryResult::Answered(mut all) => {
                all.pop().map_or(Err(ConnectError::Malformed), |(_, received)| received)
            }
            QueryResult::Pending(query) => {
                self.keep_query(name, query);
                Err(ConnectError::NoAnswer)
            }
        }
    }

    /// Whether that process has a question that it should have answered by now, and still has not.
    fn is_unresponsive(&self, owner: ProcKey) -> bool {
        let mut queries = self.queries.borrow_mut();
        let overdue = queries.extract_if(|name, queries| name.owner() == owner && queries.is_overdue());
        let overdue: Vec<_> = overdue.collect();
        for (name, query) in overdue {
            // What is said now, whatever it is, is not what anybody waits for any more: it answers.
            if let Ok(QueryResult::Pending(query)) = self.server.wait(query, Duration::ZERO) {
                queries.insert(name, query);
                return true;
            }
        }
        false
    }

    fn keep_query(&self, name: Name, query: Box<Query>) {
        let mut queries = self.queries.borrow_mut();
        if queries.len() == MAX_QUERIES {
            // Answers that nobody came for.
            queries.clear();
        }
        queries.insert(name, query);
    }

    fn insert_segment(
        &self,
        name: Name,
        Fetched { mem, kind, watch }: Fetched,
    ) -> Result<Rc<RemoteSegment>, Error> {
        // An interface's memory is no memory of the program's.
        let ExportKind::Memory(range) = kind else { return Err(Error::RemoteAccess) };
        let len = usize::try_from(range.len.get()).map_err(|_| Error::RemoteAccess)?;
        let writes = access(&range).intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let map = SharedMap::from_fd(mem, len, writes).map_err(map_error)?;
        let watch = self.watch(name.owner(), watch);
        let segment = Rc::new(RemoteSegment { map, range, _watch: watch });
        let mut segments = self.segments.borrow_mut();
        if segments.len() == segments.capacity() {
            segments.retain(|_, segment| segment.strong_count() > 0);
        }
        segments.insert(name, Rc::downgrade(&segment));
        Ok(segment)
    }

    /// Has our interface told when a process dies. Our own death is no news to us.
    fn watch(&self, owner: ProcKey, watch: Arc<ProcWatch>) -> Option<Arc<ProcWatch>> {
        let alarm = self.alarm.as_ref().filter(|_| owner != self.server.key())?;
        if let Entry::Vacant(new) = self.watches.borrow_mut().entry(owner) {
            new.insert(watch.clone());
            watch.subscribe(alarm);
        }
        Some(watch)
    }

    /// The same of a key that is one word: it stays mapped. Does not wait: until the answer is there it is
    /// [not ready](Error::NotReady), and when that takes too long [out of reach](Error::Unreachable).
    #[inline]
    pub fn by_word_key(&self, name: Name) -> Result<Rc<RemoteSegment>, Error> {
        let now = self.use_count.get();
        self.use_count.set(now + 1);
        if let Some(cached) = self.cached.borrow().get(&name) {
            cached.last_used.set(now);
            return Ok(cached.segment.clone());
        }
        self.cache(name, now)
    }

    #[cold]
    fn cache(&self, name: Name, now: u64) -> Result<Rc<RemoteSegment>, Error> {
        let there = self.segments.borrow().get(&name).and_then(Weak::upgrade);
        let segment = match there {
            Some(segment) => segment,
            None => self.poll_query(name)?,
        };
        let mut cached = self.cached.borrow_mut();
        if cached.len() == MAX_CACHED
            && let Some(oldest) =
                cached.iter().min_by_key(|(_, cached)| cached.last_used.get()).map(|(name, _)| *name)
        {
            cached.remove(&oldest);
        }
        cached.insert(name, CachedSegment { segment: segment.clone(), last_used: Cell::new(now) });
        Ok(segment)
    }

    /// Asks for a name, or hears what is said of it.
    fn poll_query(&self, name: Name) -> Result<Rc<RemoteSegment>, Error> {
        // That a process has no such memory (any more) says nothing of its being there.
        let query_error = |e| match e {
            ConnectError::Gone => Error::RemoteAccess,
            e => as_error(e),
        };
        let earlier = self.queries.borrow_mut().remove(&name);
        let Some(query) = earlier else {
            self.keep_query(name, self.server.query([name], self.answer_timeout).map_err(query_error)?);
            return Err(Error::NotReady);
        };
        let fetched = match self.server.wait(query, Duration::ZERO).map_err(query_error)? {
            QueryResult::Pending(query) => {
                let overdue = query.is_overdue();
                self.keep_query(name, query);
                return Err(if overdue { Error::Unreachable } else { Error::NotReady });
            }
            QueryResult::Answered(mut all) => {
                all.pop().map_or(Err(ConnectError::Malformed), |(_, received)| received)
            }
        };
        let fetched = fetched.map_err(query_error)?;
        self.insert_segment(name, fetched)
    }

    /// Processes that have died: they are watched no longer, and to be [forgotten](Foreign::forget).
    pub fn take_dead(&self) -> Vec<(ProcKey, Arc<ProcWatch>)> {
        self.watches.borrow_mut().extract_if(|_, watch| watch.is_dead()).collect()
    }

    /// The process is gone: nothing of its memory is kept.
    pub fn forget(&self, owner: ProcKey) {
        self.cached.borrow_mut().retain(|name, _| name.owner() != owner);
        self.queries.borrow_mut().retain(|name, _| name.owner() != owner);
    }

    /// How many segments are cached, and how many queries are open.
    #[cfg(test)]
    pub fn counts(&self) -> (usize, usize) {
        (self.cached.borrow().len(), self.queries.borrow().len())
    }
}

/// Why memory that a peer handed out is not mapped.
fn map_error(e: MemError) -> Error {
    match e {
        MemError::Gone { .. } => Error::PeerDead,
        MemError::Denied { .. } => Error::Unreachable,
        MemError::Refused { .. } | MemError::BadLength { .. } => Error::RemoteAccess,
        MemError::Descriptors { .. } => Error::NoDescriptor,
        MemError::Exhausted { .. } | MemError::FileLimit { .. } | MemError::LockLimit { .. } => {
            Error::NoMemory
        }
        MemError::Os { op, errno } => Error::Sys { call: op, errno },
    }
}
