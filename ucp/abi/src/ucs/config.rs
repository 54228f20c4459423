//! `ucs_config_*`: options of programs, which tables of fields describe. A field says where an option is in a
//! structure, and which functions read, print, copy and release it. Layouts are those of UCX 1.13; tables of
//! later releases are known by their form.

mod array;
mod choices;
mod files;
mod fill;
mod form;
mod numbers;
mod print;
mod table;
mod text;
mod units;
mod unused;
mod value;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use ::ucs::Status;

use form::fields;
use value::{PlacePtr, TextPtr, ValuePtr};

use crate::entry::{CStatus, invalid};

/// Reads a value. Returns 1, or another number if the text is no value.
type Read = unsafe extern "C" fn(*const c_char, PlacePtr, *const c_void) -> c_int;
/// Prints a value.
type Write = unsafe extern "C" fn(TextPtr, usize, ValuePtr, *const c_void) -> c_int;
/// Copies a value.
type Clone = unsafe extern "C" fn(ValuePtr, PlacePtr, *const c_void) -> CStatus;
/// Releases the memory of a value.
type Release = unsafe extern "C" fn(ValuePtr, *const c_void);
/// Prints the form of values.
type Help = unsafe extern "C" fn(TextPtr, usize, *const c_void);

/// `ucs_config_parser_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Parser {
    read: Option<Read>,
    write: Option<Write>,
    clone: Option<Clone>,
    release: Option<Release>,
    help: Option<Help>,
    arg: *const c_void,
}

/// `ucs_config_array_t`: what the elements of an array are.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ArrayDesc {
    elem_size: usize,
    parser: Parser,
}

/// `ucs_config_field_t`. A table ends with a field without a name.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Field {
    name: *const c_char,
    default: *const c_char,
    doc: *const c_char,
    offset: usize,
    parser: Parser,
}

/// `UCS_CONFIG_DEPRECATED_FIELD_OFFSET`.
const DEPRECATED: usize = usize::MAX;

/// Whether a function is one of this library. A program that is linked to a fixed address has an address of
/// its own for it, which the linker knows.
fn is_function(read: Read, own: Read, name: &CStr, linked: &OnceLock<usize>) -> bool {
    let find = || {
        // SAFETY: a search for a name in the libraries of the process.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.addr()
    };
    std::ptr::fn_addr_eq(read, own) || read as usize == *linked.get_or_init(find)
}

/// Whether a function is that of nested tables.
fn is_read_of_table(read: Read) -> bool {
    static LINKED: OnceLock<usize> = OnceLock::new();
    is_function(read, table::ucs_config_sscanf_table, c"ucs_config_sscanf_table", &LINKED)
}

impl Parser {
    /// Fields of a nested table, if this is the parser of one.
    fn table(&self) -> Option<*const Field> {
        let is_table = self.read.is_some_and(is_read_of_table);
        (is_table && !self.arg.is_null()).then(|| self.arg.cast())
    }

    /// Reads a text into a value that has no memory yet.
    ///
    /// # Safety
    /// `to` is a place for a value of this parser.
    unsafe fn read(&self, text: &CStr, to: *mut c_void) -> bool {
        // SAFETY: the parser's function takes a text, and the contract of this function.
        self.read.is_some_and(|read| unsafe { read(text.as_ptr(), PlacePtr::new(to), self.arg) } == 1)
    }

    /// Releases the memory of a value.
    ///
    /// # Safety
    /// `value` is a value of this parser.
    unsafe fn release(&self, value: *mut c_void) {
        if let Some(release) = self.release {
            // SAFETY: the contract of this function.
            unsafe { release(ValuePtr::new(value), self.arg) }
        }
    }

    /// Copies a value to a place that has none.
    ///
    /// # Safety
    /// `from` is a value of this parser, and `to` a place for one.
    unsafe fn clone(&self, from: *const c_void, to: *mut c_void) -> Result<(), Status> {
        let clone = self.clone.ok_or(Status::Unsupported)?;
        // SAFETY: the contract of this function.
        match unsafe { clone(ValuePtr::new(from), PlacePtr::new(to), self.arg) } {
            CStatus(0) => Ok(()),
            CStatus(code) => Err(Status::try_from(code).unwrap_or(Status::IoError)),
        }
    }

    /// Text of a value.
    ///
    /// # Safety
    /// `value` is a value of this parser.
    unsafe fn text(&self, value: *const c_void) -> CString {
        let Some(write) = self.write else { return CString::default() };
        // SAFETY: the buffer has that many bytes; the contract of this function.
        printed(|buffer, size| unsafe {
            _ = write(TextPtr::new(buffer), size, ValuePtr::new(value), self.arg)
        })
    }

    /// Form of values.
    ///
    /// # Safety
    /// The parser is a program's, whose functions take its argument.
    unsafe fn help(&self) -> CString {
        let Some(help) = self.help else { return CString::default() };
        // SAFETY: the buffer has that many bytes; the contract of this function.
        printed(|buffer, size| unsafe { help(TextPtr::new(buffer), size, self.arg) })
    }
}

/// Text that a function of a program prints, of any bytes.
fn printed(print: impl FnOnce(*mut c_char, usize)) -> CString {
    let mut buffer = [0u8; 4096];
    print(buffer.as_mut_ptr().cast(), buffer.len() - 1);
    CStr::from_bytes_until_nul(&buffer).map(CStr::to_owned).unwrap_or_default()
}

impl Field {
    /// Name of the option, without prefixes.
    ///
    /// # Safety
    /// The field is of a program's table, and is not its end.
    unsafe fn name<'a>(&self) -> &'a CStr {
        // SAFETY: the contract of this function.
        unsafe { CStr::from_ptr(self.name) }
    }

    /// Whether the option is another name of another option.
    fn is_alias(&self) -> bool {
        self.default.is_null()
    }

    fn is_deprecated(&self) -> bool {
        self.offset == DEPRECATED
    }

    /// Address of the option in a structure.
    fn of<T>(&self, structure: *mut T) -> *mut c_void {
        structure.cast::<u8>().wrapping_add(self.offset).cast()
    }
}

/// A text of the program, or why there is none.
///
/// # Safety
/// `at` is a string or null.
unsafe fn string<'a>(at: *const c_char, what: &str) -> Result<&'a CStr, Status> {
    if at.is_null() {
        return Err(invalid(&format!("{what} is null")));
    }
    // SAFETY: the contract of this function.
    Ok(unsafe { CStr::from_ptr(at) })
}

/// Bytes of a text of the program; none for null.
///
/// # Safety
/// As [`string`].
unsafe fn bytes_of<'a>(at: *const c_char) -> &'a [u8] {
    // SAFETY: the contract of this function.
    if at.is_null() { &[] } else { unsafe { CStr::from_ptr(at) }.to_bytes() }
}

/// A text of the program without white space around it. It may be of any bytes.
///
/// # Safety
/// As [`string`].
unsafe fn trimmed_bytes<'a>(at: *const c_char) -> Result<&'a [u8], Status> {
    // SAFETY: the contract of this function.
    Ok(unsafe { string(at, "the text of an option") }?.to_bytes().trim_ascii())
}

/// A text of the program that is UTF-8, as numbers are, without white space around it.
///
/// # Safety
/// As [`string`].
unsafe fn trimmed<'a>(at: *const c_char) -> Result<&'a str, Status> {
    // SAFETY: the contract of this function.
    std::str::from_utf8(unsafe { trimmed_bytes(at) }?).map_err(|_| Status::InvalidParam)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn layouts_are_those_of_the_headers() {
        let mut source = String::from(
            "#include <stddef.h>\n#include <ucs/sys/preprocessor.h>\n#include <ucs/config/parser.h>\n",
        );
        for (name, size) in [
            ("ucs_config_parser_t", size_of::<Parser>()),
            ("ucs_config_array_t", size_of::<ArrayDesc>()),
            ("ucs_config_field_t", size_of::<Field>()),
            ("ucs_range_spec_t", size_of::<numbers::Range>()),
            ("ucs_config_bw_spec_t", size_of::<units::Bandwidth>()),
            ("ucs_config_allow_list_t", size_of::<array::AllowList>()),
            ("ucs_config_names_array_t", size_of::<array::Array>()),
            ("ucs_config_global_list_entry_t", size_of::<print::Entry>()),
        ] {
            source += &format!("_Static_assert(sizeof({name}) == {size}, \"{name}\");\n");
        }
        for (name, field, offset) in [
            ("ucs_config_field_t", "dfl_value", offset_of!(Field, default)),
            ("ucs_config_field_t", "offset", offset_of!(Field, offset)),
            ("ucs_config_field_t", "parser.arg", offset_of!(Field, parser) + offset_of!(Parser, arg)),
            ("ucs_config_field_t", "parser.release", offset_of!(Field, parser) + offset_of!(Parser, release)),
            ("ucs_config_allow_list_t", "mode", offset_of!(array::AllowList, mode)),
            ("ucs_config_global_list_entry_t", "list", offset_of!(print::Entry, list)),
            ("ucs_config_global_list_entry_t", "table", offset_of!(print::Entry, table)),
        ] {
            source +=
                &format!("_Static_assert(offsetof({name}, {field}) == {offset}, \"{name}.{field}\");\n");
        }
        crate::layout::assert_compiles("/usr/include/ucs/config/parser.h", &source);
        crate::layout::assert_compiles_with_ours(&source);
    }
}
