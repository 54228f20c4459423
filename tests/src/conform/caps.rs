//! Attributes are consistent, and missing capabilities answer *unsupported*.

use super::{Log, Pair, is_unsupported};
use std::ptr::NonNull;
use uct::api::{
    AM_SHORT_MIN, AllocReq, AtomicOp, Caps, Comp, ConnectError, Ep, EpTag, Error, Events, Iface, Iov,
    MAX_ADDR_LEN, Md, Memory, Op, Refused, RemoteIov, Sent, UserQp,
};

/// Lengths, limits and names agree.
pub fn attributes_are_consistent<I: Iface>(p: &Pair<I>) {
    let attr = p.a.attr();
    assert_eq!(attr, p.a.attr());
    assert!(!attr.tl.is_empty() && !attr.dev.is_empty());
    assert_eq!(p.a.device_addr().len(), attr.device_addr_len);
    assert_eq!(p.a.iface_addr().len(), attr.iface_addr_len);
    assert!(attr.device_addr_len <= MAX_ADDR_LEN && attr.iface_addr_len <= MAX_ADDR_LEN);
    assert!(attr.has(Caps::CONNECT_TO_IFACE) || attr.has(Caps::CONNECT_TO_EP));
    assert_eq!(attr.am_id_bits, 8);
    assert_eq!(p.ab.max_bcopy(), attr.am.max_bcopy);
    assert!(attr.am.max_hdr <= attr.am.max_zcopy);
    assert!(attr.bandwidth > 0.0 && attr.latency.fixed >= 0.0);
    if attr.has(Caps::AM_SHORT) {
        assert!(attr.am.max_short >= AM_SHORT_MIN);
    }
    assert_eq!(attr.has(Caps::ATOMIC), attr.atomics != Default::default());
    assert!(attr.has(Caps::ATOMIC) || !attr.has(Caps::ATOMIC_EMULATED));
}

/// A call of each missing capability answers *unsupported*.
pub fn missing_caps_answer_unsupported<I: Iface>(p: &Pair<I>) {
    let off = |cap| !p.a.attr().has(cap);
    let short = p.ab.am_short(1, 0, &[]);
    assert_eq!(is_unsupported(short), off(Caps::AM_SHORT));
    let packet = p.ab.am_packet(1, |slot| {
        slot[0] = 1;
        1
    });
    assert_eq!(is_unsupported(packet), off(Caps::AM_BCOPY));
    if off(Caps::SEND_TO_USER_QP) {
        let nobody = UserQp { qpn: 1, qkey: 1 };
        assert!(is_unsupported(
            p.ab.send_to_user_qp(nobody, 1, None, |_| panic!("packed")).map(|_| Sent::Done)
        ));
    }
    assert_eq!(p.a.user_recv_qp().is_none(), off(Caps::USER_RECV));
    if off(Caps::USER_RECV) {
        // SAFETY: a receive of nothing has no memory.
        let posted = unsafe { p.a.post_user_recv(Iov::new(std::ptr::null(), 0, None), 1) };
        assert!(is_unsupported(posted));
    }
    // SAFETY: an empty message has no memory.
    assert_eq!(is_unsupported(unsafe { p.ab.am_zcopy(1, &[], &[], Comp::None) }), off(Caps::AM_ZCOPY));
    assert_eq!(p.a.event_fd().is_err(), off(Caps::EVENT_RECV) && off(Caps::EVENT_SEND));
    if off(Caps::EVENT_RECV) && off(Caps::EVENT_SEND) {
        assert_eq!(p.a.arm(Events::all()), Err(Error::Unsupported(Op::EventFd)));
    }
    if off(Caps::CONNECT_TO_EP) {
        assert_eq!(p.a.create_ep().err(), Some(Error::Unsupported(Op::ConnectToEp)));
        assert_eq!(p.ab.ep_addr().err(), Some(Error::Unsupported(Op::ConnectToEp)));
    }
    assert_eq!(is_unsupported(p.ab.check(Comp::None)), off(Caps::EP_CHECK));
    if !p.b.md().attr().has_rkey || !p.b.md().attr().can_alloc {
        return;
    }
    let mem = p.b.md().alloc(&AllocReq::new(64, "conform")).unwrap();
    let rkey = p.a.md().unpack_rkey(&p.b.md().pack_rkey(&mem).unwrap()).unwrap();
    let at = mem.addr().addr() as u64;
    if off(Caps::PUT_SHORT) {
        assert!(is_unsupported(p.ab.put_short(&[1], at, &rkey)));
    }
    if off(Caps::PUT_BCOPY) {
        assert!(is_unsupported(p.ab.put_bcopy(1, |_| 1, at, &rkey)));
    }
    if off(Caps::GET_SHORT) {
        assert!(is_unsupported(p.ab.get_short(&mut [0], at, &rkey)));
    }
    if off(Caps::GET_BCOPY) {
        assert!(is_unsupported(p.ab.get_bcopy(1, |_| {}, at, &rkey, Comp::None)));
    }
    let local = p.a.md().alloc(&AllocReq::new(64, "conform")).unwrap();
    let iov = [Iov::new(local.addr(), 1, Some(&local))];
    if off(Caps::PUT_ZCOPY) {
        // SAFETY: the memory lives until the call has been refused.
        assert!(is_unsupported(unsafe { p.ab.put_zcopy(&iov, at, &rkey, Comp::None) }));
    }
    if off(Caps::GET_ZCOPY) {
        // SAFETY: as above.
        assert!(is_unsupported(unsafe { p.ab.get_zcopy(&iov, at, &rkey, Comp::None) }));
    }
    let remote = [RemoteIov::new(at, 1, &rkey)];
    if off(Caps::PUT_SGL) {
        // SAFETY: as above.
        assert!(is_unsupported(unsafe { p.ab.put_sgl(&iov, &remote, Comp::None) }));
    }
    if off(Caps::GET_SGL) {
        // SAFETY: as above.
        assert!(is_unsupported(unsafe { p.ab.get_sgl(&iov, &remote, Comp::None) }));
    }
    if off(Caps::PUT_IMM) {
        // SAFETY: as above.
        assert!(is_unsupported(unsafe { p.ab.put_imm(&iov, at, &rkey, 1, Comp::None) }));
    }
    if off(Caps::ATOMIC) {
        let mut old = 0u64;
        assert!(is_unsupported(p.ab.atomic_post(AtomicOp::Add, 1u64, at, &rkey)));
        let result = NonNull::from(&mut old);
        // SAFETY: `old` outlives the calls, which are refused.
        assert!(is_unsupported(unsafe {
            p.ab.atomic_fetch(AtomicOp::Add, 1u64, result, at, &rkey, Comp::None)
        }));
        // SAFETY: as above.
        assert!(is_unsupported(unsafe { p.ab.atomic_cswap(0u64, 1u64, result, at, &rkey, Comp::None) }));
    }
}

/// Addresses of the wrong length are told from unreachable ones.
pub fn malformed_addresses_are_rejected<I: Iface>(p: &Pair<I>) {
    let (device, iface) = (p.b.device_addr(), p.b.iface_addr());
    assert_eq!(p.a.reachable(&device, &iface), Ok(()));
    assert_eq!(p.a.reachable(&device, &iface[1..]), Err(ConnectError::Malformed));
    assert_eq!(p.a.connect(&device, &[]).err(), Some(ConnectError::Malformed));
    let mut longer = iface.clone();
    longer.push(0);
    assert_eq!(p.a.connect(&device, &longer).err(), Some(ConnectError::Malformed));
}

/// An unreachable peer is reported when the endpoint is made, or by the first call that asks it.
pub fn unreachable_peer_is_an_error<I: Iface>(p: &Pair<I>) {
    let mut nobody = p.b.iface_addr();
    // A byte of the peer's identity in every kind of address.
    let byte = nobody.len().min(10) - 1;
    nobody[byte] ^= 0x5a;
    let is_peer_failure = |e: &Error| matches!(e, Error::PeerDead | Error::Unreachable | Error::Unresponsive);
    match p.a.connect(&p.b.device_addr(), &nobody) {
        // The reason is the peer, not missing resources.
        Err(why) => assert!(!matches!(why, ConnectError::Op(_)), "{why}"),
        Ok(ep) => {
            let asked = ep.ensure_connected();
            // A connectionless wire asks nobody: messages are lost, or end with an error.
            if asked.is_err() {
                assert_eq!(asked, Err(ConnectError::Gone));
                let sent = ep.am_packet(2, |_| unreachable!("there is nowhere to write"));
                assert!(matches!(&sent, Err(Refused::Failed(e)) if is_peer_failure(e)), "{sent:?}");
                let checked = ep.check(Comp::None);
                assert!(matches!(&checked, Err(Refused::Failed(e)) if is_peer_failure(e)), "{checked:?}");
            }
        }
    }
}

/// `is_connected` holds of the peer's address only.
pub fn is_connected_names_the_peer<I: Iface>(p: &Pair<I>) {
    let (at_a, at_b) = ((p.a.device_addr(), p.a.iface_addr()), (p.b.device_addr(), p.b.iface_addr()));
    assert!(p.ab.is_connected(&at_b.0, &at_b.1) && p.ba.is_connected(&at_a.0, &at_a.1));
    // `cma` connects to processes, and both sides are one.
    if !p.same && p.a.attr().has(Caps::AM_BCOPY) {
        assert!(!p.ab.is_connected(&at_a.0, &at_a.1));
    }
    let mut other = at_b.1.clone();
    other[0] ^= 1;
    assert!(!p.ab.is_connected(&at_b.0, &other) && !p.ab.is_connected(&at_b.0, &at_b.1[1..]));
}

/// The tag of an endpoint is the user's.
pub fn ep_tags_are_kept<I: Iface>(p: &Pair<I>) {
    assert_eq!(p.ab.tag(), EpTag(0));
    p.ab.set_tag(EpTag(77));
    assert_eq!((super::tag_of(&p.ab), p.ba.tag()), (EpTag(77), EpTag(0)));
}

/// An endpoint connects to another endpoint once, and does nothing before.
pub fn ep_to_ep_connect<I: Iface>(p: &Pair<I>) {
    let attr = p.a.attr();
    if !attr.has(Caps::CONNECT_TO_EP) {
        assert_eq!(attr.ep_addr_len, 0);
        return;
    }
    let (ab, ba) = (p.a.create_ep().unwrap(), p.b.create_ep().unwrap());
    let addr = ba.ep_addr().unwrap();
    assert_eq!(addr.len(), attr.ep_addr_len);
    assert_ne!(addr, p.ba.ep_addr().unwrap(), "each endpoint has its own");
    let early = Err(Refused::Failed(Error::NotConnected));
    assert_eq!(ab.am_short(1, 0, &[]), early);
    assert_eq!(ab.am_packet(1, |_| 1).map(|_| Sent::Done), early);
    assert_eq!(ab.check(Comp::None), early);
    assert_eq!((ab.flush(Comp::None), ab.fence()), (Ok(Sent::Done), Ok(Sent::Done)), "nothing to wait for");
    ab.set_tag(EpTag(9));
    let (device, iface) = (p.b.device_addr(), p.b.iface_addr());
    assert_eq!(ab.connect_to_ep(&device, &iface, &addr[1..]), Err(ConnectError::Malformed));
    assert_eq!(ab.connect_to_ep(&device, &iface[1..], &addr), Err(ConnectError::Malformed));
    assert_eq!(ab.connect_to_ep(&device, &iface, &addr), Ok(()));
    assert_eq!(ab.tag(), EpTag(9));
    let again = ab.connect_to_ep(&device, &iface, &addr);
    assert!(matches!(again, Err(ConnectError::Op(Error::InvalidParam(_)))), "{again:?}");
    if attr.has(Caps::AM_SHORT) {
        let (mut at_a, mut at_b) = (Log::default(), Log::default());
        p.retry(&mut at_a, &mut at_b, || ab.am_short(5, 6, b"joined")).map(drop).unwrap();
        p.arrived(&mut at_b, 1);
        assert_eq!(at_b.ams[0].0, [&[5u8, 6, 0, 0, 0, 0, 0, 0, 0][..], b"joined"].concat());
    }
}
