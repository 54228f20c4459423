//! Collective groups of an endpoint: joining, leaving, and how their operations start and end.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::rc::Rc;
use std::sync::atomic::Ordering;

use ucp::{Error, Group, GroupError, GroupMaker, GroupRequest};

use super::Ep;
use super::ep_fid::EpFid;
use crate::abi::ops::FidOps;
use crate::abi::{ADDR_UNSPEC, CollectiveAddr, FiAddr, Fid, flags};
use crate::av_set::{AvSet, new_address};
use crate::eq::{CmError, Eq};
use crate::errno::Errno;
use crate::object::{Object, UserCount, checked, from_handle, read, store_handle};
use crate::refused;
use crate::ring::{Entry, Failure};

/// Number of the handler of active messages: this provider has no others.
const AM_ID: u16 = 0;

/// A group that the endpoint has joined, or is joining.
#[derive(Clone)]
pub(super) struct Joined {
    pub group: Rc<Group>,
    /// Addresses of the members by rank.
    pub members: Rc<[FiAddr]>,
}

impl Joined {
    /// Rank of the member with this address.
    pub(super) fn rank_of(&self, address: FiAddr) -> Result<usize, Errno> {
        self.members.iter().position(|member| *member == address).ok_or(Errno::INVAL)
    }
}

/// The groups of an endpoint. Used inside the lock of its worker.
#[derive(Default)]
pub(crate) struct Groups {
    maker: RefCell<Option<GroupMaker>>,
    /// Groups by the addresses of their sets and their own.
    joined: RefCell<HashMap<FiAddr, Joined>>,
    /// Event queue to which joins are reported; null: none.
    eq: Cell<*const Eq>,
}

/// `struct fid_mc`, and what belongs to it: an endpoint in a group.
#[repr(C)]
struct Mc {
    fid: Fid,
    /// Result of `fi_mc_addr`.
    address: FiAddr,
    users: UserCount,
    ep: *const Ep,
    set: *const AvSet,
}

impl Object for Mc {
    const CLASS: usize = flags::CLASS_MC;
    const NAME: &'static str = "a collective group";
    fn users(&self) -> &UserCount {
        &self.users
    }
}

static FID_OPS: FidOps = refused::fid_ops(close, refused::bind, refused::control);

impl Groups {
    pub(super) fn bind(&self, eq: &Eq) -> Result<(), Errno> {
        if !self.eq.get().is_null() {
            return Err(Errno::INVAL);
        }
        eq.users().add();
        self.eq.set(eq);
        Ok(())
    }

    /// Leaves all groups. Inside the lock.
    pub(super) fn close(&self) {
        drop(self.joined.take());
        drop(self.maker.take());
        // SAFETY: a queue is not closed before the endpoints that are bound to it.
        if let Some(eq) = unsafe { self.eq.replace(std::ptr::null()).as_ref() } {
            eq.users().remove();
        }
    }
}

/// The memory to which the result of an operation goes: `len` bytes.
#[derive(Clone, Copy)]
pub(super) struct ResultBuf {
    pub at: *mut u8,
    pub len: usize,
}

impl Ep {
    /// Starts an operation of the group with this address, whose result goes to `to`. `start` gets the group;
    /// the root is checked by [`Joined::rank_of`]. The end is always reported to the queue of sends.
    pub(super) fn collective(
        &self,
        address: FiAddr,
        to: ResultBuf,
        context: *mut c_void,
        start: impl FnOnce(&Joined) -> Result<GroupRequest, Errno>,
    ) -> Result<isize, Errno> {
        self.inside(|_| {
            if !self.can_send.load(Ordering::Relaxed) {
                return Err(Errno::OPBADSTATE);
            }
            if !self.tx.has_room() {
                self.progress();
                return Err(Errno::AGAIN);
            }
            let joined = self.joined_by(address)?;
            let request = start(&joined)?;
            self.tx.running.set(self.tx.running.get() + 1);
            let ep: *const Ep = self;
            request.then(move |result| {
                // SAFETY: the group is dropped before the endpoint, which ends its operations.
                let ep = unsafe { &*ep };
                ep.end_collective(result, to, context);
            });
            Ok(0)
        })
    }

    fn end_collective(&self, result: Result<Vec<u8>, Error>, to: ResultBuf, context: *mut c_void) {
        self.tx.running.set(self.tx.running.get() - 1);
        let failure = match result {
            Ok(bytes) => {
                let len = bytes.len().min(to.len);
                if len > 0 {
                    // SAFETY: the caller keeps this memory until the completion, which is reported below.
                    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.at, len) };
                }
                None
            }
            // The endpoint or the group is being closed: nothing is reported, as of other operations.
            Err(Error::Cancelled) => return,
            Err(error) => Some(Failure::of(error)),
        };
        let entry = Entry::without_data(context, flags::COLLECTIVE);
        // SAFETY: a queue is not closed before the endpoints that use it.
        unsafe { self.tx.report(std::ptr::null(), true, entry, failure) };
    }

    fn joined_by(&self, address: FiAddr) -> Result<Joined, Errno> {
        let joined = self.groups.joined.borrow().get(&address).cloned();
        joined.ok_or_else(|| {
            tracing::error!("there is no collective group with address {address}");
            Errno::INVAL
        })
    }

    /// Number of members of the group with this address.
    pub(super) fn group_size(&self, address: FiAddr) -> Result<usize, Errno> {
        self.inside(|_| Ok(self.joined_by(address)?.group.size()))
    }

    /// Whether this endpoint is the member with address `member` of a group.
    pub(super) fn is_rank(&self, address: FiAddr, member: FiAddr) -> Result<bool, Errno> {
        self.inside(|_| {
            let joined = self.joined_by(address)?;
            Ok(joined.rank_of(member)? == joined.group.rank())
        })
    }

    /// Joins the group of a set's members. Returns its address, and the barrier by which all members tell
    /// that they have joined.
    fn join_set(&self, set: &AvSet) -> Result<(FiAddr, GroupRequest), Errno> {
        let members: Rc<[FiAddr]> = set.members().clone().into();
        let av = self.av().filter(|av| std::ptr::eq(*av, set.av())).ok_or(Errno::INVAL)?;
        let addresses = members.iter().map(|member| av.address(*member)).collect::<Option<Vec<_>>>();
        let addresses = addresses.ok_or(Errno::INVAL)?;
        let address = new_address();
        let request = self.inside(|plain| {
            let mut maker = self.groups.maker.borrow_mut();
            let maker = maker.get_or_insert_with(|| GroupMaker::new(plain, AM_ID));
            let group = maker.group(&addresses).map_err(|error| {
                tracing::error!("fi_join_collective: {error}");
                match error {
                    GroupError::Connect { .. } => Errno::HOSTUNREACH,
                    _ => Errno::INVAL,
                }
            })?;
            let joined = Joined { group: Rc::new(group), members };
            let request = joined.group.barrier();
            let mut known = self.groups.joined.borrow_mut();
            let before = known.insert(set.address, joined.clone());
            known.insert(address, joined);
            drop(known);
            drop(before);
            Ok::<GroupRequest, Errno>(request)
        })?;
        Ok((address, request))
    }
}

calls! {
    /// Joins a collective group; the end is an event (`FI_JOIN_COMPLETE`).
    fn join(
        fid: *mut Fid, addr: *const CollectiveAddr, call_flags: u64, mc: *mut *mut Fid, context: *mut c_void,
    ) -> c_int {
        let (ep, _) = EpFid::checked(fid)?;
        if call_flags & flags::COLLECTIVE == 0 || ep.caps & flags::COLLECTIVE == 0 {
            return Err(refused::log_refusal("fi_join: there are no groups but those of FI_COLLECTIVE"));
        }
        if mc.is_null() {
            return Err(Errno::INVAL);
        }
        if call_flags & !(flags::COLLECTIVE | flags::SEND | flags::RECV) != 0 {
            return Err(Errno::BADFLAGS);
        }
        if !ep.is_enabled.load(Ordering::Relaxed) {
            return Err(Errno::OPBADSTATE);
        }
        // SAFETY: a queue is not closed before the endpoints that are bound to it.
        let eq = unsafe { ep.groups.eq.get().as_ref() }.ok_or(Errno::NOEQ)?;
        let CollectiveAddr { set, coll_addr } = read(addr)?;
        let set: &AvSet = checked(set)?;
        let is_known = coll_addr == ADDR_UNSPEC || coll_addr == set.address
            || ep.inside(|_| ep.groups.joined.borrow().contains_key(&coll_addr));
        if !is_known {
            return Err(Errno::INVAL);
        }
        let (address, request) = ep.join_set(set)?;
        let made = Mc {
            fid: refused::fid(flags::CLASS_MC, context, &FID_OPS),
            address,
            users: UserCount::default(),
            ep,
            set,
        };
        store_handle(mc, made)?;
        ep.users.add();
        set.users().add();
        let of_event = read(mc)?;
        let eq: *const Eq = eq;
        ep.inside(|_| request.then(move |result| {
            // SAFETY: as above: the group is dropped before the endpoint leaves its queue.
            let eq = unsafe { &*eq };
            match result {
                Ok(_) => eq.report_join(of_event, context),
                Err(Error::Cancelled) => {}
                Err(error) => {
                    let (errno, prov_errno) = (Errno::from(error), 0);
                    // SAFETY: the group is dropped before its handle.
                    eq.report_cm_error(unsafe { &*of_event }, CmError { errno, prov_errno, data: Vec::new() });
                }
            }
        }));
        Ok(0)
    }

    /// Leaves a group. Its operations that run end without a completion.
    fn close(fid: *mut Fid) -> c_int {
        let gone = from_handle::<Mc>(fid)?;
        // SAFETY: an endpoint is not closed before its groups.
        let ep = unsafe { &*gone.ep };
        // SAFETY: a set is not closed before the groups that have joined it.
        let set = unsafe { &*gone.set };
        let of_eq = ep.groups.eq.get();
        ep.inside(|_| {
            let mut joined = ep.groups.joined.borrow_mut();
            let own = joined.remove(&gone.address);
            let is_last = |of_set: &Joined| own.as_ref().is_some_and(|own| Rc::ptr_eq(&own.group, &of_set.group));
            let of_set = joined.get(&set.address).is_some_and(is_last).then(|| joined.remove(&set.address));
            drop(joined);
            drop((own, of_set));
        });
        // SAFETY: a queue is not closed before the endpoints that are bound to it.
        if let Some(eq) = unsafe { of_eq.as_ref() } {
            eq.discard(fid);
        }
        set.users().remove();
        ep.users.remove();
        Ok(0)
    }
}
