//! Memory domain, memory and key of a transport chosen at run time. Delegation only.

#![allow(unsafe_code)]

use super::dispatch::{both, each};
use super::{Md, Mem, Rkey};
use crate::api::{self, Access, AddrBuf, AllocMethod, AllocReq, Error, MdAttr};

pub(super) const WRONG_TRANSPORT: Error = Error::InvalidParam("memory or key of another transport");

impl api::Md for Md {
    type Mem = Mem;
    type Rkey = Rkey;

    fn attr(&self) -> &MdAttr {
        each!(self, Md(md) => md.attr())
    }

    fn device_addr(&self) -> AddrBuf {
        each!(self, Md(md) => md.device_addr())
    }

    fn alloc(&self, req: &AllocReq<'_>) -> Result<Mem, Error> {
        each!(self, Md(md) => md.alloc(req), Mem)
    }

    #[inline]
    fn has_allocated(&self, addr: *const u8, len: usize) -> bool {
        each!(self, Md(md) => md.has_allocated(addr, len))
    }

    unsafe fn register(&self, addr: *mut u8, len: usize, access: Access) -> Result<Mem, Error> {
        // SAFETY: the caller's promise is the same.
        each!(self, Md(md) => unsafe { md.register(addr, len, access) }, Mem)
    }

    unsafe fn register_for_op(&self, addr: *mut u8, len: usize, access: Access) -> Result<Mem, Error> {
        // SAFETY: the caller's promise is the same.
        each!(self, Md(md) => unsafe { md.register_for_op(addr, len, access) }, Mem)
    }

    fn pack_rkey(&self, mem: &Mem) -> Result<AddrBuf, Error> {
        both!(self, mem, (Md(md), Mem(mem)) => md.pack_rkey(mem), else Err(WRONG_TRANSPORT))
    }

    fn unpack_rkey(&self, packed: &[u8]) -> Result<Rkey, Error> {
        each!(self, Md(md) => md.unpack_rkey(packed), Rkey)
    }

    fn mr_key(&self, mem: &Mem) -> Result<u64, Error> {
        both!(self, mem, (Md(md), Mem(mem)) => md.mr_key(mem), else Err(WRONG_TRANSPORT))
    }

    fn rkey_from_mr_key(&self, key: u64, addr: u64, len: u64) -> Result<Rkey, Error> {
        each!(self, Md(md) => md.rkey_from_mr_key(key, addr, len), Rkey)
    }

    fn rkey_ptr(&self, rkey: &Rkey, remote: u64, len: usize) -> Option<*mut u8> {
        both!(self, rkey, (Md(md), Rkey(rkey)) => md.rkey_ptr(rkey, remote, len), else None)
    }
}

impl api::Memory for Mem {
    fn addr(&self) -> *mut u8 {
        each!(self, Mem(mem) => mem.addr())
    }

    fn len(&self) -> usize {
        each!(self, Mem(mem) => mem.len())
    }

    fn method(&self) -> Option<AllocMethod> {
        each!(self, Mem(mem) => mem.method())
    }

    fn access(&self) -> Access {
        each!(self, Mem(mem) => mem.access())
    }

    fn revoke(&self) {
        each!(self, Mem(mem) => mem.revoke())
    }
}

impl api::Rkey for Rkey {
    fn range(&self) -> (u64, usize) {
        each!(self, Rkey(rkey) => rkey.range())
    }
}
