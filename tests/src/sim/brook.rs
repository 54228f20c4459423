//! Streams in a job: one from each worker to each other. Bytes come in the order in which they were sent, each once,
//! whatever the borders of sends and receives. Called by `act` and `settle`; looked at by the world at the end.

use super::Failed;
use super::world::World;
use crate::pattern::Pattern;
use std::collections::BTreeMap;
use ucp::{Error, RecvRequest, SendRequest};

/// Bytes of one stream in one run.
const LEN: usize = 150_000;
/// Sends of one stream under way.
const MAX_OPEN: usize = 6;

/// The stream between two workers.
#[derive(Default)]
pub struct Brook {
    /// Bytes sent so far, and received.
    sent: usize,
    got: usize,
    sending: Vec<(usize, SendRequest<Vec<u8>>)>,
    receiving: Option<RecvRequest<Box<[u8]>>>,
    /// A receive ended with the death of the sender: nothing more comes.
    over: bool,
}

/// All streams, by (from, to).
pub type Brooks = BTreeMap<(usize, usize), Brook>;

impl World {
    fn bytes_of(&self, (from, to): (usize, usize)) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        Pattern::new(self.seed, 0xb400, (from << 8 | to) as u64).fill(&mut bytes);
        bytes
    }

    /// Worker `n` sends to, or receives from, some stream.
    pub(super) fn paddle(&mut self, n: usize) -> Result<(), Failed> {
        let other = self.any_worker();
        match self.dice.percent(50) {
            true => self.pour(n, other),
            false => self.draw(other, n),
        }?;
        self.settle_brooks(n)
    }

    fn pour(&mut self, n: usize, to: usize) -> Result<(), Failed> {
        let len = self.knobs.sizes.draw(&mut self.dice).min(LEN / 4);
        let brook = self.brooks.entry((n, to)).or_default();
        let at = brook.sent;
        if brook.sending.len() >= MAX_OPEN || at + len > LEN || !self.connect(n, to)? {
            return Ok(());
        }
        let bytes = self.bytes_of((n, to))[at..at + len].to_vec();
        let refuses = self.nodes[to].withholds_classes();
        let Some(ep) = &self.nodes[n].eps[to] else { return Err(self.fail("just connected")) };
        let send = ep.stream_send(bytes);
        self.trace.tell(
            &[40, n as u64, to as u64, len as u64],
            format_args!("{}: {n} streams {len} bytes at {at} to {to}", self.step),
        );
        if let Some(brook) = self.brooks.get_mut(&(n, to)) {
            brook.sending.push((len, send));
            // What the peer refuses never was in the stream.
            brook.sent += if refuses { 0 } else { len };
        }
        self.outcome.streamed += len as u64;
        Ok(())
    }

    /// Posts a receive from the stream from `from` to `n`: one that ends with what there is, or one that waits for as
    /// much as will surely come.
    fn draw(&mut self, from: usize, n: usize) -> Result<(), Failed> {
        let room = self.dice.range(1, 5000) as usize;
        let full = self.dice.percent(40);
        let brook = self.brooks.entry((from, n)).or_default();
        let left = brook.sent - brook.got;
        if brook.receiving.is_some() || (full && left == 0) || !self.connect(n, from)? {
            return Ok(());
        }
        let room = if full { room.min(left) } else { room };
        let Some(ep) = &self.nodes[n].eps[from] else { return Err(self.fail("just connected")) };
        let buf = vec![0; room].into_boxed_slice();
        let request = if full { ep.stream_recv_full(buf) } else { ep.stream_recv(buf) };
        self.trace.tell(
            &[41, n as u64, from as u64, room as u64, u64::from(full)],
            format_args!("{}: {n} draws {room} bytes from {from}, full {full}", self.step),
        );
        if let Some(brook) = self.brooks.get_mut(&(from, n)) {
            brook.receiving = Some(request);
        }
        Ok(())
    }

    /// Looks at what has ended at worker `n`.
    pub(super) fn settle_brooks(&mut self, n: usize) -> Result<(), Failed> {
        for other in 0..self.nodes.len() {
            if let Some(brook) = self.brooks.get_mut(&(n, other)) {
                let ended: Vec<_> = brook.sending.extract_if(.., |(_, send)| send.is_done()).collect();
                let refuses = self.nodes[other].withholds_classes();
                for (len, send) in ended {
                    // Of no bytes nothing is sent that could be refused.
                    let refuses = refuses && len > 0;
                    let right = match send.wait().0 {
                        Ok(()) => !refuses || self.is_lost(n, other),
                        Err(Error::Unsupported) => refuses,
                        Err(_) => self.is_lost(n, other),
                    };
                    if !right {
                        return Err(self.fail(format!("worker {n}: a stream to {other} failed")));
                    }
                }
            }
            let done = self
                .brooks
                .get_mut(&(other, n))
                .and_then(|brook| brook.receiving.take_if(|request| request.is_done()));
            if let Some(request) = done {
                self.drawn(other, n, request)?;
            }
        }
        Ok(())
    }

    fn drawn(&mut self, from: usize, n: usize, request: RecvRequest<Box<[u8]>>) -> Result<(), Failed> {
        let (end, buf) = request.wait();
        let all = self.bytes_of((from, n));
        let lost = self.is_lost(n, from);
        let Some(brook) = self.brooks.get_mut(&(from, n)) else { return Ok(()) };
        let at = brook.got;
        self.trace.tell(
            &[42, n as u64, from as u64, at as u64, u64::from(end.is_ok())],
            format_args!("{}: {n} drew from {from} at {at}: {end:?}", self.step),
        );
        match end {
            Ok(status) if status.len > 0 && at + status.len <= brook.sent => {
                brook.got += status.len;
                if all[at..at + status.len] != buf[..status.len] {
                    return Err(self.fail(format!("worker {n}: the stream from {from} is wrong behind {at}")));
                }
                Ok(())
            }
            Err(Error::Cancelled) => Ok(()),
            Err(_) if lost => {
                brook.over = true;
                Ok(())
            }
            _ => {
                let sent = brook.sent;
                Err(self.fail(format!("worker {n}: at {at} of {sent} from {from}, a receive ended {end:?}")))
            }
        }
    }

    /// Receives what streams still hold. Answers whether there was anything.
    pub(super) fn drain_brooks(&mut self) -> Result<bool, Failed> {
        let mut any = false;
        let keys: Vec<(usize, usize)> = self.brooks.keys().copied().collect();
        for (from, n) in keys {
            if self.is_dead(n) || !self.connect(n, from)? {
                continue;
            }
            let lost = self.is_lost(n, from);
            let Some(brook) = self.brooks.get_mut(&(from, n)) else { continue };
            let left = brook.sent - brook.got;
            // Of who is lost as much as there is.
            if (left == 0 && !lost) || brook.over || brook.receiving.is_some() {
                continue;
            }
            let Some(ep) = &self.nodes[n].eps[from] else { return Err(self.fail("just connected")) };
            let buf = vec![0; left.max(1)].into_boxed_slice();
            brook.receiving = Some(if lost { ep.stream_recv(buf) } else { ep.stream_recv_full(buf) });
            any = true;
        }
        Ok(any)
    }

    /// Gives up receives for which nothing comes any more.
    pub(super) fn stop_brooks(&mut self) -> Result<(), Failed> {
        for ((from, n), brook) in &self.brooks {
            let Some(request) = &brook.receiving else { continue };
            if !self.is_dead(*n) && !request.cancel() {
                return Err(
                    self.fail(format!("worker {n}: a receive from {from}'s stream cannot be cancelled"))
                );
            }
        }
        Ok(())
    }

    /// Everything that was sent was received.
    pub(super) fn look_at_brooks(&self) -> Result<(), Failed> {
        for ((from, n), brook) in &self.brooks {
            if self.is_dead(*from) || self.is_dead(*n) {
                continue;
            }
            let bytes = if self.is_lost(*from, *n) { 0 } else { brook.sent - brook.got };
            let left = (bytes, brook.sending.len(), brook.receiving.is_some());
            if left != (0, 0, false) {
                return Err(
                    self.fail(format!("stream from {from} to {n}: bytes, sends, receives left: {left:?}"))
                );
            }
        }
        Ok(())
    }
}
