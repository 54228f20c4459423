//! Data that programs read: the linker copies it into a program that was built with it, so that layout and
//! size are those of UCX 1.13. Newer programs have more fields, which they find as zeros.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_uint};

/// Data that a program may read and write as it pleases, like any C variable.
#[repr(transparent)]
pub(crate) struct Global<T>(UnsafeCell<T>);

// SAFETY: this library stores whole words, before a program can rely on them; the rest is the program's.
unsafe impl<T> Sync for Global<T> {}

impl<T> Global<T> {
    pub(crate) const fn new(value: T) -> Global<T> {
        Global(UnsafeCell::new(value))
    }

    /// Address of the data: that of the program's copy, if there is one.
    pub(crate) fn get(&self) -> *mut T {
        self.0.get()
    }
}

/// `ucs_log_component_config_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct LogComponent {
    pub level: c_int,
    pub name: [u8; 16],
    pub file_filter: *const c_char,
}

/// An array: `UCS_CONFIG_ARRAY_FIELD`.
#[repr(C)]
pub(crate) struct Array {
    elements: *const u8,
    count: c_uint,
    pad: c_uint,
}

impl Array {
    const EMPTY: Array = Array { elements: std::ptr::null(), count: 0, pad: 0 };
}

/// `ucs_global_opts_t` of UCX 1.13. Of these this library uses the levels of the log; the others have UCX's
/// defaults, or say that the feature is off.
#[repr(C)]
pub(crate) struct GlobalOpts {
    pub log_component: LogComponent,
    log_file: *const c_char,
    log_file_size: usize,
    log_file_rotate: c_uint,
    log_buffer_size: usize,
    log_data_size: usize,
    log_print_enable: c_int,
    mpool_fifo: c_int,
    handle_errors: c_uint,
    error_signals: Array,
    error_mail_to: *const c_char,
    error_mail_footer: *const c_char,
    gdb_command: *const c_char,
    debug_signo: c_uint,
    pub log_level_trigger: c_int,
    warn_unused_env_vars: c_int,
    async_max_events: c_uint,
    enable_memtype_cache: c_int,
    stats_dest: *const c_char,
    stats_trigger: *const c_char,
    tuning_path: *const c_char,
    perf_stall_loops: usize,
    async_signo: c_uint,
    memtrack_dest: *const c_char,
    memtrack_limit: usize,
    profile_mode: c_uint,
    profile_file: *const c_char,
    profile_log_size: usize,
    stats_filter: Array,
    stats_format: c_int,
    topo_prio: Array,
    vfs_enable: c_int,
    rcache_check_pfn: c_uint,
    module_dir: *const c_char,
    module_log_level: c_int,
    modules: Array,
    modules_mode: c_int,
    builtin_memcpy_min: usize,
    builtin_memcpy_max: usize,
    vfs_thread_affinity: c_int,
    rcache_stat_min: usize,
    rcache_stat_max: usize,
}

/// `UCS_LOG_LEVEL_WARN`.
const LEVEL_WARN: c_int = 2;
/// `UCS_LOG_LEVEL_FATAL`.
const LEVEL_FATAL: c_int = 0;
/// `UCS_LOG_LEVEL_TRACE`.
const LEVEL_TRACE: c_int = 6;
/// `UCS_HANDLE_ERROR_NONE`, as a mask.
const HANDLE_NONE: c_uint = 1 << 3;
/// `UCS_MEMUNITS_AUTO`.
const AUTO: usize = usize::MAX - 1;
const EMPTY: *const c_char = c"".as_ptr();

/// Options of UCX's libraries.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub(crate) static ucs_global_opts: Global<GlobalOpts> = Global::new(GlobalOpts {
    log_component: LogComponent {
        level: LEVEL_WARN,
        name: *b"UCX\0\0\0\0\0\0\0\0\0\0\0\0\0",
        file_filter: c"*".as_ptr(),
    },
    log_file: EMPTY,
    log_file_size: usize::MAX,
    log_file_rotate: 0,
    log_buffer_size: 4096,
    log_data_size: 0,
    log_print_enable: 0,
    mpool_fifo: 0,
    handle_errors: HANDLE_NONE,
    error_signals: Array::EMPTY,
    error_mail_to: EMPTY,
    error_mail_footer: EMPTY,
    gdb_command: EMPTY,
    debug_signo: 0,
    log_level_trigger: LEVEL_FATAL,
    warn_unused_env_vars: 1,
    async_max_events: 64,
    enable_memtype_cache: 0,
    stats_dest: EMPTY,
    stats_trigger: c"exit".as_ptr(),
    tuning_path: EMPTY,
    perf_stall_loops: 0,
    async_signo: 0,
    memtrack_dest: EMPTY,
    memtrack_limit: usize::MAX,
    profile_mode: 0,
    profile_file: EMPTY,
    profile_log_size: 0,
    stats_filter: Array::EMPTY,
    stats_format: 0,
    topo_prio: Array::EMPTY,
    vfs_enable: 0,
    rcache_check_pfn: 0,
    module_dir: EMPTY,
    module_log_level: LEVEL_TRACE,
    modules: Array::EMPTY,
    modules_mode: 0,
    builtin_memcpy_min: AUTO,
    builtin_memcpy_max: AUTO,
    vfs_thread_affinity: 0,
    rcache_stat_min: 0,
    rcache_stat_max: 0,
});

/// Names of memory types, with a null at the end.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub(crate) static ucs_memory_type_names: Global<[*const c_char; 7]> = Global::new([
    c"host".as_ptr(),
    c"cuda".as_ptr(),
    c"cuda-managed".as_ptr(),
    c"rocm".as_ptr(),
    c"rocm-managed".as_ptr(),
    c"unknown".as_ptr(),
    std::ptr::null(),
]);

/// Descriptions of memory types.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub(crate) static ucs_memory_type_descs: Global<[*const c_char; 6]> = Global::new([
    c"System memory".as_ptr(),
    c"NVIDIA GPU memory".as_ptr(),
    c"NVIDIA GPU managed/unified memory".as_ptr(),
    c"AMD/ROCm GPU memory".as_ptr(),
    c"AMD/ROCm GPU managed memory".as_ptr(),
    c"unknown".as_ptr(),
]);

/// Names of memory types of UCX 1.23, for programs that were built with this project's headers.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub(crate) static ucx4efa_memory_type_names: Global<[*const c_char; 12]> = Global::new([
    c"host".as_ptr(),
    c"cuda".as_ptr(),
    c"cuda-managed".as_ptr(),
    c"rocm".as_ptr(),
    c"rocm-managed".as_ptr(),
    c"rdma".as_ptr(),
    c"ze-host".as_ptr(),
    c"ze-device".as_ptr(),
    c"ze-managed".as_ptr(),
    c"gaudi".as_ptr(),
    c"unknown".as_ptr(),
    std::ptr::null(),
]);

/// Descriptions of memory types of UCX 1.23, for programs that were built with this project's headers.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub(crate) static ucx4efa_memory_type_descs: Global<[*const c_char; 12]> = Global::new([
    c"System memory".as_ptr(),
    c"NVIDIA GPU memory".as_ptr(),
    c"NVIDIA GPU managed/unified memory".as_ptr(),
    c"AMD/ROCm GPU memory".as_ptr(),
    c"AMD/ROCm GPU managed memory".as_ptr(),
    c"Memory of an RDMA device".as_ptr(),
    c"Intel/ZE memory of the host".as_ptr(),
    c"Intel/ZE memory of a device".as_ptr(),
    c"Intel/ZE managed memory".as_ptr(),
    c"Gaudi memory".as_ptr(),
    c"unknown".as_ptr(),
    std::ptr::null(),
]);

/// Names of levels of the log, with a null at the end, as many as UCX has places.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub(crate) static ucs_log_level_names: Global<[*const c_char; 14]> = Global::new([
    c"FATAL".as_ptr(),
    c"ERROR".as_ptr(),
    c"WARN".as_ptr(),
    c"DIAG".as_ptr(),
    c"INFO".as_ptr(),
    c"DEBUG".as_ptr(),
    c"TRACE".as_ptr(),
    c"REQ".as_ptr(),
    c"DATA".as_ptr(),
    c"ASYNC".as_ptr(),
    c"FUNC".as_ptr(),
    c"POLL".as_ptr(),
    std::ptr::null(),
    c"PRINT".as_ptr(),
]);

/// Names of thread modes.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub(crate) static ucs_thread_mode_names: Global<[*const c_char; 3]> =
    Global::new([c"single".as_ptr(), c"serialized".as_ptr(), c"multi".as_ptr()]);

/// Names of modes of asynchronous contexts, with a null at the end.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub(crate) static ucs_async_mode_names: Global<[*const c_char; 5]> = Global::new([
    c"signal".as_ptr(),
    c"thread_spinlock".as_ptr(),
    c"thread_mutex".as_ptr(),
    c"poll".as_ptr(),
    std::ptr::null(),
]);

/// Sets the level above which a program's own messages are not passed to the library.
pub(crate) fn set_log_level(level: c_int) {
    // SAFETY: the address is that of the data, which lives as long as the process.
    unsafe { (&raw mut (*ucs_global_opts.get()).log_component.level).write_volatile(level) };
}

/// The level above which a program's messages are hidden.
pub(crate) fn log_level() -> c_int {
    // SAFETY: as above.
    unsafe { (&raw const (*ucs_global_opts.get()).log_component.level).read_volatile() }
}

/// Messages of this level and below end the program.
pub(crate) fn abort_level() -> c_int {
    // SAFETY: as above.
    unsafe { (&raw const (*ucs_global_opts.get()).log_level_trigger).read_volatile() }
}

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! fields {
        ($($field:ident)+) => { &[$((stringify!($field), std::mem::offset_of!(GlobalOpts, $field)),)+] };
    }

    /// Fields that have UCX's names.
    const FIELDS: &[(&str, usize)] = fields!(log_component log_file log_file_size log_file_rotate
        log_buffer_size log_data_size log_print_enable mpool_fifo handle_errors error_signals error_mail_to
        error_mail_footer gdb_command debug_signo log_level_trigger warn_unused_env_vars async_max_events
        enable_memtype_cache stats_dest stats_trigger tuning_path perf_stall_loops async_signo memtrack_dest
        memtrack_limit profile_mode profile_file profile_log_size stats_filter stats_format topo_prio vfs_enable
        rcache_check_pfn module_dir module_log_level modules vfs_thread_affinity rcache_stat_min
        rcache_stat_max);

    #[test]
    fn sizes_are_those_of_ucx_1_13() {
        assert_eq!(size_of::<GlobalOpts>(), 360);
        assert_eq!(size_of_val(&ucs_memory_type_names), 56);
        assert_eq!(size_of_val(&ucs_memory_type_descs), 48);
    }

    #[test]
    fn a_compiler_finds_the_same_layout() {
        let mut source = String::from("#include <stddef.h>\n#include <ucs/config/global_opts.h>\n");
        source += "#define OFFSET(F) offsetof(ucs_global_opts_t, F)\n";
        for (field, offset) in FIELDS {
            source += &format!("_Static_assert(OFFSET({field}) == {offset}, \"{field}\");\n");
        }
        for (field, offset) in [
            ("modules.mode", std::mem::offset_of!(GlobalOpts, modules_mode)),
            ("arch.builtin_memcpy_max", std::mem::offset_of!(GlobalOpts, builtin_memcpy_max)),
        ] {
            source += &format!("_Static_assert(OFFSET({field}) == {offset}, \"{field}\");\n");
        }
        crate::layout::assert_compiles("/usr/include/ucs/config/global_opts.h", &source);
        crate::layout::assert_compiles_with_ours(&source);
    }
}
