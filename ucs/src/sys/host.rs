//! Identity of host and pid namespace, as hashes, for interface addresses.

use std::fs;
use std::os::linux::fs::MetadataExt;
use std::sync::OnceLock;

use super::proc::pid;

/// Equal for processes of one boot, which the high 32 bits name, and one pid namespace, which the low ones
/// name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostKey(pub u64);

impl HostKey {
    /// The caller's. The kernel's files say it once: every endpoint asks.
    pub fn current() -> HostKey {
        static HERE: OnceLock<(u32, HostKey)> = OnceLock::new();
        let pid = pid();
        let look = || (pid, HostKey::of(&boot_id(), pid_namespace()));
        // A child may be in another pid namespace, a process never comes into one.
        match HERE.get_or_init(look) {
            (of, key) if *of == pid => *key,
            _ => look().1,
        }
    }

    fn of(boot: &str, pid_namespace: u64) -> HostKey {
        let scope = stable_key("pid", &[pid_namespace]);
        HostKey(stable_key(boot.trim(), &[]) << 32 | scope & u64::from(u32::MAX))
    }
}

/// Random text chosen by the kernel at boot; empty when it cannot be read.
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|s| s.trim().to_owned()).unwrap_or_default()
}

/// Number of the pid namespace; 0 when it cannot be read.
pub fn pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map(|m| m.st_ino()).unwrap_or(0)
}

/// Number of the network namespace; 0 when it cannot be read.
pub fn net_namespace() -> u64 {
    fs::metadata("/proc/self/ns/net").map(|m| m.st_ino()).unwrap_or(0)
}

/// A number for bytes and numbers, the same in every build and process.
pub fn stable_key(bytes: impl AsRef<[u8]>, numbers: &[u64]) -> u64 {
    mix(numbers.iter().fold(fnv(0xcbf2_9ce4_8422_2325, bytes.as_ref()), |h, n| fnv(h, &n.to_le_bytes())))
}

/// The host's name, for people.
pub fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Kernel name and release, for people.
pub fn kernel() -> String {
    let uname = rustix::system::uname();
    format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy())
}

/// FNV-1a: stable between builds and processes, unlike the standard library's hashers.
fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_by_boot_and_namespace() {
        assert_eq!(HostKey::current(), HostKey::current());
        assert_eq!(HostKey::of("a\n", 1), HostKey::of("a", 1));
        assert_ne!(HostKey::of("a", 1), HostKey::of("a", 2));
        assert_ne!(HostKey::of("a", 1), HostKey::of("b", 1));
        // Fixed: two builds of this library must agree.
        assert_eq!(fnv(0xcbf2_9ce4_8422_2325, b"a"), 0xaf63_dc4c_8601_ec8c);
    }

    #[test]
    fn host_facts_are_available() {
        assert_eq!(boot_id().len(), 36);
        assert_ne!(pid_namespace(), 0);
        assert!(!hostname().is_empty() && kernel().starts_with("Linux "));
    }
}
