//! Interface of a transport chosen at run time. Delegation only.

#![allow(unsafe_code)]

use super::dispatch::each;
use super::ep::piece_of;
use super::{Ep, Iface, Md, Mem};
use crate::api::{self, AmHandler, Comp, ConnectError, EpTag, Error, IfaceAttr, PollOne, RecvCallback, Sink};
use crate::delegate::{iface_calls, iface_facts};
use crate::posix;

/// Something to do with an interface of a transport chosen at run time, compiled once for each.
pub trait Visit {
    /// Result type.
    type Out;
    /// Does it.
    fn visit<I: api::Iface>(self, iface: I) -> Self::Out;
}

impl Iface {
    /// The interface inside, if sending takes about a hundred instructions, so that inlining it pays. Several
    /// inlined copies would lack registers.
    // HOT
    #[inline(always)]
    pub fn fast_iface(&self) -> Option<&posix::Iface> {
        match self {
            Iface::Posix(iface, _) => Some(iface),
            _ => None,
        }
    }

    /// Whether this is a loopback interface that a poll would find nothing on.
    // HOT
    #[inline(always)]
    pub fn is_idle_loopback(&self) -> bool {
        matches!(self, Iface::Loopback(iface, _) if api::Iface::is_idle(iface))
    }

    /// Hands the interface inside to `visitor`: the choice is made once, and not again at each call.
    pub fn visit<V: Visit>(self, visitor: V) -> V::Out {
        each!(self, Iface(iface, _) => visitor.visit(iface))
    }
}

macro_rules! method {
    ([] [] $name:ident [] ($($arg:ident: $T:ty),*) $Ret:ty; iov() remote() rkey() comp($($comp:ident)?)) => {
        fn $name(&self, $($arg: $T),*) -> $Ret {
            each!(self, Iface(iface, _) => iface.$name($($arg),*))
        }
    };
    ([] [unsafe] $name:ident [] ($($arg:ident: $T:ty),*) $Ret:ty; iov($iov:ident) remote() rkey() comp()) => {
        unsafe fn $name(&self, $($arg: $T),*) -> $Ret {
            each!(self, Iface(iface, _) => {
                let $iov = piece_of(&$iov)?;
                // SAFETY: the caller's promise is the same.
                unsafe { iface.$name($($arg),*) }
            })
        }
    };
}

macro_rules! fact {
    ($name:ident() $Ret:ty) => {
        fn $name(&self) -> $Ret {
            each!(self, Iface(iface, _) => iface.$name())
        }
    };
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

    fn connect(&self, device: &[u8], addr: &[u8]) -> Result<Ep, ConnectError> {
        each!(self, Iface(iface, _) => iface.connect(device, addr), Ep)
    }

    fn create_ep(&self) -> Result<Ep, Error> {
        each!(self, Iface(iface, _) => iface.create_ep(), Ep)
    }

    fn set_am_handler(&self, id: u8, handler: Option<AmHandler>) {
        each!(self, Iface(iface, _) => iface.set_am_handler(id, handler))
    }

    fn publish(&self, number: u64) {
        each!(self, Iface(iface, _) => iface.publish(number))
    }

    fn deliver_within_send(&self, on: bool) -> bool {
        each!(self, Iface(iface, _) => iface.deliver_within_send(on))
    }

    fn device_counters(&self) -> Vec<api::DeviceCounters> {
        each!(self, Iface(iface, _) => iface.device_counters())
    }

    fn set_imm_handler(&self, handler: Option<api::ImmHandler>) {
        each!(self, Iface(iface, _) => iface.set_imm_handler(handler))
    }

    fn set_error_handler(&self, handler: Option<Box<dyn FnMut(EpTag, Error)>>) {
        each!(self, Iface(iface, _) => iface.set_error_handler(handler))
    }

    // HOT
    #[inline(always)]
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

    iface_facts!(fact);
    iface_calls!(method, Mem, Comp);
}
