//! A queue pair of another host. Each attempt is pending until the far side's response has come.

use super::super::shm::Shm;
use super::super::{Msg, Rdma, RemoteQp, Sender, TryOutcome};
use super::Udp;
use super::nic::Target;
use std::cell::Cell;

/// A queue pair that datagrams reach.
pub struct UdpRemoteQp {
    udp: Udp,
    dev: Shm,
    iid: u64,
    qpn: u16,
    /// Of the attempt that follows: the far side checks it.
    qkey: Cell<u32>,
}

impl UdpRemoteQp {
    pub(super) fn new(udp: Udp, dev: Shm, iid: u64, qpn: u16) -> UdpRemoteQp {
        UdpRemoteQp { udp, dev, iid, qpn, qkey: Cell::new(0) }
    }

    fn target(&self) -> Target {
        Target { iid: self.iid, qpn: self.qpn, qkey: self.qkey.get() }
    }
}

impl RemoteQp for UdpRemoteQp {
    fn has_qkey(&self, qkey: u32) -> bool {
        self.qkey.set(qkey);
        true
    }

    fn send(&self, from: Sender, msg: &Msg<'_>) -> TryOutcome {
        self.udp.with_nic(|nic, now| nic.send(now, &self.target(), from, msg))
    }

    fn read(&self, from: Sender, op: &Rdma) -> TryOutcome {
        self.udp.with_nic(|nic, now| nic.read(now, (&self.target(), &self.dev), from, op))
    }

    fn write(&self, from: Sender, op: &Rdma, imm: Option<u32>) -> TryOutcome {
        self.udp.with_nic(|nic, now| nic.write(now, (&self.target(), &self.dev), from, op, imm))
    }
}
