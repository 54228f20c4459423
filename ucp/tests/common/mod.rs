//! What the tests of this folder share: pairs of workers on each kind of lane, bytes that can be checked, and waiting
//! with an end.
#![allow(dead_code, reason = "each test uses its part")]

use std::time::{Duration, Instant};

use ucp::{Context, Ep, EpParams, Worker};
use ucs::config::Source;

/// Two workers of one thread and an endpoint each way.
pub struct Pair {
    pub a: Worker,
    pub b: Worker,
    pub ab: Ep,
    pub ba: Ep,
}

impl Pair {
    /// On the transports of a `UCX_TLS` value.
    pub fn on(tls: &str) -> Pair {
        let context = context(tls);
        Pair::of(context.worker().unwrap(), context.worker().unwrap())
    }

    pub fn of(a: Worker, b: Worker) -> Pair {
        let ab = a.connect(&b.address(), EpParams::default()).unwrap();
        let ba = b.connect(&a.address(), EpParams::default()).unwrap();
        Pair { a, b, ab, ba }
    }

    /// Progress on both until `done` answers true.
    pub fn until(&self, mut done: impl FnMut() -> bool) {
        spin(&[&self.a, &self.b], &mut done);
    }

    /// Progress on both until nothing happens for a while.
    pub fn settle(&self) {
        let mut quiet = 0;
        while quiet < 1000 {
            quiet = if self.a.progress() + self.b.progress() == 0 { quiet + 1 } else { 0 };
        }
    }
}

pub fn context(tls: &str) -> Context {
    Context::configured(Source::empty().with("UCX_TLS", tls)).unwrap()
}

/// Progress until `done`; a hang becomes a failure.
pub fn spin(workers: &[&Worker], done: &mut dyn FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        for worker in workers {
            worker.progress();
        }
        assert!(start.elapsed() < Duration::from_secs(60), "nothing happens any more: {workers:?}");
    }
}

/// `len` bytes that depend on `seed` at every place.
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
