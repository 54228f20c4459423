//! Atomic operations on a peer's memory, typed: without a result, with the old value, and with a compare value.
//! Words in mapped memory are done by this processor where it can; everything else by the peer's, asked by packets. Both
//! agree: the peer's engine uses the same processor's atomics on aligned words of up to 8 bytes.

use crate::api::core::requests::NO_MESSAGE;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use uct::api::{AtomicOp as WordOp, AtomicOps, Comp, Ep as _, Iface as _, Sent, Word};

use crate::api::core::error::Error;
use crate::api::core::requests::{Callback, OpStatus, RequestId, Role};
use crate::api::core::worker_core::Core;
use crate::api::ep::handle::Ep;
use crate::api::ep::protocols::EpProtocols;
use crate::api::request::buf::Held;
use crate::api::request::handles::RecvRequest;
use crate::api::rma::put_get::{NOWHERE, RmaMethod};
use crate::api::rma::rkey::Rkey;

use crate::rdm::amo::{Form, has_form, has_type};
use crate::rdm::{
    Access, AtomicArgs, Gather, RecvBuf, RecvStatus, Scatter, SendBuf, Started as EngineStarted,
};
use crate::select::{AtomicVerdict, Sync, explain_atomic};
use crate::wire::{AtomicOp, Datatype, Iovs, RmaIov};

/// Longest element that [`AtomicType`] has, bytes.
const MAX: usize = 16;

/// A type of element for atomic operations.
pub trait AtomicType: Copy + 'static {
    /// Its number on the wire.
    const TYPE: Datatype;
    /// Its bytes, little endian; those behind its size are zero.
    fn to_bytes(self) -> [u8; MAX];
    /// From its bytes.
    fn from_bytes(bytes: [u8; MAX]) -> Self;
}

macro_rules! types {
    ($($T:ty = $name:ident,)*) => {$(
        impl AtomicType for $T {
            const TYPE: Datatype = Datatype::$name;
            #[inline]
            fn to_bytes(self) -> [u8; MAX] {
                let mut bytes = [0; MAX];
                bytes[..size_of::<$T>()].copy_from_slice(&self.to_le_bytes());
                bytes
            }
            #[inline]
            fn from_bytes(bytes: [u8; MAX]) -> Self {
                <$T>::from_le_bytes(*bytes.first_chunk().expect("no type has more than 16 bytes"))
            }
        }
    )*};
}
types! {
    i8 = Int8, u8 = Uint8, i16 = Int16, u16 = Uint16, i32 = Int32, u32 = Uint32, i64 = Int64, u64 = Uint64,
    i128 = Int128, u128 = Uint128, f32 = Float, f64 = Double,
}

/// An atomic of the `*_raw` kind: `count` elements side by side.
#[derive(Clone, Copy, Debug)]
pub struct AtomicParams {
    /// What to do.
    pub op: AtomicOp,
    /// Type of the elements.
    pub ty: Datatype,
    /// Elements.
    pub count: usize,
    /// An operand for each; of no meaning for [`AtomicOp::Read`].
    pub operand: *const u8,
    /// A compare value for each, for operations that compare.
    pub compare: *const u8,
    /// Where the old values go; null for an operation without result.
    pub result: *mut u8,
    /// When one without result is complete.
    pub sync: Sync,
    /// Called at the end, if it does not end in the call.
    pub done: Option<Callback>,
}

impl AtomicParams {
    fn form(&self) -> Form {
        match (self.op as u32 >= AtomicOp::CompareSwap as u32, self.result.is_null()) {
            (true, _) => Form::Compare,
            (false, true) => Form::Write,
            (false, false) => Form::Fetch,
        }
    }
}

/// An atomic that is to bring an old value. A future of it.
#[must_use = "the operation is done, but nobody sees the old value"]
pub struct FetchRequest<T: AtomicType> {
    request: RecvRequest<Box<[u8]>>,
    of: std::marker::PhantomData<T>,
}

impl<T: AtomicType> FetchRequest<T> {
    fn value(result: Result<RecvStatus, Error>, bytes: &[u8]) -> Result<T, Error> {
        result.map(|_| {
            let mut old = [0; MAX];
            old[..bytes.len().min(MAX)].copy_from_slice(&bytes[..bytes.len().min(MAX)]);
            T::from_bytes(old)
        })
    }

    /// Whether it has ended.
    pub fn is_done(&mut self) -> bool {
        self.request.is_done()
    }

    /// Makes progress until the old value is there.
    pub fn wait(self) -> Result<T, Error> {
        let (result, bytes) = self.request.wait();
        Self::value(result, &bytes)
    }
}

impl<T: AtomicType> Unpin for FetchRequest<T> {}

impl<T: AtomicType> Future for FetchRequest<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.request).poll(cx).map(|(result, bytes)| Self::value(result, &bytes))
    }
}

impl EpProtocols<'_> {
    /// How `op` on elements of this type, in memory of this key, is carried out; `None` if there is no such operation.
    pub fn atomic_method(&self, rkey: &Rkey, op: AtomicOp, ty: Datatype) -> Option<RmaMethod> {
        Some(match self.native_atomic(op, ty)? && self.rma_method(rkey) == RmaMethod::Mapped {
            true => RmaMethod::Mapped,
            false => RmaMethod::Emulated,
        })
    }

    /// Why it is carried out so: in mapped memory, by the device, by packets, in this order. With `UCX_EMULATION=n` perhaps
    /// none is taken, and the operation fails.
    pub fn explain_atomic(&self, rkey: &Rkey, op: AtomicOp, ty: Datatype) -> Option<[AtomicVerdict; 3]> {
        let mapped = self.rma_method(rkey) == RmaMethod::Mapped;
        Some(explain_atomic(mapped, self.native_atomic(op, ty)?, self.ep.worker().core().engine.emulation()))
    }

    /// Whether this processor has it on mapped memory; `None` if there is no such operation.
    fn native_atomic(&self, op: AtomicOp, ty: Datatype) -> Option<bool> {
        let form = [Form::Write, Form::Fetch, Form::Compare].into_iter().find(|form| has_form(op, *form))?;
        if !has_type(op, ty) {
            return None;
        }
        let native = native_op(op, ty, form).is_some_and(|(_, need)| {
            let core = self.ep.worker().core();
            self.ep.lane().is_some_and(|lane| {
                let caps = core.lanes[usize::from(lane.0)].iface.attr().atomics;
                caps.fetch(ty.size()).contains(need)
            })
        });
        Some(native)
    }
}

impl Ep {
    /// Does `params.op` on each of `params.count` elements of the peer's memory at `remote`. // HOT
    ///
    /// # Safety
    /// `operand` and `compare` are valid for reads of the elements' bytes, `result` for writes of them, where the
    /// operation has them; unless the call answers *done* or an error, until the operation's end, all unchanged and
    /// touched by nobody else. `params.done` may be called with its argument.
    pub unsafe fn atomic_raw(
        &self,
        remote: u64,
        rkey: &Rkey,
        params: &AtomicParams,
    ) -> Result<OpStatus<RecvStatus>, Error> {
        self.usable()?;
        let len = params.count.checked_mul(params.ty.size()).ok_or(Error::Invalid)?;
        if !rkey.covers(remote, len as u64, Access::ATOMIC) {
            return Err(Error::RemoteAccess(self.peer()));
        }
        let form = params.form();
        if !has_form(params.op, form) || !has_type(params.op, params.ty) {
            return Err(Error::Invalid);
        }
        let mut core = self.worker().core();
        if params.count == 1
            // SAFETY: the caller's promise.
            && unsafe { self.native(&core, remote, rkey, params, form) }
        {
            return Ok(OpStatus::Done(RecvStatus { len, ..NO_MESSAGE }));
        }
        let some = |wanted: bool| if wanted { len } else { 0 };
        let operand_len = some(params.op != AtomicOp::Read);
        // SAFETY: the caller vouches for the bytes until the operation's end.
        let operand = Gather::one(unsafe { SendBuf::new(params.operand, operand_len) });
        // SAFETY: as above.
        let compare = Gather::one(unsafe { SendBuf::new(params.compare, some(form == Form::Compare)) });
        // SAFETY: as above.
        let room = unsafe { RecvBuf::new(params.result, some(!params.result.is_null())) };
        let result = (!params.result.is_null()).then(|| Scatter::one(room));
        let remote = Iovs::one(RmaIov { addr: remote, len: len as u64, key: rkey.key });
        let (op, ty, sync) = (params.op, params.ty, params.sync);
        let args = AtomicArgs { op, ty, remote, operand, compare, result, sync, user: 0 };
        core.atomic(self, args, len, params.done)
    }

    /// Does it here and now, if this processor can; false otherwise.
    ///
    /// # Safety
    /// As for [`Ep::atomic_raw`].
    #[inline]
    unsafe fn native(&self, core: &Core, remote: u64, rkey: &Rkey, p: &AtomicParams, form: Form) -> bool {
        if !remote.is_multiple_of(p.ty.size() as u64) {
            return false;
        }
        let Some((op, _)) = native_op(p.op, p.ty, form) else { return false };
        let Some((ep, key)) = self.at_once(core, rkey) else { return false };
        macro_rules! on {
            ($W:ty) => {{
                let mut old: $W = 0;
                let at = std::ptr::NonNull::from(&mut old);
                let with = match p.op {
                    AtomicOp::Read => 0,
                    // SAFETY: the caller vouches for the operand.
                    _ => unsafe { p.operand.cast::<$W>().read_unaligned() },
                };
                let sent = match op {
                    Some(op) => {
                        // SAFETY: `old` lives until the end of this call, and mapped memory is done within it.
                        unsafe { ep.atomic_fetch::<$W>(op, with, at, remote, key, Comp::None) }
                    }
                    None => {
                        // SAFETY: the caller vouches for the compare value.
                        let than = unsafe { p.compare.cast::<$W>().read_unaligned() };
                        // SAFETY: as above.
                        unsafe { ep.atomic_cswap::<$W>(than, with, at, remote, key, Comp::None) }
                    }
                };
                if sent != Ok(Sent::Done) {
                    return false;
                }
                if !p.result.is_null() {
                    // SAFETY: the caller vouches for the result.
                    unsafe { p.result.cast::<$W>().write_unaligned(old) };
                }
                debug_assert_eq!(<$W as Word>::BYTES, p.ty.size());
                true
            }};
        }
        match p.ty.size() {
            4 => on!(u32),
            8 => on!(u64),
            _ => false,
        }
    }

    /// Does `op` on the peer's element at `remote`, without a result: a flush tells that it is done.
    pub fn atomic_post<T: AtomicType>(
        &self,
        op: AtomicOp,
        value: T,
        remote: u64,
        rkey: &Rkey,
    ) -> Result<(), Error> {
        let bytes = value.to_bytes();
        let params = AtomicParams { operand: bytes.as_ptr(), ..one::<T>(op) };
        // SAFETY: an operand as short as this is copied in the call; there is no result.
        let started = unsafe { self.atomic_raw(remote, rkey, &params) }?;
        if let OpStatus::InProgress(id) = started {
            self.worker().free(id);
        }
        Ok(())
    }

    /// Does `op` on the peer's element at `remote`; ends with its old value.
    pub fn atomic_fetch<T: AtomicType>(
        &self,
        op: AtomicOp,
        value: T,
        remote: u64,
        rkey: &Rkey,
    ) -> FetchRequest<T> {
        self.fetch(op, value, value, remote, rkey)
    }

    /// Does `op`, one of those that compare, on the peer's element at `remote`; ends with its old value.
    /// [`AtomicOp::CompareSwap`] stores `value` if the element equals `compare`.
    pub fn atomic_compare<T: AtomicType>(
        &self,
        op: AtomicOp,
        compare: T,
        value: T,
        remote: u64,
        rkey: &Rkey,
    ) -> FetchRequest<T> {
        self.fetch(op, value, compare, remote, rkey)
    }

    fn fetch<T: AtomicType>(
        &self,
        op: AtomicOp,
        value: T,
        compare: T,
        remote: u64,
        rkey: &Rkey,
    ) -> FetchRequest<T> {
        let mut held = Held::new(vec![0u8; T::TYPE.size()].into_boxed_slice());
        let (result, _) = held.room();
        let (value, compare) = (value.to_bytes(), compare.to_bytes());
        let params =
            AtomicParams { operand: value.as_ptr(), compare: compare.as_ptr(), result, ..one::<T>(op) };
        // SAFETY: operands as short as these are copied in the call; the request keeps the room for the result.
        let request = match unsafe { self.atomic_raw(remote, rkey, &params) } {
            Ok(OpStatus::Done(status)) => RecvRequest::ended(Ok(status), held),
            Ok(OpStatus::InProgress(id)) => RecvRequest::running(self.worker().clone(), id.0, held),
            Err(e) => RecvRequest::ended(Err(e), held),
        };
        FetchRequest { request, of: std::marker::PhantomData }
    }

    /// Does `op` on the peer's element at `remote` and makes progress until its old value is there. Allocates nothing.
    pub fn atomic_fetch_blocking<T: AtomicType>(
        &self,
        op: AtomicOp,
        value: T,
        remote: u64,
        rkey: &Rkey,
    ) -> Result<T, Error> {
        self.atomic_compare_blocking(op, value, value, remote, rkey)
    }

    /// As [`Ep::atomic_compare`], making progress until the old value is there. Allocates nothing.
    pub fn atomic_compare_blocking<T: AtomicType>(
        &self,
        op: AtomicOp,
        compare: T,
        value: T,
        remote: u64,
        rkey: &Rkey,
    ) -> Result<T, Error> {
        let mut old = [0; MAX];
        let (value, compare) = (value.to_bytes(), compare.to_bytes());
        let params = AtomicParams {
            operand: value.as_ptr(),
            compare: compare.as_ptr(),
            result: old.as_mut_ptr(),
            ..one::<T>(op)
        };
        // SAFETY: everything is in this frame until `wait_borrowed` has seen the operation's end, which it does even
        // when a callback panics.
        if let OpStatus::InProgress(id) = unsafe { self.atomic_raw(remote, rkey, &params) }? {
            self.worker().wait_borrowed(id.0)?;
        }
        Ok(T::from_bytes(old))
    }
}

impl Core {
    pub(crate) fn atomic(
        &mut self,
        ep: &Ep,
        args: AtomicArgs,
        len: usize,
        done: Option<Callback>,
    ) -> Result<OpStatus<RecvStatus>, Error> {
        let (engine, mut wire, reqs) = self.split();
        let user = u64::from(reqs.next_id()?.raw());
        match engine.atomic(&mut wire, ep.peer(), AtomicArgs { user, ..args }) {
            EngineStarted::Done(()) => Ok(OpStatus::Done(RecvStatus { len, ..NO_MESSAGE })),
            EngineStarted::Pending(op) => {
                Ok(OpStatus::InProgress(RequestId(reqs.start(Role::One(op, len), done))))
            }
            EngineStarted::Failed(e) => Err(e.into()),
        }
    }
}

/// One element, without operands.
const fn one<T: AtomicType>(op: AtomicOp) -> AtomicParams {
    AtomicParams {
        op,
        ty: T::TYPE,
        count: 1,
        operand: NOWHERE,
        compare: NOWHERE,
        result: std::ptr::null_mut(),
        sync: Sync::No,
        done: None,
    }
}

/// The processor's operation on a word (`None`: compare and swap) and the capability it needs, for those it has.
fn native_op(op: AtomicOp, ty: Datatype, form: Form) -> Option<(Option<WordOp>, AtomicOps)> {
    use Datatype::{Int32, Int64, Uint32, Uint64};
    if !matches!(ty, Int32 | Uint32 | Int64 | Uint64) {
        return None;
    }
    match op {
        AtomicOp::Sum => Some((Some(WordOp::Add), AtomicOps::ADD)),
        AtomicOp::BitAnd => Some((Some(WordOp::And), AtomicOps::AND)),
        AtomicOp::BitOr => Some((Some(WordOp::Or), AtomicOps::OR)),
        AtomicOp::BitXor => Some((Some(WordOp::Xor), AtomicOps::XOR)),
        AtomicOp::Write => Some((Some(WordOp::Swap), AtomicOps::SWAP)),
        AtomicOp::Read if form == Form::Fetch => Some((Some(WordOp::Or), AtomicOps::OR)),
        AtomicOp::CompareSwap => Some((None, AtomicOps::CSWAP)),
        _ => None,
    }
}
