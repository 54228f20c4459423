//! Two interfaces in one thread, on every network of `devices`. What holds for any transport is in the
//! conformance suite.

#![allow(unsafe_code)]

use super::dev::soft::{self, Fabric, FaultPlan, Generation, Inproc, Profile, SoftConfig};
use super::dev::{Channel, Dev, Gid};
use super::{Config, Ep, Iface, Md, Mem, Params, RawAddr, Rkey};
use crate::api::{
    AM_SHORT_MIN, Access, AllocReq, Am, Caps, Comp, Completion, Ep as _, EpTag, Error, Events, Iface as _,
    Iov, Md as _, Memory, Op, PendingQueued, RecvDesc, Refused, Retry, Sent, Sink, SrcAddr as From,
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use ucs::config::Source;
use ucs::sys::fd::Epoll;

mod devices;
mod fairness;
mod flow;
mod multi_wr;
mod poll_one;
mod rdma;
mod shm;
mod user_recv_qp;

use devices::{Network, on_every_network};

type Simulated = soft::Device<Inproc>;

#[derive(Default)]
struct Log {
    ams: Vec<(From, Vec<u8>)>,
    comps: Vec<(u64, Result<(), Error>)>,
    errors: Vec<(EpTag, Error)>,
}

impl Sink for Log {
    fn on_am(&mut self, am: Am<'_>) {
        self.ams.push((am.source(), am.packet().to_vec()));
    }
    fn on_comp(&mut self, token: u64, result: Result<(), Error>) {
        self.comps.push((token, result));
    }
    fn on_ep_error(&mut self, ep: EpTag, error: Error) {
        self.errors.push((ep, error));
    }
}

/// A returned packet: one of the engine's, or a message to a user receive queue pair.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Returned {
    Packet,
    ToUserQp(Option<u32>),
}

/// A sink that accepts returned packets only.
#[derive(Default)]
struct ReturnedPackets(Vec<ReturnedPacket>);

type ReturnedPacket = (EpTag, Vec<u8>, Returned);

impl Sink for ReturnedPackets {
    fn on_am(&mut self, am: Am<'_>) {
        panic!("{:?}", am.packet());
    }
    fn on_comp(&mut self, token: u64, _: Result<(), Error>) {
        panic!("{token}");
    }
    fn on_ep_error(&mut self, _: EpTag, error: Error) {
        panic!("{error}");
    }
    fn on_rnr(&mut self, ep: EpTag, packet: &[u8]) {
        self.0.push((ep, packet.to_vec(), Returned::Packet));
    }
    fn on_user_rnr(&mut self, ep: EpTag, data: &[u8], imm: Option<u32>) {
        self.0.push((ep, data.to_vec(), Returned::ToUserQp(imm)));
    }
}

struct Side<D: Dev> {
    iface: Iface<D>,
    log: Log,
}

impl<D: Dev> Side<D> {
    fn on(dev: D, connid: u32, config: &Config) -> Self {
        let params = Params { config: config.clone(), connid: Some(connid), ..Params::default() };
        Side { iface: Iface::open(dev, &params).unwrap(), log: Log::default() }
    }

    fn poll(&mut self) -> usize {
        self.iface.poll(64, &mut self.log)
    }

    fn ep_to<E: Dev>(&self, to: &Side<E>) -> Ep<D> {
        self.iface.connect(&to.iface.device_addr(), &to.iface.iface_addr()).unwrap()
    }
}

impl Side<Simulated> {
    fn open(fabric: &Fabric, iid: u64, config: &Config) -> Self {
        Side::on(fabric.open(iid, Profile::default()).unwrap(), iid as u32, config)
    }
}

fn settle<N: Network>(net: &N, a: &mut Side<N::A>, b: &mut Side<N::B>) {
    let mut quiet = 0;
    while quiet < 64 {
        quiet = if a.poll() + b.poll() > 0 { 0 } else { quiet + 1 };
        net.advance_time();
    }
}

fn pair(plan: FaultPlan, a: &Config, b: &Config) -> (Fabric, Side<Simulated>, Side<Simulated>) {
    let fabric = Fabric::new(7, plan);
    let (a, b) = (Side::open(&fabric, 0xa, a), Side::open(&fabric, 0xb, b));
    (fabric, a, b)
}

fn pair_on<N: Network>(a: &Config, b: &Config) -> (N, Side<N::A>, Side<N::B>) {
    let net = N::new();
    let (a, b) = (Side::on(net.a(), 0xa, a), Side::on(net.b(), 0xb, b));
    (net, a, b)
}

fn faultless_pair<N: Network>() -> (N, Side<N::A>, Side<N::B>) {
    pair_on(&Config::default(), &Config::default())
}

fn alloc<D: Dev>(side: &Side<D>, len: usize, fill: u8) -> Mem<D> {
    let mem = side.iface.md().alloc(&AllocReq::new(len, "test")).unwrap();
    // SAFETY: freshly allocated, nobody else knows it.
    unsafe { mem.addr().write_bytes(fill, len) };
    mem
}

fn read<D: Dev>(mem: &Mem<D>) -> Vec<u8> {
    let mut out = vec![0; mem.len()];
    // SAFETY: the registration covers `len` bytes, and no operation is on its way when tests look.
    unsafe { mem.addr().copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
    out
}

fn rkey_of<D: Dev, E: Dev>(owner: &Side<D>, mem: &Mem<D>, user: &Side<E>) -> Rkey {
    user.iface.md().unpack_rkey(&owner.iface.md().pack_rkey(mem).unwrap()).unwrap()
}

on_every_network!(
    every_send_call_puts_only_the_id_before_the_data bad_packs_and_lengths_send_nothing
    a_wrong_connection_id_is_rejected
    kept_messages_outlive_the_buffers_and_the_interface handlers_may_send_and_must_not_poll
    interfaces_of_one_domain_share_registrations
);

fn every_send_call_puts_only_the_id_before_the_data<N: Network>() {
    let (net, mut a, mut b) = faultless_pair::<N>();
    let ep = a.ep_to(&b);
    let mem = alloc(&a, 100, 0x55);
    assert_eq!(ep.am_short(1, 0x0807_0605_0403_0201, &[9; 23]), Ok(Sent::Done));
    assert_eq!(ep.am_short_iov(2, &[&[1, 2], &[], &[3]]), Ok(Sent::Done));
    assert_eq!(
        ep.am_bcopy(3, |buf| {
            buf[..500].fill(7);
            500
        }),
        Ok(500)
    );
    assert_eq!(
        ep.am_packet(4, |buf| {
            buf.copy_from_slice(&[4, 5, 6, 7]);
            4
        }),
        Ok(4)
    );
    let iov = [Iov::new(mem.addr(), 100, Some(&mem))];
    // SAFETY: `mem` lives to the end of the test and is not written.
    let sent = unsafe { ep.am_zcopy(5, b"head", &iov, Comp::Token(50)) };
    assert_eq!(sent, Ok(Sent::InProgress));
    // SAFETY: as above.
    let sent = unsafe { ep.am_zcopy(6, b"h", &[Iov::new(mem.addr(), 8, Some(&mem))], Comp::Token(60)) };
    assert_eq!(sent, Ok(Sent::Done), "fits inline: no completion");
    settle(&net, &mut a, &mut b);
    b.log.ams.sort_by_key(|(_, packet)| packet[0]);
    let from = From { node: a.iface.raw_addr().gid.iid(), port: u32::from(a.iface.raw_addr().qpn) };
    let want: [Vec<u8>; 6] = [
        [&[1, 1, 2, 3, 4, 5, 6, 7, 8][..], &[9; 23]].concat(),
        vec![2, 1, 2, 3],
        [&[3][..], &[7; 500]].concat(),
        vec![4, 5, 6, 7],
        [&[5][..], b"head", &[0x55; 100]].concat(),
        [&[6][..], b"h", &[0x55; 8]].concat(),
    ];
    assert_eq!(b.log.ams, want.map(|packet| (from, packet)));
    assert_eq!(a.log.comps, [(50, Ok(()))]);
}

fn bad_packs_and_lengths_send_nothing<N: Network>() {
    let (net, mut a, mut b) = faultless_pair::<N>();
    let ep = a.ep_to(&b);
    let am = a.iface.attr().am;
    let invalid = |r| matches!(r, Err(Refused::Failed(Error::InvalidParam(_))));
    assert!(invalid(ep.am_packet(20, |_| 0)));
    assert!(invalid(ep.am_packet(20, |_| 21)));
    assert!(invalid(ep.am_packet(200, |_| 201)));
    assert!(matches!(ep.am_packet(am.max_bcopy + 2, |_| 1), Err(Refused::Failed(Error::TooLong { .. }))));
    let long = vec![0; am.max_short - 7];
    assert!(matches!(ep.am_short(1, 0, &long), Err(Refused::Failed(Error::TooLong { .. }))));
    settle(&net, &mut a, &mut b);
    assert!(b.log.ams.is_empty());
    assert_eq!(ep.flush(Comp::None), Ok(Sent::Done), "refused operations leave nothing outstanding");
}

fn a_wrong_connection_id_is_rejected<N: Network>() {
    let (net, mut a, mut b) = faultless_pair::<N>();
    let there = b.iface.raw_addr();
    let ep = a.iface.connect_raw(&RawAddr { connid: there.connid + 1, ..there }).unwrap();
    assert_eq!(ep.am_short(1, 0, &[]), Ok(Sent::Done));
    settle(&net, &mut a, &mut b);
    assert!(b.log.ams.is_empty());
    assert_eq!(a.log.errors, [(EpTag(0), Error::PeerDead)]);
}

#[derive(Default)]
struct KeepAll(Vec<RecvDesc>);

impl Sink for KeepAll {
    fn on_am(&mut self, am: Am<'_>) {
        self.0.push(am.keep());
    }
    fn on_comp(&mut self, _: u64, _: Result<(), Error>) {}
    fn on_ep_error(&mut self, _: EpTag, error: Error) {
        panic!("{error}");
    }
}

fn kept_messages_outlive_the_buffers_and_the_interface<N: Network>() {
    let tiny = Config { rx_queue_len: 4, rx_spare: 3, ..Config::default() };
    let (net, mut a, b) = pair_on::<N>(&Config::default(), &tiny);
    let ep = a.ep_to(&b);
    let mut kept_all = KeepAll::default();
    let check = |kept_all: &KeepAll| {
        let mut first: Vec<u8> = kept_all.0.iter().map(|kept| kept.packet()[1]).collect();
        assert!(
            kept_all
                .0
                .iter()
                .all(|k| k.packet().len() == 301 && k.packet()[2..].iter().all(|&x| x == k.packet()[1]))
        );
        first.sort_unstable();
        first
    };
    for n in 0..100u8 {
        let pack = |buf: &mut [u8]| {
            buf[..300].fill(n);
            300
        };
        while ep.am_bcopy(1, pack) == Err(Refused::NoResource) {
            a.poll();
        }
        net.advance_time();
        b.iface.poll(16, &mut kept_all);
        if n == 50 {
            kept_all.0.drain(..20);
        }
    }
    for _ in 0..100_000 {
        a.poll();
        b.iface.poll(16, &mut kept_all);
        net.advance_time();
        if kept_all.0.len() == 80 {
            break;
        }
    }
    assert_eq!(check(&kept_all).len(), 80);
    drop((b, ep, a, net));
    assert_eq!(check(&kept_all).len(), 80);
}

fn handlers_may_send_and_must_not_poll<N: Network>() {
    let (net, a, b) = faultless_pair::<N>();
    let ep = a.ep_to(&b);
    let back = b.ep_to(&a);
    let (a, b) = (a.iface, Rc::new(b.iface));
    let weak = Rc::downgrade(&b);
    b.set_am_handler(
        1,
        Some(Box::new(move |am| {
            assert_eq!(weak.upgrade().expect("alive while polled").progress(16), 0);
            back.am_bcopy(2, |buf| {
                let d = am.data();
                buf[..d.len()].copy_from_slice(d);
                d.len()
            })
            .unwrap();
        })),
    );
    let got = Rc::new(RefCell::new(Vec::new()));
    let into = got.clone();
    a.set_am_handler(2, Some(Box::new(move |am| into.borrow_mut().push(am.data().to_vec()))));
    ep.am_bcopy(1, |buf| {
        buf[..5].copy_from_slice(b"hello");
        5
    })
    .unwrap();
    ep.am_bcopy(9, |_| 0).unwrap();
    for _ in 0..100 {
        a.progress(16);
        b.progress(16);
        net.advance_time();
    }
    assert_eq!(*got.borrow(), [b"hello"]);
    assert_eq!(b.stats().no_handler, 1);
    // Breaks a cycle: the handler owns an endpoint, which owns the interface.
    b.set_am_handler(1, None);
}

fn interfaces_of_one_domain_share_registrations<N: Network>() {
    let net = N::new();
    let md = Md::open(net.a()).unwrap();
    let open = || Side { iface: Iface::open_on(&md, &Params::default()).unwrap(), log: Log::default() };
    let (mut a, mut b) = (open(), open());
    assert_ne!(a.iface.raw_addr().qpn, b.iface.raw_addr().qpn);
    assert_eq!(a.iface.device_addr(), b.iface.device_addr());
    let ep = b.ep_to(&a);
    let mem = alloc(&a, 500, 4);
    // SAFETY: `mem` lives to the end of the test.
    let sent = unsafe { ep.am_zcopy(1, &[], &[Iov::new(mem.addr(), 500, Some(&mem))], Comp::None) };
    assert_eq!(sent, Ok(Sent::InProgress));
    for _ in 0..100 {
        a.poll();
        b.poll();
        net.advance_time();
    }
    assert_eq!(a.log.ams.len(), 1);
}

#[test]
fn an_armed_interface_wakes_for_arrivals_and_completions() {
    let slow = FaultPlan { delay: 100_000, ..FaultPlan::NONE };
    let (fabric, mut a, mut b) = pair(slow, &Config::default(), &Config::default());
    let ep = a.ep_to(&b);
    let epoll = Epoll::new().unwrap();
    epoll.add(a.iface.event_fd().unwrap(), 1).unwrap();
    epoll.add(b.iface.event_fd().unwrap(), 2).unwrap();
    let awake = || {
        let mut tokens = Vec::new();
        epoll.wait(&mut tokens, Some(Duration::ZERO)).unwrap();
        tokens.sort_unstable();
        tokens
    };
    assert_eq!(a.iface.arm(Events::SEND), Ok(true));
    assert_eq!(b.iface.arm(Events::RECV), Ok(true));
    assert_eq!(ep.am_short(1, 0, &[]), Ok(Sent::Done));
    assert!(awake().is_empty(), "nothing has arrived yet");
    fabric.advance(1_000_000);
    assert_eq!(awake(), [1, 2]);
    assert_eq!(b.iface.arm(Events::RECV), Ok(false), "there is something already");
    settle(&fabric, &mut a, &mut b);
    assert_eq!((a.iface.arm(Events::all()), b.iface.arm(Events::all())), (Ok(true), Ok(true)));
    assert!(awake().is_empty(), "one wake-up each");

    let without_events = Params { events: Channel::Without, ..Params::default() };
    let without_events = Iface::open(fabric.open(0xc, Profile::default()).unwrap(), &without_events).unwrap();
    assert!(!without_events.attr().has(Caps::EVENT_RECV));
    assert_eq!(without_events.arm(Events::all()), Err(Error::Unsupported(Op::EventFd)));
}

#[test]
fn address_handles_are_shared_per_gid_and_finite() {
    let fabric = Fabric::new(1, FaultPlan::NONE);
    let mut profile = Profile::small();
    profile.attr.max_ah = 2;
    let iface = Iface::open(fabric.open(1, profile).unwrap(), &Params::default()).unwrap();
    let to = |iid, qpn| iface.connect_raw(&RawAddr { gid: Gid::link_local(iid), qpn, connid: 0 });
    let (_a, b, c) = (to(10, 1).unwrap(), to(11, 1).unwrap(), to(11, 2).unwrap());
    assert!(matches!(to(12, 1), Err(Error::Exhausted(_))));
    drop(b);
    assert!(matches!(to(12, 1), Err(Error::Exhausted(_))), "the second endpoint still needs it");
    drop(c);
    assert!(to(12, 1).is_ok());
}

#[test]
fn a_bad_config_value_names_its_key_and_range() {
    let source = Source::empty().with("UCX_EFA_RNR_RETRY", "9");
    let error = Params::from_source(&source).unwrap_err().to_string();
    assert!(error.contains("UCX_EFA_RNR_RETRY=9") && error.contains("0..=7"), "{error}");
}

#[test]
fn attributes_follow_a_device_without_rdma_and_inline() {
    let fabric = Fabric::new(1, FaultPlan::NONE);
    let config = SoftConfig { generation: Generation::Efa0, inline: 0, ..SoftConfig::default() };
    let iface = Iface::open(fabric.open(1, config.profile()).unwrap(), &Params::default()).unwrap();
    let a = iface.attr();
    let off = Caps::GET_ZCOPY | Caps::PUT_ZCOPY | Caps::EP_CHECK | Caps::ATOMIC;
    assert!(!a.caps.intersects(off) && a.has(Caps::AM_SHORT | Caps::AM_BCOPY | Caps::AM_ZCOPY));
    // Short messages are copied where nothing is sent inline.
    assert_eq!((a.am.max_short, a.get.max_zcopy, a.put.max_zcopy), (AM_SHORT_MIN, 0, 0));
    let ep = iface.connect_raw(&iface.raw_addr()).unwrap();
    assert_eq!(ep.am_short(1, 0, &[7; 32]), Ok(Sent::Done));
    let too_long = Error::TooLong { len: 41, max: AM_SHORT_MIN };
    assert_eq!(ep.am_short(1, 0, &[7; 33]), Err(too_long.into()));
    assert_eq!(ep.check(Comp::None), Err(Error::Unsupported(Op::Check).into()));
    assert!(!iface.md().attr().has_rkey);
    let mem = iface.md().alloc(&AllocReq::new(10, "test")).unwrap();
    assert_eq!(iface.md().pack_rkey(&mem).err(), Some(Error::Unsupported(Op::RemoteKey)));
}
