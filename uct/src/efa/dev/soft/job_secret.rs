//! The secret of a job from its launcher: processes on several hosts authenticate each other without a file.
//! Asked for by `SOFTEFA_JOB_SECRET=pmix` only; nothing else here speaks to a launcher.

use super::SoftConfig;
use crate::api::OpenError;
use std::fs::File;
use std::io::{self, Read};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use ucs::config::{Source, Table as _};
use ucs::sys::pmix::{Pmix, PmixError};
use usnic::auth::Secret;

ucs::config_enum! {
    /// Source of a secret that all processes of the job have.
    pub enum JobSecret {
        /// Nobody.
        None = "n",
        /// The launcher, by PMIx: `mpirun`, `srun --mpi=pmix`.
        Pmix = "pmix",
    }
}

/// Name of the secret in the launcher's store.
const KEY: &str = "softefa.job.secret";
/// Random bytes of a secret.
const LEN: usize = 32;
/// Longest wait for the first process of the job, seconds.
const WAIT: u32 = 60;
/// Longest wait for a first process that has put other values.
const FURTHER_WAIT: Duration = Duration::from_secs(10);
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// Settings with `SOFTEFA_JOB_SECRET=pmix`, unless they say something about a secret already. For programs
/// that a launcher with PMIx has started, and that know it.
pub fn with_job_secret(source: &Source) -> Source {
    let prefix = SoftConfig::DESC.prefix;
    let is_said =
        ["SECRET_FILE", "INSECURE", "JOB_SECRET"].iter().any(|key| source.is_set(&format!("{prefix}{key}")));
    match is_said {
        true => source.clone(),
        false => source.clone().with(&format!("{prefix}JOB_SECRET"), "pmix"),
    }
}

/// The secret of the job that started this process. Process 0 of the job makes it; the others wait until it
/// has opened a device, too. This process is a client of the launcher only within the first call.
pub(super) fn load() -> Result<Secret, OpenError> {
    static KNOWN: Mutex<Option<String>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let text = match &*known {
        Some(text) => text.clone(),
        None => known.insert(ask()?).clone(),
    };
    Secret::new(text.as_bytes()).map_err(bad)
}

fn bad(why: impl std::fmt::Display) -> OpenError {
    OpenError::Environment(format!("secret of the job (SOFTEFA_JOB_SECRET=pmix): {why}"))
}

fn ask() -> Result<String, OpenError> {
    if !Pmix::is_there() {
        return Err(bad(
            "no launcher with PMIx has started this process (PMIX_RANK and PMIX_NAMESPACE are not set): start it by mpirun \
             or srun --mpi=pmix, or name a file by SOFTEFA_SECRET_FILE",
        ));
    }
    let pmix = Pmix::init().map_err(bad)?;
    if pmix.rank() == 0 {
        pmix.put(KEY, &new_secret().map_err(bad)?).map_err(bad)?;
    }
    let secret = get_awaited(&pmix).map_err(|e| match e {
        PmixError::Call { .. } => {
            bad(format!("{e}; process 0 of the job has none: did it open a device with this setting?"))
        }
        e => bad(e),
    })?;
    match secret.len() == 2 * LEN && secret.bytes().all(|c| c.is_ascii_hexdigit()) {
        true => Ok(secret),
        false => Err(bad("the launcher returned something else")),
    }
}

/// Asks until process 0 has put the secret: a launcher waits for the first values of a process, and answers
/// "not found" at once if it has put others before.
fn get_awaited(pmix: &Pmix) -> Result<String, PmixError> {
    let until = Instant::now() + FURTHER_WAIT;
    loop {
        match pmix.get_within(0, KEY, WAIT) {
            Err(e) if e.is_not_found() && Instant::now() < until => thread::sleep(ASK_AGAIN),
            answer => return answer,
        }
    }
}

/// Random bytes of the system, as text.
pub(super) fn new_secret() -> io::Result<String> {
    let mut bytes = [0; LEN];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_secret_is_one_that_sessions_take() {
        let (one, two) = (new_secret().unwrap(), new_secret().unwrap());
        assert!(one.len() == 2 * LEN && one != two);
        assert!(Secret::new(one.as_bytes()).is_ok());
    }

    #[test]
    fn what_is_said_about_a_secret_stays() {
        let set = |source: &Source| with_job_secret(source).is_set("SOFTEFA_JOB_SECRET");
        assert!(set(&Source::empty()));
        for key in ["SOFTEFA_SECRET_FILE", "SOFTEFA_INSECURE"] {
            assert!(!set(&Source::empty().with(key, "y")), "{key}");
        }
    }

    #[test]
    fn without_a_launcher_the_device_says_what_to_do() {
        let source = Source::empty().with("SOFTEFA_UDP", "all").with("SOFTEFA_JOB_SECRET", "pmix");
        let why = crate::efa::dev::soft::open(&source, "softefa0").err().unwrap().to_string();
        assert!(why.contains("PMIX_NAMESPACE") && why.contains("SOFTEFA_SECRET_FILE"), "{why}");
        let both = source.with("SOFTEFA_SECRET_FILE", "/x");
        let why = crate::efa::dev::soft::open(&both, "softefa0").err().unwrap().to_string();
        assert!(why.contains("exclude each other"), "{why}");
    }
}
