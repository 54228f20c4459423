//! The enums over all transports and the macros that dispatch on them. The only list of transports.

use crate::api;
use crate::efa::dev::soft::{Device, Inproc, Net};
#[cfg(feature = "verbs")]
use crate::efa::dev::verbs;
use crate::{cma, efa, loopback, posix};

type MdOf<I> = <I as api::Iface>::Md;
type EpOf<I> = <I as api::Iface>::Ep;
type MemOf<I> = <MdOf<I> as api::Md>::Mem;
type RkeyOf<I> = <MdOf<I> as api::Md>::Rkey;

/// Defines the enums; `each!` runs a body on any variant, `both!` on two enums of the same variant, or a
/// fallback. `$d` is a dollar sign for inner macros; `if(...)` makes a transport conditional.
#[collapse_debuginfo(yes)]
macro_rules! transports {
    ($d:tt: $($(#[$doc:meta])+ $Tl:ident($I:ty) $(if($when:meta))?;)+) => {
        /// A memory domain of some transport.
        #[derive(Clone)]
        pub enum Md { $($(#[$doc])+ $(#[cfg($when)])? $Tl(MdOf<$I>),)+ }

        /// An interface of some transport, and its memory domain once more.
        pub enum Iface { $($(#[$doc])+ $(#[cfg($when)])? $Tl($I, Md),)+ }

        /// An endpoint of some transport.
        pub enum Ep { $($(#[$doc])+ $(#[cfg($when)])? $Tl(EpOf<$I>),)+ }

        /// Registered memory of some transport.
        pub enum Mem { $($(#[$doc])+ $(#[cfg($when)])? $Tl(MemOf<$I>),)+ }

        /// An unpacked remote key of some transport.
        #[derive(PartialEq, Eq, PartialOrd, Ord)]
        pub enum Rkey { $($(#[$doc])+ $(#[cfg($when)])? $Tl(RkeyOf<$I>),)+ }

        $(
            $(#[cfg($when)])?
            impl From<$I> for Iface {
                fn from(iface: $I) -> Iface {
                    let md = Md::$Tl(api::Iface::md(&iface).clone());
                    Iface::$Tl(iface, md)
                }
            }
        )+

        // Debuggers and profiles show the line that dispatches, not this one.
        #[collapse_debuginfo(yes)]
        macro_rules! each {
            ($d on:expr, $d Enum:ident($d($d x:pat),+) => $d body:expr $d(, $d Wrap:ident)?) => {
                match $d on { $($(#[cfg($when)])? $d Enum::$Tl($d($d x),+) => each!(@wrap $Tl, $d body $d(, $d Wrap)?),)+ }
            };
            (@wrap $d Tl:ident, $d body:expr) => { $d body };
            (@wrap $d Tl:ident, $d body:expr, $d Wrap:ident) => { $d body.map($d Wrap::$d Tl) };
        }

        macro_rules! both {
            ($d a:expr, $d b:expr, ($d A:ident($d x:pat), $d B:ident($d y:pat)) => $d body:expr, else $d other:expr) => {
                match ($d a, $d b) {
                    $($(#[cfg($when)])? ($d A::$Tl($d x), $d B::$Tl($d y)) => $d body,)+
                    _ => $d other,
                }
            };
        }

        /// Registrations of one transport; `None` if one is of another.
        pub(super) trait MemOfTransport<'m>: Sized {
            fn of_any(mem: &'m Mem) -> Option<&'m Self>;
        }
        $(
            $(#[cfg($when)])?
            impl<'m> MemOfTransport<'m> for MemOf<$I> {
                fn of_any(mem: &'m Mem) -> Option<&'m Self> {
                    match mem {
                        Mem::$Tl(mem) => Some(mem),
                        #[allow(unreachable_patterns, reason = "when there is one transport only")]
                        _ => None,
                    }
                }
            }
        )+

        /// The key of an endpoint's own transport inside of any key; `None` if it is of another.
        pub(super) trait RkeyOfTransport: api::Ep {
            fn rkey_of_any(any: &Rkey) -> Option<&Self::Rkey>;
        }
        $(
            $(#[cfg($when)])?
            impl RkeyOfTransport for EpOf<$I> {
                fn rkey_of_any(any: &Rkey) -> Option<&Self::Rkey> {
                    match any {
                        Rkey::$Tl(rkey) => Some(rkey),
                        #[allow(unreachable_patterns, reason = "when there is one transport only")]
                        _ => None,
                    }
                }
            }
        )+
    };
}

transports! { $:
    /// `self`: this thread.
    Loopback(loopback::Iface);
    /// `posix`: this host, through shared memory.
    Posix(posix::Iface);
    /// `cma`: memory of other processes of this host, by system call.
    Cma(cma::Iface);
    /// `efa` on the software device: shared memory on this host, UDP to others.
    Efa(efa::Iface<Device<Net>>);
    /// `efa` on the software device within one process: for simulations, not listed.
    EfaInproc(efa::Iface<Device<Inproc>>);
    /// `efa` on a device of libibverbs.
    EfaVerbs(efa::Iface<verbs::Device>) if(feature = "verbs");
}

/// Domains, memory and keys are for any thread.
const _: () = {
    const fn is_shared<T: Send + Sync + 'static>() {}
    is_shared::<Md>();
    is_shared::<Mem>();
    is_shared::<Rkey>();
};

pub(super) use {both, each};
