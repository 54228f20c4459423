//! Hostile neighbours: a worker receives checked messages of an honest process while others attack it. Each
//! attack runs on `posix` and on `efa`. Messages go on, unless the attacker writes into the memory that
//! carries them: then they may be corrupt, or end with an error that is named within ten seconds, and the
//! worker survives. No test harness: the program starts itself again in other roles (`suites::partner`).
//!
//! `ATTACK_SECONDS=600` is the long form; by default each attack takes one second. `ATTACK=NAME` chooses one,
//! by its role (`silent`) or by all of its name (`silent of another user against posix`).

#![allow(unsafe_code)]

use std::collections::{HashSet, VecDeque};
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::{Deserialize, Serialize};
use suites::partner::Partner;
use suites::rng::Rng;
use ucp::{Address, Context, TAG_MASK_FULL, Worker};
use ucs::config::Source;
use ucs::testing::skipped;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Longest time without a message or an error.
const SILENCE_LIMIT: Duration = Duration::from_secs(10);
const TAG: u64 = 7;
const OTHER_USER: &str = "65534";

/// The end that messages of the honest process may have.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Expected {
    /// They go on.
    GoesOn,
    /// They go on, at no less than this part of their rate before.
    GoesOnAtRate(f64),
    /// The attacker writes what carries them: the process survives. Its messages may be corrupt, or end with
    /// an error of either side.
    Survives,
}

/// An attack: its role, who runs it, and what may come of it.
struct Attack {
    role: &'static str,
    other_user: bool,
    /// The attacker is there before the honest process comes.
    is_first: bool,
    /// The victim sleeps until a message comes.
    sleeps: bool,
    expected: Expected,
}

impl Attack {
    const fn new(role: &'static str, expected: Expected) -> Attack {
        Attack { role, other_user: false, is_first: false, sleeps: false, expected }
    }
}

const ATTACKS: [Attack; 7] = [
    Attack::new("silent", Expected::GoesOn),
    Attack { other_user: true, ..Attack::new("silent", Expected::GoesOn) },
    Attack::new("forger", Expected::GoesOnAtRate(0.002)),
    Attack { is_first: true, ..Attack::new("backlog", Expected::GoesOn) },
    Attack { is_first: true, other_user: true, ..Attack::new("backlog", Expected::GoesOn) },
    Attack { is_first: true, sleeps: true, ..Attack::new("flags", Expected::GoesOn) },
    Attack::new("scribbler", Expected::Survives),
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["victim", tl, mode] => return victim(tl, mode == "sleeps"),
        ["honest", tl] => return honest(tl),
        ["silent", pid, _] => return silent(pid.parse().unwrap()),
        ["forger", _, tl] => return forger(tl),
        ["scribbler", pid, _] => return scribbler(pid.parse().unwrap()),
        ["backlog", ..] => return backlog(),
        ["flags", _, tl] => return flags(tl),
        _ => {}
    }
    // Nothing here can be run by name.
    if args.iter().any(|arg| arg == "--list") {
        return;
    }
    let chosen = std::env::var("ATTACK").ok();
    let mut done = 0;
    for attack in &ATTACKS {
        for tl in ["posix", "efa"] {
            let who = if attack.other_user { " of another user" } else { "" };
            let name = format!("{}{who} against {tl}", attack.role);
            if chosen.as_ref().is_some_and(|chosen| *chosen != attack.role && *chosen != name) {
                continue;
            }
            let start = Instant::now();
            let received = run(attack, tl, &name);
            println!("test {name} ... ok ({received:?} messages, {:.1} s)", start.elapsed().as_secs_f64());
            done += 1;
        }
    }
    assert!(done > 0, "no attack has the name {chosen:?}");
    println!("{done} passed, 0 failed");
}

fn duration() -> Duration {
    let seconds = std::env::var("ATTACK_SECONDS").ok().map(|text| text.parse().expect("a number of seconds"));
    Duration::from_secs_f64(seconds.unwrap_or(1.0))
}

fn worker(tl: &str) -> (Context, Worker) {
    let context = Context::configured(Source::empty().with("UCX_TLS", tl)).unwrap();
    let worker = context.worker().unwrap();
    (context, worker)
}

/// Message `n`: its length and bytes follow from its number.
fn message(n: u64) -> Vec<u8> {
    let len = [8, 100, 3000, 20_000][n as usize % 4];
    let mut bytes = vec![n as u8 ^ (n >> 8) as u8; len];
    bytes[..8].copy_from_slice(&n.to_le_bytes());
    bytes
}

/// Messages received by the victim, and how many a second, before and during the attack.
type Counts = ((u64, f64), (u64, f64));

/// Runs an attack and returns what the victim received before and during it.
fn run(attack: &Attack, tl: &str, name: &str) -> Option<Counts> {
    if attack.other_user && !rustix::process::geteuid().is_root() {
        skipped(name, "only root becomes another user");
        return None;
    }
    let mode = if attack.sleeps { "sleeps" } else { "polls" };
    let mut victim = Partner::start(&["victim".into(), tl.into(), mode.into()]).unwrap();
    let address: Vec<u8> = victim.recv(TIMEOUT).unwrap();
    let pid = victim.pid().unwrap();
    let copy = std::env::temp_dir().join(format!("attackers.{}", std::process::id()));
    let attacker = || {
        let mut attacker = start_attacker(attack, pid, tl, &copy);
        attacker.send(&address).unwrap();
        attacker
    };
    let early = attack.is_first.then(attacker);
    if early.is_some() {
        std::thread::sleep(Duration::from_millis(300));
    }
    let mut honest = Partner::start(&["honest".into(), tl.into()]).unwrap();
    honest.send(&address).unwrap();
    let before: (u64, f64) =
        victim.recv(SILENCE_LIMIT * 2).unwrap_or_else(|e| panic!("{name}: the first messages: {e}"));
    let attacker = early.unwrap_or_else(attacker);
    std::thread::sleep(duration());
    drop(attacker);
    let _ = std::fs::remove_file(&copy);
    // From now on the victim may take as long as it says to notice. If it has ended, it has said why.
    let _ = victim.send(&());
    let ended: Result<(u64, f64), End> =
        victim.recv(SILENCE_LIMIT * 2).unwrap_or_else(|e| panic!("{name}: {e}"));
    match (ended, attack.expected) {
        (Ok(after), expected) => {
            assert!(after.0 > before.0, "{name}: no message came");
            if let Expected::GoesOnAtRate(part) = expected {
                assert!(
                    after.1 >= before.1 * part,
                    "{name}: {} messages a second, before {}",
                    after.1,
                    before.1
                );
            }
            Some((before, after))
        }
        (Err(End::Named(why)), Expected::Survives) => {
            println!("{name}: the receiver: {why}");
            None
        }
        (Err(End::Silence), Expected::Survives) => {
            // Then the sender knows.
            let why: String =
                honest.recv(SILENCE_LIMIT / 2).unwrap_or_else(|_| panic!("{name}: silence without an error"));
            println!("{name}: the sender: {why}");
            None
        }
        (Err(end), _) => panic!("{name}: {end:?}"),
    }
}

fn start_attacker(attack: &Attack, victim: u32, tl: &str, copy: &Path) -> Partner {
    let role = [attack.role.into(), victim.to_string(), tl.into()];
    if !attack.other_user {
        return Partner::start(&role).unwrap();
    }
    // Where the other user reaches it. Another process writes it, so that no fork of ours inherits it open
    // for writing; it could not be run then ("text file busy").
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(copy).status().unwrap();
    assert!(copied.success());
    let mut args: Vec<String> =
        ["--reuid", OTHER_USER, "--regid", OTHER_USER, "--clear-groups"].map(Into::into).into();
    args.push(copy.to_string_lossy().into_owned());
    args.extend(role);
    Partner::start_program("setpriv", &args).unwrap()
}

/// Why the victim receives no more.
#[derive(Serialize, Deserialize, Debug)]
enum End {
    /// For this reason.
    Named(String),
    /// Nothing has come for the longest time allowed.
    Silence,
}

/// Receives messages and checks them. Reports after the first ones, and when told to, or when they end.
fn victim(tl: &str, sleeps: bool) {
    const FIRST: u64 = 1000;
    let mut line = Partner::parent();
    let (_context, worker) = worker(tl);
    line.send(&worker.address().pack()).unwrap();
    let (mut next, mut last, mut told, mut since) = (0u64, Instant::now(), None, (0, Instant::now()));
    let rate = |next: u64, (from, at): (u64, Instant)| (next - from) as f64 / at.elapsed().as_secs_f64();
    let ended = loop {
        let mut recv = Box::pin(worker.tag_recv(TAG, TAG_MASK_FULL, Vec::with_capacity(20_000)));
        let result = loop {
            worker.progress();
            if let Some(result) = now_or_never(recv.as_mut()) {
                break Some(result);
            }
            if last.elapsed() > SILENCE_LIMIT {
                break None;
            }
            if sleeps {
                worker.wait(Some(SILENCE_LIMIT)).unwrap();
            }
        };
        match result {
            Some((Ok(_), bytes)) if bytes == message(next) => {}
            Some((Ok(_), bytes)) => {
                break Err(End::Named(format!("message {next} is corrupt ({} bytes)", bytes.len())));
            }
            Some((Err(e), _)) => break Err(End::Named(format!("message {next}: {e}"))),
            None => break Err(End::Silence),
        }
        (next, last) = (next + 1, Instant::now());
        if next == FIRST / 10 {
            since = (next, Instant::now());
        } else if next == FIRST {
            line.send(&(next, rate(next, since))).unwrap();
            since = (next, Instant::now());
        }
        if told.is_none() && next % 64 == 0 && line.try_recv::<()>().unwrap().is_some() {
            // Messages that come from now on show that it goes on.
            told = Some((next, rate(next, since)));
        }
        if let Some((at, rate)) = told.filter(|(at, _)| next > at + FIRST / 10) {
            break Ok((next.max(at), rate));
        }
    };
    line.send(&ended).unwrap();
    let _ = line.recv::<()>(TIMEOUT);
}

fn now_or_never<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.poll(&mut context) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

/// Sends messages until it is killed, or reports the error that ends them.
fn honest(tl: &str) {
    let mut line = Partner::parent();
    let (_context, worker) = worker(tl);
    let address: Vec<u8> = line.recv(TIMEOUT).unwrap();
    let ep = worker.connect(&Address::unpack(&address).unwrap(), Default::default()).unwrap();
    for n in 0.. {
        if let Err(why) = worker.block_on(ep.tag_send(TAG, message(n))).0 {
            line.send(&format!("message {n}: {why}")).unwrap();
            let _ = line.recv::<()>(TIMEOUT);
            return;
        }
    }
}

/// Names of the sockets of this project on the host.
fn socket_names() -> Vec<String> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let names = table.lines().filter_map(|line| line.split_whitespace().nth(7)?.strip_prefix('@'));
    names
        .filter(|name| name.starts_with("uct-posix.") || name.starts_with("softefa."))
        .map(Into::into)
        .collect()
}

/// Connects to every socket as often as it can, and says nothing.
fn silent(_victim: u32) {
    let mut held = Vec::new();
    loop {
        for name in socket_names() {
            let address = SocketAddr::from_abstract_name(&name).unwrap();
            match UnixStream::connect_addr(&address) {
                Ok(stream) => held.push(stream),
                // `posix` has packets there.
                Err(_) => held.extend(connect_seqpacket(&name)),
            }
        }
        if held.len() > 500 {
            held.clear();
        }
    }
}

fn connect_seqpacket(name: &str) -> Option<UnixStream> {
    connect_without_waiting(name, SocketType::SEQPACKET).ok()
}

fn connect_without_waiting(name: &str, kind: SocketType) -> rustix::io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(socket.into())
}

/// Fills the queue of every socket with connections, as far as its descriptors go, and keeps them full.
fn backlog() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let most = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most });
    let mut held = VecDeque::new();
    loop {
        for name in socket_names() {
            loop {
                let stream = connect_without_waiting(&name, SocketType::STREAM);
                match stream.or_else(|_| connect_without_waiting(&name, SocketType::SEQPACKET)) {
                    Ok(stream) => held.push_back(stream),
                    Err(Errno::MFILE | Errno::NFILE) => {
                        held.drain(..held.len() / 2);
                        break;
                    }
                    // Full, or gone.
                    Err(_) => break,
                }
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Connects as a peer does, and changes whatever it can of the open files that it was passed, and of its own:
/// status flags, seals, lengths; it shuts sockets down.
fn flags(tl: &str) {
    use rustix::fs::{OFlags, SealFlags};
    let mut line = Partner::parent();
    let address: Vec<u8> = line.recv(TIMEOUT).unwrap();
    let address = Address::unpack(&address).unwrap();
    for round in 0u32.. {
        let (_context, worker) = worker(tl);
        let Ok(ep) = worker.connect(&address, Default::default()) else { continue };
        drop(ep.tag_send(TAG + 1, vec![1; 8]));
        let _ = worker.wait(Some(Duration::from_millis(1)));
        worker.progress();
        let list = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let numbers: Vec<i32> = list.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        for number in numbers.into_iter().filter(|number| *number > 2) {
            // SAFETY: used in this iteration only; a number that is not open is an error of each call.
            let fd = unsafe { BorrowedFd::borrow_raw(number) };
            let all = [OFlags::empty(), OFlags::NONBLOCK, OFlags::APPEND, OFlags::NONBLOCK | OFlags::APPEND];
            let _ = rustix::fs::fcntl_setfl(fd, all[round as usize % all.len()]);
            let _ = rustix::fs::ftruncate(fd, 0);
            let _ = rustix::fs::ftruncate(fd, 1 << 40);
            let _ = rustix::fs::fcntl_add_seals(fd, SealFlags::FUTURE_WRITE);
            let _ = rustix::fs::fcntl_add_seals(fd, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::SEAL);
            let _ = rustix::net::shutdown(fd, Shutdown::Both);
        }
    }
}

/// Introduces itself under one address after another, and never answers.
fn forger(tl: &str) {
    let mut line = Partner::parent();
    let address: Vec<u8> = line.recv(TIMEOUT).unwrap();
    let address = Address::unpack(&address).unwrap();
    loop {
        let (_context, worker) = worker(tl);
        let Ok(ep) = worker.connect(&address, Default::default()) else { continue };
        // Begun, and left alone.
        drop(ep.tag_send(TAG + 1, vec![1; 8]));
        worker.progress();
    }
}

/// Writes random words over every segment that it finds in the victim.
fn scribbler(victim: u32) {
    let mut rng = Rng::new(u64::from(victim), 0);
    let mut segments = Vec::new();
    let mut seen = HashSet::new();
    loop {
        let dir = format!("/proc/{victim}/fd");
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let target = std::fs::read_link(entry.path()).unwrap_or_default().to_string_lossy().into_owned();
            let number: Option<i32> = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let Some(number) = number.filter(|n| target.starts_with("/memfd:") && seen.insert(*n)) else {
                continue;
            };
            if let Ok(segment) = ucs::mem::SharedMem::open_proc(victim, number, 1) {
                segments.push(segment);
            }
        }
        for segment in &segments {
            for _ in 0..64 {
                let words = segment.len() as u64 / 8;
                // The first words of a segment are its heads, indexes and flags.
                let at = if rng.below(2) == 0 { rng.below(words) } else { rng.below(words.min(512)) };
                let value = [0, 1, u64::MAX, 1 << 40, rng.bits()][rng.below(5) as usize];
                let word = segment.as_ptr().cast::<u64>().wrapping_add(at as usize);
                // SAFETY: a word of the mapping, which is page aligned.
                unsafe { word.write_volatile(value) };
            }
        }
    }
}
