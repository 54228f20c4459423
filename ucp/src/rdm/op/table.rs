//! Names of operations. The same 32 bits are the user's [`OpId`] and the `send_id` or `recv_id` on the wire; a
//! generation inside tells a stale or invented one from a live one.

use ucs::coll::slots::{LOWER, LOWER_EVEN, LOWER_ODD, SlotId, Slots};

/// Names a pending send or receive. Sends and receives have separate tables: a send's id means nothing to
/// `cancel_recv`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OpId(pub(in crate::rdm) SlotId);

/// One kind of operation by id. Up to about a million at a time. The ids of one-sided operations (`one`) have the top
/// bit set, these have not.
pub type Table<T> = Slots<T, 20, LOWER>;

/// Sends by id. A PEER_ERROR names a send or a receive by nothing but its id, so the two have none in common.
pub type Sends<T> = Slots<T, 20, LOWER_EVEN>;

/// Receives by id.
pub type Receives<T> = Slots<T, 20, LOWER_ODD>;
