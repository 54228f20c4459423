//! Two protocol engines joined by two packet queues in memory, without a transport. Never allocates while it
//! runs.

use ucp::rdm::io::{LaneId, NotPosted, PeerError, PeerId, Posted, ReceiveSink, Source, TxToken, Wire};
use ucp::rdm::{
    Cancel, DeliveryComplete, Engine, EngineConfig, EngineEvent, Protocol, RecvArgs, RecvBuf, RecvKind,
    RecvStatus, SendArgs, SendBuf, Started, WireId,
};
use ucp::wire::{MsgClass, RawAddr};
use ucs::time::Nanos;

/// Longest packet, bytes: that of an EFA device.
pub const MTU: usize = 8928;
const DEPTH: usize = 64;

struct Queue {
    bytes: Box<[u8]>,
    lens: [usize; DEPTH],
    head: usize,
    tail: usize,
}

impl Queue {
    fn new() -> Queue {
        Queue { bytes: vec![0; DEPTH * MTU].into(), lens: [0; DEPTH], head: 0, tail: 0 }
    }

    fn is_full(&self) -> bool {
        self.tail - self.head == DEPTH
    }

    fn slot(&self, n: usize) -> (usize, usize) {
        (n % DEPTH * MTU, n % DEPTH)
    }
}

/// The sending end of a queue, as an engine's wire.
struct QueueWire<'a>(&'a mut Queue);

impl ReceiveSink for QueueWire<'_> {}

impl Wire for QueueWire<'_> {
    #[inline]
    fn mtu(&self, _to: PeerId) -> usize {
        MTU
    }

    #[inline]
    fn send<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        _to: LaneId,
        max: usize,
        _token: TxToken,
        fill: F,
    ) -> Result<Posted, NotPosted> {
        if self.0.is_full() {
            return Err(NotPosted::Full);
        }
        let (at, n) = self.0.slot(self.0.tail);
        self.0.lens[n] = fill(&mut self.0.bytes[at..at + max]);
        self.0.tail += 1;
        Ok(Posted::Done)
    }

    fn connect(&mut self, _peer: LaneId, _from: Source, _addr: &RawAddr) -> Result<(), PeerError> {
        Ok(())
    }
}

/// An engine, and its names at the other one.
struct Side {
    engine: Engine,
    wire: WireId,
    peer: PeerId,
    source: Source,
}

/// Two engines that have exchanged handshakes.
pub struct EnginePair {
    a: Side,
    b: Side,
    ab: Queue,
    ba: Queue,
    /// A vector, as its memory is written through pointers while the pair moves.
    scratch: Vec<u8>,
}

impl Default for EnginePair {
    fn default() -> Self {
        EnginePair::new()
    }
}

impl EnginePair {
    /// Joins two engines; one message each way exchanges handshakes and grows tables.
    pub fn new() -> EnginePair {
        let addr = |n: u8| {
            let mut gid = [0; 16];
            (gid[0], gid[1], gid[15]) = (0xfe, 0x80, n);
            (
                RawAddr { gid, qpn: u16::from(n), connid: u32::from(n) },
                Source { node: u64::from(n), port: u32::from(n) },
            )
        };
        let side = |me: u8, other: u8| {
            let mut engine = Engine::new(EngineConfig::default());
            let wire = engine.wires_mut().add(addr(me).0);
            let peer = engine.peers_mut().add(wire, addr(other).0, addr(other).1);
            Side { engine, wire, peer, source: addr(me).1 }
        };
        let scratch = vec![0; MTU];
        let mut pair =
            EnginePair { a: side(1, 2), b: side(2, 1), ab: Queue::new(), ba: Queue::new(), scratch };
        pair.round_trip(8);
        pair
    }

    /// Delivers queued packets; returns their number.
    #[inline]
    pub fn deliver(&mut self) -> usize {
        let EnginePair { a, b, ab, ba, .. } = self;
        deliver(ab, a.source, b, ba) + deliver(ba, b.source, a, ab)
    }

    /// Sends `buf` from the first engine as one packet; returns whether it is complete.
    #[inline]
    pub fn send(&mut self, tag: u64, buf: &[u8]) -> bool {
        // SAFETY: a send that does not end in this call is cancelled in this call, while `buf` is borrowed.
        let buf = unsafe { SendBuf::new(buf.as_ptr(), buf.len()) };
        let args = SendArgs {
            buf,
            tag: Some(tag),
            sync: DeliveryComplete::No,
            cq_data: None,
            protocol: Protocol::Eager,
            user: 0,
        };
        match self.a.engine.send_class(&mut QueueWire(&mut self.ab), self.a.peer, MsgClass::Message, args) {
            Started::Done(()) => true,
            Started::Pending(op) => {
                assert!(
                    self.a.engine.cancel_send(&mut QueueWire(&mut self.ab), op, Cancel::Unfinished),
                    "one packet that waits can be cancelled"
                );
                self.a.engine.pending_mut().take_event();
                false
            }
            Started::Failed(e) => panic!("send: {e}"),
        }
    }

    /// Posts a receive at the second engine; returns the status if it is complete at once.
    #[inline]
    pub fn recv(&mut self, tag: u64, mask: u64) -> Option<RecvStatus> {
        // SAFETY: the pair owns the scratch memory, nobody else reads it, and it is dropped after the engine
        // (last field).
        let buf = unsafe { RecvBuf::new(self.scratch.as_mut_ptr(), self.scratch.len()) };
        let args = RecvArgs { buf, kind: RecvKind::Tagged { tag, mask }, from: None, user: 0 };
        match self.b.engine.recv(&mut QueueWire(&mut self.ba), args) {
            Started::Done(status) => Some(status),
            Started::Pending(_) => None,
            Started::Failed(e) => panic!("receive: {e}"),
        }
    }

    /// Next completion of the second engine.
    #[inline]
    pub fn received(&mut self) -> Option<RecvStatus> {
        match self.b.engine.pending_mut().take_event()? {
            EngineEvent::RecvDone { result: Ok(status), .. } => Some(status),
            out => panic!("{out:?}"),
        }
    }

    /// Swaps the two engines.
    pub fn swap_sides(&mut self) {
        std::mem::swap(&mut self.a, &mut self.b);
        std::mem::swap(&mut self.ab, &mut self.ba);
    }

    /// Sends one message of `len` bytes each way.
    pub fn round_trip(&mut self, len: usize) {
        let buf = vec![7; len];
        for _ in 0..2 {
            self.recv(1, u64::MAX);
            assert!(self.send(1, &buf), "an empty queue has room");
            while self.deliver() > 0 {}
            assert_eq!(self.received().map(|s| s.len), Some(len));
            self.swap_sides();
        }
    }
}

#[inline]
fn deliver(from: &mut Queue, source: Source, to: &mut Side, back: &mut Queue) -> usize {
    let mut packets = 0;
    while from.head < from.tail {
        let (at, n) = from.slot(from.head);
        let packet = &from.bytes[at..at + from.lens[n]];
        to.engine.on_packet(&mut QueueWire(back), Nanos(0), to.wire, source, packet);
        from.head += 1;
        packets += 1;
    }
    packets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_pass_both_ways_and_nothing_is_left() {
        let mut pair = EnginePair::new();
        for len in [0, 1, 8, 64, 4096, 8000] {
            pair.round_trip(len);
        }
        assert_eq!(pair.deliver(), 0);
        assert!(pair.received().is_none());
        assert!(pair.a.engine.is_flushed(None) && pair.b.engine.is_flushed(None));
    }

    #[test]
    fn unexpected_messages_are_stored() {
        let mut pair = EnginePair::new();
        assert!(pair.send(9, b"hello"));
        pair.deliver();
        assert_eq!(pair.recv(9, u64::MAX).map(|s| (s.len, s.tag)), Some((5, 9)));
        assert_eq!(&pair.scratch[..5], b"hello");
    }
}
