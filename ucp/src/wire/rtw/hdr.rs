//! Fixed headers of RTW packets, and their field lists for the table.

use crate::wire::base::Base;
use crate::wire::layout::layout;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct EagerHdr {
    pub base: Base,
    pub rma_iov_count: U32,
}

layout! {
    pub const EAGER: EagerHdr = 8 {
        rma_iov_count: 4 @ 4, Dec, "pieces of memory to write to; 0 is the handshake trigger";
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DcEagerHdr {
    pub base: Base,
    pub rma_iov_count: U32,
    pub send_id: U32,
    pub pad: U32,
}

layout! {
    pub const DC_EAGER: DcEagerHdr = 16 {
        rma_iov_count: 4 @ 4, Dec, "pieces of memory to write to";
        send_id: 4 @ 8, Dec, "the sender's id, for the RECEIPT";
        pad: 4 @ 12, Pad, "padding";
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LongHdr {
    pub base: Base,
    pub rma_iov_count: U32,
    pub msg_length: U64,
    pub send_id: U32,
    pub count: U32,
}

layout! {
    pub const LONGCTS: LongHdr = 24 {
        rma_iov_count: 4 @ 4, Dec, "pieces of memory to write to";
        msg_length: 8 @ 8, Dec, "bytes of the whole write";
        send_id: 4 @ 16, Dec, "the sender's id of the operation";
        count as "credit_request": 4 @ 20, Dec, "packets the sender would like to be granted";
    }
}

layout! {
    pub const LONGREAD: LongHdr = 24 {
        rma_iov_count: 4 @ 4, Dec, "pieces of memory to write to";
        msg_length: 8 @ 8, Dec, "bytes of the whole write";
        send_id: 4 @ 16, Dec, "the sender's id of the operation";
        count as "read_iov_count": 4 @ 20, Dec, "pieces of memory to read from";
    }
}

/// RUNTCTS_RTW and RUNTREAD_RTW, which nobody sends.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RuntHdr {
    pub base: Base,
    pub rma_iov_count: U32,
    pub msg_length: U64,
    pub send_id: U32,
    pub count: U32,
    pub seg_offset: U64,
    pub runt_length: U64,
}

layout! {
    pub const RUNTCTS: RuntHdr = 40 {
        rma_iov_count: 4 @ 4, Dec, "pieces of memory to write to";
        msg_length: 8 @ 8, Dec, "bytes of the whole write";
        send_id: 4 @ 16, Dec, "the sender's id of the operation";
        count as "credit_request": 4 @ 20, Dec, "packets the sender would like to be granted";
        seg_offset: 8 @ 24, Dec, "offset of this packet's bytes in the write";
        runt_length: 8 @ 32, Dec, "bytes that travel in all packets of the write";
    }
}

layout! {
    pub const RUNTREAD: RuntHdr = 40 {
        rma_iov_count: 4 @ 4, Dec, "pieces of memory to write to";
        msg_length: 8 @ 8, Dec, "bytes of the whole write";
        send_id: 4 @ 16, Dec, "the sender's id of the operation";
        count as "read_iov_count": 4 @ 20, Dec, "pieces of memory to read from";
        seg_offset: 8 @ 24, Dec, "offset of this packet's bytes in the write";
        runt_length: 8 @ 32, Dec, "bytes that travel in all packets of the write";
    }
}
