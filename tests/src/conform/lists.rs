//! Lists of blocks up to the interface's limits, and flushes of operations without a completion.

use super::rma::{self, target};
use super::{Log, Pair, bytes, is_unsupported};
use uct::api::{Access, AllocReq, Caps, Comp, Ep, Error, Iface, Iov, Md, Memory, Refused, RemoteIov};

/// Blocks of one operation: more than any queue here is deep.
const MANY: usize = 1500;

/// Messages of blocks with and without gaps, with every number of entries and blocks.
pub fn messages_of_blocks<I: Iface>(p: &Pair<I>) {
    let am = p.a.attr().am;
    if !p.a.attr().has(Caps::AM_ZCOPY) {
        return;
    }
    const BLOCK: usize = 24;
    let room = am.max_zcopy.min(16384);
    let local = p.a.md().alloc(&AllocReq::new(2 * room, "local")).unwrap();
    let all = bytes(3, 2 * room);
    rma::write(&local, 0, &all);
    let entry = |at: usize, stride: usize, count: usize| Iov {
        addr: local.addr().wrapping_add(at),
        len: BLOCK,
        stride,
        count,
        mem: Some(&local),
    };
    let most = room.saturating_sub(8) / BLOCK;
    let mut sent = Vec::new();
    let (mut a, mut b) = (Log::default(), Log::default());
    let mut send = |iov: &[Iov<'_, _>], header: &[u8], body: Vec<u8>| {
        // SAFETY: `local` lives to the end of the case and is not written.
        let call = || unsafe { p.ab.am_zcopy(7, header, iov, Comp::Token(1)) };
        p.retry(&mut a, &mut b, call).map(drop).unwrap();
        sent.push([&[7], header, &body].concat());
    };
    for count in [1, 2, 3, 7, 16, most / 2, most].into_iter().filter(|&count| count <= most) {
        for (stride, header) in
            [(BLOCK, &b""[..]), (BLOCK + 1, b"head"), (2 * BLOCK - 8, b"header.."), (0, b"")]
        {
            // The last block must end within the memory.
            let count = if stride > BLOCK { count.min((2 * room - BLOCK) / stride) } else { count };
            let body = (0..count).flat_map(|n| all[n * stride..n * stride + BLOCK].to_vec()).collect();
            send(&[entry(0, stride, count)], header, body);
        }
    }
    for entries in 1..=am.max_iov.min(most / 2) {
        // Adjacent entries, of which every other one has gaps.
        let mut iov = Vec::new();
        let mut body = Vec::new();
        let mut at = 0;
        for n in 0..entries {
            let stride = BLOCK + n % 2 * 5;
            iov.push(entry(at, stride, 2));
            body.extend_from_slice(&all[at..at + BLOCK]);
            body.extend_from_slice(&all[at + stride..at + stride + BLOCK]);
            at += stride + BLOCK;
        }
        send(&iov, b"", body);
    }
    p.arrived(&mut b, sent.len());
    let mut came: Vec<Vec<u8>> = b.ams.iter().map(|(packet, _)| packet.clone()).collect();
    came.sort_unstable();
    sent.sort_unstable();
    assert!(came == sent, "messages of blocks");
}

/// One operation takes any number of blocks, however short the interface's queue is.
pub fn any_number_of_blocks<I: Iface>(p: &Pair<I>) {
    let caps = p.a.attr().caps;
    if !caps.intersects(Caps::PUT_ZCOPY | Caps::GET_ZCOPY) {
        return;
    }
    const GAP: usize = 3;
    const SPAN: usize = MANY * GAP;
    assert!(p.a.attr().tx_depth.is_none_or(|depth| depth < MANY), "more than its queue is deep");
    let local = p.a.md().alloc(&AllocReq::new(SPAN, "local")).unwrap();
    let t = target(p, SPAN, Access::ALL);
    let all = bytes(4, SPAN);
    let gaps = |count| [Iov { addr: local.addr(), len: 1, stride: GAP, count, mem: Some(&local) }];
    let every_third = |from: &[u8], count: usize| -> Vec<u8> { (0..count).map(|n| from[GAP * n]).collect() };
    let depth = p.a.attr().tx_depth.unwrap_or(1);
    for count in [depth, depth + 1, MANY] {
        if caps.contains(Caps::PUT_ZCOPY) {
            rma::write(&local, 0, &all);
            rma::write(&t.mem, 0, &[0; SPAN]);
            // SAFETY: `local` lives until the completion that `finish` waits for.
            let put = p.finish(|comp| unsafe { p.ab.put_zcopy(&gaps(count), t.at, &t.rkey, comp) });
            assert_eq!(put, Ok(()));
            assert_eq!(p.finish(|comp| p.ab.flush(comp)), Ok(()));
            let want = [every_third(&all, count), vec![0; SPAN - count]].concat();
            assert!(rma::read(&t.mem, 0, SPAN) == want, "{count} blocks put");
        }
        if caps.contains(Caps::GET_ZCOPY) {
            rma::write(&local, 0, &[0; SPAN]);
            rma::write(&t.mem, 0, &all);
            // SAFETY: as above.
            let got = p.finish(|comp| unsafe { p.ab.get_zcopy(&gaps(count), t.at, &t.rkey, comp) });
            assert_eq!(got, Ok(()));
            let here = rma::read(&local, 0, SPAN);
            assert!(every_third(&here, count) == all[..count], "{count} blocks got");
            assert!(
                (0..SPAN).all(|n| n % GAP == 0 && n / GAP < count || here[n] == 0),
                "gaps are left alone"
            );
        }
    }
    if caps.contains(Caps::PUT_SGL) {
        // Blocks of both sides, cut at different places.
        rma::write(&local, 0, &all);
        rma::write(&t.mem, 0, &[0; SPAN]);
        let remote = [RemoteIov { addr: t.at, len: 1, stride: 2, count: MANY, rkey: &t.rkey }];
        // SAFETY: as above.
        let put = p.finish(|comp| unsafe { p.ab.put_sgl(&gaps(MANY), &remote, comp) });
        assert_eq!(put, Ok(()));
        assert_eq!(p.finish(|comp| p.ab.flush(comp)), Ok(()));
        let there = rma::read(&t.mem, 0, 2 * MANY);
        assert!((0..2 * MANY).all(|n| there[n] == if n % 2 == 0 { all[GAP * (n / 2)] } else { 0 }));
    }
}

/// Puts without a completion are visible after a flush, polled or with a completion.
pub fn implicit_puts_are_visible_after_flush<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::PUT_ZCOPY) {
        return;
    }
    const PUTS: usize = 40;
    const LEN: usize = 1000;
    let local = p.a.md().alloc(&AllocReq::new(LEN, "local")).unwrap();
    let t = target(p, PUTS * LEN, Access::ALL);
    for (round, by_comp) in [(1, true), (2, false), (3, true)] {
        rma::write(&local, 0, &[round; LEN]);
        let (mut a, mut b) = (Log::default(), Log::default());
        for n in 0..PUTS {
            let iov = [Iov::new(local.addr(), LEN, Some(&local))];
            // SAFETY: `local` is left alone until the flush is over.
            let put = || unsafe { p.ab.put_zcopy(&iov, t.at + (n * LEN) as u64, &t.rkey, Comp::None) };
            p.retry(&mut a, &mut b, put).map(drop).unwrap();
        }
        let by_ep = round == 1;
        let flush = |comp| if by_ep { p.ab.flush(comp) } else { p.a.flush(comp) };
        if by_comp {
            assert_eq!(p.finish(flush), Ok(()));
        } else {
            while p.retry(&mut a, &mut b, || flush(Comp::None)).unwrap() != uct::api::Sent::Done {
                p.poll_both(&mut a, &mut b);
            }
        }
        assert!(rma::read(&t.mem, 0, PUTS * LEN).iter().all(|byte| *byte == round), "round {round}");
        assert!(a.errors.is_empty() && a.comps.is_empty() && b.errors.is_empty() && b.comps.is_empty());
    }
}

/// A memory key moves bytes as a packed key does, within its range.
pub fn word_keys_give_access<I: Iface>(p: &Pair<I>) {
    let caps = p.a.attr().caps;
    if !caps.contains(Caps::MR_KEY) {
        return;
    }
    const LEN: usize = 256;
    let t = target(p, LEN, Access::ALL);
    let word = p.b.md().mr_key(&t.mem).unwrap();
    let local = p.a.md().alloc(&AllocReq::new(LEN, "local")).unwrap();
    let iov = [Iov::new(local.addr(), LEN, Some(&local))];
    // The first use of a key may need an answer of the owner.
    let rkey = (0..20_000).find_map(|_| match p.a.md().rkey_from_mr_key(word, t.at, LEN as u64) {
        Ok(rkey) => Some(rkey),
        Err(Error::NotReady) => {
            std::thread::sleep(std::time::Duration::from_millis(1));
            None
        }
        Err(e) => panic!("{e}"),
    });
    let rkey = rkey.expect("an answer");
    rma::write(&local, 0, &[5; LEN]);
    // SAFETY: `local` is left alone until the completion that `finish` waits for.
    let put = |at, rkey| p.finish(|comp| unsafe { p.ab.put_zcopy(&iov, at, rkey, comp) });
    if caps.contains(Caps::PUT_ZCOPY) {
        assert_eq!(put(t.at, &rkey), Ok(()));
        assert_eq!(p.finish(|comp| p.ab.flush(comp)), Ok(()));
        assert!(rma::read(&t.mem, 0, LEN).iter().all(|byte| *byte == 5));
        assert_eq!(put(t.at + 1, &rkey), Err(Error::RemoteAccess));
    }
    if caps.contains(Caps::GET_ZCOPY) {
        rma::write(&t.mem, 0, &[6; LEN]);
        // SAFETY: as above.
        let get = p.finish(|comp| unsafe { p.ab.get_zcopy(&iov, t.at, &rkey, comp) });
        assert_eq!(get, Ok(()));
        assert!(rma::read(&local, 0, LEN).iter().all(|byte| *byte == 6));
    }
}

/// The second of two puts to a word with a fence between them stays.
pub fn fence_orders_puts_to_one_word<I: Iface>(p: &Pair<I>) {
    if !p.a.attr().has(Caps::PUT_SHORT) {
        return;
    }
    let t = target(p, 8, Access::ALL);
    for n in 0..50u64 {
        let (mut a, mut b) = (Log::default(), Log::default());
        let mut put = |value: u64| {
            p.retry(&mut a, &mut b, || p.ab.put_short(&value.to_le_bytes(), t.at, &t.rkey)).map(drop)
        };
        assert_eq!(put(2 * n), Ok(()));
        assert!(if n % 2 == 0 { p.ab.fence() } else { p.a.fence() }.is_ok());
        assert_eq!(put(2 * n + 1), Ok(()));
        assert_eq!(p.finish(|comp| p.ab.flush(comp)), Ok(()));
        assert_eq!(rma::read(&t.mem, 0, 8), (2 * n + 1).to_le_bytes());
    }
}

/// Messages to a user QP land in posted memory, with their immediate and source.
pub fn user_qp_messages_land_in_posted_memory<I: Iface>(p: &Pair<I>) {
    let to = p.b.user_recv_qp();
    assert_eq!(to.is_some(), p.b.attr().has(Caps::USER_RECV));
    let Some(to) = to else {
        // SAFETY: refused.
        let posted = unsafe { p.b.post_user_recv(Iov::new(std::ptr::null(), 0, None), 1) };
        assert!(matches!(posted, Err(Refused::Failed(_))) && is_unsupported(posted));
        return;
    };
    const LEN: usize = 1000;
    let into = p.b.md().alloc(&AllocReq::new(4 * LEN, "posted")).unwrap();
    for (n, want) in [Some(7), None, Some(u32::MAX)].into_iter().enumerate() {
        let (len, count) = if n == 2 { (LEN / 4, 4) } else { (LEN, 1) };
        let addr = into.addr().wrapping_add(n * LEN);
        let list = Iov { addr, len, stride: len, count, mem: Some(&into) };
        // SAFETY: `into` lives to the end of the case, and is read when the receive is over.
        assert!(unsafe { p.b.post_user_recv(list, n as u64) }.is_ok());
        let data = bytes(n as u64, LEN - n);
        let (mut a, mut b) = (Log::default(), Log::default());
        let pack = |slot: &mut [u8]| {
            slot[..data.len()].copy_from_slice(&data);
            data.len()
        };
        assert_eq!(p.retry(&mut a, &mut b, || p.ab.send_to_user_qp(to, LEN, want, pack)), Ok(data.len()));
        for _ in 0..super::MAX_POLLS {
            if !b.user_recvs.is_empty() {
                break;
            }
            p.poll_both(&mut a, &mut b);
        }
        let [(token, bare)] = b.user_recvs[..] else { panic!("{:?}", b.user_recvs) };
        assert_eq!((token, bare.result, bare.len, bare.imm), (n as u64, Ok(()), data.len(), want));
        assert!(rma::read(&into, n * LEN, data.len()) == data);
    }
    let gaps = Iov { addr: into.addr(), len: 8, stride: 9, count: 2, mem: Some(&into) };
    // SAFETY: refused.
    let refused = unsafe { p.b.post_user_recv(gaps, 1) };
    assert!(matches!(refused, Err(Refused::Failed(Error::InvalidParam(_)))));
}

/// A counted completion reports a failed operation once, with the reason.
pub fn counted_completion_reports_failure<I: Iface>(p: &Pair<I>) {
    use std::cell::RefCell;
    use std::rc::Rc;
    use uct::api::{Completion, Sent};
    if !p.a.attr().has(Caps::PUT_ZCOPY) {
        return;
    }
    let local = p.a.md().alloc(&AllocReq::new(64, "local")).unwrap();
    let iov = [Iov::new(local.addr(), 64, Some(&local))];
    let (good, bad) = (target(p, 64, Access::ALL), target(p, 64, Access::REMOTE_READ));
    let results = Rc::new(RefCell::new(Vec::new()));
    let log = results.clone();
    let comp = Completion::new(3, move |result| log.borrow_mut().push(result));
    let (mut a, mut b) = (Log::default(), Log::default());
    for t in [&good, &bad, &good] {
        // SAFETY: `local` lives to the end of the case and is not written.
        let put = || unsafe { p.ab.put_zcopy(&iov, t.at, &t.rkey, Comp::Handle(comp.clone())) };
        match p.retry(&mut a, &mut b, put) {
            Ok(Sent::InProgress) => {}
            Ok(Sent::Done) => comp.update(Ok(())),
            Err(e) => comp.update(Err(e)),
        }
    }
    for _ in 0..super::MAX_POLLS {
        if !results.borrow().is_empty() {
            break;
        }
        p.poll_both(&mut a, &mut b);
    }
    assert_eq!(*results.borrow(), [Err(Error::RemoteAccess)]);
    assert!(a.errors.is_empty() && b.errors.is_empty(), "told once");
}
