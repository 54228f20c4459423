//! Fixed headers of RTA packets, and their field lists for the table.

use crate::wire::base::Base;
use crate::wire::layout::layout;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// All RTAs.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RtaHdr {
    pub base: Base,
    pub msg_id: U32,
    pub rma_iov_count: U32,
    pub datatype: U32,
    pub op: U32,
    pub id: U32,
}

layout! {
    pub const WRITE: RtaHdr = 24 {
        msg_id: 4 @ 4, Dec, "place in the sender's order";
        rma_iov_count: 4 @ 8, Dec, "pieces of memory to operate on";
        datatype: 4 @ 12, Datatype, "type of the elements";
        op: 4 @ 16, Op, "operation";
        id as "pad": 4 @ 20, Pad, "padding";
    }
}

layout! {
    pub const FETCH: RtaHdr = 24 {
        msg_id: 4 @ 4, Dec, "place in the sender's order";
        rma_iov_count: 4 @ 8, Dec, "pieces of memory to operate on";
        datatype: 4 @ 12, Datatype, "type of the elements";
        op: 4 @ 16, Op, "operation";
        id as "recv_id": 4 @ 20, Dec, "the requester's id, for the ATOMRSP";
    }
}

layout! {
    pub const DC_WRITE: RtaHdr = 24 {
        msg_id: 4 @ 4, Dec, "place in the sender's order";
        rma_iov_count: 4 @ 8, Dec, "pieces of memory to operate on";
        datatype: 4 @ 12, Datatype, "type of the elements";
        op: 4 @ 16, Op, "operation";
        id as "send_id": 4 @ 20, Dec, "the requester's id, for the RECEIPT";
    }
}
