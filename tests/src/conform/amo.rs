//! Atomics against a model, one word at a time. Contention between processes is in `tests/atomics.rs`.

use super::{Log, Pair, PollLimit, rma};
use std::ptr::NonNull;
use uct::api::{
    Access, AtomicCaps, AtomicOp, AtomicOps, Caps, Comp, Ep, EpTag, Error, Iface, Md, Memory, Refused, Sent,
    Word,
};

const OPS: [(AtomicOp, AtomicOps); 5] = [
    (AtomicOp::Add, AtomicOps::ADD),
    (AtomicOp::And, AtomicOps::AND),
    (AtomicOp::Or, AtomicOps::OR),
    (AtomicOp::Xor, AtomicOps::XOR),
    (AtomicOp::Swap, AtomicOps::SWAP),
];

fn model<W: Word>(op: AtomicOp, old: W, value: W) -> W {
    let (a, b) = (old.to_u128(), value.to_u128());
    W::from_u128(match op {
        AtomicOp::Add => a.wrapping_add(b),
        AtomicOp::And => a & b,
        AtomicOp::Or => a | b,
        AtomicOp::Xor => a ^ b,
        AtomicOp::Swap => b,
    })
}

/// Offset of the word under test: aligned for every width, with neighbours on both sides.
const AT: usize = 16;

fn wide<W: Word>(v: u64) -> W {
    W::from_u128(u128::from(v) << 64 | u128::from(v))
}

/// The words around the one under test, which show a wrong width.
fn neighbours<M: Memory>(mem: &M) -> [u64; 2] {
    let word = |n: usize| {
        let at = mem.addr().wrapping_add(8 * n).cast::<u64>();
        // SAFETY: the first eight words are inside the memory; no operation is under way.
        unsafe { at.read_volatile() }
    };
    [word(1), word(4)]
}

fn every_operation<I: Iface, W: Word>(p: &Pair<I>) {
    let Some(caps) = caps(p) else { return };
    let (post, fetch) = (caps.post(W::BYTES), caps.fetch(W::BYTES));
    let t = rma::target(p, 64, Access::ALL);
    let at = t.at + AT as u64;
    let cell = t.mem.addr().wrapping_add(AT).cast::<W>();
    // SAFETY: the word is inside the memory; operations on it have completed when this is called.
    let load = || unsafe { cell.read_volatile() };
    let values = [0, 1, 0xff00_ff00_1234_5678, u64::MAX, 0x8000_0000_8000_0000].map(wide);
    for (op, bit) in OPS {
        for value in values {
            if fetch.contains(bit) {
                let (before, mut old) = (load(), wide::<W>(0));
                let result = NonNull::from(&mut old);
                // SAFETY: `old` outlives the completion that `finish` waits for.
                let call = |comp| unsafe { p.ab.atomic_fetch(op, value, result, at, &t.rkey, comp) };
                assert_eq!(p.finish(call), Ok(()));
                // SAFETY: `old` is alive; read through the pointer the operation wrote by.
                assert_eq!(unsafe { result.read() }, before, "{op:?}");
                assert_eq!(load(), model(op, before, value), "{op:?} {before:?} {value:?}");
            }
            if op != AtomicOp::Swap && post.contains(bit) {
                let before = load();
                p.retry(&mut Default::default(), &mut Default::default(), || {
                    p.ab.atomic_post(op, value, at, &t.rkey)
                })
                .map(drop)
                .unwrap();
                assert_eq!(p.finish(|comp| p.ab.flush(comp)), Ok(()));
                assert_eq!(load(), model(op, before, value), "{op:?} {before:?} {value:?}");
            }
        }
    }
    assert_eq!(neighbours(&t.mem), [0, 0]);
}

fn caps<I: Iface>(p: &Pair<I>) -> Option<AtomicCaps> {
    p.a.attr().has(Caps::ATOMIC).then_some(p.a.attr().atomics)
}

/// Every operation that the interface has, on words of every width.
pub fn every_operation_on_every_word<I: Iface>(p: &Pair<I>) {
    every_operation::<I, u8>(p);
    every_operation::<I, u16>(p);
    every_operation::<I, u32>(p);
    every_operation::<I, u64>(p);
    every_operation::<I, u128>(p);
}

fn cswap<I: Iface, W: Word>(p: &Pair<I>) {
    if !caps(p).is_some_and(|caps| caps.fetch(W::BYTES).contains(AtomicOps::CSWAP)) {
        return;
    }
    let t = rma::target(p, 64, Access::ALL);
    let cell = t.mem.addr().wrapping_add(AT).cast::<W>();
    for (compare, swap, then) in [(1, 5, 0), (0, 7, 7), (0, 9, 7), (7, 0, 0)] {
        // SAFETY: the word is inside the memory; no operation is under way.
        let before = unsafe { cell.read_volatile() };
        let mut old = wide::<W>(99);
        let result = NonNull::from(&mut old);
        let (compare, swap) = (wide::<W>(compare), wide::<W>(swap));
        // SAFETY: `old` outlives the completion that `finish` waits for.
        let call =
            |comp| unsafe { p.ab.atomic_cswap(compare, swap, result, t.at + AT as u64, &t.rkey, comp) };
        assert_eq!(p.finish(call), Ok(()));
        // SAFETY: `old` is alive.
        assert_eq!(unsafe { result.read() }, before);
        // SAFETY: as for `before`.
        assert_eq!(unsafe { cell.read_volatile() }, wide::<W>(then));
    }
    assert_eq!(neighbours(&t.mem), [0, 0]);
}

/// Compare-and-swap hits and misses on every width.
pub fn compare_and_swap<I: Iface>(p: &Pair<I>) {
    cswap::<I, u8>(p);
    cswap::<I, u16>(p);
    cswap::<I, u32>(p);
    cswap::<I, u64>(p);
    cswap::<I, u128>(p);
}

/// Unaligned words, words outside the key, and swaps without a result are rejected.
pub fn invalid_atomics_are_rejected<I: Iface>(p: &Pair<I>) {
    if caps(p).is_none() {
        return;
    }
    let t = rma::target(p, 64, Access::ALL);
    let post = |at| p.ab.atomic_post(AtomicOp::Add, 1u64, at, &t.rkey);
    assert!(matches!(post(t.at + 4), Err(Refused::Failed(Error::InvalidParam(_)))));
    assert_eq!(post(t.at + 64), Err(Refused::Failed(Error::RemoteAccess)));
    assert_eq!(post(t.at - 8), Err(Refused::Failed(Error::RemoteAccess)));
    let swap = p.ab.atomic_post(AtomicOp::Swap, 1u64, t.at, &t.rkey);
    assert!(matches!(swap, Err(Refused::Failed(Error::InvalidParam(_)))));
    let mut old = 5u64;
    let result = NonNull::from(&mut old);
    // SAFETY: `old` outlives the call, which is refused.
    let sent = unsafe { p.ab.atomic_cswap(0u64, 1, result, t.at + 1, &t.rkey, Comp::None) };
    assert!(sent.is_err());
    assert_eq!(old, 5);
}

/// A key without the right gives no atomics, nor does one of revoked memory.
pub fn atomics_need_their_right<I: Iface>(p: &Pair<I>) {
    if caps(p).is_none() {
        return;
    }
    let mut old = 5u64;
    let result = NonNull::from(&mut old);
    let add = |t: &rma::Target<I>| {
        // SAFETY: `old` outlives the completion that `finish` waits for.
        p.finish(|comp| unsafe { p.ab.atomic_fetch(AtomicOp::Add, 1u64, result, t.at, &t.rkey, comp) })
    };
    let poor = rma::target(p, 64, Access::ALL - Access::REMOTE_ATOMIC);
    assert_eq!(add(&poor), Err(Error::RemoteAccess));
    let rich = rma::target(p, 64, Access::ALL);
    assert_eq!(add(&rich), Ok(()));
    rich.mem.revoke();
    if p.b.md().attr().revokes_keys {
        assert_eq!(add(&rich), Err(Error::RemoteAccess));
        // One without a completion is reported for its endpoint, and does not stop a flush.
        p.ab.set_tag(EpTag(6));
        let (mut a, mut b) = (Log::default(), Log::default());
        let posted = p.retry(&mut a, &mut b, || p.ab.atomic_post(AtomicOp::Add, 1u64, rich.at, &rich.rkey));
        match posted {
            Err(e) => assert_eq!(e, Error::RemoteAccess),
            Ok(_) => {
                let mut polls = PollLimit::default();
                while a.errors.is_empty() && polls.is_left() {
                    p.poll_a(&mut a);
                }
                assert_eq!(a.errors, [(EpTag(6), Error::RemoteAccess)]);
            }
        }
    }
    assert_eq!(p.finish(|comp| p.ab.flush(comp)), Ok(()));
    // SAFETY: inside the memory; no operation is under way.
    assert_eq!(unsafe { rich.mem.addr().cast::<u64>().read_volatile() }, 1);
    let next = rma::target(p, 64, Access::ALL);
    assert_eq!(add(&next), Ok(()), "later operations are not affected");
}

/// Atomics complete although nobody progresses the target's interface.
pub fn targets_need_not_progress<I: Iface>(p: &Pair<I>) {
    if caps(p).is_none() {
        return;
    }
    let t = rma::target(p, 64, Access::ALL);
    let (mut log, mut old) = (Log::default(), 7u64);
    let result = NonNull::from(&mut old);
    for n in 0..20 {
        // SAFETY: `old` outlives the completion that is waited for.
        let sent = unsafe { p.ab.atomic_fetch(AtomicOp::Add, 1u64, result, t.at, &t.rkey, Comp::Token(n)) };
        let mut polls = PollLimit::default();
        while sent == Ok(Sent::InProgress) && log.comps.is_empty() && polls.is_left() {
            p.a.poll(16, &mut log);
        }
        assert!(sent == Ok(Sent::Done) || log.comps.drain(..).eq([(n, Ok(()))]), "{sent:?}");
        // SAFETY: `old` is alive; the operation is over.
        assert_eq!(unsafe { result.read() }, n);
    }
}

/// Many atomics under way at a time take effect once each, and a flush and a fence cover them.
pub fn concurrent_atomics_happen_once<I: Iface>(p: &Pair<I>) {
    const EACH: usize = 1000;
    if caps(p).is_none() {
        return;
    }
    let t = rma::target(p, 64, Access::ALL);
    let (mut a, mut b) = (Log::default(), Log::default());
    let mut tickets = vec![u32::MAX; EACH];
    let slots = tickets.as_mut_ptr();
    let mut under_way = 0;
    for n in 0..EACH {
        let result = NonNull::new(slots.wrapping_add(n)).unwrap();
        let draw =
            // SAFETY: `tickets` outlives the flush below.
            || unsafe { p.ab.atomic_fetch(AtomicOp::Add, 1u32, result, t.at, &t.rkey, Comp::Token(n as u64)) };
        under_way += usize::from(p.retry(&mut a, &mut b, draw) == Ok(Sent::InProgress));
        let add = || p.ab.atomic_post(AtomicOp::Add, 2u64, t.at + 8, &t.rkey);
        p.retry(&mut a, &mut b, add).map(drop).unwrap();
        if n % 100 == 99 {
            p.retry(&mut a, &mut b, || p.ab.fence()).map(drop).unwrap();
        }
    }
    let flush = p.retry(&mut a, &mut b, || p.ab.flush(Comp::Token(u64::MAX))).unwrap();
    a.comps.append(&mut b.comps);
    let mut polls = PollLimit::default();
    let end = (u64::MAX, Ok(()));
    while flush == Sent::InProgress && !a.comps.contains(&end) && polls.is_left() {
        p.poll_a(&mut a);
    }
    assert_eq!(
        a.comps.len(),
        under_way + usize::from(flush == Sent::InProgress),
        "each once, the flush last"
    );
    assert!(a.comps.iter().all(|(_, result)| *result == Ok(())) && a.errors.is_empty());
    tickets.sort_unstable();
    assert!(tickets.into_iter().eq(0..EACH as u32), "each ticket once");
    // SAFETY: inside the memory; no operation is under way.
    assert_eq!(unsafe { t.mem.addr().wrapping_add(8).cast::<u64>().read_volatile() }, 2 * EACH as u64);
}
