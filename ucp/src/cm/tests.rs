//! Exchanges over real sockets of this host, with scripted clients and servers on the other side.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use ucs::time::Nanos;

use super::frame::{Frame, Kind};
use super::*;
use crate::address::Address;

type Cm = Exchanges<u32, ()>;
const UNTIL_CONNECTED: Lifetime = Lifetime::UntilConnected;
type Event = CmEvent<u32, ()>;

const NOW: Nanos = Nanos(1);
const CONFIG: CmConfig = CmConfig { timeout: Duration::from_secs(10), max_pending: 8 };

fn cm() -> Cm {
    Exchanges::new(CONFIG).unwrap()
}

/// The address of a lane of libfabric, packed.
fn address() -> Address {
    let mut raw = [0; 32];
    raw[..2].copy_from_slice(&[0xfe, 0x80]);
    Address::unpack(&raw).unwrap()
}

fn hello() -> Vec<u8> {
    Frame { kind: Kind::Hello, word: 77, body: address().pack() }.pack()
}

fn accept() -> Vec<u8> {
    Frame { kind: Kind::Accept, word: 0, body: address().pack() }.pack()
}

fn listen(cm: &mut Cm) -> (ListenerId, SocketAddr) {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let addr = socket.local_addr().unwrap();
    (cm.listen(socket, (), UNTIL_CONNECTED).unwrap(), addr)
}

fn poll_at(cm: &mut Cm, now: Nanos) -> Option<Event> {
    cm.poll(now, |_| true);
    cm.take_event()
}

fn next_event(cm: &mut Cm) -> Event {
    for _ in 0..5000 {
        if let Some(event) = poll_at(cm, NOW) {
            return event;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("nothing happens");
}

fn stays_quiet(cm: &mut Cm) {
    for _ in 0..30 {
        assert!(poll_at(cm, NOW).is_none());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn connect(cm: &mut Cm, to: SocketAddr, ep: u32) {
    let conn = start_connect(to, None).unwrap();
    cm.connect(conn, (ep, address().pack(), 77), UNTIL_CONNECTED, NOW).unwrap();
}

/// Connects to a server of this test, and sends HELLO.
fn send_hello(cm: &mut Cm, to: SocketAddr, ep: u32) {
    connect(cm, to, ep);
    for _ in 0..30 {
        cm.poll(NOW, |_| true);
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn next_request(cm: &mut Cm) -> ConnRequest {
    match next_event(cm) {
        CmEvent::Requested(_, (), request) => request,
        other => panic!("{other:?}"),
    }
}

fn next_failure(cm: &mut Cm) -> (u32, ConnectFailure) {
    match next_event(cm) {
        CmEvent::Failed(ep, why, _) => (ep, why),
        other => panic!("{other:?}"),
    }
}

#[test]
fn both_sides_get_the_others_address() {
    let (mut client, mut server, mut third) = (cm(), cm(), cm());
    let (_, addr) = listen(&mut server);
    connect(&mut client, addr, 1);
    stays_quiet(&mut client);
    let mut request = next_request(&mut server);
    assert_eq!((request.client_id(), request.address()), (77, &address()));
    assert_eq!(request.local_addr(), addr);
    // Another worker accepts.
    let conn = request.take_conn().unwrap();
    third.accept(conn, (2, address().pack()), UNTIL_CONNECTED, NOW).unwrap();
    drop(request);
    stays_quiet(&mut third);
    let CmEvent::Accepted(id, 1, at, _) = next_event(&mut client) else { panic!("accepted") };
    assert_eq!(at, address());
    client.confirm(id, Answer::Connected, NOW);
    assert_eq!(client.next_deadline(), None, "the client's exchange is over");
    while third.next_deadline().is_some() {
        assert!(poll_at(&mut third, NOW).is_none());
    }
}

#[test]
fn rejections_and_reasons_are_told() {
    let (mut client, mut server) = (cm(), cm());
    let (_, addr) = listen(&mut server);
    send_hello(&mut client, addr, 1);
    next_request(&mut server).reject();
    assert_eq!(next_failure(&mut client), (1, ConnectFailure::Rejected));
    send_hello(&mut client, addr, 2);
    drop(next_request(&mut server));
    assert_eq!(next_failure(&mut client), (2, ConnectFailure::Rejected));
    send_hello(&mut client, addr, 3);
    next_request(&mut server).answer(Answer::Unreachable);
    assert_eq!(next_failure(&mut client), (3, ConnectFailure::Unreachable));
    // The client cannot reach the server: the server's endpoint fails.
    send_hello(&mut client, addr, 4);
    let conn = next_request(&mut server).take_conn().unwrap();
    server.accept(conn, (5, address().pack()), UNTIL_CONNECTED, NOW).unwrap();
    let CmEvent::Accepted(id, ..) = next_event(&mut client) else { panic!("accepted") };
    client.confirm(id, Answer::Unreachable, NOW);
    assert_eq!(next_failure(&mut server), (5, ConnectFailure::Unreachable));
}

#[test]
fn refused_and_reset_connections_are_told_apart() {
    let mut client = cm();
    let (addr, gone) = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        (listener.local_addr().unwrap(), TcpListener::bind("127.0.0.1:0").unwrap())
    };
    connect(&mut client, addr, 1);
    assert_eq!(next_failure(&mut client), (1, ConnectFailure::Refused));
    // Closed after the connection was made, before and after HELLO has been read.
    let at = gone.local_addr().unwrap();
    connect(&mut client, at, 2);
    drop(gone.accept().unwrap());
    assert_eq!(next_failure(&mut client), (2, ConnectFailure::Reset));
    connect(&mut client, at, 3);
    let (mut stream, _) = gone.accept().unwrap();
    assert!(poll_at(&mut client, NOW).is_none());
    let mut buf = vec![0; hello().len()];
    stream.read_exact(&mut buf).unwrap();
    assert_eq!(buf, hello());
    drop(stream);
    assert_eq!(next_failure(&mut client), (3, ConnectFailure::Reset));
}

#[test]
fn exchanges_end_in_time() {
    let (mut client, mut server) = (cm(), cm());
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    connect(&mut client, silent.local_addr().unwrap(), 1);
    stays_quiet(&mut client);
    let deadline = NOW + CONFIG.timeout;
    assert_eq!(client.next_deadline(), Some(deadline));
    assert!(poll_at(&mut client, Nanos(deadline.0 - 1)).is_none());
    assert!(matches!(poll_at(&mut client, deadline), Some(CmEvent::Failed(1, ConnectFailure::TimedOut, _))));
    assert_eq!(client.next_deadline(), None);
    // A server's: of one that says nothing, and of one that does not confirm.
    let (_, addr) = listen(&mut server);
    let _quiet = TcpStream::connect(addr).unwrap();
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.write_all(&hello()).unwrap();
    let conn = next_request(&mut server).take_conn().unwrap();
    server.accept(conn, (2, address().pack()), UNTIL_CONNECTED, NOW).unwrap();
    stays_quiet(&mut server);
    assert!(matches!(poll_at(&mut server, deadline), Some(CmEvent::Failed(2, ConnectFailure::TimedOut, _))));
    assert_eq!(server.next_deadline(), None);
}

#[test]
fn unwanted_exchanges_are_dropped() {
    let mut client = cm();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    connect(&mut client, server.local_addr().unwrap(), 1);
    let (mut stream, _) = server.accept().unwrap();
    client.poll(NOW, |ep| *ep != 1);
    assert_eq!((client.next_deadline(), client.has_events()), (None, false));
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.is_empty(), "the connection is closed");
}

#[test]
fn malformed_bytes_end_an_exchange() {
    let (mut client, mut server) = (cm(), cm());
    let (_, addr) = listen(&mut server);
    let long = [&b"UCCM\x01\x01\xff\xff\0\0\0\0\0\0\0\0"[..], &[0; 70_000]].concat();
    let no_address = Frame { kind: Kind::Hello, word: 0, body: b"not an address".to_vec() }.pack();
    let wrong_kind = Frame::answer(Kind::Confirm, Answer::Connected).pack();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &long, &no_address, &accept(), &wrong_kind, &[0; 64]] {
        let mut stream = TcpStream::connect(addr).unwrap();
        let _ = stream.write_all(bytes);
        stays_quiet(&mut server);
        assert_eq!(server.next_deadline(), None, "dropped: {bytes:?}");
        let mut reply = Vec::new();
        // Bytes that were not read turn the end into a reset.
        if stream.read_to_end(&mut reply).is_ok() {
            assert_eq!(reply, Frame::answer(Kind::Reject, Answer::NotUnderstood).pack());
        }
    }
    // A server that answers nonsense.
    let fake = TcpListener::bind("127.0.0.1:0").unwrap();
    let reason = Frame { kind: Kind::Reject, word: 99, body: Vec::new() }.pack();
    let connected = Frame::answer(Kind::Reject, Answer::Connected).pack();
    for bytes in [&b"SSH-2.0-x\r\n"[..], &hello(), &reason, &connected, &no_address] {
        connect(&mut client, fake.local_addr().unwrap(), 1);
        let (mut stream, _) = fake.accept().unwrap();
        stream.write_all(bytes).unwrap();
        assert_eq!(next_failure(&mut client), (1, ConnectFailure::Malformed), "{bytes:?}");
    }
    // A client that confirms nonsense.
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.write_all(&[hello(), hello()].concat()).unwrap();
    let conn = next_request(&mut server).take_conn().unwrap();
    server.accept(conn, (7, address().pack()), UNTIL_CONNECTED, NOW).unwrap();
    assert_eq!(next_failure(&mut server), (7, ConnectFailure::Malformed));
}

/// Frames may come in any pieces.
#[test]
fn frames_arrive_byte_by_byte() {
    let mut server = cm();
    let (_, addr) = listen(&mut server);
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_nodelay(true).unwrap();
    for byte in hello() {
        assert!(poll_at(&mut server, NOW).is_none());
        stream.write_all(&[byte]).unwrap();
    }
    let conn = next_request(&mut server).take_conn().unwrap();
    server.accept(conn, (1, address().pack()), UNTIL_CONNECTED, NOW).unwrap();
    let mut reply = vec![0; accept().len()];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply, accept());
    for byte in Frame::answer(Kind::Confirm, Answer::Connected).pack() {
        assert!(poll_at(&mut server, NOW).is_none() && server.next_deadline().is_some());
        stream.write_all(&[byte]).unwrap();
    }
    while server.next_deadline().is_some() {
        assert!(poll_at(&mut server, NOW).is_none());
    }
}

#[test]
fn silent_clients_make_way() {
    let mut server = cm();
    let (id, addr) = listen(&mut server);
    let silent: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(addr).unwrap()).collect();
    stays_quiet(&mut server);
    let mut honest = TcpStream::connect(addr).unwrap();
    honest.write_all(&hello()).unwrap();
    let first = next_request(&mut server);
    // Requests that the program keeps fill the rest; then others wait until it answers.
    let mut clients = Vec::new();
    for _ in 0..CONFIG.max_pending {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.write_all(&hello()).unwrap();
        clients.push(stream);
    }
    let mut requests = vec![first];
    while requests.len() < CONFIG.max_pending {
        requests.push(next_request(&mut server));
    }
    stays_quiet(&mut server);
    requests.pop().unwrap().reject();
    let later = Nanos(NOW.0 + 1_000_000_000);
    while poll_at(&mut server, later).is_none() {}
    // What has not become a request goes with the listener.
    server.unlisten(id);
    assert_eq!(server.next_deadline(), None);
    drop(silent);
}

#[test]
fn accepted_clients_that_do_not_confirm_make_way() {
    let mut server = cm();
    let (_, addr) = listen(&mut server);
    let mut clients = Vec::new();
    for ep in 0..CONFIG.max_pending as u32 + 1 {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.write_all(&hello()).unwrap();
        let conn = next_request(&mut server).take_conn().unwrap();
        server.accept(conn, (ep, address().pack()), UNTIL_CONNECTED, NOW).unwrap();
        clients.push(stream);
    }
    assert_eq!(next_failure(&mut server), (0, ConnectFailure::TimedOut));
    stays_quiet(&mut server);
}
