//! Functions that are not there: each says so in a debug line and answers `-FI_ENOSYS`.

use std::ffi::c_int;

use crate::abi::ops::FidOps;
use crate::abi::{CollectiveAddr, Fid, flags};
use crate::entry::{Output, guard};
use crate::errno::Errno;

/// A function whose arguments are not looked at.
pub(crate) type Refused = unsafe extern "C" fn() -> isize;

/// A table of functions that are all refused.
#[repr(C)]
pub(crate) struct RefusedTable<const N: usize> {
    size: usize,
    calls: [Refused; N],
}

impl<const N: usize> RefusedTable<N> {
    pub(crate) const fn all(call: Refused) -> RefusedTable<N> {
        RefusedTable { size: size_of::<RefusedTable<N>>(), calls: [call; N] }
    }
}

/// A function of endpoints that a shared receive context does not have.
pub(crate) unsafe extern "C" fn of_shared_receives() -> isize {
    refuse("srx_context: this call of a shared receive context")
}

/// A function of endpoints that a scalable endpoint has at its contexts only.
pub(crate) unsafe extern "C" fn of_scalable() -> isize {
    refuse("scalable_ep: operations are those of its contexts, so that this call")
}

/// Answer of a function that is not there.
#[cold]
fn refuse<R: Output<Value = R>>(name: &str) -> R {
    guard(name, || Err(log_refusal(&format!("fi_{name}: this function is not implemented"))))
}

/// A collective operation of an endpoint that has none.
unsafe extern "C" fn of_collectives() -> isize {
    refuse("barrier and its relatives: collective operations of this object")
}

/// `struct fi_ops_collective` of an object without such operations.
pub(crate) static COLLECTIVE: RefusedTable<11> = RefusedTable::all(of_collectives);

/// Defines single refused functions: their name in libfabric, and the types of their arguments.
macro_rules! refused {
    ($($name:ident($($Arg:ty),*);)+) => {$(
        pub(crate) unsafe extern "C" fn $name($(_: $Arg),*) -> c_int {
            refuse(stringify!($name))
        }
    )+};
}

type P = *mut std::ffi::c_void;
type Q = *const std::ffi::c_void;
type Text = *const std::ffi::c_char;
type Obj = *mut Fid;
type Out = *mut *mut Fid;

refused! {
    open_ops(Obj, Text, u64, *mut P, P);
    tostr(*const Fid, *mut std::ffi::c_char, usize);
    set_ops(Obj, Text, u64, P, P);
    tx_context(Obj, c_int, P, Out, P);
    rx_context(Obj, c_int, P, Out, P);
    getpeer(Obj, P, *mut usize);
    connect(Obj, Q, Q, usize);
    listen(Obj);
    accept(Obj, Q, usize);
    reject(Obj, Obj, Q, usize);
    shutdown(Obj, u64);
    setopt(Obj, c_int, c_int, Q, usize);
    close(Obj);
    join(Obj, *const CollectiveAddr, u64, Out, P);
    bind(Obj, Obj, u64);
    control(Obj, c_int, P);
}

pub(crate) unsafe extern "C" fn cancel(_: Obj, _: P) -> isize {
    refuse("cancel")
}

pub(crate) unsafe extern "C" fn size_left(_: Obj) -> isize {
    refuse("tx_size_left")
}

/// `struct fi_ops` of an object with these functions.
pub(crate) const fn fid_ops(
    close: unsafe extern "C" fn(Obj) -> c_int,
    bind: unsafe extern "C" fn(Obj, Obj, u64) -> c_int,
    control: unsafe extern "C" fn(Obj, c_int, P) -> c_int,
) -> FidOps {
    FidOps { size: size_of::<FidOps>(), close, bind, control, ops_open: open_ops, tostr, ops_set: set_ops }
}

/// Says why a call is refused, in one line.
#[cold]
pub(crate) fn log_refusal(what: &str) -> Errno {
    tracing::debug!("{what}");
    Errno::NOSYS
}

/// A [`Fid`] of a new object.
pub(crate) fn fid(class: usize, context: P, ops: &'static FidOps) -> Fid {
    debug_assert!(class >= flags::CLASS_FABRIC);
    Fid { fclass: class, context, ops }
}
