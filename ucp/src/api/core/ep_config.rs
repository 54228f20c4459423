//! Protocol tables, shared by endpoints of equal configuration. Lane costs may be calibrated.

use std::rc::Rc;
use std::sync::OnceLock;

use ucs::sys::{cpu, topo};
use uct::api::{DevKind, IfaceAttr, Linear};

use crate::api::context::calibrate::Calibration;

use crate::rdm::{EngineConfig, Protocol};
use crate::select::copy_method::CopyMethod;
use crate::select::{
    Costs, CqData, DeliveryComplete, Kind, Line, MemKind, PeerCaps, RemoteMem, RmaTables, RmaWire, SelectKey,
    Table, WireCaps,
};

pub(crate) struct EpConfig {
    /// For messages, by [`table_index`].
    pub send: [Table; 8],
    /// For messages in memory allocated by the lane's transport, if that makes a difference.
    pub(crate) allocated: Option<Box<[Table; 8]>>,
    /// For other memory, if the peer's kernel may read it.
    pub(crate) process: Option<Box<ProcessTables>>,
    pub rma: RmaTables,
}

pub(crate) struct ProcessTables {
    pub(crate) tables: [Table; 8],
    /// Length from which the copy method is decided per message, by measured cost.
    pub(crate) kernel_choice_from: [usize; 8],
    pub(crate) read: [Protocol; 8],
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) struct EpConfigKey {
    pub(crate) messages: WireCaps,
    pub(crate) rma: RmaWire,
    /// The threshold that depends on the peer's place.
    pub(crate) rndv_thresh: Option<usize>,
}

pub(crate) struct EpConfigs {
    pub(crate) costs: Vec<Costs>,
    pub(crate) kernel: Option<[Line; 2]>,
    pub(crate) cached: Vec<(EpConfigKey, Rc<EpConfig>)>,
}

impl EpConfigs {
    pub(crate) fn new<'a>(
        lanes: impl Iterator<Item = &'a IfaceAttr>,
        calibration: Option<&Calibration>,
    ) -> Self {
        let machine = Machine::probe();
        let costs = lanes.map(|attr| {
            let estimated = costs(attr, machine);
            calibration.map_or(estimated, |measured| measured.correct(attr, estimated)).sanitized()
        });
        EpConfigs { costs: costs.collect(), kernel: None, cached: Vec::new() }
    }

    pub(crate) fn set_kernel_costs(&mut self, attr: &IfaceAttr, calibration: Option<&Calibration>) {
        let estimated = costs(attr, Machine::probe());
        let costs = calibration.map_or(estimated, |measured| measured.correct(attr, estimated)).sanitized();
        let registered = RemoteMem::Registered as usize;
        self.kernel = Some([costs.put[registered], costs.get[registered]]);
    }
}

#[derive(Clone, Copy)]
struct Machine {
    /// Longest copy that stays within the caches of one processor, bytes.
    cache: usize,
}

impl Machine {
    fn probe() -> Machine {
        static CACHE: OnceLock<usize> = OnceLock::new();
        let cache = CACHE.get_or_init(|| {
            let l2 = topo::caches(cpu::current()).into_iter().filter(|c| c.level == 2).map(|c| c.bytes).max();
            // Source and destination of a copy share the cache.
            l2.map_or(Costs::default().cache, |bytes| bytes as usize / 2)
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
pub(crate) fn table_index(kind: Kind, sync: DeliveryComplete, cq_data: CqData) -> usize {
    usize::from(kind == Kind::Untagged)
        | usize::from(sync == DeliveryComplete::Yes) << 1
        | usize::from(cq_data == CqData::Yes) << 2
}

pub(crate) fn keys(wire: WireCaps, peer: PeerCaps) -> [SelectKey; 8] {
    let mut all = [SelectKey::new(Kind::Tagged, DeliveryComplete::No, wire, peer); 8];
    for kind in [Kind::Tagged, Kind::Untagged] {
        for sync in [DeliveryComplete::No, DeliveryComplete::Yes] {
            for cq_data in [CqData::No, CqData::Yes] {
                all[table_index(kind, sync, cq_data)] = SelectKey { kind, sync, cq_data, ..all[0] };
            }
        }
    }
    all
}

impl EpConfig {
    /// Protocol of a message. Looks up the kind of memory only if that makes a difference.
    // HOT
    #[inline]
    pub(crate) fn protocol(
        &self,
        at: usize,
        len: usize,
        is_allocated: impl FnOnce() -> bool,
        is_kernel_readable: impl FnOnce() -> bool,
        choose: impl FnOnce(CopyMethod) -> CopyMethod,
    ) -> Protocol {
        match (&self.allocated, &self.process) {
            (Some(tables), _) if len > tables[at].eager_max() && is_allocated() => tables[at].pick(len),
            (_, Some(process)) if len > process.tables[at].eager_max() && is_kernel_readable() => {
                match self.estimated_method(at, len) {
                    Some(estimate) => self.protocol_by(at, len, choose(estimate)),
                    None => process.tables[at].pick(len),
                }
            }
            _ => self.send[at].pick(len),
        }
    }

    /// Copy method by estimated cost, if the method is decided per message.
    pub(crate) fn estimated_method(&self, at: usize, len: usize) -> Option<CopyMethod> {
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

    pub(crate) fn protocol_by(&self, at: usize, len: usize, method: CopyMethod) -> Protocol {
        match (&self.process, method) {
            (Some(process), CopyMethod::Kernel) => process.read[at],
            _ => self.send[at].pick(len),
        }
    }

    /// Longest message sent in one packet from any memory, bytes; `None` if there is none.
    pub(crate) fn short_max(&self, at: usize) -> Option<usize> {
        let send = &self.send[at];
        let special = [self.allocated.as_deref(), self.process.as_ref().map(|process| &process.tables)];
        let all = special.into_iter().flatten().map(|tables| tables[at].eager_max());
        let all = all.fold(send.eager_max(), usize::min);
        (send.pick(0) == Protocol::Eager).then_some(all)
    }

    pub(crate) fn table(&self, at: usize, mem: MemKind) -> &Table {
        let special = match mem {
            MemKind::Host => None,
            MemKind::Process => self.process.as_ref().map(|process| &process.tables),
            MemKind::Allocated => self.allocated.as_deref(),
        };
        special.map_or(&self.send[at], |tables| &tables[at])
    }

    pub(crate) fn has_kernel_copy(&self) -> bool {
        self.process.is_some()
    }
}
