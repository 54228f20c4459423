//! The engine's window onto uct: which endpoint leads to which peer, and packets written straight into it.
//! Implements `rdm::io::Wire`. Never decides about protocols, never looks into a packet.

use uct::api::{ConnectError, Ep as _, EpTag, Error, Iface as _, Refused as WireRefused};

use crate::rdm::io::{Fault, PeerId, Posted, Refused, Source, TxToken, Wire};
use crate::wire::RawAddr;

use super::{Ep, Lane, LaneIdx};

/// The way to one peer.
pub(crate) struct Path {
    pub ep: Ep,
    /// Longest packet, bytes.
    mtu: usize,
}

impl Path {
    /// Longest packet, bytes.
    pub(crate) fn mtu(&self) -> usize {
        self.mtu
    }
}

/// The ways to all peers, by peer id.
#[derive(Default)]
pub(crate) struct Paths {
    by_peer: Vec<Option<Path>>,
}

impl Paths {
    #[inline(always)]
    pub(crate) fn get(&self, peer: PeerId) -> Option<&Path> {
        self.by_peer.get(peer.0 as usize)?.as_ref()
    }

    /// Sets the way to a peer, replacing the one there was.
    pub(crate) fn set(&mut self, peer: PeerId, ep: Ep) {
        let at = peer.0 as usize;
        if at >= self.by_peer.len() {
            self.by_peer.resize_with(at + 1, || None);
        }
        ep.set_tag(EpTag(u64::from(peer.0)));
        let mtu = 1 + ep.max_bcopy();
        self.by_peer[at] = Some(Path { ep, mtu });
    }

    /// Forgets the way to a peer.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        if let Some(path) = self.by_peer.get_mut(peer.0 as usize) {
            *path = None;
        }
    }
}

/// Lanes and paths together, lent to the engine for one call.
pub(crate) struct Bound<'a> {
    pub lanes: &'a [Lane],
    pub paths: &'a mut Paths,
    /// The lane whose packet the engine is looking at.
    pub receiving: LaneIdx,
}

impl Wire for Bound<'_> {
    #[inline]
    fn mtu(&self, to: PeerId) -> usize {
        self.paths.get(to).map_or(0, |path| path.mtu)
    }

    // HOT
    #[inline]
    fn send<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        to: PeerId,
        max: usize,
        _token: TxToken,
        fill: F,
    ) -> Result<Posted, Refused> {
        let Some(path) = self.paths.get(to) else { return Err(Refused::Fault(Fault::Gone)) };
        // The packet is copied in this call, so its end is its acceptance: no token is ever pending.
        match path.ep.am_packet(max, fill) {
            Ok(_) => Ok(Posted::Done),
            Err(WireRefused::NoResource) => Err(Refused::Full),
            Err(WireRefused::Failed(e)) => Err(Refused::Fault(fault_of(e))),
        }
    }

    fn connect(&mut self, peer: PeerId, from: Source, addr: &RawAddr) -> Result<(), Fault> {
        let raw = addr.to_bytes();
        let lane = &self.lanes[usize::from(self.receiving.0)];
        let (device, iface) = lane.form.addrs(&raw, &lane.device);
        let ep = lane.iface.connect(&device, &iface).map_err(|e| {
            tracing::warn!(
                tl = lane.iface.attr().tl,
                node = from.node,
                port = from.port,
                "cannot answer a new peer: {e}"
            );
            match e {
                ConnectError::Gone => Fault::Gone,
                ConnectError::Op(e) => fault_of(e),
                _ => Fault::Unreachable,
            }
        })?;
        self.paths.set(peer, ep);
        Ok(())
    }
}

/// A transport's error as the engine's verdict about a peer.
#[cold]
pub(crate) fn fault_of(e: Error) -> Fault {
    match e {
        Error::PeerDead => Fault::Gone,
        Error::Unreachable => Fault::Unreachable,
        Error::Device(code) => Fault::Device(code),
        // The remaining ones have a completion status of the EFA device too.
        Error::RemoteAccess => Fault::Device(7),
        Error::NotReady => Fault::Device(10),
        Error::RemoteLength => Fault::Device(11),
        Error::TooLong { .. } => Fault::Device(6),
        Error::BadLocalKey => Fault::Device(5),
        Error::Cancelled => Fault::Device(1),
        Error::Unsupported(_)
        | Error::InvalidParam(_)
        | Error::NoMemory
        | Error::NoDescriptor
        | Error::Exhausted(_)
        | Error::Sys { .. } => Fault::Device(2),
    }
}
