//! Functions of text.

use std::ffi::{CStr, c_char, c_int};

use super::variadic::Args;
use crate::entry::guard;

variadic! {
    /// Prints into a buffer, which is set to zero first: buffer, size, format.
    fn ucs_snprintf_zero: fixed 3, body snprintf_zero;
    /// Prints into a buffer; the text ends with a zero in any case: buffer, size, format.
    fn ucs_snprintf_safe: fixed 3, body snprintf_safe;
    /// Prints to the end of a string buffer, which grows: buffer, format.
    fn ucs_string_buffer_appendf: fixed 2, body string_buffer_appendf;
    /// Cuts a string at the characters of a set: string, set, number of parts, and a place for each part.
    fn ucs_string_split: fixed 3, body string_split;
}

unsafe extern "C" fn snprintf_zero(args: *const Args) {
    guard::<()>("ucs_snprintf_zero", || {
        // SAFETY: the caller of the variadic function passes these arguments.
        unsafe {
            let args = &*args;
            args.pointer::<u8>(0).write_bytes(0, args.fixed(1));
            args.print(args.pointer(2), args.pointer(0), args.fixed(1));
        }
        Ok(())
    });
}

unsafe extern "C" fn snprintf_safe(args: *const Args) {
    guard::<()>("ucs_snprintf_safe", || {
        // SAFETY: as above.
        unsafe {
            let args = &*args;
            args.print(args.pointer(2), args.pointer(0), args.fixed(1));
        }
        Ok(())
    });
}

/// Stores the parts, null for those that there are not. Returns what is left of the string, or null.
unsafe extern "C" fn string_split(args: *const Args) -> *mut c_char {
    guard("ucs_string_split", || {
        // SAFETY: the caller of the variadic function passes these arguments.
        unsafe {
            let args = &*args;
            let (mut rest, set) = (args.pointer::<c_char>(0), args.pointer::<c_char>(1));
            let mut places = args.pointers::<*mut c_char>();
            for _ in 0..args.fixed(2) as u32 as i32 {
                let place = places.next();
                place.write(rest);
                if !rest.is_null() {
                    let end = rest.add(libc::strcspn(rest, set));
                    rest = if end.read() == 0 { std::ptr::null_mut() } else { end.add(1) };
                    end.write(0);
                }
            }
            Ok(rest)
        }
    })
}

entry! {
    /// Place of a string in a list that a null ends, or -1.
    fn ucs_string_find_in_list(text: *const c_char, list: *const *const c_char, case_sensitive: c_int) -> isize {
        if text.is_null() || list.is_null() {
            return Ok(-1);
        }
        // SAFETY: the list is the caller's, of strings.
        let is_same = |known: *const c_char| unsafe {
            match case_sensitive {
                0 => libc::strcasecmp(text, known) == 0,
                _ => libc::strcmp(text, known) == 0,
            }
        };
        // SAFETY: as above.
        let known = (0..).map_while(|at| Some(unsafe { list.add(at).read() }).filter(|known| !known.is_null()));
        Ok(known.zip(0..).find_map(|(known, at)| is_same(known).then_some(at)).unwrap_or(-1))
    }

    /// Copies a string into `size` bytes: what is left of them is zero, and the last is.
    fn ucs_strncpy_zero(to: *mut c_char, from: *const c_char, size: usize) {
        if size > 0 && !to.is_null() && !from.is_null() {
            // SAFETY: `from` is a string, and `size` bytes at `to` may be written.
            unsafe {
                libc::strncpy(to, from, size - 1);
                to.add(size - 1).write(0);
            }
        }
        Ok(())
    }

    /// Copies a string into `size` bytes, and the end that it has there. Returns where it is.
    fn ucs_strncpy_safe(to: *mut c_char, from: *const c_char, size: usize) -> *mut c_char {
        if size > 0 && !to.is_null() && !from.is_null() {
            // SAFETY: `from` is a string, and `size` bytes at `to` may be written.
            unsafe {
                let length = libc::strnlen(from, size - 1);
                std::ptr::copy(from, to, length);
                to.add(length).write(0);
            }
        }
        Ok(to)
    }

    /// Removes characters of a set, white space for null, from the end of a string buffer.
    fn ucs_string_buffer_rtrim(buffer: *mut StringBuffer, set: *const c_char) {
        // SAFETY: the buffer is the caller's, or null; the set is a string or null.
        let (buffer, set) = unsafe {
            (buffer.as_mut(), (!set.is_null()).then(|| CStr::from_ptr(set).to_bytes()))
        };
        let buffer = buffer.filter(|buffer| buffer.length > 0).ok_or(::ucs::Status::InvalidParam)?;
        // SAFETY: `length` bytes of the buffer hold text, and one more holds its end.
        unsafe {
            let text = std::slice::from_raw_parts(buffer.text.cast::<u8>(), buffer.length);
            let is_cut = |c: &u8| set.map_or(c.is_ascii_whitespace(), |set| set.contains(c));
            buffer.length = text.iter().rposition(|c| !is_cut(c)).map_or(0, |at| at + 1);
            buffer.text.add(buffer.length).write(0);
        }
        Ok(())
    }

    /// Text of a string buffer.
    fn ucs_string_buffer_cstr(buffer: *const StringBuffer) -> *mut c_char {
        // SAFETY: the buffer is the caller's, or null.
        let filled = unsafe { buffer.as_ref() }.filter(|buffer| buffer.length > 0);
        Ok(filled.map_or(c"".as_ptr().cast_mut(), |buffer| buffer.text))
    }
}

/// `ucs_string_buffer_t`.
#[repr(C)]
pub(crate) struct StringBuffer {
    text: *mut c_char,
    length: usize,
    /// Bytes at `text`. [`FIXED`] or [`LATER_FIXED`] is set if it is the caller's memory, which cannot grow.
    capacity: usize,
}

/// Mark of memory of a program for UCX up to 1.16. The other bits are the capacity.
const FIXED: usize = 1;
/// Mark of memory of a program for later releases.
const LATER_FIXED: usize = 1 << (usize::BITS - 1);

impl StringBuffer {
    /// An empty buffer, which grows.
    pub(super) fn new() -> StringBuffer {
        StringBuffer { text: std::ptr::null_mut(), length: 0, capacity: 0 }
    }

    /// Text of the buffer, which grew.
    pub(super) fn into_text(self) -> String {
        let text = match self.length {
            0 => String::new(),
            // SAFETY: a buffer that is not empty has a C string.
            _ => unsafe { crate::context::text_of(self.text) },
        };
        // SAFETY: the memory is the allocator's, or null.
        unsafe { libc::free(self.text.cast()) };
        text
    }

    fn capacity(&self) -> usize {
        match self.capacity & LATER_FIXED {
            0 => self.capacity & !FIXED,
            // Any number may be the capacity.
            _ => self.capacity & !LATER_FIXED,
        }
    }

    /// Makes room for `capacity` bytes. Returns whether there is room for them now.
    /// # Safety
    /// `text` is null or memory of the C allocator, unless a mark in `capacity` says that it is the caller's.
    unsafe fn reserve(&mut self, capacity: usize) -> bool {
        if capacity <= self.capacity() {
            return true;
        }
        if self.capacity & (FIXED | LATER_FIXED) != 0 {
            return false;
        }
        let capacity = capacity.max(2 * self.capacity()).next_multiple_of(64);
        // SAFETY: memory that grows is the allocator's, or null.
        let grown = unsafe { libc::realloc(self.text.cast(), capacity) };
        if !grown.is_null() {
            (self.text, self.capacity) = (grown.cast(), capacity);
        }
        !grown.is_null()
    }
}

unsafe extern "C" fn string_buffer_appendf(args: *const Args) {
    guard::<()>("ucs_string_buffer_appendf", || {
        // SAFETY: the caller of the variadic function passes a buffer of its own and a format.
        unsafe {
            let args = &*args;
            let buffer = args.pointer::<StringBuffer>(0).as_mut().ok_or(::ucs::Status::InvalidParam)?;
            let format = args.pointer(1);
            let more = args.print(format, std::ptr::null_mut(), 0);
            buffer.reserve(buffer.length + more + 1);
            let free = buffer.capacity().saturating_sub(buffer.length);
            if free > 0 {
                args.print(format, buffer.text.add(buffer.length), free);
                buffer.length += more.min(free - 1);
            }
        }
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    type Append = unsafe extern "C" fn(*mut StringBuffer, *const c_char, ...);
    type Print = unsafe extern "C" fn(*mut c_char, usize, *const c_char, ...);

    fn append() -> Append {
        // SAFETY: the function takes these arguments.
        unsafe { std::mem::transmute(ucs_string_buffer_appendf as *const ()) }
    }

    fn text(buffer: &StringBuffer) -> String {
        // SAFETY: the buffer is of this test.
        unsafe { CStr::from_ptr(ucs_string_buffer_cstr(buffer)) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_string_buffer_grows_and_is_trimmed() {
        let mut buffer = StringBuffer { text: std::ptr::null_mut(), length: 0, capacity: 0 };
        assert_eq!(text(&buffer), "");
        for number in 0..100 {
            // SAFETY: the format names its argument.
            unsafe { append()(&mut buffer, c"%d/".as_ptr(), number) };
        }
        assert!(text(&buffer).ends_with("/98/99/"));
        // SAFETY: the buffer is of this test.
        unsafe { ucs_string_buffer_rtrim(&mut buffer, c"/".as_ptr()) };
        assert!(text(&buffer).ends_with("/98/99"));
        // SAFETY: the buffer is of this test.
        unsafe { ucs_string_buffer_rtrim(&mut buffer, c"/0123456789".as_ptr()) };
        assert_eq!(text(&buffer), "");
        // SAFETY: the memory came from `realloc`.
        unsafe { libc::free(buffer.text.cast()) };
    }

    #[test]
    fn memory_of_the_caller_is_not_exceeded() {
        for (mark, size) in [(FIXED, 8), (LATER_FIXED, 8), (LATER_FIXED, 7)] {
            let mut memory = [b'#'; 10];
            let mut buffer =
                StringBuffer { text: memory.as_mut_ptr().cast(), length: 0, capacity: size | mark };
            // SAFETY: the formats need no arguments.
            unsafe {
                append()(&mut buffer, c"abc".as_ptr());
                append()(&mut buffer, c"defghijk".as_ptr());
            }
            assert_eq!(text(&buffer), "abcdefg"[..size - 1]);
            assert_eq!(&memory[size..], &b"###"[..10 - size]);
        }
    }

    #[test]
    fn prints_end_within_their_size() {
        let mut memory = [b'#'; 10];
        // SAFETY: the functions take these arguments.
        let (zero, safe) = unsafe {
            (
                std::mem::transmute::<*const (), Print>(ucs_snprintf_zero as *const ()),
                std::mem::transmute::<*const (), Print>(ucs_snprintf_safe as *const ()),
            )
        };
        // SAFETY: eight of the ten bytes may be written.
        unsafe { zero(memory.as_mut_ptr().cast(), 8, c"%d".as_ptr(), 12) };
        assert_eq!(&memory, b"12\0\0\0\0\0\0##");
        // SAFETY: as above.
        unsafe { safe(memory.as_mut_ptr().cast(), 8, c"%s".as_ptr(), c"abcdefghijk".as_ptr()) };
        assert_eq!(&memory, b"abcdefg\0##");
        // SAFETY: as above.
        unsafe { ucs_strncpy_zero(memory.as_mut_ptr().cast(), c"uvwxyzuvwxyz".as_ptr(), 4) };
        assert_eq!(&memory[..5], b"uvw\0e");
    }
}
