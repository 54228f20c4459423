//! Active messages: ping-pong latency, and a stream with credits from the receiver.
//! Run by `tests_uct`. A message is its sequence number and a pattern; only `--validate` writes more than the number.

use ucs::mem::copy_slice;
use uct::api::{Comp, Ep, Iface, Outcome};

use super::mem::Own;
use super::rig::{CREDIT, Check, MSG, Rig};
use crate::fail::Failure;
use crate::link::Side;
use crate::pattern::{self, SEQ, Seen};
use crate::spec::Layout;

/// The message that is sent, in the process's own memory.
struct Message {
    bytes: Own,
    pieces: Vec<usize>,
}

impl Message {
    fn new<I: Iface>(rig: &Rig<'_, I>) -> Result<Message, Failure> {
        let mut bytes = Own::new(rig.spec.size())?;
        pattern::fill(&mut bytes, 0);
        Ok(Message { bytes, pieces: rig.spec.pieces.clone() })
    }

    #[inline(always)]
    fn number<I: Iface>(&mut self, rig: &Rig<'_, I>, seq: u64) {
        if rig.validates() {
            pattern::fill(&mut self.bytes, seq);
        } else if let Some(front) = self.bytes.first_chunk_mut::<SEQ>() {
            *front = seq.to_le_bytes();
        }
    }
}

/// Calls `$run!(send)` with the sending closure of the data path, so that each path has loops of its own.
macro_rules! by_path {
    ($rig:ident, $path:expr, $run:expr) => {{
        let mut message = Message::new($rig)?;
        match $path {
            Layout::Bcopy => $run($rig, |rig: &mut Rig<'_, I>, seq| {
                message.number(rig, seq);
                let bytes = &*message.bytes;
                rig.post(|ep, _| {
                    let pack = |room: &mut [u8]| {
                        copy_slice(&mut room[..bytes.len()], bytes);
                        bytes.len()
                    };
                    ep.am_bcopy(MSG, pack).map(drop)
                })
            }),
            Layout::Zcopy => $run($rig, |rig: &mut Rig<'_, I>, seq| {
                message.number(rig, seq);
                zcopy(rig, &message)
            }),
            Layout::ShortIov => $run($rig, |rig: &mut Rig<'_, I>, seq| {
                message.number(rig, seq);
                short_iov(rig, &message)
            }),
            _ if message.bytes.len() < SEQ => $run($rig, |rig: &mut Rig<'_, I>, seq| {
                message.number(rig, seq);
                short_iov(rig, &message)
            }),
            _ if !$rig.validates() => {
                // The number goes as the header.
                let (_, payload) = message.bytes.split_at(SEQ);
                $run($rig, |rig: &mut Rig<'_, I>, seq| {
                    rig.post(|ep, _| ep.am_short(MSG, seq, payload).map(drop))
                })
            }
            _ => $run($rig, |rig: &mut Rig<'_, I>, seq| {
                // The payload has its own, which somebody looks at.
                message.number(rig, seq);
                let (_, payload) = message.bytes.split_at(SEQ);
                rig.post(|ep, _| ep.am_short(MSG, seq, payload).map(drop))
            }),
        }
    }};
}

#[inline(always)]
fn short_iov<I: Iface>(rig: &mut Rig<'_, I>, message: &Message) -> Result<(), Failure> {
    if let [_] = message.pieces[..] {
        return rig.post(|ep, _| ep.am_short_iov(MSG, &[&message.bytes]).map(drop));
    }
    let mut rest = &*message.bytes;
    let mut iov: arrayvec::ArrayVec<&[u8], 64> = arrayvec::ArrayVec::new();
    for len in &message.pieces {
        let (piece, tail) = rest.split_at(*len);
        iov.push(piece);
        rest = tail;
    }
    rig.post(|ep, _| ep.am_short_iov(MSG, &iov).map(drop))
}

/// The first bytes go as header, the rest as pieces of registered memory.
#[inline(always)]
fn zcopy<I: Iface>(rig: &mut Rig<'_, I>, message: &Message) -> Result<(), Failure> {
    let size = message.bytes.len();
    let header = &message.bytes[..size.min(rig.spec.am_header)];
    rig.post_slot(|rig, slot| {
        if rig.validates() {
            rig.scatter(slot, &message.bytes);
        }
        // The header takes the first bytes of the first pieces.
        let iov = rig.iov(slot, header.len());
        // SAFETY: the pieces are in registered memory that outlives the interface's use of it (the rig flushes
        // before it ends), and the slot is written again only after its completion gave it back.
        unsafe { rig.ep().am_zcopy(MSG, header, &iov, Comp::Token(slot.into())) }
    })
}

/// Half a round trip: each side sends when the other's message is here.
pub fn lat<I: Iface>(rig: &mut Rig<'_, I>, path: Layout, iters: u64) -> Result<(), Failure> {
    if rig.validates() {
        rig.expect(Check::Next { seq: 0, len: rig.spec.size() });
    }
    rig.events.msgs.set(0);
    // Nobody may send before the other side has counted back to nothing.
    rig.barrier()?;
    rig.pulse.start();
    match rig.side {
        Side::Both => by_path!(rig, path, |rig, send| to_itself(rig, iters, send)),
        Side::Server | Side::Client => by_path!(rig, path, |rig, send| ping_pong(rig, iters, send)),
    }
}

/// The same where one side is both.
fn to_itself<'r, I: Iface>(
    rig: &mut Rig<'r, I>,
    iters: u64,
    mut send: impl FnMut(&mut Rig<'r, I>, u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for seq in 0..iters {
        send(rig, seq)?;
        rig.pulse.tick();
        // It is here already where it is delivered within the send.
        if rig.events.msgs.get() <= seq {
            rig.poll_until(|rig| rig.events.msgs.get() > seq)?;
        }
    }
    Ok(())
}

fn ping_pong<'r, I: Iface>(
    rig: &mut Rig<'r, I>,
    iters: u64,
    mut send: impl FnMut(&mut Rig<'r, I>, u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let first = rig.side == Side::Client;
    // The clock is read while the message travels, as ucx_perftest does: a sample is the time from send to send.
    for seq in 0..iters {
        if first {
            send(rig, seq)?;
            rig.pulse.tick();
        }
        rig.poll_until(|rig| rig.events.msgs.get() > seq)?;
        if !first {
            send(rig, seq)?;
            rig.pulse.tick();
        }
    }
    Ok(())
}

/// Messages one way. The receiver says now and then how many it has, so the rate is that of delivered messages.
pub fn stream<I: Iface>(rig: &mut Rig<'_, I>, path: Layout, iters: u64) -> Result<(), Failure> {
    rig.events.msgs.set(0);
    rig.events.credit = 0;
    if rig.side.is_passive() && rig.validates() {
        rig.expect(Check::Each { seen: Seen::new(iters), len: rig.spec.size() });
    }
    rig.barrier()?;
    match rig.side {
        Side::Server => receive(rig, iters)?,
        Side::Client => by_path!(rig, path, |rig, send| send_all(rig, iters, send))?,
        Side::Both => by_path!(rig, path, |rig, send| send_to_self(rig, iters, send))?,
    }
    let missing = rig.expect(Check::No);
    if missing > 0 && rig.spec.size() >= SEQ {
        return Err(Failure::Corrupt(format!("{missing} messages did not come")));
    }
    Ok(())
}

fn send_all<'r, I: Iface>(
    rig: &mut Rig<'r, I>,
    iters: u64,
    mut send: impl FnMut(&mut Rig<'r, I>, u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let credits = u64::from(rig.spec.credits);
    rig.pulse.start();
    for seq in 0..iters {
        while seq - rig.events.credit >= credits {
            rig.poll()?;
        }
        send(rig, seq)?;
        rig.pulse.beat();
    }
    rig.poll_until(|rig| rig.events.credit >= iters)
}

fn send_to_self<'r, I: Iface>(
    rig: &mut Rig<'r, I>,
    iters: u64,
    mut send: impl FnMut(&mut Rig<'r, I>, u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    rig.pulse.start();
    for seq in 0..iters {
        send(rig, seq)?;
        rig.pulse.beat();
    }
    rig.poll_until(|rig| rig.events.msgs.get() >= iters)
}

fn receive<I: Iface>(rig: &mut Rig<'_, I>, iters: u64) -> Result<(), Failure> {
    let step = u64::from(rig.spec.credits / 2).max(1);
    let mut told = 0;
    while told < iters {
        rig.poll()?;
        let have = rig.events.msgs.get();
        if have - told >= step || have >= iters {
            rig.post(|ep, _| credit(ep, have))?;
            told = have;
        }
    }
    Ok(())
}

fn credit<E: Ep>(ep: &E, have: u64) -> Outcome<()> {
    let pack = |room: &mut [u8]| {
        room[..SEQ].copy_from_slice(&have.to_le_bytes());
        SEQ
    };
    ep.am_bcopy(CREDIT, pack).map(drop)
}
