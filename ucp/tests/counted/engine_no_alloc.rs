//! A warm engine allocates nothing for eager, medium and long-CTS messages, expected or not, in order or not.
//! Not covered: iovs of MEDIUM out of order and of unexpected MEDIUM, which allocate per message. And a peer
//! takes few bytes.

use ucp::rdm::io::{LaneId, NotPosted, PeerError, PeerId, Posted, ReceiveSink, Source, TxToken, Wire};
use ucp::rdm::{
    DeliveryComplete, Engine, EngineConfig, Protocol, RecvArgs, RecvBuf, RecvKind, SendArgs, SendBuf,
};
use ucp::wire::{MsgClass, RawAddr};
use ucs::time::Nanos;

const MTU: usize = 1024;
const DEPTH: usize = 256;

/// A queue of packets in memory allocated before.
struct Line {
    bytes: Vec<u8>,
    lens: Vec<usize>,
    used: usize,
}

impl Line {
    fn new() -> Line {
        Line { bytes: vec![0; DEPTH * MTU], lens: vec![0; DEPTH], used: 0 }
    }

    fn packet(&self, n: usize) -> &[u8] {
        &self.bytes[n * MTU..][..self.lens[n]]
    }
}

impl ReceiveSink for Line {}

impl Wire for Line {
    fn mtu(&self, _: PeerId) -> usize {
        MTU
    }

    fn send<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        _: LaneId,
        max: usize,
        _: TxToken,
        fill: F,
    ) -> Result<Posted, NotPosted> {
        if self.used == DEPTH {
            return Err(NotPosted::Full);
        }
        self.lens[self.used] = fill(&mut self.bytes[self.used * MTU..][..max]);
        self.used += 1;
        Ok(Posted::Done)
    }

    fn connect(&mut self, _: LaneId, _: Source, _: &RawAddr) -> Result<(), PeerError> {
        Ok(())
    }
}

struct End {
    engine: Engine,
    line: Line,
    peer: PeerId,
    source: Source,
}

fn address(n: u16) -> RawAddr {
    let mut gid = [0; 16];
    gid[14..].copy_from_slice(&n.to_be_bytes());
    RawAddr { gid, qpn: n, connid: u32::from(n) }
}

fn source(n: u16) -> Source {
    Source { node: u64::from(n), port: u32::from(n) }
}

fn end(me: u16, you: u16) -> End {
    let mut engine = Engine::new(EngineConfig::default());
    let wire = engine.wires_mut().add(address(me));
    let peer = engine.peers_mut().add(wire, address(you), source(you));
    End { engine, line: Line::new(), peer, source: source(me) }
}

fn pump(a: &mut End, b: &mut End, backwards: bool) {
    loop {
        for turn in 0..2 {
            let (from, to) = if turn == 0 { (&mut *a, &mut *b) } else { (&mut *b, &mut *a) };
            let wire = to.engine.peers().info(to.peer).expect("known").wire;
            let used = std::mem::take(&mut from.line.used);
            for n in 0..used {
                let n = if backwards { used - 1 - n } else { n };
                to.engine.on_packet(&mut to.line, Nanos(0), wire, from.source, from.line.packet(n));
            }
            from.engine.resume(&mut from.line, Nanos(0));
            to.engine.resume(&mut to.line, Nanos(0));
        }
        if a.line.used + b.line.used == 0 {
            return;
        }
    }
}

#[test]
fn warm_engine_allocates_nothing() {
    let (mut a, mut b) = (end(1, 2), end(2, 1));
    let bytes = vec![7u8; 60_000];
    let mut room = vec![0u8; 60_000];
    let sends =
        [(Protocol::Eager, 8), (Protocol::DcEager, 8), (Protocol::Eager, 900), (Protocol::LongCts, 60_000)];
    let mut round = |expected: bool, backwards: bool, row: Protocol, len: usize| {
        for n in 0..4u64 {
            let kind = RecvKind::Tagged { tag: n, mask: !0 };
            // SAFETY: `room` outlives both engines; the receives' bytes are not read.
            let buf = unsafe { RecvBuf::new(room.as_mut_ptr(), len) };
            let args = RecvArgs { buf, kind, from: None, user: n };
            if expected {
                b.engine.recv(&mut b.line, args);
            }
            // SAFETY: `bytes` outlives both engines and is constant.
            let buf = unsafe { SendBuf::new(bytes.as_ptr(), len) };
            let send = SendArgs {
                buf,
                tag: Some(n),
                sync: DeliveryComplete::No,
                cq_data: None,
                protocol: row,
                user: n,
            };
            a.engine.send_class(&mut a.line, a.peer, MsgClass::Message, send);
        }
        pump(&mut a, &mut b, backwards);
        for n in (0..4u64).filter(|_| !expected) {
            let kind = RecvKind::Tagged { tag: n, mask: !0 };
            // SAFETY: as above.
            let buf = unsafe { RecvBuf::new(room.as_mut_ptr(), len) };
            b.engine.recv(&mut b.line, RecvArgs { buf, kind, from: None, user: n });
            pump(&mut a, &mut b, backwards);
        }
        while a.engine.pending_mut().take_event().is_some() || b.engine.pending_mut().take_event().is_some() {
        }
        assert!(a.engine.is_flushed(None) && b.engine.pending().held_bytes() == 0);
    };
    for (expected, backwards) in [(true, false), (false, false), (true, true), (false, true)] {
        let medium = (expected && !backwards).then_some((Protocol::Medium, 20_000));
        for (row, len) in sends.into_iter().filter(|s| s.0 != Protocol::LongCts || !backwards).chain(medium) {
            (0..20).for_each(|_| round(expected, backwards, row, len));
            let before = crate::counting::count();
            (0..20).for_each(|_| round(expected, backwards, row, len));
            let count = crate::counting::count() - before;
            assert_eq!(count, 0, "{row:?} of {len} bytes, expected: {expected}, backwards: {backwards}");
        }
    }
}

/// Sends a message to a peer, which is new to `a` and gone afterwards.
fn meet(a: &mut End, peer: u16) {
    let mut b = end(peer, 1);
    let wire = a.engine.peers().info(a.peer).expect("known").wire;
    a.peer = a.engine.peers_mut().add(wire, address(peer), source(peer));
    // SAFETY: no bytes.
    let buf = unsafe { RecvBuf::new([].as_mut_ptr(), 0) };
    b.engine.recv(&mut b.line, RecvArgs { buf, kind: RecvKind::Untagged, from: None, user: 0 });
    // SAFETY: as above.
    let buf = unsafe { SendBuf::new([].as_ptr(), 0) };
    let (sync, protocol) = (DeliveryComplete::No, Protocol::Eager);
    a.engine.send_class(
        &mut a.line,
        a.peer,
        MsgClass::Message,
        SendArgs { buf, tag: None, sync, cq_data: None, protocol, user: 0 },
    );
    pump(a, &mut b, false);
    while a.engine.pending_mut().take_event().is_some() {}
    assert!(
        b.engine.pending_mut().take_event().is_some() && a.engine.is_flushed(None),
        "peer {peer} has the message"
    );
}

#[test]
fn idle_peer_takes_at_most_256_bytes() {
    const PEERS: u16 = 1000;
    let mut a = end(1, 2);
    meet(&mut a, 2);
    let before = crate::counting::bytes();
    (3..PEERS + 3).for_each(|peer| meet(&mut a, peer));
    let each = (crate::counting::bytes() - before) / usize::from(PEERS);
    assert!(each <= 256, "{each} bytes a peer, its entries in all tables included");
}
