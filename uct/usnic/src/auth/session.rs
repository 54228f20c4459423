//! A session: the keys between two nodes, a direction each.
//!
//! A datagram's number is its nonce, counted by the session. It has nothing to do with a segment's sequence
//! number: a segment that is sent again, with a newer acknowledgement, is a new datagram with a new number.
//! After 2²² datagrams the key of a direction is replaced by one derived from it, within the limits that
//! RFC 9001 derives for AES-GCM. Nothing is said about that: the number tells the epoch.

use super::replay::{Number, ReplayWindow};
use super::secret::EpochKey;
use super::wire::{CLEAR, Clear, OVERHEAD, SALT, TAG, VERSION, kind};
use crate::channel::{ChannelId, channel_of};
use ring::aead::Aad;
use zerocopy::IntoBytes;

/// Datagrams of an epoch, as a power of two.
pub const EPOCH_BITS: u32 = 22;

/// The direction in which this node sends.
struct SendHalf {
    secret: [u8; 32],
    key: EpochKey,
    /// Epoch of the key.
    epoch: u64,
    /// Number of the next datagram.
    next: u64,
}

/// The direction in which it receives.
struct RecvHalf {
    /// Secret of the epoch after the next one.
    beyond: [u8; 32],
    /// Epoch of the highest number that has arrived.
    epoch: u64,
    previous: Option<EpochKey>,
    current: EpochKey,
    following: EpochKey,
    window: ReplayWindow,
}

/// Why a sealed datagram is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// It has arrived before.
    Repeated,
    /// It is too old to tell whether it has arrived before.
    Old,
    /// It does not authenticate.
    Forged,
}

/// Keys between this node and another one.
pub struct Session {
    /// The other node.
    pub node: u64,
    /// Number of the session at the other node.
    pub remote: u32,
    /// Salt of the initiator, which names the handshake.
    pub initiator_salt: [u8; SALT],
    /// Salt of the responder.
    pub responder_salt: [u8; SALT],
    send: SendHalf,
    recv: RecvHalf,
}

impl Session {
    /// Starts a session from the secrets of its directions.
    pub fn new(node: u64, remote: u32, salts: [[u8; SALT]; 2], send: [u8; 32], recv: [u8; 32]) -> Session {
        let following = EpochKey::next(&recv);
        Session {
            node,
            remote,
            initiator_salt: salts[0],
            responder_salt: salts[1],
            send: SendHalf { key: EpochKey::new(&send), secret: send, epoch: 0, next: 0 },
            recv: RecvHalf {
                beyond: EpochKey::next(&following),
                epoch: 0,
                previous: None,
                current: EpochKey::new(&recv),
                following: EpochKey::new(&following),
                window: ReplayWindow::new(),
            },
        }
    }

    /// Number of the next datagram sent.
    pub fn next_number(&self) -> u64 {
        self.send.next
    }

    /// Writes a datagram, sealed, to the start of `out`, and returns its length: [`OVERHEAD`] more.
    ///
    /// # Panics
    /// Panics if `out` is too short.
    pub fn seal(&mut self, bytes: &[u8], out: &mut [u8]) -> usize {
        let half = &mut self.send;
        let number = half.next;
        half.next += 1;
        if number >> EPOCH_BITS != half.epoch {
            half.advance(number >> EPOCH_BITS);
        }
        let clear = Clear {
            kind: kind::SEALED,
            version: VERSION,
            mark: u8::from(channel_of(bytes) == ChannelId::Priority),
            zero: 0,
            session: self.remote.into(),
            number: number.into(),
        };
        let (to_clear, rest) = out[..bytes.len() + OVERHEAD].split_at_mut(CLEAR);
        let (to, to_tag) = rest.split_at_mut(bytes.len());
        to_clear.copy_from_slice(clear.as_bytes());
        to.copy_from_slice(bytes);
        let (nonce, key) = (half.key.nonce(number), half.key.aead());
        let Ok(tag) = key.seal_in_place_separate_tag(nonce, Aad::from(&*to_clear), to) else {
            unreachable!("a datagram is shorter than the cipher's limit of 64 GiB")
        };
        to_tag.copy_from_slice(tag.as_ref());
        bytes.len() + OVERHEAD
    }

    /// Opens a sealed datagram in place and returns what was sealed.
    pub fn open<'d>(&mut self, number: u64, datagram: &'d mut [u8]) -> Result<&'d mut [u8], Refused> {
        let half = &mut self.recv;
        match half.window.check(number) {
            Number::New => {}
            Number::Repeated => return Err(Refused::Repeated),
            Number::Old => return Err(Refused::Old),
        }
        let epoch = number >> EPOCH_BITS;
        let key = match epoch.wrapping_sub(half.epoch) {
            0 => &half.current,
            1 => &half.following,
            u64::MAX => half.previous.as_ref().ok_or(Refused::Old)?,
            _ => return Err(Refused::Forged),
        };
        if datagram.len() < OVERHEAD {
            return Err(Refused::Forged);
        }
        let (clear, sealed) = datagram.split_at_mut(CLEAR);
        let opened = key.aead().open_in_place(key.nonce(number), Aad::from(&*clear), sealed);
        let len = opened.map_err(|_| Refused::Forged)?.len();
        if epoch > half.epoch {
            half.advance();
        }
        half.window.mark(number);
        debug_assert_eq!(len + TAG, sealed.len());
        Ok(&mut sealed[..len])
    }

    /// Goes on as if a number of datagrams had been sent.
    #[cfg(test)]
    pub fn skip_to(&mut self, number: u64) {
        self.send.next = number.max(self.send.next);
    }
}

impl SendHalf {
    #[cold]
    fn advance(&mut self, epoch: u64) {
        while self.epoch < epoch {
            self.secret = EpochKey::next(&self.secret);
            self.epoch += 1;
        }
        self.key = EpochKey::new(&self.secret);
    }
}

impl RecvHalf {
    /// The next epoch has begun.
    #[cold]
    fn advance(&mut self) {
        let following = EpochKey::new(&self.beyond);
        self.beyond = EpochKey::next(&self.beyond);
        let current = std::mem::replace(&mut self.following, following);
        self.previous = Some(std::mem::replace(&mut self.current, current));
        self.epoch += 1;
    }
}
