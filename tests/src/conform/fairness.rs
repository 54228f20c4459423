//! Pending operations and direct sends: neither overtakes the other on an endpoint, and neither starves the
//! other.

use super::{Log, Pair, ordered};
use std::cell::Cell;
use std::rc::Rc;
use uct::api::{Caps, Ep, Iface, Outcome, Pending, PendingQueued, Refused, Retry};

fn supports_pending<I: Iface>(p: &Pair<I>) -> bool {
    p.a.attr().has(Caps::AM_BCOPY | Caps::CONNECT_TO_IFACE | Caps::PENDING)
}

fn send<E: Ep>(ep: &E, id: u8, n: u8) -> Outcome<usize> {
    ep.am_packet(6, |slot| {
        (slot[0], slot[1]) = (id, n);
        2
    })
}

fn pending_send<E: Ep + 'static>(ep: &Rc<E>, id: u8, n: u8, done: &Rc<Cell<u32>>) -> Pending {
    let (by, done) = (Rc::downgrade(ep), done.clone());
    Box::new(move || {
        let Some(ep) = by.upgrade() else { return Retry::Done };
        match send(&*ep, id, n) {
            Err(Refused::NoResource) => Retry::NoResource,
            sent => {
                assert_eq!(sent, Ok(2));
                done.set(done.get() + 1);
                Retry::Done
            }
        }
    })
}

fn fill<E: Ep>(ep: &E) -> usize {
    (0..1 << 20).take_while(|_| send(ep, 1, 0).is_ok()).count()
}

/// On an ordered transport a send does not overtake pending operations of its endpoint.
pub fn pending_is_not_overtaken<I: Iface>(p: &Pair<I>)
where
    I::Ep: 'static,
{
    if !supports_pending(p) {
        return;
    }
    let connect = || Rc::new(p.a.connect(&p.b.device_addr(), &p.b.iface_addr()).unwrap());
    let (pending_ep, other) = (connect(), connect());
    for round in 0..4u8 {
        let (mut a, mut b) = (Log::default(), Log::default());
        let mut sent = fill(&*pending_ep);
        let done = Rc::new(Cell::new(0));
        for n in 0..3 {
            assert_eq!(
                pending_ep.pending_add(pending_send(&pending_ep, 2, n, &done)),
                Ok(PendingQueued::Queued)
            );
        }
        // The peer makes room, but pending operations are not progressed yet.
        for _ in 0..200_000 {
            if b.ams.len() >= sent {
                break;
            }
            (p.tick)();
            p.b.poll(16, &mut b);
        }
        if round % 2 == 1 {
            // Another endpoint may take the room.
            p.retry(&mut a, &mut b, || send(&*other, 1, 1)).unwrap();
            sent += 1;
        }
        p.retry(&mut a, &mut b, || send(&*pending_ep, 2, 3)).unwrap();
        b.ams.append(&mut a.ams);
        p.arrived(&mut b, sent + 4);
        assert_eq!(done.get(), 3);
        let mut got: Vec<_> = b.ams.iter().map(|(packet, _)| (packet[0], packet[1])).collect();
        got.retain(|(id, _)| *id == 2);
        if !ordered(&p.a) {
            got.sort_unstable();
        }
        assert_eq!(got, [(2, 0), (2, 1), (2, 2), (2, 3)]);
        // Without pending operations a send goes at once.
        p.retry(&mut a, &mut b, || send(&*pending_ep, 3, 0)).unwrap();
        b.ams.clear();
        p.arrived(&mut b, 1);
    }
}

/// Pending operations progress on an interface that receives more than it polls.
pub fn pending_progresses_under_load<I: Iface>(p: &Pair<I>)
where
    I::Ep: 'static,
{
    if !supports_pending(p) {
        return;
    }
    let back = Rc::new(p.b.connect(&p.a.device_addr(), &p.a.iface_addr()).unwrap());
    let (mut a, mut b) = (Log::default(), Log::default());
    fill(&*back);
    let done = Rc::new(Cell::new(0));
    for n in 0..3 {
        assert_eq!(back.pending_add(pending_send(&back, 2, n, &done)), Ok(PendingQueued::Queued));
    }
    for _ in 0..20_000 {
        if done.get() == 3 {
            break;
        }
        fill(&p.ab);
        (p.tick)();
        if !p.same {
            p.a.poll(64, &mut a);
        }
        p.b.poll(1, &mut b);
    }
    assert_eq!(done.get(), 3, "it is never its turn");
}
