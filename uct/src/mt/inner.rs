//! The interface inside the lock: of a transport, or with endpoints that connect to endpoints.

use crate::any;
use crate::wrap::{Paired, PairedEp};

pub(super) enum Inner {
    Plain(any::Iface),
    Paired(Paired<any::Iface>),
}

pub(super) enum InnerEp {
    Plain(any::Ep),
    Paired(PairedEp<any::Iface>),
}

/// Runs a body on the interface inside.
macro_rules! inner {
    ($on:expr, $iface:ident => $body:expr) => {
        match &$on {
            $crate::mt::inner::Inner::Plain($iface) => $body,
            $crate::mt::inner::Inner::Paired($iface) => $body,
        }
    };
}

/// Runs a body on the endpoint inside.
macro_rules! inner_ep {
    ($on:expr, $ep:ident => $body:expr) => {
        match &$on {
            $crate::mt::inner::InnerEp::Plain($ep) => $body,
            $crate::mt::inner::InnerEp::Paired($ep) => $body,
        }
    };
}

pub(super) use {inner, inner_ep};
