use super::*;
use std::net::TcpListener;
use std::thread;

const TOOL: &str = "ucx-perftest";

fn pair() -> (Connection, Connection) {
    let listener = Listener::local(TOOL).unwrap();
    let port = listener.port();
    let client = thread::spawn(move || Connection::connect(TOOL, "127.0.0.1", port).unwrap());
    let server = listener.accept(|| Ok(())).unwrap();
    (server, client.join().unwrap())
}

/// The client's error after a server has sent it `words`.
fn greeted_with(words: &'static [u8]) -> BootError {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let server = thread::spawn(move || {
        let (mut s, _) = socket.accept().unwrap();
        s.write_all(words).unwrap();
        // Reads the client's handshake, so that closing is an orderly end.
        let _ = s.read(&mut [0; 4096]);
    });
    let err = Connection::connect(TOOL, "127.0.0.1", port).err().unwrap();
    server.join().unwrap();
    err
}

#[test]
fn values_bytes_and_barriers_pass() {
    let (mut server, mut client) = pair();
    let other = thread::spawn(move || {
        let theirs: HexBytes = server.exchange(&HexBytes(vec![0, 255]), || 0).unwrap();
        server.barrier(|| 0).unwrap();
        server.barrier(|| 0).unwrap();
        theirs
    });
    let mut calls = 0;
    let theirs: HexBytes = client
        .exchange(&HexBytes(vec![1, 2, 3]), || {
            calls += 1;
            calls
        })
        .unwrap();
    client.barrier(|| 0).unwrap();
    client.barrier(|| 0).unwrap();
    assert_eq!((theirs.0, other.join().unwrap().0), (vec![0, 255], vec![1, 2, 3]));
}

#[test]
fn close_and_abort_are_errors_of_all_calls() {
    let (server, mut client) = pair();
    client.check_alive().unwrap();
    drop(server);
    assert_eq!(client.recv::<u32>(|| 0), Err(BootError::Closed));

    let (mut server, mut client) = pair();
    server.send(&7u32).unwrap();
    server.abort("no memory");
    let why = BootError::PeerAborted("no memory".into());
    while client.check_alive().is_ok() {}
    assert_eq!(client.check_alive(), Err(why.clone()));
    assert_eq!(client.recv::<u32>(|| 0), Ok(7));
    assert_eq!(client.barrier(|| 0), Err(why));
}

#[test]
fn watch_sees_close_behind_unread_messages() {
    let (server, mut client) = pair();
    let watch = server.watch().unwrap();
    client.send(&7u32).unwrap();
    assert_eq!(watch.check_alive(), Ok(()));
    drop(client);
    let deadline = Instant::now() + Duration::from_secs(10);
    while watch.check_alive().is_ok() && Instant::now() < deadline {}
    assert_eq!(watch.check_alive(), Err(BootError::Closed));
}

#[test]
fn port_in_use_and_absent_server_are_errors() {
    let listener = Listener::any(TOOL, Family::V4, 0).unwrap();
    let port = listener.port();
    let text = Listener::any(TOOL, Family::V4, port).err().unwrap().to_string();
    assert_eq!(text, format!("TCP port {port} is taken: choose another with -p on both sides"));
    drop(listener);
    let text = Connection::connect(TOOL, "127.0.0.1", port).err().unwrap().to_string();
    assert_eq!(
        text,
        format!(
            "no server at 127.0.0.1:{port} (Connection refused): start `ucx-perftest` there first, with the same -p"
        )
    );
    let text = Connection::connect(TOOL, "no.such.host.invalid", 1).err().unwrap().to_string();
    assert!(text.starts_with("cannot find host 'no.such.host.invalid': "), "{text}");
}

#[test]
fn stopped_server_is_told_from_another_program() {
    // The system accepts for a process that does not run.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let within = |time| Connection::connect_within(TOOL, "127.0.0.1", at.port(), time).err().unwrap();
    assert_eq!(
        within(Duration::from_millis(50)).to_string(),
        format!("{at} is connected and says nothing: is {TOOL} stopped there, or is another program there?")
    );
    let half = thread::spawn(move || {
        let (mut stream, _) = listener.incoming().map(|s| (s.unwrap(), ())).nth(1).unwrap();
        stream.write_all(b"220 mail").unwrap();
        stream
    });
    let error = within(Duration::from_secs(2));
    assert!(matches!(error, BootError::UnknownProtocol { .. }), "{error}");
    half.join().unwrap();
}

#[test]
fn absent_process_is_no_fault_of_a_loopback_that_works() {
    let listener = Listener::local(TOOL).unwrap();
    assert_eq!(listener.cause_of_absence(), BootError::Closed);
}

#[test]
fn other_programs_and_versions_are_refused() {
    let text = greeted_with(b"SSH-2.0-OpenSSH_9.2\r\n").to_string();
    assert!(
        text.ends_with("does not speak the protocol of ucx-perftest: is another program there?"),
        "{text}"
    );
    assert!(matches!(greeted_with(b""), BootError::Closed));
    let other = b"{\"hello\":{\"tool\":\"ucx-perftest\",\"protocol\":9,\"version\":\"7.0\\u0007\"}}\n";
    assert_eq!(
        greeted_with(other).to_string(),
        format!(
            "the other side is ucx-perftest 7.0 (protocol 9), this is ucx-perftest {} (protocol {PROTOCOL}): \
             run the same version on both sides",
            env!("CARGO_PKG_VERSION")
        )
    );
    assert!(matches!(greeted_with(b"{\"barrier\":1}\n"), BootError::UnknownProtocol { .. }));
}

#[test]
fn malformed_messages_are_errors() {
    for (line, part) in [
        (&b"{\"value\":\"zz\"}\n"[..], "hexadecimal"),
        (b"{\"value\":\"abc\"}\n", "hexadecimal"),
        (b"{\"value\":{}}\n", "invalid type"),
        (b"{\"barrier\":3}\n", "a value was expected"),
        (b"\xff\xfe\n", "broke the protocol"),
    ] {
        let (mut server, mut client) = pair();
        server.stream.write_all(line).unwrap();
        let text = client.recv::<HexBytes>(|| 0).unwrap_err().to_string();
        assert!(text.contains(part), "{text}");
    }
    let (mut server, mut client) = pair();
    let flood = thread::spawn(move || server.stream.write_all(&vec![b'x'; MAX_LINE + 8192]));
    assert!(matches!(client.recv::<HexBytes>(|| 0), Err(BootError::Malformed(..))));
    drop(client);
    let _ = flood.join().unwrap();
}

#[test]
fn text_of_the_peer_is_one_line() {
    let why = format!("a\nb\x1b[2J{}", "x".repeat(1000));
    let text = BootError::PeerAborted(why).to_string();
    assert!(text.starts_with("the other side gave up: a b [2Jxxx") && text.ends_with("xxx..."), "{text}");
    assert!(text.len() < 600 && !text.contains(char::is_control));
}
