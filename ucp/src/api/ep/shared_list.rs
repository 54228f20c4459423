//! Changes of a table of addresses that processes of one host and user share by a name: a file of `/dev/shm`,
//! which each process reads into its own [`AddressTable`](super::address_table::AddressTable).
//!
//! The file is a list of cells of 64 bytes. A change is a first cell, and as many more as its data needs:
//!
//! | Bytes of a first cell | Meaning |
//! |---|---|
//! | 1 | kind: 1 insert, 2 skip, 3 remove |
//! | 3 | zero |
//! | 4 | length of the data, little endian |
//! | 8 | the writer, a random number |
//! | 48 | data |
//!
//! Each further cell is the byte 4 and 63 bytes of data.
//!
//! A change is one write in append mode. The kernel puts writes one behind another, so that neither writers
//! nor readers need a lock, and no stopped process keeps others waiting. A write that was cut short (the
//! writer was killed, or memory is full) lacks cells before the next first cell, and is no change.
//!
//! Every process that uses the file has it locked, shared. A process that gets the lock alone may remove the
//! file, and does nothing else with that lock: the last user when it closes the table, and each process that
//! opens any table, which so removes what killed processes have left.

use std::fs::{File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

const FOLDER: &str = "/dev/shm";
/// Bytes of a cell. Divides the size of a page, so that a write is not cut within one.
const CELL: usize = 64;
/// Bytes of a first cell before its data.
const HEAD: usize = 16;
/// Data of a first cell, and of a further one, bytes.
const FIRST_DATA: usize = CELL - HEAD;
const MORE_DATA: usize = CELL - 1;
const INSERT: u8 = 1;
const SKIP: u8 = 2;
const REMOVE: u8 = 3;
const MORE: u8 = 4;
/// Longest name of a file, bytes.
const MAX_FILE_NAME: usize = 255;
/// Longest wait for another process that is removing the file of this name, which takes microseconds.
const MAX_WAIT: Duration = Duration::from_secs(2);

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
    /// A process that removes the file of this name does not get on with it.
    #[error("{0} is being removed by another process, which may be stopped")]
    Busy(PathBuf),
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

/// A change that is in the list.
struct Found {
    writer: u64,
    kind: u8,
    data: Vec<u8>,
}

impl Found {
    fn change(&self) -> Option<Change<'_>> {
        match self.kind {
            INSERT => Some(Change::Insert(&self.data)),
            SKIP => Some(Change::Skip),
            _ => {
                self.data.as_slice().try_into().ok().map(|number| Change::Remove(u64::from_le_bytes(number)))
            }
        }
    }
}

/// The beginning of a list of cells.
enum Next {
    /// A change, and how many cells it has.
    Change(Found, usize),
    /// A change that was cut short: the number of its cells.
    Cut(usize),
    /// Nothing yet, or a part of a change.
    Nothing,
    /// No list.
    Foreign,
}

/// Cells of a change with so many bytes of data.
fn cells_of(len: usize) -> usize {
    1 + len.saturating_sub(FIRST_DATA).div_ceil(MORE_DATA)
}

/// The cells of a change.
fn pack(change: Change<'_>, writer: u64) -> Vec<u8> {
    let number;
    let (kind, data): (u8, &[u8]) = match change {
        Change::Insert(packed) => (INSERT, packed),
        Change::Skip => (SKIP, &[]),
        Change::Remove(of) => {
            number = of.to_le_bytes();
            (REMOVE, &number)
        }
    };
    let mut out = vec![kind, 0, 0, 0];
    out.extend_from_slice(&(data.len() as u32).to_le_bytes());
    out.extend_from_slice(&writer.to_le_bytes());
    let (first, more) = data.split_at(data.len().min(FIRST_DATA));
    out.extend_from_slice(first);
    for part in more.chunks(MORE_DATA) {
        out.push(MORE);
        out.extend_from_slice(part);
    }
    out.resize(cells_of(data.len()) * CELL, 0);
    out
}

/// Reads the beginning of a list of cells.
fn next_of(cells: &[[u8; CELL]]) -> Next {
    let Some((first, more)) = cells.split_first() else { return Next::Nothing };
    let kind = first[0];
    if !(INSERT..=REMOVE).contains(&kind) {
        return if kind == 0 { Next::Nothing } else { Next::Foreign };
    }
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| first[at + byte]));
    let len = (number(0) >> 32) as usize;
    let count = cells_of(len);
    let mut data = first[HEAD..].to_vec();
    for (at, cell) in more.iter().take(count - 1).enumerate() {
        match cell[0] {
            MORE => data.extend_from_slice(&cell[1..]),
            INSERT..=REMOVE => return Next::Cut(1 + at),
            0 => return Next::Nothing,
            _ => return Next::Foreign,
        }
    }
    if cells.len() < count {
        return Next::Nothing;
    }
    data.truncate(len);
    Next::Change(Found { writer: number(8), kind, data }, count)
}

/// The file of a shared table, and how far this process has read.
#[derive(Debug)]
pub(super) struct SharedList {
    list: File,
    path: PathBuf,
    /// Bytes that this process has read.
    seen: u64,
    access: TableAccess,
    /// This opening of the list, as a writer.
    writer: u64,
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
    if name.is_empty() || file.len() > MAX_FILE_NAME {
        return Err(SharedTableError::Name);
    }
    Ok(Path::new(FOLDER).join(file))
}

/// Opens a file that nobody else may write. Follows no link.
fn open_file(path: &Path, creates: bool) -> Result<File, SharedTableError> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(creates).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits() as i32);
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

/// Takes a lock by `take`. False: others have one that excludes it.
fn takes(take: impl FnOnce(&File) -> Result<(), TryLockError>, list: &File) -> io::Result<bool> {
    match take(list) {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Removes the file that is at a path if nobody uses it.
fn remove_unused(list: &File, path: &Path) {
    if takes(File::try_lock, list).unwrap_or(false) {
        // Who has this lock is the only one that may remove the file.
        if is_at(list, path) {
            _ = std::fs::remove_file(path);
        }
        _ = list.unlock();
    }
}

/// Removes the tables that killed processes of this user have left in `/dev/shm`.
pub(super) fn remove_all_unused() {
    let prefix = prefix();
    let Ok(files) = std::fs::read_dir(FOLDER) else { return };
    for file in files.flatten() {
        if file.file_name().to_str().is_some_and(|name| name.starts_with(&prefix)) {
            let path = file.path();
            if let Ok(list) = open_file(&path, false) {
                remove_unused(&list, &path);
            }
        }
    }
}

impl SharedList {
    pub(super) fn open(name: &str, access: TableAccess) -> Result<SharedList, SharedTableError> {
        let path = path_of(name)?;
        // Among them may be one of this name.
        remove_all_unused();
        let failed = |error| SharedTableError::System(path.clone(), error);
        let until = Instant::now() + MAX_WAIT;
        loop {
            let list = open_file(&path, access == TableAccess::Write)?;
            // A file that is removed before it is locked is none of this table.
            if takes(File::try_lock_shared, &list).map_err(failed)? && is_at(&list, &path) {
                let writer = RandomState::new().hash_one(std::process::id());
                return Ok(SharedList { list, path, seen: 0, access, writer });
            }
            if Instant::now() > until {
                return Err(SharedTableError::Busy(path));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.access == TableAccess::Read
    }

    /// Calls `apply` with the changes that this process has not seen, and whether they are its own. It
    /// answers whether a change can be one of this table.
    pub(super) fn read(
        &mut self,
        mut apply: impl FnMut(Change<'_>, bool) -> bool,
    ) -> Result<(), SharedTableError> {
        let foreign = || SharedTableError::Foreign(self.path.clone());
        let len = self.list.metadata().map_err(|error| self.failed(error))?.len();
        let new = len.checked_sub(self.seen).ok_or_else(foreign)?;
        if new < CELL as u64 {
            return Ok(());
        }
        let mut cells = vec![[0; CELL]; (new / CELL as u64) as usize];
        let read = self.list.read_exact_at(cells.as_flattened_mut(), self.seen);
        read.map_err(|error| self.failed(error))?;
        let mut at = 0;
        let result = loop {
            match next_of(&cells[at..]) {
                Next::Change(found, count) => {
                    let is_own = found.writer == self.writer;
                    if !found.change().is_some_and(|change| apply(change, is_own)) {
                        break Err(foreign());
                    }
                    at += count;
                }
                Next::Cut(count) => at += count,
                Next::Nothing => break Ok(()),
                Next::Foreign => break Err(foreign()),
            }
        };
        self.seen += (at * CELL) as u64;
        result
    }

    /// Adds a change behind those of others. [`SharedList::read`] then finds it behind them.
    pub(super) fn append(&mut self, change: Change<'_>) -> Result<(), SharedTableError> {
        let bytes = pack(change, self.writer);
        // One write: what another one completes would not be next to it.
        match (&self.list).write(&bytes) {
            Ok(written) if written == bytes.len() => Ok(()),
            Ok(_) => Err(self.failed(ErrorKind::StorageFull.into())),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(&self, error: io::Error) -> SharedTableError {
        SharedTableError::System(self.path.clone(), error)
    }
}

impl Drop for SharedList {
    fn drop(&mut self) {
        // Not by turning one lock into the other: of two that do so at once, none would get it.
        _ = self.list.unlock();
        remove_unused(&self.list, &self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(bytes: &[u8]) -> Vec<[u8; CELL]> {
        bytes.chunks(CELL).map(|cell| cell.try_into().unwrap()).collect()
    }

    #[test]
    fn changes_round_trip() {
        let data: Vec<u8> = (0..255).collect();
        for len in [0, 1, 47, 48, 49, 111, 112, 255] {
            for change in [Change::Insert(&data[..len]), Change::Skip, Change::Remove(len as u64)] {
                let packed = cells(&pack(change, 7));
                let Next::Change(found, count) = next_of(&packed) else { panic!("{change:?}") };
                assert_eq!((found.change(), found.writer, count), (Some(change), 7, packed.len()));
                for cut in 0..packed.len() {
                    assert!(matches!(next_of(&packed[..cut]), Next::Nothing));
                    let mut next = packed[..cut].to_vec();
                    next.extend(cells(&pack(Change::Skip, 1)));
                    assert!(cut == 0 || matches!(next_of(&next), Next::Cut(count) if count == cut));
                }
            }
        }
        assert!(matches!(next_of(&[[0; CELL]]), Next::Nothing));
        for kind in [MORE, 5, 255] {
            assert!(matches!(next_of(&[[kind; CELL]]), Next::Foreign));
        }
        let mut huge = [0xff; CELL];
        huge[0] = INSERT;
        assert!(matches!(next_of(&[huge]), Next::Nothing));
    }

    fn numbers(list: &mut SharedList) -> Vec<(u64, bool)> {
        let mut all = Vec::new();
        list.read(|change, is_own| {
            let Change::Remove(number) = change else { return false };
            all.push((number, is_own));
            true
        })
        .unwrap();
        all
    }

    /// A list of this test, and where it is.
    fn opened(of: &str) -> (String, SharedList) {
        let name = format!("unit/{of}/{}", std::process::id());
        let list = SharedList::open(&name, TableAccess::Write).unwrap();
        (name, list)
    }

    #[test]
    fn a_change_that_was_cut_short_is_none() {
        let (name, mut first) = opened("cut");
        let mut second = SharedList::open(&name, TableAccess::Write).unwrap();
        first.append(Change::Remove(1)).unwrap();
        let cut = pack(Change::Insert(&[1; 200]), 1);
        assert_eq!((&first.list).write(&cut[..2 * CELL]).unwrap(), 2 * CELL);
        assert_eq!(numbers(&mut second), [(1, false)]);
        second.append(Change::Remove(2)).unwrap();
        assert_eq!(numbers(&mut second), [(2, true)]);
        assert_eq!(numbers(&mut first), [(1, true), (2, false)]);
    }

    /// All see the changes of all in the same order.
    #[test]
    fn writers_at_the_same_time_agree() {
        let (name, mut mine) = opened("order");
        let write = |of: u64| {
            let mut list = SharedList::open(&name, TableAccess::Write).unwrap();
            let mut all = Vec::new();
            for at in 0..500 {
                list.append(Change::Remove(of * 1000 + at)).unwrap();
                all.extend(numbers(&mut list));
                assert!(all.contains(&(of * 1000 + at, true)), "its own change is there");
            }
            all
        };
        let seen = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3).map(|of| scope.spawn(move || write(of))).collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
        });
        let all: Vec<u64> = numbers(&mut mine).into_iter().map(|(number, _)| number).collect();
        assert_eq!(all.len(), 1500);
        for seen in seen {
            assert!(seen.iter().zip(&all).all(|((number, _), other)| number == other));
        }
    }

    /// Locks as those of a process that is stopped between two system calls.
    #[test]
    fn a_stopped_process_keeps_nobody_waiting() {
        let (name, mut list) = opened("stopped");
        let stopped = File::open(&list.path).unwrap();
        stopped.lock_shared().unwrap();
        list.append(Change::Remove(1)).unwrap();
        assert_eq!(numbers(&mut list), [(1, true)]);
        let mut other = SharedList::open(&name, TableAccess::Read).unwrap();
        assert_eq!(numbers(&mut other), [(1, false)]);
        drop((list, other));
        stopped.lock().unwrap();
        for access in [TableAccess::Write, TableAccess::Read] {
            let start = Instant::now();
            assert!(matches!(SharedList::open(&name, access), Err(SharedTableError::Busy(_))));
            assert!(start.elapsed() < 5 * MAX_WAIT);
        }
        drop(stopped);
        assert!(matches!(SharedList::open(&name, TableAccess::Read), Err(SharedTableError::NotThere)));
    }

    #[test]
    fn names_become_files() {
        assert_eq!(path_of("a/b.c").unwrap(), Path::new(FOLDER).join(prefix() + "a%2fb%2ec"));
        assert!(matches!(path_of(""), Err(SharedTableError::Name)));
        assert!(matches!(path_of(&"n".repeat(250)), Err(SharedTableError::Name)));
    }
}
