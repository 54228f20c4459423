//! The secret of a user on this host, for processes without a secret of a job: those in other network
//! namespaces of the host have it, too, and nobody else has.

use super::{job_secret, secret};
use rustix::fs::OFlags;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::SystemTime;
use usnic::auth::Secret;

/// Folder that the processes of a host share, and that is empty after it has started.
const FOLDER: &str = "/dev/shm";

/// The secret of this user on this host. The first process that asks draws it.
///
/// # Errors
/// Fails if the file cannot be made or read, or is not this user's alone. The text names the file.
pub(super) fn load() -> Result<Secret, String> {
    load_from(FOLDER)
}

/// See [`load`]; the file is in this folder.
pub(super) fn load_from(folder: &str) -> Result<Secret, String> {
    let path = format!("{folder}/softefa-{}.secret", user());
    read_or_make(&path).map_err(|e| format!("{path}: {e}"))
}

fn read_or_make(path: &str) -> io::Result<Secret> {
    // Anybody may put something under this name: neither a link is followed nor another user believed.
    let read = || secret::read_private(path, OFlags::NOFOLLOW, |_| false);
    match read() {
        Err(e) if e.kind() == ErrorKind::NotFound => make(path).and_then(|()| read()),
        secret => secret,
    }
}

/// Makes the file, unless another process makes it at the same time. It is whole when it has its name.
fn make(path: &str) -> io::Result<()> {
    static NTH: AtomicU32 = AtomicU32::new(0);
    let secret = job_secret::new_secret()?;
    // Processes of several containers may have one number.
    let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_nanos());
    let draft = format!("{path}.{}.{nanos}.{}", std::process::id(), NTH.fetch_add(1, Relaxed));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = file.write_all(secret.as_bytes());
    let linked = written.and_then(|()| fs::hard_link(&draft, path));
    fs::remove_file(&draft)?;
    match linked {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }
}

/// Number of this user outside of its user namespace, as far as one look tells: within several of them it is
/// often 0 for each.
fn user() -> u32 {
    let own = rustix::process::geteuid().as_raw();
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    mapped(&map, own).unwrap_or(own)
}

fn mapped(map: &str, own: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut numbers = line.split_ascii_whitespace().map(|word| word.parse::<u32>().ok());
        let (first, outside, len) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let at = own.checked_sub(first).filter(|at| *at < len)?;
        outside.checked_add(at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::path::PathBuf;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("user-secret-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Folder(path)
        }

        fn tag(&self) -> Result<String, String> {
            load_from(self.0.to_str().unwrap()).map(|secret| secret.tag("a test"))
        }

        fn files(&self) -> Vec<PathBuf> {
            fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn processes_that_ask_at_the_same_time_have_one_secret() {
        let folder = Folder::new("one");
        let tags: Vec<String> = std::thread::scope(|scope| {
            let asking: Vec<_> = (0..8).map(|_| scope.spawn(|| folder.tag().unwrap())).collect();
            asking.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(tags.iter().all(|tag| *tag == tags[0]), "{tags:?}");
        let files = folder.files();
        assert_eq!(files.len(), 1, "{files:?}");
        assert_eq!(fs::metadata(&files[0]).unwrap().permissions().mode() & 0o777, 0o600);
        assert_ne!(Folder::new("other").tag().unwrap(), tags[0]);
    }

    #[test]
    fn a_file_that_others_may_use_and_a_link_are_refused() {
        let folder = Folder::new("bad");
        folder.tag().unwrap();
        let file = folder.files().remove(0);
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        let why = folder.tag().unwrap_err();
        assert!(why.contains("640") && why.contains(file.to_str().unwrap()), "{why}");
        let target = folder.0.join("target");
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        fs::rename(&file, &target).unwrap();
        symlink(&target, &file).unwrap();
        folder.tag().unwrap_err();
        fs::remove_file(&file).unwrap();
        fs::write(&file, b"").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        assert!(folder.tag().unwrap_err().contains("0 bytes"));
        // Root may give a file away, and does not believe what another user may have written.
        if chown(&file, Some(1), None).is_ok() {
            let why = folder.tag().unwrap_err();
            assert!(why.contains("belongs to user 1"), "{why}");
        }
    }

    #[test]
    fn a_user_has_the_number_outside_of_its_namespace() {
        assert_eq!(mapped("         0       1000          1\n", 0), Some(1000));
        assert_eq!(mapped("0 0 4294967295\n", 7), Some(7));
        assert_eq!(mapped("0 1000 1\n1 100000 65536\n", 5), Some(100_004));
        for (map, own) in [("0 1000 1\n", 3), ("", 0), ("0 x 1", 0), ("0 4294967295 9", 5)] {
            assert_eq!(mapped(map, own), None, "{map}");
        }
    }
}
