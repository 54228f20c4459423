//! Calls one beyond each limit of an interface are rejected without effect. Also operations without a
//! completion.

use super::{Log, Pair, bytes, rma};
use uct::api::{
    Access, AllocReq, Caps, Comp, Ep, Error, Iface, Iov, Md, Memory, Outcome, Refused, RemoteIov, RmaLimits,
};

/// Longest memory allocated to exceed a limit.
const MAX_TRIED: usize = 1 << 24;

fn too_long<T: std::fmt::Debug>(what: &str, sent: Outcome<T>) {
    assert!(matches!(sent, Err(Refused::Failed(Error::TooLong { .. }))), "{what}: {sent:?}");
}

fn over(max: usize) -> Option<usize> {
    Some(max.checked_add(1)?).filter(|len| *len <= MAX_TRIED)
}

fn filled(of: &impl Memory, with: u8) -> bool {
    // SAFETY: no operation is under way on it.
    unsafe { std::slice::from_raw_parts(of.addr().cast_const(), of.len()) }.iter().all(|byte| *byte == with)
}

/// Puts and gets one byte or piece over the limit are rejected.
pub fn oversized_puts_and_gets_are_rejected<I: Iface>(p: &Pair<I>) {
    let (caps, put, get) = (p.a.attr().caps, p.a.attr().put, p.a.attr().get);
    let limits = |l: RmaLimits| [l.max_short, l.max_bcopy, l.max_zcopy];
    let most = limits(put).into_iter().chain(limits(get)).filter_map(over).max().unwrap_or(4096);
    if !caps.intersects(Caps::PUT_SHORT | Caps::PUT_BCOPY | Caps::PUT_ZCOPY | Caps::GET_ZCOPY) {
        return;
    }
    let t = rma::target(p, most, Access::ALL);
    let local = p.a.md().alloc(&AllocReq::new(most, "local")).unwrap();
    // SAFETY: it is ours, and nothing is under way.
    unsafe { local.addr().write_bytes(9, most) };
    let one = |len| [Iov::new(local.addr(), len, Some(&local))];
    let many = |max: usize| vec![Iov::new(local.addr(), 1, Some(&local)); max + 1];
    let (at, key) = (t.at, &t.rkey);
    if let Some(len) = over(put.max_short).filter(|_| caps.contains(Caps::PUT_SHORT)) {
        too_long("put_short", p.ab.put_short(&vec![1; len], at, key));
    }
    if let Some(len) = over(put.max_bcopy).filter(|_| caps.contains(Caps::PUT_BCOPY)) {
        too_long("put_bcopy", p.ab.put_bcopy(len, |_| panic!("packed"), at, key));
    }
    if caps.contains(Caps::PUT_ZCOPY) {
        // SAFETY: the calls are refused.
        let put_zcopy = |iov: &[_]| unsafe { p.ab.put_zcopy(iov, at, key, Comp::None) };
        over(put.max_zcopy).into_iter().for_each(|len| too_long("put_zcopy", put_zcopy(&one(len))));
        too_long("put_zcopy of pieces", put_zcopy(&many(put.max_iov)));
    }
    if let Some(len) = over(get.max_short).filter(|_| caps.contains(Caps::GET_SHORT)) {
        too_long("get_short", p.ab.get_short(&mut vec![1; len], at, key));
    }
    if let Some(len) = over(get.max_bcopy).filter(|_| caps.contains(Caps::GET_BCOPY)) {
        too_long("get_bcopy", p.ab.get_bcopy(len, |_| panic!("unpacked"), at, key, Comp::None));
    }
    if caps.contains(Caps::GET_ZCOPY) {
        // SAFETY: the calls are refused.
        let get_zcopy = |iov: &[_]| unsafe { p.ab.get_zcopy(iov, at, key, Comp::None) };
        over(get.max_zcopy).into_iter().for_each(|len| too_long("get_zcopy", get_zcopy(&one(len))));
        too_long("get_zcopy of pieces", get_zcopy(&many(get.max_iov)));
    }
    assert_eq!(p.finish(|comp| p.ab.flush(comp)), Ok(()));
    assert!(filled(&t.mem, 0) && filled(&local, 9), "a refused call did something");
}

/// `am_zcopy` with a header or list over the limit is rejected.
pub fn oversized_headers_and_lists_are_rejected<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::AM_ZCOPY) {
        return;
    }
    let am = p.a.attr().am;
    let mem = p.a.md().alloc(&AllocReq::new(4096, "zcopy")).unwrap();
    // SAFETY: the calls are refused.
    let send = |header: &[u8], iov: &[_]| unsafe { p.ab.am_zcopy(1, header, iov, Comp::None) };
    too_long("header", send(&vec![0; am.max_hdr + 1], &[]));
    too_long("list", send(&[], &vec![Iov::new(mem.addr(), 1, Some(&mem)); am.max_iov + 1]));
    let rest = am.max_zcopy - am.max_hdr + 1;
    if rest <= mem.len() {
        too_long("both", send(&vec![0; am.max_hdr], &[Iov::new(mem.addr(), rest, Some(&mem))]));
    }
    p.arrived(&mut Log::default(), 0);
}

/// `get_sgl` is rejected as a whole if one block is out of range.
pub fn get_sgl_is_checked_whole<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::GET_SGL) {
        return;
    }
    let t = rma::target(p, 64, Access::ALL);
    let local = p.a.md().alloc(&AllocReq::new(64, "local")).unwrap();
    // SAFETY: it is ours, and nothing is under way.
    unsafe { local.addr().write_bytes(9, 64) };
    let iov = [Iov::new(local.addr(), 32, Some(&local))];
    let piece = |at, len| RemoteIov::new(t.at + at, len, &t.rkey);
    // SAFETY: the calls are refused.
    let get = |remote: &[_]| unsafe { p.ab.get_sgl(&iov, remote, Comp::None) };
    assert_eq!(get(&[piece(0, 16), piece(49, 16)]).err(), Some(Error::RemoteAccess.into()));
    for remote in [&[piece(0, 16)][..], &[piece(0, 16), piece(16, 17)], &[]] {
        assert!(matches!(get(remote), Err(Refused::Failed(Error::InvalidParam(_)))));
    }
    too_long("list", get(&vec![piece(0, 1); p.a.attr().get.max_remote + 1]));
    assert_eq!(p.finish(|comp| p.ab.flush(comp)), Ok(()));
    assert!(filled(&local, 9));
}

/// A flush completes puts and gets that have no completion.
pub fn flush_completes_implicit_operations<I: Iface>(p: &Pair<I>) {
    const EACH: usize = 1000;
    let caps = p.a.attr().caps;
    if !caps.contains(Caps::PUT_ZCOPY | Caps::GET_ZCOPY) {
        return;
    }
    let t = rma::target(p, 32 * EACH, Access::ALL);
    let [from, to] = ["from", "to"].map(|name| p.a.md().alloc(&AllocReq::new(32 * EACH, name)).unwrap());
    let data = bytes(7, 32 * EACH);
    // SAFETY: as long, ours, and nothing is under way.
    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), from.addr(), data.len()) };
    let (mut a, mut b) = (Log::default(), Log::default());
    let piece = |mem, n: usize| [Iov::new(Memory::addr(mem).wrapping_add(n * EACH), EACH, Some(mem))];
    for n in 0..32 {
        // SAFETY: `from` lives, and is left alone until the flush.
        let put =
            || unsafe { p.ab.put_zcopy(&piece(&from, n), t.at + (n * EACH) as u64, &t.rkey, Comp::None) };
        p.retry(&mut a, &mut b, put).map(drop).unwrap();
    }
    assert_eq!(p.finish(|comp| p.ab.flush(comp)), Ok(()));
    // SAFETY: the puts are over.
    let there = unsafe { std::slice::from_raw_parts(t.mem.addr().cast_const(), data.len()) };
    assert!(there == data, "put");
    for n in 0..32 {
        // SAFETY: `to` lives, and is left alone until the flush.
        let get = || unsafe { p.ab.get_zcopy(&piece(&to, n), t.at + (n * EACH) as u64, &t.rkey, Comp::None) };
        p.retry(&mut a, &mut b, get).map(drop).unwrap();
    }
    assert_eq!(p.finish(|comp| p.a.flush(comp)), Ok(()));
    // SAFETY: the gets are over.
    let here = unsafe { std::slice::from_raw_parts(to.addr().cast_const(), data.len()) };
    assert!(here == data, "get");
    assert!(a.comps.is_empty() && b.comps.is_empty() && a.errors.is_empty());
}
