//! Sessions between nodes: each datagram is sealed with keys that come of the job secret. No I/O and no
//! clock, as the rest of this crate: the owner passes in datagrams, the time, and the seed of the salts.
//!
//! * `secret`: the secret and its keys. * `session`: keys of two nodes, numbers. * `wire`: layouts.
//! * `replay`: numbers that have arrived. * `table`: sessions by number.
//! * `handshake`: the exchange that makes a session.
//!
//! A datagram of [`crate::Module`] is sealed as a whole. Of a datagram that does not authenticate nothing is
//! parsed but the clear header: type, session, number.
//!
//! The handshake has four messages of 128 bytes, each authenticated by the secret:
//!
//! | | From | Carries |
//! |---|---|---|
//! | `HELLO` | initiator | its number of the session, its salt |
//! | `COOKIE` | responder, which keeps nothing | a code over the sender's network address and salt |
//! | `REQUEST` | initiator | as `HELLO`, and the cookie |
//! | `ACCEPT` | responder | its number of the session, its salt |
//!
//! The responder uses the session when the first sealed datagram has arrived: a request that is recorded and
//! sent again replaces nothing. The keys do not survive the secret: who learns it later can read what he
//! recorded. Everybody with the secret can speak as any node of the job.

mod handshake;
mod replay;
mod secret;
mod session;
mod stats;
mod table;
#[cfg(test)]
mod tests;
mod wire;

pub use secret::{MacKey, Secret};
pub use stats::AuthStats;
pub use wire::{CLEAR, ClearHeader, MESSAGE, OVERHEAD, clear, opened_header};
pub(crate) use wire::{mark_of, opened};

use crate::config::tries_within;
use core::net::SocketAddr;
use handshake::{Pending, pending_due};
use secret::Random;
use session::Refused;
use std::collections::{HashMap, VecDeque};
use table::{Slot, Table};
use wire::{Clear, UNKNOWN, Unknown, kind};
use zerocopy::IntoBytes;

/// Limits. Times are nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AuthConfig {
    /// Peers with a session, at most.
    pub max_peers: usize,
    /// Sessions granted and not used yet, at most.
    pub max_granted: usize,
    /// Time from the first to the second try of a handshake; it doubles from then on.
    pub retry: u64,
    /// Tries of a handshake.
    pub tries: u32,
    /// Life of a cookie, at least; twice that at most.
    pub cookie_life: u64,
    /// Notices of unknown sessions that are sent in a second, at most.
    pub notices: u32,
}

impl AuthConfig {
    /// Keeps asking for a session for at least so long.
    pub fn connecting_for(self, ns: u64) -> AuthConfig {
        let tries = tries_within(ns, self.retry, handshake::MAX_DOUBLINGS);
        AuthConfig { tries: self.tries.max(tries), ..self }
    }
}

impl Default for AuthConfig {
    fn default() -> Self {
        const MS: u64 = 1_000_000;
        AuthConfig {
            max_peers: 1 << 16,
            max_granted: 1024,
            retry: 50 * MS,
            tries: 7,
            cookie_life: 60_000 * MS,
            notices: 200,
        }
    }
}

/// There is no session with the node yet. A handshake is on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoSession;

/// Outcome of a datagram that has arrived.
#[derive(Debug)]
pub enum Opened<'d> {
    /// A datagram of a peer's module.
    Datagram {
        /// The peer.
        node: u64,
        /// Bytes that the peer has sealed.
        bytes: &'d mut [u8],
        /// Whether it is the first of its session: sends to the peer have a session from now on.
        first: bool,
    },
    /// A message of the handshake; the answer goes to where it came from.
    Answer([u8; MESSAGE]),
    /// The handshake is complete: sends to the node have a session from now on.
    Up(u64),
    /// The session of a datagram is not known; the notice goes to where it came from.
    Notice([u8; UNKNOWN]),
    /// Counted and dropped.
    Dropped,
}

/// Sessions and handshakes with one peer.
#[derive(Default)]
struct Peer {
    /// Session in which to send.
    current: Option<u32>,
    /// The one before it, in which the peer may still send.
    previous: Option<u32>,
    granted: Option<u32>,
    pending: Option<Pending>,
}

impl Peer {
    fn is_unused(&self) -> bool {
        self.current.is_none() && self.previous.is_none() && self.granted.is_none() && self.pending.is_none()
    }
}

/// Sessions of one node with all others. Time is in nanoseconds, of any clock that does not go back.
pub struct Auth {
    config: AuthConfig,
    secret: Secret,
    own: u64,
    key: MacKey,
    random: Random,
    table: Table,
    peers: HashMap<u64, Peer>,
    /// Nodes with a handshake on its way.
    pending: Vec<u64>,
    /// Sessions granted, the oldest first, and some that are no longer.
    granted: VecDeque<u32>,
    /// Second, and the notices sent in it.
    notices: (u64, u32),
    stats: AuthStats,
}

impl Auth {
    /// Starts without sessions. The seed must be random and used once: salts come of it, and nonces repeat
    /// if salts do.
    pub fn new(config: AuthConfig, secret: &Secret, own: u64, seed: &[u8; 32]) -> Auth {
        Auth {
            config,
            secret: secret.clone(),
            own,
            key: secret.handshake_key(),
            random: Random::new(seed),
            table: Table::new(),
            peers: HashMap::new(),
            pending: Vec::new(),
            granted: VecDeque::new(),
            notices: (0, 0),
            stats: AuthStats::default(),
        }
    }

    /// Counters so far.
    pub fn stats(&self) -> &AuthStats {
        &self.stats
    }

    /// Sessions and handshakes on their way.
    pub fn sessions(&self) -> usize {
        self.table.len()
    }

    /// Whether sends to a node have a session.
    pub fn is_up(&self, node: u64) -> bool {
        self.peers.get(&node).is_some_and(|peer| peer.current.is_some())
    }

    /// Asks for a session with a node, unless there is one or a handshake is on its way.
    pub fn connect(&mut self, now: u64, node: u64) {
        if !self.is_up(node) {
            self.start(now, node);
        }
    }

    /// Drops sessions and handshake with a node that is gone.
    pub fn forget(&mut self, node: u64) {
        let Some(peer) = self.peers.remove(&node) else { return };
        self.pending.retain(|other| *other != node);
        let pending = peer.pending.map(|pending| pending.own());
        for number in [peer.current, peer.previous, peer.granted, pending].into_iter().flatten() {
            self.table.remove(number);
        }
    }

    /// Seals a datagram for a node and writes it to the start of `out`. Returns its length, which is
    /// [`OVERHEAD`] more.
    /// Sealing equal bytes twice gives two different datagrams.
    ///
    /// # Errors
    /// Fails without a session, and then asks for one.
    ///
    /// # Panics
    /// Panics if `out` is too short.
    #[inline]
    pub fn seal(&mut self, now: u64, node: u64, bytes: &[u8], out: &mut [u8]) -> Result<usize, NoSession> {
        let number = self.peers.get(&node).and_then(|peer| peer.current);
        if let Some(Slot::Live(session)) = number.and_then(|number| self.table.get(number)) {
            self.stats.sealed += 1;
            return Ok(session.seal(bytes, out));
        }
        self.stats.no_session += 1;
        self.start(now, node);
        Err(NoSession)
    }

    /// Takes a datagram that has arrived from a network address.
    pub fn open<'d>(&mut self, now: u64, from: SocketAddr, datagram: &'d mut [u8]) -> Opened<'d> {
        let Some(clear) = wire::parse_clear(datagram).copied() else {
            self.stats.malformed += 1;
            return Opened::Dropped;
        };
        match clear.kind {
            kind::SEALED => self.open_sealed(now, &clear, datagram),
            kind::UNKNOWN => self.on_notice(now, datagram),
            _ => self.on_message(now, from, datagram),
        }
    }

    #[inline]
    fn open_sealed<'d>(&mut self, now: u64, clear: &Clear, datagram: &'d mut [u8]) -> Opened<'d> {
        let number = clear.session.get();
        let (session, first) = match self.table.get(number) {
            Some(Slot::Live(session)) => (session, false),
            Some(Slot::Granted(session)) => (session, true),
            _ => return self.notify(now, clear, datagram.len()),
        };
        let node = session.node;
        match session.open(clear.number.get(), datagram) {
            Ok(bytes) => {
                self.stats.opened += 1;
                if first {
                    self.promote(node, number);
                }
                Opened::Datagram { node, bytes, first }
            }
            Err(why) => {
                match why {
                    Refused::Repeated => self.stats.repeated += 1,
                    Refused::Old => self.stats.old += 1,
                    Refused::Forged => self.stats.forged += 1,
                }
                Opened::Dropped
            }
        }
    }

    /// Answers a datagram of an unknown session, unless the answer were longer or they are too many.
    #[cold]
    fn notify(&mut self, now: u64, clear: &Clear, len: usize) -> Opened<'static> {
        self.stats.unknown += 1;
        let second = now / 1_000_000_000;
        if self.notices.0 != second {
            self.notices = (second, 0);
        }
        if len < UNKNOWN || self.notices.1 >= self.config.notices {
            return Opened::Dropped;
        }
        self.notices.1 += 1;
        self.stats.notices_sent += 1;
        let mut bytes = [0; UNKNOWN];
        bytes.copy_from_slice(Unknown::answer(clear, self.own, &self.key).as_bytes());
        Opened::Notice(bytes)
    }

    /// Returns the next message of a handshake that is due, and the node that it is for.
    pub fn poll_send(&mut self, now: u64) -> Option<(u64, [u8; MESSAGE])> {
        let due = |node: &u64| pending_due(&self.peers, *node).is_some_and(|due| due <= now);
        let node = *self.pending.iter().find(|node| due(node))?;
        self.retry(now, node)
    }

    /// Time at which [`poll_send`](Self::poll_send) is to be called at the latest; `None`: no handshake is on
    /// its way.
    pub fn next_due(&self) -> Option<u64> {
        self.pending.iter().filter_map(|node| pending_due(&self.peers, *node)).min()
    }
}
