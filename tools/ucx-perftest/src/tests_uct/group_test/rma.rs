//! Puts, gets and atomics of a group's member, one after another to each of its targets.

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::rc::Rc;

use ucs::mem::copy_slice;
use uct::api::{AtomicOp, Comp, Ep as _, Iface, Word};

use super::{GroupTest, Peer, number};
use crate::fail::Failure;
use crate::page_buffer::zeros;
use crate::payload;
use crate::spec::{Layout, Test};

impl<I: Iface> GroupTest<'_, I> {
    pub(super) fn puts(&mut self, each: u64) -> Result<(), Failure> {
        let (size, me) = (self.spec.size(), self.me);
        let offset = (me * size) as u64;
        let mut bytes = zeros(size)?;
        payload::fill(&mut bytes, number(me, 0));
        self.each_target(each, |test, to, seq| {
            if test.validates() {
                payload::fill(&mut bytes, number(me, seq));
                // The last put stays in memory: an unordered network must not reorder them.
                test.flush()?;
            }
            let bytes = &bytes[..];
            match test.layout {
                Layout::Zcopy => test.post_slot(to, |test, peer, slot| {
                    let at = slot as usize * size;
                    if test.validates() {
                        test.source.write(at, bytes);
                    }
                    let iov = [test.source.piece(at, size)];
                    // SAFETY: the piece is in registered memory that outlives its use by the interface (the
                    // test flushes at its end), and is written again only after its completion freed the
                    // slot.
                    unsafe {
                        peer.ep.put_zcopy(&iov, peer.addr + offset, &peer.rkey, Comp::Token(slot.into()))
                    }
                }),
                Layout::Bcopy => {
                    let fill = |buf: &mut [u8]| {
                        copy_slice(&mut buf[..size], bytes);
                        size
                    };
                    test.post(to, |_, peer| peer.ep.put_bcopy(size, fill, peer.addr + offset, &peer.rkey))
                        .map(drop)
                }
                _ => test
                    .post(to, |_, peer| peer.ep.put_short(bytes, peer.addr + offset, &peer.rkey))
                    .map(drop),
            }
        })
    }

    pub(super) fn gets(&mut self, each: u64) -> Result<(), Failure> {
        let size = self.spec.size();
        let mut bytes = zeros(size)?;
        let unpacked = Rc::new(RefCell::new(zeros(size)?));
        self.each_target(each, |test, to, _| {
            let mut used = 0;
            match test.layout {
                Layout::Zcopy => test.post_slot(to, |test, peer, slot| {
                    used = slot as usize * size;
                    let iov = [test.source.piece(used, size)];
                    // SAFETY: the piece is in registered memory that outlives its use by the interface, and
                    // is not touched before its completion.
                    unsafe { peer.ep.get_zcopy(&iov, peer.addr, &peer.rkey, Comp::Token(slot.into())) }
                }),
                Layout::Bcopy => test.post_slot(to, |_, peer, slot| {
                    let into = unpacked.clone();
                    let unpack = move |bytes: &[u8]| into.borrow_mut()[..bytes.len()].copy_from_slice(bytes);
                    peer.ep.get_bcopy(size, unpack, peer.addr, &peer.rkey, Comp::Token(slot.into()))
                }),
                _ => test.post(to, |_, peer| peer.ep.get_short(&mut bytes, peer.addr, &peer.rkey)).map(drop),
            }?;
            if test.validates() {
                test.drain()?;
                match test.layout {
                    Layout::Zcopy => bytes = test.source.read(used, size),
                    Layout::Bcopy => bytes.copy_from_slice(&unpacked.borrow()),
                    _ => {}
                }
                payload::check(&bytes, number(to, 0), size).map_err(Failure::Validation)?;
            }
            Ok(())
        })
    }

    pub(super) fn atomics(&mut self, each: u64) -> Result<(), Failure> {
        match self.spec.size() {
            1 => self.atomics_of::<u8>(each),
            2 => self.atomics_of::<u16>(each),
            4 => self.atomics_of::<u32>(each),
            8 => self.atomics_of::<u64>(each),
            _ => self.atomics_of::<u128>(each),
        }
    }

    fn atomics_of<W: Word>(&mut self, each: u64) -> Result<(), Failure> {
        let (results, one) = (vec![Cell::new(W::from_u64(0)); self.spec.window as usize], W::from_u64(1));
        let kind = self.spec.test;
        // Value of each member's word when this one last saw it.
        let mut last_seen = vec![0u64; self.deltas.len()];
        let done = self.each_target(each, |test, to, seq| {
            if kind == Test::AddMr {
                let add =
                    |_: &Self, peer: &Peer<I>| peer.ep.atomic_post(AtomicOp::Add, one, peer.addr, &peer.rkey);
                return test.post(to, add).map(drop);
            }
            let (before, after) = match kind {
                Test::Swap => (0, W::from_u64(number(test.me, seq)).to_u64()),
                _ => (last_seen[to], W::from_u64(last_seen[to].wrapping_add(1)).to_u64()),
            };
            let mut used = 0;
            test.post_slot(to, |_, peer, slot| {
                used = slot as usize;
                let result = NonNull::from(&results[used]).cast();
                let (to, key, comp) = (peer.addr, &peer.rkey, Comp::Token(slot.into()));
                let (old, new) = (W::from_u64(before), W::from_u64(after));
                // SAFETY: in each case the results outlive the operations: drained, or leaked, below.
                match kind {
                    // SAFETY: see above.
                    Test::Fadd => unsafe { peer.ep.atomic_fetch(AtomicOp::Add, one, result, to, key, comp) },
                    // SAFETY: see above.
                    Test::Swap => unsafe { peer.ep.atomic_fetch(AtomicOp::Swap, new, result, to, key, comp) },
                    // SAFETY: see above.
                    _ => unsafe { peer.ep.atomic_cswap(old, new, result, to, key, comp) },
                }
            })?;
            if kind != Test::Fadd && test.validates() {
                test.drain()?;
                let got = results[used].get().to_u64();
                let change = if kind == Test::Swap || got == before { after.wrapping_sub(got) } else { 0 };
                test.deltas[to] = test.deltas[to].wrapping_add(change);
                last_seen[to] = if got == before { after } else { got };
            }
            Ok(())
        });
        // Operations may still write their results after an error: leak them.
        if self.drain().is_err() {
            std::mem::forget(results);
        }
        done
    }
}
