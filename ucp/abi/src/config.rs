//! Configurations: the environment at the time of reading, with a prefix that wins, and changes of the
//! program.

use std::ffi::{c_char, c_int};

use ::ucs::Status;
use ::ucs::config::{Source, check_key};

use crate::arg::{OutPtr, StrPtr};
use crate::entry::{CStatus, invalid};
use crate::handle::{Handle, Magic, checked, from_handle, into_handle};

/// `ucp_config_t`.
#[repr(C)]
pub(crate) struct Config {
    magic: Magic,
    pub(crate) source: Source,
}

impl Handle for Config {
    const MAGIC: u32 = 0x7570_6366;
    const NAME: &'static str = "configuration";
    fn magic(&self) -> &Magic {
        &self.magic
    }
}

impl Config {
    /// Reads the environment: `UCX_KEY`, and `UCX_<prefix>_KEY`, which wins.
    pub(crate) fn read(prefix: StrPtr) -> Result<Config, Status> {
        let source = Source::from_env().map_err(|error| {
            tracing::error!("{error}");
            Status::InvalidParam
        })?;
        let source = source.with_prefix(&prefix.text());
        Ok(Config { magic: Magic::of::<Config>(), source })
    }
}

entry! {
    /// Reads the configuration. A file is not read: `UCX_CONFIG_FILE` names one.
    fn ucp_config_read(prefix: StrPtr, filename: *const c_char, config: OutPtr<*mut Config>) -> CStatus {
        if config.is_null() {
            return Err(invalid("ucp_config_read: config is null"));
        }
        if !filename.is_null() {
            tracing::debug!("ucp_config_read: filename is ignored, as in UCX; use UCX_CONFIG_FILE");
        }
        config.store(into_handle(Config::read(prefix)?))
    }

    /// Frees a configuration.
    fn ucp_config_release(config: *mut Config) {
        from_handle(config).map(drop)
    }

    /// Sets a value; the name is without `UCX_`. A bad value is refused at once, and changes nothing. A name
    /// that only UCX has, or nobody, is taken.
    fn ucp_config_modify(config: *mut Config, name: StrPtr, value: StrPtr) -> CStatus {
        let known = checked(config)?;
        let given = name.get().zip(value.get());
        let (name, value) = given.ok_or_else(|| invalid("ucp_config_modify: name or value is null"))?;
        let (name, value) = (name.to_str().ok(), value.to_str().ok());
        let (name, value) = name.zip(value).ok_or_else(|| invalid("ucp_config_modify: name or value is no UTF-8"))?;
        let name = format!("UCX_{name}");
        let changed = known.source.clone().with(&name, value);
        check_key(&changed, &name, &ucp::Context::tables()).map_err(|error| invalid(&error.to_string()))?;
        // SAFETY: the handle is checked, and the program uses a configuration in one thread at a time.
        unsafe { (*config).source = changed };
        Ok(())
    }

    /// Prints the configuration.
    fn ucp_config_print(config: *const Config, stream: *mut libc::FILE, title: StrPtr, flags: c_int) {
        let config = checked(config)?;
        // SAFETY: the caller's contract.
        unsafe { crate::info::print_config(stream, &config.source, &title.text(), flags) }
    }
}
