//! `ucs_pgtable_*`: regions of memory that do not overlap, found by any address in them. The regions are the
//! program's; a table of ours knows them by their first addresses.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulong, c_void};
use std::ptr::NonNull;

use ::ucs::Status;

use crate::entry::{CStatus, invalid};

/// Regions begin and end at multiples of this: `UCS_PGT_ADDR_ALIGN`.
const ALIGN: c_ulong = 16;

/// `ucs_pgt_region_t`: the first address, and the one behind the last.
#[repr(C, align(8))]
pub(crate) struct Region {
    start: c_ulong,
    end: c_ulong,
}

/// A region of the program and where it ends, by its first address.
type Regions = BTreeMap<c_ulong, (c_ulong, NonNull<Region>)>;

/// Functions that UCX calls for the memory of its tables.
type Callback = Option<unsafe extern "C" fn()>;

/// `ucs_pgtable_t`. The first field is UCX's own, and here that of the regions: null without any.
#[repr(C)]
pub(crate) struct PgTable {
    regions: *mut Regions,
    base: c_ulong,
    mask: c_ulong,
    shift: c_uint,
    num_regions: c_uint,
    alloc: Callback,
    release: Callback,
}

/// `ucs_pgt_search_callback_t`.
type Search = Option<unsafe extern "C" fn(*const PgTable, *mut Region, *mut c_void)>;

impl PgTable {
    /// Regions of the table, if there is one.
    fn regions(&self) -> Option<&Regions> {
        // SAFETY: `regions` is null or of `Box::into_raw`, and borrowed like the table.
        unsafe { self.regions.as_ref() }
    }

    /// As [`PgTable::regions`], for changes.
    fn regions_mut(&mut self) -> &mut Regions {
        if self.regions.is_null() {
            self.regions = Box::into_raw(Box::default());
        }
        // SAFETY: it is of `Box::into_raw`, and borrowed like the table.
        unsafe { &mut *self.regions }
    }

    /// Counts the regions, and frees their table if there are none.
    fn changed(&mut self) {
        let count = self.regions().map_or(0, BTreeMap::len);
        self.num_regions = c_uint::try_from(count).unwrap_or(c_uint::MAX);
        if count == 0 {
            drop(self.take());
        }
    }

    /// Takes all regions out.
    fn take(&mut self) -> Regions {
        let regions = std::mem::replace(&mut self.regions, std::ptr::null_mut());
        self.num_regions = 0;
        if regions.is_null() {
            return Regions::new();
        }
        // SAFETY: it is of `Box::into_raw`, and the table has forgotten it.
        *unsafe { Box::from_raw(regions) }
    }
}

/// Regions that have an address from `from` to `to`, both included, in the order of their addresses.
fn overlapping(regions: &Regions, from: c_ulong, to: c_ulong) -> impl Iterator<Item = NonNull<Region>> {
    let before = regions.range(..from).next_back().filter(|(_, (end, _))| *end > from);
    // A range whose bounds are the wrong way round panics.
    let within = (from <= to).then(|| regions.range(from..=to)).into_iter().flatten();
    before.into_iter().chain(within).map(|(_, (_, region))| *region)
}

/// A region of the caller, if its addresses can be those of one.
///
/// # Safety
/// `region` is null or a region that is not changed while it is in a table.
unsafe fn valid(region: *mut Region) -> Option<(c_ulong, c_ulong, NonNull<Region>)> {
    let region = NonNull::new(region)?;
    // SAFETY: the contract of this function.
    let (start, end) = unsafe { ((*region.as_ptr()).start, (*region.as_ptr()).end) };
    (start < end && start % ALIGN == 0 && end % ALIGN == 0).then_some((start, end, region))
}

entry! {
    /// Makes an empty table. The callbacks are not called: directories of UCX are not needed.
    fn ucs_pgtable_init(table: *mut PgTable, alloc: Callback, release: Callback) -> CStatus {
        if table.is_null() {
            return Err(invalid("ucs_pgtable_init: the table is null"));
        }
        let empty = PgTable {
            regions: std::ptr::null_mut(), base: 0, mask: !(ALIGN - 1), shift: 4, num_regions: 0, alloc, release,
        };
        // SAFETY: the caller has room for a table.
        unsafe { table.write(empty) };
        Ok(())
    }

    /// Frees what a table needs. Its regions are the caller's.
    fn ucs_pgtable_cleanup(table: *mut PgTable) {
        // SAFETY: the caller passes a table that is initialized, or null, which no other thread uses.
        if let Some(table) = unsafe { table.as_mut() } {
            let left = table.take().len();
            if left > 0 {
                tracing::warn!("ucs_pgtable_cleanup: {left} regions are still in the table");
            }
        }
        Ok(())
    }

    /// Adds a region, which overlaps no other one.
    fn ucs_pgtable_insert(table: *mut PgTable, region: *mut Region) -> CStatus {
        // SAFETY: as above.
        let table = unsafe { table.as_mut() }.ok_or_else(|| invalid("ucs_pgtable_insert: the table is null"))?;
        // SAFETY: the caller passes a region, or null.
        let (start, end, region) = unsafe { valid(region) }.ok_or(Status::InvalidParam)?;
        if table.regions().is_some_and(|regions| overlapping(regions, start, end - 1).next().is_some()) {
            return Err(Status::AlreadyExists);
        }
        table.regions_mut().insert(start, (end, region));
        table.changed();
        Ok(())
    }

    /// Takes a region out, which is known by its address.
    fn ucs_pgtable_remove(table: *mut PgTable, region: *mut Region) -> CStatus {
        // SAFETY: as above.
        let table = unsafe { table.as_mut() }.ok_or_else(|| invalid("ucs_pgtable_remove: the table is null"))?;
        // SAFETY: the caller passes a region, or null.
        let (start, _, region) = unsafe { valid(region) }.ok_or(Status::NoElem)?;
        if table.regions().and_then(|regions| regions.get(&start)).is_none_or(|(_, known)| *known != region) {
            return Err(Status::NoElem);
        }
        table.regions_mut().remove(&start);
        table.changed();
        Ok(())
    }

    /// The region that has an address, or null.
    fn ucs_pgtable_lookup(table: *const PgTable, address: c_ulong) -> *mut Region {
        // SAFETY: the caller passes a table that is initialized, or null, which nobody changes meanwhile.
        let regions = unsafe { table.as_ref() }.and_then(PgTable::regions).ok_or(Status::NoElem)?;
        overlapping(regions, address, address).next().map(NonNull::as_ptr).ok_or(Status::NoElem)
    }

    /// Calls a function for each region that has an address of a range, both ends included.
    fn ucs_pgtable_search_range(table: *const PgTable, from: c_ulong, to: c_ulong, found: Search, arg: *mut c_void) {
        let Some(found) = found else { return Err(Status::InvalidParam) };
        // SAFETY: as above; the function does not change the table.
        let regions = unsafe { table.as_ref() }.and_then(PgTable::regions).ok_or(Status::NoElem)?;
        for region in overlapping(regions, from, to) {
            // SAFETY: it is the caller's function for regions of this table.
            unsafe { found(table, region.as_ptr(), arg) };
        }
        Ok(())
    }

    /// Takes all regions out, then calls a function for each.
    fn ucs_pgtable_purge(table: *mut PgTable, found: Search, arg: *mut c_void) {
        // SAFETY: as above.
        let regions = unsafe { table.as_mut() }.map(PgTable::take).unwrap_or_default();
        let Some(found) = found else { return Ok(()) };
        for (_, region) in regions.into_values() {
            // SAFETY: it is the caller's function for regions of this table. It may free the region.
            unsafe { found(table, region.as_ptr(), arg) };
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
            "#include <stddef.h>\n#include <ucs/datastruct/pgtable.h>\n\
             _Static_assert(sizeof(ucs_pgtable_t) == {}, \"\");\n\
             _Static_assert(offsetof(ucs_pgtable_t, num_regions) == {}, \"\");\n\
             _Static_assert(sizeof(ucs_pgt_region_t) == {}, \"\");\n\
             _Static_assert(offsetof(ucs_pgt_region_t, end) == {}, \"\");\n\
             _Static_assert(UCS_PGT_ADDR_ALIGN == {ALIGN}, \"\");\n",
            size_of::<PgTable>(),
            std::mem::offset_of!(PgTable, num_regions),
            size_of::<Region>(),
            std::mem::offset_of!(Region, end),
        );
        crate::layout::assert_compiles("/usr/include/ucs/datastruct/pgtable.h", &source);
        crate::layout::assert_compiles_with_ours(&source);
    }

    #[test]
    fn ranges_meet_regions_at_either_end() {
        let region = |at: usize| NonNull::new(std::ptr::without_provenance_mut(at)).expect("not null");
        let regions = Regions::from([(32, (64, region(8))), (64, (96, region(16)))]);
        let found = |from, to| overlapping(&regions, from, to).map(|at| at.addr().get()).collect::<Vec<_>>();
        assert_eq!(found(0, 31), [0; 0]);
        assert_eq!(found(0, 32), [8]);
        assert_eq!(found(63, 63), [8]);
        assert_eq!(found(63, 64), [8, 16]);
        assert_eq!(found(95, 200), [16]);
        assert_eq!(found(96, 200), [0; 0]);
        assert_eq!(found(64, 40), [0; 0]);
        assert_eq!(found(0, c_ulong::MAX), [8, 16]);
    }
}
