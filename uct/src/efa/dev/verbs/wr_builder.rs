//! Builds one send work request within a batch: operation, data, destination. The queue pair checks limits.

#![allow(unsafe_code)]

use super::ah::Ah;
use crate::efa::dev::{Dest, Sge};
use arrayvec::ArrayVec;
use rdma_sys::*;
use std::ptr::NonNull;

pub(super) const MAX_SGE: usize = 8;

/// The work request begun last.
pub(super) struct WrBuilder(NonNull<ibv_qp_ex>);

impl WrBuilder {
    /// Begins the request of a slot. `ex` is a queue pair with an open batch of this thread, until the
    /// request is complete.
    // HOT
    #[inline(always)]
    pub(super) fn begin(ex: NonNull<ibv_qp_ex>, slot: u32) -> Self {
        // SAFETY: in a session nobody else touches the field; so for the one below.
        unsafe { (*ex.as_ptr()).wr_id = slot.into() };
        // SAFETY: as above.
        unsafe { (*ex.as_ptr()).wr_flags = ibv_send_flags::IBV_SEND_SIGNALED.0 };
        WrBuilder(ex)
    }

    #[inline(always)]
    fn ex(&self) -> *mut ibv_qp_ex {
        self.0.as_ptr()
    }

    /// Immediate data are four bytes without byte order, as in libfabric.
    #[inline(always)]
    pub(super) fn send(&self, imm: Option<u32>) {
        match imm {
            // SAFETY: in a session of a queue pair made with this operation; so for those below.
            None => unsafe { ibv_wr_send(self.ex()) },
            // SAFETY: as above.
            Some(imm) => unsafe { ibv_wr_send_imm(self.ex(), imm) },
        }
    }

    #[inline(always)]
    pub(super) fn read(&self, raddr: u64, rkey: u32) {
        // SAFETY: as above.
        unsafe { ibv_wr_rdma_read(self.ex(), rkey, raddr) };
    }

    #[inline(always)]
    pub(super) fn write(&self, raddr: u64, rkey: u32, imm: Option<u32>) {
        match imm {
            // SAFETY: as above.
            None => unsafe { ibv_wr_rdma_write(self.ex(), rkey, raddr) },
            // SAFETY: as above.
            Some(imm) => unsafe { ibv_wr_rdma_write_imm(self.ex(), rkey, raddr, imm) },
        }
    }

    #[inline(always)]
    pub(super) fn set_inline_data(&self, bytes: &[u8]) {
        let from = bytes.as_ptr().cast_mut().cast();
        // SAFETY: in a session, after an operation; the library copies the bytes and does not write to them.
        unsafe { ibv_wr_set_inline_data(self.ex(), from, bytes.len()) };
    }

    #[inline(always)]
    pub(super) fn set_sge(&self, sge: &Sge) {
        // SAFETY: in a session, after an operation; the key is checked by the device.
        unsafe { ibv_wr_set_sge(self.ex(), sge.lkey, sge.addr as u64, sge.len) };
    }

    #[inline]
    pub(super) fn set_sge_list(&self, sge: &[Sge]) {
        match sge {
            [one] => self.set_sge(one),
            many => {
                let list: ArrayVec<ibv_sge, MAX_SGE> = many.iter().map(to_ibv_sge).collect();
                // SAFETY: as above; the library copies the list.
                unsafe { ibv_wr_set_sge_list(self.ex(), list.len(), list.as_ptr()) };
            }
        }
    }

    #[inline(always)]
    pub(super) fn set_ud_addr(&self, ah: *mut ibv_ah, to: &Dest<Ah>) {
        // SAFETY: in a session, after an operation; the handle is a live one of the queue pair's domain.
        unsafe { ibv_wr_set_ud_addr(self.ex(), ah, to.qpn.into(), to.qkey) };
    }
}

pub(super) fn to_ibv_sge(sge: &Sge) -> ibv_sge {
    ibv_sge { addr: sge.addr as u64, length: sge.len, lkey: sge.lkey }
}
