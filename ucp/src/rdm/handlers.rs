//! The 256 packet types and who handles each: the rooms' rows merged at compile time. Two rooms that claim one type
//! do not compile. A new packet type is a row in its room; a new room is a line here and an arm in `Engine::enter`.

use crate::rdm::protocol::{PktRow, Room};
use crate::rdm::protocols::{
    atomic, eager, handshake, longcts, longread, medium, peer_error, read, read_nack, receipt, write,
    write_read,
};
use crate::wire::PktType;

const ROOMS: [&[PktRow]; 12] = [
    &eager::ROWS,
    &medium::ROWS,
    &longcts::ROWS,
    &longread::ROWS,
    &read_nack::ROWS,
    &handshake::ROWS,
    &receipt::ROWS,
    &peer_error::ROWS,
    &write::ROWS,
    &write_read::ROWS,
    &read::ROWS,
    &atomic::ROWS,
];

/// Row by type byte.
pub static TABLE: [PktRow; 256] = merge(&ROOMS);

const fn merge(rooms: &[&[PktRow]]) -> [PktRow; 256] {
    let mut table = [PktRow { ty: PktType(0), room: Room::Nobody, order: None }; 256];
    let mut ty = 0;
    while ty < 256 {
        table[ty].ty = PktType(ty as u8);
        ty += 1;
    }
    let mut room = 0;
    while room < rooms.len() {
        let mut row = 0;
        while row < rooms[room].len() {
            let new = rooms[room][row];
            let old = &mut table[new.ty.0 as usize];
            assert!(matches!(old.room, Room::Nobody), "two rooms claim one packet type");
            *old = new;
            row += 1;
        }
        room += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::table::info;

    #[test]
    fn order_is_taken_by_exactly_the_packets_with_a_msg_id() {
        for entry in TABLE.iter().filter(|entry| entry.room != Room::Nobody) {
            assert_eq!(entry.order.is_some(), info(entry.ty).family.has_msg_id(), "{}", entry.ty);
        }
    }
}
