//! What a worker keeps for active messages: handlers, buffers, and the messages that were handed over and are to be
//! handled. Used by `am` and, while packets are taken in, by `inlet`. Calls no handler.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::rdm::RecvStatus;
use crate::rdm::io::PeerId;

use super::am::{AmMessage, POSTED_LEN, Place};

/// Buffers kept for reuse.
const SPARE: usize = 64;

pub(super) type Handler = Rc<dyn Fn(AmMessage)>;

/// What a worker keeps for active messages. Nothing, until the first handler is set.
#[derive(Default)]
pub(crate) struct Ams {
    pub(super) on: Cell<bool>,
    pub(super) handlers: RefCell<HashMap<u16, Handler, FxBuildHasher>>,
    /// Buffers posted, by place; `arg` of their callbacks points to the place.
    pub(super) posted: RefCell<Vec<Rc<Place>>>,
    spare: RefCell<Vec<Box<[u8]>>>,
    /// Messages that came whole and in their turn, to be handled.
    come: RefCell<VecDeque<(RecvStatus, Box<[u8]>)>>,
    /// For packing.
    packs: RefCell<Vec<Vec<u8>>>,
    pub(super) next_number: Cell<u64>,
}

impl Ams {
    /// Takes a message in, to be handled behind this poll; false if there has been no handler yet, or it is too long.
    /// // HOT
    #[inline]
    pub(crate) fn take_in(&self, from: PeerId, tag: u64, payload: &[u8]) -> bool {
        let len = payload.len();
        if !self.on.get() || len > POSTED_LEN {
            return false;
        }
        let mut bytes = self.buffer();
        bytes[..len].copy_from_slice(payload);
        let status = RecvStatus { len, tag, from, cq_data: None };
        self.come.borrow_mut().push_back((status, bytes));
        true
    }

    /// The next message to handle. // HOT
    #[inline]
    pub(super) fn next(&self) -> Option<(RecvStatus, Box<[u8]>)> {
        self.come.borrow_mut().pop_front()
    }

    pub(super) fn spare(&self, buf: Box<[u8]>) {
        let mut spare = self.spare.borrow_mut();
        if buf.len() == POSTED_LEN && spare.len() < SPARE {
            spare.push(buf);
        }
    }

    pub(super) fn buffer(&self) -> Box<[u8]> {
        self.spare.borrow_mut().pop().unwrap_or_else(|| vec![0; POSTED_LEN].into())
    }

    /// Header and data in one; the vector is to be given back.
    pub(super) fn pack(&self, pieces: [&[u8]; 2]) -> Vec<u8> {
        let mut bytes = self.packs.borrow_mut().pop().unwrap_or_default();
        bytes.clear();
        pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
        bytes
    }

    pub(super) fn give_back(&self, bytes: Vec<u8>) {
        let mut packs = self.packs.borrow_mut();
        if packs.len() < SPARE {
            packs.push(bytes);
        }
    }
}
