//! The first packing of addresses: magic `UCPA`, version, number of entries, process; then each entry with
//! the lengths of its parts. Read only: nothing packs it any more.

use arrayvec::ArrayVec;

use super::{Address, AddressError, Entry, Part, Reader, WorkerId, v2};

const MAGIC: [u8; 4] = *b"UCPA";
const VERSION: u8 = 1;

/// Reads an address and its length; `None` if `bytes` does not begin with the magic.
pub(super) fn unpack(bytes: &[u8]) -> Option<Result<(Address, usize), AddressError>> {
    let version = *bytes.strip_prefix(&MAGIC)?.first().unwrap_or(&VERSION);
    if version != VERSION {
        return Some(Err(AddressError::Version { theirs: version, ours: v2::VERSION }));
    }
    let mut reader = Reader(bytes);
    let read = read(&mut reader).ok_or(AddressError::Damaged { len: bytes.len() });
    Some(read.map(|address| (address, bytes.len() - reader.0.len())))
}

fn read(reader: &mut Reader<'_>) -> Option<Address> {
    let [.., count, _, _] = reader.array::<8>()?;
    let process = u64::from_le_bytes(reader.array()?) as u32;
    let entries = (0..count).map(|_| read_entry(reader)).collect::<Option<_>>()?;
    Some(Address { id: WorkerId { process, ..WorkerId::default() }, entries })
}

fn read_entry(reader: &mut Reader<'_>) -> Option<Entry> {
    let [tl, device, iface, _] = reader.array()?;
    let connid = u32::from_le_bytes(reader.array()?);
    let tl = ArrayVec::try_from(reader.take(usize::from(tl))?).ok()?;
    let device = Part::try_from(reader.take(usize::from(device))?).ok()?;
    let iface = Part::try_from(reader.take(usize::from(iface))?).ok()?;
    Some(Entry { tl, connid, device, iface })
}
