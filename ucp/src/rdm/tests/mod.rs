//! Tests of the whole engine: each protocol step by step, random exchanges, hostile packets.

mod backoff;
mod classes;
mod conversation;
mod direct;
mod discards;
mod errors;
mod exchange;
mod flood;
mod generic;
mod hostile;
mod matched;
mod pieces;
mod rails;
mod reads;
mod rma;
mod rma_lane;
mod rules;
mod scatter;
mod stages;
mod unknown_peers;
mod user_qp_send;
mod write_read;
mod zcopy_recv;
