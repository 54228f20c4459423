//! Options of endpoints: `fi_getopt` and `fi_setopt`.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use uct::api::{Caps, DevKind};

use super::Ep;
use super::atomics::MAX_BYTES;
use super::ep_fid::EpFid;
use crate::abi::{Fid, flags};
use crate::errno::Errno;
use crate::info::{EpKind, INJECT_SIZE};
use crate::object::{read, store};

/// Values that a program has set, by the names of their options.
#[derive(Default)]
pub(super) struct Options(Mutex<Vec<(c_int, usize)>>);

/// Type of an option's value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Size,
    Int,
    Bool,
}

impl Form {
    const fn len(self) -> usize {
        match self {
            Form::Size => size_of::<usize>(),
            Form::Int => size_of::<c_int>(),
            Form::Bool => size_of::<bool>(),
        }
    }

    /// # Safety
    /// `at` is null or has this form.
    unsafe fn read(self, at: *const c_void) -> Result<usize, Errno> {
        // SAFETY: this function's contract, of each form.
        unsafe {
            Ok(match self {
                Form::Size => read(at.cast::<usize>())?,
                Form::Int => read(at.cast::<c_int>())? as usize,
                Form::Bool => usize::from(read(at.cast::<u8>())? != 0),
            })
        }
    }

    /// # Safety
    /// `at` is null or has room for this form.
    unsafe fn store(self, at: *mut c_void, value: usize) -> Result<(), Errno> {
        // SAFETY: this function's contract, of each form.
        unsafe {
            match self {
                Form::Size => store(at.cast::<usize>(), value),
                Form::Int => store(at.cast::<c_int>(), value as c_int),
                Form::Bool => store(at.cast::<u8>(), u8::from(value != 0)),
            }
        }
    }
}

/// Whether a program may change an option.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    /// It is a fact.
    Never,
    /// To this value at most.
    UpTo(usize),
    /// To this value only, which it has.
    Only(usize),
    /// To each value but this.
    Not(usize),
    Any,
}

/// Number of retries for ever, of `FI_OPT_EFA_RNR_RETRY`.
const FOR_EVER: usize = 7;

impl Options {
    fn lock(&self) -> MutexGuard<'_, Vec<(c_int, usize)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, name: c_int) -> Option<usize> {
        self.lock().iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    fn set(&self, name: c_int, value: usize) {
        let mut all = self.lock();
        all.retain(|(known, _)| *known != name);
        all.push((name, value));
    }
}

impl Ep {
    /// Whether the device of the domain's NIC moves bytes of a peer's memory, where both ends are of one NIC.
    fn has_device_rdma(&self, caps: Caps) -> bool {
        let domain = self.domain();
        if domain.has_own_keys() || domain.counts_offsets() || domain.caps & flags::RMA_EVENT != 0 {
            return false;
        }
        let ifaces = self.inside(ucp::Worker::ifaces);
        let mut nics = ifaces.iter().filter(|attr| attr.kind == DevKind::Net);
        matches!((nics.next(), nics.next()), (Some(only), None) if only.has(caps))
    }

    /// Whether peers are reached by the NIC only.
    fn has_network_only(&self) -> bool {
        let context = &self.domain().context;
        context.rma_only_resources().is_empty()
            && context.resources().iter().all(|resource| resource.kind == DevKind::Net)
    }

    /// Form, value unless the program has set another, and changes of an option. `None`: it is not known.
    fn option(&self, name: c_int) -> Option<(Form, usize, Change)> {
        let emulated = |caps| (Form::Bool, usize::from(!self.has_device_rdma(caps)), Change::Never);
        let limit = |most| (Form::Size, most, Change::UpTo(most));
        Some(match name {
            flags::OPT_MIN_MULTI_RECV => {
                (Form::Size, self.min_multi_recv.load(Ordering::Relaxed), Change::Any)
            }
            flags::OPT_CM_DATA_SIZE => {
                let most = if self.kind == EpKind::Msg { ucp::SockCm::MAX_DATA } else { 0 };
                (Form::Size, most, Change::Never)
            }
            flags::OPT_TX_SIZE => (Form::Size, self.tx.size, Change::Never),
            flags::OPT_RX_SIZE => (Form::Size, self.rx.size, Change::Never),
            flags::OPT_MAX_ATOMIC_SIZE => limit(MAX_BYTES),
            flags::OPT_MAX_MSG_SIZE..flags::OPT_MAX_ATOMIC_SIZE => limit(self.kind.max_msg()),
            flags::OPT_INJECT_MSG_SIZE..=flags::OPT_INJECT_ATOMIC_SIZE => limit(INJECT_SIZE),
            // There is no memory of devices, so that nothing is required of it.
            flags::OPT_FI_HMEM_P2P => (Form::Int, 0, Change::Not(flags::HMEM_P2P_REQUIRED as usize)),
            flags::OPT_CUDA_API_PERMITTED => (Form::Bool, 1, Change::Any),
            flags::OPT_SHARED_MEMORY_PERMITTED => {
                let change = if self.has_network_only() { Change::Any } else { Change::Only(1) };
                (Form::Bool, 1, change)
            }
            // The engine sends again as long as its peer lives.
            flags::OPT_EFA_RNR_RETRY => (Form::Size, FOR_EVER, Change::Any),
            flags::OPT_EFA_EMULATED_READ => emulated(Caps::GET_ZCOPY),
            flags::OPT_EFA_EMULATED_WRITE => emulated(Caps::PUT_ZCOPY),
            flags::OPT_EFA_EMULATED_ATOMICS => (Form::Bool, 1, Change::Never),
            flags::OPT_EFA_USE_DEVICE_RDMA => {
                let now = usize::from(self.has_device_rdma(Caps::GET_ZCOPY));
                (Form::Bool, now, Change::Only(now))
            }
            flags::OPT_EFA_SENDRECV_IN_ORDER_ALIGNED_128_BYTES
            | flags::OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES => (Form::Bool, 0, Change::Only(0)),
            // Hints, without which the engine learns the same of its peers.
            flags::OPT_EFA_HOMOGENEOUS_PEERS | flags::OPT_EFA_USE_UNSOLICITED_WRITE_RECV => {
                (Form::Bool, 0, Change::Any)
            }
            _ => return None,
        })
    }

    /// As [`Ep::option`], with an error.
    fn known_option(&self, call: &str, level: c_int, name: c_int) -> Result<(Form, usize, Change), Errno> {
        let known = if level == flags::OPT_ENDPOINT { self.option(name) } else { None };
        known.ok_or_else(|| {
            tracing::debug!("{call}: there is no option {name} of level {level}");
            Errno::NOPROTOOPT
        })
    }
}

calls! {
    fn getopt(fid: *mut Fid, level: c_int, name: c_int, value: *mut c_void, len: *mut usize) -> c_int {
        let (ep, _) = EpFid::checked(fid)?;
        let (form, default, _) = ep.known_option("fi_getopt", level, name)?;
        let room = read(len)?;
        store(len, form.len())?;
        if room < form.len() {
            return Err(Errno::TOOSMALL);
        }
        form.store(value, ep.options.get(name).unwrap_or(default)).map(|()| 0)
    }

    fn setopt(fid: *mut Fid, level: c_int, name: c_int, value: *const c_void, len: usize) -> c_int {
        let (ep, _) = EpFid::checked(fid)?;
        let (form, _, change) = ep.known_option("fi_setopt", level, name)?;
        if change == Change::Never {
            tracing::debug!("fi_setopt: option {name} tells what is, and cannot be set");
            return Err(Errno::NOPROTOOPT);
        }
        if len < form.len() {
            return Err(Errno::INVAL);
        }
        let value = form.read(value)?;
        let (holds, errno) = match change {
            Change::UpTo(most) => (value <= most, Errno::INVAL),
            Change::Only(only) => (value == only, Errno::OPNOTSUPP),
            Change::Not(not) => (value != not, Errno::OPNOTSUPP),
            Change::Any | Change::Never => (true, Errno::INVAL),
        };
        if !holds {
            tracing::debug!("fi_setopt: option {name} cannot be {value}");
            return Err(errno);
        }
        match name {
            flags::OPT_MIN_MULTI_RECV => ep.min_multi_recv.store(value, Ordering::Relaxed),
            name => ep.options.set(name, value),
        }
        Ok(0)
    }
}
