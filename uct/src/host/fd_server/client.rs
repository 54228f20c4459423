//! A peer at the door of another process: asks for descriptors by name, and whether anybody is there.
//! Called when endpoints connect, keys are unpacked, and a writer is suspected dead. Nothing here waits but what says so.
//! Never believes an answer before it is checked.

use super::ExportKind;
use super::Name;
use super::namespace::{ProcKey, SocketNamespace};
use super::wire::{BUF_LEN, KeepOpen, MAX_FDS, MAX_NAMES, PerName, Reply, Request, Status, VERSION};
use crate::api::{ConnectError, Error};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, SocketFlags,
    SocketType,
};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;
use ucs::sys::{PeerCred, PidFd};
use zerocopy::IntoBytes;

/// How long an answer is looked for before it is slept for: an fd server that has a core to itself is quicker, and going to sleep
/// and being woken takes as long as all the rest.
pub const SPIN_TIME: Duration = Duration::from_micros(50);
/// Between two tries of a door at which too many wait.
pub const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// What the fd server gave.
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

/// A connection to the fd server of a process, if it takes one at once. Nothing waits at it.
fn try_connect(namespace: &SocketNamespace, key: ProcKey) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &namespace.socket_addr(key)?))?;
    Ok(socket)
}

/// A connection to the fd server of a process of our user; `None` if more wait there than may.
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

/// Waits until something has come to `socket`, or `timeout` is over.
pub fn wait_readable(socket: &OwnedFd, timeout: Duration) -> Result<(), ConnectError> {
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(connect_error("wait for a peer's fd server")(e)),
    }
}

/// Asks at `socket` for what `names` name. With [`KeepOpen::No`] nothing more can be asked there.
pub fn send_request(socket: &OwnedFd, names: &[Name], keep_open: KeepOpen) -> Result<(), ConnectError> {
    let request = Request::new(names, keep_open);
    rustix::io::retry_on_intr(|| rustix::net::send(socket, request.as_bytes(), SendFlags::NOSIGNAL))
        .map_err(connect_error("ask a peer's fd server"))?;
    Ok(())
}

/// What is said of each of some names, in their order.
pub type Replies = PerName<Result<ReceivedExport, ConnectError>>;

/// What is said at `socket` of each of `names`, which it has been asked for; `None` if nothing is yet.
pub fn receive_reply(socket: &OwnedFd, names: &[Name]) -> Result<Option<Replies>, ConnectError> {
    let mut bytes = [0; BUF_LEN];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut receive = || {
        let mut room = [IoSliceMut::new(&mut bytes)];
        rustix::net::recvmsg(socket, &mut room, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    };
    // The fd server answers and hangs up. A call that does not wait looks for a packet first and for the end afterwards: if both
    // come between, it tells of the end only. The packet is there then.
    let attempt = || match receive()? {
        eof if eof.bytes == 0 => receive(),
        reply => Ok(reply),
    };
    let message = match rustix::io::retry_on_intr(attempt) {
        Err(Errno::AGAIN) => return Ok(None),
        message => message.map_err(connect_error("hear a peer's fd server"))?,
    };
    let mut fds = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    if message.bytes == 0 {
        return Err(ConnectError::Gone);
    }
    let statuses = Reply::read(&bytes[..message.bytes.min(BUF_LEN)])
        .ok_or(ConnectError::Malformed)?
        .map_err(|theirs| ConnectError::Version { theirs, ours: VERSION })?;
    // The system drops the last descriptors if this process has no number left for them.
    let missing = match message.flags.contains(ReturnFlags::CTRUNC) {
        true => ConnectError::Op(Error::NoDescriptor),
        false => ConnectError::Malformed,
    };
    let mut next = || fds.next().ok_or(missing);
    let received = names.iter().zip(statuses).map(|(_, status)| match status {
        Status::Memory(range) => Ok(ReceivedExport { mem: next()?, kind: ExportKind::Memory(range) }),
        Status::Iface => Ok(ReceivedExport { mem: next()?, kind: ExportKind::Iface(next()?) }),
        Status::NotFound => Err(ConnectError::Gone),
        Status::Denied => Err(ConnectError::Permission),
        Status::RetryLater => Err(ConnectError::Op(Error::NoDescriptor)),
    });
    Ok(Some(received.take(MAX_NAMES).collect()))
}

/// Whether the process still runs, or that cannot be told.
pub fn is_alive(namespace: &SocketNamespace, key: ProcKey) -> bool {
    match try_connect(namespace, key) {
        // Somebody holds the socket: the process, or a child that it forked and left behind.
        Ok(socket) => !matches!(PidFd::of_socket(&socket), Ok(Some(watch)) if watch.is_dead()),
        Err(Errno::CONNREFUSED | Errno::NOENT) => false,
        Err(_) => true,
    }
}
