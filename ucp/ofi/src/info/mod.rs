//! Answers to `fi_getinfo`: one for each domain that satisfies the hints, best first.
//!
//! | File | Contents |
//! |---|---|
//! | `offer.rs` | what this provider has |
//! | `hints.rs` | what the caller asks for, and whether an offer has it |
//! | `tree.rs` | the answer in memory of the C library, which libfabric frees |

mod hints;
mod offer;
mod tree;

use crate::abi::info::Info;
use crate::errno::Errno;

pub(crate) use offer::{
    INJECT_SIZE, IOV_LIMIT, MAX_ERR_DATA, MIN_MULTI_RECV, NameForm, RMA_IOV_LIMIT, count_nics, device_of,
};

use hints::Hints;
use offer::Offer;

/// Finds the answers to hints, as a list for libfabric to free. [`Errno::NODATA`]: there are none. Debug
/// lines tell why.
/// # Safety
/// `hints` is null or a whole tree.
pub(crate) unsafe fn find(
    version: u32,
    [node, service]: [Option<String>; 2],
    flags: u64,
    hints: *const Info,
) -> Result<*mut Info, Errno> {
    if node.is_some() || service.is_some() {
        tracing::debug!("no answer: names and services ({node:?}, {service:?}) are not resolved");
        return Err(Errno::NODATA);
    }
    // SAFETY: this function's contract.
    let hints = unsafe { Hints::read(version, flags, hints) };
    let offers = Offer::all()?;
    let mut answers = Vec::new();
    for offer in &offers {
        match hints.answer(offer) {
            Ok(answer) => answers.push(answer),
            Err(why) => tracing::debug!("no answer for domain {}: {why}", offer.name),
        }
    }
    let mut list = std::ptr::null_mut();
    for answer in answers.iter().rev() {
        match tree::build(answer, list) {
            Some(head) => list = head,
            None => {
                tree::free(list);
                return Err(Errno::NOMEM);
            }
        }
    }
    if list.is_null() { Err(Errno::NODATA) } else { Ok(list) }
}
