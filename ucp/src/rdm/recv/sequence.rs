//! Order of the messages of one peer: whether a `msg_id` is the next, past or early (RDM v4, rule R9 of the
//! wire facts).

use ucs::coll::window::seq_diff;

/// Use of one `msg_id` by several packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MsgIdUse {
    /// One packet a message: the id seen again is a duplicate.
    Single,
    /// The packets of a message in several (MEDIUM, RUNTREAD) share it.
    Segments,
    /// One packet a message, and later perhaps one that repeats it (LONGCTS after a READ_NACK).
    Repeatable,
}

/// Position of a packet in the order of its sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// It is the next: handle it.
    Now,
    /// The id has been seen: a further packet of a message in several, or a duplicate.
    Past,
    /// Before its turn.
    Early,
}

/// Compares `msg_id` with the expected id `next`. Ids wrap. // HOT
// [M4.3]
#[inline]
pub const fn turn(next: u32, msg_id: u32) -> Turn {
    match seq_diff(msg_id, next) {
        0 => Turn::Now,
        d if d < 0 => Turn::Past,
        _ => Turn::Early,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [M4.4]
    #[test]
    fn turns_survive_the_wrap() {
        assert_eq!(turn(7, 7), Turn::Now);
        assert_eq!(turn(u32::MAX, 0), Turn::Early);
        assert_eq!(turn(0, u32::MAX), Turn::Past);
        assert_eq!(turn(5, 5 + 100_000), Turn::Early);
    }
}
