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
pub enum MsgOrder {
    /// The next message: handled now.
    Next,
    /// The id has been seen: a further packet of a message in several, or a duplicate.
    Past,
    /// Messages before it are missing.
    Early,
}

/// Compares `msg_id` with the expected id `next`. Ids wrap.
// HOT
// [M4.3]
#[inline]
pub const fn msg_order(next: u32, msg_id: u32) -> MsgOrder {
    match seq_diff(msg_id, next) {
        0 => MsgOrder::Next,
        d if d < 0 => MsgOrder::Past,
        _ => MsgOrder::Early,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [M4.4]
    #[test]
    fn order_survives_id_wrap() {
        assert_eq!(msg_order(7, 7), MsgOrder::Next);
        assert_eq!(msg_order(u32::MAX, 0), MsgOrder::Early);
        assert_eq!(msg_order(0, u32::MAX), MsgOrder::Past);
        assert_eq!(msg_order(5, 5 + 100_000), MsgOrder::Early);
    }
}
