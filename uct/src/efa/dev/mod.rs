//! What SRD hardware does, as a trait: the seam between the `efa` transport and a device.
//!
//! Implemented by the software device (`soft`) and by verbs (`verbs`, a feature). The shape is that of verbs with the
//! EFA extensions, cut down to what SRD has: protection domains, memory regions with keys and bounds, queue
//! pairs with finite queues, completion queues, address handles, 16-bit queue pair numbers, GIDs, q-keys, an
//! MTU, inline sends, RNR, RDMA read and write, write with immediate, and no promise of order of any kind. Code above the
//! trait cannot tell software from hardware. The choice is static (generics), so that the soft path inlines.

pub mod nics;
pub mod reachability;
pub mod soft;
#[cfg(feature = "verbs")]
pub mod verbs;

use crate::api::{Access, ConnectError, Linear, OpenError, RmaPerf};
use num_enum::{IntoPrimitive, TryFromPrimitive};
use std::any::Any;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A 16-byte global identifier: link-local prefix `fe80::/64` and an interface id in the low eight bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// `fe80::` followed by `iid`, big endian.
    pub const fn link_local(iid: u64) -> Self {
        let b = iid.to_be_bytes();
        Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])
    }

    /// The low eight bytes as a number: everything that tells two devices of one fabric apart.
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
    /// Local length error: longer than the MTU, or than the device's RDMA limit. Of a receive: shorter than the message
    /// that used it up.
    BadLength = 6,
    /// The remote key does not cover the range or the access.
    RemoteBadAddress = 7,
    /// The remote side reset the connection.
    RemoteAbort = 8,
    /// No such queue pair at the destination (also: its process is dead; wrong q-key).
    BadDestQpn = 9,
    /// No receive was posted at the destination, retries used up.
    Rnr = 10,
    /// The receive buffer at the destination is too short.
    RemoteBadLength = 11,
    /// A response that makes no sense.
    BadStatus = 12,
    /// The peer answered once and does not any more.
    Unresponsive = 13,
    /// The target has no address handle of ours: RDMA refused.
    UnknownPeer = 14,
    /// The peer never answered.
    Unreachable = 15,
    /// The two devices' features do not match.
    FeatureMismatch = 18,
}

/// What a completion queue entry completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CqeOp {
    /// A send.
    Send,
    /// An RDMA read.
    Read,
    /// An RDMA write.
    Write,
    /// A message arrived in a posted receive.
    Recv,
    /// A write with immediate arrived and used up a posted receive (or none, if the queue pair takes them
    /// unsolicited: then `wr_id` is 0).
    RecvWriteImm,
}

/// A completion queue entry.
#[derive(Clone, Copy, Debug)]
pub struct Cqe {
    /// The work request's number.
    pub wr_id: u64,
    /// How it ended.
    pub status: DevStatus,
    /// What it was.
    pub op: CqeOp,
    /// The queue pair it belongs to.
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
    /// What an array that a poll fills holds before.
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

/// A piece of registered local memory.
#[derive(Clone, Copy, Debug)]
pub struct Sge {
    /// First byte.
    pub addr: *mut u8,
    /// Bytes.
    pub len: u32,
    /// Local key of the region it lies in.
    pub lkey: u32,
}

/// Where a send goes.
#[derive(Clone, Copy, Debug)]
pub struct Dest<A> {
    /// Address handle of the peer's GID.
    pub ah: A,
    /// Its queue pair.
    pub qpn: u16,
    /// Its q-key.
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

/// What a queue pair is created with. The device rounds the depths up and says what it gave.
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// Kind.
    pub kind: QpKind,
    /// Send queue depth, work requests.
    pub send_depth: u32,
    /// Receive queue depth, work requests.
    pub recv_depth: u32,
    /// Q-key of its own.
    pub qkey: u32,
    /// Retries when the receiver is not ready: 0 to 6, or 7 for ever.
    pub rnr_retry: u8,
    /// Arrivals of write with immediate use up no receive.
    pub unsolicited_write_recv: bool,
}

/// What a device is and has.
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
    /// Whether RDMA read is there.
    pub rdma_read: bool,
    /// Whether RDMA write is there.
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
    /// Most local pieces of a send.
    pub max_send_sge: u32,
    /// Link speed, bits per second.
    pub link_bps: u64,
    /// What its operations cost.
    pub perf: DevPerf,
}

/// What operations of a device cost, ns: estimates to choose between ways by.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DevPerf {
    /// One way of a short message, without the work of either processor.
    pub latency: f64,
    /// Work of a processor for a message, at either end, without copying.
    pub overhead: f64,
    /// Bytes per second that messages carry from one processor to another.
    pub bandwidth: f64,
    /// Registration.
    pub register: Linear,
    /// RDMA, from post to completion.
    pub rma: RmaPerf,
}

/// Why a post was refused. Nothing happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PostError {
    /// The queue is full (ENOMEM of verbs).
    Full,
    /// The request breaks a rule the driver checks before it reaches the device (EINVAL of verbs).
    Invalid(&'static str),
}

/// A memory region.
pub trait DevMr {
    /// First byte.
    fn addr(&self) -> *mut u8;
    /// Bytes.
    fn len(&self) -> usize;
    /// Never true.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Local key.
    fn lkey(&self) -> u32;
    /// Remote key.
    fn rkey(&self) -> u32;
    /// What keeps the bytes mapped, for somebody who still reads them when the registration is gone. `None`: they
    /// go with it, or belong to the caller.
    fn backing(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }
}

/// A completion queue.
pub trait DevCq {
    /// Moves up to `out.len()` entries into `out`; answers how many. Drives whatever the device does in software.
    fn poll(&self, out: &mut [Cqe]) -> usize;
    /// True: a poll now would find nothing, and this stood for it. The answer that is always right, and the default, is
    /// false.
    fn is_idle(&self) -> bool {
        false
    }
    /// The completion channel's descriptor, if the queue was created with one.
    fn event_fd(&self) -> Option<BorrowedFd<'_>>;
    /// Arms the channel for the next entry. `false`: there are entries already.
    fn arm(&self) -> bool;
}

/// A queue pair, ready to receive and to send.
///
/// Posts are checked against the queue's depth and the device's limits; local keys are checked by the device,
/// and a bad one ends in a completion with [`DevStatus::InvalidLkey`]. Every accepted request yields exactly one
/// completion. No order is promised between anything.
pub trait DevQp {
    /// Address handle type.
    type Ah: Copy;

    /// Its number.
    fn qpn(&self) -> u16;
    /// Send queue depth given.
    fn send_depth(&self) -> u32;
    /// Receive queue depth given.
    fn recv_depth(&self) -> u32;

    /// Sends the bytes themselves (at most `max_inline`): copied before the call returns.
    fn send_inline(
        &self,
        to: &Dest<Self::Ah>,
        wr_id: u64,
        bytes: &[u8],
        imm: Option<u32>,
    ) -> Result<(), PostError>;
    /// Sends registered memory; it must not change until the completion.
    fn send(&self, to: &Dest<Self::Ah>, wr_id: u64, sge: &[Sge], imm: Option<u32>) -> Result<(), PostError>;
    /// Posts a receive.
    fn recv(&self, wr_id: u64, sge: Sge) -> Result<(), PostError>;
    /// Reads `sge.len` bytes of remote memory at `(raddr, rkey)` into `sge`.
    fn read(&self, to: &Dest<Self::Ah>, wr_id: u64, sge: Sge, raddr: u64, rkey: u32)
    -> Result<(), PostError>;
    /// Writes `sge` to remote memory at `(raddr, rkey)`; with `imm`, the target gets a completion too.
    fn write(
        &self,
        to: &Dest<Self::Ah>,
        wr_id: u64,
        sge: Sge,
        raddr: u64,
        rkey: u32,
        imm: Option<u32>,
    ) -> Result<(), PostError>;
    /// Makes the device look at what was posted since the last call (the doorbell). A device may start earlier.
    fn ring_doorbell(&self);
}

/// An opened device. Cheap to clone: clones are the same context. Objects keep the context alive.
pub trait Dev: Clone + 'static {
    /// Protection domain.
    type Pd: Clone;
    /// Memory region.
    type Mr: DevMr;
    /// Completion queue.
    type Cq: DevCq;
    /// Queue pair.
    type Qp: DevQp<Ah = Self::Ah>;
    /// Address handle: one number per (protection domain, GID).
    type Ah: Copy + PartialEq + fmt::Debug;

    /// What it is and has.
    fn attr(&self) -> &DevAttr;
    /// Its GID.
    fn gid(&self) -> Gid;
    /// Whether a device with that GID may be reached, as far as a GID tells ([`place`]).
    fn check_reachable(&self, other: Gid) -> Result<(), ConnectError>;
    /// A protection domain.
    fn alloc_pd(&self) -> Result<Self::Pd, OpenError>;
    /// Memory of the kind the device is fastest on, registered.
    fn alloc_mr(&self, pd: &Self::Pd, len: usize, access: Access) -> Result<Self::Mr, crate::api::Error>;
    /// Registers memory the caller owns.
    ///
    /// # Safety
    /// As for [`crate::api::Md::register`].
    unsafe fn reg_mr(
        &self,
        pd: &Self::Pd,
        addr: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<Self::Mr, crate::api::Error>;
    /// A completion queue of at least `depth` entries, with an event channel if asked.
    fn create_cq(&self, depth: u32, channel: Channel) -> Result<Self::Cq, OpenError>;
    /// A queue pair that completes sends to one queue and receives to another (or the same), ready to use.
    fn create_qp(
        &self,
        pd: &Self::Pd,
        send_cq: &Self::Cq,
        recv_cq: &Self::Cq,
        init: &QpInit,
    ) -> Result<Self::Qp, OpenError>;
    /// The address handle of a GID: the same for the same domain and GID, counted.
    fn create_ah(&self, pd: &Self::Pd, gid: Gid) -> Result<Self::Ah, crate::api::Error>;
    /// Gives an address handle back.
    fn destroy_ah(&self, pd: &Self::Pd, ah: Self::Ah);
}

/// Whether a completion queue can wake a sleeper.
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
    /// What is wrong, for people.
    pub what: String,
    /// What to do about it, for people.
    pub remedy: &'static str,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.what, self.remedy)
    }
}
