//! Functions of UCX's header `uct/api/v2/uct_v2.h`: forms of others whose parameters have a mask.

use std::ffi::{c_char, c_int, c_uint, c_void};

use ::ucs::Status;
use ::uct::api::{Iface as _, Md as _, Memory as _};

use super::component::Component;
use super::ep::{Ep, checked_ep, uct_ep_connect_to_ep};
use super::iface::{Iface, checked_iface};
use super::md::{Md, MemHandle, attr_of, uct_md_mem_reg};
use super::refused::refuse;
use super::rkey::{compare, uct_md_mkey_pack, uct_rkey_unpack};
use super::types::{Bandwidth, Completion, Linear, NAME_MAX, RkeyBundle};
use crate::arg::{AttrPtr, Fields, OutPtr, ParamsPtr};
use crate::entry::{CStatus, invalid};
use crate::handle::{checked, from_handle};
use crate::ucs::global::Global;

/// `UCT_MD_GLOBAL_ID_MAX`.
const GLOBAL_ID_MAX: usize = 256;

/// `uct_md_attr_v2_t`.
#[repr(C)]
pub(crate) struct MdAttrV2 {
    field_mask: u64,
    max_alloc: u64,
    max_reg: usize,
    flags: u64,
    reg_mem_types: u64,
    reg_nonblock_mem_types: u64,
    cache_mem_types: u64,
    gva_mem_types: u64,
    detect_mem_types: u64,
    alloc_mem_types: u64,
    access_mem_types: u64,
    dmabuf_mem_types: u64,
    reg_cost: Linear,
    component_name: [c_char; NAME_MAX],
    rkey_packed_size: usize,
    local_cpus: [usize; 16],
    exported_mkey_packed_size: usize,
    global_id: [c_char; GLOBAL_ID_MAX],
    reg_alignment: usize,
    required_mem_flags: u8,
}

/// `uct_md_mem_reg_params_t`.
#[repr(C)]
pub(crate) struct RegParams {
    field_mask: u64,
    flags: u64,
    dmabuf_fd: c_int,
    dmabuf_offset: usize,
    mem_type: c_int,
}

/// `uct_md_mem_dereg_params_t`.
#[repr(C)]
pub(crate) struct DeregParams {
    field_mask: u64,
    flags: c_uint,
    memh: *mut MemHandle,
    comp: *mut Completion,
}

/// `uct_md_mkey_pack_params_t`.
#[repr(C)]
pub(crate) struct PackParams {
    field_mask: u64,
    flags: c_uint,
}

/// `uct_iface_is_reachable_params_t`.
#[repr(C)]
pub(crate) struct ReachableParams {
    field_mask: u64,
    device_addr: *const c_void,
    iface_addr: *const c_void,
    info_string: *mut c_char,
    info_string_length: usize,
    scope: c_int,
    device_addr_length: usize,
    iface_addr_length: usize,
}

/// `uct_ep_is_connected_params_t`.
#[repr(C)]
pub(crate) struct ConnectedParams {
    field_mask: u64,
    device_addr: *const c_void,
    iface_addr: *const c_void,
    ep_addr: *const c_void,
}

/// `uct_perf_attr_t`.
#[repr(C)]
pub(crate) struct PerfAttr {
    field_mask: u64,
    operation: c_int,
    local_memory_type: c_int,
    remote_memory_type: c_int,
    local_sys_device: u8,
    remote_sys_device: u8,
    send_pre_overhead: f64,
    send_post_overhead: f64,
    recv_overhead: f64,
    bandwidth: Bandwidth,
    path_bandwidth: Bandwidth,
    latency: Linear,
    max_inflight_eps: usize,
    flags: u64,
}

/// `uct_iface_attr_v2_t`.
#[repr(C)]
pub(crate) struct IfaceAttrV2 {
    field_mask: u64,
    max_put_sgl_zcopy_count: usize,
    max_get_sgl_zcopy_count: usize,
    cap_flags: u64,
    tx_token_length: usize,
    rx_token_length: usize,
}

/// Names of operations of endpoints, with a null at the end.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub(crate) static uct_ep_operation_names: Global<[*const c_char; 17]> = Global::new([
    c"am_short".as_ptr(),
    c"am_bcopy".as_ptr(),
    c"am_zcopy".as_ptr(),
    c"put_short".as_ptr(),
    c"put_bcopy".as_ptr(),
    c"put_zcopy".as_ptr(),
    c"get_short".as_ptr(),
    c"get_bcopy".as_ptr(),
    c"get_zcopy".as_ptr(),
    c"eager_short".as_ptr(),
    c"eager_bcopy".as_ptr(),
    c"eager_zcopy".as_ptr(),
    c"rndv_zcopy".as_ptr(),
    c"atomic_post".as_ptr(),
    c"atomic_fetch".as_ptr(),
    c"flush".as_ptr(),
    std::ptr::null(),
]);

/// `uct_ep_connect_to_ep_params_t`.
#[repr(C)]
pub(crate) struct ConnectParams {
    field_mask: u64,
    device_addr_length: usize,
    ep_addr_length: usize,
}

/// Completes an operation of the program that has ended in its call.
/// # Safety
/// `comp` is null, or a completion of the program that waits for the operation.
unsafe fn complete(comp: *mut Completion) {
    // SAFETY: this function's contract.
    let Some(comp) = (unsafe { comp.as_mut() }) else { return };
    comp.count -= 1;
    if comp.count == 0
        && let Some(func) = comp.func
    {
        // SAFETY: the program's function.
        unsafe { func(comp) };
    }
}

/// Whether a domain can end the access by keys that peers have unpacked; an error if not.
fn must_revoke(md: &Md) -> Result<(), Status> {
    if md.md.attr().revokes_keys {
        return Ok(());
    }
    tracing::error!("memory domain {} cannot invalidate keys that have been unpacked", md.name());
    Err(Status::Unsupported)
}

/// Why an address is not reachable; `None`: it is.
/// # Safety
/// The addresses that the parameters name are null, or have the lengths that the interface's attributes say.
unsafe fn unreachable_because(
    iface: &Iface,
    params: &Fields<ReachableParams>,
) -> Result<Option<String>, Status> {
    let device = field!(params, 1 << 0, device_addr);
    let address = field!(params, 1 << 1, iface_addr).filter(|address| !address.is_null());
    let scope = field!(params, 1 << 4, scope).unwrap_or(1);
    let attr = iface.inner.attr();
    for (given, least) in [
        (field!(params, 1 << 5, device_addr_length), attr.device_addr_len),
        (field!(params, 1 << 6, iface_addr_length), attr.iface_addr_len),
    ] {
        if given.is_some_and(|length| length < least) {
            return Ok(Some(format!("an address of this transport has {least} bytes")));
        }
    }
    let own_device = iface.inner.device_addr();
    let device = match device.filter(|device| !device.is_null()) {
        // SAFETY: this function's contract.
        Some(device) => unsafe { super::bytes(device, attr.device_addr_len) }?,
        None if attr.device_addr_len == 0 => &[],
        None => return Err(invalid("uct_iface_is_reachable_v2: device_addr is missing")),
    };
    // `UCT_IFACE_REACHABILITY_SCOPE_DEVICE`.
    if scope == 0 && !own_device.is_empty() && !device.starts_with(&own_device) {
        return Ok(Some("the address is of another device".into()));
    }
    let own = iface.inner.iface_addr();
    let address = match address {
        // SAFETY: as above.
        Some(address) => unsafe { super::bytes(address, attr.iface_addr_len) }?,
        None => &own,
    };
    Ok(iface.inner.reachable(device, address).err().map(|error| error.to_string()))
}

entry! {
    /// Answers what the mask asks for.
    fn uct_md_query_v2(md: *mut Md, attr: AttrPtr<MdAttrV2>) -> CStatus {
        let md = checked(md)?;
        let attr = attr.fields("uct_md_query_v2")?;
        let found = attr_of(md, attr.mask() & (1 << 10) != 0);
        answer!(attr, 1 << 0, max_alloc = found.max_alloc);
        answer!(attr, 1 << 1, max_reg = found.max_reg);
        answer!(attr, 1 << 2, flags = found.flags);
        answer!(attr, 1 << 3, reg_mem_types = found.reg_mem_types);
        answer!(attr, 1 << 4, reg_nonblock_mem_types = 0);
        answer!(attr, 1 << 5, cache_mem_types = found.reg_mem_types);
        answer!(attr, 1 << 6, detect_mem_types = found.detect_mem_types);
        answer!(attr, 1 << 7, alloc_mem_types = found.alloc_mem_types);
        answer!(attr, 1 << 8, access_mem_types = found.access_mem_types);
        answer!(attr, 1 << 9, dmabuf_mem_types = 0);
        answer!(attr, 1 << 10, reg_cost = Linear { c: found.reg_cost.c, m: found.reg_cost.m });
        answer!(attr, 1 << 11, component_name = found.component_name);
        answer!(attr, 1 << 12, rkey_packed_size = found.rkey_packed_size);
        answer!(attr, 1 << 13, local_cpus = found.local_cpus);
        answer!(attr, 1 << 14, exported_mkey_packed_size = 0);
        answer!(attr, 1 << 15, global_id = super::name_of(&md.name()));
        answer!(attr, 1 << 16, reg_alignment = 1);
        answer!(attr, 1 << 17, gva_mem_types = 0);
        answer!(attr, 1 << 18, required_mem_flags = 0);
        Ok(())
    }

    /// Registers memory. Memory of devices is refused.
    fn uct_md_mem_reg_v2(
        md: *mut Md, address: *mut c_void, length: usize, params: ParamsPtr<RegParams>, memh: OutPtr<*mut MemHandle>,
    ) -> CStatus {
        let params = params.fields("uct_md_mem_reg_v2")?;
        let flags = field!(params, 1 << 0, flags).unwrap_or(0);
        if field!(params, 1 << 1, dmabuf_fd).is_some_and(|fd| fd >= 0) {
            tracing::error!("uct_md_mem_reg_v2: memory of devices (dmabuf) is not supported");
            return Err(Status::Unsupported);
        }
        // SAFETY: the caller's contract is that of the other form.
        crate::request::as_result_of(unsafe { uct_md_mem_reg(md, address, length, flags as c_uint, memh) })
    }

    /// Ends a registration. With a flag, ends also the access by keys that peers have unpacked, and then
    /// calls a completion.
    fn uct_md_mem_dereg_v2(md: *mut Md, params: ParamsPtr<DeregParams>) -> CStatus {
        let md = checked(md)?;
        let params = params.fields("uct_md_mem_dereg_v2")?;
        let memh = field!(params, 1 << 0, memh).ok_or_else(|| invalid("uct_md_mem_dereg_v2: memh is missing"))?;
        let flags = field!(params, 1 << 1, flags).unwrap_or(0);
        if flags & 1 == 0 {
            return from_handle(memh).map(drop);
        }
        must_revoke(md)?;
        let comp = field!(params, 1 << 2, comp).ok_or_else(|| invalid("uct_md_mem_dereg_v2: comp is missing"))?;
        let memory = from_handle(memh)?;
        memory.mem.revoke();
        drop(memory);
        // SAFETY: the caller's contract.
        unsafe { complete(comp) };
        Ok(())
    }

    /// Packs the key of registered memory: of all of it, whatever range is given inside.
    fn uct_md_mkey_pack_v2(
        md: *mut Md, memh: *const MemHandle, address: *mut c_void, length: usize, params: ParamsPtr<PackParams>,
        buffer: *mut c_void,
    ) -> CStatus {
        let params = params.fields("uct_md_mkey_pack_v2")?;
        let flags = field!(params, 1 << 0, flags).unwrap_or(0);
        // `UCT_MD_MKEY_PACK_FLAG_EXPORT`: `ucp_memh_pack` exports memory.
        if flags & 4 != 0 {
            tracing::error!("uct_md_mkey_pack_v2: exported keys are not supported: see ucp_memh_pack");
            return Err(Status::Unsupported);
        }
        if flags & 3 != 0 {
            must_revoke(checked(md)?)?;
        }
        let memory = &checked(memh)?.mem;
        let offset = address.addr().wrapping_sub(memory.addr().addr());
        if offset > memory.len() || length > memory.len() - offset {
            return Err(invalid("uct_md_mkey_pack_v2: the range is not within the memory"));
        }
        // SAFETY: the caller's contract is that of the other form.
        crate::request::as_result_of(unsafe { uct_md_mkey_pack(md, memh, buffer) })
    }

    /// Unpacks a key. The device of the system does not matter.
    fn uct_rkey_unpack_v2(
        component: *const Component, buffer: *const c_void, params: ParamsPtr<u64>, bundle: OutPtr<RkeyBundle>,
    ) -> CStatus {
        params.fields("uct_rkey_unpack_v2")?;
        // SAFETY: the caller's contract is that of the other form.
        crate::request::as_result_of(unsafe { uct_rkey_unpack(component, buffer, bundle) })
    }

    /// Order of two keys: negative, 0 or positive. They are equal if the owner packed the same.
    fn uct_rkey_compare(
        component: *const Component, one: usize, other: usize, params: ParamsPtr<u64>, result: OutPtr<c_int>,
    ) -> CStatus {
        checked(component)?;
        params.fields("uct_rkey_compare")?;
        result.store(compare(one, other)? as c_int)
    }

    /// Whether an endpoint to an address can be created, and why not.
    fn uct_iface_is_reachable_v2(iface: *mut Iface, params: ParamsPtr<ReachableParams>) -> c_int {
        let iface = checked_iface(iface)?;
        let params = params.fields("uct_iface_is_reachable_v2")?;
        // SAFETY: the caller's contract.
        let reason = unsafe { unreachable_because(iface, &params) }?;
        let text = field!(params, 1 << 2, info_string);
        if let Some((text, length)) = text.zip(field!(params, 1 << 3, info_string_length)) {
            // SAFETY: as above.
            unsafe { crate::info::fill_string(text, length, reason.as_deref().unwrap_or("")) };
        }
        Ok(c_int::from(reason.is_none()))
    }

    /// Cost of an operation of an interface. All operations cost the same.
    fn uct_iface_estimate_perf(iface: *mut Iface, attr: AttrPtr<PerfAttr>) -> CStatus {
        let iface = checked_iface(iface)?;
        let attr = attr.fields("uct_iface_estimate_perf")?;
        let found = super::attr::attr_of(iface.inner.attr());
        answer!(attr, 1 << 5, send_pre_overhead = found.overhead);
        answer!(attr, 1 << 6, send_post_overhead = 0.0);
        answer!(attr, 1 << 7, recv_overhead = found.overhead);
        let Bandwidth { dedicated, shared } = found.bandwidth;
        answer!(attr, 1 << 8, bandwidth = Bandwidth { dedicated, shared });
        // An interface has one path.
        answer!(attr, 1 << 9, path_bandwidth = Bandwidth { dedicated, shared });
        answer!(attr, 1 << 10, latency = Linear { c: found.latency.c, m: found.latency.m });
        answer!(attr, 1 << 11, max_inflight_eps = found.max_num_eps);
        answer!(attr, 1 << 12, flags = 0);
        Ok(())
    }

    /// Answers what the mask asks for: no transport has operations on lists, or tokens.
    fn uct_iface_query_v2(iface: *mut Iface, attr: AttrPtr<IfaceAttrV2>) -> CStatus {
        checked_iface(iface)?;
        let attr = attr.fields("uct_iface_query_v2")?;
        if attr.mask() & (1 << 5 | 1 << 6) != 0 {
            tracing::error!("uct_iface_query_v2: interfaces have no tokens");
            return Err(Status::Unsupported);
        }
        answer!(attr, 1 << 0, max_put_sgl_zcopy_count = 0);
        answer!(attr, 1 << 1, max_get_sgl_zcopy_count = 0);
        answer!(attr, 1 << 2, cap_flags = 0);
        answer!(attr, 1 << 3, tx_token_length = 0);
        answer!(attr, 1 << 4, rx_token_length = 0);
        Ok(())
    }

    /// Not supported: an endpoint is closed to end its operations.
    fn uct_ep_invalidate(ep: *mut Ep, params: ParamsPtr<u64>) -> CStatus {
        checked_ep(ep)?;
        params.fields("uct_ep_invalidate")?;
        refuse("uct_ep_invalidate")
    }

    /// Not supported.
    fn uct_ep_outstanding_purge(ep: *mut Ep, params: ParamsPtr<u64>) -> CStatus {
        checked_ep(ep)?;
        params.fields("uct_ep_outstanding_purge")?;
        refuse("uct_ep_outstanding_purge")
    }

    /// Not supported: puts on lists.
    fn uct_ep_put_sgl_zcopy(
        ep: *mut Ep, _buffers: *const *mut c_void, _lengths: *const usize, _memhs: *const *mut MemHandle,
        _addrs: *const u64, _rkeys: *const usize, _counts: *const usize, _strides: *const usize, _count: usize,
        _comp: *mut c_void,
    ) -> CStatus {
        checked_ep(ep)?;
        refuse("uct_ep_put_sgl_zcopy")
    }

    /// Not supported: gets on lists.
    fn uct_ep_get_sgl_zcopy(
        ep: *mut Ep, _buffers: *const *mut c_void, _lengths: *const usize, _memhs: *const *mut MemHandle,
        _addrs: *const u64, _rkeys: *const usize, _counts: *const usize, _strides: *const usize, _count: usize,
        _comp: *mut c_void,
    ) -> CStatus {
        checked_ep(ep)?;
        refuse("uct_ep_get_sgl_zcopy")
    }

    /// Not supported: endpoints for code on a GPU.
    fn uct_ep_get_device_ep(ep: *mut Ep, _device: *mut *mut c_void) -> CStatus {
        checked_ep(ep)?;
        refuse("uct_ep_get_device_ep")
    }

    /// Not supported: memory for code on a GPU.
    fn uct_md_mem_elem_pack(
        md: *mut Md, _memh: *mut MemHandle, _rkey: usize, _element: *mut c_void, _release: *mut *mut c_void,
    ) -> CStatus {
        checked(md)?;
        refuse("uct_md_mem_elem_pack")
    }

    /// There is nothing to free.
    fn uct_md_mem_elem_release(md: *mut Md, _handle: *mut c_void) {
        checked(md)?;
        refuse("uct_md_mem_elem_release")
    }

    /// Socket addresses of an endpoint, which has none.
    fn uct_ep_query(ep: *mut Ep, attr: AttrPtr<u64>) -> CStatus {
        checked_ep(ep)?;
        if attr.fields("uct_ep_query")?.mask() == 0 {
            return Ok(());
        }
        tracing::error!("uct_ep_query: endpoints have no socket addresses");
        Err(Status::Unsupported)
    }

    /// Not supported: no transport exports keys to other processes of its host.
    fn uct_md_mem_attach(
        md: *mut Md, _key: *const c_void, params: ParamsPtr<u64>, _memh: *mut *mut MemHandle,
    ) -> CStatus {
        checked(md)?;
        params.fields("uct_md_mem_attach")?;
        tracing::error!("uct_md_mem_attach: no memory domain exports keys");
        Err(Status::Unsupported)
    }

    /// As `uct_ep_connect_to_ep`, with the lengths of the addresses.
    fn uct_ep_connect_to_ep_v2(
        ep: *mut Ep, device: *const c_void, address: *const c_void, params: ParamsPtr<ConnectParams>,
    ) -> CStatus {
        let attr = checked_ep(ep)?.iface().inner.attr();
        let params = params.fields("uct_ep_connect_to_ep_v2")?;
        for (given, least) in [
            (field!(params, 1 << 0, device_addr_length), attr.device_addr_len),
            (field!(params, 1 << 1, ep_addr_length), attr.iface_addr_len),
        ] {
            if given.is_some_and(|length| length < least) {
                return Err(invalid("uct_ep_connect_to_ep_v2: the address is too short"));
            }
        }
        // SAFETY: the caller's contract is that of the other form.
        crate::request::as_result_of(unsafe { uct_ep_connect_to_ep(ep, device, address) })
    }

    /// Whether an endpoint was created for these addresses.
    fn uct_ep_is_connected(ep: *mut Ep, params: ParamsPtr<ConnectedParams>) -> c_int {
        let ep = checked_ep(ep)?;
        let params = params.fields("uct_ep_is_connected")?;
        let Ok(connected) = ep.inner.get() else { return Ok(0) };
        let (device, address) = &connected.remote;
        for (given, is) in [
            (field!(params, 1 << 0, device_addr), device),
            (field!(params, 1 << 1, iface_addr), address),
            // Address of the peer's interface, too.
            (field!(params, 1 << 2, ep_addr), address),
        ] {
            if let Some(given) = given
                // SAFETY: the caller's contract.
                && unsafe { super::bytes(given, is.len()) }? != &**is
            {
                return Ok(0);
            }
        }
        Ok(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_finds_the_same_layouts() {
        let mut source = String::from("#include <stddef.h>\n#include <uct/api/v2/uct_v2.h>\n");
        for (of, field, offset) in [
            ("uct_md_attr_v2_t", "reg_cost", std::mem::offset_of!(MdAttrV2, reg_cost)),
            ("uct_md_attr_v2_t", "local_cpus", std::mem::offset_of!(MdAttrV2, local_cpus)),
            ("uct_md_attr_v2_t", "global_id", std::mem::offset_of!(MdAttrV2, global_id)),
            ("uct_md_attr_v2_t", "required_mem_flags", std::mem::offset_of!(MdAttrV2, required_mem_flags)),
            ("uct_md_mem_reg_params_t", "mem_type", std::mem::offset_of!(RegParams, mem_type)),
            ("uct_md_mem_dereg_params_t", "comp", std::mem::offset_of!(DeregParams, comp)),
            ("uct_md_mkey_pack_params_t", "flags", std::mem::offset_of!(PackParams, flags)),
            (
                "uct_iface_is_reachable_params_t",
                "iface_addr_length",
                std::mem::offset_of!(ReachableParams, iface_addr_length),
            ),
            ("uct_iface_is_reachable_params_t", "scope", std::mem::offset_of!(ReachableParams, scope)),
            ("uct_perf_attr_t", "remote_sys_device", std::mem::offset_of!(PerfAttr, remote_sys_device)),
            ("uct_perf_attr_t", "bandwidth", std::mem::offset_of!(PerfAttr, bandwidth)),
            ("uct_iface_attr_v2_t", "cap", std::mem::offset_of!(IfaceAttrV2, cap_flags)),
            ("uct_iface_attr_v2_t", "rx_token_length", std::mem::offset_of!(IfaceAttrV2, rx_token_length)),
            ("uct_perf_attr_t", "latency", std::mem::offset_of!(PerfAttr, latency)),
            ("uct_perf_attr_t", "flags", std::mem::offset_of!(PerfAttr, flags)),
            (
                "uct_ep_connect_to_ep_params_t",
                "ep_addr_length",
                std::mem::offset_of!(ConnectParams, ep_addr_length),
            ),
            ("uct_ep_is_connected_params_t", "ep_addr", std::mem::offset_of!(ConnectedParams, ep_addr)),
        ] {
            source += &format!("_Static_assert(offsetof({of}, {field}) == {offset}, \"{of}.{field}\");\n");
        }
        source +=
            &format!("_Static_assert(sizeof(uct_md_attr_v2_t) == {}, \"size\");\n", size_of::<MdAttrV2>());
        crate::layout::assert_compiles_with_ours(&source);
    }
}
