//! Headerless sends of a worker. The peer is a bare device that performs the handshake of libfabric 1.22 in
//! zero-copy receive mode and posts its receives to a queue pair of their own.

use crate::common::{context, spin};
use ucp::wire::{Features, Handshake, PktType, UserRecvQp};
use ucp::{Address, Context, Ep, EpParams, Error, SendParams, Worker};
use ucs::config::Source;
use uct::api::{Access, Am, EpTag, Iface as _, Sink};
use uct::efa::dev::soft::{Device, Shm, open_shm};
use uct::efa::dev::{Channel, Cqe, CqeOp, Dev, DevCq, DevMr, DevQp, DevStatus, QpInit, QpKind, Sge};
use uct::efa::{Iface, Params, RawAddr};

type Soft = Device<Shm>;

const QKEY: u32 = 0x77;
const SLOT: usize = 8192;
const SLOTS: usize = 8;

#[derive(Default)]
struct Packets(Vec<Vec<u8>>);

impl Sink for Packets {
    fn on_am(&mut self, am: Am<'_>) {
        self.0.push(am.packet().to_vec());
    }
    fn on_comp(&mut self, _: u64, _: Result<(), uct::api::Error>) {}
    fn on_ep_error(&mut self, _: EpTag, error: uct::api::Error) {
        panic!("{error}");
    }
}

struct Peer {
    main: Iface<Soft>,
    qp: <Soft as Dev>::Qp,
    cq: <Soft as Dev>::Cq,
    mr: <Soft as Dev>::Mr,
    packets: Packets,
}

impl Peer {
    fn new() -> Peer {
        let dev = open_shm(&Source::empty(), "softefa0").unwrap();
        let pd = dev.alloc_pd().unwrap();
        let cq = dev.create_cq(16, Channel::Without).unwrap();
        let init = QpInit {
            kind: QpKind::Srd,
            send_depth: 1,
            recv_depth: SLOTS as u32,
            qkey: QKEY,
            rnr_retry: 7,
            unsolicited_write_recv: false,
        };
        let qp = dev.create_qp(&pd, &cq, &cq, &init).unwrap();
        let mr = dev.alloc_mr(&pd, SLOTS * SLOT, Access::LOCAL_READ | Access::LOCAL_WRITE).unwrap();
        let main = Iface::open(dev, &Params::default()).unwrap();
        Peer { main, qp, cq, mr, packets: Packets::default() }
    }

    fn poll(&mut self) {
        self.main.poll(16, &mut self.packets);
    }

    fn post(&self) {
        for n in 0..SLOTS {
            let addr = self.mr.addr().wrapping_add(n * SLOT);
            self.qp.recv(n as u64, Sge { addr, len: SLOT as u32, lkey: self.mr.lkey() }).unwrap();
        }
        self.qp.ring_doorbell();
    }

    /// Answers the worker's first packet.
    fn shake(&self, to: &Address) {
        let to = RawAddr::parse(&to.efa_raw().unwrap()).unwrap();
        let word = Features::CONNID | Features::DELIVERY_COMPLETE | Features::USER_RECV_QP;
        let mut hdr = Handshake::new(word, self.main.raw_addr().connid, 0xefa2);
        hdr.user_recv_qp = Some(UserRecvQp { qpn: self.qp.qpn().into(), qkey: QKEY });
        let ep = self.main.connect_raw(&to).unwrap();
        uct::api::Ep::am_packet(&ep, hdr.wire_len(), |slot| hdr.write(slot)).unwrap();
    }

    /// Messages received by the peer's program.
    fn take(&self, into: &mut Vec<(Vec<u8>, Option<u32>)>) {
        let mut cqes = [Cqe::EMPTY; SLOTS];
        let got = self.cq.poll(&mut cqes);
        for cqe in &cqes[..got] {
            assert_eq!((cqe.status, cqe.op), (DevStatus::Ok, CqeOp::Recv));
            let at = self.mr.addr().wrapping_add(cqe.wr_id as usize * SLOT);
            // SAFETY: the slot lies in the registration, and its receive is complete.
            into.push((unsafe { std::slice::from_raw_parts(at, cqe.len as usize) }.to_vec(), cqe.imm));
        }
    }
}

fn worker(context: &Context, peer: &Peer) -> (Worker, Ep) {
    let worker = context.worker().unwrap();
    let address = Address::unpack(&peer.main.raw_addr().pack()).unwrap();
    let ep = worker.connect(&address, EpParams::default()).unwrap();
    (worker, ep)
}

// [M5.10] [M5.11]
#[test]
fn messages_wait_for_handshake_and_receives() {
    let mut peer = Peer::new();
    let source = Source::empty().with("UCX_TLS", "efa").with("UCX_NET_DEVICES", "softefa0");
    let context = Context::configured(source.with("UCX_UNTAGGED_WAIT", "y")).unwrap();
    let (worker, ep) = worker(&context, &peer);
    let params = SendParams { cq_data: Some(0xffff_fffe), ..SendParams::default() };
    let mut sends = vec![ep.msg_send(b"first".to_vec()), ep.send(Vec::new(), &params)];
    spin(&[&worker], &mut || {
        peer.poll();
        !peer.packets.0.is_empty()
    });
    assert!(peer.packets.0.iter().all(|packet| packet[0] == PktType::EAGER_RTW.0), "only the trigger");
    assert!(sends.iter_mut().all(|send| !send.is_done()));
    peer.shake(&worker.address());
    // Nothing is posted: the device returns the sends, and they are repeated.
    spin(&[&worker], &mut || worker.stats().rare.sent_again > 2);
    peer.post();
    let mut came = Vec::new();
    spin(&[&worker], &mut || {
        peer.take(&mut came);
        came.len() == 2 && sends.iter_mut().all(|send| send.is_done())
    });
    came.sort();
    assert_eq!(came, [(Vec::new(), Some(0xffff_fffe)), (b"first".to_vec(), None)]);
    sends.into_iter().for_each(|send| send.wait().0.unwrap());
    // Other operations are rejected.
    let (tagged, _) = ep.tag_send(1, vec![0; 8]).wait();
    assert_eq!(tagged, Err(Error::Unsupported));
    let (long, _) = ep.msg_send(vec![0; 100_000]).wait();
    assert!(matches!(long, Err(Error::TooLong { len: 100_000, .. })), "{long:?}");
    peer.poll();
    let messages = peer.packets.0.iter().filter(|packet| (64..70).contains(&packet[0])).count();
    assert_eq!(messages, 0, "no packet with a message ever came");
}

#[test]
fn first_message_is_a_packet_by_default() {
    let mut peer = Peer::new();
    let (worker, ep) = worker(&context("soft"), &peer);
    ep.msg_send(b"first".to_vec()).wait().0.unwrap();
    spin(&[&worker], &mut || {
        peer.poll();
        !peer.packets.0.is_empty()
    });
    assert_eq!(peer.packets.0[0][0], PktType::EAGER_MSGRTM.0);
}
