//! Interface of whichever transport. Delegation only.

use super::ep::piece_of;
use super::kinds::each;
use super::{Ep, Iface, Md, Mem};
use crate::api::{
    self, AddrBuf, AmHandler, ArmStatus, Comp, ConnectError, EpTag, Error, Events, IfaceAttr, Iov, Outcome,
    PollOne, RecvCallback, Sink, UserQp,
};
use crate::posix;
use std::os::fd::BorrowedFd;

/// Something to do with an interface of whichever transport, compiled once for each.
pub trait Visit {
    /// What comes of it.
    type Out;
    /// Does it.
    fn visit<I: api::Iface>(self, iface: I) -> Self::Out;
}

impl Iface {
    /// The interface inside, if a message over it is a matter of a hundred instructions: what is done with that one is worth to be
    /// compiled into its caller, and what with others is not. Of several copies side by side, none has the registers that it
    /// needs. // HOT
    #[inline(always)]
    pub fn fast_iface(&self) -> Option<&posix::Iface> {
        match self {
            Iface::Posix(iface, _) => Some(iface),
            _ => None,
        }
    }

    /// Hands the interface inside to `visitor`: the choice is made once, and not again at each call.
    pub fn visit<V: Visit>(self, visitor: V) -> V::Out {
        each!(self, Iface(iface, _) => visitor.visit(iface))
    }
}

impl api::Iface for Iface {
    type Md = Md;
    type Ep = Ep;

    fn attr(&self) -> &IfaceAttr {
        each!(self, Iface(iface, _) => iface.attr())
    }

    fn md(&self) -> &Md {
        each!(self, Iface(_, md) => md)
    }

    fn device_addr(&self) -> AddrBuf {
        each!(self, Iface(iface, _) => iface.device_addr())
    }

    fn iface_addr(&self) -> AddrBuf {
        each!(self, Iface(iface, _) => iface.iface_addr())
    }

    fn reachable(&self, device: &[u8], addr: &[u8]) -> Result<(), ConnectError> {
        each!(self, Iface(iface, _) => iface.reachable(device, addr))
    }

    fn connect(&self, device: &[u8], addr: &[u8]) -> Result<Ep, ConnectError> {
        each!(self, Iface(iface, _) => iface.connect(device, addr), Ep)
    }

    fn create_ep(&self) -> Result<Ep, Error> {
        each!(self, Iface(iface, _) => iface.create_ep(), Ep)
    }

    fn set_am_handler(&self, id: u8, handler: Option<AmHandler>) {
        each!(self, Iface(iface, _) => iface.set_am_handler(id, handler))
    }

    fn deliver_within_send(&self, on: bool) -> bool {
        each!(self, Iface(iface, _) => iface.deliver_within_send(on))
    }

    fn set_imm_handler(&self, handler: Option<api::ImmHandler>) {
        each!(self, Iface(iface, _) => iface.set_imm_handler(handler))
    }

    fn set_error_handler(&self, handler: Option<Box<dyn FnMut(EpTag, Error)>>) {
        each!(self, Iface(iface, _) => iface.set_error_handler(handler))
    }

    fn user_recv_qp(&self) -> Option<UserQp> {
        each!(self, Iface(iface, _) => iface.user_recv_qp())
    }

    unsafe fn post_user_recv(&self, into: Iov<'_, Mem>, token: u64) -> Outcome {
        // SAFETY: the caller's promise is the same.
        each!(self, Iface(iface, _) => unsafe { iface.post_user_recv(piece_of(&into)?, token) })
    }

    // HOT
    #[inline]
    fn poll<S: Sink>(&self, max: usize, sink: &mut S) -> usize {
        each!(self, Iface(iface, _) => iface.poll(max, sink))
    }

    // HOT
    #[inline(always)]
    fn is_idle(&self) -> bool {
        each!(self, Iface(iface, _) => iface.is_idle())
    }

    // HOT
    #[inline(always)]
    fn poll_one<T: RecvCallback>(&self, callback: T) -> PollOne {
        each!(self, Iface(iface, _) => iface.poll_one(callback))
    }

    #[inline]
    fn progress(&self, max: usize) -> usize {
        each!(self, Iface(iface, _) => iface.progress(max))
    }

    fn flush(&self, comp: Comp) -> Outcome {
        each!(self, Iface(iface, _) => iface.flush(comp))
    }

    fn fence(&self) -> Outcome {
        each!(self, Iface(iface, _) => iface.fence())
    }

    fn event_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        each!(self, Iface(iface, _) => iface.event_fd())
    }

    fn arm(&self, events: Events) -> Result<bool, Error> {
        each!(self, Iface(iface, _) => iface.arm(events))
    }

    fn arm_for(&self, events: Events) -> Result<ArmStatus, Error> {
        each!(self, Iface(iface, _) => iface.arm_for(events))
    }
}
