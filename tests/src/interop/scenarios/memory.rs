//! Scenarios of memory: injected writes, and exhausted registrations.

use crate::interop::control::{bytes, sum};
use crate::interop::matrix::Nic;
use crate::interop::pair::{Msg, Pair, PlayError, wrong};
use crate::interop::process::{ProcessError, Stack};

/// libfabric's inject functions for writes: the buffer may be reused at once.
pub fn injected(pair: &mut Pair, to: Stack) -> Result<(), PlayError> {
    let from = to.other();
    pair.connect()?;
    let mem = pair.end(to).step("mem m 2000 seed=1")?;
    let (Some(addr), Some(key)) = (mem.number_at(1), mem.number_at(2)) else {
        return Err(wrong(to, "no address and key", &mem));
    };
    let mut there = bytes(2000, 1);
    for (nth, len) in [0, 1, 8, 32, 1000, 1, 32].into_iter().enumerate() {
        let at = 100 * nth;
        let data = if nth % 2 == 1 { format!("data={:#x}", 0xda7a + nth) } else { String::new() };
        let far = format!("addr={:#x} key={key:#x}", addr + at as u64);
        pair.end(from).step(&format!("write w{nth} {len} seed={nth} {far} {data} inject"))?;
        pair.end(from).ended(&format!("w{nth}"))?;
        if nth % 2 == 1 {
            let line = pair.end(to).ended("-")?;
            if line.number("data") != Some(0xda7a + nth as u64) {
                return Err(wrong(to, "other data than was written with", &line));
            }
        }
        there[at..at + len].copy_from_slice(&bytes(len, nth as u64));
        // RTW and RTM are not ordered, so a write without data is polled for.
        let want = format!("{:016x}", sum(&there));
        let mut line = pair.end(to).step("look m")?;
        for _ in 0..200 {
            if line.word(1) == Some(&want) {
                break;
            }
            super::pause();
            line = pair.end(to).step("look m")?;
        }
        if line.word(1) != Some(&want) {
            return Err(wrong(to, &format!("{len} injected bytes did not come"), &line));
        }
    }
    pair.disconnect()
}

/// Whether a release of libfabric knows READ_NACK.
pub fn nacks(release: (u64, u64)) -> bool {
    release >= (1, 20)
}

/// The receiver's device takes no more registrations. If both ends know READ_NACK the sender sends the data;
/// else ours reads through its own buffers, and libfabric retries until registrations are released.
pub fn runs_out(pair: &mut Pair, to: Stack) -> Result<(), PlayError> {
    for (key, value) in Nic::Reads.settings() {
        pair.set(key, value);
    }
    let nacks = nacks(pair.release()?);
    pair.restart(to.other())?;
    pair.set("SOFTEFA_MAX_MR", "64");
    pair.restart(to)?;
    pair.connect()?;
    for from in [to.other(), to] {
        let hello = pair.msg(8);
        pair.expected(from, &hello, 0)?;
    }
    let mut taken = 0;
    loop {
        match pair.end(to).step(&format!("mem taken{taken} 4096 seed=1 rdma")) {
            Ok(_) => taken += 1,
            Err(ProcessError::Refused { .. }) if taken > 0 => break,
            Err(e) => return Err(e.into()),
        }
    }
    let msg = Msg { tag: Some(1), ..pair.msg(1 << 20) };
    pair.post_recv(to, &msg, msg.len)?;
    pair.send(to.other(), &msg)?;
    if !nacks && to == Stack::Libfabric {
        super::pause();
        for nth in 0..taken {
            pair.end(to).step(&format!("forget taken{nth}"))?;
        }
    }
    pair.received(to, &msg)?;
    pair.sent(to.other(), &msg)?;
    pair.disconnect()
}
