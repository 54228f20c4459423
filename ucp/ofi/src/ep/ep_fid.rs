//! `struct fid_ep` and the flags of its calls: an endpoint begins with one, and each alias of it is another.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Ep;
use crate::abi::ops::{AtomicTable, CmOps, CollectiveOps, EpOps, FidOps, MsgOps, RmaOps, TaggedOps};
use crate::abi::{Fid, flags};
use crate::errno::Errno;
use crate::object::{Object, UserCount, checked, from_fid, read, store, store_handle};
use crate::refused;

/// A handle of an endpoint.
#[repr(C)]
pub(crate) struct EpFid {
    pub fid: Fid,
    pub ops: &'static EpOps,
    pub cm: &'static CmOps,
    pub msg: &'static MsgOps,
    pub rma: &'static RmaOps,
    pub tagged: &'static TaggedOps,
    pub atomic: &'static AtomicTable,
    pub collective: &'static CollectiveOps,
    /// The endpoint, which begins with its own handle.
    ep: Cell<*const Ep>,
    /// Flags of operations that have none of their own.
    tx_flags: AtomicU64,
    rx_flags: AtomicU64,
}

impl Object for EpFid {
    const CLASS: usize = flags::CLASS_EP;
    const NAME: &'static str = "an endpoint";
    fn users(&self) -> &UserCount {
        &self.ep().users
    }
}

impl EpFid {
    /// A handle of an endpoint that is opened, with its tables of functions and flags.
    pub(super) fn new(fid: Fid, (tx_flags, rx_flags): (u64, u64)) -> EpFid {
        EpFid {
            fid,
            ops: &super::setup::EP_OPS,
            cm: &super::setup::CM_OPS,
            msg: &super::msg::OPS,
            rma: &super::rma::OPS,
            tagged: &super::tagged::OPS,
            atomic: &super::atomic::OPS,
            collective: &super::collective::OPS,
            ep: Cell::new(std::ptr::null()),
            tx_flags: AtomicU64::new(tx_flags),
            rx_flags: AtomicU64::new(rx_flags),
        }
    }

    /// Stores the handle of a new endpoint.
    /// # Safety
    /// `to` is null or can be written.
    pub(super) unsafe fn store(to: *mut *mut Fid, made: Ep) -> Result<(), Errno> {
        // SAFETY: this function's contract.
        unsafe { store_handle(to, made) }?;
        // SAFETY: as above.
        let fid = unsafe { read(to) }?;
        // SAFETY: as above.
        let ep: &Ep = unsafe { from_fid(fid) }?;
        ep.ep_fid.ep.set(ep);
        Ok(())
    }

    #[inline(always)]
    pub(super) fn ep(&self) -> &Ep {
        // SAFETY: set when the endpoint was opened, which is not closed before its aliases.
        unsafe { &*self.ep.get() }
    }

    /// The endpoint of a call and the handle by which it came.
    /// # Safety
    /// As for [`from_fid`], of a handle of an endpoint.
    // HOT
    #[inline(always)]
    pub(super) unsafe fn of<'a>(fid: *mut Fid) -> Result<(&'a Ep, &'a EpFid), Errno> {
        // SAFETY: this function's contract.
        let ep_fid: &EpFid = unsafe { from_fid(fid) }?;
        Ok((ep_fid.ep(), ep_fid))
    }

    /// The endpoint of a call on a slow path: the class of its handle is checked.
    /// # Safety
    /// As for [`checked`].
    pub(crate) unsafe fn checked<'a>(fid: *mut Fid) -> Result<(&'a Ep, &'a EpFid), Errno> {
        // SAFETY: this function's contract; every object begins with its class.
        let ep_fid: &EpFid = match unsafe { fid.as_ref() }.ok_or(Errno::INVAL)?.fclass {
            // SAFETY: as above; a context begins with a handle.
            flags::CLASS_TX_CTX | flags::CLASS_RX_CTX => unsafe { from_fid(fid) }?,
            // SAFETY: as above.
            _ => unsafe { checked(fid) }?,
        };
        Ok((ep_fid.ep(), ep_fid))
    }

    /// Makes another handle of an endpoint, whose operations are those of `ep`: an alias, or a context of a
    /// scalable endpoint.
    pub(super) fn with_ep(fid: Fid, ep: &Ep, flags: (u64, u64)) -> EpFid {
        let made = EpFid::new(fid, flags);
        made.ep.set(ep);
        made
    }

    /// Flags of sends that have none of their own.
    // HOT
    #[inline(always)]
    pub(super) fn tx_flags(&self) -> u64 {
        self.tx_flags.load(Ordering::Relaxed)
    }

    /// Flags of receives that have none of their own.
    // HOT
    #[inline(always)]
    pub(super) fn rx_flags(&self) -> u64 {
        self.rx_flags.load(Ordering::Relaxed)
    }

    /// Whether it is the handle of a context for receives, or for other operations; `None`: for both.
    pub(super) fn is_recv(&self) -> Option<bool> {
        match self.fid.fclass {
            flags::CLASS_TX_CTX => Some(false),
            flags::CLASS_RX_CTX => Some(true),
            _ => None,
        }
    }

    /// Flags of sends or receives, as `asked` says: `FI_SEND` or `FI_RECV`, one of them.
    pub(super) fn flags_of(&self, asked: u64) -> Result<&AtomicU64, Errno> {
        match asked & (flags::SEND | flags::RECV) {
            flags::SEND => Ok(&self.tx_flags),
            flags::RECV => Ok(&self.rx_flags),
            _ => Err(Errno::INVAL),
        }
    }

    /// Makes another handle of the endpoint, with other flags for sends or receives.
    /// # Safety
    /// `to` is null or can be written.
    pub(super) unsafe fn alias(&self, to: *mut *mut Fid, asked: u64) -> Result<(), Errno> {
        let directions = flags::SEND | flags::RECV;
        let fid = refused::fid(flags::CLASS_EP, self.fid.context, &ALIAS_OPS);
        let made = EpFid::with_ep(fid, self.ep(), (self.tx_flags(), self.rx_flags()));
        made.flags_of(asked)?.store(asked & !directions, Ordering::Relaxed);
        // SAFETY: this function's contract.
        unsafe { store(to, Box::into_raw(Box::new(made)).cast()) }?;
        self.ep().users.add();
        Ok(())
    }
}

static ALIAS_OPS: FidOps = refused::fid_ops(close, super::setup::bind, super::setup::control);

calls! {
    /// Closes an alias. Its endpoint stays.
    fn close(fid: *mut Fid) -> c_int {
        let (ep, ep_fid) = EpFid::checked(fid)?;
        ep.users.remove();
        // SAFETY: the handle begins with its class, which nobody reads any more.
        unsafe { (*fid).fclass = 0 };
        // SAFETY: `alias` has made it; the program closes it once.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(ep_fid).cast_mut()) });
        Ok(0)
    }
}
