//! Tables in the two forms that UCX's releases have: that of 1.13, and a later one, in which each parser has
//! one function more, for documentation. All fields of a table have one form, and the function is always one
//! of this library: the first field shows which form it is.

use std::ffi::{CStr, c_void};
use std::sync::OnceLock;

use super::choices::{is_bitmap, wide_bitmap};
use super::print::Entry;
use super::{ArrayDesc, Field, Parser};

/// Words of a field without the words of its parser.
const FIELD_WORDS: usize = 4;
/// Words of a parser of UCX 1.13. The last is the argument.
const PARSER_WORDS: usize = size_of::<Parser>() / size_of::<usize>();

/// Words that a parser of the later form has more, before its argument.
const MORE_WORDS: usize = 1;

entry! {
    /// Prints no more about the values of an option. Tables of the later form have it.
    fn ucs_config_doc_nop(_text: *mut c_void, _arg: *const c_void) {
        Ok(())
    }

    /// Prints no more about pairs of keys and values. Tables of the later form have it.
    fn ucs_config_doc_key_value(_text: *mut c_void, _arg: *const c_void) {
        Ok(())
    }
}

/// Whether a word is the address of a function for documentation. A program that is linked to a fixed address
/// has addresses of its own for them, which the linker knows.
fn is_doc(word: usize) -> bool {
    static KNOWN: OnceLock<[usize; 4]> = OnceLock::new();
    let find = |name: &CStr| {
        // SAFETY: a search for a name in the libraries of the process.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.addr()
    };
    let known = KNOWN.get_or_init(|| {
        let own = [ucs_config_doc_nop as *const () as usize, ucs_config_doc_key_value as *const () as usize];
        [own[0], own[1], find(c"ucs_config_doc_nop"), find(c"ucs_config_doc_key_value")]
    });
    word != 0 && known.contains(&word)
}

/// Reads words at an address that may be none.
fn peek<const N: usize>(at: usize) -> Option<[usize; N]> {
    let mut words = [0usize; N];
    let length = size_of_val(&words);
    let to = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: length };
    let from = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(at), iov_len: length };
    // SAFETY: the system checks the address, and writes into the words.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0) };
    (usize::try_from(read) == Ok(length)).then_some(words)
}

/// Words that the parsers of a table have more than those of UCX 1.13.
///
/// # Safety
/// `table` is a program's.
unsafe fn more_words(table: *const Field) -> usize {
    // SAFETY: the contract of this function: a field has this word in either form.
    let word = unsafe { table.cast::<usize>().add(FIELD_WORDS + PARSER_WORDS - 1).read() };
    if is_doc(word) { MORE_WORDS } else { 0 }
}

/// Whether a table has the later form.
///
/// # Safety
/// `table` is a program's, or null.
pub(super) unsafe fn is_later(table: *const Field) -> bool {
    // SAFETY: the contract of this function.
    !table.is_null() && unsafe { !(*table).name.is_null() && more_words(table) > 0 }
}

/// Fields of a table of a program.
///
/// # Safety
/// `at` is a table that ends with a field without a name, or null.
pub(super) unsafe fn fields(at: *const Field) -> impl Iterator<Item = Field> {
    // SAFETY: the contract of this function.
    let more = if unsafe { is_later(at) } { MORE_WORDS } else { 0 };
    // SAFETY: as above.
    unsafe { fields_of_form(at, more) }.map(move |mut field| {
        // SAFETY: as above.
        if more > 0 && is_bitmap(&field.parser) && unsafe { has_wide_place(at, more, &field) } {
            field.parser = wide_bitmap(field.parser);
        }
        field
    })
}

/// Fields of a table with so many words more than those of UCX 1.13.
///
/// # Safety
/// As [`fields`].
unsafe fn fields_of_form(at: *const Field, more: usize) -> impl Iterator<Item = Field> {
    (0..).map_while(move |index| {
        let field =
            at.cast::<usize>().wrapping_add(index * (FIELD_WORDS + PARSER_WORDS + more)).cast::<Field>();
        // SAFETY: all fields up to the end are there; the end has no name.
        unsafe {
            if field.is_null() || (*field).name.is_null() {
                return None;
            }
            let mut copy = field.read();
            copy.parser.arg = argument(&raw const (*field).parser, more);
            Some(copy)
        }
    })
}

/// Whether a set of names in a table of the later form may have 64 bits, as since UCX 1.18. In UCX 1.17 it
/// has 32, and no table says which release it is of: a set whose second half is another option, or whose
/// place is not aligned, has 32.
///
/// # Safety
/// As [`fields`].
unsafe fn has_wide_place(at: *const Field, more: usize, set: &Field) -> bool {
    let behind = set.offset.wrapping_add(size_of::<u32>());
    // SAFETY: the contract of this function.
    set.offset.is_multiple_of(align_of::<u64>())
        && !unsafe { fields_of_form(at, more) }.any(|of| of.offset == behind)
}

/// Argument of a parser.
///
/// # Safety
/// The parser is a program's, of the form with so many words more.
unsafe fn argument(parser: *const Parser, more: usize) -> *const c_void {
    // SAFETY: the contract of this function.
    unsafe { parser.cast::<*const c_void>().add(PARSER_WORDS - 1 + more).read() }
}

/// Description of the elements of an array, in either form.
///
/// # Safety
/// `at` is a program's description.
pub(super) unsafe fn elements(at: *const ArrayDesc) -> ArrayDesc {
    // SAFETY: the contract of this function: the word is there in either form.
    unsafe {
        let mut desc = at.read();
        if is_doc(desc.parser.arg.addr()) {
            desc.parser.arg = argument(&raw const (*at).parser, MORE_WORDS);
            if desc.elem_size == size_of::<u64>() && is_bitmap(&desc.parser) {
                desc.parser = wide_bitmap(desc.parser);
            }
        }
        desc
    }
}

/// The entry of a list of tables, which later releases pass where UCX 1.13 passes the table itself. `None`:
/// it is a table.
///
/// # Safety
/// `at` is one of both.
pub(super) unsafe fn entry_at<'a>(at: *const Field) -> Option<&'a Entry> {
    const LIST: usize = std::mem::offset_of!(Entry, list);
    // The third word is the documentation of a table's first field, or the table of an entry. The fifth is
    // the function that reads the field, or the neighbour in the list.
    let [_, _, table, _, neighbour] = peek(at.addr())?;
    let is_entry = match peek::<{ FIELD_WORDS + PARSER_WORDS }>(table)? {
        // A table without fields shows no form.
        [0, ..] => neighbour == 0 || peek::<2>(neighbour).is_some_and(|link| link[1] == at.addr() + LIST),
        // No text has the address of the function at this place.
        first => is_doc(first[FIELD_WORDS + PARSER_WORDS - 1]),
    };
    // SAFETY: the contract of this function.
    is_entry.then(|| unsafe { &*at.cast::<Entry>() })
}

#[cfg(test)]
mod tests {
    use super::super::text::ucs_config_help_generic;
    use super::*;

    /// The text of this test is as long as a field.
    const TEXT: &CStr =
        c"a text that stands where an entry of a list of tables has the address of its table; it is long";

    /// Words of a field.
    fn words(offset: usize, has_doc: bool, arg: usize) -> Vec<usize> {
        let help = ucs_config_help_generic as *const () as usize;
        let doc = has_doc.then_some(ucs_config_doc_nop as *const () as usize);
        let name = c"NAME".as_ptr().addr();
        [name, 0, TEXT.as_ptr().addr(), offset, 0, 0, 0, 0, help]
            .into_iter()
            .chain(doc)
            .chain([arg])
            .collect()
    }

    #[test]
    fn fields_are_found_in_both_forms() {
        for has_doc in [false, true] {
            let mut table = [words(8, has_doc, 77), words(16, has_doc, 78)].concat();
            table.extend([0; FIELD_WORDS + PARSER_WORDS + MORE_WORDS]);
            let at = table.as_ptr().cast();
            // SAFETY: the table ends with words of zero.
            let (found, is_later): (Vec<_>, _) = unsafe { (fields(at).collect(), is_later(at)) };
            let found: Vec<_> = found.iter().map(|field| (field.offset, field.parser.arg.addr())).collect();
            assert_eq!((found, is_later), (vec![(8, 77), (16, 78)], has_doc));
            let entry =
                [c"name".as_ptr().addr(), c"prefix".as_ptr().addr(), table.as_ptr().addr(), 24, 0, 0, 0];
            // SAFETY: both are what the function is for.
            let (of_entry, of_table) = unsafe { (entry_at(entry.as_ptr().cast()), entry_at(at)) };
            assert_eq!((of_entry.is_some(), of_table.is_some()), (has_doc, false));
        }
        assert_eq!(peek::<1>(8), None);
    }
}
