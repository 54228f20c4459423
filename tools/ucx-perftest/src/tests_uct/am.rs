//! Active messages: ping-pong, and a stream with credits from the receiver. A message is its sequence number
//! and a pattern; without `--validate` only the number is written.

use ucs::mem::copy_slice;
use uct::api::{Comp, Ep, Iface, Outcome};

use super::context::{CREDIT, Check, MSG, TestContext};
use super::memory::AlignedBuffer;
use crate::fail::Failure;
use crate::link::Side;
use crate::payload::{self, SEQ_LEN, SeenMessages};
use crate::spec::Layout;

struct Message {
    bytes: AlignedBuffer,
    pieces: Vec<usize>,
}

impl Message {
    fn new<I: Iface>(ctx: &TestContext<'_, I>) -> Result<Message, Failure> {
        let mut bytes = AlignedBuffer::new(ctx.spec.size())?;
        payload::fill(&mut bytes, 0);
        Ok(Message { bytes, pieces: ctx.spec.pieces.clone() })
    }

    #[inline(always)]
    fn number<I: Iface>(&mut self, ctx: &TestContext<'_, I>, seq: u64) {
        if ctx.validates() {
            payload::fill(&mut self.bytes, seq);
        } else if let Some(front) = self.bytes.first_chunk_mut::<SEQ_LEN>() {
            *front = seq.to_le_bytes();
        }
    }
}

/// Calls `$run!(send)` with the data path's sending closure, so that each path has loops of its own.
macro_rules! by_path {
    ($ctx:ident, $path:expr, $run:expr) => {{
        let mut message = Message::new($ctx)?;
        match $path {
            Layout::Bcopy => $run($ctx, |ctx: &mut TestContext<'_, I>, seq| {
                message.number(ctx, seq);
                let bytes = &*message.bytes;
                ctx.post(|ep, _| {
                    let pack = |buf: &mut [u8]| {
                        copy_slice(&mut buf[..bytes.len()], bytes);
                        bytes.len()
                    };
                    ep.am_bcopy(MSG, pack).map(drop)
                })
            }),
            Layout::Zcopy => $run($ctx, |ctx: &mut TestContext<'_, I>, seq| {
                message.number(ctx, seq);
                zcopy(ctx, &message)
            }),
            Layout::ShortIov => $run($ctx, |ctx: &mut TestContext<'_, I>, seq| {
                message.number(ctx, seq);
                short_iov(ctx, &message)
            }),
            _ if message.bytes.len() < SEQ_LEN => $run($ctx, |ctx: &mut TestContext<'_, I>, seq| {
                message.number(ctx, seq);
                short_iov(ctx, &message)
            }),
            _ if !$ctx.validates() => {
                // The number goes as the header.
                let (_, payload) = message.bytes.split_at(SEQ_LEN);
                $run($ctx, |ctx: &mut TestContext<'_, I>, seq| {
                    ctx.post(|ep, _| ep.am_short(MSG, seq, payload).map(drop))
                })
            }
            _ => $run($ctx, |ctx: &mut TestContext<'_, I>, seq| {
                // The payload has its own number, which the receiver checks.
                message.number(ctx, seq);
                let (_, payload) = message.bytes.split_at(SEQ_LEN);
                ctx.post(|ep, _| ep.am_short(MSG, seq, payload).map(drop))
            }),
        }
    }};
}

#[inline(always)]
fn short_iov<I: Iface>(ctx: &mut TestContext<'_, I>, message: &Message) -> Result<(), Failure> {
    if let [_] = message.pieces[..] {
        return ctx.post(|ep, _| ep.am_short_iov(MSG, &[&message.bytes]).map(drop));
    }
    let mut rest = &*message.bytes;
    let mut iov: arrayvec::ArrayVec<&[u8], 64> = arrayvec::ArrayVec::new();
    for len in &message.pieces {
        let (piece, tail) = rest.split_at(*len);
        iov.push(piece);
        rest = tail;
    }
    ctx.post(|ep, _| ep.am_short_iov(MSG, &iov).map(drop))
}

/// The first bytes go as header, the rest as pieces of registered memory.
#[inline(always)]
fn zcopy<I: Iface>(ctx: &mut TestContext<'_, I>, message: &Message) -> Result<(), Failure> {
    let size = message.bytes.len();
    let header = &message.bytes[..size.min(ctx.spec.am_header)];
    ctx.post_slot(|ctx, slot| {
        if ctx.validates() {
            ctx.scatter(slot, &message.bytes);
        }
        // The header takes the first bytes of the first pieces.
        let iov = ctx.iov(slot, header.len());
        // SAFETY: the pieces are in registered memory that outlives its use by the interface (the test
        // flushes at its end), and the slot is written again only after its completion freed it.
        unsafe { ctx.ep().am_zcopy(MSG, header, &iov, Comp::Token(slot.into())) }
    })
}

pub fn lat<I: Iface>(ctx: &mut TestContext<'_, I>, path: Layout, iters: u64) -> Result<(), Failure> {
    if ctx.validates() {
        ctx.expect(Check::Next { seq: 0, len: ctx.spec.size() });
    }
    ctx.events.msgs.set(0);
    // Nobody may send before the other side has reset its count.
    ctx.barrier()?;
    ctx.counter.start();
    match ctx.side {
        Side::Both => by_path!(ctx, path, |ctx, send| to_itself(ctx, iters, send)),
        Side::Server | Side::Client => by_path!(ctx, path, |ctx, send| ping_pong(ctx, iters, send)),
    }
}

fn to_itself<'r, I: Iface>(
    ctx: &mut TestContext<'r, I>,
    iters: u64,
    mut send: impl FnMut(&mut TestContext<'r, I>, u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for seq in 0..iters {
        send(ctx, seq)?;
        ctx.counter.tick();
        // A transport that delivers within the send has counted it already.
        if ctx.events.msgs.get() <= seq {
            ctx.poll_until(|ctx| ctx.events.msgs.get() > seq)?;
        }
    }
    Ok(())
}

fn ping_pong<'r, I: Iface>(
    ctx: &mut TestContext<'r, I>,
    iters: u64,
    mut send: impl FnMut(&mut TestContext<'r, I>, u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let first = ctx.side == Side::Client;
    // Read while the message travels, as `ucx_perftest` does: a sample is from send to send.
    for seq in 0..iters {
        if first {
            send(ctx, seq)?;
            ctx.counter.tick();
        }
        ctx.poll_until(|ctx| ctx.events.msgs.get() > seq)?;
        if !first {
            send(ctx, seq)?;
            ctx.counter.tick();
        }
    }
    Ok(())
}

/// Messages in one direction, confirmed now and then: the rate is that of delivered ones.
pub fn stream<I: Iface>(ctx: &mut TestContext<'_, I>, path: Layout, iters: u64) -> Result<(), Failure> {
    ctx.events.msgs.set(0);
    ctx.events.credit = 0;
    if ctx.side.is_passive() && ctx.validates() {
        ctx.expect(Check::Each { seen: SeenMessages::new(iters), len: ctx.spec.size() });
    }
    ctx.barrier()?;
    match ctx.side {
        Side::Server => receive(ctx, iters)?,
        Side::Client => by_path!(ctx, path, |ctx, send| send_all(ctx, iters, send))?,
        Side::Both => by_path!(ctx, path, |ctx, send| send_to_self(ctx, iters, send))?,
    }
    let missing = ctx.expect(Check::No);
    if missing > 0 && ctx.spec.size() >= SEQ_LEN {
        return Err(Failure::Validation(format!("{missing} messages did not come")));
    }
    Ok(())
}

fn send_all<'r, I: Iface>(
    ctx: &mut TestContext<'r, I>,
    iters: u64,
    mut send: impl FnMut(&mut TestContext<'r, I>, u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let credits = u64::from(ctx.spec.credits);
    ctx.counter.start();
    for seq in 0..iters {
        while seq - ctx.events.credit >= credits {
            ctx.poll()?;
        }
        send(ctx, seq)?;
        ctx.counter.tick_stream();
    }
    ctx.poll_until(|ctx| ctx.events.credit >= iters)
}

fn send_to_self<'r, I: Iface>(
    ctx: &mut TestContext<'r, I>,
    iters: u64,
    mut send: impl FnMut(&mut TestContext<'r, I>, u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    ctx.counter.start();
    for seq in 0..iters {
        send(ctx, seq)?;
        ctx.counter.tick_stream();
    }
    ctx.poll_until(|ctx| ctx.events.msgs.get() >= iters)
}

fn receive<I: Iface>(ctx: &mut TestContext<'_, I>, iters: u64) -> Result<(), Failure> {
    let step = u64::from(ctx.spec.credits / 2).max(1);
    let mut credited = 0;
    while credited < iters {
        ctx.poll()?;
        let have = ctx.events.msgs.get();
        if have - credited >= step || have >= iters {
            ctx.post(|ep, _| credit(ep, have))?;
            credited = have;
        }
    }
    Ok(())
}

fn credit<E: Ep>(ep: &E, have: u64) -> Outcome<()> {
    let pack = |buf: &mut [u8]| {
        buf[..SEQ_LEN].copy_from_slice(&have.to_le_bytes());
        SEQ_LEN
    };
    ep.am_bcopy(CREDIT, pack).map(drop)
}
