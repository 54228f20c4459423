//! `ucs_mpool_*`: pools of objects of one size. Memory comes in chunks from functions of the program. A pool
//! has no lock: one thread at a time uses it, as with UCX.

use std::ffi::{c_char, c_int, c_uint, c_void};

use ::ucs::Status;

use super::text::StringBuffer;
use crate::context::text_of;
use crate::entry::{CStatus, invalid};

/// `ucs_mpool_elem_t`, in front of each object: the next free one, or the pool of an object that is in use.
/// It may be unaligned: alignment is promised at an offset within the object, not here.
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
    pub(super) num_elems: c_uint,
}

/// `ucs_mpool_t`. Its second field points to `ucs_mpool_data_t`, which inline functions of programs read.
#[repr(C)]
pub(crate) struct Pool {
    pub(super) free: *mut Elem,
    pub(super) shown: *mut c_void,
}

/// State of a pool. Sizes and offsets include the element's header. In memory it is followed by
/// `ucs_mpool_data_t`, which programs read, and by the program's private data.
#[repr(C, align(16))]
pub(crate) struct Data {
    pub(super) elem_size: usize,
    pub(super) alignment: usize,
    pub(super) align_offset: usize,
    pub(super) elems_per_chunk: c_uint,
    /// How many objects may still be made; the largest number is no limit.
    pub(super) quota: c_uint,
    /// Each chunk has so many times the elements of the one before.
    pub(super) grow_factor: f64,
    /// No chunk is larger. The largest number is no limit.
    pub(super) max_chunk_size: usize,
    pub(super) chunks: *mut Chunk,
    pub(super) ops: *const Ops,
    pub(super) name: *mut c_char,
    /// Data of the program.
    pub(super) private: *mut c_void,
}

/// `ucs_mpool_ops_t`.
#[repr(C)]
pub(crate) struct Ops {
    pub(super) chunk_alloc: Option<unsafe extern "C" fn(*mut Pool, *mut usize, *mut *mut c_void) -> CStatus>,
    pub(super) chunk_release: Option<unsafe extern "C" fn(*mut Pool, *mut c_void)>,
    pub(super) obj_init: Option<unsafe extern "C" fn(*mut Pool, *mut c_void, *mut c_void)>,
    pub(super) obj_cleanup: Option<unsafe extern "C" fn(*mut Pool, *mut c_void)>,
    pub(super) obj_str: Option<unsafe extern "C" fn(*mut Pool, *mut c_void, *mut StringBuffer)>,
}

pub(super) const HEADER: usize = size_of::<Elem>();

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

    /// Bytes of a chunk with so many elements.
    pub(super) fn chunk_size(&self, count: c_uint) -> Option<usize> {
        let size = self.stride().checked_mul(usize::try_from(count).ok()?)?;
        size.checked_add(size_of::<Chunk>() + self.alignment)
    }

    /// Makes the next chunk larger than the last, if the pool grows so.
    fn raise(&mut self) {
        if self.grow_factor > 1.0 {
            // Conversions keep to the limits of the other type.
            let next = (f64::from(self.elems_per_chunk) * self.grow_factor) as c_uint;
            let most =
                self.max_chunk_size.saturating_sub(size_of::<Chunk>() + self.alignment) / self.stride();
            self.elems_per_chunk = next.min(c_uint::try_from(most).unwrap_or(c_uint::MAX)).max(1);
        }
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
    let shown = unsafe { pool.as_ref() }.map(|pool| pool.shown).filter(|shown| !shown.is_null());
    let shown = shown.ok_or_else(|| invalid("the pool of objects is null, or not initialized"))?;
    // SAFETY: what programs see is behind the data.
    Ok(unsafe { &mut *shown.cast::<Data>().sub(1) })
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
    let mut size = data.chunk_size(count).unwrap_or(usize::MAX).min(data.max_chunk_size);
    if size == usize::MAX {
        return Err(Status::NoMemory);
    }
    let least = size;
    let mut at = std::ptr::null_mut();
    // SAFETY: the operations are the program's, and outlive the pool.
    let ops = unsafe { &*data.ops };
    let alloc = ops.chunk_alloc.ok_or(Status::InvalidParam)?;
    // SAFETY: as above.
    let CStatus(code) = unsafe { alloc(pool, &raw mut size, &raw mut at) };
    if code != 0 || at.is_null() {
        crate::log::init_from_env();
        // SAFETY: the name of a pool is a C string.
        let name = unsafe { text_of(data.name) };
        tracing::error!("the pool {name} gets no chunk of {least} bytes");
        return Err(Status::NoMemory);
    }
    let chunk: *mut Chunk = at.cast();
    // A chunk may be larger than asked for, and that of a careless function smaller.
    let count = c_uint::try_from(data.room(chunk, size)).unwrap_or(c_uint::MAX - 1).min(data.quota);
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

/// Takes a free element, if there is one.
///
/// # Safety
/// `pool` is a pool of the program.
// HOT
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

/// Takes an object of a pool, which may grow.
///
/// # Safety
/// `pool` is a pool of the program.
// HOT
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ucs_mpool_get(pool: *mut Pool) -> *mut c_void {
    // SAFETY: the contract of this function.
    unsafe { pop(pool).unwrap_or_else(|| ucs_mpool_get_grow(pool)) }
}

/// Gives an object back to its pool.
///
/// # Safety
/// The object is of a pool, and in use.
// HOT
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
        // All are looked at before the first is released: the text of an object may be in another chunk.
        let mut chunk = data.chunks;
        while !chunk.is_null() {
            // SAFETY: chunks are a list.
            unsafe {
                for elem in elements(data, chunk).filter(|elem| leak_check != 0 && !(**elem).pool.is_null()) {
                    let text = text_of_object(pool, ops, object(elem));
                    crate::log::init_from_env();
                    tracing::warn!("object {:p} was not returned to the pool {}{text}", object(elem), text_of(data.name));
                }
                chunk = (*chunk).next;
            }
        }
        let mut chunk = data.chunks;
        while !chunk.is_null() {
            // SAFETY: as above; a chunk is left alone after it is released.
            unsafe {
                let next = (*chunk).next;
                if let Some(release) = ops.chunk_release {
                    release(pool, chunk.cast());
                }
                chunk = next;
            }
        }
        // SAFETY: both were made with the pool.
        unsafe {
            libc::free(data.name.cast());
            libc::free((&raw mut *data).cast());
            (*pool).shown = std::ptr::null_mut();
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
        Ok(unsafe { data_of(pool) }?.private)
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
            data_of(pool)?.raise();
            pop(pool).ok_or(Status::NoMemory)
        }
    }

    /// How many objects a chunk of a size has room for, at most as many as may still be made.
    fn ucs_mpool_num_elems_per_chunk(pool: *mut Pool, chunk: *const Chunk, size: usize) -> c_uint {
        // SAFETY: the pool is the caller's.
        let data = unsafe { data_of(pool) }?;
        Ok(c_uint::try_from(data.room(chunk, size)).unwrap_or(c_uint::MAX).min(data.quota))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(elem_size: usize, alignment: usize, align_offset: usize) -> Data {
        Data {
            elem_size: elem_size + HEADER,
            alignment,
            align_offset: align_offset + HEADER,
            elems_per_chunk: 1,
            quota: 1,
            grow_factor: 1.0,
            max_chunk_size: usize::MAX,
            chunks: std::ptr::null_mut(),
            ops: std::ptr::null(),
            name: std::ptr::null_mut(),
            private: std::ptr::null_mut(),
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
    fn chunks_grow_up_to_a_size() {
        let mut data = data(24, 8, 0);
        (data.elems_per_chunk, data.grow_factor, data.max_chunk_size) = (3, 2.0, 1000);
        let sizes = [0; 5].map(|_| {
            data.raise();
            data.elems_per_chunk
        });
        assert_eq!(sizes, [6, 12, 24, 30, 30]);
        data.max_chunk_size = 1;
        data.raise();
        assert_eq!(data.elems_per_chunk, 1);
    }
}
