//! Options that are lists with commas.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};

use ::ucs::Status;

use super::super::global::Global;
use super::text::{
    ucs_config_clone_string, ucs_config_help_generic, ucs_config_release_string, ucs_config_sprintf_string,
    ucs_config_sscanf_string,
};
use super::value::{PlacePtr, TextPtr, ValuePtr, load, show, show_text, store};
use super::{ArrayDesc, Parser, form, trimmed_bytes};
use crate::entry::CStatus;

/// `UCS_CONFIG_ARRAY_FIELD`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Array {
    data: *mut c_void,
    count: c_uint,
    /// 1 if the text had more elements than count. In UCX 1.13 it means nothing.
    truncated: c_uint,
}

/// `ucs_config_allow_list_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AllowList {
    array: Array,
    pub(super) mode: c_int,
}

/// `UCS_CONFIG_ARRAY_MAX`: elements of an array that count.
const MAX_ELEMENTS: usize = 128;

/// Values of `ucs_config_allow_list_mode_t`.
const ALLOW_ALL: c_int = 0;
const ALLOW: c_int = 1;
const NEGATE: c_int = 2;

/// The element that stands for all.
const ALL: &[u8] = b"all";

/// Elements that are texts.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub(crate) static ucs_config_array_string: Global<ArrayDesc> = Global::new(ArrayDesc {
    elem_size: size_of::<*const c_char>(),
    parser: Parser {
        read: Some(ucs_config_sscanf_string),
        write: Some(ucs_config_sprintf_string),
        clone: Some(ucs_config_clone_string),
        release: Some(ucs_config_release_string),
        help: Some(ucs_config_help_generic),
        arg: c"string".as_ptr().cast(),
    },
});

impl Array {
    /// The elements, which are of type `T`.
    pub(super) fn elements<T>(&self) -> &[T] {
        if self.data.is_null() {
            return &[];
        }
        // SAFETY: an array of an option has that many elements.
        unsafe { std::slice::from_raw_parts(self.data.cast(), self.count as usize) }
    }

    /// No elements.
    const NONE: Array = Array { data: std::ptr::null_mut(), count: 0, truncated: 0 };

    /// Memory for elements, all zero, with one more, so that pointers end with a null.
    fn with_room(desc: &ArrayDesc, count: usize) -> Result<Array, Status> {
        // SAFETY: `calloc` takes any sizes.
        let data = unsafe { libc::calloc(count + 1, desc.elem_size.max(1)) };
        if data.is_null() { Err(Status::NoMemory) } else { Ok(Array { data, count: 0, truncated: 0 }) }
    }

    /// Address of an element.
    fn at(&self, desc: &ArrayDesc, index: usize) -> *mut c_void {
        self.data.cast::<u8>().wrapping_add(index * desc.elem_size).cast()
    }

    /// Reads a list, of which only [`MAX_ELEMENTS`] count. An empty element counts as none.
    ///
    /// # Safety
    /// `desc` is a program's description of the elements.
    unsafe fn parse(desc: &ArrayDesc, text: &[u8]) -> Result<Array, Status> {
        let mut parts: Vec<&[u8]> = parts(text).take(MAX_ELEMENTS + 1).collect();
        let is_truncated = parts.len() > MAX_ELEMENTS;
        parts.truncate(MAX_ELEMENTS);
        let mut array = Array::with_room(desc, parts.len())?;
        array.truncated = c_uint::from(is_truncated);
        for (index, part) in parts.into_iter().enumerate() {
            let part = CString::new(part).map_err(|_| Status::InvalidParam)?;
            // SAFETY: there is room for the element.
            if !unsafe { desc.parser.read(&part, array.at(desc, index)) } {
                // SAFETY: the elements before it were read.
                unsafe { array.free(desc) };
                return Err(Status::InvalidParam);
            }
            array.count += 1;
        }
        Ok(array)
    }

    /// Text of the list.
    ///
    /// # Safety
    /// The elements are as `desc` says.
    unsafe fn text(&self, desc: &ArrayDesc) -> Vec<u8> {
        // SAFETY: the contract of this function.
        let texts = (0..self.len()).map(|index| unsafe { desc.parser.text(self.at(desc, index)) });
        texts.map(CString::into_bytes).collect::<Vec<_>>().join(&b',')
    }

    /// A copy of the list.
    ///
    /// # Safety
    /// As [`Array::text`].
    unsafe fn duplicate(&self, desc: &ArrayDesc) -> Result<Array, Status> {
        let mut copy = Array::with_room(desc, self.len())?;
        copy.truncated = self.truncated;
        for index in 0..self.len() {
            // SAFETY: the element is there, and there is room for its copy.
            if let Err(status) = unsafe { desc.parser.clone(self.at(desc, index), copy.at(desc, index)) } {
                // SAFETY: the elements before it were copied.
                unsafe { copy.free(desc) };
                return Err(status);
            }
            copy.count += 1;
        }
        Ok(copy)
    }

    /// Releases the elements and their memory.
    ///
    /// # Safety
    /// As [`Array::text`].
    unsafe fn free(&self, desc: &ArrayDesc) {
        for index in 0..self.len() {
            // SAFETY: the contract of this function.
            unsafe { desc.parser.release(self.at(desc, index)) };
        }
        // SAFETY: the memory is of `calloc`, or null.
        unsafe { libc::free(self.data) };
    }

    fn len(&self) -> usize {
        if self.data.is_null() { 0 } else { self.count as usize }
    }
}

/// Description of the elements of an array.
///
/// # Safety
/// `arg` is a description, or null.
unsafe fn elements_of(arg: *const c_void) -> Result<ArrayDesc, Status> {
    // SAFETY: the contract of this function.
    if arg.is_null() { Err(Status::InvalidParam) } else { Ok(unsafe { form::elements(arg.cast()) }) }
}

/// Parts of a list with commas that are not empty.
fn parts(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|c| *c == b',').filter(|part| !part.is_empty())
}

/// The list and the mode that a text says.
fn mode_of(text: &[u8]) -> Option<(&[u8], c_int)> {
    let (list, mode) = text.strip_prefix(b"^").map_or((text, ALLOW), |list| (list, NEGATE));
    let mut parts = parts(list);
    match (parts.next(), parts.next()) {
        (Some(ALL), None) => Some((b"", ALLOW_ALL)),
        // As in UCX: only as the first element it has to stand alone, and elsewhere it is one as any other.
        (Some(ALL), Some(_)) => None,
        _ => Some((list, mode)),
    }
}

entry! {
    /// Reads a list with commas.
    fn ucs_config_sscanf_array(text: *const c_char, to: PlacePtr, arg: *const c_void) -> c_int {
        // SAFETY: the caller passes a string or null, and a description of elements.
        store(to, Some(unsafe { Array::parse(&elements_of(arg)?, trimmed_bytes(text)?) }?))
    }

    /// Prints a list.
    fn ucs_config_sprintf_array(to: TextPtr, size: usize, from: ValuePtr, arg: *const c_void) -> c_int {
        // SAFETY: the caller passes a list and the description of its elements.
        show_text(to, size, &unsafe { load::<Array>(from)?.text(&elements_of(arg)?) })
    }

    /// Copies a list.
    fn ucs_config_clone_array(from: ValuePtr, to: PlacePtr, arg: *const c_void) -> CStatus {
        // SAFETY: as above.
        store(to, Some(unsafe { load::<Array>(from)?.duplicate(&elements_of(arg)?) }?)).map(|_| ())
    }

    /// Frees a list.
    fn ucs_config_release_array(value: ValuePtr, arg: *const c_void) {
        // SAFETY: as above.
        unsafe { load::<Array>(value)?.free(&elements_of(arg)?) };
        Ok(())
    }

    /// Prints the form of lists.
    fn ucs_config_help_array(to: TextPtr, size: usize, arg: *const c_void) {
        // SAFETY: the caller passes a description of elements.
        let elements = unsafe { elements_of(arg)?.parser.help() };
        show(to, size, &[b"comma-separated list of: ", elements.as_bytes()].concat()).map(|_| ())
    }

    /// Reads a list of what is allowed, or after `^` of what is not, or `all`.
    fn ucs_config_sscanf_allow_list(text: *const c_char, to: PlacePtr, arg: *const c_void) -> c_int {
        // SAFETY: the caller passes a string or null.
        let (list, mode) = mode_of(unsafe { trimmed_bytes(text) }?).ok_or(Status::InvalidParam)?;
        if mode == ALLOW_ALL {
            return store(to, Some(AllowList { array: Array::NONE, mode }));
        }
        // SAFETY: the caller passes a description of elements.
        store(to, Some(AllowList { array: unsafe { Array::parse(&elements_of(arg)?, list) }?, mode }))
    }

    /// Prints a list of what is allowed.
    fn ucs_config_sprintf_allow_list(to: TextPtr, size: usize, from: ValuePtr, arg: *const c_void) -> c_int {
        let list = load::<AllowList>(from)?;
        if list.mode == ALLOW_ALL {
            return show_text(to, size, ALL);
        }
        let sign: &[u8] = if list.mode == NEGATE { b"^" } else { b"" };
        // SAFETY: the caller passes a list and the description of its elements.
        show_text(to, size, &[sign, &*unsafe { list.array.text(&elements_of(arg)?) }].concat())
    }

    /// Copies a list of what is allowed.
    fn ucs_config_clone_allow_list(from: ValuePtr, to: PlacePtr, arg: *const c_void) -> CStatus {
        let AllowList { array, mode } = load(from)?;
        if mode == ALLOW_ALL {
            return store(to, Some(AllowList { array: Array::NONE, mode })).map(|_| ());
        }
        // SAFETY: as above.
        store(to, Some(AllowList { array: unsafe { array.duplicate(&elements_of(arg)?) }?, mode })).map(|_| ())
    }

    /// Frees a list of what is allowed.
    fn ucs_config_release_allow_list(value: ValuePtr, arg: *const c_void) {
        let AllowList { array, mode } = load(value)?;
        // A program may set this mode without a list.
        if mode != ALLOW_ALL {
            // SAFETY: as above.
            unsafe { array.free(&elements_of(arg)?) };
        }
        Ok(())
    }

    /// Prints the form of lists of what is allowed.
    fn ucs_config_help_allow_list(to: TextPtr, size: usize, arg: *const c_void) {
        // SAFETY: the caller passes a description of elements.
        let elements = unsafe { elements_of(arg)?.parser.help() };
        let help = b"comma-separated list (\"all\" includes all, '^' in front negates) of: ";
        show(to, size, &[help, elements.as_bytes()].concat()).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_allows_or_negates() {
        let mode_of = |text: &'static str| {
            mode_of(text.as_bytes()).map(|(list, mode)| (std::str::from_utf8(list).expect("text"), mode))
        };
        assert_eq!(mode_of("a,b"), Some(("a,b", ALLOW)));
        assert_eq!(mode_of("^a"), Some(("a", NEGATE)));
        assert_eq!(mode_of("all"), Some(("", ALLOW_ALL)));
        assert_eq!(mode_of("^all"), Some(("", ALLOW_ALL)));
        assert_eq!(mode_of(""), Some(("", ALLOW)));
        assert_eq!(mode_of(",all,"), Some(("", ALLOW_ALL)));
        assert_eq!((mode_of("all,a"), mode_of("^all,all")), (None, None));
        assert_eq!((mode_of("a,all"), mode_of("^a,all")), (Some(("a,all", ALLOW)), Some(("a,all", NEGATE))));
    }

    /// The functions of UCX 1.13.1 return 1 for a text, also for an empty one.
    #[test]
    fn empty_values_are_printed() {
        let mut buffer = [7u8; 4];
        let text: *const c_char = c"".as_ptr();
        let list = AllowList { array: Array::NONE, mode: ALLOW };
        let [text, list, array] =
            [(&raw const text).cast(), (&raw const list).cast(), (&raw const list.array).cast::<c_void>()];
        let desc = ucs_config_array_string.get().cast();
        for (write, value) in [
            (ucs_config_sprintf_string as super::super::Write, text),
            (ucs_config_sprintf_allow_list, list),
            (ucs_config_sprintf_array, array),
        ] {
            buffer[0] = 7;
            // SAFETY: buffer and values are of this test, and of the type that the function prints.
            let result = unsafe {
                write(TextPtr::new(buffer.as_mut_ptr().cast()), buffer.len(), ValuePtr::new(value), desc)
            };
            assert_eq!((result, buffer[0]), (1, 0));
        }
    }
}
