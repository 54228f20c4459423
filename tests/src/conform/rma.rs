//! Put and get: contents at every boundary size, and no access beyond a key.

use super::{Log, Pair, bytes, sizes};
use std::cell::RefCell;
use std::rc::Rc;
use uct::api::{
    Access, AllocReq, Caps, Comp, Ep, Error, Iface, Iov, Md, Memory, Outcome, RemoteIov, RmaLimits, Sent,
};

/// Longest transfer tried where the interface has no limit.
const LONG: usize = 100_000;
const GUARD: usize = 64;

pub(super) struct Target<I: Iface> {
    pub mem: <I::Md as Md>::Mem,
    pub rkey: <I::Md as Md>::Rkey,
    pub at: u64,
}

pub(super) fn target<I: Iface>(p: &Pair<I>, len: usize, access: Access) -> Target<I> {
    let mem = p.b.md().alloc(&AllocReq { access, ..AllocReq::new(len, "target") }).unwrap();
    let rkey = p.a.md().unpack_rkey(&p.b.md().pack_rkey(&mem).unwrap()).unwrap();
    let at = mem.addr().addr() as u64;
    Target { mem, rkey, at }
}

pub(super) fn read<M: Memory>(mem: &M, from: usize, len: usize) -> Vec<u8> {
    assert!(from + len <= mem.len());
    let mut out = vec![0; len];
    // SAFETY: inside the memory, and the operations that write it have completed.
    unsafe { std::ptr::copy_nonoverlapping(mem.addr().wrapping_add(from), out.as_mut_ptr(), len) };
    out
}

pub(super) fn write<M: Memory>(mem: &M, at: usize, data: &[u8]) {
    assert!(at + data.len() <= mem.len());
    // SAFETY: inside the memory, which no operation uses at this moment.
    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), mem.addr().wrapping_add(at), data.len()) };
}

fn lens(limits: RmaLimits, max: usize) -> Vec<usize> {
    let mut all = sizes(max.min(LONG));
    all.retain(|&n| n >= limits.min_zcopy);
    all
}

/// Puts of every size by every method.
pub fn put_of_every_size<I: Iface>(p: &Pair<I>) {
    let (caps, put) = (p.a.attr().caps, p.a.attr().put);
    if !caps.intersects(Caps::PUT_SHORT | Caps::PUT_BCOPY | Caps::PUT_ZCOPY) {
        return;
    }
    let t = target(p, LONG + 2 * GUARD, Access::ALL);
    let check = |len: usize, data: &[u8]| {
        assert_eq!(p.finish(|comp| p.ab.flush(comp)), Ok(()));
        assert!(read(&t.mem, GUARD, len) == data, "{len} bytes put");
        assert!(read(&t.mem, 0, GUARD).iter().chain(&read(&t.mem, GUARD + len, GUARD)).all(|b| *b == 0));
        write(&t.mem, GUARD, &vec![0; len]);
    };
    let (mut a, mut b) = (Log::default(), Log::default());
    let to = t.at + GUARD as u64;
    if caps.contains(Caps::PUT_SHORT) {
        for len in sizes(put.max_short.min(LONG)) {
            let data = bytes(1, len);
            p.retry(&mut a, &mut b, || p.ab.put_short(&data, to, &t.rkey)).map(drop).unwrap();
            check(len, &data);
        }
    }
    if caps.contains(Caps::PUT_BCOPY) {
        for len in sizes(put.max_bcopy.min(LONG)) {
            let data = bytes(2, len);
            let pack = |slot: &mut [u8]| {
                slot[..len].copy_from_slice(&data);
                len
            };
            assert_eq!(p.retry(&mut a, &mut b, || p.ab.put_bcopy(len, pack, to, &t.rkey)), Ok(len));
            check(len, &data);
        }
    }
    if caps.contains(Caps::PUT_ZCOPY) {
        let local = p.a.md().alloc(&AllocReq::new(LONG, "local")).unwrap();
        for len in lens(put, put.max_zcopy) {
            let data = bytes(3, len);
            write(&local, 0, &data);
            let iov = [Iov::new(local.addr(), len, Some(&local))];
            // SAFETY: `local` lives until the completion that `finish` waits for.
            assert_eq!(p.finish(|comp| unsafe { p.ab.put_zcopy(&iov, to, &t.rkey, comp) }), Ok(()));
            check(len, &data);
        }
    }
}

/// Gets of every size by every method.
pub fn get_of_every_size<I: Iface>(p: &Pair<I>) {
    let (caps, get) = (p.a.attr().caps, p.a.attr().get);
    if !caps.intersects(Caps::GET_SHORT | Caps::GET_BCOPY | Caps::GET_ZCOPY) {
        return;
    }
    let t = target(p, LONG, Access::ALL);
    let all = bytes(4, LONG);
    write(&t.mem, 0, &all);
    let (mut a, mut b) = (Log::default(), Log::default());
    if caps.contains(Caps::GET_SHORT) {
        for len in sizes(get.max_short.min(LONG)) {
            let mut out = vec![0; len];
            p.retry(&mut a, &mut b, || p.ab.get_short(&mut out, t.at, &t.rkey)).map(drop).unwrap();
            assert!(out == all[..len]);
        }
    }
    if caps.contains(Caps::GET_BCOPY) {
        for len in sizes(get.max_bcopy.min(LONG)) {
            let got = Rc::new(RefCell::new(None));
            let call = |comp| {
                let got = got.clone();
                let unpack = move |bytes: &[u8]| assert!(got.replace(Some(bytes.to_vec())).is_none());
                p.ab.get_bcopy(len, unpack, t.at, &t.rkey, comp)
            };
            assert_eq!(p.finish(call), Ok(()));
            assert!(got.borrow().as_deref() == Some(&all[..len]));
        }
    }
    if caps.contains(Caps::GET_ZCOPY) {
        for len in lens(get, get.max_zcopy) {
            let local = p.a.md().alloc(&AllocReq::new(len + GUARD, "local")).unwrap();
            let iov = [Iov::new(local.addr(), len, Some(&local))];
            // SAFETY: `local` lives until the completion that `finish` waits for.
            assert_eq!(p.finish(|comp| unsafe { p.ab.get_zcopy(&iov, t.at, &t.rkey, comp) }), Ok(()));
            assert!(read(&local, 0, len) == all[..len]);
            assert!(read(&local, len, GUARD).iter().all(|b| *b == 0));
        }
    }
}

fn run_to_end<I: Iface>(p: &Pair<I>, mut call: impl FnMut(Comp) -> Outcome) -> Result<(), Error> {
    let (mut at_a, mut at_b) = (Log::default(), Log::default());
    let sent = p.retry(&mut at_a, &mut at_b, || call(Comp::Token(1)))?;
    let flush = match sent {
        Sent::InProgress => sent,
        Sent::Done => p.retry(&mut at_a, &mut at_b, || p.ab.flush(Comp::Token(2)))?,
    };
    for _ in 0..200_000 {
        if flush == Sent::Done || !at_a.comps.is_empty() || !at_b.comps.is_empty() {
            break;
        }
        p.poll_both(&mut at_a, &mut at_b);
    }
    at_a.comps.append(&mut at_b.comps);
    at_a.errors.append(&mut at_b.errors);
    assert_eq!(at_a.comps.len(), usize::from(flush == Sent::InProgress), "{:?}", at_a.comps);
    at_a.errors.first().map_or(Ok(()), |(_, e)| Err(*e))?;
    at_a.comps.first().map_or(Ok(()), |(_, result)| *result)
}

fn each_put_method<I: Iface>(
    p: &Pair<I>,
    t: &Target<I>,
    (at, len): (u64, usize),
    mut check: impl FnMut(&str, Result<(), Error>),
) {
    let (caps, put) = (p.a.attr().caps, p.a.attr().put);
    let local = p.a.md().alloc(&AllocReq::new(len, "local")).unwrap();
    write(&local, 0, &vec![9; len]);
    let iov = [Iov::new(local.addr(), len, Some(&local))];
    if caps.contains(Caps::PUT_SHORT) && len <= put.max_short {
        check("put_short", run_to_end(p, |_| p.ab.put_short(&vec![9; len], at, &t.rkey)));
    }
    if caps.contains(Caps::PUT_BCOPY) && len <= put.max_bcopy {
        let pack = |slot: &mut [u8]| {
            slot[..len].fill(9);
            len
        };
        check("put_bcopy", run_to_end(p, |_| p.ab.put_bcopy(len, pack, at, &t.rkey).map(|_| Sent::Done)));
    }
    if caps.contains(Caps::PUT_ZCOPY) && (put.min_zcopy..=put.max_zcopy).contains(&len) {
        // SAFETY: `local` lives until the end that is waited for.
        check("put_zcopy", run_to_end(p, |comp| unsafe { p.ab.put_zcopy(&iov, at, &t.rkey, comp) }));
    }
    if caps.contains(Caps::PUT_SGL) {
        let remote = [RemoteIov::new(at, len, &t.rkey)];
        // SAFETY: as above.
        check("put_sgl", run_to_end(p, |comp| unsafe { p.ab.put_sgl(&iov, &remote, comp) }));
    }
    if caps.contains(Caps::PUT_IMM) {
        // SAFETY: as above.
        check("put_imm", run_to_end(p, |comp| unsafe { p.ab.put_imm(&iov, at, &t.rkey, 1, comp) }));
    }
}

/// Reads by every method; the bytes read must be `byte`, or unchanged if it fails.
fn each_get_method<I: Iface>(
    p: &Pair<I>,
    t: &Target<I>,
    (at, len): (u64, usize),
    byte: u8,
    mut check: impl FnMut(&str, Result<(), Error>),
) {
    let (caps, get) = (p.a.attr().caps, p.a.attr().get);
    let local = p.a.md().alloc(&AllocReq::new(len, "local")).unwrap();
    let iov = [Iov::new(local.addr(), len, Some(&local))];
    let mut ended = |name: &str, result: Result<(), Error>| {
        let want = if result.is_ok() { byte } else { 0 };
        assert!(read(&local, 0, len).iter().all(|b| *b == want), "{name}: {result:?}");
        write(&local, 0, &vec![0; len]);
        check(name, result);
    };
    if caps.contains(Caps::GET_ZCOPY) && (get.min_zcopy..=get.max_zcopy).contains(&len) {
        // SAFETY: `local` lives until the end that is waited for.
        ended("get_zcopy", run_to_end(p, |comp| unsafe { p.ab.get_zcopy(&iov, at, &t.rkey, comp) }));
    }
    if caps.contains(Caps::GET_SGL) {
        let remote = [RemoteIov::new(at, len, &t.rkey)];
        // SAFETY: as above.
        ended("get_sgl", run_to_end(p, |comp| unsafe { p.ab.get_sgl(&iov, &remote, comp) }));
    }
    if caps.contains(Caps::GET_SHORT) && len <= get.max_short {
        let mut out = vec![0; len];
        let result = run_to_end(p, |_| p.ab.get_short(&mut out, at, &t.rkey));
        assert!(out.iter().all(|b| *b == if result.is_ok() { byte } else { 0 }));
        check("get_short", result);
    }
    if caps.contains(Caps::GET_BCOPY) && len <= get.max_bcopy {
        let got = Rc::new(RefCell::new(None));
        let call = |comp| {
            let got = got.clone();
            p.ab.get_bcopy(len, move |bytes: &[u8]| _ = got.replace(Some(bytes.to_vec())), at, &t.rkey, comp)
        };
        let result = run_to_end(p, call);
        assert_eq!(got.take(), result.is_ok().then(|| vec![byte; len]), "get_bcopy");
        check("get_bcopy", result);
    }
}

/// Access outside the key fails by every method and changes nothing; the last byte is inside.
pub fn out_of_range_access_is_rejected<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().caps.intersects(PUTS | GETS) {
        return;
    }
    const LEN: usize = 4096;
    let t = target(p, LEN, Access::ALL);
    let end = t.at + LEN as u64;
    for range in [
        (t.at - 1, 1),
        (t.at - 1, 8),
        (end, 1),
        (end - 7, 8),
        (0, 8),
        (u64::MAX - 3, 8),
        (end - 1, 2),
        (t.at, LEN + 1),
    ] {
        let refused = |name: &str, result| assert_eq!(result, Err(Error::RemoteAccess), "{name} {range:x?}");
        each_put_method(p, &t, range, refused);
        each_get_method(p, &t, range, 0, refused);
    }
    assert!(read(&t.mem, 0, LEN).iter().all(|b| *b == 0));
    let good = |name: &str, result| assert_eq!(result, Ok(()), "{name}");
    each_put_method(p, &t, (end - 1, 1), |name, result| {
        good(name, result);
        assert_eq!(read(&t.mem, LEN - 2, 2), [0, 9], "{name}");
        write(&t.mem, LEN - 1, &[0]);
    });
    write(&t.mem, LEN - 1, &[7]);
    each_get_method(p, &t, (end - 1, 1), 7, good);
    if p.a.attr().has(Caps::PUT_SHORT) {
        p.ab.put_short(&[], end, &t.rkey).map(drop).unwrap();
    }
    assert_eq!(p.finish(|comp| p.ab.flush(comp)), Ok(()));
}

const PUTS: Caps = Caps::PUT_SHORT.union(Caps::PUT_BCOPY).union(Caps::PUT_ZCOPY).union(Caps::PUT_SGL);
const GETS: Caps = Caps::GET_SHORT.union(Caps::GET_BCOPY).union(Caps::GET_ZCOPY).union(Caps::GET_SGL);

/// Read keys do not write and write keys do not read, by any method.
pub fn access_is_enforced<I: Iface>(p: &Pair<I>) {
    let caps = p.a.attr().caps;
    if !caps.intersects(PUTS) || !caps.intersects(GETS) {
        return;
    }
    let denied = |name: &str, result| assert_eq!(result, Err(Error::RemoteAccess), "{name}");
    let good = |name: &str, result| assert_eq!(result, Ok(()), "{name}");
    let t = target(p, 64, Access::LOCAL_WRITE | Access::REMOTE_READ);
    each_put_method(p, &t, (t.at, 8), denied);
    each_get_method(p, &t, (t.at, 8), 0, good);
    assert_eq!(read(&t.mem, 0, 64), [0; 64]);
    let t = target(p, 64, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    write(&t.mem, 0, &[3; 64]);
    each_get_method(p, &t, (t.at, 8), 3, denied);
    each_put_method(p, &t, (t.at, 8), good);
    assert_eq!(read(&t.mem, 0, 9), [9, 9, 9, 9, 9, 9, 9, 9, 3]);
    if caps.contains(Caps::ATOMIC) {
        let denied = Some(uct::api::Refused::Failed(Error::RemoteAccess));
        assert_eq!(p.ab.atomic_post(uct::api::AtomicOp::Add, 1u64, t.at, &t.rkey).err(), denied);
    }
}

/// Cuts `len` bytes into disjoint blocks in order: offset, block length, stride, count.
fn blocks(len: usize, seed: u64) -> Vec<(usize, usize, usize, usize)> {
    let mut rng = crate::rng::Rng::new(seed, 0);
    let (mut all, mut at, mut left) = (Vec::new(), 0, len);
    while left > 0 && all.len() < 5 {
        let block = 1 + rng.below(40.min(left as u64)) as usize;
        let count = 1 + rng.below(4.min((left / block) as u64)) as usize;
        let stride = block + rng.below(3) as usize * 7;
        all.push((at, block, stride, count));
        at += stride * count + rng.below(9) as usize;
        left -= block * count;
    }
    if left > 0 {
        all.push((at, left, 0, 1));
    }
    all
}

fn offsets(blocks: &[(usize, usize, usize, usize)]) -> Vec<usize> {
    let block = |at: usize, len: usize| at..at + len;
    blocks
        .iter()
        .flat_map(|&(at, len, stride, n)| (0..n).flat_map(move |k| block(at + k * stride, len)))
        .collect()
}

/// Strided blocks and scatter lists, put and get, against a model.
pub fn strides_and_scatter_lists<I: Iface>(p: &Pair<I>) {
    let caps = p.a.attr().caps;
    const ROOM: usize = 8192;
    let t = target(p, ROOM, Access::ALL);
    let other = target(p, ROOM, Access::ALL);
    let local = p.a.md().alloc(&AllocReq::new(ROOM, "local")).unwrap();
    let (at_a, at_b) = (bytes(1, ROOM), bytes(2, ROOM));
    for round in 0..40 {
        let len = [0, 1, 16, 100, 333, 700][round as usize % 6];
        let (mine, theirs) = (blocks(len, 100 + round), blocks(len, 900 + round));
        let iov: Vec<_> = mine
            .iter()
            .map(|&(at, len, stride, count)| Iov {
                addr: local.addr().wrapping_add(at),
                len,
                stride,
                count,
                mem: Some(&local),
            })
            .collect();
        let remote: Vec<_> = theirs
            .iter()
            .enumerate()
            .map(|(n, &(at, len, stride, count))| {
                let t = if n % 2 == 0 { &t } else { &other };
                RemoteIov { addr: t.at + at as u64, len, stride: stride as u64, count, rkey: &t.rkey }
            })
            .collect();
        let (from, to) = (offsets(&mine), offsets(&theirs));
        let owner: Vec<_> = (0..theirs.len()).flat_map(|n| vec![n % 2; theirs[n].1 * theirs[n].3]).collect();
        let fresh = || {
            write(&local, 0, &at_a);
            write(&t.mem, 0, &at_b);
            write(&other.mem, 0, &at_b);
        };
        let both = || [read(&t.mem, 0, ROOM), read(&other.mem, 0, ROOM)];
        if caps.contains(Caps::PUT_SGL) {
            fresh();
            // SAFETY: `local` lives until the completion that `finish` waits for.
            assert_eq!(p.finish(|comp| unsafe { p.ab.put_sgl(&iov, &remote, comp) }), Ok(()));
            assert_eq!(p.finish(|comp| p.ab.flush(comp)), Ok(()));
            let mut want = [at_b.clone(), at_b.clone()];
            for n in 0..len {
                want[owner[n]][to[n]] = at_a[from[n]];
            }
            assert!(both() == want, "put_sgl, round {round}");
        }
        if caps.contains(Caps::GET_SGL) {
            fresh();
            // SAFETY: as above.
            assert_eq!(p.finish(|comp| unsafe { p.ab.get_sgl(&iov, &remote, comp) }), Ok(()));
            let mut want = at_a.clone();
            for n in 0..len {
                want[from[n]] = at_b[to[n]];
            }
            assert!(read(&local, 0, ROOM) == want, "get_sgl, round {round}");
        }
        if caps.contains(Caps::PUT_ZCOPY) {
            fresh();
            // SAFETY: as above.
            assert_eq!(p.finish(|comp| unsafe { p.ab.put_zcopy(&iov, t.at + 50, &t.rkey, comp) }), Ok(()));
            assert_eq!(p.finish(|comp| p.ab.flush(comp)), Ok(()));
            let mut want = at_b.clone();
            for n in 0..len {
                want[50 + n] = at_a[from[n]];
            }
            assert!(read(&t.mem, 0, ROOM) == want, "strided put, round {round}");
        }
        if caps.contains(Caps::GET_ZCOPY) {
            fresh();
            // SAFETY: as above.
            assert_eq!(p.finish(|comp| unsafe { p.ab.get_zcopy(&iov, t.at + 50, &t.rkey, comp) }), Ok(()));
            let mut want = at_a.clone();
            for n in 0..len {
                want[from[n]] = at_b[50 + n];
            }
            assert!(read(&local, 0, ROOM) == want, "strided get, round {round}");
        }
    }
}

/// `put_sgl` is rejected as a whole if one block is out of range or lengths differ.
pub fn put_sgl_is_checked_whole<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::PUT_SGL) {
        return;
    }
    let t = target(p, 64, Access::ALL);
    let local = p.a.md().alloc(&AllocReq::new(64, "local")).unwrap();
    write(&local, 0, &[9; 64]);
    let iov = [Iov::new(local.addr(), 32, Some(&local))];
    let piece = |at, len| RemoteIov::new(t.at + at, len, &t.rkey);
    // SAFETY: the calls are refused.
    let put = |remote: &[_]| unsafe { p.ab.put_sgl(&iov, remote, Comp::None) };
    assert_eq!(put(&[piece(0, 16), piece(49, 16)]).err(), Some(Error::RemoteAccess.into()));
    for remote in [&[piece(0, 16)][..], &[piece(0, 16), piece(16, 17)], &[]] {
        assert!(matches!(put(remote), Err(uct::api::Refused::Failed(Error::InvalidParam(_)))));
    }
    let many = vec![piece(0, 1); p.a.attr().put.max_remote + 1];
    assert!(put(&many).is_err());
    assert_eq!(p.finish(|comp| p.ab.flush(comp)), Ok(()));
    assert_eq!(read(&t.mem, 0, 64), [0; 64]);
}

/// Each immediate arrives once, behind its bytes, with source and length.
pub fn immediates_arrive_with_their_writes<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::PUT_IMM) {
        return;
    }
    const COUNT: u32 = 100;
    let t = target(p, 64 * COUNT as usize, Access::ALL);
    let local = p.a.md().alloc(&AllocReq::new(64, "local")).unwrap();
    let len = |n: u32| (n as usize * 5) % 65;
    let (mut a, mut b) = (Log::default(), Log::default());
    for n in 0..COUNT {
        write(&local, 0, &[n as u8 + 1; 64]);
        let iov = [Iov::new(local.addr(), len(n), Some(&local))];
        let iov = if len(n) > 0 { &iov[..] } else { &[] };
        let at = t.at + 64 * u64::from(n);
        let before = a.comps.len() + b.comps.len();
        // SAFETY: `local` lives, and is left alone until the completion below.
        let put = || unsafe { p.ab.put_imm(iov, at, &t.rkey, 1000 + n, Comp::Token(5)) };
        if p.retry(&mut a, &mut b, put).unwrap() == uct::api::Sent::InProgress {
            while a.comps.len() + b.comps.len() == before {
                p.poll_both(&mut a, &mut b);
            }
        }
    }
    for _ in 0..200_000 {
        if a.imms.len() + b.imms.len() == COUNT as usize {
            break;
        }
        p.poll_both(&mut a, &mut b);
    }
    b.imms.append(&mut a.imms);
    b.comps.append(&mut a.comps);
    assert!(b.comps.iter().all(|comp| *comp == (5, Ok(()))), "{:?}", b.comps);
    b.imms.sort_by_key(|imm| imm.value);
    assert_eq!(b.imms.len(), COUNT as usize);
    for (n, imm) in (0..COUNT).zip(&b.imms) {
        assert_eq!((imm.value, imm.len, imm.source), (1000 + n, len(n), b.imms[0].source));
        assert!(read(&t.mem, 64 * n as usize, len(n)).iter().all(|byte| *byte == n as u8 + 1));
    }
    let seen = Rc::new(RefCell::new(Vec::new()));
    let log = seen.clone();
    p.b.set_imm_handler(Some(Box::new(move |imm| log.borrow_mut().push(imm.value))));
    // SAFETY: no memory is read.
    let put = || unsafe { p.ab.put_imm(&[], t.at, &t.rkey, 7, Comp::None) };
    p.retry(&mut a, &mut b, put).map(drop).unwrap();
    for _ in 0..100_000 {
        p.progress();
    }
    assert_eq!(*seen.borrow(), [7]);
}
