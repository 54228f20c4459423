//! Several endpoints and several operations: many endpoints between two interfaces, fairness of pending
//! operations, one completion for several operations, cancelled endpoints.

use super::{Log, Pair, ordered, rma};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use uct::api::{
    Access, AllocReq, Caps, Comp, Completion, Ep, EpTag, Iface, Iov, Md, Memory, PendingQueued, Refused,
    Retry, Sent,
};

fn connect_more<I: Iface>(p: &Pair<I>, count: usize) -> Vec<Rc<I::Ep>> {
    let (device, iface) = (p.b.device_addr(), p.b.iface_addr());
    (0..count).map(|_| Rc::new(p.a.connect(&device, &iface).unwrap())).collect()
}

fn send<E: Ep>(ep: &E, who: usize, n: u32) -> uct::api::Outcome<usize> {
    ep.am_packet(6, |slot| {
        (slot[0], slot[1]) = (1, who as u8);
        slot[2..6].copy_from_slice(&n.to_le_bytes());
        6
    })
}

fn numbers_by_ep(log: &Log, count: usize) -> Vec<Vec<u32>> {
    let mut of = vec![Vec::new(); count];
    for (packet, _) in &log.ams {
        of[usize::from(packet[1])].push(u32::from_le_bytes(packet[2..6].try_into().unwrap()));
    }
    of
}

fn can_send<I: Iface>(p: &Pair<I>) -> bool {
    p.a.attr().has(Caps::AM_BCOPY | Caps::CONNECT_TO_IFACE)
}

/// Messages of many endpoints arrive in each one's order, with its tag, while some are dropped.
pub fn many_endpoints<I: Iface>(p: &Pair<I>) {
    if !can_send(p) {
        return;
    }
    const EPS: usize = 60;
    const EACH: u32 = 8;
    let mut eps = connect_more(p, EPS);
    let (mut a, mut b) = (Log::default(), Log::default());
    for (n, ep) in eps.iter().enumerate() {
        ep.set_tag(EpTag(n as u64 + 1));
    }
    for n in 0..EACH {
        for (who, ep) in eps.iter().enumerate() {
            p.retry(&mut a, &mut b, || send(&**ep, who, n)).unwrap();
        }
    }
    assert!(eps.iter().enumerate().all(|(n, ep)| ep.tag() == EpTag(n as u64 + 1)));
    // Drops every other endpoint with messages in flight; new ones take their place.
    let mut n = 0;
    eps.retain(|_| {
        n += 1;
        n % 2 == 0
    });
    eps.extend(connect_more(p, EPS / 2));
    for ep in &eps[EPS / 2..] {
        assert_eq!(ep.tag(), EpTag::default());
        p.retry(&mut a, &mut b, || send(&**ep, EPS, 0)).unwrap();
    }
    b.ams.append(&mut a.ams);
    p.arrived(&mut b, EPS * EACH as usize + EPS / 2);
    let mut of = numbers_by_ep(&b, EPS + 1);
    assert_eq!(of.pop().unwrap(), vec![0; EPS / 2]);
    for (who, mut got) in of.into_iter().enumerate() {
        if !ordered(&p.a) {
            got.sort_unstable();
        }
        assert!(got.iter().copied().eq(0..EACH), "endpoint {who}: {got:?}");
    }
}

/// Endpoints that wait for the same resources take turns: none gets more than two messages ahead.
pub fn pending_is_fair_among_endpoints<I: Iface>(p: &Pair<I>)
where
    I::Ep: 'static,
{
    if !can_send(p) || !p.a.attr().has(Caps::PENDING) {
        return;
    }
    const EPS: usize = 5;
    const EACH: u32 = 12;
    let eps = connect_more(p, EPS);
    let mut before = 0;
    while send(&p.ab, EPS, 0).is_ok() {
        before += 1;
    }
    let sent_order = Rc::new(RefCell::new(Vec::new()));
    for (who, ep) in eps.iter().enumerate() {
        for n in 0..EACH {
            let (sent_order, by) = (sent_order.clone(), Rc::downgrade(ep));
            let op = Box::new(move || {
                let Some(ep) = by.upgrade() else { return Retry::Done };
                match send(&*ep, who, n) {
                    Ok(_) => {
                        sent_order.borrow_mut().push((who, n));
                        Retry::Done
                    }
                    Err(Refused::NoResource) => Retry::NoResource,
                    Err(e) => panic!("{e:?}"),
                }
            });
            assert_eq!(ep.pending_add(op), Ok(PendingQueued::Queued));
        }
    }
    let mut b = Log::default();
    p.arrived(&mut b, before + EPS * EACH as usize);
    let mut done = [0; EPS];
    for &(who, n) in &*sent_order.borrow() {
        assert_eq!(n, done[who], "order of an endpoint");
        done[who] += 1;
        let (least, most) = (done.iter().min().unwrap(), done.iter().max().unwrap());
        assert!(most - least <= 2, "{done:?}");
    }
    assert_eq!(done, [EACH; EPS]);
}

/// One completion counts operations of every kind and fires once, with the last.
pub fn one_completion_for_many_operations<I: Iface>(p: &Pair<I>) {
    let caps = p.a.attr().caps;
    let (mut a, mut b) = (Log::default(), Log::default());
    let fired = Rc::new(Cell::new(0));
    let count = fired.clone();
    // One for the test, so that it cannot fire while operations are still being counted.
    let comp = Completion::new(1, move |result| {
        assert_eq!(result, Ok(()));
        count.set(count.get() + 1);
    });
    let has_keys = caps.intersects(Caps::PUT_ZCOPY | Caps::GET_ZCOPY);
    let t = has_keys.then(|| rma::target(p, 4096, Access::ALL));
    let local = has_keys.then(|| p.a.md().alloc(&AllocReq::new(4096, "local")).unwrap());
    let mut messages = 0;
    {
        let mut add = |call: &dyn Fn(Comp) -> uct::api::Outcome| {
            comp.add(1);
            match p.retry(&mut a, &mut b, || call(Comp::Handle(comp.clone()))) {
                Ok(Sent::InProgress) => {}
                Ok(Sent::Done) => comp.update(Ok(())),
                Err(e) => panic!("{e}"),
            }
        };
        for _ in 0..5 {
            if let (Some(t), Some(local)) = (&t, &local) {
                let iov = |from: usize| [Iov::new(local.addr().wrapping_add(from), 1000, Some(local))];
                if caps.contains(Caps::PUT_ZCOPY) {
                    // SAFETY: `local` lives until the completion that is waited for below.
                    add(&|comp| unsafe { p.ab.put_zcopy(&iov(0), t.at, &t.rkey, comp) });
                }
                if caps.contains(Caps::GET_ZCOPY) {
                    // SAFETY: as above; what is read into is read from by no other operation.
                    add(&|comp| unsafe { p.ab.get_zcopy(&iov(2000), t.at + 2000, &t.rkey, comp) });
                }
            }
            if caps.contains(Caps::AM_ZCOPY) {
                // SAFETY: the message has no memory.
                add(&|comp| unsafe { p.ab.am_zcopy(1, b"head", &[], comp) });
                messages += 1;
            }
            if caps.contains(Caps::EP_CHECK) {
                add(&|comp| p.ab.check(comp));
            }
            add(&|comp| p.ab.flush(comp));
            add(&|comp| p.a.flush(comp));
        }
    }
    assert!(fired.get() == 0 && comp.outstanding() >= 1, "it fired before its last operation was counted");
    comp.update(Ok(()));
    for _ in 0..200_000 {
        if fired.get() > 0 {
            break;
        }
        p.poll_both(&mut a, &mut b);
    }
    assert_eq!((fired.get(), comp.outstanding()), (1, 0));
    b.ams.append(&mut a.ams);
    p.arrived(&mut b, messages);
    assert_eq!(fired.get(), 1);
}

/// Cancelling an endpoint returns its pending operations; sent messages arrive, and other endpoints go on.
pub fn ep_cancel_returns_pending<I: Iface>(p: &Pair<I>) {
    if !can_send(p) {
        return;
    }
    let ep = connect_more(p, 1).pop().and_then(Rc::into_inner).unwrap();
    let (mut a, mut b) = (Log::default(), Log::default());
    p.retry(&mut a, &mut b, || send(&ep, 0, 0)).unwrap();
    let mut sent = 1;
    while send(&p.ab, 1, 0).is_ok() {
        sent += 1;
    }
    let mut waiting = 0;
    if p.a.attr().has(Caps::PENDING) {
        for _ in 0..3 {
            let queued = ep.pending_add(Box::new(|| panic!("tried after all")));
            assert_eq!(queued, Ok(PendingQueued::Queued));
        }
        waiting = 3;
    }
    let mut back = 0;
    let end = ep.cancel(&mut |_| back += 1, Comp::Token(9)).unwrap();
    assert_eq!(back, waiting);
    let completions = usize::from(end == Sent::InProgress);
    for _ in 0..200_000 {
        if a.comps.len() + b.comps.len() >= completions {
            break;
        }
        p.poll_both(&mut a, &mut b);
    }
    a.comps.append(&mut b.comps);
    assert_eq!(a.comps, vec![(9, Ok(())); completions]);
    b.ams.append(&mut a.ams);
    p.arrived(&mut b, sent);
    p.retry(&mut a, &mut b, || send(&p.ab, 1, 1)).unwrap();
    b.ams.clear();
    p.arrived(&mut b, 1);
}
