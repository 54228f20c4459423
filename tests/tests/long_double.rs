//! Atomics on long double compared bit for bit with a C compiler's arithmetic (tests/c/long_double.c). No
//! libfabric of the interop matrix takes the type, so C is the reference.
#![cfg(target_arch = "x86_64")]

use std::process::Command;

use suites::clients::{c_source, compile, folder};
use suites::launcher::text;
use ucp::rdm::amo::{apply, has_type};
use ucp::wire::{AtomicOp, Datatype};

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// Whether a number is a NaN: which one differs between implementations.
fn is_nan(number: &[u8]) -> bool {
    let fraction = u64::from_le_bytes(number[..8].try_into().unwrap()) << 1;
    number[8] == 0xff && number[9] & 0x7f == 0x7f && fraction != 0
}

#[test]
fn long_double_matches_c() {
    let dir = folder(env!("CARGO_TARGET_TMPDIR"));
    let program = compile(dir.join("long_double"), &c_source("long_double.c"), &["-O1", "-lm"]);
    let Some(program) = program else { return };
    let said = text(&Command::new(program).output().unwrap().stdout);
    let mut seen = [0; 2];
    for line in said.lines() {
        let [op, ty, old, with, than, want] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let op = AtomicOp::try_from(op.parse::<u32>().unwrap()).unwrap();
        let ty = Datatype::try_from(ty.parse::<u32>().unwrap()).unwrap();
        assert!(has_type(op, ty), "{op:?} {ty:?}");
        let (mut target, want) = (bytes(old), bytes(want));
        apply(op, ty, &mut target, &bytes(with), &bytes(than));
        let parts = target.chunks(16).zip(want.chunks(16));
        let same = parts.into_iter().all(|(ours, cs)| ours[..10] == cs[..10] || is_nan(ours) && is_nan(cs));
        assert!(same, "{op:?} {ty:?}: {target:02x?} of {line}");
        seen[usize::from(ty == Datatype::LongDoubleComplex)] += 1;
    }
    assert_eq!(seen, [15 * 256, 9 * 216]);
}
