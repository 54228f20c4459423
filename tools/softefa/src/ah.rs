//! Address handles: 16-bit numbers, one for each (protection domain, GID), counted; the device has its own below.
//! Called through `ibv_create_ah`, `ibv_destroy_ah`, `efadv_query_ah`, and for every completion of a receive.

use crate::abi::{EfadvAhAttr, IbvAh, IbvAhAttr, IbvPd};
use crate::efadv::{copy_out, covers};
use crate::pd::PdObj;
use crate::state::{Context, Errno, errno_of, number, pointer};
use crate::status::NO_AH;
use rustc_hash::FxHashMap;
use uct::efa::dev::soft::{Ah, Pd};
use uct::efa::dev::{Dev, Gid};

/// The numbers in use. // HOT: looked into once per receive completed.
#[derive(Default)]
pub struct AhnTable {
    by_gid: FxHashMap<(Pd, Gid), (u16, u32)>,
    free: Vec<u16>,
    next: u16,
}

impl AhnTable {
    /// The number of `gid` in `pd`, one reference more. `None`: all are in use.
    fn get(&mut self, pd: Pd, gid: Gid) -> Option<u16> {
        if let Some((number, refs)) = self.by_gid.get_mut(&(pd, gid)) {
            *refs += 1;
            return Some(*number);
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.next < NO_AH => {
                self.next += 1;
                self.next - 1
            }
            None => return None,
        };
        self.by_gid.insert((pd, gid), (number, 1));
        Some(number)
    }

    /// One reference less.
    fn put(&mut self, pd: Pd, gid: Gid) {
        let Some((number, refs)) = self.by_gid.get_mut(&(pd, gid)) else { return };
        *refs -= 1;
        if *refs == 0 {
            self.free.push(*number);
            self.by_gid.remove(&(pd, gid));
        }
    }

    /// The number that receives of `pd` show for a sender.
    #[inline]
    pub fn number(&self, pd: Pd, gid: Gid) -> Option<u16> {
        self.by_gid.get(&(pd, gid)).map(|(number, _)| *number)
    }
}

/// An address handle as C holds it.
#[repr(C)]
pub struct AhObj {
    abi: IbvAh,
    pub ah: Ah,
    number: u16,
    gid: Gid,
}

/// # Safety
/// `pd` and `attr` are valid as verbs require.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut IbvPd, attr: *const IbvAhAttr) -> *mut IbvAh {
    // SAFETY: by this function's contract.
    let pd_obj = unsafe { PdObj::of(pd) };
    // SAFETY: as above.
    let attr = unsafe { &*attr };
    pointer(create(pd, pd_obj, Gid(attr.dgid)))
}

fn create(pd: *mut IbvPd, pd_obj: &PdObj, gid: Gid) -> Result<*mut IbvAh, Errno> {
    let state = &mut *pd_obj.context().lock();
    let ah = state.dev.create_ah(&pd_obj.pd, gid).map_err(errno_of)?;
    let Some(number) = state.ahs.get(pd_obj.pd, gid) else {
        state.dev.destroy_ah(&pd_obj.pd, ah);
        return Err(libc::ENOMEM);
    };
    pd_obj.add_user();
    let abi = IbvAh { context: pd_obj.abi.context, pd, number: number.into() };
    Ok(Box::into_raw(Box::new(AhObj { abi, ah, number, gid })).cast())
}

/// # Safety
/// `ah` came from `ibv_create_ah` and is given back once.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut IbvAh) -> i32 {
    // SAFETY: by this function's contract.
    let obj = unsafe { Box::from_raw(ah.cast::<AhObj>()) };
    // SAFETY: a domain outlives what was made in it.
    let pd = unsafe { PdObj::of(obj.abi.pd) };
    // SAFETY: so does a context.
    let state = &mut *unsafe { Context::of(obj.abi.context) }.lock();
    state.ahs.put(pd.pd, obj.gid);
    state.dev.destroy_ah(&pd.pd, obj.ah);
    pd.remove_user();
    0
}

/// # Safety
/// `ah` is an address handle, `attr` is writable for `inlen` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_query_ah(ah: *mut IbvAh, attr: *mut EfadvAhAttr, inlen: u32) -> i32 {
    // SAFETY: by this function's contract.
    let obj = unsafe { &*ah.cast::<AhObj>() };
    if !covers(inlen, std::mem::offset_of!(EfadvAhAttr, reserved)) {
        return number(Err(libc::EINVAL));
    }
    // SAFETY: by this function's contract.
    unsafe { copy_out(attr, inlen, EfadvAhAttr { ahn: obj.number, ..Default::default() }) };
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use uct::efa::dev::soft::{Fabric, FaultPlan, Profile};

    #[test]
    fn one_ahn_per_domain_and_gid() {
        let dev = Fabric::new(1, FaultPlan::NONE).open(1, Profile::small()).unwrap();
        let (a, b) = (dev.alloc_pd().unwrap(), dev.alloc_pd().unwrap());
        let gid = Gid::link_local(7);
        let mut t = AhnTable::default();
        let first = t.get(a, gid).unwrap();
        assert_eq!(t.get(a, gid), Some(first));
        assert_ne!(t.get(b, gid), Some(first));
        t.put(a, gid);
        assert_eq!(t.number(a, gid), Some(first));
        t.put(a, gid);
        assert_eq!(t.number(a, gid), None);
        assert_eq!(t.get(a, Gid::link_local(8)), Some(first), "a number given back is used again");
    }
}
