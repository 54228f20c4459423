//! Matching against a model of two lists: filters, multi-receives, probes, claims, cancels, short receives.
//! The network delivers everything between two steps, so the model needs no time.

use std::collections::VecDeque;

use crate::rdm::OpId;
use crate::rdm::ids::PeerId;
use crate::rdm::protocol::{DeliveryComplete, Protocol};
use crate::rdm::testing::*;
use crate::rdm::types::*;
use crate::rdm::{ids::*, status::*};

#[derive(Clone, Copy, Debug)]
struct Wanted {
    tagged: bool,
    tag: u64,
    mask: u64,
    from: Option<usize>,
}

impl Wanted {
    fn fits(&self, msg: &Msg) -> bool {
        let tag = !self.tagged || (self.tag ^ msg.tag.unwrap_or(0)) & self.mask == 0;
        self.tagged == msg.tag.is_some() && tag && self.from.is_none_or(|from| from == msg.from)
    }

    fn kind(&self) -> RecvKind {
        match self.tagged {
            true => RecvKind::Tagged { tag: self.tag, mask: self.mask },
            false => RecvKind::Untagged,
        }
    }
}

#[derive(Clone, Debug)]
struct Msg {
    tag: Option<u64>,
    from: usize,
    bytes: Vec<u8>,
}

/// A posted receive. `many` holds the least room for another message and the bytes used.
struct Posted {
    user: u64,
    op: OpId,
    wants: Wanted,
    room: Vec<u8>,
    many: Option<(usize, usize)>,
}

#[derive(Clone, PartialEq, Eq, Debug, PartialOrd, Ord)]
enum Completion {
    Recv { user: u64, got: Result<usize, &'static str> },
    MultiRecvMessage { user: u64, at: usize, got: Result<usize, &'static str> },
    MultiRecvDone { user: u64, used: Result<usize, &'static str> },
}

struct Scenario {
    net: Net,
    rng: Rng,
    posted: Vec<Posted>,
    /// Receives that have ended for the model; the engine may still write to their buffers.
    ended: Vec<Posted>,
    /// Expected bytes: the receive, the offset, the content.
    written: Vec<(u64, usize, Vec<u8>)>,
    unexpected: VecDeque<Msg>,
    claimed: Vec<(MsgHandle, Msg)>,
    sent: Vec<Vec<u8>>,
    next: u64,
    completions: Vec<Completion>,
    sends: (usize, usize),
}

const RECEIVER: usize = 0;

impl Scenario {
    fn new(seed: u64) -> Scenario {
        let cfg = EngineConfig { runt_size: [0, 300][seed as usize % 2], ..EngineConfig::default() };
        let mut net = Net::with(3, seed, NetConfig::RELIABLE, cfg).with_rdma(4096);
        for from in [1, 2] {
            let (me, you) = (net.peer(from, RECEIVER), net.peer(RECEIVER, from));
            net.send(from, me, b"", Some(77), Protocol::Eager);
            net.send(RECEIVER, you, b"", Some(77), Protocol::Eager);
            net.settle();
            net.recv(RECEIVER, &mut [], exact(77), 0);
            net.recv(from, &mut [], exact(77), 0);
        }
        Scenario {
            net,
            rng: Rng(seed),
            posted: Vec::new(),
            ended: Vec::new(),
            written: Vec::new(),
            unexpected: VecDeque::new(),
            claimed: Vec::new(),
            sent: Vec::new(),
            next: 1,
            completions: Vec::new(),
            sends: (0, 0),
        }
    }

    fn wants(&mut self) -> Wanted {
        Wanted {
            tagged: !self.rng.one_in(5),
            tag: self.rng.next() % 4,
            mask: self.rng.pick(&[!0, !0, 0, 2]),
            from: self.rng.pick(&[None, None, Some(1), Some(2)]),
        }
    }

    fn name(&mut self, from: Option<usize>) -> Option<PeerId> {
        from.map(|from| self.net.peer(RECEIVER, from))
    }

    fn send(&mut self) {
        let from = 1 + self.rng.below(2);
        let len = self.rng.pick(&[0, 1, 8, 100, 900, 1500, 5000, 20_000]);
        let tag = (!self.rng.one_in(5)).then(|| self.rng.next() % 4);
        let protocol = self.rng.pick(&[
            Protocol::Eager,
            Protocol::Medium,
            Protocol::LongCts,
            Protocol::LongRead,
            Protocol::RuntRead,
        ]);
        let protocol = if len == 0 { Protocol::Eager } else { protocol };
        let sync = self.rng.pick(&[DeliveryComplete::No, DeliveryComplete::Yes]);
        let key = self.next;
        self.next += 1;
        let msg = Msg { tag, from, bytes: message_bytes(key, len) };
        self.sent.push(msg.bytes.clone());
        let buf = send_buf(self.sent.last().expect("just pushed"));
        let to = self.net.peer(from, RECEIVER);
        let started =
            self.net.send_args(from, to, SendArgs { buf, tag, sync, cq_data: None, protocol, user: 0 });
        assert!(!matches!(started, Started::Failed(_)), "{started:?}");
        self.sends.0 += usize::from(matches!(started, Started::Pending(_)));
        match self.posted.iter().position(|posted| posted.wants.fits(&msg)) {
            Some(n) => self.model_match(n, &msg),
            None => self.unexpected.push_back(msg),
        }
    }

    fn model_match(&mut self, n: usize, msg: &Msg) {
        let posted = &mut self.posted[n];
        let user = posted.user;
        let at = posted.many.map_or(0, |(_, used)| used);
        let left = posted.room.len() - at;
        self.written.push((user, at, msg.bytes[..msg.bytes.len().min(left)].to_vec()));
        let Some((least, used)) = &mut posted.many else {
            let got = cut(msg, posted.room.len());
            self.completions.push(Completion::Recv { user, got });
            let ended = self.posted.remove(n);
            self.ended.push(ended);
            return;
        };
        self.completions.push(Completion::MultiRecvMessage { user, at: *used, got: cut(msg, left) });
        *used += msg.bytes.len().min(left);
        if posted.room.len() - *used < *least {
            let used = Ok(*used);
            self.completions.push(Completion::MultiRecvDone { user, used });
            let ended = self.posted.remove(n);
            self.ended.push(ended);
        }
    }

    fn post(&mut self) {
        let wants = self.wants();
        let room = vec![0u8; self.rng.pick(&[0, 8, 1000, 5000, 20_000])];
        let user = self.next;
        self.next += 1;
        let mut posted = Posted { user, op: no_op(&mut self.net), wants, room, many: None };
        let from = self.name(wants.from);
        let buf = recv_buf(&mut posted.room);
        let args = RecvArgs { buf, kind: wants.kind(), from, user };
        if self.rng.one_in(3) {
            let least = 1 + self.rng.below(2000);
            posted.many = Some((least, 0));
            posted.op = self.net.at(RECEIVER, |e, w| e.recv_multi(w, args, least)).unwrap();
            self.posted.push(posted);
            while let Some(n) = self.posted.iter().position(|posted| posted.user == user)
                && let Some(at) = self.unexpected.iter().position(|msg| wants.fits(msg))
            {
                let msg = self.unexpected.remove(at).expect("just found");
                self.model_match(n, &msg);
            }
            return;
        }
        let there = self.unexpected.iter().position(|msg| wants.fits(msg));
        let there = there.and_then(|at| self.unexpected.remove(at));
        let started = self.net.at(RECEIVER, |e, w| e.recv(w, args));
        match (started, there) {
            (Started::Done(status), Some(msg)) => {
                assert_eq!(Ok(status.len), cut(&msg, posted.room.len()));
                assert_eq!((status.tag, &posted.room[..status.len]), (msg.tag.unwrap_or(0), &msg.bytes[..]));
            }
            (Started::Failed(OpError::Truncated { .. }), Some(msg)) => {
                assert_eq!(cut(&msg, posted.room.len()), Err("truncated"));
            }
            (Started::Pending(_), Some(msg)) => {
                self.completions.push(Completion::Recv { user, got: cut(&msg, posted.room.len()) });
                let n = msg.bytes.len().min(posted.room.len());
                self.written.push((user, 0, msg.bytes[..n].to_vec()));
                self.ended.push(posted);
            }
            (Started::Pending(op), None) => {
                posted.op = op;
                self.posted.push(posted);
            }
            (started, there) => panic!("{started:?} with {there:?}"),
        }
    }

    fn probe(&mut self) {
        let wants = self.wants();
        let take = self.rng.pick(&[ProbeRemove::No, ProbeRemove::Yes]);
        let from = self.name(wants.from);
        let found = self.net.nodes[RECEIVER].engine.receives().probe(wants.kind(), from, take);
        let there = self.unexpected.iter().position(|msg| wants.fits(msg));
        let Some(at) = there else { return assert_eq!(found, None) };
        let found = found.expect("the model has one");
        let msg = &self.unexpected[at];
        assert_eq!((found.len, found.tag), (msg.bytes.len() as u64, msg.tag.unwrap_or(0)));
        assert_eq!(self.net.node_of(RECEIVER, found.from), msg.from);
        if take == ProbeRemove::Yes {
            let msg = self.unexpected.remove(at).expect("just found");
            self.claimed.push((found.handle, msg));
        }
    }

    /// Receives a claimed message, or discards it by a receive without room.
    fn take_claimed(&mut self) {
        if self.claimed.is_empty() {
            return;
        }
        let (handle, msg) = self.claimed.swap_remove(self.rng.below(self.claimed.len()));
        let mut room = vec![0u8; self.rng.pick(&[0, 100, 20_000])];
        let buf = recv_buf(&mut room);
        let started = self.net.at(RECEIVER, |e, w| e.recv_probed(w, handle, buf, 0));
        let again = self.net.at(RECEIVER, |e, w| e.recv_probed(w, handle, recv_buf(&mut []), 0));
        assert_eq!(again, Started::Failed(OpError::Unknown), "claimed once, received once");
        let mut got = match started {
            Started::Done(status) => Some(Ok(status.len)),
            Started::Failed(OpError::Truncated { .. }) => Some(Err("truncated")),
            Started::Failed(error) => panic!("{error}"),
            Started::Pending(_) => None,
        };
        if got.is_none() {
            self.net.settle();
            for out in self.net.events(RECEIVER) {
                match out {
                    EngineEvent::RecvDone { user: 0, result } => got = Some(outcome(result)),
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(got, Some(cut(&msg, room.len())));
        let n = msg.bytes.len().min(room.len());
        assert_eq!(room[..n], msg.bytes[..n]);
    }

    fn cancel(&mut self) {
        if self.posted.is_empty() {
            return;
        }
        let posted = self.posted.remove(self.rng.below(self.posted.len()));
        let user = posted.user;
        assert!(self.net.nodes[RECEIVER].engine.receives().cancel(posted.op));
        assert!(!self.net.nodes[RECEIVER].engine.receives().cancel(posted.op), "once");
        self.completions.push(match posted.many {
            Some(_) => Completion::MultiRecvDone { user, used: Err("cancelled") },
            None => Completion::Recv { user, got: Err("cancelled") },
        });
        self.ended.push(posted);
    }

    /// Delivers everything, then compares notifications and bytes of engine and model.
    fn settle(&mut self) {
        self.net.settle();
        let outs = self.net.events(RECEIVER);
        let mut completions: Vec<Completion> = outs
            .into_iter()
            .map(|out| match out {
                EngineEvent::RecvDone { user, result } => Completion::Recv { user, got: outcome(result) },
                EngineEvent::MultiRecvMessage { user, at, result } => {
                    Completion::MultiRecvMessage { user, at, got: outcome(result) }
                }
                EngineEvent::MultiRecvDone { user, result } => {
                    Completion::MultiRecvDone { user, used: result.map_err(|error| word(&error)) }
                }
                other => panic!("{other:?}"),
            })
            .collect();
        let ends = |completions: &[Completion]| {
            completions.iter().position(|t| matches!(t, Completion::MultiRecvDone { .. }))
        };
        assert!(
            ends(&completions)
                .is_none_or(|at| completions[at..].iter().all(|t| !is_part_of(t, &completions[at]))),
            "{completions:?}"
        );
        let mut expected = std::mem::take(&mut self.completions);
        completions.sort();
        expected.sort();
        assert_eq!(completions, expected);
        for (user, at, bytes) in self.written.drain(..) {
            let posted = self.posted.iter().chain(&self.ended).find(|posted| posted.user == user);
            assert!(
                posted.expect("kept").room[at..].starts_with(&bytes),
                "{user}: {} bytes at {at}",
                bytes.len()
            );
        }
        self.ended.clear();
        for from in [1, 2] {
            self.sends.1 += self.net.events(from).len();
        }
    }

    fn play(mut self, steps: usize) {
        for _ in 0..steps {
            match self.rng.below(12) {
                0..5 => self.send(),
                5..8 => self.post(),
                8 | 9 => self.probe(),
                10 => self.take_claimed(),
                _ => self.cancel(),
            }
            self.settle();
        }
        while !self.posted.is_empty() {
            self.cancel();
        }
        self.settle();
        while !self.claimed.is_empty() {
            self.take_claimed();
        }
        for kind in [ANY, RecvKind::Untagged] {
            while let Some(found) =
                self.net.nodes[RECEIVER].engine.receives().probe(kind, None, ProbeRemove::Yes)
            {
                self.net.at(RECEIVER, |e, w| e.recv_probed(w, found.handle, recv_buf(&mut []), 0));
                self.net.settle();
                self.net.events(RECEIVER);
                self.unexpected.pop_front();
            }
        }
        self.settle();
        assert!(self.unexpected.is_empty());
        assert_eq!(self.sends.0, self.sends.1, "every send has ended");
        let engine = &self.net.nodes[RECEIVER].engine;
        assert_eq!((engine.pending().held_bytes(), engine.pending().unexpected_bytes()), (0, 0));
        assert!(self.net.regs() == 0 && engine.is_flushed(None));
    }
}

fn is_part_of(completions: &Completion, end: &Completion) -> bool {
    matches!((completions, end), (Completion::MultiRecvMessage { user, .. }, Completion::MultiRecvDone { user: ended, .. }) if user == ended)
}

fn cut(msg: &Msg, room: usize) -> Result<usize, &'static str> {
    if msg.bytes.len() > room { Err("truncated") } else { Ok(msg.bytes.len()) }
}

fn outcome(result: Result<RecvStatus, OpError>) -> Result<usize, &'static str> {
    result.map(|status| status.len).map_err(|error| word(&error))
}

fn word(error: &OpError) -> &'static str {
    match error {
        OpError::Truncated { .. } => "truncated",
        OpError::Cancelled => "cancelled",
        other => panic!("{other}"),
    }
}

/// Returns the id of a finished receive, which cancels nothing.
fn no_op(net: &mut Net) -> OpId {
    let Started::Pending(op) = net.recv(RECEIVER, &mut [], exact(u64::MAX), 0) else { panic!() };
    assert!(net.nodes[RECEIVER].engine.receives().cancel(op));
    net.events(RECEIVER);
    op
}

#[test]
fn matching_agrees_with_two_lists() {
    for seed in seeds(0..300) {
        let _seed = Seed(seed);
        Scenario::new(seed).play(120);
    }
}

#[test]
fn multi_receive_packs_messages_until_too_little_room_is_left() {
    let mut net = Net::new(2, 1, NetConfig::RELIABLE);
    let peer = net.peer(0, 1);
    let messages = [100, 3000, 0, 50, 700].map(|len| message_bytes(len as u64, len));
    let rows = [Protocol::Eager, Protocol::Medium, Protocol::Eager, Protocol::Eager, Protocol::Eager];
    let send = |net: &mut Net, n: usize| net.send(0, peer, &messages[n], Some(n as u64), rows[n]);
    send(&mut net, 0);
    send(&mut net, 1);
    net.settle();
    let mut room = vec![0u8; 4000];
    let args = RecvArgs { buf: recv_buf(&mut room), kind: ANY, from: None, user: 9 };
    net.at(1, |e, w| e.recv_multi(w, args, 500)).unwrap();
    for n in 2..5 {
        send(&mut net, n);
        net.settle();
    }
    let ends: Vec<(usize, usize)> = net
        .events(1)
        .into_iter()
        .map(|out| match out {
            EngineEvent::MultiRecvMessage { user: 9, at, result: Ok(status) } => (at, status.len),
            EngineEvent::MultiRecvMessage {
                at, result: Err(OpError::Truncated { len, room, .. }), ..
            } => {
                assert_eq!((len, room), (700, 850));
                (at, room)
            }
            EngineEvent::MultiRecvDone { user: 9, result } => (usize::MAX, result.unwrap()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ends, [(0, 100), (100, 3000), (3100, 0), (3100, 50), (3150, 700), (usize::MAX, 3850)]);
    assert!(room[..100] == messages[0][..] && room[100..3100] == messages[1][..]);
    assert!(room[3100..3150] == messages[3][..] && room[3150..3850] == messages[4][..]);
}
