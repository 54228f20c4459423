//! Deaths of processes on `posix`, `cma` and the software device, also while the survivor waits and in
//! containers that share a directory only. The survivor is notified, has what was sent, and nothing is left.
//! The program starts itself again in other roles (`suites::partner`).

mod kills;
mod notification;
mod waits;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use suites::partner::Partner;
use suites::sched_delay::Clock;
use ucs::config::Source;
use uct::any::{self, Iface};
use uct::api::{
    AllocReq, Am, Comp, ConnectError, Ep as _, EpTag, Error, Iface as _, Iov, Md as _, Memory as _, Refused,
    Sent, Sink,
};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Most time from a death to the notification. Delays of the machine's scheduler are not counted.
const NOTIFY_LIMIT: Duration = Duration::from_secs(3);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if kills::run_role(&args.iter().map(String::as_str).collect::<Vec<_>>()) {
        return;
    }
    match args.first().map(String::as_str) {
        Some("idle") => return notification::idle(),
        Some("exiting-sender") => return exiting_sender(),
        Some("exiting-tag-sender") => return exiting_tag_sender(),
        Some("sleeper") => return waits::sleeper(&args[1]),
        Some("container") => return container_main(&args[1]),
        _ => {}
    }
    // Nothing here can be run by name.
    if args.iter().any(|arg| arg == "--list") {
        return;
    }
    let tests: [(&str, fn()); 10] = [
        ("death_ends_a_sleep", notification::death_ends_a_sleep),
        ("poll_reports_at_most_max", notification::poll_reports_at_most_max),
        ("check_and_flush_find_a_death_under_load", notification::check_and_flush_find_a_death_under_load),
        (
            "endpoints_to_a_closed_interface_are_notified",
            notification::endpoints_to_a_closed_interface_are_notified,
        ),
        ("waiting_worker_is_notified", waits::waiting_worker_is_notified),
        ("kill_during_connect", kills::kill_during_connect),
        ("kill_at_random_moments", kills::kill_at_random_moments),
        ("messages_of_an_exited_process_arrive", messages_of_an_exited_process_arrive),
        ("tagged_messages_of_an_exited_process_arrive", tagged_messages_of_an_exited_process_arrive),
        ("containers_sharing_a_directory", containers_sharing_a_directory),
    ];
    for (name, test) in tests {
        let start = Instant::now();
        test();
        println!("test {name} ... ok ({:.1} s)", start.elapsed().as_secs_f64());
    }
    println!("{} passed, 0 failed", tests.len());
}

/// Address of an interface, and its memory: address and key.
type Contact = (Vec<u8>, Vec<u8>, u64, Vec<u8>);

fn contact_of(iface: &Iface) -> (Vec<u8>, Vec<u8>) {
    (iface.device_addr().to_vec(), iface.iface_addr().to_vec())
}

fn open(tl: &str, dir: &str) -> Iface {
    let device = if tl == "efa" { "softefa0" } else { "memory" };
    any::open(tl, device, &Source::empty().with("UCX_POSIX_SOCKET_DIR", dir)).unwrap()
}

struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        let path = std::env::temp_dir().join(format!("posix-deaths.{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Dir(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn files(&self) -> usize {
        std::fs::read_dir(&self.0).unwrap().count()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[derive(Default)]
struct Seen {
    bytes: Vec<usize>,
    failed_eps: Vec<EpTag>,
}

impl Sink for Seen {
    fn on_am(&mut self, am: Am<'_>) {
        assert!(am.data().iter().all(|b| *b == am.id()), "whole messages only");
        self.bytes.push(am.data().len());
    }
    fn on_comp(&mut self, _token: u64, _result: Result<(), Error>) {}
    fn on_ep_error(&mut self, ep: EpTag, error: Error) {
        assert_eq!(error, Error::PeerDead);
        self.failed_eps.push(ep);
    }
    // A packet that found no receive, as its receiver was not running.
    fn on_rnr(&mut self, _ep: EpTag, _packet: &[u8]) {}
}

/// Suffix of the socket's name of the process that has this interface.
fn socket_of(iface: &[u8]) -> String {
    let word = |at: usize| u64::from_le_bytes(iface[at..at + 8].try_into().unwrap());
    if iface.len() == 32 {
        // The software device: interface id and queue pair number.
        return format!(".{:x}.{:x}", word(8).swap_bytes(), word(16) & 0xffff);
    }
    // `cma`: pid, then key. `posix`: key, then number of the interface.
    let key = if iface.len() == 8 { word(0) >> 32 } else { word(8) };
    // In a directory the host comes before it.
    format!(".{key:08x}")
}

/// Sends if there is room; an error if the peer is gone.
fn send_some(ep: &any::Ep, n: u64) -> Result<(), Error> {
    let len = [0, 3, 47, 100, 4000][n as usize % 5];
    match ep.am_bcopy(n as u8, |room| {
        room[..len].fill(n as u8);
        len
    }) {
        Ok(_) | Err(Refused::NoResource) => Ok(()),
        Err(Refused::Failed(e)) => Err(e),
    }
}

/// Fills the peer's FIFO and exits.
fn exiting_sender() {
    let mut line = Partner::parent();
    let (device, iface): (Vec<u8>, Vec<u8>) = line.recv(TIMEOUT).unwrap();
    let posix = open("posix", "");
    line.send(&contact_of(&posix)).unwrap();
    let ep = posix.connect(&device, &iface).unwrap();
    ep.ensure_connected().unwrap();
    line.recv::<()>(TIMEOUT).unwrap();
    let sent = (0..64u64).filter(|n| {
        ep.am_bcopy(*n as u8, |room| {
            room[..8000].fill(*n as u8);
            8000
        })
        .is_ok()
    });
    assert_eq!(sent.count(), 64);
    assert_eq!(ep.flush(Comp::None), Ok(Sent::Done));
}

fn messages_of_an_exited_process_arrive() {
    let posix = open("posix", "");
    let mut partner = Partner::start(&["exiting-sender".into()]).unwrap();
    partner.send(&contact_of(&posix)).unwrap();
    let (device, iface): (Vec<u8>, Vec<u8>) = partner.recv(TIMEOUT).unwrap();
    let ep = posix.connect(&device, &iface).unwrap();
    ep.ensure_connected().unwrap();
    partner.send(&()).unwrap();
    assert!(partner.exited_ok());
    // Long enough for the fd server; no error while there is something to read.
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(ep.check(Comp::None), Ok(Sent::Done));
    let mut seen = Seen::default();
    let clock = Clock::start();
    let start = clock.now();
    while seen.failed_eps.is_empty() {
        posix.poll(1, &mut seen);
        assert!(seen.failed_eps.is_empty() || seen.bytes.len() == 64, "notified before all was read");
        assert!(clock.since(start) < NOTIFY_LIMIT, "never notified; {} messages", seen.bytes.len());
    }
    assert_eq!(seen.bytes, [8000; 64]);
}

/// Sends tagged messages of one packet and of several to a peer that does not know it, and exits.
fn exiting_tag_sender() {
    let mut line = Partner::parent();
    let address: Vec<u8> = line.recv(TIMEOUT).unwrap();
    let context = ucp::Context::configured(Source::empty().with("UCX_TLS", "posix")).unwrap();
    let worker = context.worker().unwrap();
    let ep = worker.connect(&ucp::Address::unpack(&address).unwrap(), Default::default()).unwrap();
    worker.block_on(async {
        for len in [100, 20_000, 8, 60_000] {
            ep.tag_send(7, vec![len as u8; len]).await.0.unwrap();
        }
        ep.flush().await.unwrap();
    });
}

fn tagged_messages_of_an_exited_process_arrive() {
    let context = ucp::Context::configured(Source::empty().with("UCX_TLS", "posix")).unwrap();
    let worker = context.worker().unwrap();
    let mut partner = Partner::start(&["exiting-tag-sender".into()]).unwrap();
    partner.send(&worker.address().pack()).unwrap();
    assert!(partner.exited_ok());
    for len in [100, 20_000, 8, 60_000] {
        let (got, buf) = worker.block_on(worker.tag_recv(7, ucp::TAG_MASK_FULL, Vec::with_capacity(60_000)));
        got.unwrap();
        assert!(buf == vec![len as u8; len], "{len}: {} of {}", buf.len(), buf[0]);
    }
}

/// A process in namespaces of its own: messages, allocated memory, and what cannot work there.
fn container_main(dir: &str) {
    let mut line = Partner::parent();
    let (posix, unreachable, cma) = (open("posix", dir), open("posix", ""), open("cma", ""));
    let to: Contact = line.recv(TIMEOUT).unwrap();
    // Neither names of the network namespace nor pids are visible across namespaces.
    assert_eq!(unreachable.connect(&to.0, &to.1).err(), Some(ConnectError::OtherNamespace));
    let other: (Vec<u8>, Vec<u8>) = line.recv(TIMEOUT).unwrap();
    assert_eq!(cma.connect(&other.0, &other.1).err(), Some(ConnectError::OtherHost));
    let ep = posix.connect(&to.0, &to.1).unwrap();
    line.send(&contact_of(&posix)).unwrap();
    let rkey = posix.md().unpack_rkey(&to.3).unwrap();
    assert_eq!(ep.put_short(&[42; 100], to.2, &rkey), Ok(Sent::Done));
    let big = vec![43u8; 5000];
    // SAFETY: the call completes the operation.
    let put =
        unsafe { ep.put_zcopy(&[Iov::new(big.as_ptr(), big.len(), None)], to.2 + 100, &rkey, Comp::None) };
    assert_eq!(put, Ok(Sent::Done));
    let mut seen = Seen::default();
    let start = Instant::now();
    while seen.bytes.is_empty() {
        posix.poll(8, &mut seen);
        assert!(start.elapsed() < TIMEOUT);
    }
    while ep.am_bcopy(5, |room| {
        room[..50].fill(5);
        50
    }) == Err(Refused::NoResource)
    {}
    while start.elapsed() < TIMEOUT {
        posix.poll(8, &mut seen);
    }
}

fn containers_sharing_a_directory() {
    let mut unshare = vec!["unshare", "--net", "--pid", "--ipc", "--fork", "--kill-child"];
    if !rustix::process::geteuid().is_root() {
        unshare.extend(["--user", "--map-current-user"]);
    }
    if !Command::new(unshare[0]).args(&unshare[1..]).arg("true").status().is_ok_and(|s| s.success()) {
        return ucs::testing::skipped("containers sharing a directory", "namespaces cannot be made here");
    }
    let dir = Dir::new();
    let (posix, cma) = (open("posix", dir.path()), open("cma", ""));
    let mem = posix.md().alloc(&AllocReq::new(8192, "shared")).unwrap();
    let mut partner = Partner::start_under(&unshare, &["container".into(), dir.path().into()]).unwrap();
    let (device, iface) = contact_of(&posix);
    let to: Contact = (device, iface, mem.addr().addr() as u64, posix.md().pack_rkey(&mem).unwrap().to_vec());
    partner.send(&to).unwrap();
    partner.send(&contact_of(&cma)).unwrap();
    let (device, iface): (Vec<u8>, Vec<u8>) = partner.recv(TIMEOUT).unwrap();
    let ep = posix.connect(&device, &iface).unwrap();
    ep.set_tag(EpTag(3));
    ep.ensure_connected().unwrap();
    ep.am_bcopy(9, |room| {
        room[..10].fill(9);
        10
    })
    .unwrap();
    let mut seen = Seen::default();
    let start = Instant::now();
    while seen.bytes.is_empty() {
        posix.poll(8, &mut seen);
        assert!(start.elapsed() < TIMEOUT);
    }
    let byte = |at: usize| {
        let byte = mem.addr().wrapping_add(at);
        // SAFETY: inside the allocation; written by the peer before the message that has arrived.
        unsafe { byte.read_volatile() }
    };
    assert_eq!((byte(0), byte(99), byte(100), byte(5099), byte(5100)), (42, 42, 43, 43, 0));
    assert_eq!(dir.files(), 2);
    let clock = Clock::start();
    let killed = clock.now();
    drop(partner);
    while seen.failed_eps.is_empty() {
        posix.poll(8, &mut seen);
        assert!(clock.since(killed) < NOTIFY_LIMIT, "not notified");
    }
    assert_eq!(seen.failed_eps, [EpTag(3)]);
    while dir.files() > 1 {
        assert!(clock.since(killed) < NOTIFY_LIMIT, "a socket is left");
        std::thread::yield_now();
    }
}
