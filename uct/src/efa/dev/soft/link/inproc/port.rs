//! A queue pair on a fabric: its receive side, and the way of others to it. Delivery is a copy between two registered
//! regions of this process. Called by the object model; never moves time.

use super::{EventChannel, Fabric, Node};
use crate::api::Access;
use crate::efa::dev::soft::link::{From, Msg, Peer, Posted, Rdma, Rx, Verdict, Wake};
use crate::efa::dev::{Cqe, CqeOp, DevStatus, Gid, QpKind};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// Arrivals of unsolicited writes a queue pair holds before it blocks the way.
const MAX_UNSOLICITED: usize = 4096;

/// One queue pair as the fabric keeps it.
pub(super) struct Port {
    pub(super) qpn: u16,
    pub(super) kind: QpKind,
    pub(super) pd: u32,
    pub(super) qkey: Cell<u32>,
    pub(super) unsolicited: bool,
    pub(super) node: Rc<Node>,
    pub(super) posted: RefCell<VecDeque<Posted>>,
    /// Each with the receive it used up.
    pub(super) arrived: RefCell<VecDeque<(Cqe, Option<Posted>)>>,
    /// Arrivals that used up a receive and were not polled.
    pub(super) taken: Cell<u32>,
    pub(super) closed: Cell<bool>,
    pub(super) armed: Cell<bool>,
    pub(super) wake: Option<Rc<EventChannel>>,
}

impl Port {
    fn arrive(&self, cqe: Cqe, used: Option<Posted>) {
        self.arrived.borrow_mut().push_back((cqe, used));
        if used.is_some() {
            self.taken.set(self.taken.get() + 1);
        }
        if self.armed.replace(false)
            && let Some(wake) = &self.wake
        {
            wake.signal();
        }
    }
}

/// Receive side of a queue pair.
pub struct InRx {
    pub(super) port: Rc<Port>,
    pub(super) fabric: Fabric,
}

impl Drop for InRx {
    fn drop(&mut self) {
        self.port.closed.set(true);
        let mut ports = self.fabric.0.ports.borrow_mut();
        let at = (self.port.node.iid, self.port.qpn);
        if ports.get(&at).is_some_and(|p| Rc::ptr_eq(p, &self.port)) {
            ports.remove(&at);
        }
    }
}

impl Rx for InRx {
    fn qpn(&self) -> u16 {
        self.port.qpn
    }

    fn set_qkey(&self, qkey: u32) {
        self.port.qkey.set(qkey);
    }

    fn post(&self, posted: Posted) {
        self.port.posted.borrow_mut().push_back(posted);
    }

    fn outstanding(&self) -> u32 {
        self.port.posted.borrow().len() as u32 + self.port.taken.get()
    }

    fn poll(&self, out: &mut [Cqe], saw: &mut impl FnMut(&mut Cqe, Option<&Posted>)) -> usize {
        let mut arrived = self.port.arrived.borrow_mut();
        let n = arrived.len().min(out.len());
        for (to, (mut cqe, used)) in out.iter_mut().zip(arrived.drain(..n)) {
            saw(&mut cqe, used.as_ref());
            *to = cqe;
            self.port.taken.set(self.port.taken.get() - u32::from(used.is_some()));
        }
        n
    }

    fn ready(&self) -> bool {
        !self.port.arrived.borrow().is_empty()
    }

    fn stalled(&self) -> bool {
        false
    }

    fn arm(&self, armed: bool) {
        self.port.armed.set(armed);
    }

    fn close(&self, each: &mut dyn FnMut(Posted)) {
        self.port.closed.set(true);
        let posted = std::mem::take(&mut *self.port.posted.borrow_mut());
        posted.into_iter().for_each(each);
    }

    fn upkeep(&self) {}
}

/// Way to a queue pair: the port itself.
pub struct InPeer {
    pub(super) me: Rc<Node>,
    pub(super) port: Rc<Port>,
    pub(super) fabric: Fabric,
}

impl InPeer {
    fn carried_out(&self) -> Verdict {
        self.fabric.count_delivery();
        Verdict::Done(DevStatus::Ok)
    }

    /// Why nothing arrives there any more, if so.
    fn lost(&self) -> Option<DevStatus> {
        match (self.port.node.down.get(), self.port.closed.get()) {
            (true, _) => Some(DevStatus::Unresponsive),
            (_, true) => Some(DevStatus::BadDestQpn),
            _ => None,
        }
    }

    /// The remote memory of an RDMA operation, if the target allows it.
    fn remote(&self, from: From, op: &Rdma, need: Access) -> Result<*mut u8, Verdict> {
        let node = &self.port.node;
        if self.me.dead.get() {
            return Err(Verdict::Busy);
        }
        if let Some(status) = self.lost() {
            return Err(Verdict::Done(status));
        }
        if node.strict && !node.known.borrow().contains_key(&from.iid.to_ne_bytes()) {
            return Err(Verdict::Done(DevStatus::UnknownPeer));
        }
        if !node.table.allows(op.rkey, self.port.pd, op.raddr, u64::from(op.len), need) {
            return Err(Verdict::Done(DevStatus::RemoteBadAddress));
        }
        Ok(op.raddr as *mut u8)
    }
}

/// Copies `len` bytes that may overlap: a process may write into its own memory.
///
/// # Safety
/// `src` readable and `dst` writable for `len` bytes.
unsafe fn copy(src: *const u8, dst: *mut u8, len: u32) {
    if len > 0 {
        // SAFETY: by this function's contract.
        unsafe { std::ptr::copy(src, dst, len as usize) }
    }
}

impl Peer for InPeer {
    fn qkey(&self) -> u32 {
        self.port.qkey.get()
    }

    fn send(&self, from: From, msg: &Msg<'_>) -> Verdict {
        let port = &*self.port;
        if self.me.dead.get() {
            return Verdict::Busy;
        }
        if let Some(status) = self.lost() {
            return Verdict::Done(status);
        }
        let Some(&posted) = port.posted.borrow().front() else { return Verdict::NotReady };
        let long = msg.len() > posted.cap;
        if long && from.kind == QpKind::Ud {
            return Verdict::Done(DevStatus::RemoteBadLength);
        }
        port.posted.borrow_mut().pop_front();
        let table = &port.node.table;
        let still = table.allows(
            posted.lkey,
            port.pd,
            posted.addr as u64,
            u64::from(posted.cap),
            Access::LOCAL_WRITE,
        );
        let mut cqe = Cqe {
            wr_id: posted.wr_id,
            status: DevStatus::Ok,
            op: CqeOp::Recv,
            qpn: port.qpn,
            src_qpn: from.qpn,
            len: msg.len(),
            src_gid: Gid::link_local(from.iid),
            imm: msg.imm,
        };
        if long {
            cqe.status = DevStatus::BadLength;
            port.arrive(cqe, Some(posted));
            return Verdict::Done(DevStatus::RemoteBadLength);
        }
        if !still {
            cqe.status = DevStatus::InvalidLkey;
            port.arrive(cqe, Some(posted));
            return Verdict::Done(DevStatus::RemoteAbort);
        }
        // SAFETY: the posted range is a live registration for local writes (checked just now) and has room for the
        // message (checked above).
        unsafe { msg.copy_to(posted.addr) };
        port.arrive(cqe, Some(posted));
        self.carried_out()
    }

    fn read(&self, from: From, op: &Rdma) -> Verdict {
        match self.remote(from, op, Access::REMOTE_READ) {
            Err(verdict) => verdict,
            Ok(remote) => {
                // SAFETY: the local range was checked against its key by the caller, the remote one just now; both
                // registrations are live and of this process.
                unsafe { copy(remote, op.local, op.len) };
                self.carried_out()
            }
        }
    }

    fn write(&self, from: From, op: &Rdma, imm: Option<u32>) -> Verdict {
        let port = &*self.port;
        let remote = match self.remote(from, op, Access::REMOTE_WRITE) {
            Err(verdict) => return verdict,
            Ok(remote) => remote,
        };
        if imm.is_some() && !port.unsolicited && port.posted.borrow().is_empty() {
            return Verdict::NotReady;
        }
        if imm.is_some() && port.unsolicited && port.arrived.borrow().len() >= MAX_UNSOLICITED {
            return Verdict::Busy;
        }
        // SAFETY: as in `read`, the other way round.
        unsafe { copy(op.local, remote, op.len) };
        if imm.is_some() {
            let taken = if port.unsolicited { None } else { port.posted.borrow_mut().pop_front() };
            let cqe = Cqe {
                wr_id: taken.map_or(0, |p| p.wr_id),
                status: DevStatus::Ok,
                op: CqeOp::RecvWriteImm,
                qpn: port.qpn,
                src_qpn: from.qpn,
                len: op.total,
                src_gid: Gid::link_local(from.iid),
                imm,
            };
            port.arrive(cqe, taken);
        }
        self.carried_out()
    }
}
