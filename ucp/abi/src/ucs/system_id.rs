//! A number for the system that this process is on.

use std::sync::OnceLock;

use ::ucs::sys::host::{boot_id, hostname, stable_key};

entry! {
    /// A number that processes of one boot of a machine have in common, and no others.
    fn ucs_get_system_id() -> u64 {
        static ID: OnceLock<u64> = OnceLock::new();
        Ok(*ID.get_or_init(|| {
            let boot = boot_id();
            stable_key(if boot.is_empty() { hostname() } else { boot }, &[])
        }))
    }
}
