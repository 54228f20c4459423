//! An endpoint that threads share: the calls of the contract, each one inside the interface's lock.

#![allow(unsafe_code)]

use super::comp::Completion;
use super::iface::Shared;
use super::inner::{InnerEp, inner_ep};
use super::trace::TracedSends;
use crate::any::{Mem, Rkey};
use crate::api::{Ep as _, EpTag, Error, Outcome, Pack, PendingQueued, Refused, Retry, Sent};
use crate::delegate::{ep_control, ep_rma, ep_sends};
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// A connection to one remote interface.
pub struct Ep {
    ep: ManuallyDrop<InnerEp>,
    shared: Arc<Shared>,
}

// SAFETY: the endpoint inside shares state with its interface only, and is used and dropped inside its lock.
unsafe impl Send for Ep {}
// SAFETY: as above.
unsafe impl Sync for Ep {}

impl Drop for Ep {
    fn drop(&mut self) {
        let Some(_guard) = self.shared.lock_for_drop() else { return };
        // SAFETY: dropped once, here, inside the lock.
        unsafe { ManuallyDrop::drop(&mut self.ep) };
    }
}

fn in_progress(sent: &Sent) -> bool {
    *sent == Sent::InProgress
}

/// Defines a method as that of the endpoint inside the lock, where its closures run too.
macro_rules! method {
    ([$($attr:tt)*] [] $name:ident [$($generics:tt)*] ($($arg:ident: $T:ty),*) $Ret:ty;
     iov() remote() rkey($($rkey:ident)?) comp()) => {
        #[doc = concat!("Calls [`", stringify!($name), "`](crate::api::Ep::", stringify!($name), ") inside the lock.")]
        $($attr)*
        pub fn $name<$($generics)*>(&self, $($arg: $T),*) -> $Ret {
            let _guard = self.shared.lock()?;
            inner_ep!(*self.ep, ep => ep.$name($($arg),*))
        }
    };
    ([$($attr:tt)*] [] $name:ident [$($generics:tt)*] ($($arg:ident: $T:ty),*) $Ret:ty;
     iov() remote() rkey($($rkey:ident)?) comp($comp:ident)) => {
        #[doc = concat!("Calls [`", stringify!($name), "`](crate::api::Ep::", stringify!($name), ") inside the lock.")]
        $($attr)*
        pub fn $name<$($generics)*>(&self, $($arg: $T),*) -> $Ret {
            self.shared.run($comp, |$comp| inner_ep!(*self.ep, ep => ep.$name($($arg),*)), in_progress)
        }
    };
    ([$($attr:tt)*] [unsafe] $name:ident [$($generics:tt)*] ($($arg:ident: $T:ty),*) $Ret:ty;
     iov($($iov:ident)?) remote($($remote:ident)?) rkey($($rkey:ident)?) comp($comp:ident)) => {
        #[doc = concat!("Calls [`", stringify!($name), "`](crate::api::Ep::", stringify!($name), ") inside the lock.")]
        /// # Safety
        /// As there.
        $($attr)*
        pub unsafe fn $name<$($generics)*>(&self, $($arg: $T),*) -> $Ret {
            // SAFETY: the caller's promise is the same.
            let call = |$comp| inner_ep!(*self.ep, ep => unsafe { ep.$name($($arg),*) });
            self.shared.run($comp, call, in_progress)
        }
    };
}

/// Defines a method that sends an active message, and shows it to the tracer if there is one.
macro_rules! send {
    ([$($attr:tt)*] [] $name:ident [$($generics:tt)*] ($($arg:ident: $T:ty),*) $Ret:ty; $($_kinds:tt)*) => {
        #[doc = concat!("Calls [`", stringify!($name), "`](crate::api::Ep::", stringify!($name), ") inside the lock.")]
        $($attr)*
        pub fn $name<$($generics)*>(&self, $($arg: $T),*) -> $Ret {
            let _guard = self.shared.lock()?;
            if self.shared.is_traced() {
                return inner_ep!(*self.ep, ep => self.traced(ep).$name($($arg),*));
            }
            inner_ep!(*self.ep, ep => ep.$name($($arg),*))
        }
    };
    ([$($attr:tt)*] [unsafe] $name:ident [] ($($arg:ident: $T:ty),*) $Ret:ty;
     iov($iov:ident) remote() rkey() comp($comp:ident)) => {
        #[doc = concat!("Calls [`", stringify!($name), "`](crate::api::Ep::", stringify!($name), ") inside the lock.")]
        /// # Safety
        /// As there.
        $($attr)*
        pub unsafe fn $name(&self, $($arg: $T),*) -> $Ret {
            let call = |$comp| {
                if self.shared.is_traced() {
                    // SAFETY: the caller's promise is the same.
                    return inner_ep!(*self.ep, ep => unsafe { self.traced(ep).$name($($arg),*) });
                }
                // SAFETY: as above.
                inner_ep!(*self.ep, ep => unsafe { ep.$name($($arg),*) })
            };
            self.shared.run($comp, call, in_progress)
        }
    };
}

impl Ep {
    pub(super) fn new(ep: InnerEp, shared: &Arc<Shared>) -> Self {
        Ep { ep: ManuallyDrop::new(ep), shared: shared.clone() }
    }

    #[cold]
    fn traced<'a, E>(&'a self, ep: &'a E) -> TracedSends<'a, E> {
        TracedSends { ep, tracer: &self.shared.tracer }
    }

    /// Sets the number that error reports of this endpoint carry.
    pub fn set_tag(&self, tag: EpTag) -> Result<(), Error> {
        let _guard = self.shared.lock()?;
        inner_ep!(*self.ep, ep => ep.set_tag(tag));
        Ok(())
    }

    /// That number.
    pub fn tag(&self) -> Result<EpTag, Error> {
        let _guard = self.shared.lock()?;
        Ok(inner_ep!(*self.ep, ep => ep.tag()))
    }

    /// See [`crate::api::Ep::max_bcopy`].
    pub fn max_bcopy(&self) -> Result<usize, Error> {
        let _guard = self.shared.lock()?;
        Ok(inner_ep!(*self.ep, ep => ep.max_bcopy()))
    }

    /// See [`crate::api::Ep::am_short_packet`]; `pack` runs inside the lock.
    // HOT
    #[inline]
    pub fn am_short_packet(&self, max: usize, pack: impl Pack + Copy) -> Outcome<usize> {
        let _guard = self.shared.lock()?;
        if self.shared.is_traced() {
            return inner_ep!(*self.ep, ep => self.traced(ep).am_packet(max, |slot| pack.pack(slot)));
        }
        inner_ep!(*self.ep, ep => ep.am_short_packet(max, pack))
    }

    /// See [`crate::api::Ep::pending_add`]; the operation runs inside the lock, in any progressing thread.
    pub fn pending_add(&self, op: Box<dyn FnMut() -> Retry + Send>) -> Result<PendingQueued, Error> {
        let _guard = self.shared.lock()?;
        let added = inner_ep!(*self.ep, ep => ep.pending_add(op));
        if added == Ok(PendingQueued::Queued) {
            // Sleepers without a limit assume that nothing is pending.
            self.shared.wakeup.wake_all();
        }
        added
    }

    /// See [`crate::api::Ep::pending_purge`]: hands each waiting operation to `each`, still boxed.
    pub fn pending_purge(&self, each: &mut dyn FnMut(crate::api::Pending)) -> Result<(), Error> {
        let _guard = self.shared.lock()?;
        inner_ep!(*self.ep, ep => ep.pending_purge(each));
        Ok(())
    }

    /// See [`crate::api::Ep::is_connected`].
    pub fn is_connected(&self, device: &[u8], iface: &[u8]) -> Result<bool, Error> {
        let _guard = self.shared.lock()?;
        Ok(inner_ep!(*self.ep, ep => ep.is_connected(device, iface)))
    }

    /// See [`crate::api::Ep::cancel`].
    pub fn cancel(
        self,
        each: &mut dyn FnMut(crate::api::Pending),
        comp: Option<&Arc<Completion>>,
    ) -> Outcome {
        self.pending_purge(each)?;
        match self.flush(comp) {
            Err(Refused::Failed(Error::PeerDead)) => Ok(Sent::Done),
            flushed => flushed,
        }
    }

    ep_sends!(send, Mem, Option<&Arc<Completion>>);
    ep_rma!(method, Mem, Rkey, Option<&Arc<Completion>>, Send);
    ep_control!(method, Option<&Arc<Completion>>);
}
