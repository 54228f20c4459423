//! `libsoftefa.so`: the software EFA device behind the C ABI of libibverbs and libefa. Preloaded into a program that
//! was compiled against stock rdma-core headers, it is the only RDMA device that the program finds.
//!
//! Everything here is called by C: exported functions by name, the rest through tables in the objects handed out.
//! `abi`: their layout. `state`: what lies behind a context, under one lock. The other modules: one kind of object each.
//! Nothing panics on what a caller passes as verbs allow it; a pointer that is no object of ours is the caller's fault,
//! as with any verbs library.

mod abi;
mod ah;
mod ahn;
mod channel;
mod context;
mod cq;
mod cq_obj;
mod device;
mod efadv;
mod efadv_later;
mod errno;
mod files;
mod mr;
mod pd;
mod poll;
mod post;
mod progress_thread;
mod qp;
mod qp_obj;
mod query;
mod send_wr;
mod sized;
mod split_lock;
mod state;
mod status;
mod stubs;
mod text;
mod wr_batch;
