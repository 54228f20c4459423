//! Headers of a datagram. *"BTL packets has one of 3 types in header: frag, chunk, or ack"* (Receive
//! dataflow); a request to connect, its answer, a probe and a reset are added.
//!
//! The fields are little-endian and unaligned, so a header is read in place. A checksum covers the whole
//! datagram: what a network corrupts and its own checksum lets pass is dropped here.

use crate::module::EpId;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the format.
pub const VERSION: u8 = 1;
/// Bytes of a fragment's head, which belong to the layer above.
pub const HEAD: usize = 32;
/// Head of a fragment, which belongs to the layer above: operation, queue pair, key, address.
pub type Head = [u8; HEAD];

/// Types of datagrams.
pub mod kind {
    /// A whole fragment.
    pub const FRAG: u8 = 1;
    /// A piece of a fragment.
    pub const CHUNK: u8 = 2;
    /// An acknowledgement.
    pub const ACK: u8 = 3;
    /// Asks for an acknowledgement.
    pub const PROBE: u8 = 4;
    /// Asks for a connection.
    pub const HELLO: u8 = 5;
    /// Grants a connection.
    pub const HELLO_ACK: u8 = 6;
    /// The connection of the datagram that this one answers does not exist.
    pub const RESET: u8 = 7;
    /// The sender leaves: its connection ends.
    pub const BYE: u8 = 8;
    /// Tries whether the path carries a datagram of this length.
    pub const PATH: u8 = 9;
    /// Length of a datagram that has arrived.
    pub const PATH_OK: u8 = 10;
    /// A piece of a segment that the path no longer carries whole.
    pub const PIECE: u8 = 11;
}

/// Bits of [`Header::flags`].
pub mod flag {
    /// The acknowledgement was due: something has arrived since the last one.
    pub const ACK_DUE: u8 = 1;
    /// The rest of this fragment does not come.
    pub const ABORT: u8 = 2;
    /// A segment arrived again.
    pub const REPEATED: u8 = 4;
    /// This segment was sent before.
    pub const AGAIN: u8 = 8;
    /// Of anything but a chunk: it took the priority channel. A receiver with a socket per channel tells them
    /// apart by this.
    pub const PRIORITY: u8 = 16;
    /// Of a chunk: number of zeros behind its payload. Datagrams of one length go through the kernel as one.
    pub const PADDING: u8 = 0xf0;
}

/// Zeros behind a payload, at most.
pub const MAX_PADDING: u32 = (flag::PADDING >> PADDING_AT) as u32;
/// Place of their number.
const PADDING_AT: u32 = flag::PADDING.trailing_zeros();

/// Bits of [`HelloBody::features`].
pub mod feature {
    /// The sender takes [`Header::spurious`](super::Header::spurious).
    pub const SPURIOUS: u16 = 1;
    /// The sender takes [`flag::PADDING`](super::flag::PADDING).
    pub const PADDING: u16 = 2;
    /// The sender takes [`kind::PATH`](super::kind::PATH), and a [`HelloMore`](super::HelloMore) follows.
    pub const PATH: u16 = 4;
    /// The sender takes [`flag::PRIORITY`](super::flag::PRIORITY), and the mark of a sealed datagram.
    pub const CHANNELS: u16 = 8;
    /// The sender takes [`kind::PIECE`](super::kind::PIECE).
    pub const PIECES: u16 = 16;
    /// Place of the bits of the layer above.
    pub const ABOVE: u32 = 8;
}

/// First bytes of each datagram.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Header {
    /// [`VERSION`].
    pub version: u8,
    /// One of [`kind`].
    pub kind: u8,
    /// Bits of [`flag`].
    pub flags: u8,
    /// Of an acknowledgement: words of the selective one that follow. Of a segment: its flow.
    pub words_or_flow: u8,
    /// Connection at the receiver; 0 if the sender does not know it.
    pub dst: U32,
    /// Connection at the sender.
    pub src: U32,
    /// Number of this segment; of other datagrams the next segment's.
    pub seq: U32,
    /// Last segment that has arrived in order.
    pub ack: U32,
    /// Bytes behind the headers.
    pub len: U16,
    /// Segments with [`flag::AGAIN`] that had arrived before, counted modulo 2¹⁶; 0 to a peer that does
    /// not take it.
    pub spurious: U16,
    /// Checksum of the datagram, with this field as zero.
    pub check: U32,
}

/// Follows the header of a chunk. *"a slightly larger BTL header which contains a fragment ID, and offset,
/// and a size"* (Fragment sending).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct ChunkHeader {
    /// Number of the fragment.
    pub frag: U32,
    /// Length of the fragment.
    pub total: U32,
    /// Place of the chunk in it.
    pub offset: U32,
}

/// Body of a request to connect and of its answer.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct HelloBody {
    /// Name of the sender.
    pub node: U64,
    /// Start of the sender.
    pub epoch: U64,
    /// Number of the connection at the sender, counted from its start.
    pub serial: U32,
    /// First sequence number.
    pub first_seq: U32,
    /// Segments that may be unacknowledged.
    pub window: U32,
    /// Longest datagram that the sender takes.
    pub mtu: U32,
    /// Flows of the sender.
    pub flows: u8,
    /// 1 if it offers selective acknowledgement.
    pub sack: u8,
    /// Bits of [`feature`].
    pub features: U16,
}

/// Follows [`HelloBody`], where the sender has [`feature::PATH`].
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct HelloMore {
    /// Bytes of the request that is answered; 0 in a request.
    pub heard: U32,
    /// Ports that the flows of the sender behind the first come from.
    pub ports: [U16; MAX_FLOWS - 1],
    /// Zero.
    pub reserved: U16,
}

/// Follows the header of a piece.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct PieceHeader {
    /// Type of the segment.
    pub kind: u8,
    /// Flags of the segment that stay as they are: [`flag::ABORT`].
    pub flags: u8,
    /// Bytes of each piece but the last one.
    pub unit: U16,
    /// Bytes of the segment behind its header, without padding.
    pub total: U32,
    /// Place of the piece in them.
    pub at: U32,
}

/// Bytes before those of a piece.
pub const PIECE_HEADER: usize = HEADER + size_of::<PieceHeader>();

/// Flows to a peer, at most.
pub const MAX_FLOWS: usize = 8;
/// Bytes of a header.
pub const HEADER: usize = size_of::<Header>();
/// Bytes before the payload of a whole fragment.
pub const FRAG_HEADER: usize = HEADER + HEAD;
/// Bytes before the payload of a chunk.
pub const CHUNK_HEADER: usize = HEADER + size_of::<ChunkHeader>() + HEAD;
/// Bytes of a datagram that carries a [`HelloBody`].
pub const HELLO: usize = HEADER + size_of::<HelloBody>();
/// Bytes of one that carries a [`HelloMore`], too.
pub const LONG_HELLO: usize = HELLO + size_of::<HelloMore>();
/// Words of the longest selective acknowledgement.
pub const MAX_SACK_WORDS: usize = 64;
/// Bytes of the longest acknowledgement.
pub const MAX_ACK: usize = HEADER + 8 * MAX_SACK_WORDS;

const _: () = assert!(HEADER == 28 && CHUNK_HEADER == 72 && size_of::<HelloBody>() == 36 && LONG_HELLO == 84);
const CHECK_AT: usize = HEADER - 4;

/// Why a datagram is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// Shorter than its headers say, longer, of another version or an unknown type.
    Shape,
    /// The checksum is wrong.
    Checksum,
}

fn checksum(datagram: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&datagram[..CHECK_AT]);
    hasher.update(&datagram[HEADER..]);
    hasher.finalize()
}

/// Writes the checksum into a datagram that is otherwise complete.
pub fn seal(datagram: &mut [u8]) {
    let check = checksum(datagram);
    datagram[CHECK_AT..HEADER].copy_from_slice(&check.to_le_bytes());
}

/// Flags of a chunk with so many zeros behind it, at most [`MAX_PADDING`].
pub fn padding_flags(zeros: u32) -> u8 {
    (zeros.min(MAX_PADDING) as u8) << PADDING_AT
}

/// Zeros behind the payload of a datagram with this header.
pub fn padding_of(header: &Header) -> usize {
    if header.kind == kind::CHUNK { usize::from((header.flags & flag::PADDING) >> PADDING_AT) } else { 0 }
}

/// Bytes of a datagram with this header; `None` if there is none of its kind.
pub fn whole_len(header: &Header) -> Option<usize> {
    if header.version != VERSION {
        return None;
    }
    let before = match header.kind {
        kind::FRAG => FRAG_HEADER,
        kind::CHUNK => CHUNK_HEADER,
        kind::HELLO | kind::HELLO_ACK => HELLO,
        kind::ACK if usize::from(header.words_or_flow) <= MAX_SACK_WORDS => {
            HEADER + 8 * usize::from(header.words_or_flow)
        }
        kind::PIECE => PIECE_HEADER,
        kind::PROBE | kind::RESET | kind::BYE | kind::PATH | kind::PATH_OK => HEADER,
        _ => return None,
    };
    Some(before + usize::from(header.len.get()) + padding_of(header))
}

/// Checks a datagram as a whole and returns its header and the rest, without padding.
pub fn open(datagram: &[u8]) -> Result<(&Header, &[u8]), Malformed> {
    let (header, rest) = Header::ref_from_prefix(datagram).map_err(|_| Malformed::Shape)?;
    if whole_len(header) != Some(datagram.len()) {
        return Err(Malformed::Shape);
    }
    if checksum(datagram) != header.check.get() {
        return Err(Malformed::Checksum);
    }
    let end = rest.len().saturating_sub(padding_of(header));
    Ok((header, &rest[..end]))
}

/// Whom a datagram claims to come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimedSource {
    /// A node that asks for a connection, or grants one.
    Node(u64),
    /// The peer of a connection.
    Connection(EpId),
}

/// Tells whom a datagram claims to come from, for an owner that knows addresses. Nothing else of it is
/// checked. `None`: it is none of ours.
pub fn claimed_source(datagram: &[u8]) -> Option<ClaimedSource> {
    let (header, rest) = Header::ref_from_prefix(datagram).ok()?;
    match header.kind {
        kind::HELLO | kind::HELLO_ACK => parse_hello(rest).map(|body| ClaimedSource::Node(body.node.get())),
        _ => Some(ClaimedSource::Connection(EpId(header.dst.get()))),
    }
}

/// Flow that a datagram says to have taken, for an owner that knows addresses. Nothing of it is checked.
pub fn flow_of(datagram: &[u8]) -> u8 {
    match Header::ref_from_prefix(datagram) {
        Ok((header, _)) if matches!(header.kind, kind::FRAG | kind::CHUNK) => header.words_or_flow,
        _ => 0,
    }
}

/// Whether a header says that its datagram took the priority channel.
#[inline]
pub fn is_priority(header: &Header) -> bool {
    header.kind != kind::CHUNK && header.flags & flag::PRIORITY != 0
}

/// Head and payload of a whole fragment.
pub fn parse_frag(rest: &[u8]) -> Option<(&Head, &[u8])> {
    rest.split_first_chunk::<HEAD>()
}

/// Headers and payload of a chunk that lies in its fragment.
pub fn parse_chunk(rest: &[u8]) -> Option<(&ChunkHeader, &Head, &[u8])> {
    let (chunk, rest) = ChunkHeader::ref_from_prefix(rest).ok()?;
    let (head, payload) = rest.split_first_chunk::<HEAD>()?;
    let end = u64::from(chunk.offset.get()) + payload.len() as u64;
    (end <= u64::from(chunk.total.get())).then_some((chunk, head, payload))
}

/// Header of a piece, and its bytes.
pub fn parse_piece(rest: &[u8]) -> Option<(&PieceHeader, &[u8])> {
    PieceHeader::ref_from_prefix(rest).ok()
}

/// Body of a request to connect or of its answer.
pub fn parse_hello(rest: &[u8]) -> Option<&HelloBody> {
    HelloBody::ref_from_prefix(rest).ok().map(|(body, _)| body)
}

/// The part of a request to connect or of its answer that not each sender has.
pub fn parse_more(rest: &[u8]) -> Option<&HelloMore> {
    let (body, rest) = HelloBody::ref_from_prefix(rest).ok()?;
    let (more, _) = HelloMore::ref_from_prefix(rest).ok()?;
    (body.features.get() & feature::PATH != 0).then_some(more)
}

/// Length of which a [`kind::PATH_OK`] tells.
pub fn parse_length(rest: &[u8]) -> Option<u32> {
    U32::ref_from_prefix(rest).ok().map(|(len, _)| len.get())
}

/// A datagram with a payload of `len` bytes, for tests.
#[cfg(test)]
pub fn sample(kind: u8, len: u16, seq: u32, ack: u32) -> Vec<u8> {
    let header = Header {
        version: VERSION,
        kind,
        flags: 0,
        words_or_flow: 0,
        dst: 2.into(),
        src: 1.into(),
        seq: seq.into(),
        ack: ack.into(),
        len: len.into(),
        spurious: 0.into(),
        check: 0.into(),
    };
    let mut datagram = header.as_bytes().to_vec();
    datagram.resize(whole_len(&header).unwrap_or(HEADER), 7);
    seal(&mut datagram);
    datagram
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(kind: u8, len: u16) -> Header {
        Header {
            version: VERSION,
            kind,
            flags: flag::ACK_DUE,
            words_or_flow: 0,
            dst: 0x0403_0201.into(),
            src: 2.into(),
            seq: 3.into(),
            ack: 4.into(),
            len: len.into(),
            spurious: 0.into(),
            check: 0.into(),
        }
    }

    #[test]
    fn golden_bytes() {
        let mut datagram = header(kind::PROBE, 0).as_bytes().to_vec();
        seal(&mut datagram);
        let want = [1, 4, 1, 0, 1, 2, 3, 4, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(datagram[..CHECK_AT], want);
        assert!(open(&datagram).is_ok());
    }

    #[test]
    fn wrong_shapes_are_refused() {
        for (kind, rest) in
            [(0, 0), (12, 0), (kind::PIECE, 11), (kind::ACK, 1), (kind::FRAG, 31), (kind::CHUNK, 43)]
        {
            let mut datagram = header(kind, 0).as_bytes().to_vec();
            datagram.resize(HEADER + rest, 0);
            seal(&mut datagram);
            assert_eq!(open(&datagram).err(), Some(Malformed::Shape), "{kind} {rest}");
        }
        assert_eq!(open(&[1; HEADER - 1]).err(), Some(Malformed::Shape));
    }

    #[test]
    fn a_chunk_lies_in_its_fragment() {
        let chunk = |total: u32, offset: u32| {
            let header = ChunkHeader { frag: 1.into(), total: total.into(), offset: offset.into() };
            let mut rest = header.as_bytes().to_vec();
            rest.extend([0; HEAD + 10]);
            parse_chunk(&rest).is_some()
        };
        assert!(chunk(10, 0) && chunk(20, 10));
        assert!(!chunk(9, 0) && !chunk(20, 11) && !chunk(u32::MAX, u32::MAX));
    }

    #[test]
    fn padding_is_part_of_the_datagram_and_not_of_the_payload() {
        for zeros in 0..=MAX_PADDING {
            let mut chunk = header(kind::CHUNK, 10);
            chunk.flags |= padding_flags(zeros);
            let mut datagram = chunk.as_bytes().to_vec();
            datagram.resize(CHUNK_HEADER + 10 + zeros as usize, 0);
            seal(&mut datagram);
            assert_eq!(open(&datagram).map(|(_, rest)| rest.len()), Ok(CHUNK_HEADER + 10 - HEADER));
            datagram.push(0);
            seal(&mut datagram);
            assert_eq!(open(&datagram).err(), Some(Malformed::Shape));
        }
        let mut probe = header(kind::PROBE, 0);
        probe.flags |= flag::PADDING;
        assert_eq!(whole_len(&probe), Some(HEADER), "chunks only");
    }

    #[test]
    fn a_claim_is_read_without_a_check() {
        let probe = header(kind::PROBE, 0);
        assert_eq!(claimed_source(probe.as_bytes()), Some(ClaimedSource::Connection(EpId(0x0403_0201))));
        let mut hello = header(kind::HELLO, 0).as_bytes().to_vec();
        assert_eq!(claimed_source(&hello), None);
        hello.resize(HELLO, 0);
        hello[HEADER] = 7;
        assert_eq!((claimed_source(&hello), claimed_source(&[1; 5])), (Some(ClaimedSource::Node(7)), None));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (open(&bytes), claimed_source(&bytes));
            let _ = (parse_frag(&bytes), parse_chunk(&bytes), parse_hello(&bytes));
        }

        #[test]
        fn one_wrong_bit_is_seen(len in 0usize..300, bit in 0usize..1000) {
            let mut datagram = header(kind::FRAG, len as u16).as_bytes().to_vec();
            datagram.resize(FRAG_HEADER + len, 7);
            seal(&mut datagram);
            prop_assert!(open(&datagram).is_ok());
            let bit = bit % (8 * datagram.len());
            datagram[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(open(&datagram).is_err());
        }
    }
}
