//! Finite resources: *no resource* has no effect, pending operations keep order, flush, fence, wake-up.

use super::{Log, Pair, ordered};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use uct::api::{Caps, Comp, Completion, Ep, Events, Iface, PendingQueued, Refused, Retry, Sent};

const MAX_SENDS: usize = 1 << 20;

/// Sends until there are no resources; answers the number of messages.
fn fill<I: Iface>(p: &Pair<I>) -> usize {
    for n in 0..MAX_SENDS {
        let called = Cell::new(false);
        let sent = p.ab.am_bcopy(1, |slot| {
            called.set(true);
            slot[..4].copy_from_slice(&(n as u32).to_le_bytes());
            4
        });
        match sent {
            Ok(4) => assert!(called.get()),
            Err(Refused::NoResource) => {
                assert!(!called.get(), "packed, then refused");
                return n;
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("room for ever");
}

/// A refused send leaves no trace, and resources come back.
pub fn no_resource_leaves_no_trace<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::AM_BCOPY) {
        return;
    }
    for _ in 0..3 {
        let sent = fill(p);
        assert!(sent > 0);
        if let Some(depth) = p.a.attr().tx_depth {
            assert!(sent >= depth.min(64), "{sent} of {depth}");
        }
        let mut b = Log::default();
        p.arrived(&mut b, sent);
        let mut got: Vec<_> =
            b.ams.iter().map(|(packet, _)| u32::from_le_bytes(packet[1..5].try_into().unwrap())).collect();
        if !ordered(&p.a) {
            got.sort_unstable();
        }
        assert!(got.into_iter().eq(0..sent as u32));
    }
}

/// A poll handles at most the given number of events, and says how many.
pub fn poll_is_bounded<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::AM_BCOPY) {
        return;
    }
    let sent = (0..10).take_while(|_| p.ab.am_bcopy(1, |_| 4) == Ok(4)).count();
    let (mut got, mut polls) = (0, 0);
    while got < sent {
        for max in [0, 1, 3, 2] {
            let mut b = Log::default();
            (p.tick)();
            if !p.same {
                p.a.poll(1, &mut Log::default());
            }
            let events = p.b.poll(max, &mut b);
            assert!(
                b.ams.len() <= events && events <= max,
                "{} messages, {events} events of {max}",
                b.ams.len()
            );
            got += b.ams.len();
        }
        polls += 1;
        assert!(polls < 200_000, "{got} of {sent} came");
    }
    assert!(sent > 0 && got == sent);
}

/// `pending_add` answers busy while there are resources; queued operations run in order.
pub fn pending_keeps_order<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::PENDING) {
        return;
    }
    assert_eq!(p.ab.pending_add(Box::new(|| panic!("there was room"))), Ok(PendingQueued::Busy));
    let sent = fill(p);
    let tried = Rc::new(RefCell::new(Vec::new()));
    for n in 0..20u8 {
        let tried = tried.clone();
        let mut refusals = n % 3;
        let op = Box::new(move || {
            if refusals > 0 {
                refusals -= 1;
                return Retry::NoResource;
            }
            tried.borrow_mut().push(n);
            Retry::Done
        });
        assert_eq!(p.ab.pending_add(op), Ok(PendingQueued::Queued));
    }
    let mut b = Log::default();
    p.arrived(&mut b, sent);
    assert!(tried.borrow().iter().copied().eq(0..20), "{:?}", tried.borrow());
}

/// Purge returns pending operations once and in order; none runs later.
pub fn purge_returns_all_pending<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::PENDING) {
        return;
    }
    let sent = fill(p);
    let tried = Rc::new(RefCell::new(Vec::new()));
    for n in 0..5u8 {
        let tried = tried.clone();
        let op = Box::new(move || {
            tried.borrow_mut().push(n);
            Retry::Done
        });
        assert_eq!(p.ab.pending_add(op), Ok(PendingQueued::Queued));
    }
    let mut purged = 0;
    p.ab.pending_purge(&mut |mut op| {
        purged += 1;
        assert_eq!(op(), Retry::Done);
    });
    assert_eq!((purged, &tried.borrow()[..]), (5, &[0, 1, 2, 3, 4][..]));
    p.arrived(&mut Log::default(), sent);
    assert_eq!(tried.borrow().len(), 5);
}

/// Flush completes once, by token and by handle, on endpoint and interface; a fence does not disturb it.
pub fn flush_and_fence<I: Iface>(p: &Pair<I>) {
    let (mut a, mut b) = (Log::default(), Log::default());
    let send = |a: &mut Log, b: &mut Log| {
        if p.a.attr().has(Caps::AM_BCOPY) {
            p.retry(a, b, || p.ab.am_bcopy(1, |_| 100)).unwrap();
        }
    };
    (0..10).for_each(|_| send(&mut a, &mut b));
    assert_eq!(p.finish(|comp| p.ab.flush(comp)), Ok(()));
    send(&mut a, &mut b);
    assert_eq!(p.finish(|comp| p.a.flush(comp)), Ok(()));
    let fired = Rc::new(Cell::new(0));
    let count = fired.clone();
    let comp = Completion::new(1, move |result| {
        assert_eq!(result, Ok(()));
        count.set(count.get() + 1);
    });
    send(&mut a, &mut b);
    let flushed = p.retry(&mut a, &mut b, || p.ab.flush(Comp::Handle(comp.clone()))).unwrap();
    if flushed == Sent::Done {
        comp.update(Ok(()));
    }
    for _ in 0..100_000 {
        p.poll_both(&mut a, &mut b);
    }
    assert_eq!((fired.get(), comp.outstanding()), (1, 0));
    p.retry(&mut a, &mut b, || p.ab.fence()).map(drop).unwrap();
    p.retry(&mut a, &mut b, || p.a.fence()).map(drop).unwrap();
    send(&mut a, &mut b);
}

/// An armed idle interface wakes up when a message arrives.
pub fn event_fd_wakes_up<I: Iface>(p: &Pair<I>) {
    if !p.b.attr().has(Caps::EVENT_RECV | Caps::AM_BCOPY) {
        return;
    }
    let epoll = ucs::sys::Epoll::new().unwrap();
    epoll.add(p.b.event_fd().unwrap(), 1).unwrap();
    let readable = |wait| epoll.wait(&mut Vec::new(), Some(wait)).unwrap() > 0;
    let (mut a, mut b) = (Log::default(), Log::default());
    for round in 1..=20 {
        let mut tries = 0;
        while !p.b.arm(Events::RECV).unwrap() {
            p.poll_both(&mut a, &mut b);
            tries += 1;
            assert!(tries < 100_000, "never idle");
        }
        assert!(!readable(Duration::ZERO), "awake without a reason");
        p.ab.am_bcopy(1, |_| 8).unwrap();
        let mut waits = 0;
        while !readable(Duration::from_millis(10)) {
            (p.tick)();
            // Devices without a thread send when their owner polls.
            if !p.same {
                p.a.poll(1, &mut a);
            }
            waits += 1;
            assert!(waits < 1000, "nobody woke us");
        }
        while b.ams.len() + a.ams.len() < round {
            p.poll_both(&mut a, &mut b);
        }
    }
}
