//! Completion queues: created, polled, armed and destroyed. The extended poll is in `poll`.

use crate::abi::{IbvCompChannel, IbvContext, IbvCq, IbvCqEx, IbvCqInitAttrEx, IbvWc};
use crate::channel::ChannelObj;
use crate::context::Context;
use crate::cq_obj::{CqObj, UnackedEvents};
use crate::errno::{Errno, report, ret_int, ret_ptr};
use crate::poll;
use crate::query::COMP_VECTORS;
use crate::split_lock::SplitLock;
use crate::state::CqState;
use crate::status::{Completion, next_completion};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use uct::efa::dev::{Channel, Dev, DevCq};

struct CqParams {
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut IbvCompChannel,
    comp_vector: c_int,
}

unsafe fn create(ctx: *mut IbvContext, params: &CqParams) -> Result<*mut CqObj, Errno> {
    // SAFETY: by this function's contract `ctx` is an open context.
    let context = unsafe { Context::of(ctx) };
    if params.cqe < 1 || !(0..COMP_VECTORS).contains(&params.comp_vector) {
        return Err(libc::EINVAL);
    }
    // SAFETY: by this function's contract the channel is null or one of ours.
    let channel = unsafe { params.channel.cast::<ChannelObj>().as_ref() };
    let kind = if channel.is_some() { Channel::With } else { Channel::Without };
    let state = &mut *context.lock();
    let cq = state.dev.create_cq(params.cqe as u32, kind).map_err(|e| report(&e))?;
    let depth = cq.depth();
    let cq_state = CqState::new(cq);
    let id = state.cqs.insert(cq_state).map_err(|_| libc::ENOMEM)?;
    let base = IbvCq {
        context: ctx,
        channel: params.channel,
        cq_context: params.cq_context,
        number: id.raw(),
        cqe: depth as c_int,
        mutex: [0; 5],
        cond: [0; 6],
        comp_events_completed: 0,
        async_events_completed: 0,
    };
    let obj = CqObj {
        ex: UnsafeCell::new(poll::table(base)),
        efadv: poll::efadv_table(),
        id,
        current: SplitLock::new(Completion::default()),
        events: UnackedEvents::default(),
    };
    let obj = Box::into_raw(Box::new(obj));
    if let Some(channel) = channel
        && let Some(cq_state) = state.cqs.get(id)
        && let Some(fd) = cq_state.cq.event_fd()
        && let Err(e) = channel.add(fd, obj)
    {
        state.cqs.remove(id);
        // SAFETY: made just above, shown to nobody.
        drop(unsafe { Box::from_raw(obj) });
        return Err(e);
    }
    Ok(obj)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    ctx: *mut IbvContext,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut IbvCompChannel,
    comp_vector: c_int,
) -> *mut IbvCq {
    // SAFETY: by this function's contract.
    let made = unsafe { create(ctx, &CqParams { cqe, cq_context, channel, comp_vector }) };
    ret_ptr(made.map(|obj| obj.cast()))
}

pub unsafe extern "C" fn create_ex(ctx: *mut IbvContext, attr: *mut IbvCqInitAttrEx) -> *mut IbvCqEx {
    const MASK_FLAGS: u32 = 1;
    const MASK_PD: u32 = 2;
    const SINGLE_THREADED: u32 = 1;
    const WC_FLAGS: u64 = 0x7f;
    // SAFETY: by this function's contract.
    let attr = unsafe { &*attr };
    let flags = if attr.comp_mask & MASK_FLAGS != 0 { attr.flags } else { 0 };
    let known = attr.comp_mask & !(MASK_FLAGS | MASK_PD) == 0 && flags & !SINGLE_THREADED == 0;
    if !known || attr.wc_flags & !WC_FLAGS != 0 {
        return ret_ptr(Err(libc::EOPNOTSUPP));
    }
    let params = CqParams {
        cqe: c_int::try_from(attr.cqe).unwrap_or(c_int::MAX),
        cq_context: attr.cq_context,
        channel: attr.channel,
        comp_vector: attr.comp_vector as c_int,
    };
    // SAFETY: by this function's contract.
    let made = unsafe { create(ctx, &params) };
    ret_ptr(made.map(|obj| obj.cast()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(cq: *mut IbvCq) -> c_int {
    // SAFETY: by this function's contract.
    let obj = unsafe { CqObj::of(cq) };
    // SAFETY: the field was written when the object was made and is never written again.
    let channel = unsafe { (*obj.ex.get()).base.channel };
    // SAFETY: null, or a channel that outlives its queues (rule of verbs).
    let channel = unsafe { channel.cast::<ChannelObj>().as_ref() };
    match remove(obj, channel) {
        Err(e) => return ret_int(Err(e)),
        Ok(Removed::Left) => return 0,
        Ok(Removed::Gone) => {}
    }
    // Nobody finds it from now on; wait for those that hold an event.
    obj.events.wait();
    // SAFETY: made by Box::into_raw in `create`, given back once.
    drop(unsafe { Box::from_raw(cq.cast::<CqObj>()) });
    0
}

enum Removed {
    Gone,
    /// The lock cannot be had: it stays until the process ends.
    Left,
}

fn remove(obj: &CqObj, channel: Option<&ChannelObj>) -> Result<Removed, Errno> {
    let Some(mut state) = obj.context().lock_to_free() else { return Ok(Removed::Left) };
    match state.cqs.get(obj.id) {
        None => return Err(libc::EINVAL),
        Some(cq_state) if cq_state.users > 0 => return Err(libc::EBUSY),
        Some(cq_state) => {
            if let (Some(channel), Some(fd)) = (channel, cq_state.cq.event_fd()) {
                channel.remove(fd, obj);
            }
        }
    }
    // Dropped under the lock: device objects share unsynchronised counts.
    drop(state.cqs.remove(obj.id));
    Ok(Removed::Gone)
}

/// Polls the plain way.
// HOT
pub unsafe extern "C" fn poll_cq(cq: *mut IbvCq, n: c_int, wc: *mut IbvWc) -> c_int {
    // SAFETY: by this function's contract.
    let obj = unsafe { CqObj::of(cq) };
    let state = &mut *obj.context().lock();
    let mut filled = 0;
    while filled < n {
        let Some(done) = next_completion(state, obj.id) else { break };
        let room = wc.wrapping_add(filled as usize);
        // SAFETY: `filled < n`: inside the caller's array.
        unsafe { room.write(done.wc) };
        filled += 1;
    }
    filled
}

pub unsafe extern "C" fn req_notify_cq(cq: *mut IbvCq, solicited_only: c_int) -> c_int {
    if solicited_only != 0 {
        return libc::EOPNOTSUPP;
    }
    // SAFETY: by this function's contract.
    let obj = unsafe { CqObj::of(cq) };
    let state = &mut *obj.context().lock();
    let Some(cq_state) = state.cqs.get(obj.id) else { return libc::EINVAL };
    cq_state.cq.notify();
    if cq_state.has_batched() {
        cq_state.cq.signal();
    }
    0
}

/// Accepts only a size that the queue already has.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(cq: *mut IbvCq, cqe: c_int) -> c_int {
    // SAFETY: by this function's contract.
    let obj = unsafe { CqObj::of(cq) };
    // SAFETY: written when the object was made.
    let has = unsafe { (*obj.ex.get()).base.cqe };
    ret_int(if cqe <= has { Ok(()) } else { Err(libc::EOPNOTSUPP) })
}
