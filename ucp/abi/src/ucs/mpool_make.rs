//! Initialises pools: with the arguments of UCX 1.13, or with the `ucs_mpool_params_t` of later releases. The
//! two have different layouts of `ucs_mpool_data_t`.

use std::ffi::{c_char, c_int, c_uint, c_void};

use ::ucs::Status;

use super::mpool::{Chunk, Data, Elem, HEADER, Ops, Pool};
use super::mpool_chunk::page;
use crate::entry::{CStatus, invalid};

/// `ucs_mpool_data_t` of UCX 1.13, as the pool was made. Programs look at the operations.
#[repr(C)]
struct Shown {
    elem_size: usize,
    alignment: usize,
    align_offset: usize,
    elems_per_chunk: c_uint,
    quota: c_uint,
    tail: *mut Elem,
    chunks: *mut Chunk,
    ops: *const Ops,
    name: *mut c_char,
}

/// `ucs_mpool_data_t` of later releases.
#[repr(C)]
struct ShownLater {
    elem_size: usize,
    alignment: usize,
    align_offset: usize,
    grow_factor: f64,
    max_chunk_size: usize,
    elems_per_chunk: c_uint,
    quota: c_uint,
    malloc_safe: c_int,
    tail: *mut Elem,
    chunks: *mut Chunk,
    ops: *const Ops,
    name: *mut c_char,
}

/// `ucs_mpool_params_t` of later releases.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Params {
    priv_size: usize,
    elem_size: usize,
    align_offset: usize,
    alignment: usize,
    malloc_safe: c_int,
    elems_per_chunk: c_uint,
    max_chunk_size: usize,
    max_elems: c_uint,
    grow_factor: f64,
    ops: *const Ops,
    name: *const c_char,
}

/// Default largest chunk, bytes.
const USUAL_MAX_CHUNK_SIZE: usize = 128 << 20;

/// No pool is below this address.
const LOWEST_ADDRESS: usize = 64 << 10;

/// Whether an argument is the address of a pool, and not the size of a program's data: there is memory.
fn is_address(argument: usize) -> bool {
    let page = page();
    let mut is_resident = 0;
    let at: *mut c_void = std::ptr::without_provenance_mut(argument / page * page);
    argument >= LOWEST_ADDRESS
        // SAFETY: the call looks at the page tables for one page, and writes a byte.
        && (unsafe { libc::mincore(at, 1, &raw mut is_resident) } == 0
            || std::io::Error::last_os_error().raw_os_error() != Some(libc::ENOMEM))
}

/// Initializes a pool.
///
/// # Safety
/// The pool is the caller's. The operations outlive it.
unsafe fn init(pool: *mut Pool, params: &Params, is_later: bool) -> Result<(), Status> {
    let Params { priv_size, elem_size, align_offset, alignment, elems_per_chunk, max_elems, ops, .. } =
        *params;
    // SAFETY: the operations are the caller's, or null.
    let ops_of = unsafe { ops.as_ref() }.ok_or_else(|| invalid("ucs_mpool_init: the operations are null"))?;
    let has_functions = ops_of.chunk_alloc.is_some() && ops_of.chunk_release.is_some();
    let is_valid = elem_size > 0 && align_offset <= elem_size && alignment.is_power_of_two();
    let has_numbers = elems_per_chunk > 0 && max_elems >= elems_per_chunk && params.grow_factor >= 1.0;
    if !is_valid || !has_numbers || !has_functions {
        return Err(invalid(
            "ucs_mpool_init: sizes, alignment, numbers of elements or operations are not valid",
        ));
    }
    let shown_size = if is_later { size_of::<ShownLater>() } else { size_of::<Shown>() };
    let sizes = elem_size.checked_add(HEADER).zip((size_of::<Data>() + shown_size).checked_add(priv_size));
    let (elem_size, data_size) = sizes.ok_or(Status::InvalidParam)?;
    let alignment = alignment.max(align_of::<*mut Elem>());
    elem_size.checked_next_multiple_of(alignment).ok_or(Status::InvalidParam)?;
    let align_offset = align_offset + HEADER;
    let (quota, chunks, tail) = (max_elems, std::ptr::null_mut(), std::ptr::null_mut());
    let (grow_factor, max_chunk_size) = (params.grow_factor, params.max_chunk_size);
    let made = Data {
        elem_size,
        alignment,
        align_offset,
        elems_per_chunk,
        quota,
        grow_factor,
        max_chunk_size,
        chunks,
        ops,
        name: std::ptr::null_mut(),
        private: std::ptr::null_mut(),
    };
    if made.chunk_size(1).is_none_or(|size| size > max_chunk_size) {
        return Err(invalid("ucs_mpool_init: no element fits into a chunk of max_chunk_size bytes"));
    }
    let name = if params.name.is_null() { c"".as_ptr() } else { params.name };
    // SAFETY: the caller's contract: the name is a C string; `calloc` takes any sizes.
    let (name, data) = unsafe { (libc::strdup(name), libc::calloc(1, data_size).cast::<Data>()) };
    if name.is_null() || data.is_null() {
        // SAFETY: each is of the C allocator, or null.
        unsafe {
            libc::free(name.cast());
            libc::free(data.cast());
        }
        return Err(Status::NoMemory);
    }
    let shown: *mut c_void = data.wrapping_add(1).cast();
    let private = shown.cast::<u8>().wrapping_add(shown_size).cast();
    // SAFETY: the pool is the caller's, and the memory has room for all three.
    unsafe {
        data.write(Data { name, private, ..made });
        match is_later {
            false => shown.cast::<Shown>().write(Shown {
                elem_size,
                alignment,
                align_offset,
                elems_per_chunk,
                quota,
                tail,
                chunks,
                ops,
                name,
            }),
            true => shown.cast::<ShownLater>().write(ShownLater {
                elem_size,
                alignment,
                align_offset,
                grow_factor,
                max_chunk_size,
                elems_per_chunk,
                quota,
                malloc_safe: params.malloc_safe,
                tail,
                chunks,
                ops,
                name,
            }),
        }
        pool.write(Pool { free: std::ptr::null_mut(), shown });
    }
    Ok(())
}

entry! {
    /// Initializes a pool, with no object in it yet. Later releases pass a structure and the pool.
    fn ucs_mpool_init(
        pool: *mut Pool,
        priv_size: usize,
        elem_size: usize,
        align_offset: usize,
        alignment: usize,
        elems_per_chunk: c_uint,
        max_elems: c_uint,
        ops: *const Ops,
        name: *const c_char,
    ) -> CStatus {
        if pool.is_null() {
            return Err(invalid("ucs_mpool_init: the pool is null"));
        }
        if is_address(priv_size) {
            // SAFETY: the first argument is the structure, and the second the pool.
            let params = unsafe { pool.cast::<Params>().read() };
            // SAFETY: as above.
            return unsafe { init(std::ptr::with_exposed_provenance_mut(priv_size), &params, true) };
        }
        let params = Params {
            priv_size,
            elem_size,
            align_offset,
            alignment,
            malloc_safe: 0,
            elems_per_chunk,
            max_chunk_size: usize::MAX,
            max_elems,
            grow_factor: 1.0,
            ops,
            name,
        };
        // SAFETY: the pool is the caller's.
        unsafe { init(pool, &params, false) }
    }

    /// Sets the parameters of a pool to their defaults.
    fn ucs_mpool_params_reset(params: *mut Params) {
        if params.is_null() {
            return Err(invalid("ucs_mpool_params_reset: the parameters are null"));
        }
        // SAFETY: the caller has room for the structure.
        unsafe {
            params.write(Params {
                priv_size: 0,
                elem_size: 0,
                align_offset: 0,
                alignment: 64,
                malloc_safe: 0,
                elems_per_chunk: 128,
                max_chunk_size: USUAL_MAX_CHUNK_SIZE,
                max_elems: c_uint::MAX,
                grow_factor: 1.0,
                ops: std::ptr::null(),
                name: c"".as_ptr(),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::mpool::{ucs_mpool_cleanup, ucs_mpool_get, ucs_mpool_priv, ucs_mpool_put};
    use super::super::mpool_chunk::{ucs_mpool_chunk_free, ucs_mpool_chunk_malloc};
    use super::*;
    use std::mem::offset_of;

    /// A program of UCX 1.13 has as much data in a pool as it likes.
    #[test]
    fn the_data_of_a_program_may_be_large() {
        let ops = Ops {
            chunk_alloc: Some(ucs_mpool_chunk_malloc),
            chunk_release: Some(ucs_mpool_chunk_free),
            obj_init: None,
            obj_cleanup: None,
            obj_str: None,
        };
        for size in [LOWEST_ADDRESS - 1, LOWEST_ADDRESS, 300_000] {
            let mut pool = Pool { free: std::ptr::null_mut(), shown: std::ptr::null_mut() };
            // SAFETY: pool and operations are of this test, and outlive the pool.
            unsafe {
                let made = ucs_mpool_init(&mut pool, size, 40, 0, 64, 4, 8, &ops, c"large".as_ptr());
                assert_eq!(made, CStatus(0), "{size}");
                let data = ucs_mpool_priv(&mut pool).cast::<u8>();
                data.write_bytes(7, size);
                let object = ucs_mpool_get(&mut pool);
                assert!(!object.is_null());
                assert_eq!((data.read(), data.add(size - 1).read()), (7, 7));
                ucs_mpool_put(object);
                ucs_mpool_cleanup(&mut pool, 1);
            }
        }
        let mut pool = Pool { free: std::ptr::null_mut(), shown: std::ptr::null_mut() };
        // SAFETY: as above; no pool is made.
        let made = unsafe { ucs_mpool_init(&mut pool, usize::MAX, 40, 0, 64, 4, 8, &ops, c"".as_ptr()) };
        assert_ne!(made, CStatus(0));
        assert!(is_address((&raw const pool).addr()) && !is_address(8));
    }

    #[test]
    fn layouts_are_those_of_the_headers() {
        let mut source = String::from("#include <stddef.h>\n#include <ucs/datastruct/mpool.h>\n");
        for (name, size) in [
            ("ucs_mpool_t", size_of::<Pool>()),
            ("ucs_mpool_data_t", size_of::<Shown>()),
            ("ucs_mpool_chunk_t", size_of::<Chunk>()),
            ("ucs_mpool_elem_t", HEADER),
            ("ucs_mpool_ops_t", size_of::<Ops>()),
        ] {
            source += &format!("_Static_assert(sizeof({name}) == {size}, \"{name}\");\n");
        }
        for (name, field, offset) in [
            ("ucs_mpool_t", "freelist", offset_of!(Pool, free)),
            ("ucs_mpool_data_t", "align_offset", offset_of!(Shown, align_offset)),
            ("ucs_mpool_data_t", "quota", offset_of!(Shown, quota)),
            ("ucs_mpool_data_t", "chunks", offset_of!(Shown, chunks)),
            ("ucs_mpool_data_t", "ops", offset_of!(Shown, ops)),
            ("ucs_mpool_data_t", "name", offset_of!(Shown, name)),
            ("ucs_mpool_chunk_t", "num_elems", offset_of!(Chunk, num_elems)),
            ("ucs_mpool_ops_t", "obj_str", offset_of!(Ops, obj_str)),
        ] {
            source +=
                &format!("_Static_assert(offsetof({name}, {field}) == {offset}, \"{name}.{field}\");\n");
        }
        crate::layout::assert_compiles("/usr/include/ucs/datastruct/mpool.h", &source);
        crate::layout::assert_compiles_with_ours(&source);
    }
}
