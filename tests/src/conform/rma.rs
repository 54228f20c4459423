//! Put and get: contents at every boundary size, and nothing outside what a key allows.

use super::{Log, Pair, bytes, sizes};
use std::cell::RefCell;
use std::rc::Rc;
use uct::api::{Access, AllocReq, Caps, Comp, Ep, Error, Iface, Iov, Md, Memory, RmaLimits};

/// Longest transfer tried where the attribute knows no limit.
const LONG: usize = 100_000;
/// Bytes of guard on either side of what is written.
const GUARD: usize = 64;

/// Memory of `b`, its key at `a`, and where it is.
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

fn read<M: Memory>(mem: &M, from: usize, len: usize) -> Vec<u8> {
    assert!(from + len <= mem.len());
    let mut out = vec![0; len];
    // SAFETY: inside the memory, and the operations that write it have completed.
    unsafe { std::ptr::copy_nonoverlapping(mem.addr().wrapping_add(from), out.as_mut_ptr(), len) };
    out
}

fn write<M: Memory>(mem: &M, at: usize, data: &[u8]) {
    assert!(at + data.len() <= mem.len());
    // SAFETY: inside the memory, which no operation uses at this moment.
    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), mem.addr().wrapping_add(at), data.len()) };
}

fn lens(limits: RmaLimits, max: usize) -> Vec<usize> {
    let mut all = sizes(max.min(LONG));
    all.retain(|&n| n >= limits.min_zcopy);
    all
}

/// Every way to put that there is.
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

/// Every way to get that there is.
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

/// Ranges that leave the key are errors, and change nothing.
pub fn nothing_outside_the_key<I: Iface>(p: &Pair<I>) {
    let caps = p.a.attr().caps;
    if !caps.intersects(Caps::PUT_SHORT | Caps::GET_SHORT) {
        return;
    }
    const LEN: usize = 4096;
    let t = target(p, LEN, Access::ALL);
    let end = t.at + LEN as u64;
    for (at, len) in [
        (t.at - 1, 1),
        (t.at - 1, 8),
        (end, 1),
        (end - 7, 8),
        (0, 8),
        (u64::MAX - 3, 8),
        (end - 1, 2),
        (t.at, LEN + 1),
    ] {
        let denied = Some(uct::api::Refused::Failed(Error::RemoteAccess));
        let data = vec![1; len];
        if caps.contains(Caps::PUT_SHORT) {
            assert_eq!(p.ab.put_short(&data, at, &t.rkey).err(), denied, "put {len} at {at:#x}");
        }
        if caps.contains(Caps::PUT_BCOPY) {
            assert_eq!(p.ab.put_bcopy(len, |_| len, at, &t.rkey).err(), denied);
        }
        if caps.contains(Caps::GET_SHORT) {
            let mut out = data.clone();
            assert_eq!(p.ab.get_short(&mut out, at, &t.rkey).err(), denied);
            assert_eq!(out, data);
        }
        if caps.contains(Caps::PUT_ZCOPY) {
            let iov = [Iov::new(data.as_ptr(), len, None)];
            // SAFETY: the call is refused at once on wires that have `put_short`.
            assert_eq!(unsafe { p.ab.put_zcopy(&iov, at, &t.rkey, Comp::None) }.err(), denied);
        }
    }
    assert!(read(&t.mem, 0, LEN).iter().all(|b| *b == 0));
    p.ab.put_short(&[], end, &t.rkey).map(drop).unwrap();
    p.ab.put_short(&[5], end - 1, &t.rkey).map(drop).unwrap();
    assert_eq!(read(&t.mem, LEN - 1, 1), [5]);
}

/// A key for reading does not write.
pub fn access_is_enforced<I: Iface>(p: &Pair<I>) {
    let caps = p.a.attr().caps;
    if !caps.contains(Caps::PUT_SHORT | Caps::GET_SHORT) {
        return;
    }
    let denied = Some(uct::api::Refused::Failed(Error::RemoteAccess));
    let t = target(p, 64, Access::LOCAL_WRITE | Access::REMOTE_READ);
    assert_eq!(p.ab.put_short(&[1], t.at, &t.rkey).err(), denied);
    p.ab.get_short(&mut [0], t.at, &t.rkey).map(drop).unwrap();
    let t = target(p, 64, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    assert_eq!(p.ab.get_short(&mut [0], t.at, &t.rkey).err(), denied);
    p.ab.put_short(&[1], t.at, &t.rkey).map(drop).unwrap();
    if caps.contains(Caps::ATOMIC) {
        assert_eq!(p.ab.atomic_post(uct::api::AtomicOp::Add, 1u64, t.at, &t.rkey).err(), denied);
    }
}
