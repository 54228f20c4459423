//! The secret that seals datagrams, and random bytes.

use super::UdpConfig;
use crate::api::{Error, OpenError};
use crate::efa::dev::soft::job_secret::{self, JobSecret};
use crate::efa::dev::soft::secret;
use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use usnic::auth::Secret;

/// A secret that seals datagrams.
pub(super) struct Key {
    pub secret: Secret,
    /// Whether it is the job's; else the user's on this host.
    pub is_of_job: bool,
}

/// Loads the secret that seals datagrams: the job's or, where the device listens beyond the loopback
/// interface and has none, the one `of_user`, this user's on this host. `None`: nothing is sealed.
pub(super) fn load_secret(
    config: &UdpConfig,
    ip: IpAddr,
    of_user: impl FnOnce() -> Result<Secret, String>,
) -> Result<Option<Key>, OpenError> {
    let of_job = match (&*config.secret_file, config.job_secret) {
        ("", JobSecret::None) => None,
        ("", JobSecret::Pmix) => Some(job_secret::load()?),
        (path, JobSecret::None) => Some(secret::load(path)?),
        (_, JobSecret::Pmix) => {
            return Err(OpenError::Config(
                "SOFTEFA_SECRET_FILE and SOFTEFA_JOB_SECRET exclude each other".into(),
            ));
        }
    };
    if of_job.is_some() || ip.is_loopback() || config.insecure {
        return Ok(of_job.map(|secret| Key { secret, is_of_job: true }));
    }
    let secret = of_user().map_err(|why| {
        OpenError::Environment(format!(
            "the software EFA device does not listen at {ip} without a secret ({why}): set SOFTEFA_SECRET_FILE (or \
             SOFTEFA_JOB_SECRET=pmix under mpirun or srun), or SOFTEFA_INSECURE=y if everybody who can send to it may read \
             and write the memory that programs register"
        ))
    })?;
    tracing::info!(
        "the device at {ip} has no secret of a job: only processes of this user on this host reach it (SOFTEFA_SECRET_FILE)"
    );
    Ok(Some(Key { secret, is_of_job: false }))
}

/// Random bytes of the system.
pub(super) fn random_seed() -> Result<[u8; 32], OpenError> {
    let mut seed = [0; 32];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut seed));
    read.map_err(|e| OpenError::Op(Error::Sys { call: "/dev/urandom", errno: e.into() }))?;
    Ok(seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::efa::dev::soft::{SoftConfig, user_secret};
    use ucs::config::{Source, Table};

    #[test]
    fn without_a_secret_of_a_job_the_users_seals_what_leaves_the_loopback_interface() {
        // The user's own is not touched: other processes may have it.
        let folder = std::env::temp_dir().join(format!("softefa-address-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let of_user = || user_secret::load_from(folder.to_str().unwrap());
        let load = |ip: &str, insecure: &str| {
            let source = Source::empty().with("SOFTEFA_UDP", "y").with("SOFTEFA_INSECURE", insecure);
            let config = SoftConfig::load(&source).unwrap().udp().unwrap();
            load_secret(&config, ip.parse().unwrap(), of_user).unwrap()
        };
        assert!(load("127.0.0.1", "n").is_none() && load("::1", "n").is_none());
        assert!(load("10.0.0.1", "y").is_none());
        let [one, two] = ["10.0.0.1", "2001:db8::1"].map(|ip| load(ip, "n").unwrap());
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(one.secret.tag("a test"), two.secret.tag("a test"));
        // By shared memory the process meets those without a secret.
        assert!(!one.is_of_job);
    }
}
