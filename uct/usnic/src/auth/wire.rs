//! Layout of sealed datagrams, handshake messages and the notice of a session that is not known.
//!
//! Each begins with the fixed clear header, all that is parsed of a datagram before it is authenticated. The
//! first byte tells these datagrams from those of [`crate::Module`], which begin with their version, 1.

use super::secret::MacKey;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the format.
pub const VERSION: u8 = 1;
/// Bytes of a salt.
pub const SALT: usize = 32;
/// Bytes of a cookie.
pub const COOKIE: usize = 32;
/// Bytes of an AEAD's tag.
pub const TAG: usize = 16;

/// Types of datagrams.
pub mod kind {
    /// A datagram of the module, sealed.
    pub const SEALED: u8 = 0x40;
    /// Asks for a cookie.
    pub const HELLO: u8 = 0x41;
    /// Grants a cookie.
    pub const COOKIE: u8 = 0x42;
    /// Asks for a session.
    pub const REQUEST: u8 = 0x43;
    /// Grants a session.
    pub const ACCEPT: u8 = 0x44;
    /// The session of a datagram is not known.
    pub const UNKNOWN: u8 = 0x45;
    /// In captures only: the header of a sealed datagram, and behind it what is sealed, in clear. One that
    /// arrives is malformed.
    pub const OPENED: u8 = 0x46;
}

/// Clear header of a sealed datagram.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Clear {
    /// One of [`kind`].
    pub kind: u8,
    /// [`VERSION`].
    pub version: u8,
    /// 1 if the datagram took the priority channel of a peer that takes this mark, else zero.
    pub mark: u8,
    /// Zero.
    pub zero: u8,
    /// Session at the receiver.
    pub session: U32,
    /// Number of the datagram in its direction of the session, which never repeats.
    pub number: U64,
}

/// Bytes of a clear header.
pub const CLEAR: usize = size_of::<Clear>();
/// Bytes that sealing adds to a datagram.
pub const OVERHEAD: usize = CLEAR + TAG;

/// A message of the handshake. All four have this layout and length, so no answer is longer than its cause.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Message {
    /// One of [`kind`].
    pub kind: u8,
    /// [`VERSION`].
    pub version: u8,
    /// Zero.
    pub zero: U16,
    /// Session at the receiver; 0 if the sender does not know it.
    pub session: U32,
    /// Node that sends it.
    pub from: U64,
    /// Node that it is for.
    pub to: U64,
    /// Session at the sender; 0 in a cookie's message.
    pub own: U32,
    /// Zero.
    pub zero2: U32,
    /// Salt of the sender; in a cookie's message that of the receiver.
    pub salt: [u8; SALT],
    /// Cookie; in the last message the salt of the receiver.
    pub cookie: [u8; COOKIE],
    /// Authenticates everything before it by the secret.
    pub mac: [u8; 32],
}

/// Bytes of a handshake message.
pub const MESSAGE: usize = size_of::<Message>();
const MAC_AT: usize = MESSAGE - 32;

/// Tells the sender of a sealed datagram that its session is not known here: the process has started anew.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Unknown {
    /// Header of the datagram, but for the type.
    pub clear: Clear,
    /// Node that does not know the session.
    pub from: U64,
    /// Authenticates the fields before it by the secret.
    pub mac: [u8; 32],
}

/// Bytes of an [`Unknown`].
pub const UNKNOWN: usize = size_of::<Unknown>();
const UNKNOWN_MAC_AT: usize = UNKNOWN - 32;

const _: () = assert!(CLEAR == 16 && MESSAGE == 128 && UNKNOWN == 56);

/// Clear header of a datagram of a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClearHeader {
    /// Type.
    pub kind: &'static str,
    /// Whether it took the priority channel.
    pub priority: bool,
    /// Session at the receiver; 0 if the sender does not know it.
    pub session: u32,
    /// Number of the datagram; of the handshake's 0 or a node.
    pub number: u64,
}

/// Reads the clear header of a datagram of a capture.
pub fn clear(datagram: &[u8]) -> Option<ClearHeader> {
    let clear = parse_clear(datagram)?;
    let kind = match clear.kind {
        kind::SEALED => "SEALED",
        kind::HELLO => "AUTH_HELLO",
        kind::COOKIE => "AUTH_COOKIE",
        kind::REQUEST => "AUTH_REQUEST",
        kind::ACCEPT => "AUTH_ACCEPT",
        _ => "AUTH_UNKNOWN",
    };
    let priority = clear.mark != 0;
    Some(ClearHeader { kind, priority, session: clear.session.get(), number: clear.number.get() })
}

/// Header for a capture of what a sealed datagram carries, in clear. `None`: it is not sealed.
pub fn opened_header(sealed: &[u8]) -> Option<[u8; CLEAR]> {
    let clear = parse_clear(sealed).filter(|clear| clear.kind == kind::SEALED)?;
    let mut header = [0; CLEAR];
    header.copy_from_slice(Clear { kind: kind::OPENED, ..*clear }.as_bytes());
    Some(header)
}

/// Takes what [`opened_header`] has made and what follows it apart.
pub(crate) fn opened(captured: &[u8]) -> Option<(ClearHeader, &[u8])> {
    let (clear, rest) = Clear::ref_from_prefix(captured).ok()?;
    let (priority, session, number) = (clear.mark != 0, clear.session.get(), clear.number.get());
    let header = ClearHeader { kind: "SEALED", priority, session, number };
    (clear.kind == kind::OPENED && clear.version == VERSION).then_some((header, rest))
}

/// Whether a datagram is marked as one of the priority channel. Nothing else of it is checked.
pub(crate) fn mark_of(datagram: &[u8]) -> bool {
    Clear::ref_from_prefix(datagram).is_ok_and(|(clear, _)| clear.mark & 1 != 0)
}

/// Reads the clear header of a datagram of a known type and version.
pub fn parse_clear(datagram: &[u8]) -> Option<&Clear> {
    let (clear, _) = Clear::ref_from_prefix(datagram).ok()?;
    let known = matches!(clear.kind, kind::SEALED..=kind::UNKNOWN);
    let may_be_marked = matches!(clear.kind, kind::SEALED | kind::UNKNOWN);
    let most = u8::from(may_be_marked);
    (known && clear.version == VERSION && clear.mark <= most && clear.zero == 0).then_some(clear)
}

impl Message {
    /// Creates a message that lacks its authentication.
    pub fn new(kind: u8, session: u32, from: u64, to: u64, own: u32) -> Message {
        Message {
            kind,
            version: VERSION,
            zero: 0.into(),
            session: session.into(),
            from: from.into(),
            to: to.into(),
            own: own.into(),
            zero2: 0.into(),
            salt: [0; SALT],
            cookie: [0; COOKIE],
            mac: [0; 32],
        }
    }

    /// Authenticates the message, which is complete otherwise.
    pub fn sign(mut self, key: &MacKey) -> Message {
        self.mac = key.sign(&[&self.as_bytes()[..MAC_AT]]);
        self
    }

    /// Returns the message that a datagram is, if whoever wrote it has the secret.
    pub fn open<'d>(datagram: &'d [u8], key: &MacKey) -> Option<&'d Message> {
        let message = Message::ref_from_bytes(datagram).ok()?;
        let is_good = key.verify(&datagram[..MAC_AT], &message.mac);
        (is_good && message.zero2.get() == 0).then_some(message)
    }
}

impl Unknown {
    /// Answers a datagram with this header.
    pub fn answer(clear: &Clear, from: u64, key: &MacKey) -> Unknown {
        let clear = Clear { kind: kind::UNKNOWN, ..*clear };
        let mut answer = Unknown { clear, from: from.into(), mac: [0; 32] };
        answer.mac = key.sign(&[&answer.as_bytes()[..UNKNOWN_MAC_AT]]);
        answer
    }

    /// Returns the notice that a datagram is, if whoever wrote it has the secret.
    pub fn open<'d>(datagram: &'d [u8], key: &MacKey) -> Option<&'d Unknown> {
        let notice = Unknown::ref_from_bytes(datagram).ok()?;
        key.verify(&datagram[..UNKNOWN_MAC_AT], &notice.mac).then_some(notice)
    }
}
