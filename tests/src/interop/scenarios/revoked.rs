//! Reads of revoked memory: the target refuses, and reports it if the reader knows PEER_ERROR.

use std::time::Duration;

use crate::interop::pair::{Pair, PlayError, wrong};
use crate::interop::process::Stack;

/// HANDSHAKE bit of ends that know PEER_ERROR: releases of libfabric after 2.6.0.
const PEER_ERROR: u64 = 1 << 9;

/// If libfabric knows PEER_ERROR its read of revoked memory fails; else it waits. Messages go on.
pub fn read_of_revoked_memory(pair: &mut Pair, to: Stack) -> Result<(), PlayError> {
    let from = to.other();
    pair.connect()?;
    let hello = pair.msg(8);
    pair.expected(from, &hello, 0)?;
    let hello = pair.msg(8);
    pair.expected(to, &hello, 0)?;
    let line = pair.end(to).step("features")?;
    let knows_peer_error = line.number_at(1).is_some_and(|word| word & PEER_ERROR != 0);
    for (nth, len) in [100, 100_000].into_iter().enumerate() {
        let mem = pair.end(to).step(&format!("mem m{nth} {len} seed=1"))?;
        let (Some(addr), Some(key)) = (mem.number_at(1), mem.number_at(2)) else {
            return Err(wrong(to, "no address and key", &mem));
        };
        pair.end(from).step(&format!("read b{nth} {len} addr={addr:#x} key={key:#x}"))?;
        let line = pair.end(from).ended(&format!("b{nth}"))?;
        if line.word(0) != Some("done") {
            return Err(wrong(from, "the memory cannot be read while it is there", &line));
        }
        pair.end(to).step(&format!("forget m{nth}"))?;
        pair.end(from).step(&format!("read r{nth} {len} addr={addr:#x} key={key:#x}"))?;
        if knows_peer_error {
            let line = pair.end(from).ended(&format!("r{nth}"))?;
            if line.word(0) != Some("fail") {
                return Err(wrong(from, "reads memory that is not there any more", &line));
            }
        } else {
            std::thread::sleep(Duration::from_millis(200));
            if pair.end(from).has_ended(&format!("r{nth}")) {
                let line = pair.end(from).ended(&format!("r{nth}"))?;
                return Err(wrong(from, "has heard of the refusal", &line));
            }
        }
    }
    for sender in [from, to] {
        let msg = pair.msg(1000);
        pair.expected(sender, &msg, 0)?;
    }
    // The target reports what it has refused.
    let said = pair.end(to).unclaimed_lines();
    match said.iter().find(|line| !line.text().contains("BadAccess")) {
        None if said.len() == 2 => pair.disconnect(),
        odd => Err(PlayError::Wire(format!("{} refusals, and {odd:?}", said.len()))),
    }
}
