//! Listeners and endpoints to socket addresses: exchanges that succeed, in every way in which they fail, and
//! with clients that mean harm.

use std::cell::RefCell;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::common::{bytes, context, runs_in_own_process, spin};
use ucp::{
    AmProto, CloseMode, ConnRequest, ConnectError, ConnectFailure, ConnectParams, Context, Ep, EpParams,
    Error, ErrorMode, Listener, Source, TAG_MASK_FULL, WaitStatus, Worker,
};

type Requests = Rc<RefCell<Vec<ConnRequest>>>;

fn v4() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Listens, and keeps the requests.
fn listen_at(worker: &Worker, addr: SocketAddr) -> (Listener, Requests) {
    let requests = Requests::default();
    let to = requests.clone();
    let listener = worker.listen(addr, move |request| to.borrow_mut().push(request)).unwrap();
    assert!(listener.local_addr().port() != 0 && listener.local_addr().ip() == addr.ip());
    (listener, requests)
}

fn connect(worker: &Worker, to: SocketAddr) -> Ep {
    worker.connect_to(to, ConnectParams::default()).unwrap()
}

/// Number of the connection of an endpoint at its worker.
fn number_of(ep: &Ep) -> u32 {
    ep.socket_addrs().unwrap().connection
}

fn exchange(from: (&Worker, &Ep), to: &Worker) {
    let send = from.1.tag_send(1, bytes(3, 100_000));
    let recv = to.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(100_000));
    spin(&[from.0, to], &mut || recv.is_done() && send.is_done());
    assert!(recv.wait().1 == bytes(3, 100_000) && send.wait().0 == Ok(()));
}

fn client_and_server_exchange_messages(tls: &str) {
    let context = context(tls);
    let (client, server) = (context.worker().unwrap(), context.worker().unwrap());
    let (listener, requests) = listen_at(&server, v4());
    let params = ConnectParams { client_id: 42, ..ConnectParams::default() };
    let ep = client.connect_to(listener.local_addr(), params).unwrap();
    // Before anybody has accepted.
    let early = ep.tag_send(9, b"early".to_vec());
    spin(&[&client, &server], &mut || !requests.borrow().is_empty());
    let request = requests.borrow_mut().pop().unwrap();
    assert_eq!((request.client_id(), request.address()), (42, &client.address()));
    let addrs = ep.socket_addrs().unwrap();
    assert_eq!((addrs.local, addrs.remote), (request.peer_addr(), listener.local_addr()));
    let back = server.accept(request, EpParams::default()).unwrap();
    let theirs = back.socket_addrs().unwrap();
    assert_eq!((theirs.local, theirs.remote), (addrs.remote, addrs.local));
    let recv = server.tag_recv(9, TAG_MASK_FULL, Vec::with_capacity(8));
    spin(&[&client, &server], &mut || recv.is_done() && early.is_done());
    assert_eq!((recv.wait().1, early.wait().0), (b"early".to_vec(), Ok(())));
    exchange((&client, &ep), &server);
    exchange((&server, &back), &client);
    // The exchange is over, and both endpoints stay.
    drop(listener);
    exchange((&client, &ep), &server);
    assert_eq!((client.diagnostics().requests(), server.diagnostics().requests()), (0, 0));
}

/// Two connections between two workers, or of a worker to itself: active messages and their answers stay on
/// the connection on which they were sent.
fn connections_keep_their_messages(tls: &str, to_itself: bool) {
    let context = context(tls);
    let server = context.worker().unwrap();
    let client = if to_itself { server.clone() } else { context.worker().unwrap() };
    let (listener, requests) = listen_at(&server, v4());
    let answers = Rc::new(RefCell::new(Vec::new()));
    let log = answers.clone();
    client.set_am_handler(2, move |message| {
        log.borrow_mut().push((message.connection(), message.header()[0]));
    });
    // The server answers on the endpoint of the message, by name of the connection that it has accepted.
    server.set_am_handler(1, |message| {
        let reply = message.reply_ep().expect("the sender is known");
        assert_eq!(number_of(&reply), message.connection());
        reply.am_send(2, message.header(), Vec::new()).detach();
    });
    let mut ends = Vec::new();
    for _ in 0..2 {
        let ep = connect(&client, listener.local_addr());
        spin(&[&client, &server], &mut || !requests.borrow().is_empty());
        let request = requests.borrow_mut().pop().unwrap();
        ends.push((ep, server.accept(request, EpParams::default()).unwrap()));
    }
    let mut numbers: Vec<u32> =
        ends.iter().flat_map(|(one, other)| [number_of(one), number_of(other)]).collect();
    assert!(numbers.iter().all(|number| *number != 0));
    if to_itself {
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 4, "each end has a number of its own");
    }
    for (at, (ep, _)) in ends.iter().enumerate() {
        for long in [false, true] {
            ep.am_send_with(AmProto::Auto, 1, &[at as u8], vec![0; if long { 100_000 } else { 8 }]).detach();
        }
    }
    spin(&[&client, &server], &mut || answers.borrow().len() == 4);
    for (connection, at) in answers.borrow().iter() {
        assert_eq!(*connection, number_of(&ends[usize::from(*at)].0));
    }
    client.clear_am_handler(2);
    server.clear_am_handler(1);
}

/// Both ends of a new connection.
fn ends_to(client: &Worker, server: &Worker, listener: &Listener, requests: &Requests) -> (Ep, Ep) {
    let ep = connect(client, listener.local_addr());
    spin(&[client, server], &mut || !requests.borrow().is_empty());
    let request = requests.borrow_mut().pop().unwrap();
    (ep, server.accept(request, EpParams::default()).unwrap())
}

/// Streams of two connections between two workers, or of a worker to itself: each end reads what the other
/// end of its connection has sent, also before there was a peer. The close of one ends its receives only.
fn streams_of_two_connections(tls: &str, to_itself: bool) {
    let context = context(tls);
    let server = context.worker().unwrap();
    let client = if to_itself { server.clone() } else { context.worker().unwrap() };
    let (listener, requests) = listen_at(&server, v4());
    let mut ends = Vec::new();
    let text = |from: u8, at: usize, len: usize| vec![from + at as u8; len];
    for at in 0..2 {
        let ep = connect(&client, listener.local_addr());
        ep.stream_send(text(b'a', at, 5)).detach();
        ep.am_send(1, &[], Vec::new()).detach();
        spin(&[&client, &server], &mut || !requests.borrow().is_empty());
        let request = requests.borrow_mut().pop().unwrap();
        ends.push((ep, server.accept(request, EpParams::default()).unwrap()));
    }
    let numbers = Rc::new(RefCell::new(Vec::new()));
    let log = numbers.clone();
    server.set_am_handler(1, move |message| log.borrow_mut().push(message.connection()));
    for (at, (ep, back)) in ends.iter().enumerate() {
        for len in [3, 100_000] {
            ep.stream_send(text(b'a', at, len)).detach();
            back.stream_send(text(b'x', at, len)).detach();
        }
    }
    for (at, (ep, back)) in ends.iter().enumerate().rev() {
        let there = back.stream_recv_full(vec![0; 100_008]);
        let here = ep.stream_recv_full(vec![0; 100_003]);
        spin(&[&client, &server], &mut || there.is_done() && here.is_done());
        assert!(there.wait().1 == text(b'a', at, 100_008) && here.wait().1 == text(b'x', at, 100_003));
    }
    spin(&[&client, &server], &mut || numbers.borrow().len() == 2);
    assert_eq!(
        *numbers.borrow(),
        [number_of(&ends[0].1), number_of(&ends[1].1)],
        "sent before there was a peer"
    );
    let ends_of_first = ends.remove(0);
    let (ep, back) = &ends[0];
    let ended = ends_of_first.1.stream_recv(vec![0; 8]);
    let stays = back.stream_recv_full(vec![0; 8]);
    // What nobody reads is dropped with its end.
    ends_of_first.1.stream_send(b"unread".to_vec()).detach();
    ep.stream_send(b"half".to_vec()).detach();
    let closing = ends_of_first.1.close(CloseMode::Flush(Duration::from_secs(10)));
    spin(&[&client, &server], &mut || ended.is_done() && closing.is_done());
    assert_eq!(ended.wait().0, Err(Error::Cancelled));
    ends_of_first.0.stream_send(b"to nobody".to_vec()).detach();
    ep.stream_send(b"done".to_vec()).detach();
    spin(&[&client, &server], &mut || stays.is_done());
    assert_eq!(stays.wait().1, b"halfdone");
    assert!(!back.has_stream_data() && !ep.has_stream_data());
    drop(ends_of_first.0);
    // After a close by force the other end gets what has come, and then the error.
    let sent = ep.stream_send(b"last".to_vec());
    spin(&[&client, &server], &mut || sent.is_done() && back.has_stream_data());
    let all = back.stream_recv(vec![0; 8]);
    let none = back.stream_recv(vec![0; 8]);
    let (other, _) = ends_to(&client, &server, &listener, &requests);
    let (ep, back) = ends.remove(0);
    drop(ep.close(CloseMode::Force));
    spin(&[&client, &server], &mut || all.is_done() && none.is_done());
    assert_eq!(all.wait().0.map(|status| status.len), Ok(4));
    assert!(matches!(none.wait().0, Err(Error::Reset(_))));
    exchange((&client, &other), &server);
    drop(back);
    assert_eq!(
        (client.diagnostics().snapshot().unexpected, server.diagnostics().snapshot().unexpected),
        (0, 0)
    );
    server.clear_am_handler(1);
}

fn streams_of_two_connections_between_two_workers(tls: &str) {
    streams_of_two_connections(tls, false);
}

fn streams_of_two_connections_of_a_worker_to_itself(tls: &str) {
    streams_of_two_connections(tls, true);
}

/// One listener, a worker of another thread that accepts, and clients of several threads.
fn other_workers_accept(tls: &str) {
    let context = context(tls);
    let (to_server, requests) = mpsc::channel::<ConnRequest>();
    let server = || {
        let worker = context.worker().unwrap();
        for request in requests {
            let ep = worker.accept(request, EpParams::default()).unwrap();
            let (_, question) = worker.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(8)).wait();
            ep.tag_send(2, question).wait().0.unwrap();
            ep.flush().wait().unwrap();
        }
    };
    let client = |n: u64, addr: SocketAddr| {
        let worker = context.worker().unwrap();
        let ep = connect(&worker, addr);
        let answer = worker.tag_recv(2, TAG_MASK_FULL, Vec::with_capacity(8));
        ep.tag_send(1, n.to_le_bytes().to_vec()).detach();
        assert_eq!(answer.wait().1, n.to_le_bytes());
        ep.flush().wait().unwrap();
    };
    std::thread::scope(|scope| {
        let server = scope.spawn(server);
        let worker = context.worker().unwrap();
        let listener = worker.listen(v4(), move |request| to_server.send(request).unwrap()).unwrap();
        let addr = listener.local_addr();
        let clients: Vec<_> = (0..3).map(|n| scope.spawn(move || client(n, addr))).collect();
        while clients.iter().any(|client| !client.is_finished()) {
            worker.wait(Some(Duration::from_millis(20))).unwrap();
            worker.progress();
        }
        clients.into_iter().for_each(|client| client.join().unwrap());
        drop(listener);
        server.join().unwrap();
    });
}

fn failing(client: &Worker, to: SocketAddr) -> (Ep, Rc<RefCell<Vec<Error>>>) {
    let told = Rc::new(RefCell::new(Vec::new()));
    let to_told = told.clone();
    let errors = ErrorMode::Peer(Box::new(move |error| to_told.borrow_mut().push(error)));
    let params = ConnectParams { ep: EpParams { errors, ..EpParams::default() }, ..ConnectParams::default() };
    (client.connect_to(to, params).unwrap(), told)
}

/// Every operation ends with `why`, and the callback hears of it once.
fn fails_with(
    client: &Worker,
    server: &Worker,
    (ep, told): (Ep, Rc<RefCell<Vec<Error>>>),
    why: ConnectFailure,
) {
    let error = Error::ConnectFailed(why);
    let (send, flush) = (ep.tag_send(1, vec![1]), ep.flush());
    spin(&[client, server], &mut || send.is_done() && flush.is_done());
    assert_eq!((send.wait().0, flush.wait()), (Err(error), Err(error)));
    assert_eq!(*told.borrow(), [error]);
    assert_eq!(ep.tag_send(1, vec![1]).wait().0, Err(error));
    assert!(error.status().is_err() && error.to_string().contains("could not be connected"), "{error}");
    assert_eq!(client.diagnostics().requests(), 0);
}

fn failures_are_told_apart(tls: &str) {
    let context = context(tls);
    let (client, server) = (context.worker().unwrap(), context.worker().unwrap());
    let (listener, requests) = listen_at(&server, v4());
    let addr = listener.local_addr();

    let ep = failing(&client, addr);
    spin(&[&client, &server], &mut || !requests.borrow().is_empty());
    requests.borrow_mut().pop().unwrap().reject();
    fails_with(&client, &server, ep, ConnectFailure::Rejected);

    let ep = failing(&client, addr);
    spin(&[&client, &server], &mut || !requests.borrow().is_empty());
    requests.borrow_mut().clear();
    fails_with(&client, &server, ep, ConnectFailure::Rejected);

    // A worker that the client shares no transport with.
    let strangers = match tls {
        "soft" => Some("posix"),
        "posix" => Some("soft"),
        _ => None,
    };
    if let Some(stranger) = strangers {
        let ep = failing(&client, addr);
        spin(&[&client, &server], &mut || !requests.borrow().is_empty());
        let request = requests.borrow_mut().pop().unwrap();
        let stranger = self::context(stranger).worker().unwrap();
        let error = stranger.accept(request, EpParams::default()).map(drop).unwrap_err();
        assert!(matches!(error, ConnectError::NoCommonTransport { .. }), "{error}");
        fails_with(&client, &server, ep, ConnectFailure::Unreachable);
    }

    drop(listener);
    fails_with(&client, &server, failing(&client, addr), ConnectFailure::Refused);

    let closing = TcpListener::bind(v4()).unwrap();
    let ep = failing(&client, closing.local_addr().unwrap());
    drop(closing.accept().unwrap());
    fails_with(&client, &server, ep, ConnectFailure::Reset);

    let other = TcpListener::bind(v4()).unwrap();
    let ep = failing(&client, other.local_addr().unwrap());
    other.accept().unwrap().0.write_all(b"220 mail ESMTP\r\n").unwrap();
    fails_with(&client, &server, ep, ConnectFailure::Malformed);
}

#[test]
fn silent_server_is_timed_out() {
    let source = Source::empty().with("UCX_TLS", "posix").with("UCX_CM_TIMEOUT", "60ms");
    let client = Context::configured(source).unwrap().worker().unwrap();
    let silent = TcpListener::bind(v4()).unwrap();
    let start = Instant::now();
    let ep = failing(&client, silent.local_addr().unwrap());
    // A blocking wait ends in time, too.
    let send = ep.0.tag_send(1, vec![1]);
    assert_eq!(send.wait().0, Err(Error::ConnectFailed(ConnectFailure::TimedOut)));
    assert!((Duration::from_millis(60)..Duration::from_secs(20)).contains(&start.elapsed()));
    fails_with(&client, &client, ep, ConnectFailure::TimedOut);
}

#[test]
fn accepted_client_that_goes_away_is_told() {
    let server = context("posix").worker().unwrap();
    let (listener, requests) = listen_at(&server, v4());
    let client = context("posix").worker().unwrap();
    let ep = connect(&client, listener.local_addr());
    spin(&[&client, &server], &mut || !requests.borrow().is_empty());
    let told = Rc::new(RefCell::new(Vec::new()));
    let to = told.clone();
    let errors = ErrorMode::Peer(Box::new(move |error| to.borrow_mut().push(error)));
    let request = requests.borrow_mut().pop().unwrap();
    let accepted = server.accept(request, EpParams { errors, ..EpParams::default() }).unwrap();
    // The client gives up before it has the server's address.
    assert_eq!(ep.close(ucp::CloseMode::Force).wait(), Ok(()));
    spin(&[&client, &server], &mut || !told.borrow().is_empty());
    let error = Error::ConnectFailed(ConnectFailure::Reset);
    assert_eq!(*told.borrow(), [error]);
    assert_eq!(accepted.tag_send(1, vec![1]).wait().0, Err(error));
}

#[test]
fn addresses_of_both_families_and_of_choice() {
    let context = context("posix");
    let (client, server) = (context.worker().unwrap(), context.worker().unwrap());
    for host in ["127.0.0.1:0", "[::1]:0"] {
        let any: SocketAddr = host.parse().unwrap();
        if TcpListener::bind(any).is_err() {
            ucs::testing::skipped("a listener", format!("no {host} here"));
            continue;
        }
        let (listener, requests) = listen_at(&server, any);
        let from = TcpListener::bind(any).unwrap().local_addr().unwrap();
        let params = ConnectParams { local: Some(from), ..ConnectParams::default() };
        let ep = client.connect_to(listener.local_addr(), params).unwrap();
        assert_eq!(ep.socket_addrs().map(|addrs| addrs.local), Some(from));
        spin(&[&client, &server], &mut || !requests.borrow().is_empty());
        assert_eq!(requests.borrow()[0].peer_addr(), from);
        let request = requests.borrow_mut().pop().unwrap();
        let back = server.accept(request, EpParams::default()).unwrap();
        exchange((&server, &back), &client);
        exchange((&client, &ep), &server);
    }
    // An address that is not of this host, and one that is in use.
    let foreign = "192.0.2.1:0".parse().unwrap();
    let params = ConnectParams { local: Some(foreign), ..ConnectParams::default() };
    let (listener, _requests) = listen_at(&server, v4());
    let error = client.connect_to(listener.local_addr(), params).map(drop).unwrap_err();
    assert!(matches!(error, ConnectError::Failed(ConnectFailure::Socket(_))), "{error}");
    let error = server.listen(listener.local_addr(), |_| ()).unwrap_err();
    assert!(error.to_string().contains("EADDRINUSE"), "{error}");
    let plain = client.connect(&server.address(), EpParams::default()).unwrap();
    assert_eq!(plain.socket_addrs(), None);
}

/// The kernel has no way for a connection to a group of hosts, whatever the routes of this host are.
#[test]
fn hosts_without_a_route_are_told_apart() {
    let client = context("posix").worker().unwrap();
    for to in ["224.0.0.1:1", "[ff02::1]:1"] {
        let to: SocketAddr = to.parse().unwrap();
        if to.is_ipv6() && TcpListener::bind("[::1]:0").is_err() {
            ucs::testing::skipped("a connection by IPv6", "there is no IPv6 here");
            continue;
        }
        let error = client.connect_to(to, ConnectParams::default()).map(drop).unwrap_err();
        assert_eq!(error, ConnectError::Failed(ConnectFailure::HostUnreachable), "{to}");
        assert_eq!(error.status(), ucs::Status::Unreachable);
    }
}

/// Sleeps in the worker's wait: arrivals at sockets wake it.
#[test]
fn sockets_wake_a_sleeping_worker() {
    let context = context("posix");
    let server = context.worker().unwrap();
    let (listener, requests) = listen_at(&server, v4());
    let addr = listener.local_addr();
    let client = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        let client = self::context("posix").worker().unwrap();
        let ep = connect(&client, addr);
        ep.tag_send(1, b"awake".to_vec()).wait().0.unwrap();
        ep.flush().wait().unwrap();
    });
    let start = Instant::now();
    let mut sleeps = 0;
    loop {
        while server.progress() > 0 {}
        if !requests.borrow().is_empty() {
            break;
        }
        if server.wait(Some(Duration::from_secs(20))).unwrap() == WaitStatus::Ready {
            sleeps += 1;
        }
        assert!(start.elapsed() < Duration::from_secs(19), "slept through");
    }
    assert!(sleeps < 2000, "{sleeps} wakeups: it does not sleep");
    let request = requests.borrow_mut().pop().unwrap();
    let _ep = server.accept(request, EpParams::default()).unwrap();
    let (result, message) = server.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(8)).wait();
    assert_eq!((result.map(|status| status.len), message), (Ok(5), b"awake".to_vec()));
    while !client.is_finished() {
        server.progress();
    }
    client.join().unwrap();
}

/// Programs that wait on the descriptor themselves see sockets, too.
#[test]
fn event_descriptor_covers_sockets() {
    let server = context("posix").worker().unwrap();
    let (listener, requests) = listen_at(&server, v4());
    let readable = |timeout| {
        let fd = server.event_fd().unwrap();
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: timeout };
        rustix::event::poll(&mut fds, Some(&timeout)).unwrap() > 0
    };
    while server.progress() > 0 || !server.arm() {}
    assert!(!readable(1_000_000));
    let mut client = TcpStream::connect(listener.local_addr()).unwrap();
    assert!(readable(999_000_000) && !server.arm());
    while !server.arm() {
        server.progress();
    }
    assert!(!readable(1_000_000), "the connection has been taken");
    client.write_all(b"UCCM").unwrap();
    assert!(readable(999_000_000) && !server.arm());
    drop(client);
    let start = Instant::now();
    while !server.arm() {
        server.progress();
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    assert!(requests.borrow().is_empty());
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// 500 clients that connect and say nothing, or too little, hold few descriptors and keep nobody out. They
/// are counted in a process of its own, since other tests open descriptors too.
#[test]
fn silent_clients_keep_nobody_out() {
    if runs_in_own_process("listener::silent_clients_keep_nobody_out") {
        return;
    }
    let context = context("posix");
    let (client, server) = (context.worker().unwrap(), context.worker().unwrap());
    let (listener, requests) = listen_at(&server, v4());
    let addr = listener.local_addr();
    let before = open_descriptors();
    let mut silent = Vec::new();
    let mut honest = Vec::new();
    for n in 0..500 {
        let mut stream = TcpStream::connect(addr).unwrap();
        if n % 3 == 0 {
            stream.write_all(&b"UCCM\x01\x01\x10\0\x00\0\0\0\0\0\0\0beginning"[..n % 25]).unwrap();
        }
        silent.push(stream);
        if n % 100 == 50 {
            honest.push(connect(&client, addr));
        }
        // A worker looks at its sockets at every 256th call.
        for _ in 0..if n % 64 == 0 { 600 } else { 1 } {
            server.progress();
            client.progress();
        }
    }
    honest.push(connect(&client, addr));
    let mut accepted = Vec::new();
    let start = Instant::now();
    while accepted.len() < honest.len() {
        for _ in 0..300 {
            server.progress();
            client.progress();
        }
        let waiting = requests.take();
        let accept = |request| server.accept(request, EpParams::default()).unwrap();
        accepted.extend(waiting.into_iter().map(accept));
        assert!(start.elapsed() < Duration::from_secs(20), "{} of {}", accepted.len(), honest.len());
    }
    for (ep, back) in honest.iter().zip(&accepted) {
        exchange((&client, ep), &server);
        exchange((&server, back), &client);
    }
    let held = open_descriptors() - before - silent.len();
    // 128 callers that are silent, and what honest ones take.
    assert!(held < 128 + 16, "{held} descriptors held for {} silent clients", silent.len());
}

#[test]
fn callback_may_progress_accept_and_drop_the_listener() {
    let context = context("posix");
    let (client, server) = (context.worker().unwrap(), context.worker().unwrap());
    let eps = Rc::new(RefCell::new(Vec::new()));
    let held: Rc<RefCell<Option<Listener>>> = Rc::default();
    let (to, own, worker) = (eps.clone(), held.clone(), server.clone());
    let listener = server
        .listen(v4(), move |request| {
            for _ in 0..600 {
                worker.progress();
            }
            to.borrow_mut().push(worker.accept(request, EpParams::default()).unwrap());
            if to.borrow().len() == 3 {
                own.borrow_mut().take();
            }
        })
        .unwrap();
    let addr = listener.local_addr();
    *held.borrow_mut() = Some(listener);
    let clients: Vec<Ep> = (0..3).map(|_| connect(&client, addr)).collect();
    spin(&[&client, &server], &mut || eps.borrow().len() == 3);
    exchange((&client, &clients[2]), &server);
    let refused = connect(&client, addr);
    let send = refused.tag_send(1, vec![1]);
    spin(&[&client, &server], &mut || send.is_done());
    assert_eq!(send.wait().0, Err(Error::ConnectFailed(ConnectFailure::Refused)));
}

/// The worker goes, and with it the sockets, when the last handle does.
#[test]
fn nothing_keeps_a_worker_alive() {
    if runs_in_own_process("listener::nothing_keeps_a_worker_alive") {
        return;
    }
    let before = open_descriptors();
    {
        let context = context("posix");
        let (client, server) = (context.worker().unwrap(), context.worker().unwrap());
        let (listener, requests) = listen_at(&server, v4());
        let connected = connect(&client, listener.local_addr());
        let pending = connect(&client, listener.local_addr());
        spin(&[&client, &server], &mut || requests.borrow().len() == 2);
        let request = requests.borrow_mut().remove(0);
        let _accepted = server.accept(request, EpParams::default()).unwrap();
        exchange((&client, &connected), &server);
        pending.tag_send(1, vec![1]).detach();
    }
    let start = Instant::now();
    while open_descriptors() > before + 2 {
        assert!(start.elapsed() < Duration::from_secs(20), "{before} {}", open_descriptors());
    }
}

fn two_connections_between_two_workers(tls: &str) {
    connections_keep_their_messages(tls, false);
}

fn two_connections_of_a_worker_to_itself(tls: &str) {
    connections_keep_their_messages(tls, true);
}

on! {
    [client_and_server_exchange_messages other_workers_accept failures_are_told_apart
     two_connections_between_two_workers two_connections_of_a_worker_to_itself
     streams_of_two_connections_between_two_workers streams_of_two_connections_of_a_worker_to_itself]
    posix: "posix", soft: "soft", several: "self,posix,cma,efa",
}
