//! The connections that the fd server keeps, bounded: no caller takes the descriptors that the process needs.
//! A client is silent until its first request. The oldest silent one makes room for a new one, and none stays
//! silent for longer than [`SILENCE_LIMIT`]. One that was answered stays until it leaves: its end notifies
//! the server's process of a death.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Most silent clients.
pub const MAX_SILENT: usize = 64;
/// How long a client may be silent. An honest one sends its request as it connects.
pub const SILENCE_LIMIT: Duration = if cfg!(test) { Duration::from_secs(2) } else { Duration::from_secs(5) };

/// The connected clients of a descriptor server.
pub struct ClientTable {
    clients: HashMap<u64, OwnedFd>,
    /// When each silent client came. Tokens only grow, so the first one is the oldest.
    silent: BTreeMap<u64, Instant>,
    /// Most clients in all: half of the descriptors that the process may have.
    limit: usize,
}

impl ClientTable {
    pub fn new() -> ClientTable {
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let limit = files.map_or(usize::MAX, |files| usize::try_from(files / 2).unwrap_or(usize::MAX));
        ClientTable { clients: HashMap::new(), silent: BTreeMap::new(), limit }
    }

    pub fn get(&self, token: u64) -> Option<&OwnedFd> {
        self.clients.get(&token)
    }

    /// Whether one more client may stay, after silent ones have made room.
    pub fn has_room(&self) -> bool {
        self.clients.len() < self.limit
    }

    /// The silent client that has to leave before another one comes.
    pub fn client_to_evict(&self) -> Option<u64> {
        let is_full = self.silent.len() >= MAX_SILENT || !self.has_room();
        self.silent.first_key_value().filter(|_| is_full).map(|(token, _)| *token)
    }

    /// A client that has sent nothing yet.
    pub fn add_silent(&mut self, token: u64, client: OwnedFd) {
        self.silent.insert(token, Instant::now());
        self.clients.insert(token, client);
    }

    /// A client whose request is being answered.
    pub fn add_answered(&mut self, token: u64, client: OwnedFd) {
        self.clients.insert(token, client);
    }

    /// A client has sent its first request.
    pub fn note_request(&mut self, token: u64) {
        self.silent.remove(&token);
    }

    pub fn remove(&mut self, token: u64) -> Option<OwnedFd> {
        self.silent.remove(&token);
        self.clients.remove(&token)
    }

    /// A client that has been silent for too long.
    pub fn overdue(&self) -> Option<u64> {
        let (token, since) = self.silent.first_key_value()?;
        (since.elapsed() >= SILENCE_LIMIT).then_some(*token)
    }

    /// How long until a client has been silent for too long.
    pub fn next_overdue(&self) -> Option<Duration> {
        self.silent.first_key_value().map(|(_, since)| SILENCE_LIMIT.saturating_sub(since.elapsed()))
    }
}
