//! Answers: what a domain is that a caller has chosen or is offered.

use std::ffi::{CStr, c_char};
use std::net::SocketAddr;

use crate::abi::Fid;
use crate::abi::info::{DomainAttr, EpAttr, FabricAttr, Info, RxAttr, TxAttr};
use crate::name_server::Told;

/// An answer: what the offered domain is, with what the caller has chosen.
#[derive(Clone)]
pub(crate) struct Answer {
    pub(crate) caps: u64,
    pub(crate) addr_format: u32,
    pub(crate) src_addr: Vec<u8>,
    pub(crate) dest_addr: Vec<u8>,
    /// A request to be connected; null: none.
    pub(crate) handle: *mut Fid,
    pub(super) tx: TxAttr,
    pub(super) rx: RxAttr,
    pub(super) ep: EpAttr,
    pub(super) domain: DomainAttr,
    pub(super) domain_name: String,
    pub(super) fabric: FabricAttr,
}

/// Addresses and names of a node and a service.
#[derive(Clone, Default)]
pub(super) struct Sockets {
    /// Socket addresses of an endpoint that is connected.
    pub source: Option<SocketAddr>,
    pub dest: Option<SocketAddr>,
    /// The name of one that is not.
    pub named: Option<Named>,
}

/// The name of an endpoint that is not connected, in any domain.
#[derive(Clone)]
pub(super) enum Named {
    /// The endpoint serves its own name there.
    Service(SocketAddr),
    /// The peer's name, as it has told it.
    Told(Told),
    /// The peer's name, in words.
    Words(String),
}

impl Answer {
    /// The answer that a caller has got, and passes to open an object. `None`: a part is missing.
    /// # Safety
    /// `info` is a whole tree.
    pub(crate) unsafe fn of(info: &Info) -> Option<Answer> {
        // SAFETY: this function's contract, of each pointer.
        unsafe {
            let (domain, fabric) = (info.domain_attr.as_ref()?, info.fabric_attr.as_ref()?);
            Some(Answer {
                caps: info.caps,
                addr_format: info.addr_format,
                src_addr: bytes(info.src_addr, info.src_addrlen),
                dest_addr: bytes(info.dest_addr, info.dest_addrlen),
                handle: std::ptr::null_mut(),
                tx: *info.tx_attr.as_ref()?,
                rx: *info.rx_attr.as_ref()?,
                ep: *info.ep_attr.as_ref()?,
                domain: *domain,
                domain_name: text(domain.name)?,
                fabric: FabricAttr { prov_name: std::ptr::null_mut(), ..*fabric },
            })
        }
    }
}

/// Bytes at a pointer of the caller.
/// # Safety
/// `at` is null or has this length.
pub(super) unsafe fn bytes(at: *const std::ffi::c_void, len: usize) -> Vec<u8> {
    if at.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller's address has this length.
    unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) }.to_vec()
}

/// Text at a pointer of the caller. `None`: it is null.
/// # Safety
/// `at` is null or ends with zero.
pub(super) unsafe fn text(at: *const c_char) -> Option<String> {
    // SAFETY: the caller's text ends with zero.
    (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned())
}
