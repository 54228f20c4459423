//! Frames of an exchange: 16 bytes of header, then a packed worker address or nothing. Data of the program
//! may follow. All numbers are little endian.
//!
//! | Bytes | Meaning |
//! |---|---|
//! | 0..4 | `UCCM` |
//! | 4 | version, 1 |
//! | 5 | kind: 1 HELLO, 2 ACCEPT, 3 REJECT, 4 CONFIRM, 5 OPEN |
//! | 6..8 | length of the body |
//! | 8..16 | HELLO and OPEN: the client's id; ACCEPT: 0; REJECT and CONFIRM: an [`Answer`] |
//!
//! The client sends HELLO with its address. The server answers ACCEPT with the address of the accepting
//! worker, or REJECT. After ACCEPT the client sends CONFIRM and closes. OPEN takes the place of HELLO if
//! neither side closes then: the end of the TCP connection tells the other side that this one has
//! disconnected. Only these exchanges carry data of the program: in OPEN and ACCEPT behind the address, in
//! REJECT alone. In the others four bytes follow an address: the sender's number of the connection.

use num_enum::{IntoPrimitive, TryFromPrimitive};

use super::failure::ConnectFailure;

const MAGIC: [u8; 4] = *b"UCCM";
const VERSION: u8 = 1;
pub(super) const HEADER: usize = 16;
/// Longest body, bytes: what a peer can make this side keep for one exchange.
pub(crate) const MAX_BODY: usize = 16 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoPrimitive, TryFromPrimitive)]
#[repr(u8)]
pub(super) enum Kind {
    Hello = 1,
    Accept = 2,
    Reject = 3,
    Confirm = 4,
    Open = 5,
}

/// Outcome of an exchange that one side tells the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoPrimitive, TryFromPrimitive)]
#[repr(u64)]
pub(crate) enum Answer {
    /// The endpoint is connected.
    Connected = 0,
    /// The program has rejected the request.
    Rejected = 1,
    /// A frame was not understood.
    NotUnderstood = 2,
    /// No transport reaches the address in the frame.
    Unreachable = 3,
}

impl Answer {
    /// The failure at the side that is told.
    pub(super) fn failure(self) -> Option<ConnectFailure> {
        match self {
            Answer::Connected => None,
            Answer::Rejected => Some(ConnectFailure::Rejected),
            Answer::NotUnderstood => Some(ConnectFailure::Malformed),
            Answer::Unreachable => Some(ConnectFailure::Unreachable),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) word: u64,
    pub(super) body: Vec<u8>,
}

impl Frame {
    /// A frame without a body.
    pub(super) fn answer(kind: Kind, answer: Answer) -> Frame {
        Frame { kind, word: answer.into(), body: Vec::new() }
    }

    pub(super) fn pack(&self) -> Vec<u8> {
        debug_assert!(self.body.len() <= MAX_BODY);
        let mut out = Vec::with_capacity(HEADER + self.body.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, self.kind.into()]);
        out.extend_from_slice(&(self.body.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.word.to_le_bytes());
        out.extend_from_slice(&self.body);
        out
    }
}

/// A frame that arrives in pieces. Takes no byte behind it, and no memory before the bytes come.
#[derive(Default)]
pub(super) struct FrameReader {
    bytes: Vec<u8>,
}

impl FrameReader {
    /// Number of bytes to read next; 0 when the frame is complete. Fails as soon as the bytes read so far
    /// cannot be the beginning of a frame.
    pub(super) fn missing(&self) -> Result<usize, ConnectFailure> {
        let (have, whole) = (self.bytes.len(), self.whole_len()?);
        Ok(whole - have)
    }

    /// Length of the header, or of the frame if the header is complete.
    fn whole_len(&self) -> Result<usize, ConnectFailure> {
        let start = [&MAGIC[..], &[VERSION]].concat();
        let have = self.bytes.len().min(start.len());
        if self.bytes[..have] != start[..have] {
            return Err(ConnectFailure::Malformed);
        }
        let Some(header) = self.bytes.first_chunk::<HEADER>() else { return Ok(HEADER) };
        let [_, _, _, _, _, kind, len0, len1, ..] = *header;
        let kind = Kind::try_from(kind).map_err(|_| ConnectFailure::Malformed)?;
        let len = usize::from(u16::from_le_bytes([len0, len1]));
        let is_wrong = match kind {
            Kind::Hello | Kind::Accept | Kind::Open => len == 0,
            Kind::Confirm => len > 0,
            Kind::Reject => false,
        };
        if len > MAX_BODY || is_wrong {
            return Err(ConnectFailure::Malformed);
        }
        Ok(HEADER + len)
    }

    /// Adds at most [`FrameReader::missing`] bytes.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the frame if it is complete.
    pub(super) fn take(&mut self) -> Result<Option<Frame>, ConnectFailure> {
        if self.missing()? > 0 {
            return Ok(None);
        }
        let bytes = std::mem::take(&mut self.bytes);
        let malformed = ConnectFailure::Malformed;
        let header = bytes.first_chunk::<HEADER>().ok_or(malformed)?;
        let [_, _, _, _, _, kind, _, _, word @ ..] = *header;
        let kind = Kind::try_from(kind).map_err(|_| malformed)?;
        Ok(Some(Frame { kind, word: u64::from_le_bytes(word), body: bytes[HEADER..].to_vec() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(bytes: &[u8]) -> Result<Option<(Frame, usize)>, ConnectFailure> {
        let mut reader = FrameReader::default();
        let mut at = 0;
        loop {
            let n = reader.missing()?.min(bytes.len() - at);
            reader.add(&bytes[at..at + n]);
            at += n;
            if let Some(frame) = reader.take()? {
                return Ok(Some((frame, at)));
            }
            if n == 0 {
                return Ok(None);
            }
        }
    }

    #[test]
    fn golden_bytes() {
        let hello = Frame { kind: Kind::Hello, word: 0x0807_0605_0403_0201, body: vec![0xaa, 0xbb, 0xcc] };
        let packed = b"UCCM\x01\x01\x03\x00\x01\x02\x03\x04\x05\x06\x07\x08\xaa\xbb\xcc";
        assert_eq!(hello.pack(), packed);
        let accept = Frame { kind: Kind::Accept, word: 0, body: vec![0xdd] };
        assert_eq!(accept.pack(), b"UCCM\x01\x02\x01\x00\0\0\0\0\0\0\0\0\xdd");
        let reject = Frame::answer(Kind::Reject, Answer::Rejected);
        assert_eq!(reject.pack(), b"UCCM\x01\x03\0\0\x01\0\0\0\0\0\0\0");
        let confirm = Frame::answer(Kind::Confirm, Answer::Unreachable);
        assert_eq!(confirm.pack(), b"UCCM\x01\x04\0\0\x03\0\0\0\0\0\0\0");
        for frame in [hello, accept, reject, confirm] {
            let len = frame.pack().len();
            let more = [frame.pack(), b"more".to_vec()].concat();
            assert_eq!(read(&more), Ok(Some((frame, len))), "no byte more is taken");
        }
    }

    #[test]
    fn malformed_frames_are_refused_at_once() {
        let bad: [&[u8]; 8] = [
            b"G",
            b"GET / HTTP/1.1\r\n\r\n",
            b"UCCN",
            b"UCCM\x02",
            b"UCCM\x01\x06\x00\x00\0\0\0\0\0\0\0\0",
            b"UCCM\x01\x01\x00\x00\0\0\0\0\0\0\0\0",
            b"UCCM\x01\x04\x01\x00\0\0\0\0\0\0\0\0",
            b"UCCM\x01\x01\x01\x40\0\0\0\0\0\0\0\0",
        ];
        for bytes in bad {
            assert_eq!(read(bytes), Err(ConnectFailure::Malformed), "{bytes:?}");
        }
        for bytes in [&b""[..], b"UCC", b"UCCM\x01\x01\x00\x40\0\0\0\0\0\0\0\0", b"UCCM\x01\x02\x09"] {
            assert_eq!(read(bytes), Ok(None), "{bytes:?}");
        }
    }

    #[test]
    fn answers_are_failures_but_one() {
        assert_eq!(Answer::Connected.failure(), None);
        for answer in [Answer::Rejected, Answer::NotUnderstood, Answer::Unreachable] {
            assert!(answer.failure().is_some());
            assert_eq!(Answer::try_from(u64::from(answer)), Ok(answer));
        }
        assert!(Answer::try_from(4).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_read_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..64), to in 0..9usize) {
            let start = b"UCCM\x01\x01\x03\x00";
            let to = to.min(bytes.len());
            bytes[..to].copy_from_slice(&start[..to]);
            if let Ok(Some((frame, len))) = read(&bytes) {
                prop_assert_eq!(frame.pack(), &bytes[..len]);
            }
        }
    }
}
