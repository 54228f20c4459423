//! Messages that callbacks pack or unpack equal contiguous ones, by every protocol; failing callbacks end
//! their operation only.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;

use proptest::prelude::*;
use ucs::Status;

use crate::rdm::EngineConfig;
use crate::rdm::ids::PeerId;
use crate::rdm::op::{GenericData, GenericOps, RecvBuf, RecvList, SendBuf, in_callback};
use crate::rdm::protocol::{DeliveryComplete, Protocol};
use crate::rdm::status::*;
use crate::rdm::testing::*;
use crate::rdm::types::*;
use crate::wire::{Features, PktType};

const PROTOCOLS: [Protocol; 8] = [
    Protocol::Eager,
    Protocol::DcEager,
    Protocol::Medium,
    Protocol::DcMedium,
    Protocol::LongCts,
    Protocol::DcLongCts,
    Protocol::LongRead,
    Protocol::RuntRead,
];

/// Bytes behind callbacks, which pack at most `step` bytes a call and fail from offset `fail_at` on.
struct Program {
    bytes: RefCell<Vec<u8>>,
    seen: RefCell<Vec<bool>>,
    step: usize,
    fail_at: usize,
    finished: Cell<u32>,
}

impl Program {
    fn new(bytes: Vec<u8>, step: usize, fail_at: usize) -> Box<Program> {
        let seen = RefCell::new(vec![false; bytes.len()]);
        Box::new(Program { bytes: RefCell::new(bytes), seen, step, fail_at, finished: Cell::new(0) })
    }

    fn data(&self) -> Box<GenericData> {
        let (state, len) = (std::ptr::from_ref(self).cast_mut().cast(), self.bytes.borrow().len());
        // SAFETY: tests keep the program beside the engines.
        Box::new(unsafe { GenericData::new(GenericOps { pack, unpack, finish }, state, len) })
    }
}

unsafe extern "C" fn pack(state: *mut c_void, offset: usize, dest: *mut c_void, max: usize) -> usize {
    // SAFETY: `Program::data` passes a program.
    let program = unsafe { &*state.cast::<Program>() };
    assert!(in_callback());
    let bytes = program.bytes.borrow();
    let n = max.min(program.step).min(program.fail_at.saturating_sub(offset));
    // SAFETY: the engine has `max` writable bytes there.
    unsafe { std::slice::from_raw_parts_mut(dest.cast(), n) }.copy_from_slice(&bytes[offset..offset + n]);
    n
}

unsafe extern "C" fn unpack(state: *mut c_void, offset: usize, src: *const c_void, length: usize) -> i8 {
    // SAFETY: as in `pack`.
    let program = unsafe { &*state.cast::<Program>() };
    assert!(in_callback() && length > 0);
    if offset + length > program.fail_at {
        return Status::OutOfRange as i8;
    }
    // SAFETY: the engine has `length` readable bytes there.
    let from = unsafe { std::slice::from_raw_parts(src.cast(), length) };
    program.bytes.borrow_mut()[offset..offset + length].copy_from_slice(from);
    for seen in &mut program.seen.borrow_mut()[offset..offset + length] {
        assert!(!std::mem::replace(seen, true), "unpacked twice at {offset}");
    }
    0
}

unsafe extern "C" fn finish(state: *mut c_void) {
    // SAFETY: as in `pack`.
    let program = unsafe { &*state.cast::<Program>() };
    program.finished.set(program.finished.get() + 1);
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

type Ends = (Result<(), OpError>, Result<RecvStatus, OpError>);

/// Sends `from` to a receive into `to`, posted before the message comes or after. Returns how both ended.
fn exchange(net: &mut Net, peer: PeerId, from: SendBuf, to: RecvBuf, protocol: Protocol, late: bool) -> Ends {
    let args = RecvArgs { buf: to, kind: exact(7), from: None, user: 5 };
    let send =
        SendArgs { buf: from, tag: Some(7), sync: DeliveryComplete::No, cq_data: None, protocol, user: 1 };
    let (sent, received) = if late {
        let sent = net.send_args(0, peer, send);
        net.settle();
        (sent, net.at(1, |e, w| e.recv(w, args)))
    } else {
        let received = net.at(1, |e, w| e.recv(w, args));
        (net.send_args(0, peer, send), received)
    };
    net.settle();
    let sent_end = net.events(0).into_iter().find_map(|event| match event {
        EngineEvent::SendDone { user: 1, result } => Some(result),
        _ => None,
    });
    let recv_end = net.events(1).into_iter().find_map(|event| match event {
        EngineEvent::RecvDone { user: 5, result } => Some(result),
        _ => None,
    });
    let sent = match sent {
        Started::Done(()) => from.error().map_or(Ok(()), |error| Err(OpError::Datatype(error))),
        Started::Failed(error) => Err(error),
        Started::Pending(_) => sent_end.expect("the send ends"),
    };
    let received = match received {
        Started::Done(status) => Ok(status),
        Started::Failed(error) => Err(error),
        Started::Pending(_) => recv_end.expect("the receive ends"),
    };
    (sent, received)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    // [M5.7]
    #[test]
    fn packed_and_unpacked_messages_equal_contiguous_ones(
        len in prop_oneof![0usize..9, 0usize..4000, 0usize..20_000],
        percent in 50usize..130,
        step in prop_oneof![1usize..9, 100usize..9000],
        protocol in prop::sample::select(&PROTOCOLS[..]),
        late: bool,
        reorder: bool,
        full in prop::sample::select(vec![0usize, 3]),
        most in prop::sample::select(vec![700u64, 1 << 30]),
    ) {
        let (message, room) = (message_bytes(4, len), len * percent / 100);
        let (source, target) = (Program::new(message.clone(), step, usize::MAX), Program::new(vec![0; room], 1, usize::MAX));
        let (from, to) = (source.data(), target.data());
        // SAFETY: the data outlives the exchange.
        let list = unsafe { RecvList::of_generic(&to) };
        let (mut net, peer) = connected(NetConfig { full, reorder, ..NetConfig::RELIABLE }, most);
        // SAFETY: as above.
        let from = unsafe { SendBuf::of_generic(&from) };
        // SAFETY: as above.
        let to = unsafe { RecvBuf::of_list(&list) };
        let (sent, received) = exchange(&mut net, peer, from, to, protocol, late);
        prop_assert_eq!(sent, Ok(()));
        match received {
            Ok(status) => prop_assert!(status.len == len && len <= room),
            Err(OpError::Truncated { len: whole, room: end, .. }) => {
                prop_assert_eq!((whole, end), (len as u64, room));
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
        let n = len.min(room);
        prop_assert_eq!(&target.bytes.borrow()[..n], &message[..n]);
        prop_assert!(target.seen.borrow()[..n].iter().all(|seen| *seen));
        prop_assert_eq!((source.finished.get(), target.finished.get(), net.regs()), (0, 0, 0));
    }

    #[test]
    fn a_failing_unpack_ends_its_own_operation(
        len in prop_oneof![1usize..9, 1usize..20_000],
        fail_at in 0usize..20_000,
        protocol in prop::sample::select(&PROTOCOLS[..]),
        late: bool,
    ) {
        let target = Program::new(vec![9; len], 1, fail_at % len);
        let to = target.data();
        // SAFETY: the data outlives the exchange.
        let list = unsafe { RecvList::of_generic(&to) };
        let (mut net, peer) = connected(NetConfig::RELIABLE, 1 << 30);
        let message = message_bytes(4, len);
        // SAFETY: as above.
        let room = unsafe { RecvBuf::of_list(&list) };
        let (sent, received) = exchange(&mut net, peer, send_buf(&message), room, protocol, late);
        let error = OpError::Datatype(DatatypeError::Unpack(Status::OutOfRange));
        prop_assert_eq!((sent, received.map(|status| status.len)), (Ok(()), Err(error)));
        is_unaffected(&mut net, peer, protocol, late);
    }

    /// A receiver gets nothing, or is told that the rest will not come. It never takes the message for whole.
    // [M10.3]
    #[test]
    fn a_message_that_cannot_be_packed_is_not_received(
        len in prop_oneof![1usize..9, 1usize..20_000],
        fail_at in 0usize..20_000,
        protocol in prop::sample::select(&PROTOCOLS[..]),
        late: bool,
        reorder: bool,
        full in prop::sample::select(vec![0usize, 3]),
    ) {
        let source = Program::new(message_bytes(4, len), 4096, fail_at % len);
        let from = source.data();
        let (mut net, peer) = connected(NetConfig { full, reorder, ..NetConfig::RELIABLE }, 1 << 30);
        let mut room = vec![9; len];
        let args = RecvArgs { buf: recv_buf(&mut room), kind: exact(7), from: None, user: 5 };
        if !late {
            net.at(1, |e, w| e.recv(w, args));
        }
        // SAFETY: the data outlives the exchange.
        let buf = unsafe { SendBuf::of_generic(&from) };
        let send = SendArgs { buf, tag: Some(7), sync: DeliveryComplete::No, cq_data: None, protocol, user: 1 };
        let error = OpError::Datatype(DatatypeError::Pack);
        let started = net.send_args(0, peer, send);
        net.settle();
        if late {
            let args = RecvArgs { buf: recv_buf(&mut room), kind: exact(7), from: None, user: 5 };
            net.at(1, |e, w| e.recv(w, args));
            net.settle();
        }
        match started {
            Started::Failed(e) => prop_assert_eq!(e, error),
            Started::Pending(_) => {
                let ended = match net.events(0).as_slice() {
                    [EngineEvent::SendDone { user: 1, result }] => *result,
                    other => panic!("{other:?}"),
                };
                prop_assert_eq!(ended, Err(error));
            }
            Started::Done(()) => prop_assert!(false, "sent"),
        }
        match net.events(1).as_slice() {
            // The receive still waits, and takes the next message.
            [] => {
                let next = message_bytes(6, len);
                net.send(0, peer, &next, Some(7), Protocol::Eager);
                net.settle();
                let received = matches!(net.events(1)[..], [EngineEvent::RecvDone { user: 5, result: Ok(_) }]);
                prop_assert!(received);
                prop_assert_eq!(&room, &next);
            }
            [EngineEvent::RecvDone { user: 5, result: Err(OpError::Aborted(..)) }] => {}
            other => prop_assert!(false, "{other:?}"),
        }
        net.events(0);
        is_unaffected(&mut net, peer, protocol, late);
    }
}

/// The next message arrives as if nothing had been.
fn is_unaffected(net: &mut Net, peer: PeerId, protocol: Protocol, late: bool) {
    let (bytes, mut room) = (message_bytes(5, 100), [0; 100]);
    let next = exchange(net, peer, send_buf(&bytes), recv_buf(&mut room), protocol, late);
    assert_eq!((next.0, next.1.map(|status| status.len)), (Ok(()), Ok(100)));
    assert_eq!(room, *bytes);
}

/// A peer that cannot be told gets zeros for the rest of a message that has begun.
#[test]
fn a_peer_without_peer_error_gets_zeros() {
    let source = Program::new(message_bytes(4, 20_000), 4096, 15_000);
    let from = source.data();
    let (mut net, peer) = connected(NetConfig::RELIABLE, 1 << 30);
    let old = net.nodes[0].engine.peers.features(peer).expect("they have met") - Features::PEER_ERROR;
    net.nodes[0].engine.set_features(peer, old);
    let mut room = vec![9; 20_000];
    // SAFETY: the data outlives the exchange.
    let buf = unsafe { SendBuf::of_generic(&from) };
    let (sent, received) = exchange(&mut net, peer, buf, recv_buf(&mut room), Protocol::Medium, false);
    assert_eq!(sent, Err(OpError::Datatype(DatatypeError::Pack)));
    assert_eq!(received.map(|status| status.len), Ok(20_000));
    assert!(room[15_000..].iter().all(|byte| *byte == 0));
}

fn sent_by_1(net: &Net, ty: PktType) -> u64 {
    net.nodes[1].engine.peers.stats().tx_pkts[usize::from(ty.0)]
}

// [M7.5]
#[test]
fn unpacked_messages_are_sent_instead_of_read() {
    for protocol in [Protocol::LongRead, Protocol::RuntRead] {
        let message = message_bytes(9, 20_000);
        let target = Program::new(vec![0; 20_000], 1, usize::MAX);
        let to = target.data();
        // SAFETY: the data outlives the exchange.
        let list = unsafe { RecvList::of_generic(&to) };
        let (mut net, peer) = connected(NetConfig::RELIABLE, 1 << 30);
        // SAFETY: as above.
        let room = unsafe { RecvBuf::of_list(&list) };
        let ends = exchange(&mut net, peer, send_buf(&message), room, protocol, false);
        assert_eq!((ends.0, ends.1.map(|status| status.len)), (Ok(()), Ok(20_000)));
        assert_eq!(*target.bytes.borrow(), message);
        assert_eq!(
            (net.nodes[1].engine.peers.stats().rare.reads, sent_by_1(&net, PktType::READ_NACK)),
            (0, 1)
        );
    }
}

/// A sender without READ_NACK waits until its memory is read: into memory of ours, then unpacked.
// [M7.5]
#[test]
fn a_sender_without_read_nack_is_read() {
    for (protocol, room_len, fail_at, most, late) in [
        (Protocol::LongRead, 20_000, usize::MAX, 1 << 30, false),
        (Protocol::LongRead, 20_000, usize::MAX, 700, true),
        (Protocol::RuntRead, 20_000, usize::MAX, 1 << 30, true),
        (Protocol::RuntRead, 20_000, usize::MAX, 700, false),
        (Protocol::LongRead, 9_000, usize::MAX, 700, false),
        (Protocol::RuntRead, 20_000, 10_000, 1 << 30, false),
    ] {
        let message = message_bytes(2, 20_000);
        let target = Program::new(vec![0; room_len], 1, fail_at);
        let to = target.data();
        // SAFETY: the data outlives the exchange.
        let list = unsafe { RecvList::of_generic(&to) };
        let (mut net, peer) = connected(NetConfig::RELIABLE, most);
        let from = net.peer(1, 0);
        let old = net.nodes[1].engine.peers.features(from).expect("they have met") - Features::READ_NACK;
        net.nodes[1].engine.set_features(from, old);
        // SAFETY: as above.
        let room = unsafe { RecvBuf::of_list(&list) };
        let (sent, received) = exchange(&mut net, peer, send_buf(&message), room, protocol, late);
        let expected = if fail_at < room_len {
            Err(OpError::Datatype(DatatypeError::Unpack(Status::OutOfRange)))
        } else if room_len < message.len() {
            Err(OpError::Truncated { len: message.len() as u64, room: room_len, from, tag: 7 })
        } else {
            assert!(*target.bytes.borrow() == message, "{protocol:?} {most} {late}");
            Ok(message.len())
        };
        assert_eq!((sent, received.map(|status| status.len)), (Ok(()), expected));
        assert!(net.nodes[1].engine.peers.stats().rare.reads > 0, "it was read");
        assert_eq!((net.regs(), sent_by_1(&net, PktType::READ_NACK)), (0, 0));
    }
}
