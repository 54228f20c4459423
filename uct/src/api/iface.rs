//! Interfaces: a transport on a device, owned by a worker.

#![allow(unsafe_code)]

use super::{
    AddrBuf, AmHandler, Comp, ConnectError, DeviceCounters, Ep, Error, IfaceAttr, Iov, Md, Op, Outcome, Sink,
    SrcAddr, UserQp,
};
use bitflags::bitflags;
use std::os::fd::BorrowedFd;
use std::time::Duration;

bitflags! {
    /// Events an armed descriptor wakes for.
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
    /// Armed: the descriptor reports all events.
    Armed,
    /// Armed; pending operations need progress after this time at the latest.
    ArmedFor(Duration),
}

impl ArmStatus {
    /// Combines the states of two interfaces for one sleep: busy if either is, else the shorter sleep.
    pub fn and(self, other: ArmStatus) -> ArmStatus {
        match (self, other) {
            (ArmStatus::Busy, _) | (_, ArmStatus::Busy) => ArmStatus::Busy,
            (ArmStatus::Armed, other) => other,
            (limited, ArmStatus::Armed) => limited,
            (ArmStatus::ArmedFor(one), ArmStatus::ArmedFor(two)) => ArmStatus::ArmedFor(one.min(two)),
        }
    }

    /// Time to sleep, at most `left`; `None`: not at all.
    pub fn sleep_time(self, left: Option<Duration>) -> Option<Option<Duration>> {
        match self {
            ArmStatus::Busy => None,
            ArmStatus::Armed => Some(left),
            ArmStatus::ArmedFor(limit) => Some(Some(left.map_or(limit, |left| left.min(limit)))),
        }
    }
}

/// Outcome of a [`poll_one`](Iface::poll_one).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PollOne {
    /// No packet has arrived. A full poll would find nothing either.
    Empty,
    /// One packet, which was taken.
    Received {
        /// Whether there is another one behind it.
        more: bool,
    },
    /// Work is left that only a [poll](Iface::poll) does. Nothing was received.
    NeedsPoll,
}

/// Consumer of the packet of a [`poll_one`](Iface::poll_one): a closure, or a type to be inlined.
pub trait RecvCallback {
    /// Gets a packet with its id byte; the sender may still write the memory. False: not wanted.
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
    /// Memory domain type.
    type Md: Md;
    /// Endpoint type.
    type Ep: Ep<Mem = <Self::Md as Md>::Mem, Rkey = <Self::Md as Md>::Rkey>;

    /// Attributes.
    fn attr(&self) -> &IfaceAttr;
    /// The memory domain it was opened on.
    fn md(&self) -> &Self::Md;

    /// Where the device is: the same for all interfaces of the device.
    fn device_addr(&self) -> AddrBuf;
    /// Which interface on the device.
    fn iface_addr(&self) -> AddrBuf;
    /// Publishes a number, which peers read without this process ([`Ep::published`]). It is 0 at first.
    fn publish(&self, _number: u64) {}
    /// Whether [`Iface::connect`] to that address can work, and if not, why.
    fn reachable(&self, device: &[u8], iface: &[u8]) -> Result<(), ConnectError>;
    /// Connects a new endpoint to a remote interface; one side suffices. The transport may defer the exchange
    /// to the first message, which then returns [`Error::PeerDead`], [`Error::Unreachable`] or
    /// [`Error::Unresponsive`]; while a stopped peer does not answer, messages find no resource, and become
    /// unreachable after the configured time.
    fn connect(&self, device: &[u8], iface: &[u8]) -> Result<Self::Ep, ConnectError>;
    /// A new endpoint to be connected by [`Ep::connect_to_ep`].
    fn create_ep(&self) -> Result<Self::Ep, Error> {
        Err(Error::Unsupported(Op::ConnectToEp))
    }

    /// Sets or removes the handler of an id, for [`Iface::progress`]. Other messages are counted and dropped.
    fn set_am_handler(&self, id: u8, handler: Option<AmHandler>);
    /// Lets messages within one thread go to their handler inside the send call; returns whether they will.
    /// Handlers may then run in any `am_*` call of this thread. What a handler sends, and what follows it,
    /// waits for a poll, so order stays and calls do not nest. Sinks of [`Iface::poll`] do not see such
    /// messages.
    fn deliver_within_send(&self, _on: bool) -> bool {
        false
    }
    /// Counters of the device, by part. Interfaces that share a device report the same ones.
    fn device_counters(&self) -> Vec<DeviceCounters> {
        Vec::new()
    }
    /// Registers what [`Iface::progress`] calls for failures of operations that have no completion.
    fn set_error_handler(&self, handler: Option<Box<dyn FnMut(super::EpTag, Error)>>);

    /// Sets the handler of immediates ([`super::Caps::PUT_IMM`]) for [`Iface::progress`].
    fn set_imm_handler(&self, _handler: Option<super::ImmHandler>) {}

    /// Address for [`Ep::send_to_user_qp`] to here. `None`: not opened, or no [`super::Caps::USER_RECV`].
    fn user_recv_qp(&self) -> Option<UserQp> {
        None
    }

    /// Posts a receive for one message of [`Ep::send_to_user_qp`], in any order of arrival. Always *in
    /// progress*; [`Sink::on_user_recv`] reports `token` (63 bits). Cannot be cancelled.
    /// # Safety
    /// The memory stays valid, and is used by nobody else, until that report or the interface's end.
    unsafe fn post_user_recv(&self, _into: Iov<'_, <Self::Md as Md>::Mem>, _token: u64) -> Outcome {
        Err(Error::Unsupported(Op::PostUserRecv).into())
    }

    /// Takes in up to `max` events (arrivals, completions) and reports them to `sink`; then tries what waits
    /// for room, up to `max` events in all, and at least one operation however much has come. Returns how
    /// many there were. A handler does not poll the interface that called it: [`Iface::progress`] returns 0
    /// there, and a message that came meanwhile waits for the handler's end.
    fn poll<S: Sink>(&self, max: usize, sink: &mut S) -> usize;
    /// Cheap replacement for an empty poll: true means that [`Iface::poll`] would find nothing. False is
    /// always allowed.
    fn is_idle(&self) -> bool {
        false
    }
    /// Gives one active message to `callback`, cheaper than a poll. A packet not wanted stays for a poll.
    fn poll_one<T: RecvCallback>(&self, callback: T) -> PollOne {
        let _ = callback;
        if self.is_idle() { PollOne::Empty } else { PollOne::NeedsPoll }
    }
    /// [`Iface::poll`] with the registered handlers as sink. Completions with a token are dropped.
    fn progress(&self, max: usize) -> usize;

    /// [`Ep::flush`] of all endpoints, in constant time.
    fn flush(&self, comp: Comp) -> Outcome;
    /// [`Ep::fence`] of all endpoints.
    fn fence(&self) -> Outcome;

    /// A pollable descriptor that becomes readable after [`Iface::arm`].
    fn event_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        Err(Error::Unsupported(Op::EventFd))
    }
    /// Arms the descriptor for one wake-up. `Ok(false)`: events are pending, progress first; also if
    /// operations wait without [`super::Caps::EVENT_SEND`].
    fn arm(&self, _events: Events) -> Result<bool, Error> {
        Err(Error::Unsupported(Op::EventFd))
    }
    /// [`Iface::arm`] for a sleep of limited time, which pending operations need not prevent.
    fn arm_for(&self, events: Events) -> Result<ArmStatus, Error> {
        self.arm(events).map(|armed| if armed { ArmStatus::Armed } else { ArmStatus::Busy })
    }
}
