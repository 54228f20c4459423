//! The packing of addresses in use, version 2:
//!
//! | Bytes | Meaning |
//! |---|---|
//! | 1 | `0xa0` and the version |
//! | 1 to 3 | number of bytes that follow, as LEB128 |
//! | 1 | which of the next three there are ([`Has`]) |
//! | 8 | uid, little endian |
//! | 4 | nonce, little endian; without it, it is derived from the uid |
//! | 4 | process, little endian |
//! | rest | the entries |
//!
//! An entry begins with a byte. Its low bits are 0 if the name of the transport follows, or the number of a
//! compact form in [`FORMS`]. Its high bit is set if the connection id follows (4 bytes). Without it, the
//! form contains the connection id, or it is derived from the nonce and the number of the entry.

use super::form::{FORMS, Form, SharedBytes};
use super::{Address, AddressError, Entry, MAX_ENTRIES, Reader, WorkerId, lane_connid, nonce_of};

pub(super) const VERSION: u8 = 2;
/// High bits of the first byte. Neither an EFA raw address (`0xfe`) nor the first version (`0x55`) has them.
const MAGIC: u8 = 0xa0;
/// Entry with the transport's name.
const NAMED: u8 = 0;
/// Flag of an entry with a connection id.
const HAS_CONNID: u8 = 0x80;

bitflags::bitflags! {
    /// Parts of a packed worker id.
    struct Has: u8 {
        const UID = 1;
        const NONCE = 1 << 1;
        const PROCESS = 1 << 2;
    }
}

pub(super) fn pack(address: &Address) -> Vec<u8> {
    let mut body = Vec::with_capacity(64);
    pack_id(address.id, &mut body);
    let mut shared = SharedBytes::default();
    for (nth, entry) in address.entries.iter().enumerate() {
        pack_entry(entry, (address.id, nth), &mut shared, &mut body);
    }
    let mut out = Vec::with_capacity(body.len() + 4);
    out.push(MAGIC | VERSION);
    let mut len = body.len();
    while len >= 0x80 {
        out.push(len as u8 | 0x80);
        len >>= 7;
    }
    out.push(len as u8);
    out.append(&mut body);
    out
}

fn pack_id(id: WorkerId, out: &mut Vec<u8>) {
    let mut has = Has::empty();
    has.set(Has::UID, id.uid != 0);
    has.set(Has::NONCE, id.nonce != implied_nonce(id.uid));
    has.set(Has::PROCESS, id.process != 0);
    out.push(has.bits());
    if has.contains(Has::UID) {
        out.extend_from_slice(&id.uid.to_le_bytes());
    }
    if has.contains(Has::NONCE) {
        out.extend_from_slice(&id.nonce.to_le_bytes());
    }
    if has.contains(Has::PROCESS) {
        out.extend_from_slice(&id.process.to_le_bytes());
    }
}

fn implied_nonce(uid: u64) -> u32 {
    if uid == 0 { 0 } else { nonce_of(uid) }
}

fn pack_entry(entry: &Entry, (id, nth): (WorkerId, usize), shared: &mut SharedBytes, out: &mut Vec<u8>) {
    let start = out.len();
    // The newest form that fits.
    for (number, form) in FORMS.iter().enumerate().rev() {
        let is_implied = form.has_connid() || entry.connid == lane_connid(id.nonce, nth);
        pack_start(number as u8 + 1, (!is_implied).then_some(entry.connid), out);
        if form.pack(entry, id.uid, shared, out) {
            return;
        }
        out.truncate(start);
    }
    let is_implied = entry.connid == lane_connid(id.nonce, nth);
    pack_start(NAMED, (!is_implied).then_some(entry.connid), out);
    for part in [&entry.tl[..], &entry.device, &entry.iface] {
        out.push(part.len() as u8);
        out.extend_from_slice(part);
    }
}

fn pack_start(kind: u8, connid: Option<u32>, out: &mut Vec<u8>) {
    match connid {
        Some(connid) => {
            out.push(kind | HAS_CONNID);
            out.extend_from_slice(&connid.to_le_bytes());
        }
        None => out.push(kind),
    }
}

/// Reads the version byte; `None` if the bytes are no packed address of this version or a later one.
fn version(bytes: &[u8]) -> Option<Result<(), AddressError>> {
    let first = *bytes.first()?;
    match first ^ MAGIC {
        VERSION => Some(Ok(())),
        theirs @ 3..=15 => Some(Err(AddressError::Version { theirs, ours: VERSION })),
        _ => None,
    }
}

/// Returns the length of the header and of the rest; `None` if the header is cut short or too long.
fn lengths(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut rest = 0;
    for (at, byte) in bytes.iter().enumerate().skip(1).take(3) {
        rest |= usize::from(byte & 0x7f) << (7 * (at - 1));
        if byte & 0x80 == 0 {
            return Some((at + 1, rest));
        }
    }
    None
}

/// Returns the length by the header; `None` if `bytes` does not begin with the magic.
pub(super) fn packed_len(bytes: &[u8]) -> Option<Result<usize, AddressError>> {
    let damaged = AddressError::Damaged { len: bytes.len() };
    Some(version(bytes)?.and_then(|()| lengths(bytes).map(|(header, rest)| header + rest).ok_or(damaged)))
}

/// Reads an address and its length; `None` if `bytes` does not begin with the magic.
pub(super) fn unpack(bytes: &[u8]) -> Option<Result<(Address, usize), AddressError>> {
    let read = || {
        let (header, rest) = lengths(bytes)?;
        let body = bytes.get(header..header + rest)?;
        Some((read(&mut Reader(body))?, header + rest))
    };
    let damaged = AddressError::Damaged { len: bytes.len() };
    Some(version(bytes)?.and_then(|()| read().ok_or(damaged)))
}

fn read(reader: &mut Reader<'_>) -> Option<Address> {
    let id = read_id(reader)?;
    let mut shared = SharedBytes::default();
    let mut entries = Vec::new();
    while !reader.0.is_empty() {
        if entries.len() == MAX_ENTRIES {
            return None;
        }
        entries.push(read_entry(reader, (id, entries.len()), &mut shared)?);
    }
    Some(Address { id, entries })
}

fn read_id(reader: &mut Reader<'_>) -> Option<WorkerId> {
    let has = Has::from_bits(reader.byte()?)?;
    let uid = if has.contains(Has::UID) { u64::from_le_bytes(reader.array()?) } else { 0 };
    let nonce =
        if has.contains(Has::NONCE) { u32::from_le_bytes(reader.array()?) } else { implied_nonce(uid) };
    let process = if has.contains(Has::PROCESS) { u32::from_le_bytes(reader.array()?) } else { 0 };
    Some(WorkerId { uid, nonce, process })
}

fn read_entry(
    reader: &mut Reader<'_>,
    (id, nth): (WorkerId, usize),
    shared: &mut SharedBytes,
) -> Option<Entry> {
    let start = reader.byte()?;
    let connid = match start & HAS_CONNID {
        0 => lane_connid(id.nonce, nth),
        _ => u32::from_le_bytes(reader.array()?),
    };
    match start & !HAS_CONNID {
        NAMED => {
            let tl = reader.part()?;
            Some(Entry { tl, connid, device: reader.part()?, iface: reader.part()? })
        }
        number => {
            let form: &Form = FORMS.get(usize::from(number) - 1)?;
            form.read(reader, (id.uid, connid), shared)
        }
    }
}
