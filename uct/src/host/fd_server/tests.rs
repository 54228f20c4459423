//! Tests of two fd servers: good and malformed requests, and socket files.

#![allow(unsafe_code)]

use super::client_table::{MAX_SILENT, SILENCE_LIMIT};
use super::wire::{BUF_LEN, KeepOpen, MAX_NAMES, MemRange, Reply, Request, Status};
use super::*;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use ucs::mem::MapOpts;
use ucs::sys::WakeSender;
use zerocopy::IntoBytes;

const TIMEOUT: Duration = Duration::from_secs(10);

impl FdServer {
    fn fetch(&self, name: Name) -> Result<Fetched, ConnectError> {
        let wanted = self.key_of(name);
        match self.wait(self.query([wanted], TIMEOUT)?, TIMEOUT)? {
            QueryResult::Answered(mut all) => all.pop().expect("one was queried").1,
            QueryResult::Pending(_) => Err(ConnectError::NoAnswer),
        }
    }

    /// The capability that a key of an export of this process contains.
    fn key_of(&self, name: Name) -> Capability {
        let exports = lock(&self.shared.exports);
        let nonce = exports.get(&name.0).map_or(0, |entry| entry.nonce);
        Capability { name, nonce }
    }
}

fn memory(fill: u8) -> Arc<SharedMem> {
    let mem = SharedMem::create("fd-server-test", 4096, MapOpts::default()).unwrap();
    // SAFETY: the memory is ours and nobody else knows of it.
    unsafe { mem.as_ptr().write_bytes(fill, 4096) };
    Arc::new(mem)
}

/// A directory of this test, removed with it.
struct Dir(String);

impl Dir {
    fn new(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("fd-server-{name}.{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Dir(path.to_str().unwrap().into())
    }

    fn names(&self) -> Vec<String> {
        let names = std::fs::read_dir(&self.0).unwrap();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn exports_are_fetched_until_dropped() {
    let dir = Dir::new("export");
    for namespace in [SocketNamespace::new("").unwrap(), SocketNamespace::new(&dir.0).unwrap()] {
        let server = FdServer::get(namespace).unwrap();
        let mem = memory(7);
        let wake = Arc::new(WakeSocket::new().unwrap());
        let with = server.export(server.new_name(), mem.clone(), ExportKind::Iface(wake.clone()));
        let range = MemRange::new(0x1000, 4096, 1);
        let without = server.export(server.new_name(), mem.clone(), ExportKind::Memory(range));
        let got = server.fetch(with.name()).unwrap();
        let ExportKind::Iface(theirs) = got.kind else { panic!("an interface") };
        let is_readable = || ucs::sys::fd::wait_readable(&[wake.as_fd()], Some(Duration::ZERO)).unwrap();
        assert!(!is_readable());
        WakeSender::from_peer(theirs).unwrap().signal().unwrap();
        assert!(is_readable());
        let copy = SharedMem::from_fd(got.mem, 4096).unwrap();
        // SAFETY: a byte of the mapping, which nobody writes any more.
        assert_eq!(unsafe { copy.as_ptr().wrapping_add(4095).read() }, 7);
        assert!(!got.watch.check() && server.is_alive(server.key()));
        assert!(
            matches!(server.fetch(without.name()).unwrap().kind, ExportKind::Memory(got) if got == range)
        );
        let name = without.name();
        drop(without);
        assert_eq!(server.fetch(name).err(), Some(ConnectError::Gone));
    }
}

#[test]
fn memory_is_passed_to_holders_of_a_key_only() {
    let server = FdServer::get(SocketNamespace::new("").unwrap()).unwrap();
    let export = server.export(server.new_name(), memory(1), ExportKind::Memory(MemRange::default()));
    let name = export.name();
    let fetch = |wanted: Capability| {
        let query = server.query([wanted], TIMEOUT).unwrap();
        let QueryResult::Answered(mut all) = server.wait(query, TIMEOUT).unwrap() else {
            panic!("no answer")
        };
        all.pop().unwrap().1.err()
    };
    let nonce = server.nonce(name);
    assert_eq!(fetch(Capability { name, nonce }), None);
    for wrong in [0, 1, nonce ^ 1, nonce ^ 1 << 63, !nonce] {
        assert_eq!(fetch(Capability { name, nonce: wrong }), Some(ConnectError::Gone), "{wrong:#x}");
    }
    // The key of one word is not there before it is asked for, nor after the memory is withdrawn.
    let alias = server.alias_of(name);
    assert_eq!(fetch(alias.into()), Some(ConnectError::Gone));
    assert_eq!(server.alias(name), Some(alias));
    assert_eq!(fetch(alias.into()), None);
    assert_ne!(alias.0 & NUMBER, name.0 & NUMBER);
    drop(export);
    assert_eq!(fetch(alias.into()), Some(ConnectError::Gone));
    assert_eq!(server.alias(name), None);
}

#[test]
fn guesses_of_names_are_bounded() {
    let (mut guesses, start) = (guess_limit::GuessLimit::new(), Instant::now());
    for _ in 0..guess_limit::MAX_WRONG {
        assert!(guesses.may_look_up());
        guesses.note_wrong();
    }
    // A machine that pauses lets the count begin anew.
    assert!(!guesses.may_look_up() || start.elapsed() >= guess_limit::PERIOD);
    std::thread::sleep(guess_limit::PERIOD);
    assert!(guesses.may_look_up());
}

#[test]
fn one_query_covers_many_names() {
    let server = FdServer::get(SocketNamespace::new("").unwrap()).unwrap();
    let wake = Arc::new(WakeSocket::new().unwrap());
    let kind = |n: u8| match n % 3 {
        0 => ExportKind::Iface(wake.clone()),
        _ => ExportKind::Memory(MemRange::new(u64::from(n), 4096, 0)),
    };
    let exports: Vec<_> =
        (0..MAX_NAMES as u8).map(|n| server.export(server.new_name(), memory(n), kind(n))).collect();
    let mut names: Vec<_> = exports.iter().map(Export::name).collect();
    // One that is gone, and one of another process.
    names[5] = server.new_name();
    names[9] = Name::new(ProcKey(server.key().0 ^ 1), 0);
    let query = server.query(names.iter().map(|name| server.key_of(*name)), TIMEOUT).unwrap();
    let QueryResult::Answered(got) = server.wait(query, TIMEOUT).unwrap() else { panic!("no answer") };
    assert_eq!(got.len(), MAX_NAMES);
    for (n, (name, got)) in got.into_iter().enumerate() {
        assert_eq!(name, names[n]);
        if n == 5 || n == 9 {
            assert_eq!(got.err(), Some(ConnectError::Gone), "{n}");
            continue;
        }
        let got = got.unwrap();
        match got.kind {
            ExportKind::Iface(_) => assert_eq!(n % 3, 0, "{n}"),
            ExportKind::Memory(range) => assert_eq!((n % 3 != 0, range.addr.get()), (true, n as u64), "{n}"),
        }
        let copy = SharedMem::from_fd(got.mem, 4096).unwrap();
        // SAFETY: a byte of the mapping, which nobody writes any more.
        assert_eq!(usize::from(unsafe { copy.as_ptr().read() }), n);
    }
    assert!(server.query([Name(0); 0], TIMEOUT).is_err());
}

const LONG: Duration = Duration::from_secs(5);

/// Sends a message with a connection that takes [`LONG`] to close: nobody reads what it has sent.
fn send_lingering(to: &OwnedFd, bytes: &[u8]) -> rustix::io::Result<usize> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut lingers = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    lingers.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut lingers, &[0; 1 << 16]).is_ok() {}
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    let fds = [lingers.as_fd()];
    with.push(SendAncillaryMessage::ScmRights(&fds));
    let sent = sendmsg(to, &[std::io::IoSlice::new(bytes)], &mut with, SendFlags::NOSIGNAL);
    if sent.is_ok() {
        rustix::net::sockopt::set_socket_linger(&lingers, Some(LONG)).unwrap();
    }
    sent
}

#[test]
fn a_reply_with_a_lingering_socket_holds_nobody() {
    let server = FdServer::get(SocketNamespace::new("").unwrap()).unwrap();
    let (key, listener) = server.namespace().bind().unwrap();
    let query = server.query([Name::new(key, 0)], TIMEOUT).unwrap();
    let client = rustix::net::accept(&listener).unwrap();
    send_lingering(&client, Reply::new([Status::Memory(MemRange::default())]).as_bytes()).unwrap();
    let start = Instant::now();
    assert_eq!(server.wait(query, TIMEOUT).err(), Some(ConnectError::Malformed));
    assert!(start.elapsed() < LONG, "{:?}", start.elapsed());
}

#[test]
fn a_request_with_a_lingering_socket_holds_nobody() {
    let dir = Dir::new("lingers");
    let (server, export) = serve(&dir);
    let hostile = connect(&server);
    let request = Request::new(&[server.key_of(export.name())], KeepOpen::Yes);
    match send_lingering(&hostile, request.as_bytes()) {
        Err(rustix::io::Errno::PERM) => {}
        sent => {
            let why = format!("{sent:?}, as before Linux 6.16");
            return ucs::testing::skipped("a request with a lingering socket", why);
        }
    }
    let start = Instant::now();
    assert!(server.fetch(export.name()).is_ok());
    assert!(start.elapsed() < LONG, "{:?}", start.elapsed());
}

#[test]
fn every_query_is_answered() {
    let server = FdServer::get(SocketNamespace::new("").unwrap()).unwrap();
    let export = server.export(server.new_name(), memory(1), ExportKind::Memory(MemRange::default()));
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for _ in 0..10_000 {
                    assert_eq!(server.fetch(export.name()).err(), None);
                }
            });
        }
    });
}

#[test]
fn unanswered_query_does_not_block() {
    let server = FdServer::get(SocketNamespace::new("").unwrap()).unwrap();
    let (key, listener) = server.namespace().bind().unwrap();
    let name = Name::new(key, 0);
    let start = Instant::now();
    let mut query = server.query([name], TIMEOUT).unwrap();
    for wait in [Duration::ZERO, Duration::from_millis(1)].repeat(20) {
        let QueryResult::Pending(again) = server.wait(query, wait).unwrap() else {
            panic!("nobody is there")
        };
        query = again;
    }
    assert!(!query.is_overdue() && start.elapsed() < TIMEOUT);
    let accept = || rustix::net::accept_with(&listener, rustix::net::SocketFlags::NONBLOCK).ok();
    let client = accept().unwrap();
    assert!(accept().is_none(), "queried once");
    // Fills the backlog; the next query is sent when one connection is accepted.
    let waiting: Vec<_> = std::iter::from_fn(|| client::connect(server.namespace(), key).unwrap()).collect();
    let QueryResult::Pending(late) =
        server.wait(server.query([name], TIMEOUT).unwrap(), Duration::ZERO).unwrap()
    else {
        panic!("nobody is there")
    };
    waiting.iter().for_each(|_| drop(accept().unwrap()));
    let QueryResult::Pending(late) = server.wait(late, Duration::from_millis(1)).unwrap() else {
        panic!("nobody answers")
    };
    let last = accept().expect("who could not get in comes again");
    for client in [client, last] {
        let mut room = [0; BUF_LEN];
        let (_, received) = rustix::net::recv(&client, &mut room, rustix::net::RecvFlags::DONTWAIT).unwrap();
        assert_eq!(Request::read(&room[..received]).unwrap().0.as_slice(), [name.into()]);
        let answer = Reply::new([Status::NotFound]);
        rustix::net::send(&client, answer.as_bytes(), rustix::net::SendFlags::NOSIGNAL).unwrap();
    }
    for query in [query, late] {
        let QueryResult::Answered(all) = server.wait(query, TIMEOUT).unwrap() else {
            panic!("it has answered")
        };
        assert!(matches!(&all[..], [(of, Err(ConnectError::Gone))] if *of == name));
    }
}

#[test]
fn query_is_repeated_after_a_hangup() {
    let server = FdServer::get(SocketNamespace::new("").unwrap()).unwrap();
    let (key, listener) = server.namespace().bind().unwrap();
    let name = Name::new(key, 0);
    let accept = || loop {
        match rustix::net::accept_with(&listener, rustix::net::SocketFlags::NONBLOCK) {
            Ok(client) => return client,
            Err(e) => assert_eq!(e, rustix::io::Errno::AGAIN),
        }
    };
    let mut query = server.query([name], TIMEOUT).unwrap();
    let mut room = [0; BUF_LEN];
    for received in [false, true, false, true] {
        let client = accept();
        if received {
            rustix::net::recv(&client, &mut room, rustix::net::RecvFlags::empty()).unwrap();
        }
        drop(client);
        // Until it has connected again.
        loop {
            let QueryResult::Pending(again) = server.wait(query, Duration::from_millis(5)).unwrap() else {
                panic!("no reply was sent")
            };
            query = again;
            if ucs::sys::fd::wait_readable(&[listener.as_fd()], Some(Duration::ZERO)).unwrap() {
                break;
            }
        }
    }
    let client = accept();
    rustix::net::recv(&client, &mut room, rustix::net::RecvFlags::empty()).unwrap();
    let answer = Reply::new([Status::RetryLater]);
    rustix::net::send(&client, answer.as_bytes(), rustix::net::SendFlags::NOSIGNAL).unwrap();
    let QueryResult::Answered(all) = server.wait(query, TIMEOUT).unwrap() else { panic!("it has answered") };
    assert!(matches!(&all[..], [(_, Err(ConnectError::Op(Error::NoDescriptor)))]));
    // A closed listener means that the process is gone.
    let query = server.query([name], TIMEOUT).unwrap();
    drop((accept(), listener));
    assert_eq!(server.wait(query, TIMEOUT).err(), Some(ConnectError::Gone));
}

#[test]
fn dropped_server_leaves_no_socket() {
    let dir = Dir::new("left");
    let namespace = SocketNamespace::new(&dir.0).unwrap();
    let server = FdServer::get(namespace.clone()).unwrap();
    assert!(Arc::ptr_eq(&server, &FdServer::get(namespace.clone()).unwrap()));
    let (key, name) = (server.key(), server.new_name());
    assert!(client::is_alive(&namespace, key));
    assert_eq!(dir.names().len(), 1);
    drop(server);
    assert!(!client::is_alive(&namespace, key));
    assert_eq!(client::connect(&namespace, name.owner()).err(), Some(ConnectError::Gone));
    assert!(dir.names().is_empty());
}

#[test]
fn stale_sockets_are_removed_and_others_are_kept() {
    let dir = Dir::new("sweep");
    let namespace = SocketNamespace::new(&dir.0).unwrap();
    let (key, socket) = namespace.bind().unwrap();
    drop(socket);
    assert_eq!(dir.names().len(), 1, "as after kill -9");
    std::fs::write(format!("{}/readme", dir.0), "mine").unwrap();
    std::fs::write(format!("{}/uct-posix.notakey", dir.0), "mine").unwrap();
    let (mine, theirs) =
        (namespace.file(dir.0.as_ref(), key), format!("{}/uct-posix.12345678.0123456789", dir.0));
    drop(std::os::unix::net::UnixListener::bind(&theirs).unwrap());
    // A young socket may be about to listen.
    drop(namespace.bind().unwrap());
    assert_eq!(dir.names().len(), 5);
    let old = std::time::SystemTime::now() - Duration::from_secs(60);
    for socket in [mine.as_path(), theirs.as_ref()] {
        rustix::fs::utimensat(
            rustix::fs::CWD,
            socket,
            &rustix::fs::Timestamps { last_access: timespec(old), last_modification: timespec(old) },
            rustix::fs::AtFlags::empty(),
        )
        .unwrap();
    }
    let server = FdServer::get(namespace).unwrap();
    assert!(!mine.exists());
    assert!(std::path::Path::new(&theirs).exists(), "of another host: whether it lives is unknown here");
    assert_eq!(dir.names().len(), 5);
    drop(server);
}

fn timespec(at: std::time::SystemTime) -> rustix::fs::Timespec {
    let since = at.duration_since(std::time::UNIX_EPOCH).unwrap();
    rustix::fs::Timespec { tv_sec: since.as_secs() as i64, tv_nsec: 0 }
}

fn socket() -> OwnedFd {
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

/// A connection to a server, as anybody can make it. It blocks.
fn connect(server: &FdServer) -> OwnedFd {
    connect_to(server.namespace(), server.key())
}

fn connect_to(namespace: &SocketNamespace, key: ProcKey) -> OwnedFd {
    let socket = socket();
    rustix::net::connect(&socket, &namespace.socket_addr(key).unwrap()).unwrap();
    socket
}

/// Runs as another user, which only root can become. Credentials belong to a thread.
fn as_another_user<T: Send>(test: &str, run: impl FnOnce() -> T + Send) -> Option<T> {
    if !rustix::process::geteuid().is_root() {
        ucs::testing::skipped(test, "only root becomes another user");
        return None;
    }
    let stranger = || {
        let nobody: libc::uid_t = 65534;
        // SAFETY: changes the credentials of this thread only, which ends with the closure.
        let code = unsafe { libc::syscall(libc::SYS_setresuid, nobody, nobody, nobody) };
        assert_eq!(code, 0);
        run()
    };
    Some(std::thread::scope(|threads| threads.spawn(stranger).join().unwrap()))
}

/// The next packet's length: 0 once the server has hung up.
fn receive(socket: &OwnedFd, room: &mut [u8]) -> usize {
    rustix::net::recv(socket, room, rustix::net::RecvFlags::empty()).unwrap().1
}

/// A server of its own, which no other test uses, and what it exports.
fn serve(dir: &Dir) -> (Arc<FdServer>, Export) {
    let server = FdServer::get(SocketNamespace::new(&dir.0).unwrap()).unwrap();
    let export = server.export(server.new_name(), memory(1), ExportKind::Memory(MemRange::default()));
    (server, export)
}

#[test]
fn silent_clients_take_few_descriptors_for_a_short_time() {
    let dir = Dir::new("silent");
    let (server, export) = serve(&dir);
    let silent: Vec<_> = (0..3 * MAX_SILENT).map(|_| connect(&server)).collect();
    assert!(server.fetch(export.name()).is_ok());
    // The oldest are out at once, the youngest when they have been silent for too long.
    let start = Instant::now();
    for socket in &silent[..2 * MAX_SILENT] {
        assert_eq!(receive(socket, &mut [0; 8]), 0);
    }
    assert_eq!(receive(&silent[3 * MAX_SILENT - 1], &mut [0; 8]), 0);
    assert!(start.elapsed() < SILENCE_LIMIT + TIMEOUT);
    // One that has asked stays.
    let asks = connect(&server);
    let request = Request::new(&[server.key_of(export.name())], KeepOpen::Yes);
    for wait in [2 * SILENCE_LIMIT, Duration::ZERO] {
        rustix::net::send(&asks, request.as_bytes(), rustix::net::SendFlags::NOSIGNAL).unwrap();
        assert!(receive(&asks, &mut [0; BUF_LEN]) > 0);
        std::thread::sleep(wait);
    }
}

const FEW: u64 = 64;

/// A process of its own, that may have few descriptors, with a server; it ends when its input does.
#[test]
#[ignore = "run by kept_clients_take_half_of_the_descriptors"]
fn server_with_few_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(FEW), maximum }).unwrap();
    let server = FdServer::get(SocketNamespace::new("").unwrap()).unwrap();
    let export = server.export(server.new_name(), memory(1), ExportKind::Memory(MemRange::default()));
    let Capability { name, nonce } = server.key_of(export.name());
    println!("\nwanted {} {nonce}", name.0);
    let _ = std::io::Read::read_to_end(&mut std::io::stdin(), &mut Vec::new());
}

#[test]
fn kept_clients_take_half_of_the_descriptors() {
    use std::io::BufRead;
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "host::fd_server::tests::server_with_few_descriptors"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    let said = lines.find_map(|line| line.unwrap().strip_prefix("wanted ").map(str::to_owned)).unwrap();
    let (name, nonce) = said.trim().split_once(' ').unwrap();
    let wanted = Capability { name: Name(name.parse().unwrap()), nonce: nonce.parse().unwrap() };
    let namespace = SocketNamespace::new("").unwrap();
    // A server without a place hangs up on a client whose request has not come yet; it asks again.
    let ask = || {
        let start = Instant::now();
        loop {
            let socket = connect_to(&namespace, wanted.name.owner());
            let request = Request::new(&[wanted], KeepOpen::Yes);
            let _ = rustix::net::send(&socket, request.as_bytes(), rustix::net::SendFlags::NOSIGNAL);
            let mut room = [0; BUF_LEN];
            let len = receive(&socket, &mut room);
            if len > 0 {
                break (socket, Reply::read(&room[..len]).unwrap().unwrap()[0]);
            }
            assert!(start.elapsed() < TIMEOUT);
        }
    };
    let mut kept: Vec<_> = (0..FEW / 2).map(|_| ask()).collect();
    assert!(kept.iter().all(|(_, status)| matches!(status, Status::Memory(_))));
    let (refused, status) = ask();
    assert_eq!((status, receive(&refused, &mut [0; 8])), (Status::RetryLater, 0), "and it has hung up");
    // Whoever comes back finds the place of one that has left.
    drop(kept.pop());
    let start = Instant::now();
    while ask().1 == Status::RetryLater {
        assert!(start.elapsed() < TIMEOUT);
    }
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn another_user_brings_no_dead_process_to_life() {
    let net = SocketNamespace::new("").unwrap();
    let (key, ours) = net.bind().unwrap();
    assert!(client::is_alive(&net, key));
    drop(ours);
    assert!(!client::is_alive(&net, key));
    let take_name = || {
        let theirs = socket();
        rustix::net::bind(&theirs, &net.socket_addr(key).unwrap()).unwrap();
        rustix::net::listen(&theirs, 8).unwrap();
        theirs
    };
    let Some(theirs) = as_another_user("another_user_brings_no_dead_process_to_life", take_name) else {
        return;
    };
    assert!(!client::is_alive(&net, key));
    assert_eq!(client::connect(&net, key).err(), Some(ConnectError::Permission));
    drop(theirs);
}

#[test]
fn a_private_directory_keeps_other_users_out() {
    let dir = Dir::new("private");
    let (server, export) = serve(&dir);
    let (namespace, key) = (server.namespace(), server.key());
    for (mode, reaches) in [(0o755, true), (0o700, false)] {
        std::fs::set_permissions(&dir.0, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        let file = namespace.file(std::path::Path::new(&dir.0), key);
        std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        // Where the socket can be reached, the server's user is asked for, and it is another.
        let Some(got) = as_another_user("a_private_directory_keeps_other_users_out", || {
            let connects = rustix::net::connect(socket(), &namespace.socket_addr(key).unwrap());
            (client::connect(namespace, key).err(), connects.err())
        }) else {
            return;
        };
        assert_eq!(got, (Some(ConnectError::Permission), (!reaches).then_some(rustix::io::Errno::ACCESS)));
    }
    assert!(server.fetch(export.name()).is_ok());
}

#[test]
fn another_user_takes_no_descriptor() {
    let dir = Dir::new("user");
    std::fs::set_permissions(&dir.0, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let (server, export) = serve(&dir);
    let file = server.namespace().file(std::path::Path::new(&dir.0), server.key());
    std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let stranger = || (0..100).map(|_| connect(&server)).collect::<Vec<_>>();
    let Some(strangers) = as_another_user("another_user_takes_no_descriptor", stranger) else { return };
    assert!(server.fetch(export.name()).is_ok());
    for socket in &strangers {
        let mut room = [0; BUF_LEN];
        let len = receive(socket, &mut room);
        assert_eq!(Reply::read(&room[..len]).unwrap().unwrap(), [Status::Denied; MAX_NAMES]);
        assert_eq!(receive(socket, &mut room), 0, "it has hung up");
    }
}

#[test]
fn malformed_requests_are_survived() {
    let server = FdServer::get(SocketNamespace::new("").unwrap()).unwrap();
    let connect = || connect(&server);
    let send = |socket: &OwnedFd, bytes: &[u8]| {
        rustix::net::send(socket, bytes, rustix::net::SendFlags::NOSIGNAL).unwrap();
        let mut room = [0; BUF_LEN];
        let (_, got) = rustix::net::recv(socket, &mut room, rustix::net::RecvFlags::empty()).unwrap();
        Reply::read(&room[..got]).unwrap().unwrap()
    };
    let long = [7; 4000];
    for bytes in [&[1][..], &[0; 16], &long, Request::new(&[Name(3).into()], KeepOpen::Yes).as_bytes()] {
        let socket = connect();
        assert_eq!(send(&socket, bytes), [Status::NotFound; MAX_NAMES]);
        assert_eq!(send(&socket, bytes), [Status::NotFound; MAX_NAMES]);
    }
    let socket = connect();
    assert_eq!(
        send(&socket, Request::new(&[Name(3).into()], KeepOpen::No).as_bytes()),
        [Status::NotFound; MAX_NAMES]
    );
    assert_eq!(rustix::net::recv(&socket, &mut [0; 8], rustix::net::RecvFlags::empty()).unwrap().1, 0);
    // Clients that send nothing, or do not read.
    let silent: Vec<_> = (0..20).map(|_| connect()).collect();
    for socket in &silent {
        for _ in 0..5 {
            let flags = rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT;
            let _ =
                rustix::net::send(socket, Request::new(&[Name(3).into()], KeepOpen::Yes).as_bytes(), flags);
        }
    }
    let export = server.export(server.new_name(), memory(1), ExportKind::Memory(MemRange::default()));
    assert!(server.fetch(export.name()).is_ok());
}

#[test]
fn exit_is_notified_once_to_every_subscriber() {
    let namespace = SocketNamespace::new("").unwrap();
    let watches = watch::Watches::new(namespace, ProcKey(8)).unwrap();
    let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    // The watched process is this one; the test reports its exit.
    let ours = OwnedFd::from(ours);
    let method = watches.identify(ProcKey(9), &ours).unwrap();
    let watch = watches.watch(ProcKey(9), method, ours).unwrap();
    let wakes: Vec<_> = (0..3).map(|_| Arc::new(EventFd::new().unwrap())).collect();
    let alarms: Vec<_> = wakes.iter().map(|wake| Alarm::new(wake.clone())).collect();
    alarms[..2].iter().for_each(|alarm| watch.subscribe(alarm));
    assert!(!watches.is_dead(ProcKey(9)) && !alarms[0].is_raised());
    watches.on_exit(ProcKey(9));
    watches.on_exit(ProcKey(10));
    assert!(watches.is_dead(ProcKey(9)) && watch.check());
    watch.subscribe(&alarms[2]);
    for (alarm, wake) in alarms.iter().zip(&wakes) {
        assert_eq!((alarm.is_raised(), alarm.take(), alarm.take(), wake.clear()), (true, true, false, Ok(1)));
    }
    drop(watch);
    assert!(!watches.is_dead(ProcKey(9)), "forgotten with the last who cares");
}

/// A process that calls `execve` loses its fd server. The names are played by sockets of this process.
#[test]
fn a_process_that_loses_its_name_is_gone() {
    let dir = Dir::new("exec");
    for namespace in [SocketNamespace::new("").unwrap(), SocketNamespace::new(&dir.0).unwrap()] {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let start = ucs::sys::proc::start_time(child.id()).unwrap().unwrap();
        let process = ProcId { pid: child.id(), start };
        let ((own, own_socket), (theirs, socket)) = (namespace.bind().unwrap(), namespace.bind().unwrap());
        let of = |own, owner| {
            let watches = watch::Watches::new(namespace.clone(), own).unwrap();
            (watches.watch_process(process, owner).unwrap(), watches)
        };
        let (named, _watches) = of(own, theirs);
        // One that is not seen here, and one of a process that does not see itself.
        let (nameless, _nameless_watches) = of(own, ProcKey(1));
        let (blind, _blind_watches) = of(ProcKey(1), theirs);
        let alarm = Alarm::new(Arc::new(EventFd::new().unwrap()));
        named.subscribe(&alarm);
        std::thread::sleep(Duration::from_millis(400));
        assert!(![&named, &nameless, &blind].iter().any(|watch| watch.check()));
        drop(socket);
        std::thread::sleep(Duration::from_millis(400));
        assert!(named.check() && named.is_dead() && alarm.take());
        // In a directory the file remains, so that nobody who sees it is blind.
        assert_eq!(blind.check(), !dir.names().is_empty());
        assert!(!nameless.check());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(nameless.check());
        drop(own_socket);
    }
}

#[test]
fn names_of_another_namespace_are_unknown() {
    let dir = Dir::new("stranger");
    let (net, there) = (
        FdServer::get(SocketNamespace::new("").unwrap()).unwrap(),
        FdServer::get(SocketNamespace::new(&dir.0).unwrap()).unwrap(),
    );
    let export = there.export(there.new_name(), memory(1), ExportKind::Memory(MemRange::default()));
    assert_eq!(net.fetch(export.name()).err(), Some(ConnectError::Gone));
}
