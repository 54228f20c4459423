//! `ucs_class_*`: objects of programs whose types have a parent. The header's macros call the constructors;
//! the destructors are called here.

use std::ffi::{c_char, c_int, c_void};

use ::ucs::Status;

use super::global::Global;
use crate::entry::CStatus;

/// `ucs_class_t`. The function that makes an object takes what its type needs, and is called by the program.
#[repr(C)]
pub(crate) struct Class {
    name: *const c_char,
    size: usize,
    parent: *const Class,
    init: Option<unsafe extern "C" fn(*mut c_void) -> CStatus>,
    cleanup: Option<unsafe extern "C" fn(*mut c_void)>,
}

/// Constructor of class `void`, the root: does nothing.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn void_init(_object: *mut c_void) -> CStatus {
    CStatus(0)
}

/// Destructor of class `void`, the root: does nothing.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn void_cleanup(_object: *mut c_void) {}

/// The parent of types without one.
#[allow(non_upper_case_globals)]
#[unsafe(no_mangle)]
pub(crate) static void_class: Global<Class> = Global::new(Class {
    name: c"void".as_ptr(),
    size: 0,
    parent: std::ptr::null(),
    init: Some(void_init),
    cleanup: Some(void_cleanup),
});

/// A type and its parents.
///
/// # Safety
/// `class` is a type of the program, or null.
unsafe fn line<'a>(class: *const Class) -> impl Iterator<Item = &'a Class> {
    // SAFETY: parents are types, too.
    std::iter::successors(unsafe { class.as_ref() }, |class| unsafe { class.parent.as_ref() })
}

entry! {
    /// Undoes what the types of an object have made, the parents' last. With a limit only so many of the last
    /// types have made their part.
    fn ucs_class_call_cleanup_chain(class: *mut Class, object: *mut c_void, limit: c_int) {
        // SAFETY: the caller passes a type, or null.
        let count = unsafe { line(class) }.count();
        let skipped = usize::try_from(limit).map_or(0, |limit| count.saturating_sub(limit));
        // SAFETY: as above, and the object is of this type.
        unsafe { line(class) }.skip(skipped).filter_map(|class| class.cleanup).for_each(|undo| unsafe { undo(object) });
        Ok(())
    }

    /// Memory for an object.
    fn ucs_class_malloc(class: *mut Class) -> *mut c_void {
        // SAFETY: the caller passes a type, or null.
        let class = unsafe { class.as_ref() }.ok_or(Status::InvalidParam)?;
        // SAFETY: `malloc` takes any size.
        Ok(unsafe { libc::malloc(class.size.max(1)) })
    }

    /// Frees the memory of an object.
    fn ucs_class_free(object: *mut c_void) {
        // SAFETY: the memory is of `ucs_class_malloc`, or null.
        unsafe { libc::free(object) };
        Ok(())
    }

    /// Logs an error if a constructor returned `UCS_OK` without an object.
    fn ucs_class_check_new_func_result(status: i8, object: *mut c_void) {
        if status == 0 && object.is_null() {
            tracing::error!("a class constructor returned UCS_OK and a null object");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_those_of_the_headers() {
        let source = format!(
            "#include <stddef.h>\n#include <ucs/type/class.h>\n\
             _Static_assert(sizeof(ucs_class_t) == {}, \"\");\n\
             _Static_assert(offsetof(ucs_class_t, superclass) == {}, \"\");\n\
             _Static_assert(offsetof(ucs_class_t, cleanup) == {}, \"\");\n",
            size_of::<Class>(),
            std::mem::offset_of!(Class, parent),
            std::mem::offset_of!(Class, cleanup)
        );
        crate::layout::assert_compiles("/usr/include/ucs/type/class.h", &source);
        crate::layout::assert_compiles_with_ours(&source);
    }
}
