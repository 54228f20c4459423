//! Groups, and the exchange that every operation is.

use std::cell::Cell;
use std::rc::Rc;

use ucs::sys::host::stable_key;

use super::messages::{GroupMessages, Parts};
use super::part::OpKey;
use super::request::{GroupRequest, Outcome};
use crate::address::Address;
use crate::api::am::send::AmProto;
use crate::api::core::ep_state::ErrorMode;
use crate::api::core::error::Error;
use crate::api::ep::handle::{Ep, EpParams};
use crate::api::worker::handle::{AmMessage, Worker};
use crate::lane::ConnectError;

/// Why a group was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// The worker is not among the members.
    #[error("the worker is not among the members of the group")]
    NotAMember,
    /// A member is named twice.
    #[error("a member of the group is named twice")]
    Twice,
    /// A member cannot be reached.
    #[error("member {rank}: {error}")]
    Connect {
        /// Place of the member among all.
        rank: usize,
        /// Why not.
        error: ConnectError,
    },
}

/// The groups of a worker: makes them, and receives their messages by one handler of active messages.
///
/// ```
/// # use ucp::{AtomicOp, Context, Datatype, GroupMaker};
/// # let context = Context::new().unwrap();
/// let (a, b) = (context.worker().unwrap(), context.worker().unwrap());
/// let members = [a.address(), b.address()];             // the same list in each process
/// let (of_a, of_b) = (GroupMaker::new(&a, 7), GroupMaker::new(&b, 7));
/// let (of_a, of_b) = (of_a.group(&members).unwrap(), of_b.group(&members).unwrap());
///
/// let sum = of_a.all_reduce(AtomicOp::Sum, Datatype::Uint32, 1u32.to_le_bytes().into());
/// let other = of_b.all_reduce(AtomicOp::Sum, Datatype::Uint32, 2u32.to_le_bytes().into());
/// while !(sum.is_done() && other.is_done()) {
///     a.progress();
///     b.progress();
/// }
/// assert_eq!(sum.wait().unwrap(), 3u32.to_le_bytes());
/// # other.detach();
/// ```
pub struct GroupMaker {
    worker: Worker,
    am_id: u16,
    state: Rc<GroupMessages>,
}

impl GroupMaker {
    /// Sets handler `am_id` of the worker, which has to be the same number in every member, and one that the
    /// program does not use otherwise.
    pub fn new(worker: &Worker, am_id: u16) -> GroupMaker {
        let state = Rc::new(GroupMessages::of(worker.downgrade()));
        let of_handler = state.clone();
        worker.set_am_handler(am_id, move |message: AmMessage| of_handler.receive(&message));
        GroupMaker { worker: worker.clone(), am_id, state }
    }

    /// Makes a group of these workers, one of which is this one. All members name the same workers in the
    /// same order, and make groups of the same workers in the same order. Sends nothing: messages of members
    /// that are faster wait for the group, and [`Group::barrier`] tells that all have made it.
    pub fn group(&self, members: &[Address]) -> Result<Group, GroupError> {
        self.group_by(members, |member, params| self.worker.connect(member, params))
    }

    /// [`GroupMaker::group`] by this way to connect.
    fn group_by(
        &self,
        members: &[Address],
        connect: impl Fn(&Address, EpParams) -> Result<Ep, ConnectError>,
    ) -> Result<Group, GroupError> {
        let packed: Vec<Vec<u8>> = members.iter().map(Address::pack).collect();
        let own = self.worker.address().pack();
        let rank = packed.iter().position(|member| *member == own).ok_or(GroupError::NotAMember)?;
        let mut sorted: Vec<&Vec<u8>> = packed.iter().collect();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(GroupError::Twice);
        }
        let lens: Vec<u64> = packed.iter().map(|member| member.len() as u64).collect();
        let same_members = stable_key(packed.concat(), &lens);
        // All members count the groups that they have made: one that cannot be made now may be tried again.
        let id = stable_key([], &[same_members, self.state.made(same_members)]);
        let mut eps = Vec::with_capacity(members.len());
        for (at, member) in members.iter().enumerate() {
            if at == rank {
                eps.push(None);
                continue;
            }
            // The handler of the worker holds the state, too, so that a weak handle is enough.
            let state = Rc::downgrade(&self.state);
            let on_error = move |error| {
                if let Some(state) = state.upgrade() {
                    state.fail(id, at, error);
                }
            };
            let params = EpParams { errors: ErrorMode::Peer(Box::new(on_error)), ..EpParams::default() };
            let ep = connect(member, params);
            eps.push(Some(ep.map_err(|error| GroupError::Connect { rank: at, error })?));
        }
        let peer = |ep: &Option<Ep>| Some(ep.as_ref()?.peer());
        self.state.add(same_members, id, eps.iter().map(peer).collect());
        Ok(Group {
            worker: self.worker.clone(),
            am_id: self.am_id,
            state: self.state.clone(),
            id,
            rank,
            eps,
            next: Cell::new(0),
        })
    }
}

/// Workers that make collective operations together. All members start the same operations in the same
/// order; several may run. An operation ends when its messages have been sent and those for this member have
/// come.
///
/// An operation that waits for a member that has failed, or whose message has another length than this
/// member expects, ends with the error. Members that wait for others go on waiting. Data is copied for each
/// member that it is sent to. Dropping a group ends its operations as cancelled.
pub struct Group {
    worker: Worker,
    am_id: u16,
    state: Rc<GroupMessages>,
    id: u64,
    rank: usize,
    /// Endpoints by rank; `None` of this member.
    eps: Vec<Option<Ep>>,
    next: Cell<u64>,
}

impl Group {
    /// Place of this worker among the members.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of members.
    pub fn size(&self) -> usize {
        self.eps.len()
    }

    /// Sends each member what `outgoing` has for it, and waits for a message of `lens(rank)` bytes of each
    /// member. `own` is this member's part. The result is what `finish` makes of all parts.
    pub(super) fn exchange(
        &self,
        outgoing: impl Fn(usize) -> Option<Vec<u8>>,
        lens: impl Fn(usize) -> Option<usize>,
        own: Option<Vec<u8>>,
        finish: impl FnOnce(Parts) -> Result<Vec<u8>, Error> + 'static,
    ) -> GroupRequest {
        let key = OpKey { group: self.id, number: self.next.replace(self.next.get() + 1) };
        let others = || self.eps.iter().enumerate().filter_map(|(rank, ep)| Some((rank, ep.as_ref()?)));
        let mut expected = vec![None; self.size()];
        others().for_each(|(rank, _)| expected[rank] = lens(rank));
        let messages: Vec<_> = others().filter_map(|(rank, ep)| Some((ep, outgoing(rank)?))).collect();
        let outcome = Outcome::default();
        let of_end = outcome.clone();
        let then = move |ended: Result<Parts, Error>| of_end.set(ended.and_then(finish));
        self.state.begin(key, expected, (self.rank, own), messages.len(), Box::new(then));
        let header = key.header(self.rank);
        for (ep, data) in messages {
            let state = self.state.clone();
            let send = ep.am_send_with(AmProto::Eager, self.am_id, &header, data);
            send.then(move |result, _| state.sent(key, result));
        }
        GroupRequest::new(self.worker.clone(), outcome)
    }

    /// An operation whose arguments are wrong: it ends at once, and sends nothing.
    pub(super) fn refuse(&self) -> GroupRequest {
        let outcome = Outcome::default();
        outcome.set(Err(Error::Invalid));
        GroupRequest::new(self.worker.clone(), outcome)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.state.forget(self.id);
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut f = f.debug_struct("Group");
        f.field("rank", &self.rank).field("size", &self.size()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::context::open::Context;

    /// A member whose first tries to make a group fail is in the same group as the others at last.
    #[test]
    fn a_group_that_cannot_be_made_is_tried_again() {
        let context =
            Context::configured(ucs::config::Source::empty().with("UCX_TLS", "self,posix")).unwrap();
        let workers = [0; 3].map(|_| context.worker().unwrap());
        let makers = workers.each_ref().map(|worker| GroupMaker::new(worker, 1));
        let members = workers.each_ref().map(Worker::address);
        let refuse = |at: usize| {
            let made = makers[0].group_by(&members, |member, params| {
                if *member == members[at] {
                    Err(ConnectError::EndpointClosed)
                } else {
                    workers[0].connect(member, params)
                }
            });
            assert!(matches!(made, Err(GroupError::Connect { rank, .. }) if rank == at));
        };
        for _ in 0..2 {
            [1, 2, 1].into_iter().for_each(refuse);
            let groups = makers.each_ref().map(|maker| maker.group(&members).unwrap());
            let ended = groups.each_ref().map(Group::barrier);
            for _ in 0..1_000_000 {
                workers.iter().for_each(|worker| _ = worker.progress());
                if ended.iter().all(GroupRequest::is_done) {
                    break;
                }
            }
            assert!(ended.into_iter().all(|ended| ended.test().is_ok_and(|ended| ended.is_ok())));
        }
    }
}
