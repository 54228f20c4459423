//! Workers that threads share: messages of several threads on one worker, thread modes, sleeping threads,
//! panics, objects that other threads drop, connections by socket address, and borrowed memory.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;

mod borrowed;
mod callbacks;
mod completion_queue;
mod connections;
mod data;
mod modes;
mod objects;
mod stress;
mod waits;

use std::thread;
use std::time::{Duration, Instant};

use common::{context, ends};
use ucp::Error;
use ucp::mt::{LockError, SharedEp, SharedEpParams, SharedWorker, ThreadMode};

const WRONG: Error = Error::Thread(LockError::WrongThread);
const CONCURRENT: Error = Error::Thread(LockError::Concurrent);

/// Two shared workers, each with an endpoint to the other.
struct Shared {
    a: SharedWorker,
    b: SharedWorker,
    ab: SharedEp,
    ba: SharedEp,
}

impl Shared {
    fn on(tls: &str) -> Shared {
        let (first, second) = ends(tls);
        let one = context(first);
        let a = one.shared_worker(ThreadMode::Multi).unwrap();
        let b = if first == second { one } else { context(second) }.shared_worker(ThreadMode::Multi).unwrap();
        let (ab, ba) = (connect(&a, &b), connect(&b, &a));
        Shared { a, b, ab, ba }
    }

    fn progress(&self) {
        self.a.progress().unwrap();
        self.b.progress().unwrap();
    }

    fn until(&self, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            self.progress();
            assert!(start.elapsed() < Duration::from_secs(60), "nothing happens any more");
        }
    }
}

fn connect(from: &SharedWorker, to: &SharedWorker) -> SharedEp {
    from.connect(&to.address().unwrap(), SharedEpParams::default()).unwrap()
}

fn multi(tls: &str) -> SharedWorker {
    context(tls).shared_worker(ThreadMode::Multi).unwrap()
}

/// Length of message `n`: few are long.
fn len_of(n: u64) -> usize {
    match n % 1024 {
        77 => 20_000,
        511 => 100_000,
        _ => 8 + (n % 57) as usize,
    }
}

/// A number, and bytes that follow from it and the channel.
fn message(channel: u64, n: u64) -> Vec<u8> {
    let mut message = n.to_le_bytes().to_vec();
    message.resize(len_of(n), (channel * 31 + n) as u8);
    message
}

/// Waits until a thread sleeps.
fn until_asleep(name: &str) {
    let state = || {
        std::fs::read_dir("/proc/self/task").unwrap().find_map(|task| {
            let stat = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
            let (head, tail) = stat.rsplit_once(") ")?;
            head.ends_with(&format!("({name}")).then(|| tail.chars().next())?
        })
    };
    let start = Instant::now();
    while state() != Some('S') {
        assert!(start.elapsed() < Duration::from_secs(60), "{name} is {:?}", state());
        thread::sleep(Duration::from_millis(1));
    }
}

fn named<'s, T: Send + 's>(
    scope: &'s thread::Scope<'s, '_>,
    name: &str,
    f: impl FnOnce() -> T + Send + 's,
) -> thread::ScopedJoinHandle<'s, T> {
    thread::Builder::new().name(name.into()).spawn_scoped(scope, f).unwrap()
}
