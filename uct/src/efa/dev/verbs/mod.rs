//! EFA devices through libibverbs and libefa: real NICs, and the software device behind the same ABI (`softefa run`).
//!
//! Feature `verbs`. Called by the run-time choice and by tests through the device trait; nothing above it knows which
//! device it is on. Needs libibverbs and libefa at run time, and to build their headers and libclang.
//!
//! | file | what it holds |
//! |---|---|
//! | `context` | the list of devices; an opened one and its attributes |
//! | `pd` | protection domains, address handles, memory regions |
//! | `cq`, `qp`, `request` | completion queues; queue pairs; one send in the library's words |
//! | `status` | verbs' numbers in our terms |
//! | `efadv` | what rdma-sys does not declare |

mod context;
mod cq;
mod efadv;
mod pd;
mod qp;
mod status;
#[cfg(test)]
mod tests;
mod wr_builder;

pub use cq::Cq;
pub use pd::{Ah, Mr, Pd};
pub use qp::Qp;

use super::reachability::{self, HostId};
use super::{Channel, Dev, DevAttr, Gid, QpInit};
use crate::api::{Access, ConnectError, Error, OpenError};
use context::{Context, DeviceList, ListedDevice, PORT};
use cq::CqCore;
use pd::PdCore;
use qp::QpCore;
use std::path::Path;
use std::rc::Rc;
use ucs::mem::{MapOpts, Mapping, Pages};

/// An EFA device that [`open`] can open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerbsDevice {
    /// Name: device and port, such as `rdmap0s31:1`.
    pub name: String,
    /// One line for people.
    pub about: String,
    /// Whether it is the software device behind the same ABI: its directory in sysfs is not the kernel's.
    pub software: bool,
}

/// An opened device. Clones are the same context.
#[derive(Clone)]
pub struct Device(Rc<Context>);

fn name_of(device: &ListedDevice<'_>) -> String {
    format!("{}:{PORT}", device.name())
}

/// Whether it is worth opening: an EFA by what sysfs says of it, or of a kind that sysfs does not tell, and a node
/// that this process may use.
fn is_candidate(device: &ListedDevice<'_>) -> bool {
    let read = |file| std::fs::read_to_string(device.sysfs().join("device").join(file));
    let foreign = matches!(
        (read("vendor"), read("device")),
        (Ok(vendor), Ok(part)) if !super::nics::is_efa(&vendor, &part)
    );
    let node = Path::new("/dev/infiniband").join(device.node());
    !foreign && (!node.exists() || super::nics::is_usable(&node))
}

/// The EFA devices that libibverbs finds and this process may open, in its order.
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

/// Opens a device by its name. Each call is a context of its own, with its own keys.
pub fn open(name: &str) -> Result<Device, OpenError> {
    let found = DeviceList::new();
    match found.iter().find(|device| name_of(device) == name) {
        Some(device) => Ok(Device(Rc::new(device.open(name.into())?))),
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

    /// Behind libibverbs there may be a software device: its GID says so.
    fn check_reachable(&self, other: Gid) -> Result<(), ConnectError> {
        reachability::check(self.0.gid, HostId::current, other)
    }

    fn alloc_pd(&self) -> Result<Pd, OpenError> {
        Ok(Pd(Rc::new(PdCore::new(&self.0)?)))
    }

    /// Pages of its own, whose bytes are zero.
    fn alloc_mr(&self, pd: &Pd, len: usize, access: Access) -> Result<Mr, Error> {
        if len == 0 {
            return Err(Error::InvalidParam("a memory region has at least one byte"));
        }
        let opts = MapOpts { pages: Pages::Transparent, ..MapOpts::default() };
        let memory = Mapping::new(len, opts).map_err(|_| Error::NoMemory)?;
        let addr = memory.as_ptr();
        // SAFETY: the mapping goes into the region, which unmaps it after the registration has ended; no reference to
        // it is ever made.
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
