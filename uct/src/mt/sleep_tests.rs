//! Threads that sleep beside others: no event is missed, and a progress thread ends on request.

#![allow(unsafe_code)]

use super::*;
use crate::Worker;
use crate::api::{Am, Caps, Md as _, Memory as _, PendingQueued, Retry, Sent};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use ucs::config::Source;

const TIMEOUT: Duration = Duration::from_secs(30);

fn open(tl: &str) -> Iface {
    let dev = if tl == "efa" { "softefa0" } else { "memory" };
    Iface::open(tl, dev, &Source::empty(), ThreadMode::Multi).unwrap()
}

fn connect(from: &Iface, to: &Iface) -> Ep {
    let ep = from.connect(&to.device_addr(), &to.iface_addr()).unwrap();
    assert_eq!(ep.ensure_connected(), Ok(()));
    ep
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < TIMEOUT, "waited in vain for {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn let_it_sleep() {
    std::thread::sleep(Duration::from_millis(20));
}

#[test]
fn a_pending_operation_wakes_a_sleeping_thread() {
    let (a, b) = (open("posix"), open("posix"));
    let ep = Arc::new(connect(&a, &b));
    let thread = a.spawn_progress().unwrap();
    while ep.am_bcopy(1, |_| 4).is_ok() {}
    let_it_sleep();
    let (done, again) = (Arc::new(AtomicUsize::new(0)), ep.clone());
    let count = done.clone();
    let op = Box::new(move || match again.am_bcopy(1, |_| 4) {
        Ok(_) => {
            count.fetch_add(1, Ordering::Relaxed);
            Retry::Done
        }
        Err(_) => Retry::NoResource,
    });
    assert_eq!(ep.pending_add(op), Ok(PendingQueued::Queued));
    while b.progress(64).unwrap() > 0 {}
    until("what waits for room", || done.load(Ordering::Relaxed) == 1);
    drop(thread);
}

#[test]
fn a_waiter_beside_a_progress_thread_is_woken() {
    const ROUNDS: usize = 300;
    for tl in ["posix", "efa"] {
        let (a, b) = (open(tl), open(tl));
        let _thread = b.spawn_progress().unwrap();
        let got = Arc::new(AtomicUsize::new(0));
        let count = got.clone();
        let handler = move |_: Am<'_>| {
            count.fetch_add(1, Ordering::Relaxed);
        };
        b.set_am_handler(1, HandlerThread::Caller, Some(Box::new(handler))).unwrap();
        let (own, seen, (tell, told)) = (b.clone(), got.clone(), mpsc::channel());
        let waiter = std::thread::spawn(move || {
            for round in 1..=ROUNDS {
                while seen.load(Ordering::Relaxed) < round {
                    own.wait(0, None).unwrap();
                }
                tell.send(()).unwrap();
            }
        });
        let ep = connect(&a, &b);
        for round in 0..ROUNDS {
            while ep.am_bcopy(1, |_| 4).is_err() {
                a.progress(16).unwrap();
            }
            let start = Instant::now();
            while told.try_recv().is_err() {
                a.progress(16).unwrap();
                assert!(start.elapsed() < TIMEOUT, "{tl}, round {round}: asleep");
                std::thread::yield_now();
            }
        }
        waiter.join().unwrap();
    }
}

#[test]
fn a_completion_polled_by_another_thread_wakes_the_waiter() {
    let (a, b) = (open("efa"), open("efa"));
    let (ep, _back) = (connect(&a, &b), connect(&b, &a));
    let target = b.md().alloc(&crate::api::AllocReq::new(4096, "target")).unwrap();
    let local = a.md().alloc(&crate::api::AllocReq::new(4096, "local")).unwrap();
    let rkey = a.md().unpack_rkey(&b.md().pack_rkey(&target).unwrap()).unwrap();
    let (_one, _two) = (a.spawn_progress().unwrap(), b.spawn_progress().unwrap());
    for _ in 0..100 {
        let comp = Completion::new(1, |result| assert_eq!(result, Ok(())));
        let iov = [crate::api::Iov::new(local.addr(), 64, Some(&local))];
        // SAFETY: `local` lives until the completion.
        let put = || unsafe { ep.put_zcopy(&iov, target.addr().addr() as u64, &rkey, Some(&comp)) };
        while match put() {
            Ok(Sent::Done) => panic!("it takes a device"),
            sent => sent.is_err(),
        } {}
        let (own, waits) = (a.clone(), comp.clone());
        let waiter = std::thread::spawn(move || {
            while waits.outstanding() > 0 {
                own.wait(0, None).unwrap();
            }
        });
        until("who waits for a completion", || waiter.is_finished());
        waiter.join().unwrap();
    }
}

#[test]
fn two_waiters_both_get_their_messages() {
    let (a, b) = (open("posix"), open("posix"));
    let got = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    for id in 0..2 {
        let count = got.clone();
        let handler = move |_: Am<'_>| {
            count[usize::from(id)].fetch_add(1, Ordering::Relaxed);
        };
        b.set_am_handler(id, HandlerThread::Any, Some(Box::new(handler))).unwrap();
    }
    let ep = connect(&a, &b);
    for round in 1..=200 {
        let waiters = [0, 1].map(|id: usize| {
            let (own, got) = (b.clone(), got.clone());
            std::thread::spawn(move || {
                while got[id].load(Ordering::Relaxed) < round {
                    own.wait(0, None).unwrap();
                }
            })
        });
        for id in [1, 0] {
            while ep.am_bcopy(id, |_| 4).is_err() {}
        }
        until("both", || waiters.iter().all(std::thread::JoinHandle::is_finished));
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    }
}

#[test]
fn messages_kept_for_callers_are_bounded() {
    let (a, b) = (open("posix"), open("posix"));
    let got = Arc::new(AtomicUsize::new(0));
    let count = got.clone();
    let handler = move |_: Am<'_>| {
        count.fetch_add(1, Ordering::Relaxed);
    };
    b.set_am_handler(1, HandlerThread::Caller, Some(Box::new(handler))).unwrap();
    let thread = b.spawn_progress().unwrap();
    let ep = connect(&a, &b);
    let mut sent = 0;
    let mut last = Instant::now();
    // Until there was no room for a while. 64 messages fit into the queue itself.
    while sent < 128 || last.elapsed() < Duration::from_millis(100) {
        assert!(last.elapsed() < TIMEOUT, "{sent} sent");
        if ep.am_bcopy(1, |_| 1000).is_ok() {
            (sent, last) = (sent + 1, Instant::now());
            assert!(sent <= 128 + 64 + 8, "the progress thread takes in all that comes");
        }
        std::thread::yield_now();
    }
    assert!(sent >= 128 && thread.is_running());
    let more = std::thread::spawn(move || {
        for _ in 0..500 {
            while ep.am_bcopy(1, |_| 1000).is_err() {
                std::thread::yield_now();
            }
        }
    });
    until("all of them", || {
        b.progress(8).unwrap();
        got.load(Ordering::Relaxed) == sent + 500
    });
    more.join().unwrap();
}

#[test]
fn a_progress_thread_ends_wherever_it_is_dropped() {
    let (a, b) = (open("posix"), open("posix"));
    let (there, back) = (connect(&a, &b), connect(&b, &a));
    // While the dropping thread is inside: it spins in front of the lock, or sleeps.
    for sleeps in [false, true] {
        let thread = b.spawn_progress().unwrap();
        if sleeps {
            let_it_sleep();
        }
        let pack = |_: &mut [u8]| {
            let_it_sleep();
            drop(thread);
            4
        };
        assert_eq!(back.am_bcopy(1, pack), Ok(4));
        until("its end", || Arc::strong_count(&b.shared) == 2);
    }
    let place = Arc::new(Mutex::new(None::<ProgressThread>));
    let from = place.clone();
    let handler = move |_: Am<'_>| drop(from.lock().unwrap().take());
    b.set_am_handler(1, HandlerThread::Any, Some(Box::new(handler))).unwrap();
    *place.lock().unwrap() = Some(b.spawn_progress().unwrap());
    assert_eq!(there.am_bcopy(1, |_| 4), Ok(4));
    until("its end", || place.lock().unwrap().is_none() && Arc::strong_count(&b.shared) == 2);
}

#[test]
fn failed_progress_thread_is_reported() {
    let (a, b) = (open("posix"), open("posix"));
    b.set_am_handler(1, HandlerThread::Any, Some(Box::new(|_| panic!("as it was told to")))).unwrap();
    let thread = b.spawn_progress().unwrap();
    assert!(thread.is_running());
    assert_eq!(connect(&a, &b).am_bcopy(1, |_| 4), Ok(4));
    until("its end", || !thread.is_running());
}

#[test]
fn one_thread_and_one_descriptor_serve_several() {
    let (a, many) = (open("posix"), [open("posix"), open("posix"), open("efa")]);
    let got = Arc::new(AtomicUsize::new(0));
    let set = |iface: &Iface| {
        let count = got.clone();
        let handler = move |_: Am<'_>| {
            count.fetch_add(1, Ordering::Relaxed);
        };
        iface.set_am_handler(1, HandlerThread::Any, Some(Box::new(handler))).unwrap();
    };
    many.iter().for_each(set);
    let thread = ProgressThread::spawn(&many).unwrap();
    let (ep, other, soft) = (connect(&a, &many[0]), connect(&a, &many[1]), open("efa"));
    let far = connect(&soft, &many[2]);
    for round in 1..=20 {
        for ep in [&ep, &other, &far] {
            while ep.am_bcopy(1, |_| 4).is_err() {
                soft.progress(8).unwrap();
            }
        }
        until("all three", || {
            soft.progress(8).unwrap();
            got.load(Ordering::Relaxed) == 3 * round
        });
        let_it_sleep();
    }
    drop(thread);
    let worker = Worker::new();
    for iface in &many {
        worker.add(Rc::new(iface.clone())).unwrap();
    }
    while worker.wait(8, 0, Some(Duration::ZERO)).unwrap() > 0 {}
    let before = got.load(Ordering::Relaxed);
    let sender = std::thread::spawn(move || {
        let_it_sleep();
        assert_eq!(other.am_bcopy(1, |_| 4), Ok(4));
    });
    assert_eq!(worker.wait(8, 0, Some(TIMEOUT)), Ok(1));
    assert_eq!(got.load(Ordering::Relaxed), before + 1);
    sender.join().unwrap();
    let beside = many[0].clone();
    let taker = std::thread::spawn(move || {
        let_it_sleep();
        assert_eq!(ep.am_bcopy(1, |_| 4), Ok(4));
        beside.progress(8).unwrap()
    });
    // Whichever thread is first takes the message.
    let waited = worker.wait(8, 0, Some(TIMEOUT)).unwrap();
    let taken = taker.join().unwrap();
    assert!(waited + taken > 0);
    assert_eq!(got.load(Ordering::Relaxed), before + 2);
}

#[test]
fn the_shared_form_has_the_rest_of_the_contract() {
    for tl in ["posix", "efa"] {
        let (a, b) = (open(tl), open(tl));
        assert_eq!(a.reachable(&b.device_addr(), &b.iface_addr()), Ok(()));
        assert!(a.reachable(&[1], &[]).is_err());
        assert!(!a.attr().has(Caps::CONNECT_TO_EP) && a.create_ep().is_err());
        let (ep, _back) = (connect(&a, &b), connect(&b, &a));
        ep.set_tag(crate::api::EpTag(7)).unwrap();
        assert_eq!(ep.tag(), Ok(crate::api::EpTag(7)));
        assert!(ep.max_bcopy().unwrap() > 100 && ep.ep_addr().is_err());
        assert!(ep.connect_to_ep(&b.device_addr(), &b.iface_addr(), &[]).is_err());
        assert_eq!(a.md().attr().component, tl);
        let mem = b.md().alloc(&crate::api::AllocReq::new(4096, "mem")).unwrap();
        assert_eq!(b.md().advise(&mem, 0, 4096, crate::api::Advice::WillNeed), Ok(()));
        assert!(b.md().advise(&mem, 1, 4096, crate::api::Advice::WillNeed).is_err());
        assert!(b.md().query(mem.addr()).is_some());
        assert_eq!(b.md().has_allocated(mem.addr(), 4096), tl == "posix");
        let (at, word) = (mem.addr().addr() as u64, b.md().mr_key(&mem).unwrap());
        let start = Instant::now();
        let rkey = loop {
            match a.md().rkey_from_mr_key(word, at, 4096) {
                Err(crate::api::Error::NotReady) => assert!(start.elapsed() < TIMEOUT),
                rkey => break rkey.unwrap(),
            }
        };
        let direct = a.md().rkey_ptr(&rkey, at, 8);
        assert_eq!(direct.is_some(), a.attr().has(Caps::RKEY_PTR));
        if let Some(direct) = direct {
            assert_eq!(ep.put_short(&[9; 8], at, &rkey), Ok(Sent::Done));
            // SAFETY: eight bytes of the peer's memory, mapped while the key lives.
            assert_eq!(unsafe { direct.read_volatile() }, 9);
        }
    }
}
