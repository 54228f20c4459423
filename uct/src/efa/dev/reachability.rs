//! Reachability by GID: rules out peers on another host, or of another kind of device, before anything is
//! sent. A positive answer is a hint only.
//!
//! Software devices generate GIDs `fe80::02..`: octet 2, then 14 bits of host and network namespace, 22 of
//! the process id, 16 random, 4 of the device. Hardware GIDs are made from a MAC address with `ff:fe` in the
//! middle, whose first octet is never 2.

use super::Gid;
use crate::api::ConnectError;
use ucs::sys::host;

/// First octet of generated GIDs: "universally administered", unlike those from an EFA's MAC.
const SOFTWARE: u64 = 0x02;
const HOST_AT: u32 = 42;
const HOST_BITS: u32 = 14;
const PID_AT: u32 = 20;
const PID_BITS: u32 = 22;

/// A 14-bit host id; two hosts collide once in 16384.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostId(u16);

impl HostId {
    /// The id of this host: boot id and network namespace, within which software devices find each other.
    pub fn current() -> HostId {
        let key = host::stable_key(host::boot_id(), &[host::net_namespace()]);
        HostId((key & ((1 << HOST_BITS) - 1)) as u16)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum GidKind {
    Software(HostId),
    Hardware,
    Assigned,
}

fn gid_kind(iid: u64) -> GidKind {
    if iid >> 56 == SOFTWARE {
        GidKind::Software(HostId((iid >> HOST_AT & ((1 << HOST_BITS) - 1)) as u16))
    } else if iid >> 24 & 0xffff == 0xfffe {
        GidKind::Hardware
    } else {
        GidKind::Assigned
    }
}

/// A generated interface id, unique on this host: pid, random bits, four low bits for the device.
pub fn software_iid(host: HostId, pid: u32, random: u64) -> u64 {
    let pid = u64::from(pid) & ((1 << PID_BITS) - 1);
    SOFTWARE << 56 | u64::from(host.0) << HOST_AT | pid << PID_AT | (random & 0xffff) << 4
}

/// Checks whether a device with GID `own` may reach `other`; `host` is called only if needed.
pub fn check(own: Gid, host: impl FnOnce() -> HostId, other: Gid) -> Result<(), ConnectError> {
    match (gid_kind(own.iid()), gid_kind(other.iid())) {
        (GidKind::Software(_), GidKind::Hardware) | (GidKind::Hardware, GidKind::Software(_)) => {
            Err(ConnectError::OtherKind)
        }
        // Hardware has no assigned GIDs, so ours is software too.
        (_, GidKind::Software(theirs)) if theirs != host() => Err(ConnectError::OtherHost),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HARDWARE: Gid = Gid::link_local(0x14b0_33ff_fef8_77cd);

    #[test]
    fn a_gid_can_rule_out_a_peer() {
        let (current, there) = (HostId(5), HostId(6));
        let own = |host, pid| Gid::link_local(software_iid(host, pid, 0xabcd));
        let given = Gid::link_local(0xa1);
        let check = |own, other| check(own, || current, other);
        assert_eq!(check(own(current, 1), own(current, 2)), Ok(()));
        assert_eq!(check(own(current, 1), own(there, 1)), Err(ConnectError::OtherHost));
        assert_eq!(check(given, own(there, 1)), Err(ConnectError::OtherHost));
        assert_eq!(check(own(current, 1), HARDWARE), Err(ConnectError::OtherKind));
        assert_eq!(check(HARDWARE, own(current, 1)), Err(ConnectError::OtherKind));
        for known in [own(current, 1), HARDWARE, given] {
            assert_eq!((check(known, given), check(given, known)), (Ok(()), Ok(())));
        }
        assert_eq!(check(HARDWARE, HARDWARE), Ok(()));
    }

    #[test]
    fn each_process_has_its_own_gid_that_names_the_host() {
        let host = HostId((1 << HOST_BITS) - 1);
        for pid in [1, 0xffff, (1 << PID_BITS) - 1] {
            let iid = software_iid(host, pid, u64::MAX);
            assert_eq!(
                (gid_kind(iid), gid_kind(iid + 15)),
                (GidKind::Software(host), GidKind::Software(host)),
                "{pid}"
            );
            assert_eq!(iid >> PID_AT & ((1 << PID_BITS) - 1), u64::from(pid));
        }
        assert_eq!(HostId::current(), HostId::current());
    }
}
