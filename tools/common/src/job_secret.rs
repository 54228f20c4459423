//! The secret of a job, from the launcher: its processes on several hosts authenticate each other without a
//! file.

use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;

use rustix::fs::{MemfdFlags, memfd_create};
use ucs::config::Source;

use crate::pmix::{Pmix, PmixError};

/// Why a job has no secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The launcher.
    #[error(transparent)]
    Launcher(#[from] PmixError),
    /// The system.
    #[error("the secret of the job cannot be kept: {0}")]
    System(#[from] io::Error),
    /// The first process has published something else.
    #[error("the launcher returned no secret of the job")]
    Malformed,
}

/// Name of the secret in the launcher's store.
const KEY: &str = "softefa.job.secret";
/// Setting that names a file with the secret.
const SETTING: &str = "SOFTEFA_SECRET_FILE";
/// Setting that asks for none.
const INSECURE: &str = "SOFTEFA_INSECURE";
/// Random bytes of a secret.
const LEN: usize = 32;

/// Settings with a secret that all processes of the job have and nobody else: the first one makes it, the
/// launcher passes it on. What the settings say about one already stays. Each process of the job calls this.
pub fn with_secret(pmix: &Pmix, source: &Source) -> Result<Source, SecretError> {
    if pmix.rank() == 0 {
        pmix.put(KEY, &new_secret()?)?;
    }
    pmix.fence()?;
    if source.is_set(SETTING) || source.is_set(INSECURE) {
        return Ok(source.clone());
    }
    let secret = pmix.get(0, KEY)?;
    if secret.len() != 2 * LEN || !secret.bytes().all(|c| c.is_ascii_hexdigit()) {
        return Err(SecretError::Malformed);
    }
    // It stays open as long as the process: devices are opened later.
    let fd = keep(&secret)?.into_raw_fd();
    Ok(source.clone().with(SETTING, &format!("/proc/self/fd/{fd}")))
}

fn new_secret() -> io::Result<String> {
    let mut bytes = [0; LEN];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A file in memory that only this user may open, and that programs started by this one do not have.
fn keep(secret: &str) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("softefa-secret", MemfdFlags::CLOEXEC)?);
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(secret.as_bytes())?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_kept_secret_is_one_that_the_device_takes() {
        let (one, two) = (new_secret().unwrap(), new_secret().unwrap());
        assert!(one.len() == 2 * LEN && one != two);
        let kept = keep(&one).unwrap();
        let name = format!("/proc/self/fd/{}", kept.as_raw_fd());
        // Read twice: a job opens several devices.
        for _ in 0..2 {
            assert_eq!(std::fs::read_to_string(&name).unwrap(), one);
            uct::efa::dev::soft::secret::load(&name).unwrap();
        }
    }
}
