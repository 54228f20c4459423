//! A libfabric provider on this engine: a library that libfabric loads from `FI_PROVIDER_PATH`.
//!
//! libfabric finds `fi_prov_ini`, asks `getinfo`, and opens a fabric. Everything
//! else goes through tables of functions in the objects that these calls return. Each function checks what a
//! C caller passes, calls the raw operation of [`ucp`] that does the work, and translates its result. Nothing
//! of a protocol is here.
//!
//! | Module | Contents |
//! |---|---|
//! | `abi` | structures and values of `rdma/*.h`, libfabric 1.17 |
//! | `entry`, `errno` | functions that C calls; results and errors as libfabric has them |
//! | `provider`, `params`, `info` | the provider, its configuration, and its answers to `fi_getinfo` |
//! | `fabric`, `domain`, `open_objects` | the objects that others are made from, and which of them are open |
//! | `pep`, `sockaddr` | passive endpoints, requests to be connected; socket addresses |
//! | `name_server` | names of endpoints by node and service |
//! | `deferred` | work that starts when a counter reaches a threshold |
//! | `region_events` | counters of regions |
//! | `ring` | entries of an endpoint until a queue is read |
//! | `av`, `cq`, `cntr`, `eq`, `mr`, `wait` | address vectors, queues, counters, memory regions |
//! | `av_set` | members of collective groups |
//! | `poll`, `wait_set` | poll sets and wait sets |
//! | `ep` | endpoints: an endpoint is a worker of the engine |
//! | `refused` | functions that are not there, which answer `-FI_ENOSYS` |

// One contract covers a block: the caller's, of the function that it calls.
#![allow(clippy::multiple_unsafe_ops_per_block)]

#[macro_use]
mod entry;

mod abi;
mod av;
mod av_set;
mod cntr;
mod cq;
mod deferred;
mod domain;
mod ep;
mod eq;
mod errno;
mod fabric;
mod info;
mod mr;
mod name_server;
mod object;
mod open_objects;
mod params;
mod pep;
mod poll;
mod provider;
mod refused;
mod region_events;
mod ring;
mod sleepers;
mod sockaddr;
mod wait;
mod wait_set;
