//! Waiting operations that change queues while they run, and wake-up for completions.

use super::{Log, Pair, PollLimit, rma};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use uct::api::{
    Access, AllocReq, Caps, Comp, Ep, Events, Iface, Iov, Md, Memory, PendingQueued, Refused, Retry, Sent,
};

/// Fills the way from `a` to `b`; answers the messages sent. `None`: nothing can wait.
fn fill<I: Iface>(p: &Pair<I>) -> Option<usize> {
    if !p.a.attr().has(Caps::PENDING | Caps::AM_BCOPY | Caps::CONNECT_TO_IFACE) {
        return None;
    }
    Some((0..1 << 20).take_while(|_| send(&p.ab, 0) != Err(Refused::NoResource)).count())
}

fn send<E: Ep>(ep: &E, what: u8) -> Result<(), Refused> {
    let pack = |slot: &mut [u8]| {
        slot[0] = what;
        1
    };
    ep.am_bcopy(1, pack).map(drop)
}

fn retry(sent: Result<(), Refused>) -> Retry {
    match sent {
        Ok(()) => Retry::Done,
        Err(Refused::NoResource) => Retry::NoResource,
        Err(Refused::Failed(e)) => panic!("{e}"),
    }
}

fn another<I: Iface>(p: &Pair<I>) -> Rc<I::Ep> {
    Rc::new(p.a.connect(&p.b.device_addr(), &p.b.iface_addr()).unwrap())
}

/// An operation that waits on `ep`, and finds the endpoint gone when that is dropped.
fn wait<E: Ep + 'static>(ep: &Rc<E>, mut op: impl FnMut(&E) -> Retry + 'static) {
    let of = Rc::downgrade(ep);
    let queued = ep.pending_add(Box::new(move || of.upgrade().map_or(Retry::Done, |ep| op(&ep))));
    assert_eq!(queued, Ok(PendingQueued::Queued));
}

/// A waiting operation queues another one on another endpoint, and on its own.
pub fn operation_may_queue_elsewhere<I: Iface>(p: &Pair<I>)
where
    I::Ep: 'static,
{
    let Some(sent) = fill(p) else { return };
    let (one, other) = (another(p), another(p));
    let mut own = Some((Rc::downgrade(&one), Rc::downgrade(&other)));
    wait(&one, move |ep| {
        let sent = send(ep, 1);
        if sent.is_ok()
            && let Some((one, other)) = own.take()
        {
            for (ep, what) in [(one, 2), (other, 3)] {
                let of = ep.clone();
                let op = move || of.upgrade().map_or(Retry::Done, |ep| retry(send(&*ep, what)));
                let now = ep.upgrade().map(|ep| ep.pending_add(Box::new(op)));
                if now == Some(Ok(PendingQueued::Busy)) {
                    // There is room, so it need not wait.
                    assert_eq!(ep.upgrade().map(|ep| send(&*ep, what)), Some(Ok(())));
                }
            }
        }
        retry(sent)
    });
    let mut b = Log::default();
    p.arrived(&mut b, sent + 3);
    let mut last: Vec<u8> = b.ams.iter().map(|(packet, _)| packet[1]).filter(|what| *what > 0).collect();
    last.sort_unstable();
    assert_eq!(last, [1, 2, 3]);
}

/// A waiting operation purges the queue in which it waits: the others come back once each, and never run.
pub fn operation_may_purge_its_queue<I: Iface>(p: &Pair<I>)
where
    I::Ep: 'static,
{
    let Some(sent) = fill(p) else { return };
    let (one, back) = (another(p), Rc::new(Cell::new(0)));
    let count = back.clone();
    wait(&one, move |ep| {
        ep.pending_purge(&mut |_| count.set(count.get() + 1));
        retry(send(ep, 1))
    });
    (0..3).for_each(|_| wait(&one, |_| panic!("tried after all")));
    p.arrived(&mut Log::default(), sent + 1);
    assert_eq!(back.get(), 3);
    let (mut a, mut b) = (Log::default(), Log::default());
    p.retry(&mut a, &mut b, || send(&*one, 2)).unwrap();
    b.ams.append(&mut a.ams);
    p.arrived(&mut b, 1);
}

/// A waiting operation drops the endpoint on which it waits, with another one behind it; other endpoints go
/// on.
pub fn operation_may_drop_its_endpoint<I: Iface>(p: &Pair<I>)
where
    I::Ep: 'static,
{
    for ends_as in [Retry::Done, Retry::NoResource] {
        let Some(sent) = fill(p) else { return };
        let (one, other, ran) = (another(p), another(p), Rc::new(Cell::new(0)));
        let (count, owner) = (ran.clone(), RefCell::new(Some(one.clone())));
        let op = move || {
            count.set(count.get() + 1);
            drop(owner.take());
            ends_as
        };
        assert_eq!(one.pending_add(Box::new(op)), Ok(PendingQueued::Queued));
        assert_eq!(one.pending_add(Box::new(|| panic!("tried after all"))), Ok(PendingQueued::Queued));
        wait(&other, |ep| retry(send(ep, 7)));
        drop(one);
        p.arrived(&mut Log::default(), sent + 1);
        assert_eq!(ran.get(), 1, "an operation of an endpoint that is gone is not tried again");
    }
}

/// An interface armed for completions wakes up when one is there.
pub fn event_fd_wakes_up_for_completions<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::EVENT_SEND | Caps::PUT_ZCOPY) {
        return;
    }
    let t = rma::target(p, 1 << 16, Access::ALL);
    let local = p.a.md().alloc(&AllocReq::new(1 << 16, "local")).unwrap();
    let iov = [Iov::new(local.addr(), 1 << 16, Some(&local))];
    let epoll = ucs::sys::Epoll::new().unwrap();
    epoll.add(p.a.event_fd().unwrap(), 1).unwrap();
    for token in 0..20 {
        let (mut log, mut b) = (Log::default(), Log::default());
        // SAFETY: `local` lives until the operation is over, which is waited for.
        let put = || unsafe { p.ab.put_zcopy(&iov, t.at, &t.rkey, Comp::Token(token)) };
        if p.retry(&mut log, &mut b, put) == Ok(Sent::Done) {
            continue;
        }
        log.comps.append(&mut b.comps);
        let mut polls = PollLimit::default();
        while log.comps.is_empty() {
            assert!(polls.is_left(), "no completion");
            if p.a.arm(Events::SEND).unwrap() {
                // It sleeps; nobody polls it until its descriptor says so.
                let mut waits = 0;
                while epoll.wait(&mut Vec::new(), Some(Duration::from_millis(10))).unwrap() == 0 {
                    (p.tick)();
                    if !p.same {
                        p.b.poll(1, &mut b);
                    }
                    waits += 1;
                    assert!(waits < 1000, "nobody woke us");
                }
            }
            p.poll_a(&mut log);
        }
        assert_eq!(log.comps, [(token, Ok(()))]);
    }
}
