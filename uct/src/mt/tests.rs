//! Several threads on one interface, in each mode, over `posix` and over the software device.

#![allow(unsafe_code)]

use super::*;
use crate::api::{
    AllocReq, AtomicOp, EpTag, Error, Md as _, Memory as _, Outcome, PendingQueued, Refused, Sent,
};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use ucs::config::Source;
use ucs::testing::drop_in_child;

fn open(tl: &str, mode: ThreadMode) -> Iface {
    let dev = if tl == "efa" { "softefa0" } else { "memory" };
    Iface::open(tl, dev, &Source::empty(), mode).unwrap()
}

fn retry<T>(iface: &Iface, mut call: impl FnMut() -> Outcome<T>) -> T {
    loop {
        match call() {
            Ok(done) => return done,
            Err(Refused::NoResource) => drop(iface.progress(16).unwrap()),
            Err(Refused::Failed(e)) => panic!("{e}"),
        }
        std::thread::yield_now();
    }
}

#[test]
fn shared_types_are_send_and_sync() {
    fn shared<T: Send + Sync>() {}
    shared::<Iface>();
    shared::<Ep>();
    shared::<Arc<Completion>>();
    shared::<ProgressThread>();
}

#[test]
fn single_refuses_other_threads() {
    let iface = open("posix", ThreadMode::Single);
    assert_eq!(iface.progress(1), Ok(0));
    let there = iface.clone();
    let said = std::thread::spawn(move || there.progress(1)).join().unwrap();
    assert!(matches!(said, Err(Error::InvalidParam(why)) if why.contains("another thread")));
    assert!(iface.spawn_progress().is_err());
}

#[test]
fn a_forked_child_does_not_wait_for_threads_of_its_parent() {
    let iface = open("posix", ThreadMode::Multi);
    let thread = drop_in_child(iface.spawn_progress().unwrap());
    assert!(thread.is_running());
}

#[test]
fn a_forked_child_does_not_wait_for_a_thread_of_its_parent_that_is_inside() {
    let iface = open("posix", ThreadMode::Multi);
    let [ep, other] = [(); 2].map(|()| iface.connect(&iface.device_addr(), &iface.iface_addr()).unwrap());
    assert_eq!(ep.ensure_connected(), Ok(()));
    let ((tell, inside), (leave, told)) = (mpsc::channel(), mpsc::channel::<()>());
    let stays = std::thread::spawn(move || {
        ep.am_bcopy(1, |_| {
            tell.send(()).unwrap();
            told.recv().unwrap();
            4
        })
    });
    inside.recv().unwrap();
    let other = drop_in_child(other);
    leave.send(()).unwrap();
    drop(other);
    assert_eq!(stays.join().unwrap(), Ok(4));
}

#[test]
fn serialized_refuses_concurrent_calls() {
    let iface = open("posix", ThreadMode::Serialized);
    let there = iface.clone();
    assert_eq!(std::thread::spawn(move || there.progress(1)).join().unwrap(), Ok(0));
    let ep = iface.connect(&iface.device_addr(), &iface.iface_addr()).unwrap();
    assert_eq!(ep.ensure_connected(), Ok(()));
    let (inside, armed_fd) = (mpsc::channel(), mpsc::channel::<()>());
    let hold = std::thread::spawn(move || {
        ep.am_bcopy(1, |_| {
            inside.0.send(()).unwrap();
            armed_fd.1.recv().unwrap();
            4
        })
    });
    inside.1.recv().unwrap();
    assert!(matches!(iface.progress(1), Err(Error::InvalidParam(why)) if why.contains("two threads")));
    armed_fd.0.send(()).unwrap();
    assert_eq!(hold.join().unwrap(), Ok(4));
    assert_eq!(iface.progress(1), Ok(1));
}

fn many_threads(tl: &str) {
    const THREADS: u64 = 3;
    const EACH: u64 = 2000;
    let (a, b) = (open(tl, ThreadMode::Multi), open(tl, ThreadMode::Multi));
    let there = Arc::new(a.connect(&b.device_addr(), &b.iface_addr()).unwrap());
    let back = b.connect(&a.device_addr(), &a.iface_addr()).unwrap();
    let (sum, answers) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (total, count) = (sum.clone(), answers.clone());
    let b_again = b.clone();
    let answer = move |am: crate::api::Am<'_>| {
        let n = u64::from_le_bytes(am.data()[..8].try_into().unwrap());
        total.fetch_add(n, Ordering::Relaxed);
        // From within: the lock lets its holder in again. What finds no room is counted instead.
        if back.am_bcopy(2, |_| 0) == Err(Refused::NoResource) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let _ = &b_again;
    };
    b.set_am_handler(1, HandlerThread::Any, Some(Box::new(answer))).unwrap();
    let count = answers.clone();
    let counted = move |_: crate::api::Am<'_>| {
        count.fetch_add(1, Ordering::Relaxed);
    };
    a.set_am_handler(2, HandlerThread::Any, Some(Box::new(counted))).unwrap();
    std::thread::scope(|s| {
        for t in 0..THREADS {
            let (a, there) = (&a, &there);
            s.spawn(move || {
                for n in 0..EACH {
                    let n = t * EACH + n;
                    let pack = |slot: &mut [u8]| {
                        slot[..8].copy_from_slice(&n.to_le_bytes());
                        8
                    };
                    retry(a, || there.am_bcopy(1, pack));
                }
            });
        }
        s.spawn(|| {
            while answers.load(Ordering::Relaxed) < THREADS * EACH {
                b.progress(16).unwrap();
                a.progress(16).unwrap();
                std::thread::yield_now();
            }
        });
    });
    let all = THREADS * EACH;
    assert_eq!(sum.load(Ordering::Relaxed), all * (all - 1) / 2);
    b.set_am_handler(1, HandlerThread::Any, None).unwrap();
}

#[test]
fn many_threads_send_and_progress_posix() {
    many_threads("posix");
}

#[test]
fn many_threads_send_and_progress_efa() {
    many_threads("efa");
}

#[test]
fn a_progress_thread_serves_while_the_owner_computes() {
    for tl in ["posix", "efa"] {
        let (a, b) = (open(tl, ThreadMode::Multi), open(tl, ThreadMode::Multi));
        let ep = a.connect(&b.device_addr(), &b.iface_addr()).unwrap();
        let (any, calls) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (count, caller) = (any.clone(), calls.clone());
        let owner = std::thread::current().id();
        let on_any = move |_: crate::api::Am<'_>| {
            count.fetch_add(1, Ordering::Relaxed);
        };
        b.set_am_handler(1, HandlerThread::Any, Some(Box::new(on_any))).unwrap();
        let on_caller = move |am: crate::api::Am<'_>| {
            assert_eq!((std::thread::current().id(), am.data()), (owner, &b"kept"[..]));
            caller.fetch_add(1, Ordering::Relaxed);
        };
        b.set_am_handler(2, HandlerThread::Caller, Some(Box::new(on_caller))).unwrap();
        let thread = b.spawn_progress().unwrap();
        for round in 0..20 {
            for id in [1, 2] {
                retry(&a, || {
                    ep.am_bcopy(id, |slot| {
                        slot[..4].copy_from_slice(b"kept");
                        4
                    })
                });
            }
            while any.load(Ordering::Relaxed) <= round {
                a.progress(16).unwrap();
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        drop(thread);
        while calls.load(Ordering::Relaxed) < 20 {
            a.progress(16).unwrap();
            b.progress(16).unwrap();
        }
        assert!(b.wait(10, Some(Duration::from_millis(1))).unwrap() > 0, "news of what the thread took in");
        assert_eq!(b.wait(10, Some(Duration::from_millis(1))), Ok(0));
        retry(&a, || ep.am_bcopy(1, |_| 4));
        while b.wait(10, Some(Duration::from_millis(1))).unwrap() == 0 {
            a.progress(16).unwrap();
        }
        assert_eq!(any.load(Ordering::Relaxed), 21);
    }
}

#[test]
fn a_handler_that_progresses_loses_no_message() {
    const COUNT: usize = 20;
    for tl in ["posix", "efa"] {
        let (a, b) = (open(tl, ThreadMode::Multi), open(tl, ThreadMode::Multi));
        let ep = a.connect(&b.device_addr(), &b.iface_addr()).unwrap();
        let seen = Arc::new(AtomicUsize::new(0));
        let (count, again) = (seen.clone(), b.clone());
        let handler = move |_: crate::api::Am<'_>| {
            count.fetch_add(1, Ordering::Relaxed);
            assert_eq!(again.progress(16), Ok(0), "one after another");
        };
        b.set_am_handler(1, HandlerThread::Caller, Some(Box::new(handler))).unwrap();
        let thread = b.spawn_progress().unwrap();
        for _ in 0..COUNT {
            retry(&a, || ep.am_bcopy(1, |_| 4));
        }
        let until = std::time::Instant::now() + Duration::from_secs(10);
        while seen.load(Ordering::Relaxed) < COUNT && std::time::Instant::now() < until {
            a.progress(16).unwrap();
            std::thread::sleep(Duration::from_millis(1));
            b.progress(16).unwrap();
        }
        drop(thread);
        assert_eq!(seen.load(Ordering::Relaxed), COUNT, "{tl}");
        b.set_am_handler(1, HandlerThread::Caller, None).unwrap();
    }
}

#[test]
fn completions_fire_once_in_whatever_thread() {
    const COUNT: u32 = 200;
    for tl in ["posix", "efa"] {
        let (a, b) = (open(tl, ThreadMode::Multi), open(tl, ThreadMode::Multi));
        let ep = a.connect(&b.device_addr(), &b.iface_addr()).unwrap();
        let _back = b.connect(&a.device_addr(), &a.iface_addr()).unwrap();
        let target = b.md().alloc(&AllocReq::new(4096, "target")).unwrap();
        let local = a.md().alloc(&AllocReq::new(4096, "local")).unwrap();
        let rkey = a.md().unpack_rkey(&b.md().pack_rkey(&target).unwrap()).unwrap();
        let at = target.addr().addr() as u64;
        let fired = Arc::new(AtomicUsize::new(0));
        let count = fired.clone();
        let comp = Completion::new(COUNT, move |result| {
            assert_eq!(result, Ok(()));
            count.fetch_add(1, Ordering::Relaxed);
        });
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    let iov = [crate::api::Iov::new(local.addr(), 64, Some(&local))];
                    for _ in 0..COUNT / 2 {
                        // SAFETY: `local` lives until all is flushed.
                        let put = || unsafe { ep.put_zcopy(&iov, at, &rkey, Some(&comp)) };
                        if retry(&a, put) == Sent::Done {
                            comp.update(Ok(()));
                        }
                        b.progress(4).unwrap();
                    }
                });
            }
        });
        while fired.load(Ordering::Relaxed) == 0 {
            a.progress(16).unwrap();
            b.progress(16).unwrap();
        }
        assert_eq!((fired.load(Ordering::Relaxed), comp.outstanding()), (1, 0));
        let has_atomics = a.attr().has(crate::api::Caps::ATOMIC);
        let mut old = u64::MAX;
        let result = NonNull::from(&mut old);
        if has_atomics {
            // SAFETY: `old` outlives the flush below.
            let _ = retry(&a, || unsafe { ep.atomic_fetch(AtomicOp::Add, 5u64, result, at, &rkey, None) });
        }
        while ep.flush(None) != Ok(Sent::Done) {
            a.progress(16).unwrap();
            b.progress(16).unwrap();
        }
        // SAFETY: `old` is alive, and nothing is under way.
        assert_eq!(unsafe { result.read() }, if has_atomics { 0 } else { u64::MAX });
    }
}

#[test]
fn cancelling_an_endpoint_returns_pending_operations() {
    let (from, to) = (open("posix", ThreadMode::Multi), open("posix", ThreadMode::Multi));
    let ep = from.connect(&to.device_addr(), &to.iface_addr()).unwrap();
    assert_eq!(ep.is_connected(&to.device_addr(), &to.iface_addr()), Ok(true));
    assert_eq!(ep.is_connected(&from.device_addr(), &from.iface_addr()), Ok(false));
    assert_eq!((ep.begin_connecting().is_ok(), ep.ensure_connected()), (true, Ok(())));
    while ep.am_bcopy(1, |_| 4).is_ok() {}
    for _ in 0..3 {
        assert_eq!(ep.pending_add(Box::new(|| panic!("tried after all"))), Ok(PendingQueued::Queued));
    }
    let (mut back, ended) = (0, Completion::new(1, |result| assert_eq!(result, Ok(()))));
    assert_eq!(ep.cancel(&mut |_| back += 1, Some(&ended)), Ok(Sent::Done));
    assert_eq!(back, 3);
    while to.progress(64).unwrap() > 0 {}
    assert_eq!(from.progress(8), Ok(0));
}

type TracedSink = (char, u8, Vec<u8>, usize);

fn trace(iface: &Iface) -> Arc<Mutex<Vec<TracedSink>>> {
    let log = Arc::new(Mutex::new(Vec::new()));
    let into = log.clone();
    let tracer = move |e: TraceEvent<'_>| {
        let way = match e.kind {
            TraceKind::Sent(_) => 's',
            TraceKind::Received(_) => 'r',
            TraceKind::Dropped(_) => 'd',
            TraceKind::Returned(_) => 'b',
        };
        into.lock().unwrap().push((way, e.id, e.head.to_vec(), e.len));
    };
    iface.set_tracer(Some(Box::new(tracer))).unwrap();
    log
}

#[test]
fn a_tracer_sees_what_passes_in_any_thread() {
    for tl in ["posix", "efa"] {
        let (a, b) = (open(tl, ThreadMode::Multi), open(tl, ThreadMode::Multi));
        let ep = a.connect(&b.device_addr(), &b.iface_addr()).unwrap();
        let local = a.md().alloc(&AllocReq::new(100, "local")).unwrap();
        let (sent, came) = (trace(&a), trace(&b));
        let seen = Arc::new(AtomicUsize::new(0));
        for (id, thread) in [
            (1, HandlerThread::Any),
            (2, HandlerThread::Caller),
            (3, HandlerThread::Any),
            (4, HandlerThread::Any),
            (5, HandlerThread::Any),
        ] {
            let count = seen.clone();
            let handler = move |_: crate::api::Am<'_>| {
                count.fetch_add(1, Ordering::Relaxed);
            };
            b.set_am_handler(id, thread, Some(Box::new(handler))).unwrap();
        }
        // Ids 6 and 7 have no handler: one is dropped by any thread, the other by a caller.
        b.set_am_handler(7, HandlerThread::Caller, None).unwrap();
        let thread = b.spawn_progress().unwrap();
        let packed = |slot: &mut [u8], bytes: &[u8]| {
            slot[..bytes.len()].copy_from_slice(bytes);
            bytes.len()
        };
        std::thread::scope(|s| {
            s.spawn(|| {
                let _ = retry(&a, || ep.am_short(1, 0x0201, b"x"));
                let _ = retry(&a, || ep.am_short_iov(2, &[b"ab", b"c"]));
                retry(&a, || ep.am_bcopy(3, |slot| packed(slot, b"hi")));
            });
        });
        retry(&a, || ep.am_packet(3, |slot| packed(slot, &[4, b'p'])));
        // A copy of its own each time it is tried.
        let short = |slot: &mut [u8]| packed(slot, &[6, b'q']);
        retry(&a, || ep.am_short_packet(3, short));
        let iov = [crate::api::Iov::new(local.addr(), 100, Some(&local))];
        // SAFETY: `local` lives to the end of the round and is not written.
        let _ = retry(&a, || unsafe { ep.am_zcopy(5, b"h", &iov, None) });
        let _ = retry(&a, || ep.am_short_iov(7, &[b"y"]));
        assert!(ep.am_packet(1 << 30, |_| 0).is_err(), "refused: not shown");
        let until = std::time::Instant::now() + Duration::from_secs(10);
        while came.lock().unwrap().len() < 9 && std::time::Instant::now() < until {
            a.progress(16).unwrap();
            b.progress(16).unwrap();
        }
        drop(thread);
        assert_eq!(seen.load(Ordering::Relaxed), 5, "{tl}");
        let of = |way, id, head: &[u8], len| (way, id, head.to_vec(), len);
        let head = [1, 2, 0, 0, 0, 0, 0, 0, b'x'];
        let mut want = vec![
            of('s', 1, &head, 9),
            of('s', 2, b"abc", 3),
            of('s', 3, b"hi", 2),
            of('s', 4, b"p", 1),
            of('s', 6, b"q", 1),
            of('s', 5, b"h", 101),
            of('s', 7, b"y", 1),
        ];
        assert_eq!(*sent.lock().unwrap(), want, "{tl}");
        let body = [&b"h"[..], &[0; 100]].concat();
        want.iter_mut().for_each(|shown| shown.0 = 'r');
        want[5] = of('r', 5, &body, 101);
        want.extend([of('d', 6, b"q", 1), of('d', 7, b"y", 1)]);
        // `efa` keeps no order.
        let mut came = std::mem::take(&mut *came.lock().unwrap());
        came.sort();
        want.sort();
        assert_eq!(came, want, "{tl}");

        a.set_tracer(None).unwrap();
        let _ = retry(&a, || ep.am_short_iov(1, &[b"z"]));
        assert_eq!(sent.lock().unwrap().len(), 7, "nobody is shown it any more");
    }
}

#[test]
fn a_tracer_sees_returned_messages() {
    let source = Source::empty().with("UCX_EFA_RNR_RETRY", "0");
    let hasty = Iface::open("efa", "softefa0", &source, ThreadMode::Multi).unwrap();
    let tiny = Source::empty().with("UCX_EFA_RX_QUEUE_LEN", "1").with("UCX_EFA_RX_SPARE", "0");
    let tiny = Iface::open("efa", "softefa0", &tiny, ThreadMode::Multi).unwrap();
    let ep = hasty.connect(&tiny.device_addr(), &tiny.iface_addr()).unwrap();
    let log = trace(&hasty);
    for n in [b"1", b"2"] {
        assert_eq!(ep.am_short_iov(9, &[n]), Ok(Sent::Done));
    }
    let until = std::time::Instant::now() + Duration::from_secs(10);
    while log.lock().unwrap().len() < 3 && std::time::Instant::now() < until {
        hasty.progress(16).unwrap();
    }
    let shown: Vec<(char, Vec<u8>)> = log.lock().unwrap().iter().map(|e| (e.0, e.2.clone())).collect();
    assert_eq!(shown, [('s', b"1".to_vec()), ('s', b"2".to_vec()), ('b', b"2".to_vec())]);
}

/// Endpoints connect to endpoints on every transport, in every mode; handlers are told which one a message is
/// for, also when a progress thread has kept it.
#[test]
fn endpoints_connect_to_endpoints_in_every_mode() {
    for mode in [ThreadMode::Single, ThreadMode::Serialized, ThreadMode::Multi] {
        for tl in ["self", "posix", "cma", "efa"] {
            let dev = if tl == "efa" { "softefa0" } else { "memory" };
            let open = || Iface::open_paired(tl, dev, &Source::empty(), mode).unwrap();
            let a = open();
            let b = if tl == "self" { a.clone() } else { open() };
            let join = |tag| {
                let (from, to) = (a.create_ep().unwrap(), b.create_ep().unwrap());
                to.set_tag(EpTag(tag)).unwrap();
                assert_eq!(from.flush(None), Ok(Sent::Done));
                assert!(matches!(from.check(None), Err(Refused::Failed(Error::NotConnected))));
                let (at_a, at_b) = (from.ep_addr().unwrap(), to.ep_addr().unwrap());
                from.connect_to_ep(&b.device_addr(), &b.iface_addr(), &at_b).unwrap();
                to.connect_to_ep(&a.device_addr(), &a.iface_addr(), &at_a).unwrap();
                assert_eq!(from.is_connected(&b.device_addr(), &b.iface_addr()), Ok(true));
                (from, to)
            };
            let eps = [join(5), join(6)];
            if !b.attr().has(crate::api::Caps::AM_BCOPY) {
                continue;
            }
            let seen = Arc::new(Mutex::new(Vec::new()));
            let (tell, at) = (seen.clone(), b.clone());
            let handler = move |am: crate::api::Am<'_>| {
                tell.lock().unwrap().push((am.data()[0], at.receiver().unwrap().map(|tag| tag.0)));
            };
            b.set_am_handler(3, HandlerThread::Caller, Some(Box::new(handler))).unwrap();
            // In mode multi a progress thread takes the messages in and keeps them for us.
            let thread = (mode == ThreadMode::Multi).then(|| b.spawn_progress().unwrap());
            for (n, (from, _)) in eps.iter().enumerate() {
                let pack = |slot: &mut [u8]| {
                    slot[0] = n as u8;
                    1
                };
                retry(&a, || from.am_bcopy(3, pack));
            }
            while seen.lock().unwrap().len() < 2 {
                a.progress(16).unwrap();
                b.progress(16).unwrap();
            }
            let mut seen = seen.lock().unwrap().clone();
            seen.sort_unstable();
            assert_eq!(seen, [(0, Some(5)), (1, Some(6))], "{tl} {mode:?}");
            b.set_am_handler(3, HandlerThread::Caller, None).unwrap();
            drop(thread);
        }
    }
}
