//! Finds a queue pair's segment by (GID, queue pair number), without files.
//!
//! Each queue pair listens on an abstract unix socket named after it: binding makes the name unique, and it
//! vanishes with its process. With a secret of the job a tag that comes of it is part of the name, so that
//! processes of two jobs do not find each other. A peer connects, gets the listener's pid from the kernel,
//! and opens that process's memory file of the name. The owner need not run. Anybody may connect: if the
//! queue of connections is full, peers look for the memory file among the processes of their user.

use super::seg::QpSeg;
use crate::api::{Error, OpenError};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use ucs::mem::{MemError, SharedMem};
use ucs::sys::fd::close_elsewhere;
use ucs::sys::{PeerCred, proc};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

const BACKLOG: i32 = 4096;

/// Name of a queue pair's memory file. `job` is the tag of the job, empty without a secret.
pub(super) fn memory_name(job: &str, iid: u64, qpn: u16) -> String {
    format!("softefa.{iid:x}.{qpn:x}{}", ending(job))
}

/// End of the names of a job's queue pairs.
fn ending(job: &str) -> String {
    if job.is_empty() { String::new() } else { format!(".{job}") }
}

fn address(job: &str, iid: u64, qpn: u16) -> Result<SocketAddrUnix, Errno> {
    let uid = rustix::process::getuid().as_raw();
    SocketAddrUnix::new_abstract_name(format!("softefa.{uid}.{iid:x}.{qpn:x}{}", ending(job)).as_bytes())
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// A bound name, not yet listening.
pub(super) struct QpName {
    socket: OwnedFd,
    /// Whether connections to it carry no descriptors, so that closing them takes no time.
    closes_at_once: bool,
}

impl QpName {
    /// Binds the name of (`iid`, `qpn`); `None` if another process has it.
    pub(super) fn bind(job: &str, iid: u64, qpn: u16) -> Result<Option<QpName>, OpenError> {
        let sys = |call| move |e: Errno| OpenError::Op(Error::Sys { call, errno: e.into() });
        let socket = socket().map_err(|e| {
            let errno = ucs::Errno::from(e);
            let why = format!(
                "no descriptor for a queue pair's socket: {errno} (raise the limit, see `ulimit -n`)"
            );
            OpenError::Exhausted { why, errno }
        })?;
        let closes_at_once = proc::refuse_descriptors(&socket);
        match rustix::net::bind(&socket, &address(job, iid, qpn).map_err(sys("abstract name"))?) {
            Ok(()) => Ok(Some(QpName { socket, closes_at_once })),
            Err(Errno::ADDRINUSE) => Ok(None),
            Err(e) => Err(sys("bind")(e)),
        }
    }

    pub(super) fn listen(&self) -> Result<(), OpenError> {
        rustix::net::listen(&self.socket, BACKLOG)
            .map_err(|e| OpenError::Op(Error::Sys { call: "listen", errno: e.into() }))
    }

    /// Accepts and drops waiting connections; peers do not wait for this.
    pub(super) fn accept_all(&self) {
        let accept = || rustix::net::accept_with(self.socket.as_fd(), SocketFlags::CLOEXEC).ok();
        // Bounded: peers that connect faster must not keep us here.
        let connections = std::iter::from_fn(accept).take(BACKLOG as usize);
        match self.closes_at_once {
            true => connections.for_each(drop),
            false => close_elsewhere(connections.collect()),
        }
    }
}

pub(super) enum LookupError {
    NotFound,
    DeviceDown,
    /// The owner's backlog is full, and it was not found otherwise: try again.
    Retry,
    /// It exists but cannot be reached, for this reason.
    Denied(String),
}

pub(super) fn lookup(job: &str, iid: u64, qpn: u16) -> Result<(SharedMem, u32), LookupError> {
    let denied = |what: &str, e: Errno| LookupError::Denied(format!("{what}: {}", ucs::Errno::from(e)));
    let socket = socket().map_err(|e| denied("no descriptor to look for a peer (see `ulimit -n`)", e))?;
    let address = address(job, iid, qpn).map_err(|e| denied("abstract name", e))?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => {}
        Err(Errno::CONNREFUSED | Errno::NOENT | Errno::CONNRESET) => {
            let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
            return Err(why_not(&sockets, job, iid, qpn).map_or(LookupError::NotFound, LookupError::Denied));
        }
        Err(Errno::INTR) => return Err(LookupError::Retry),
        Err(Errno::AGAIN) => return among_processes(&memory_name(job, iid, qpn)),
        Err(e) => return Err(denied("connect to a peer's queue pair", e)),
    }
    let owner =
        PeerCred::of(&socket).map_err(|errno| LookupError::Denied(format!("SO_PEERCRED: {errno}")))?;
    let Some(pid) = owner.pid else {
        return Err(LookupError::Denied("the queue pair's process is in another pid namespace".into()));
    };
    if !owner.is_same_user() {
        return Err(LookupError::Denied(format!(
            "process {pid} that owns the queue pair belongs to another user"
        )));
    }
    let Some(fd) = descriptor(pid, &memory_name(job, iid, qpn))? else { return Err(LookupError::NotFound) };
    match SharedMem::open_proc(pid, fd, 1) {
        Ok(mem) => Ok((mem, pid)),
        Err(MemError::Gone { .. }) => Err(LookupError::NotFound),
        Err(e) => Err(LookupError::Denied(e.to_string())),
    }
}

/// Finds a queue pair whose socket has no room for a connection: another user may have filled it. Looks at
/// the descriptors of all processes of this user.
#[cold]
fn among_processes(name: &str) -> Result<(SharedMem, u32), LookupError> {
    let user = rustix::process::geteuid().as_raw();
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = process.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = pid.filter(|_| process.metadata().is_ok_and(|it| it.uid() == user)) else { continue };
        let Ok(Some(fd)) = descriptor(pid, name) else { continue };
        let open = || SharedMem::open_proc(pid, fd, 1).ok();
        // A child that the owner has forked has the descriptor, too.
        let is_owner = open().and_then(QpSeg::attach).is_some_and(|(_, identity)| identity.pid == pid);
        if let Some(mem) = open().filter(|_| is_owner) {
            return Ok((mem, pid));
        }
    }
    Err(LookupError::Retry)
}

/// Why a queue pair in the system's list of sockets is none of this user's and job's, if it is there.
fn why_not(sockets: &str, job: &str, iid: u64, qpn: u16) -> Option<String> {
    let ours = rustix::process::getuid().as_raw();
    let name = format!(".{iid:x}.{qpn:x}");
    let parts = |line: &str| {
        let (user, rest) =
            line.split_ascii_whitespace().last()?.strip_prefix("@softefa.")?.split_once('.')?;
        let of_job = format!(".{rest}").strip_prefix(&name)?.to_owned();
        let is_it = of_job.is_empty() || of_job.starts_with('.');
        is_it.then_some((user.parse::<u32>().ok()?, of_job))
    };
    let (user, of_job) = sockets.lines().filter_map(parts).find(|it| *it != (ours, ending(job)))?;
    Some(if user != ours {
        format!("it belongs to user {user}, and this process to user {ours}: peers must be of one user")
    } else {
        let has = |secret: &str| if secret.is_empty() { "no secret" } else { "another secret" };
        format!(
            "it belongs to another job: it has {} ({} SOFTEFA_SECRET_FILE)",
            has(&of_job),
            if job.is_empty() { "this process has no" } else { "not that of this process's" }
        )
    })
}

pub(super) fn remedy(errno: ucs::Errno) -> &'static str {
    if errno.is_resource() {
        "raise the limit, see `ulimit -n`"
    } else {
        "peers must be in one pid namespace and dumpable"
    }
}

/// Inode of the file that a process has under a descriptor.
pub(super) fn inode(pid: u32, fd: i32) -> Option<u64> {
    std::fs::metadata(format!("/proc/{pid}/fd/{fd}")).ok().map(|file| file.ino())
}

fn descriptor(pid: u32, name: &str) -> Result<Option<i32>, LookupError> {
    let want = format!("/memfd:{name} (deleted)");
    let list = match std::fs::read_dir(format!("/proc/{pid}/fd")) {
        Ok(list) => list,
        Err(_) if proc::start_time(pid) == Ok(None) => return Err(LookupError::NotFound),
        Err(e) => {
            let errno = ucs::Errno::from(e);
            return Err(LookupError::Denied(format!(
                "cannot look at process {pid}: {errno} ({})",
                remedy(errno)
            )));
        }
    };
    // A descriptor closed between listing and reading is not ours.
    let found = list.flatten().find(|entry| {
        std::fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == want.as_str())
    });
    Ok(found.and_then(|entry| entry.file_name().to_str()?.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pairs_of_other_users_and_jobs_are_told_from_none() {
        let ours = rustix::process::getuid().as_raw();
        let sockets = format!(
            "Num       RefCount Protocol Flags    Type St Inode Path\n\
             0000000000000000: 00000002 00000000 00010000 0001 01 7 @softefa.{ours}.1a.2b\n\
             0000000000000000: 00000002 00000000 00010000 0001 01 8 @softefa.4242.1a.2c\n\
             0000000000000000: 00000002 00000000 00010000 0001 01 9 /run/x.1a.2d\n\
             0000000000000000: 00000002 00000000 00010000 0001 01 9 @softefa.{ours}.1a.2e.77\n\
             0000000000000000: 00000003 00000000 00000000 0001 03 10\n"
        );
        let why = |job: &str, qpn| why_not(&sockets, job, 0x1a, qpn);
        assert_eq!([why("", 0x2b), why("", 0x2d), why("", 0x2), why("77", 0x2e)], [None, None, None, None]);
        assert!(why("", 0x2c).unwrap().contains("user 4242"));
        assert!(why("77", 0x2b).unwrap().contains("it has no secret"));
        assert!(why("", 0x2e).unwrap().contains("another secret (this process has no"));
        assert!(why("78", 0x2e).unwrap().contains("another secret (not that"));
    }
}
