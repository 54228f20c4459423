//! Active messages for `am_loop` and `group_messages`: a handler counts messages and receives announced ones.
//! Data that came with the header are dropped, as `ucx_perftest` does, unless they are checked or copied.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use ucp::{AmMessage, AmParams, Ep, OpStatus, RecvRequest, Worker};

use super::message_io::MessageIo;
use super::scatter::ScatterBuffer;
use super::waiter::op_failed;
use super::window::Message;
use crate::fail::Failure;
use crate::payload::{self, SEQ_LEN, SeenMessages};
use crate::spec::{Spec, Validate};

const MSG: u16 = 1;
const HEADER: u8 = 0x5a;

pub struct AmReceiver {
    received: Cell<u64>,
    has_pending: Cell<bool>,
    /// Announced messages that are being received, and buffers for more.
    pending: RefCell<Vec<RecvRequest<Vec<u8>>>>,
    free_buffers: RefCell<Vec<Vec<u8>>>,
    checks: bool,
    /// Messages are only counted.
    is_unchecked: bool,
    has_error: Cell<bool>,
    header: usize,
    size: usize,
    /// Where the data are copied to, if they are.
    into: Option<RefCell<ScatterBuffer>>,
    seen: RefCell<SeenMessages>,
    error: RefCell<Option<Failure>>,
}

pub struct AmIo<'a> {
    ep: &'a Ep,
    header: Vec<u8>,
    receiver: Rc<AmReceiver>,
}

impl<'a> AmIo<'a> {
    /// Sends over `ep`; `receiver` counts the messages of all peers.
    pub fn new(spec: &Spec, ep: &'a Ep, receiver: Rc<AmReceiver>) -> Self {
        AmIo { ep, header: vec![HEADER; spec.am_header], receiver }
    }
}

impl AmReceiver {
    pub fn register(spec: &Spec, worker: &Worker) -> Result<Rc<AmReceiver>, Failure> {
        let (checks, into) = (spec.validate == Validate::Yes, ScatterBuffer::of_receiver(spec)?);
        let receiver = Rc::new(AmReceiver {
            received: Cell::new(0),
            has_pending: Cell::new(false),
            pending: RefCell::default(),
            free_buffers: RefCell::default(),
            checks,
            is_unchecked: !checks && into.is_none(),
            has_error: Cell::new(false),
            header: spec.am_header,
            size: spec.size(),
            into: into.map(RefCell::new),
            seen: RefCell::new(SeenMessages::new(0)),
            error: RefCell::new(None),
        });
        let (handler, size) = (receiver.clone(), spec.size());
        worker.set_am_handler(MSG, move |message| handler.on_message(message, size));
        Ok(receiver)
    }

    // HOT
    #[inline(always)]
    fn on_message(&self, message: AmMessage, size: usize) {
        if self.is_unchecked && message.data().is_some() {
            self.received.set(self.received.get() + 1);
        } else {
            self.on_message_slow(message, size);
        }
    }

    #[inline(never)]
    fn on_message_slow(&self, message: AmMessage, size: usize) {
        if self.checks && message.header() != vec![HEADER; self.header] {
            self.error(Failure::Validation(format!("a header of {} bytes", message.header().len())));
        }
        if let Some(data) = message.data() {
            self.arrived(data);
            return;
        }
        let mut into = self.free_buffers.borrow_mut().pop().unwrap_or_default();
        into.clear();
        if into.try_reserve_exact(size).is_err() {
            return self
                .error(Failure::Unsupported(format!("cannot get {size} bytes for a message (see -s)")));
        }
        self.has_pending.set(true);
        self.pending.borrow_mut().push(message.recv(into));
    }

    fn arrived(&self, data: &[u8]) {
        self.received.set(self.received.get() + 1);
        if let Some(into) = &self.into {
            let mut into = into.borrow_mut();
            into.scatter(data);
            if let Some(gathered) = into.gathered(data.len()) {
                self.check(&gathered);
            }
        } else if self.checks {
            self.check(data);
        }
    }

    #[cold]
    fn check(&self, data: &[u8]) {
        let seq = payload::seq(data);
        let whole = payload::check(data, seq.unwrap_or_default(), self.size);
        let once = || seq.map_or(Ok(()), |seq| self.seen.borrow_mut().mark(seq));
        if let Err(why) = whole.and_then(|()| once()) {
            self.error(Failure::Validation(why));
        }
    }

    fn error(&self, failure: Failure) {
        self.has_error.set(true);
        self.error.borrow_mut().get_or_insert(failure);
    }

    #[cold]
    fn poll_pending(&self) -> Result<(), Failure> {
        let mut at = 0;
        while at < self.pending.borrow().len() {
            if !self.pending.borrow_mut()[at].is_done() {
                at += 1;
                continue;
            }
            let ended = self.pending.borrow_mut().swap_remove(at);
            let (result, bytes) = ended.wait();
            result.map_err(op_failed)?;
            self.arrived(&bytes);
            self.free_buffers.borrow_mut().push(bytes);
        }
        self.has_pending.set(at > 0);
        Ok(())
    }
}

impl MessageIo for AmIo<'_> {
    fn expect(&mut self, count: u64) -> Result<(), Failure> {
        self.receiver.received.set(0);
        let count = if self.receiver.size >= SEQ_LEN { count } else { 0 };
        self.receiver.seen.replace(SeenMessages::new(count));
        Ok(())
    }

    #[inline(always)]
    unsafe fn send(&mut self, message: Message<'_>) -> Result<OpStatus<()>, ucp::Error> {
        let params = AmParams::default();
        match message {
            // SAFETY: this function's contract.
            Message::One(at, len) => unsafe { self.ep.am_send_raw(MSG, &self.header, at, len, &params) },
            // SAFETY: this function's contract.
            Message::Pieces(pieces) => unsafe {
                self.ep.am_send_layout_raw(MSG, &self.header, pieces, &params)
            },
        }
    }

    #[inline(always)]
    fn received(&mut self) -> Result<u64, Failure> {
        if self.receiver.has_pending.get() {
            self.receiver.poll_pending()?;
        }
        match self.receiver.has_error.get().then(|| self.receiver.error.take()).flatten() {
            None => Ok(self.receiver.received.get()),
            Some(error) => Err(error),
        }
    }
}
