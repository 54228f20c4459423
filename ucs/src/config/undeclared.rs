//! Names that no table declares: those of UCX are accepted, others are reported with the nearest known name.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use super::decl::{Table, TableDesc};
use super::parse::parse_size;
use super::source::{ConfigError, Source, SourceConfig, UnknownKey};

/// Configuration names of UCX 1.13.1 and of UCX HEAD of August 2026 (9466d104), one a line, sorted.
const UCX_NAMES: &str = include_str!("ucx_names.txt");

/// Beginnings of names of UCX's components that this library does not have. Releases differ in them.
const UCX_FAMILIES: [&str; 24] = [
    "UCX_CUDA_",
    "UCX_DC_",
    "UCX_GAUDI_",
    "UCX_GDA_",
    "UCX_GDR_COPY_",
    "UCX_GGA_",
    "UCX_IB_",
    "UCX_KNEM_",
    "UCX_MEM_",
    "UCX_MM_",
    "UCX_MPI_",
    "UCX_PROTO_",
    "UCX_RC_",
    "UCX_RDMA_CM_",
    "UCX_ROCM_",
    "UCX_SCOPY_",
    "UCX_SM_",
    "UCX_SRD_",
    "UCX_SYSV_",
    "UCX_TCP_",
    "UCX_UD_",
    "UCX_UGNI_",
    "UCX_XPMEM_",
    "UCX_ZE_",
];

/// Whether UCX has a setting of this name, in some release.
pub fn is_ucx_name(name: &str) -> bool {
    ucx_names().any(|known| known == name) || UCX_FAMILIES.iter().any(|family| name.starts_with(family))
}

/// Exact names of UCX's settings.
pub(super) fn ucx_names() -> impl Iterator<Item = &'static str> + Clone {
    UCX_NAMES.lines()
}

/// Reports the names in `source` that none of `tables` declares, each once in a process: a name of UCX at
/// level debug, any other as a warning, unless `UCX_WARN_UNUSED_ENV_VARS=n`.
///
/// The error is a malformed value of that key.
pub fn report_undeclared(source: &Source, tables: &[&TableDesc]) -> Result<(), ConfigError> {
    let config = SourceConfig::load(source)?;
    for name in source.unused_keys(tables) {
        if is_first_report(name) {
            tracing::debug!("{name}: a setting of UCX that has no effect here");
        }
    }
    if config.warn_unused {
        for key in source.unknown_keys(tables).iter().filter(|key| is_first_report(&key.name)) {
            tracing::warn!("{key} ({}=n suppresses this)", SourceConfig::WARN_UNUSED);
        }
    }
    Ok(())
}

/// Checks the value that `source` has for the key `name`, as the table that declares it does. A setting of
/// UCX that no table declares is checked if it is a segment size, which every release writes alike.
pub fn check_key(source: &Source, name: &str, tables: &[&TableDesc]) -> Result<(), ConfigError> {
    if let Some(key) = tables.iter().flat_map(|table| table.keys).find(|key| key.name == name) {
        return key.check(source);
    }
    let known = ucx_names().find(|known| *known == name && known.ends_with("SEG_SIZE"));
    match (known, source.lookup(name)) {
        (Some(key), Some((value, origin))) if value != "auto" && parse_size(value).is_none() => {
            let expected = "a size in bytes, as 8k or 2m".to_owned();
            Err(ConfigError::BadValue { key, value: value.to_owned(), origin, expected })
        }
        _ => Ok(()),
    }
}

/// Whether this is the process's first call with this text: for messages that are logged once.
pub fn is_first_report(text: &str) -> bool {
    static REPORTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    REPORTED.lock().unwrap_or_else(PoisonError::into_inner).insert(text.to_owned())
}

/// Key as a warning shows it.
impl std::fmt::Display for UnknownKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "unknown configuration key {} ({})", self.name, self.origin)?;
        match self.nearest {
            Some(near) => write!(f, ": did you mean {near}?"),
            None => write!(f, ": see `ucx-info -c` for the keys there are"),
        }
    }
}
