//! Receives into several pieces equal receives into one, by every protocol; no byte beside the pieces.

use crate::rdm::EngineConfig;
use crate::rdm::ids::PeerId;
use crate::rdm::op::RecvBuf;
use crate::rdm::op::RecvList;
use crate::rdm::protocol::{DeliveryComplete, Protocol};
use crate::rdm::status::PeerError;
use crate::rdm::status::*;
use crate::rdm::testing::*;
use crate::rdm::types::*;
use crate::wire::{Features, MAX_IOV, PktType};
use proptest::prelude::*;

const ROWS: [Protocol; 8] = [
    Protocol::Eager,
    Protocol::DcEager,
    Protocol::Medium,
    Protocol::DcMedium,
    Protocol::LongCts,
    Protocol::DcLongCts,
    Protocol::LongRead,
    Protocol::RuntRead,
];
const GAP: usize = 3;
const BLANK: u8 = 0xee;

struct ScatteredBuf {
    lens: Vec<usize>,
    bytes: Vec<u8>,
    list: Box<RecvList>,
}

impl ScatteredBuf {
    fn new(lens: &[usize]) -> ScatteredBuf {
        let bytes = vec![BLANK; lens.iter().map(|len| len + GAP).sum()];
        let mut room = ScatteredBuf { lens: lens.to_vec(), bytes, list: Box::default() };
        let mut rest = &mut room.bytes[..];
        let pieces = lens.iter().map(|&len| {
            let piece = rest.split_off_mut(..len).expect("long enough");
            rest.split_off_mut(..GAP).expect("long enough");
            recv_buf(piece)
        });
        assert!(room.list.fill(pieces));
        room
    }

    fn buf(&self) -> RecvBuf {
        // SAFETY: tests keep the room beside the engines, and read it when the receive is over.
        unsafe { RecvBuf::of_list(&self.list) }
    }

    /// Returns the pieces as one run, and checks that the gaps are untouched.
    fn run(&self) -> Vec<u8> {
        let (mut run, mut rest) = (Vec::new(), &self.bytes[..]);
        for &len in &self.lens {
            run.extend_from_slice(rest.split_off(..len).expect("long enough"));
            let gap = rest.split_off(..GAP).expect("long enough");
            assert_eq!(gap, [BLANK; GAP], "written between the pieces");
        }
        run
    }
}

fn connected(net_config: NetConfig, most: u64) -> (Net, PeerId) {
    let cfg = EngineConfig { runt_size: 3000, ..EngineConfig::default() };
    let mut net = Net::with(2, 7, net_config, cfg).with_rdma(most);
    let peer = net.peer(0, 1);
    let mut hello = [0];
    net.recv(1, &mut hello, exact(99), 0);
    net.send(0, peer, &[1], Some(99), Protocol::Eager);
    net.settle();
    net.events(0);
    net.events(1);
    (net, peer)
}

/// Returns the receiver's event for a message by `protocol`, received before it comes or after.
fn received(
    net: &mut Net,
    peer: PeerId,
    message: &[u8],
    protocol: Protocol,
    late: bool,
    buf: RecvBuf,
) -> Result<RecvStatus, OpError> {
    let args = RecvArgs { buf, kind: exact(7), from: None, user: 5 };
    let send = SendArgs {
        buf: send_buf(message),
        tag: Some(7),
        sync: DeliveryComplete::No,
        cq_data: None,
        protocol,
        user: 1,
    };
    let mut posted = None;
    if late {
        net.send_args(0, peer, send);
        net.settle();
        posted = Some(net.at(1, |e, w| e.recv(w, args)));
    } else {
        net.at(1, |e, w| e.recv(w, args));
        net.send_args(0, peer, send);
    }
    net.settle();
    match posted {
        Some(Started::Done(status)) => return Ok(status),
        Some(Started::Failed(error)) => return Err(error),
        _ => {}
    }
    let ends: Vec<_> =
        net.events(1).into_iter().filter(|out| matches!(out, EngineEvent::RecvDone { .. })).collect();
    match ends.as_slice() {
        [EngineEvent::RecvDone { user: 5, result }] => *result,
        ends => panic!("{ends:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    // [M5.7]
    #[test]
    fn scattered_receive_equals_contiguous_receive(
        lens in prop::collection::vec(prop_oneof![0usize..9, 0usize..4000], 0..8),
        percent in 0usize..130,
        protocol in prop::sample::select(&ROWS[..]),
        late: bool,
        reorder: bool,
        full in prop::sample::select(vec![0usize, 3]),
        most in prop::sample::select(vec![700u64, 1 << 30]),
    ) {
        let net_config = NetConfig { full, reorder, ..NetConfig::RELIABLE };
        let total: usize = lens.iter().sum();
        let message = message_bytes(4, total * percent / 100);
        let room = ScatteredBuf::new(&lens);
        let (mut net, peer) = connected(net_config, most);
        let ours = received(&mut net, peer, &message, protocol, late, room.buf());
        prop_assert_eq!(net.regs(), 0);
        let mut plain = vec![BLANK; total];
        let (mut net, peer) = connected(net_config, most);
        let one = received(&mut net, peer, &message, protocol, late, recv_buf(&mut plain));
        prop_assert_eq!(ours, one);
        prop_assert_eq!(ours.is_ok(), message.len() <= total);
        let n = message.len().min(total);
        prop_assert_eq!(&room.run()[..n], &message[..n]);
        prop_assert_eq!(room.run(), plain);
    }
}

fn sent(net: &Net, ty: PktType) -> u64 {
    net.nodes[1].engine.peers().stats().tx_pkts[usize::from(ty.0)]
}

// [M7.1]
#[test]
fn few_pieces_are_read_into_in_place_and_many_are_sent() {
    for pieces in [1, 2, MAX_IOV, MAX_IOV + 1, 9] {
        for protocol in [Protocol::LongRead, Protocol::RuntRead] {
            let (message, room) = (message_bytes(9, 2000 * pieces), ScatteredBuf::new(&vec![2000; pieces]));
            let (mut net, peer) = connected(NetConfig::RELIABLE, 1 << 30);
            let end = received(&mut net, peer, &message, protocol, false, room.buf());
            assert_eq!((end.map(|status| status.len), room.run()), (Ok(message.len()), message));
            let few = pieces <= MAX_IOV;
            let reads = net.nodes[1].engine.peers().stats().rare.reads;
            assert_eq!((reads > 0, sent(&net, PktType::READ_NACK) > 0), (few, !few), "{pieces}");
            assert_eq!(net.regs(), 0);
        }
    }
}

#[test]
fn read_without_read_nack_fills_any_number_of_pieces() {
    for copies in [1 << 20, 100, 1] {
        let (message, room) = (message_bytes(2, 9 * 1500), ScatteredBuf::new(&[1500; 9]));
        let (mut net, peer) = connected(NetConfig::RELIABLE, 1 << 30);
        let from = net.peer(1, 0);
        net.nodes[1].device.copies = copies;
        let old = net.nodes[1].engine.peers().features(from).expect("they have met") - Features::READ_NACK;
        net.nodes[1].engine.set_features(from, old);
        let end = received(&mut net, peer, &message, Protocol::LongRead, false, room.buf());
        assert_eq!((end.map(|status| status.len), room.run()), (Ok(message.len()), message), "{copies}");
    }
}

#[test]
fn failed_read_leaves_no_piece_registered() {
    let (message, room) = (message_bytes(2, 6000), ScatteredBuf::new(&[2000; 3]));
    let (mut net, peer) = connected(NetConfig::RELIABLE, 1000);
    net.nodes[1].device.fault = Some(PeerError::Gone);
    let end = received(&mut net, peer, &message, Protocol::LongRead, false, room.buf());
    assert!(matches!(end, Err(OpError::Peer(_, PeerError::Gone))), "{end:?}");
    assert_eq!((net.nodes[1].device.live(), room.run().len()), (0, 6000));
}

#[test]
fn multi_receive_needs_a_contiguous_buffer() {
    let room = ScatteredBuf::new(&[100, 100]);
    let (mut net, _) = connected(NetConfig::RELIABLE, 0);
    let args = RecvArgs { buf: room.buf(), kind: exact(7), from: None, user: 5 };
    assert_eq!(net.at(1, |e, w| e.recv_multi(w, args, 1)).err(), Some(OpError::Invalid));
}
