//! Writes with immediate from peers, and requests that fail late, leave other atomics alone.

use super::*;
use crate::api::{AllocReq, Ep as _, Iface as _, Md as _, Memory as _};
use crate::efa::dev::soft::{Device, Shm, open_shm};
use crate::efa::{Iface, Mem, Params, RawAddr};
use std::time::{Duration, Instant};
use ucs::config::Source;

type Dev = Device<Shm>;

fn open() -> Iface<Dev> {
    Iface::open(open_shm(&Source::empty(), "softefa0").unwrap(), &Params::default()).unwrap()
}

fn word(iface: &Iface<Dev>) -> Mem<Dev> {
    iface.md().alloc(&AllocReq::new(8, "word")).unwrap()
}

fn rkey(owner: &Iface<Dev>, mem: &Mem<Dev>) -> Rkey {
    owner.md().unpack_rkey(&owner.md().pack_rkey(mem).unwrap()).unwrap()
}

fn until(sides: [&Iface<Dev>; 2], mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "nothing happens any more");
        sides.iter().for_each(|side| _ = side.progress(64));
        std::thread::yield_now();
    }
}

/// Writes with immediate from `from` to a queue pair of `to`, more often than its queue has receives.
fn write_with_immediate(from: &Iface<Dev>, to: &Iface<Dev>, at: AmoAddr) {
    let AmoAddr { gid, qpn, qkey } = at;
    let ep = from.connect_raw(&RawAddr { gid, qpn, connid: qkey }).unwrap();
    let mem = word(to);
    let (key, addr) = (rkey(to, &mem), mem.addr() as u64);
    let mut left = 300;
    until([from, to], || {
        // SAFETY: nothing is written.
        let written = unsafe { ep.put_imm(&[], addr, &key, 7, Comp::None) };
        left -= u32::from(written == Ok(Sent::InProgress));
        left == 0
    });
    until([from, to], || ep.flush(Comp::None) == Ok(Sent::Done));
}

#[test]
fn writes_with_immediate_take_no_receive_from_atomics() {
    let (a, b) = (open(), open());
    let to_b = a.connect_raw(&b.raw_addr()).unwrap();
    let _to_a = b.connect_raw(&a.raw_addr()).unwrap();
    let mem = word(&b);
    let (key, addr) = (rkey(&b, &mem), mem.addr() as u64);
    let add = || {
        assert_eq!(to_b.atomic_post(AtomicOp::Add, 1u64, addr, &key), Ok(Sent::Done));
        until([&a, &b], || to_b.flush(Comp::None) == Ok(Sent::Done));
    };
    add();
    let (_, server) = key.amo_covering(addr, 8).unwrap();
    write_with_immediate(&a, &b, server);
    add();
    let client = a.inner.amo.get().unwrap().addr;
    write_with_immediate(&b, &a, client);
    (0..300).for_each(|_| add());
    // SAFETY: the word is registered, and no operation is on its way.
    assert_eq!(unsafe { mem.addr().cast::<u64>().read() }, 302);
    assert_eq!((a.stats().write_imm, b.stats().write_imm), (0, 0), "the main queue pairs got none");
}

#[test]
fn a_request_that_fails_late_ends_no_other_operation() {
    let iface = open();
    let client = iface.inner.amo_client().unwrap();
    let kind = AmoKind::Op(AtomicOp::Add);
    let wanted = Wanted { kind, width: 8, value: 1, compare: 0, result: None };
    let answered = client.begin(0, 1, &wanted);
    assert!(client.take(1, Some(answered.generation)).is_some());
    let other = client.begin(2, 1, &wanted);
    iface.inner.amo_request_done(0, Err(Error::Unresponsive));
    assert_eq!(client.waiting(), [1]);
    assert!(client.take(1, Some(other.generation)).is_some());
}
