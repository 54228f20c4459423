//! Active messages: `ucp_am_send_nbx` and the deprecated `ucp_am_send_nb`.
//!
//! A message that a program keeps is known by the address of its data: the address that the handler got.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{c_uint, c_void};

use ::ucs::Status;
use ucp::{AmMessage, AmParams, AmProto, OpParams, OpStatus, RequestId};

use crate::arg::ParamsPtr;
use crate::check::{argument, enter, is_on};
use crate::datatype::{Data, Use};
use crate::entry::{CStatus, StatusPtr, guard, invalid};
use crate::ep::Ep;
use crate::handle::{checked, from_ptr};
use crate::op::{Call, LengthRecv, NoResult, REMOTE_LIST, SLOW_PATH_SEND, run};
use crate::types::{AmCallback, AmHandlerParam, AmRecvCallback, RequestParam};
use crate::worker::Worker;

mod deliver;
mod spare;
use deliver::{OldRecvs, on_message, on_message_general};
use spare::Spare;

/// Values of `ucp_send_am_flags`.
const SEND_REPLY: u32 = 1 << 0;
const SEND_EAGER: u32 = 1 << 1;
const SEND_RNDV: u32 = 1 << 2;
/// Data that the program keeps.
enum Kept {
    Message(AmMessage),
    /// Data of a message of eight bytes, copied because it would move with the message.
    Word {
        memory: WordBox,
        message: AmMessage,
    },
    /// Data that was received into memory of the library.
    Received(Vec<u8>),
}

/// The message that a handler has got with its data, which it may receive as well.
#[derive(Clone, Copy)]
struct Handled {
    /// Address of the data that the handler got; null: none, or it has been received.
    data: *const u8,
    /// Valid while the handler runs.
    message: *const AmMessage,
}

/// State of a worker for active messages, used inside its lock.
pub(crate) struct AmState {
    kept: RefCell<HashMap<usize, Kept>>,
    handled: Cell<Handled>,
    /// Memory for headers and data.
    spare: Spare,
    /// Memory for the next message that does not stay where it is; `None`: a handler has it.
    word: Cell<Option<WordBox>>,
    /// Receives for handlers of the deprecated interface. Freed behind the engine, which writes into their
    /// memory.
    received: OldRecvs,
}

/// Memory for a message of eight bytes. It has more, so that the address behind an empty message is inside.
type WordBox = Box<[u8; 16]>;

const NOT_HANDLED: Handled = Handled { data: std::ptr::null(), message: std::ptr::null() };

/// A function of the program that a handler calls.
#[derive(Clone, Copy)]
enum Handler {
    Present(AmRecvCallback),
    Old(AmCallback),
}

impl AmState {
    pub(crate) fn new() -> AmState {
        AmState {
            kept: RefCell::default(),
            handled: Cell::new(NOT_HANDLED),
            spare: Spare::default(),
            word: Cell::new(None),
            received: OldRecvs::default(),
        }
    }

    /// Runs the handler of a message whose data is at `data`. Returns whether the program keeps the data. A
    /// handler may make progress, and is called again then.
    #[inline]
    fn handle(&self, data: *const u8, message: &AmMessage, handler: impl FnOnce() -> bool) -> bool {
        let before = self.handled.replace(Handled { data, message });
        let keeps = handler();
        let after = self.handled.replace(before);
        keeps && !after.data.is_null()
    }

    /// A copy of a message of eight bytes, at an address where it stays. `None`: no memory.
    // HOT
    #[inline(always)]
    fn copy_word(&self, word: [u8; 8]) -> Option<WordBox> {
        let mut copy = self.word.take().or_else(|| self.spare.take_array())?;
        copy[..8].copy_from_slice(&word);
        Some(copy)
    }

    /// Takes the memory of a message of eight bytes back.
    // HOT
    #[inline(always)]
    fn give_back_word(&self, word: WordBox) {
        if let Some(second) = self.word.replace(Some(word)) {
            self.spare.give_back(Vec::from(second as Box<[u8]>));
        }
    }

    /// Whether the handler which runs has got its data at an address, and has not received it.
    fn is_handled(&self, data: *const c_void) -> bool {
        !data.is_null() && self.handled.get().data == data.cast()
    }

    /// The message that the handler which runs has got with its data, once.
    fn take_handled(&self, data: *const c_void) -> Option<Handled> {
        self.is_handled(data).then(|| self.handled.replace(NOT_HANDLED))
    }

    /// Drops what the program keeps.
    pub(crate) fn clear(&self) {
        let kept = std::mem::take(&mut *self.kept.borrow_mut());
        drop(kept);
    }

    fn keep(&self, data: *const u8, kept: Kept) {
        let before = self.kept.borrow_mut().insert(data.addr(), kept);
        drop(before);
    }

    /// Whether the program keeps a message at an address that can be received.
    fn has_message(&self, data: *const c_void) -> bool {
        let kept = self.kept.borrow();
        matches!(kept.get(&data.addr()), Some(Kept::Message(_) | Kept::Word { .. }))
    }

    fn take(&self, data: *const c_void) -> Option<Kept> {
        self.kept.borrow_mut().remove(&data.addr())
    }

    /// Frees data that the program has kept. Its memory serves later messages.
    fn release(&self, kept: Kept) {
        match kept {
            Kept::Message(message) => drop(message),
            Kept::Word { memory, message } => {
                drop(message);
                self.give_back_word(memory);
            }
            Kept::Received(memory) => self.spare.give_back(memory),
        }
    }
}

/// Sets or removes a handler.
/// # Safety
/// The handler may be called with `arg` until it is replaced or the worker is freed.
unsafe fn set_handler(
    worker: *mut Worker,
    id: u16,
    handler: Option<Handler>,
    arg: *mut c_void,
) -> Result<(), Status> {
    let worker = checked(worker)?;
    let at = std::ptr::from_ref(worker);
    worker.with_worker(|plain| match handler {
        Some(Handler::Present(cb)) => plain.set_am_handler(id, move |message| {
            // SAFETY: progress of this worker calls this, so it is there. This function's contract.
            unsafe { on_message(&*at, cb, arg, message) };
        }),
        Some(old) => plain.set_am_handler(id, move |message| {
            // SAFETY: as above.
            unsafe { on_message_general(&*at, old, arg, message) };
        }),
        None => plain.clear_am_handler(id),
    })
}

/// The header that a caller passes, valid during the call.
/// # Safety
/// The header is null or can be read, as long as the result is used.
unsafe fn header_of<'a>(header: (*const c_void, usize)) -> Result<&'a [u8], Status> {
    match header {
        (_, 0) => Ok(&[]),
        (at, _) if at.is_null() => Err(invalid("the header of an active message is null")),
        // SAFETY: this function's contract.
        (at, len) => Ok(unsafe { std::slice::from_raw_parts(at.cast(), len) }),
    }
}

/// Sends a message within the call, or not at all.
/// # Safety
/// The data can be read during the call.
#[cold]
unsafe fn send_now(
    ep: &Ep,
    (id, header): (u16, &[u8]),
    (buffer, count): (*const c_void, usize),
    call: &Call,
) -> Result<StatusPtr, Status> {
    // SAFETY: this function's contract.
    let Data::Bytes(at, len) = (unsafe { Data::contiguous(buffer, count, call.datatype()) })? else {
        return Err(Status::NoResource);
    };
    let how = (id, call.flags() & SEND_REPLY != 0);
    // SAFETY: as above.
    let sent = ep.worker().with_worker(|_| unsafe { ucp::am_send_now_raw(&ep.ep, how, header, at, len) })?;
    if sent { Ok(StatusPtr::OK) } else { Err(Status::NoResource) }
}

/// Arguments of [`ucp_am_send_nbx`], by its contract.
struct SendArgs {
    ep: *mut Ep,
    id: c_uint,
    header: (*const c_void, usize),
    data: (*const c_void, usize),
    param: *const RequestParam,
}

/// Sends a short message to the endpoint `of`, which the arguments name, within the call. Returns false if
/// nothing was sent; then `send` sends it or returns the error.
/// # Safety
/// As for [`ucp_am_send_nbx`].
// HOT
#[inline(always)]
unsafe fn send_short(of: &Ep, args: &SendArgs) -> bool {
    let ((header, header_len), (buffer, count)) = (args.header, args.data);
    // SAFETY: this function's contract.
    if let Some(call) = unsafe { Call::fast(args.param) }
        && let Some(len) = call.plain_len(buffer, count, SLOW_PATH_SEND | REMOTE_LIST)
        && let Ok(id) = u16::try_from(args.id)
        && (header_len == 0 || !header.is_null())
    {
        let flags = call.flags();
        let header = match header_len {
            0 => &[],
            // SAFETY: as above.
            _ => unsafe { std::slice::from_raw_parts(header.cast(), header_len) },
        };
        let how = (id, flags & SEND_REPLY != 0);
        // SAFETY: as above.
        return flags & SEND_RNDV == 0
            && unsafe { ucp::am_send_now_raw(&of.ep, how, header, buffer.cast(), len) };
    }
    false
}

/// [`send_short`] in mode single.
/// # Safety
/// As for [`ucp_am_send_nbx`].
// HOT
#[inline(always)]
unsafe fn send_unlocked(args: &SendArgs) -> bool {
    // SAFETY: this function's contract.
    if let Some(of) = unsafe { args.ep.as_ref() }
        && of.worker().plain().is_some()
        // SAFETY: as above.
        && unsafe { send_short(of, args) }
    {
        of.worker().wake_sleepers();
        return true;
    }
    false
}

/// General path of [`ucp_am_send_nbx`]: for sends that do not complete at once, run under `UCX_CHECK=y`, or
/// need the worker's lock.
/// # Safety
/// As for [`ucp_am_send_nbx`].
// HOT
#[inline(never)]
unsafe fn send_nbx_general(args: &SendArgs) -> StatusPtr {
    let SendArgs { ep, param, .. } = *args;
    if is_on() {
        // SAFETY: this function's contract.
        unsafe { enter("ucp_am_send_nbx", &[argument!(ep), argument!(param)]) };
    }
    // SAFETY: this function's contract.
    if let Some(of) = unsafe { ep.as_ref() }
        // SAFETY: as above.
        && of.worker().locked(|_| unsafe { send_short(of, args) }) == Some(true)
    {
        return StatusPtr::OK;
    }
    // SAFETY: as above.
    let started = unsafe { Call::read_general(param).and_then(|call| send(args, &call)) };
    started.unwrap_or_else(StatusPtr::error)
}

/// Starts a send.
/// # Safety
/// As for [`ucp_am_send_nbx`].
unsafe fn send(args: &SendArgs, call: &Call) -> Result<StatusPtr, Status> {
    let SendArgs { ep, id, header, data, .. } = *args;
    // SAFETY: this function's contract.
    let ep = unsafe { from_ptr(ep) }?;
    let id = u16::try_from(id).map_err(|_| invalid("ids of active messages have 16 bits"))?;
    // SAFETY: as above.
    let header = unsafe { header_of(header) }?;
    if call.must_complete_now() {
        // SAFETY: as above.
        return unsafe { send_now(ep, (id, header), data, call) };
    }
    let proto = match call.flags() & (SEND_EAGER | SEND_RNDV) {
        0 => AmProto::Auto,
        SEND_EAGER => AmProto::Eager,
        SEND_RNDV => AmProto::Rendezvous,
        _ => return Err(invalid("an active message is sent eagerly or by rendezvous, not both")),
    };
    let how = AmParams { proto, reply: call.flags() & SEND_REPLY != 0, ..AmParams::default() };
    // SAFETY: as above.
    unsafe { send_general(ep, (id, header), data, how, call) }
}

/// Starts a send by a protocol.
/// # Safety
/// The data can be read until the send has ended.
unsafe fn send_general(
    ep: &Ep,
    (id, header): (u16, &[u8]),
    (buffer, count): (*const c_void, usize),
    how: AmParams<'_>,
    call: &Call,
) -> Result<StatusPtr, Status> {
    // SAFETY: this function's contract.
    let data = unsafe { Data::new(buffer, count, call.datatype(), Use::Pack) }?;
    let worker = ep.worker();
    worker.with_worker(|plain| {
        // SAFETY: as above: buffer and callback stay valid until the end.
        unsafe {
            run::<NoResult, _>(worker, plain, call, None, |done| {
                let params = AmParams { done, mem: call.mem(), ..how };
                match data {
                    Data::Bytes(at, len) => ep.ep.am_send_raw(id, header, at, len, &params),
                    ref other => ep.ep.am_send_layout_raw(id, header, other.layout(&other.single()), &params),
                }
            })
        }
    })?
}

/// Receives the data that the handler which runs has got.
/// # Safety
/// `data` can be written during the call.
#[inline(never)]
unsafe fn copy_handled(
    worker: &Worker,
    plain: &ucp::Worker,
    handled: Handled,
    data: &Data,
    call: &Call,
) -> Result<StatusPtr, Status> {
    let truncated = Cell::new(ucp::RecvStatus::EMPTY);
    // SAFETY: `AmState::handle` borrows the message while the handler runs, which makes this call.
    let message = unsafe { &*handled.message };
    // SAFETY: this function's contract; the callback is valid during the call, and not used later.
    unsafe {
        run::<LengthRecv, _>(worker, plain, call, Some(&truncated), |_| {
            let params = OpParams { truncated: Some(&truncated), mem: call.mem(), ..OpParams::default() };
            let copied = message.copy_layout_raw(data.layout(&data.single()), &params);
            let copied = copied.unwrap_or(Err(ucp::Error::Closed));
            if copied.as_ref().is_err_and(|error| error.keeps_message()) {
                worker.am.handled.set(handled);
            }
            copied
        })
    }
}

/// Sends an active message.
/// # Safety
/// `ep` is null or live, `param` as for [`Call::fast`], the header can be read during the call, and the data
/// until the send has ended.
// HOT
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ucp_am_send_nbx(
    ep: *mut Ep,
    id: c_uint,
    header: *const c_void,
    header_length: usize,
    buffer: *const c_void,
    count: usize,
    param: *const RequestParam,
) -> StatusPtr {
    guard("ucp_am_send_nbx", || {
        let args = SendArgs { ep, id, header: (header, header_length), data: (buffer, count), param };
        // SAFETY: this function's contract.
        let is_sent = !is_on() && unsafe { send_unlocked(&args) };
        // SAFETY: as above.
        Ok(if is_sent { StatusPtr::OK } else { unsafe { send_nbx_general(&args) } })
    })
}

entry! {
    /// Sets the handler of messages with a number; null removes it.
    fn ucp_worker_set_am_recv_handler(worker: *mut Worker, param: ParamsPtr<AmHandlerParam>) -> CStatus {
        let param = param.fields("ucp_worker_set_am_recv_handler")?;
        let id = field!(param, 1 << 0, id).ok_or_else(|| invalid("ucp_worker_set_am_recv_handler: id is missing"))?;
        let cb = field!(param, 1 << 2, cb).flatten();
        let arg = field!(param, 1 << 3, arg).unwrap_or(std::ptr::null_mut());
        let id = u16::try_from(id).map_err(|_| invalid("ucp_worker_set_am_recv_handler: ids of active messages have 16 bits"))?;
        // SAFETY: the caller's contract.
        unsafe { set_handler(worker, id, cb.map(Handler::Present), arg) }
    }

    /// Sets the handler of messages with a number; deprecated (`ucp_compat.h`).
    fn ucp_worker_set_am_handler(
        worker: *mut Worker, id: u16, cb: Option<AmCallback>, arg: *mut c_void, _flags: u32,
    ) -> CStatus {
        // SAFETY: the caller's contract.
        unsafe { set_handler(worker, id, cb.map(Handler::Old), arg) }
    }

    /// Sends an active message without a header; deprecated (`ucp_compat.h`).
    fn ucp_am_send_nb(
        ep: *mut Ep,
        id: u16,
        buffer: *const c_void,
        count: usize,
        datatype: u64,
        cb: *const c_void,
        flags: c_uint,
    ) -> StatusPtr {
        let param = RequestParam::old(cb, datatype).with_flags(flags);
        let (header, data) = ((std::ptr::null(), 0), (buffer, count));
        let args = SendArgs { ep, id: id.into(), header, data, param: &param };
        // SAFETY: the caller's contract.
        unsafe { if send_unlocked(&args) { Ok(StatusPtr::OK) } else { send(&args, &Call::of(&param)) } }
    }

    /// Receives the data of a message that was announced, has been kept, or is what the running handler got.
    fn ucp_am_recv_data_nbx(
        worker: *mut Worker, desc: *mut c_void, buffer: *mut c_void, count: usize, param: *const RequestParam,
    ) -> StatusPtr {
        // SAFETY: the caller's contract.
        let (call, worker) = unsafe { (Call::read(param)?, from_ptr(worker)?) };
        // SAFETY: as above.
        let data = || unsafe { Data::new(buffer, count, call.datatype(), Use::Unpack) };
        worker.with_worker(|plain| {
            // The message is found first, and stays if the buffer or the datatype is refused.
            if worker.am.is_handled(desc) {
                let data = data()?;
                let handled = worker.am.take_handled(desc).ok_or(Status::InvalidParam)?;
                // SAFETY: as above.
                return unsafe { copy_handled(worker, plain, handled, &data, &call) };
            }
            if !worker.am.has_message(desc) {
                crate::check::kept(desc, false);
                tracing::error!("ucp_am_recv_data_nbx: no message has this data descriptor");
                return Err(Status::InvalidParam);
            }
            let data = data()?;
            let mut kept = worker.am.take(desc).ok_or(Status::InvalidParam)?;
            let (Kept::Message(message) | Kept::Word { message, .. }) = &mut kept else {
                return Err(Status::InvalidParam);
            };
            let (truncated, refused) = (Cell::new(ucp::RecvStatus::EMPTY), Cell::new(true));
            // MPICH counts on a request for data that was announced, as UCX gives one.
            let ends_later = message.data().is_none() && !call.must_complete_now();
            // SAFETY: as above: buffer and callback stay valid until the end.
            let received = unsafe {
                run::<LengthRecv, _>(worker, plain, &call, Some(&truncated), |done| {
                    let params = OpParams { done, mem: call.mem(), truncated: Some(&truncated) };
                    let started = match data {
                        Data::Bytes(at, len) => message.recv_raw(at, len, &params),
                        ref other => message.recv_layout_raw(other.layout(&other.single()), &params),
                    };
                    refused.set(started.as_ref().is_err_and(|error| error.keeps_message()));
                    let (message, error) = match started {
                        Ok(OpStatus::Done(message)) if ends_later => (message, None),
                        Err(error @ ucp::Error::Truncated { .. }) if ends_later => (truncated.get(), Some(error)),
                        other => return other,
                    };
                    RequestId::ending(plain, message, error, done).map(OpStatus::InProgress)
                })
            };
            match refused.get() {
                true => worker.am.keep(desc.cast(), kept),
                false => worker.am.release(kept),
            }
            received
        })?
    }

    /// Frees data that the program has kept.
    fn ucp_am_data_release(worker: *mut Worker, data: *mut c_void) {
        let worker = checked(worker)?;
        let released = worker.with_worker(|_| worker.am.take(data))?;
        crate::check::kept(data, released.is_some());
        worker.with_worker(|_| released.map(|kept| worker.am.release(kept))).map(drop)
    }
}
