//! How messages to an endpoint go, by where they lie: what is taken, and why nothing else is. Asked by `ep` for messages that do
//! not simply go in one packet, and by programs and tools.

use crate::api::core::ep_config::{keys, table_index};
use crate::api::core::worker_core::Core;
use crate::api::ep::handle::Ep;

use crate::lane::Beside;
use crate::rdm::SendBuf;
use crate::rdm::features::wants_user_qp;
use crate::select::copy_method::{CopyMethod, CopyTimes};
use crate::select::{
    Candidate, CqData, Kind, MemKind, PeerCaps, Protocol, ReadSupport, RecvMode, SelectKey, Sync, Table,
    Verdict, explain,
};

impl Ep {
    /// Which protocols operations to this peer take, and why.
    pub fn protocols(&self) -> EpProtocols<'_> {
        EpProtocols { ep: self }
    }

    /// Whether the peer may have the kernel read messages out of our memory: it lets us into its own, so that we expect the same
    /// of ours, and it has not said that it is kept out.
    fn lets_kernel_read(&self, core: &Core) -> bool {
        self.tables().asks_kernel() && core.engine.can_read_us(self.peer()) && self.reach(core).is_some()
    }

    /// Whether a message lies in memory of the lane's transport.
    pub(crate) fn is_own(&self, buf: &SendBuf) -> bool {
        self.worker().core_as_it_is().is_own(self.lane(), buf)
    }

    /// Whether the kernel may read it where it lies, in one piece.
    pub(crate) fn is_of_process(&self, buf: &SendBuf) -> bool {
        buf.piece().is_some() && self.lets_kernel_read(&self.worker().core_as_it_is())
    }

    /// Who moves the next message of so many bytes out of the program's memory; `said`: who would by what is known beforehand.
    pub(crate) fn mover(&self, len: usize, said: CopyMethod) -> CopyMethod {
        let core = self.worker().core_as_it_is();
        core.beside.as_ref().map_or(said, |beside| beside.next(self.peer(), len, said))
    }
}

/// Protocol choice of one endpoint: how operations would be carried out, by which lanes, and why. See [`Ep::protocols`].
#[derive(Clone, Copy)]
pub struct EpProtocols<'a> {
    pub(crate) ep: &'a Ep,
}

impl EpProtocols<'_> {
    /// What messages of so many bytes from the peer were measured to take here, by the kernel and by packets, in ns for each
    /// KiB; and which of them we want. `None`: none has come, or another way is the only one.
    pub fn measured_copy_cost(&self, len: usize) -> Option<CopyTimes> {
        self.ep.worker().core().beside.as_ref()?.figures(self.ep.peer(), len)
    }

    /// What memory of the program's is towards this peer.
    fn of_program(&self, core: &Core) -> MemKind {
        if self.ep.lets_kernel_read(core) { MemKind::Process } else { MemKind::Host }
    }

    /// How a message of `len` bytes of this kind would go, and why each other way was not taken.
    pub fn explain(&self, kind: Kind, sync: Sync, len: usize) -> [Candidate; 6] {
        let mem = self.of_program(&self.ep.worker().core());
        self.explain_from(mem, kind, sync, len)
    }

    /// The same of one that lies in such memory.
    pub fn explain_from(&self, mem: MemKind, kind: Kind, sync: Sync, len: usize) -> [Candidate; 6] {
        let mut all = explain(&SelectKey { mem, ..self.key(kind, sync) }, self.ep.worker().limits(), len);
        if mem == MemKind::Process
            && let Some(taken) = self.found(table_index(kind, sync, CqData::No), len)
            && let Some(now) = all.iter().position(|candidate| candidate.protocol == taken)
        {
            all.iter_mut()
                .filter(|c| c.verdict == Verdict::Taken)
                .for_each(|c| c.verdict = Verdict::MeasuredSlower);
            all[now].verdict = Verdict::Taken;
        }
        all
    }

    /// From which length on the kernel and packets are both possible for messages of this kind out of memory that no transport has
    /// allocated, and what either takes decides which of them it is: as was measured of late, unless `UCX_KERNEL_COPY` says
    /// otherwise. `None`: it is settled.
    pub fn kernel_copy_from(&self, kind: Kind, sync: Sync) -> Option<usize> {
        let is_open = self.ep.worker().core().beside.as_ref().is_some_and(Beside::is_open);
        self.ep.tables().kernel_choice_from(table_index(kind, sync, CqData::No)).filter(|_| is_open)
    }

    /// How such a message goes at present, if it is open.
    fn found(&self, at: usize, len: usize) -> Option<Protocol> {
        let said = self.ep.tables().said(at, len)?;
        let core = self.ep.worker().core();
        Some(self.ep.tables().row_by(at, len, core.beside.as_ref()?.now(self.ep.peer(), len, said)))
    }

    /// Protocol by size for messages of this kind.
    pub fn table(&self, kind: Kind, sync: Sync) -> Table {
        let mem = self.of_program(&self.ep.worker().core());
        self.table_from(mem, kind, sync)
    }

    /// The same of those that lie in such memory.
    pub fn table_from(&self, mem: MemKind, kind: Kind, sync: Sync) -> Table {
        *self.ep.tables().table(table_index(kind, sync, CqData::No), mem)
    }

    fn key(&self, kind: Kind, sync: Sync) -> SelectKey {
        let core = self.ep.worker().core();
        let features = core.engine.peer_info(self.ep.peer()).and_then(|view| view.features);
        let recv_mode = match features {
            Some(features) if wants_user_qp(features) => RecvMode::ZeroCopy,
            _ => RecvMode::Packets,
        };
        let peer = PeerCaps { reads: ReadSupport::of(features), recv_mode, ..PeerCaps::default() };
        keys(core.wire_caps(self.ep.peer()), peer)[table_index(kind, sync, CqData::No)]
    }
}
