//! Loads the secret of a job from its file, which nobody but its owner may read.

use crate::api::OpenError;
use rustix::fs::OFlags;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use usnic::auth::Secret;

/// Longest file that is read, bytes.
const LONGEST: u64 = 4096;

/// Purpose of the tag by which processes of this host find those of their job.
pub(super) const JOB: &str = "processes of one host";

/// Reads a secret. A line end at the end of the file is not part of it.
///
/// # Errors
/// Fails if the file cannot be read, belongs to another user than this process and root, is open to others,
/// or has no secret of the right length. The text names the file and what to do.
pub fn load(path: &str) -> Result<Secret, OpenError> {
    let root = 0;
    let read = read_private(path, OFlags::empty(), |owner| owner == root);
    read.map_err(|e| OpenError::Environment(format!("secret {path} (SOFTEFA_SECRET_FILE): {e}")))
}

/// Reads a secret from a file of this user, or of one that `is_trusted` accepts.
pub(super) fn read_private(
    path: &str,
    flags: OFlags,
    is_trusted: impl Fn(u32) -> bool,
) -> io::Result<Secret> {
    let bad = io::Error::other::<String>;
    // A pipe would keep the process waiting.
    let flags = (flags | OFlags::NONBLOCK).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    // Of the open file, so that nobody puts another one in its place meanwhile.
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(bad("not a regular file".into()));
    }
    let own = rustix::process::geteuid().as_raw();
    if meta.uid() != own && !is_trusted(meta.uid()) {
        return Err(bad(format!("it belongs to user {}, and this process to user {own}", meta.uid())));
    }
    if meta.mode() & 0o077 != 0 {
        let mode = meta.mode() & 0o777;
        return Err(bad(format!("others may use it (mode {mode:03o}); run: chmod 600 {path}")));
    }
    let mut bytes = Vec::new();
    file.take(LONGEST + 2).read_to_end(&mut bytes)?;
    let end = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    Secret::new(end.strip_suffix(b"\r").unwrap_or(end)).map_err(bad)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_a_private_file_with_a_secret_is_taken() {
        let path = std::env::temp_dir().join(format!("secret-of-a-test-{}", std::process::id()));
        let name = path.to_str().unwrap();
        let try_with = |bytes: &[u8], mode: u32| {
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            load(name).map_err(|e| e.to_string())
        };
        let text = b"sixteen bytes or more\n";
        assert!(try_with(text, 0o600).is_ok() && try_with(text, 0o400).is_ok());
        for mode in [0o640, 0o604, 0o620, 0o610] {
            let why = try_with(text, mode).unwrap_err();
            assert!(
                why.contains(name) && why.contains(&format!("{mode:o}")) && why.contains("chmod"),
                "{why}"
            );
        }
        let why = try_with(b"fifteen bytes..\n", 0o600).unwrap_err();
        assert!(why.contains("15 bytes"), "{why}");
        assert!(try_with(&[1; 5000], 0o600).is_err());
        fs::remove_file(&path).unwrap();
        let why = load(name).unwrap_err().to_string();
        assert!(why.contains(name) && why.contains("No such file"), "{why}");
        assert!(load("/").unwrap_err().to_string().contains("not a regular file"));
    }
}
