//! Headers and lists of pieces that running operations read. Dropped after the engine.

#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};

use crate::api::core::requests::RequestId;

use crate::rdm::SendBuf;

const MAX_SPARE: usize = 64;

#[derive(Default)]
pub(crate) struct Staged {
    bytes: Vec<u8>,
    list: Vec<SendBuf>,
}

impl Staged {
    /// Contents; their address is stable while the buffer is kept.
    pub(crate) fn buf(&self) -> Option<SendBuf> {
        // SAFETY: the vector does not grow while in use; the user keeps it until completion.
        unsafe { SendBuf::of_list(&self.list) }
    }
}

#[derive(Default)]
pub(crate) struct Staging<T> {
    spare: RefCell<Vec<T>>,
    in_use: RefCell<Vec<(RequestId, T)>>,
    sweep_at: Cell<usize>,
}

impl Staging<Staged> {
    /// Stages a copy of `head`, followed by `pieces`. Unsafe: the pieces stay valid while the result is used.
    pub(crate) unsafe fn stage(&self, head: &[u8], pieces: impl Iterator<Item = SendBuf>) -> Staged {
        let mut staged = self.take();
        staged.bytes.clear();
        staged.bytes.extend_from_slice(head);
        staged.list.clear();
        if !head.is_empty() {
            // SAFETY: the buffer owns the bytes and does not change them while in use.
            staged.list.push(unsafe { SendBuf::new(staged.bytes.as_ptr(), head.len()) });
        }
        staged.list.extend(pieces);
        staged
    }
}

impl<T: Default> Staging<T> {
    pub(crate) fn take(&self) -> T {
        self.spare.borrow_mut().pop().unwrap_or_default()
    }

    pub(crate) fn recycle(&self, staged: T) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < MAX_SPARE {
            spare.push(staged);
        }
    }

    /// Keeps a buffer until its operation completes, as reported by `runs`.
    pub(crate) fn keep(&self, id: RequestId, staged: T, runs: impl Fn(RequestId) -> bool) {
        let mut in_use = self.in_use.borrow_mut();
        if in_use.len() >= self.sweep_at.get() {
            // An operation may keep several.
            in_use
                .extract_if(.., |(kept, _)| *kept != id && !runs(*kept))
                .for_each(|(_, staged)| self.recycle(staged));
            self.sweep_at.set((in_use.len() * 2).max(MAX_SPARE));
        }
        in_use.push((id, staged));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::core::requests::{EMPTY_STATUS, RequestParams, Requests, Role};

    #[test]
    fn staged_buffers_hold_head_and_pieces_and_are_recycled_after_the_send() {
        let (staging, rest) = (Staging::default(), *b"data");
        let (mut reqs, mut started) = (Requests::new(RequestParams::default()), Vec::new());
        for n in 0..1000usize {
            // SAFETY: `rest` outlives the staging.
            let rest = unsafe { SendBuf::new(rest.as_ptr(), 4) };
            // SAFETY: as above.
            let staged = unsafe { staging.stage(b"head ", [rest].into_iter()) };
            let mut out = [0; 12];
            assert_eq!(staged.buf().unwrap().copy_to(0, &mut out), 9);
            assert_eq!(&out[..9], b"head data");
            let token = reqs.next_token().unwrap();
            started.push(reqs.start(token, Role::Flush, None));
            staging.keep(started[n], staged, |id| reqs.role(id).is_some());
            if n >= 10 {
                assert!(reqs.complete(started[n - 10], Ok(EMPTY_STATUS)).is_none());
            }
        }
        assert!(staging.in_use.borrow().len() <= 64 + 10);
        let kept: Vec<RequestId> = staging.in_use.borrow().iter().map(|(id, _)| *id).collect();
        assert!(started[990..].iter().all(|id| kept.contains(id)));
    }
}
