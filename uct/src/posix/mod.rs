//! Transport `posix`, device `memory`: processes of one host and one user, through shared memory.
//! Each interface owns one sealed memory file that holds its receive FIFO; peers are passed its descriptor over a unix
//! socket. By default nothing is ever put into a file system, so nothing is left behind, however a process ends.
//!
//! | File | What |
//! |---|---|
//! | `fifo.rs` | the synchronisation alone, with its loom models |
//! | `writer_table.rs`, `slot_map.rs` | the same of writers' lines, and of slots that are bound to cells |
//! | `seg.rs` | layout of a segment: header, writers, cells, slots |
//! | `addr.rs` | addresses |
//! | `fd_server/` | the thread that passes descriptors to peers, and tells of deaths |
//! | `peer.rs` | the writing side: a peer's segment, attached |
//! | `pending_order.rs` | who sends while others wait for room |
//! | `rx.rs` | the reading side: poll, keep, cells of dead writers |
//! | `poll_interval.rs` | how often to look whether a peer has died |
//! | `poll_delay.rs` | when not to look for an answer: the lines of two who take turns |
//! | `iface.rs`, `ep.rs` | the contract |
//! | `md.rs` | memory that peers map, and its keys |
//!
//! # A message
//!
//! A writer claims a ticket by one compare-and-swap on the head, writes the packet into the cell, or, if it is
//! longer than `seg::INLINE` bytes, into the slot bound to the cell, and publishes it by a store of the cell's word.
//! The reader polls one word. A packet of up to 48 bytes travels in one cache line, word and sender included.
//!
//! A writer's line has room for the name of one ticket. So while a closure packs, whatever else is sent through the same link
//! finds no room: the copy of the tail, which says whether there is any, says so meanwhile, and the usual way has nothing to ask.
//!
//! # A writer that dies
//!
//! Between claim and publish a writer may be killed. Before each claim it stores the ticket it is going for in its
//! own line of the segment. When the reader has found a ticket claimed but unpublished for a while, it asks who may
//! hold it: every writer whose line names it. The winner of the claim is among them until it has published, the
//! losers move on to another ticket as soon as they run. When none of them is alive the ticket has no holder any
//! more, and the reader skips it. Time plays no part, so a live writer is never robbed, however long it sleeps.
//!
//! # A reader that dies
//!
//! The kernel tells the `fd_server`, which raises the alarm of every interface that is attached or has unpacked a key of the
//! dead. Once what it has sent is read, the next poll reports [`PeerDead`](crate::api::Error::PeerDead) for each endpoint
//! to it, and every call on them answers the same, also those that only touch its memory, which stays mapped as long as
//! somebody has a key. [`Ep::check`](crate::api::Ep::check) and [`Ep::flush`](crate::api::Ep::flush) know at once. An
//! interface closed by a process that lives is noticed by the next send to it.
//!
//! # What is trusted
//!
//! Processes of the same user, not to attack one another: whoever may open the segment may write any of it. All the
//! same nothing read from a peer's segment is used as an index or length without a bound, and no byte outside the
//! mapping can be reached, so a peer's bug stays a bad message.

mod fifo;
#[cfg(all(test, loom))]
mod loom;
mod slot_map;
mod writer_table;

#[cfg(not(loom))]
mod addr;
#[cfg(not(loom))]
mod ep;
#[cfg(not(loom))]
mod iface;
#[cfg(not(loom))]
mod peer;
#[cfg(not(loom))]
mod pending_order;
#[cfg(not(loom))]
mod rx;
#[cfg(not(loom))]
mod seg;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(not(loom))]
mod tuning;

#[cfg(not(loom))]
pub use {
    crate::host::{Md, Mem, Rkey},
    ep::Ep,
    iface::{Config, Iface},
};

/// Transport name.
pub const TL: &str = "posix";
/// Name of its one device.
pub const DEV: &str = "memory";
