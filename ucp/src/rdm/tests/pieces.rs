//! Messages of several pieces equal those of one piece on the wire, byte for byte.

use crate::rdm::op::SendBuf;
use crate::rdm::protocol::{DeliveryComplete, Protocol};
use crate::rdm::testing::*;
use crate::rdm::types::*;
use crate::wire::PktType;
use proptest::prelude::*;

/// Returns all packets of the message `buf`, in both directions, and the received bytes.
fn packets(buf: SendBuf, protocol: Protocol) -> (Vec<Vec<u8>>, Vec<u8>) {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE).with_rdma(1 << 20);
    let peer = net.peer(0, 1);
    // Nothing is read before the handshake.
    let (mut hello, mut room) = ([0], vec![0; buf.len()]);
    net.recv(1, &mut hello, exact(99), 0);
    net.send(0, peer, &[1], Some(99), Protocol::Eager);
    net.settle();
    assert_eq!(net.events(1).len(), 1);
    net.recv(1, &mut room, exact(7), 0);
    let args = SendArgs { buf, tag: Some(7), sync: DeliveryComplete::No, cq_data: None, protocol, user: 1 };
    let started = net.send_args(0, peer, args);
    let mut log = Vec::new();
    loop {
        while let Some(sent_packet) = net.sent_packets.first() {
            log.push(sent_packet.bytes.clone());
            net.deliver_one();
        }
        if !net.complete_read() && net.resume(0) + net.resume(1) == 0 && net.sent_packets.is_empty() {
            break;
        }
    }
    assert!(net.events(1).iter().any(|out| matches!(out, EngineEvent::RecvDone { user: 0, result: Ok(_) })));
    assert!(matches!(started, Started::Done(())) || !net.events(0).is_empty());
    (log, room)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn list_equals_one_piece_on_the_wire(
        lens in prop::collection::vec(0usize..9000, 1..8),
        protocol in prop::sample::select(vec![Protocol::Eager, Protocol::DcEager, Protocol::Medium, Protocol::LongCts, Protocol::DcLongCts]),
    ) {
        let whole = message_bytes(3, lens.iter().sum::<usize>() + 1);
        let mut rest = &whole[..];
        let mut list: Vec<SendBuf> = lens.iter().map(|len| send_buf(rest.split_off(..*len).unwrap())).collect();
        list.push(send_buf(rest));
        // SAFETY: the list and its bytes outlive the exchange.
        let buf = unsafe { SendBuf::of_list(&list) }.unwrap();
        let (ours, got) = packets(buf, protocol);
        let (plain, _) = packets(send_buf(&whole), protocol);
        prop_assert_eq!(got, whole);
        prop_assert_eq!(ours, plain);
    }
}

#[test]
fn list_is_sent_instead_of_read() {
    let whole = message_bytes(5, 50_000);
    let (first, second) = whole.split_at(20_000);
    let list = [send_buf(first), send_buf(second)];
    // SAFETY: as above.
    let buf = unsafe { SendBuf::of_list(&list) }.unwrap();
    let is = |ty: PktType| move |packet: &Vec<u8>| packet[0] == ty.0;
    let (log, got) = packets(send_buf(&whole), Protocol::LongRead);
    assert!(got == whole && log.iter().any(is(PktType::LONGREAD_TAGRTM)));
    for protocol in [Protocol::LongRead, Protocol::RuntRead] {
        let (log, got) = packets(buf, protocol);
        assert!(got == whole && log.iter().any(is(PktType::LONGCTS_TAGRTM)), "{protocol:?}");
        assert!(!log.iter().any(is(PktType::LONGREAD_TAGRTM)));
    }
}
