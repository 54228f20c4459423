//! How two nodes come to a session: `HELLO`, `COOKIE`, `REQUEST`, `ACCEPT`.

use super::secret::MacKey;
use super::session::Session;
use super::table::Slot;
use super::wire::{COOKIE, MESSAGE, Message, SALT, Unknown, kind};
use super::{Auth, Opened, Peer};
use core::net::{IpAddr, SocketAddr};
use std::collections::HashMap;
use zerocopy::IntoBytes;

/// Longest time between two tries, as a power of two of the first.
pub(super) const MAX_DOUBLINGS: u32 = 5;

/// Tries with one cookie.
const COOKIE_TRIES: u32 = 3;

/// A handshake that this node has started.
pub struct Pending {
    own: u32,
    salt: [u8; SALT],
    cookie: Option<[u8; COOKIE]>,
    tries: u32,
    due: u64,
}

impl Pending {
    /// Number of the session at this node.
    pub fn own(&self) -> u32 {
        self.own
    }
}

/// Time of the next try with a node.
pub fn pending_due(peers: &HashMap<u64, Peer>, node: u64) -> Option<u64> {
    Some(peers.get(&node)?.pending.as_ref()?.due)
}

fn answer(message: &Message) -> Opened<'static> {
    let mut bytes = [0; MESSAGE];
    bytes.copy_from_slice(message.as_bytes());
    Opened::Answer(bytes)
}

/// Code over all that a cookie is bound to.
fn cookie(key: &MacKey, from: SocketAddr, message: &Message) -> [u8; COOKIE] {
    let ip = match from.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let port = from.port().to_le_bytes();
    key.sign(&[&ip, &port, message.from.as_bytes(), message.own.as_bytes(), &message.salt])
}

impl Auth {
    /// Starts a handshake with a node, if none is on its way and there is room.
    #[cold]
    pub(super) fn start(&mut self, now: u64, node: u64) {
        let room = self.peers.len() < self.config.max_peers;
        let known = self.peers.get(&node);
        if known.map_or(!room, |peer| peer.pending.is_some()) {
            return;
        }
        let salt = self.random.salt();
        let generation = u16::from_le_bytes([salt[0], salt[1]]);
        let Some(own) = self.table.insert(Slot::Pending, generation) else { return };
        let salt = self.random.salt();
        let pending = Pending { own, salt, cookie: None, tries: 0, due: now };
        self.peers.entry(node).or_default().pending = Some(pending);
        self.pending.push(node);
        self.stats.started += 1;
    }

    fn message(&self, node: u64, pending: &Pending) -> Message {
        let kind = if pending.cookie.is_some() { kind::REQUEST } else { kind::HELLO };
        let mut message = Message::new(kind, 0, self.own, node, pending.own);
        message.salt = pending.salt;
        message.cookie = pending.cookie.unwrap_or_default();
        message.sign(&self.key)
    }

    /// Repeats what a handshake waits for, or gives it up.
    pub(super) fn retry(&mut self, now: u64, node: u64) -> Option<(u64, [u8; MESSAGE])> {
        let config = self.config;
        let pending = self.peers.get_mut(&node)?.pending.as_mut()?;
        if pending.tries >= config.tries {
            self.stats.given_up += 1;
            self.drop_pending(node);
            return None;
        }
        pending.due = now + (config.retry << pending.tries.min(MAX_DOUBLINGS));
        pending.tries += 1;
        if pending.tries > COOKIE_TRIES {
            // The cookie may be too old, or the peer have started anew.
            pending.cookie = None;
        }
        let pending = self.peers.get(&node)?.pending.as_ref()?;
        let mut bytes = [0; MESSAGE];
        bytes.copy_from_slice(self.message(node, pending).as_bytes());
        Some((node, bytes))
    }

    fn drop_pending(&mut self, node: u64) {
        self.pending.retain(|other| *other != node);
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if let Some(pending) = peer.pending.take() {
            self.table.remove(pending.own);
        }
        if peer.is_unused() {
            self.peers.remove(&node);
        }
    }

    /// Takes a message of the handshake.
    #[cold]
    pub(super) fn on_message(&mut self, now: u64, from: SocketAddr, datagram: &[u8]) -> Opened<'static> {
        let Some(message) = Message::open(datagram, &self.key) else {
            self.stats.strangers += 1;
            return Opened::Dropped;
        };
        if message.to.get() != self.own || message.from.get() == self.own {
            return self.stray();
        }
        match message.kind {
            kind::HELLO => self.on_hello(now, from, message),
            kind::COOKIE => self.on_cookie(message),
            kind::REQUEST => self.on_request(now, from, message),
            _ => self.on_accept(message),
        }
    }

    fn stray(&mut self) -> Opened<'static> {
        self.stats.stray += 1;
        Opened::Dropped
    }

    fn on_hello(&self, now: u64, from: SocketAddr, message: &Message) -> Opened<'static> {
        let key = self.random.cookie_key(now / self.config.cookie_life);
        let mut reply = Message::new(kind::COOKIE, message.own.get(), self.own, message.from.get(), 0);
        reply.salt = message.salt;
        reply.cookie = cookie(&key, from, message);
        answer(&reply.sign(&self.key))
    }

    /// The handshake of this node that a message answers.
    fn pending_of(&mut self, message: &Message) -> Option<&mut Pending> {
        let node = message.from.get();
        let pending = self.peers.get_mut(&node)?.pending.as_mut()?;
        (pending.own == message.session.get()).then_some(pending)
    }

    fn on_cookie(&mut self, message: &Message) -> Opened<'static> {
        // One cookie a try: an answer that is sent again causes no more requests.
        match self.pending_of(message) {
            Some(pending) if pending.salt == message.salt && pending.cookie.is_none() => {
                pending.cookie = Some(message.cookie);
            }
            _ => return self.stray(),
        }
        let node = message.from.get();
        match self.peers.get(&node).and_then(|peer| peer.pending.as_ref()) {
            Some(pending) => answer(&self.message(node, pending)),
            None => Opened::Dropped,
        }
    }

    fn has_cookie(&self, now: u64, from: SocketAddr, message: &Message) -> bool {
        let period = now / self.config.cookie_life;
        [period, period.saturating_sub(1)].into_iter().any(|period| {
            let want = cookie(&self.random.cookie_key(period), from, message);
            // The message is authentic, so whoever guesses has the secret: time tells him nothing.
            want == message.cookie
        })
    }

    fn on_request(&mut self, now: u64, from: SocketAddr, message: &Message) -> Opened<'static> {
        if !self.has_cookie(now, from, message) {
            self.stats.cookies_refused += 1;
            return Opened::Dropped;
        }
        let node = message.from.get();
        let peer = self.peers.get(&node).map(|peer| [peer.current, peer.previous, peer.granted]);
        for number in peer.into_iter().flatten().flatten() {
            match self.table.get(number) {
                // The answer was lost.
                Some(Slot::Granted(session)) if session.initiator_salt == message.salt => {
                    let salt = session.responder_salt;
                    return self.accept(message, number, salt);
                }
                Some(Slot::Live(session)) if session.initiator_salt == message.salt => return self.stray(),
                _ => {}
            }
        }
        let Some((number, salt)) = self.grant(message) else {
            self.stats.peers_refused += 1;
            return Opened::Dropped;
        };
        self.accept(message, number, salt)
    }

    /// Makes a session that the peer may use.
    fn grant(&mut self, message: &Message) -> Option<(u32, [u8; SALT])> {
        let node = message.from.get();
        if self.peers.len() >= self.config.max_peers && !self.peers.contains_key(&node) {
            return None;
        }
        if let Some(older) = self.peers.get_mut(&node).and_then(|peer| peer.granted.take()) {
            self.evict(older);
        }
        while self.granted.len() >= self.config.max_granted {
            let oldest = self.granted.front().copied()?;
            self.evict(oldest);
        }
        let salt = self.random.salt();
        let [recv, send] = self.secret.session((node, &message.salt), (self.own, &salt));
        let session = Session::new(node, message.own.get(), [message.salt, salt], send, recv);
        let generation = u16::from_le_bytes([salt[0] ^ salt[2], salt[1] ^ salt[3]]);
        let number = self.table.insert(Slot::Granted(Box::new(session)), generation)?;
        self.peers.entry(node).or_default().granted = Some(number);
        self.granted.push_back(number);
        Some((number, salt))
    }

    /// Drops a session that was granted and not used.
    fn evict(&mut self, number: u32) {
        self.granted.retain(|other| *other != number);
        let Some(Slot::Granted(session)) = self.table.remove(number) else { return };
        self.stats.evicted += 1;
        if let Some(peer) = self.peers.get_mut(&session.node) {
            peer.granted = peer.granted.filter(|other| *other != number);
            if peer.is_unused() {
                self.peers.remove(&session.node);
            }
        }
    }

    fn accept(&self, message: &Message, number: u32, salt: [u8; SALT]) -> Opened<'static> {
        let (session, to) = (message.own.get(), message.from.get());
        let mut reply = Message::new(kind::ACCEPT, session, self.own, to, number);
        reply.salt = salt;
        reply.cookie = message.salt;
        answer(&reply.sign(&self.key))
    }

    fn on_accept(&mut self, message: &Message) -> Opened<'static> {
        let (node, own) = (message.from.get(), self.own);
        let (number, salt) = match self.pending_of(message) {
            Some(pending) if pending.salt == message.cookie => (pending.own, pending.salt),
            _ => return self.stray(),
        };
        let [send, recv] = self.secret.session((own, &salt), (node, &message.salt));
        let session = Session::new(node, message.own.get(), [salt, message.salt], send, recv);
        self.pending.retain(|other| *other != node);
        let Some(slot) = self.table.get(number) else { return self.stray() };
        *slot = Slot::Live(Box::new(session));
        self.stats.initiated += 1;
        self.make_current(node, number);
        Opened::Up(node)
    }

    /// Makes a granted session live: its peer has used it.
    #[cold]
    pub(super) fn promote(&mut self, node: u64, number: u32) {
        if let Some(slot) = self.table.get(number)
            && let Slot::Granted(session) = std::mem::replace(slot, Slot::Free)
        {
            *slot = Slot::Live(session);
        }
        self.granted.retain(|other| *other != number);
        self.stats.accepted += 1;
        self.make_current(node, number);
    }

    /// Sends to a node go in this session from now on. The one before it stays for what is on its way.
    fn make_current(&mut self, node: u64, number: u32) {
        let peer = self.peers.entry(node).or_default();
        if peer.pending.as_ref().is_some_and(|pending| pending.own == number) {
            peer.pending = None;
        }
        peer.granted = peer.granted.filter(|other| *other != number);
        let before = peer.current.replace(number);
        let retired = if before.is_some() { std::mem::replace(&mut peer.previous, before) } else { None };
        if let Some(retired) = retired {
            self.table.remove(retired);
        }
    }

    /// Takes the word that a peer does not know a session. The session stays until another one is there: the
    /// notice may be one that was recorded.
    #[cold]
    pub(super) fn on_notice(&mut self, now: u64, datagram: &[u8]) -> Opened<'static> {
        let Some(notice) = Unknown::open(datagram, &self.key) else {
            self.stats.strangers += 1;
            return Opened::Dropped;
        };
        let (node, remote) = (notice.from.get(), notice.clear.session.get());
        let current = self.peers.get(&node).and_then(|peer| peer.current);
        let sent = match current.and_then(|number| self.table.get(number)) {
            Some(Slot::Live(session)) if session.remote == remote => session.next_number(),
            _ => return self.stray(),
        };
        if notice.clear.number.get() >= sent {
            return self.stray();
        }
        self.stats.notices_received += 1;
        self.start(now, node);
        Opened::Dropped
    }
}
