//! Lists of local and remote memory of one put or get (`UCP_DATATYPE_SGL`).

use ::ucs::Status;
use ucp::{Iov, RmaPiece};

use crate::entry::invalid;
use crate::handle::given;
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

/// The lists of an operation: arrays of the caller of one length.
pub(crate) struct List<'a> {
    buffers: &'a [*mut u8],
    lengths: &'a [usize],
    mems: Option<&'a [*const Mem]>,
    addrs: &'a [u64],
    rkeys: &'a [*const Rkey],
}

impl<'a> List<'a> {
    /// Reads what the caller passes to `ucp_put_nbx` or `ucp_get_nbx`. All of it is checked here.
    pub(crate) fn read(
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
        let (Some(local), Some(remote)) = (non_null(buffer), non_null(remote)) else {
            return Err(invalid("the local or the remote list is null"));
        };
        let mask = field!(local, 1, 1, field_mask).unwrap_or(0);
        if mask & (local_sgl::COUNTS | local_sgl::STRIDES) != 0 {
            tracing::error!("counts and strides of lists are not supported");
            return Err(Status::Unsupported);
        }
        let mems = field!(local, mask, local_sgl::MEMHS, memhs);
        let buffers = array(field!(local, mask, local_sgl::BUFFERS, buffers), count, "local buffers")?;
        let lengths = array(field!(local, mask, local_sgl::LENGTHS, lengths), count, "local lengths")?;
        let mems = mems.map(|mems| array(Some(mems), count, "memory handles")).transpose()?;
        let mask = field!(remote, 1, 1, field_mask).unwrap_or(0);
        let addrs = array(field!(remote, mask, remote_sgl::ADDRS, remote_addrs), count, "remote addresses")?;
        let theirs = array(field!(remote, mask, remote_sgl::LENGTHS, lengths), count, "remote lengths")?;
        let rkeys: &[*const Rkey] =
            array(field!(remote, mask, remote_sgl::RKEYS, rkeys), count, "remote keys")?;
        if lengths != theirs {
            return Err(invalid("a local and a remote piece have different lengths"));
        }
        if buffers.iter().zip(lengths).any(|(buffer, len)| buffer.is_null() && *len > 0) {
            return Err(invalid("a buffer of the list is null"));
        }
        for rkey in rkeys {
            given(*rkey)?;
            crate::check::handle(*rkey);
        }
        for mem in mems.into_iter().flatten() {
            given(*mem)?;
            crate::check::handle(*mem);
        }
        Ok(List { buffers, lengths, mems, addrs, rkeys })
    }

    /// The pieces that have bytes.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = RmaPiece<'a>> + Clone + use<'a> {
        let List { buffers, lengths, mems, addrs, rkeys } = *self;
        (0..lengths.len()).filter(|at| lengths[*at] > 0).filter_map(move |at| {
            // Looked at by `read`.
            let rkey = &given(rkeys[at]).ok()?.rkey;
            let mem = mems.and_then(|mems| given(mems[at]).ok()?.mem.as_ref());
            let local = Iov { addr: buffers[at], len: lengths[at] };
            Some(RmaPiece { local, remote: addrs[at], rkey, mem })
        })
    }
}

fn non_null<T>(at: *const T) -> Option<*const T> {
    (!at.is_null()).then_some(at)
}

/// An array of the caller of `count` values.
fn array<'a, T>(at: Option<*const T>, count: usize, what: &str) -> Result<&'a [T], Status> {
    match at {
        Some(at) if !at.is_null() && at.is_aligned() && count <= isize::MAX as usize / size_of::<T>() => {
            // SAFETY: the caller passes as many values, which stay during the operation.
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
