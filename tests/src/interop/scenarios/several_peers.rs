//! Several peers at once, and peers with another MTU.

use crate::interop::control::{Line, bytes, sum};
use crate::interop::pair::{Msg, Pair, PlayError, wrong};
use crate::interop::process::{EndProcess, Stack};

const SENDERS: [Stack; 3] = [Stack::Ours, Stack::Libfabric, Stack::Libfabric];
const EACH: usize = 30;
const LENS: [usize; 5] = [0, 100, 8900, 20_000, 300_000];

fn seed(who: usize, nth: usize) -> u64 {
    (who * 1000 + nth) as u64
}

fn len(nth: usize) -> usize {
    LENS[nth % LENS.len()] + nth
}

/// Every sender sends to `to` with the same tags, then `to` answers all.
pub fn several(pair: &mut Pair, to: Stack) -> Result<(), PlayError> {
    pair.connect()?;
    let hub = pair.address(to).to_owned();
    let other = to.other();
    for who in SENDERS {
        let end = pair.another(who)?;
        let address = end.step("open")?.word(1).unwrap_or("").to_owned();
        end.step(&format!("peer {hub}"))?;
        pair.end(to).step(&format!("peer {address}"))?;
        let (ours, theirs) = match (to, who) {
            (Stack::Ours, Stack::Libfabric) => (&hub, &address),
            (Stack::Libfabric, Stack::Ours) => (&address, &hub),
            // Packets between two ends of one stack are checked too.
            _ => (&hub, &address),
        };
        pair.note(ours, theirs);
    }
    let senders = SENDERS.len() + 1;
    // Half of the receives are posted early, and half name their senders.
    let post = |pair: &mut Pair, who: usize, nth: usize| {
        let step = format!("recv r{who}.{nth} {} tag={nth} from={who}", len(nth));
        pair.end(to).step(&step).map(drop)
    };
    for (who, nth) in all(senders).filter(|(_, nth)| nth % 2 == 0) {
        post(pair, who, nth)?;
    }
    for (who, nth) in all(senders) {
        let step = format!("send s{nth} {} seed={} tag={nth}", len(nth), seed(who, nth));
        sender_process(pair, other, who).step(&step)?;
    }
    for (who, nth) in all(senders).filter(|(_, nth)| nth % 2 == 1) {
        post(pair, who, nth)?;
    }
    for (who, nth) in all(senders) {
        let line = pair.end(to).ended(&format!("r{who}.{nth}"))?;
        let want = format!("{:016x}", sum(&bytes(len(nth), seed(who, nth))));
        let from = line.number("from") == Some(who as u64);
        if line.word(0) != Some("done") || line.value("sum") != Some(&want) || !from {
            return Err(wrong(to, &format!("not message {nth} of sender {who}"), &line));
        }
    }
    for (who, nth) in all(senders) {
        let end = sender_process(pair, other, who);
        let line = end.ended(&format!("s{nth}"))?;
        if line.word(0) != Some("done") {
            return Err(wrong(end.who(), "a send failed", &line));
        }
        end.step(&format!("recv b{nth} {} tag={nth}", len(nth)))?;
    }
    for (who, nth) in all(senders) {
        let step = format!("send b{who}.{nth} {} seed={} tag={nth} to={who}", len(nth), seed(who, nth) + 500);
        pair.end(to).step(&step)?;
    }
    for (who, nth) in all(senders) {
        let end = sender_process(pair, other, who);
        let line = end.ended(&format!("b{nth}"))?;
        let want = format!("{:016x}", sum(&bytes(len(nth), seed(who, nth) + 500)));
        if line.word(0) != Some("done") || line.value("sum") != Some(&want) {
            return Err(wrong(end.who(), &format!("not answer {nth} to sender {who}"), &line));
        }
        let line = pair.end(to).ended(&format!("b{who}.{nth}"))?;
        if line.word(0) != Some("done") {
            return Err(wrong(to, "a send failed", &line));
        }
    }
    for end in pair.more() {
        end.step("close")?;
    }
    pair.disconnect()
}

fn all(senders: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..EACH).flat_map(move |nth| (0..senders).map(move |who| (who, nth)))
}

fn sender_process(pair: &mut Pair, first: Stack, who: usize) -> &mut EndProcess {
    match who {
        0 => pair.end(first),
        _ => &mut pair.more()[who - 1],
    }
}

/// The receiver's packets are half as long as the sender's; the protocol tells no end the other's MTU.
pub fn mtus(pair: &mut Pair, to: Stack) -> Result<(), PlayError> {
    let from = to.other();
    pair.set("SOFTEFA_MTU", "4096");
    pair.restart(to)?;
    pair.connect()?;
    for len in [8, 1000, 4000] {
        for way in [from, to] {
            let msg = Msg { tag: Some(1), ..pair.msg(len) };
            pair.expected(way, &msg, 0)?;
        }
    }
    for len in LENS {
        let msg = Msg { tag: Some(2), ..pair.msg(len) };
        pair.expected(to, &msg, 0)?;
    }
    // The error may come after the send of the long message has ended.
    let start = std::time::Instant::now();
    while start.elapsed() < std::time::Duration::from_secs(20) {
        let msg = Msg { tag: Some(3), ..pair.msg(6000) };
        pair.send(from, &msg)?;
        let line = pair.end(from).ended(&format!("s{}", msg.nth))?;
        if line.word(0) == Some("fail") {
            pair.end(from).step("close")?;
            pair.end(to).step("close")?;
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let line = Line::new("messages of 6000 bytes for 20 s");
    Err(wrong(from, "sent what cannot be received, and heard of no error", &line))
}
