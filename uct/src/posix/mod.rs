//! Transport `posix`, device `memory`: processes of one host and one user, through shared memory. Each
//! interface owns one sealed memory file that holds its receive FIFO; the fd server of its process passes the
//! descriptor to peers. Nothing is put into a file system by default, so nothing is left behind, however a
//! process ends.
//!
//! | File | Contents |
//! |---|---|
//! | `fifo.rs` | the synchronisation of the FIFO alone; `loom.rs` has its models |
//! | `writer_table.rs`, `slot_map.rs` | the synchronisation of writers' entries and of slots |
//! | `seg.rs`, `addr.rs` | layout of a segment; addresses |
//! | `peer.rs`, `link.rs`, `pending_order.rs` | the writing side: a peer, and its segment, attached |
//! | `rx.rs` | the reading side: polls, kept messages, tickets of dead writers |
//! | `tuning/` | what adapts polling to the machine |
//! | `iface.rs`, `ep.rs` | the interface and the endpoint |
//!
//! Memory that peers map and the fd server are in `host/`, which `cma` uses too.
//! # A message
//!
//! A writer claims a ticket by one compare-and-swap on the head. It writes the packet into the cell or, if it
//! is longer than `seg::INLINE` bytes, into the slot bound to the cell, and publishes it by a store of the
//! cell's word. The reader polls one word. A packet of up to 48 bytes travels in one cache line, word and
//! sender included.
//! # A writer that dies
//!
//! Before each claim a writer stores the ticket in its entry of the writer table. When the reader finds a
//! ticket claimed but unpublished for a while, it asks whether the writers whose entries name it are alive.
//! The winner of the claim is among them until it has published; the losers move on to another ticket as soon
//! as they run. If none of them is alive, the reader skips the ticket. Time plays no part, so a live writer
//! never loses its ticket.
//! # A reader that dies
//!
//! The kernel notifies the fd server, which raises the alarm of every interface that has attached the dead
//! process or unpacked a key of it. Once what the process sent is read, the next poll reports
//! [`PeerDead`](crate::api::Error::PeerDead) for each endpoint to it, and every call on them fails, also
//! those that only touch its memory, which stays mapped while a key exists.
//! [`Ep::check`](crate::api::Ep::check) and [`Ep::flush`](crate::api::Ep::flush) know at once. A closed
//! interface of a live process is noticed by the next send.
//! # What is trusted
//!
//! Processes of the same user: whoever may open the segment may write any of it. Nothing read from a peer's
//! segment is used as an index or length without a bound, so a peer's bug stays a bad message.

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
mod link;
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
pub(crate) use iface::PERF;
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
