//! EFA devices through libibverbs and libefa (feature `verbs`): real NICs, and the software device behind the
//! same ABI (`softefa run`). Building needs their headers and libclang.
//!
//! | file | what it holds |
//! |---|---|
//! | `context` | the device list; an opened device and its attributes |
//! | `ah`, `pd` | address handles; protection domains, memory regions |
//! | `cq`, `qp`, `wr_builder` | completion queues; queue pairs; building of a send work request |
//! | `status` | conversion of statuses and errors |
//! | `efadv` | declarations that rdma-sys lacks |

#![allow(unsafe_code)]

mod ah;
mod context;
mod cq;
mod efadv;
mod pd;
mod qp;
mod status;
#[cfg(test)]
mod tests;
mod wr_builder;

pub use ah::Ah;
pub use cq::Cq;
pub use pd::{Mr, Pd};
pub use qp::Qp;

use super::reachability::{self, HostId};
use super::{Channel, Dev, DevAttr, Gid, Placement, QpInit};
use crate::api::{Access, ConnectError, Error, OpenError};
use crate::base::alloc::{self, Backing};
use context::{Context, DeviceList, ListedDevice, PORT};
use cq::CqCore;
use pd::PdCore;
use qp::QpCore;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use ucs::mem::{FixedMap, MapOpts, Mapping, Pages};

/// An EFA device that [`open`] can open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerbsDevice {
    /// Name: device and port, such as `rdmap0s31:1`.
    pub name: String,
    /// One line of description.
    pub about: String,
    /// Whether it is the software device: its sysfs directory is not the kernel's.
    pub software: bool,
}

/// An opened device. Clones share its context.
#[derive(Clone)]
pub struct Device(Arc<Context>);

fn name_of(device: &ListedDevice<'_>) -> String {
    format!("{}:{PORT}", device.name())
}

/// Whether the device may be an EFA, by sysfs, and its node may be opened.
fn is_candidate(device: &ListedDevice<'_>) -> bool {
    let read = |file| std::fs::read_to_string(device.sysfs().join("device").join(file));
    let foreign = matches!(
        (read("vendor"), read("device")),
        (Ok(vendor), Ok(part)) if !super::nics::is_efa(&vendor, &part)
    );
    let node = Path::new("/dev/infiniband").join(device.node());
    !foreign && may_be_usable(&node)
}

/// Whether a device node is usable or absent. The software device behind the verbs ABI needs none. One system
/// call answers both: a preloaded library may answer one call and not another.
fn may_be_usable(node: &Path) -> bool {
    use rustix::fs::{Access, access};
    matches!(access(node, Access::READ_OK | Access::WRITE_OK), Ok(()) | Err(rustix::io::Errno::NOENT))
}

/// Lists the EFA devices that libibverbs finds and this process may open.
pub fn list() -> Vec<VerbsDevice> {
    let found = DeviceList::new();
    let candidates = found.iter().filter(is_candidate);
    candidates
        .filter_map(|device| {
            let name = name_of(&device);
            let ctx = device.open(name.clone()).ok()?;
            let (part, fw) = (ctx.attr.part_id, &ctx.attr.fw);
            let about = match ctx.software {
                true => format!("software EFA ({part:#x}, {fw}) behind the verbs ABI"),
                false => format!("EFA NIC ({part:#x}, firmware {fw}) through verbs"),
            };
            Some(VerbsDevice { name, about, software: ctx.software })
        })
        .collect()
}

/// Opens a device by name. Each call is a context with its own keys.
pub fn open(name: &str) -> Result<Device, OpenError> {
    let found = DeviceList::new();
    match found.iter().find(|device| name_of(device) == name) {
        Some(device) => Ok(Device(Arc::new(device.open(name.into())?))),
        None => {
            let known: Vec<String> = list().into_iter().map(|d| d.name).collect();
            let (transport, known) = ("efa".into(), known.join(", "));
            Err(OpenError::UnknownDevice { transport, name: name.into(), known })
        }
    }
}

impl Dev for Device {
    type Pd = Pd;
    type Mr = Mr;
    type Cq = Cq;
    type Qp = Qp;
    type Ah = Ah;

    fn attr(&self) -> &DevAttr {
        &self.0.attr
    }

    fn gid(&self) -> Gid {
        self.0.gid
    }

    /// Behind libibverbs there may be a software device, which its GID shows.
    fn check_reachable(&self, other: Gid) -> Result<(), ConnectError> {
        reachability::check(self.0.gid, HostId::current, other)
    }

    fn alloc_pd(&self) -> Result<Pd, OpenError> {
        Ok(Pd(Arc::new(PdCore::new(&self.0)?)))
    }

    fn alloc_mr_with(&self, pd: &Pd, len: usize, access: Access, place: Placement) -> Result<Mr, Error> {
        if len == 0 {
            return Err(Error::InvalidParam("a memory region has at least one byte"));
        }
        let opts = MapOpts { pages: Pages::Transparent, fill: place.fill };
        let memory = match place.at {
            Some(at) => FixedMap::anon(at, len, opts).map(Backing::Fixed),
            None => Mapping::new(len, opts).map(Backing::Map),
        };
        let memory = memory.map_err(alloc::error)?;
        let addr = memory.as_ptr();
        // SAFETY: the region owns the mapping and unmaps it after deregistration; no reference to it is made.
        unsafe { Mr::new(pd, addr, len, access, Some(memory)) }
    }

    unsafe fn reg_mr(&self, pd: &Pd, addr: *mut u8, len: usize, access: Access) -> Result<Mr, Error> {
        // SAFETY: the caller's promise is the same.
        unsafe { Mr::new(pd, addr, len, access, None) }
    }

    fn create_cq(&self, depth: u32, channel: Channel) -> Result<Cq, OpenError> {
        let max = self.0.attr.max_cqe;
        if depth == 0 || depth > max {
            let text = format!("a completion queue has 1 to {max} entries, not {depth}");
            return Err(OpenError::Config(text));
        }
        Ok(Cq(Rc::new(CqCore::new(&self.0, depth, channel)?)))
    }

    fn create_qp(&self, pd: &Pd, send_cq: &Cq, recv_cq: &Cq, init: &QpInit) -> Result<Qp, OpenError> {
        if !pd.0.belongs_to(&self.0) || !send_cq.0.belongs_to(&self.0) || !recv_cq.0.belongs_to(&self.0) {
            return Err(Error::InvalidParam("domain or queues of another device").into());
        }
        let core = QpCore::new(&self.0, pd, &send_cq.0, &recv_cq.0, init)?;
        Ok(Qp::new(core, send_cq.0.clone(), recv_cq.0.clone()))
    }

    fn create_ah(&self, pd: &Pd, gid: Gid) -> Result<Ah, Error> {
        pd.0.create_ah(gid)
    }

    fn destroy_ah(&self, pd: &Pd, ah: Ah) {
        pd.0.destroy_ah(ah);
    }
}
