//! Handler table: the protocol that handles each of the 256 packet types, merged from the protocols'
//! `HANDLERS` at compile time. Two protocols that claim one type do not compile. A new packet type is an
//! entry in its protocol; a new protocol is a line here and an arm in `take` of `dispatch.rs`.

use crate::rdm::protocol::{HandlerKind, PacketHandler};
use crate::rdm::protocols::{
    atomic, close, eager, handshake, longcts, longread, medium, note, peer_error, read, read_nack, receipt,
    write, write_read,
};
use crate::wire::PktType;

// [M3.13] Those of the baseline ask for no feature.
const PROTOCOLS: [&[PacketHandler]; 14] = [
    &eager::HANDLERS,
    &close::HANDLERS,
    &note::HANDLERS,
    &medium::HANDLERS,
    &longcts::HANDLERS,
    &longread::HANDLERS,
    &read_nack::HANDLERS,
    &handshake::HANDLERS,
    &receipt::HANDLERS,
    &peer_error::HANDLERS,
    &write::HANDLERS,
    &write_read::HANDLERS,
    &read::HANDLERS,
    &atomic::HANDLERS,
];

/// The handler of each packet type, by its type byte.
pub(in crate::rdm) static TABLE: [PacketHandler; 256] = merge(&PROTOCOLS);

const fn merge(lists: &[&[PacketHandler]]) -> [PacketHandler; 256] {
    let mut table = [PacketHandler { ty: PktType(0), kind: HandlerKind::None, id_use: None }; 256];
    let mut ty = 0;
    while ty < 256 {
        table[ty].ty = PktType(ty as u8);
        ty += 1;
    }
    let mut list = 0;
    while list < lists.len() {
        let mut at = 0;
        while at < lists[list].len() {
            let new = lists[list][at];
            let old = &mut table[new.ty.0 as usize];
            assert!(matches!(old.kind, HandlerKind::None), "two protocols claim one packet type");
            *old = new;
            at += 1;
        }
        list += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::table::info;

    #[test]
    fn exactly_packets_with_msg_id_are_ordered() {
        for entry in TABLE.iter().filter(|entry| entry.kind != HandlerKind::None) {
            assert_eq!(entry.id_use.is_some(), info(entry.ty).family.has_msg_id(), "{}", entry.ty);
        }
    }
}
