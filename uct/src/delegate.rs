//! Methods that wrappers hand on unchanged, each written once; used by `any`, `wrap` and `mt`. Each user
//! passes a macro that reaches the wrapped object. A table calls `$method!` for each method:
//! ```text
//! [attributes] [unsafe?] name [generics] (arguments) return type; iov(..) remote(..) rkey(..) comp(..)
//! ```
//!
//! The last four name arguments that some wrappers translate. `$Mem`, `$Rkey`, `$Comp` are the wrapper's
//! types.

macro_rules! ep_sends {
    ($method:ident, $Mem:ty, $Comp:ty) => {
        $method! { [#[inline]] [] am_short [] (id: u8, header: u64, payload: &[u8]) $crate::api::Outcome;
        iov() remote() rkey() comp() }
        $method! { [#[inline]] [] am_short_iov [] (id: u8, iov: &[&[u8]]) $crate::api::Outcome;
        iov() remote() rkey() comp() }
        $method! { [#[inline]] [] am_bcopy [F: FnOnce(&mut [u8]) -> usize] (id: u8, pack: F)
        $crate::api::Outcome<usize>; iov() remote() rkey() comp() }
        $method! { [#[inline(always)]] [] am_packet [F: FnOnce(&mut [u8]) -> usize] (max: usize, pack: F)
        $crate::api::Outcome<usize>; iov() remote() rkey() comp() }
        $method! { [#[inline]] [unsafe] am_zcopy []
        (id: u8, header: &[u8], iov: &[$crate::api::Iov<'_, $Mem>], comp: $Comp) $crate::api::Outcome;
        iov(iov) remote() rkey() comp(comp) }
    };
}

/// Remote memory, and messages to a peer's user queue pair.
macro_rules! ep_rma {
    ($method:ident, $Mem:ty, $Rkey:ty, $Comp:ty $(, $Send:ident)?) => {
        $method! { [] [] send_to_user_qp [F: FnOnce(&mut [u8]) -> usize]
            (to: $crate::api::UserQp, max: usize, imm: Option<u32>, pack: F) $crate::api::Outcome<usize>;
            iov() remote() rkey() comp() }
        $method! { [#[inline]] [] put_short [] (bytes: &[u8], addr: u64, rkey: &$Rkey) $crate::api::Outcome;
            iov() remote() rkey(rkey) comp() }
        $method! { [#[inline]] [] put_bcopy [F: FnOnce(&mut [u8]) -> usize]
            (max: usize, pack: F, addr: u64, rkey: &$Rkey) $crate::api::Outcome<usize>;
            iov() remote() rkey(rkey) comp() }
        $method! { [#[inline]] [unsafe] put_zcopy []
            (iov: &[$crate::api::Iov<'_, $Mem>], addr: u64, rkey: &$Rkey, comp: $Comp) $crate::api::Outcome;
            iov(iov) remote() rkey(rkey) comp(comp) }
        $method! { [#[inline]] [] get_short [] (out: &mut [u8], addr: u64, rkey: &$Rkey) $crate::api::Outcome;
            iov() remote() rkey(rkey) comp() }
        $method! { [#[inline]] [] get_bcopy [F: FnOnce(&[u8]) $(+ $Send)? + 'static]
            (len: usize, unpack: F, addr: u64, rkey: &$Rkey, comp: $Comp) $crate::api::Outcome;
            iov() remote() rkey(rkey) comp(comp) }
        $method! { [#[inline]] [unsafe] get_zcopy []
            (iov: &[$crate::api::Iov<'_, $Mem>], addr: u64, rkey: &$Rkey, comp: $Comp) $crate::api::Outcome;
            iov(iov) remote() rkey(rkey) comp(comp) }
        $method! { [] [unsafe] put_sgl []
            (iov: &[$crate::api::Iov<'_, $Mem>], remote: &[$crate::api::RemoteIov<'_, $Rkey>], comp: $Comp)
            $crate::api::Outcome; iov(iov) remote(remote) rkey() comp(comp) }
        $method! { [] [unsafe] get_sgl []
            (iov: &[$crate::api::Iov<'_, $Mem>], remote: &[$crate::api::RemoteIov<'_, $Rkey>], comp: $Comp)
            $crate::api::Outcome; iov(iov) remote(remote) rkey() comp(comp) }
        $method! { [] [unsafe] put_imm []
            (iov: &[$crate::api::Iov<'_, $Mem>], addr: u64, rkey: &$Rkey, imm: u32, comp: $Comp)
            $crate::api::Outcome; iov(iov) remote() rkey(rkey) comp(comp) }
        $method! { [#[inline]] [] atomic_post [W: $crate::api::Word]
            (op: $crate::api::AtomicOp, value: W, addr: u64, rkey: &$Rkey) $crate::api::Outcome;
            iov() remote() rkey(rkey) comp() }
        $method! { [#[inline]] [unsafe] atomic_fetch [W: $crate::api::Word]
            (op: $crate::api::AtomicOp, value: W, result: std::ptr::NonNull<W>, addr: u64, rkey: &$Rkey, comp: $Comp)
            $crate::api::Outcome; iov() remote() rkey(rkey) comp(comp) }
        $method! { [#[inline]] [unsafe] atomic_cswap [W: $crate::api::Word]
            (compare: W, swap: W, result: std::ptr::NonNull<W>, addr: u64, rkey: &$Rkey, comp: $Comp)
            $crate::api::Outcome; iov() remote() rkey(rkey) comp(comp) }
    };
}

macro_rules! ep_control {
    ($method:ident, $Comp:ty) => {
        $method! { [] [] flush [] (comp: $Comp) $crate::api::Outcome; iov() remote() rkey() comp(comp) }
        $method! { [] [] fence [] () $crate::api::Outcome; iov() remote() rkey() comp() }
        $crate::delegate::ep_connection!($method, $Comp);
        $method! { [] [] ep_addr [] () Result<$crate::api::AddrBuf, $crate::api::Error>;
        iov() remote() rkey() comp() }
        $method! { [] [] connect_to_ep [] (device: &[u8], iface: &[u8], addr: &[u8])
        Result<(), $crate::api::ConnectError>; iov() remote() rkey() comp() }
    };
}

macro_rules! ep_connection {
    ($method:ident, $Comp:ty) => {
        $method! { [] [] ensure_connected [] () Result<(), $crate::api::ConnectError>;
        iov() remote() rkey() comp() }
        $method! { [] [] begin_connecting [] () Result<bool, $crate::api::ConnectError>;
        iov() remote() rkey() comp() }
        $method! { [] [] check [] (comp: $Comp) $crate::api::Outcome; iov() remote() rkey() comp(comp) }
    };
}

macro_rules! iface_calls {
    ($method:ident, $Mem:ty, $Comp:ty) => {
        $method! { [] [] reachable [] (device: &[u8], iface: &[u8]) Result<(), $crate::api::ConnectError>;
            iov() remote() rkey() comp() }
        $method! { [] [unsafe] post_user_recv [] (into: $crate::api::Iov<'_, $Mem>, token: u64)
            $crate::api::Outcome; iov(into) remote() rkey() comp() }
        $method! { [] [] flush [] (comp: $Comp) $crate::api::Outcome; iov() remote() rkey() comp(comp) }
        $method! { [] [] fence [] () $crate::api::Outcome; iov() remote() rkey() comp() }
        $method! { [] [] arm [] (events: $crate::api::Events) Result<bool, $crate::api::Error>;
            iov() remote() rkey() comp() }
        $method! { [] [] arm_for [] (events: $crate::api::Events) Result<$crate::api::ArmStatus, $crate::api::Error>;
            iov() remote() rkey() comp() }
    };
}

macro_rules! iface_facts {
    ($method:ident) => {
        $method! { device_addr() $crate::api::AddrBuf }
        $method! { iface_addr() $crate::api::AddrBuf }
        $method! { user_recv_qp() Option<$crate::api::UserQp> }
        $method! { event_fd() Result<std::os::fd::BorrowedFd<'_>, $crate::api::Error> }
    };
}

pub(crate) use {ep_connection, ep_control, ep_rma, ep_sends, iface_calls, iface_facts};
