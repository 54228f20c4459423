//! Device and port attributes, GID, partition key, as of the real device (docs/soft-efa.md).

use crate::abi::{IbvContext, IbvDeviceAttr, IbvDeviceAttrEx, IbvGidEntry, IbvPortAttr};
use crate::context::Context;
use crate::errno::{ret_int, set_errno};
use crate::sized::copy_out;
use std::ffi::{c_char, c_int, c_void};
use uct::efa::dev::DevAttr;
use uct::efa::dev::soft::MAX_RECV_SGE;

/// Interrupt vectors: libfabric takes one to mean that there are no interrupts.
pub const COMP_VECTORS: c_int = 2;
pub const RQ_SGE: u16 = MAX_RECV_SGE as u16;

const AMAZON: u32 = 0x1d0f;
const PORT_ACTIVE: c_int = 4;
const MTU_4096: c_int = 5;
const LINK_UP: u8 = 5;
const WIDTH_4X: u8 = 2;
const SPEED_EDR: u8 = 32;
/// Four lanes of 25 Gb/s, in units of 100 Mb/s.
const PORT_SPEED: u64 = 1000;
const FULL_MEMBER: u16 = 0xffff;

/// Most SGEs of all receives of a queue pair: libfabric posts 8192 receives of three, as on the real device.
/// Most sends of a queue pair: half as many if they have room for more inline data than one entry has.
pub fn max_sq_wr(dev: &DevAttr, max_inline: u32) -> u32 {
    const INLINE_OF_ONE_ENTRY: u32 = 32;
    if max_inline > INLINE_OF_ONE_ENTRY { dev.max_send_depth / 2 } else { dev.max_send_depth }
}

pub fn max_rq_wr(dev: &DevAttr) -> u32 {
    dev.max_recv_depth
}

fn device_attr(dev: &DevAttr) -> IbvDeviceAttr {
    let mut fw_ver = [0; 64];
    for (to, byte) in fw_ver.iter_mut().take(63).zip(dev.fw.bytes()) {
        *to = byte as c_char;
    }
    let n = |v: u32| c_int::try_from(v).unwrap_or(c_int::MAX);
    IbvDeviceAttr {
        fw_ver,
        node_guid: 0,
        sys_image_guid: 0,
        max_mr_size: 1 << 40,
        page_size_cap: 0xffff_f000,
        vendor_id: AMAZON,
        vendor_part_id: dev.part_id,
        hw_ver: dev.part_id,
        max_qp: n(dev.max_qp),
        max_qp_wr: n(dev.max_send_depth.max(max_rq_wr(dev))),
        device_cap_flags: 0,
        max_sge: n(dev.max_send_sge.min(u32::from(RQ_SGE))),
        max_sge_rd: c_int::from(dev.rdma_read),
        max_cq: 512,
        max_cqe: n(dev.max_cqe),
        max_mr: n(dev.max_mr),
        max_pd: 256,
        rd_atomics: [0; 5],
        atomic_cap: 0,
        ee: [0; 2],
        max_mw: 0,
        raw: [0; 2],
        mcast: [0; 3],
        max_ah: n(dev.max_ah),
        fmr: [0; 2],
        srq: [0; 3],
        max_pkeys: 1,
        local_ca_ack_delay: 0,
        phys_port_cnt: 1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(ctx: *mut IbvContext, attr: *mut IbvDeviceAttr) -> c_int {
    // SAFETY: by this function's contract.
    let value = device_attr(&unsafe { Context::of(ctx) }.attr);
    // SAFETY: by this function's contract.
    unsafe { attr.write(value) };
    0
}

pub unsafe extern "C" fn query_device_ex(
    ctx: *mut IbvContext,
    _input: *const c_void,
    attr: *mut IbvDeviceAttrEx,
    len: usize,
) -> c_int {
    if len < size_of::<IbvDeviceAttr>() {
        return libc::EINVAL;
    }
    // SAFETY: by this function's contract.
    let orig = device_attr(&unsafe { Context::of(ctx) }.attr);
    // SAFETY: writable for `len` bytes, which is at least the head.
    unsafe { std::ptr::write_bytes(attr.cast::<u8>(), 0, len) };
    // SAFETY: as above.
    unsafe { attr.cast::<IbvDeviceAttr>().write(orig) };
    if len >= size_of::<IbvDeviceAttrEx>() {
        // SAFETY: the structure is whole.
        unsafe { (*attr).phys_port_cnt_ex = 1 };
    }
    0
}

pub unsafe extern "C" fn query_port(
    ctx: *mut IbvContext,
    port: u8,
    attr: *mut IbvPortAttr,
    len: usize,
) -> c_int {
    if port != 1 {
        return libc::EINVAL;
    }
    // SAFETY: by this function's contract.
    let dev = &unsafe { Context::of(ctx) }.attr;
    let value = IbvPortAttr {
        state: PORT_ACTIVE,
        max_mtu: MTU_4096,
        active_mtu: MTU_4096,
        gid_tbl_len: 1,
        max_msg_sz: dev.mtu,
        pkey_tbl_len: 1,
        lmc: 1,
        max_vl_num: 1,
        active_width: WIDTH_4X,
        active_speed: SPEED_EDR,
        phys_state: LINK_UP,
        ..Default::default()
    };
    let Ok(len) = u32::try_from(len) else { return libc::EINVAL };
    // SAFETY: by this function's contract.
    unsafe { copy_out(attr, len, value) };
    0
}

/// Speed of the port in units of 100 Mb/s, as `query_port` tells it by width and speed of a lane.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port_speed(_ctx: *mut IbvContext, port: u32, speed: *mut u64) -> c_int {
    if port != 1 {
        return ret_int(Err(libc::EINVAL));
    }
    // SAFETY: by this function's contract.
    unsafe { speed.write(PORT_SPEED) };
    0
}

/// The exported symbol's structure ends before the last two fields: the oldest layout.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(ctx: *mut IbvContext, port: u8, attr: *mut IbvPortAttr) -> c_int {
    let len = std::mem::offset_of!(IbvPortAttr, link_layer);
    // SAFETY: by this function's contract.
    unsafe { query_port(ctx, port, attr, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    ctx: *mut IbvContext,
    port: u8,
    index: c_int,
    gid: *mut [u8; 16],
) -> c_int {
    if port != 1 || index != 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: by this function's contract.
    let own = unsafe { Context::of(ctx) }.gid.0;
    // SAFETY: by this function's contract.
    unsafe { gid.write(own) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    ctx: *mut IbvContext,
    port: u32,
    index: u32,
    entry: *mut IbvGidEntry,
    flags: u32,
    size: usize,
) -> c_int {
    if port != 1 || index != 0 || flags != 0 {
        return ret_int(Err(libc::EINVAL));
    }
    let Ok(size) = u32::try_from(size) else { return ret_int(Err(libc::EINVAL)) };
    // SAFETY: by this function's contract.
    let gid = unsafe { Context::of(ctx) }.gid.0;
    // SAFETY: by this function's contract.
    unsafe { copy_out(entry, size, IbvGidEntry { gid, port_num: 1, ..Default::default() }) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    ctx: *mut IbvContext,
    entries: *mut IbvGidEntry,
    max: usize,
    flags: u32,
    size: usize,
) -> isize {
    if max == 0 {
        return -(libc::EINVAL as isize);
    }
    // SAFETY: by this function's contract.
    match unsafe { _ibv_query_gid_ex(ctx, 1, 0, entries, flags, size) } {
        0 => 1,
        e => -(e as isize),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(_ctx: *mut IbvContext, port: u8, index: c_int, pkey: *mut u16) -> c_int {
    if port != 1 || index != 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: by this function's contract.
    unsafe { pkey.write(FULL_MEMBER) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_pkey_index(_ctx: *mut IbvContext, port: u8, pkey: u16) -> c_int {
    if port == 1 && pkey == FULL_MEMBER { 0 } else { -1 }
}
