//! Datagrams as a reader of a capture sees them, who knows no connection.

use crate::auth::{CLEAR, ClearHeader, clear, opened};
use crate::header::{self, CHUNK_HEADER, FRAG_HEADER, HEAD, HEADER, Head, Header, PIECE_HEADER, flag, kind};
use crate::seq::Seq;
use zerocopy::FromBytes;

/// A datagram of a module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plain {
    /// Bytes of it.
    pub len: usize,
    /// Type.
    pub kind: &'static str,
    /// Whether it took the priority channel, as it says.
    pub priority: bool,
    /// Connection at the receiver; 0 if the sender does not know it.
    pub dst: u32,
    /// Connection at the sender.
    pub src: u32,
    /// Number of the segment that it carries; of other datagrams the next segment's.
    pub seq: u32,
    /// Last segment of the other direction that has arrived in order.
    pub ack: u32,
    /// Whether it carries a segment.
    pub carries: bool,
    /// Whether the acknowledgement was due.
    pub ack_due: bool,
    /// Whether a segment of the other direction came again.
    pub repeated: bool,
    /// Whether the fragment is given up.
    pub aborts: bool,
    /// Words of the selective acknowledgement.
    pub sack: Vec<u64>,
    /// Fragment, its bytes, and the place of this chunk.
    pub chunk: Option<(u32, u32, u32)>,
    /// Part of a segment that goes again in pieces.
    pub piece: Option<Piece>,
    /// Head of the fragment.
    pub head: Option<Head>,
    /// Bytes of the fragment, or of the piece, in it.
    pub payload: usize,
    /// Node that asks for the connection, or grants it.
    pub node: Option<u64>,
    /// Whether the checksum is right.
    pub good: bool,
    /// Header in which it was sealed on the network, where a device has captured it in clear.
    pub sealed: Option<ClearHeader>,
}

/// A part of a segment. The number of the segment is the datagram's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Type of the segment.
    pub kind: &'static str,
    /// Place in the segment's bytes behind its header.
    pub at: u32,
    /// Length of the segment's bytes behind its header.
    pub total: u32,
}

impl Plain {
    /// Whether it says that segment `seq` of the other direction has arrived.
    pub fn acknowledges(&self, seq: u32) -> bool {
        let behind = seq.wrapping_sub(self.ack);
        if behind == 0 || Seq(seq).is_before(Seq(self.ack)) {
            return true;
        }
        let bit = behind - 1;
        self.sack.get(bit as usize / 64).is_some_and(|word| word >> (bit % 64) & 1 == 1)
    }
}

/// A datagram of a capture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decoded {
    /// Of a module.
    Plain(Plain),
    /// Of a session: only its clear header can be read.
    Sealed(ClearHeader),
}

/// Takes the first datagram of `bytes` apart. Several follow each other where a system captures what it has
/// not cut yet: the next one begins behind [`Plain::len`]. `None`: it is none of ours.
pub fn decode(bytes: &[u8]) -> Option<Decoded> {
    if let Some(clear) = clear(bytes) {
        return Some(Decoded::Sealed(clear));
    }
    let plain = match opened(bytes) {
        Some((sealed, rest)) => {
            plain(rest).map(|plain| Plain { len: plain.len + CLEAR, sealed: Some(sealed), ..plain })
        }
        None => plain(bytes),
    };
    plain.map(Decoded::Plain)
}

fn plain(bytes: &[u8]) -> Option<Plain> {
    let (header, rest) = Header::ref_from_prefix(bytes).ok()?;
    let len = header::whole_len(header)?;
    let datagram = bytes.get(..len)?;
    let padding = header::padding_of(header);
    let rest = rest.get(..len - padding - HEADER)?;
    let carries = matches!(header.kind, kind::FRAG | kind::CHUNK);
    let chunk = (header.kind == kind::CHUNK).then(|| header::parse_chunk(rest)).flatten();
    let head = match header.kind {
        kind::FRAG => header::parse_frag(rest).map(|(head, _)| *head),
        _ => chunk.map(|(_, head, _)| *head),
    };
    let piece = (header.kind == kind::PIECE).then(|| header::parse_piece(rest)).flatten();
    let before = match header.kind {
        kind::FRAG => FRAG_HEADER,
        kind::PIECE => PIECE_HEADER,
        kind::CHUNK => CHUNK_HEADER,
        _ => len,
    };
    let has_sack = header.kind == kind::ACK;
    let words = rest.as_chunks::<8>().0.iter().filter(|_| has_sack);
    let is_hello = matches!(header.kind, kind::HELLO | kind::HELLO_ACK);
    Some(Plain {
        len,
        kind: name(header.kind)?,
        priority: header::is_priority(header),
        dst: header.dst.get(),
        src: header.src.get(),
        seq: header.seq.get(),
        ack: header.ack.get(),
        carries,
        ack_due: header.flags & flag::ACK_DUE != 0,
        repeated: header.flags & flag::REPEATED != 0,
        aborts: header.flags & flag::ABORT != 0,
        sack: words.map(|word| u64::from_le_bytes(*word)).collect(),
        chunk: chunk.map(|(chunk, ..)| (chunk.frag.get(), chunk.total.get(), chunk.offset.get())),
        piece: piece
            .and_then(|(of, _)| Some(Piece { kind: name(of.kind)?, at: of.at.get(), total: of.total.get() })),
        head,
        payload: (len - padding).saturating_sub(before),
        node: is_hello.then(|| header::parse_hello(rest)).flatten().map(|body| body.node.get()),
        good: header::open(datagram).is_ok(),
        sealed: None,
    })
}

fn name(of: u8) -> Option<&'static str> {
    Some(match of {
        kind::FRAG => "FRAG",
        kind::CHUNK => "CHUNK",
        kind::ACK => "ACK",
        kind::PROBE => "PROBE",
        kind::HELLO => "HELLO",
        kind::HELLO_ACK => "HELLO_ACK",
        kind::RESET => "RESET",
        kind::PATH => "PATH",
        kind::PATH_OK => "PATH_OK",
        kind::BYE => "BYE",
        kind::PIECE => "PIECE",
        _ => return None,
    })
}

const _: () = assert!(HEAD == size_of::<Head>());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Module, NoSource};
    use proptest::prelude::*;

    fn plain_of(bytes: &[u8]) -> Plain {
        match decode(bytes) {
            Some(Decoded::Plain(plain)) => plain,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_request_to_connect_names_its_node() {
        let mut module = Module::new(Config { node: 77, first_seq: 5, ..Config::default() }, 0);
        module.connect(0, 78);
        let posted = module.poll_send(0, &mut NoSource).unwrap();
        let hello = plain_of(module.bytes(&posted));
        assert_eq!((hello.kind, hello.node, hello.carries, hello.good), ("HELLO", Some(77), false, true));
        assert_eq!((hello.dst, hello.len, hello.payload), (0, 1472, 0), "a ping of full length");
        let mut wrong = module.bytes(&posted).to_vec();
        wrong[40] ^= 1;
        assert!(!plain_of(&wrong).good, "shown, and marked");
    }

    #[test]
    fn cumulative_and_selective_acks_are_decoded() {
        let mut ack = plain_of(&crate::header::sample(kind::ACK, 0, 10, u32::MAX));
        assert!(ack.acknowledges(u32::MAX) && ack.acknowledges(u32::MAX - 7) && !ack.acknowledges(0));
        ack.sack = vec![0b10, 1];
        let seen: Vec<u32> = (0..70).filter(|seq| ack.acknowledges(*seq)).collect();
        assert_eq!(seen, [1, 64]);
    }

    #[test]
    fn datagrams_that_were_not_cut_follow_each_other() {
        let mut run = crate::header::sample(kind::FRAG, 100, 3, 1);
        let first = run.len();
        run.extend(crate::header::sample(kind::FRAG, 20, 4, 1));
        let (one, two) = (plain_of(&run), plain_of(&run[first..]));
        assert_eq!((one.len, one.payload, one.seq, one.good), (first, 100, 3, true));
        assert_eq!((two.len + first, two.payload, two.seq, two.good), (run.len(), 20, 4, true));
    }

    #[test]
    fn a_decrypted_capture_keeps_the_session_header() {
        let sealed = [&[0x40, 1, 1, 0, 7, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0][..], &[5; 200]].concat();
        let segment = crate::header::sample(kind::FRAG, 100, 3, 1);
        let captured = [&crate::auth::opened_header(&sealed).unwrap()[..], &segment].concat();
        let decoded = plain_of(&captured);
        let of_sealed = ClearHeader { kind: "SEALED", priority: true, session: 7, number: 9 };
        assert_eq!((decoded.sealed, decoded.len, decoded.good), (Some(of_sealed), captured.len(), true));
        assert_eq!(Plain { sealed: None, len: segment.len(), ..decoded }, plain_of(&segment));
        assert_eq!(crate::auth::opened_header(&segment), None);
        assert_eq!(decode(&captured[..CLEAR + 20]), None);
        assert_eq!(clear(&captured), None, "nobody takes it from a network");
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(Decoded::Plain(plain)) = decode(&bytes) {
                prop_assert!(plain.len <= bytes.len());
            }
        }
    }
}
