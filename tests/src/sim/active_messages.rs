//! Active messages: each reaches its handler once, whole, with its header. Some are received later, into too
//! small a buffer, or dropped; some are answered by the reply endpoint. Called by `step` and `completions`.

use super::Failed;
use super::forms::{RecvOp, SendOp};
use super::job::Job;
use super::job_params::Scope;
use super::sim_worker::SimWorker;
use crate::pattern::Pattern;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use ucp::{AmMessage, AmProto, Error, Worker};

const IDS: u64 = 3;
/// An id whose handler is set and removed; messages that arrive meanwhile are dropped.
const TOGGLED_ID: u16 = IDS as u16;
/// Bytes of a header that name the sender and the message.
const LABEL: usize = 16;
const HEADER: u64 = 180;
const MAX_OPEN: usize = 8;

#[derive(Clone, Copy, Debug)]
pub struct AmRecord {
    from: usize,
    to: usize,
    header: usize,
    len: usize,
    id: u16,
    state: AmStatus,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AmStatus {
    Sent,
    Arrived,
    /// The peer takes no active messages, or the send was cancelled.
    Refused,
}

struct Sending {
    number: usize,
    cancelled: bool,
    form: SendOp,
}

struct Receiving {
    number: usize,
    cancelled: bool,
    request: RecvOp,
}

pub struct AmState {
    handler_set: bool,
    /// Messages given to handlers; checked after progress.
    arrived: Rc<RefCell<VecDeque<AmMessage>>>,
    sending: Vec<Sending>,
    receiving: Vec<Receiving>,
}

impl AmState {
    pub fn of(worker: &Worker) -> AmState {
        let arrived: Rc<RefCell<VecDeque<AmMessage>>> = Rc::default();
        for id in 0..=TOGGLED_ID {
            set_handler(worker, id, &arrived);
        }
        AmState { handler_set: true, arrived, sending: Vec::new(), receiving: Vec::new() }
    }

    pub fn open(&self) -> usize {
        self.arrived.borrow().len() + self.sending.len() + self.receiving.len()
    }
}

fn set_handler(worker: &Worker, id: u16, arrived: &Rc<RefCell<VecDeque<AmMessage>>>) {
    let arrived = arrived.clone();
    worker.set_am_handler(id, move |message| arrived.borrow_mut().push_back(message));
}

impl Job {
    pub(super) fn send_am(&mut self, n: usize) -> Result<(), Failed> {
        if self.workers[n].ams.sending.len() >= MAX_OPEN {
            return Ok(());
        }
        let to = self.any_worker();
        if !self.connect(n, to)? {
            return Ok(());
        }
        let how = *self.rng.pick(&[AmProto::Auto, AmProto::Auto, AmProto::Eager, AmProto::Rendezvous]);
        let (number, header, body) = self.new_am(n, to);
        let id = self.ams[number].id;
        let (form, lens) = self.send_form(body.len());
        let Some(ep) = &self.workers[n].eps[to] else { return Err(self.fail("just connected")) };
        let form = SendOp::am(ep, (form, how), id, &header, body, &lens);
        self.workers[n].ams.sending.push(Sending { number, cancelled: false, form });
        self.reap_ams(n)
    }

    fn new_am(&mut self, n: usize, to: usize) -> (usize, Vec<u8>, Vec<u8>) {
        let number = self.ams.len();
        let len = self.params.sizes.draw(&mut self.rng);
        let header_len = LABEL + self.rng.below(HEADER.min(u64::from(self.params.mtu) / 4)) as usize;
        let ids = IDS + u64::from(self.limits.scope >= Scope::AtomicLists);
        let id = self.rng.below(ids) as u16;
        self.ams.push(AmRecord { from: n, to, header: header_len, len, id, state: AmStatus::Sent });
        let mut header = vec![0; header_len];
        let mut body = vec![0; len];
        pattern(self.seed, number).fill(&mut body);
        pattern(self.seed, number).fill(&mut header);
        header[..LABEL / 2].copy_from_slice(&(n as u64).to_le_bytes());
        header[LABEL / 2..LABEL].copy_from_slice(&(number as u64).to_le_bytes());
        self.trace.record(
            &[30, n as u64, to as u64, number as u64, len as u64],
            format_args!("{}: {n} writes message {number} to {to}: {header_len}+{len} bytes", self.step),
        );
        self.outcome.ams += 1;
        (number, header, body)
    }

    pub(super) fn change_handler(&mut self, n: usize) {
        let SimWorker { ams, worker, .. } = &mut self.workers[n];
        ams.handler_set ^= true;
        match ams.handler_set {
            true => set_handler(worker, TOGGLED_ID, &ams.arrived),
            false => worker.clear_am_handler(TOGGLED_ID),
        }
        self.trace.record(
            &[33, n as u64, u64::from(ams.handler_set)],
            format_args!("{}: {n} has a handler for id {TOGGLED_ID}: {}", self.step, ams.handler_set),
        );
    }

    /// Cancels the latest send and the latest receive of a body.
    pub(super) fn cancel_am(&mut self, n: usize) {
        let sim_worker = &mut self.workers[n];
        let mut granted = 0;
        if let Some(send) = sim_worker.ams.sending.last_mut() {
            send.cancelled |= send.form.cancel(&sim_worker.worker);
            granted += u64::from(send.cancelled);
        }
        if let Some(recv) = sim_worker.ams.receiving.last_mut() {
            recv.cancelled |= recv.request.cancel();
            granted += u64::from(recv.cancelled);
        }
        self.outcome.am_or_stream_cancelled += granted;
        self.trace.record(
            &[32, n as u64, granted],
            format_args!("{}: {n} cancels a message and a body: {granted}", self.step),
        );
    }

    pub(super) fn reap_ams(&mut self, n: usize) -> Result<(), Failed> {
        loop {
            let next = self.workers[n].ams.arrived.borrow_mut().pop_front();
            let Some(message) = next else { break };
            self.am_arrived(n, message)?;
        }
        let sim_worker = &mut self.workers[n];
        let sent = sim_worker.ams.sending.extract_if(.., |send| send.form.is_done(&sim_worker.worker));
        for Sending { number, cancelled, form } in sent.collect::<Vec<_>>() {
            let Some(end) = form.end() else { return Err(self.fail("a done send is not done")) };
            self.am_sent(n, number, cancelled, end)?;
        }
        let got: Vec<_> =
            self.workers[n].ams.receiving.extract_if(.., |recv| recv.request.is_done()).collect();
        for Receiving { number, cancelled, request } in got {
            let Some((end, bytes)) = request.end() else {
                return Err(self.fail("a done receive is not done"));
            };
            if cancelled && end == Err(Error::Cancelled) {
                continue;
            }
            let message = self.ams[number];
            let whole = match end {
                Ok(status) => status.len == message.len && bytes.len() >= message.len,
                Err(Error::Truncated { len, room }) => len as usize == message.len && room == bytes.len(),
                Err(_) => false,
            };
            let excused = end.is_err() && self.is_lost(n, message.from);
            if cancelled || !whole && !excused {
                return Err(
                    self.fail(format!("worker {n}: body of message {number} {message:?} ended {end:?}"))
                );
            }
            if whole {
                self.check_body(n, number, &bytes[..bytes.len().min(message.len)])?;
            }
        }
        Ok(())
    }

    fn am_sent(
        &mut self,
        n: usize,
        number: usize,
        cancelled: bool,
        end: Result<(), Error>,
    ) -> Result<(), Failed> {
        let message = self.ams[number];
        let refuses = self.workers[message.to].withholds_classes();
        match end {
            Ok(()) if !cancelled && (!refuses || self.is_lost(n, message.to)) => Ok(()),
            Err(Error::Cancelled) if cancelled && message.state == AmStatus::Sent => {
                self.ams[number].state = AmStatus::Refused;
                Ok(())
            }
            Err(Error::Unsupported) if refuses && message.state == AmStatus::Sent => {
                self.ams[number].state = AmStatus::Refused;
                Ok(())
            }
            Err(_) if self.is_lost(n, message.to) => Ok(()),
            _ => Err(self.fail(format!("worker {n}: message {number} {message:?} ended {end:?}"))),
        }
    }

    fn am_arrived(&mut self, n: usize, message: AmMessage) -> Result<(), Failed> {
        let label = message.header().first_chunk::<LABEL>().map(|label| {
            let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|k| label[at + k]));
            (word(0) as usize, word(8) as usize)
        });
        let found = label.and_then(|(from, number)| Some((from, number, *self.ams.get(number)?)));
        let Some((from, number, record)) = found else {
            return Err(self.fail(format!("worker {n}: {message:?} was not sent")));
        };
        let mut header = vec![0; record.header];
        pattern(self.seed, number).fill(&mut header);
        let right = (record.from, record.to, record.id, record.len as u64, record.state)
            == (from, n, message.id(), message.data_len(), AmStatus::Sent)
            && message.header()[LABEL..] == header[LABEL..];
        if !right {
            return Err(self.fail(format!("worker {n}: {message:?} is not {record:?}")));
        }
        self.ams[number].state = AmStatus::Arrived;
        self.learn_peer(n, message.from(), from)?;
        self.trace.record(
            &[31, n as u64, number as u64],
            format_args!("{}: message {number} has come to {n}: {message:?}", self.step),
        );
        if let Some(data) = message.data() {
            let data = data.to_vec();
            self.check_body(n, number, &data)?;
        }
        if self.rng.percent(10)
            && self.workers[n].ams.sending.len() < MAX_OPEN
            && let Some(ep) = message.reply_ep()
        {
            let (answer, header, body) = self.new_am(n, from);
            let (form, lens) = self.send_form(body.len());
            let form = SendOp::am(&ep, (form, AmProto::Auto), self.ams[answer].id, &header, body, &lens);
            self.workers[n].ams.sending.push(Sending { number: answer, cancelled: false, form });
        }
        let room = match self.rng.below(10) {
            // Dropped: the body is lost, and nothing else is affected.
            0 => return Ok(()),
            1 => self.rng.below(record.len as u64 + 1) as usize,
            _ => record.len,
        };
        let request = RecvOp::am_data(message, &self.recv_lens(room));
        self.workers[n].ams.receiving.push(Receiving { number, cancelled: false, request });
        Ok(())
    }

    fn check_body(&self, n: usize, number: usize, bytes: &[u8]) -> Result<(), Failed> {
        let check = pattern(self.seed, number).check(bytes);
        check.map_err(|e| self.fail(format!("worker {n}: message {number} is damaged: {e}")))
    }

    pub(super) fn check_ams(&mut self) -> Result<(), Failed> {
        for (number, message) in self.ams.iter().enumerate() {
            let lost = message.state == AmStatus::Sent && !self.is_lost(message.from, message.to);
            self.outcome.unhandled_ams += u64::from(lost && message.id == TOGGLED_ID);
            if lost && message.id != TOGGLED_ID {
                return Err(self.fail(format!("message {number} {message:?} never came")));
            }
        }
        Ok(())
    }
}

fn pattern(seed: u64, number: usize) -> Pattern {
    Pattern::new(seed, 0x1e77e4, number as u64)
}
