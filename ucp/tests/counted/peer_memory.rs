//! Allocated bytes of a known, quiet peer: named by its address, or after a handshake. Counted over ten
//! thousand of them, in the engine alone and in a worker on the software device.

use ucp::rdm::io::{LaneId, NotPosted, PeerError, PeerId, Posted, ReceiveSink, Source, TxToken, Wire};
use ucp::rdm::{Engine, EngineConfig};
use ucp::wire::{Features, Handshake, Opts, RawAddr, rtm};
use ucs::time::Nanos;

/// Most bytes of a quiet peer in the engine.
const MOST: usize = 256;
const PEERS: u32 = 10_000;

/// A device that drops packets.
struct Sink([u8; 1024]);

impl ReceiveSink for Sink {}

impl Wire for Sink {
    fn mtu(&self, _to: PeerId) -> usize {
        1024
    }

    fn send<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        _to: LaneId,
        max: usize,
        _token: TxToken,
        fill: F,
    ) -> Result<Posted, NotPosted> {
        fill(&mut self.0[..max]);
        Ok(Posted::Done)
    }

    fn connect(&mut self, _peer: LaneId, _from: Source, _addr: &RawAddr) -> Result<(), PeerError> {
        Ok(())
    }
}

fn addr(n: u32) -> RawAddr {
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xfe, 0x80]);
    gid[8..].copy_from_slice(&u64::from(n + 1).to_be_bytes());
    RawAddr { gid, qpn: 7, connid: n }
}

fn source(n: u32) -> Source {
    Source { node: u64::from(n + 1), port: 7 }
}

/// Growth in bytes per peer of what `each` does.
fn per_peer(mut each: impl FnMut(u32)) -> usize {
    let before = crate::counting::bytes();
    (0..PEERS).for_each(&mut each);
    (crate::counting::bytes() - before).div_ceil(PEERS as usize)
}

#[test]
fn memory_of_a_named_peer() {
    let mut engine = Engine::new(EngineConfig::default());
    let wire = engine.wires_mut().add(addr(1 << 24));
    let each = per_peer(|n| {
        engine.peers_mut().add(wire, addr(n), source(n));
    });
    println!("engine, named: {each} bytes a peer");
    assert!((100..=MOST).contains(&each), "{each} bytes");
}

#[test]
fn memory_of_a_connected_peer() {
    let mut engine = Engine::new(EngineConfig::default());
    let wire = engine.wires_mut().add(addr(1 << 24));
    let mut w = Sink([0; 1024]);
    let mut packet = [0; 256];
    let word = Features::DELIVERY_COMPLETE.union(Features::CONNID);
    let each = per_peer(|n| {
        let opts = Opts { raw_addr: Some(addr(n)), ..Opts::NONE };
        let len = rtm::Eager { msg_id: 0, tag: Some(1), opts, receipt: None }.write(&mut packet);
        engine.on_packet(&mut w, Nanos(0), wire, source(n), &packet[..len]);
        let len = Handshake::new(word, n, 0).write(&mut packet);
        engine.on_packet(&mut w, Nanos(0), wire, source(n), &packet[..len]);
        let found = engine.receives().probe(
            ucp::rdm::RecvKind::Tagged { tag: 1, mask: !0 },
            None,
            ucp::rdm::ProbeRemove::Yes,
        );
        // SAFETY: nothing is written to an empty buffer.
        let room = unsafe { ucp::rdm::RecvBuf::new(std::ptr::NonNull::dangling().as_ptr(), 0) };
        let handle = found.expect("a message").handle;
        let done = engine.recv_probed(&mut w, handle, room, 1);
        assert!(matches!(done, ucp::rdm::Started::Done(_)));
        while engine.pending_mut().take_event().is_some() || engine.peers_mut().take_trace_event().is_some() {
        }
    });
    assert_eq!(engine.snapshot(), ucp::rdm::EngineSnapshot::EMPTY);
    assert!(engine.peers().info(PeerId(PEERS - 1)).is_some_and(|view| view.features == Some(word)));
    println!("engine, met: {each} bytes a peer");
    assert!((100..=MOST).contains(&each), "{each} bytes");
}

/// With an open lane, whose endpoint and address handle cost more than the peer itself.
#[cfg(feature = "lanes")]
#[test]
fn memory_of_a_worker_peer() {
    use ucp::{Address, Context, EpParams};
    use ucs::config::Source;
    use uct::efa::dev::soft::{Fabric, FaultPlan, Profile};
    use uct::efa::{Iface, Params};

    let fabric = Fabric::new(1, FaultPlan::NONE);
    let mut profile = Profile::small();
    profile.attr.max_ah = 2 * PEERS;
    let iface = Iface::open(fabric.open(1 << 32, profile).unwrap(), &Params::default()).unwrap();
    let context = Context::configured(Source::empty().with("UCX_KEEPALIVE_INTERVAL", "0")).unwrap();
    let worker = context.worker_on(vec![iface.into()]).unwrap();
    let known = |n: u32| {
        let address = Address::unpack(&addr(n).to_bytes()).unwrap();
        // The endpoint is dropped; the peer and its lane stay.
        drop(worker.connect(&address, EpParams::default()).unwrap());
    };
    let each = per_peer(known);
    println!("worker on efa: {each} bytes a peer");
    assert!((100..=WORKER_MOST).contains(&each), "{each} bytes");
}

/// With an open lane.
#[cfg(feature = "lanes")]
const WORKER_MOST: usize = 256;
