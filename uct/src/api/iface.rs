//! Interfaces: a transport on a device, owned by a worker.

#![allow(unsafe_code)]

use super::{
    AddrBuf, AmHandler, Comp, ConnectError, Ep, Error, IfaceAttr, Iov, Md, Op, Outcome, Sink, SrcAddr, UserQp,
};
use bitflags::bitflags;
use std::os::fd::BorrowedFd;
use std::time::Duration;

bitflags! {
    /// What an armed event fd wakes for.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Events: u32 {
        /// An active message arrived.
        const RECV = 1;
        /// A local completion, or room to send.
        const SEND = 2;
    }
}

/// How [`Iface::arm_for`] left an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArmStatus {
    /// Not armed: something is there already, progress first.
    Busy,
    /// Armed: the descriptor will tell of everything.
    Armed,
    /// Armed, and something waits for room of which the descriptor does not tell: progress after this time at the latest.
    ArmedFor(Duration),
}

impl ArmStatus {
    /// Of two interfaces one sleeps on: the one that is to be looked at first says how.
    pub fn and(self, other: ArmStatus) -> ArmStatus {
        match (self, other) {
            (ArmStatus::Busy, _) | (_, ArmStatus::Busy) => ArmStatus::Busy,
            (ArmStatus::Armed, other) => other,
            (nap, ArmStatus::Armed) => nap,
            (ArmStatus::ArmedFor(one), ArmStatus::ArmedFor(two)) => ArmStatus::ArmedFor(one.min(two)),
        }
    }

    /// The time to sleep for who wants to sleep for `left`, if at all.
    pub fn sleep_time(self, left: Option<Duration>) -> Option<Option<Duration>> {
        match self {
            ArmStatus::Busy => None,
            ArmStatus::Armed => Some(left),
            ArmStatus::ArmedFor(nap) => Some(Some(left.map_or(nap, |left| left.min(nap)))),
        }
    }
}

/// What a [`poll_one`](Iface::poll_one) at an interface found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PollOne {
    /// A poll now would find nothing, and this stood for it.
    Empty,
    /// One packet, which was taken.
    Received {
        /// Whether there is another one behind it.
        more: bool,
    },
    /// Something that wants a [poll](Iface::poll). Nothing has happened.
    NeedsPoll,
}

/// Who takes the packet of a [`poll_one`](Iface::poll_one): a closure, or what is to be compiled into its caller.
pub trait RecvCallback {
    /// A packet, id byte included, and who sent it: memory that the sender can still write to, as in
    /// [`Am`](super::Am). False: it is not wanted.
    fn on_packet(self, packet: &[u8], from: SrcAddr) -> bool;
}

impl<F: FnOnce(&[u8], SrcAddr) -> bool> RecvCallback for F {
    #[inline]
    fn on_packet(self, packet: &[u8], from: SrcAddr) -> bool {
        self(packet, from)
    }
}

/// A communication resource with an address of its own. Endpoints keep it alive.
pub trait Iface: Sized {
    /// Its memory domain.
    type Md: Md;
    /// Its endpoints.
    type Ep: Ep<Mem = <Self::Md as Md>::Mem, Rkey = <Self::Md as Md>::Rkey>;

    /// What it can do.
    fn attr(&self) -> &IfaceAttr;
    /// The memory domain it was opened on.
    fn md(&self) -> &Self::Md;

    /// Where the device is: the same for all interfaces of the device.
    fn device_addr(&self) -> AddrBuf;
    /// Which interface on the device.
    fn iface_addr(&self) -> AddrBuf;
    /// Whether [`Iface::connect`] to that address can work, and if not, why.
    fn reachable(&self, device: &[u8], iface: &[u8]) -> Result<(), ConnectError>;
    /// A new endpoint to a remote interface. One side is enough. A transport may put off asking for the peer until the first
    /// message, which then takes longer, once, and answers what connecting would have: [`Error::PeerDead`] for a peer
    /// that is gone, [`Error::Unreachable`] for one that refuses. A peer that does not answer in time (stopped, perhaps) is
    /// not waited for: messages to it find no resource until it has answered, and are refused as to one that is unreachable
    /// while it has not for longer than the transport's setting says. [`Ep::ensure_connected`] asks at once.
    fn connect(&self, device: &[u8], iface: &[u8]) -> Result<Self::Ep, ConnectError>;
    /// A new endpoint to be connected by [`Ep::connect_to_ep`].
    fn create_ep(&self) -> Result<Self::Ep, Error> {
        Err(Error::Unsupported(Op::ConnectToEp))
    }

    /// Registers (or with `None` removes) the handler of an active message id. Messages without a handler are
    /// counted and dropped. Used by [`Iface::progress`] only.
    fn set_am_handler(&self, id: u8, handler: Option<AmHandler>);
    /// Lets a message to this interface go to its handler within the call that sends it, where one thread does both: whether they
    /// do from now on. Then a handler may run in any `am_*` call of the thread that leads here, which who holds a borrow meanwhile
    /// has to know, and nobody need poll for it. What a handler sends waits for a poll all the same, and so does what comes behind
    /// it: order stays, and no call is one within another. Sinks of [`Iface::poll`] are not told of what was delivered so: it is for
    /// who has handlers.
    fn deliver_within_send(&self, _on: bool) -> bool {
        false
    }
    /// Registers what [`Iface::progress`] calls for failures of operations that have no completion.
    fn set_error_handler(&self, handler: Option<Box<dyn FnMut(super::EpTag, Error)>>);

    /// Registers what [`Iface::progress`] calls for words that come along with a peer's write
    /// ([`super::Caps::PUT_IMM`]).
    fn set_imm_handler(&self, _handler: Option<super::ImmHandler>) {}

    /// Where messages of [`Ep::send_to_user_qp`] go that are to be received in memory of the program's own. `None`: the interface
    /// was opened without, or has no such thing ([`super::Caps::USER_RECV`]).
    fn user_recv_qp(&self) -> Option<UserQp> {
        None
    }

    /// Posts a receive for one message of [`Ep::send_to_user_qp`], which the device puts into `into` as it is. Receives and messages
    /// meet as they come: neither source nor order can be asked for. Always *in progress*, and the end is told by
    /// [`Sink::on_user_recv`] with `token`, of 63 bits; one that was posted cannot be taken back.
    ///
    /// # Safety
    /// Unless the call answers an error, the memory stays valid for writes, and is touched by nobody else, until that end or
    /// that of the interface and its endpoints.
    unsafe fn post_user_recv(&self, _into: Iov<'_, <Self::Md as Md>::Mem>, _token: u64) -> Outcome {
        Err(Error::Unsupported(Op::PostUserRecv).into())
    }

    /// Takes in up to `max` events (arrivals, completions) and reports them to `sink`; then tries what waits for room, up to `max`
    /// events in all, and at least one operation however much has come. Answers how many there were. A handler does not poll the interface that called it: [`Iface::progress`] answers 0
    /// there, and a message that came meanwhile waits for the handler's end.
    fn poll<S: Sink>(&self, max: usize, sink: &mut S) -> usize;
    /// True: a poll now would find nothing, and this stood for it. Costs less than a poll, so whoever serves several
    /// interfaces asks first. The answer that is always right, and the default, is false.
    fn is_idle(&self) -> bool {
        false
    }
    /// Looks for one active message, and gives it to `take`: for who waits for the next message and for nothing else,
    /// a shorter way than a poll. A packet that is not wanted stays where it is, for a poll. The default takes none.
    fn poll_one<T: RecvCallback>(&self, callback: T) -> PollOne {
        let _ = callback;
        if self.is_idle() { PollOne::Empty } else { PollOne::NeedsPoll }
    }
    /// [`Iface::poll`] with the registered handlers as sink. Tokens go nowhere.
    fn progress(&self, max: usize) -> usize;

    /// [`Ep::flush`] of all endpoints, in constant time.
    fn flush(&self, comp: Comp) -> Outcome;
    /// [`Ep::fence`] of all endpoints.
    fn fence(&self) -> Outcome;

    /// A pollable descriptor that becomes readable after [`Iface::arm`].
    fn event_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        Err(Error::Unsupported(Op::EventFd))
    }
    /// Arms the descriptor for one wake-up. `Ok(false)`: something is there already, progress first; also where something
    /// waits for room of which the descriptor does not tell (no [`super::Caps::EVENT_SEND`]).
    fn arm(&self, _events: Events) -> Result<bool, Error> {
        Err(Error::Unsupported(Op::EventFd))
    }
    /// [`Iface::arm`] for who can limit the time of its sleep: what waits for room need not keep it awake.
    fn arm_for(&self, events: Events) -> Result<ArmStatus, Error> {
        self.arm(events).map(|armed| if armed { ArmStatus::Armed } else { ArmStatus::Busy })
    }
}
