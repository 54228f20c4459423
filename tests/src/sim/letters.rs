//! Active messages in a job: every one comes to its handler once, whole, with its header; some are received later, into
//! too little room, or dropped; some are answered by the endpoint that they bring. Called by `act` and `settle`.

use super::Failed;
use super::forms::{Form, Room};
use super::knobs::Scope;
use super::node::Node;
use super::world::World;
use crate::pattern::Pattern;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use ucp::{AmMessage, AmProto, Error, Worker};

/// Numbers of handlers.
const IDS: u64 = 3;
/// One more, whose handler comes and goes: what has come meanwhile is dropped, and nobody else notices.
const FICKLE: u16 = IDS as u16;
/// Bytes of a header that say whose message it is.
const LABEL: usize = 16;
/// Longest header of the suite.
const HEADER: u64 = 180;
/// Messages a worker has under way, and bodies it is receiving.
const MAX_OPEN: usize = 8;

/// An active message and what became of it.
#[derive(Clone, Copy, Debug)]
pub struct Letter {
    from: usize,
    to: usize,
    header: usize,
    len: usize,
    id: u16,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Sent,
    Come,
    /// The peer takes no active messages, or it was cancelled.
    Refused,
}

/// A letter under way.
struct Sending {
    number: usize,
    cancelled: bool,
    form: Form,
}

/// The body of a letter that is being received.
struct Receiving {
    number: usize,
    cancelled: bool,
    request: Room,
}

/// A worker's part.
pub struct Letters {
    /// The handler that comes and goes is there.
    hears: bool,
    /// What handlers were given; looked at after progress.
    come: Rc<RefCell<VecDeque<AmMessage>>>,
    sending: Vec<Sending>,
    receiving: Vec<Receiving>,
}

impl Letters {
    /// Sets the handlers of a worker.
    pub fn of(worker: &Worker) -> Letters {
        let come: Rc<RefCell<VecDeque<AmMessage>>> = Rc::default();
        for id in 0..=FICKLE {
            listen(worker, id, &come);
        }
        Letters { hears: true, come, sending: Vec::new(), receiving: Vec::new() }
    }

    /// What has not ended.
    pub fn open(&self) -> usize {
        self.come.borrow().len() + self.sending.len() + self.receiving.len()
    }
}

fn listen(worker: &Worker, id: u16, come: &Rc<RefCell<VecDeque<AmMessage>>>) {
    let come = come.clone();
    worker.set_am_handler(id, move |message| come.borrow_mut().push_back(message));
}

impl World {
    /// Sends one from `n` to anybody.
    pub(super) fn post_letter(&mut self, n: usize) -> Result<(), Failed> {
        if self.nodes[n].letters.sending.len() >= MAX_OPEN {
            return Ok(());
        }
        let to = self.any_worker();
        if !self.connect(n, to)? {
            return Ok(());
        }
        let how = *self.rng.pick(&[AmProto::Auto, AmProto::Auto, AmProto::Eager, AmProto::Rendezvous]);
        let (number, header, body) = self.write_letter(n, to);
        let id = self.letters[number].id;
        let (way, cuts) = self.way(body.len());
        let Some(ep) = &self.nodes[n].eps[to] else { return Err(self.fail("just connected")) };
        let form = Form::letter(ep, (way, how), id, &header, body, &cuts);
        self.nodes[n].letters.sending.push(Sending { number, cancelled: false, form });
        self.settle_letters(n)
    }

    /// A new letter: its number, header and body.
    fn write_letter(&mut self, n: usize, to: usize) -> (usize, Vec<u8>, Vec<u8>) {
        let number = self.letters.len();
        let len = self.knobs.sizes.draw(&mut self.rng);
        let header_len = LABEL + self.rng.below(HEADER.min(u64::from(self.knobs.mtu) / 4)) as usize;
        let ids = IDS + u64::from(self.limits.scope >= Scope::Lists);
        let id = self.rng.below(ids) as u16;
        self.letters.push(Letter { from: n, to, header: header_len, len, id, state: State::Sent });
        let mut header = vec![0; header_len];
        let mut body = vec![0; len];
        pattern(self.seed, number).fill(&mut body);
        pattern(self.seed, number).fill(&mut header);
        header[..LABEL / 2].copy_from_slice(&(n as u64).to_le_bytes());
        header[LABEL / 2..LABEL].copy_from_slice(&(number as u64).to_le_bytes());
        self.trace.tell(
            &[30, n as u64, to as u64, number as u64, len as u64],
            format_args!("{}: {n} writes letter {number} to {to}: {header_len}+{len} bytes", self.step),
        );
        self.outcome.letters += 1;
        (number, header, body)
    }

    /// Takes the handler that comes and goes away, or puts it back.
    pub(super) fn change_handler(&mut self, n: usize) {
        let Node { letters, worker, .. } = &mut self.nodes[n];
        letters.hears ^= true;
        match letters.hears {
            true => listen(worker, FICKLE, &letters.come),
            false => worker.clear_am_handler(FICKLE),
        }
        self.trace.tell(
            &[33, n as u64, u64::from(letters.hears)],
            format_args!("{}: {n} hears letters of number {FICKLE}: {}", self.step, letters.hears),
        );
    }

    /// Gives up the latest letter, and the latest body that is being received.
    pub(super) fn cancel_letter(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        let mut granted = 0;
        if let Some(send) = node.letters.sending.last_mut() {
            send.cancelled |= send.form.cancel(&node.worker);
            granted += u64::from(send.cancelled);
        }
        if let Some(recv) = node.letters.receiving.last_mut() {
            recv.cancelled |= recv.request.cancel();
            granted += u64::from(recv.cancelled);
        }
        self.outcome.hushed += granted;
        self.trace.tell(
            &[32, n as u64, granted],
            format_args!("{}: {n} cancels a letter and a body: {granted}", self.step),
        );
    }

    /// Looks at what has come and what has ended.
    pub(super) fn settle_letters(&mut self, n: usize) -> Result<(), Failed> {
        loop {
            let next = self.nodes[n].letters.come.borrow_mut().pop_front();
            let Some(message) = next else { break };
            self.open_letter(n, message)?;
        }
        let node = &mut self.nodes[n];
        let sent = node.letters.sending.extract_if(.., |send| send.form.is_done(&node.worker));
        for Sending { number, cancelled, form } in sent.collect::<Vec<_>>() {
            let Some(end) = form.end() else { return Err(self.fail("a done send is not done")) };
            self.letter_sent(n, number, cancelled, end)?;
        }
        let got: Vec<_> =
            self.nodes[n].letters.receiving.extract_if(.., |recv| recv.request.is_done()).collect();
        for Receiving { number, cancelled, request } in got {
            let Some((end, bytes)) = request.end() else {
                return Err(self.fail("a done receive is not done"));
            };
            if cancelled && end == Err(Error::Cancelled) {
                continue;
            }
            let letter = self.letters[number];
            let whole = match end {
                Ok(status) => status.len == letter.len && bytes.len() >= letter.len,
                Err(Error::Truncated { len, room }) => len as usize == letter.len && room == bytes.len(),
                Err(_) => false,
            };
            let excused = end.is_err() && self.is_lost(n, letter.from);
            if cancelled || !whole && !excused {
                return Err(
                    self.fail(format!("worker {n}: body of letter {number} {letter:?} ended {end:?}"))
                );
            }
            if whole {
                self.check_body(n, number, &bytes[..bytes.len().min(letter.len)])?;
            }
        }
        Ok(())
    }

    fn letter_sent(
        &mut self,
        n: usize,
        number: usize,
        cancelled: bool,
        end: Result<(), Error>,
    ) -> Result<(), Failed> {
        let letter = self.letters[number];
        let refuses = self.nodes[letter.to].withholds_classes();
        match end {
            Ok(()) if !cancelled && (!refuses || self.is_lost(n, letter.to)) => Ok(()),
            Err(Error::Cancelled) if cancelled && letter.state == State::Sent => {
                self.letters[number].state = State::Refused;
                Ok(())
            }
            Err(Error::Unsupported) if refuses && letter.state == State::Sent => {
                self.letters[number].state = State::Refused;
                Ok(())
            }
            Err(_) if self.is_lost(n, letter.to) => Ok(()),
            _ => Err(self.fail(format!("worker {n}: letter {number} {letter:?} ended {end:?}"))),
        }
    }

    fn open_letter(&mut self, n: usize, message: AmMessage) -> Result<(), Failed> {
        let label = message.header().first_chunk::<LABEL>().map(|label| {
            let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|k| label[at + k]));
            (word(0) as usize, word(8) as usize)
        });
        let found = label.and_then(|(from, number)| Some((from, number, *self.letters.get(number)?)));
        let Some((from, number, letter)) = found else {
            return Err(self.fail(format!("worker {n}: {message:?} was not sent")));
        };
        let mut header = vec![0; letter.header];
        pattern(self.seed, number).fill(&mut header);
        let right = (letter.from, letter.to, letter.id, letter.len as u64, letter.state)
            == (from, n, message.id(), message.data_len(), State::Sent)
            && message.header()[LABEL..] == header[LABEL..];
        if !right {
            return Err(self.fail(format!("worker {n}: {message:?} is not {letter:?}")));
        }
        self.letters[number].state = State::Come;
        self.know(n, message.from(), from)?;
        self.trace.tell(
            &[31, n as u64, number as u64],
            format_args!("{}: letter {number} has come to {n}: {message:?}", self.step),
        );
        if let Some(data) = message.data() {
            let data = data.to_vec();
            self.check_body(n, number, &data)?;
        }
        if self.rng.percent(10)
            && self.nodes[n].letters.sending.len() < MAX_OPEN
            && let Some(ep) = message.reply_ep()
        {
            let (answer, header, body) = self.write_letter(n, from);
            let (way, cuts) = self.way(body.len());
            let form = Form::letter(&ep, (way, AmProto::Auto), self.letters[answer].id, &header, body, &cuts);
            self.nodes[n].letters.sending.push(Sending { number: answer, cancelled: false, form });
        }
        let room = match self.rng.below(10) {
            // Dropped: the body is lost, and nobody else notices.
            0 => return Ok(()),
            1 => self.rng.below(letter.len as u64 + 1) as usize,
            _ => letter.len,
        };
        let request = Room::body(message, &self.rooms(room));
        self.nodes[n].letters.receiving.push(Receiving { number, cancelled: false, request });
        Ok(())
    }

    fn check_body(&self, n: usize, number: usize, bytes: &[u8]) -> Result<(), Failed> {
        let check = pattern(self.seed, number).check(bytes);
        check.map_err(|e| self.fail(format!("worker {n}: letter {number} is damaged: {e}")))
    }

    /// Nothing is under way, and every letter has come, or was refused, or had to do with a dead worker.
    pub(super) fn look_at_letters(&mut self) -> Result<(), Failed> {
        for (number, letter) in self.letters.iter().enumerate() {
            let lost = letter.state == State::Sent && !self.is_lost(letter.from, letter.to);
            self.outcome.unheard += u64::from(lost && letter.id == FICKLE);
            if lost && letter.id != FICKLE {
                return Err(self.fail(format!("letter {number} {letter:?} never came")));
            }
        }
        Ok(())
    }
}

fn pattern(seed: u64, number: usize) -> Pattern {
    Pattern::new(seed, 0x1e77e4, number as u64)
}
