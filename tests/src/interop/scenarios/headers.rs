//! Constant header length requested by ours: each request of libfabric's carries its address, which `run`
//! checks on the wire.

use super::zerocopy;
use crate::interop::control::{bytes, sum};
use crate::interop::matrix::MTU;
use crate::interop::pair::{Msg, Pair, PlayError, wrong};
use crate::interop::process::Stack;

/// Lengths around the limit of one packet, bytes.
fn packet_boundary() -> impl Iterator<Item = usize> {
    (MTU - 128..=MTU).step_by(16)
}

/// Messages by every protocol, writes, reads and atomics, most of them sent by libfabric.
pub fn constant(pair: &mut Pair, to: Stack) -> Result<(), PlayError> {
    pair.set("UCX_CONST_HDR", "y");
    pair.restart(to)?;
    pair.connect()?;
    let from = to.other();
    for (nth, len) in
        [8, 0, 1, 4096].into_iter().chain(packet_boundary()).chain([20_000, 65_536, 300_000]).enumerate()
    {
        let tag = (nth % 2 == 0).then_some(nth as u64);
        let plain = Msg { tag, data: (nth % 3 == 1).then_some(0xda7a), ..pair.msg(len) };
        pair.expected(from, &plain, 0)?;
        let confirmed = Msg { tag, how: "dc", ..pair.msg(len) };
        pair.unexpected(from, &confirmed)?;
        let back = Msg { tag, ..pair.msg(len) };
        pair.expected(to, &back, 0)?;
    }
    one_sided(pair, to)?;
    pair.disconnect()
}

/// libfabric writes, reads and computes in our memory by packets.
fn one_sided(pair: &mut Pair, to: Stack) -> Result<(), PlayError> {
    const ALL: usize = 100_000;
    let from = to.other();
    let mem = pair.end(to).step(&format!("mem m {ALL} seed=1"))?;
    let (Some(addr), Some(key)) = (mem.number_at(1), mem.number_at(2)) else {
        return Err(wrong(to, "no address and key", &mem));
    };
    let mut there = bytes(ALL, 1);
    for (nth, len) in [8, 4096].into_iter().chain(packet_boundary()).chain([ALL]).enumerate() {
        let seed = 100 + nth as u64;
        let far = format!("addr={addr:#x} key={key:#x}");
        pair.end(from).step(&format!("write w{nth} {len} seed={seed} {far} dc"))?;
        pair.end(from).ended(&format!("w{nth}"))?;
        there[..len].copy_from_slice(&bytes(len, seed));
        let want = format!("{:016x}", sum(&there));
        let line = pair.end(to).step("look m")?;
        if line.word(1) != Some(&want) {
            return Err(wrong(to, &format!("a confirmed write of {len} bytes is not there"), &line));
        }
        pair.end(from).step(&format!("read r{nth} {ALL} {far}"))?;
        let line = pair.end(from).ended(&format!("r{nth}"))?;
        if line.value("sum") != Some(&want) {
            return Err(wrong(from, "other bytes were read", &line));
        }
    }
    // The fetched value is the old one.
    pair.end(from)
        .step(&format!("fetch f 8 seed=1 cseed=1 op=2 type=7 count=1 addr={addr:#x} key={key:#x}"))?;
    let line = pair.end(from).ended("f")?;
    if line.value("sum") != Some(&format!("{:016x}", sum(&there[..8]))) {
        return Err(wrong(from, "another value was fetched", &line));
    }
    Ok(())
}

/// Ours and a receiver that takes only bytes: what the receiver sends has headers with its address.
pub fn constant_back(pair: &mut Pair, to: Stack) -> Result<(), PlayError> {
    pair.set("UCX_CONST_HDR", "y");
    zerocopy::headerless(pair, to)
}
