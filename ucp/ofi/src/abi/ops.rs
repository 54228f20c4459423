//! Tables of functions. Each begins with its size, so that a caller knows which functions it has.

use std::ffi::{c_char, c_int, c_void};

use super::info::{FabricAttr, Info};
use super::queue::{AvAttr, CntrAttr, CqAttr, CqErrEntry, EqAttr, EqErrEntry, WaitAttr};
use super::{
    AtomicAttr, AvSetAttr, CollectiveAddr, CollectiveAttr, FiAddr, Fid, IoVec, Ioc, MrAttr, Msg, MsgAtomic,
    MsgRma, MsgTagged,
};

/// `getinfo` of a provider.
pub(crate) type GetInfo = unsafe extern "C" fn(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const Info,
    info: *mut *mut Info,
) -> c_int;
/// `fabric` of a provider.
pub(crate) type OpenFabric =
    unsafe extern "C" fn(attr: *mut FabricAttr, fabric: *mut *mut Fid, context: *mut c_void) -> c_int;

/// Defines a table of functions.
macro_rules! table {
    ($(#[$doc:meta])+ $Table:ident { $($name:ident($($Arg:ty),*) -> $Ret:ty;)+ }) => {
        $(#[$doc])+
        #[repr(C)]
        pub(crate) struct $Table {
            pub size: usize,
            $(pub $name: unsafe extern "C" fn($($Arg),*) -> $Ret,)+
        }

        #[cfg(test)]
        impl $Table {
            /// Names of the functions, in order.
            pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),+];
        }
    };
}

type P = *mut c_void;
type Obj = *mut Fid;
type Out = *mut *mut Fid;

table! {
    /// `struct fi_ops`.
    FidOps {
        close(Obj) -> c_int;
        bind(Obj, Obj, u64) -> c_int;
        control(Obj, c_int, P) -> c_int;
        ops_open(Obj, *const c_char, u64, *mut P, P) -> c_int;
        tostr(*const Fid, *mut c_char, usize) -> c_int;
        ops_set(Obj, *const c_char, u64, P, P) -> c_int;
    }
}

table! {
    /// `struct fi_ops_fabric`.
    FabricOps {
        domain(Obj, *mut Info, Out, P) -> c_int;
        passive_ep(Obj, *mut Info, Out, P) -> c_int;
        eq_open(Obj, *mut EqAttr, Out, P) -> c_int;
        wait_open(Obj, *const WaitAttr, Out) -> c_int;
        trywait(Obj, *mut Obj, c_int) -> c_int;
        domain2(Obj, *mut Info, Out, u64, P) -> c_int;
    }
}

table! {
    /// `struct fi_ops_domain`.
    DomainOps {
        av_open(Obj, *mut AvAttr, Out, P) -> c_int;
        cq_open(Obj, *mut CqAttr, Out, P) -> c_int;
        endpoint(Obj, *mut Info, Out, P) -> c_int;
        scalable_ep(Obj, *mut Info, Out, P) -> c_int;
        cntr_open(Obj, *mut CntrAttr, Out, P) -> c_int;
        poll_open(Obj, *const u64, Out) -> c_int;
        stx_ctx(Obj, P, Out, P) -> c_int;
        srx_ctx(Obj, P, Out, P) -> c_int;
        query_atomic(Obj, u32, u32, *mut AtomicAttr, u64) -> c_int;
        query_collective(Obj, u32, *mut CollectiveAttr, u64) -> c_int;
        endpoint2(Obj, *mut Info, Out, u64, P) -> c_int;
    }
}

table! {
    /// `struct fi_ops_mr`.
    MrOps {
        reg(Obj, *const c_void, usize, u64, u64, u64, u64, Out, P) -> c_int;
        regv(Obj, *const IoVec, usize, u64, u64, u64, u64, Out, P) -> c_int;
        regattr(Obj, *const MrAttr, u64, Out) -> c_int;
    }
}

table! {
    /// `struct fi_ops_av`.
    AvOps {
        insert(Obj, *const c_void, usize, *mut FiAddr, u64, P) -> c_int;
        insertsvc(Obj, *const c_char, *const c_char, *mut FiAddr, u64, P) -> c_int;
        insertsym(Obj, *const c_char, usize, *const c_char, usize, *mut FiAddr, u64, P) -> c_int;
        remove(Obj, *mut FiAddr, usize, u64) -> c_int;
        lookup(Obj, FiAddr, P, *mut usize) -> c_int;
        straddr(Obj, *const c_void, *mut c_char, *mut usize) -> *const c_char;
        av_set(Obj, *const AvSetAttr, Out, P) -> c_int;
    }
}

table! {
    /// `struct fi_ops_eq`.
    EqOps {
        read(Obj, *mut u32, P, usize, u64) -> isize;
        readerr(Obj, *mut EqErrEntry, u64) -> isize;
        write(Obj, u32, *const c_void, usize, u64) -> isize;
        sread(Obj, *mut u32, P, usize, c_int, u64) -> isize;
        strerror(Obj, c_int, *const c_void, *mut c_char, usize) -> *const c_char;
    }
}

table! {
    /// `struct fi_ops_cq`.
    CqOps {
        read(Obj, P, usize) -> isize;
        readfrom(Obj, P, usize, *mut FiAddr) -> isize;
        readerr(Obj, *mut CqErrEntry, u64) -> isize;
        sread(Obj, P, usize, *const c_void, c_int) -> isize;
        sreadfrom(Obj, P, usize, *mut FiAddr, *const c_void, c_int) -> isize;
        signal(Obj) -> c_int;
        strerror(Obj, c_int, *const c_void, *mut c_char, usize) -> *const c_char;
    }
}

table! {
    /// `struct fi_ops_poll`.
    PollOps {
        poll(Obj, *mut P, c_int) -> c_int;
        poll_add(Obj, Obj, u64) -> c_int;
        poll_del(Obj, Obj, u64) -> c_int;
    }
}

table! {
    /// `struct fi_ops_wait`.
    WaitOps {
        wait(Obj, c_int) -> c_int;
    }
}

table! {
    /// `struct fi_ops_cntr`.
    CntrOps {
        read(Obj) -> u64;
        readerr(Obj) -> u64;
        add(Obj, u64) -> c_int;
        set(Obj, u64) -> c_int;
        wait(Obj, u64, c_int) -> c_int;
        adderr(Obj, u64) -> c_int;
        seterr(Obj, u64) -> c_int;
    }
}

table! {
    /// `struct fi_ops_ep`.
    EpOps {
        cancel(Obj, P) -> isize;
        getopt(Obj, c_int, c_int, P, *mut usize) -> c_int;
        setopt(Obj, c_int, c_int, *const c_void, usize) -> c_int;
        tx_ctx(Obj, c_int, P, Out, P) -> c_int;
        rx_ctx(Obj, c_int, P, Out, P) -> c_int;
        rx_size_left(Obj) -> isize;
        tx_size_left(Obj) -> isize;
    }
}

table! {
    /// `struct fi_ops_cm`.
    CmOps {
        setname(Obj, P, usize) -> c_int;
        getname(Obj, P, *mut usize) -> c_int;
        getpeer(Obj, P, *mut usize) -> c_int;
        connect(Obj, *const c_void, *const c_void, usize) -> c_int;
        listen(Obj) -> c_int;
        accept(Obj, *const c_void, usize) -> c_int;
        reject(Obj, Obj, *const c_void, usize) -> c_int;
        shutdown(Obj, u64) -> c_int;
        join(Obj, *const CollectiveAddr, u64, Out, P) -> c_int;
    }
}

table! {
    /// `struct fi_ops_msg`.
    MsgOps {
        recv(Obj, P, usize, P, FiAddr, P) -> isize;
        recvv(Obj, *const IoVec, *mut P, usize, FiAddr, P) -> isize;
        recvmsg(Obj, *const Msg, u64) -> isize;
        send(Obj, *const c_void, usize, P, FiAddr, P) -> isize;
        sendv(Obj, *const IoVec, *mut P, usize, FiAddr, P) -> isize;
        sendmsg(Obj, *const Msg, u64) -> isize;
        inject(Obj, *const c_void, usize, FiAddr) -> isize;
        senddata(Obj, *const c_void, usize, P, u64, FiAddr, P) -> isize;
        injectdata(Obj, *const c_void, usize, u64, FiAddr) -> isize;
    }
}

table! {
    /// `struct fi_ops_tagged`.
    TaggedOps {
        recv(Obj, P, usize, P, FiAddr, u64, u64, P) -> isize;
        recvv(Obj, *const IoVec, *mut P, usize, FiAddr, u64, u64, P) -> isize;
        recvmsg(Obj, *const MsgTagged, u64) -> isize;
        send(Obj, *const c_void, usize, P, FiAddr, u64, P) -> isize;
        sendv(Obj, *const IoVec, *mut P, usize, FiAddr, u64, P) -> isize;
        sendmsg(Obj, *const MsgTagged, u64) -> isize;
        inject(Obj, *const c_void, usize, FiAddr, u64) -> isize;
        senddata(Obj, *const c_void, usize, P, u64, FiAddr, u64, P) -> isize;
        injectdata(Obj, *const c_void, usize, u64, FiAddr, u64) -> isize;
    }
}

table! {
    /// `struct fi_ops_rma`.
    RmaOps {
        read(Obj, P, usize, P, FiAddr, u64, u64, P) -> isize;
        readv(Obj, *const IoVec, *mut P, usize, FiAddr, u64, u64, P) -> isize;
        readmsg(Obj, *const MsgRma, u64) -> isize;
        write(Obj, *const c_void, usize, P, FiAddr, u64, u64, P) -> isize;
        writev(Obj, *const IoVec, *mut P, usize, FiAddr, u64, u64, P) -> isize;
        writemsg(Obj, *const MsgRma, u64) -> isize;
        inject(Obj, *const c_void, usize, FiAddr, u64, u64) -> isize;
        writedata(Obj, *const c_void, usize, P, u64, FiAddr, u64, u64, P) -> isize;
        injectdata(Obj, *const c_void, usize, u64, FiAddr, u64, u64) -> isize;
    }
}

table! {
    /// `struct fi_ops_atomic`.
    AtomicTable {
        write(Obj, *const c_void, usize, P, FiAddr, u64, u64, u32, u32, P) -> isize;
        writev(Obj, *const Ioc, *mut P, usize, FiAddr, u64, u64, u32, u32, P) -> isize;
        writemsg(Obj, *const MsgAtomic, u64) -> isize;
        inject(Obj, *const c_void, usize, FiAddr, u64, u64, u32, u32) -> isize;
        readwrite(Obj, *const c_void, usize, P, P, P, FiAddr, u64, u64, u32, u32, P) -> isize;
        readwritev(Obj, *const Ioc, *mut P, usize, *mut Ioc, *mut P, usize, FiAddr, u64, u64, u32, u32, P) -> isize;
        readwritemsg(Obj, *const MsgAtomic, *mut Ioc, *mut P, usize, u64) -> isize;
        compwrite(Obj, *const c_void, usize, P, *const c_void, P, P, P, FiAddr, u64, u64, u32, u32, P) -> isize;
        compwritev(
            Obj, *const Ioc, *mut P, usize, *const Ioc, *mut P, usize, *mut Ioc, *mut P, usize, FiAddr, u64, u64, u32,
            u32, P
        ) -> isize;
        compwritemsg(Obj, *const MsgAtomic, *const Ioc, *mut P, usize, *mut Ioc, *mut P, usize, u64) -> isize;
        writevalid(Obj, u32, u32, *mut usize) -> c_int;
        readwritevalid(Obj, u32, u32, *mut usize) -> c_int;
        compwritevalid(Obj, u32, u32, *mut usize) -> c_int;
    }
}

table! {
    /// `struct fi_ops_collective`.
    CollectiveOps {
        barrier(Obj, FiAddr, P) -> isize;
        broadcast(Obj, P, usize, P, FiAddr, FiAddr, u32, u64, P) -> isize;
        alltoall(Obj, *const c_void, usize, P, P, P, FiAddr, u32, u64, P) -> isize;
        allreduce(Obj, *const c_void, usize, P, P, P, FiAddr, u32, u32, u64, P) -> isize;
        allgather(Obj, *const c_void, usize, P, P, P, FiAddr, u32, u64, P) -> isize;
        reduce_scatter(Obj, *const c_void, usize, P, P, P, FiAddr, u32, u32, u64, P) -> isize;
        reduce(Obj, *const c_void, usize, P, P, P, FiAddr, FiAddr, u32, u32, u64, P) -> isize;
        scatter(Obj, *const c_void, usize, P, P, P, FiAddr, FiAddr, u32, u64, P) -> isize;
        gather(Obj, *const c_void, usize, P, P, P, FiAddr, FiAddr, u32, u64, P) -> isize;
        msg(Obj, P, P, *mut P, usize, u64) -> isize;
        barrier2(Obj, FiAddr, u64, P) -> isize;
    }
}

table! {
    /// `struct fi_ops_av_set`.
    AvSetOps {
        set_union(Obj, Obj) -> c_int;
        intersect(Obj, Obj) -> c_int;
        diff(Obj, Obj) -> c_int;
        insert(Obj, FiAddr) -> c_int;
        remove(Obj, FiAddr) -> c_int;
        addr(Obj, *mut FiAddr) -> c_int;
    }
}
