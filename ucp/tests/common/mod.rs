//! Shared parts of these tests: pairs of workers on each lane, verifiable bytes, and waiting with a time
//! limit.
#![allow(dead_code, reason = "each test uses its part")]
#![allow(unsafe_code)]

use std::process::Command;
use std::time::{Duration, Instant};

use ucp::mt::{SharedWorker, ThreadMode};
use ucp::{Context, Ep, EpParams, Worker};
use ucs::config::Source;

pub use locked::LockedWorkers;

mod locked;

/// Generates a module of tests for each kind of lane. The test's file begins with `#[macro_use]`.
#[allow(unused_macros, reason = "each test uses its part")]
macro_rules! on {
    ($tests:tt $($(#[$attr:meta])* $name:ident: $tls:literal,)+) => {$(
        $(#[$attr])*
        mod $name {
            on!(@ $tls $tests);
        }
    )+};
    (@ $tls:literal [$($test:ident)+]) => {$(
        #[test]
        fn $test() {
            super::$test($tls);
        }
    )+};
}

/// Two workers of one thread and an endpoint each way.
pub struct Pair {
    pub a: Worker,
    pub b: Worker,
    pub ab: Ep,
    pub ba: Ep,
    /// The shared workers around `a` and `b`, if threads may share them.
    pub shared: Option<LockedWorkers>,
}

/// How the workers of a pair are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Two workers of one context.
    Together,
    /// Each of a context of its own.
    Apart,
    /// Two of one context, made for threads to share: one in mode multi, one in mode serialized.
    Shared,
}

impl Pair {
    /// A pair on the transports of [`ends`], of one context if both ends have the same. `apart posix` is a
    /// pair of two contexts, and `shared posix` a pair of workers that threads may share.
    pub fn on(tls: &str) -> Pair {
        let (kind, (first, second)) = (kind(tls).0, ends(tls));
        let one = context(first);
        let other = (first != second || kind == Kind::Apart).then(|| context(second));
        let other = other.as_ref().unwrap_or(&one);
        Pair::of_contexts(&one, other, kind == Kind::Shared)
    }

    /// A pair of these two contexts, whose workers threads may share if `is_shared`.
    pub fn of_contexts(one: &Context, other: &Context, is_shared: bool) -> Pair {
        if !is_shared {
            return Pair::of(one.worker().unwrap(), other.worker().unwrap());
        }
        let (a, shared_a) = shared_worker(one, ThreadMode::Multi);
        let (b, shared_b) = shared_worker(other, ThreadMode::Serialized);
        let shared = Some(LockedWorkers::new(vec![shared_a, shared_b]));
        Pair { shared, ..Pair::of(a, b) }
    }

    pub fn of(a: Worker, b: Worker) -> Pair {
        let ab = a.connect(&b.address(), EpParams::default()).unwrap();
        let ba = b.connect(&a.address(), EpParams::default()).unwrap();
        Pair { a, b, ab, ba, shared: None }
    }

    /// Progresses both until `done` returns true.
    pub fn until(&self, mut done: impl FnMut() -> bool) {
        let progress = || _ = self.progress();
        spin_with(progress, &mut done, &|| format!("{:?} {:?}", self.a, self.b));
    }

    fn progress(&self) -> usize {
        match &self.shared {
            Some(shared) => shared.progress(),
            None => self.a.progress() + self.b.progress(),
        }
    }

    /// Exchanges a message each way and all that follows: both have the handshake, and neither waits for a
    /// thread of the other.
    pub fn meet(&self) {
        for (ep, to) in [(&self.ab, &self.b), (&self.ba, &self.a)] {
            let hello = to.tag_recv(0, ucp::TAG_MASK_FULL, Vec::with_capacity(1));
            let send = ep.tag_send(0, vec![1]);
            self.until(|| hello.is_done() && send.is_done());
            assert_eq!((send.wait().0, hello.wait().0.map(|status| status.len)), (Ok(()), Ok(1)));
        }
        self.settle();
    }

    /// Progresses both until nothing happens for a while; call [`meet`](Pair::meet) before.
    pub fn settle(&self) {
        let mut quiet = 0;
        while quiet < 1000 {
            quiet = if self.progress() == 0 { quiet + 1 } else { 0 };
        }
    }
}

/// A worker that threads may share, and the plain worker in it, for the thread that calls this.
pub fn shared_worker(context: &Context, mode: ThreadMode) -> (Worker, SharedWorker) {
    let shared = context.shared_worker(mode).unwrap();
    // SAFETY: only this thread uses the worker.
    (unsafe { shared.with(Worker::clone) }.unwrap(), shared)
}

/// Whether a row says that threads may share its workers, and the rest of it.
pub fn is_shared(tls: &str) -> (bool, &str) {
    let (kind, tls) = kind(tls);
    (kind == Kind::Shared, tls)
}

/// The transports of each end: `ONE|OTHER`, or one word for both. See [`context`] and [`Pair::on`].
pub fn ends(tls: &str) -> (&str, &str) {
    let tls = kind(tls).1;
    tls.split_once('|').unwrap_or((tls, tls))
}

fn kind(tls: &str) -> (Kind, &str) {
    match tls.split_once(' ') {
        Some(("apart", tls)) => (Kind::Apart, tls),
        Some(("shared", tls)) => (Kind::Shared, tls),
        _ => (Kind::Together, tls),
    }
}

/// A context of [`source`].
pub fn context(tls: &str) -> Context {
    Context::configured(source(tls)).unwrap()
}

/// The configuration for a `UCX_TLS` value, or for `efa*` with what [`several_nics`] takes, `verbs` (`efa` on
/// a device of libibverbs) or `soft` (`efa` on the software device of this process).
pub fn source(tls: &str) -> Source {
    match tls {
        "verbs" => Source::empty().with("UCX_TLS", "efa").with("UCX_NET_DEVICES", &verbs_device()),
        // The kernel reads what does not fit 4 KiB, at any cost.
        "kernel" => Source::empty().with("UCX_TLS", "posix,cma").with("UCX_MIN_READ", "4k"),
        "reorder" => Source::empty().with("UCX_TLS", "efa").with("SOFTEFA_REORDER", "0.3"),
        "soft" => Source::empty().with("UCX_TLS", "efa").with("UCX_NET_DEVICES", "softefa0"),
        tls => match (tls.strip_prefix("efa*"), tls.strip_prefix("copy-")) {
            (Some(nics), _) => several_nics(nics),
            // The kernel, packets, or both move what does not fit a packet.
            (_, Some(rule)) => Source::empty().with("UCX_TLS", "posix,cma").with("UCX_KERNEL_COPY", rule),
            _ => Source::empty().with("UCX_TLS", tls),
        },
    }
}

/// `efa` on several software NICs, of which one may fail after some packets: `4`, `4/1:300`.
fn several_nics(words: &str) -> Source {
    let (nics, down) = words.split_once('/').unwrap_or((words, ""));
    let keys = [
        ("UCX_TLS", "efa"),
        ("SOFTEFA_DEVICES", nics),
        ("SOFTEFA_DOWN", down),
        ("UCX_MIN_READ", "64k"),
        ("UCX_MIN_RNDV_CHUNK_SIZE", "16k"),
        ("UCX_MIN_RMA_CHUNK_SIZE", "16k"),
    ];
    keys.iter().fold(Source::empty(), |source, (key, value)| source.with(key, value))
}

/// The device that `UCX_NET_DEVICES` names, or the first one of libibverbs.
fn verbs_device() -> String {
    let found = uct::any::resources(&Source::empty()).unwrap();
    let mut verbs = found.into_iter().map(|r| r.dev).filter(|dev| dev.contains(':'));
    let wanted = std::env::var("UCX_NET_DEVICES").ok();
    let device = verbs.find(|dev| wanted.as_ref().is_none_or(|name| name == dev));
    device.expect("no EFA device in libibverbs: run this under `softefa run` (`tests/run verbs` does)")
}

/// Runs a test of this binary, named with its module, in a process of its own, and returns true; false if
/// this is that process. For tests that change or count what belongs to the whole process.
pub fn runs_in_own_process(test: &str) -> bool {
    const OWN: &str = "UCP_TEST_OWN_PROCESS";
    if std::env::var_os(OWN).is_some() {
        return false;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let ran = command.args(["--exact", test, "--nocapture"]).env(OWN, "1").output().unwrap();
    let [out, err] = [&ran.stdout, &ran.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(ran.status.success() && out.contains("1 passed"), "{out}{err}");
    true
}

/// Progresses until `done`; a hang becomes a failure.
pub fn spin(workers: &[&Worker], done: &mut dyn FnMut() -> bool) {
    let progress = || workers.iter().for_each(|worker| _ = worker.progress());
    spin_with(progress, done, &|| format!("{workers:?}"));
}

/// Calls `progress` until `done`; a hang becomes a failure, with `state`.
pub fn spin_with(progress: impl Fn(), done: &mut dyn FnMut() -> bool, state: &dyn Fn() -> String) {
    let start = Instant::now();
    while !done() {
        progress();
        assert!(start.elapsed() < Duration::from_secs(120), "nothing happens any more: {}", state());
    }
}

/// `len` bytes that depend on `seed` and offset.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        })
        .collect()
}
