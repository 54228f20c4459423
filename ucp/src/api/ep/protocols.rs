//! Protocol choice of an endpoint by kind of memory, and its explanation for programs and tools.

use uct::api::Iface as _;

use crate::api::core::ep_config::{keys, table_index};
use crate::api::core::ep_state::EpState;
use crate::api::core::worker_core::WorkerCore;
use crate::api::ep::config::{is_allocated, limits_to, wire_caps};
use crate::api::ep::handle::Ep;

use crate::lane::RmaOnlyLane;
use crate::rdm::SendBuf;
use crate::rdm::features::wants_user_qp;
use crate::select::copy_method::CopyTimes;
use crate::select::{
    Candidate, CqData, DeliveryComplete, Kind, MemKind, PeerCaps, Protocol, ReadSupport, RecvMode, SelectKey,
    Table, Verdict, explain,
};

impl Ep {
    /// Queries of the protocols that operations to this peer take.
    pub fn protocols(&self) -> EpProtocols<'_> {
        EpProtocols { ep: self }
    }
}

/// Whether the peer's kernel may read local memory: judged by ours, unless the peer reports otherwise.
fn lets_kernel_read(core: &WorkerCore, ep: &EpState) -> bool {
    ep.tables().has_kernel_copy()
        && core.engine.peers().can_read_us(ep.peer())
        && ep.kernel_copy_ep(core.rma_only.as_ref()).is_some()
}

/// Protocol of a message, by length, memory, and what copying by the kernel has cost so far.
pub(crate) fn choose_protocol(core: &WorkerCore, ep: &EpState, table: usize, buf: &SendBuf) -> Protocol {
    let is_allocated = || is_allocated(core, ep.lane(), buf);
    // In place, the kernel reads what is in one piece.
    let is_kernel_readable = || buf.piece().is_some() && lets_kernel_read(core, ep);
    ep.tables().protocol(table, buf.len(), is_allocated, is_kernel_readable, |estimate| {
        let measured = core.rma_only.as_ref();
        measured.map_or(estimate, |lane| lane.next_method(ep.peer(), buf.len(), estimate))
    })
}

/// Protocol queries of one endpoint. See [`Ep::protocols`].
#[derive(Clone, Copy)]
pub struct EpProtocols<'a> {
    pub(crate) ep: &'a Ep,
}

impl EpProtocols<'_> {
    /// Transports that reach the peer, cheapest first; messages take the first.
    pub fn transports(&self) -> Vec<&'static str> {
        let core = self.ep.worker().core();
        self.ep.state().lanes().iter().map(|at| core.ifaces[usize::from(at.0)].iface.attr().tl).collect()
    }

    /// Transport and device of each lane to the peer, in the order of [`EpProtocols::transports`], and last
    /// those of the lane by which the kernel copies.
    pub fn lanes(&self) -> Vec<(&'static str, String)> {
        let core = self.ep.worker().core();
        let state = self.ep.state();
        let of_packets = state.lanes().iter().map(|at| core.ifaces[usize::from(at.0)].iface.attr());
        let rma_only = core.rma_only.as_ref();
        let of_kernel = rma_only.filter(|_| state.kernel_copy_ep(rma_only).is_some()).map(RmaOnlyLane::attr);
        of_packets.chain(of_kernel).map(|attr| (attr.tl, attr.dev.to_string())).collect()
    }

    /// Measured cost of messages of `len` bytes from the peer, by kernel and by packets, in ns per KiB, and
    /// the preferred method. `None` without messages or without a choice.
    pub fn measured_copy_cost(&self, len: usize) -> Option<CopyTimes> {
        self.ep.worker().core().rma_only.as_ref()?.copy_times(self.ep.peer(), len)
    }

    fn program_mem(&self, core: &WorkerCore) -> MemKind {
        if lets_kernel_read(core, self.ep.state()) { MemKind::Process } else { MemKind::Host }
    }

    /// Verdict on each protocol for a message of `len` bytes.
    pub fn explain(&self, kind: Kind, sync: DeliveryComplete, len: usize) -> [Candidate; 6] {
        let mem = self.program_mem(&self.ep.worker().core());
        self.explain_from(mem, kind, sync, len)
    }

    /// Verdict on each protocol for a message of `len` bytes in memory of kind `mem`.
    pub fn explain_from(
        &self,
        mem: MemKind,
        kind: Kind,
        sync: DeliveryComplete,
        len: usize,
    ) -> [Candidate; 6] {
        let worker = self.ep.worker();
        let limits = limits_to(&worker.core(), self.ep.peer(), &worker.inner.limits);
        let mut all = explain(&SelectKey { mem, ..self.key(kind, sync) }, &limits, len);
        if mem == MemKind::Process
            && let Some(taken) = self.measured_protocol(table_index(kind, sync, CqData::No), len)
            && let Some(at) = all.iter().position(|candidate| candidate.protocol == taken)
        {
            all.iter_mut()
                .filter(|c| c.verdict == Verdict::Taken)
                .for_each(|c| c.verdict = Verdict::MeasuredSlower);
            all[at].verdict = Verdict::Taken;
        }
        all
    }

    /// Length from which messages in memory of the program use kernel or packets by measured cost; `None` if
    /// `UCX_KERNEL_COPY` or the lack of one of them decides.
    pub fn kernel_copy_from(&self, kind: Kind, sync: DeliveryComplete) -> Option<usize> {
        let is_measured =
            self.ep.worker().core().rma_only.as_ref().is_some_and(RmaOnlyLane::method_may_change);
        self.ep
            .state()
            .tables()
            .kernel_choice_from(table_index(kind, sync, CqData::No))
            .filter(|_| is_measured)
    }

    fn measured_protocol(&self, at: usize, len: usize) -> Option<Protocol> {
        let estimate = self.ep.state().tables().estimated_method(at, len)?;
        let core = self.ep.worker().core();
        Some(self.ep.state().tables().protocol_by(
            at,
            len,
            core.rma_only.as_ref()?.current_method(self.ep.peer(), len, estimate),
        ))
    }

    /// Protocol by size for a kind of message.
    pub fn table(&self, kind: Kind, sync: DeliveryComplete) -> Table {
        let mem = self.program_mem(&self.ep.worker().core());
        self.table_from(mem, kind, sync)
    }

    /// Protocol by size for a kind of message in memory of kind `mem`.
    pub fn table_from(&self, mem: MemKind, kind: Kind, sync: DeliveryComplete) -> Table {
        *self.ep.state().tables().table(table_index(kind, sync, CqData::No), mem)
    }

    fn key(&self, kind: Kind, sync: DeliveryComplete) -> SelectKey {
        let core = self.ep.worker().core();
        let features = core.engine.peers().info(self.ep.peer()).and_then(|view| view.features);
        let recv_mode = match features {
            Some(features) if wants_user_qp(features) => RecvMode::ZeroCopy,
            _ => RecvMode::Packets,
        };
        let peer = PeerCaps { reads: ReadSupport::of(features), recv_mode, ..PeerCaps::default() };
        keys(wire_caps(&core, self.ep.peer()), peer)[table_index(kind, sync, CqData::No)]
    }
}
