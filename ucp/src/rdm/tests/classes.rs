//! Messages of our own classes: never mixed with others, never sent to a peer that does not know them.

use super::super::io::Rdma;
use super::super::quirks::ours;
use crate::rdm::ask::*;
use crate::rdm::room::{Row, Sync};
use crate::rdm::testing::*;
use crate::wire::{self, Class, Features, Packet, PktType};

fn of(class: Class, tag: u64) -> RecvKind {
    RecvKind::Class { class, tag, mask: !0 }
}

fn send(net: &mut Net, class: Class, bytes: &[u8], row: Row) -> Started<()> {
    let peer = net.peer(0, 1);
    let args = SendArgs { buf: lend(bytes), tag: Some(7), sync: Sync::No, cq_data: None, row, user: 1 };
    net.at(0, |e, w| e.send_class(w, peer, class, args))
}

// [M11.1] [M11.2]
#[test]
fn each_class_goes_to_its_own_receives_in_every_protocol() {
    for (row, len) in [(Row::Eager, 100), (Row::Medium, 5000), (Row::LongCts, 50_000)] {
        let mut net = Net::new(2, 1, Manner::CALM);
        let bytes = letter(3, len);
        let mut rooms = [vec![0; len], vec![0; len], vec![0; len], vec![0; len]];
        let kinds = [exact(7), of(Class::Am, 7), of(Class::AmData, 7), of(Class::Stream, 7)];
        for (n, kind) in kinds.into_iter().enumerate() {
            net.recv(1, &mut rooms[n], kind, n as u64);
        }
        assert!(matches!(send(&mut net, Class::Am, &bytes, row), Started::Pending(_)), "handshake first");
        assert_eq!(PktType(net.flights[0].bytes[0]), PktType::EAGER_RTW);
        net.settle();
        assert_eq!(net.outs(1).len(), 1);
        assert_eq!((&rooms[1], &rooms[0][..8]), (&bytes, &[0; 8][..]));
        for class in [Class::Stream, Class::AmData, Class::Message] {
            send(&mut net, class, &bytes, row);
        }
        net.settle();
        assert_eq!(net.outs(1).len(), 3);
        assert!(rooms.iter().all(|room| *room == bytes));
    }
}

// [M11.1]
#[test]
fn a_peer_that_does_not_know_classes_never_sees_one() {
    let mut net = Net::new(2, 1, Manner::CALM);
    assert!(matches!(send(&mut net, Class::Am, b"am", Row::Eager), Started::Pending(_)));
    net.deliver_one();
    // The HANDSHAKE of an endpoint that has all but our bit.
    let at = net.flights.iter().position(|f| f.bytes[0] == PktType::HANDSHAKE.0).unwrap();
    let word = ours(Rdma::NONE).difference(Features::CLASSES).bits().to_le_bytes();
    net.flights[at].bytes[8..16].copy_from_slice(&word);
    net.settle();
    assert_eq!(net.outs(0), [Out::SendDone { user: 1, result: Err(OpError::Unsupported) }]);
    assert_eq!(send(&mut net, Class::Stream, b"s", Row::Eager), Started::Failed(OpError::Unsupported));
}

// [M11.2]
#[test]
fn the_class_travels_in_two_flags() {
    let mut net = Net::new(2, 1, Manner::CALM);
    send(&mut net, Class::Message, b"first", Row::Eager);
    net.settle();
    for class in [Class::Message, Class::Am, Class::AmData, Class::Stream] {
        assert_eq!(send(&mut net, class, b"x", Row::Eager), Started::Done(()));
        let Ok(Packet::Rtm(rtm)) = wire::parse(&net.flights[0].bytes) else { panic!() };
        assert_eq!(rtm.flags.bits() & 0x0300, (class as u16) << 8);
        assert_eq!(rtm.opts.class, class);
        net.settle();
    }
}
