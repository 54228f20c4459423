//! Atomics against a model, one word at a time. Contention between processes is in `tests/atomics.rs`.

use super::{Pair, rma};
use std::ptr::NonNull;
use uct::api::{
    Access, AtomicCaps, AtomicOp, AtomicOps, Caps, Comp, Ep, Error, Iface, Memory, Refused, Word,
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
