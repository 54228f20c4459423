//! Macros for decorators: `inside()` answers the object to call, or an error. Signatures are in `delegate`.

macro_rules! forward {
    ([$($attr:tt)*] [] $name:ident [$($generics:tt)*] ($($arg:ident: $T:ty),*) $Ret:ty; $($_kinds:tt)*) => {
        $($attr)*
        fn $name<$($generics)*>(&self, $($arg: $T),*) -> $Ret {
            self.inside()?.$name($($arg),*)
        }
    };
    ([$($attr:tt)*] [unsafe] $name:ident [$($generics:tt)*] ($($arg:ident: $T:ty),*) $Ret:ty; $($_kinds:tt)*) => {
        $($attr)*
        unsafe fn $name<$($generics)*>(&self, $($arg: $T),*) -> $Ret {
            let inner = self.inside()?;
            // SAFETY: the caller's promise is the same.
            unsafe { inner.$name($($arg),*) }
        }
    };
}

macro_rules! forward_fact {
    ($name:ident() $Ret:ty) => {
        fn $name(&self) -> $Ret {
            self.inner().$name()
        }
    };
}

macro_rules! forward_iface {
    () => {
        fn md(&self) -> &I::Md {
            self.inner().md()
        }

        fn publish(&self, number: u64) {
            self.inner().publish(number);
        }

        #[inline(always)]
        fn is_idle(&self) -> bool {
            self.inside().is_ok_and(|inner| inner.is_idle())
        }

        $crate::delegate::iface_facts!(forward_fact);
        $crate::delegate::iface_calls!(forward, <I::Md as $crate::api::Md>::Mem, Comp);
    };
}

pub(super) use {forward, forward_fact, forward_iface};
