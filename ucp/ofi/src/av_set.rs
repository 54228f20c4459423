//! Sets of addresses of a vector: the members of a collective group, in order.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::ops::{AvSetOps, FidOps};
use crate::abi::{ADDR_UNSPEC, AvSetAttr, FiAddr, Fid, flags};
use crate::av::Av;
use crate::errno::Errno;
use crate::object::{Object, UserCount, checked, from_handle, read, store, store_handle};
use crate::refused;

/// Most members of a set.
pub(crate) const MAX_MEMBERS: usize = 1 << 20;

/// `FI_UNIVERSE`: a set of all addresses.
const UNIVERSE: u64 = 1 << 57;
/// `FI_BARRIER_SET` to `FI_GATHER_SET`: for which operations the set is used.
const PURPOSES: u64 = 0x1ff << 40;

/// Next address of a group: sets and groups of this process have different ones.
static NEXT_ADDRESS: AtomicU64 = AtomicU64::new(1);

/// An address by which a program names a group.
pub(crate) fn new_address() -> FiAddr {
    NEXT_ADDRESS.fetch_add(1, Ordering::Relaxed)
}

/// `struct fid_av_set`, and what belongs to it.
#[repr(C)]
pub(crate) struct AvSet {
    fid: Fid,
    ops: &'static AvSetOps,
    av: *const Av,
    users: UserCount,
    /// Names the group that joins this set.
    pub(crate) address: FiAddr,
    most: usize,
    members: Mutex<Vec<FiAddr>>,
}

impl Object for AvSet {
    const CLASS: usize = flags::CLASS_AV_SET;
    const NAME: &'static str = "a set of addresses";
    fn users(&self) -> &UserCount {
        &self.users
    }
}

static FID_OPS: FidOps = refused::fid_ops(close, refused::bind, refused::control);

static OPS: AvSetOps =
    AvSetOps { size: size_of::<AvSetOps>(), set_union, intersect, diff, insert, remove, addr };

/// Makes a set of the addresses that the attributes name.
/// # Safety
/// `attr` is null or whole; `to` is null or can be written.
pub(crate) unsafe fn open(
    av: &Av,
    attr: *const AvSetAttr,
    to: *mut *mut Fid,
    context: *mut c_void,
) -> Result<(), Errno> {
    // SAFETY: this function's contract.
    let attr = unsafe { read(attr) }?;
    if attr.comm_key_size != 0 || attr.flags & !(UNIVERSE | PURPOSES) != 0 {
        tracing::error!("fi_av_set: keys of groups and flags {:#x} are not supported", attr.flags);
        return Err(Errno::INVAL);
    }
    let most = if attr.count == 0 { MAX_MEMBERS } else { attr.count.min(MAX_MEMBERS) };
    let members: Vec<FiAddr> = match (attr.start_addr, attr.end_addr) {
        _ if attr.flags & UNIVERSE != 0 => av.numbers(),
        (ADDR_UNSPEC, ADDR_UNSPEC) => Vec::new(),
        (ADDR_UNSPEC, _) | (_, ADDR_UNSPEC) => return Err(Errno::INVAL),
        (start, end) => {
            let stride = usize::try_from(attr.stride.max(1)).map_err(|_| Errno::INVAL)?;
            (start..=end).step_by(stride).take(most + 1).collect()
        }
    };
    if members.len() > most {
        return Err(Errno::INVAL);
    }
    let made = AvSet {
        fid: refused::fid(flags::CLASS_AV_SET, context, &FID_OPS),
        ops: &OPS,
        av,
        users: UserCount::default(),
        address: new_address(),
        most,
        members: Mutex::new(members),
    };
    // SAFETY: as above.
    unsafe { store_handle(to, made) }?;
    av.users().add();
    Ok(())
}

impl AvSet {
    /// The vector whose addresses these are.
    pub(crate) fn av(&self) -> &Av {
        // SAFETY: a vector is not closed before its sets.
        unsafe { &*self.av }
    }

    pub(crate) fn members(&self) -> MutexGuard<'_, Vec<FiAddr>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the set `to` by the members of another one of the same vector.
    /// # Safety
    /// As for [`checked`], of both.
    unsafe fn combine(
        to: *mut Fid,
        with: *mut Fid,
        change: impl FnOnce(&mut Vec<FiAddr>, &[FiAddr]),
    ) -> Result<c_int, Errno> {
        // SAFETY: this function's contract.
        let (to, with): (&AvSet, &AvSet) = unsafe { (checked(to)?, checked(with)?) };
        if !std::ptr::eq(to.av, with.av) {
            return Err(Errno::INVAL);
        }
        let other = with.members().clone();
        let mut members = to.members();
        let mut changed = members.clone();
        change(&mut changed, &other);
        if changed.len() > to.most {
            return Err(Errno::NOMEM);
        }
        *members = changed;
        Ok(0)
    }
}

calls! {
    fn close(fid: *mut Fid) -> c_int {
        let gone = from_handle::<AvSet>(fid)?;
        gone.av().users().remove();
        Ok(0)
    }

    /// Adds the members of another set, behind those that are there.
    fn set_union(to: *mut Fid, with: *mut Fid) -> c_int {
        AvSet::combine(to, with, |members, other| {
            let new: Vec<FiAddr> = other.iter().filter(|one| !members.contains(one)).copied().collect();
            members.extend(new);
        })
    }

    /// Keeps the members that another set has, too.
    fn intersect(to: *mut Fid, with: *mut Fid) -> c_int {
        AvSet::combine(to, with, |members, other| members.retain(|one| other.contains(one)))
    }

    /// Removes the members of another set.
    fn diff(to: *mut Fid, with: *mut Fid) -> c_int {
        AvSet::combine(to, with, |members, other| members.retain(|one| !other.contains(one)))
    }

    fn insert(fid: *mut Fid, address: FiAddr) -> c_int {
        let set: &AvSet = checked(fid)?;
        let mut members = set.members();
        if members.contains(&address) {
            return Err(Errno::INVAL);
        }
        if members.len() >= set.most {
            return Err(Errno::NOMEM);
        }
        members.push(address);
        Ok(0)
    }

    fn remove(fid: *mut Fid, address: FiAddr) -> c_int {
        let set: &AvSet = checked(fid)?;
        let mut members = set.members();
        let at = members.iter().position(|one| *one == address).ok_or(Errno::INVAL)?;
        members.remove(at);
        Ok(0)
    }

    /// The address of the group that joins this set.
    fn addr(fid: *mut Fid, address: *mut FiAddr) -> c_int {
        let set: &AvSet = checked(fid)?;
        store(address, set.address).map(|()| 0)
    }
}
