//! The transport that carries no messages and serves beside one of this host that does: puts and gets in memory of the
//! peer's process that is not mapped here, copied by the kernel, so that the peer need not make progress. Opened by
//! `api::context`, used within `put` and `get`. Never polled: nothing it does is under way when a call returns.

use std::cell::OnceCell;

use arrayvec::ArrayVec;
use ucs::config::Source;
use uct::api::{DevKind, Iface as _, IfaceAttr, Md as _, TlResource};

use crate::api::{Address, Entry, process};

use super::{Ep, Iface, Mem, Rkey};

/// An interface for memory alone.
pub(crate) struct Beside {
    iface: Iface,
    /// Names its keys among those of the worker's lanes.
    connid: u32,
}

/// The way to one peer's memory, made when it is first wanted.
pub(crate) struct Reach {
    /// Where the peer is. `None` if that is no other process of this host, or has no such transport.
    to: Option<Box<Entry>>,
    /// `None` once it has turned out that it does not let us in.
    ep: OnceCell<Option<Ep>>,
}

impl Reach {
    /// No way.
    pub(crate) fn none() -> Reach {
        Reach { to: None, ep: OnceCell::new() }
    }

    /// The endpoint and the peer's name for its keys. The first call asks the system.
    pub(crate) fn get(&self, beside: Option<&Beside>) -> Option<(&Ep, u32)> {
        let to = self.to.as_ref()?;
        let ep = match self.ep.get() {
            Some(ep) => ep,
            None => self.ep.get_or_init(|| beside?.connect(to)),
        };
        Some((ep.as_ref()?, to.connid))
    }
}

impl Beside {
    /// Opens the first of `found` that the system permits; `None` if it permits none.
    pub(crate) fn open(found: &[TlResource], source: &Source, connid: u32) -> Option<Beside> {
        let open = |r: &TlResource| {
            let iface = uct::any::open(r.tl, &r.dev, source);
            iface.inspect_err(|why| tracing::debug!(tl = r.tl, "memory goes by packets: {why}")).ok()
        };
        found.iter().find_map(open).map(|iface| Beside { iface, connid })
    }

    /// What it says of itself.
    pub(crate) fn attr(&self) -> &IfaceAttr {
        self.iface.attr()
    }

    /// What the worker's address says of it.
    pub(crate) fn entry(&self) -> Entry {
        Entry {
            tl: ArrayVec::try_from(self.iface.attr().tl.as_bytes()).unwrap_or_default(),
            connid: self.connid,
            device: self.iface.device_addr(),
            iface: self.iface.iface_addr(),
        }
    }

    /// A way to the memory of the worker at `address`, if it is in another process that lets us in. `lane` is the lane to
    /// it: only beside one of this host is this any better.
    pub(crate) fn reach(&self, lane: &Iface, address: &Address) -> Reach {
        if lane.attr().kind != DevKind::Shm || address.process == process() {
            return Reach::none();
        }
        let to = address.entries.iter().find(|entry| entry.tl() == self.iface.attr().tl);
        Reach { to: to.cloned().map(Box::new), ep: OnceCell::new() }
    }

    #[cold]
    fn connect(&self, to: &Entry) -> Option<Ep> {
        let ep = self.iface.connect(&to.device, &to.iface);
        ep.inspect_err(|why| tracing::debug!("memory of a peer goes by packets: {why}")).ok()
    }

    /// Lets peers reach memory.
    ///
    /// # Safety
    /// As for [`uct::api::Md::register`].
    pub(crate) unsafe fn register(&self, addr: *mut u8, len: usize, access: uct::api::Access) -> Option<Mem> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.iface.md().register(addr, len, access) }.ok()
    }

    /// The key of registered memory, and by what name it goes.
    pub(crate) fn key(&self, mem: &Mem) -> Option<(u32, uct::api::AddrBuf)> {
        Some((self.connid, self.iface.md().pack_rkey(mem).ok()?))
    }

    /// Reads a peer's key.
    pub(crate) fn unpack(&self, key: &[u8]) -> Option<Rkey> {
        self.iface.md().unpack_rkey(key).ok()
    }
}
