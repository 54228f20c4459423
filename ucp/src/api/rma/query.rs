//! Which method carries out one-sided operations: for programs and tools.

use crate::api::ep::config::rma_wire;
use crate::api::ep::protocols::EpProtocols;
use crate::api::rma::rkey::Rkey;

use crate::rdm::amo::Form;
use crate::rdm::max_atomic;
use crate::wire::AtomicOp;

use crate::select::{
    DeliveryComplete, RemoteAccess, ReqHdr, RmaCandidates, RmaChoice, RmaKey, RmaOp, RmaVerdict, explain_rma,
};

/// Method that carries out one-sided operations on a piece of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RmaMethod {
    /// The local processor accesses memory that both processes have mapped.
    Mapped,
    /// The kernel copies, called by the local processor. Does not involve the peer's processor.
    Kernel,
    /// The device transfers. Does not involve the peer's processor.
    Rdma,
    /// The peer's processor executes the operation, requested by packets.
    Emulated,
}

impl RmaMethod {
    /// Whether the operation needs progress at the peer.
    pub fn is_emulated(self) -> bool {
        self == RmaMethod::Emulated
    }
}

impl EpProtocols<'_> {
    /// Most bytes of elements of one atomic on contiguous memory of the peer: it has to fit one packet. 0 for
    /// an endpoint that has no peer yet.
    pub fn max_atomic(&self, op: AtomicOp, is_fetching: bool) -> usize {
        let core = self.ep.worker().core();
        let form = match op {
            op if op as u32 >= AtomicOp::CompareSwap as u32 => Form::Compare,
            _ if is_fetching => Form::Fetch,
            _ => Form::Write,
        };
        core.peer_eps.get(self.ep.peer()).map_or(0, |path| max_atomic(path.mtu(), form))
    }

    /// Best method for memory of `rkey`. Operations may still go by packets where that is cheaper: see
    /// [`Self::rma_method_for`].
    pub fn rma_method(&self, rkey: &Rkey) -> RmaMethod {
        let core = self.ep.worker().core();
        let rdma = core.engine.peers().rdma(self.ep.peer());
        let (state, rma_only) = (self.ep.state(), core.rma_only.as_ref());
        if rkey.mapped().is_some() {
            RmaMethod::Mapped
        } else if rkey.rma_only.is_some() && state.kernel_copy_ep(rma_only).is_some()
            || rkey.is_key_only && state.rma_only_ep().is_some_and(|ep| ep.is_published(rma_only))
        {
            RmaMethod::Kernel
        } else if rkey.device().is_some() && rdma.read > 0 && rdma.write > 0 {
            RmaMethod::Rdma
        } else {
            RmaMethod::Emulated
        }
    }

    /// Method for a put or get of `len` bytes.
    pub fn rma_method_for(&self, rkey: &Rkey, op: RmaOp, len: usize) -> RmaMethod {
        let candidates = self.explain_rma(rkey, op, None, len);
        let taken = candidates.iter().find(|candidate| candidate.verdict == RmaVerdict::Taken);
        match taken.map(|candidate| candidate.choice) {
            Some(RmaChoice::Mapped) => RmaMethod::Mapped,
            Some(RmaChoice::Kernel) => RmaMethod::Kernel,
            Some(RmaChoice::Protocol(protocol)) if !protocol.is_emulated() => RmaMethod::Rdma,
            _ => RmaMethod::Emulated,
        }
    }

    /// Verdict on every method for a put or get of `len` bytes.
    pub fn explain_rma(&self, rkey: &Rkey, op: RmaOp, cq_data: Option<u64>, len: usize) -> RmaCandidates {
        self.explain_put(rkey, (op, DeliveryComplete::No), cq_data, len)
    }

    fn explain_put(
        &self,
        rkey: &Rkey,
        (op, sync): (RmaOp, DeliveryComplete),
        cq_data: Option<u64>,
        len: usize,
    ) -> RmaCandidates {
        let access = match self.rma_method(rkey) {
            RmaMethod::Mapped => RemoteAccess::Mapped,
            RmaMethod::Kernel => RemoteAccess::Kernel,
            _ if rkey.device().is_some() => RemoteAccess::Device(rkey.remote_mem()),
            _ => RemoteAccess::PacketsOnly,
        };
        self.explain_rma_access(access, (op, sync), cq_data, len)
    }

    /// Verdict on every method for memory with this `access`, without a remote key.
    pub fn explain_rma_access(
        &self,
        access: RemoteAccess,
        (op, sync): (RmaOp, DeliveryComplete),
        cq_data: Option<u64>,
        len: usize,
    ) -> RmaCandidates {
        let core = self.ep.worker().core();
        let peer = core.engine.peers().info(self.ep.peer());
        let hdr = peer.map_or(ReqHdr::FIRST, |peer| peer.hdr);
        let features = peer.and_then(|peer| peer.features);
        let wire = rma_wire(&core, self.ep.peer());
        let limits = self.ep.worker().inner.limits;
        let key = RmaKey { op, sync, access, cq_data, wire, limits, hdr, features };
        explain_rma(&key, &self.ep.state().tables().rma, len)
    }
}
