//! RDMA over a simulated device that ends operations on demand. It uses the caller's memory until the last
//! part ends.

use crate::rdm::Engine;
use crate::rdm::io::*;
use crate::rdm::op::{Gather, Piece, Scatter};
use crate::rdm::protocol::{DeliveryComplete, Protocol};
use crate::rdm::rma::args::{FenceScope, GetArgs, PutArgs, RmaProtocol};
use crate::rdm::rma::mem::{Access, Region};
use crate::rdm::testing::*;
use crate::rdm::trace::DropReason;
use crate::rdm::types::*;
use crate::rdm::{ids::*, status::*};
use crate::wire::{Features, Iovs, PktType, RawAddr, RmaIov};

const BASE: u64 = 0x1000;
const KEY: u64 = 7;

enum What {
    Write(Piece),
    Read(Piece),
}

struct Device {
    mem: Vec<u8>,
    max: usize,
    full: bool,
    in_flight: Vec<(TxToken, Remote, What)>,
    words: Vec<u32>,
    regs: usize,
    most_regs: usize,
}

struct Both<'a, 'p> {
    port: &'a mut NodeWire<'p>,
    device: &'a mut Device,
}

impl ReceiveSink for Both<'_, '_> {}

impl Wire for Both<'_, '_> {
    fn mtu(&self, to: PeerId) -> usize {
        self.port.mtu(to)
    }

    fn send<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        to: LaneId,
        max: usize,
        token: TxToken,
        fill: F,
    ) -> Result<Posted, NotPosted> {
        self.port.send(to, max, token, fill)
    }

    fn connect(&mut self, peer: LaneId, from: Source, addr: &RawAddr) -> Result<(), PeerError> {
        self.port.connect(peer, from, addr)
    }

    fn register(&mut self, _wire: WireId, _piece: Piece, _for_what: RegAccess) -> Result<Reg, RegError> {
        if self.device.regs == self.device.most_regs {
            return Err(RegError::Full);
        }
        self.device.regs += 1;
        Ok(Reg { id: 3, key: 4 })
    }

    fn release(&mut self, _reg: Reg) {
        self.device.regs -= 1;
    }

    fn write(
        &mut self,
        _peer: LaneId,
        from: Piece,
        _reg: &Reg,
        to: Remote,
        imm: Option<u32>,
        token: TxToken,
    ) -> Result<Posted, NotPosted> {
        self.device.words.extend(imm);
        self.device.post(to, from.len(), token, What::Write(from))
    }

    fn read(
        &mut self,
        _peer: LaneId,
        to: Piece,
        _reg: &Reg,
        from: Remote,
        token: TxToken,
    ) -> Result<Posted, NotPosted> {
        self.device.post(from, to.len(), token, What::Read(to))
    }
}

impl Device {
    fn post(&mut self, far: Remote, len: usize, token: TxToken, what: What) -> Result<Posted, NotPosted> {
        assert!(len > 0 && len <= self.max, "operation of {len}");
        if self.full {
            return Err(NotPosted::Full);
        }
        self.in_flight.push((token, far, what));
        Ok(Posted::Pending)
    }
}

struct Pair {
    net: Net,
    peer: PeerId,
    device: Device,
}

impl Pair {
    fn new(max: usize) -> Pair {
        let mut net = Net::new(2, 1, NetConfig::RELIABLE);
        let rdma = Rdma { read: max as u64, write: max as u64, write_imm: true };
        for node in &mut net.nodes {
            node.engine.wires_mut().set_rdma(node.wire, rdma);
        }
        let peer = net.peer(0, 1);
        let mut byte = [0; 1];
        net.recv(1, &mut byte, exact(1), 0);
        net.send(0, peer, b"x", Some(1), Protocol::Eager);
        net.settle();
        net.events(0);
        Pair {
            net,
            peer,
            device: Device {
                mem: vec![0; 1000],
                max,
                full: false,
                in_flight: Vec::new(),
                words: Vec::new(),
                regs: 0,
                most_regs: 10,
            },
        }
    }

    fn with<T>(&mut self, call: impl FnOnce(&mut Engine, &mut Both<'_, '_>) -> T) -> T {
        let Pair { net, device, .. } = self;
        net.at(0, |e, port| call(e, &mut Both { port, device }))
    }

    fn put(&mut self, bytes: &[u8], remote: Iovs) -> Started<()> {
        self.put_with_data(bytes, remote, None)
    }

    fn put_with_data(&mut self, bytes: &[u8], remote: Iovs, cq_data: Option<u64>) -> Started<()> {
        let (peer, local) = (self.peer, Gather::one(send_buf(bytes)));
        let protocol = RmaProtocol::DirectWrite;
        self.with(|e, w| {
            e.put(w, peer, PutArgs { local, remote, sync: DeliveryComplete::No, cq_data, protocol, user: 4 })
        })
    }

    fn get(&mut self, room: &mut [u8], remote: Iovs) -> Started<()> {
        let (peer, local) = (self.peer, Scatter::one(recv_buf(room)));
        self.with(|e, w| {
            e.get(w, peer, GetArgs { local, remote, protocol: RmaProtocol::DirectRead, user: 5 })
        })
    }

    fn land(&mut self, n: usize) {
        let (token, far, what) = self.device.in_flight.remove(n);
        let len = match &what {
            What::Write(from) => from.len(),
            What::Read(into) => into.len(),
        };
        let at = far.addr.wrapping_sub(BASE) as usize;
        let range = at..at.saturating_add(len);
        let result = match (self.device.mem.get_mut(range), far.key, what) {
            (Some(mem), KEY, What::Write(from)) => {
                // SAFETY: the test keeps what it lends until the operation ends; `mem` has as many bytes.
                unsafe { std::ptr::copy_nonoverlapping(from.ptr(), mem.as_mut_ptr(), mem.len()) };
                Ok(())
            }
            (Some(mem), KEY, What::Read(into)) => {
                // SAFETY: as above, in the other direction.
                unsafe { std::ptr::copy_nonoverlapping(mem.as_ptr(), into.ptr(), mem.len()) };
                Ok(())
            }
            _ => Err(PeerError::ACCESS),
        };
        self.with(|e, w| e.on_sent(w, token, result));
    }

    fn resume(&mut self) -> usize {
        self.with(|e, w| e.resume(w, ucs::time::Nanos(0)))
    }
}

fn iovs(list: &[(u64, u64)]) -> Iovs {
    let list: Vec<_> = list.iter().map(|&(at, len)| RmaIov { addr: BASE + at, len, key: KEY }).collect();
    Iovs::try_from(list.as_slice()).unwrap()
}

#[test]
fn long_operations_are_split_at_the_limit_and_at_pieces() {
    let mut pair = Pair::new(100);
    let bytes = message_bytes(3, 250);
    assert!(matches!(pair.put(&bytes, iovs(&[(10, 130), (500, 120)])), Started::Pending(_)));
    let cuts: Vec<(u64, usize)> = pair
        .device
        .in_flight
        .iter()
        .map(|(_, far, what)| (far.addr - BASE, if let What::Write(from) = what { from.len() } else { 0 }))
        .collect();
    assert_eq!(cuts, [(10, 100), (110, 30), (500, 100), (600, 20)]);
    for _ in 0..3 {
        pair.land(1.min(pair.device.in_flight.len() - 1));
        assert!(pair.net.events(0).is_empty() && !pair.net.nodes[0].engine.is_flushed(None));
    }
    pair.land(0);
    assert_eq!(pair.net.events(0), [EngineEvent::RmaDone { user: 4, result: Ok(()) }]);
    assert_eq!((&pair.device.mem[10..140], &pair.device.mem[500..620]), (&bytes[..130], &bytes[130..]));
    let mut room = vec![0; 250];
    pair.get(&mut room, iovs(&[(10, 130), (500, 120)]));
    while !pair.device.in_flight.is_empty() {
        pair.land(0);
    }
    assert_eq!((pair.net.events(0).len(), room), (1, bytes));
    assert!(pair.net.nodes[0].engine.is_flushed(None) && pair.net.nodes[0].engine.quiet());
    assert_eq!(pair.device.regs, 0);
    assert_eq!(pair.put(&[], iovs(&[(0, 0)])), Started::Done(()));
}

#[test]
fn full_device_is_retried() {
    let mut pair = Pair::new(100);
    let bytes = message_bytes(3, 150);
    pair.device.full = true;
    assert!(matches!(pair.put(&bytes, iovs(&[(0, 150)])), Started::Pending(_)));
    assert_eq!((pair.resume(), pair.device.in_flight.len()), (0, 0));
    pair.device.full = false;
    assert!(pair.resume() > 0);
    assert_eq!(pair.device.in_flight.len(), 2);
    pair.land(0);
    pair.land(0);
    assert_eq!(pair.net.events(0).len(), 1);
}

#[test]
fn refused_part_fails_operation_after_the_rest_ends() {
    let mut pair = Pair::new(100);
    let bytes = message_bytes(3, 250);
    pair.put(&bytes, iovs(&[(0, 100), (5000, 100), (100, 50)]));
    pair.land(1);
    assert!(pair.net.events(0).is_empty(), "the device still reads the caller's memory");
    pair.land(1);
    pair.land(0);
    assert_eq!(
        pair.net.events(0),
        [EngineEvent::RmaDone { user: 4, result: Err(OpError::Access(PeerId(0))) }]
    );
    let peer = pair.peer;
    assert_eq!(pair.net.nodes[0].engine.peers().info(peer).unwrap().fault, None);
    assert!(pair.net.nodes[0].engine.is_flushed(None));
}

#[test]
fn device_keeps_memory_until_the_end_after_peer_loss() {
    let mut pair = Pair::new(100);
    let mut room = vec![0; 150];
    pair.get(&mut room, iovs(&[(0, 150)]));
    let peer = pair.peer;
    pair.with(|e, w| e.on_peer_error(w, peer, PeerError::Gone));
    let outs = pair.net.events(0);
    assert_eq!(outs, [EngineEvent::PeerFailed { peer, fault: PeerError::Gone }]);
    pair.with(|e, w| e.remove_peer(w, peer));
    pair.land(0);
    assert!(pair.net.events(0).is_empty());
    pair.land(0);
    assert_eq!(
        pair.net.events(0),
        [EngineEvent::RmaDone { user: 5, result: Err(OpError::Peer(peer, PeerError::Gone)) }]
    );
    assert!(pair.net.nodes[0].engine.quiet());
    assert_eq!(pair.device.regs, 0);
}

#[test]
fn operation_without_device_goes_by_packets() {
    let mut pair = Pair::new(0);
    let bytes = message_bytes(3, 150);
    assert_eq!(pair.put(&bytes, iovs(&[(0, 150)])), Started::Done(()));
    assert_eq!(pair.net.sent_packets.len(), 1);
    assert!(pair.device.in_flight.is_empty());
}

#[test]
fn memory_that_cannot_be_registered_goes_by_packets() {
    let mut pair = Pair::new(100);
    pair.device.most_regs = 0;
    let bytes = message_bytes(3, 150);
    assert_eq!(pair.put(&bytes, iovs(&[(0, 150)])), Started::Done(()));
    assert_eq!((pair.net.sent_packets.len(), pair.device.in_flight.len()), (1, 0));
}

// [M8.9]
#[test]
fn peer_without_rdma_feature_gets_packets() {
    for bits in [Features::RDMA_READ, Features::RDMA_WRITE] {
        let mut pair = Pair::new(100);
        let (peer, bytes, mut room) = (pair.peer, message_bytes(3, 50), [0; 50]);
        pair.net.nodes[0].engine.set_features(peer, bits);
        pair.put(&bytes, iovs(&[(0, 50)]));
        pair.get(&mut room, iovs(&[(0, 50)]));
        let first: Vec<_> =
            pair.net.sent_packets.iter().map(|sent_packet| PktType(sent_packet.bytes[0])).collect();
        let (packets, left) = match bits {
            Features::RDMA_READ => (vec![PktType::EAGER_RTW], "a read"),
            _ => (vec![PktType::SHORT_RTR], "a write"),
        };
        assert_eq!((first, pair.device.in_flight.len()), (packets, 1), "{left} by the device");
    }
}

// [M8.10]
#[test]
fn immediate_data_travel_with_the_device_write() {
    let bytes = message_bytes(3, 5000);
    let whole = iovs(&[(0, 5000)]);
    let mut pair = Pair::new(8000);
    pair.device.mem = vec![0; 5000];
    assert!(matches!(pair.put_with_data(&bytes, whole, Some(0xdead_beef)), Started::Pending(_)));
    assert_eq!((pair.device.words.as_slice(), pair.device.in_flight.len()), (&[0xdead_beef][..], 1));
    pair.land(0);
    assert_eq!((pair.net.events(0).len(), pair.device.regs), (1, 0));
    assert_eq!(pair.device.mem, bytes);
    let (wire, from) = (pair.net.nodes[1].wire, source(&address(0)));
    pair.net.at(1, |e, w| e.on_imm(w, wire, from, 5000, 0xdead_beef));
    let writer = pair.net.peer(1, 0);
    let want = [EngineEvent::RemoteWrite { from: writer, len: 5000, cq_data: 0xdead_beef }];
    assert_eq!(pair.net.events(1).into_iter().filter(|out| *out == want[0]).count(), 1);
    assert_eq!(pair.net.nodes[1].engine.peers().stats().served(RmaProtocol::DirectWrite).bytes, 5000);
    pair.net.at(1, |e, w| e.on_imm(w, wire, Source { node: 99, port: 1 }, 5000, 1));
    assert!(pair.net.events(1).is_empty(), "from nobody known");
    assert_eq!(pair.net.nodes[1].engine.peers().stats().dropped(DropReason::UnknownSender), 1);

    let by_packets = |len: usize, remote: Iovs, word: u64, bits: Features| {
        let mut pair = Pair::new(5000);
        let peer = pair.peer;
        let met = pair.net.nodes[0].engine.peers().features(peer).unwrap();
        pair.net.nodes[0].engine.set_features(peer, met | bits);
        pair.put_with_data(&bytes[..len], remote, Some(word));
        assert!(pair.device.words.is_empty() && pair.device.in_flight.is_empty());
        PktType(pair.net.sent_packets[0].bytes[0])
    };
    let (none, long) = (Features::empty(), PktType::DC_LONGCTS_RTW);
    assert_eq!(by_packets(100, iovs(&[(0, 100)]), 7, none), PktType::DC_EAGER_RTW);
    assert_eq!(by_packets(5000, whole, 1 << 32, none), long);
    assert_eq!(by_packets(5000, iovs(&[(0, 4000), (4000, 1000)]), 7, none), long);
    assert_eq!(by_packets(5000, whole, 7, Features::UNSOLICITED_WRITE_RECV), long);
}

// [M8.10]
/// The device gives up on immediate data without a receive. Data and word then come by packets, ahead of a
/// fence; where packets are refused, the operation fails and the peer does not.
#[test]
fn immediate_data_without_a_receive_go_by_packets() {
    let (allowed, refused) = (Emulation::Allowed, Emulation::Refused);
    for (emulation, fenced) in [(allowed, false), (allowed, true), (refused, false), (refused, true)] {
        let mut pair = Pair::new(8000);
        let (bytes, mut room) = (message_bytes(3, 5000), vec![0; 5000]);
        // SAFETY: the test keeps `room`, and reads it when all is over.
        let region = unsafe { Region::new(room.as_mut_ptr(), room.len(), Access::all()) }.unwrap();
        let (wire, target) = (pair.net.nodes[1].wire, &mut pair.net.nodes[1].engine);
        let key = target.memory().add(region).unwrap();
        assert!(target.memory().add_device_key(key, DomainId(wire.0), KEY));
        pair.net.nodes[0].engine.set_emulation(emulation);
        let remote = Iovs::one(RmaIov { addr: region.addr(), len: 5000, key: KEY });
        assert!(matches!(pair.put_with_data(&bytes, remote, Some(0xbead)), Started::Pending(_)));
        let (peer, writer) = (pair.peer, pair.net.peer(1, 0));
        if fenced {
            pair.with(|e, w| e.fence(w, peer, FenceScope::Packets));
        }
        let (token, _, _) = pair.device.in_flight.remove(0);
        pair.with(|e, w| e.on_sent(w, token, Err(PeerError::NOT_READY)));
        assert_eq!(pair.device.regs, 0);
        pair.net.settle();
        assert_eq!(pair.net.nodes[0].engine.peers().info(peer).unwrap().fault, None);
        assert!(pair.net.nodes[0].engine.is_flushed(None) && pair.net.nodes[0].engine.quiet());
        let told = EngineEvent::RemoteWrite { from: writer, len: 5000, cq_data: 0xbead };
        let heard = pair.net.events(1).into_iter().filter(|out| *out == told).count();
        let result = if emulation == Emulation::Allowed { Ok(()) } else { Err(OpError::Emulated) };
        assert_eq!(pair.net.events(0), [EngineEvent::RmaDone { user: 4, result }]);
        assert_eq!((heard, room == bytes), if result.is_ok() { (1, true) } else { (0, false) });
    }
}

#[test]
fn partly_unregistrable_memory_goes_by_packets() {
    let mut pair = Pair::new(100);
    pair.device.most_regs = 1;
    let bytes = message_bytes(3, 150);
    let mut local = Gather::one(send_buf(&bytes[..70]));
    assert!(local.push(send_buf(&bytes[70..])));
    let (peer, remote, protocol) = (pair.peer, iovs(&[(0, 150)]), RmaProtocol::DirectWrite);
    let args = PutArgs { local, remote, sync: DeliveryComplete::No, cq_data: None, protocol, user: 4 };
    assert!(matches!(pair.with(|e, w| e.put(w, peer, args)), Started::Pending(_)));
    assert_eq!((pair.resume(), pair.device.in_flight.len(), pair.net.sent_packets.len()), (0, 1, 0));
    pair.land(0);
    assert!(pair.resume() > 0);
    assert_eq!(pair.net.events(0), [EngineEvent::RmaDone { user: 4, result: Ok(()) }]);
    assert_eq!((pair.net.sent_packets.len(), pair.device.regs), (1, 0));
}
