//! Messages to a user receive queue pair: arrivals, RNR, and receives that an interface posts.

#![allow(unsafe_code)]

use super::*;
use crate::api::{UserQp, UserRecv};
use crate::efa::dev::{Cqe, CqeOp, DevCq, DevMr, DevQp, DevStatus, QpInit, QpKind, Sge};

on_every_network!(data_and_immediates_arrive_unchanged messages_without_a_receive_are_returned_with_their_immediate a_wrong_qkey_is_an_endpoint_error
    user_receives_are_filled_in_place a_short_user_receive_reports_too_long
    a_write_with_immediate_fails_a_user_receive);

const QKEY: u32 = 0x1234;
const SLOT: usize = 64;

/// Bytes, immediate, and source queue pair.
type Received = (Vec<u8>, Option<u32>, u16);

/// A queue pair of the program, beside the interface of its host.
struct ProgramQp<D: Dev> {
    qp: D::Qp,
    cq: D::Cq,
    mr: D::Mr,
}

impl<D: Dev> ProgramQp<D> {
    fn new(dev: &D) -> Self {
        let pd = dev.alloc_pd().unwrap();
        let cq = dev.create_cq(16, Channel::Without).unwrap();
        let init = QpInit {
            kind: QpKind::Srd,
            send_depth: 1,
            recv_depth: 16,
            qkey: QKEY,
            rnr_retry: 7,
            unsolicited_write_recv: false,
        };
        let qp = dev.create_qp(&pd, &cq, &cq, &init).unwrap();
        let mr = dev.alloc_mr(&pd, 16 * SLOT, Access::LOCAL_READ | Access::LOCAL_WRITE).unwrap();
        ProgramQp { qp, cq, mr }
    }

    fn name(&self) -> UserQp {
        UserQp { qpn: self.qp.qpn(), qkey: QKEY }
    }

    fn post(&self, slots: std::ops::Range<usize>) {
        for n in slots {
            let addr = self.mr.addr().wrapping_add(n * SLOT);
            self.qp.recv(n as u64, Sge { addr, len: SLOT as u32, lkey: self.mr.lkey() }).unwrap();
        }
        self.qp.ring_doorbell();
    }

    fn take(&self, into: &mut Vec<Received>) {
        let mut cqes = [Cqe::EMPTY; 16];
        let got = self.cq.poll(&mut cqes);
        for cqe in &cqes[..got] {
            assert_eq!((cqe.status, cqe.op), (DevStatus::Ok, CqeOp::Recv));
            let at = self.mr.addr().wrapping_add(cqe.wr_id as usize * SLOT);
            // SAFETY: the slot lies in the registration, and its receive is over.
            let bytes = unsafe { std::slice::from_raw_parts(at, cqe.len as usize) };
            into.push((bytes.to_vec(), cqe.imm, cqe.src_qpn));
        }
    }
}

fn send<D: Dev>(ep: &Ep<D>, to: UserQp, max: usize, data: &[u8], imm: Option<u32>) {
    let sent = ep.send_to_user_qp(to, max, imm, |slot| {
        slot[..data.len()].copy_from_slice(data);
        data.len()
    });
    assert_eq!(sent, Ok(data.len()));
}

type Setup<N> = (N, Side<<N as Network>::A>, Side<<N as Network>::B>, ProgramQp<<N as Network>::B>);

fn sender_and_program_qp<N: Network>(config: &Config) -> Setup<N> {
    let net = N::new();
    let dev = net.b();
    let own = ProgramQp::new(&dev);
    let (a, b) = (Side::on(net.a(), 0xa, config), Side::on(dev, 0xb, &Config::default()));
    (net, a, b, own)
}

fn until<N: Network>(net: &N, mut done: impl FnMut() -> bool) {
    for _ in 0..100_000 {
        if done() {
            return;
        }
        net.advance_time();
    }
    panic!("nothing happens any more");
}

fn data_and_immediates_arrive_unchanged<N: Network>() {
    let (net, mut a, mut b, own) = sender_and_program_qp::<N>(&Config::default());
    own.post(0..16);
    let ep = a.ep_to(&b);
    let qpn = a.iface.raw_addr().qpn;
    let mut sent: Vec<Received> = Vec::new();
    for (n, len) in [0, 1, 8, 31, 32, 33, SLOT].into_iter().enumerate() {
        let data: Vec<u8> = (0..len).map(|at| (at + n) as u8).collect();
        let imm = (n % 2 == 0).then_some(0x8000_0000 + n as u32);
        send(&ep, own.name(), [len, a.iface.attr().am.max_bcopy + 1][n % 2], &data, imm);
        sent.push((data, imm, qpn));
    }
    let mut came = Vec::new();
    until(&net, || {
        own.take(&mut came);
        a.poll() + b.poll() == 0 && came.len() == sent.len()
    });
    came.sort();
    sent.sort();
    assert_eq!(came, sent);
    assert!(b.log.ams.is_empty() && a.log.errors.is_empty(), "nothing for the interface beside it");
    let max = a.iface.attr().am.max_bcopy + 2;
    let long = ep.send_to_user_qp(own.name(), max, None, |_| panic!("packed"));
    assert!(matches!(long, Err(Refused::Failed(Error::TooLong { .. }))));
    let wrong = ep.send_to_user_qp(own.name(), 4, None, |_| 5);
    assert!(matches!(wrong, Err(Refused::Failed(Error::InvalidParam(_)))));
    assert_eq!(ep.flush(Comp::None), Ok(Sent::Done), "refused ones leave nothing behind");
}

fn messages_without_a_receive_are_returned_with_their_immediate<N: Network>() {
    let no_retry = Config { rnr_retry: 0, ..Config::default() };
    let (net, mut a, b, own) = sender_and_program_qp::<N>(&no_retry);
    let ep = a.ep_to(&b);
    ep.set_tag(EpTag(77));
    let mut sent = Vec::new();
    for (len, imm) in [(0, None), (1, Some(5)), (SLOT, None), (SLOT, Some(u32::MAX))] {
        let data = vec![len as u8; len];
        send(&ep, own.name(), len, &data, imm);
        sent.push((EpTag(77), data, Returned::ToUserQp(imm)));
    }
    let mut back = ReturnedPackets::default();
    until(&net, || {
        a.iface.poll(64, &mut back);
        back.0.len() == sent.len()
    });
    back.0.sort_by(|x, y| (&x.1, &x.2).cmp(&(&y.1, &y.2)));
    assert_eq!(back.0, sent);
    // A sink that takes no returned messages gets an endpoint error.
    send(&ep, own.name(), 1, &[1], None);
    until(&net, || a.poll() > 0);
    assert_eq!(a.log.errors, [(EpTag(77), Error::NotReady)]);
}

fn a_wrong_qkey_is_an_endpoint_error<N: Network>() {
    let (net, mut a, b, own) = sender_and_program_qp::<N>(&Config::default());
    let ep = a.ep_to(&b);
    ep.set_tag(EpTag(5));
    let wrong = UserQp { qkey: QKEY + 1, ..own.name() };
    send(&ep, wrong, 4, b"lost", None);
    until(&net, || {
        a.poll();
        !a.log.errors.is_empty()
    });
    assert_eq!(a.log.errors.len(), 1);
    assert_eq!(a.log.errors[0].0, EpTag(5));
}

/// A sink that records user receives, and everything else in a log.
#[derive(Default)]
struct UserRecvLog(Vec<(u64, UserRecv)>, Log);

impl Sink for UserRecvLog {
    fn on_am(&mut self, am: Am<'_>) {
        self.1.on_am(am);
    }
    fn on_comp(&mut self, token: u64, result: Result<(), Error>) {
        self.1.on_comp(token, result);
    }
    fn on_ep_error(&mut self, ep: EpTag, error: Error) {
        self.1.on_ep_error(ep, error);
    }
    fn on_user_recv(&mut self, token: u64, recv: UserRecv) {
        self.0.push((token, recv));
    }
}

fn post_user_recv<D: Dev>(
    side: &Side<D>,
    mem: &Mem<D>,
    at: usize,
    len: usize,
    token: u64,
) -> crate::api::Outcome {
    let iov = Iov::new(mem.addr().wrapping_add(at), len, Some(mem));
    // SAFETY: tests keep the registration and the interface, and read the memory only afterwards.
    unsafe { side.iface.post_user_recv(iov, token) }
}

fn user_recv_pair<N: Network>(depth: u32) -> (N, Side<N::A>, Side<N::B>) {
    let no_retry = Config { rnr_retry: 0, ..Config::default() };
    pair_on(&no_retry, &Config { user_rx_queue_len: depth, ..Config::default() })
}

fn user_receives_are_filled_in_place<N: Network>() {
    let (net, mut a, mut b) = user_recv_pair::<N>(4);
    assert_eq!(a.iface.user_recv_qp(), None);
    let qp = b.iface.user_recv_qp().unwrap();
    let (ep, mem) = (a.ep_to(&b), alloc(&b, 4 * SLOT, 0));
    let mut posted = 0;
    while post_user_recv(&b, &mem, posted % 4 * SLOT, SLOT, 1 << 62 | posted as u64) == Ok(Sent::InProgress) {
        posted += 1;
    }
    assert!((4..64).contains(&posted), "{posted} fit a queue of 4");
    assert!(matches!(post_user_recv(&b, &mem, 0, 4 * SLOT + 1, 0), Err(Refused::Failed(Error::BadLocalKey))));
    assert!(matches!(
        post_user_recv(&b, &mem, 0, SLOT, 1 << 63),
        Err(Refused::Failed(Error::InvalidParam(_)))
    ));
    let from = From { node: a.iface.raw_addr().gid.iid(), port: a.iface.raw_addr().qpn.into() };
    let mut ends = UserRecvLog::default();
    for (n, (len, imm)) in [(SLOT, None), (0, Some(7)), (5, Some(u32::MAX))].into_iter().enumerate() {
        send(&ep, qp, SLOT, &vec![n as u8 + 1; len], imm);
        until(&net, || {
            a.poll();
            b.iface.poll(64, &mut ends);
            ends.0.len() == n + 1
        });
        let (token, recv) = ends.0[n];
        assert_eq!(recv, UserRecv { result: Ok(()), len, imm, source: from });
        let at = (token & !(1 << 62)) as usize % 4 * SLOT;
        assert_eq!(read(&mem)[at..at + len], vec![n as u8 + 1; len]);
    }
    // Messages to the interface itself do not end there.
    assert_eq!(ep.am_short(9, 0, &[]), Ok(Sent::Done));
    settle(&net, &mut a, &mut b);
    assert_eq!((b.log.ams.len(), ends.1.ams.len()), (1, 0));
}

fn a_short_user_receive_reports_too_long<N: Network>() {
    let (net, mut a, b) = user_recv_pair::<N>(4);
    let (ep, mem) = (a.ep_to(&b), alloc(&b, SLOT, 0));
    assert_eq!(post_user_recv(&b, &mem, 0, 8, 3), Ok(Sent::InProgress));
    send(&ep, b.iface.user_recv_qp().unwrap(), 9, &[1; 9], None);
    let mut ends = UserRecvLog::default();
    until(&net, || {
        a.poll();
        b.iface.poll(64, &mut ends);
        !ends.0.is_empty() && !a.log.errors.is_empty()
    });
    assert!(matches!(ends.0[..], [(3, UserRecv { result: Err(Error::TooLong { .. }), .. })]), "{:?}", ends.0);
    assert_eq!(a.log.errors[0].1, Error::RemoteLength);
    assert_eq!(read(&mem)[8..], [0; SLOT - 8], "nothing behind the receive");
}

/// Any peer that knows the queue pair can write to it.
fn a_write_with_immediate_fails_a_user_receive<N: Network>() {
    let (net, mut a, b) = user_recv_pair::<N>(4);
    let (ep, _back, mem) = (a.ep_to(&b), b.ep_to(&a), alloc(&b, SLOT, 0x33));
    let rkey = rkey_of(&b, &mem, &a);
    let UserQp { qpn, qkey } = b.iface.user_recv_qp().unwrap();
    let gid = b.iface.raw_addr().gid;
    let to_user_qp = a.iface.connect_raw(&RawAddr { gid, qpn, connid: qkey }).unwrap();
    let mut ends = UserRecvLog::default();
    for token in [1 << 20, 0] {
        assert_eq!(post_user_recv(&b, &mem, 0, SLOT, token), Ok(Sent::InProgress));
        // SAFETY: nothing is written.
        let written = unsafe { to_user_qp.put_imm(&[], mem.addr() as u64, &rkey, 7, Comp::None) };
        assert_eq!(written, Ok(Sent::InProgress));
        until(&net, || {
            a.poll();
            b.iface.poll(64, &mut ends);
            !ends.0.is_empty()
        });
        let (ended, recv) = ends.0.pop().unwrap();
        assert_eq!((ended, recv.len, recv.imm), (token, 0, None));
        assert_eq!(recv.result, Err(Error::Device(DevStatus::RemoteAbort.into())));
    }
    assert_eq!(read(&mem), [0x33; SLOT]);
    assert_eq!(b.iface.stats().write_imm, 0, "the main queue pair got none");
    // The interface has its receives still.
    let messages = Config::default().rx_queue_len as usize + 1;
    let mut sent = 0;
    until(&net, || {
        sent += usize::from(sent < messages && ep.am_short(1, sent as u64, &[]) == Ok(Sent::Done));
        a.poll();
        b.iface.poll(64, &mut ends);
        ends.1.ams.len() == messages
    });
    assert!(a.log.errors.is_empty() && ends.0.is_empty());
}

#[test]
fn wrappers_forward_user_receives() {
    let fabric = Fabric::new(1, FaultPlan::NONE);
    let open = |iid| Side::open(&fabric, iid, &Config { user_rx_queue_len: 4, ..Config::default() }).iface;
    let gated = crate::wrap::Locked::new(open(1), crate::wrap::ThreadMode::Multi);
    let paired = crate::wrap::Paired::new(open(2));
    assert!(gated.attr().has(Caps::USER_RECV) && paired.attr().has(Caps::USER_RECV));
    assert!(gated.user_recv_qp().is_some() && paired.user_recv_qp().is_some());
}
