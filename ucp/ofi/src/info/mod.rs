//! Answers to `fi_getinfo`: one for each domain that satisfies the hints, best first.
//!
//! | File | Contents |
//! |---|---|
//! | `answer.rs` | what a caller gets, and passes to open objects |
//! | `attrs.rs` | capabilities and attributes: what the hints choose, and what a domain has |
//! | `domains.rs` | what this provider has |
//! | `hints.rs` | what the caller asks for, and whether a domain has it |
//! | `names.rs` | nodes and services, and the socket addresses of this host |
//! | `tree.rs` | the answer in memory of the C library, which libfabric frees |

/// Notes a reason why a domain does not satisfy the hints.
macro_rules! check {
    ($hints:expr, $holds:expr, $($why:tt)+) => {
        if !$holds {
            $hints.refuse(format!($($why)+));
        }
    };
}

mod answer;
mod attrs;
mod domains;
mod hints;
mod names;
mod tree;

use crate::abi::flags;
use crate::abi::info::Info;
use crate::errno::Errno;
use crate::name_server::Told;

pub(crate) use answer::Answer;
pub(crate) use domains::{
    DEFAULT_RX_SIZE, EpKind, FABRIC, INJECT_SIZE, IOV_LIMIT, KeyMode, MAX_CONTEXTS, MAX_DATAGRAM,
    MAX_ERR_DATA, MIN_MULTI_RECV, NameForm, ONE_SIDED, RMA_IOV_LIMIT, count_nics, device_of, is_scalable,
};

use domains::OpenableDomain;
use hints::Hints;

/// The name that the endpoint of a node and a service tells, or why there is none.
pub(crate) fn ask_for_name(node: Option<&str>, service: Option<&str>) -> Result<Told, String> {
    match (node, service) {
        (Some(_), Some(_)) => names::ask(node, service, 0),
        _ => Err("a node and a service name an endpoint".into()),
    }
}

/// Finds the answers to hints, as a list for libfabric to free. [`Errno::NODATA`]: there are none. Debug
/// lines tell why.
/// # Safety
/// `hints` is null or a whole tree.
pub(crate) unsafe fn find(
    version: u32,
    names: [Option<String>; 2],
    call_flags: u64,
    hints: *const Info,
) -> Result<*mut Info, Errno> {
    // SAFETY: this function's contract.
    let hints = unsafe { Hints::read(version, call_flags, hints) };
    let settings = crate::provider::settings()?;
    let domains = OpenableDomain::all(hints.domain_name())?;
    let mut answers = Vec::new();
    let refuse = |domain: &OpenableDomain, kind: EpKind, why: String| {
        tracing::debug!("no answer for domain {}, {kind:?} endpoints: {why}", domain.name);
    };
    // libfabric ranks utility providers on a provider that it does not know before the provider itself.
    let is_for_layer = call_flags & flags::CORE_PROV_ONLY != 0 && !settings.layered;
    for kind in hints.kinds().inspect_err(|why| tracing::debug!("no answer: {why}")).unwrap_or_default() {
        if is_for_layer && kind != EpKind::Rdm {
            tracing::debug!(
                "no answer for {kind:?} endpoints: a utility provider asks, without UCX_OFI_LAYERED"
            );
            continue;
        }
        let sockets = match hints.sockets(kind, &names, call_flags) {
            Ok(sockets) => sockets,
            Err(why) => {
                domains.iter().for_each(|domain| refuse(domain, kind, why.clone()));
                continue;
            }
        };
        for keys in hints.key_modes() {
            for domain in &domains {
                for sockets in &sockets {
                    match hints.answer(domain, kind, sockets, keys) {
                        Ok(answer) => answers.push(answer),
                        Err(why) => refuse(domain, kind, why),
                    }
                }
            }
        }
    }
    let mut list = std::ptr::null_mut();
    for answer in answers.iter().rev() {
        match tree::build(answer, list) {
            Some(head) => list = head,
            None => {
                // SAFETY: this function's contract.
                unsafe { tree::free(list) };
                return Err(Errno::NOMEM);
            }
        }
    }
    if list.is_null() { Err(Errno::NODATA) } else { Ok(list) }
}

impl Answer {
    /// Makes it a list of one in memory of the C library, for an event. It has the provider's name, which
    /// libfabric writes into answers of `fi_getinfo` only. `None`: no memory.
    pub(crate) fn build(&self) -> Option<*mut Info> {
        let info = tree::build(self, std::ptr::null_mut())?;
        // SAFETY: it has just been made.
        unsafe { tree::set_provider(info, &crate::provider::name()) };
        Some(info)
    }
}

/// Frees a list that has not been handed out.
/// # Safety
/// `list` is null or was made by [`find`] or [`Answer::build`], and nobody else uses it.
pub(crate) unsafe fn free(list: *mut Info) {
    // SAFETY: this function's contract.
    unsafe { tree::free(list) };
}
