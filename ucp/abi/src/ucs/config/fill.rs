//! Fills structures of options: defaults, then what the environment or a file says.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;

use ::ucs::Status;

use super::form::entry_at;
use super::table::{OnRefusal, assign, both, is_stored, read_default, release_first};
use super::{Field, fields, files, string, unused};
use crate::entry::{CStatus, invalid};

/// Fills a structure with defaults. If one is not valid, nothing of the table is left to be released.
///
/// # Safety
/// `table` describes the structure at `opts`, which has no values.
unsafe fn set_defaults(opts: *mut c_void, table: *const Field) -> Result<(), Status> {
    // SAFETY: the table is a program's.
    for (index, field) in unsafe { fields(table) }.enumerate().filter(|(_, field)| is_stored(field)) {
        let to = field.of(opts);
        let filled = match field.parser.table() {
            // SAFETY: the table describes what is there.
            Some(nested) => unsafe { set_defaults(to, nested) }.and_then(|()| {
                // The default of a table changes defaults of its fields.
                // SAFETY: as above.
                unsafe { read_default(table, &field, to) }.inspect_err(|_| {
                    // SAFETY: the table is filled.
                    unsafe { release_first(to, nested, usize::MAX) }
                })
            }),
            // SAFETY: as above.
            None => unsafe { read_default(table, &field, to) },
        };
        if let Err(status) = filled {
            // SAFETY: the options before this one are filled.
            unsafe { release_first(opts, table, index) };
            return Err(status);
        }
    }
    Ok(())
}

/// Where options are looked for.
#[derive(Clone, Copy)]
struct Lookup<'a> {
    prefix: &'a CStr,
    /// A bad value is reported, and the option keeps its default.
    ignores_errors: bool,
}

impl Lookup<'_> {
    /// The value that the environment or a file has for an option, and whether it is the first one of this
    /// name that an option takes.
    fn value(&self, table_prefix: &CStr, field: &CStr) -> Option<(CString, bool)> {
        let name = [self.prefix.to_bytes(), table_prefix.to_bytes(), field.to_bytes()].concat();
        let value = match std::env::var_os(OsStr::from_bytes(&name)) {
            Some(value) => CString::new(value.as_bytes()).ok()?,
            None => files::value(&name)?,
        };
        Some((value, unused::is_used(&name)))
    }

    /// Whether a deprecated option that has a value is worth a warning: once, as in UCX.
    fn warns_of_deprecated(&self, is_first: bool) -> bool {
        is_first && !self.ignores_errors && unused::warns()
    }

    /// Sets the options of a table for which there is a value. `goes_down`: nested tables with their own
    /// prefixes, too.
    ///
    /// # Safety
    /// `table` describes the structure at `opts`, which is filled.
    unsafe fn apply(
        self,
        opts: *mut c_void,
        table: *const Field,
        prefix: Option<&CStr>,
        goes_down: bool,
    ) -> Result<(), Status> {
        // SAFETY: the table is a program's.
        for field in unsafe { fields(table) } {
            let to = field.of(opts);
            // SAFETY: the field is of a table.
            let name = unsafe { field.name() };
            if let Some(nested) = field.parser.table() {
                if goes_down {
                    // SAFETY: the table describes what is there.
                    unsafe { self.apply(to, nested, Some(name), true) }?;
                }
                // A prefix of the whole wins over the table's.
                if prefix.is_some() {
                    // SAFETY: as above.
                    unsafe { self.apply(to, nested, prefix, false) }?;
                }
                continue;
            }
            let Some((value, is_first)) = self.value(prefix.unwrap_or_default(), name) else { continue };
            if field.is_deprecated() {
                if self.warns_of_deprecated(is_first) {
                    crate::log::init_from_env();
                    tracing::warn!("the option {} is deprecated: it has no effect", name.to_string_lossy());
                }
                continue;
            }
            // SAFETY: as above.
            let assigned = unsafe { assign(table, &field, to, &value, OnRefusal::Default) };
            if !self.ignores_errors {
                assigned?;
            }
        }
        Ok(())
    }
}

/// The last part of a prefix, if it has several: `UCX_` of `MPI_UCX_`.
pub(super) fn last_part(prefix: &CStr) -> Result<Option<&CStr>, Status> {
    let bytes = prefix.to_bytes_with_nul();
    if bytes.len() < 3 {
        return Err(invalid(&format!("the prefix of options is too short: '{}'", prefix.to_string_lossy())));
    }
    // The prefix ends with a line, which is not looked for.
    let before = bytes[..bytes.len() - 2].iter().rposition(|c| *c == b'_');
    Ok(before.and_then(|at| CStr::from_bytes_with_nul(&bytes[at + 1..]).ok()))
}

entry! {
    /// Fills a structure with the defaults of its table.
    fn ucs_config_parser_set_default_values(opts: *mut c_void, table: *mut Field) -> CStatus {
        both(opts, table)?;
        // SAFETY: the table describes the structure.
        unsafe { set_defaults(opts, table) }
    }

    /// Fills a structure with the defaults of its table, and with what the environment says under a prefix,
    /// which may have several parts: the last alone counts, too. What fails leaves nothing to be released.
    /// Programs of later releases pass an entry of a list of tables in place of the table and its prefix.
    fn ucs_config_parser_fill_opts(
        opts: *mut c_void,
        table: *mut Field,
        env_prefix: *const c_char,
        table_prefix: *const c_char,
        ignore_errors: c_int,
    ) -> CStatus {
        both(opts, table)?;
        // SAFETY: the caller passes a table or an entry. An argument that is not passed is not used.
        let (table, table_prefix, ignore_errors) = match unsafe { entry_at(table) } {
            Some(entry) => (entry.table, entry.prefix, table_prefix.addr() as c_int),
            None => (table, table_prefix, ignore_errors),
        };
        // SAFETY: the caller passes strings or null.
        let (prefix, table_prefix) = unsafe {
            let table_prefix = (!table_prefix.is_null()).then(|| CStr::from_ptr(table_prefix));
            (string(env_prefix, "the prefix of options")?, table_prefix)
        };
        let last = last_part(prefix)?;
        // SAFETY: the table describes the structure.
        unsafe { set_defaults(opts, table) }?;
        for prefix in last.into_iter().chain([prefix]) {
            let lookup = Lookup { prefix, ignores_errors: ignore_errors != 0 };
            // SAFETY: as above, and it is filled.
            let applied = unsafe { lookup.apply(opts, table, table_prefix, true) };
            // SAFETY: as above.
            applied.inspect_err(|_| unsafe { release_first(opts, table, usize::MAX) })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_may_have_several_parts() {
        assert_eq!(last_part(c"UCX_").expect("a prefix"), None);
        assert_eq!(last_part(c"MPI_UCX_").expect("a prefix"), Some(c"UCX_"));
        assert_eq!(last_part(c"A_B_C_").expect("a prefix"), Some(c"C_"));
        assert!(last_part(c"").is_err() && last_part(c"T").is_err());
    }

    #[test]
    fn a_deprecated_name_is_warned_of_once() {
        // SAFETY: no other test has variables of this prefix.
        unsafe { std::env::set_var("TEST_OLD_NAME", "1") };
        let lookup = |ignores_errors| Lookup { prefix: c"TEST_", ignores_errors };
        let warned = [0; 2].map(|_| {
            let (_, is_first) = lookup(false).value(c"OLD_", c"NAME").expect("a value");
            [lookup(false), lookup(true)].map(|lookup| lookup.warns_of_deprecated(is_first))
        });
        assert_eq!(warned, [[true, false], [false, false]]);
        assert_eq!(lookup(false).value(c"OLD_", c"OTHER"), None);
    }
}
