//! Active messages as a way for `mail`: a handler counts what has come with its header, and receives what has only been
//! announced. A message that has come is dropped in the handler, as ucx_perftest does, unless it is to be checked.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ucp::{AmMessage, AmParams, Ep, RecvRequest, Started, Worker};

use super::mail::Way;
use super::ring::{Message, failed};
use super::scattered::Scattered;
use crate::fail::Failure;
use crate::pattern::{self, SEQ, Seen};
use crate::spec::{Spec, Validate};

/// Number of the handler.
const MSG: u16 = 1;
/// What fills headers.
const HEADER: u8 = 0x5a;

/// What the handler leaves behind.
pub struct Inbox {
    come: Cell<u64>,
    /// Some are.
    pulling: Cell<bool>,
    /// Announced messages that are being received.
    pulls: RefCell<Vec<RecvRequest<Vec<u8>>>>,
    /// Buffers for them.
    spare: RefCell<Vec<Vec<u8>>>,
    checks: bool,
    /// Nothing is asked of a message but that it has come.
    is_plain: bool,
    /// Whether something may be wrong.
    looks: Cell<bool>,
    header: usize,
    size: usize,
    /// Where the data go, if handlers put them anywhere.
    into: Option<RefCell<Scattered>>,
    seen: RefCell<Seen>,
    wrong: RefCell<Option<Failure>>,
}

/// The way.
pub struct ActiveMessages<'a> {
    ep: &'a Ep,
    header: Vec<u8>,
    inbox: Rc<Inbox>,
}

impl<'a> ActiveMessages<'a> {
    /// To `ep`; what comes from anywhere is in `inbox`.
    pub fn new(spec: &Spec, ep: &'a Ep, inbox: Rc<Inbox>) -> Self {
        ActiveMessages { ep, header: vec![HEADER; spec.am_header], inbox }
    }
}

impl Inbox {
    /// Sets the worker's handler.
    pub fn listen(spec: &Spec, worker: &Worker) -> Result<Rc<Inbox>, Failure> {
        let (checks, into) = (spec.validate == Validate::Yes, Scattered::of_receiver(spec)?);
        let inbox = Rc::new(Inbox {
            come: Cell::new(0),
            pulling: Cell::new(false),
            pulls: RefCell::default(),
            spare: RefCell::default(),
            checks,
            is_plain: !checks && into.is_none(),
            looks: Cell::new(false),
            header: spec.am_header,
            size: spec.size(),
            into: into.map(RefCell::new),
            seen: RefCell::new(Seen::new(0)),
            wrong: RefCell::new(None),
        });
        let (taker, room) = (inbox.clone(), spec.size());
        worker.set_am_handler(MSG, move |message| taker.take(message, room));
        Ok(inbox)
    }

    /// HOT
    #[inline(always)]
    fn take(&self, message: AmMessage, room: usize) {
        if self.is_plain && message.data().is_some() {
            self.come.set(self.come.get() + 1);
        } else {
            self.take_any(message, room);
        }
    }

    #[inline(never)]
    fn take_any(&self, message: AmMessage, room: usize) {
        if self.checks && message.header() != vec![HEADER; self.header] {
            self.wrong(Failure::Corrupt(format!("a header of {} bytes", message.header().len())));
        }
        if let Some(data) = message.data() {
            self.arrived(data);
            return;
        }
        let mut into = self.spare.borrow_mut().pop().unwrap_or_default();
        into.clear();
        if into.try_reserve_exact(room).is_err() {
            return self.wrong(Failure::Cannot(format!("cannot get {room} bytes for a message (see -s)")));
        }
        self.pulling.set(true);
        self.pulls.borrow_mut().push(message.recv(into));
    }

    fn arrived(&self, data: &[u8]) {
        self.come.set(self.come.get() + 1);
        if let Some(into) = &self.into {
            let mut into = into.borrow_mut();
            into.scatter(data);
            if let Some(back) = into.back(data.len()) {
                self.check(&back);
            }
        } else if self.checks {
            self.check(data);
        }
    }

    #[cold]
    fn check(&self, data: &[u8]) {
        let seq = pattern::seq(data);
        let whole = pattern::check(data, seq.unwrap_or_default(), self.size);
        let once = || seq.map_or(Ok(()), |seq| self.seen.borrow_mut().mark(seq));
        if let Err(why) = whole.and_then(|()| once()) {
            self.wrong(Failure::Corrupt(why));
        }
    }

    fn wrong(&self, failure: Failure) {
        self.looks.set(true);
        self.wrong.borrow_mut().get_or_insert(failure);
    }

    #[cold]
    fn pull(&self) -> Result<(), Failure> {
        let mut at = 0;
        while at < self.pulls.borrow().len() {
            if !self.pulls.borrow_mut()[at].is_done() {
                at += 1;
                continue;
            }
            let ended = self.pulls.borrow_mut().swap_remove(at);
            let (result, bytes) = ended.wait();
            result.map_err(failed)?;
            self.arrived(&bytes);
            self.spare.borrow_mut().push(bytes);
        }
        self.pulling.set(at > 0);
        Ok(())
    }
}

impl Way for ActiveMessages<'_> {
    fn expect(&mut self, count: u64) -> Result<(), Failure> {
        self.inbox.come.set(0);
        let count = if self.inbox.size >= SEQ { count } else { 0 };
        self.inbox.seen.replace(Seen::new(count));
        Ok(())
    }

    #[inline(always)]
    unsafe fn send(&mut self, message: Message<'_>) -> Result<Started<()>, ucp::Error> {
        let params = AmParams::default();
        match message {
            // SAFETY: this function's contract.
            Message::One(at, len) => unsafe { self.ep.am_send_raw(MSG, &self.header, at, len, &params) },
            // SAFETY: this function's contract.
            Message::Pieces(pieces) => unsafe { self.ep.am_send_iov_raw(MSG, &self.header, pieces, &params) },
        }
    }

    #[inline(always)]
    fn come(&mut self) -> Result<u64, Failure> {
        if self.inbox.pulling.get() {
            self.inbox.pull()?;
        }
        match self.inbox.looks.get().then(|| self.inbox.wrong.take()).flatten() {
            None => Ok(self.inbox.come.get()),
            Some(wrong) => Err(wrong),
        }
    }
}
