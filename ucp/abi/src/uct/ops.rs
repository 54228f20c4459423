//! The table of operations with which an interface begins: inline functions of programs call it.

use std::ffi::c_void;

use ::ucs::Status;

use crate::ucs::global::Global;

use super::refused::{refused_length, refused_pointer, refused_status};
use super::{amo, ep, flush, iface, pending, progress, refused, rma, send};

macro_rules! table {
    ($($field:ident = $function:expr;)+) => {
        /// `uct_iface_ops_t`.
        #[derive(Clone, Copy)]
        #[repr(C)]
        pub(crate) struct Ops { $($field: *const c_void,)+ }

        impl Ops {
            /// The operations of all interfaces.
            pub(crate) fn new() -> Ops {
                Ops { $($field: $function as *const c_void,)+ }
            }

            /// The operations of endpoints that are not connected yet.
            fn refusing() -> Ops {
                Ops { $($field: not_connected as *const c_void,)+ }
            }

            /// Operations of freed objects, with the checks of `UCX_CHECK=y`: each ends the process.
            pub(crate) const fn freed() -> Ops {
                Ops { $($field: freed::$field as *const c_void,)+ }
            }

            /// Places of the operations.
            #[cfg(test)]
            pub(crate) const OFFSETS: &'static [(&'static str, usize)] =
                &[$((stringify!($field), std::mem::offset_of!(Ops, $field)),)+];
        }

        /// Functions of [`Ops::freed`], whose first argument is the object.
        mod freed {
            use std::ffi::c_void;

            $(pub(super) unsafe extern "C" fn $field(object: *const c_void) {
                crate::check::use_after_free(stringify!($field), object.addr())
            })+
        }
    };
}

table! {
    ep_put_short = rma::put_short;
    ep_put_bcopy = rma::put_bcopy;
    ep_put_zcopy = rma::put_zcopy;
    ep_get_short = rma::get_short;
    ep_get_bcopy = rma::get_bcopy;
    ep_get_zcopy = rma::get_zcopy;
    ep_am_short = send::am_short;
    ep_am_short_iov = send::am_short_iov;
    ep_am_bcopy = send::am_bcopy;
    ep_am_zcopy = send::am_zcopy;
    ep_atomic_cswap64 = amo::cswap64;
    ep_atomic_cswap32 = amo::cswap32;
    ep_atomic32_post = amo::post32;
    ep_atomic64_post = amo::post64;
    ep_atomic32_fetch = amo::fetch32;
    ep_atomic64_fetch = amo::fetch64;
    ep_tag_eager_short = refused_status;
    ep_tag_eager_bcopy = refused_length;
    ep_tag_eager_zcopy = refused_status;
    ep_tag_rndv_zcopy = refused_pointer;
    ep_tag_rndv_cancel = refused_status;
    ep_tag_rndv_request = refused_status;
    iface_tag_recv_zcopy = refused_status;
    iface_tag_recv_cancel = refused_status;
    ep_pending_add = pending::pending_add;
    ep_pending_purge = pending::pending_purge;
    ep_flush = flush::ep_flush;
    ep_fence = flush::ep_fence;
    ep_check = ep::uct_ep_check;
    ep_create = ep::uct_ep_create;
    ep_connect = refused::uct_ep_connect;
    ep_disconnect = refused::uct_ep_disconnect;
    cm_ep_conn_notify = refused::uct_cm_client_ep_conn_notify;
    ep_destroy = ep::uct_ep_destroy;
    ep_get_address = ep::uct_ep_get_address;
    ep_connect_to_ep = ep::uct_ep_connect_to_ep;
    iface_accept = refused::uct_iface_accept;
    iface_reject = refused::uct_iface_reject;
    iface_flush = flush::iface_flush;
    iface_fence = flush::iface_fence;
    iface_progress_enable = iface::progress_enable;
    iface_progress_disable = iface::progress_disable;
    iface_progress = progress::iface_progress;
    iface_event_fd_get = iface::uct_iface_event_fd_get;
    iface_event_arm = iface::uct_iface_event_arm;
    iface_close = iface::uct_iface_close;
    iface_query = iface::uct_iface_query;
    iface_get_device_address = iface::uct_iface_get_device_address;
    iface_get_address = iface::uct_iface_get_address;
    iface_is_reachable = iface::uct_iface_is_reachable;
}

static FREED: Global<Ops> = Global::new(Ops::freed());

impl Ops {
    /// Address of [`Ops::freed`].
    pub(crate) fn at_freed() -> *const Ops {
        FREED.get()
    }

    /// Table of endpoints before [`ep::uct_ep_connect_to_ep`]: they can be connected and destroyed.
    pub(crate) fn unconnected() -> Ops {
        let all = Ops::new();
        Ops {
            ep_destroy: all.ep_destroy,
            ep_get_address: all.ep_get_address,
            ep_connect_to_ep: all.ep_connect_to_ep,
            ..Ops::refusing()
        }
    }
}

/// An operation of an endpoint that is not connected: its status, as a status, a length or a status pointer.
unsafe extern "C" fn not_connected() -> isize {
    Status::NotConnected.code() as isize
}
