//! All exchanges of a worker. A client's exchange connects, sends HELLO, awaits the answer and sends CONFIRM.
//! A server's awaits HELLO and becomes a request of the program; when the program accepts it, it is an
//! exchange again, which awaits CONFIRM. An exchange that stays ends when one side closes it. `E` is what an
//! exchange is for (an endpoint), `L` what a listener calls.

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ucs::Errno;
use ucs::sys::{Epoll, Interest};
use ucs::time::Nanos;

use super::conn::Conn;
use super::failure::ConnectFailure;
use super::frame::{Answer, Frame, Kind};
use super::limits::{CmConfig, victim};
use super::request::{ConnRequest, Hello, OpenRequest};
use crate::address::Address;

/// Most connections taken from a listening socket in one poll.
const MAX_ACCEPTS: usize = 64;
/// Most rounds of waiting for sockets in one poll, and most sockets in one round, as `Epoll::wait` returns.
const MAX_ROUNDS: usize = 4;
const MAX_READY: usize = 32;
/// Pause of a listener that can take no connection.
const PAUSE: Duration = Duration::from_millis(20);

/// Identifies an exchange of one worker. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ConnId(u64);

/// Identifies a listener of one worker. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ListenerId(u64);

/// Result of an exchange, or its need for the worker.
#[derive(Debug)]
pub(crate) enum CmEvent<E, L> {
    /// A client asks to be connected.
    Requested(ListenerId, L, ConnRequest),
    /// The server has told its address, with data of its program. [`Exchanges::confirm`] is to follow.
    Accepted(ConnId, E, Address, Vec<u8>),
    /// The client has confirmed an exchange that stays.
    Confirmed(E),
    /// There is no connection. A server that has rejected may have sent data.
    Failed(E, ConnectFailure, Vec<u8>),
    /// The other side has closed an exchange that stays, or its process has ended.
    Closed(E),
}

/// Whether an exchange ends when both sides are connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lifetime {
    UntilConnected,
    /// Until one side closes it.
    Stays,
}

struct ListenerEntry<L> {
    socket: TcpListener,
    call: L,
    lifetime: Lifetime,
    /// Time from which to try again, while it can take no connection.
    paused: Option<Nanos>,
}

struct Exchange<E> {
    conn: Conn,
    stage: Stage<E>,
    lifetime: Lifetime,
    deadline: Nanos,
    interest: Interest,
}

enum Stage<E> {
    /// Client: the TCP connection is being made.
    Connecting(E),
    /// Client: the answer is awaited.
    AwaitAnswer(E),
    /// Client: the server's address has been reported.
    Reported(E),
    /// Client: CONFIRM is being sent.
    Confirming(E),
    /// Server: HELLO is awaited, from this client.
    AwaitHello(ListenerId, SocketAddr),
    /// Server: CONFIRM is awaited.
    AwaitConfirm(E),
    /// Both are connected, and the exchange stays.
    Open(E),
}

/// Continuation of an exchange after a step.
enum Next<E> {
    Wait(Stage<E>),
    Over,
    Failed(E, ConnectFailure, Vec<u8>),
    Accepted(E, Address, Vec<u8>),
    Confirmed(E),
    Closed(E),
    Requested(ListenerId, SocketAddr, Hello),
}

pub(crate) struct Exchanges<E, L> {
    epoll: Epoll,
    config: CmConfig,
    last_id: u64,
    listeners: BTreeMap<ListenerId, ListenerEntry<L>>,
    /// In order of age.
    exchanges: BTreeMap<ConnId, Exchange<E>>,
    /// Number of requests that the program has not answered.
    requests: Arc<AtomicUsize>,
    events: VecDeque<CmEvent<E, L>>,
}

impl<E: Clone, L: Clone> Exchanges<E, L> {
    pub(crate) fn new(config: CmConfig) -> Result<Self, Errno> {
        Ok(Exchanges {
            epoll: Epoll::new()?,
            config,
            last_id: 0,
            listeners: BTreeMap::new(),
            exchanges: BTreeMap::new(),
            requests: Arc::default(),
            events: VecDeque::new(),
        })
    }

    /// Descriptor that is readable while [`Exchanges::poll`] has something to do.
    pub(crate) fn fd(&self) -> &Epoll {
        &self.epoll
    }

    /// Whether a socket is ready.
    pub(crate) fn is_ready(&self) -> bool {
        self.epoll.wait(&mut Vec::new(), Some(Duration::ZERO)).is_ok_and(|ready| ready > 0)
    }

    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    pub(crate) fn take_event(&mut self) -> Option<CmEvent<E, L>> {
        self.events.pop_front()
    }

    /// Puts an event back that cannot be handled now.
    pub(crate) fn return_event(&mut self, event: CmEvent<E, L>) {
        self.events.push_front(event);
    }

    /// Time at which [`Exchanges::poll`] has something to do without an event.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        let paused = self.listeners.values().filter_map(|listener| listener.paused);
        let deadlines = self.exchanges.values().map(|exchange| exchange.deadline).chain(paused);
        deadlines.filter(|deadline| *deadline != Nanos::NEVER).min()
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Adds a listening socket, which is non-blocking.
    pub(crate) fn listen(
        &mut self,
        socket: TcpListener,
        call: L,
        lifetime: Lifetime,
    ) -> Result<ListenerId, Errno> {
        let id = self.next_id();
        self.epoll.add(&socket, id)?;
        self.listeners.insert(ListenerId(id), ListenerEntry { socket, call, lifetime, paused: None });
        Ok(ListenerId(id))
    }

    /// Closes a listening socket and drops exchanges that have not become requests: clients see a reset.
    /// Returns the callback, and requests that it has not been called for.
    pub(crate) fn unlisten(&mut self, id: ListenerId) -> (Option<L>, Vec<CmEvent<E, L>>) {
        self.exchanges.retain(|_, exchange| !matches!(exchange.stage, Stage::AwaitHello(of, _) if of == id));
        let is_of = |event: &CmEvent<E, L>| matches!(event, CmEvent::Requested(of, ..) if *of == id);
        let (dropped, kept): (Vec<_>, _) = self.events.drain(..).partition(is_of);
        self.events = kept.into();
        (self.listeners.remove(&id).map(|listener| listener.call), dropped)
    }

    /// Closes all listening sockets, as [`Exchanges::unlisten`].
    pub(crate) fn unlisten_all(&mut self) -> impl Sized + use<E, L> {
        let all: Vec<ListenerId> = self.listeners.keys().copied().collect();
        all.into_iter().map(|id| self.unlisten(id)).collect::<Vec<_>>()
    }

    /// Begins the exchange of a client, whose socket is being connected.
    pub(crate) fn connect(
        &mut self,
        mut conn: Conn,
        (ep, address, client_id): (E, Vec<u8>, u64),
        lifetime: Lifetime,
        now: Nanos,
    ) -> Result<ConnId, Errno> {
        conn.queue(&Frame { kind: hello_kind(lifetime), word: client_id, body: address });
        self.add(conn, (Stage::Connecting(ep), lifetime), Interest::Write, now)
    }

    /// Accepts a request: sends the address of the accepting worker.
    pub(crate) fn accept(
        &mut self,
        mut conn: Conn,
        (ep, address): (E, Vec<u8>),
        lifetime: Lifetime,
        now: Nanos,
    ) -> Result<ConnId, Errno> {
        let unconfirmed = |exchange: &Exchange<E>| matches!(exchange.stage, Stage::AwaitConfirm(_));
        if self.exchanges.values().filter(|exchange| unconfirmed(exchange)).count() >= self.config.max_pending
        {
            let oldest = self.exchanges.iter().find(|(_, exchange)| unconfirmed(exchange)).map(|(id, _)| *id);
            oldest.into_iter().for_each(|id| self.expire(id));
        }
        conn.queue(&Frame { kind: Kind::Accept, word: 0, body: address });
        let id = self.add(conn, (Stage::AwaitConfirm(ep), lifetime), Interest::ReadWrite, now)?;
        self.step(id, now);
        Ok(id)
    }

    /// Closes an exchange: the other side of one that stays is told.
    pub(crate) fn close(&mut self, id: ConnId) {
        self.exchanges.remove(&id);
    }

    /// Tells the server whether the client's endpoint is connected.
    pub(crate) fn confirm(&mut self, id: ConnId, answer: Answer, now: Nanos) {
        if let Some(exchange) = self.exchanges.get_mut(&id)
            && let Stage::Reported(ep) = &exchange.stage
        {
            exchange.stage = Stage::Confirming(ep.clone());
            exchange.conn.queue(&Frame::answer(Kind::Confirm, answer));
            self.step(id, now);
        }
    }

    /// Discards events of exchanges for which `is_of` holds.
    pub(crate) fn discard_events(&mut self, is_of: impl Fn(&E) -> bool) {
        self.events.retain(|event| match event {
            CmEvent::Requested(..) => true,
            CmEvent::Accepted(_, ep, ..)
            | CmEvent::Confirmed(ep)
            | CmEvent::Failed(ep, ..)
            | CmEvent::Closed(ep) => !is_of(ep),
        });
    }

    fn add(
        &mut self,
        conn: Conn,
        (stage, lifetime): (Stage<E>, Lifetime),
        interest: Interest,
        now: Nanos,
    ) -> Result<ConnId, Errno> {
        let id = self.next_id();
        self.epoll.add_for(&conn.stream, id, interest)?;
        let deadline = now + self.config.timeout;
        self.exchanges.insert(ConnId(id), Exchange { conn, stage, lifetime, deadline, interest });
        Ok(ConnId(id))
    }

    /// Moves every exchange as far as its socket allows. Drops a client's exchange whose endpoint is not
    /// wanted any more.
    pub(crate) fn poll(&mut self, now: Nanos, is_wanted: impl Fn(&E) -> bool) {
        self.exchanges.retain(|_, exchange| match &exchange.stage {
            Stage::Connecting(ep) | Stage::AwaitAnswer(ep) => is_wanted(ep),
            _ => true,
        });
        let mut tokens = Vec::new();
        for _ in 0..MAX_ROUNDS {
            tokens.clear();
            let ready = self.epoll.wait(&mut tokens, Some(Duration::ZERO)).unwrap_or(0);
            for token in &tokens {
                match self.listeners.contains_key(&ListenerId(*token)) {
                    true => self.take_connections(ListenerId(*token), now),
                    false => self.step(ConnId(*token), now),
                }
            }
            if ready < MAX_READY {
                break;
            }
        }
        self.resume_listeners(now);
        let late = |(id, exchange): (&ConnId, &Exchange<E>)| (now >= exchange.deadline).then_some(*id);
        let late: Vec<ConnId> = self.exchanges.iter().filter_map(late).collect();
        late.into_iter().for_each(|id| self.expire(id));
    }

    fn expire(&mut self, id: ConnId) {
        let Some(exchange) = self.exchanges.remove(&id) else { return };
        match exchange.stage {
            Stage::Connecting(ep) | Stage::AwaitAnswer(ep) | Stage::AwaitConfirm(ep) => {
                self.events.push_back(CmEvent::Failed(ep, ConnectFailure::TimedOut, Vec::new()));
            }
            Stage::Reported(ep) | Stage::Confirming(ep) | Stage::Open(ep)
                if exchange.lifetime == Lifetime::Stays =>
            {
                self.events.push_back(CmEvent::Closed(ep));
            }
            _ => {}
        }
    }

    fn step(&mut self, id: ConnId, now: Nanos) {
        let Some(Exchange { mut conn, stage, lifetime, mut deadline, interest }) = self.exchanges.remove(&id)
        else {
            return;
        };
        let stage = match advance(&mut conn, stage, lifetime) {
            Next::Over => return,
            Next::Failed(ep, why, data) => return self.events.push_back(CmEvent::Failed(ep, why, data)),
            Next::Closed(ep) => return self.events.push_back(CmEvent::Closed(ep)),
            Next::Requested(listener, peer, hello) => return self.request(conn, listener, peer, hello),
            Next::Accepted(ep, address, data) => {
                self.events.push_back(CmEvent::Accepted(id, ep.clone(), address, data));
                Stage::Reported(ep)
            }
            Next::Confirmed(ep) => {
                self.events.push_back(CmEvent::Confirmed(ep.clone()));
                Stage::Open(ep)
            }
            Next::Wait(stage) => stage,
        };
        if matches!(stage, Stage::Open(_)) {
            deadline = Nanos::NEVER;
        }
        let wanted = match &stage {
            Stage::Connecting(_) => Interest::Write,
            _ if conn.has_unsent() => Interest::ReadWrite,
            _ => Interest::Read,
        };
        if wanted != interest && self.epoll.modify(&conn.stream, id.0, wanted).is_err() {
            // Without events it ends by its deadline: at once.
            self.exchanges.insert(id, Exchange { conn, stage, lifetime, deadline: now, interest });
            return self.expire(id);
        }
        self.exchanges.insert(id, Exchange { conn, stage, lifetime, deadline, interest: wanted });
    }

    fn request(&mut self, conn: Conn, id: ListenerId, peer: SocketAddr, hello: Hello) {
        let Some(listener) = self.listeners.get(&id) else { return };
        let Ok(local) = conn.stream.local_addr() else { return };
        if self.epoll.remove(&conn.stream).is_ok() {
            let open = OpenRequest::new(&self.requests);
            let request = ConnRequest::new(conn, hello, (local, peer), open);
            self.events.push_back(CmEvent::Requested(id, listener.call.clone(), request));
        }
    }

    fn half_open(&self) -> impl Iterator<Item = (ConnId, IpAddr)> + Clone {
        self.exchanges.iter().filter_map(|(id, exchange)| match exchange.stage {
            Stage::AwaitHello(_, peer) => Some((*id, peer.ip())),
            _ => None,
        })
    }

    /// Drops a half-open exchange for another. Returns false if there is none.
    fn drop_half_open(&mut self) -> bool {
        let victim = victim(self.half_open());
        if let Some(id) = victim {
            tracing::debug!("listener drops a half-open client to make room");
            self.exchanges.remove(&id);
        }
        victim.is_some()
    }

    /// Takes connections from a listening socket.
    fn take_connections(&mut self, id: ListenerId, now: Nanos) {
        for _ in 0..MAX_ACCEPTS {
            let pending = self.half_open().count() + self.requests.load(Ordering::Relaxed);
            if pending >= self.config.max_pending && !self.drop_half_open() {
                return self.pause(id, now);
            }
            let Some(listener) = self.listeners.get(&id) else { return };
            let (stream, peer) = match listener.socket.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if is_resource(&error) => match self.drop_half_open() {
                    true => continue,
                    false => return self.pause(id, now),
                },
                // The client has gone meanwhile.
                Err(_) => continue,
            };
            let lifetime = listener.lifetime;
            let stage = (Stage::AwaitHello(id, peer), lifetime);
            let added = stream
                .set_nonblocking(true)
                .map_err(Errno::from)
                .and_then(|()| self.add(Conn::new(stream), stage, Interest::Read, now));
            match added {
                Ok(id) => self.step(id, now),
                Err(error) => tracing::debug!("listener cannot take a connection: {error}"),
            }
        }
    }

    fn pause(&mut self, id: ListenerId, now: Nanos) {
        if let Some(listener) = self.listeners.get_mut(&id)
            && self.epoll.remove(&listener.socket).is_ok()
        {
            listener.paused = Some(now + PAUSE);
        }
    }

    fn resume_listeners(&mut self, now: Nanos) {
        for (id, listener) in &mut self.listeners {
            if listener.paused.is_some_and(|until| now >= until) {
                let resumed = self.epoll.add(&listener.socket, id.0).is_ok();
                listener.paused = (!resumed).then_some(now + PAUSE);
            }
        }
    }
}

/// Moves one exchange as far as its socket allows.
fn advance<E>(conn: &mut Conn, stage: Stage<E>, lifetime: Lifetime) -> Next<E> {
    match stage {
        Stage::Connecting(ep) => match conn.finish_connect().and_then(|()| conn.send()) {
            Ok(()) => Next::Wait(Stage::AwaitAnswer(ep)),
            Err(why) => Next::Failed(ep, why, Vec::new()),
        },
        Stage::AwaitAnswer(ep) => match conn.send().and_then(|()| conn.read()) {
            Ok(Some(frame)) => read_answer(ep, frame),
            Ok(None) => Next::Wait(Stage::AwaitAnswer(ep)),
            Err(why) => Next::Failed(ep, why, Vec::new()),
        },
        Stage::Reported(ep) => Next::Wait(Stage::Reported(ep)),
        Stage::Confirming(ep) => match conn.send() {
            Ok(()) if conn.has_unsent() => Next::Wait(Stage::Confirming(ep)),
            Ok(()) if lifetime == Lifetime::Stays => Next::Wait(Stage::Open(ep)),
            Err(_) if lifetime == Lifetime::Stays => Next::Closed(ep),
            _ => Next::Over,
        },
        Stage::AwaitHello(listener, peer) => {
            match conn.read().and_then(|frame| read_hello(frame, lifetime)) {
                Ok(Some(hello)) => Next::Requested(listener, peer, hello),
                Ok(None) => Next::Wait(Stage::AwaitHello(listener, peer)),
                Err(why) => {
                    if why == ConnectFailure::Malformed {
                        conn.queue(&Frame::answer(Kind::Reject, Answer::NotUnderstood));
                        let _ = conn.send();
                    }
                    tracing::debug!(%peer, "listener drops a client: {why}");
                    Next::Over
                }
            }
        }
        Stage::AwaitConfirm(ep) => match conn.send().and_then(|()| conn.read()).and_then(read_confirm) {
            Ok(None) => Next::Wait(Stage::AwaitConfirm(ep)),
            Ok(Some(())) if lifetime == Lifetime::Stays => Next::Confirmed(ep),
            Ok(Some(())) => Next::Over,
            Err(why) => Next::Failed(ep, why, Vec::new()),
        },
        // Nothing is sent any more: all that can come is the end.
        Stage::Open(ep) => match conn.read() {
            Ok(None) => Next::Wait(Stage::Open(ep)),
            _ => Next::Closed(ep),
        },
    }
}

fn is_resource(error: &std::io::Error) -> bool {
    error.raw_os_error().is_some_and(|errno| Errno(errno).is_resource())
}

fn hello_kind(lifetime: Lifetime) -> Kind {
    match lifetime {
        Lifetime::UntilConnected => Kind::Hello,
        Lifetime::Stays => Kind::Open,
    }
}

fn read_hello(frame: Option<Frame>, lifetime: Lifetime) -> Result<Option<Hello>, ConnectFailure> {
    match frame {
        None => Ok(None),
        Some(Frame { kind, word, body }) if kind == hello_kind(lifetime) => {
            let (address, data) = read_address(&body)?;
            Ok(Some(Hello { address, client_id: word, data }))
        }
        Some(_) => Err(ConnectFailure::Malformed),
    }
}

fn read_answer<E>(ep: E, frame: Frame) -> Next<E> {
    let malformed = ConnectFailure::Malformed;
    match frame.kind {
        Kind::Accept => match read_address(&frame.body) {
            Ok((address, data)) => Next::Accepted(ep, address, data),
            Err(why) => Next::Failed(ep, why, Vec::new()),
        },
        Kind::Reject => {
            let why = answer(frame.word).ok().flatten().unwrap_or(malformed);
            Next::Failed(ep, why, frame.body)
        }
        _ => Next::Failed(ep, malformed, Vec::new()),
    }
}

fn read_confirm(frame: Option<Frame>) -> Result<Option<()>, ConnectFailure> {
    match frame {
        None => Ok(None),
        Some(Frame { kind: Kind::Confirm, word, .. }) => answer(word)?.map_or(Ok(Some(())), Err),
        Some(_) => Err(ConnectFailure::Malformed),
    }
}

fn answer(word: u64) -> Result<Option<ConnectFailure>, ConnectFailure> {
    Answer::try_from(word).map(Answer::failure).map_err(|_| ConnectFailure::Malformed)
}

/// The address at the beginning of a body, and the data behind it.
fn read_address(body: &[u8]) -> Result<(Address, Vec<u8>), ConnectFailure> {
    let malformed = ConnectFailure::Malformed;
    let address = Address::unpack(body).map_err(|_| malformed)?;
    let len = Address::packed_len(body).map_err(|_| malformed)?;
    Ok((address, body.get(len..).unwrap_or_default().to_vec()))
}
