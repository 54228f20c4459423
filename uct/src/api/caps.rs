//! Attributes of an interface: capabilities, limits, order, cost. `ucp` decides from these alone, never by
//! name.

use super::AtomicCaps;
use bitflags::bitflags;
use std::fmt;
use ucs::sys::CpuSet;

bitflags! {
    /// Capabilities of an interface. An operation whose bit is off returns [`super::Error::Unsupported`].
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Caps: u64 {
        /// `am_short`, `am_short_iov`.
        const AM_SHORT = 1 << 0;
        /// `am_bcopy`, `am_packet`.
        const AM_BCOPY = 1 << 1;
        /// `am_zcopy`.
        const AM_ZCOPY = 1 << 2;
        /// `put_short`.
        const PUT_SHORT = 1 << 3;
        /// `put_bcopy`.
        const PUT_BCOPY = 1 << 4;
        /// `put_zcopy`.
        const PUT_ZCOPY = 1 << 5;
        /// `get_short`.
        const GET_SHORT = 1 << 6;
        /// `get_bcopy`.
        const GET_BCOPY = 1 << 7;
        /// `get_zcopy`.
        const GET_ZCOPY = 1 << 8;
        /// Atomics, see [`AtomicCaps`].
        const ATOMIC = 1 << 9;
        /// Active messages carry their source ([`super::Am::source`]).
        const AM_SOURCE = 1 << 10;
        /// Endpoints connect to an interface, one-sided.
        const CONNECT_TO_IFACE = 1 << 11;
        /// Endpoints connect to an endpoint; both sides call.
        const CONNECT_TO_EP = 1 << 12;
        /// `pending_add` is there.
        const PENDING = 1 << 13;
        /// `event_fd`/`arm` signal arrivals.
        const EVENT_RECV = 1 << 14;
        /// `event_fd`/`arm` signal local completions and room to send. Without: [`super::Iface::arm_for`].
        const EVENT_SEND = 1 << 15;
        /// A dead peer is reported as an error completion.
        const PEER_FAILURE = 1 << 16;
        /// `Ep::check` is there.
        const EP_CHECK = 1 << 17;
        /// Remote memory may be mapped: [`super::Md::rkey_ptr`] can answer.
        const RKEY_PTR = 1 << 18;
        /// `flush` completion means the remote side has the data (not only that buffers are free).
        const FLUSH_REMOTE = 1 << 19;
        /// `put_sgl`.
        const PUT_SGL = 1 << 20;
        /// `get_sgl`.
        const GET_SGL = 1 << 21;
        /// `put_imm`, and [`super::Sink::on_imm`] on the other side.
        const PUT_IMM = 1 << 22;
        /// A remote key is one word: [`super::Md::mr_key`] and [`super::Md::rkey_from_mr_key`] are there.
        const MR_KEY = 1 << 23;
        /// `send_to_user_qp`.
        const SEND_TO_USER_QP = 1 << 24;
        /// `post_user_recv`: messages of `send_to_user_qp` go into memory of the program's own.
        const USER_RECV = 1 << 25;
        /// Atomics are carried out by a thread of the target's memory domain, not by the wire: slower than a
        /// put, and atomic with those of the CPU.
        const ATOMIC_EMULATED = 1 << 26;
    }
}

/// An operation by name, for errors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum Op {
    AmShort,
    AmShortIov,
    AmBcopy,
    AmZcopy,
    SendToUserQp,
    PostUserRecv,
    PutShort,
    PutBcopy,
    PutZcopy,
    GetShort,
    GetBcopy,
    GetZcopy,
    PutSgl,
    GetSgl,
    PutImm,
    AtomicPost,
    AtomicFetch,
    AtomicCswap,
    Flush,
    Fence,
    Pending,
    Check,
    ConnectToIface,
    ConnectToEp,
    EventFd,
    Alloc,
    Register,
    RemoteKey,
}

impl Op {
    /// The call's name.
    pub const fn name(self) -> &'static str {
        match self {
            Op::AmShort => "am_short",
            Op::AmShortIov => "am_short_iov",
            Op::AmBcopy => "am_bcopy",
            Op::AmZcopy => "am_zcopy",
            Op::SendToUserQp => "send_to_user_qp",
            Op::PostUserRecv => "post_user_recv",
            Op::PutShort => "put_short",
            Op::PutBcopy => "put_bcopy",
            Op::PutZcopy => "put_zcopy",
            Op::GetShort => "get_short",
            Op::GetBcopy => "get_bcopy",
            Op::GetZcopy => "get_zcopy",
            Op::PutSgl => "put_sgl",
            Op::GetSgl => "get_sgl",
            Op::PutImm => "put_imm",
            Op::AtomicPost => "atomic post",
            Op::AtomicFetch => "atomic fetch",
            Op::AtomicCswap => "atomic cswap",
            Op::Flush => "flush",
            Op::Fence => "fence",
            Op::Pending => "pending_add",
            Op::Check => "ep check",
            Op::ConnectToIface => "connect to iface",
            Op::ConnectToEp => "connect to ep",
            Op::EventFd => "event fd",
            Op::Alloc => "memory allocation",
            Op::Register => "memory registration",
            Op::RemoteKey => "remote key",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Bytes, of header and payload, that `am_short` takes on every interface that has it.
pub const AM_SHORT_MIN: usize = 40;

/// Limits of active messages, in bytes of data after the id byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AmLimits {
    /// Longest `am_short`: 8-byte header plus payload. At least [`AM_SHORT_MIN`].
    pub max_short: usize,
    /// Longest `am_bcopy`.
    pub max_bcopy: usize,
    /// Longest `am_zcopy`: header plus data.
    pub max_zcopy: usize,
    /// Longest header of `am_zcopy`.
    pub max_hdr: usize,
    /// Most local iov entries.
    pub max_iov: usize,
}

/// Limits of put or of get, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RmaLimits {
    /// Longest short.
    pub max_short: usize,
    /// Longest bcopy.
    pub max_bcopy: usize,
    /// Shortest zcopy.
    pub min_zcopy: usize,
    /// Longest zcopy.
    pub max_zcopy: usize,
    /// Most local iov entries.
    pub max_iov: usize,
    /// Most remote pieces of a scatter list; 0 where there are none.
    pub max_remote: usize,
}

/// Order between messages of one endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrderKind {
    /// Active messages arrive in the order they were sent.
    Ordered,
    /// No order at all: neither between messages, nor of completions (SRD).
    Unordered,
}

/// Latency as a line: `fixed + per_ep * connected endpoints`, nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Latency {
    /// Fixed part, ns.
    pub fixed: f64,
    /// Growth per connected endpoint, ns.
    pub per_ep: f64,
}

/// A time that grows with the number of bytes: `fixed + per_byte * bytes`, nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Linear {
    /// Fixed part, ns.
    pub fixed: f64,
    /// Growth, ns per byte.
    pub per_byte: f64,
}

impl Linear {
    /// A fixed part of `fixed` ns, and `bandwidth` bytes per second.
    pub const fn new(fixed: f64, bandwidth: f64) -> Linear {
        Linear { fixed, per_byte: 1e9 / bandwidth }
    }

    /// The line through two measurements (bytes, ns), the longer one second; never falling, never negative.
    pub fn through(a: (usize, f64), b: (usize, f64)) -> Linear {
        let per_byte = ((b.1 - a.1) / b.0.saturating_sub(a.0).max(1) as f64).max(0.0);
        Linear { fixed: (a.1 - per_byte * a.0 as f64).max(0.0), per_byte }
    }

    /// The time for `len` bytes, ns.
    pub fn at(self, len: usize) -> f64 {
        self.fixed + self.per_byte * len as f64
    }
}

/// Time of a zero-copy put or get, without local registration. Transport memory may be faster.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct RmaPerf {
    /// Put to memory that the transport allocated ([`super::AllocMethod::Md`]).
    pub put_allocated: Linear,
    /// Put to other registered memory.
    pub put_registered: Linear,
    /// Get from memory that the transport allocated.
    pub get_allocated: Linear,
    /// Get from other registered memory.
    pub get_registered: Linear,
}

impl RmaPerf {
    /// One cost for all memory.
    pub const fn all(put: Linear, get: Linear) -> RmaPerf {
        RmaPerf { put_allocated: put, put_registered: put, get_allocated: get, get_registered: get }
    }
}

/// Kind of device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum DevKind {
    /// Within one process.
    Loopback,
    /// Memory shared by processes of one host.
    Shm,
    /// A network interface.
    Net,
}

impl fmt::Display for DevKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DevKind::Loopback => "loopback",
            DevKind::Shm => "intra-node",
            DevKind::Net => "network",
        })
    }
}

/// Estimates for a resource, before anything is opened; the attributes of its interfaces agree.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct ResourcePerf {
    /// Latency of a short message, ns.
    pub latency: f64,
    /// Bandwidth, bytes per second.
    pub bandwidth: f64,
    /// Messages, or transfers where there are no messages, that one thread starts in a second.
    pub message_rate: f64,
}

impl ResourcePerf {
    /// From a latency and the CPU time for a message, both in ns, and bytes per second.
    pub const fn new(latency: f64, overhead: f64, bandwidth: f64) -> Self {
        ResourcePerf { latency, bandwidth, message_rate: 1e9 / overhead }
    }
}

/// CPUs that are near a device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Locality {
    /// NUMA node of the device; `None`: none, or unknown.
    pub numa_node: Option<u32>,
    /// The CPUs next to it; `None`: no CPU is nearer than another, or it is unknown.
    pub cpus: Option<CpuSet>,
}

/// One transport on one device, as found on this machine.
#[derive(Clone, PartialEq, Debug)]
pub struct TlResource {
    /// Transport name: `self`, `posix`, `cma`, `efa`.
    pub tl: &'static str,
    /// Device name.
    pub dev: String,
    /// Kind of device.
    pub kind: DevKind,
    /// One line for people: what stands behind the device (software device, real NIC, ...).
    pub description: String,
    /// Whether it carries active messages; one that does not serves beside one that does.
    pub has_am: bool,
    /// Estimates of its speed.
    pub perf: ResourcePerf,
    /// Where it is.
    pub locality: Locality,
    /// A software device in place of hardware, on this host only: no default where there is hardware.
    pub is_software: bool,
}

/// Everything an interface says about itself. Fixed for its lifetime.
#[derive(Clone, PartialEq, Debug)]
pub struct IfaceAttr {
    /// Transport name.
    pub tl: &'static str,
    /// Device name.
    pub dev: String,
    /// Kind of device.
    pub kind: DevKind,
    /// Capabilities.
    pub caps: Caps,
    /// Limits of active messages.
    pub am: AmLimits,
    /// Limits of put.
    pub put: RmaLimits,
    /// Limits of get.
    pub get: RmaLimits,
    /// Atomics it does itself.
    pub atomics: AtomicCaps,
    /// Order between the messages of one endpoint.
    pub order: OrderKind,
    /// Bits of active message id on the wire; 8 for all transports here.
    pub am_id_bits: u32,
    /// Length of the device address, bytes.
    pub device_addr_len: usize,
    /// Length of the interface address, bytes.
    pub iface_addr_len: usize,
    /// Length of an endpoint address, bytes; 0 where endpoints have none.
    pub ep_addr_len: usize,
    /// Operations that may be outstanding before *no resource*, or `None` if only memory bounds it.
    pub tx_depth: Option<usize>,
    /// Latency estimate.
    pub latency: Latency,
    /// CPU time per operation on either side, ns.
    pub overhead: f64,
    /// Bandwidth estimate, bytes per second.
    pub bandwidth: f64,
    /// Cost of registering memory: fixed ns, and ns per byte.
    pub reg_cost: (f64, f64),
    /// How long puts and gets in place take, where there are any.
    pub rma: RmaPerf,
}

impl IfaceAttr {
    /// Whether every capability of `c` is there.
    pub fn has(&self, c: Caps) -> bool {
        self.caps.contains(c)
    }
}
