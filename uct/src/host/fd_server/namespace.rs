//! The names of fd servers' sockets: names of the network namespace, which vanish with their process, or
//! files in a directory that containers share. A socket that somebody listens at is never removed.

use super::client;
use crate::api::{ConnectError, Error, OpenError};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use ucs::sys::host;
use ucs::sys::proc::refuse_descriptors;

const KEY_BITS: u32 = 32;
/// Prefix of every socket's name, before the key in hexadecimal. In a directory, which hosts may share, the
/// host comes between: only it knows whether somebody listens.
const PREFIX: &str = "uct-posix.";
const BACKLOG: i32 = 1024;
/// Age from which a socket that nobody listens at is stale: a young one may be about to listen.
const STALE_AGE: Duration = Duration::from_secs(2);

/// The key of a process in a namespace: a random number, not 0, which names its socket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ProcKey(pub u64);

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SocketNamespace {
    dir: Option<PathBuf>,
    device: u64,
}

impl SocketNamespace {
    /// The directory `dir`, or this network namespace if it is empty.
    pub fn new(dir: &str) -> Result<SocketNamespace, OpenError> {
        let (dir, scope) = if dir.is_empty() {
            (None, host::stable_key("net", &[host::net_namespace()]))
        } else {
            let open_error = |why: &dyn std::fmt::Display| {
                OpenError::Environment(format!("shared memory: socket directory {dir:?}: {why}"))
            };
            let metadata = std::fs::metadata(dir).map_err(|e| open_error(&e))?;
            if !metadata.is_dir() {
                return Err(open_error(&"it is not a directory"));
            }
            // Device and inode are the same in every container that mounts the directory.
            let path = PathBuf::from(dir);
            SocketAddrUnix::new(path.join(file_name(0, ProcKey(1))))
                .map_err(|_| open_error(&"its path is too long for a unix socket"))?;
            (Some(path), host::stable_key("dir", &[metadata.dev(), metadata.ino()]))
        };
        let boot = host::stable_key(host::boot_id(), &[]);
        Ok(SocketNamespace { dir, device: boot << 32 | scope & u64::from(u32::MAX) })
    }

    pub fn device_id(&self) -> u64 {
        self.device
    }

    pub fn check_reachable(&self, device: u64) -> Result<(), ConnectError> {
        if device == self.device {
            Ok(())
        } else if device >> 32 != self.device >> 32 {
            Err(ConnectError::OtherHost)
        } else {
            Err(ConnectError::OtherNamespace)
        }
    }

    pub fn socket_addr(&self, key: ProcKey) -> rustix::io::Result<SocketAddrUnix> {
        match &self.dir {
            None => SocketAddrUnix::new_abstract_name(format!("{PREFIX}{:08x}", key.0).as_bytes()),
            Some(dir) => SocketAddrUnix::new(self.file(dir, key)),
        }
    }

    pub(super) fn file(&self, dir: &Path, key: ProcKey) -> PathBuf {
        dir.join(file_name(self.host(), key))
    }

    fn host(&self) -> u32 {
        (self.device >> 32) as u32
    }

    /// A listening socket under a new key. Removes stale sockets first.
    pub(super) fn bind(&self) -> Result<(ProcKey, OwnedFd), OpenError> {
        if let Some(dir) = &self.dir {
            self.remove_stale_sockets(dir);
        }
        let dir = self.dir.as_deref().map(Path::to_string_lossy);
        let scope = format!(" in {}", dir.as_deref().unwrap_or("this network namespace"));
        let open_error = |what: &str, e: rustix::io::Errno| open_error(what, &scope, e);
        loop {
            let key = random_key();
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .map_err(|e| open_error("make a socket", e))?;
            refuse_descriptors(&socket);
            let addr = self.socket_addr(key).map_err(|e| open_error("name a socket", e))?;
            match rustix::net::bind(&socket, &addr) {
                Ok(()) => {}
                Err(rustix::io::Errno::ADDRINUSE) => continue,
                Err(e) => return Err(open_error("bind a socket", e)),
            }
            rustix::net::listen(&socket, BACKLOG).map_err(|e| open_error("listen at a socket", e))?;
            // Another process may have removed it as stale between the two calls.
            if self.dir.as_ref().is_none_or(|dir| self.file(dir, key).exists()) {
                return Ok((key, socket));
            }
        }
    }

    fn remove_stale_sockets(&self, dir: &Path) {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(key) = name.to_str().and_then(|name| parse_file_name(self.host(), name)) else {
                continue;
            };
            let age =
                entry.metadata().and_then(|metadata| metadata.modified()).ok().and_then(|t| t.elapsed().ok());
            if age.is_some_and(|age| age > STALE_AGE) && !client::is_alive(self, key) {
                self.unlink(key);
            }
        }
    }

    /// Whether a process holds the name of `key`; yes if in doubt. The process does not notice, unless its
    /// socket is a file.
    pub(super) fn is_held(&self, key: ProcKey) -> bool {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (Ok(socket), Ok(addr)) = (socket, self.socket_addr(key)) else { return true };
        match &self.dir {
            // A name that nobody holds is ours until the socket is closed, which is now.
            None => rustix::net::bind(&socket, &addr).is_err(),
            // Not one that is missing: the directory may have been cleaned up.
            Some(_) => rustix::net::connect(&socket, &addr) != Err(rustix::io::Errno::CONNREFUSED),
        }
    }

    /// Removes the socket file of a process that is dead, or is the caller.
    pub(super) fn unlink(&self, key: ProcKey) {
        if let Some(dir) = &self.dir {
            let _ = std::fs::remove_file(self.file(dir, key));
        }
    }
}

pub(super) fn open_error(what: &str, scope: &str, errno: impl Into<ucs::Errno>) -> OpenError {
    match errno.into() {
        ucs::Errno(libc::EMFILE | libc::ENFILE) => Error::NoDescriptor.into(),
        errno => OpenError::Environment(format!("shared memory: cannot {what}{scope}: {errno}")),
    }
}

fn file_name(host: u32, key: ProcKey) -> String {
    format!("{PREFIX}{host:08x}.{:08x}", key.0)
}

fn parse_file_name(host: u32, name: &str) -> Option<ProcKey> {
    let (_, key) = name.strip_prefix(PREFIX)?.split_once('.')?;
    u64::from_str_radix(key, 16).ok().map(ProcKey).filter(|&key| file_name(host, key) == name)
}

fn random_key() -> ProcKey {
    loop {
        // `RandomState` has fresh keys each time.
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
    fn file_names_round_trip() {
        let key = random_key();
        assert_eq!(parse_file_name(7, &file_name(7, key)), Some(key));
        assert_eq!(parse_file_name(7, &file_name(8, key)), None, "another host's");
        for other in ["", "1", "+1234567.01234567", "00000007.+1234567", "00000007.000000zz"] {
            assert_eq!(parse_file_name(7, &format!("{PREFIX}{other}")), None, "{other}");
        }
    }

    #[test]
    fn namespaces_are_told_apart() {
        let net = SocketNamespace::new("").unwrap();
        let dir = SocketNamespace::new("/tmp").unwrap();
        assert_eq!(net.check_reachable(net.device_id()), Ok(()));
        assert_eq!(net.check_reachable(dir.device_id()), Err(ConnectError::OtherNamespace));
        assert_eq!(net.check_reachable(net.device_id() ^ 1 << 40), Err(ConnectError::OtherHost));
        assert_eq!(dir.check_reachable(SocketNamespace::new("/tmp/.").unwrap().device_id()), Ok(()));
    }

    #[test]
    fn bad_directory_is_reported() {
        for (dir, why) in [("/nowhere/at/all", "No such file"), ("/dev/null", "not a directory")] {
            let text = SocketNamespace::new(dir).unwrap_err().to_string();
            assert!(text.contains(dir) && text.contains(why), "{text}");
        }
    }
}
