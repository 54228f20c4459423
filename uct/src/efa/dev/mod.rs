//! The device trait: what SRD hardware does, in verbs' terms. Implemented by the software device (`soft`) and
//! the verbs backend (`verbs`, a feature).
//!
//! It covers protection domains, memory regions with keys and bounds, finite queue pairs, completion queues,
//! address handles, 16-bit queue pair numbers, GIDs, q-keys, an MTU, inline sends, RNR, RDMA read and write,
//! and write with immediate. Nothing is ordered. The choice of device is static (generics), so that the soft
//! path inlines.

#![allow(unsafe_code)]

pub mod nics;
pub mod reachability;
pub mod soft;
#[cfg(feature = "verbs")]
pub mod verbs;

use crate::api::{Access, ConnectError, DeviceCounters, Linear, OpenError, RmaPerf};
use num_enum::{IntoPrimitive, TryFromPrimitive};
use std::any::Any;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use ucs::mem::Fill;

/// A 16-byte global identifier: link-local prefix `fe80::/64` and an interface id in the low eight bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Creates `fe80::` followed by `iid`, big endian.
    pub const fn link_local(iid: u64) -> Self {
        let b = iid.to_be_bytes();
        Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])
    }

    /// The interface id: the low eight bytes, which distinguish the devices of a fabric.
    pub const fn iid(&self) -> u64 {
        let g = &self.0;
        u64::from_be_bytes([g[8], g[9], g[10], g[11], g[12], g[13], g[14], g[15]])
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::net::Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Completion status codes of the EFA device (its `vendor_err`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoPrimitive, TryFromPrimitive)]
#[repr(u8)]
pub enum DevStatus {
    /// Success.
    Ok = 0,
    /// The queue pair went to the error state, or was destroyed.
    Flushed = 1,
    /// Internal error of the queue pair.
    QpInternal = 2,
    /// The queue pair or device does not have this operation.
    UnsupportedOp = 3,
    /// No such address handle.
    InvalidAh = 4,
    /// The local key does not cover the range or the access.
    InvalidLkey = 5,
    /// Local length error: longer than the MTU or the RDMA limit; of a receive: shorter than its message.
    BadLength = 6,
    /// The remote key does not cover the range or the access.
    RemoteBadAddress = 7,
    /// The remote side reset the connection.
    RemoteAbort = 8,
    /// No such queue pair at the destination, wrong q-key, or dead process.
    BadDestQpn = 9,
    /// No receive was posted at the destination and retries are exhausted.
    Rnr = 10,
    /// The receive buffer at the destination is too short.
    RemoteBadLength = 11,
    /// Invalid response.
    BadStatus = 12,
    /// The peer answered before and no longer does.
    Unresponsive = 13,
    /// The target has no address handle of the initiator: RDMA refused.
    UnknownPeer = 14,
    /// The peer never answered.
    Unreachable = 15,
    /// The two devices' features do not match.
    FeatureMismatch = 18,
}

/// Operation that a completion queue entry completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CqeOp {
    /// A send.
    Send,
    /// An RDMA read.
    Read,
    /// An RDMA write.
    Write,
    /// A message arrived and consumed a receive.
    Recv,
    /// A write with immediate arrived; it consumed a receive unless taken unsolicited (`wr_id` 0).
    RecvWriteImm,
}

/// A completion queue entry.
#[derive(Clone, Copy, Debug)]
pub struct Cqe {
    /// Work request id.
    pub wr_id: u64,
    /// Completion status.
    pub status: DevStatus,
    /// Completed operation.
    pub op: CqeOp,
    /// Local queue pair.
    pub qpn: u16,
    /// Receives: the sender's queue pair.
    pub src_qpn: u16,
    /// Receives: length, bytes.
    pub len: u32,
    /// Receives: the sender's GID.
    pub src_gid: Gid,
    /// Receives: immediate data.
    pub imm: Option<u32>,
}

impl Cqe {
    /// Initial value of an array that a poll fills.
    pub const EMPTY: Cqe = Cqe {
        wr_id: 0,
        status: DevStatus::Ok,
        op: CqeOp::Send,
        qpn: 0,
        src_qpn: 0,
        len: 0,
        src_gid: Gid([0; 16]),
        imm: None,
    };
}

/// A scatter-gather element: a range of registered local memory.
#[derive(Clone, Copy, Debug)]
pub struct Sge {
    /// First byte.
    pub addr: *mut u8,
    /// Bytes.
    pub len: u32,
    /// Local key of the region it lies in.
    pub lkey: u32,
}

/// Destination of a request.
#[derive(Clone, Copy, Debug)]
pub struct Dest<A> {
    /// Address handle of the peer's GID.
    pub ah: A,
    /// Queue pair number of the peer.
    pub qpn: u16,
    /// Q-key of the peer.
    pub qkey: u32,
}

/// Kinds of queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpKind {
    /// Scalable reliable datagram.
    Srd,
    /// Unreliable datagram.
    Ud,
}

/// Attributes of a new queue pair. The device rounds the depths up and reports the result.
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// Kind.
    pub kind: QpKind,
    /// Send queue depth, work requests.
    pub send_depth: u32,
    /// Receive queue depth, work requests.
    pub recv_depth: u32,
    /// Q-key of the queue pair.
    pub qkey: u32,
    /// Retries when the receiver is not ready: 0 to 6, or 7 for ever.
    pub rnr_retry: u8,
    /// Whether writes with immediate consume no receive.
    pub unsolicited_write_recv: bool,
}

/// Attributes of a device.
#[derive(Clone, PartialEq, Debug)]
pub struct DevAttr {
    /// Name.
    pub name: String,
    /// PCI vendor part id: 0xefa0 to 0xefa3.
    pub part_id: u32,
    /// Firmware version text.
    pub fw: String,
    /// Longest message, bytes.
    pub mtu: u32,
    /// Longest inline send, bytes.
    pub max_inline: u32,
    /// Longest RDMA operation, bytes; 0 without RDMA.
    pub max_rdma: u32,
    /// Whether the device has RDMA read.
    pub rdma_read: bool,
    /// Whether the device has RDMA write.
    pub rdma_write: bool,
    /// Whether a queue pair may take writes with immediate unsolicited.
    pub unsolicited_write_recv: bool,
    /// Whether the number of RNR retries can be set.
    pub rnr_retry: bool,
    /// Most queue pairs; queue pair numbers are distinct modulo the next power of two.
    pub max_qp: u32,
    /// Deepest send queue.
    pub max_send_depth: u32,
    /// Deepest receive queue.
    pub max_recv_depth: u32,
    /// Most entries of a completion queue.
    pub max_cqe: u32,
    /// Most memory regions.
    pub max_mr: u32,
    /// Most address handles.
    pub max_ah: u32,
    /// Most SGEs of a send.
    pub max_send_sge: u32,
    /// Link speed, bits per second.
    pub link_bps: u64,
    /// Cost estimates of the operations.
    pub perf: DevPerf,
}

/// Cost estimates of a device's operations, ns, for protocol selection.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DevPerf {
    /// One-way latency of a short message, without processor time.
    pub latency: f64,
    /// Processor time per message, at either end, without copies.
    pub overhead: f64,
    /// Message bandwidth, bytes per second.
    pub bandwidth: f64,
    /// Registration.
    pub register: Linear,
    /// RDMA, from post to completion.
    pub rma: RmaPerf,
}

/// Reason for refusing a post, which then had no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PostError {
    /// The queue is full (ENOMEM of verbs).
    Full,
    /// The request breaks a rule of the driver (EINVAL of verbs).
    Invalid(&'static str),
}

/// A memory region.
pub trait DevMr {
    /// First byte.
    fn addr(&self) -> *mut u8;
    /// Bytes.
    fn len(&self) -> usize;
    /// Always false.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Local key.
    fn lkey(&self) -> u32;
    /// Remote key.
    fn rkey(&self) -> u32;
    /// Deregisters the memory before the region is dropped: the device refuses both keys from then on.
    fn revoke(&self);
    /// Whether it was revoked.
    fn is_revoked(&self) -> bool;
    /// Keeps the bytes mapped beyond the registration. `None`: the memory goes with it, or is the caller's.
    fn backing(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }
}

/// A completion queue.
pub trait DevCq {
    /// Moves up to `out.len()` entries into `out`; returns their number. Drives a software device.
    fn poll(&self, out: &mut [Cqe]) -> usize;
    /// Returns `true` if a poll would find nothing, and then counts as one. `false` is always correct.
    fn is_idle(&self) -> bool {
        false
    }
    /// The completion channel's descriptor, if the queue was created with one.
    fn event_fd(&self) -> Option<BorrowedFd<'_>>;
    /// Arms the channel for the next entry. Returns `false` if there are entries already.
    fn arm(&self) -> bool;
}

/// A queue pair, ready to receive and to send.
///
/// A post is checked against the queue depth and the device limits; a bad local key ends in a completion with
/// [`DevStatus::InvalidLkey`]. Every accepted request yields exactly one completion. Nothing is ordered.
pub trait DevQp {
    /// Address handle type.
    type Ah: Copy;

    /// Queue pair number.
    fn qpn(&self) -> u16;
    /// Actual send queue depth.
    fn send_depth(&self) -> u32;
    /// Actual receive queue depth.
    fn recv_depth(&self) -> u32;

    /// Sends `bytes` (at most `max_inline`), copied before the call returns.
    fn send_inline(
        &self,
        to: &Dest<Self::Ah>,
        wr_id: u64,
        bytes: &[u8],
        imm: Option<u32>,
    ) -> Result<(), PostError>;
    /// Sends registered memory, which must not change until the completion.
    fn send(&self, to: &Dest<Self::Ah>, wr_id: u64, sge: &[Sge], imm: Option<u32>) -> Result<(), PostError>;
    /// Posts a receive.
    fn recv(&self, wr_id: u64, sge: Sge) -> Result<(), PostError>;
    /// Reads `sge.len` bytes of remote memory at `(raddr, rkey)` into `sge`.
    fn read(&self, to: &Dest<Self::Ah>, wr_id: u64, sge: Sge, raddr: u64, rkey: u32)
    -> Result<(), PostError>;
    /// Writes `sge` to remote memory at `(raddr, rkey)`; with `imm`, the target gets a completion.
    fn write(
        &self,
        to: &Dest<Self::Ah>,
        wr_id: u64,
        sge: Sge,
        raddr: u64,
        rkey: u32,
        imm: Option<u32>,
    ) -> Result<(), PostError>;

    /// Gives back what is kept of a remote queue pair that an endpoint does not use any more. Another one may
    /// still use it.
    fn forget(&self, _ah: Self::Ah, _qpn: u16) {}

    /// Rings the doorbell for all posts since the last call. A device may start earlier.
    fn ring_doorbell(&self);
}

/// Where allocated memory lies, and when its pages get their memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Placement {
    /// First byte, page aligned, where nothing is. `None`: anywhere.
    pub at: Option<NonNull<u8>>,
    /// When the pages get their memory.
    pub fill: Fill,
}

/// An opened device. Clones share one context, which objects keep alive. Any thread may register memory and
/// create objects; a queue is used by one thread.
pub trait Dev: Clone + Send + Sync + 'static {
    /// Protection domain.
    type Pd: Clone + Send + Sync;
    /// Memory region.
    type Mr: DevMr + Send + Sync;
    /// Completion queue.
    type Cq: DevCq;
    /// Queue pair.
    type Qp: DevQp<Ah = Self::Ah>;
    /// Address handle: one number per (protection domain, GID).
    type Ah: Copy + PartialEq + fmt::Debug;

    /// Attributes of the device.
    fn attr(&self) -> &DevAttr;
    /// GID of the device.
    fn gid(&self) -> Gid;
    /// Counters of the device, by part.
    fn counters_by_part(&self) -> Vec<DeviceCounters> {
        Vec::new()
    }
    /// Whether a thread of the library's may have queues of its own: not under virtual time.
    fn serves_threads(&self) -> bool {
        true
    }
    /// Whether a device with this GID may be reachable, as far as a GID tells ([`reachability`]).
    fn check_reachable(&self, other: Gid) -> Result<(), ConnectError>;
    /// Allocates a protection domain.
    fn alloc_pd(&self) -> Result<Self::Pd, OpenError>;
    /// Allocates and registers memory of the kind the device is fastest on.
    fn alloc_mr(&self, pd: &Self::Pd, len: usize, access: Access) -> Result<Self::Mr, crate::api::Error> {
        self.alloc_mr_with(pd, len, access, Placement::default())
    }
    /// Allocates such memory at an address, or filled as it is used.
    fn alloc_mr_with(
        &self,
        pd: &Self::Pd,
        len: usize,
        access: Access,
        place: Placement,
    ) -> Result<Self::Mr, crate::api::Error>;
    /// Registers memory of the caller.
    /// # Safety
    /// As for [`crate::api::Md::register`].
    unsafe fn reg_mr(
        &self,
        pd: &Self::Pd,
        addr: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<Self::Mr, crate::api::Error>;
    /// Registers memory that the caller knows to be accessible, without a check by the system of its own.
    /// # Safety
    /// As for [`crate::api::Md::register`].
    unsafe fn reg_mr_for_op(
        &self,
        pd: &Self::Pd,
        addr: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<Self::Mr, crate::api::Error> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.reg_mr(pd, addr, len, access) }
    }
    /// Creates a completion queue of at least `depth` entries.
    fn create_cq(&self, depth: u32, channel: Channel) -> Result<Self::Cq, OpenError>;
    /// Creates a queue pair, ready to use; sends and receives may complete to one queue.
    fn create_qp(
        &self,
        pd: &Self::Pd,
        send_cq: &Self::Cq,
        recv_cq: &Self::Cq,
        init: &QpInit,
    ) -> Result<Self::Qp, OpenError>;
    /// Creates an address handle of a GID, or adds a reference: one per domain and GID.
    fn create_ah(&self, pd: &Self::Pd, gid: Gid) -> Result<Self::Ah, crate::api::Error>;
    /// Drops a reference to an address handle.
    fn destroy_ah(&self, pd: &Self::Pd, ah: Self::Ah);
}

/// Whether a completion queue has an event channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Channel {
    /// It has an event descriptor.
    With,
    /// Polled only.
    Without,
}

/// Why a device cannot be used, or not fully, and what to do about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Description of the problem.
    pub what: String,
    /// How to solve it.
    pub remedy: &'static str,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.what, self.remedy)
    }
}
