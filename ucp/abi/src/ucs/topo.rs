//! Topology, processors' names, and configurations, for `ucx_info`.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void};

use ::ucs::Status;
use ::ucs::config::Source;

use super::global::Global;
use crate::context::text_of;
use crate::entry::CStatus;
use crate::handle::store;

/// `ucs_list_link_t`.
#[repr(C)]
pub(crate) struct ListLink {
    prev: Cell<*const Global<ListLink>>,
    next: Cell<*const Global<ListLink>>,
}

/// Tables of configurations that UCX's libraries register: none, since this library prints its own.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub(crate) static ucs_config_global_list: Global<ListLink> = Global::new(ListLink {
    prev: Cell::new(&raw const ucs_config_global_list),
    next: Cell::new(&raw const ucs_config_global_list),
});

/// `ucs_sys_dev_distance_t`.
#[repr(C)]
pub(crate) struct Distance {
    latency: f64,
    bandwidth: f64,
}

entry! {
    /// Prints the keys of this library. The list is not looked at: nothing is registered in it.
    fn ucs_config_parser_print_all_opts(
        stream: *mut libc::FILE, prefix: *const c_char, flags: c_int, _list: *const c_void,
    ) {
        let source = Source::from_env().map_err(|_| Status::InvalidParam)?;
        let prefix = text_of(prefix);
        let inner = prefix.strip_prefix("UCX_").unwrap_or_default().trim_end_matches('_');
        crate::info::print_config(stream, &source.with_prefix(inner), "UCX configuration", flags)
    }

    /// The distance between two devices: no device here has a place, so that nothing is known to be far.
    fn ucs_topo_get_distance(_one: u8, _other: u8, distance: *mut Distance) -> CStatus {
        store(distance, Distance { latency: 0.0, bandwidth: f64::MAX })
    }

    /// Prints nothing: copies are those of the C library, which has no limits to print.
    fn ucs_arch_print_memcpy_limits(_limits: *const c_void) {
        Ok(())
    }
}

/// Devices with a place in the machine: they are not numbered here.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ucs_topo_num_devices() -> c_uint {
    0
}

/// Name of a device.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ucs_topo_sys_device_get_name(_device: u8) -> *const c_char {
    c"<unknown>".as_ptr()
}

/// Values of `ucs_cpu_vendor_t`.
const VENDOR_UNKNOWN: c_int = 0;
#[cfg(target_arch = "x86_64")]
const VENDOR_INTEL: c_int = 1;
#[cfg(target_arch = "x86_64")]
const VENDOR_AMD: c_int = 2;
#[cfg(target_arch = "aarch64")]
const VENDOR_ARM: c_int = 3;

/// Maker of the processor.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ucs_arch_get_cpu_vendor() -> c_int {
    #[cfg(target_arch = "x86_64")]
    {
        let id = std::arch::x86_64::__cpuid(0);
        return match [id.ebx, id.edx, id.ecx].map(u32::to_le_bytes).as_flattened() {
            b"GenuineIntel" => VENDOR_INTEL,
            b"AuthenticAMD" => VENDOR_AMD,
            _ => VENDOR_UNKNOWN,
        };
    }
    #[cfg(target_arch = "aarch64")]
    return VENDOR_ARM;
    #[allow(unreachable_code)]
    VENDOR_UNKNOWN
}

/// Model of the processor in UCX's list, which ends some years ago: 0, not one of it. Nothing here depends on
/// it.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ucs_arch_get_cpu_model() -> c_int {
    0
}
