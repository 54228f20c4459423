//! What decorators hand on as it is, written once for all of them: of an interface addresses, receives without an id, flush
//! and waiting; of an endpoint the operations on memory and messages without an id. Used inside `impl Iface` and `impl Ep`.

/// Defines the methods of an `impl Iface` that are those of the interface inside: `$inner` answers it, `$inside` too, or an
/// error.
macro_rules! forward_iface {
    ($inner:ident, $inside:ident) => {
        fn md(&self) -> &I::Md {
            self.$inner().md()
        }

        fn device_addr(&self) -> AddrBuf {
            self.$inner().device_addr()
        }

        fn iface_addr(&self) -> AddrBuf {
            self.$inner().iface_addr()
        }

        fn reachable(&self, device: &[u8], iface: &[u8]) -> Result<(), ConnectError> {
            self.$inside()?.reachable(device, iface)
        }

        fn user_recv_qp(&self) -> Option<crate::api::UserQp> {
            self.$inner().user_recv_qp()
        }

        unsafe fn post_user_recv(
            &self,
            into: Iov<'_, <I::Md as crate::api::Md>::Mem>,
            token: u64,
        ) -> Outcome {
            // SAFETY: the caller's promise is the same.
            unsafe { self.$inside()?.post_user_recv(into, token) }
        }

        #[inline(always)]
        fn is_idle(&self) -> bool {
            self.$inside().is_ok_and(|inner| inner.is_idle())
        }

        fn flush(&self, comp: Comp) -> Outcome {
            self.$inside()?.flush(comp)
        }

        fn fence(&self) -> Outcome {
            self.$inside()?.fence()
        }

        fn event_fd(&self) -> Result<BorrowedFd<'_>, Error> {
            self.$inner().event_fd()
        }

        fn arm(&self, events: Events) -> Result<bool, Error> {
            self.$inside()?.arm(events)
        }

        fn arm_for(&self, events: Events) -> Result<$crate::api::ArmStatus, Error> {
            self.$inside()?.arm_for(events)
        }
    };
}

/// Defines put, get, atomics and messages without an id of an `impl Ep` as those of the endpoint that the method `$inner` answers, or its error.
macro_rules! forward_memory {
    ($inner:ident) => {
        fn send_to_user_qp<F: FnOnce(&mut [u8]) -> usize>(
            &self,
            to: crate::api::UserQp,
            max: usize,
            imm: Option<u32>,
            pack: F,
        ) -> Outcome<usize> {
            self.$inner()?.send_to_user_qp(to, max, imm, pack)
        }

        // HOT
        #[inline]
        fn put_short(&self, bytes: &[u8], remote: u64, rkey: &Self::Rkey) -> Outcome {
            self.$inner()?.put_short(bytes, remote, rkey)
        }

        fn put_bcopy<F: FnOnce(&mut [u8]) -> usize>(
            &self,
            max: usize,
            pack: F,
            remote: u64,
            rkey: &Self::Rkey,
        ) -> Outcome<usize> {
            self.$inner()?.put_bcopy(max, pack, remote, rkey)
        }

        unsafe fn put_zcopy(
            &self,
            iov: &[Iov<'_, Self::Mem>],
            remote: u64,
            rkey: &Self::Rkey,
            comp: Comp,
        ) -> Outcome {
            // SAFETY: the caller's promise is the same.
            unsafe { self.$inner()?.put_zcopy(iov, remote, rkey, comp) }
        }

        // HOT
        #[inline]
        fn get_short(&self, out: &mut [u8], remote: u64, rkey: &Self::Rkey) -> Outcome {
            self.$inner()?.get_short(out, remote, rkey)
        }

        fn get_bcopy<F: FnOnce(&[u8]) + 'static>(
            &self,
            len: usize,
            unpack: F,
            remote: u64,
            rkey: &Self::Rkey,
            comp: Comp,
        ) -> Outcome {
            self.$inner()?.get_bcopy(len, unpack, remote, rkey, comp)
        }

        unsafe fn get_zcopy(
            &self,
            iov: &[Iov<'_, Self::Mem>],
            remote: u64,
            rkey: &Self::Rkey,
            comp: Comp,
        ) -> Outcome {
            // SAFETY: the caller's promise is the same.
            unsafe { self.$inner()?.get_zcopy(iov, remote, rkey, comp) }
        }

        unsafe fn put_sgl(
            &self,
            iov: &[Iov<'_, Self::Mem>],
            remote: &[RemoteIov<'_, Self::Rkey>],
            comp: Comp,
        ) -> Outcome {
            // SAFETY: the caller's promise is the same.
            unsafe { self.$inner()?.put_sgl(iov, remote, comp) }
        }

        unsafe fn get_sgl(
            &self,
            iov: &[Iov<'_, Self::Mem>],
            remote: &[RemoteIov<'_, Self::Rkey>],
            comp: Comp,
        ) -> Outcome {
            // SAFETY: the caller's promise is the same.
            unsafe { self.$inner()?.get_sgl(iov, remote, comp) }
        }

        unsafe fn put_imm(
            &self,
            iov: &[Iov<'_, Self::Mem>],
            remote: u64,
            rkey: &Self::Rkey,
            imm: u32,
            comp: Comp,
        ) -> Outcome {
            // SAFETY: the caller's promise is the same.
            unsafe { self.$inner()?.put_imm(iov, remote, rkey, imm, comp) }
        }

        fn atomic_post<W: Word>(&self, op: AtomicOp, value: W, remote: u64, rkey: &Self::Rkey) -> Outcome {
            self.$inner()?.atomic_post(op, value, remote, rkey)
        }

        unsafe fn atomic_fetch<W: Word>(
            &self,
            op: AtomicOp,
            value: W,
            result: NonNull<W>,
            remote: u64,
            rkey: &Self::Rkey,
            comp: Comp,
        ) -> Outcome {
            // SAFETY: the caller's promise is the same.
            unsafe { self.$inner()?.atomic_fetch(op, value, result, remote, rkey, comp) }
        }

        unsafe fn atomic_cswap<W: Word>(
            &self,
            compare: W,
            swap: W,
            result: NonNull<W>,
            remote: u64,
            rkey: &Self::Rkey,
            comp: Comp,
        ) -> Outcome {
            // SAFETY: the caller's promise is the same.
            unsafe { self.$inner()?.atomic_cswap(compare, swap, result, remote, rkey, comp) }
        }
    };
}

pub(super) use {forward_iface, forward_memory};
