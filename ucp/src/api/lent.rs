//! Memory of ours that sends read from until they end, because the caller's goes with the call: headers, and lists of pieces.
//! Filled by `am_send` and `iov` when a send does not end in its call. Dropped after the engine, which reads it.

use std::cell::{Cell, RefCell};

use ucs::coll::slots::SlotId;

use crate::rdm::SendBuf;

/// Loans kept for reuse.
const SPARE: usize = 64;

/// What one send reads from.
#[derive(Default)]
pub(super) struct Loan {
    bytes: Vec<u8>,
    list: Vec<SendBuf>,
}

impl Loan {
    /// The bytes of the loan. They stay where they are as long as it is kept.
    pub(super) fn buf(&self) -> Option<SendBuf> {
        // SAFETY: a vector's memory stays where it is while nobody grows it; whoever has the loan keeps it until the end of
        // the operation, and vouched for the pieces until then.
        unsafe { SendBuf::of_list(&self.list) }
    }
}

/// The loans of a worker.
#[derive(Default)]
pub(crate) struct Loans {
    spare: RefCell<Vec<Loan>>,
    out: RefCell<Vec<(SlotId, Loan)>>,
    /// With so many out, those that have ended are looked for.
    sweep_at: Cell<usize>,
}

impl Loans {
    /// A copy of `head`, and `pieces` behind it.
    ///
    /// # Safety
    /// The bytes of `pieces` stay valid as long as the loan's are used.
    pub(super) unsafe fn lend(&self, head: &[u8], pieces: impl Iterator<Item = SendBuf>) -> Loan {
        let mut loan = self.spare.borrow_mut().pop().unwrap_or_default();
        loan.bytes.clear();
        loan.bytes.extend_from_slice(head);
        loan.list.clear();
        if !head.is_empty() {
            // SAFETY: the bytes are the loan's own, and nobody changes them while they are used.
            loan.list.push(unsafe { SendBuf::new(loan.bytes.as_ptr(), head.len()) });
        }
        loan.list.extend(pieces);
        loan
    }

    /// A loan whose operation has ended.
    pub(super) fn back(&self, loan: Loan) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE {
            spare.push(loan);
        }
    }

    /// Keeps a loan until its operation has ended; `runs` says whether one still runs.
    pub(super) fn keep(&self, id: SlotId, loan: Loan, runs: impl Fn(SlotId) -> bool) {
        let mut out = self.out.borrow_mut();
        if out.len() >= self.sweep_at.get() {
            out.extract_if(.., |(id, _)| !runs(*id)).for_each(|(_, loan)| self.back(loan));
            self.sweep_at.set((out.len() * 2).max(SPARE));
        }
        out.push((id, loan));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loan_is_its_head_and_its_pieces_and_comes_back_when_its_send_has_ended() {
        let (loans, rest) = (Loans::default(), *b"data");
        for n in 0..1000u32 {
            // SAFETY: `rest` outlives the loans.
            let rest = unsafe { SendBuf::new(rest.as_ptr(), 4) };
            // SAFETY: as above.
            let loan = unsafe { loans.lend(b"head ", [rest].into_iter()) };
            let mut out = [0; 12];
            assert_eq!(loan.buf().unwrap().copy_to(0, &mut out), 9);
            assert_eq!(&out[..9], b"head data");
            // The last ten run.
            loans.keep(SlotId::from_raw(n), loan, |id| id.raw() + 10 > n);
        }
        assert!(loans.out.borrow().len() <= 64 + 10);
        let kept: Vec<u32> = loans.out.borrow().iter().map(|(id, _)| id.raw()).collect();
        assert!((990..1000).all(|n| kept.contains(&n)));
    }
}
