//! Fixed headers of RTM packets, and their field lists for the table.

use crate::wire::base::Base;
use crate::wire::layout::layout;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct EagerHdr {
    pub base: Base,
    pub msg_id: U32,
}

layout! {
    pub const EAGER: EagerHdr = 8 {
        msg_id: 4 @ 4, Dec, "place in the sender's order";
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MediumHdr {
    pub base: Base,
    pub msg_id: U32,
    pub msg_length: U64,
    pub seg_offset: U64,
}

layout! {
    pub const MEDIUM: MediumHdr = 24 {
        msg_id: 4 @ 4, Dec, "place in the sender's order";
        msg_length: 8 @ 8, Dec, "bytes of the whole message";
        seg_offset: 8 @ 16, Dec, "offset of this packet's bytes in the message";
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LongCtsHdr {
    pub base: Base,
    pub msg_id: U32,
    pub msg_length: U64,
    pub send_id: U32,
    pub credit_request: U32,
}

layout! {
    pub const LONGCTS: LongCtsHdr = 24 {
        msg_id: 4 @ 4, Dec, "place in the sender's order";
        msg_length: 8 @ 8, Dec, "bytes of the whole message";
        send_id: 4 @ 16, Dec, "the sender's id of the operation";
        credit_request: 4 @ 20, Dec, "packets the sender would like to be granted";
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LongReadHdr {
    pub base: Base,
    pub msg_id: U32,
    pub msg_length: U64,
    pub send_id: U32,
    pub read_iov_count: U32,
}

layout! {
    pub const LONGREAD: LongReadHdr = 24 {
        msg_id: 4 @ 4, Dec, "place in the sender's order";
        msg_length: 8 @ 8, Dec, "bytes of the whole message";
        send_id: 4 @ 16, Dec, "the sender's id of the operation";
        read_iov_count: 4 @ 20, Dec, "pieces of memory to read from";
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DcEagerHdr {
    pub base: Base,
    pub msg_id: U32,
    pub send_id: U32,
    pub pad: U32,
}

layout! {
    pub const DC_EAGER: DcEagerHdr = 16 {
        msg_id: 4 @ 4, Dec, "place in the sender's order";
        send_id: 4 @ 8, Dec, "the sender's id, for the RECEIPT";
        pad: 4 @ 12, Pad, "padding";
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DcMediumHdr {
    pub base: Base,
    pub msg_id: U32,
    pub send_id: U32,
    pub pad: U32,
    pub msg_length: U64,
    pub seg_offset: U64,
}

layout! {
    pub const DC_MEDIUM: DcMediumHdr = 32 {
        msg_id: 4 @ 4, Dec, "place in the sender's order";
        send_id: 4 @ 8, Dec, "the sender's id, for the RECEIPT";
        pad: 4 @ 12, Pad, "padding";
        msg_length: 8 @ 16, Dec, "bytes of the whole message";
        seg_offset: 8 @ 24, Dec, "offset of this packet's bytes in the message";
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RuntHdr {
    pub base: Base,
    pub msg_id: U32,
    pub msg_length: U64,
    pub send_id: U32,
    pub count: U32,
    pub seg_offset: U64,
    pub runt_length: U64,
}

layout! {
    pub const RUNTCTS: RuntHdr = 40 {
        msg_id: 4 @ 4, Dec, "place in the sender's order";
        msg_length: 8 @ 8, Dec, "bytes of the whole message";
        send_id: 4 @ 16, Dec, "the sender's id of the operation";
        count as "credit_request": 4 @ 20, Dec, "packets the sender would like to be granted";
        seg_offset: 8 @ 24, Dec, "offset of this packet's bytes in the message";
        runt_length: 8 @ 32, Dec, "bytes that travel in all packets of the message";
    }
}

layout! {
    pub const RUNTREAD: RuntHdr = 40 {
        msg_id: 4 @ 4, Dec, "place in the sender's order";
        msg_length: 8 @ 8, Dec, "bytes of the whole message";
        send_id: 4 @ 16, Dec, "the sender's id of the operation";
        count as "read_iov_count": 4 @ 20, Dec, "pieces of memory to read from";
        seg_offset: 8 @ 24, Dec, "offset of this packet's bytes in the message";
        runt_length: 8 @ 32, Dec, "bytes that travel in all packets of the message";
    }
}

/// A tagged type has the header of its untagged sibling, then the tag.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct WithTag<H> {
    pub hdr: H,
    pub tag: U64,
}

const _: () =
    assert!(size_of::<WithTag<EagerHdr>>() == 16 && std::mem::offset_of!(WithTag<EagerHdr>, tag) == 8);
const _: () = assert!(std::mem::offset_of!(WithTag<LongCtsHdr>, tag) == 24);
const _: () = assert!(std::mem::offset_of!(WithTag<RuntHdr>, tag) == 40);
