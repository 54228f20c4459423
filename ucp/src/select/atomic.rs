//! Selection of the method of an atomic operation, with the reasons: a pure function of mapping, processor
//! and settings. Used by `api` to explain. Methods have a fixed order; costs are not compared.

use std::fmt;

use crate::rdm::Emulation;

/// Result for one method of an atomic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AtomicVerdict {
    /// Chosen.
    Taken,
    /// The memory is not mapped here.
    NotMapped,
    /// The processor has no such operation on elements of this type that is atomic towards other processes.
    NotNative,
    /// No EFA device computes.
    NoDevice,
    /// Possible, but uses the target's processor.
    UsesTargetCpu,
    /// Uses the peer's processor, which `UCX_EMULATION=n` forbids.
    EmulationOff,
}

impl fmt::Display for AtomicVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AtomicVerdict::Taken => "taken",
            AtomicVerdict::NotMapped => "the memory is not mapped in this process",
            AtomicVerdict::NotNative => "not an operation and type of this processor's atomics",
            AtomicVerdict::NoDevice => "no device of this transport computes",
            AtomicVerdict::UsesTargetCpu => "possible, but asks more of the target",
            AtomicVerdict::EmulationOff => "asks the peer's processor (UCX_EMULATION=n)",
        })
    }
}

/// Verdicts of the methods in order of preference: mapped memory, device, packets.
pub const fn explain_atomic(mapped: bool, native: bool, emulation: Emulation) -> [AtomicVerdict; 3] {
    let here = match (mapped, native) {
        (true, true) => AtomicVerdict::Taken,
        (false, _) => AtomicVerdict::NotMapped,
        (true, false) => AtomicVerdict::NotNative,
    };
    let by_packets = match (here, emulation) {
        (_, Emulation::Refused) => AtomicVerdict::EmulationOff,
        (AtomicVerdict::Taken, _) => AtomicVerdict::UsesTargetCpu,
        _ => AtomicVerdict::Taken,
    };
    [here, AtomicVerdict::NoDevice, by_packets]
}
