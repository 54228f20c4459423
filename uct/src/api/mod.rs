//! The contract between transports and their users: traits and plain types; no I/O, no allocation on hot
//! paths.

mod addr;
mod am;
mod amo;
mod caps;
mod comp;
mod counters;
mod ep;
mod err;
mod iface;
mod md;
mod outcome;
mod pending;

pub use addr::{AddrBuf, ConnectError, MAX_ADDR_LEN, SrcAddr};
pub use am::{Am, AmHandler, Imm, ImmHandler, Keep, RecvDesc, RecvDescOwner, Sink, UserRecv};
pub use amo::{AtomicCaps, AtomicOp, AtomicOps, Word};
pub use caps::{
    AM_SHORT_MIN, AmLimits, Caps, DevKind, IfaceAttr, Latency, Linear, Locality, Op, OrderKind, ResourcePerf,
    RmaLimits, RmaPerf, TlResource,
};
pub use comp::{Comp, Completion};
pub use counters::DeviceCounters;
pub use ep::{Ep, EpTag, Iov, Pack, RemoteIov, UserQp};
pub use err::{Error, OpenError};
pub use iface::{ArmStatus, Events, Iface, PollOne, RecvCallback};
pub use md::{Access, Advice, AllocMethod, AllocReq, Fill, Md, MdAttr, MemKind, MemQuery, Memory, Rkey};
pub use outcome::{Outcome, Refused, Sent};
pub use pending::{Pending, PendingQueued, Retry};
