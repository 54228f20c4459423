//! `libsoftefa.so`: the software EFA device behind the C ABI of libibverbs and libefa. Preloaded into a
//! program compiled against stock rdma-core headers, it is the only RDMA device the program finds.
//!
//! C calls exported functions by name, and others through tables in our objects. `abi` has their layout,
//! `state` what lies behind a context, `*_obj` the objects as C holds them; the other modules are the verbs,
//! one kind of object each.
//!
//! The contract of every exported function and table entry is that of verbs: pointers are valid as the manual
//! page requires, refer to live objects of ours, and are not used after their destruction. Within it nothing
//! panics.

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
mod freeing_lock;
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
mod unmapped;
mod wr_batch;
