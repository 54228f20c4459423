//! Flushes are told after the operations they cover; operations of a dropped endpoint end once.

use super::{Log, Pair, PollLimit, rma};
use std::collections::BTreeMap;
use uct::api::{Access, AllocReq, Caps, Comp, Ep, Iface, Iov, Md, Memory, Outcome, Sent};

const LEN: usize = 1000;

/// Memory for operations of [`nth_op`] at both ends.
struct Side<I: Iface> {
    target: Option<rma::Target<I>>,
    local: <I::Md as Md>::Mem,
}

impl<I: Iface> Side<I> {
    fn new(p: &Pair<I>) -> Option<Self> {
        if !p.a.md().attr().can_alloc {
            return None;
        }
        let has_rma = p.a.attr().has(Caps::PUT_ZCOPY | Caps::GET_ZCOPY);
        let target = has_rma.then(|| rma::target(p, 2 * LEN, Access::ALL));
        Some(Side { target, local: p.a.md().alloc(&AllocReq::new(2 * LEN, "local")).unwrap() })
    }

    /// The `n`th of a sequence of zero-copy operations; `None`: the interface has none.
    fn nth_op(&self, p: &Pair<I>, ep: &I::Ep, n: usize, comp: Comp) -> Option<Outcome> {
        let piece = |from: usize| [Iov::new(self.local.addr().wrapping_add(from), LEN, Some(&self.local))];
        let has_am = p.a.attr().has(Caps::AM_ZCOPY) && p.a.attr().am.max_zcopy >= 64;
        match &self.target {
            // SAFETY: both ends live until all operations are over; nobody looks at them meanwhile.
            Some(t) if n.is_multiple_of(3) => Some(unsafe { ep.put_zcopy(&piece(0), t.at, &t.rkey, comp) }),
            Some(t) if n % 3 == 1 || !has_am => {
                // SAFETY: as above; what is read into is read from by no other operation.
                Some(unsafe { ep.get_zcopy(&piece(LEN), t.at + LEN as u64, &t.rkey, comp) })
            }
            // SAFETY: as above.
            _ if has_am => Some(unsafe { ep.am_zcopy(1, &[n as u8; 64], &[], comp) }),
            _ => None,
        }
    }
}

/// A flush is told after all that was started before it, on its endpoint or on the interface; several are
/// told in their order.
pub fn flushes_are_told_after_what_they_cover<I: Iface>(p: &Pair<I>) {
    const OPS: u64 = 90;
    const EP_FLUSH: u64 = 1000;
    const IFACE_FLUSH: u64 = 2000;
    let Some(side) = Side::new(p) else { return };
    let (mut log, mut b) = (Log::default(), Log::default());
    let mut started: Vec<u64> = Vec::new();
    let mut start = |log: &mut Log, token: u64, call: &dyn Fn(Comp) -> Outcome| {
        match p.retry(log, &mut b, || call(Comp::Token(token))) {
            Ok(Sent::InProgress) => started.push(token),
            // Whatever it covers is over, and has been told or is told at once.
            Ok(Sent::Done) => {}
            Err(e) => panic!("{e}"),
        }
        log.comps.append(&mut b.comps);
    };
    for n in 0..OPS {
        if side.nth_op(p, &p.ab, n as usize, Comp::None).is_none() {
            return;
        }
        start(&mut log, n, &|comp| side.nth_op(p, &p.ab, n as usize, comp).expect("as before"));
        if n % 5 == 4 {
            start(&mut log, EP_FLUSH + n, &|comp| p.ab.flush(comp));
        }
        if n % 15 == 7 {
            start(&mut log, IFACE_FLUSH + n, &|comp| p.a.flush(comp));
        }
    }
    let mut polls = PollLimit::default();
    while log.comps.len() < started.len() && polls.is_left() {
        p.poll_a(&mut log);
    }
    let told: BTreeMap<u64, usize> =
        log.comps.iter().enumerate().map(|(at, (token, _))| (*token, at)).collect();
    assert_eq!((told.len(), log.comps.len()), (started.len(), started.len()), "each once");
    assert!(log.comps.iter().all(|(_, result)| *result == Ok(())));
    let mut last = [0; 2];
    for (n, token) in started.iter().enumerate() {
        let at = told[token];
        if *token < EP_FLUSH {
            continue;
        }
        let covered = started[..n].iter().filter(|token| **token < EP_FLUSH);
        assert!(covered.into_iter().all(|op| told[op] < at), "flush {token} was told before an operation");
        let kind = usize::from(*token >= IFACE_FLUSH);
        assert!(last[kind] <= at, "flushes out of order");
        last[kind] = at;
    }
}

/// An endpoint dropped with zero-copy operations and flushes outstanding: each completes once.
pub fn dropped_endpoint_completes_once<I: Iface>(p: &Pair<I>) {
    let Some(side) = Side::new(p).filter(|_| p.a.attr().has(Caps::CONNECT_TO_IFACE)) else { return };
    let (mut log, mut expected) = (Log::default(), BTreeMap::new());
    for round in 0..20u64 {
        let ep = p.a.connect(&p.b.device_addr(), &p.b.iface_addr()).unwrap();
        ep.ensure_connected().unwrap();
        for n in 0..8 {
            let token = round << 8 | n;
            let Some(sent) = side.nth_op(p, &ep, n as usize, Comp::Token(token)) else { return };
            if sent == Ok(Sent::InProgress) {
                expected.insert(token, 0);
            }
        }
        for n in 8..10 {
            if ep.flush(Comp::Token(round << 8 | n)) == Ok(Sent::InProgress) {
                expected.insert(round << 8 | n, 0);
            }
        }
        drop(ep);
        if round % 2 == 0 {
            p.poll_a(&mut log);
        }
    }
    let mut polls = PollLimit::default();
    while log.comps.len() < expected.len() && polls.is_left() {
        p.poll_a(&mut log);
    }
    (0..1000).for_each(|_| p.poll_a(&mut log));
    for (token, result) in &log.comps {
        *expected.get_mut(token).expect("what is under way") += 1;
        assert_eq!(*result, Ok(()));
    }
    assert!(expected.values().all(|times| *times == 1), "{expected:?}");
    assert_eq!(p.finish(|comp| p.ab.flush(comp)), Ok(()), "others go on");
}
