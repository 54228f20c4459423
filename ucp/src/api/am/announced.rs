//! Data that an active message announces. The announcement is sent before the data, so it waits for what the
//! send of the data needs: its receiver would wait in vain for data that cannot be sent.

use crate::api::core::error::Error;
use crate::api::core::notes::send_note;
use crate::api::core::requests::{Callback, OpStatus, RequestId, Role};
use crate::api::ep::handle::Ep;
use crate::api::ep::protocols::choose_protocol;
use crate::api::ep::send::SendParams;

use crate::rdm::{Note, SendArgs, SendBuf, Started};
use crate::select::DeliveryComplete;
use crate::wire::MsgClass;

/// Data that is about to be announced: it has its request, and the engine has room for its send and for
/// that of the announcement.
#[must_use]
pub(crate) struct Announced<'a> {
    ep: &'a Ep,
    id: RequestId,
    /// Token of the request.
    user: u64,
    number: u64,
}

impl<'a> Announced<'a> {
    /// Begins the request of data with this number. `done` is called at its end.
    pub(crate) fn begin(ep: &'a Ep, number: u64, done: Option<Callback>) -> Result<Announced<'a>, Error> {
        let mut core = ep.worker().core_keep_idle();
        if core.engine.room_for_sends() < 2 {
            return Err(Error::Exhausted);
        }
        let user = core.reqs.next_token()?;
        let id = core.reqs.start(user, Role::Announced, done);
        core.reqs.set_ep(id, ep.state().number());
        Ok(Announced { ep, id, user, number })
    }

    /// Ends the request of data that has not been announced.
    pub(crate) fn give_up(self) {
        self.end_in_call();
    }

    /// Sends the data, which has been announced. `data` stays valid until the operation ends.
    pub(crate) fn send(self, data: SendBuf) -> Result<OpStatus<()>, Error> {
        let (class, ep) = (MsgClass::AmData, self.ep);
        let is_sent = match data.whole() {
            Some(whole) => ep.send_short(class, self.number, whole),
            None => ep.send_short_list(class, self.number, data),
        };
        if is_sent {
            self.end_in_call();
            return Ok(OpStatus::Done(()));
        }
        let started = self.start(data);
        match started {
            Started::Pending(_) => return Ok(OpStatus::InProgress(self.id)),
            Started::Done(()) => self.end_in_call(),
            Started::Failed(_) => {
                send_note(&mut ep.worker().core(), ep.peer(), Note::Withdrawn { number: self.number });
                self.end_in_call();
            }
        }
        match started {
            Started::Failed(error) => Err(error.into()),
            _ => Ok(OpStatus::Done(())),
        }
    }

    fn start(&self, buf: SendBuf) -> Started<()> {
        let state = self.ep.state();
        let params = SendParams::of_class(self.number, None);
        let mut core = self.ep.worker().core();
        let protocol = choose_protocol(&core, state, params.table_index(), &buf);
        let (engine, mut wire, _) = core.split();
        let (tag, user) = (Some(self.number), self.user);
        let args = SendArgs { buf, tag, sync: DeliveryComplete::No, cq_data: None, protocol, user };
        engine.send_class(&mut wire, state.peer(), MsgClass::AmData, args)
    }

    fn end_in_call(&self) {
        self.ep.worker().core_keep_idle().reqs.end_in_call(self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::{Duration, Instant};

    use ucs::config::Source;

    use crate::api::core::error::Error;
    use crate::rdm::Note;
    use crate::{AmProto, AmSend, Context, Ep, EpParams, Worker};

    /// Data longer than a packet.
    const LONG: usize = 1 << 20;
    const WAIT: Duration = Duration::from_secs(60);

    /// Two workers, an endpoint from the first to the second, and the number of announcements at the second.
    struct Pair {
        a: Worker,
        b: Worker,
        ab: Ep,
        announced: Rc<Cell<usize>>,
        eager: Rc<Cell<usize>>,
    }

    impl Pair {
        fn new() -> Pair {
            let context = Context::configured(Source::empty().with("UCX_TLS", "posix")).unwrap();
            let (a, b) = (context.worker().unwrap(), context.worker().unwrap());
            let ab = a.connect(&b.address(), EpParams::default()).unwrap();
            let [announced, eager] = [1, 2].map(|id| {
                let come = Rc::new(Cell::new(0));
                let count = come.clone();
                b.set_am_handler(id, move |_| count.set(count.get() + 1));
                come
            });
            Pair { a, b, ab, announced, eager }
        }

        fn until(&self, mut done: impl FnMut() -> bool) {
            let start = Instant::now();
            while !done() {
                self.a.progress();
                self.b.progress();
                assert!(start.elapsed() < WAIT, "{:?} {:?}", self.a, self.b);
            }
        }

        fn announce(&self) -> AmSend<Vec<u8>> {
            self.ab.am_send_with(AmProto::Rendezvous, 1, &[], vec![1; LONG])
        }

        /// Sends a message behind what has been sent, and waits until it has come.
        fn send_eager(&self) {
            let before = self.eager.get();
            let _sent = self.ab.am_send_with(AmProto::Eager, 2, &[], vec![1; 8]);
            self.until(|| self.eager.get() > before);
        }
    }

    #[test]
    fn nothing_is_announced_without_room_for_its_data() {
        let pair = Pair::new();
        pair.a.core().engine.limit_sends(1);
        let sent = pair.announce();
        assert!(sent.is_done());
        assert_eq!(sent.wait().0, Err(Error::Exhausted));
        pair.send_eager();
        assert_eq!(pair.announced.get(), 0);
        pair.until(|| pair.a.core().engine.room_for_sends() == 1);
        pair.a.core().engine.limit_sends(2);
        let sent = pair.announce();
        pair.until(|| sent.is_done());
        assert_eq!((sent.wait().0, pair.announced.get()), (Ok(()), 1));
    }

    #[test]
    fn a_note_waits_for_room() {
        let pair = Pair::new();
        pair.send_eager();
        pair.until(|| pair.a.core().engine.pending().is_idle());
        pair.a.core().engine.limit_sends(0);
        super::send_note(&mut pair.a.core(), pair.ab.peer(), Note::Withdrawn { number: 1 });
        pair.send_eager();
        assert_eq!(pair.a.core().unsent_notes.len(), 1);
        pair.a.core().engine.limit_sends(1);
        pair.until(|| pair.a.core().unsent_notes.is_empty());
        // It is received as data that does not come.
        pair.until(|| pair.b.core().engine.snapshot().unexpected == 1);
    }
}
