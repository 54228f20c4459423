//! Parameters of memory that the program offers: keys and addresses of its own, and for packets only.

use crate::rdm::Access;

/// Parameters of memory of the program that is offered to peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapParams {
    pub(super) access: Access,
    /// Key that the program has chosen.
    pub(super) key: Option<u32>,
    /// Address of the first byte that the program has chosen.
    pub(super) base: Option<u64>,
    pub(super) only_packets: bool,
    pub(super) is_counted: bool,
    pub(super) is_unbacked: bool,
}

impl MapParams {
    /// Memory that peers may access in this way, by every method.
    pub fn new(access: Access) -> MapParams {
        MapParams {
            access,
            key: None,
            base: None,
            only_packets: false,
            is_counted: false,
            is_unbacked: false,
        }
    }

    /// Gives the memory a key of the program, of which peers make a remote key by
    /// [`Rkey::from_program_key`](crate::Rkey::from_program_key). Registered with no device: such keys name
    /// memory in packets only. Fails with [`KeyInUse`](crate::MemError::KeyInUse) while other memory of the
    /// context has it.
    pub fn key(self, key: u32) -> MapParams {
        MapParams { key: Some(key), only_packets: true, ..self }
    }

    /// Lets peers name the first byte by this address, such as 0 where they count from the beginning of the
    /// memory. Registered with no device, which knows addresses of the process only.
    pub fn base(self, base: u64) -> MapParams {
        MapParams { base: Some(base), only_packets: true, ..self }
    }

    /// Registers the memory with no device, so that each access is a packet that a worker serves and counts
    /// ([`ServedOps`](crate::ServedOps)).
    pub fn only_packets(self) -> MapParams {
        MapParams { only_packets: true, ..self }
    }

    /// Counts what peers do with the memory ([`Mem::served`](crate::Mem::served)). Registered with no device.
    pub fn counted(self) -> MapParams {
        MapParams { is_counted: true, only_packets: true, ..self }
    }

    /// Permits pages that are not there now: what a peer names is looked at when it does, by a system call
    /// unless all pages were there from the beginning. Registered with no device. The null address then is
    /// the beginning of the address space, and a length of [`usize::MAX`] all of it.
    pub fn unbacked(self) -> MapParams {
        MapParams { is_unbacked: true, only_packets: true, ..self }
    }
}
