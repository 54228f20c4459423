//! Lists of local and remote memory of one put or get (`UCP_DATATYPE_SGL`).

use ::ucs::Status;
use ucp::{Iov, RmaPiece};

use crate::arg::ParamsPtr;
use crate::entry::invalid;
use crate::handle::from_ptr;
use crate::mem::Mem;
use crate::op::Call;
use crate::rkey::Rkey;

/// `ucp_dt_local_sgl_t`.
#[repr(C)]
pub(crate) struct LocalSgl {
    field_mask: u64,
    buffers: *const *mut u8,
    lengths: *const usize,
    memhs: *const *const Mem,
    counts: *const usize,
    strides: *const usize,
}

/// Bits of [`LocalSgl::field_mask`].
mod local_sgl {
    pub(super) const BUFFERS: u64 = 1 << 0;
    pub(super) const LENGTHS: u64 = 1 << 1;
    pub(super) const MEMHS: u64 = 1 << 2;
    pub(super) const COUNTS: u64 = 1 << 3;
    pub(super) const STRIDES: u64 = 1 << 4;
}

/// `ucp_dt_remote_sgl_t`.
#[repr(C)]
pub(crate) struct RemoteSgl {
    field_mask: u64,
    remote_addrs: *const u64,
    lengths: *const usize,
    rkeys: *const *const Rkey,
}

/// Bits of [`RemoteSgl::field_mask`].
mod remote_sgl {
    pub(super) const ADDRS: u64 = 1 << 0;
    pub(super) const LENGTHS: u64 = 1 << 1;
    pub(super) const RKEYS: u64 = 1 << 2;
}

/// `UCP_DATATYPE_SGL`, which is a whole datatype: it has no size of an element.
const SGL: u64 = 4;

/// Whether the datatype or a parameter of an operation is one of lists.
pub(crate) fn is_list(call: &Call) -> bool {
    call.has_remote_list() || call.datatype() == SGL
}

/// The lists of an operation: arrays of the caller of one length. Handles in them are live, and the pieces
/// can be read, or written, until the operation has ended.
pub(crate) struct List<'a> {
    buffers: &'a [*mut u8],
    lengths: &'a [usize],
    mems: Option<&'a [*const Mem]>,
    addrs: &'a [u64],
    rkeys: &'a [*const Rkey],
}

impl<'a> List<'a> {
    /// Reads what the caller passes to `ucp_put_nbx` or `ucp_get_nbx`. All of it is checked here.
    /// # Safety
    /// If the datatypes are lists, `buffer` and [`Call::remote`] are null or lists with the fields that their
    /// masks name. Their arrays are null or have `count` values, during `'a`.
    pub(crate) unsafe fn read(
        call: &Call<'a>,
        (buffer, count): (*const LocalSgl, usize),
        (addr, rkey): (u64, *const Rkey),
    ) -> Result<List<'a>, Status> {
        let (datatype, remote_datatype, remote) = (call.datatype(), call.remote_datatype(), call.remote());
        if datatype != SGL || remote_datatype != Some(SGL) {
            return Err(invalid("the datatype and the remote datatype are not both ucp_dt_make_sgl()"));
        }
        if addr != u64::MAX || !rkey.is_null() {
            return Err(invalid("an address or a key beside a remote list"));
        }
        if call.remote_count().is_some_and(|remote| remote != count) {
            return Err(invalid("the local and the remote list have different lengths"));
        }
        if buffer.is_null() || remote.is_null() {
            return Err(invalid("the local or the remote list is null"));
        }
        // SAFETY: this function's contract.
        let (local, remote) = unsafe {
            (ParamsPtr::new(buffer).fields("local list")?, ParamsPtr::new(remote).fields("remote list")?)
        };
        if local.mask() & (local_sgl::COUNTS | local_sgl::STRIDES) != 0 {
            tracing::error!("counts and strides of lists are not supported");
            return Err(Status::Unsupported);
        }
        let mems = field!(local, local_sgl::MEMHS, memhs);
        let buffers = field!(local, local_sgl::BUFFERS, buffers);
        let lengths = field!(local, local_sgl::LENGTHS, lengths);
        let addrs = field!(remote, remote_sgl::ADDRS, remote_addrs);
        let theirs = field!(remote, remote_sgl::LENGTHS, lengths);
        let rkeys = field!(remote, remote_sgl::RKEYS, rkeys);
        // SAFETY: this function's contract.
        let (buffers, lengths, mems) = unsafe {
            let mems = mems.map(|mems| array(Some(mems), count, "memory handles")).transpose()?;
            (array(buffers, count, "local buffers")?, array(lengths, count, "local lengths")?, mems)
        };
        // SAFETY: as above.
        let (addrs, theirs, rkeys) = unsafe {
            let theirs = array(theirs, count, "remote lengths")?;
            (array(addrs, count, "remote addresses")?, theirs, array(rkeys, count, "remote keys")?)
        };
        if lengths != theirs {
            return Err(invalid("a local and a remote piece have different lengths"));
        }
        if buffers.iter().zip(lengths).any(|(buffer, len)| buffer.is_null() && *len > 0) {
            return Err(invalid("a buffer of the list is null"));
        }
        if rkeys.iter().any(|rkey| rkey.is_null()) || mems.into_iter().flatten().any(|mem| mem.is_null()) {
            return Err(invalid("a key or a memory handle of the list is null"));
        }
        rkeys.iter().for_each(|rkey| crate::check::handle(*rkey));
        mems.into_iter().flatten().for_each(|mem| crate::check::handle(*mem));
        Ok(List { buffers, lengths, mems, addrs, rkeys })
    }

    /// The pieces that have bytes.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = RmaPiece<'a>> + Clone + use<'a> {
        let List { buffers, lengths, mems, addrs, rkeys } = *self;
        (0..lengths.len()).filter(|at| lengths[*at] > 0).filter_map(move |at| {
            // SAFETY: handles of a list are live, which is an invariant of the type.
            let rkey = &unsafe { from_ptr(rkeys[at]) }.ok()?.rkey;
            // SAFETY: as above.
            let mem = mems.and_then(|mems| unsafe { from_ptr(mems[at]) }.ok()?.mem.as_ref());
            let local = Iov { addr: buffers[at], len: lengths[at] };
            Some(RmaPiece { local, remote: addrs[at], rkey, mem })
        })
    }
}

/// An array of the caller of `count` values.
/// # Safety
/// It is null or has as many values, which stay as they are while the result is used.
unsafe fn array<'a, T>(at: Option<*const T>, count: usize, what: &str) -> Result<&'a [T], Status> {
    match at {
        Some(at) if !at.is_null() && at.is_aligned() && count <= isize::MAX as usize / size_of::<T>() => {
            // SAFETY: this function's contract.
            Ok(unsafe { std::slice::from_raw_parts(at, count) })
        }
        _ => Err(invalid(&format!("a list without an array of {what}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn layouts_are_those_of_the_header() {
        let mut source = String::from("#include <stddef.h>\n#include <ucp/api/ucp.h>\n");
        let mut check = |what: &str, is: u64| {
            source += &format!("_Static_assert({what} == {is}, \"{what}\");\n");
        };
        check("sizeof(ucp_dt_local_sgl_t)", size_of::<LocalSgl>() as u64);
        check("sizeof(ucp_dt_remote_sgl_t)", size_of::<RemoteSgl>() as u64);
        check("offsetof(ucp_dt_local_sgl_t, memhs)", offset_of!(LocalSgl, memhs) as u64);
        check("offsetof(ucp_dt_local_sgl_t, lengths)", offset_of!(LocalSgl, lengths) as u64);
        check("offsetof(ucp_dt_remote_sgl_t, lengths)", offset_of!(RemoteSgl, lengths) as u64);
        check("offsetof(ucp_dt_remote_sgl_t, rkeys)", offset_of!(RemoteSgl, rkeys) as u64);
        check("UCP_DATATYPE_SGL", SGL);
        check("UCP_DT_LOCAL_SGL_FIELD_STRIDES", local_sgl::STRIDES);
        check("UCP_DT_REMOTE_SGL_FIELD_RKEYS", remote_sgl::RKEYS);
        crate::layout::assert_compiles_with_ours(&source);
    }
}
