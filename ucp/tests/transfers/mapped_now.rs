//! Operations that end in their call on mapped memory, or do nothing: what they refuse, and that the general
//! calls then do it, or tell why not.

use crate::common::Pair;
use ucp::{
    Access, AtomicOp, CloseMode, Ep, Error, Mem, Rkey, TAG_MASK_FULL, atomic_now_raw, get_now_raw,
    put_now_raw,
};

const LEN: usize = 4096;
const MAPPED: [&str; 4] = ["posix", "self", "apart posix", "shared posix"];

struct Target {
    pair: Pair,
    mem: Mem,
    rkey: Rkey,
}

impl Target {
    fn on(tls: &str, access: Access) -> Target {
        let pair = Pair::on(tls);
        let mem = pair.b.mem_alloc(LEN, access).unwrap();
        let rkey = pair.ab.unpack_rkey(&mem.pack_rkey()).unwrap();
        Target { pair, mem, rkey }
    }

    fn put(&self, bytes: &[u8], at: u64) -> bool {
        put((&self.pair.ab, &self.rkey), bytes, at)
    }

    fn get(&self, bytes: &mut [u8], at: u64) -> bool {
        get((&self.pair.ab, &self.rkey), bytes, at)
    }

    fn add(&self, size: usize, with: u64, at: u64) -> Option<u64> {
        add((&self.pair.ab, &self.rkey), size, with, at)
    }

    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut got = vec![0; len];
        self.mem.read(at, &mut got);
        got
    }
}

fn put((ep, rkey): (&Ep, &Rkey), bytes: &[u8], at: u64) -> bool {
    // SAFETY: the bytes are borrowed, and the program's own.
    unsafe { put_now_raw(ep, bytes.as_ptr(), bytes.len(), at, rkey) }
}

fn get((ep, rkey): (&Ep, &Rkey), bytes: &mut [u8], at: u64) -> bool {
    // SAFETY: as in `put`.
    unsafe { get_now_raw(ep, bytes.as_mut_ptr(), bytes.len(), at, rkey) }
}

fn add((ep, rkey): (&Ep, &Rkey), size: usize, with: u64, at: u64) -> Option<u64> {
    atomic((ep, rkey), (AtomicOp::Sum, size), (with, 0), at)
}

/// Returns the old value.
fn atomic(
    (ep, rkey): (&Ep, &Rkey),
    op: (AtomicOp, usize),
    (operand, compare): (u64, u64),
    at: u64,
) -> Option<u64> {
    let mut old = 0u64;
    let operands = [(&raw const operand).cast(), (&raw const compare).cast()];
    // SAFETY: the words are locals.
    unsafe { atomic_now_raw(ep, op, operands, (&raw mut old).cast(), at, rkey) }.then_some(old)
}

#[test]
fn what_the_key_covers_is_written_read_and_added_to() {
    for tls in MAPPED {
        let t = Target::on(tls, Access::all());
        let at = t.mem.addr();
        for len in [0, 1, 4, 8, 9, 500, LEN] {
            let sent: Vec<u8> = (0..len).map(|n| (n * 7 + len) as u8).collect();
            assert!(t.put(&sent, at), "{tls} {len}");
            assert_eq!(t.bytes(0, len), sent, "{tls}");
            let mut got = vec![0; len];
            assert!(t.get(&mut got, at) && got == sent, "{tls} {len}");
        }
        assert!(t.put(&[], at + LEN as u64), "nothing at the end");
        assert!(t.put(&7u64.to_ne_bytes(), at + 13), "a word across words");
        assert_eq!(t.bytes(13, 8), 7u64.to_ne_bytes());
        assert!(t.put(&[0xff; 16], at));
        assert_eq!((t.add(4, 2, at), t.add(8, 1, at + 8)), (Some(0xffff_ffff), Some(u64::MAX)));
        assert_eq!(t.bytes(0, 16), [&[1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff], &[0; 8][..]].concat());
    }
}

#[test]
fn every_operation_on_a_word_returns_what_was_there() {
    let t = Target::on("posix", Access::all());
    let at = t.mem.addr() + 16;
    for (size, all) in [(4, u64::from(u32::MAX)), (8, u64::MAX)] {
        assert!(t.put(&[0; 8], at));
        let run = |op, operands| atomic((&t.pair.ab, &t.rkey), (op, size), operands, at);
        assert_eq!(run(AtomicOp::Write, (all, 0)), Some(0));
        assert_eq!(run(AtomicOp::BitAnd, (0xf0, 0)), Some(all));
        assert_eq!(run(AtomicOp::BitOr, (0x0f, 0)), Some(0xf0));
        assert_eq!(run(AtomicOp::BitXor, (0x3c, 0)), Some(0xff));
        assert_eq!(run(AtomicOp::Sum, (1, 0)), Some(0xc3));
        assert_eq!(run(AtomicOp::CompareSwap, (5, 0xc3)), Some(0xc4));
        assert_eq!(run(AtomicOp::CompareSwap, (5, 0xc4)), Some(0xc4));
        assert_eq!(run(AtomicOp::Read, (9, 9)), Some(5));
        assert_eq!(run(AtomicOp::Max, (9, 9)), None);
        assert_eq!(t.mem.word(16), 5);
    }
    for size in [0, 1, 2, 3, 16, usize::MAX] {
        assert_eq!(t.add(size, 1, at), None, "{size}");
    }
}

#[test]
fn ranges_and_rights_are_those_of_the_key() {
    for tls in MAPPED {
        let t = Target::on(tls, Access::all());
        let (at, end) = (t.mem.addr(), t.mem.addr() + LEN as u64);
        for (from, len) in
            [(at - 1, 1), (at - 8, 8), (end, 1), (end - 7, 8), (end + 1, 0), (0, 8), (u64::MAX, 2)]
        {
            assert!(!t.put(&vec![9; len], from) && !t.get(&mut vec![9; len], from), "{tls} {from:#x}+{len}");
            let by_call = t.pair.ab.put(vec![9; len], from, &t.rkey).wait().0;
            assert_eq!(by_call, Err(Error::RemoteAccess(t.pair.ab.peer())), "{tls}");
        }
        assert_eq!(
            (t.add(8, 1, end), t.add(8, 1, end - 4), t.add(8, 1, at + 4), t.add(4, 1, at + 2)),
            Default::default()
        );
        assert_eq!(t.bytes(0, LEN), [0; LEN], "{tls}");
        for (access, may) in [
            (Access::READ, [true, false, false]),
            (Access::WRITE, [false, true, false]),
            (Access::ATOMIC, [false, false, true]),
        ] {
            let t = Target::on(tls, access);
            let at = t.mem.addr();
            let did = [t.get(&mut [0; 8], at), t.put(&[1; 8], at), t.add(8, 1, at).is_some()];
            assert_eq!(did, may, "{tls} {access:?}");
        }
    }
}

/// A key of the worker's own memory is revoked with the memory. Another worker's stays mapped.
#[test]
fn a_revoked_key_gives_nothing() {
    let Target { pair, mem, rkey } = Target::on("self", Access::all());
    let at = mem.addr();
    drop(mem);
    let by = (&pair.ab, &rkey);
    assert!(!put(by, &[1; 8], at) && !get(by, &mut [0; 8], at) && add(by, 8, 1, at).is_none());
    let by_call = pair.ab.put(vec![1; 8], at, &rkey).wait().0;
    assert_eq!(by_call, Err(Error::RemoteAccess(pair.ab.peer())));
}

/// Operations queued for the peer, and a fence behind them, come first.
#[test]
fn nothing_overtakes_what_is_queued() {
    for tls in ["posix", "apart posix"] {
        let t = Target::on(tls, Access::all());
        let at = t.mem.addr();
        let by_packets = Rkey::from_key(t.mem.key());
        let messages: Vec<_> = (0..4000).map(|_| t.pair.ab.tag_send(1, vec![0; 8])).collect();
        let first = t.pair.ab.put(vec![1; 8], at, &by_packets);
        t.pair.ab.fence();
        assert!(!t.put(&[2; 8], at) && !t.get(&mut [0; 8], at) && t.add(8, 1, at).is_none(), "{tls}");
        let second = t.pair.ab.put(vec![3; 8], at, &t.rkey);
        let recvs: Vec<_> =
            messages.iter().map(|_| t.pair.b.tag_recv(1, TAG_MASK_FULL, vec![0; 8])).collect();
        t.pair.until(|| messages.iter().all(|it| it.is_done()) && first.is_done() && second.is_done());
        assert_eq!((first.wait().0, second.wait().0), (Ok(()), Ok(())));
        t.pair.until(|| recvs.iter().all(|it| it.is_done()));
        let flush = t.pair.ab.flush();
        t.pair.until(|| flush.is_done());
        assert_eq!(t.bytes(0, 8), [3; 8], "{tls}");
        assert!(t.put(&[2; 8], at), "{tls}: the queue is empty");
    }
}

#[test]
fn closed_endpoints_and_other_transports_do_nothing() {
    let t = Target::on("efa", Access::all());
    let at = t.mem.addr();
    assert!(!t.put(&[2; 8], at) && !t.get(&mut [0; 8], at) && t.add(8, 1, at).is_none());
    let t = Target::on("posix", Access::all());
    let by_number = Rkey::from_key(t.mem.key());
    assert!(!put((&t.pair.ab, &by_number), &[1; 8], t.mem.addr()));
    // SAFETY: there is no callback.
    let closed = unsafe { t.pair.ab.close_raw(CloseMode::Force, None) };
    assert!(closed.is_ok() && !t.put(&[2; 8], t.mem.addr()));
}
