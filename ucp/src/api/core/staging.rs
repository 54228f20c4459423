//! Memory of ours that operations use until they end, because the caller's goes with the call: headers, and lists of pieces.
//! Filled by `am_send`, `iov` and `recv_iov` when an operation does not end in its call. Dropped after the engine, which reads it.

use std::cell::{Cell, RefCell};

use ucs::coll::slots::SlotId;

use crate::rdm::SendBuf;

/// Staged ones kept for reuse.
const SPARE: usize = 64;

/// What one send reads from.
#[derive(Default)]
pub(crate) struct Staged {
    bytes: Vec<u8>,
    list: Vec<SendBuf>,
}

impl Staged {
    /// Its bytes. They stay where they are as long as it is kept.
    pub(crate) fn buf(&self) -> Option<SendBuf> {
        // SAFETY: a vector's memory stays where it is while nobody grows it; whoever has this keeps it until the end of
        // the operation, and vouched for the pieces until then.
        unsafe { SendBuf::of_list(&self.list) }
    }
}

/// What a worker has staged of one sort.
#[derive(Default)]
pub(crate) struct Staging<T> {
    spare: RefCell<Vec<T>>,
    out: RefCell<Vec<(SlotId, T)>>,
    /// With so many out, those that have ended are looked for.
    sweep_at: Cell<usize>,
}

impl Staging<Staged> {
    /// A copy of `head`, and `pieces` behind it.
    ///
    /// # Safety
    /// The bytes of `pieces` stay valid as long as the copy is used.
    pub(crate) unsafe fn stage(&self, head: &[u8], pieces: impl Iterator<Item = SendBuf>) -> Staged {
        let mut staged = self.take();
        staged.bytes.clear();
        staged.bytes.extend_from_slice(head);
        staged.list.clear();
        if !head.is_empty() {
            // SAFETY: the bytes are its own, and nobody changes them while they are used.
            staged.list.push(unsafe { SendBuf::new(staged.bytes.as_ptr(), head.len()) });
        }
        staged.list.extend(pieces);
        staged
    }
}

impl<T: Default> Staging<T> {
    /// One that nobody uses, perhaps filled.
    pub(crate) fn take(&self) -> T {
        self.spare.borrow_mut().pop().unwrap_or_default()
    }

    /// Takes back what an operation that has ended used.
    pub(crate) fn recycle(&self, staged: T) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE {
            spare.push(staged);
        }
    }

    /// Keeps what is staged until its operation has ended; `runs` says whether one still runs.
    pub(crate) fn keep(&self, id: SlotId, staged: T, runs: impl Fn(SlotId) -> bool) {
        let mut out = self.out.borrow_mut();
        if out.len() >= self.sweep_at.get() {
            out.extract_if(.., |(id, _)| !runs(*id)).for_each(|(_, staged)| self.recycle(staged));
            self.sweep_at.set((out.len() * 2).max(SPARE));
        }
        out.push((id, staged));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_staged_is_head_and_pieces_and_comes_back_when_its_send_has_ended() {
        let (staging, rest) = (Staging::default(), *b"data");
        for n in 0..1000u32 {
            // SAFETY: `rest` outlives the staging.
            let rest = unsafe { SendBuf::new(rest.as_ptr(), 4) };
            // SAFETY: as above.
            let staged = unsafe { staging.stage(b"head ", [rest].into_iter()) };
            let mut out = [0; 12];
            assert_eq!(staged.buf().unwrap().copy_to(0, &mut out), 9);
            assert_eq!(&out[..9], b"head data");
            // The last ten run.
            staging.keep(SlotId::from_raw(n), staged, |id| id.raw() + 10 > n);
        }
        assert!(staging.out.borrow().len() <= 64 + 10);
        let kept: Vec<u32> = staging.out.borrow().iter().map(|(id, _)| id.raw()).collect();
        assert!((990..1000).all(|n| kept.contains(&n)));
    }
}
