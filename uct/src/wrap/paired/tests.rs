//! Delivery to paired endpoints; the rest is in the conformance suite.

#![allow(unsafe_code)]

use super::*;
use crate::loopback;

type End = Paired<loopback::Iface>;
type EndEp = PairedEp<loopback::Iface>;

fn open() -> End {
    Paired::new(loopback::Iface::open(&Default::default()).unwrap())
}

fn join(ep: &EndEp, to: &End, peer: &[u8]) -> Result<(), ConnectError> {
    ep.connect_to_ep(&to.device_addr(), &to.iface_addr(), peer)
}

struct Received<'a>(&'a End, Vec<(Option<u64>, Vec<u8>)>);

impl Sink for Received<'_> {
    fn on_am(&mut self, am: Am<'_>) {
        let kept = am.keep();
        self.1.push((self.0.receiver().map(|tag| tag.0), kept.packet().to_vec()));
    }
    fn on_comp(&mut self, _: u64, _: Result<(), Error>) {}
    fn on_ep_error(&mut self, _: EpTag, error: Error) {
        panic!("{error}");
    }
    fn on_rnr(&mut self, ep: EpTag, packet: &[u8]) {
        self.1.push((Some(ep.0), packet.to_vec()));
    }
    fn on_lost(&mut self, ep: EpTag, _: Error, packet: &[u8]) {
        self.1.push((Some(ep.0), packet.to_vec()));
    }
}

fn received(at: &End) -> Vec<(Option<u64>, Vec<u8>)> {
    let mut received = Received(at, Vec::new());
    while at.poll(16, &mut received) > 0 {}
    assert_eq!(at.receiver(), None, "nothing is being told any more");
    received.1
}

#[test]
fn each_pair_receives_its_own_messages() {
    let (a, b) = (open(), open());
    let pairs: Vec<_> = (0..3)
        .map(|n| {
            let (ab, ba) = (a.create_ep().unwrap(), b.create_ep().unwrap());
            assert_eq!(ab.peer(), None);
            ba.set_tag(EpTag(100 + n));
            join(&ab, &b, &ba.ep_addr().unwrap()).unwrap();
            join(&ba, &a, &ab.ep_addr().unwrap()).unwrap();
            assert_eq!((ab.peer(), ba.peer()), (Some(ba.number()), Some(ab.number())));
            (ab, ba)
        })
        .collect();
    let single = a.connect(&b.device_addr(), &b.iface_addr()).unwrap();
    assert_eq!(single.peer(), None);
    let body = *b"body";
    for (n, (ab, _)) in pairs.iter().enumerate().rev() {
        let n = n as u8;
        ab.am_short(n, 0x0201, b"x").map(drop).unwrap();
        ab.am_short_iov(n, &[b"ab", b"", b"c"]).map(drop).unwrap();
        ab.am_packet(9, |slot| (slot[..2].copy_from_slice(&[n, 7]), 2).1).unwrap();
        // SAFETY: `body` outlives the call, which is done when it returns.
        let sent = unsafe { ab.am_zcopy(n, b"h", &[Iov::new(body.as_ptr(), 4, None)], Comp::None) };
        sent.map(drop).unwrap();
    }
    single.am_short_iov(9, &[b"all"]).map(drop).unwrap();
    let of = |n: u8| {
        let short = [&[n, 1, 2, 0, 0, 0, 0, 0, 0][..], b"x"].concat();
        let packets = [short, [&[n][..], b"abc"].concat(), vec![n, 7], [&[n][..], b"hbody"].concat()];
        packets.map(|packet| (Some(100 + u64::from(n)), packet))
    };
    let want = [&of(2)[..], &of(1), &of(0), &[(None, b"\tall".to_vec())]].concat();
    assert_eq!((received(&b), b.strays()), (want, 0));
}

#[test]
fn messages_for_no_endpoint_are_dropped() {
    let (a, b) = (open(), open());
    let there = b.create_ep().unwrap();
    let never = (there.number() + 1).to_le_bytes();
    let ep = a.create_ep().unwrap();
    assert_eq!(join(&ep, &b, &[0; 4]), Err(ConnectError::Malformed), "the interface is no endpoint");
    join(&ep, &b, &never).unwrap();
    ep.am_short(1, 2, &[]).map(drop).unwrap();
    assert_eq!((received(&b), b.strays()), (vec![], 1));
    let gone = a.create_ep().unwrap();
    join(&gone, &b, &there.ep_addr().unwrap()).unwrap();
    gone.am_short_iov(3, &[]).map(drop).unwrap();
    assert_eq!((received(&b), b.strays()), (vec![(Some(0), vec![3])], 1));
    drop(there);
    let _new = b.create_ep().unwrap();
    gone.am_short_iov(3, &[]).map(drop).unwrap();
    assert_eq!((received(&b), b.strays()), (vec![], 2), "nor does the next one in its place");
    // What is no message of such an interface at all.
    let plain = a.inner().connect(&b.device_addr(), &b.iface_addr()).unwrap();
    plain.am_short_iov(0, &[&[0, 0, 0]]).map(drop).unwrap();
    plain.am_short_iov(0, &[]).map(drop).unwrap();
    assert_eq!((received(&b), b.strays()), (vec![], 4));
    let taken = |at: &End| at.poll_one(|packet: &[u8], _: SrcAddr| panic!("{packet:?}"));
    gone.am_short_iov(3, &[]).map(drop).unwrap();
    while taken(&b) == PollOne::NeedsPoll {
        b.poll(1, &mut Received(&b, Vec::new()));
    }
    assert_eq!(b.strays(), 5);
}

#[test]
fn returned_packets_have_no_prefix() {
    let a = open();
    let mut log = Received(&a, Vec::new());
    let mut sink = PrefixSink { shared: &a.shared, then: &mut log };
    sink.on_rnr(EpTag(1), &[7, 0, 16, 0, 3, 9]);
    sink.on_lost(EpTag(2), Error::Cancelled, &[7, 0, 16, 0, 3, 8]);
    assert_eq!(log.1, [(Some(1), vec![3, 9]), (Some(2), vec![3, 8])]);
}

#[test]
fn limits_leave_room_for_the_prefix() {
    let a = open();
    let (attr, inner) = (a.attr().am, a.inner().attr().am);
    assert_eq!(attr.max_bcopy, inner.max_bcopy - PREFIX);
    assert!(attr.max_short <= inner.max_short - PREFIX && attr.max_hdr <= MAX_HDR);
    let ep = a.connect(&a.device_addr(), &a.iface_addr()).unwrap();
    let too_long = ep.am_packet(attr.max_bcopy + 2, |_| panic!("packed"));
    assert_eq!(too_long, Err(Error::TooLong { len: attr.max_bcopy + 2, max: attr.max_bcopy + 1 }.into()));
    assert_eq!((received(&a), a.strays()), (vec![], 0));
}
