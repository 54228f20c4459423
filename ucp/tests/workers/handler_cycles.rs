//! Handlers and callbacks that hold their own worker, endpoint or message: closing the worker frees
//! everything. In a process of its own, as it counts the descriptors and threads of the process.

use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::common::{Pair, context, runs_in_own_process};
use ucp::mt::{SharedEpParams, SharedWorker, ThreadMode};
use ucp::{AmProto, Ep, EpParams, Error, ErrorMode, Match, TAG_MASK_FULL, Worker, WorkerThread};

/// Descriptors and threads of this process.
fn held() -> (usize, usize) {
    let count = |dir: &str| std::fs::read_dir(dir).unwrap().count();
    (count("/proc/self/fd"), count("/proc/self/task"))
}

fn ep_with(worker: &Worker, to: &Worker, on_error: impl FnMut(Error) + 'static) -> Ep {
    worker
        .connect(
            &to.address(),
            EpParams { errors: ErrorMode::Peer(Box::new(on_error)), ..EpParams::default() },
        )
        .unwrap()
}

fn forbidden<T>(_: T) {
    panic!("a handler of a closed worker was called");
}

type Plain = (&'static str, fn(&Pair));

const PLAIN: &[Plain] = &[
    ("a message handler holds the worker", |pair| {
        let held = pair.a.clone();
        pair.a.set_am_handler(1, move |_| drop(held.address()));
    }),
    ("message handlers hold endpoints", |pair| {
        for id in [2, 300] {
            let ep = pair.a.connect(&pair.b.address(), EpParams::default()).unwrap();
            pair.a.set_am_handler(id, move |_| _ = ep.peer_view());
        }
    }),
    ("a message handler keeps messages", |pair| {
        let kept = Rc::new(RefCell::new(Vec::new()));
        let (keeps, sent) = (kept.clone(), [AmProto::Eager, AmProto::Rendezvous]);
        pair.a.set_am_handler(1, move |message| keeps.borrow_mut().push(message));
        for proto in sent {
            pair.ba.am_send_with(proto, 1, b"head", vec![1; 20_000]).detach();
        }
        pair.until(|| kept.borrow().len() == 2);
    }),
    ("an error callback holds the worker", |pair| {
        let held = pair.a.clone();
        let ep = ep_with(&pair.a, &pair.b, move |_| forbidden(&held));
        pair.a.set_am_handler(1, move |_| _ = ep.peer());
    }),
    ("an error callback holds its own endpoint", |pair| {
        let own: Rc<RefCell<Option<Ep>>> = Rc::default();
        let held = own.clone();
        let ep = ep_with(&pair.a, &pair.b, move |_| forbidden(&held));
        *own.borrow_mut() = Some(ep);
    }),
    ("callbacks of operations that nobody answers hold the worker", |pair| {
        let held = || (pair.a.clone(), pair.a.connect(&pair.b.address(), EpParams::default()).unwrap());
        let calls = Rc::new(std::cell::Cell::new(0));
        let then = |of: &'static str| {
            let (held, calls) = (held(), calls.clone());
            move |ended: Result<(), Error>| {
                assert!(ended.is_err(), "{of}");
                drop(held.0.address());
                calls.set(calls.get() + 1);
            }
        };
        let (a, ab) = (&pair.a, &pair.ab);
        let call = then("receive");
        a.tag_recv(7, TAG_MASK_FULL, Vec::with_capacity(8)).then(move |ended, _| call(ended.map(drop)));
        let call = then("short send");
        ab.tag_send_sync(7, vec![1; 8]).then(move |ended, _| call(ended));
        let call = then("long send");
        ab.tag_send_sync(7, vec![1; 4 << 20]).then(move |ended, _| call(ended));
        let call = then("stream");
        ab.stream_recv(Vec::with_capacity(8)).then(move |ended, _| call(ended.map(drop)));
        let call = then("rendezvous");
        ab.am_send_with(AmProto::Rendezvous, 9, &[], vec![1; 4 << 20]).then(move |ended, _| call(ended));
        ab.flush().then(then("flush"));
        let (later, connector) = a.connect_later(EpParams::default());
        let call = then("deferred send");
        later.tag_send(7, vec![1; 8]).then(move |ended, _| call(ended));
        for _ in 0..100 {
            pair.a.progress();
        }
        a.close();
        assert_eq!(calls.get(), 7, "each callback is called once");
        assert_eq!(later.tag_send(7, vec![1; 8]).wait().0, Err(Error::Closed));
        drop(connector);
    }),
    ("a listener's callback holds the worker and the listener", |pair| {
        let own = Rc::new(RefCell::new(None));
        let (held, worker) = (own.clone(), pair.a.clone());
        let address = "127.0.0.1:0".parse().unwrap();
        let listener = pair.a.listen(address, move |_| forbidden((&held, &worker))).unwrap();
        let ask = pair.b.connect_to(listener.local_addr(), Default::default()).unwrap();
        *own.borrow_mut() = Some(listener);
        drop(ask);
    }),
    ("wakers hold what they wait for", |pair| {
        let owner = |of: Box<dyn std::any::Any>| Waker::from(Arc::new(Owner(Mutex::new(of))));
        let recv = pair.a.tag_recv(8, TAG_MASK_FULL, Vec::with_capacity(8));
        let waker = owner(Box::new(pair.a.clone()));
        let mut recv = Box::pin(recv);
        assert!(recv.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        // The waker of a task owns the task's future.
        let waker = owner(Box::new(recv));
        let mut many = pair.a.recv_multi(Match::tagged(9, TAG_MASK_FULL), vec![0; 100], 10);
        let many = many.as_mut().map_err(|(error, _)| *error).unwrap();
        assert!(pin!(many.next_message()).poll(&mut Context::from_waker(&waker)).is_pending());
    }),
];

/// A waker that owns something, as that of a task does.
struct Owner(#[expect(dead_code, reason = "only dropped")] Mutex<Box<dyn std::any::Any>>);

// SAFETY: the test has one thread.
unsafe impl Send for Owner {}
// SAFETY: as above.
unsafe impl Sync for Owner {}

impl Wake for Owner {
    fn wake(self: Arc<Self>) {}
}

type Shared = (&'static str, fn(&SharedWorker, &SharedWorker));

const SHARED: &[Shared] = &[
    ("handlers hold the shared worker and an endpoint", |a, b| {
        let held = (a.clone(), a.connect(&b.address().unwrap(), Default::default()).unwrap());
        a.set_am_handler(1, move |_| forbidden(&held)).unwrap();
    }),
    ("an error callback holds its own shared endpoint", |a, b| {
        let own = Arc::new(Mutex::new(None));
        let held = own.clone();
        let params = SharedEpParams::on_error(move |_| forbidden(&held));
        let ep = a.connect(&b.address().unwrap(), params).unwrap();
        *own.lock().unwrap() = Some(ep);
    }),
    ("a listener and a receive of a shared worker", |a, _| {
        let held = a.clone();
        let listener = a.listen("127.0.0.1:0".parse().unwrap(), move |_| forbidden(&held)).unwrap();
        let held = (a.clone(), listener);
        let recv = a.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(8));
        recv.then(move |(ended, _)| {
            assert_eq!(ended, Err(Error::Cancelled));
            drop(held);
        })
        .unwrap();
    }),
];

/// Waits until the process holds no more than `before`, and notes what it holds then. Some descriptors and
/// threads of ended workers go a little later; `before` may have counted some of them.
fn assert_freed(before: &mut (usize, usize), kind: &str) {
    let start = Instant::now();
    loop {
        let now = held();
        if now.0 <= before.0 && now.1 <= before.1 {
            *before = now;
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{kind}: {before:?} became {now:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn closing_frees_whatever_handlers_hold() {
    if runs_in_own_process("handler_cycles::closing_frees_whatever_handlers_hold") {
        return;
    }
    for tls in ["posix", "efa", "all"] {
        let pair = || {
            let pair = Pair::of(context(tls).worker().unwrap(), context(tls).worker().unwrap());
            pair.meet();
            pair
        };
        // What the process keeps from now on.
        drop(pair());
        let mut before = held();
        for (kind, hold) in PLAIN {
            let pair = pair();
            hold(&pair);
            let weak = pair.a.downgrade();
            pair.a.close();
            drop(pair);
            assert!(weak.upgrade().is_none(), "{kind} over {tls}");
            assert_freed(&mut before, kind);
        }
        for (kind, hold) in SHARED {
            let [a, b] = [(), ()].map(|()| context(tls).shared_worker(ThreadMode::Multi).unwrap());
            hold(&a, &b);
            let weak = a.downgrade();
            a.close().unwrap();
            drop((a, b));
            assert!(weak.upgrade().is_none(), "{kind} over {tls}");
            assert_freed(&mut before, kind);
        }
        // Of a worker with a thread of its own no handle is left to close it by.
        let make = move || {
            let worker = context(tls).worker()?;
            let held = worker.clone();
            worker.set_am_handler(1, move |_| drop(held.address()));
            Ok::<_, ucp::OpenError>((worker, ()))
        };
        WorkerThread::spawn("served", make).unwrap().join();
        assert_freed(&mut before, "a worker on a thread of its own");
    }
    what_is_used_after_the_close_is_refused();
}

fn what_is_used_after_the_close_is_refused() {
    let pair = Pair::on("posix");
    pair.meet();
    let (recv, sent) =
        (pair.a.tag_recv(1, TAG_MASK_FULL, Vec::with_capacity(8)), pair.ba.tag_send(3, vec![3]));
    let many = pair.a.recv_multi(Match::tagged(2, TAG_MASK_FULL), vec![0; 100], 10);
    let Ok(mut many) = many else { panic!("it has been posted") };
    pair.a.close();
    pair.a.close();
    assert_eq!(recv.wait().0.map(drop), Err(Error::Cancelled));
    assert!(many.is_done() && many.wait_next().is_none());
    assert_eq!(many.finish().0, Err(Error::Cancelled));
    assert_eq!(pair.ab.tag_send(1, vec![1]).wait().0, Err(Error::Closed));
    drop(sent);
    // Handlers get what they need as arguments.
    let pair = Pair::on("posix");
    let seen = Rc::new(RefCell::new(None));
    let sees = seen.clone();
    pair.b.set_am_handler(1, move |message| {
        let answer = message.worker().tag_recv(5, TAG_MASK_FULL, Vec::with_capacity(8));
        *sees.borrow_mut() = Some((answer, message.reply_ep()));
    });
    pair.ab.am_send(1, &[], vec![1]).detach();
    pair.until(|| seen.borrow().is_some());
    let (answer, ep) = seen.take().unwrap();
    ep.unwrap().tag_send(4, vec![4]).detach();
    pair.ab.tag_send(5, vec![5]).detach();
    pair.until(|| answer.is_done());
    assert_eq!(answer.wait().1, [5]);
    let cx = &mut Context::from_waker(Waker::noop());
    let mut recv = pin!(pair.a.tag_recv(4, TAG_MASK_FULL, Vec::with_capacity(8)));
    pair.until(|| matches!(recv.as_mut().poll(cx), Poll::Ready((Ok(_), _))));
}
