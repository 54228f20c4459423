//! Connections between socket addresses that stay until one side closes them, for programs whose endpoints
//! are connected: libfabric's `FI_EP_MSG`. A thread of its own moves them, so that no worker is needed before
//! a client is known. Workers exchange their packets as always; TCP carries the two addresses, data of the
//! program, and the end of the connection.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ucs::Errno;
use ucs::sys::{Epoll, EventFd, Interest, proc};
use ucs::time::{Clock as _, Monotonic};

use super::conn::{start_connect, start_listen};
use super::exchanges::{CmEvent, ConnId, Exchanges, Lifetime, ListenerId};
use super::failure::ConnectFailure;
use super::frame::Answer;
use super::limits::CmConfig;
use super::request::ConnRequest;
use crate::address::Address;

/// Tokens of the descriptors that the thread waits for.
const EXCHANGES: u64 = 0;
const WAKE: u64 = 1;
/// Longest sleep of the thread.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// Events of a [`SockCm`]. Numbers are those of the program.
#[derive(Debug)]
#[non_exhaustive]
pub enum SockCmEvent {
    /// A client asks the listener with this number to be connected.
    Requested(u64, ConnRequest),
    /// The server has accepted: the address of its worker, and its data. Clients get this.
    Accepted(u64, Address, Vec<u8>),
    /// The client has confirmed that it is connected. Servers get this.
    Confirmed(u64),
    /// There is no connection. A server that has rejected may have sent data.
    Failed(u64, ConnectFailure, Vec<u8>),
    /// The other side has disconnected, or its process has ended.
    Closed(u64),
}

/// A connection of a [`SockCm`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SockConn(ConnId);

/// A listener of a [`SockCm`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SockListener(ListenerId);

/// Listens, connects and accepts at socket addresses, with a thread that reports events. Dropping it closes
/// all connections.
pub struct SockCm {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Process of the thread.
    pid: u32,
}

struct Shared {
    exchanges: Mutex<Exchanges<u64, u64>>,
    wake: EventFd,
    is_over: AtomicBool,
}

impl Shared {
    fn exchanges(&self) -> MutexGuard<'_, Exchanges<u64, u64>> {
        self.exchanges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SockCm {
    /// Most bytes of data in a request or an answer.
    pub const MAX_DATA: usize = 256;

    /// Starts the thread, which calls `on_event` inside the lock of this object: the callback does not call
    /// it, and gets no event of a connection that [`SockCm::close`] has closed before.
    pub fn new(on_event: impl FnMut(SockCmEvent) + Send + 'static) -> Result<SockCm, Errno> {
        let CmConfig { timeout, max_pending } = CmConfig::default();
        SockCm::with_limits(timeout, max_pending, on_event)
    }

    /// As [`SockCm::new`], with the longest time of an exchange (`UCX_CM_TIMEOUT`) and the most exchanges of
    /// clients that are not finished (`UCX_CM_MAX_PENDING`).
    pub fn with_limits(
        timeout: Duration,
        max_pending: usize,
        on_event: impl FnMut(SockCmEvent) + Send + 'static,
    ) -> Result<SockCm, Errno> {
        let exchanges = Mutex::new(Exchanges::new(CmConfig { timeout, max_pending })?);
        let shared = Arc::new(Shared { exchanges, wake: EventFd::new()?, is_over: AtomicBool::new(false) });
        let epoll = Epoll::new()?;
        epoll.add(shared.exchanges().fd(), EXCHANGES)?;
        epoll.add_for(&shared.wake, WAKE, Interest::Read)?;
        let of_thread = shared.clone();
        let body = move || run(&of_thread, &epoll, on_event);
        let thread = std::thread::Builder::new().name("ucp-sock-cm".into()).spawn(body);
        let thread = thread.map_err(Errno::from)?;
        Ok(SockCm { shared, thread: Some(thread), pid: proc::pid() })
    }

    /// Listens at `addr`; port 0: any free one. Returns the address with its port. `number` names the
    /// listener in events.
    pub fn listen(&self, addr: SocketAddr, number: u64) -> Result<(SockListener, SocketAddr), Errno> {
        let socket = start_listen(addr)?;
        let bound = socket.local_addr()?;
        let id = self.shared.exchanges().listen(socket, number, Lifetime::Stays)?;
        Ok((SockListener(id), bound))
    }

    /// Closes a listening socket. Its connections stay; clients that have not become requests see a reset.
    pub fn unlisten(&self, listener: SockListener) {
        drop(self.shared.exchanges().unlisten(listener.0));
    }

    /// Starts to connect to `to`, from `from` if that is given: `worker` is the address of the worker that
    /// will be the peer of the server's, `data` goes to the listener. `number` names the connection in
    /// events. Returns the local address too, once the system has chosen it.
    pub fn connect(
        &self,
        (from, to): (Option<SocketAddr>, SocketAddr),
        number: u64,
        worker: &Address,
        data: &[u8],
    ) -> Result<(SockConn, Option<SocketAddr>), ConnectFailure> {
        let conn = start_connect(to, from)?;
        let local = conn.local_addr();
        let hello = (number, with_data(worker, data), 0);
        let id = self.shared.exchanges().connect(conn, hello, Lifetime::Stays, Monotonic.now());
        let id = id.map_err(ConnectFailure::Socket)?;
        // The thread learns of a deadline more.
        let _ = self.shared.wake.signal();
        Ok((SockConn(id), local))
    }

    /// Accepts a request: `worker` is the address of the worker that will be the client's peer, `data` goes
    /// to the client. `number` names the connection in events.
    pub fn accept(
        &self,
        mut request: ConnRequest,
        number: u64,
        worker: &Address,
        data: &[u8],
    ) -> Result<SockConn, ConnectFailure> {
        let conn = request.take_conn().ok_or(ConnectFailure::Cancelled)?;
        let answer = (number, with_data(worker, data));
        let id = self.shared.exchanges().accept(conn, answer, Lifetime::Stays, Monotonic.now());
        let id = id.map_err(ConnectFailure::Socket)?;
        let _ = self.shared.wake.signal();
        Ok(SockConn(id))
    }

    /// Disconnects: the other side gets [`SockCmEvent::Closed`], this one no event of `number` more.
    pub fn close(&self, conn: SockConn, number: u64) {
        let mut exchanges = self.shared.exchanges();
        exchanges.close(conn.0);
        exchanges.discard_events(|of| *of == number);
    }
}

/// Body of a frame.
fn with_data(worker: &Address, data: &[u8]) -> Vec<u8> {
    let mut body = worker.pack();
    body.extend_from_slice(&data[..data.len().min(SockCm::MAX_DATA)]);
    body
}

fn run(shared: &Shared, epoll: &Epoll, mut on_event: impl FnMut(SockCmEvent)) {
    let mut tokens = Vec::new();
    while !shared.is_over.load(Ordering::Acquire) {
        let mut exchanges = shared.exchanges();
        let now = Monotonic.now();
        exchanges.poll(now, |_| true);
        while let Some(event) = exchanges.take_event() {
            if let Some(event) = translate(&mut exchanges, event) {
                on_event(event);
            }
        }
        let sleep = exchanges.next_deadline().map_or(LONGEST_SLEEP, |until| until.since(now));
        drop(exchanges);
        tokens.clear();
        let _ = epoll.wait(&mut tokens, Some(sleep.min(LONGEST_SLEEP)));
        let _ = shared.wake.clear();
    }
}

fn translate(exchanges: &mut Exchanges<u64, u64>, event: CmEvent<u64, u64>) -> Option<SockCmEvent> {
    Some(match event {
        CmEvent::Requested(_, listener, request) => SockCmEvent::Requested(listener, request),
        CmEvent::Accepted(id, number, address, data) => {
            exchanges.confirm(id, Answer::Connected, Monotonic.now());
            SockCmEvent::Accepted(number, address, data)
        }
        CmEvent::Confirmed(number) => SockCmEvent::Confirmed(number),
        CmEvent::Failed(number, why, data) => SockCmEvent::Failed(number, why, data),
        CmEvent::Closed(number) => SockCmEvent::Closed(number),
    })
}

impl Drop for SockCm {
    fn drop(&mut self) {
        if self.pid != proc::pid() {
            // A forked child has no such thread, and shares descriptors with its parent.
            std::mem::forget(self.thread.take());
            return;
        }
        self.shared.is_over.store(true, Ordering::Release);
        let _ = self.shared.wake.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for SockCm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SockCm").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpStream;
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    fn sock_cm() -> (SockCm, Receiver<SockCmEvent>) {
        let (to, events) = channel();
        (SockCm::new(move |event| drop(to.send(event))).unwrap(), events)
    }

    #[test]
    fn a_forked_child_does_not_wait_for_the_thread_of_its_parent() {
        let (cm, events) = sock_cm();
        let cm = ucs::testing::drop_in_child(cm);
        let (listener, at) = cm.listen("127.0.0.1:0".parse().unwrap(), 5).unwrap();
        drop(TcpStream::connect(at).unwrap());
        cm.unlisten(listener);
        drop((cm, events));
    }

    fn next(events: &Receiver<SockCmEvent>) -> SockCmEvent {
        events.recv_timeout(Duration::from_secs(20)).unwrap()
    }

    fn address() -> Address {
        let mut raw = [0; 32];
        raw[..2].copy_from_slice(&[0xfe, 0x80]);
        let lane = Address::unpack(&raw).unwrap();
        Address::unpack(&lane.pack()).unwrap()
    }

    fn any() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    #[test]
    fn connections_carry_data_and_stay() {
        let ((client, of_client), (server, of_server)) = (sock_cm(), sock_cm());
        let (_, at) = server.listen(any(), 1).unwrap();
        let (conn, _) = client.connect((None, at), 2, &address(), b"hello").unwrap();
        let SockCmEvent::Requested(1, request) = next(&of_server) else { panic!("a request") };
        assert_eq!((request.data(), request.address()), (&b"hello"[..], &address()));
        server.accept(request, 3, &address(), b"welcome").unwrap();
        let SockCmEvent::Accepted(2, theirs, data) = next(&of_client) else { panic!("accepted") };
        assert_eq!((theirs, &*data), (address(), &b"welcome"[..]));
        assert!(matches!(next(&of_server), SockCmEvent::Confirmed(3)));
        assert!(of_server.recv_timeout(Duration::from_millis(30)).is_err(), "it stays");
        client.close(conn, 2);
        assert!(matches!(next(&of_server), SockCmEvent::Closed(3)));
        // The other way round, by the end of the object.
        client.connect((None, at), 4, &address(), &[]).unwrap();
        let SockCmEvent::Requested(1, request) = next(&of_server) else { panic!("a request") };
        server.accept(request, 5, &address(), &[]).unwrap();
        assert!(matches!(next(&of_client), SockCmEvent::Accepted(4, ..)));
        drop(server);
        assert!(matches!(next(&of_client), SockCmEvent::Closed(4)));
    }

    #[test]
    fn an_exchange_ends_at_its_limit() {
        let (to, of_client) = channel();
        let limit = Duration::from_millis(50);
        let client = SockCm::with_limits(limit, 1, move |event| drop(to.send(event))).unwrap();
        let (server, of_server) = sock_cm();
        let (_, at) = server.listen(any(), 1).unwrap();
        client.connect((None, at), 2, &address(), &[]).unwrap();
        assert!(matches!(next(&of_client), SockCmEvent::Failed(2, ConnectFailure::TimedOut, _)));
        drop(of_server);
    }

    #[test]
    fn rejections_carry_data() {
        let ((client, of_client), (server, of_server)) = (sock_cm(), sock_cm());
        let (listener, at) = server.listen(any(), 1).unwrap();
        for long in [&b"no"[..], &[7; 1000]] {
            client.connect((None, at), 2, &address(), long).unwrap();
            let SockCmEvent::Requested(1, request) = next(&of_server) else { panic!("a request") };
            assert_eq!(request.data(), &long[..long.len().min(SockCm::MAX_DATA)]);
            request.reject_with(long);
            let SockCmEvent::Failed(2, ConnectFailure::Rejected, data) = next(&of_client) else {
                panic!("rejected")
            };
            assert_eq!(data, &long[..long.len().min(SockCm::MAX_DATA)]);
        }
        server.unlisten(listener);
        client.connect((None, at), 6, &address(), &[]).unwrap();
        assert!(matches!(next(&of_client), SockCmEvent::Failed(6, ConnectFailure::Refused, _)));
    }

    #[test]
    fn bytes_on_a_connection_that_stays_end_it() {
        use crate::cm::frame::{Frame, Kind};
        let (server, of_server) = sock_cm();
        let (_, at) = server.listen(any(), 1).unwrap();
        // A client of a worker's listener is told that it is not understood.
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(&Frame { kind: Kind::Hello, word: 0, body: address().pack() }.pack()).unwrap();
        let mut answer = Vec::new();
        std::io::Read::read_to_end(&mut stream, &mut answer).unwrap();
        assert_eq!(answer, Frame::answer(Kind::Reject, Answer::NotUnderstood).pack());
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(&Frame { kind: Kind::Open, word: 0, body: address().pack() }.pack()).unwrap();
        let SockCmEvent::Requested(1, request) = next(&of_server) else { panic!("a request") };
        server.accept(request, 3, &address(), &[]).unwrap();
        stream.write_all(&Frame::answer(Kind::Confirm, Answer::Connected).pack()).unwrap();
        assert!(matches!(next(&of_server), SockCmEvent::Confirmed(3)));
        stream.write_all(b"more").unwrap();
        assert!(matches!(next(&of_server), SockCmEvent::Closed(3)));
    }
}
