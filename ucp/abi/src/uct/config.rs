//! Configurations of memory domains and interfaces: the environment at the time of reading, and changes of
//! the program.

use std::ffi::c_char;

use ::ucs::Status;
use ::ucs::config::{Source, TableDesc, effective};
use ::uct::any;

use super::component::Component;
use super::md::Md;
use crate::arg::{OutPtr, StrPtr};
use crate::entry::{CStatus, invalid};
use crate::handle::{Handle, Magic, checked, from_handle, into_handle};

/// `uct_md_config_t` and `uct_iface_config_t`: both are all keys of a transport.
#[repr(C)]
pub(crate) struct Config {
    magic: Magic,
    tl: &'static str,
    pub(crate) source: Source,
}

impl Handle for Config {
    const MAGIC: u32 = 0x7563_7463;
    const NAME: &'static str = "uct configuration";
    fn magic(&self) -> &Magic {
        &self.magic
    }
}

impl Config {
    fn read(tl: &'static str, prefix: StrPtr) -> Result<Config, Status> {
        let source = super::component::from_env()?.with_prefix(&prefix.text());
        Ok(Config { magic: Magic::of::<Config>(), tl, source })
    }

    /// The table of the transports that has a key of this transport, and the key's whole name.
    fn key(&self, name: &str) -> Option<(&'static TableDesc, String)> {
        let names =
            [format!("UCX_{}_{name}", self.tl.to_uppercase()), format!("UCX_{name}"), name.to_owned()];
        names.into_iter().find_map(|key| {
            let has_key = |table: &&TableDesc| table.keys.iter().any(|known| known.name == key);
            any::tables().into_iter().find(has_key).map(|table| (table, key))
        })
    }
}

/// A C string of the caller as text.
fn text(at: StrPtr<'_>) -> Result<&str, Status> {
    let text = at.get().ok_or_else(|| invalid("the text is null"))?;
    text.to_str().map_err(|_| invalid("the text is no UTF-8"))
}

entry! {
    /// Reads the configuration of a component's memory domains. A file is not read: `UCX_CONFIG_FILE` names
    /// one.
    fn uct_md_config_read(
        component: *const Component, prefix: StrPtr, _file: *const c_char, config: OutPtr<*mut Config>,
    ) -> CStatus {
        let component = checked(component)?;
        if config.is_null() {
            return Err(invalid("uct_md_config_read: config is null"));
        }
        config.store(into_handle(Config::read(component.tl, prefix)?))
    }

    /// Reads the configuration of interfaces of a memory domain.
    fn uct_md_iface_config_read(
        md: *mut Md, tl: StrPtr, prefix: StrPtr, _file: *const c_char, config: OutPtr<*mut Config>,
    ) -> CStatus {
        let md = checked(md)?;
        if config.is_null() {
            return Err(invalid("uct_md_iface_config_read: config is null"));
        }
        if tl.get().is_some() && text(tl)? != md.component.tl {
            tracing::error!("memory domain {} has no transport {}", md.name(), tl.text());
            return Err(Status::NoDevice);
        }
        config.store(into_handle(Config::read(md.component.tl, prefix)?))
    }

    /// Frees a configuration.
    fn uct_config_release(config: *mut Config) {
        from_handle(config).map(drop)
    }

    /// Stores the value of a key as text.
    fn uct_config_get(config: *const Config, name: StrPtr, value: *mut c_char, size: usize) -> CStatus {
        let config = checked(config)?;
        let (table, key) = config.key(text(name)?).ok_or(Status::NoElem)?;
        if value.is_null() || size == 0 {
            return Err(invalid("uct_config_get: value is null, or size is 0"));
        }
        let found = effective(table, &config.source).into_iter().find(|found| found.name == key);
        let text = found.ok_or(Status::NoElem)?.value;
        if text.len() >= size {
            return Err(Status::BufferTooSmall);
        }
        // SAFETY: the caller passes `size` bytes.
        unsafe {
            value.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
            value.add(text.len()).write(0);
        }
        Ok(())
    }

    /// Sets a key: its name is with or without `UCX_` and the transport.
    fn uct_config_modify(config: *mut Config, name: StrPtr, value: StrPtr) -> CStatus {
        let (name, value) = (text(name)?, text(value)?);
        let (table, key) = checked(config)?.key(name).ok_or(Status::NoElem)?;
        // SAFETY: the handle is checked, and the program uses a configuration in one thread at a time.
        let source = unsafe { &mut (*config).source };
        let changed = source.clone().with(&key, value);
        table.check(&changed).map_err(|error| {
            tracing::error!("{error}");
            Status::InvalidParam
        })?;
        *source = changed;
        Ok(())
    }
}
