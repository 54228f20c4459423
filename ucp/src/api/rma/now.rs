//! Puts and gets that end within the call, on memory that is mapped here.

#![allow(unsafe_code)]

use ucs::mem::copy_word_or_bytes;

use crate::api::data::iov::Iov;
use crate::api::ep::handle::Ep;
use crate::api::mem::memory::Mem;
use crate::api::rma::params::RemoteIov;
use crate::api::rma::rkey::Rkey;
use crate::api::rma::start::mapped_now;

use crate::rdm::Access;

/// Writes `len` bytes at `buf` to the peer's memory at `remote` within the call, if the memory is mapped.
/// False: nothing has happened, and [`Ep::put_raw`] writes them, or tells the error.
/// # Safety
/// `buf..buf + len` can be read, and is no part of the memory that is written.
// HOT
#[inline(always)]
pub unsafe fn put_now_raw(ep: &Ep, buf: *const u8, len: usize, remote: u64, rkey: &Rkey) -> bool {
    let Some(to) = mapped_now(ep, (remote, len), rkey, Access::WRITE) else { return false };
    // SAFETY: the caller passes readable bytes; `len` bytes at `to` are mapped and may be written.
    unsafe { copy_word_or_bytes(buf, to, len) };
    true
}

/// Reads `len` bytes of the peer's memory at `remote` into `buf` within the call, if the memory is mapped.
/// False: nothing has happened, and [`Ep::get_raw`] reads them, or tells the error.
/// # Safety
/// `buf..buf + len` can be written, is accessed by nobody else, and is no part of the memory that is read.
// HOT
#[inline(always)]
pub unsafe fn get_now_raw(ep: &Ep, buf: *mut u8, len: usize, remote: u64, rkey: &Rkey) -> bool {
    let Some(from) = mapped_now(ep, (remote, len), rkey, Access::READ) else { return false };
    // SAFETY: the caller passes writable bytes; `len` bytes at `from` are mapped and may be read.
    unsafe { copy_word_or_bytes(from, buf, len) };
    true
}

/// A piece of a put or get of a list: bytes here, and as many of the peer's memory.
#[derive(Clone, Copy, Debug)]
pub struct RmaPiece<'a> {
    /// Bytes here.
    pub local: Iov,
    /// First address of the peer's memory, as in the owner's process.
    pub remote: u64,
    /// Remote key of that memory.
    pub rkey: &'a Rkey,
    /// Registered memory that holds the bytes here, as in [`OpParams::mem`](crate::OpParams::mem).
    pub mem: Option<&'a Mem>,
}

/// Pieces of local memory that lie one behind the other in one piece of the peer's memory.
pub(crate) fn along<'a>(
    local: &'a [Iov],
    remote: &RemoteIov<'a>,
) -> impl Iterator<Item = RmaPiece<'a>> + Clone + use<'a> {
    let RemoteIov { addr, rkey, .. } = *remote;
    local.iter().scan(addr, move |at, piece| {
        let remote = *at;
        *at = at.wrapping_add(piece.len as u64);
        Some(RmaPiece { local: *piece, remote, rkey, mem: None })
    })
}

/// Whether the memory of all pieces is mapped, and this thread may access it now.
fn are_mapped<'a>(ep: &Ep, mut pieces: impl Iterator<Item = RmaPiece<'a>>, need: Access) -> bool {
    pieces.all(|piece| mapped_now(ep, (piece.remote, piece.local.len), piece.rkey, need).is_some())
}

/// Writes all pieces within the call, if the memory of each is mapped. False: none was written, unless the
/// peer has died meanwhile; [`put_list_raw`](crate::put_list_raw) writes them, or tells the error.
/// # Safety
/// As for [`put_now_raw`], for every piece.
pub unsafe fn put_list_now_raw<'a>(ep: &Ep, pieces: impl Iterator<Item = RmaPiece<'a>> + Clone) -> bool {
    let mut copied = pieces.clone();
    are_mapped(ep, pieces, Access::WRITE)
        // SAFETY: the caller's contract.
        && copied.all(|of| unsafe { put_now_raw(ep, of.local.addr, of.local.len, of.remote, of.rkey) })
}

/// Reads all pieces within the call, if the memory of each is mapped. False: none was read, unless the
/// peer has died meanwhile; [`get_list_raw`](crate::get_list_raw) reads them, or tells the error.
/// # Safety
/// As for [`get_now_raw`], for every piece.
pub unsafe fn get_list_now_raw<'a>(ep: &Ep, pieces: impl Iterator<Item = RmaPiece<'a>> + Clone) -> bool {
    let mut copied = pieces.clone();
    are_mapped(ep, pieces, Access::READ)
        // SAFETY: the caller's contract.
        && copied.all(|of| unsafe { get_now_raw(ep, of.local.addr, of.local.len, of.remote, of.rkey) })
}
