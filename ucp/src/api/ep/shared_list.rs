//! Changes of a table of addresses that processes of one host and user share by a name: a file of `/dev/shm`,
//! which each process reads into its own [`AddressTable`](super::address_table::AddressTable).
//!
//! | Bytes | Meaning |
//! |---|---|
//! | 8 | `UCX4AV01` |
//! | 8 | bytes of changes that are there, little endian |
//! | rest | changes: kind (1 byte), length (4 bytes, little endian), data |
//!
//! The file is locked during each access. Every process that uses it has a second, empty file locked, shared;
//! a process that gets that lock alone is the only user. The last user removes both files. What killed
//! processes have left is emptied by the next user of the name, and removed by the next process that opens
//! any name to write.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

const FOLDER: &str = "/dev/shm";
const MAGIC: [u8; 8] = *b"UCX4AV01";
const HEADER_LEN: u64 = 16;
/// Bytes of a change before its data.
const CHANGE_LEN: usize = 5;
/// Longest name of a file, bytes.
const MAX_FILE_NAME: usize = 255;
const USERS: &str = ".users";

/// Rights of a process to a shared table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TableAccess {
    /// Look addresses up, in a table that is there.
    Read,
    /// Change the table, which is made if it is not there.
    Write,
}

/// Why a shared table cannot be opened or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedTableError {
    /// Nobody has a table of this name open.
    #[error("no process has a table of addresses of this name open")]
    NotThere,
    /// The name is empty or too long.
    #[error("the name of a table of addresses has 1 to about 200 characters")]
    Name,
    /// The file belongs to another user, or is none of this library.
    #[error("{0} is not a table of addresses of this user")]
    Foreign(PathBuf),
    /// The system refuses.
    #[error("the table of addresses in {0}: {1}")]
    System(PathBuf, #[source] io::Error),
}

/// A change of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change<'a> {
    Insert(&'a [u8]),
    Skip,
    Remove(u64),
}

impl<'a> Change<'a> {
    fn pack(self) -> Vec<u8> {
        let number;
        let (kind, data): (u8, &[u8]) = match self {
            Change::Insert(packed) => (0, packed),
            Change::Skip => (1, &[]),
            Change::Remove(of) => {
                number = of.to_le_bytes();
                (2, &number)
            }
        };
        let mut out = vec![kind];
        out.extend_from_slice(&(data.len() as u32).to_le_bytes());
        out.extend_from_slice(data);
        out
    }

    /// Takes the first change off `bytes`.
    fn take(bytes: &mut &'a [u8]) -> Option<Change<'a>> {
        let (head, rest) = bytes.split_first_chunk::<CHANGE_LEN>()?;
        let len = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let (data, rest) = rest.split_at_checked(len)?;
        *bytes = rest;
        match head[0] {
            0 => Some(Change::Insert(data)),
            1 => Some(Change::Skip),
            2 => data.try_into().ok().map(|number| Change::Remove(u64::from_le_bytes(number))),
            _ => None,
        }
    }
}

/// The files of a shared table, and how far this process has read.
#[derive(Debug)]
pub(super) struct SharedList {
    list: File,
    users: File,
    path: PathBuf,
    /// Bytes of changes that this process has seen.
    seen: u64,
    access: TableAccess,
}

fn prefix() -> String {
    format!("ucx4-av.{}.", rustix::process::geteuid().as_raw())
}

fn path_of(name: &str) -> Result<PathBuf, SharedTableError> {
    let mut file = prefix();
    for byte in name.bytes() {
        match byte {
            b'-' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => file.push(char::from(byte)),
            _ => file.push_str(&format!("%{byte:02x}")),
        }
    }
    if name.is_empty() || file.len() + USERS.len() > MAX_FILE_NAME {
        return Err(SharedTableError::Name);
    }
    Ok(Path::new(FOLDER).join(file))
}

fn users_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(USERS);
    name.into()
}

/// Opens a file that nobody else may write. Follows no link.
fn open_file(path: &Path, creates: bool) -> Result<File, SharedTableError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(creates).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits() as i32);
    let file = options.open(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => SharedTableError::NotThere,
        _ => SharedTableError::System(path.into(), error),
    })?;
    let is_own =
        file.metadata().is_ok_and(|of| of.is_file() && of.uid() == rustix::process::geteuid().as_raw());
    if is_own { Ok(file) } else { Err(SharedTableError::Foreign(path.into())) }
}

/// Whether the path still names the file.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(of), Ok(at)) = (file.metadata(), std::fs::symlink_metadata(path)) else { return false };
    (of.dev(), of.ino()) == (at.dev(), at.ino())
}

/// Takes the lock of users alone. False: there are others.
fn lock_alone(users: &File) -> io::Result<bool> {
    match users.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Removes both files, the list last. Its lock is held.
fn remove(path: &Path) {
    _ = std::fs::remove_file(users_of(path));
    _ = std::fs::remove_file(path);
}

/// Removes a list that nobody uses.
fn remove_unused(path: &Path) {
    let Ok(list) = open_file(path, false) else { return };
    if list.try_lock().is_err() || !is_at(&list, path) {
        return;
    }
    let users = open_file(&users_of(path), true);
    if users.is_ok_and(|users| lock_alone(&users).is_ok_and(|is_alone| is_alone)) {
        remove(path);
    }
}

/// Removes what killed processes of this user have left.
fn remove_all_unused() {
    let prefix = prefix();
    let Ok(files) = std::fs::read_dir(FOLDER) else { return };
    for file in files.flatten() {
        let name = file.file_name();
        let is_list = name.to_str().is_some_and(|name| name.starts_with(&prefix) && !name.ends_with(USERS));
        if is_list {
            remove_unused(&file.path());
        }
    }
}

impl SharedList {
    pub(super) fn open(name: &str, access: TableAccess) -> Result<SharedList, SharedTableError> {
        let path = path_of(name)?;
        let writes = access == TableAccess::Write;
        if writes {
            remove_all_unused();
        }
        let failed = |error| SharedTableError::System(path.clone(), error);
        loop {
            let list = open_file(&path, writes)?;
            list.lock().map_err(failed)?;
            if !is_at(&list, &path) {
                // Its last user has just removed it.
                continue;
            }
            let users = open_file(&users_of(&path), true)?;
            if lock_alone(&users).map_err(failed)? {
                if !writes {
                    remove(&path);
                    return Err(SharedTableError::NotThere);
                }
                list.set_len(0).and_then(|()| write_end(&list, 0)).map_err(failed)?;
            }
            users.lock_shared().map_err(failed)?;
            list.unlock().map_err(failed)?;
            return Ok(SharedList { list, users, path, seen: 0, access });
        }
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.access == TableAccess::Read
    }

    /// Calls `apply` with the changes that this process has not seen. It answers whether a change can be one
    /// of this table.
    pub(super) fn read(&mut self, apply: impl FnMut(Change<'_>) -> bool) -> Result<(), SharedTableError> {
        self.list.lock_shared().map_err(|error| self.failed(error))?;
        let read = self.read_locked(apply);
        _ = self.list.unlock();
        read
    }

    /// Adds a change behind those of others, with which `apply` is called before.
    pub(super) fn append(
        &mut self,
        change: Change<'_>,
        apply: impl FnMut(Change<'_>) -> bool,
    ) -> Result<(), SharedTableError> {
        self.list.lock().map_err(|error| self.failed(error))?;
        let appended = self.read_locked(apply).and_then(|()| {
            let bytes = change.pack();
            let end = self.seen + bytes.len() as u64;
            // The end is written last: a change of a killed process is there as a whole or not at all.
            let written = self.list.write_all_at(&bytes, HEADER_LEN + self.seen);
            written.and_then(|()| write_end(&self.list, end)).map_err(|error| self.failed(error))?;
            self.seen = end;
            Ok(())
        });
        _ = self.list.unlock();
        appended
    }

    fn read_locked(&mut self, mut apply: impl FnMut(Change<'_>) -> bool) -> Result<(), SharedTableError> {
        let mut head = [0; HEADER_LEN as usize];
        self.list.read_exact_at(&mut head, 0).map_err(|error| self.failed(error))?;
        let [magic @ .., a, b, c, d, e, f, g, h] = head;
        let end = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let len = self.list.metadata().map_err(|error| self.failed(error))?.len();
        let foreign = || SharedTableError::Foreign(self.path.clone());
        if magic != MAGIC || end < self.seen || end > len.saturating_sub(HEADER_LEN) {
            return Err(foreign());
        }
        let mut bytes = vec![0; (end - self.seen) as usize];
        let read = self.list.read_exact_at(&mut bytes, HEADER_LEN + self.seen);
        read.map_err(|error| self.failed(error))?;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let change = Change::take(&mut rest).ok_or_else(foreign)?;
            if !apply(change) {
                return Err(foreign());
            }
        }
        self.seen = end;
        Ok(())
    }

    fn failed(&self, error: io::Error) -> SharedTableError {
        SharedTableError::System(self.path.clone(), error)
    }
}

fn write_end(list: &File, end: u64) -> io::Result<()> {
    let mut head = MAGIC.to_vec();
    head.extend_from_slice(&end.to_le_bytes());
    list.write_all_at(&head, 0)
}

impl Drop for SharedList {
    fn drop(&mut self) {
        if self.list.lock().is_ok()
            && is_at(&self.list, &self.path)
            && lock_alone(&self.users).unwrap_or(false)
        {
            remove(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_round_trip() {
        let all = [Change::Insert(&[1, 2, 3]), Change::Skip, Change::Remove(7), Change::Insert(&[])];
        let bytes: Vec<u8> = all.iter().flat_map(|change| change.pack()).collect();
        let mut rest = bytes.as_slice();
        for change in all {
            assert_eq!(Change::take(&mut rest), Some(change));
        }
        assert!(rest.is_empty());
        for cut in [1, 4, 6] {
            assert_eq!(Change::take(&mut &bytes[..cut]), None);
        }
        assert_eq!(Change::take(&mut [9, 0, 0, 0, 0].as_slice()), None);
        assert_eq!(Change::take(&mut [2, 1, 0, 0, 0, 5].as_slice()), None);
    }

    #[test]
    fn names_become_files() {
        assert_eq!(path_of("a/b.users").unwrap(), Path::new(FOLDER).join(prefix() + "a%2fb%2eusers"));
        assert!(matches!(path_of(""), Err(SharedTableError::Name)));
        assert!(matches!(path_of(&"n".repeat(250)), Err(SharedTableError::Name)));
    }
}
