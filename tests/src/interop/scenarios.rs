//! Scenarios: matching, truncation, cancelling, unknown and restarted senders. Each is a short script, played
//! with either stack as the receiver. Called by `run`. Never depends on timing except by waiting.

use std::time::Duration;

use super::pair::{Msg, Pair, PlayError, check, wrong};
use super::process::Stack;

mod headers;
mod iov;
mod memory;
mod revoked;
mod several_peers;
mod zerocopy;

pub type ScenarioResult = Result<(), String>;

/// A script; the stack receives.
pub type Script = fn(&mut Pair, Stack) -> Result<(), PlayError>;

const BOTH: &[Stack] = &[Stack::Ours, Stack::Libfabric];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Requests {
    Any,
    /// The sender's address in every one, and at least so many requests.
    WithAddress(usize),
}

/// A scenario; a stack is its receiver.
pub struct Scenario {
    pub name: &'static str,
    pub about: &'static str,
    pub receivers: &'static [Stack],
    pub exists: fn((u64, u64)) -> bool,
    /// Packets that the receiver must have sent, by release of libfabric.
    pub answers: fn((u64, u64)) -> &'static [&'static str],
    pub never: fn((u64, u64)) -> &'static [&'static str],
    pub requests: Requests,
    pub play: Script,
}

impl Scenario {
    pub fn all() -> &'static [Scenario] {
        const fn scenario(name: &'static str, about: &'static str, play: Script) -> Scenario {
            let (answers, never) =
                (|_| -> &'static [&'static str] { &[] }, |_| -> &'static [&'static str] { &[] });
            let (exists, requests) = (|_| true, Requests::Any);
            Scenario { name, about, receivers: BOTH, exists, answers, never, requests, play }
        }
        const ALL: &[Scenario] = &[
            scenario(
                "ignore bits",
                "masked tags are matched as they should; untagged messages are apart",
                ignore_bits,
            ),
            scenario("source filter", "a receive from one peer only", source_filter),
            scenario(
                "truncation",
                "too long a message is an error at its receive and ends at its sender",
                truncation,
            ),
            scenario("cancel", "a cancelled receive takes no message", cancel),
            scenario("peek", "looked at, claimed, discarded", peek),
            scenario("inject", "a copy is sent, with and without data", inject),
            scenario("unknown sender", "messages of a peer that was not introduced", unknown_sender),
            scenario(
                "restarted sender",
                "the same GID and queue pair, another connection id",
                restarted_sender,
            ),
            scenario("stalled receiver", "3000 messages to an end that makes no progress", stalled),
            scenario("multi-receive", "one buffer, many messages", multi),
            // A libfabric without an event queue aborts when a packet is too long for it.
            Scenario {
                receivers: &[Stack::Ours],
                ..scenario(
                    "different MTUs",
                    "what fits the receiver's packets comes through; what does not ends with an error at its sender",
                    several_peers::mtus,
                )
            },
            scenario(
                "several peers",
                "two of either library send to one at once, and hear from it",
                several_peers::several,
            ),
            Scenario {
                receivers: &[Stack::Ours],
                ..scenario("injected writes", "a copy is written, with and without data", memory::injected)
            },
            Scenario {
                receivers: &[Stack::Ours],
                // Releases from 2.6 on exist with and without PEER_ERROR: there the read's end is the proof.
                never: |release| if release < (2, 6) { &["PEER_ERROR"] } else { &[] },
                ..scenario(
                    "memory taken back",
                    "a read of it is answered by PEER_ERROR if libfabric knows that, and by nothing else",
                    revoked::read_of_revoked_memory,
                )
            },
            Scenario {
                receivers: &[Stack::Libfabric],
                exists: zerocopy::exists,
                ..scenario(
                    "zero-copy receiver",
                    "headerless messages to the queue pair it names; what it cannot take is refused",
                    zerocopy::headerless,
                )
            },
            Scenario {
                receivers: &[Stack::Ours],
                answers: |_| &["CTS", "EOR", "RECEIPT"],
                ..scenario(
                    "receives into pieces",
                    "each protocol's messages in one, three, seven pieces of memory; too long ones fill them",
                    iov::into_pieces,
                )
            },
            Scenario {
                receivers: &[Stack::Ours],
                ..scenario(
                    "receives in place",
                    "ours is in zero-copy receive mode: packets and headerless messages meet the same receives",
                    zerocopy::in_place,
                )
            },
            Scenario {
                receivers: &[Stack::Ours],
                requests: Requests::WithAddress(60),
                ..scenario(
                    "constant headers",
                    "ours asks for constant header length: each request of libfabric's has its address",
                    headers::constant,
                )
            },
            Scenario {
                receivers: &[Stack::Libfabric],
                exists: zerocopy::exists,
                requests: Requests::WithAddress(3),
                ..scenario(
                    "constant headers, zero-copy receiver",
                    "ours asks for them, and sends bytes alone to a receiver in zero-copy receive mode",
                    headers::constant_back,
                )
            },
            scenario(
                "memory runs out",
                "a message too many to register is received all the same",
                memory::runs_out,
            ),
        ];
        ALL
    }
}

const LENS: [usize; 3] = [100, 20_000, 300_000];

fn pause() {
    std::thread::sleep(Duration::from_millis(5));
}

fn tagged(pair: &mut Pair, len: usize, tag: u64) -> Msg {
    Msg { tag: Some(tag), ..pair.msg(len) }
}

fn ignore_bits(pair: &mut Pair, to: Stack) -> Result<(), PlayError> {
    pair.connect()?;
    for len in LENS {
        let one = tagged(pair, len, 0x8000_0000_0000_0042);
        let two = tagged(pair, len + 1, 0x8000_0000_0000_0077);
        let apart = pair.msg(len);
        let end = pair.end(to);
        end.step(&format!("recv r{} {len}", apart.nth))?;
        end.step(&format!("recv r{} {len} tag=0x8000000000000000 ignore=0xf0f", one.nth))?;
        end.step(&format!("recv r{} {} tag=0x8000000000000001 ignore=0xff", two.nth, len + 1))?;
        // Only the second has a tag that agrees outside 0xff but not outside 0xf0f.
        for msg in [&two, &one, &apart] {
            pair.send(to.other(), msg)?;
        }
        let line = pair.end(to).ended(&format!("r{}", two.nth))?;
        check(to, &two, &line, Some("0"))?;
        // 0x42 does not agree with 0 outside 0xf0f: it needs a receive of its own.
        pair.end(to).step(&format!("cancel r{}", one.nth))?;
        let line = pair.end(to).ended(&format!("r{}", one.nth))?;
        if line.value("error") != Some("cancelled") {
            return Err(wrong(to, "a receive took a message whose tag does not agree", &line));
        }
        pair.end(to).step(&format!("recv again{} {len} tag=0x8000000000000e4f ignore=0xf0f", one.nth))?;
        let line = pair.end(to).ended(&format!("again{}", one.nth))?;
        check(to, &one, &line, Some("0"))?;
        pair.received(to, &apart)?;
        for msg in [&two, &one, &apart] {
            pair.sent(to.other(), msg)?;
        }
    }
    pair.disconnect()
}

fn source_filter(pair: &mut Pair, to: Stack) -> Result<(), PlayError> {
    pair.connect()?;
    for (nth, len) in LENS.into_iter().enumerate() {
        let msg = Msg { tag: (nth % 2 == 0).then_some(9), ..pair.msg(len) };
        let tag = msg.tag.map_or("", |_| "tag=9");
        pair.end(to).step(&format!("recv r{} {len} from=0 {tag}", msg.nth))?;
        pair.send(to.other(), &msg)?;
        pair.received(to, &msg)?;
        pair.sent(to.other(), &msg)?;
    }
    pair.disconnect()
}

/// Sends a message that is too long for its receive, which is posted `early` or late.
fn receive_truncated(
    pair: &mut Pair,
    to: Stack,
    msg: &Msg,
    room: usize,
    early: bool,
) -> Result<(), PlayError> {
    if early {
        pair.post_recv(to, msg, room)?;
    }
    pair.send(to.other(), msg)?;
    if !early {
        pause();
        pair.post_recv(to, msg, room)?;
    }
    let line = pair.end(to).ended(&format!("r{}", msg.nth))?;
    let want = format!("{:016x}", super::control::sum(&super::control::bytes(msg.len, msg.nth)[..room]));
    if line.value("error") != Some("truncated") || line.value("sum") != Some(&want) {
        return Err(wrong(to, "not the beginning of a message cut short", &line));
    }
    pair.sent(to.other(), msg)
}

fn truncation(pair: &mut Pair, to: Stack) -> Result<(), PlayError> {
    pair.connect()?;
    for len in LENS {
        for (room, early) in [(len - 1, true), (len / 2, false), (0, true)] {
            let msg = tagged(pair, len, 5);
            receive_truncated(pair, to, &msg, room, early)?;
        }
        let msg = tagged(pair, len, 5);
        pair.expected(to.other(), &msg, 0)?;
    }
    pair.disconnect()
}

fn cancel(pair: &mut Pair, to: Stack) -> Result<(), PlayError> {
    pair.connect()?;
    for len in LENS {
        pair.end(to).step(&format!("recv gone{len} {len} tag=3"))?;
        pair.end(to).step(&format!("cancel gone{len}"))?;
        let line = pair.end(to).ended(&format!("gone{len}"))?;
        if line.value("error") != Some("cancelled") {
            return Err(wrong(to, "a cancelled receive ended otherwise", &line));
        }
        let msg = tagged(pair, len, 3);
        pair.expected(to.other(), &msg, 0)?;
    }
    pair.disconnect()
}

/// Peeks until there is a message; answers the line.
fn peek_until(pair: &mut Pair, to: Stack, id: &str, how: &str) -> Result<super::control::Line, PlayError> {
    for _ in 0..200 {
        pair.end(to).step(&format!("peek {id} {how}"))?;
        let line = pair.end(to).ended(id)?;
        if line.word(0) == Some("done") {
            return Ok(line);
        }
        if line.value("error") != Some("nothing") {
            return Err(wrong(to, "a peek failed", &line));
        }
        pause();
    }
    let line = super::control::Line::new(format!("peek {id}"));
    Err(wrong(to, "a message that was sent is never seen", &line))
}

fn peek(pair: &mut Pair, to: Stack) -> Result<(), PlayError> {
    pair.connect()?;
    pair.end(to).step("peek miss tag=4")?;
    let line = pair.end(to).ended("miss")?;
    if line.value("error") != Some("nothing") {
        return Err(wrong(to, "found a message nobody sent", &line));
    }
    for len in LENS {
        let msg = tagged(pair, len, 0x44);
        pair.send(to.other(), &msg)?;
        for how in ["tag=0x40 ignore=0xf", "tag=0x44 claim"] {
            let line = peek_until(pair, to, &format!("p{len}"), how)?;
            let seen = (line.number("len"), line.number("tag"));
            if seen != (Some(len as u64), Some(0x44)) {
                return Err(wrong(to, "another message than was sent", &line));
            }
        }
        // A claimed message matches no other receive.
        let next = tagged(pair, len + 1, 0x44);
        pair.post_recv(to, &next, len + 1)?;
        pair.end(to).step(&format!("claim p{len} {len}"))?;
        let line = pair.end(to).ended(&format!("p{len}"))?;
        check(to, &msg, &line, Some("0"))?;
        pair.sent(to.other(), &msg)?;
        pair.send(to.other(), &next)?;
        pair.received(to, &next)?;
        pair.sent(to.other(), &next)?;
        // 1.22 never completes the send of a long message that is discarded.
        if to == Stack::Libfabric && len == LENS[2] {
            continue;
        }
        let lost = tagged(pair, len, 0x55);
        pair.send(to.other(), &lost)?;
        peek_until(pair, to, &format!("d{len}"), "tag=0x55 discard")?;
        pair.sent(to.other(), &lost)?;
    }
    pair.disconnect()
}

fn inject(pair: &mut Pair, to: Stack) -> Result<(), PlayError> {
    pair.connect()?;
    // 32 bits: see `messages::message`.
    for data in [None, Some(0x89ab_cdef)] {
        for tag in [None, Some(6)] {
            for len in [0, 1, 32, 1000] {
                let msg = Msg { data, tag, how: "inject", ..pair.msg(len) };
                pair.expected(to.other(), &msg, 8)?;
            }
        }
    }
    pair.disconnect()
}

fn unknown_sender(pair: &mut Pair, to: Stack) -> Result<(), PlayError> {
    let ours = pair.open(Stack::Ours)?;
    let theirs = pair.open(Stack::Libfabric)?;
    pair.note(&ours, &theirs);
    let address = if to == Stack::Ours { &ours } else { &theirs };
    pair.end(to.other()).step(&format!("peer {address}"))?;
    for len in LENS.into_iter().chain(LENS) {
        let msg = tagged(pair, len, 8);
        pair.post_recv(to, &msg, len)?;
        pair.send(to.other(), &msg)?;
        let line = pair.end(to).ended(&format!("r{}", msg.nth))?;
        check(to, &msg, &line, None)?;
        pair.sent(to.other(), &msg)?;
    }
    // Introduced late, it is the same peer.
    let address = if to == Stack::Ours { &theirs } else { &ours };
    pair.end(to).step(&format!("peer {address}"))?;
    for len in LENS {
        let there = tagged(pair, len, 8);
        pair.expected(to.other(), &there, 0)?;
        let back = tagged(pair, len, 8);
        pair.expected(to, &back, 0)?;
    }
    pair.disconnect()
}

fn restarted_sender(pair: &mut Pair, to: Stack) -> Result<(), PlayError> {
    let from = to.other();
    // With one GID and one seed the new process has the old queue pair number.
    let gid = if from == Stack::Ours { "fe80::a1" } else { "fe80::b2" };
    let fixed = if pair.is_over_udp() { ("SOFTEFA_UDP_PORTS", "47300") } else { ("SOFTEFA_GID", gid) };
    pair.set(fixed.0, fixed.1);
    pair.restart(from)?;
    pair.connect()?;
    for len in LENS {
        let msg = tagged(pair, len, 2);
        pair.expected(from, &msg, 0)?;
        let msg = tagged(pair, len, 2);
        pair.expected(to, &msg, 0)?;
    }
    let old = pair.address(from).to_owned();
    pair.restart(from)?;
    pair.open(from)?;
    let (new, there) = (pair.address(from).to_owned(), pair.address(to).to_owned());
    if old[..36] != new[..36] || old[40..48] == new[40..48] {
        let line = super::control::Line::new(format!("{old} then {new}"));
        return Err(wrong(from, "not the same queue pair with another connection id", &line));
    }
    pair.end(from).step(&format!("peer {there}"))?;
    for len in LENS {
        let msg = tagged(pair, len, 2);
        pair.post_recv(to, &msg, len)?;
        pair.send(from, &msg)?;
        let line = pair.end(to).ended(&format!("r{}", msg.nth))?;
        check(to, &msg, &line, None)?;
        pair.sent(from, &msg)?;
    }
    pair.end(to).step(&format!("peer {new}"))?;
    for len in LENS {
        let msg = tagged(pair, len, 2);
        pair.post_recv(from, &msg, len)?;
        pair.end(to).step(&format!("send s{0} {len} seed={0} tag=2 to=1", msg.nth))?;
        pair.received(from, &msg)?;
        pair.sent(to, &msg)?;
    }
    pair.disconnect()
}

fn stalled(pair: &mut Pair, to: Stack) -> Result<(), PlayError> {
    pair.connect()?;
    let hello = pair.msg(8);
    pair.expected(to.other(), &hello, 0)?;
    pair.end(to).step("stall")?;
    let all: Vec<Msg> = (0..3000).map(|n| tagged(pair, 64 + n % 512, n as u64)).collect();
    for msg in &all {
        pair.send(to.other(), msg)?;
    }
    pause();
    pair.end(to).step("go")?;
    for msg in &all {
        pair.post_recv(to, msg, msg.len)?;
    }
    for msg in &all {
        pair.received(to, msg)?;
        pair.sent(to.other(), msg)?;
    }
    pair.disconnect()
}

fn multi(pair: &mut Pair, to: Stack) -> Result<(), PlayError> {
    pair.connect()?;
    pair.end(to).step("recv big 200000 multi")?;
    let all: Vec<Msg> = (0..20).map(|n| pair.msg(4000 + 100 * n)).collect();
    for msg in &all {
        pair.send(to.other(), msg)?;
    }
    for msg in &all {
        let line = pair.end(to).ended("big")?;
        check(to, msg, &line, Some("0"))?;
        pair.sent(to.other(), msg)?;
    }
    pair.end(to).step("cancel big")?;
    pair.end(to).ended("big")?;
    pair.disconnect()
}
