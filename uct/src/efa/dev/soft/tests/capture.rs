//! Captures of the simulated network, in virtual time.

use super::*;
use crate::efa::dev::soft::capture::{CaptureHdr, Direction, WireOp};

/// Records of a capture: time, header, bytes.
pub(in crate::efa::dev::soft) fn packets(file: &[u8]) -> Vec<(u64, CaptureHdr, Vec<u8>)> {
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let (mut at, mut all) = (0, Vec::new());
    while at < file.len() {
        if word(at) == 6 {
            let time = u64::from(word(at + 12)) << 32 | u64::from(word(at + 16));
            let record = &file[at + 28..at + 28 + word(at + 20) as usize];
            let (hdr, bytes) = CaptureHdr::split(record).unwrap();
            all.push((time, hdr, bytes.to_vec()));
        }
        at += word(at + 4) as usize;
    }
    all
}

#[test]
fn a_simulated_network_is_captured_in_virtual_time() {
    let dir = std::env::temp_dir().join(format!("softefa-captured-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let name = dir.join("sim.%p");
    {
        let fabric = Fabric::new(1, FaultPlan { delay: 5_000, ..FaultPlan::NONE });
        fabric.capture(name.to_str().unwrap());
        let (a, b) = (Side::open(&fabric, 1, |_, _| {}), Side::open(&fabric, 2, |_, _| {}));
        b.qp.recv(1, b.sge(0, 100)).unwrap();
        a.qp.send_inline(&a.to(&b), 2, b"seen", None).unwrap();
        assert_eq!((a.status(), b.status()), (DevStatus::Ok, DevStatus::Ok));
        a.qp.read(&a.to(&b), 3, a.sge(0, 8), b.mr.addr() as u64, 0).unwrap();
        assert_eq!(a.status(), DevStatus::UnknownPeer);
    }
    let file = std::fs::read(dir.join(format!("sim.{}", std::process::id()))).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let all = packets(&file);
    let shown: Vec<_> = all.iter().map(|(_, h, bytes)| (h.direction, h.op, h.status, &bytes[..])).collect();
    let (out, arrived) = (Direction::Out.into(), Direction::In.into());
    let unknown = DevStatus::UnknownPeer.into();
    assert_eq!(
        shown,
        [
            (out, WireOp::Send.into(), 0, &b"seen"[..]),
            (arrived, WireOp::Send.into(), 0, &b"seen"[..]),
            (out, WireOp::Read.into(), unknown, &[][..]),
        ]
    );
    let times: Vec<u64> = all.iter().map(|(time, ..)| *time).collect();
    assert!(times.is_sorted() && times[0] >= 5_000 && times[2] < 1_000_000, "virtual time: {times:?}");
}

#[test]
fn an_unwritable_capture_fails_the_open() {
    let fabric = Fabric::new(1, FaultPlan::NONE);
    fabric.capture("/no/such/folder/x");
    assert!(matches!(fabric.open(1, Profile::small()), Err(OpenError::Config(_))));
}
