//! Maps MPI's matching and progress to this library, as in the OpenFabrics tutorial.
//!
//! | MPI | here |
//! |---|---|
//! | communicator, source and tag of a message | 64 bits of tag, see [`bits`] |
//! | `MPI_ANY_SOURCE`, `MPI_ANY_TAG` | bits that the receive's mask leaves out |
//! | `MPI_Send` of a short message | `tag_inject`: done when the call returns |
//! | `MPI_Isend`, `MPI_Irecv` | `tag_send`, `tag_recv`; the request owns its buffer and returns it |
//! | `MPI_Ssend` | `tag_send_sync`: ends when the receiver has matched it |
//! | `MPI_Iprobe`, `MPI_Mprobe`, `MPI_Mrecv` | `probe`, `mprobe`, `Message::recv` |
//! | progress | every call that waits progresses the whole worker |
//!
//! The engine delivers a sender's messages in order, as MPI demands.

use std::error::Error;
use std::rc::Rc;

use ucp::{Address, Context, Ep, EpParams, Match, RecvRequest, SendRequest, Worker};

use crate::job::Job;

#[derive(Clone, Copy, Debug)]
pub enum Source {
    Any,
    Rank(usize),
}

#[derive(Clone, Copy, Debug)]
pub enum Tag {
    Any,
    Is(u32),
}

/// Envelope of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    pub source: usize,
    pub tag: u32,
    pub len: usize,
}

/// The tag on the wire: communicator (16 bits), sender (16), the program's tag (32).
mod bits {
    use super::{Source, Status, Tag};

    pub fn of(comm: u16, source: usize, tag: u32) -> u64 {
        u64::from(comm) << 48 | (source as u64) << 32 | u64::from(tag)
    }

    /// Returns the tag bits and the mask of a receive. The mask always covers the communicator.
    pub fn wanted(comm: u16, source: Source, tag: Tag) -> (u64, u64) {
        let (source, source_mask) = match source {
            Source::Any => (0, 0),
            Source::Rank(rank) => (rank, 0xffff << 32),
        };
        let (tag, tag_mask) = match tag {
            Tag::Any => (0, 0),
            Tag::Is(tag) => (tag, 0xffff_ffff),
        };
        (of(comm, source, tag), 0xffff << 48 | source_mask | tag_mask)
    }

    pub fn status(bits: u64, len: usize) -> Status {
        Status { source: (bits >> 32 & 0xffff) as usize, tag: bits as u32, len }
    }
}

/// State shared by all communicators of a process: the worker and an endpoint per process.
struct World {
    worker: Worker,
    eps: Vec<Ep>,
}

/// A communicator. Messages of one never match receives of another.
#[derive(Clone)]
pub struct Comm {
    world: Rc<World>,
    id: u16,
    pub rank: usize,
    pub size: usize,
}

pub struct Sending(SendRequest<Vec<u8>>);

pub struct Receiving(RecvRequest<Vec<u8>>);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// `MPI_Init`: opens a worker and connects to all processes.
pub fn init(job: &mut Job) -> Result<Comm> {
    let worker = Context::new()?.worker()?;
    let mut eps = Vec::with_capacity(job.size);
    for address in job.gather(&worker.address().pack())? {
        eps.push(worker.connect(&Address::unpack(&address)?, EpParams::default())?);
    }
    Ok(Comm { world: Rc::new(World { worker, eps }), id: 0, rank: job.rank, size: job.size })
}

impl Comm {
    /// `MPI_Comm_dup`. All processes call it in the same order, with the same number.
    pub fn dup(&self, id: u16) -> Comm {
        Comm { id, ..self.clone() }
    }

    /// Name of the transport that leads to `rank`.
    pub fn transport(&self, rank: usize) -> &'static str {
        self.world.eps[rank].protocols().transports()[0]
    }

    /// `MPI_Send`: the bytes may be changed when it returns.
    pub fn send(&self, bytes: &[u8], to: usize, tag: u32) -> Result<()> {
        let bits = bits::of(self.id, self.rank, tag);
        match self.world.eps[to].tag_inject(bits, bytes) {
            Ok(()) => Ok(()),
            // The message was long or found no room; the request holds a copy of it.
            Err(request) => Ok(request.wait().0?),
        }
    }

    pub fn isend(&self, bytes: Vec<u8>, to: usize, tag: u32) -> Sending {
        Sending(self.world.eps[to].tag_send(bits::of(self.id, self.rank, tag), bytes))
    }

    pub fn issend(&self, bytes: Vec<u8>, to: usize, tag: u32) -> Sending {
        Sending(self.world.eps[to].tag_send_sync(bits::of(self.id, self.rank, tag), bytes))
    }

    pub fn irecv(&self, from: Source, tag: Tag, room: usize) -> Receiving {
        let (bits, mask) = bits::wanted(self.id, from, tag);
        Receiving(self.world.worker.tag_recv(bits, mask, Vec::with_capacity(room)))
    }

    pub fn recv(&self, from: Source, tag: Tag, room: usize) -> Result<(Status, Vec<u8>)> {
        self.irecv(from, tag, room).wait()
    }

    pub fn iprobe(&self, from: Source, tag: Tag) -> Option<Status> {
        let (bits, mask) = bits::wanted(self.id, from, tag);
        self.world.worker.progress();
        let found = self.world.worker.probe(Match::tagged(bits, mask))?;
        Some(bits::status(found.tag, found.len as usize))
    }

    pub fn probe(&self, from: Source, tag: Tag) -> Status {
        loop {
            if let Some(status) = self.iprobe(from, tag) {
                return status;
            }
            std::thread::yield_now();
        }
    }

    /// `MPI_Mprobe` and `MPI_Mrecv`: claims a message, then receives it into a buffer of its size.
    pub fn mrecv(&self, from: Source, tag: Tag) -> Result<(Status, Vec<u8>)> {
        let (bits, mask) = bits::wanted(self.id, from, tag);
        loop {
            if let Some(message) = self.world.worker.mprobe(Match::tagged(bits, mask)) {
                let room = Vec::with_capacity(message.envelope().len as usize);
                return Receiving(message.recv(room)).wait();
            }
            self.world.worker.progress();
            std::thread::yield_now();
        }
    }

    /// `MPI_Barrier`: log2(size) rounds of an empty message each way. Collectives use a hidden communicator,
    /// so that a receive from any source with any tag cannot match their messages.
    pub fn barrier(&self) -> Result<()> {
        const HIDDEN: u16 = 1 << 15;
        let hidden = self.dup(self.id | HIDDEN);
        for step in (0..).map(|k| 1 << k).take_while(|step| *step < self.size) {
            let from = (self.rank + self.size - step) % self.size;
            let heard = hidden.irecv(Source::Rank(from), Tag::Is(0), 0);
            hidden.send(&[], (self.rank + step) % self.size, 0)?;
            heard.wait()?;
        }
        Ok(())
    }

    /// Waits until everything sent has left; part of `MPI_Finalize`.
    pub fn flush(&self) -> Result<()> {
        Ok(self.world.worker.flush().wait()?)
    }
}

impl Sending {
    /// `MPI_Test` without completion. Makes no progress itself.
    pub fn is_done(&mut self) -> bool {
        self.0.is_done()
    }

    pub fn wait(self) -> Result<()> {
        Ok(self.0.wait().0?)
    }
}

impl Receiving {
    pub fn wait(self) -> Result<(Status, Vec<u8>)> {
        let (status, bytes) = self.0.wait();
        let status = status?;
        Ok((bits::status(status.tag, status.len), bytes))
    }
}
