//! Hostile neighbours: a worker receives checked messages of an honest process while others attack it. Each
//! attack runs on `posix` and on `efa`. Messages go on, unless the attacker writes into the memory that
//! carries them: then they may be corrupt or end, and the worker survives. No test harness: the program
//! starts itself again in other roles (`suites::partner`).
//!
//! `ATTACK_SECONDS=600` is the long form; by default each attack takes one second. `ATTACK=NAME` chooses one.

#![allow(unsafe_code)]

use std::collections::HashSet;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::{Duration, Instant};
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expected {
    /// They go on.
    GoesOn,
    /// The attacker writes what carries them: the process survives, and its messages may be corrupt or end.
    Survives,
}

/// An attack: its role, who runs it, and what may come of it.
struct Attack {
    role: &'static str,
    other_user: bool,
    expected: Expected,
}

const ATTACKS: [Attack; 4] = [
    Attack { role: "silent", other_user: false, expected: Expected::GoesOn },
    Attack { role: "silent", other_user: true, expected: Expected::GoesOn },
    Attack { role: "forger", other_user: false, expected: Expected::GoesOn },
    Attack { role: "scribbler", other_user: false, expected: Expected::Survives },
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["victim", tl] => return victim(tl),
        ["honest", tl] => return honest(tl),
        ["silent", pid, _] => return silent(pid.parse().unwrap()),
        ["forger", _, tl] => return forger(tl),
        ["scribbler", pid, _] => return scribbler(pid.parse().unwrap()),
        _ => {}
    }
    // Nothing here can be run by name.
    if args.iter().any(|arg| arg == "--list") {
        return;
    }
    let chosen = std::env::var("ATTACK").ok();
    let mut done = 0;
    for attack in ATTACKS.iter().filter(|attack| chosen.as_ref().is_none_or(|name| name == attack.role)) {
        for tl in ["posix", "efa"] {
            let who = if attack.other_user { " of another user" } else { "" };
            let name = format!("{}{who} against {tl}", attack.role);
            let start = Instant::now();
            let received = run(attack, tl, &name);
            println!("test {name} ... ok ({received:?} messages, {:.1} s)", start.elapsed().as_secs_f64());
            done += 1;
        }
    }
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

/// Runs an attack and returns the messages that the victim received before and during it.
fn run(attack: &Attack, tl: &str, name: &str) -> Option<(u64, u64)> {
    if attack.other_user && !rustix::process::geteuid().is_root() {
        skipped(name, "only root becomes another user");
        return None;
    }
    let mut victim = Partner::start(&["victim".into(), tl.into()]).unwrap();
    let address: Vec<u8> = victim.recv(TIMEOUT).unwrap();
    let mut honest = Partner::start(&["honest".into(), tl.into()]).unwrap();
    honest.send(&address).unwrap();
    let before: u64 = victim.recv(TIMEOUT).unwrap();
    let pid = victim.pid().unwrap().to_string();
    let copy = std::env::temp_dir().join(format!("attackers.{}", std::process::id()));
    let mut attacker = if attack.other_user {
        // Where the other user reaches it.
        std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
        let copy = copy.to_string_lossy().into_owned();
        let mut args: Vec<String> =
            ["--reuid", OTHER_USER, "--regid", OTHER_USER, "--clear-groups"].map(Into::into).into();
        args.extend([copy, attack.role.into(), pid, tl.into()]);
        Partner::start_program("setpriv", &args).unwrap()
    } else {
        Partner::start(&[attack.role.into(), pid, tl.into()]).unwrap()
    };
    attacker.send(&address).unwrap();
    std::thread::sleep(duration());
    drop(attacker);
    let _ = std::fs::remove_file(&copy);
    // From now on the victim may take as long as it says to notice.
    victim.send(&()).unwrap();
    let ended: Result<u64, String> = victim.recv(SILENCE_LIMIT * 2).unwrap_or_else(|e| panic!("{name}: {e}"));
    match (ended, attack.expected) {
        (Ok(after), _) => {
            assert!(after > before, "{name}: no message came");
            Some((before, after))
        }
        (Err(why), Expected::Survives) => {
            println!("{name}: ended: {why}");
            None
        }
        (Err(why), Expected::GoesOn) => panic!("{name}: {why}"),
    }
}

/// Receives messages and checks them. Reports after the first ones, and when told to, or when they end.
fn victim(tl: &str) {
    const FIRST: u64 = 100;
    let mut line = Partner::parent();
    let (_context, worker) = worker(tl);
    line.send(&worker.address().pack()).unwrap();
    let (mut next, mut last, mut told) = (0u64, Instant::now(), None);
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
        };
        match result {
            Some((Ok(_), bytes)) if bytes == message(next) => {}
            Some((Ok(_), bytes)) => break Err(format!("message {next} is corrupt ({} bytes)", bytes.len())),
            Some((Err(e), _)) => break Err(format!("message {next}: {e}")),
            None => break Err("silence without an error".into()),
        }
        (next, last) = (next + 1, Instant::now());
        if next == FIRST {
            line.send(&next).unwrap();
        }
        if told.is_none() && next % 64 == 0 && line.try_recv::<()>().unwrap().is_some() {
            // Messages that come from now on show that it goes on.
            told = Some(next);
        }
        if told.is_some_and(|at| next > at + FIRST) {
            break Ok(next);
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

/// Sends messages until it is killed.
fn honest(tl: &str) {
    let mut line = Partner::parent();
    let (_context, worker) = worker(tl);
    let address: Vec<u8> = line.recv(TIMEOUT).unwrap();
    let ep = worker.connect(&Address::unpack(&address).unwrap(), Default::default()).unwrap();
    for n in 0.. {
        if worker.block_on(ep.tag_send(TAG, message(n))).0.is_err() {
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
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?).ok()?;
    Some(socket.into())
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
