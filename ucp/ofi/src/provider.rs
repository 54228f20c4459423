//! The provider, as libfabric finds it.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use ucp::LibfabricConfig;
use ucs::config::{ConfigError, Source, Table};

use crate::abi::info::{FabricAttr, Info};
use crate::abi::{Fid, Provider, version};
use crate::entry::guard;
use crate::errno::Errno;

/// Name of the provider if the configuration cannot be read.
const NAME: &CStr = c"efa4";
/// Release of libfabric whose headers these are.
const HEADERS: u32 = version(1, 17);
/// Version of the provider. Of two providers with one name libfabric takes the one with the higher version;
/// its own have the version of the release, as 117.0.
const VERSION: u32 = version(4000, 1);

/// A provider that libfabric keeps for the life of the process.
struct Static(Provider);

// SAFETY: libfabric writes `context` only, under its own lock. The name is never freed.
unsafe impl Send for Static {}
// SAFETY: as above.
unsafe impl Sync for Static {}

static PROVIDER: OnceLock<Static> = OnceLock::new();

/// `FI_LOG_WARN` and `FI_LOG_CORE`.
const WARN: c_int = 0;
const CORE: c_int = 0;

type Log = unsafe extern "C" fn(*const Provider, c_int, c_int, *const c_char, c_int, *const c_char, ...);
type LogEnabled = unsafe extern "C" fn(*const Provider, c_int, c_int) -> c_int;

/// The settings of the provider, read once.
/// # Errors
/// A value is bad: a warning says which.
pub(crate) fn settings() -> Result<&'static LibfabricConfig, Errno> {
    static SETTINGS: OnceLock<Result<LibfabricConfig, String>> = OnceLock::new();
    let read = || LibfabricConfig::load(&of_both()?);
    SETTINGS.get_or_init(|| read().map_err(|error: ConfigError| error.to_string())).as_ref().map_err(
        |error| {
            warn(error);
            Errno::INVAL
        },
    )
}

/// The environment, with libfabric's variables of this provider.
fn of_both() -> Result<Source, ConfigError> {
    let mut vars: Vec<_> = std::env::vars_os().collect();
    vars.extend(crate::params::translated(&vars, &name().to_string_lossy()));
    Source::from_vars(vars)
}

/// The configuration of the engine: the environment, and libfabric's variables of this provider.
pub(crate) fn source() -> Result<Source, Errno> {
    of_both().map_err(|error| {
        warn(&error.to_string());
        Errno::INVAL
    })
}

/// A warning in the log of the engine, and in that of libfabric (`FI_LOG_LEVEL=warn`), once.
pub(crate) fn warn(text: &str) {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if !TOLD.lock().unwrap_or_else(PoisonError::into_inner).insert(text.to_owned()) {
        return;
    }
    tracing::warn!("{text}");
    let Some(provider) = PROVIDER.get() else { return };
    // SAFETY: looks a name up; the text ends with zero.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"fi_log".as_ptr()) };
    let Ok(text) = CString::new(text) else { return };
    if !found.is_null() && logs_warnings(&provider.0) {
        // SAFETY: that is the type of libfabric's `fi_log`.
        let log: Log = unsafe { std::mem::transmute(found) };
        // SAFETY: the texts end with zero and outlive the call.
        unsafe { log(&provider.0, WARN, CORE, c"getinfo".as_ptr(), 0, c"%s\n".as_ptr(), text.as_ptr()) };
    }
}

/// Whether libfabric logs warnings of the provider: its log does not ask by itself.
fn logs_warnings(provider: &Provider) -> bool {
    // SAFETY: looks a name up; the text ends with zero.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"fi_log_enabled".as_ptr()) };
    if found.is_null() {
        return false;
    }
    // SAFETY: that is the type of libfabric's `fi_log_enabled`.
    let is_enabled: LogEnabled = unsafe { std::mem::transmute(found) };
    // SAFETY: the provider is whole.
    unsafe { is_enabled(provider, WARN, CORE) != 0 }
}

/// Installs the log once, unless the program has one.
fn init_log() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        if let Ok(source) = source()
            && let Err(error) = ucs::trace::init(&source)
        {
            ucs::stderr_line!("efa4: {error}");
        }
    });
}

/// Release of the libfabric that has loaded this library, if it can be found; else that of the headers.
fn running_release() -> u32 {
    // SAFETY: looks a name up; the text ends with zero.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"fi_version".as_ptr()) };
    if found.is_null() {
        return HEADERS;
    }
    // SAFETY: that is the type of libfabric's `fi_version`.
    let fi_version: unsafe extern "C" fn() -> u32 = unsafe { std::mem::transmute(found) };
    // SAFETY: it has no preconditions.
    unsafe { fi_version() }
}

/// Name of the provider (`UCX_OFI_NAME`), on which the names of libfabric's variables depend.
pub(crate) fn name() -> CString {
    static NAMED: OnceLock<CString> = OnceLock::new();
    let read = || {
        let settings = LibfabricConfig::load(&Source::from_env().ok()?).ok()?;
        CString::new(&*settings.name).ok().filter(|name| !name.is_empty())
    };
    NAMED.get_or_init(|| read().unwrap_or_else(|| NAME.to_owned())).clone()
}

/// Returns the provider. Libfabric calls it when it has loaded this library.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fi_prov_ini() -> *mut c_void {
    guard("fi_prov_ini", || {
        init_log();
        let provider = PROVIDER.get_or_init(|| {
            Static(Provider {
                version: VERSION,
                fi_version: running_release(),
                context: [std::ptr::null_mut(); 4],
                name: name().into_raw(),
                getinfo,
                fabric,
                cleanup,
            })
        });
        static DEFINED: Once = Once::new();
        DEFINED.call_once(|| crate::params::define(&provider.0, &name().to_string_lossy()));
        Ok(std::ptr::from_ref(&provider.0).cast_mut().cast())
    })
}

calls! {
    /// Answers of the provider to hints.
    fn getinfo(
        version: u32, node: *const c_char, service: *const c_char, flags: u64, hints: *const Info,
        info: *mut *mut Info,
    ) -> c_int {
        let names = [text(node), text(service)];
        // SAFETY: hints of the caller are a whole tree.
        let found = unsafe { crate::info::find(version, names, flags, hints) }?;
        crate::object::store(info, found).map(|()| 0)
    }

    /// Opens a fabric.
    fn fabric(attr: *mut FabricAttr, fabric: *mut *mut Fid, context: *mut c_void) -> c_int {
        crate::fabric::open(attr, fabric, context).map(|()| 0)
    }

    /// Libfabric is unloaded. The provider has nothing that lives longer than its objects.
    fn cleanup() -> () {
        Ok(())
    }
}

/// A text of the caller; `None` for null.
/// # Safety
/// `at` is null or a C string.
pub(crate) unsafe fn text(at: *const c_char) -> Option<String> {
    if at.is_null() {
        return None;
    }
    // SAFETY: the caller passes a C string.
    Some(unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned())
}
