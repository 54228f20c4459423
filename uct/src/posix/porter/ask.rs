//! A peer at the door of another process: fetches descriptors by name, and asks whether anybody is there.
//! Called when endpoints connect, keys are unpacked, and a writer is suspected dead; blocks for the porter's answer.
//! Never believes an answer before it is checked.

use super::Name;
use super::place::{Place, ProcKey};
use super::wire::{Answer, Question, ROOM, VERSION, Verdict};
use crate::api::{ConnectError, Error};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
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

/// A porter answers in microseconds, a starved one in milliseconds; a stopped process not at all.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the porter gave.
pub struct Given {
    pub mem: OwnedFd,
    pub wake: Option<OwnedFd>,
    /// The connection: hangs up when the process dies.
    pub door: OwnedFd,
}

fn failed(call: &'static str) -> impl Fn(Errno) -> ConnectError {
    move |e| match e {
        Errno::CONNREFUSED | Errno::NOENT | Errno::CONNRESET | Errno::PIPE => ConnectError::Gone,
        Errno::ACCESS | Errno::PERM => ConnectError::Permission,
        Errno::MFILE | Errno::NFILE => ConnectError::Op(Error::NoDescriptor),
        Errno::NOMEM | Errno::NOBUFS => ConnectError::Op(Error::NoMemory),
        Errno::AGAIN => ConnectError::Op(Error::Sys { call, errno: Errno::TIMEDOUT.into() }),
        e => ConnectError::Op(Error::Sys { call, errno: e.into() }),
    }
}

fn knock(place: &Place, key: ProcKey, flags: SocketFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | SocketFlags::CLOEXEC;
    let door = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    set_socket_timeout(&door, Timeout::Send, Some(PATIENCE))?;
    set_socket_timeout(&door, Timeout::Recv, Some(PATIENCE))?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&door, &place.socket_of(key)?))?;
    Ok(door)
}

/// Asks the owner of `name` for what it names.
pub fn ask(place: &Place, name: Name) -> Result<Given, ConnectError> {
    let door =
        knock(place, name.owner(), SocketFlags::empty()).map_err(failed("connect to a peer's porter"))?;
    let cred = PeerCred::of(&door).map_err(|errno| Error::Sys { call: "SO_PEERCRED", errno })?;
    if !cred.is_our_user() {
        return Err(ConnectError::Permission);
    }
    let question = Question::about(name.0);
    rustix::io::retry_on_intr(|| rustix::net::send(&door, question.as_bytes(), SendFlags::NOSIGNAL))
        .map_err(failed("ask a peer's porter"))?;
    let mut bytes = [0; ROOM];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let got = rustix::io::retry_on_intr(|| {
        let mut room = [IoSliceMut::new(&mut bytes)];
        rustix::net::recvmsg(&door, &mut room, &mut beside, RecvFlags::CMSG_CLOEXEC)
    })
    .map_err(failed("hear a peer's porter"))?;
    let mut fds = beside.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    if got.bytes == 0 {
        return Err(ConnectError::Gone);
    }
    match Answer::read(&bytes[..got.bytes.min(ROOM)]).ok_or(ConnectError::Malformed)? {
        Err(theirs) => Err(ConnectError::Version { theirs, ours: VERSION }),
        Ok(Verdict::Nothing) => Err(ConnectError::Gone),
        Ok(Verdict::Denied) => Err(ConnectError::Permission),
        // The system drops descriptors for which this process has no number left.
        Ok(Verdict::Here) if got.flags.contains(ReturnFlags::CTRUNC) => Err(Error::NoDescriptor.into()),
        Ok(Verdict::Here) => {
            let mem = fds.next().ok_or(ConnectError::Malformed)?;
            let wake = fds.next();
            drop(fds);
            Ok(Given { mem, wake, door })
        }
    }
}

/// Whether the process still runs, or that cannot be told.
pub fn is_alive(place: &Place, key: ProcKey) -> bool {
    match knock(place, key, SocketFlags::NONBLOCK) {
        // Somebody holds the socket: the process, or a child that it forked and left behind.
        Ok(door) => !matches!(PidFd::of_socket(&door), Ok(Some(watch)) if watch.is_dead()),
        Err(Errno::CONNREFUSED | Errno::NOENT) => false,
        Err(_) => true,
    }
}
