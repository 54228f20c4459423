//! Networks for tests: two hosts, and time. Generic tests run on every one ([`on_every_network`]); tests with
//! planned faults or delays use the in-process link.

use crate::efa::dev::Dev;
use crate::efa::dev::soft::{self, Fabric, FaultPlan, Inproc, Profile, Shm, open_shm};
#[cfg(feature = "verbs")]
use crate::efa::dev::verbs;
use std::time::Duration;
use ucs::config::Source;

pub trait Network {
    type A: Dev;
    type B: Dev;
    /// Creates a network without faults.
    fn new() -> Self;
    fn a(&self) -> Self::A;
    fn b(&self) -> Self::B;
    fn advance_time(&self);
}

impl Network for Fabric {
    type A = soft::Device<Inproc>;
    type B = soft::Device<Inproc>;

    fn new() -> Self {
        Fabric::new(7, FaultPlan::NONE)
    }

    fn a(&self) -> Self::A {
        self.open(0xa, Profile::default()).unwrap()
    }

    fn b(&self) -> Self::B {
        self.open(0xb, Profile::default()).unwrap()
    }

    fn advance_time(&self) {
        self.advance(10_000);
    }
}

pub trait DeviceKind {
    type Dev: Dev;
    fn open() -> Self::Dev;
}

pub struct Native;

impl DeviceKind for Native {
    type Dev = soft::Device<Shm>;

    fn open() -> Self::Dev {
        open_shm(&Source::empty(), "softefa0").unwrap()
    }
}

#[cfg(feature = "verbs")]
pub struct Verbs;

#[cfg(feature = "verbs")]
impl DeviceKind for Verbs {
    type Dev = verbs::Device;

    fn open() -> Self::Dev {
        let found = verbs::list();
        let first = found.first().expect("no EFA device in libibverbs: run this under `softefa run`");
        verbs::open(&first.name).unwrap()
    }
}

/// Two devices of this machine, in real time.
pub struct Real<A, B>(std::marker::PhantomData<(A, B)>);

impl<A: DeviceKind, B: DeviceKind> Network for Real<A, B> {
    type A = A::Dev;
    type B = B::Dev;

    fn new() -> Self {
        Real(std::marker::PhantomData)
    }

    fn a(&self) -> A::Dev {
        A::open()
    }

    fn b(&self) -> B::Dev {
        B::open()
    }

    /// Time for several RNR retries of a device.
    fn advance_time(&self) {
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// Makes a module of tests for each network: `on_every_network!(name name ...)`.
macro_rules! on_every_network {
    ($($test:ident)+) => {
        on_every_network!(@ inproc Fabric: $($test)+);
        on_every_network!(@ native Real<Native, Native>: $($test)+);
        #[cfg(feature = "verbs")]
        on_every_network!(@ verbs Real<Verbs, Verbs>: $($test)+);
        #[cfg(feature = "verbs")]
        on_every_network!(@ verbs_to_native Real<Verbs, Native>: $($test)+);
        #[cfg(feature = "verbs")]
        on_every_network!(@ native_to_verbs Real<Native, Verbs>: $($test)+);
    };
    (@ $name:ident $net:ty: $($test:ident)+) => {
        mod $name {
            #[allow(unused_imports, reason = "each network needs its part")]
            use crate::efa::tests::devices::*;
            #[allow(unused_imports, reason = "as above")]
            use crate::efa::dev::soft::Fabric;
            $(#[test] fn $test() { super::$test::<$net>(); })+
        }
    };
}
pub(super) use on_every_network;
