//! Address handles: `ibv_create_ah`, `ibv_destroy_ah`, `efadv_query_ah`.

use crate::abi::{EfadvAhAttr, IbvAh, IbvAhAttr, IbvPd};
use crate::context::Context;
use crate::errno::{Errno, errno_of, ret_int, ret_ptr};
use crate::pd::PdObj;
use crate::sized::{copy_out, covers};
use uct::efa::dev::soft::Ah;
use uct::efa::dev::{Dev, Gid};

#[repr(C)]
pub struct AhObj {
    abi: IbvAh,
    pub ah: Ah,
    number: u16,
    gid: Gid,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut IbvPd, attr: *const IbvAhAttr) -> *mut IbvAh {
    // SAFETY: by this function's contract.
    let pd_obj = unsafe { PdObj::of(pd) };
    // SAFETY: as above.
    let attr = unsafe { &*attr };
    ret_ptr(create(pd, pd_obj, Gid(attr.dgid)))
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

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut IbvAh) -> i32 {
    // SAFETY: by this function's contract.
    let obj = unsafe { &*ah.cast::<AhObj>() };
    // SAFETY: a domain outlives what was made in it.
    let pd = unsafe { PdObj::of(obj.abi.pd) };
    // SAFETY: so does a context.
    let Some(mut state) = (unsafe { Context::of(obj.abi.context) }).lock_to_free() else { return 0 };
    state.ahs.put(pd.pd, obj.gid);
    state.dev.destroy_ah(&pd.pd, obj.ah);
    drop(state);
    pd.remove_user();
    // SAFETY: made by Box::into_raw in `create`, given back once.
    drop(unsafe { Box::from_raw(ah.cast::<AhObj>()) });
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn efadv_query_ah(ah: *mut IbvAh, attr: *mut EfadvAhAttr, inlen: u32) -> i32 {
    // SAFETY: by this function's contract.
    let obj = unsafe { &*ah.cast::<AhObj>() };
    if !covers(inlen, std::mem::offset_of!(EfadvAhAttr, reserved)) {
        return ret_int(Err(libc::EINVAL));
    }
    // SAFETY: by this function's contract.
    unsafe { copy_out(attr, inlen, EfadvAhAttr { ahn: obj.number, ..Default::default() }) };
    0
}
