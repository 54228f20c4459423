//! Reliable delivery of fragments over datagrams, by the rules of Open MPI's usNIC transport
//! (`usnic_btl_design`), whose terms are used and whose sections are named at each mechanism.
//!
//! It does no I/O, starts no thread and reads no clock: its owner passes in the time and the datagrams that
//! arrive, and sends what [`Module::poll_send`] returns. So whole networks run in virtual time from a seed.
//!
//! | Section of the document | Files |
//! |---|---|
//! | Nomenclature | `segment`, `fragment`, `reassembly` |
//! | Channels | `channel` |
//! | Sending, Fragment sending | `ready`, `resend`, `credits`, `module/post` |
//! | `opal_btl_usnic_endpoint_send_segment()`, `usnic_send()` | `module/endpoint`, [`Module::send`] |
//! | Receive dataflow | `header`, `module/receive`, `reassembly` |
//! | Fast receive optimization | [`Module::recv_fast`] |
//! | Reliability | `seq`, `send_window`, `recv_window`, `ack`, `hotel`, `module/acked`, `module/timers` |
//! | Reordering | `rack` and, of ours, selective acknowledgement |
//!
//! Not of the document: `rtt` (RFC 6298), `congestion`, `keepalive`, `path`, `module/peers`, [`auth`],
//! [`addr`].
//! `docs/usnic.md` puts each sentence of the document beside the code that keeps it.

#![forbid(unsafe_code)]

mod ack;
pub mod addr;
pub mod auth;
mod channel;
mod channel_order;
mod config;
mod congestion;
mod credits;
mod decode;
mod fragment;
mod header;
mod hotel;
mod keepalive;
mod module;

mod path;
mod pieces;
mod rack;
mod ready;
mod reassembly;
mod recv_window;
mod resend;
mod rtt;
mod segment;
mod send_window;
mod seq;
mod stats;

pub use channel::{ChannelId, channel_of};
pub use config::{ChannelConfig, Config};
pub use decode::{Decoded, Piece, Plain, decode};
pub use header::{
    CHUNK_HEADER, ClaimedSource, FRAG_HEADER, HEAD, HEADER, Head, MAX_FLOWS, claimed_source, flow_of, seal,
};
pub use module::{CloseReason, EpId, Module, NoSource, Posted, SendError, Sink, Source};
pub use stats::{RTT_BUCKETS, Stats};
