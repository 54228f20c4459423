//! How an atomic operation goes, and why not another way: a pure function of what is mapped, what this processor can, and what
//! the user allows. Used by `api` to explain. Costs do not come into it: each way is only there where none before it is.

use std::fmt;

use crate::rdm::Emulation;

/// Why an atomic goes one way and not another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicVerdict {
    /// Chosen.
    Taken,
    /// The memory is not mapped here.
    NotMapped,
    /// The processor has no such operation on elements of this type that is atomic towards other processes.
    NotNative,
    /// No EFA device computes.
    NoDevice,
    /// Possible, but asks the target's processor.
    UsesTargetCpu,
    /// Asks the peer's processor, which is refused.
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

/// The ways of an atomic, in the order they are tried: in mapped memory, by the device, by packets.
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
