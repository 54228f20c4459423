//! Protocol tables, shared by endpoints of equal configuration. Lane costs may be calibrated.

use std::rc::Rc;
use std::sync::OnceLock;

use ucs::sys::{cpu, topo};
use uct::api::{DevKind, IfaceAttr, Linear};

use crate::api::context::calibrate::Calibration;

use crate::rdm::{EngineConfig, Protocol};
use crate::select::copy_method::CopyMethod;
use crate::select::{
    Costs, CqData, Kind, Line, MemKind, PeerCaps, RemoteMem, RmaTables, RmaWire, SelectKey, Sync, Table,
    WireCaps,
};

pub(crate) struct EpConfig {
    /// For messages, by [`table_index`].
    pub send: [Table; 8],
    /// For messages in memory allocated by the lane's transport, if that makes a difference.
    pub(crate) own: Option<Box<[Table; 8]>>,
    /// For other memory, if the peer's kernel may read it.
    pub(crate) process: Option<Box<Process>>,
    pub rma: RmaTables,
}

pub(crate) struct Process {
    pub(crate) tables: [Table; 8],
    /// Length from which the copy method is decided per message, by measured cost.
    pub(crate) kernel_choice_from: [usize; 8],
    pub(crate) read: [Protocol; 8],
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) struct EpConfigKey {
    pub(crate) messages: WireCaps,
    pub(crate) rma: RmaWire,
}

pub(crate) struct EpConfigs {
    pub(crate) costs: Vec<Costs>,
    pub(crate) kernel: Option<[Line; 2]>,
    pub(crate) made: Vec<(EpConfigKey, Rc<EpConfig>)>,
}

impl EpConfigs {
    pub(crate) fn new<'a>(
        lanes: impl Iterator<Item = &'a IfaceAttr>,
        calibration: Option<&Calibration>,
    ) -> Self {
        let machine = Machine::look();
        let costs = lanes.map(|attr| {
            let said = costs(attr, machine);
            calibration.map_or(said, |measured| measured.correct(attr, said)).sanitized()
        });
        EpConfigs { costs: costs.collect(), kernel: None, made: Vec::new() }
    }

    pub(crate) fn set_rma_only(&mut self, attr: &IfaceAttr, calibration: Option<&Calibration>) {
        let said = costs(attr, Machine::look());
        let found = calibration.map_or(said, |measured| measured.correct(attr, said)).sanitized();
        let other = RemoteMem::Registered as usize;
        self.kernel = Some([found.put[other], found.get[other]]);
    }
}

#[derive(Clone, Copy)]
struct Machine {
    /// Longest copy that stays within the caches of one processor, bytes.
    cache: usize,
}

impl Machine {
    fn look() -> Machine {
        static CACHE: OnceLock<usize> = OnceLock::new();
        let cache = CACHE.get_or_init(|| {
            let own =
                topo::caches(cpu::current()).into_iter().filter(|c| c.level == 2).map(|c| c.bytes).max();
            // Source and destination of a copy share the cache.
            own.map_or(Costs::default().cache, |bytes| bytes as usize / 2)
        });
        Machine { cache: *cache }
    }
}

fn costs(attr: &IfaceAttr, machine: Machine) -> Costs {
    let line = |l: Linear| Line::new(l.fixed, l.per_byte);
    let window = (attr.kind == DevKind::Net).then_some(EngineConfig::default().cts_credits);
    Costs {
        overhead: attr.overhead,
        latency: attr.latency.fixed,
        wire: 1e9 / attr.bandwidth.max(1.0),
        shared: attr.kind != DevKind::Net,
        cache: machine.cache,
        register: Line::new(attr.reg_cost.0, attr.reg_cost.1),
        put: [line(attr.rma.put_allocated), line(attr.rma.put_registered)],
        get: [line(attr.rma.get_allocated), line(attr.rma.get_registered)],
        window,
        ..Costs::default()
    }
}

// HOT
#[inline]
pub(crate) fn table_index(kind: Kind, sync: Sync, cq_data: CqData) -> usize {
    usize::from(kind == Kind::Untagged)
        | usize::from(sync == Sync::Yes) << 1
        | usize::from(cq_data == CqData::Yes) << 2
}

pub(crate) fn keys(wire: WireCaps, peer: PeerCaps) -> [SelectKey; 8] {
    let mut all = [SelectKey::new(Kind::Tagged, Sync::No, wire, peer); 8];
    for kind in [Kind::Tagged, Kind::Untagged] {
        for sync in [Sync::No, Sync::Yes] {
            for cq_data in [CqData::No, CqData::Yes] {
                all[table_index(kind, sync, cq_data)] = SelectKey { kind, sync, cq_data, ..all[0] };
            }
        }
    }
    all
}

impl EpConfig {
    /// Protocol of a message. Looks up the kind of memory only if that makes a difference. // HOT
    #[inline]
    pub(crate) fn row(
        &self,
        at: usize,
        len: usize,
        is_own: impl FnOnce() -> bool,
        is_process: impl FnOnce() -> bool,
        by: impl FnOnce(CopyMethod) -> CopyMethod,
    ) -> Protocol {
        match (&self.own, &self.process) {
            (Some(own), _) if len > own[at].eager_max() && is_own() => own[at].pick(len),
            (_, Some(process)) if len > process.tables[at].eager_max() && is_process() => {
                match self.said(at, len) {
                    Some(said) => self.row_by(at, len, by(said)),
                    None => process.tables[at].pick(len),
                }
            }
            _ => self.send[at].pick(len),
        }
    }

    /// Copy method by estimated cost, if the method is decided per message.
    pub(crate) fn said(&self, at: usize, len: usize) -> Option<CopyMethod> {
        let process = self.process.as_ref().filter(|process| len >= process.kernel_choice_from[at])?;
        Some(if process.tables[at].pick(len) == process.read[at] {
            CopyMethod::Kernel
        } else {
            CopyMethod::Packets
        })
    }

    pub(crate) fn kernel_choice_from(&self, at: usize) -> Option<usize> {
        self.process.as_ref().map(|process| process.kernel_choice_from[at]).filter(|from| *from < usize::MAX)
    }

    pub(crate) fn row_by(&self, at: usize, len: usize, by: CopyMethod) -> Protocol {
        match (&self.process, by) {
            (Some(process), CopyMethod::Kernel) => process.read[at],
            _ => self.send[at].pick(len),
        }
    }

    /// Longest message sent in one packet from any memory, bytes; `None` if there is none.
    pub(crate) fn short_max(&self, at: usize) -> Option<usize> {
        let send = &self.send[at];
        let special = [self.own.as_deref(), self.process.as_ref().map(|process| &process.tables)];
        let all = special.into_iter().flatten().map(|tables| tables[at].eager_max());
        let all = all.fold(send.eager_max(), usize::min);
        (send.pick(0) == Protocol::Eager).then_some(all)
    }

    pub(crate) fn table(&self, at: usize, lies: MemKind) -> &Table {
        let special = match lies {
            MemKind::Host => None,
            MemKind::Process => self.process.as_ref().map(|process| &process.tables),
            MemKind::Own => self.own.as_deref(),
        };
        special.map_or(&self.send[at], |tables| &tables[at])
    }

    pub(crate) fn asks_kernel(&self) -> bool {
        self.process.is_some()
    }
}
