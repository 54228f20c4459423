//! Prints options: names, values, and what they are for.

use std::ffi::{OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;

use ::ucs::Status;
use ::ucs::config::Source;

use super::super::global::Global;
use super::fill::ucs_config_parser_fill_opts;
use super::form::is_later;
use super::table::{both, release_first};
use super::{Field, bytes_of, fields};
use crate::context::text_of;
use crate::entry::CStatus;
use crate::info::write_text;

/// Values of `ucs_config_print_flags_t`.
const CONFIG: c_int = 1 << 0;
const HEADER: c_int = 1 << 1;
const DOC: c_int = 1 << 2;
const HIDDEN: c_int = 1 << 3;
const COMMENT_DEFAULT: c_int = 1 << 4;

/// `ucs_list_link_t`.
#[repr(C)]
pub(crate) struct Link {
    prev: *mut Link,
    next: *mut Link,
}

/// `ucs_config_global_list_entry_t`: a table with its prefix, in a list.
#[repr(C)]
pub(crate) struct Entry {
    name: *const c_char,
    pub(super) prefix: *const c_char,
    pub(super) table: *mut Field,
    size: usize,
    pub(super) list: Link,
}

/// Tables that UCX's libraries register: none, since this library prints its own keys. The list is empty.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub(crate) static ucs_config_global_list: Global<Link> = Global::new(Link {
    prev: (&raw const ucs_config_global_list).cast_mut().cast(),
    next: (&raw const ucs_config_global_list).cast_mut().cast(),
});

/// Text of options, and the names under which they are printed. All are of any bytes.
struct Printer<'a> {
    text: Vec<u8>,
    /// In front of every name.
    env_prefix: &'a [u8],
    flags: c_int,
    /// Only options whose name contains it.
    filter: &'a [u8],
}

impl Printer<'_> {
    fn has(&self, flag: c_int) -> bool {
        self.flags & flag != 0
    }

    /// Prints a line.
    fn line(&mut self, parts: &[&[u8]]) {
        self.text.extend(parts.concat());
        self.text.push(b'\n');
    }

    /// Prints the options of a table. Its name is that of the outermost table, from which it may take values;
    /// `own` is its own prefix.
    ///
    /// # Safety
    /// `table` describes the structure at `opts`, which is filled.
    unsafe fn table(&mut self, opts: *mut c_void, table: *const Field, outer: Option<&[u8]>, own: &[u8]) {
        let shown = outer.unwrap_or(own);
        // SAFETY: the table is a program's.
        for field in unsafe { fields(table) } {
            // SAFETY: the field is of a table.
            let name = unsafe { field.name() }.to_bytes();
            if let Some(nested) = field.parser.table() {
                // SAFETY: the table describes what is there.
                unsafe { self.table(field.of(opts), nested, Some(shown), name) };
            } else if !(field.is_alias() || field.is_deprecated()) || self.has(HIDDEN) {
                // SAFETY: as above.
                unsafe { self.option(opts, table, &field, name, shown, own) };
            }
        }
    }

    /// Prints an option.
    ///
    /// # Safety
    /// As [`Printer::table`].
    unsafe fn option(
        &mut self,
        opts: *mut c_void,
        table: *const Field,
        field: &Field,
        name: &[u8],
        shown: &[u8],
        own: &[u8],
    ) {
        let env_prefix = self.env_prefix;
        let full = [env_prefix, shown, name].concat();
        let has_filter = |full: &[u8]| full.windows(self.filter.len()).any(|part| part == self.filter);
        if !self.filter.is_empty() && !has_filter(&full) {
            return;
        }
        if self.has(DOC) {
            // SAFETY: the table is a program's.
            let main = unsafe { fields(table) }.find(|of| of.offset == field.offset && !of.is_alias());
            let doc = main.filter(|_| field.is_alias()).map_or(field.doc, |main| main.doc);
            // SAFETY: as above: the texts of a table are C strings.
            let doc = unsafe { bytes_of(doc) };
            self.line(&[b"#"]);
            for line in doc.split(|c| *c == b'\n') {
                self.line(&[b"# ", line]);
            }
            // SAFETY: as above.
            let form = if field.is_deprecated() { c"N/A".into() } else { unsafe { field.parser.help() } };
            self.line(&[b"#\n# syntax:    ", form.as_bytes()]);
            if own != shown {
                self.line(&[b"# inherits:  ", env_prefix, own, name]);
            }
            if let Some(main) = main.filter(|_| field.is_alias()) {
                // SAFETY: as above.
                let of = unsafe { main.name() }.to_bytes();
                self.line(&[b"# alias of:  ", env_prefix, shown, of]);
            }
            self.line(&[b"#"]);
        }
        if self.has(CONFIG) {
            let is_default = std::env::var_os(OsStr::from_bytes(&full)).is_none();
            let mark: &[u8] = if self.has(COMMENT_DEFAULT) && is_default { b"# " } else { b"" };
            match field.is_deprecated() {
                true => self.line(&[mark, &full, b" (deprecated)"]),
                false => {
                    // SAFETY: the contract of this function.
                    let value = unsafe { field.parser.text(field.of(opts)) };
                    self.line(&[mark, &full, b"=", value.as_bytes()]);
                }
            }
        }
        if self.has(DOC) {
            self.line(&[]);
        }
    }
}

/// Prints options with a title.
///
/// # Safety
/// As [`Printer::table`]; `table_prefix` is a string or null.
unsafe fn print(
    title: &[u8],
    opts: *mut c_void,
    table: *const Field,
    table_prefix: *const c_char,
    env_prefix: &[u8],
    flags: c_int,
    filter: &[u8],
) -> Vec<u8> {
    let mut printer = Printer { text: Vec::new(), env_prefix, flags, filter };
    if printer.has(DOC) {
        printer.line(&[b"# UCX library configuration file\n# Uncomment to modify values"]);
    }
    if printer.has(HEADER) {
        printer.line(&[b"\n#\n# ", title, b"\n#\n"]);
    }
    if printer.has(CONFIG) {
        // SAFETY: the contract of this function.
        unsafe { printer.table(opts, table, None, bytes_of(table_prefix)) };
    }
    if printer.has(HEADER) {
        printer.line(&[]);
    }
    printer.text
}

entry! {
    /// Prints options. A filter comes with a table of the later form.
    fn ucs_config_parser_print_opts(
        stream: *mut libc::FILE,
        title: *const c_char,
        opts: *const c_void,
        table: *mut Field,
        table_prefix: *const c_char,
        prefix: *const c_char,
        flags: c_int,
        later_filter: *const c_char,
    ) {
        both(opts, table)?;
        // SAFETY: the caller's contract: the table describes the structure, whose values are only read.
        unsafe {
            let filter = if is_later(table) { bytes_of(later_filter) } else { b"" };
            let prefix = bytes_of(prefix);
            let text = print(bytes_of(title), opts.cast_mut(), table, table_prefix, prefix, flags, filter);
            write_text(stream, &text)
        }
    }

    /// Prints the options of all tables of a list, as the environment has them. For the list of UCX's own
    /// tables these are the keys of this library, and tables that the program has put there.
    fn ucs_config_parser_print_all_opts(
        stream: *mut libc::FILE,
        prefix: *const c_char,
        flags: c_int,
        list: *mut Link,
        later_filter: *const c_char,
    ) {
        let is_own = std::ptr::eq(list, ucs_config_global_list.get());
        if list.is_null() || is_own {
            let source = Source::from_env().map_err(|_| Status::InvalidParam)?;
            // SAFETY: the caller's contract.
            let prefix = unsafe { text_of(prefix) };
            let inner = prefix.strip_prefix("UCX_").unwrap_or_default().trim_end_matches('_');
            // SAFETY: as above.
            unsafe { crate::info::print_config(stream, &source.with_prefix(inner), "UCX configuration", flags) }?;
        }
        // SAFETY: the list is a ring that ends at its head.
        let mut link = unsafe { list.as_ref() }.map_or(list, |list| list.next);
        while !std::ptr::eq(link, list) && !std::ptr::eq(link, &raw const ucs_config_global_list as *const Link) {
            // SAFETY: links of this list are in entries.
            let entry = unsafe { &*link.byte_sub(std::mem::offset_of!(Entry, list)).cast::<Entry>() };
            link = entry.list.next;
            // SAFETY: an entry describes a table.
            if !entry.table.is_null() && unsafe { fields(entry.table) }.next().is_some() {
                // SAFETY: as above, and the caller's contract: a filter comes with a table of the later form.
                let filter = unsafe { if is_later(entry.table) { bytes_of(later_filter) } else { b"" } };
                // SAFETY: as above.
                unsafe { print_entry(stream, entry, prefix, flags, filter) }?;
            }
        }
        Ok(())
    }
}

/// Title of the options of a table with a name, which may be empty.
fn title_of(name: &[u8]) -> Vec<u8> {
    [name, b" configuration"].concat().trim_ascii_start().to_owned()
}

/// Prints the options of a table that is filled for this.
///
/// # Safety
/// The entry describes a table; `prefix` is a string or null.
unsafe fn print_entry(
    stream: *mut libc::FILE,
    entry: &Entry,
    prefix: *const c_char,
    flags: c_int,
    filter: &[u8],
) -> Result<(), Status> {
    let mut opts = vec![0u128; entry.size.div_ceil(size_of::<u128>())];
    let at: *mut c_void = opts.as_mut_ptr().cast();
    // SAFETY: the structure has the size of the entry.
    if unsafe { ucs_config_parser_fill_opts(at, entry.table, prefix, entry.prefix, 0) } != CStatus(0) {
        return Ok(());
    }
    // SAFETY: the name is a C string or null.
    let title = title_of(unsafe { bytes_of(entry.name) });
    // SAFETY: it is filled.
    let text = unsafe { print(&title, at, entry.table, entry.prefix, bytes_of(prefix), flags, filter) };
    // SAFETY: as above.
    unsafe { release_first(at, entry.table, usize::MAX) };
    // SAFETY: as above: the stream is open.
    unsafe { write_text(stream, &text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_begins_with_the_name() {
        assert_eq!(
            (title_of(b"UCT self"), title_of(b"")),
            (b"UCT self configuration".into(), b"configuration".into())
        );
    }
}
