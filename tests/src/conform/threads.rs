//! Shared interfaces ([`uct::mt`]): two threads use one interface and endpoint, with own and shared memory,
//! and both make progress. Instantiated in `tests/conform/conform.rs`. Sees `uct::mt` and memory only.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use ucs::config::Source;
use uct::any::{Mem, Rkey};
use uct::api::{
    AllocReq, AtomicOp, AtomicOps, Caps, Iov, Md as _, Memory as _, OrderKind, Outcome, Refused, Sent,
};
use uct::mt::{Completion, Ep, HandlerThread, Iface, ThreadMode};

use super::bytes;

const THREADS: u64 = 2;
const COUNT: u64 = 1000;
const MAX_LEN: usize = 20_000;
const TIMEOUT: Duration = Duration::from_secs(30);

/// Two connected shared interfaces, which may be the same one.
pub struct SharedPair {
    a: Iface,
    b: Iface,
    ab: Ep,
    // RDMA needs a connected target.
    _ba: Ep,
}

/// A completed operation: calls of its completion so far, and expected ones.
struct Ended(Arc<AtomicU32>, u32);

/// Opens an interface for any thread.
pub fn open(tl: &str, dev: &str) -> Iface {
    Iface::open(tl, dev, &Source::empty(), ThreadMode::Multi).unwrap()
}

/// [`open`], with endpoints that connect to endpoints.
pub fn open_paired(tl: &str, dev: &str) -> Iface {
    Iface::open_paired(tl, dev, &Source::empty(), ThreadMode::Multi).unwrap()
}

impl SharedPair {
    /// Connects two interfaces.
    pub fn new(a: Iface, b: Iface) -> Self {
        let ab = a.connect(&b.device_addr(), &b.iface_addr()).expect("a reaches b");
        let ba = b.connect(&a.device_addr(), &a.iface_addr()).expect("b reaches a");
        SharedPair { a, b, ab, _ba: ba }
    }

    /// Connects an endpoint of each with one of the other.
    pub fn by_ep(a: Iface, b: Iface) -> Self {
        let (ab, ba) = (a.create_ep().expect("an endpoint"), b.create_ep().expect("an endpoint"));
        let (to_b, to_a) = (ba.ep_addr().expect("its address"), ab.ep_addr().expect("its address"));
        ab.connect_to_ep(&b.device_addr(), &b.iface_addr(), &to_b).expect("a reaches b");
        ba.connect_to_ep(&a.device_addr(), &a.iface_addr(), &to_a).expect("b reaches a");
        SharedPair { a, b, ab, _ba: ba }
    }

    /// Connects an interface to itself.
    pub fn with_itself(a: Iface) -> Self {
        SharedPair::new(a.clone(), a)
    }

    fn has(&self, caps: Caps) -> bool {
        self.a.attr().has(caps)
    }

    fn progress_both(&self) {
        let arrived = self.a.progress(16).unwrap() + self.b.progress(16).unwrap();
        if arrived == 0 {
            // The other thread may hold the lock on this core.
            std::thread::yield_now();
        }
    }

    fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let late = Instant::now() + TIMEOUT;
        while !condition() {
            self.progress_both();
            assert!(Instant::now() < late, "{what} for ever");
        }
    }

    fn post<T>(&self, mut call: impl FnMut() -> Outcome<T>) -> T {
        let mut done = None;
        self.until("no resource", || match call() {
            Ok(sent) => {
                done = Some(sent);
                true
            }
            Err(Refused::NoResource) => false,
            Err(Refused::Failed(e)) => panic!("{e}"),
        });
        done.unwrap()
    }

    /// Runs an operation; [`SharedPair::on_both_threads`] checks for later calls of its completion.
    fn finish(&self, mut call: impl FnMut(Option<&Arc<Completion>>) -> Outcome) -> Ended {
        let fired = Arc::new(AtomicU32::new(0));
        let count = fired.clone();
        let comp = Completion::new(1, move |result| {
            assert_eq!(result, Ok(()));
            // Pairs with the load in `until`: the operation's writes are visible.
            count.fetch_add(1, Ordering::Release);
        });
        let expected = u32::from(self.post(|| call(Some(&comp))) == Sent::InProgress);
        self.until("no completion", || fired.load(Ordering::Acquire) >= expected);
        Ended(fired, expected)
    }

    /// Runs `each` on two threads from the same moment; then checks the completions.
    fn on_both_threads(&self, each: impl Fn(u64) -> Vec<Ended> + Sync) {
        let start = Barrier::new(THREADS as usize);
        let run = &|n| {
            start.wait();
            each(n)
        };
        let all: Vec<Ended> = std::thread::scope(|scope| {
            let running: Vec<_> = (0..THREADS).map(|n| scope.spawn(move || run(n))).collect();
            running.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        (0..1000).for_each(|_| self.progress_both());
        for Ended(fired, expected) in &all {
            assert_eq!(fired.load(Ordering::Relaxed), *expected, "completions");
        }
    }

    fn target(&self, len: usize) -> (Mem, Rkey, u64) {
        let mem = self.b.md().alloc(&AllocReq::new(len, "target")).unwrap();
        let rkey = self.a.md().unpack_rkey(&self.b.md().pack_rkey(&mem).unwrap()).unwrap();
        let at = mem.addr().addr() as u64;
        (mem, rkey, at)
    }
}

fn read(mem: &Mem, from: usize, len: usize) -> Vec<u8> {
    assert!(from + len <= mem.len());
    let mut out = vec![0; len];
    // SAFETY: inside the memory; operations that write this part of it are over.
    unsafe { std::ptr::copy_nonoverlapping(mem.addr().wrapping_add(from), out.as_mut_ptr(), len) };
    out
}

fn write(mem: &Mem, at: usize, data: &[u8]) {
    assert!(at + data.len() <= mem.len());
    // SAFETY: inside the memory; no operation and no other thread uses this part of it.
    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), mem.addr().wrapping_add(at), data.len()) };
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

/// Messages of two threads arrive once, whole, and in each thread's order if there is order.
pub fn messages_of_two_threads(s: &SharedPair) {
    let limits = s.a.attr().am;
    let methods = [
        (Caps::AM_SHORT, limits.max_short),
        (Caps::AM_BCOPY, limits.max_bcopy),
        (Caps::AM_ZCOPY, limits.max_zcopy),
    ];
    let methods: Vec<_> = methods.into_iter().filter(|(method, _)| s.has(*method)).collect();
    if methods.is_empty() {
        return;
    }
    let method = |number: u64| methods[number as usize % methods.len()];
    let arrived = Arc::new(Mutex::new(Vec::new()));
    let log = arrived.clone();
    let keep = move |am: uct::api::Am<'_>| log.lock().unwrap().push(am.data().to_vec());
    s.b.set_am_handler(7, HandlerThread::Any, Some(Box::new(keep))).unwrap();
    // The number of the message, then unique bytes.
    let whole = |number: u64| {
        let len = [0, 8, 100, 3000, MAX_LEN][number as usize % 5].min(method(number).1 - 8);
        [&number.to_le_bytes()[..], &bytes(number, len)].concat()
    };
    s.on_both_threads(|thread| {
        let local = s.a.md().alloc(&AllocReq::new(MAX_LEN, "message")).unwrap();
        let mut ended = Vec::new();
        for n in 0..COUNT {
            let number = thread << 32 | n;
            let message = whole(number);
            let (head, body) = message.split_at(8);
            match method(number).0 {
                Caps::AM_SHORT => assert_eq!(s.post(|| s.ab.am_short(7, number, body)), Sent::Done),
                Caps::AM_BCOPY => {
                    let pack = |slot: &mut [u8]| {
                        slot[..message.len()].copy_from_slice(&message);
                        message.len()
                    };
                    assert_eq!(s.post(|| s.ab.am_bcopy(7, pack)), message.len());
                }
                _ => {
                    write(&local, 0, body);
                    let iov = [Iov::new(local.addr(), body.len(), Some(&local))];
                    // SAFETY: `local` is not written before the operation is over, which `finish` waits for.
                    ended.push(s.finish(|comp| unsafe { s.ab.am_zcopy(7, head, &iov, comp) }));
                }
            }
        }
        ended.push(s.finish(|comp| s.ab.flush(comp)));
        ended
    });
    s.until("fewer messages", || arrived.lock().unwrap().len() as u64 >= THREADS * COUNT);
    (0..1000).for_each(|_| s.progress_both());
    let arrived = std::mem::take(&mut *arrived.lock().unwrap());
    assert_eq!(arrived.len() as u64, THREADS * COUNT, "messages arrived");
    for thread in 0..THREADS {
        let mut of_it: Vec<_> = arrived.iter().filter(|message| number(message) >> 32 == thread).collect();
        if s.a.attr().order != OrderKind::Ordered {
            of_it.sort_by_key(|message| number(message));
        }
        assert!(of_it.into_iter().map(|message| number(message)).eq((0..COUNT).map(|n| thread << 32 | n)));
    }
    assert!(arrived.iter().all(|message| *message == whole(number(message))), "not what was sent");
    s.b.set_am_handler(7, HandlerThread::Any, None).unwrap();
}

/// Each thread puts and gets in its own half by every method.
pub fn puts_and_gets_of_two_threads(s: &SharedPair) {
    let (put, get) = (s.a.attr().put, s.a.attr().get);
    let (mem, rkey, start) = s.target(MAX_LEN * THREADS as usize);
    s.on_both_threads(|thread| {
        let half = thread as usize * MAX_LEN;
        let at = start + half as u64;
        let local = s.a.md().alloc(&AllocReq::new(MAX_LEN, "local")).unwrap();
        let mut ended = Vec::new();
        for len in [1, 8, 100, 4096, MAX_LEN] {
            for method in [Caps::PUT_SHORT, Caps::PUT_BCOPY, Caps::PUT_ZCOPY] {
                let data = bytes(thread << 32 | method.bits(), len);
                let iov = [Iov::new(local.addr(), len, Some(&local))];
                match method {
                    _ if !s.has(method) => continue,
                    Caps::PUT_SHORT if len <= put.max_short => {
                        assert_eq!(s.post(|| s.ab.put_short(&data, at, &rkey)), Sent::Done);
                    }
                    Caps::PUT_BCOPY if len <= put.max_bcopy => {
                        let pack = |slot: &mut [u8]| {
                            slot[..len].copy_from_slice(&data);
                            len
                        };
                        s.post(|| s.ab.put_bcopy(len, pack, at, &rkey));
                    }
                    Caps::PUT_ZCOPY if (put.min_zcopy..=put.max_zcopy).contains(&len) => {
                        write(&local, 0, &data);
                        // SAFETY: `local` is this thread's, and is not written before the flush below is
                        // over.
                        ended.push(s.finish(|comp| unsafe { s.ab.put_zcopy(&iov, at, &rkey, comp) }));
                    }
                    _ => continue,
                }
                ended.push(s.finish(|comp| s.ab.flush(comp)));
                assert!(read(&mem, half, len) == data, "{len} bytes put by {method:?}");
            }
            for method in [Caps::GET_SHORT, Caps::GET_BCOPY, Caps::GET_ZCOPY] {
                let data = bytes(thread << 32 | method.bits(), len);
                write(&mem, half, &data);
                let got = match method {
                    _ if !s.has(method) => continue,
                    Caps::GET_SHORT if len <= get.max_short => {
                        let mut out = vec![0; len];
                        assert_eq!(s.post(|| s.ab.get_short(&mut out, at, &rkey)), Sent::Done);
                        out
                    }
                    Caps::GET_BCOPY if len <= get.max_bcopy => {
                        let out = Arc::new(Mutex::new(Vec::new()));
                        ended.push(s.finish(|comp| {
                            let out = out.clone();
                            let unpack = move |bytes: &[u8]| out.lock().unwrap().extend_from_slice(bytes);
                            s.ab.get_bcopy(len, unpack, at, &rkey, comp)
                        }));
                        std::mem::take(&mut *out.lock().unwrap())
                    }
                    Caps::GET_ZCOPY if (get.min_zcopy..=get.max_zcopy).contains(&len) => {
                        write(&local, 0, &vec![0; len]);
                        let iov = [Iov::new(local.addr(), len, Some(&local))];
                        // SAFETY: `local` is this thread's, and is not read before the operation is over.
                        ended.push(s.finish(|comp| unsafe { s.ab.get_zcopy(&iov, at, &rkey, comp) }));
                        read(&local, 0, len)
                    }
                    _ => continue,
                };
                assert!(got == data, "{len} bytes got by {method:?}");
            }
        }
        ended
    });
}

/// Two threads count in the same words, by fetch-and-add, add, and compare-and-swap.
pub fn atomics_of_two_threads(s: &SharedPair) {
    if !s.has(Caps::ATOMIC) {
        return;
    }
    let (fetch, post) = (s.a.attr().atomics.fetch(8), s.a.attr().atomics.post(8));
    let (mem, rkey, at) = s.target(64);
    let seen = Mutex::new(Vec::new());
    s.on_both_threads(|_| {
        let (mut ended, mut mine) = (Vec::new(), Vec::new());
        for _ in 0..COUNT {
            let mut old = 0u64;
            let result = NonNull::from(&mut old);
            if fetch.contains(AtomicOps::ADD) {
                // SAFETY: `old` outlives the operation, which `finish` waits for.
                let add = |comp: Option<&_>| unsafe {
                    s.ab.atomic_fetch(AtomicOp::Add, 1u64, result, at, &rkey, comp)
                };
                ended.push(s.finish(add));
                // SAFETY: `old` is alive; read through the pointer that the operation wrote by.
                mine.push(unsafe { result.read() });
            }
            if post.contains(AtomicOps::ADD) {
                assert_eq!(s.post(|| s.ab.atomic_post(AtomicOp::Add, 1u64, at + 8, &rkey)), Sent::Done);
            }
            let mut expected = 0;
            while fetch.contains(AtomicOps::CSWAP) {
                // SAFETY: as above.
                let swap = |comp: Option<&_>| unsafe {
                    s.ab.atomic_cswap(expected, expected + 1, result, at + 16, &rkey, comp)
                };
                ended.push(s.finish(swap));
                // SAFETY: as above.
                match unsafe { result.read() } {
                    found if found == expected => break,
                    found => expected = found,
                }
            }
        }
        ended.push(s.finish(|comp| s.ab.flush(comp)));
        seen.lock().unwrap().append(&mut mine);
        ended
    });
    let count = |has: bool| if has { THREADS * COUNT } else { 0 };
    let mut seen = seen.into_inner().unwrap();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..count(fetch.contains(AtomicOps::ADD))));
    let words =
        [fetch.contains(AtomicOps::ADD), post.contains(AtomicOps::ADD), fetch.contains(AtomicOps::CSWAP)];
    let found = [0, 8, 16].map(|at| number(&read(&mem, at, 8)));
    assert_eq!(found, words.map(count));
}

/// One completion for operations of both threads is called once; flushes of either thread complete.
pub fn completions_of_two_threads(s: &SharedPair) {
    let (_mem, rkey, at) = s.target(64 * THREADS as usize);
    let fired = Arc::new(AtomicU32::new(0));
    let (count, puts) = (fired.clone(), s.has(Caps::PUT_ZCOPY));
    let comp = Completion::new((2 * THREADS * COUNT) as u32, move |result| {
        assert_eq!(result, Ok(()));
        count.fetch_add(1, Ordering::Release);
    });
    let locals: Vec<_> = (0..THREADS).map(|_| s.a.md().alloc(&AllocReq::new(64, "local")).unwrap()).collect();
    s.on_both_threads(|thread| {
        let local = &locals[thread as usize];
        let iov = [Iov::new(local.addr(), 64, Some(local))];
        let counted = |sent: Sent| {
            if sent == Sent::Done {
                comp.update(Ok(()));
            }
        };
        let mut ended = Vec::new();
        for n in 0..COUNT {
            assert_eq!(
                fired.load(Ordering::Acquire),
                0,
                "called though operations of this thread are to come"
            );
            if puts {
                let to = at + 64 * thread;
                // SAFETY: `locals` live until the completion is called, and nobody writes them.
                counted(s.post(|| unsafe { s.ab.put_zcopy(&iov, to, &rkey, Some(&comp)) }));
            } else {
                comp.update(Ok(()));
            }
            counted(s.post(|| if n % 2 == 0 { s.ab.flush(Some(&comp)) } else { s.a.flush(Some(&comp)) }));
            if n % 10 == 0 {
                ended.push(s.finish(|comp| if n % 20 == 0 { s.ab.flush(comp) } else { s.a.flush(comp) }));
            }
        }
        ended
    });
    s.until("no completion", || fired.load(Ordering::Acquire) > 0);
    (0..1000).for_each(|_| s.progress_both());
    assert_eq!((fired.load(Ordering::Relaxed), comp.outstanding()), (1, 0), "called, left");
}

/// Instantiates all cases for a shared interface: `threads_suite!(name,
///
/// pair);`.
#[macro_export]
macro_rules! threads_suite {
    ($tl:ident, $make:expr) => {
        mod $tl {
            #[allow(unused_imports, reason = "what the expression needs")]
            use super::*;
            $crate::threads_suite!(@cases $make;
                messages_of_two_threads puts_and_gets_of_two_threads atomics_of_two_threads completions_of_two_threads
            );
        }
    };
    (@cases $make:expr; $($case:ident)+) => {
        $(#[test] fn $case() { $crate::conform::threads::$case(&($make)()); })+
    };
}
