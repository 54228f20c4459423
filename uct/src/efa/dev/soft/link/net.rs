//! The link of processes that may be on other hosts: shared memory to those that it reaches, UDP to others.
//! Which of the two is found out by reaching for the peer's queue pair, not by comparing names of hosts.

use super::shm::{Shm, ShmCompChannel, ShmRecvQueue, ShmRemoteQp};
use super::udp::{Udp, UdpRemoteQp, node_of};
use super::{Channel, Link, Msg, Progress, Rdma, RecvQueueInit, RemoteQp, Sender, TryOutcome};
use crate::api::{ConnectError, DeviceCounters, Error, OpenError};
use crate::efa::dev::soft::mr::{Memory, MrTable, Region};
use crate::efa::dev::{DevStatus, Gid, Placement, QpKind};
use std::cell::Cell;
use std::rc::Weak;

/// Connection of one device to processes of this host and, if a NIC is there, of others.
#[derive(Clone)]
pub struct Net {
    shm: Shm,
    udp: Option<Udp>,
}

impl Net {
    pub(in crate::efa::dev::soft) fn new(shm: Shm, udp: Option<Udp>) -> Net {
        if let Some(udp) = &udp {
            udp.add_context(&shm);
        }
        Net { shm, udp }
    }

    /// The part that reaches other hosts, if there is one.
    pub fn udp(&self) -> Option<&Udp> {
        self.udp.as_ref()
    }

    /// Resolves a queue pair when there are two ways.
    fn resolve_beyond(&self, udp: &Udp, iid: u64, qpn: u16, kind: QpKind) -> Result<NetRemoteQp, TryOutcome> {
        let goes_by_udp = iid != self.shm.iid() && node_of(iid).is_some();
        if !goes_by_udp {
            return self.shm.resolve(iid, qpn, kind).map(NetRemoteQp::Shm);
        }
        if !udp.udp_only() {
            let quietly = |why: &str| tracing::debug!("fe80::{iid:x} is not reached by shared memory: {why}");
            match self.shm.resolve_or(iid, qpn, kind, quietly) {
                Ok(qp) => return Ok(NetRemoteQp::Shm(qp)),
                // Shared memory knows each queue pair of this host.
                Err(TryOutcome::Done(DevStatus::BadDestQpn)) if udp.is_here(iid) => {
                    return Err(TryOutcome::Done(DevStatus::BadDestQpn));
                }
                Err(TryOutcome::Busy) => return Err(TryOutcome::Busy),
                Err(_) => {}
            }
        }
        Ok(NetRemoteQp::Udp(udp.remote(&self.shm, iid, qpn)))
    }
}

/// A remote queue pair, and how it is reached.
#[expect(clippy::large_enum_variant, reason = "the way on this host is the fast one, without indirection")]
pub enum NetRemoteQp {
    /// By shared memory.
    Shm(ShmRemoteQp),
    /// By datagrams.
    Udp(UdpRemoteQp),
}

impl RemoteQp for NetRemoteQp {
    // HOT
    #[inline]
    fn has_qkey(&self, qkey: u32) -> bool {
        match self {
            NetRemoteQp::Shm(qp) => qp.has_qkey(qkey),
            NetRemoteQp::Udp(qp) => qp.has_qkey(qkey),
        }
    }

    fn is_gone(&self) -> bool {
        match self {
            NetRemoteQp::Shm(qp) => qp.is_gone(),
            NetRemoteQp::Udp(qp) => qp.is_gone(),
        }
    }

    // HOT
    #[inline]
    fn send(&self, from: Sender, msg: &Msg<'_>) -> TryOutcome {
        match self {
            NetRemoteQp::Shm(qp) => qp.send(from, msg),
            NetRemoteQp::Udp(qp) => qp.send(from, msg),
        }
    }

    #[inline]
    fn read(&self, from: Sender, op: &Rdma) -> TryOutcome {
        match self {
            NetRemoteQp::Shm(qp) => qp.read(from, op),
            NetRemoteQp::Udp(qp) => qp.read(from, op),
        }
    }

    #[inline]
    fn write(&self, from: Sender, op: &Rdma, imm: Option<u32>) -> TryOutcome {
        match self {
            NetRemoteQp::Shm(qp) => qp.write(from, op, imm),
            NetRemoteQp::Udp(qp) => qp.write(from, op, imm),
        }
    }

    fn await_given_up(&self) {
        match self {
            NetRemoteQp::Shm(qp) => qp.await_given_up(),
            NetRemoteQp::Udp(qp) => qp.await_given_up(),
        }
    }
}

impl Link for Net {
    const SERVES_THREADS: bool = Shm::SERVES_THREADS;

    type RecvQueue = ShmRecvQueue;
    type RemoteQp = NetRemoteQp;
    type CompChannel = ShmCompChannel;

    #[inline]
    fn iid(&self) -> u64 {
        self.shm.iid()
    }

    fn check_reachable(&self, other: Gid) -> Result<(), ConnectError> {
        let hint = |why| if why == ConnectError::OtherHost { ConnectError::NoNetwork } else { why };
        self.shm.check_reachable(other).map_err(hint)
    }

    #[inline]
    fn regions(&self) -> &MrTable {
        self.shm.regions()
    }

    fn alloc(&self, len: usize, place: Placement) -> Result<(Memory, Option<i32>), Error> {
        self.shm.alloc(len, place)
    }

    fn open_recv_queue(
        &self,
        init: RecvQueueInit<ShmCompChannel>,
        free: &dyn Fn(u16) -> bool,
    ) -> Result<ShmRecvQueue, OpenError> {
        self.shm.open_recv_queue(init, free)
    }

    #[cold]
    fn resolve(&self, iid: u64, qpn: u16, kind: QpKind) -> Result<NetRemoteQp, TryOutcome> {
        match &self.udp {
            Some(udp) => self.resolve_beyond(udp, iid, qpn, kind),
            None => self.shm.resolve(iid, qpn, kind).map(NetRemoteQp::Shm),
        }
    }

    fn create_channel(&self, channel: Channel) -> Result<Option<ShmCompChannel>, OpenError> {
        self.shm.create_channel(channel)
    }

    fn set_peer_known(&self, iid: u64, known: bool) -> Result<(), Error> {
        self.shm.set_peer_known(iid, known)
    }

    fn is_owner_process(&self) -> bool {
        Link::is_owner_process(&self.shm)
    }

    // HOT
    #[inline]
    fn on_poll(&self, polls: &Cell<u64>) {
        self.shm.on_poll(polls);
        if let Some(udp) = &self.udp {
            udp.on_poll(polls.get());
        }
    }

    fn counters(&self) -> Vec<DeviceCounters> {
        self.udp.as_ref().map_or_else(Vec::new, Udp::counters)
    }

    #[inline]
    fn ticks(&self, polls: &Cell<u64>) -> u64 {
        self.shm.ticks(polls)
    }

    fn clock(&self) -> u64 {
        self.shm.clock()
    }

    fn retry_ticks(&self, interval_ns: u64) -> u64 {
        self.shm.retry_ticks(interval_ns)
    }

    fn register_progress(&self, progress: Weak<dyn Progress>) {
        self.shm.register_progress(progress);
    }

    fn go_down(&self) -> bool {
        self.shm.go_down()
    }

    // HOT
    #[inline]
    fn is_down(&self) -> bool {
        self.shm.is_down()
    }

    #[inline]
    fn alive(&self) -> bool {
        self.shm.alive()
    }

    // HOT
    #[inline]
    fn has_offers(&self) -> bool {
        self.shm.has_offers()
    }

    #[cold]
    fn join_copy(&self) {
        Link::join_copy(&self.shm);
    }

    fn next_outcome(&self, qpn: u16) -> Option<(u32, TryOutcome)> {
        self.udp.as_ref()?.next_outcome(qpn)
    }

    fn give_up_pending(&self, qpn: u16) {
        if let Some(udp) = &self.udp {
            udp.give_up(qpn);
        }
    }

    fn on_qp_created(&self) {
        if let Some(udp) = &self.udp {
            udp.on_qp_created();
        }
    }

    fn on_qp_destroyed(&self) {
        if let Some(udp) = &self.udp {
            udp.on_qp_destroyed();
        }
    }

    fn await_copies(&self, key: u32, region: &Region) {
        self.shm.await_copies(key, region);
        if let Some(udp) = &self.udp {
            udp.await_copies();
        }
    }
}
