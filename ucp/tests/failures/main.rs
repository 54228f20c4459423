//! Peers that die, endpoints that close, networks that lose, at every moment of every operation. One binary,
//! as each would link the whole engine.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;

mod deaths;
mod ends;
mod faults;
mod one_of_several;
mod qpn_reuse;
