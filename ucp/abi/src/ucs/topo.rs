//! Topology and processors' names, for `ucx_info`.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::arg::OutPtr;
use crate::entry::CStatus;

/// `ucs_sys_dev_distance_t`.
#[repr(C)]
pub(crate) struct Distance {
    latency: f64,
    bandwidth: f64,
}

entry! {
    /// The distance between two devices: no device here has a place, so that nothing is known to be far.
    fn ucs_topo_get_distance(_one: u8, _other: u8, distance: OutPtr<Distance>) -> CStatus {
        distance.store(Distance { latency: 0.0, bandwidth: f64::MAX })
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
