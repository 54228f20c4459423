//! The socket calls of a process that queries the fd server of another. Nothing waits except
//! [`wait_readable`]; every reply is validated.

use super::namespace::{ProcKey, SocketNamespace};
use super::wire::{BUF_LEN, KeepOpen, MAX_FDS, MAX_NAMES, PerName, Reply, Request, Status, VERSION};
use super::{Capability, ExportKind};
use crate::api::{ConnectError, Error};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, SocketFlags,
    SocketType, sockopt,
};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;
use ucs::sys::fd::close_elsewhere;
use ucs::sys::{PeerCred, PidFd};
use zerocopy::IntoBytes;

/// How long a reply is polled for before the caller sleeps, which takes as long as the whole query.
pub const SPIN_TIME: Duration = Duration::from_micros(50);
/// Pause between two attempts to connect when the backlog is full.
pub const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Most descriptors of a message (`SCM_MAX_FD`). There is room for all, since the system closes the rest.
const MAX_PASSED: usize = 253;

pub struct ReceivedExport {
    pub mem: OwnedFd,
    pub kind: ExportKind<OwnedFd>,
}

fn connect_error(call: &'static str) -> impl Fn(Errno) -> ConnectError {
    move |e| match e {
        Errno::CONNREFUSED | Errno::NOENT | Errno::CONNRESET | Errno::PIPE => ConnectError::Gone,
        Errno::ACCESS | Errno::PERM => ConnectError::Permission,
        Errno::MFILE | Errno::NFILE => ConnectError::Op(Error::NoDescriptor),
        Errno::NOMEM | Errno::NOBUFS => ConnectError::Op(Error::NoMemory),
        Errno::AGAIN => ConnectError::NoAnswer,
        e => ConnectError::Op(Error::Sys { call, errno: e.into() }),
    }
}

fn try_connect(namespace: &SocketNamespace, key: ProcKey) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &namespace.socket_addr(key)?))?;
    Ok(socket)
}

/// Connects to the fd server of a process of our user; `None` if its backlog is full.
pub fn connect(namespace: &SocketNamespace, key: ProcKey) -> Result<Option<OwnedFd>, ConnectError> {
    match try_connect(namespace, key) {
        Err(Errno::AGAIN) => Ok(None),
        socket => check_same_user(socket.map_err(connect_error("connect to a peer's fd server"))?).map(Some),
    }
}

fn check_same_user(socket: OwnedFd) -> Result<OwnedFd, ConnectError> {
    let cred = PeerCred::of(&socket).map_err(|errno| Error::Sys { call: "SO_PEERCRED", errno })?;
    if cred.is_same_user() { Ok(socket) } else { Err(ConnectError::Permission) }
}

pub fn wait_readable(socket: &OwnedFd, timeout: Duration) -> Result<(), ConnectError> {
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(connect_error("wait for a peer's fd server")(e)),
    }
}

/// Requests what is `wanted`. With [`KeepOpen::No`] the reply ends the connection.
pub fn send_request(
    socket: &OwnedFd,
    wanted: &[Capability],
    keep_open: KeepOpen,
) -> Result<(), ConnectError> {
    let request = Request::new(wanted, keep_open);
    rustix::io::retry_on_intr(|| rustix::net::send(socket, request.as_bytes(), SendFlags::NOSIGNAL))
        .map_err(connect_error("query a peer's fd server"))?;
    Ok(())
}

/// Whether a descriptor may be what was asked for. Others take as long to close as the peer has prepared.
fn is_memory_or_socket(fd: &OwnedFd) -> bool {
    let is_socket = || sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX);
    rustix::fs::fcntl_get_seals(fd).is_ok() || is_socket()
}

pub type Replies = PerName<Result<ReceivedExport, ConnectError>>;

/// Receives the reply about what was `wanted`; `None` if it has not arrived.
pub fn receive_reply(socket: &OwnedFd, wanted: &[Capability]) -> Result<Option<Replies>, ConnectError> {
    let mut bytes = [0; BUF_LEN];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PASSED))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut receive = || {
        let mut room = [IoSliceMut::new(&mut bytes)];
        rustix::net::recvmsg(socket, &mut room, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    };
    // The receive may miss a packet that arrives with the hang-up; the next one finds it.
    let attempt = || match receive()? {
        eof if eof.bytes == 0 => receive(),
        reply => Ok(reply),
    };
    let message = match rustix::io::retry_on_intr(attempt) {
        Err(Errno::AGAIN) => return Ok(None),
        message => message.map_err(connect_error("receive from a peer's fd server"))?,
    };
    let fds: Vec<_> = ancillary
        .drain()
        .flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
            _ => Vec::new(),
        })
        .collect();
    if fds.len() > MAX_FDS || !fds.iter().all(is_memory_or_socket) {
        close_elsewhere(fds);
        return Err(ConnectError::Malformed);
    }
    let mut fds = fds.into_iter();
    if message.bytes == 0 {
        return Err(ConnectError::Gone);
    }
    let statuses = Reply::read(&bytes[..message.bytes.min(BUF_LEN)])
        .ok_or(ConnectError::Malformed)?
        .map_err(|theirs| ConnectError::Version { theirs, ours: VERSION })?;
    // The system drops descriptors that this process has no numbers for.
    let missing = match message.flags.contains(ReturnFlags::CTRUNC) {
        true => ConnectError::Op(Error::NoDescriptor),
        false => ConnectError::Malformed,
    };
    let mut next = || fds.next().ok_or(missing);
    let received = wanted.iter().zip(statuses).map(|(_, status)| match status {
        Status::Memory(range) => Ok(ReceivedExport { mem: next()?, kind: ExportKind::Memory(range) }),
        Status::Iface => Ok(ReceivedExport { mem: next()?, kind: ExportKind::Iface(next()?) }),
        Status::NotFound => Err(ConnectError::Gone),
        Status::Denied => Err(ConnectError::Permission),
        Status::RetryLater => Err(ConnectError::Op(Error::NoDescriptor)),
    });
    Ok(Some(received.take(MAX_NAMES).collect()))
}

/// The pid of a process, if it is visible here.
pub fn pid_of(namespace: &SocketNamespace, key: ProcKey) -> Option<u32> {
    PeerCred::of(&try_connect(namespace, key).ok()?).ok()?.pid
}

/// Whether the process still runs, or that is unknown.
pub fn is_alive(namespace: &SocketNamespace, key: ProcKey) -> bool {
    match try_connect(namespace, key) {
        // Of the dead process's name another user may have taken hold.
        Ok(socket) if PeerCred::of(&socket).is_ok_and(|cred| !cred.is_same_user()) => false,
        // The socket is held by the process, or by a child that it forked.
        Ok(socket) => !matches!(PidFd::of_socket(&socket), Ok(Some(watch)) if watch.is_dead()),
        Err(Errno::CONNREFUSED | Errno::NOENT) => false,
        Err(_) => true,
    }
}
