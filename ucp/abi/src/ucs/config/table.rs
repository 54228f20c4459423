//! Options by name, and tables as values of others.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use ::ucs::Status;

use super::form::is_later;
use super::value::{PlacePtr, TextPtr, ValuePtr, show};
use super::{Field, fields, string};
use crate::entry::{CStatus, invalid};

/// Whether options of a name were found.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Found {
    Nothing,
    Set,
}

impl Found {
    pub(super) fn or(self, other: Found) -> Found {
        if self == Found::Set { self } else { other }
    }
}

/// Value of an option after a text was refused.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum OnRefusal {
    /// The value that it had.
    Keep,
    /// The default of the option.
    Default,
}

/// Reads a text into an option that has a value.
///
/// # Safety
/// `field` is of the table of the structure.
pub(super) unsafe fn assign(
    table: *const Field,
    field: &Field,
    to: *mut c_void,
    text: &CStr,
    on_refusal: OnRefusal,
) -> Result<(), Status> {
    // SAFETY: the contract of this function.
    let before = unsafe { field.parser.text(to) };
    // SAFETY: as above.
    unsafe { field.parser.release(to) };
    // SAFETY: as above; what had memory has been released.
    if unsafe { field.parser.read(text, to) } {
        return Ok(());
    }
    // SAFETY: the field is of a table.
    let (name, form) = unsafe { (field.name().to_string_lossy(), field.parser.help()) };
    crate::log::init_from_env();
    let (text, form) = (text.to_string_lossy(), form.to_string_lossy());
    tracing::error!("invalid value for {name}: '{text}'. Expected: {form}");
    // What the parser has refused may have left anything there, and the option can be released afterwards.
    // SAFETY: as above.
    if on_refusal == OnRefusal::Default && unsafe { read_default(table, field, to) }.is_ok() {
        return Err(Status::InvalidParam);
    }
    // SAFETY: as above.
    if !unsafe { field.parser.read(&before, to) } {
        // SAFETY: as above.
        unsafe { read_default(table, field, to) }?;
    }
    Err(Status::InvalidParam)
}

/// Reads the default of an option into it. An alias has that of its option.
///
/// # Safety
/// As [`assign`]; the option has no memory.
pub(super) unsafe fn read_default(table: *const Field, field: &Field, to: *mut c_void) -> Result<(), Status> {
    let is_own = |of: &Field| of.offset == field.offset && !of.is_alias() && of.parser.table().is_none();
    let own = match field.is_alias() {
        // SAFETY: the table is a program's.
        true => unsafe { fields(table) }.find(is_own).unwrap_or(*field),
        false => *field,
    };
    // SAFETY: a default is a string or null.
    let text = unsafe { string(own.default, "the default of an option") }?;
    // SAFETY: the contract of this function.
    if unsafe { field.parser.read(text, to) } {
        return Ok(());
    }
    // SAFETY: the field is of a table.
    let name = unsafe { field.name() }.to_string_lossy();
    Err(invalid(&format!("the default of the option {name} is not valid: '{}'", text.to_string_lossy())))
}

/// Whether prefix and name of an option make up a name.
fn is_name(name: &CStr, prefix: &CStr, field: &CStr) -> bool {
    name.to_bytes().strip_prefix(prefix.to_bytes()) == Some(field.to_bytes())
}

/// Sets the options of a name. `prefix` is that of the table; `None` leaves tables in it aside that are
/// inherited. With `goes_down` a table in it is looked through with its own prefix, too.
///
/// # Safety
/// `table` describes the structure at `opts`, which is filled.
unsafe fn set(
    opts: *mut c_void,
    table: *const Field,
    name: &CStr,
    value: &CStr,
    prefix: Option<&CStr>,
    goes_down: bool,
) -> Result<Found, Status> {
    let mut found = Found::Nothing;
    // SAFETY: the table is a program's.
    for field in unsafe { fields(table) } {
        let to = field.of(opts);
        // SAFETY: the field is of a table.
        let own = unsafe { field.name() };
        if let Some(nested) = field.parser.table() {
            if goes_down {
                // SAFETY: the table describes what is there.
                found = found.or(unsafe { set(to, nested, name, value, Some(own), true) }?);
            }
            if let Some(prefix) = prefix {
                // SAFETY: as above.
                found = found.or(unsafe { set(to, nested, name, value, Some(prefix), false) }?);
            }
        } else if is_name(name, prefix.unwrap_or_default(), own) {
            if field.is_deprecated() {
                continue;
            }
            // SAFETY: as above.
            unsafe { assign(table, &field, to, value, OnRefusal::Keep) }?;
            found = Found::Set;
        }
    }
    Ok(found)
}

/// Text of the first option of a name.
///
/// # Safety
/// As [`set`].
unsafe fn get(opts: *mut c_void, table: *const Field, name: &[u8]) -> Option<CString> {
    // SAFETY: the table is a program's.
    unsafe { fields(table) }.find_map(|field| {
        let from = field.of(opts);
        // SAFETY: the field is of a table.
        let own = unsafe { field.name() }.to_bytes();
        match field.parser.table() {
            // SAFETY: the table describes what is there.
            Some(nested) => name.strip_prefix(own).and_then(|rest| unsafe { get(from, nested, rest) }),
            // SAFETY: as above.
            None => (name == own && !field.is_deprecated()).then(|| unsafe { field.parser.text(from) }),
        }
    })
}

/// Copies all options.
///
/// # Safety
/// `table` describes both structures; that at `from` is filled.
unsafe fn clone(from: *mut c_void, to: *mut c_void, table: *const Field) -> Result<(), Status> {
    // SAFETY: the table is a program's.
    for (index, field) in unsafe { fields(table) }.enumerate().filter(|(_, field)| is_stored(field)) {
        // SAFETY: the contract of this function.
        if let Err(status) = unsafe { field.parser.clone(field.of(from), field.of(to)) } {
            // SAFETY: the options before this one are copied.
            unsafe { release_first(to, table, index) };
            return Err(status);
        }
    }
    Ok(())
}

/// Whether the field has a place of its own in the structure.
pub(super) fn is_stored(field: &Field) -> bool {
    !field.is_alias() && !field.is_deprecated()
}

/// Releases the options of the first fields of a table.
///
/// # Safety
/// `table` describes the structure at `opts`, of which these options are filled.
pub(super) unsafe fn release_first(opts: *mut c_void, table: *const Field, count: usize) {
    // SAFETY: the table is a program's.
    for field in unsafe { fields(table) }.take(count).filter(is_stored) {
        // SAFETY: the contract of this function.
        unsafe { field.parser.release(field.of(opts)) };
    }
}

/// Whether a structure and its table are there.
pub(super) fn both(opts: *const c_void, table: *const Field) -> Result<(), Status> {
    match opts.is_null() || table.is_null() {
        true => Err(invalid("the structure of options or its table is null")),
        false => Ok(()),
    }
}

entry! {
    /// Sets options of a table that is filled: `NAME=value`, with `;` between them.
    fn ucs_config_sscanf_table(text: *const c_char, to: PlacePtr, arg: *const c_void) -> c_int {
        let to = to.get();
        both(to, arg.cast())?;
        // SAFETY: the caller passes a string or null.
        let text = unsafe { super::trimmed_bytes(text) }?;
        for part in text.split(|c| *c == b';').map(<[u8]>::trim_ascii).filter(|part| !part.is_empty()) {
            let (name, value) = part.split_at(part.iter().position(|c| *c == b'=').ok_or(Status::InvalidParam)?);
            let c_string = |text: &[u8]| CString::new(text.trim_ascii()).map_err(|_| Status::InvalidParam);
            let (name, value) = (c_string(name)?, c_string(&value[1..])?);
            // SAFETY: the table describes what is there.
            if unsafe { set(to, arg.cast(), &name, &value, None, true) }? == Found::Nothing {
                return Err(Status::NoElem);
            }
        }
        Ok(1)
    }

    /// Copies all options of a table.
    fn ucs_config_clone_table(from: ValuePtr, to: PlacePtr, arg: *const c_void) -> CStatus {
        let (from, to) = (from.get(), to.get());
        both(from, arg.cast())?;
        both(to, arg.cast())?;
        // SAFETY: the table describes what is there.
        unsafe { clone(from.cast_mut(), to, arg.cast()) }
    }

    /// Releases all options of a table.
    fn ucs_config_release_table(value: ValuePtr, arg: *const c_void) {
        let value = value.get().cast_mut();
        both(value, arg.cast())?;
        // SAFETY: the table describes what is there.
        unsafe { release_first(value, arg.cast(), usize::MAX) };
        Ok(())
    }

    /// Prints that the option is a table.
    fn ucs_config_help_table(to: TextPtr, size: usize, _arg: *const c_void) {
        show(to, size, "Table").map(|_| ())
    }

    /// Copies all options of a structure.
    fn ucs_config_parser_clone_opts(from: *const c_void, to: *mut c_void, table: *mut Field) -> CStatus {
        both(from, table)?;
        both(to, table)?;
        // SAFETY: the table describes what is there.
        unsafe { clone(from.cast_mut(), to, table) }
    }

    /// Releases all options of a structure.
    fn ucs_config_parser_release_opts(opts: *mut c_void, table: *mut Field) {
        both(opts, table)?;
        // SAFETY: the table describes what is there.
        unsafe { release_first(opts, table, usize::MAX) };
        Ok(())
    }

    /// Text of the option of a name.
    fn ucs_config_parser_get_value(
        opts: *mut c_void,
        table: *mut Field,
        name: *const c_char,
        value: *mut c_char,
        size: usize,
    ) -> CStatus {
        both(opts, table)?;
        // SAFETY: the caller passes a string or null.
        let name = unsafe { string(name, "the name of an option") }?;
        // SAFETY: the table describes what is there.
        let text = unsafe { get(opts, table, name.to_bytes()) }.ok_or(Status::NoElem)?;
        // SAFETY: the caller's contract.
        unsafe { crate::info::fill_string(value, size, text.as_bytes()) };
        Ok(())
    }

    /// Sets the options of a name. With a table of the later form its prefix comes before the name.
    fn ucs_config_parser_set_value(
        opts: *mut c_void,
        table: *mut Field,
        name: *const c_char,
        value: *const c_char,
        later_value: *const c_char,
    ) -> CStatus {
        both(opts, table)?;
        // SAFETY: the table is the caller's, and a prefix is a string or null.
        let (prefix, name, value) = unsafe {
            match is_later(table) {
                true => ((!name.is_null()).then(|| CStr::from_ptr(name)), value, later_value),
                false => (None, name, value),
            }
        };
        // SAFETY: the caller passes strings or null.
        let (name, value) = unsafe { (string(name, "the name of an option")?, string(value, "the value of an option")?) };
        // SAFETY: the table describes what is there.
        match unsafe { set(opts, table, name, value, prefix, true) }? {
            Found::Set => Ok(()),
            Found::Nothing => Err(Status::NoElem),
        }
    }
}
