//! Worker addresses: what one worker tells another, out of band, so that an endpoint can be made.
//! Made by `Worker::address`, read by `Worker::connect`; `lane::wireup` chooses among the entries.
//! Never trusts the bytes: a packed address comes from a peer.
//!
//! | File | Contents |
//! |---|---|
//! | `v1.rs` | the first packing, which is read only |
//! | `v2.rs` | the packing in use |
//! | `form.rs` | the compact forms of known transports' addresses |

mod form;
#[cfg(test)]
mod tests;
mod v1;
mod v2;

use std::fmt;

use arrayvec::ArrayVec;

/// Longest address of a transport's device or interface, bytes.
pub(crate) const MAX_PART: usize = 64;
/// Longest transport name, bytes.
const MAX_TL: usize = 16;
/// Most transports in an address: a worker has at most 255 interfaces, and one lane for RMA only.
const MAX_ENTRIES: usize = 256;
/// Length of a bare EFA raw address.
const RAW_LEN: usize = 32;
/// First 8 bytes of a bare EFA raw address: the prefix of link-local GIDs.
const LINK_LOCAL: [u8; 8] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];

/// Bytes of a device or interface address: opaque here.
pub(crate) type Part = ArrayVec<u8, MAX_PART>;

/// One way to reach a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// Transport name: says how the two addresses are to be read.
    pub tl: ArrayVec<u8, MAX_TL>,
    /// Connection id its packets carry (RDM v4 raw address, bytes 20..24).
    pub connid: u32,
    /// Device address.
    pub device: Part,
    /// Interface address.
    pub iface: Part,
}

impl Entry {
    pub(crate) fn tl(&self) -> &str {
        std::str::from_utf8(&self.tl).unwrap_or("?")
    }
}

/// Identity of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct WorkerId {
    /// Number that no other worker has; 0 if unknown.
    pub uid: u64,
    /// Number from which [`lane_connid`] derives the connection ids of lanes that have none.
    pub nonce: u32,
    /// Process the worker lives in, as `process()` returns it; 0 if unknown.
    pub process: u32,
}

/// Nonce of a worker that chose none: 31 bits of its uid.
pub(crate) fn nonce_of(uid: u64) -> u32 {
    let x = (uid ^ uid >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x >> 33) as u32
}

/// Connection id of the `nth` lane of a worker, 31 bits.
pub(crate) fn lane_connid(nonce: u32, nth: usize) -> u32 {
    (nonce ^ (nth as u32 + 1).wrapping_mul(0x9e37_79b9)) >> 1
}

/// The address of a worker: every transport it can be reached over.
///
/// Packed with [`Address::pack`], sent to the peer by any means, and read there with [`Address::unpack`],
/// which takes a bare 32-byte EFA raw address too (what libfabric's `fi_getname` answers).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    pub(crate) id: WorkerId,
    pub(crate) entries: Vec<Entry>,
}

/// Why bytes are not the address of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// Neither a packed worker address nor a 32-byte EFA raw address.
    #[error("these {len} bytes do not begin a worker address")]
    NotAnAddress {
        /// Bytes given.
        len: usize,
    },
    /// The peer's library packs addresses another way.
    #[error(
        "worker address has version {theirs}, this library reads versions 1 to {ours}: run the same version on both sides"
    )]
    Version {
        /// Version found.
        theirs: u8,
        /// Newest version understood.
        ours: u8,
    },
    /// The table that it is for is shared, and this process may not or cannot change it.
    #[error("the shared table of addresses cannot be changed: {kind}")]
    NotShared {
        /// Reason.
        kind: std::io::ErrorKind,
    },
    /// Cut short, or not what it announces.
    #[error("worker address is damaged: {len} bytes do not hold what it announces")]
    Damaged {
        /// Bytes given.
        len: usize,
    },
}

impl Address {
    /// The address as bytes to send to a peer. The bytes contain their own length.
    pub fn pack(&self) -> Vec<u8> {
        v2::pack(self)
    }

    /// Reads a packed address, at any alignment; ignores bytes behind it. Reads a bare EFA raw address, too,
    /// if `bytes` is exactly that.
    pub fn unpack(bytes: &[u8]) -> Result<Address, AddressError> {
        Self::unpack_from(bytes).map(|(address, _)| address)
    }

    /// Length of the packed address with which `bytes` begins. Four bytes suffice for an address packed by
    /// this version. Checks the length only: [`Address::unpack`] may still find damage.
    pub fn packed_len(bytes: &[u8]) -> Result<usize, AddressError> {
        match v2::packed_len(bytes) {
            Some(len) => len,
            None => Self::unpack_from(bytes).map(|(_, len)| len),
        }
    }

    /// Reads packed addresses, one behind another: `bytes` are at least one, and nothing else.
    pub fn unpack_all(bytes: &[u8]) -> Result<Vec<Address>, AddressError> {
        let mut found = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() || found.is_empty() {
            let (address, len) = Self::unpack_from(rest)?;
            found.push(address);
            rest = rest.get(len..).unwrap_or_default();
        }
        Ok(found)
    }

    /// Returns the address and the length of its packed form.
    fn unpack_from(bytes: &[u8]) -> Result<(Address, usize), AddressError> {
        if let Some(read) = v2::unpack(bytes).or_else(|| v1::unpack(bytes)) {
            return read;
        }
        match Self::from_efa_raw(bytes) {
            Some(address) => Ok((address, RAW_LEN)),
            None => Err(AddressError::NotAnAddress { len: bytes.len() }),
        }
    }

    /// The address of a libfabric EFA endpoint, or of one lane: GID, queue pair number and connection id.
    fn from_efa_raw(bytes: &[u8]) -> Option<Address> {
        let raw: &[u8; RAW_LEN] = bytes.try_into().ok()?;
        if raw[..8] != LINK_LOCAL {
            return None;
        }
        Some(Address {
            id: WorkerId::default(),
            entries: vec![Entry {
                tl: ArrayVec::try_from(b"efa".as_slice()).ok()?,
                connid: u32::from_le_bytes([raw[20], raw[21], raw[22], raw[23]]),
                device: Part::try_from(&raw[..16]).ok()?,
                iface: Part::try_from(raw.as_slice()).ok()?,
            }],
        })
    }

    /// Number that identifies the worker among all workers: equal in all addresses of one worker, different
    /// in those of two. `None` in addresses of libfabric and of version 1.
    pub fn uid(&self) -> Option<u64> {
        Some(self.id.uid).filter(|uid| *uid != 0)
    }

    /// Names of the transports in it, in the worker's order.
    pub fn transports(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(Entry::tl)
    }

    /// The 32-byte EFA raw address in it, if the worker has an EFA lane: what libfabric's address vector
    /// takes.
    pub fn efa_raw(&self) -> Option<[u8; RAW_LEN]> {
        self.entries.iter().find_map(|e| e.iface.as_slice().try_into().ok())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, entry) in self.entries.iter().enumerate() {
            write!(f, "{}{}/", if i > 0 { " " } else { "" }, entry.tl())?;
            entry.iface.iter().try_for_each(|b| write!(f, "{b:02x}"))?;
        }
        Ok(())
    }
}

/// Bytes not read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(*head)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    /// A length byte and as many bytes.
    fn part<const N: usize>(&mut self) -> Option<ArrayVec<u8, N>> {
        let len = self.byte()?;
        ArrayVec::try_from(self.take(usize::from(len))?).ok()
    }
}
