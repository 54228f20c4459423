//! A live engine under a script: packets of any bytes from a known peer, another one and strangers, between receives, sends,
//! one-sided operations and memory of its own. Nothing panics, nothing is written outside what was lent, what is held
//! is bounded by what has come, and nothing ends twice.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use ucp::rdm::io::{Fault, PeerId, Posted, Refused, Source, TxToken, Wire};
use ucp::rdm::mem::{Access, Region};
use ucp::rdm::{
    Engine, EngineConfig, Out, RecvArgs, RecvBuf, RecvKind, Row, SendArgs, SendBuf, Started, WireId,
};
use ucp::wire::{Class, RawAddr};
use ucs::time::Nanos;

const MTU: usize = 1024;
const GUARD: usize = 64;
const ROOM: usize = 3000;
const FILL: u8 = 0x55;

/// Takes packets and forgets them; every so often it is full.
struct Sink {
    packet: Vec<u8>,
    sent: u32,
    full_every: u32,
}

impl Wire for Sink {
    fn mtu(&self, _to: PeerId) -> usize {
        MTU
    }

    fn send<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        _to: PeerId,
        max: usize,
        _token: TxToken,
        fill: F,
    ) -> Result<Posted, Refused> {
        self.sent += 1;
        if self.full_every > 0 && self.sent.is_multiple_of(self.full_every) {
            return Err(Refused::Full);
        }
        assert!(max <= MTU, "a packet longer than the wire takes");
        let len = fill(&mut self.packet[..max]);
        assert!(len <= max);
        Ok(Posted::Done)
    }

    fn connect(&mut self, _peer: PeerId, from: Source, _addr: &RawAddr) -> Result<(), Fault> {
        if from.port == 99 { Err(Fault::Unreachable) } else { Ok(()) }
    }
}

/// The script.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn word(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes([self.byte()?, self.byte()?]))
    }

    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

fn addr(n: u8) -> RawAddr {
    let mut gid = [0; 16];
    (gid[0], gid[1], gid[15]) = (0xfe, 0x80, n);
    RawAddr { gid, qpn: u16::from(n), connid: u32::from(n) }
}

fn source(n: u8) -> Source {
    Source { node: u64::from(n), port: u32::from(n) }
}

fn kind(n: u8) -> RecvKind {
    match n % 6 {
        0 => RecvKind::Tagged { tag: 0, mask: 0 },
        1 => RecvKind::Tagged { tag: 1, mask: !0 },
        2 => RecvKind::Untagged,
        n => {
            let class = [Class::Am, Class::AmData, Class::Stream][usize::from(n) - 3];
            RecvKind::Class { class, tag: 0, mask: 0 }
        }
    }
}

fuzz_target!(|script: &[u8]| {
    let given = script.len();
    let mut script = Script(script);
    let Some(full_every) = script.byte() else { return };
    let mut w = Sink { packet: vec![0; MTU], sent: 0, full_every: u32::from(full_every % 8) };
    // Declared before the engine: dropped after it.
    let mut rooms: Vec<Vec<u8>> = Vec::new();
    let letter = vec![7u8; 1 << 16];
    let mut shared: Vec<Vec<u8>> = vec![vec![FILL; ROOM + 2 * GUARD]; 2];
    let mut engine = Engine::new(EngineConfig { cts_credits: 2, max_peers: 16, ..EngineConfig::default() });
    let wire: WireId = engine.add_wire(addr(1));
    let peers = [2, 3].map(|n| engine.add_peer(wire, addr(n), source(n)));
    let mut keys = Vec::new();
    for (n, memory) in shared.iter_mut().enumerate() {
        let access = [Access::all(), Access::READ][n];
        // SAFETY: the vectors outlive the engine, and are looked at only after it is dropped.
        let region = unsafe { Region::new(memory[GUARD..].as_mut_ptr(), ROOM, access) };
        keys.extend(region.and_then(|region| engine.add_memory(region)));
    }
    let (mut ended, mut next) = (HashSet::new(), 0u64);
    while let Some(step) = script.byte() {
        next += 1;
        match step % 12 {
            0..=5 => {
                let from = [2, 2, 2, 3, 77, 99][usize::from(step % 12)];
                let Some(len) = script.byte() else { break };
                let mut packet = script.bytes(usize::from(len)).to_vec();
                // Half of the packets get past the first look.
                if step & 0x80 == 0 && packet.len() > 1 {
                    packet[1] = 4;
                }
                engine.on_packet(&mut w, Nanos(next), wire, source(from), &packet);
            }
            6 | 7 => {
                let Some(len) = script.word() else { break };
                let len = usize::from(len) % ROOM;
                rooms.push(vec![FILL; len + 2 * GUARD]);
                let Some(room) = rooms.last_mut() else { break };
                // SAFETY: the vector's bytes stay where they are and outlive the engine.
                let buf = unsafe { RecvBuf::new(room[GUARD..].as_mut_ptr(), len) };
                let from = (step & 0x40 != 0).then_some(peers[0]);
                let args = RecvArgs { buf, kind: kind(step / 12), from, user: next };
                if !matches!(engine.recv(&mut w, args), Started::Pending(_)) {
                    ended.insert((true, next));
                }
            }
            8 | 9 => {
                let Some(len) = script.word() else { break };
                // SAFETY: the letter outlives the engine and does not change.
                let buf = unsafe { SendBuf::new(letter.as_ptr(), usize::from(len)) };
                let row = Row::ALL[usize::from(step / 12) % Row::ALL.len()];
                let tag = (step & 1 == 0).then_some(u64::from(step & 3));
                let args = SendArgs { buf, tag, sync: row.sync(), cq_data: None, row, user: next };
                if !matches!(engine.send(&mut w, peers[usize::from(step & 1)], args), Started::Pending(_)) {
                    ended.insert((false, next));
                }
            }
            10 => drop(engine.resume(&mut w, Nanos(next))),
            _ => match step / 12 {
                0 => drop(keys.pop().map(|key| engine.remove_memory(&mut w, key))),
                1 => engine.on_peer_fault(&mut w, peers[1], Fault::Gone),
                _ => while engine.take_event().is_some() {},
            },
        }
        while let Some(out) = engine.take_out() {
            let key = match out {
                Out::SendDone { user, .. } => (false, user),
                Out::RecvDone { user, .. } => (true, user),
                _ => continue,
            };
            assert!(ended.insert(key), "{key:?} ended twice");
        }
        // What is held came from outside: a packet is kept at most once, in a buffer of at most twice its size.
        assert!(engine.held_bytes() <= 4 * given + 4096, "{} bytes held of {given}", engine.held_bytes());
    }
    drop(engine);
    for room in rooms.iter().chain(&shared) {
        let (head, tail) = (&room[..GUARD], &room[room.len() - GUARD..]);
        assert!(head.iter().chain(tail).all(|&b| b == FILL), "written outside of what was lent");
    }
    assert!(shared[1].iter().all(|&b| b == FILL), "memory that may only be read was written");
});
