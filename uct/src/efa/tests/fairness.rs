//! Pending operations are not starved, by smaller operations or by a stream of arrivals.

#![allow(unsafe_code)]

use super::*;
use crate::api::Outcome;

/// Sends on an endpoint whenever there is room, also from completions.
struct SaturatingSender<'a> {
    ep: &'a Ep<Simulated>,
    mem: &'a Mem<Simulated>,
    sent: usize,
    done: Vec<u64>,
}

impl SaturatingSender<'_> {
    fn send(&mut self) {
        let iov = [Iov::new(self.mem.addr(), 100, Some(self.mem))];
        // SAFETY: `mem` lives to the end of the test and is not written.
        while unsafe { self.ep.am_zcopy(1, &[], &iov, Comp::Token(0)) }.is_ok() {
            self.sent += 1;
        }
    }
}

impl Sink for SaturatingSender<'_> {
    fn on_am(&mut self, _: Am<'_>) {}
    fn on_comp(&mut self, token: u64, result: Result<(), Error>) {
        assert_eq!(result, Ok(()));
        match token {
            0 => self.send(),
            token => self.done.push(token),
        }
    }
    fn on_ep_error(&mut self, _: EpTag, error: Error) {
        panic!("{error}");
    }
}

/// Three separate blocks, hence three work requests.
fn three(mem: &Mem<Simulated>) -> [Iov<'_, Mem<Simulated>>; 1] {
    [Iov { addr: mem.addr(), len: 8, stride: 16, count: 3, mem: Some(mem) }]
}

const SLOW: FaultPlan = FaultPlan { delay: 20_000, ..FaultPlan::NONE };

#[test]
fn a_group_of_requests_is_not_starved_by_single_requests() {
    let config = Config { tx_queue_len: 4, ..Config::default() };
    let (fabric, a, mut b) = pair(SLOW, &config, &Config::default());
    let (ep, other, _back) = (Rc::new(a.ep_to(&b)), a.ep_to(&b), b.ep_to(&a));
    let (local, remote) = (Rc::new(alloc(&a, 100, 7)), alloc(&b, 24, 0));
    let rkey = Rc::new(rkey_of(&b, &remote, &a));
    let at = remote.addr() as u64;
    for n in 0..2 {
        assert_eq!(other.am_short(1, n, &[]), Ok(Sent::Done));
    }
    let (weak, mem, key) = (Rc::downgrade(&ep), local.clone(), rkey.clone());
    let put = move |token| {
        let ep = weak.upgrade().expect("the endpoint lives");
        // SAFETY: both ends live to the end of the test.
        unsafe { ep.put_zcopy(&three(&mem), at, &key, Comp::Token(token)) }
    };
    assert_eq!(put(1), Err(Refused::NoResource), "two slots are free");
    let retry = move |sent: Outcome| match sent {
        Ok(_) => Retry::Done,
        Err(refused) => {
            assert_eq!(refused, Refused::NoResource);
            Retry::NoResource
        }
    };
    let again = put.clone();
    let queued = ep.pending_add(Box::new(move || retry(again(1))));
    assert_eq!(queued, Ok(PendingQueued::Queued), "two slots do not hold three");
    let queued = ep.pending_add(Box::new(move || retry(put(2))));
    assert_eq!(queued, Ok(PendingQueued::Queued));
    let mut sender = SaturatingSender { ep: &other, mem: &local, sent: 0, done: Vec::new() };
    for _ in 0..2000 {
        sender.send();
        a.iface.poll(16, &mut sender);
        b.poll();
        fabric.advance(1000);
    }
    assert_eq!(sender.done, [1, 2]);
    assert!(sender.sent > 100, "the other endpoint goes on: {}", sender.sent);
    assert_eq!(read(&remote), [7; 24]);
}

#[test]
fn a_purged_operation_gives_up_its_reserved_slots() {
    for dropped in [false, true] {
        let config = Config { tx_queue_len: 3, ..Config::default() };
        let (fabric, mut a, mut b) = pair(SLOW, &config, &Config::default());
        let (ep, other) = (Rc::new(a.ep_to(&b)), Rc::new(a.ep_to(&b)));
        let (local, remote) = (alloc(&a, 100, 7), alloc(&b, 24, 0));
        let rkey = rkey_of(&b, &remote, &a);
        let at = remote.addr() as u64;
        for n in 0..2 {
            assert_eq!(other.am_short(1, n, &[]), Ok(Sent::Done));
        }
        let weak = Rc::downgrade(&ep);
        let queued = ep.pending_add(Box::new(|| panic!("there is room for one")));
        assert_eq!(queued, Ok(PendingQueued::Busy));
        let put = move || {
            let ep = weak.upgrade().expect("the endpoint lives");
            // SAFETY: both ends live to the end of the round.
            unsafe { ep.put_zcopy(&three(&local), at, &rkey, Comp::None) }
        };
        assert_eq!(put(), Err(Refused::NoResource));
        let op = Box::new(move || {
            assert_eq!(put(), Err(Refused::NoResource));
            Retry::NoResource
        });
        assert_eq!(ep.pending_add(op), Ok(PendingQueued::Queued));
        a.poll();
        assert_eq!(other.am_short(1, 2, &[]), Err(Refused::NoResource), "the free slot is reserved for it");
        assert_eq!(other.pending_add(Box::new(|| Retry::Done)), Ok(PendingQueued::Queued));
        other.pending_purge(&mut drop);
        let mut purged = 0;
        if dropped {
            drop(ep);
        } else {
            ep.pending_purge(&mut |_| purged += 1);
            assert_eq!(purged, 1);
        }
        assert_eq!(other.am_short(1, 2, &[]), Ok(Sent::Done));
        settle(&fabric, &mut a, &mut b);
        assert_eq!(b.log.ams.len(), 3);
    }
}

#[test]
fn an_operation_that_changes_its_mind_gives_up_its_reserved_slots() {
    let config = Config { tx_queue_len: 3, ..Config::default() };
    let (fabric, mut a, mut b) = pair(SLOW, &config, &Config::default());
    let (ep, other) = (Rc::new(a.ep_to(&b)), a.ep_to(&b));
    let (local, remote) = (alloc(&a, 100, 7), alloc(&b, 24, 0));
    let rkey = rkey_of(&b, &remote, &a);
    let at = remote.addr() as u64;
    for _ in 0..2 {
        assert_eq!(other.am_short(1, 0, &[]), Ok(Sent::Done));
    }
    let weak = Rc::downgrade(&ep);
    let put = move |ep: &Ep<Simulated>| {
        // SAFETY: both ends live to the end of the test.
        let sent = unsafe { ep.put_zcopy(&three(&local), at, &rkey, Comp::None) };
        assert_eq!(sent, Err(Refused::NoResource));
    };
    put(&ep);
    let mut tries = 0;
    let op = Box::new(move || {
        let ep = weak.upgrade().expect("the endpoint lives");
        tries += 1;
        if tries == 1 {
            put(&ep);
            return Retry::NoResource;
        }
        if ep.am_short(2, 0, &[]).is_ok() { Retry::Done } else { Retry::NoResource }
    });
    assert_eq!(ep.pending_add(op), Ok(PendingQueued::Queued));
    settle(&fabric, &mut a, &mut b);
    let last = b.log.ams.last().expect("messages came");
    assert_eq!((b.log.ams.len(), last.1[0]), (3, 2));
    assert_eq!(other.am_short(1, 0, &[]), Ok(Sent::Done));
}

#[test]
fn pending_operations_are_dispatched_between_arrivals() {
    const STREAM: u64 = 200;
    let config = Config { tx_queue_len: 1, ..Config::default() };
    let (fabric, mut a, b) = pair(FaultPlan::NONE, &config, &Config::default());
    let (ep, from) = (Rc::new(a.ep_to(&b)), b.ep_to(&a));
    assert_eq!(ep.am_short(1, 0, &[]), Ok(Sent::Done));
    let weak = Rc::downgrade(&ep);
    let op = Box::new(move || match weak.upgrade().expect("the endpoint lives").am_short(1, 1, &[]) {
        Ok(_) => Retry::Done,
        Err(_) => Retry::NoResource,
    });
    assert_eq!(ep.pending_add(op), Ok(PendingQueued::Queued));
    for n in 0..STREAM {
        assert_eq!(from.am_short(1, n, &[]), Ok(Sent::Done));
    }
    fabric.advance(1_000_000);
    let waits = |a: &Side<Simulated>| a.iface.inner.pending.waiting() > 0;
    while waits(&a) && a.log.ams.len() < STREAM as usize {
        a.iface.poll(4, &mut a.log);
    }
    assert!(a.log.ams.len() < 100, "it waited for {} arrivals", a.log.ams.len());
}

#[test]
fn a_poll_completes_no_more_flushes_than_its_limit() {
    const FLUSHES: u64 = 50;
    let (fabric, mut a, b) = pair(SLOW, &Config::default(), &Config::default());
    let ep = a.ep_to(&b);
    assert_eq!(ep.am_short(1, 0, &[]), Ok(Sent::Done));
    for n in 0..FLUSHES {
        assert_eq!(ep.flush(Comp::Token(n)), Ok(Sent::InProgress));
    }
    fabric.advance(1_000_000);
    b.iface.poll(1, &mut Log::default());
    fabric.advance(1_000_000);
    let mut polls = 0;
    while a.log.comps.len() < FLUSHES as usize {
        let (before, events) = (a.log.comps.len(), a.iface.poll(4, &mut a.log));
        assert!(a.log.comps.len() - before <= 4 && events <= 5, "{events} events");
        assert!(!a.iface.is_idle() || a.log.comps.len() == FLUSHES as usize);
        polls += 1;
        assert!(polls < 1000);
    }
    assert!(a.log.comps.iter().map(|comp| comp.0).eq(0..FLUSHES), "in the order they were asked for");
}

/// Endpoint errors (`Some`) and flush completions (`None`), in order.
#[derive(Default)]
struct Order(Vec<Option<EpTag>>);

impl Sink for Order {
    fn on_am(&mut self, _: Am<'_>) {}
    fn on_comp(&mut self, _: u64, result: Result<(), Error>) {
        assert_eq!(result, Ok(()), "of a flush");
        self.0.push(None);
    }
    fn on_ep_error(&mut self, ep: EpTag, error: Error) {
        assert_eq!(error, Error::PeerDead);
        self.0.push(Some(ep));
    }
}

#[test]
fn endpoint_errors_are_reported_before_a_later_flush() {
    let (fabric, a, b) = pair(SLOW, &Config::default(), &Config::default());
    let (ep, back) = (a.ep_to(&b), b.ep_to(&a));
    ep.set_tag(EpTag(5));
    let (local, remote) = (alloc(&a, 100, 7), alloc(&b, 100, 0));
    let rkey = rkey_of(&b, &remote, &a);
    let at = remote.addr() as u64;
    drop((remote, back, b));
    let iov = [Iov::new(local.addr(), 100, Some(&local))];
    for _ in 0..3 {
        // SAFETY: `local` lives to the end of the test.
        let sent = unsafe { ep.put_zcopy(&iov, at, &rkey, Comp::None) };
        assert_eq!(sent, Ok(Sent::InProgress));
    }
    assert_eq!(ep.flush(Comp::Token(1)), Ok(Sent::InProgress));
    let mut order = Order::default();
    for _ in 0..1000 {
        a.iface.poll(1, &mut order);
        fabric.advance(1000);
    }
    assert_eq!(order.0, [Some(EpTag(5)), Some(EpTag(5)), Some(EpTag(5)), None]);
}
