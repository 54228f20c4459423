//! Functions of UCX's own debugging and tracking: this library has neither, and says so. Options of UCX's
//! libraries that programs set by name.

use std::ffi::{c_char, c_int, c_void};

use ::ucs::Status;

use super::global::{Global, set_log_level};
use super::log::LEVELS;
use crate::arg::StrPtr;
use crate::entry::{CStatus, invalid};

/// Names of the forms of statistics, with a null at the end.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub(crate) static ucs_stats_formats_names: Global<[*const c_char; 4]> =
    Global::new([c"full".as_ptr(), c"agg".as_ptr(), c"summary".as_ptr(), std::ptr::null()]);

/// Options of UCX's libraries that change nothing here.
const OPTIONS: [&str; 40] = [
    "LOG_FILE_FILTER",
    "LOG_BUFFER",
    "LOG_DATA_SIZE",
    "LOG_PRINT_ENABLE",
    "LOG_FILE",
    "LOG_FILE_SIZE",
    "LOG_FILE_ROTATE",
    "LOG_LEVEL_TRIGGER",
    "MPOOL_FIFO",
    "HANDLE_ERRORS",
    "ERROR_SIGNALS",
    "ERROR_MAIL_TO",
    "ERROR_MAIL_FOOTER",
    "GDB_COMMAND",
    "DEBUG_SIGNO",
    "MEMTYPE_CACHE",
    "ASYNC_MAX_EVENTS",
    "ASYNC_SIGNO",
    "MEMTRACK_LIMIT",
    "MEMTRACK_DEST",
    "RCACHE_CHECK_PFN",
    "RCACHE_STAT_MIN",
    "RCACHE_STAT_MAX",
    "MODULE_DIR",
    "MODULE_LOG_LEVEL",
    "MODULES",
    "PLUGIN_PATH",
    "TOPO_PRIO",
    "DISTANCE_LAT",
    "DISTANCE_BW",
    "VFS_ENABLE",
    "VFS_SOCK_PATH",
    "VFS_THREAD_AFFINITY",
    "STATS_DEST",
    "STATS_TRIGGER",
    "STATS_FILTER",
    "STATS_FORMAT",
    "PROFILE_MODE",
    "PROFILE_FILE",
    "PROFILE_LOG_SIZE",
];

entry! {
    /// Takes the library's handler of a signal away: it installs none.
    fn ucs_debug_disable_signal(_signal: c_int) {
        Ok(())
    }

    /// Tells of memory that the program has got: nothing is tracked.
    fn ucs_memtrack_allocated(_at: *mut c_void, _size: usize, _name: *const c_char) {
        Ok(())
    }

    /// Tells of memory that the program gives back.
    fn ucs_memtrack_releasing(_at: *mut c_void) {
        Ok(())
    }

    /// Sets an option by its name. The level of the log is that of messages of the program.
    fn ucs_global_opts_set_value(name: *const c_char, value: *const c_char) -> CStatus {
        // SAFETY: the caller passes C strings, or null.
        let (name, value) = unsafe { (StrPtr::new(name), StrPtr::new(value)) };
        let (Some(_), Some(_)) = (name.get(), value.get()) else {
            return Err(invalid("ucs_global_opts_set_value: a text is null"));
        };
        let (name, value) = (name.text(), value.text());
        if name == "LOG_LEVEL" {
            // The configuration is read first, which would set the level again.
            crate::log::init_from_env();
            let level = LEVELS.iter().position(|level| level.eq_ignore_ascii_case(value.trim()));
            let level = level.ok_or_else(|| invalid("ucs_global_opts_set_value: it is no level of the log"))?;
            set_log_level(level as c_int);
            return Ok(());
        }
        if OPTIONS.contains(&name.as_str()) { Ok(()) } else { Err(Status::NoElem) }
    }
}
