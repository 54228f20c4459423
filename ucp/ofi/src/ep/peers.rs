//! Endpoints of the engine by `fi_addr_t`, made when first used, and the addresses of senders.

use std::cell::{Cell, Ref, RefCell};
use std::collections::HashMap;

use ucp::{EpParams, Error, PeerId};

use super::Ep;
use crate::abi::{ADDR_UNSPEC, FiAddr, flags};
use crate::errno::Errno;
use crate::info::{EpKind, NameForm};
use crate::ring::NO_SOURCE;

/// The peers of an endpoint. Used inside the lock of its worker.
pub(crate) struct Peers {
    eps: RefCell<Vec<Option<ucp::Ep>>>,
    numbers: RefCell<HashMap<u32, FiAddr>>,
    /// The last sender, and its address.
    last: Cell<(u32, FiAddr)>,
}

impl Default for Peers {
    fn default() -> Peers {
        Peers {
            eps: RefCell::default(),
            numbers: RefCell::default(),
            last: Cell::new((u32::MAX, ADDR_UNSPEC)),
        }
    }
}

impl Peers {
    /// Endpoints of the engine by place, as far as they have been used.
    // HOT
    #[inline(always)]
    pub(super) fn known(&self) -> Ref<'_, Vec<Option<ucp::Ep>>> {
        self.eps.borrow()
    }
}

impl Ep {
    /// Place of an address among the peers. The number of a receive context, from the high bits, becomes the
    /// low one.
    // HOT
    #[inline(always)]
    pub(super) fn place_of(&self, address: FiAddr) -> usize {
        (address & self.address_mask).rotate_left(self.rx_ctx_bits.get()) as usize
    }

    /// Runs `f` with the engine's endpoint to an address.
    // HOT
    #[inline(always)]
    pub(super) fn with_peer<R>(
        &self,
        plain: &ucp::Worker,
        address: FiAddr,
        f: impl FnOnce(&ucp::Ep) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let at = self.place_of(address);
        let mut eps = self.peers.eps.borrow();
        if !matches!(eps.get(at), Some(Some(_))) {
            drop(eps);
            self.connect(plain, address & self.address_mask)?;
            eps = self.peers.eps.borrow();
        }
        match eps.get(at) {
            Some(Some(ep)) => f(ep),
            _ => Err(Errno::INVAL),
        }
    }

    /// Connects to an address of the address vector.
    #[cold]
    #[inline(never)]
    fn connect(&self, plain: &ucp::Worker, address: FiAddr) -> Result<(), Errno> {
        let theirs = if self.kind == EpKind::Msg {
            self.connection.peer().ok_or(Errno::NOTCONN)?
        } else {
            let av = self.av().ok_or(Errno::NOAV)?;
            av.address(address).ok_or_else(|| {
                tracing::error!("there is no address {address} in the address vector");
                Errno::INVAL
            })?
        };
        let ep = plain.connect(&theirs, EpParams::default()).map_err(|error| {
            tracing::error!("address {address}: {error}");
            Errno::of_status(error.status())
        })?;
        let number = self.av().map_or(address, |av| av.number(address));
        self.peers.numbers.borrow_mut().entry(ep.peer().0).or_insert(number);
        let mut eps = self.peers.eps.borrow_mut();
        let at = self.place_of(address);
        if eps.len() <= at {
            eps.resize_with(at + 1, || None);
        }
        eps[at] = Some(ep);
        Ok(())
    }

    /// Address of a sender. It is not available if there is no sender, if the address vector does not have
    /// it, or without the capability. Inside the lock, and not in a callback.
    // HOT
    #[inline]
    pub(crate) fn source_of(&self, from: PeerId) -> FiAddr {
        if self.caps & flags::SOURCE == 0 || from == NO_SOURCE {
            return ADDR_UNSPEC;
        }
        let (last, address) = self.peers.last.get();
        if last == from.0 {
            return address;
        }
        self.find_source(from)
    }

    #[inline(never)]
    fn find_source(&self, from: PeerId) -> FiAddr {
        let known = self.peers.numbers.borrow().get(&from.0).copied();
        let found = known.or_else(|| self.find_new_source(from));
        if let Some(address) = found {
            self.peers.last.set((from.0, address));
        }
        found.unwrap_or(ADDR_UNSPEC)
    }

    /// Whether a message without a source in the address vector is an error.
    // HOT
    #[inline(always)]
    pub(crate) fn refuses_unknown_sources(&self) -> bool {
        self.caps & flags::SOURCE_ERR != 0
    }

    /// Whether there is a sender, and the address vector does not have it. Inside the lock, and not in a
    /// callback.
    #[inline(never)]
    pub(crate) fn is_unknown(&self, from: PeerId) -> bool {
        from != NO_SOURCE && self.source_of(from) == ADDR_UNSPEC
    }

    /// The name of a sender, as the address vector takes it. Empty: it is no peer any more. Inside the lock.
    pub(crate) fn name_of(&self, from: PeerId) -> Vec<u8> {
        let address = self.inside(|plain| ucp::Address::of_sender(plain, from));
        let form = self.domain().name_form;
        let packed = address.and_then(|address| match form {
            NameForm::Efa => address.efa_raw().map(Vec::from),
            NameForm::Packed | NameForm::Wide | NameForm::Scalable => Some(address.pack()),
        });
        let mut name = packed.filter(|packed| packed.len() <= form.len()).unwrap_or_default();
        if !name.is_empty() {
            name.resize(form.len(), 0);
        }
        name
    }

    /// Text of an error, which names a peer by its address. Inside the lock.
    pub(crate) fn text_of(&self, error: Error) -> String {
        let words = error.to_string();
        let Some(peer) = error.peer() else { return words };
        let name = match self.kind {
            EpKind::Msg => "the peer".to_owned(),
            _ => match self.find_source(peer) {
                ADDR_UNSPEC => "a peer that is not in the address vector".to_owned(),
                number => format!("the peer of address {number}"),
            },
        };
        words.replacen(&format!("peer {}", peer.0), &name, 1)
    }

    /// Finds a sender that this endpoint has sent nothing to.
    #[cold]
    fn find_new_source(&self, from: PeerId) -> Option<FiAddr> {
        let av = self.av()?;
        let found = self.inside(|plain| av.sender(plain, from))?;
        self.peers.numbers.borrow_mut().insert(from.0, found);
        Some(found)
    }

    /// Forgets the peer at an address that is removed from the vector.
    pub(crate) fn forget_peer(&self, address: FiAddr) {
        self.inside(|_| {
            let bits = self.rx_ctx_bits.get();
            let contexts = (address as usize) << bits..(address as usize + 1) << bits;
            let mut eps = self.peers.eps.borrow_mut();
            let gone: Vec<_> = contexts.filter_map(|at| eps.get_mut(at).and_then(Option::take)).collect();
            drop(eps);
            self.peers.numbers.borrow_mut().retain(|_, known| *known != address);
            self.peers.last.set((u32::MAX, ADDR_UNSPEC));
            drop(gone);
        });
    }

    /// Drops all peers, inside the lock.
    pub(super) fn forget_all_peers(&self) {
        drop(self.peers.eps.take());
    }
}
