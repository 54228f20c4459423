//! Work that waits, and events: what every poll asks for first, in few cache lines.

use std::collections::VecDeque;

use crate::rdm::ids::{LaneId, PeerId};
use crate::rdm::io::Reg;
use crate::rdm::recv::held_packets::HeldPackets;
use crate::rdm::status::OpError;
use crate::rdm::types::{EngineConfig, EngineEvent};

/// Lists of work that waits for room, time, a wire or memory, the events to be taken, and the packet bytes
/// that are kept.
///
/// Field order in memory: every poll reads the lengths down to the limits of `held_packets`.
#[derive(Debug)]
#[repr(C)]
pub struct Pending {
    /// Peers with work, by their first lanes, and further lanes with packets of their own, each once.
    pub(in crate::rdm) scheduled: VecDeque<LaneId>,
    /// Lanes whose receivers were not ready, each once.
    pub(in crate::rdm) backed_off: Vec<LaneId>,
    /// Failed peers of which packets may still arrive.
    pub(in crate::rdm) draining: Vec<PeerId>,
    /// Registrations of ended operations, to be released.
    pub(in crate::rdm) unused_regs: Vec<Reg>,
    /// Registrations of failed operations, to be revoked.
    pub(in crate::rdm) revoked_regs: Vec<Reg>,
    /// Events, oldest first.
    pub(in crate::rdm) events: VecDeque<EngineEvent>,
    /// Bytes of packets that wait or were not matched.
    pub(in crate::rdm) held_packets: HeldPackets,
    /// State of the random generator for back-off delays.
    pub(in crate::rdm) rng: u64,
    /// Most memory of unexpected messages, bytes.
    pub(in crate::rdm) unexpected_max: usize,
}

impl Pending {
    /// Takes the oldest event.
    // HOT
    #[inline]
    pub fn take_event(&mut self) -> Option<EngineEvent> {
        self.events.pop_front()
    }

    /// Takes the event that a cancel has just added: the end of the send or receive with this user value.
    #[cold]
    pub fn take_cancelled(&mut self, user: u64) -> bool {
        let is_it = |event: &EngineEvent| match *event {
            EngineEvent::SendDone { user: of, result: Err(OpError::Cancelled) } => of == user,
            EngineEvent::RecvDone { user: of, result: Err(OpError::Cancelled) } => of == user,
            _ => false,
        };
        self.events.iter().rposition(is_it).is_some_and(|at| self.events.remove(at).is_some())
    }

    /// True if events wait to be taken.
    // HOT
    #[inline(always)]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// True if [`on_wire_drained`](crate::rdm::Engine::on_wire_drained) has anything to do.
    // HOT
    #[inline(always)]
    pub fn is_draining(&self) -> bool {
        !self.draining.is_empty()
    }

    pub(in crate::rdm) fn new(cfg: &EngineConfig) -> Pending {
        Pending {
            scheduled: VecDeque::new(),
            backed_off: Vec::new(),
            draining: Vec::new(),
            unused_regs: Vec::new(),
            revoked_regs: Vec::new(),
            events: VecDeque::new(),
            held_packets: HeldPackets::new(cfg.unexpected_max),
            rng: u64::from(cfg.nonce),
            unexpected_max: cfg.unexpected_hard_max,
        }
    }
}
