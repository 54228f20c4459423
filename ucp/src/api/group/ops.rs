//! The collective operations.

use super::collective::Group;
use super::messages::Parts;
use super::request::GroupRequest;
use crate::api::core::error::Error;
use crate::rdm::amo::{apply, combines};
use crate::wire::{AtomicOp, Datatype};

/// All parts behind each other, in the order of ranks.
fn joined(parts: Parts) -> Vec<u8> {
    parts.into_iter().flatten().collect::<Vec<_>>().concat()
}

/// The first part, which is the only one.
fn only(parts: Parts) -> Vec<u8> {
    parts.into_iter().flatten().next().unwrap_or_default()
}

/// Combines all parts, element by element, in the order of ranks.
fn reduced(op: AtomicOp, ty: Datatype, parts: Parts) -> Vec<u8> {
    let mut parts = parts.into_iter().flatten();
    let mut result = parts.next().unwrap_or_default();
    for part in parts {
        for (target, operand) in result.chunks_exact_mut(ty.size()).zip(part.chunks_exact(ty.size())) {
            apply(op, ty, target, operand, &[]);
        }
    }
    result
}

impl Group {
    /// Ends when every member has started its barrier.
    pub fn barrier(&self) -> GroupRequest {
        self.exchange(|_| Some(Vec::new()), |_| Some(0), None, |_| Ok(Vec::new()))
    }

    /// Gives every member the `data` of the member `root`. That of other members is not looked at, but its
    /// length, which is that of the root's.
    pub fn broadcast(&self, root: usize, data: Vec<u8>) -> GroupRequest {
        if root >= self.size() {
            return self.refuse();
        }
        if self.rank() == root {
            let copy = data.clone();
            return self.exchange(|_| Some(copy.clone()), |_| None, Some(data), |parts| Ok(only(parts)));
        }
        let len = data.len();
        self.exchange(|_| None, |rank| (rank == root).then_some(len), None, |parts| Ok(only(parts)))
    }

    /// Gives every member the data of all, in the order of ranks. All have equally many bytes.
    pub fn all_gather(&self, data: Vec<u8>) -> GroupRequest {
        let (copy, len) = (data.clone(), data.len());
        self.exchange(|_| Some(copy.clone()), |_| Some(len), Some(data), |parts| Ok(joined(parts)))
    }

    /// Gives the member `root` the data of all, in the order of ranks. All have equally many bytes.
    pub fn gather(&self, root: usize, data: Vec<u8>) -> GroupRequest {
        if root >= self.size() {
            return self.refuse();
        }
        let len = data.len();
        if self.rank() == root {
            return self.exchange(|_| None, |_| Some(len), Some(data), |parts| Ok(joined(parts)));
        }
        self.exchange(|rank| (rank == root).then(|| data.clone()), |_| None, None, |_| Ok(Vec::new()))
    }

    /// Gives each member its piece of the data of the member `root`, `len` bytes. The root has as many bytes
    /// for each member, in the order of ranks; `data` of other members is not looked at.
    pub fn scatter(&self, root: usize, data: Vec<u8>, len: usize) -> GroupRequest {
        if root >= self.size() || self.rank() == root && Some(data.len()) != len.checked_mul(self.size()) {
            return self.refuse();
        }
        if self.rank() != root {
            return self.exchange(
                |_| None,
                |rank| (rank == root).then_some(len),
                None,
                |parts| Ok(only(parts)),
            );
        }
        let piece = |rank: usize| data[rank * len..][..len].to_vec();
        let own = piece(root);
        self.exchange(|rank| Some(piece(rank)), |_| None, Some(own), |parts| Ok(only(parts)))
    }

    /// Gives each member a piece of the data of every member, in the order of ranks: the piece with its own
    /// number. Each member has pieces of the same length for all.
    pub fn all_to_all(&self, data: Vec<u8>) -> GroupRequest {
        if !data.len().is_multiple_of(self.size()) {
            return self.refuse();
        }
        let len = data.len() / self.size();
        let piece = |rank: usize| data[rank * len..][..len].to_vec();
        let own = piece(self.rank());
        self.exchange(|rank| Some(piece(rank)), |_| Some(len), Some(own), |parts| Ok(joined(parts)))
    }

    /// Combines the elements of all members, in the order of ranks, and gives every member the result.
    /// [`Error::Invalid`] of an operation that reads, writes or compares, or that the type does not have.
    pub fn all_reduce(&self, op: AtomicOp, ty: Datatype, data: Vec<u8>) -> GroupRequest {
        if !combines(op, ty) || !data.len().is_multiple_of(ty.size()) {
            return self.refuse();
        }
        let (copy, len) = (data.clone(), data.len());
        let finish = move |parts| Ok(reduced(op, ty, parts));
        self.exchange(|_| Some(copy.clone()), |_| Some(len), Some(data), finish)
    }

    /// Combines the elements of all members as [`Group::all_reduce`] does, and gives the result to the member
    /// `root` alone.
    pub fn reduce(&self, root: usize, op: AtomicOp, ty: Datatype, data: Vec<u8>) -> GroupRequest {
        if root >= self.size() || !combines(op, ty) || !data.len().is_multiple_of(ty.size()) {
            return self.refuse();
        }
        let len = data.len();
        if self.rank() == root {
            let finish = move |parts| Ok(reduced(op, ty, parts));
            return self.exchange(|_| None, |_| Some(len), Some(data), finish);
        }
        self.exchange(|rank| (rank == root).then(|| data.clone()), |_| None, None, |_| Ok(Vec::new()))
    }

    /// Combines the elements of all members as [`Group::all_reduce`] does, and gives each member its piece of
    /// the result. All pieces are equally long.
    pub fn reduce_scatter(&self, op: AtomicOp, ty: Datatype, data: Vec<u8>) -> GroupRequest {
        let is_whole = data.len().is_multiple_of(ty.size().saturating_mul(self.size()));
        if !combines(op, ty) || !is_whole {
            return self.refuse();
        }
        let len = data.len() / self.size();
        let piece = |rank: usize| data[rank * len..][..len].to_vec();
        let own = piece(self.rank());
        let finish = move |parts| -> Result<Vec<u8>, Error> { Ok(reduced(op, ty, parts)) };
        self.exchange(|rank| Some(piece(rank)), |_| Some(len), Some(own), finish)
    }
}
