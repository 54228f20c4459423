//! The registration cache: a buffer is registered once, unmapped memory is invalidated, limits hold, and
//! nothing is left. On the software device of this process; `tests/run verbs` has the same on libibverbs.

mod common;

use common::{Pair, bytes};
use ucp::{Access, CloseMode, Context, IoBuf, IoBufMut, TAG_MASK_FULL, Worker};
use ucs::config::Source;
use ucs::mem::{MapOpts, Mapping};

const LEN: usize = 256 << 10;

/// Serialises the tests: memory unmapped by one invalidates the caches of others.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

struct Buf(Mapping);

impl Buf {
    fn new() -> Buf {
        Buf(Mapping::new(LEN, MapOpts::default()).unwrap())
    }

    fn of(seed: u64) -> Buf {
        let mut buf = Buf::new();
        buf.bytes_mut().copy_from_slice(&bytes(seed, LEN));
        buf
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has as many bytes and is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), LEN) }
    }
}

// SAFETY: the mapping does not move.
unsafe impl IoBuf for Buf {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has as many bytes, zeroed at first.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), LEN) }
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Buf {
    fn memory(&mut self) -> (*mut u8, usize) {
        (self.0.as_ptr(), LEN)
    }

    unsafe fn set_filled(&mut self, _len: usize) {}
}

/// Settings for a software device, by which messages of [`LEN`] are read.
fn source(settings: &[(&str, &str)]) -> Source {
    let device = std::env::var("UCX_NET_DEVICES").unwrap_or_else(|_| "softefa0".into());
    let keys = [
        ("UCX_TLS", "efa"),
        ("UCX_NET_DEVICES", &device),
        ("UCX_MIN_READ", "64k"),
        ("UCX_RCACHE_ENABLE", "y"),
    ];
    keys.iter().chain(settings).fold(Source::empty(), |source, (key, value)| source.with(key, value))
}

/// A pair on software devices that reads messages of [`LEN`]; `None` where unmapped memory is not reported.
fn pair(settings: &[(&str, &str)]) -> Option<Pair> {
    let source = source(settings);
    // A context each, and so a cache each.
    let open = || worker(&Context::configured(source.clone()).unwrap());
    Some(Pair::of(open()?, open()?))
}

fn worker(context: &Context) -> Option<Worker> {
    match context.worker() {
        Ok(worker) => Some(worker),
        Err(why) if why.to_string().contains("userfaultfd") => {
            ucs::testing::skipped("a test of the registration cache", why);
            None
        }
        Err(why) => panic!("{why}"),
    }
}

fn message(pair: &Pair, seed: u64, mut from: Buf, into: Buf) -> (Buf, Buf) {
    from.bytes_mut().copy_from_slice(&bytes(seed, LEN));
    let recv = pair.b.tag_recv(seed, TAG_MASK_FULL, into);
    let send = pair.ab.tag_send(seed, from);
    pair.until(|| recv.is_done() && send.is_done());
    let ((status, into), (sent, from)) = (recv.wait(), send.wait());
    assert_eq!((status.map(|s| s.len), sent), (Ok(LEN), Ok(())));
    assert!(into.bytes() == bytes(seed, LEN), "message {seed} has other bytes");
    (from, into)
}

fn met(settings: &[(&str, &str)]) -> Option<Pair> {
    let pair = pair(settings)?;
    message(&pair, 1000, Buf::new(), Buf::new());
    pair.settle();
    Some(pair)
}

#[test]
fn same_buffer_is_registered_once() {
    let _alone = alone();
    let Some(pair) = met(&[]) else { return };
    let before = [pair.a.diagnostics().registration_cache(), pair.b.diagnostics().registration_cache()];
    let (mut from, mut into) = (Buf::new(), Buf::new());
    for n in 0..20 {
        (from, into) = message(&pair, n, from, into);
    }
    pair.settle();
    for (worker, before) in [&pair.a, &pair.b].into_iter().zip(before) {
        let now = worker.diagnostics().registration_cache();
        assert_eq!((now.misses - before.misses, now.hits - before.hits), (1, 19), "{now:?}");
        assert_eq!(worker.diagnostics().registrations(), 0);
    }
    assert_eq!((pair.a.stats().rare.nacks_received, pair.b.stats().rare.reads >= 20), (0, true));
}

#[test]
fn workers_of_a_context_register_a_buffer_once() {
    let _alone = alone();
    let context = Context::configured(source(&[])).unwrap();
    let receiver = Context::configured(source(&[])).unwrap();
    let Some(mut from) = worker(&context).map(|_| Buf::new()) else { return };
    // Two senders of one context, one after the other and with the other still there.
    let pairs = [0, 1].map(|_| Pair::of(worker(&context).unwrap(), worker(&receiver).unwrap()));
    let mut into = Buf::new();
    for pair in &pairs {
        // The first message meets the peer.
        message(pair, 1000, Buf::new(), Buf::new());
        pair.settle();
    }
    let stats = |n: usize| pairs[n].a.diagnostics().registration_cache();
    let made = || [0, 1].map(|n: usize| pairs[n].a.diagnostics().registrations_made());
    let (before, made_before) = (stats(0), made());
    let counts = |n| (stats(n).misses - before.misses, stats(n).hits - before.hits);
    for pair in &pairs {
        (from, into) = message(pair, 1001, from, into);
    }
    assert_eq!((counts(0), counts(1)), ((1, 1), (1, 1)), "of two messages; the counters are the context's");
    for n in 0..10 {
        (from, into) = message(&pairs[n % 2], n as u64, from, into);
    }
    assert_eq!((counts(0), made()), ((1, 11), [made_before[0] + 1, made_before[1]]));
    // Both hear of memory that goes away, also the one that has not registered it.
    drop(from);
    (from, into) = message(&pairs[1], 20, Buf::new(), into);
    drop(message(&pairs[0], 21, from, into));
    assert_eq!((counts(0), made()), ((2, 12), [made_before[0] + 1, made_before[1] + 1]));
    assert!(stats(0).invalidated > before.invalidated);
    // The counters outlive the worker.
    let hits = stats(1).hits;
    let [first, second] = pairs;
    drop(first);
    assert_eq!(second.a.diagnostics().registration_cache().hits, hits);
}

#[test]
fn unmapped_memory_is_invalidated() {
    let _alone = alone();
    let Some(pair) = met(&[]) else { return };
    let (mut from, mut into) = message(&pair, 0, Buf::new(), Buf::new());
    let mut same = 0;
    for n in 1..40 {
        let (old_from, old_into) = (from.0.as_ptr(), into.0.as_ptr());
        let before = [pair.a.diagnostics().registration_cache(), pair.b.diagnostics().registration_cache()];
        drop((from, into));
        (into, from) = (Buf::new(), Buf::new());
        same += u32::from(old_from == from.0.as_ptr() || old_into == into.0.as_ptr());
        (from, into) = message(&pair, n, from, into);
        for (worker, before) in [&pair.a, &pair.b].into_iter().zip(before) {
            let now = worker.diagnostics().registration_cache();
            assert_eq!((now.hits, now.misses), (before.hits, before.misses + 1), "{now:?}");
            assert!(now.invalidated > before.invalidated, "{now:?}");
        }
    }
    assert!(same > 0, "the system never gave the same address again: nothing was tested");
}

#[test]
fn rcache_limits_hold() {
    let _alone = alone();
    for (settings, most, bytes) in [
        ([("UCX_RCACHE_MAX_REGIONS", "3")], 3, 3 * LEN),
        ([("UCX_RCACHE_MAX_SIZE", "640k")], 2, 640 << 10),
        ([("UCX_RCACHE_MAX_SIZE", "0")], 0, 0),
    ] {
        let Some(pair) = met(&settings) else { return };
        let mut kept: Vec<(Buf, Buf)> = Vec::new();
        for n in 0..8 {
            kept.push(message(&pair, n, Buf::new(), Buf::new()));
            for worker in [&pair.a, &pair.b] {
                let now = worker.diagnostics().registration_cache();
                assert!(now.count <= most && now.bytes <= bytes, "{settings:?}: {now:?}");
            }
        }
        pair.settle();
        assert_eq!((pair.a.diagnostics().registrations(), pair.b.diagnostics().registrations()), (0, 0));
        assert_eq!(pair.a.stats().rare.nacks_received, 0);
        let evicted = pair.a.diagnostics().registration_cache().evicted;
        assert_eq!(evicted > 0, most > 0, "{settings:?}");
    }
}

#[test]
fn puts_and_gets_share_registrations() {
    let _alone = alone();
    let Some(pair) = met(&[]) else { return };
    let mem = pair.b.mem_alloc(LEN, Access::all()).unwrap();
    let rkey = pair.ab.unpack_rkey(&mem.pack_rkey()).unwrap();
    let before = pair.a.diagnostics().registration_cache();
    let mut buf = Buf::of(7);
    for n in 0..10 {
        let put = pair.ab.put(buf, mem.addr(), &rkey);
        pair.until(|| put.is_done());
        let (result, back) = put.wait();
        assert_eq!(result, Ok(()));
        let flush = pair.ab.flush();
        pair.until(|| flush.is_done());
        let get = pair.ab.get(back, mem.addr(), &rkey);
        pair.until(|| get.is_done());
        let (result, back) = get.wait();
        result.unwrap();
        assert!(back.bytes() == bytes(7 + n, LEN), "get {n}");
        buf = back;
        buf.bytes_mut().copy_from_slice(&bytes(8 + n, LEN));
    }
    let now = pair.a.diagnostics().registration_cache();
    assert_eq!((now.misses - before.misses, now.hits - before.hits), (2, 18), "{now:?}");
}

struct Mapped(*mut u8);

// SAFETY: the memory has as many bytes and does not move before the test's end.
unsafe impl IoBuf for Mapped {
    fn bytes(&self) -> &[u8] {
        // SAFETY: as above; nobody writes it while the slice lives.
        unsafe { std::slice::from_raw_parts(self.0, LEN) }
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Mapped {
    fn memory(&mut self) -> (*mut u8, usize) {
        (self.0, LEN)
    }

    unsafe fn set_filled(&mut self, _len: usize) {}
}

#[test]
fn mapped_memory_is_not_registered_again() {
    let _alone = alone();
    for keep in ["y", "n"] {
        let Some(pair) = met(&[("UCX_RCACHE_ENABLE", keep)]) else { return };
        let (mut from, into) = (Buf::of(3), pair.b.mem_alloc(2 * LEN, Access::all()).unwrap());
        // SAFETY: the buffer outlives the mapping, and nobody has a reference to it while a peer reads.
        let mapped = unsafe { pair.a.mem_map(from.bytes_mut().as_mut_ptr(), LEN, Access::READ) }.unwrap();
        let made = [pair.a.diagnostics().registrations_made(), pair.b.diagnostics().registrations_made()];
        let send = |n: u64, at: usize| {
            let recv = pair.b.tag_recv(n, TAG_MASK_FULL, Mapped(into.as_ptr().wrapping_add(at)));
            let send = pair.ab.tag_send(n, Mapped(from.0.as_ptr()));
            pair.until(|| recv.is_done() && send.is_done());
            let ((status, got), (sent, _)) = (recv.wait(), send.wait());
            assert_eq!((status.map(|s| s.len), sent), (Ok(LEN), Ok(())));
            assert!(got.bytes() == bytes(3, LEN));
        };
        for n in 0..5 {
            send(n, 1000 * n as usize);
        }
        pair.settle();
        assert_eq!(
            [pair.a.diagnostics().registrations_made(), pair.b.diagnostics().registrations_made()],
            made,
            "keep {keep}"
        );
        assert_eq!((pair.a.diagnostics().registrations(), pair.b.diagnostics().registrations()), (0, 0));
        assert!(pair.b.stats().rare.reads >= 5);
        drop(mapped);
        send(9, 0);
        assert!(pair.a.diagnostics().registrations_made() > made[0], "keep {keep}");
        assert_eq!(pair.b.diagnostics().registrations_made(), made[1]);
    }
}

#[test]
fn failed_send_releases_its_key() {
    let _alone = alone();
    let Some(pair) = met(&[]) else { return };
    let before = pair.a.diagnostics().registration_cache().count;
    let send = pair.ab.tag_send(5, Buf::of(5));
    pair.settle();
    assert!(!send.is_done() && pair.a.diagnostics().snapshot().exposed == 1, "nobody receives it");
    let Pair { a, b, ab, .. } = pair;
    let close = ab.close(CloseMode::Force);
    common::spin(&[&a, &b], &mut || send.is_done() && close.is_done());
    let (result, _buf) = send.wait();
    assert!(result.is_err());
    assert_eq!((a.diagnostics().registrations(), a.diagnostics().registration_cache().count), (0, before));
}

#[test]
fn unsupported_settings_are_reported() {
    let source = Source::empty().with("UCX_TLS", "efa").with("UCX_RCACHE_ENABLE", "perhaps");
    let why = Context::configured(source).unwrap_err().to_string();
    assert!(why.contains("UCX_RCACHE_ENABLE") && why.contains("expected try or"), "{why}");
}
