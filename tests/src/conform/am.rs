//! Active messages: contents at every boundary size, ids, order, sources, kept messages.

use super::{Log, MAX_POLLS, Pair, bytes, ordered, sizes};
use std::cell::RefCell;
use std::rc::Rc;
use uct::api::{
    AllocReq, Am, Caps, Comp, Ep, EpTag, Error, Iface, Iov, Md, Memory, RecvDesc, Refused, Sent, Sink,
    SrcAddr,
};

fn each_size<I: Iface>(p: &Pair<I>, max: usize, send: impl Fn(&mut Log, &mut Log, u8, &[u8])) {
    let (mut at_a, mut at_b) = (Log::default(), Log::default());
    let mut sent = Vec::new();
    for (n, len) in sizes(max).into_iter().enumerate() {
        let (id, data) = (n as u8, bytes(n as u64, len));
        send(&mut at_a, &mut at_b, id, &data);
        sent.push([&[id], &data[..]].concat());
    }
    at_b.ams.append(&mut at_a.ams);
    p.arrived(&mut at_b, sent.len());
    let mut got: Vec<_> = at_b.ams.into_iter().map(|(packet, _)| packet).collect();
    got.sort_unstable_by_key(|packet| packet[0]);
    for (got, sent) in got.iter().zip(&sent) {
        assert!(got == sent, "{} bytes sent, {} arrived or differ", sent.len(), got.len());
    }
}

/// `am_short` sends header and payload.
pub fn short_of_every_size<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::AM_SHORT) {
        return;
    }
    let max = p.a.attr().am.max_short;
    let (mut at_a, mut at_b) = (Log::default(), Log::default());
    let lens: Vec<_> = sizes(max - 8);
    for &len in &lens {
        let header = u64::from_le_bytes(*b"headers!") ^ len as u64;
        let sent = p.retry(&mut at_a, &mut at_b, || p.ab.am_short(9, header, &bytes(len as u64, len)));
        assert!(sent.is_ok(), "{len}: {sent:?}");
    }
    at_b.ams.append(&mut at_a.ams);
    p.arrived(&mut at_b, lens.len());
    at_b.ams.sort_by_key(|(packet, _)| packet.len());
    for ((packet, _), len) in at_b.ams.iter().zip(lens) {
        let header = u64::from_le_bytes(*b"headers!") ^ len as u64;
        assert_eq!(packet[..], [&[9], &header.to_le_bytes()[..], &bytes(len as u64, len)].concat());
    }
}

/// `am_short_iov` sends the pieces in order.
pub fn short_iov_of_every_size<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::AM_SHORT) {
        return;
    }
    each_size(p, p.a.attr().am.max_short, |a, b, id, data| {
        let (head, rest) = data.split_at(data.len() / 3);
        p.retry(a, b, || p.ab.am_short_iov(id, &[head, &[], rest])).map(drop).unwrap();
    });
}

/// `am_bcopy` answers the bytes packed, and its buffer is as long as promised.
pub fn bcopy_of_every_size<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::AM_BCOPY) {
        return;
    }
    let max = p.a.attr().am.max_bcopy;
    each_size(p, max, |a, b, id, data| {
        let packed = p.retry(a, b, || {
            p.ab.am_bcopy(id, |slot| {
                assert!(slot.len() >= max);
                slot[..data.len()].copy_from_slice(data);
                data.len()
            })
        });
        assert_eq!(packed, Ok(data.len()));
    });
}

/// `am_packet` takes the id from the first packed byte, and a larger hint changes nothing.
pub fn am_packet_carries_its_id<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::AM_BCOPY) {
        return;
    }
    let max = p.a.attr().am.max_bcopy;
    for slack in [0, 1, 40, max] {
        each_size(p, max, |a, b, id, data| {
            let hint = (1 + data.len() + slack).min(max + 1);
            let packed = p.retry(a, b, || {
                p.ab.am_packet(hint, |slot| {
                    assert!(slot.len() >= hint);
                    slot[0] = id;
                    slot[1..=data.len()].copy_from_slice(data);
                    1 + data.len()
                })
            });
            assert_eq!(packed, Ok(1 + data.len()));
        });
    }
}

/// `am_zcopy` sends a header and pieces of registered memory.
pub fn zcopy_of_every_size<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::AM_ZCOPY) {
        return;
    }
    let limits = p.a.attr().am;
    each_size(p, limits.max_zcopy, |_, b, id, data| {
        let mem = p.a.md().alloc(&AllocReq::new(data.len().max(1), "zcopy")).unwrap();
        let hdr = &data[..data.len().min(limits.max_hdr).min(13)];
        let body = &data[hdr.len()..];
        // SAFETY: the allocation has room, and nobody else has it.
        unsafe { std::ptr::copy_nonoverlapping(body.as_ptr(), mem.addr(), body.len()) };
        let cut = if limits.max_iov > 1 { body.len() / 2 } else { 0 };
        let iov = [
            Iov::new(mem.addr(), cut, Some(&mem)),
            Iov::new(mem.addr().wrapping_add(cut), body.len() - cut, Some(&mem)),
        ];
        let iov = if limits.max_iov > 1 { &iov[..] } else { &iov[1..] };
        let mut at_a = Log::default();
        // SAFETY: `mem` lives until the completion below.
        let sent = p.retry(&mut at_a, b, || unsafe { p.ab.am_zcopy(id, hdr, iov, Comp::Token(1)) }).unwrap();
        if sent == uct::api::Sent::InProgress {
            // One interface that is both sides reports to whichever log is polled.
            while at_a.comps.is_empty() && b.comps.is_empty() {
                p.poll_both(&mut at_a, b);
            }
            at_a.comps.append(&mut b.comps);
            assert_eq!(at_a.comps, [(1, Ok(()))]);
        } else {
            assert!(at_a.comps.is_empty());
        }
        b.ams.append(&mut at_a.ams);
    });
}

/// Messages one byte longer than the limit are rejected.
pub fn too_long_messages_are_rejected<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::AM_BCOPY) {
        return;
    }
    let am = p.a.attr().am;
    let too_long = |e: Error| assert!(matches!(e, Error::TooLong { .. }), "{e:?}");
    let (mut a, mut b) = (Log::default(), Log::default());
    if p.a.attr().has(Caps::AM_SHORT) {
        too_long(p.retry(&mut a, &mut b, || p.ab.am_short(1, 0, &vec![0; am.max_short - 7])).unwrap_err());
        too_long(
            p.retry(&mut a, &mut b, || p.ab.am_short_iov(1, &[&vec![0; am.max_short + 1]])).unwrap_err(),
        );
    }
    too_long(p.retry(&mut a, &mut b, || p.ab.am_packet(am.max_bcopy + 2, |_| panic!("packed"))).unwrap_err());
    if p.a.attr().has(Caps::AM_ZCOPY) {
        let mem = p.a.md().alloc(&AllocReq::new(am.max_zcopy + 1, "zcopy")).unwrap();
        let iov = [Iov::new(mem.addr(), am.max_zcopy + 1, Some(&mem))];
        // SAFETY: the call is refused.
        too_long(p.retry(&mut a, &mut b, || unsafe { p.ab.am_zcopy(1, &[], &iov, Comp::None) }).unwrap_err());
    }
    p.arrived(&mut b, 0);
}

/// All 256 ids work.
pub fn every_id<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::AM_BCOPY) {
        return;
    }
    let (mut a, mut b) = (Log::default(), Log::default());
    for id in 0..=255 {
        p.retry(&mut a, &mut b, || p.ab.am_bcopy(id, |_| 0)).unwrap();
    }
    b.ams.append(&mut a.ams);
    p.arrived(&mut b, 256);
    let mut got: Vec<_> = b.ams.iter().map(|(packet, _)| packet[0]).collect();
    got.sort_unstable();
    assert!(got.into_iter().eq(0..=255));
}

/// Messages of mixed sizes keep their order over many laps of the queues.
pub fn order_is_kept<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::AM_BCOPY) {
        return;
    }
    const COUNT: u32 = 5000;
    let (mut a, mut b) = (Log::default(), Log::default());
    let max = p.a.attr().am.max_bcopy - 4;
    for n in 0..COUNT {
        let extra = (n as usize * 37) % 300.min(max);
        p.retry(&mut a, &mut b, || {
            p.ab.am_packet(5 + extra, |slot| {
                slot[0] = 3;
                slot[1..5].copy_from_slice(&n.to_le_bytes());
                slot[5..5 + extra].fill(n as u8);
                5 + extra
            })
        })
        .unwrap();
    }
    a.ams.append(&mut b.ams);
    p.arrived(&mut a, COUNT as usize);
    let number = |packet: &[u8]| u32::from_le_bytes(packet[1..5].try_into().unwrap());
    let mut got: Vec<_> = a.ams.iter().map(|(packet, _)| number(packet)).collect();
    if !ordered(&p.a) {
        got.sort_unstable();
    }
    assert!(got.into_iter().eq(0..COUNT));
    for (packet, _) in &a.ams {
        assert!(packet[5..].iter().all(|byte| *byte == number(packet) as u8));
    }
}

/// Polling only when `is_idle` is false misses no message and no completion.
pub fn is_quiet_misses_nothing<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::AM_BCOPY) {
        return;
    }
    let (mut at_a, mut at_b) = (Log::default(), Log::default());
    let ask = |at_a: &mut Log, at_b: &mut Log| {
        (p.tick)();
        if !p.same && !p.a.is_idle() {
            p.a.poll(16, at_a);
        }
        if !p.b.is_idle() {
            p.b.poll(16, at_b);
        }
    };
    let (mut messages, mut ends) = (0, 0);
    for round in 0..40usize {
        for _ in 0..round % 4 {
            p.retry(&mut at_a, &mut at_b, || p.ab.am_bcopy(round as u8, |_| 0)).unwrap();
            messages += 1;
        }
        let flushed = p.retry(&mut at_a, &mut at_b, || p.a.flush(Comp::Token(round as u64)));
        ends += usize::from(flushed == Ok(Sent::InProgress));
        let missing = |at_a: &Log, at_b: &Log| {
            at_a.ams.len() + at_b.ams.len() < messages || at_a.comps.len() + at_b.comps.len() < ends
        };
        for _ in 0..MAX_POLLS {
            if !missing(&at_a, &at_b) {
                break;
            }
            ask(&mut at_a, &mut at_b);
        }
        assert!(!missing(&at_a, &at_b), "round {round}: quiet all the time");
        (0..round * 50).for_each(|_| ask(&mut at_a, &mut at_b));
    }
    assert_eq!((at_a.ams.len() + at_b.ams.len(), at_a.comps.len() + at_b.comps.len()), (messages, ends));
}

/// Messages of one sender have one source, which differs between senders.
pub fn source_names_the_sender<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::AM_SOURCE) {
        return;
    }
    let (mut a, mut b) = (Log::default(), Log::default());
    for _ in 0..2 {
        p.ab.am_bcopy(1, |_| 0).unwrap();
        p.ba.am_bcopy(2, |_| 0).unwrap();
    }
    b.ams.append(&mut a.ams);
    p.arrived(&mut b, 4);
    let of = |id| {
        let mut all: Vec<SrcAddr> =
            b.ams.iter().filter(|(packet, _)| packet[0] == id).map(|(_, source)| *source).collect();
        all.dedup();
        all
    };
    assert_eq!((of(1).len(), of(2).len()), (1, 1));
    assert_eq!(of(1) == of(2), p.same);
    assert_ne!(of(1)[0], SrcAddr::default());
}

struct Keeper(Vec<RecvDesc>);

impl Sink for Keeper {
    fn on_am(&mut self, am: Am<'_>) {
        self.0.push(am.keep());
    }
    fn on_comp(&mut self, _token: u64, _result: Result<(), Error>) {}
    fn on_ep_error(&mut self, _ep: EpTag, error: Error) {
        panic!("{error}");
    }
}

/// Kept messages stay unchanged while others arrive, also when more are kept than there are buffers.
pub fn kept_messages_are_unchanged<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::AM_BCOPY) {
        return;
    }
    const COUNT: u64 = 2000;
    let mut keeper = Keeper(Vec::new());
    let (mut a, mut polls) = (Log::default(), 0);
    let len = |n: u64| (n as usize * 13) % 500.min(p.a.attr().am.max_bcopy - 8) + 8;
    for round in 0..2 {
        let mut sent = 0;
        while (keeper.0.len() as u64) < COUNT {
            if sent < COUNT {
                let data = bytes(sent + round, len(sent));
                let packed = p.ab.am_packet(1 + data.len(), |slot| {
                    slot[0] = sent as u8;
                    slot[1..=data.len()].copy_from_slice(&data);
                    1 + data.len()
                });
                sent += u64::from(packed.is_ok());
            }
            (p.tick)();
            p.b.poll(3, &mut keeper);
            if !p.same {
                p.a.poll(3, &mut a);
            }
            polls += 1;
            assert!(polls < 10_000_000);
        }
        let mut seen: Vec<_> = keeper.0.iter().map(|kept| kept.packet().to_vec()).collect();
        let mut want: Vec<_> =
            (0..COUNT).map(|n| [&[n as u8], &bytes(n + round, len(n))[..]].concat()).collect();
        seen.sort_unstable();
        want.sort_unstable();
        assert!(seen == want, "kept messages changed");
        let mut odd = false;
        keeper.0.retain(|_| {
            odd = !odd;
            odd
        });
        keeper.0.clear();
    }
}

/// Another thread reads and releases kept messages while more arrive.
pub fn kept_messages_move_between_threads<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::AM_BCOPY) {
        return;
    }
    const COUNT: u64 = 3000;
    let len = |n: u64| (n as usize * 7) % 300.min(p.a.attr().am.max_bcopy - 8) + 8;
    let (to, from) = std::sync::mpsc::sync_channel::<RecvDesc>(16);
    let reader = std::thread::spawn(move || {
        let mut seen: Vec<Vec<u8>> = from.into_iter().map(|kept| kept.packet().to_vec()).collect();
        seen.sort_unstable();
        seen
    });
    let mut keeper = Keeper(Vec::new());
    let (mut a, mut sent, mut kept) = (Log::default(), 0, 0);
    let mut polls = 0;
    while kept < COUNT {
        if sent < COUNT {
            let data = bytes(sent, len(sent));
            let packed = p.ab.am_packet(1 + data.len(), |slot| {
                slot[0] = sent as u8;
                slot[1..=data.len()].copy_from_slice(&data);
                1 + data.len()
            });
            sent += u64::from(packed.is_ok());
        }
        (p.tick)();
        p.b.poll(3, &mut keeper);
        if !p.same {
            p.a.poll(3, &mut a);
        }
        for message in keeper.0.drain(..) {
            kept += 1;
            to.send(message).unwrap();
        }
        polls += 1;
        assert!(polls < 10_000_000);
    }
    drop(to);
    let mut want: Vec<_> = (0..COUNT).map(|n| [&[n as u8], &bytes(n, len(n))[..]].concat()).collect();
    want.sort_unstable();
    assert!(reader.join().unwrap() == want, "kept messages changed");
}

/// `progress` calls handlers; messages without a handler are dropped.
pub fn handlers_are_called_and_removed<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::AM_BCOPY) {
        return;
    }
    let got = Rc::new(RefCell::new(Vec::new()));
    let sink = got.clone();
    p.b.set_am_handler(7, Some(Box::new(move |am| sink.borrow_mut().push(am.data().len()))));
    let send = |id| {
        while let Err(refused) = p.ab.am_bcopy(id, |_| 5) {
            assert_eq!(refused, Refused::NoResource);
            p.progress();
        }
    };
    let settle = || {
        for _ in 0..10_000 {
            p.progress();
        }
    };
    [7, 8, 7].into_iter().for_each(send);
    settle();
    assert_eq!(*got.borrow(), [5, 5]);
    p.b.set_am_handler(7, None);
    send(7);
    settle();
    assert_eq!(got.borrow().len(), 2);
}

/// A handler is called within a send only if the interface was told so, and once in either case.
pub fn delivery_within_send_is_opt_in<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::AM_BCOPY) {
        return assert!(!p.b.deliver_within_send(true));
    }
    let got = Rc::new(RefCell::new(0));
    let count = got.clone();
    p.b.set_am_handler(7, Some(Box::new(move |_| *count.borrow_mut() += 1)));
    for (sent, on) in [true, true, false].into_iter().enumerate() {
        let within = p.b.deliver_within_send(on);
        assert!(on || !within);
        while let Err(refused) = p.ab.am_bcopy(7, |_| 5) {
            assert_eq!(refused, Refused::NoResource);
            p.progress();
        }
        assert_eq!(*got.borrow(), sent + usize::from(within));
        let came = || *got.borrow() > sent;
        assert!((0..MAX_POLLS).any(|_| came() || (p.progress(), came()).1), "it did not come");
        p.progress();
        assert_eq!(*got.borrow(), sent + 1);
    }
    p.b.set_am_handler(7, None);
}
