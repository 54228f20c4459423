//! Where porters' sockets are: names of the network namespace, which vanish with their process, or files in a
//! directory that containers share. Called when a porter opens and when one is looked for.
//! Never removes a socket that somebody listens at.

use super::super::TL;
use super::ask;
use crate::api::{ConnectError, Error, OpenError};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use ucs::sys::host;

/// Bits of a process key.
const KEY_BITS: u32 = 40;
/// Begins every socket's name; the key follows in hexadecimal. In a directory, which hosts may share, the host is in front
/// of it: whether nobody listens at a socket is for its own host to say.
const PREFIX: &str = "uct-posix.";
/// Connections that may wait for the porter's next turn.
const BACKLOG: i32 = 1024;
/// A socket nobody listens at is stale if it is older than this: one just made may be about to listen.
const STALE_AFTER: Duration = Duration::from_secs(2);

/// A process among those of a place: a random number, not 0. The socket is called by it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ProcKey(pub u64);

/// Where sockets are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The directory, or `None` for names of the network namespace.
    dir: Option<PathBuf>,
    device: u64,
}

impl Place {
    /// The directory `dir`, or this network namespace if it is empty.
    pub fn new(dir: &str) -> Result<Place, OpenError> {
        let (dir, place) = if dir.is_empty() {
            (None, host::stable_key("net", &[host::net_namespace()]))
        } else {
            let refused = |why: &dyn std::fmt::Display| {
                OpenError::Environment(format!("transport '{TL}': socket directory {dir:?}: {why}"))
            };
            let about = std::fs::metadata(dir).map_err(|e| refused(&e))?;
            if !about.is_dir() {
                return Err(refused(&"it is not a directory"));
            }
            // Device and inode are the same in every container that has the directory mounted.
            let path = PathBuf::from(dir);
            SocketAddrUnix::new(path.join(file_name(0, ProcKey(1))))
                .map_err(|_| refused(&"its path is too long for a unix socket"))?;
            (Some(path), host::stable_key("dir", &[about.dev(), about.ino()]))
        };
        let boot = host::stable_key(&host::boot_id(), &[]);
        Ok(Place { dir, device: boot << 32 | place & u64::from(u32::MAX) })
    }

    /// The device address: this boot of this kernel in the high half, the place in the low half.
    pub fn device(&self) -> u64 {
        self.device
    }

    /// Whether a process with this device address can be here.
    pub fn shared_with(&self, device: u64) -> Result<(), ConnectError> {
        if device == self.device {
            Ok(())
        } else if device >> 32 != self.device >> 32 {
            Err(ConnectError::OtherHost)
        } else {
            Err(ConnectError::OtherPlace)
        }
    }

    /// The address of a process's socket.
    pub fn socket_of(&self, key: ProcKey) -> rustix::io::Result<SocketAddrUnix> {
        match &self.dir {
            None => SocketAddrUnix::new_abstract_name(format!("{PREFIX}{:010x}", key.0).as_bytes()),
            Some(dir) => SocketAddrUnix::new(self.file(dir, key)),
        }
    }

    /// The socket of a process in a directory.
    pub(super) fn file(&self, dir: &Path, key: ProcKey) -> PathBuf {
        dir.join(file_name(self.host(), key))
    }

    fn host(&self) -> u32 {
        (self.device >> 32) as u32
    }

    /// A listening socket under a new key. Sweeps out sockets that killed processes have left.
    pub(super) fn bind(&self) -> Result<(ProcKey, OwnedFd), OpenError> {
        if let Some(dir) = &self.dir {
            self.sweep(dir);
        }
        let dir = self.dir.as_deref().map(Path::to_string_lossy);
        let place = format!(" in {}", dir.as_deref().unwrap_or("this network namespace"));
        let refused = |what: &str, e: rustix::io::Errno| refused(what, &place, e);
        loop {
            let key = new_key();
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .map_err(|e| refused("make a socket", e))?;
            let addr = self.socket_of(key).map_err(|e| refused("name a socket", e))?;
            match rustix::net::bind(&socket, &addr) {
                Ok(()) => {}
                Err(rustix::io::Errno::ADDRINUSE) => continue,
                Err(e) => return Err(refused("bind a socket", e)),
            }
            rustix::net::listen(&socket, BACKLOG).map_err(|e| refused("listen at a socket", e))?;
            // Swept out between the two calls, by somebody who found us slower than a snail.
            if self.dir.as_ref().is_none_or(|dir| self.file(dir, key).exists()) {
                return Ok((key, socket));
            }
        }
    }

    /// Removes the sockets of dead processes of this host, since it was booted.
    fn sweep(&self, dir: &Path) {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(key) = name.to_str().and_then(|name| key_of(self.host(), name)) else { continue };
            let age = entry.metadata().and_then(|about| about.modified()).ok().and_then(|t| t.elapsed().ok());
            if age.is_some_and(|age| age > STALE_AFTER) && !ask::is_alive(self, key) {
                self.unlink(key);
            }
        }
    }

    /// Removes the socket file of a process that is dead, or is the caller.
    pub(super) fn unlink(&self, key: ProcKey) {
        if let Some(dir) = &self.dir {
            // Others may have been faster.
            let _ = std::fs::remove_file(self.file(dir, key));
        }
    }
}

/// A step of opening a porter failed.
pub(super) fn refused(what: &str, place: &str, errno: impl Into<ucs::Errno>) -> OpenError {
    match errno.into() {
        ucs::Errno(libc::EMFILE | libc::ENFILE) => Error::NoDescriptor.into(),
        errno => OpenError::Environment(format!("transport '{TL}': cannot {what}{place}: {errno}")),
    }
}

fn file_name(host: u32, key: ProcKey) -> String {
    format!("{PREFIX}{host:08x}.{:010x}", key.0)
}

fn key_of(host: u32, name: &str) -> Option<ProcKey> {
    let (_, key) = name.strip_prefix(PREFIX)?.split_once('.')?;
    u64::from_str_radix(key, 16).ok().map(ProcKey).filter(|&key| file_name(host, key) == name)
}

fn new_key() -> ProcKey {
    loop {
        // Fresh keys from the system each time.
        let bits = RandomState::new().hash_one(std::process::id()) & ((1 << KEY_BITS) - 1);
        if bits != 0 {
            return ProcKey(bits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_keys_go_together() {
        let key = new_key();
        assert_eq!(key_of(7, &file_name(7, key)), Some(key));
        assert_eq!(key_of(7, &file_name(8, key)), None, "another host's");
        for other in ["", "1", "+1234567.0123456789", "00000007.+123456789", "00000007.00000000zz"] {
            assert_eq!(key_of(7, &format!("{PREFIX}{other}")), None, "{other}");
        }
    }

    #[test]
    fn places_are_told_apart() {
        let net = Place::new("").unwrap();
        let dir = Place::new("/tmp").unwrap();
        assert_eq!(net.shared_with(net.device()), Ok(()));
        assert_eq!(net.shared_with(dir.device()), Err(ConnectError::OtherPlace));
        assert_eq!(net.shared_with(net.device() ^ 1 << 40), Err(ConnectError::OtherHost));
        // By whatever path it is reached.
        assert_eq!(dir.shared_with(Place::new("/tmp/.").unwrap().device()), Ok(()));
    }

    #[test]
    fn a_bad_directory_is_named() {
        for (dir, why) in [("/nowhere/at/all", "No such file"), ("/dev/null", "not a directory")] {
            let text = Place::new(dir).unwrap_err().to_string();
            assert!(text.contains(dir) && text.contains(why), "{text}");
        }
    }
}
