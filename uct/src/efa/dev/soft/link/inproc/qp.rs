//! A queue pair on a fabric. Delivery is a copy between two registered regions of this process.

#![allow(unsafe_code)]

use super::{Fabric, InprocCompChannel, Node};
use crate::api::Access;
use crate::efa::dev::soft::link::{
    CompChannel, Msg, PostedRecv, Rdma, RecvQueue, RemoteQp, Sender, TryOutcome,
};
use crate::efa::dev::{Cqe, CqeOp, DevStatus, Gid, QpKind};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

/// Unsolicited arrivals held before senders are blocked.
const MAX_UNSOLICITED: usize = 4096;

pub(super) struct FabricQp {
    pub(super) qpn: u16,
    pub(super) kind: QpKind,
    pub(super) pd: u32,
    pub(super) qkey: Cell<u32>,
    pub(super) unsolicited: bool,
    pub(super) node: Arc<Node>,
    pub(super) posted: RefCell<VecDeque<PostedRecv>>,
    pub(super) arrived: RefCell<VecDeque<(Cqe, Option<PostedRecv>)>>,
    /// Arrivals that consumed a receive and were not polled.
    pub(super) taken: Cell<u32>,
    pub(super) closed: Cell<bool>,
    pub(super) armed: Cell<bool>,
    pub(super) channel: Option<Arc<InprocCompChannel>>,
}

impl FabricQp {
    fn arrive(&self, cqe: Cqe, used: Option<PostedRecv>) {
        self.arrived.borrow_mut().push_back((cqe, used));
        if used.is_some() {
            self.taken.set(self.taken.get() + 1);
        }
        if self.armed.replace(false)
            && let Some(channel) = &self.channel
        {
            channel.signal();
        }
    }
}

/// Receive queue of a queue pair.
pub struct InprocRecvQueue {
    pub(super) qp: Rc<FabricQp>,
    pub(super) fabric: Fabric,
}

impl Drop for InprocRecvQueue {
    fn drop(&mut self) {
        self.qp.closed.set(true);
        let mut qps = self.fabric.0.qps.borrow_mut();
        let at = (self.qp.node.iid, self.qp.qpn);
        if qps.get(&at).is_some_and(|p| Rc::ptr_eq(p, &self.qp)) {
            qps.remove(&at);
        }
    }
}

impl RecvQueue for InprocRecvQueue {
    fn qpn(&self) -> u16 {
        self.qp.qpn
    }

    fn set_qkey(&self, qkey: u32) {
        self.qp.qkey.set(qkey);
    }

    fn post(&self, posted: PostedRecv) {
        self.qp.posted.borrow_mut().push_back(posted);
    }

    fn outstanding(&self) -> u32 {
        self.qp.posted.borrow().len() as u32 + self.qp.taken.get()
    }

    fn poll(&self, out: &mut [Cqe], inspect: &mut impl FnMut(&mut Cqe, Option<&PostedRecv>)) -> usize {
        let mut arrived = self.qp.arrived.borrow_mut();
        let n = arrived.len().min(out.len());
        for (to, (mut cqe, used)) in out.iter_mut().zip(arrived.drain(..n)) {
            inspect(&mut cqe, used.as_ref());
            *to = cqe;
            self.qp.taken.set(self.qp.taken.get() - u32::from(used.is_some()));
        }
        n
    }

    fn ready(&self) -> bool {
        !self.qp.arrived.borrow().is_empty()
    }

    fn has_unpublished(&self) -> bool {
        false
    }

    fn arm(&self, armed: bool) {
        self.qp.armed.set(armed);
    }

    fn close(&self, each: &mut dyn FnMut(PostedRecv)) {
        self.qp.closed.set(true);
        let posted = std::mem::take(&mut *self.qp.posted.borrow_mut());
        posted.into_iter().for_each(each);
    }

    fn upkeep(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

/// A remote queue pair.
pub struct InprocRemoteQp {
    pub(super) me: Arc<Node>,
    pub(super) qp: Rc<FabricQp>,
    pub(super) fabric: Fabric,
}

impl InprocRemoteQp {
    fn delivered(&self) -> TryOutcome {
        self.fabric.count_delivery();
        TryOutcome::Done(DevStatus::Ok)
    }

    fn dead_status(&self) -> Option<DevStatus> {
        match (self.qp.node.is_down(), self.qp.closed.get()) {
            (true, _) => Some(DevStatus::Unresponsive),
            (_, true) => Some(DevStatus::BadDestQpn),
            _ => None,
        }
    }

    fn remote(&self, from: Sender, op: &Rdma, need: Access) -> Result<*mut u8, TryOutcome> {
        let node = &self.qp.node;
        if self.me.is_dead() {
            return Err(TryOutcome::Busy);
        }
        if let Some(status) = self.dead_status() {
            return Err(TryOutcome::Done(status));
        }
        if node.strict && !node.known_gids().contains_key(&from.iid.to_ne_bytes()) {
            return Err(TryOutcome::Done(DevStatus::UnknownPeer));
        }
        if !node.table.allows(op.rkey, self.qp.pd, op.raddr, u64::from(op.len), need) {
            return Err(TryOutcome::Done(DevStatus::RemoteBadAddress));
        }
        Ok(op.raddr as *mut u8)
    }
}

/// Copies `len` bytes that may overlap. Unsafe: `src` is readable and `dst` writable for `len` bytes.
unsafe fn copy(src: *const u8, dst: *mut u8, len: u32) {
    if len > 0 {
        // SAFETY: by this function's contract.
        unsafe { std::ptr::copy(src, dst, len as usize) }
    }
}

impl RemoteQp for InprocRemoteQp {
    fn has_qkey(&self, qkey: u32) -> bool {
        self.qp.qkey.get() == qkey
    }

    fn send(&self, from: Sender, msg: &Msg<'_>) -> TryOutcome {
        self.fabric.tell((from.iid, from.qpn), self.send_now(from, msg))
    }

    fn read(&self, from: Sender, op: &Rdma) -> TryOutcome {
        self.fabric.tell((from.iid, from.qpn), self.read_now(from, op))
    }

    fn write(&self, from: Sender, op: &Rdma, imm: Option<u32>) -> TryOutcome {
        self.fabric.tell((from.iid, from.qpn), self.write_now(from, op, imm))
    }
}

impl InprocRemoteQp {
    fn send_now(&self, from: Sender, msg: &Msg<'_>) -> TryOutcome {
        let qp = &*self.qp;
        if self.me.is_dead() {
            return TryOutcome::Busy;
        }
        if let Some(status) = self.dead_status() {
            return TryOutcome::Done(status);
        }
        let Some(&posted) = qp.posted.borrow().front() else { return TryOutcome::NotReady };
        let too_long = msg.len() > posted.cap;
        if too_long && from.kind == QpKind::Ud {
            return TryOutcome::Done(DevStatus::RemoteBadLength);
        }
        qp.posted.borrow_mut().pop_front();
        let table = &qp.node.table;
        let lkey_valid =
            table.allows(posted.lkey, qp.pd, posted.addr as u64, u64::from(posted.cap), Access::LOCAL_WRITE);
        let mut cqe = Cqe {
            wr_id: posted.wr_id,
            status: DevStatus::Ok,
            op: CqeOp::Recv,
            qpn: qp.qpn,
            src_qpn: from.qpn,
            len: msg.len(),
            src_gid: Gid::link_local(from.iid),
            imm: msg.imm,
        };
        if too_long {
            cqe.status = DevStatus::BadLength;
            qp.arrive(cqe, Some(posted));
            return TryOutcome::Done(DevStatus::RemoteBadLength);
        }
        if !lkey_valid {
            cqe.status = DevStatus::InvalidLkey;
            qp.arrive(cqe, Some(posted));
            return TryOutcome::Done(DevStatus::RemoteAbort);
        }
        // SAFETY: the posted range is a live registration for local writes with room for the message (both
        // checked above).
        if !unsafe { msg.copy_to(posted.addr) } {
            qp.posted.borrow_mut().push_front(posted);
            return TryOutcome::Done(DevStatus::InvalidLkey);
        }
        qp.arrive(cqe, Some(posted));
        self.delivered()
    }

    fn read_now(&self, from: Sender, op: &Rdma) -> TryOutcome {
        match self.remote(from, op, Access::REMOTE_READ) {
            Err(outcome) => outcome,
            Ok(remote) => {
                // SAFETY: the caller checked the local range, and the remote one was checked just now; both
                // registrations are live and of this process.
                unsafe { copy(remote, op.local, op.len) };
                self.delivered()
            }
        }
    }

    fn write_now(&self, from: Sender, op: &Rdma, imm: Option<u32>) -> TryOutcome {
        let qp = &*self.qp;
        let remote = match self.remote(from, op, Access::REMOTE_WRITE) {
            Err(outcome) => return outcome,
            Ok(remote) => remote,
        };
        if imm.is_some() && !qp.unsolicited && qp.posted.borrow().is_empty() {
            return TryOutcome::NotReady;
        }
        if imm.is_some() && qp.unsolicited && qp.arrived.borrow().len() >= MAX_UNSOLICITED {
            return TryOutcome::Busy;
        }
        // SAFETY: as in `read`, the other way round.
        unsafe { copy(op.local, remote, op.len) };
        if imm.is_some() {
            let taken = if qp.unsolicited { None } else { qp.posted.borrow_mut().pop_front() };
            let cqe = Cqe {
                wr_id: taken.map_or(0, |p| p.wr_id),
                status: DevStatus::Ok,
                op: CqeOp::RecvWriteImm,
                qpn: qp.qpn,
                src_qpn: from.qpn,
                len: op.total,
                src_gid: Gid::link_local(from.iid),
                imm,
            };
            qp.arrive(cqe, taken);
        }
        self.delivered()
    }
}
