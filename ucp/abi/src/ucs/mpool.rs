//! `ucs_mpool_*`: pools of objects of one size. Memory comes in chunks from functions of the program. A pool
//! has no lock: one thread at a time uses it, as with UCX. Layouts are those of UCX 1.13.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};

use ::ucs::Status;

use super::text::StringBuffer;
use crate::context::text_of;
use crate::entry::{CStatus, invalid};

/// `ucs_mpool_elem_t`, in front of each object: the next free one, or the pool of an object that is in use.
/// The place in an object that is aligned may leave it at any address.
#[repr(C, packed)]
pub(crate) union Elem {
    next: *mut Elem,
    pool: *mut Pool,
}

/// `ucs_mpool_chunk_t`, at the beginning of a chunk.
#[repr(C)]
pub(crate) struct Chunk {
    next: *mut Chunk,
    elems: *mut c_void,
    num_elems: c_uint,
}

/// `ucs_mpool_t`.
#[repr(C)]
pub(crate) struct Pool {
    free: *mut Elem,
    data: *mut Data,
}

/// `ucs_mpool_data_t`. Sizes and places count from the element's own header on.
#[repr(C)]
pub(crate) struct Data {
    elem_size: usize,
    alignment: usize,
    align_offset: usize,
    elems_per_chunk: c_uint,
    /// How many objects may still be made; the largest number is no limit.
    quota: c_uint,
    tail: *mut Elem,
    chunks: *mut Chunk,
    ops: *const Ops,
    name: *mut c_char,
}

/// `ucs_mpool_ops_t`.
#[repr(C)]
pub(crate) struct Ops {
    chunk_alloc: Option<unsafe extern "C" fn(*mut Pool, *mut usize, *mut *mut c_void) -> CStatus>,
    chunk_release: Option<unsafe extern "C" fn(*mut Pool, *mut c_void)>,
    obj_init: Option<unsafe extern "C" fn(*mut Pool, *mut c_void, *mut c_void)>,
    obj_cleanup: Option<unsafe extern "C" fn(*mut Pool, *mut c_void)>,
    obj_str: Option<unsafe extern "C" fn(*mut Pool, *mut c_void, *mut StringBuffer)>,
}

const HEADER: usize = size_of::<Elem>();

impl Data {
    /// Distance of two elements.
    fn stride(&self) -> usize {
        self.elem_size.next_multiple_of(self.alignment)
    }

    /// Bytes in front of the first element of a chunk, so that the place in its object is aligned.
    fn padding(&self, chunk: *const Chunk) -> usize {
        let place = chunk.addr().wrapping_add(size_of::<Chunk>()).wrapping_add(self.align_offset);
        place.next_multiple_of(self.alignment) - place
    }

    /// How many elements a chunk of this size has room for.
    fn room(&self, chunk: *const Chunk, size: usize) -> usize {
        let free = size.saturating_sub(size_of::<Chunk>() + self.padding(chunk));
        // The last element needs no bytes behind it.
        (free + self.stride() - self.elem_size) / self.stride()
    }
}

/// The elements of a chunk.
///
/// # Safety
/// The chunk is of a pool with this data.
unsafe fn elements(data: &Data, chunk: *const Chunk) -> impl DoubleEndedIterator<Item = *mut Elem> {
    // SAFETY: the contract of this function.
    let (first, count) = unsafe { ((*chunk).elems.cast::<u8>(), (*chunk).num_elems as usize) };
    let stride = data.stride();
    (0..count).map(move |index| first.wrapping_add(index * stride).cast())
}

/// Address of the object of an element.
fn object(elem: *mut Elem) -> *mut c_void {
    elem.wrapping_add(1).cast()
}

/// The data of a pool.
///
/// # Safety
/// `pool` is a pool of the program, or null.
unsafe fn data_of<'a>(pool: *mut Pool) -> Result<&'a mut Data, Status> {
    // SAFETY: the contract of this function.
    let data = unsafe { pool.as_ref() }.and_then(|pool| unsafe { pool.data.as_mut() });
    data.ok_or_else(|| invalid("the pool of objects is null, or not initialized"))
}

/// Puts an element to the free ones.
///
/// # Safety
/// The element is of this pool, and nobody uses it.
#[inline(always)]
unsafe fn push(pool: *mut Pool, elem: *mut Elem) {
    // SAFETY: the contract of this function.
    unsafe {
        (*elem).next = (*pool).free;
        (*pool).free = elem;
    }
}

/// Makes room for more objects. Without a chunk there are as many as before.
///
/// # Safety
/// `pool` is a pool of the program.
unsafe fn grow(pool: *mut Pool, count: c_uint) -> Result<(), Status> {
    // SAFETY: the contract of this function.
    let data = unsafe { data_of(pool) }?;
    let (count, is_limited) = (count.min(data.quota), data.quota != c_uint::MAX);
    if count == 0 {
        return Ok(());
    }
    let elements_size = data.stride().checked_mul(count as usize).ok_or(Status::NoMemory)?;
    let mut size = elements_size.checked_add(size_of::<Chunk>() + data.alignment).ok_or(Status::NoMemory)?;
    let least = size;
    let mut at = std::ptr::null_mut();
    // SAFETY: the operations are the program's, and outlive the pool.
    let ops = unsafe { &*data.ops };
    let alloc = ops.chunk_alloc.ok_or(Status::InvalidParam)?;
    // SAFETY: as above.
    let CStatus(code) = unsafe { alloc(pool, &raw mut size, &raw mut at) };
    if code != 0 || at.is_null() {
        crate::log::init_from_env();
        tracing::error!("the pool {} gets no chunk of {least} bytes", text_of(data.name));
        return Err(Status::NoMemory);
    }
    let chunk: *mut Chunk = at.cast();
    // A chunk may be larger than asked for.
    let count =
        c_uint::try_from(data.room(chunk, size.max(least))).unwrap_or(c_uint::MAX - 1).min(data.quota);
    let elems = chunk.wrapping_add(1).cast::<u8>().wrapping_add(data.padding(chunk)).cast();
    // SAFETY: the chunk is the pool's, and large enough.
    unsafe { chunk.write(Chunk { next: data.chunks, elems, num_elems: count }) };
    data.chunks = chunk;
    if is_limited {
        data.quota -= count;
    }
    // SAFETY: as above. The first element is used first.
    for elem in unsafe { elements(data, chunk) }.rev() {
        if let Some(init) = ops.obj_init {
            // SAFETY: the object is in the chunk.
            unsafe { init(pool, object(elem), at) };
        }
        // SAFETY: nobody uses the element yet.
        unsafe { push(pool, elem) };
    }
    Ok(())
}

/// Takes a free element, if there is one. // HOT
///
/// # Safety
/// `pool` is a pool of the program.
#[inline(always)]
unsafe fn pop(pool: *mut Pool) -> Option<*mut c_void> {
    // SAFETY: the contract of this function; free elements are a list.
    unsafe {
        let elem = (*pool).free;
        if elem.is_null() {
            return None;
        }
        (*pool).free = (*elem).next;
        (*elem).pool = pool;
        Some(object(elem))
    }
}

/// Takes an object of a pool, which may grow. // HOT
///
/// # Safety
/// `pool` is a pool of the program.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ucs_mpool_get(pool: *mut Pool) -> *mut c_void {
    // SAFETY: the contract of this function.
    unsafe { pop(pool).unwrap_or_else(|| ucs_mpool_get_grow(pool)) }
}

/// Gives an object back to its pool. // HOT
///
/// # Safety
/// The object is of a pool, and in use.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ucs_mpool_put(object: *mut c_void) {
    let elem = object.cast::<Elem>().wrapping_sub(1);
    // SAFETY: the contract of this function: the element names its pool.
    unsafe { push((*elem).pool, elem) };
}

/// Text of an object, for people.
///
/// # Safety
/// The object is of this pool.
unsafe fn text_of_object(pool: *mut Pool, ops: &Ops, object: *mut c_void) -> String {
    let Some(print) = ops.obj_str else { return String::new() };
    let mut buffer = StringBuffer::new();
    // SAFETY: the contract of this function.
    unsafe { print(pool, object, &raw mut buffer) };
    format!(": {}", buffer.into_text())
}

entry! {
    /// Initializes a pool, with no object in it yet.
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
        if pool.is_null() || ops.is_null() {
            return Err(invalid("ucs_mpool_init: the pool or its operations are null"));
        }
        let is_valid = elem_size > 0 && align_offset <= elem_size && alignment.is_power_of_two();
        // SAFETY: the operations are the caller's.
        let has_functions = unsafe { (*ops).chunk_alloc.is_some() && (*ops).chunk_release.is_some() };
        if !is_valid || elems_per_chunk == 0 || max_elems < elems_per_chunk || !has_functions {
            return Err(invalid("ucs_mpool_init: sizes, alignment, numbers of elements or operations are not valid"));
        }
        let sizes = elem_size.checked_add(HEADER).zip(size_of::<Data>().checked_add(priv_size));
        let (elem_size, data_size) = sizes.ok_or(Status::InvalidParam)?;
        let alignment = alignment.max(align_of::<*mut Elem>());
        elem_size.checked_next_multiple_of(alignment).ok_or(Status::InvalidParam)?;
        let name = CString::new(text_of(name)).map_err(|_| Status::InvalidParam)?;
        // SAFETY: `calloc` takes any sizes.
        let data: *mut Data = unsafe { libc::calloc(1, data_size) }.cast();
        if data.is_null() {
            return Err(Status::NoMemory);
        }
        // SAFETY: the pool is the caller's, and its data has room.
        unsafe {
            data.write(Data {
                elem_size,
                alignment,
                align_offset: align_offset + HEADER,
                elems_per_chunk,
                quota: max_elems,
                tail: std::ptr::null_mut(),
                chunks: std::ptr::null_mut(),
                ops,
                name: name.into_raw(),
            });
            pool.write(Pool { free: std::ptr::null_mut(), data });
        }
        Ok(())
    }

    /// Frees a pool. With `leak_check` objects that are in use are reported.
    fn ucs_mpool_cleanup(pool: *mut Pool, leak_check: c_int) {
        // SAFETY: the pool is the caller's.
        let (data, ops) = unsafe {
            let data = data_of(pool)?;
            let ops = &*data.ops;
            (data, ops)
        };
        // SAFETY: free elements are a list.
        unsafe {
            let mut elem = (*pool).free;
            while let Some(free) = elem.as_mut() {
                elem = free.next;
                if let Some(cleanup) = ops.obj_cleanup {
                    cleanup(pool, object(free));
                }
                free.pool = std::ptr::null_mut();
            }
            (*pool).free = std::ptr::null_mut();
        }
        let mut chunk = data.chunks;
        while !chunk.is_null() {
            // SAFETY: chunks are a list; a chunk is left alone after it is released.
            unsafe {
                let next = (*chunk).next;
                for elem in elements(data, chunk).filter(|elem| leak_check != 0 && !(**elem).pool.is_null()) {
                    let text = text_of_object(pool, ops, object(elem));
                    crate::log::init_from_env();
                    tracing::warn!("object {:p} was not returned to the pool {}{text}", object(elem), text_of(data.name));
                }
                if let Some(release) = ops.chunk_release {
                    release(pool, chunk.cast());
                }
                chunk = next;
            }
        }
        // SAFETY: both were made with the pool.
        unsafe {
            drop(CString::from_raw(data.name));
            libc::free((*pool).data.cast());
            (*pool).data = std::ptr::null_mut();
        }
        Ok(())
    }

    /// Name of a pool.
    fn ucs_mpool_name(pool: *mut Pool) -> *mut c_char {
        // SAFETY: the pool is the caller's.
        Ok(unsafe { data_of(pool) }?.name)
    }

    /// Data of the program that is in the pool.
    fn ucs_mpool_priv(pool: *mut Pool) -> *mut c_void {
        // SAFETY: the pool is the caller's.
        let data: *mut Data = unsafe { data_of(pool) }?;
        Ok(data.wrapping_add(1).cast())
    }

    /// Whether the pool has no object, and gets no more.
    fn ucs_mpool_is_empty(pool: *mut Pool) -> c_int {
        // SAFETY: the pool is the caller's.
        let data = unsafe { data_of(pool) }?;
        // SAFETY: as above.
        Ok(c_int::from(unsafe { (*pool).free.is_null() } && data.quota == 0))
    }

    /// Makes room for more objects.
    fn ucs_mpool_grow(pool: *mut Pool, count: c_uint) {
        // SAFETY: the pool is the caller's.
        unsafe { grow(pool, count) }
    }

    /// Takes an object of a pool that has grown.
    fn ucs_mpool_get_grow(pool: *mut Pool) -> *mut c_void {
        // SAFETY: the pool is the caller's.
        unsafe {
            let count = data_of(pool)?.elems_per_chunk;
            grow(pool, count)?;
            pop(pool).ok_or(Status::NoMemory)
        }
    }

    /// How many objects a chunk of a size has room for.
    fn ucs_mpool_num_elems_per_chunk(pool: *mut Pool, chunk: *const Chunk, size: usize) -> c_uint {
        // SAFETY: the pool is the caller's.
        let count = unsafe { data_of(pool) }?.room(chunk, size);
        Ok(c_uint::try_from(count).unwrap_or(c_uint::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    fn data(elem_size: usize, alignment: usize, align_offset: usize) -> Data {
        Data {
            elem_size: elem_size + HEADER,
            alignment,
            align_offset: align_offset + HEADER,
            elems_per_chunk: 1,
            quota: 1,
            tail: std::ptr::null_mut(),
            chunks: std::ptr::null_mut(),
            ops: std::ptr::null(),
            name: std::ptr::null_mut(),
        }
    }

    #[test]
    fn the_place_in_an_object_is_aligned_wherever_the_chunk_is() {
        for (size, alignment, offset) in [(1, 8, 0), (100, 64, 0), (100, 64, 36), (8, 4096, 8), (24, 16, 24)]
        {
            let data = data(size, alignment, offset);
            for start in (0x1000..0x3000).step_by(8) {
                let chunk = std::ptr::without_provenance(start);
                let first = start + size_of::<Chunk>() + data.padding(chunk);
                for count in [1, 7] {
                    let asked = size_of::<Chunk>() + alignment + count * data.stride();
                    let room = data.room(chunk, asked);
                    assert!(room >= count, "{size} {alignment} {offset}: {room} of {count}");
                    assert!(first + (room - 1) * data.stride() + data.elem_size <= start + asked);
                    assert_eq!((first + HEADER + offset + data.stride()) % alignment, 0);
                }
            }
        }
        assert_eq!(data(8, 8, 0).room(std::ptr::null(), 3), 0);
    }

    #[test]
    fn layouts_are_those_of_the_headers() {
        let mut source = String::from("#include <stddef.h>\n#include <ucs/datastruct/mpool.h>\n");
        for (name, size) in [
            ("ucs_mpool_t", size_of::<Pool>()),
            ("ucs_mpool_data_t", size_of::<Data>()),
            ("ucs_mpool_chunk_t", size_of::<Chunk>()),
            ("ucs_mpool_elem_t", HEADER),
            ("ucs_mpool_ops_t", size_of::<Ops>()),
        ] {
            source += &format!("_Static_assert(sizeof({name}) == {size}, \"{name}\");\n");
        }
        for (name, field, offset) in [
            ("ucs_mpool_t", "freelist", offset_of!(Pool, free)),
            ("ucs_mpool_data_t", "align_offset", offset_of!(Data, align_offset)),
            ("ucs_mpool_data_t", "quota", offset_of!(Data, quota)),
            ("ucs_mpool_data_t", "chunks", offset_of!(Data, chunks)),
            ("ucs_mpool_data_t", "ops", offset_of!(Data, ops)),
            ("ucs_mpool_data_t", "name", offset_of!(Data, name)),
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
