//! A peer at the door of another process: asks for descriptors by name, and whether anybody is there.
//! Called when endpoints connect, keys are unpacked, and a writer is suspected dead. Nothing here waits but what says so.
//! Never believes an answer before it is checked.

use super::Name;
use super::What;
use super::place::{Place, ProcKey};
use super::wire::{Answer, Each, MOST, MOST_FDS, Question, ROOM, Stay, VERSION, Verdict};
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

/// How long an answer is looked for before it is slept for: a porter that has a core to itself is quicker, and going to sleep
/// and being woken takes as long as all the rest.
pub const SPIN: Duration = Duration::from_micros(50);
/// Between two tries of a door at which too many wait.
pub const REST: Duration = Duration::from_millis(1);

/// What the porter gave.
pub struct Given {
    pub mem: OwnedFd,
    pub what: What<OwnedFd>,
}

fn failed(call: &'static str) -> impl Fn(Errno) -> ConnectError {
    move |e| match e {
        Errno::CONNREFUSED | Errno::NOENT | Errno::CONNRESET | Errno::PIPE => ConnectError::Gone,
        Errno::ACCESS | Errno::PERM => ConnectError::Permission,
        Errno::MFILE | Errno::NFILE => ConnectError::Op(Error::NoDescriptor),
        Errno::NOMEM | Errno::NOBUFS => ConnectError::Op(Error::NoMemory),
        Errno::AGAIN => ConnectError::Silent,
        e => ConnectError::Op(Error::Sys { call, errno: e.into() }),
    }
}

/// A connection to the porter of a process, if it takes one at once. Nothing waits at it.
fn knock(place: &Place, key: ProcKey) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let door = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&door, &place.socket_of(key)?))?;
    Ok(door)
}

/// A connection to the porter of a process of our user; `None` if more wait there than may.
pub fn connect(place: &Place, key: ProcKey) -> Result<Option<OwnedFd>, ConnectError> {
    match knock(place, key) {
        Err(Errno::AGAIN) => Ok(None),
        door => of_our_user(door.map_err(failed("connect to a peer's porter"))?).map(Some),
    }
}

fn of_our_user(door: OwnedFd) -> Result<OwnedFd, ConnectError> {
    let cred = PeerCred::of(&door).map_err(|errno| Error::Sys { call: "SO_PEERCRED", errno })?;
    if cred.is_our_user() { Ok(door) } else { Err(ConnectError::Permission) }
}

/// Waits until something has come to `door`, or `most` is over.
pub fn await_news(door: &OwnedFd, most: Duration) -> Result<(), ConnectError> {
    let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
    match poll(&mut [PollFd::new(door, PollFlags::IN)], Some(&most)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(failed("wait for a peer's porter")(e)),
    }
}

/// Asks at `door` for what `names` name. With [`Stay::No`] nothing more can be asked there.
pub fn ask(door: &OwnedFd, names: &[Name], stay: Stay) -> Result<(), ConnectError> {
    let question = Question::about(names, stay);
    rustix::io::retry_on_intr(|| rustix::net::send(door, question.as_bytes(), SendFlags::NOSIGNAL))
        .map_err(failed("ask a peer's porter"))?;
    Ok(())
}

/// What is said of each of some names, in their order.
pub type Answers = Each<Result<Given, ConnectError>>;

/// What is said at `door` of each of `names`, which it has been asked for; `None` if nothing is yet.
pub fn hear(door: &OwnedFd, names: &[Name]) -> Result<Option<Answers>, ConnectError> {
    let mut bytes = [0; ROOM];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let mut receive = || {
        let mut room = [IoSliceMut::new(&mut bytes)];
        rustix::net::recvmsg(door, &mut room, &mut beside, RecvFlags::CMSG_CLOEXEC)
    };
    // The porter answers and hangs up. A call that does not wait looks for a packet first and for the end afterwards: if both
    // come between, it tells of the end only. The packet is there then.
    let look = || match receive()? {
        end if end.bytes == 0 => receive(),
        answer => Ok(answer),
    };
    let got = match rustix::io::retry_on_intr(look) {
        Err(Errno::AGAIN) => return Ok(None),
        got => got.map_err(failed("hear a peer's porter"))?,
    };
    let mut fds = beside.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    if got.bytes == 0 {
        return Err(ConnectError::Gone);
    }
    let verdicts = Answer::read(&bytes[..got.bytes.min(ROOM)])
        .ok_or(ConnectError::Malformed)?
        .map_err(|theirs| ConnectError::Version { theirs, ours: VERSION })?;
    // The system drops the last descriptors if this process has no number left for them.
    let missing = match got.flags.contains(ReturnFlags::CTRUNC) {
        true => ConnectError::Op(Error::NoDescriptor),
        false => ConnectError::Malformed,
    };
    let mut next = || fds.next().ok_or(missing);
    let given = names.iter().zip(verdicts).map(|(_, verdict)| match verdict {
        Verdict::Memory(place) => Ok(Given { mem: next()?, what: What::Memory(place) }),
        Verdict::Iface => Ok(Given { mem: next()?, what: What::Iface(next()?) }),
        Verdict::Nothing => Err(ConnectError::Gone),
        Verdict::Denied => Err(ConnectError::Permission),
        Verdict::Later => Err(ConnectError::Op(Error::NoDescriptor)),
    });
    Ok(Some(given.take(MOST).collect()))
}

/// Whether the process still runs, or that cannot be told.
pub fn is_alive(place: &Place, key: ProcKey) -> bool {
    match knock(place, key) {
        // Somebody holds the socket: the process, or a child that it forked and left behind.
        Ok(door) => !matches!(PidFd::of_socket(&door), Ok(Some(watch)) if watch.is_dead()),
        Err(Errno::CONNREFUSED | Errno::NOENT) => false,
        Err(_) => true,
    }
}
