//! Memory and keys of an interface that threads share. Used and given back inside the gate.

use super::iface::Shared;
use crate::any;
use crate::api::{Access, AllocMethod, Memory as _, Rkey as _};
use std::mem::ManuallyDrop;
use std::sync::Arc;

macro_rules! behind_the_gate {
    ($(#[$doc:meta])+ $Outer:ident, $inner:ident: $Inner:ty) => {
        $(#[$doc])+
        pub struct $Outer {
            pub(super) $inner: ManuallyDrop<$Inner>,
            pub(super) shared: Arc<Shared>,
        }

        // SAFETY: what is inside shares state with its interface only, and is used and dropped inside its gate.
        unsafe impl Send for $Outer {}
        // SAFETY: as above.
        unsafe impl Sync for $Outer {}

        impl $Outer {
            pub(super) fn new($inner: $Inner, shared: &Arc<Shared>) -> Self {
                $Outer { $inner: ManuallyDrop::new($inner), shared: shared.clone() }
            }
        }

        impl Drop for $Outer {
            fn drop(&mut self) {
                let Some(_inside) = self.shared.enter_to_drop() else { return };
                // SAFETY: dropped once, here, inside the gate.
                unsafe { ManuallyDrop::drop(&mut self.$inner) };
            }
        }
    };
}

pub(super) use behind_the_gate;

behind_the_gate! {
    /// Registered memory.
    Mem, mem: any::Mem
}

behind_the_gate! {
    /// An unpacked remote key.
    Rkey, rkey: any::Rkey
}

impl Mem {
    /// First byte.
    pub fn addr(&self) -> *mut u8 {
        self.mem.addr()
    }

    /// Length, bytes.
    pub fn len(&self) -> usize {
        self.mem.len()
    }

    /// Never true: a registration has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The way it was allocated, or `None` if the caller owns the memory.
    pub fn method(&self) -> Option<AllocMethod> {
        self.mem.method()
    }

    /// What it is registered for.
    pub fn access(&self) -> Access {
        self.mem.access()
    }
}

impl Rkey {
    /// The remote range it names: first virtual address in the owner's process, and length.
    pub fn range(&self) -> (u64, usize) {
        self.rkey.range()
    }
}
